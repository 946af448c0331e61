"""The gallery of bugs: the checker finds each one, and each repair passes."""

import re

import pytest

from phitodeep.testing import GradientError, GradientReport
from website import gallery

pytestmark = pytest.mark.xdist_group("gallery")  # whose cases run once
CASES = [case for group in gallery.cases().values() for case in group]
HINTS = {  # what the checker recognises, next to the place and the size of the error
    "softmax": "should add up to 0 in every row",
    "tanh": "If dY doubles, backward does not",
    "relu": "If dY doubles, backward does not",
    "leaky-relu": "If dY doubles, backward does not",
    "bias": "`axis=` missing in a sum",
    "batch-twice": "exactly 5 (the batch size) times too small",
    "eager": "backward modifies W",
    "dropout": "was the mask not applied",
    "first-window": "was that part never written",
    "batch-norm": "should add up to 0 in every feature",
}
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@each
def test_the_page_shows_a_bug_that_the_checker_finds_and_its_repair(case):
    verdict = case.verdict(case.bug.kind)
    assert "has wrong gradients" in verdict
    assert HINTS.get(case.name, "entries are wrong") in verdict
    assert isinstance(case._checked(case.repaired), GradientReport)
    assert case.worst() < 1e-7
    text = str(gallery.page(case).content)
    assert all(line in text for line in verdict.splitlines())
    assert case.code.rstrip() in text
    assert all(f"]({source.url})" in text for source in case.bug.sources)
    with pytest.raises(GradientError) as error:
        exec("\n".join(re.findall(r"^```py\n(.*?)^```", text, re.M | re.S)), {})
    assert str(error.value) == verdict
    lines = gallery.difference(case.bug.wrong, case.bug.right).splitlines()
    removed = {line[1:] for line in lines if line.startswith("-")}
    assert removed
    assert not removed & {line[1:] for line in lines if line.startswith("+")}
    before, wrong, right = gallery.losses(case)
    assert right < 0.8 * before
    assert abs(wrong - right) > 1e-4


def test_no_bug_is_left_out():
    assert len(CASES) >= 12
    assert set(HINTS) <= {case.name for case in CASES}
    index = gallery.index().content
    assert all(f"]({case.name}.md)" in str(index) for case in CASES)
