"""The explorer in a real browser: what it shows is what Python has, by mouse, keys and touch."""

import numpy as np
import pytest

from tests.browser.conftest import axe
from tests.browser.explorer import MODELS, array_of, moons, number, overlaps, traced
from tests.rows import few

ARRAYS = {
    "moons": ["0.forward.Y", "4.backward.dW", "2.backward.dX", "loss.backward.dP"],
    "digits": ["1.backward.dW", "1.forward.XW", "3.forward.Y", "3.backward.dX", "loss.backward.dP"],
    "cnn": ["0.forward.Y", "0.backward.dW", "5.forward.Y", "5.backward.dX", "2.backward.dX"],
    "lstm": [f"1.{key}" for key in ("backward.dWh", "forward.c_t", "backward.dh_t", "backward.dX")]
    + ["0.backward.dW"],
    "gpt": [
        *(f"2.layers.0.layers.1.{key}" for key in ("backward.dWqkv", "backward.dS", "forward.P")),
        *("2.layers.0.layers.0.backward.dX", "4.backward.dW", "loss.backward.dP"),
    ],
    "heads": ["6.backward.dX2", "8.forward.Y", "10.backward.dW", "loss.digit.backward.dP"],
}


# --- cells and their terms -----------------------------------------------------------------------


def check(seen, trace, key):
    """The cell in the inspector is Python's, and its terms add up to it."""
    shown = seen.shown
    wanted, largest = array_of(trace, shown, key)
    tiny = 1e-9 * largest
    assert shown.value == pytest.approx(wanted, rel=6e-4, abs=tiny), (key, shown)
    if seen.page.locator("#inspector .total").count():
        assert seen.total == pytest.approx(wanted, rel=6e-6, abs=tiny), (key, shown)
        terms = seen.terms
        rounding = 6e-3 * sum(abs(term) for term in terms)
        if "largest" not in seen.text("#inspector .terms h3"):
            assert sum(terms) == pytest.approx(wanted, rel=0, abs=rounding + tiny), (key, shown)


@pytest.mark.parametrize("name", few(ARRAYS, 1))
def test_a_cell_is_the_sum_that_the_inspector_shows(explorer, name):
    seen, trace = explorer(name), traced(name)
    for key in ARRAYS[name]:
        seen.find(key)
        check(seen, trace, key)
        first = seen.shown
        cells = set()
        for x, y in ((0.05, 0.05), (0.95, 0.95), (0.6, 0.4)):
            seen.hover(seen.result, x, y)
            check(seen, trace, key)
            cells.add(seen.shown.cell)
        assert len(cells) > 1, key
        seen.page.mouse.move(2, 2)
        assert seen.shown == first, key  # the chosen cell is back


@pytest.mark.parametrize("name", few(["cnn", "gpt"], 1))
def test_the_keyboard_moves_between_the_cells_of_an_array(explorer, name):
    seen, trace = explorer(name), traced(name)
    key = ARRAYS[name][0]
    seen.find(key)
    seen.press("Tab")
    seen.result.focus()
    moment, cells = seen.moment, [seen.shown.cell]
    for press in ("ArrowUp", "ArrowUp", "ArrowLeft", "ArrowDown", "ArrowRight"):
        seen.press(press)
        check(seen, trace, key)
        cells.append(seen.shown.cell)
    assert len(set(cells)) > 2
    assert cells[-1] != cells[0] or cells[-1] != cells[1]
    assert seen.moment == moment  # arrows moved in the array, not through the step
    seen.press("Enter")
    seen.press("Escape")
    assert seen.shown.cell == cells[-1]
    seen.press("ArrowRight")
    assert seen.moment != moment


def test_the_panel_stays_and_symbols_and_arrays_light_up_together(explorer):
    seen = explorer("moons")
    page = seen.page
    page.locator("#nudge").fill("0.5")
    outcome = seen.text(".outcome")
    page.evaluate("document.querySelector('aside').scrollTop = 200")
    seen.hover(seen.result, 0.5, 0.05)
    assert not page.locator("#nudge").count()
    page.mouse.move(2, 2)
    assert page.evaluate("document.querySelector('aside').scrollTop") == 200
    assert seen.text(".outcome") == outcome
    page.locator("#heading math [data-sym=X]").hover()
    assert page.locator("#picture [data-array=X].alight").count() == 1
    assert page.locator("#picture figure.alight").count() == 1
    page.locator("#picture [data-array=dY] canvas").hover()
    assert page.locator("#heading [data-sym=dY].alight").count() == 1
    assert page.locator("#picture [data-array=X].alight").count() == 0
    page.mouse.move(2, 2)
    assert page.locator(".alight").count() == 0


def test_a_number_leads_to_its_own_cell_and_back_also_by_keyboard(explorer):
    seen = explorer("moons")
    page, first, moment = seen.page, seen.shown, seen.moment
    factor = page.locator(".factor").first
    label = factor.get_attribute("title") or ""
    value = factor.text_content() or ""
    factor.hover()
    assert seen.shown == first  # pointing at it only marks its cell
    factor.click()
    assert seen.moment == "forward: layer 3, Tanh(), Y"
    assert f"X[{', '.join(map(str, seen.shown.cell))}]" in label
    assert f"{seen.shown.value:.3g}".lstrip("-") in value
    page.get_by_role("button", name="Back", exact=True).click()
    assert (seen.shown, seen.moment) == (first, moment)
    for expected in ("forward: layer 3, Tanh(), Y", "forward: layer 2, Dense(4, 4), Y"):
        page.locator(".factor").first.focus()
        seen.press("Enter")
        assert seen.moment == expected
        assert page.evaluate("document.activeElement.closest('#inspector') !== null")
    page.locator("#picture canvas").nth(1).focus()
    seen.press("Enter")
    assert seen.moment == "forward: layer 2, Dense(4, 4), XW"
    assert page.evaluate("document.activeElement.closest('#picture') !== null")


# --- going through the step ----------------------------------------------------------------------


def order(name):
    """The phases and layers of the step in the order in which they are computed."""
    trace = traced(name)
    forward = [f"layer {k}," for k in range(len(trace.model.layers))]
    moved = [f"layer {path}," for path in trace.updates]
    return [
        *(("forward", layer) for layer in forward),
        ("loss", "the loss"),
        *(("backward", layer) for layer in reversed(forward)),
        *(("update", layer) for layer in moved),
    ]


RECORD = """
window.met = [];
const record = (changes) => window.met.push(...changes.map((change) => change.oldValue));
const what = { attributeFilter: ["aria-valuetext"], attributeOldValue: true };
new MutationObserver(record).observe(document.getElementById("scrub"), what);
"""  # every moment that was shown before another, however little time it had


@pytest.mark.parametrize(("name", "still"), few([("moons", False), ("digits", True)], 1))
def test_play_goes_through_all_layers_in_true_order(explorer, name, still):
    seen = explorer(name, still=still)
    page = seen.page
    page.evaluate(RECORD)
    page.clock.install()
    seen.press("f")
    page.locator("#play").click()
    for _ in range(400):
        page.clock.run_for(1000 if still else 250)
        if seen.text("#play") == "Play":
            break
    met = [*page.evaluate("window.met"), seen.moment]
    ways = [tuple(moment.split(": ")) for moment in met]
    changes = [way for k, way in enumerate(ways) if k == 0 or way != ways[k - 1]]
    _, start, *found = changes  # the first was shown before
    assert start == ("forward", "the model, X")
    expected = order(name)
    assert len(found) == len(expected)
    for (phase, words), (wanted, layer) in zip(found, expected, strict=True):
        assert phase == wanted
        assert words.startswith(layer)
    seen.press(" ")  # from the end, it plays from the beginning
    assert seen.moment == "forward: the model, X"
    assert seen.text("#play") == "Pause"
    seen.press("ArrowRight")  # the reader takes over
    assert seen.text("#play") == "Play"
    moment = seen.moment
    page.clock.run_for(3000)
    assert seen.moment == moment


def test_the_keys_of_the_help(explorer):
    seen = explorer("lstm")
    page = seen.page
    for key, start in {
        "f": "forward: the model, X",
        "l": "loss: the loss, SoftmaxCrossEntropy",
        "b": "backward: layer 2, Dense(3, 7), dW",
        "u": "update: layer 0,",
    }.items():
        seen.press(key)
        assert seen.moment.startswith(start), key
    seen.press("f", "ArrowRight")
    assert seen.moment == "forward: layer 0, Embedding(7, 4), Y"
    seen.press("ArrowLeft")
    assert seen.moment == "forward: the model, X"
    seen.press("ArrowDown", "ArrowDown")
    assert seen.moment == "forward: layer 1, LSTM(3), Y"
    seen.press("ArrowUp")
    assert seen.moment == "forward: layer 0, Embedding(7, 4), Y"
    seen.press(" ")
    assert seen.text("#play") == "Pause"
    seen.press(" ")
    assert seen.text("#play") == "Play"
    seen.find("1.forward.h_t")
    seen.press("n")
    assert page.evaluate("document.activeElement.id") == "nudge"
    assert seen.shown.symbol == "dWx"
    slider = page.locator("#nudge")
    before = slider.input_value()
    seen.press("ArrowRight")
    assert float(slider.input_value()) > float(before)
    assert seen.shown.symbol == "dWx"
    for key, dialog in {"t": "table", "/": "search", "?": "help"}.items():
        seen.press(key)
        assert page.locator(f"#{dialog}").is_visible(), key
        seen.press("f" if key != "/" else "Tab", "Escape")
        assert not page.locator(f"#{dialog}").is_visible(), key
        assert seen.shown.symbol == "dWx"
    for dialog, opener in {"search": "#lookup", "help": "#ask"}.items():
        page.locator(opener).click()
        page.locator(f"#{dialog} .close").click()
        assert not page.locator(f"#{dialog}").is_visible()
    seen.press("/")
    page.locator("#search input").fill("nothing")
    assert "No array" in seen.text("#search ul")
    seen.press("Escape")


def test_the_buttons_and_the_bar(explorer):
    seen = explorer("digits")
    page = seen.page
    page.locator("#scrub").focus()
    seen.press("Home")
    assert seen.moment == "forward: the model, X"
    seen.press("ArrowRight", "ArrowRight")
    assert seen.moment.startswith("forward: layer 1, Dense(144, 20)")
    seen.press("End")
    assert seen.moment == "update: layer 3, Dense(20, 10), b"
    page.locator("#before").click()
    assert seen.moment == "update: layer 3, Dense(20, 10), W"
    page.locator("#next").click()
    assert seen.moment == "update: layer 3, Dense(20, 10), b"
    seen.page.locator("#steps button").nth(1).click()
    assert seen.moment == "forward: layer 3, Dense(20, 10), Y"
    page.locator(".unit .head").nth(2).click()
    assert seen.moment == "forward: layer 2, ReLU(), Y"
    seen.press("u")
    page.locator("#picture canvas").nth(1).hover()
    assert seen.shown.symbol == "dW"  # of an update, the gradient has its own terms
    check(seen, traced("digits"), "1.backward.dW")


# --- samples, weights, paths, two traces ---------------------------------------------------------


@pytest.mark.parametrize("name", few(MODELS, 1))
def test_a_sample_is_its_share(explorer, name):
    seen, n = explorer(name), 2
    share = traced(name).by_sample(n)
    seen.page.select_option("#samples", str(n))
    assert f"sample {n} adds" in seen.text(".numbers")
    first = share["loss.digit.L"].array if name == "heads" else share.loss
    assert number(seen.text(".numbers b")) == pytest.approx(first, rel=6e-4)
    for key in ARRAYS[name]:
        if ".backward." not in key:
            continue
        seen.find(key)
        check(seen, share, key)
        seen.hover(seen.result, 0.3, 0.6)
        check(seen, share, key)
    seen.page.select_option("#samples", "")
    check(seen, traced(name), key)


def loss_with(trace, path, name, cell, delta):
    """The loss of the traced batch with one weight moved."""
    twin, recording = trace.model.copy(), trace._recording
    dict(twin.walk())[path].params[name][cell] += delta
    return float(twin.trace(recording.data.X, recording.data.T).loss)


@pytest.mark.parametrize(
    ("name", "key"), few([("moons", "2.dW"), ("gpt", "4.dW"), ("lstm", "1.dWh")], 1)
)
def test_another_weight_changes_the_loss_as_it_says(explorer, name, key):
    seen, trace = explorer(name), traced(name)
    path, symbol = key.split(".")
    seen.find(key)
    cell, W = seen.shown.cell, trace[f"{path}.forward.{symbol[1:]}"].array
    owner = "0" if name == "gpt" else path  # GPT's last layer is tied to the embedding
    step = trace.updates[owner][symbol[1:]][cell]
    slope = trace[f"{path}.backward.{symbol}"].array[cell]
    if name == "gpt":
        slope += trace["0.backward.dW"].array[cell]
    for button, delta in {"double it": W[cell], "set it to 0": -W[cell], "this step": step}.items():
        choice = seen.page.get_by_role("button", name=button)
        if button == "this step" and not choice.count():
            assert name == "gpt"  # a tied weight's update is at its owner
            continue
        choice.click()
        predicted, true = (number(t) for t in seen.page.locator(".outcome td").all_text_contents())
        assert predicted == pytest.approx(slope * delta, rel=6e-3)
        moved = loss_with(trace, owner, symbol[1:], cell, float(delta)) - trace.loss
        assert true == pytest.approx(moved, rel=6e-3, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "key"),
    few([("moons", "0.dW"), ("cnn", "0.dW"), ("gpt", "2.layers.0.layers.1.dWqkv")], 1),
)
def test_paths_add_up(explorer, name, key):
    seen = explorer(name)
    seen.find(key)
    path, _, symbol = key.rpartition(".")
    seen.page.get_by_text("The strongest paths to the loss").click()
    shown = [number(t) for t in seen.page.locator(".paths > li > b").all_text_contents()]
    total = number(seen.page.locator(".paths + .total b").text_content() or "")
    wanted = traced(name)[f"{path}.backward.{symbol}"].array[seen.shown.cell]
    assert total == pytest.approx(wanted, rel=6e-6)
    assert sum(shown) == pytest.approx(wanted, rel=0, abs=6e-3 * sum(map(abs, shown)))
    assert seen.page.locator("aside").evaluate("all => all.scrollWidth <= all.clientWidth")


def test_two_traces(explorer):
    one, two = moons(), moons(seed=5)
    seen = explorer(one, compare=two)
    for key in ("0.backward.dW", "4.forward.Y"):
        a, b = one[key].array, two[key].array
        seen.find(key)
        for view, wanted in {"other": b, "difference": a - b, "this": a}.items():
            seen.page.select_option("#views", view)
            assert seen.table()[2] == pytest.approx(wanted, rel=6e-4, abs=1e-12), (key, view)
            if view != "difference":
                check(seen, {"this": one, "other": two}[view], key)


@pytest.mark.parametrize("name", few(ARRAYS, 1))
def test_a_table_for_every_picture(explorer, name):
    seen, trace = explorer(name), traced(name)
    for key in ARRAYS[name]:
        seen.find(key)
        shown = seen.shown
        array = trace[key].array if shown.t is None else trace[key].array[:, shown.t]
        part = np.atleast_2d(array[shown.cell[:-2]])
        rows, columns, numbers = seen.table()
        assert len(rows) == min(64, len(part)), key
        assert len(columns) == min(64, part.shape[1]), key
        assert numbers == pytest.approx(part[np.ix_(rows, columns)], rel=6e-4, abs=1e-12), key
    seen.press("Tab")
    for tile in seen.page.locator("canvas").all():
        tile.focus()
        assert seen.table()[2].size, tile.get_attribute("aria-label")


# --- every mode ----------------------------------------------------------------------------------

MODES = [
    *(("desktop", "light", False, name) for name in MODELS),
    *(("phone", "light", False, name) for name in MODELS),
    ("desktop", "dark", False, "lstm"),
    ("desktop", "dark", True, "gpt"),
    ("phone", "dark", True, "moons"),
]


@pytest.mark.parametrize(("size", "scheme", "still", "name"), few(MODES, 2))
def test_nothing_overlaps_and_nothing_is_a_barrier(explorer, size, scheme, still, name):
    seen = explorer(name, size=size, scheme=scheme, still=still)
    page = seen.page
    for k, key in enumerate(["f", "l", "b", "u", *ARRAYS[name]]):
        seen.press(key) if len(key) == 1 else seen.find(key)
        if size == "desktop":
            seen.hover(seen.result, 0.5, 0.5)
        assert overlaps(page) == [], key
        if k in (1, 5):
            assert axe(page) == [], key
    if size == "desktop":
        page.set_viewport_size({"width": 820, "height": 800})
        page.wait_for_timeout(50)
        assert overlaps(page) == []
        assert page.locator("h1").evaluate("(title) => title.offsetHeight") < 40
    if still:
        durations = (
            "[...document.querySelectorAll('*')].map(e => getComputedStyle(e).transitionDuration)"
        )
        assert set(page.evaluate(durations)) == {"0s"}
