"""Loops over time are written as a person would: arrays filled at t, and states in variables."""

import re
from pathlib import Path

import numpy as np
import pytest

from phitodeep import GRU, LSTM, RNN, check_gradients, derive
from phitodeep.derivations.derive.tangents import perform, seed
from phitodeep.derivations.language import run
from phitodeep.derivations.language.step import (
    Arrange,
    Carry,
    Given,
    Join,
    Let,
    Loop,
    Max,
    Size,
    Sum,
)
from phitodeep.errors import DerivationError

SIGMOID = re.compile(r"1 / \(1 \+ np\.exp\(-\((.*)\)\)\)")
ZEROS = "np.zeros_like(X, shape=(X.shape[0], Wh.shape[0]))"


def steps_of(kind):
    """The forward steps of a cell of the library, with zeros and sigmoids in plain code."""

    def plain(step):
        if isinstance(step, Given) and not isinstance(step, Size):
            return Arrange(step.symbol, ZEROS, "X", "nothing yet")
        gate = SIGMOID.fullmatch(step.code)
        return Let(step.symbol, f"sigmoid({gate[1]})") if gate else step

    cell = kind(3)
    cell.build((6, 5))
    found = [plain(step) for step in cell.steps().forward]
    return [Loop("X", [*map(plain, s.body)]) if isinstance(s, Loop) else s for s in found]


def given(gates, **more):
    return {"X": (4, 6, 5), "Wx": (5, 3 * gates), "Wh": (3, 3 * gates), "b": (3 * gates,), **more}


def code(source):
    return source[source.index("    def forward") : source.index("    def steps")].rstrip() + "\n"


CELLS = [(LSTM, given(4)), (GRU, given(3, bh=(9,))), (RNN, given(1))]


@pytest.mark.parametrize(("kind", "shapes"), CELLS[:2])
def test_a_written_cell_reads_like_a_persons_work(kind, shapes):
    listing = (Path(__file__).parent / f"written_{kind.__name__.lower()}.txt").read_text()
    assert code(derive(steps_of(kind), **shapes, name="Found").source) == listing


@pytest.mark.parametrize(("kind", "shapes"), CELLS)
def test_a_written_cell_computes_what_the_librarys_computes(kind, shapes):
    found, hand, rng = derive(steps_of(kind), **shapes).layer(), kind(3), np.random.default_rng(0)
    A, dY = rng.standard_normal((2, 7, 5)), rng.standard_normal((2, 7, 3))
    hand.build((7, 5), dtype=np.float64)
    found.build((7, 5), dtype=np.float64)
    found.set_weights({n: rng.standard_normal(W.shape) for n, W in found.params.items()})
    hand.set_weights(found.params)
    np.testing.assert_allclose(found.forward(A), hand.forward(A), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.backward(dY), hand.backward(dY), rtol=1e-11, atol=1e-13)
    for name, dW in hand.grads.items():
        np.testing.assert_allclose(found.grads[name], dW, rtol=1e-11, atol=1e-12)


def read(line):
    """A step from a short text."""
    symbol, _, code = line.partition(" = ")
    kind, _, rest = code.partition(" ")
    match kind:
        case "sum" | "max":
            return {"sum": Sum, "max": Max}[kind](symbol, *rest.split())
        case "carry":
            return Carry(symbol, *rest.split())
        case "move":
            return Arrange(symbol, rest.partition(" ")[2], rest.partition(" ")[0], "moved")
    return Let(symbol, code)


def loop(*lines, reverse=False):
    return Loop("X", [read("x_t = move X X[:, t]"), *map(read, lines)], reverse=reverse)


PREV, START = "h_prev = carry h_t h_start", read("h_start = move X np.zeros_like(X[:, 0])")
Y = [Let("Y", "h_t")]
SQUASH = "h_t = np.tanh(a * h_prev + x_t)"
ATTENTION = ["s = sum nd,nsd->ns h_prev X", "top = max ns->n1 s", "E = np.exp(s - top)"]
ATTENTION += ["total = sum ns->n1 E", "p = E / total", "q = sum ns,nsd->nd p X"]
MOVES = ["top = max nd->n1 h_prev", "turned = move h_prev np.roll(h_prev, 1, axis=-1)"]
MOVES += ["some = move h_prev h_prev[:, ::2]", "s = sum nd->n1 some"]
LEARNED = read("h_start = move a np.broadcast_to(a, (X.shape[0], a.shape[0]))")
OLDER = ["h = carry h_prev h_start", "h_t = np.sin(a * h + h_prev * x_t)"]
TWICE = Loop(
    "X", [read("g_prev = carry g_t h_start"), read("g_t = np.sin(a * g_prev + h_t)")], reverse=True
)
BEGIN, LAST = read("h_start = move X X[:, 0]"), read("h_start = move X X[:, -1]")
FIRST, END = read("h_end = move h_t h_t[:, 0]"), [Let("Y", "np.sin(h_end)")]
TWO = "c_t = h_prev * x_t", "h_t = np.sin(a * c_t)"
LOOPS = {
    "in reverse": [START, loop(PREV, SQUASH, reverse=True), *Y],
    "the last state": [START, loop(PREV, SQUASH), read("Y = move h_t h_t[:, -1]")],
    "a learned start": [LEARNED, loop(PREV, SQUASH), *Y],
    "a start from X": [BEGIN, loop(PREV, SQUASH), *Y],
    "no state": [loop("h_t = np.tanh(a * x_t)"), *Y],
    "older": [START, loop(PREV, *OLDER), *Y],
    "two loops": [START, loop(PREV, SQUASH), TWICE, Let("Y", "g_t * h_t")],
    "attention": [START, loop(PREV, *ATTENTION, "h_t = np.tanh(a * q + x_t)"), *Y],
    "moves": [START, loop(PREV, *MOVES, "h_t = np.tanh(a * turned + top * x_t + s)"), *Y],
    "backwards to a start from X": [LAST, loop(PREV, SQUASH, reverse=True), FIRST, *END],
    "two readers": [BEGIN, loop(PREV, *TWO), Let("Y", "h_t + c_t")],
    "two readers of multiples": [BEGIN, loop(PREV, *TWO), Let("Y", "h_t * 2 + c_t")],
    "H": [BEGIN, loop(PREV, *TWO), Let("H", "h_t * 2 + c_t"), Let("Y", "np.sin(H) * X")],
    "y": [BEGIN, loop(PREV, *TWO, "y_t = h_t * x_t"), Let("Y", "y_t * 2 + X * X")],
    "a sum of all": [BEGIN, loop(PREV, SQUASH), read("m = sum ntd->n1d h_t"), Let("Y", "m * X")],
    "two states from one": [BEGIN, loop(PREV, "g = carry h_t h_start", SQUASH + " * g"), *Y],
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_is_written_rightly(name):
    found = derive(LOOPS[name], X=(4, 6, 5), a=(5,))
    names = [step.symbol for step in found.steps.every() if not isinstance(step, Loop)]
    assert len({*names}) == len(names)
    layer = found.layer()
    A = np.random.default_rng(3).standard_normal((2, 4, 5))
    check_gradients(layer, A)
    layer.build(A.shape[1:], dtype=np.float64)
    Y = layer.forward(A)
    seen = run.passes(layer, A, np.ones_like(Y))
    np.testing.assert_allclose(seen["Y"], Y, rtol=1e-12)
    np.testing.assert_allclose(seen["dX"], layer.backward(np.ones_like(Y)), rtol=1e-11)
    seed(seen, {(layer, "a"): (ta := A[0, 0])})  # <dY, tY> = <dX, tX> + <da, ta>
    seen["tX"] = A**2
    perform(seen, "forward")
    right = (seen["dX"] * A**2).sum() + (layer.grads["a"] * ta).sum()
    assert seen["tY"].sum() == pytest.approx(right, rel=1e-10)


@pytest.mark.parametrize(
    "step", [read("u = h_prev * m"), read("u = move X X[:, -1 - t]"), Join("u", "h_prev", "m")]
)
def test_what_a_loop_reads_otherwise_is_refused(step):
    cell = loop(PREV, "s = sum nd->n1 u", "h_t = np.tanh(a * s + x_t)")
    cell.body.insert(2, step)
    with pytest.raises(DerivationError, match=r"a loop reads [mX] as [mX]\[:, t\] or in a Sum"):
        derive([START, read("m = sum ntd->nd X"), cell, *Y], X=(4, 6, 5), a=(5,))
