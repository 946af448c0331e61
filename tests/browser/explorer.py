"""The explorer's files for the browser's tests, and what a reader sees in them."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from phitodeep import SequentialBuilder
from phitodeep.loss import BinaryCrossEntropy, SoftmaxCrossEntropy
from phitodeep.model import architectures as M
from phitodeep.optimization.optimizers import SGD, Adam

RAISED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
FRESH = np.random.default_rng


def number(text):
    """A number as the page writes it, such as "−1.2 × 10⁻⁵"."""
    text = text.translate(RAISED).replace("\u2212", "-")
    return float(text.replace(" \u00d7 10", "e").replace("∞", "inf"))


# --- models --------------------------------------------------------------------------------------


def moons(samples=8, seed=1):
    rng = FRESH(0)
    X, y = rng.standard_normal((samples, 2)), rng.integers(0, 2, (samples, 1)).astype(float)
    start = SequentialBuilder(2, seed=seed).dtype("float64")
    model = start.dense(4).tanh().dense(4).tanh().dense(1).sigmoid()
    return model.loss(BinaryCrossEntropy()).optimizer(Adam(0.05)).build().trace(X, y)


def digits():
    rng = FRESH(1)
    X, y = rng.random((6, 12, 12)), rng.integers(0, 10, 6)
    model = SequentialBuilder(12, 12, seed=0).dtype("float64").flatten().dense(20).relu().dense(10)
    return model.loss(SoftmaxCrossEntropy()).optimizer(SGD(0.1)).build().trace(X, y)


def cnn():
    rng = FRESH(2)
    X, y = rng.random((3, 12, 12, 1)), rng.integers(0, 4, 3)
    start = SequentialBuilder(12, 12, 1, seed=0).dtype("float64")
    model = start.conv2d(3, 3, stride=2).relu().max_pool2d(2).flatten().dense(4).softmax()
    return (
        model.loss("categorical_cross_entropy").optimizer(Adam(0.01)).build().trace(X, np.eye(4)[y])
    )


def lstm():
    X = FRESH(3).integers(0, 7, (3, 6))
    model = SequentialBuilder(6, seed=0).dtype("float64").embedding(7, 4).lstm(3).dense(7)
    built = model.loss(SoftmaxCrossEntropy()).optimizer(Adam(0.01)).build()
    return built.trace(X, np.roll(X, -1, 1))


def gpt():
    X = FRESH(4).integers(0, 9, (3, 5))
    model = M.gpt(9, 5, layers=1, heads=2, dim=8).dtype("float64").optimizer(Adam(0.003))
    return model.loss(SoftmaxCrossEntropy()).build().trace(X, np.roll(X, -1, 1))


def heads():
    """Two inputs, a value that is read from afar, and two losses."""
    rng = FRESH(5)
    start = SequentialBuilder(image=(6, 6, 1), words=(4,), seed=1).dtype("float64")
    model = start.at("image").conv2d(2, 3).relu().flatten().dense(4).name("seen")
    model = model.at("words").embedding(7, 3).lstm(3, return_sequences=False).concat("seen")
    model = model.dense(5).tanh().name("both").dense(3).output("digit", loss=SoftmaxCrossEntropy())
    model = model.at("both").dense(2).output("box", loss="huber", weight=0.5)
    X = {"image": rng.random((3, 6, 6, 1)), "words": rng.integers(0, 7, (3, 4))}
    return model.build().trace(X, {"digit": rng.integers(0, 3, 3), "box": rng.random((3, 2))})


MODELS = {make.__name__: make for make in (moons, digits, cnn, lstm, gpt, heads)}


@cache
def traced(name):
    return MODELS[name]()


# --- the page ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shown:
    """The cell in the inspector."""

    symbol: str
    cell: tuple[int, ...]
    value: float
    t: int | None
    layer: str


class Explorer:
    """An open explorer, as its reader uses it."""

    def __init__(self, page):
        self.page = page

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)

    def find(self, key):
        """Go to the moment that computes an array."""
        self.press("/")
        self.page.locator("#search input").fill(key)
        self.press("Enter")

    @property
    def result(self):
        """The array that this moment computes."""
        return self.page.locator("#picture canvas").first

    def text(self, selector):
        return self.page.locator(selector).first.text_content() or ""

    @property
    def moment(self):
        """Such as "backward: layer 4, Dense(4, 1), dW"."""
        return self.page.locator("#scrub").get_attribute("aria-valuetext") or ""

    @property
    def shown(self):
        match = re.fullmatch(r"(.+)\[([\d, ]*)\] = (\S.*)", self.text("#inspector h2"))
        assert match, self.text("#inspector")
        name, cell, value = match.groups()
        where = self.text("#inspector .where")
        layer, _, t = where.partition(", at step t = ")
        indices = tuple(int(k) for k in cell.split(", ") if k)
        return Shown(name, indices, number(value), int(t) if t else None, layer)

    @property
    def total(self):
        return number(self.text("#inspector .terms .total b"))

    @property
    def terms(self):
        """The largest terms, and the sum of the others."""
        return [number(text) for text in self.page.locator(".terms li b").all_text_contents()]

    def hover(self, tile, x, y):
        """Point at a place of a picture, from 0 to 1 across and down."""
        tile.scroll_into_view_if_needed()
        box = tile.bounding_box()
        assert box is not None
        at = box["x"] + x * box["width"], box["y"] + y * box["height"]
        self.page.mouse.move(*at)

    def table(self):
        """The rows, columns and numbers in the table of the array that has the focus, or else of
        the chosen cell's array."""
        self.press("t")
        found = self.page.locator("#table table").evaluate(TABLE)
        self.press("Escape")
        rows, columns, texts = found
        numbers = [[number(text) for text in row] for row in texts]
        return [int(k) for k in rows], [int(k) for k in columns], np.array(numbers)


def array_of(trace, shown, key):
    """The number that Python has for a cell of the array with this key."""
    array = trace[key].array
    cell = shown.cell
    if shown.t is not None:
        array = array[:, shown.t]
    return array[cell], float(np.abs(array).max())


TABLE = """(table) => {
  const texts = (place, kind) => Array.from(place.querySelectorAll(kind), (e) => e.textContent);
  return [texts(table, "tbody th"), texts(table, "thead th"),
    Array.from(table.querySelectorAll("tbody tr"), (row) => texts(row, "td"))];
}"""

OVERLAPS = Path(__file__).with_name("overlaps.js")


def overlaps(page):
    page.evaluate(OVERLAPS.read_text("utf-8"))
    return page.evaluate("overlaps()")
