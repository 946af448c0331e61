"""What the explorer says to a newcomer: samples as pictures, where numbers come from, the rule."""

import numpy as np
import pytest

from phitodeep import SequentialBuilder
from tests.browser.explorer import number, traced
from tests.rows import long

PIXEL = """(canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let best = 0;
  const strength = (k) => Math.abs(data[4 * k] - data[4 * k + 2]);  // orange is far from grey
  for (let k = 0; k < data.length / 4; k++) if (strength(k) > strength(best)) best = k;
  return [Math.floor(best / canvas.width), best % canvas.width];
}"""


@long
def test_samples_that_are_pictures_are_shown_and_chosen(explorer):
    trace = traced("digits")
    X, seen = trace["X"].array, explorer(trace)
    buttons = seen.page.locator("#gallery button")
    assert buttons.count() == len(X)
    for n, picture in enumerate(X):
        brightest = buttons.nth(n).locator("canvas").evaluate(PIXEL)
        assert picture[tuple(brightest)] > 0.97 * picture.max()  # colours are rounded
    buttons.nth(3).click()
    assert buttons.nth(3).get_attribute("aria-pressed") == "true"
    assert "Only the share of sample 3" in seen.text("#inspector .meaning")
    cell = seen.shown
    assert cell.value == pytest.approx(trace.by_sample(3)["3.dW"].array[cell.cell], rel=6e-4)
    buttons.nth(3).click()
    assert seen.shown.value == pytest.approx(trace["3.dW"].array[cell.cell], rel=6e-4)
    first = seen.page.locator(".terms li").first
    n = int((first.locator(".at").text_content() or "").rpartition(" ")[2])
    assert X[n][tuple(first.locator("canvas").evaluate(PIXEL))] > 0.97 * X[n].max()


def test_a_number_that_is_followed_says_where_it_came_from(explorer):
    seen = explorer(traced("moons"))
    factor = seen.page.locator(".factor").nth(1)  # dY of the last Dense
    value = number((factor.text_content() or "").rpartition(" ")[2])
    factor.click()
    assert seen.shown.symbol == "dX"
    assert seen.shown.value == pytest.approx(value, rel=6e-3)
    text = seen.text("#inspector")
    assert "the same number as dY[" in text
    assert "of layer 4, Dense(4, 1), where you came from" in text
    trace = traced("moons")
    seen = explorer(trace)
    seen.hover(seen.page.locator("#picture canvas").nth(1), 0.6, 0.4)  # X of the last Dense
    assert seen.shown.symbol == "X"
    assert "layer 3, Tanh(), returned" in seen.text("#inspector")
    assert seen.shown.value == pytest.approx(trace["3.Y"].array[seen.shown.cell], rel=6e-4)


def test_captions_tell_the_chain_rule_and_zeros_are_named(explorer):
    seen = explorer(traced("moons"))
    seen.find("3.dX")  # Tanh: dX = dY slope
    captions = " ".join(seen.page.locator("#picture figcaption").all_text_contents())
    for words in ("what it passes on", "what arrives", "its local slope"):
        assert captions.count(words) == 1, captions
    assert seen.text("#stage .rule").endswith("what it passes on")
    seen.find("4.dW")
    assert seen.text("#stage .rule").endswith("their slopes")
    assert "what it had received" in seen.text("#picture")
    model = SequentialBuilder(64, seed=0).dense(3).tanh().dense(1).build()
    seen = explorer(model.trace(np.zeros((5, 64)), np.ones((5, 1))))  # 64 is a square
    assert not seen.page.locator("#gallery").is_visible()
    assert seen.page.locator("#inspector canvas").count() == 0
    seen.find("0.dW")
    assert "All 5 terms are 0." in seen.text("#inspector")


@long
def test_the_table_marks_the_chosen_cell_and_play_begins_where_it_should(explorer):
    seen = explorer(traced("digits"))
    value = seen.text("#inspector h2 b")
    seen.press("t")
    marked = seen.page.locator("#table td.here")
    assert marked.count() == 1
    assert marked.text_content() == value
    assert marked.is_visible()
    seen = explorer(traced("moons"))
    seen.page.select_option("#pace", "1500")
    seen.press("Space", "Space")
    assert seen.moment.startswith("forward")
    seen.press("b", "Space", "Space")
    assert seen.moment.startswith("backward")
    seen.press("l")
    assert seen.moment.endswith(", L")
