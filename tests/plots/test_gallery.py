"""The pictures of pages such as docs/plots.md are those that their code draws; each is shown."""

from __future__ import annotations

import re

import pytest

from phitodeep import plots
from tools.make_plots import BLOCK, PAGES, PICTURES, ROOT


def text(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_the_page_shows_what_its_code_draws(name: str) -> None:
    code = "\n".join(BLOCK.findall(text(name)))
    drawn = re.findall(r'"(\w+\.(?:png|svg))"', code)
    shown = re.findall(rf"\]\(pictures/{PAGES[name]}_(\S+)\)", text(name))
    assert shown
    assert drawn == shown
    assert {f"{PAGES[name]}_{each}" for each in shown} == {
        path.name for path in PICTURES.glob(f"{PAGES[name]}_*")
    }


def test_the_page_shows_every_function() -> None:
    page = text("plots")
    methods = {"history": "history.plot(", "rates": "rates.plot(", "histograms": "watch.plot("}
    for name in plots.__all__:
        assert methods.get(name, f"plots.{name}(") in page
