"""The documentation runs: every Python block of README and docs, and every link between pages."""

import contextlib
import io
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import yaml

from phitodeep.model import Sequential
from tests.conftest import brief
from tests.rows import LONG

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)
PACKAGE, API = ROOT / "phitodeep", sorted((ROOT / "docs" / "api").glob("*.md"))
NEEDS = re.compile(r"\A<!-- needs: (.*?) -->")  # libraries without which a page's blocks do not run
UNSHOWN = {  # what only exports or looks up names, old paths, and displays
    "optimization.optimizers",
    "training.callbacks",
    "training.progress",
    *(f"optimization.{old}" for old in ("callbacks", "feeding", "initialization")),
    *(f"optimization.{old}" for old in ("rate_finder", "training")),
}
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
SHORT = {  # pages that train for long -> blocks that show what only the whole training reaches
    **dict.fromkeys(["README", "docs/speed", "docs/plots"], ()),
    "docs/transfer": (1,),
    "docs/sklearn": (1, 6),
    "docs/attributions": (1, 2, 3),
    "docs/data": (3, 5, 9, 10, 11, 12),
}
CHANGING = re.compile(r"samples/s")  # lines with times: their form is in the example, not asserted


def name(page):
    return page.relative_to(ROOT).as_posix()


def needs(page):
    """The libraries that a page declares in a comment on its first line, by their import names.

    `make check-extras` installs them; elsewhere its blocks are skipped if one is missing.
    """
    found = NEEDS.match(page)
    return found[1].split() if found else []


DECIMALS = re.compile(r"-?\d+\.\d{5,}")


def same(printed, shown):
    """Whether two texts agree; decimals may differ by rounding, as processors add differently."""
    if DECIMALS.sub("", printed).split() != DECIMALS.sub("", shown).split():
        return False
    numbers = [[float(n) for n in DECIMALS.findall(text)] for text in (printed, shown)]
    return numbers[0] == pytest.approx(numbers[1], rel=1e-5)


def test_decimals_may_differ_by_rounding_and_a_page_declares_what_it_needs():
    assert same("a 0.123456, b", "a  0.123457, b")
    assert not same("a 0.123456, b", "a 0.123556, b")
    assert not same("a 0.1, b", "a 0.2, b")
    assert not same("a 0.123456 b", "a 0.123456 c")
    assert needs("<!-- needs: torch -->\n# PyTorch\n") == ["torch"]
    assert needs("<!-- needs: transformers torch -->\n") == ["transformers", "torch"]
    assert needs("# PyTorch\n\n<!-- needs: torch -->\n") == []
    assert sum(len(BLOCK.findall(page.read_text())) for page in PAGES) > 20
    declared = {library for page in PAGES for library in needs(page.read_text())}
    assert declared <= {"torch", "transformers", "onnx", "onnxruntime", "skl2onnx", "sklearn"} | {
        *("tokenizers", "huggingface_hub", "numba", "pandas", "distributed")
    }


def train_on(count, patch):
    """Let every training from arrays see so many samples only, until the patch is undone."""
    whole = Sequential.train

    def train(model, X, y=None, *others, **settings):
        arrays = isinstance(X, np.ndarray) and y is not None
        return whole(model, *((X[:count], y[:count]) if arrays else (X, y)), *others, **settings)

    patch.setattr(Sequential, "train", train)


@pytest.mark.parametrize("page", [p for p in PAGES if BLOCK.search(p.read_text())], ids=name)
def test_blocks_run_and_print_what_the_page_shows(page, tmp_path, monkeypatch):
    """Pages train on all samples in a long run, and elsewhere on few, some for one epoch only."""
    text = page.read_text()
    if page.stem == "sweeps" and not LONG:
        pytest.skip("starts workers, as tests/sklearn/test_dask.py does: make test-all runs it")
    left_out = () if LONG else SHORT.get(name(page).removesuffix(".md"))
    if not LONG:
        train_on(1000 if left_out is None else 300, monkeypatch)
        if left_out is not None:
            brief(monkeypatch)
    if page.stem == "plots" and not LONG:  # tests/plots draws each picture
        monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: None)
    for library in needs(text):
        pytest.importorskip(library)
    if "sklearn" in needs(text) and not LONG:  # threads start at once
        monkeypatch.setattr("joblib.parallel.DEFAULT_BACKEND", "threading")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    names = {}
    for i, (code, shown) in enumerate(BLOCK.findall(text), 1):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, f"{name(page)}, block {i}", "exec"), names)
        if shown and i not in (left_out or ()) and not CHANGING.search(shown):
            assert same(out.getvalue(), shown), f"{name(page)}, block {i}:\n{out.getvalue()}"


def is_made_by_the_build(path):
    """Whether a page is in a folder that the navigation takes from a generator.

    The build checks links to such pages.
    """
    folders = re.findall(r": ([\w-]+)/$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    return any(path.resolve().is_relative_to(ROOT / "docs" / folder) for folder in folders)


def test_pages_are_linked_in_the_navigation_and_in_the_reference():
    for page in PAGES:
        for target in LINK.findall(page.read_text()):
            path = page.parent / target
            assert path.exists() or is_made_by_the_build(path), f"{name(page)} links to {target}"
    config = (ROOT / "mkdocs.yml").read_text().replace("!ENV", "")  # a tag of mkdocs
    listed = set(re.findall(r"[\w/.-]+\.md", yaml.safe_dump(yaml.safe_load(config)["nav"])))
    pages = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("[!_]*.md")}
    assert listed == pages
    shown = re.findall(
        r"^::: phitodeep\.(\S+)", "\n".join(p.read_text() for p in API), re.MULTILINE
    )
    folders = ("layers", "loss", "optimization", "training", "data", "text")
    for path in sorted(q for folder in folders for q in (PACKAGE / folder).glob("[!_]*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        assert module in shown or module in UNSHOWN, f"docs/api does not show phitodeep.{module}"


def test_docstrings_become_markdown():
    pytest.importorskip("griffe")
    markdown = runpy.run_path(str(ROOT / "docs" / "_docstrings.py"))["markdown"]
    text = "ema      e <- d e\n         and so on\nlr, t    a rate"
    assert markdown(text) == "`ema`\n:   e &lt;- d e\n    and so on\n\n`lr, t`\n:   a rate\n"
    text = "Train it: see there.\n\nShapes: X is (N, D).\nSource: a book."
    assert markdown(text) == (
        "Train it: see there.\n\n**Shapes:** X is (N, D).\n\n**Source:** a book.\n"
    )
