"""The pictures of pages such as docs/plots.md are those that their code draws; each is shown."""

import re

import numpy as np
import pytest

from phitodeep import SequentialBuilder, plots
from phitodeep.errors import ArgumentError, ArgumentTypeError
from tools.make_plots import BLOCK, PAGES, PICTURES, ROOT


def text(name):
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_the_page_shows_what_its_code_draws(name):
    code = "\n".join(BLOCK.findall(text(name)))
    drawn = re.findall(r'"(\w+\.(?:png|svg))"', code)
    shown = re.findall(rf"\]\(pictures/{PAGES[name]}_(\S+)\)", text(name))
    assert shown
    assert drawn == shown
    assert {f"{PAGES[name]}_{each}" for each in shown} == {
        path.name for path in PICTURES.glob(f"{PAGES[name]}_*")
    }


def test_the_page_shows_every_function_and_a_step_is_drawn_as_trace_saves_it(trace, tmp_path):
    page = text("plots")
    methods = {"history": "history.plot(", "rates": "rates.plot(", "histograms": "watch.plot("}
    for name in plots.__all__:
        assert methods.get(name, f"plots.{name}(") in page
    trace.save(tmp_path / "saved.svg")
    drawn = plots.step(trace, moving=True, path=tmp_path / "drawn.svg")
    assert drawn._repr_svg_() == (tmp_path / "drawn.svg").read_text("utf-8")
    once = (tmp_path / "saved.svg").read_text("utf-8")
    assert drawn.count("<rect") == once.count("<rect") > 0
    assert "@keyframes" in drawn
    assert "@keyframes" not in plots.step(trace)
    with pytest.raises(ArgumentTypeError, match=r"plots\.step takes"):
        plots.step(np.ones(3))
    with pytest.raises(ArgumentError, match=r"written to \.svg files, got .*step\.png"):
        plots.step(trace, path=tmp_path / "step.png")
    assert not (tmp_path / "step.png").exists()


@pytest.fixture
def trace():
    model = SequentialBuilder(2, seed=0).dense(3).tanh().dense(1).loss("mse").build()
    rng = np.random.default_rng(1)
    return model.trace(rng.standard_normal((4, 2)), rng.standard_normal((4, 1)))
