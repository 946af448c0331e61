"""The pictures of docs/plots.md are those that its code draws, and each of them is shown."""

from __future__ import annotations

import re

from phitodeep import plots
from tools.make_plots import BLOCK, PAGE, PICTURES


def test_the_page_shows_what_its_code_draws() -> None:
    page = PAGE.read_text(encoding="utf-8")
    code = "\n".join(BLOCK.findall(page))
    drawn = re.findall(r'"(\w+\.(?:png|svg))"', code)
    shown = re.findall(r"\]\(pictures/plot_(\S+)\)", page)
    assert drawn == shown
    assert {f"plot_{name}" for name in shown} == {p.name for p in PICTURES.glob("plot_*")}


def test_the_page_shows_every_function() -> None:
    page = PAGE.read_text(encoding="utf-8")
    methods = {"history": "history.plot(", "rates": "rates.plot(", "histograms": "watch.plot("}
    for name in plots.__all__:
        assert methods.get(name, f"plots.{name}(") in page
