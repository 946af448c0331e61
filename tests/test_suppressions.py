"""Suppressed warnings of ruff and mypy: each names its rule, and one more is a decision."""

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STARTS = r"#\s*(?:noqa|type:\s*ignore|ruff:|mypy:)"
MOST = {"phitodeep": 18, "tests": 5, "tools": 1} | dict.fromkeys(
    ["website", "course", "references", "benchmarks", "examples"], 0
)


def suppressions(folder):
    """(place, comment) of each, read from comments alone: strings may speak of them."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not re.search(STARTS, text):  # which is much faster than reading all tokens
            continue
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                place = f"{path.relative_to(ROOT).as_posix()}:{token.start[0]}"
                found += [(place, part) for part in comments(token.string)]
    return found


def comments(text):
    """The suppressions in a comment, each with what follows it."""
    return [part.strip() for part in re.split(f"(?={STARTS})", text) if re.match(STARTS, part)]


def is_specific(comment):
    """Whether a suppression names what it suppresses; one of a whole file never does."""
    code = r"# noqa: [A-Z]+\d+(?:, [A-Z]+\d+)*|# type: ignore\[[a-z-]+(?:, [a-z-]+)*\]"
    return re.match(rf"(?:{code})(?:\s|$)", comment) is not None


@pytest.mark.parametrize("folder", MOST)
def test_suppressions_are_specific_and_counted(folder):
    found = suppressions(folder)
    for place, comment in found:
        assert is_specific(comment), f"{place}: name the rule, as in `# noqa: X123`: {comment}"
    count, places = len(found), "\n".join(place for place, _ in found)
    assert count <= MOST[folder], (
        f"{folder} has {count} suppressions instead of at most {MOST[folder]}: mend the code, or "
        f"raise the number if there is no other way.\n{places}"
    )


def test_suppressions_are_recognised():
    both = "# type: ignore[index, union-attr]  # noqa: NPY002"
    assert comments(both) == ["# type: ignore[index, union-attr]", "# noqa: NPY002"]
    assert all(map(is_specific, comments(both)))
    for vague in ("# noqa", "# type: ignore", "# ruff: noqa", "# mypy: ignore-errors", "#noqa"):
        assert [is_specific(c) for c in comments(vague)] == [False], vague
    assert comments("# the noqa of others") == []
