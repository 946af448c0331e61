"""The explorer of unusual models and places, on a phone, and what it says to a newcomer."""

import numpy as np
import pytest

from phitodeep import SequentialBuilder
from phitodeep import layers as L
from phitodeep.layers import Dense
from phitodeep.loss import MeanSquaredError
from phitodeep.optimization.optimizers import SGD
from tests.browser.conftest import axe
from tests.browser.explorer import array_of, moons, number, overlaps, traced
from tests.rows import few, long

FRESH = np.random.default_rng
ALL = ["f", "l", "b", "u"]


class Nasty(Dense):
    """A layer whose name would end the script that holds the document."""


Nasty.__name__ = Nasty.__qualname__ = "</script><script>throw 1</script><!--"


def trained(shape, *layers, samples=3):
    builder = SequentialBuilder(*shape, seed=0).dtype("float64")
    for layer in layers:
        builder.add(layer)
    model = builder.loss(MeanSquaredError()).optimizer(SGD(0.1)).build()
    X = FRESH(0).standard_normal((samples, *shape))
    return model.trace(X, np.zeros_like(model.predict(X)))


def not_finite():
    model = SequentialBuilder(2, seed=0).dtype("float64").dense(3).dense(1).build()
    model.layers[0].params["W"][0, 0] = np.inf
    model.layers[0].params["W"][1, 1] = np.nan
    with np.errstate(all="ignore"):
        return model.trace(np.ones((2, 2)), np.zeros((2, 1)))


def hooked():
    model = SequentialBuilder(2, seed=0).dtype("float64").dense(3).tanh().dense(1).build()
    with model.hooks(bwd={"1.dX": lambda array, at: 2 * array}):
        return model.trace(FRESH(0).standard_normal((3, 2)), np.zeros((3, 1)))


def steps_unknown():
    """A layer without steps."""

    class Plain(L.Layer):
        def forward(self, X):
            return 2 * X

        def backward(self, dY):
            return 2 * dY

        def steps(self):
            return None

    return trained((4,), L.Dense(3), Plain(), L.Dense(2))


CASES = {
    "a name that ends a script": lambda: trained((3,), Nasty(2)),
    "NaN and infinity": not_finite,
    "hooks": hooked,
    "a layer without steps": steps_unknown,
    "one layer": lambda: trained((3,), L.Dense(2)),
    "one layer without parameters": lambda: trained((3,), L.Tanh()),
    "a batch of 1": lambda: moons(1),
    "300 samples": lambda: moons(300),
    "one cell": lambda: trained((1,), L.Dense(1), samples=1),
    "arrays too large for the file": lambda: trained(
        (700,), L.Dense(900), L.ReLU(), L.Dense(600), L.ReLU(), L.Dense(2)
    ),
    "a container first": lambda: trained((4,), L.Residual(L.Dense(4), L.Tanh()), L.Dense(2)),
    "deep containers": lambda: trained(
        (3, 4), L.TimeDistributed(L.Parallel(L.Residual(L.Dense(4)), L.Dense(2))), L.Dense(2)
    ),
    "both directions": lambda: trained((2, 3), L.Bidirectional(L.RNN(2)), L.Dense(2)),
    "a share": lambda: moons().by_sample(3),
}


@pytest.mark.parametrize("name", few(CASES, 2))
def test_it_works(explorer, name):
    """Each moment can be shown, and its largest cell is Python's."""
    seen = explorer(CASES[name]())
    page = seen.page
    seen.press("f")
    assert seen.moment.startswith("forward")
    last = None
    while (moment := seen.moment) != last:
        last = moment
        assert page.locator("#picture canvas").count()
        seen.press("ArrowRight")
    for key in ALL:
        seen.press(key)
        seen.hover(seen.result, 0.4, 0.6)
        assert overlaps(page) == [], key
    assert axe(page) == []


@long
def test_a_reduced_array_says_what_is_left_out_also_of_shares_samples_and_containers(explorer):
    seen = explorer(moons().by_sample(3))
    assert "the share of sample 3 in 8 samples" in seen.text("#facts")
    assert seen.page.locator("#samples").is_disabled()
    assert seen.text("#samples option") == "sample 3"
    trace = moons(300)
    seen = explorer(trace)
    seen.page.select_option("#samples", "299")
    wanted, _ = array_of(trace.by_sample(299), seen.shown, "4.backward.dW")
    assert seen.total == pytest.approx(wanted, rel=6e-6)
    seen = explorer(trained((6, 6, 1), L.Conv2D(2, 3), L.Flatten(), L.Dense(2), samples=40))
    seen.page.select_option("#samples", "33")  # too many images to draw
    seen.find("0.forward.Y")
    cells = set()
    for k in range(16):
        seen.hover(seen.result, 0.4, (k + 0.5) / 16)
        cells.add(seen.shown.cell[0])
    assert 33 in cells
    seen = explorer(CASES["a container first"]())
    page = seen.page
    page.locator(".head.inside").click()
    heads = page.locator(".unit .head b")
    assert heads.all_text_contents() == ["Dense", "Tanh", "Residual"]
    page.locator(".crumbs button").first.click()
    assert heads.all_text_contents() == ["Residual", "Dense", "MeanSquaredError"]
    trace = CASES["arrays too large for the file"]()
    seen = explorer(trace)
    page = seen.page
    seen.find("2.W")  # its update
    tiles = page.locator("#picture canvas")
    for tile in (tiles.first, tiles.last):  # W and its change
        seen.hover(tile, 0.3, 0.7)
        assert "540,000 numbers: too many for this file" in seen.text("#inspector")
    array = trace["2.forward.W"].array
    seen.press("Tab")
    tiles.first.focus()
    seen.press("t")
    assert "the 64 largest of 540,000 numbers" in seen.text("#table h2")
    rows = page.locator("#table tbody tr").all_text_contents()
    assert len(rows) == 64
    for row in rows:
        cell, _, value = row.removeprefix("[").partition("]")
        wanted = array[tuple(int(k) for k in cell.split(", "))]
        assert number(value) == pytest.approx(wanted, rel=6e-4)
    seen.press("Escape")
    key = "2.backward.dW"  # the page computes it, and the largest update is one of 64
    seen.find(key)
    shown = seen.shown
    assert shown.value == pytest.approx(trace[key].array[shown.cell], rel=6e-4)
    assert "cannot try other weights" in seen.text("#inspector")


def test_it_works_inside_a_notebook(page_of, tmp_path):
    file = tmp_path / "notebook.html"
    file.write_text(f"<!doctype html><title>Notebook</title>{traced('moons')._repr_html_()}")
    page = page_of(file)
    frame = page.frame_locator("iframe")
    assert "dW" in (frame.locator("#inspector h2").text_content() or "")
    frame.locator("#next").click()
    assert "db" in (frame.locator("#scrub").get_attribute("aria-valuetext") or "")
    frame.locator("#picture canvas").first.hover()
    assert "db[0]" in (frame.locator("#inspector h2").text_content() or "")


# --- on a phone ----------------------------------------------------------------------------------


# Whether the layer of this moment fills the screen, after the page's own way to it.
THERE = """() => {
  const { left, right } = document.querySelector(".track .current").getBoundingClientRect();
  return Math.abs(left + right - innerWidth) < 4;
}"""


@pytest.fixture
def phone(explorer):
    phone = explorer("moons", size="phone")
    phone.page.wait_for_function(THERE)
    return phone


def test_a_tap_shows_a_cell_and_a_second_one_follows_it(phone):
    page, moment = phone.page, phone.moment
    tile = page.locator("#picture [data-array=X] canvas")
    tile.scroll_into_view_if_needed()
    spot = {"x": 10, "y": 10}
    page.evaluate("window.scrollBy(0, 200)")
    tile.tap(position=spot)
    page.locator("#inspector .hint", has_text="Tap it again").wait_for()
    assert phone.moment == moment
    assert phone.shown.symbol == "X"
    cell = phone.shown.cell
    tile.tap(position=spot)
    wanted = "forward: layer 3, Tanh(), Y"
    page.wait_for_function(f"document.getElementById('scrub').ariaValueText === '{wanted}'")
    assert phone.shown.cell == cell


def test_the_sheet_opens_and_closes(phone):
    page = phone.page
    height = "document.querySelector('aside').getBoundingClientRect().height"
    low = page.evaluate(height)
    opened, closed = f"{height} > {1.5 * low}", f"{height} === {low}"
    page.locator("#sheet").tap()
    page.wait_for_function(opened)
    assert page.locator("#sheet").get_attribute("aria-expanded") == "true"
    phone.press("Escape")
    page.wait_for_function(closed)
    page.locator("#sheet").focus()
    phone.press("Enter")
    page.wait_for_function(opened)
    phone.press("Enter")
    page.wait_for_function(closed)


def test_a_swipe_changes_the_layer(phone):
    page = phone.page
    client = page.context.new_cdp_session(page)
    track = page.locator(".track").bounding_box()

    def touch(kind, *xs):
        points = [{"x": x, "y": track["y"] + 100} for x in xs]
        client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    def swipe(*xs):
        touch("touchStart", xs[0])
        for x in xs:
            touch("touchMove", x)
        touch("touchEnd")
        page.wait_for_function(THERE)  # the moment is now of the layer on the screen

    right = range(40, 360, 20)
    swipe(*right)
    assert phone.moment.startswith("backward: layer 3, Tanh()")
    for _ in range(4):
        swipe(*right)
    assert phone.moment == "forward: the model, X"
    for _ in range(7):
        swipe(*right[::-1])
    assert phone.moment.startswith("loss")


# --- what it says to a newcomer -------------------------------------------------------------------


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
    trace = traced("moons")
    seen = explorer(trace)
    factor = seen.page.locator(".factor").nth(1)  # dY of the last Dense
    value = number((factor.text_content() or "").rpartition(" ")[2])
    factor.click()
    assert seen.shown.symbol == "dX"
    assert seen.shown.value == pytest.approx(value, rel=6e-3)
    text = seen.text("#inspector")
    assert "the same number as dY[" in text
    assert "of layer 4, Dense(4, 1), where you came from" in text
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
