"""The workbench of a layer: numbers can be dragged, and the rest follows as in the library."""

import numpy as np
import pytest

from phitodeep.core.call import calling
from phitodeep.core.types import each
from tests.browser.conftest import axe
from tests.browser.explorer import number
from tests.rows import few
from website.bench import Bench, inputs
from website.layer_facts import FACTS, example
from website.layer_pages import link_of


def cells(page, symbol):
    return page.locator(f'.wb [data-sym="{symbol}"] .wb-cell')


def numbers(page, symbol):
    return cells(page, symbol).all_inner_texts()


def heights(page, symbol):
    height = "(cell) => cell.style.getPropertyValue('--v')"
    return [cell.evaluate(height) for cell in cells(page, symbol).all()]


def drag(page, cell, up):
    box = cell.bounding_box()
    assert box
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, y - up / 2)
    page.mouse.move(x, y - up)
    page.mouse.up()


def test_the_row_of_layer_norm_can_be_dragged_and_shifting_the_whole_row_changes_nothing(site_page):
    page = site_page("layers/layer-norm/")
    before = {s: (numbers(page, s), heights(page, s)) for s in ("X", "Y", "dX", "way_mean")}
    drag(page, cells(page, "X").nth(2), 40)
    for symbol, (texts, bars) in before.items():
        assert numbers(page, symbol) != texts, symbol
        assert heights(page, symbol) != bars, symbol
    moved = list(map(number, numbers(page, "X")))
    assert moved[2] > -1
    assert moved[:2] == [1, 3]
    layer, _, dY = example(FACTS["LayerNorm"])
    bench = Bench(layer, [np.array([moved])], dY)
    shown = list(map(number, numbers(page, "Y")))
    np.testing.assert_allclose(shown, bench["Y"][0], atol=0.006)
    assert page.locator(".wb-wrong").count() == 0
    page.get_by_role("button", name="Start again").click()
    assert numbers(page, "X") == before["X"][0]
    before = numbers(page, "Y"), numbers(page, "dX")
    cells(page, "X").first.focus()
    for _ in range(4):
        page.keyboard.press("PageUp")
        page.keyboard.press("ArrowRight")
    assert numbers(page, "X") == ["2", "4", "0", "1.5"]
    assert (numbers(page, "Y"), numbers(page, "dX")) == before


def test_the_keyboard_does_what_the_mouse_does(site_page):
    page = site_page("layers/layer-norm/")
    check = page.locator("[data-check] output").first
    hidden = page.locator(".wb .wb-hidden")
    before = numbers(page, "X"), numbers(page, "dX")
    assert (check.inner_text(), hidden.inner_text()) == ("True here.", "?")  # nothing ran yet
    cells(page, "X").nth(1).hover()
    page.mouse.down(button="right")  # which moves nothing
    page.mouse.move(300, 100)
    page.mouse.up(button="right")
    assert numbers(page, "X") == before[0]
    cells(page, "X").first.focus()
    for key in ("ArrowRight", "ArrowUp", "ArrowUp"):
        page.keyboard.press(key)
    assert numbers(page, "X")[:2] == ["1", "3.2"]
    assert numbers(page, "dX") != before[1]
    assert page.get_by_role("slider", name="X[0, 1]").get_attribute("aria-valuenow") == "3.2"
    assert (check.inner_text(), hidden.inner_text()) == ("True for these numbers.", "?")


MOVED = ["Dense", "Conv2D", "Bilinear", "BatchNorm", "LSTM", "MultiHeadAttention", "GELU"]


@pytest.mark.parametrize("name", few(MOVED, 3))
def test_what_a_moved_number_changes_is_what_the_library_computes(site_page, name):
    page = site_page(f"layers/{link_of(name)}/")
    before = numbers(page, "Y")
    layer, Xs, dY = example(FACTS[name])
    names = inputs(layer, Xs)
    for symbol in (*names, "dY"):
        cells(page, symbol).first.focus()
        page.keyboard.press("PageUp")
    for array in (*Xs, dY):
        array.flat[0] += 1
    with calling(step=0, first=0, training=True, caching=True, needs_dX=True):
        found = {"Y": layer.forward(*Xs)}
        gradients = dict(zip(names, each(layer.backward(dY)), strict=True)) | layer.grads
    found |= {f"d{name}": gradient for name, gradient in gradients.items()}
    assert numbers(page, "Y") != before
    for symbol, values in found.items():
        rows = zip(numbers(page, symbol), np.ravel(values), strict=True)
        shown = [(text, value) for text, value in rows if text != "?"]  # "?" is to be predicted
        for text, value in shown:
            assert number(text) == pytest.approx(value, abs=0.00501), symbol


def test_a_prediction_is_judged_and_pointing_at_a_step_lights_up_what_it_reads(site_page):
    page = site_page("layers/dense/")
    hidden = page.locator(".wb .wb-hidden")
    assert hidden.inner_text() == "?"
    value = float(Bench(*example(FACTS["Dense"]))["db"][0])
    form = page.locator(".wb-blank")
    form.locator("input").fill(str(value + 1))
    form.get_by_role("button", name="Check").click()
    assert "Not yet" in form.inner_text()
    assert hidden.count() == 1
    form.locator("input").fill(f"{value:.1f}")
    form.get_by_role("button", name="Check").click()
    assert "Right" in form.inner_text()
    assert hidden.count() == 0
    assert form.locator("li").count() == 4  # one term for each sample
    assert "dY[0, 0]" in form.inner_text()
    page.locator('[data-reads="dW X dY"]').focus()
    lit = page.locator(".wb .wb-array.wb-lit")
    assert {e.get_attribute("data-sym") for e in lit.all()} == {"dW", "X", "dY"}


def test_without_javascript_the_numbers_are_there(browser, site):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{site}layers/layer-norm/")
    assert numbers(page, "X") == ["1", "3", "\u22121", "0.5"]
    assert page.locator(".wb-blank").is_hidden()
    context.close()


PAGES = [
    *(("", "dark", "phone"), ("layer-norm/", "light", "phone"), ("lstm/", "dark", "desktop")),
    ("multi-head-attention/", "dark", "phone"),
]


@pytest.mark.parametrize(("path", "scheme", "size"), few(PAGES, 1))
def test_nothing_bars_a_reader(site_page, path, scheme, size):
    page = site_page(f"layers/{path}", size=size, scheme=scheme)
    assert axe(page, ".md-content") == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
