"""How recurrent layers and encodings of positions are recognised; rotary ones rotate features."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from phitodeep import layers as L
from phitodeep.core.types import Array
from phitodeep.errors import DataError
from phitodeep.exchange.onnx.read import axes as ax
from phitodeep.exchange.onnx.read.axes import PROBES, Group, leaves, new, number, size_of
from phitodeep.exchange.onnx.read.building import Placed, Plan, Writer
from phitodeep.exchange.onnx.read.interpreting import Call, Outputs, handles
from phitodeep.exchange.onnx.read.values import Constant, Step, View, identical
from phitodeep.functional import position_angles
from phitodeep.functional.rotary import LinearRope, LongRope, Rope, original

# --- recurrent layers -----------------------------------------------------------------------------

DIRECTIONS = {"forward": 1, "bidirectional": 2}
CELLS: dict[str, tuple[type[Any], list[int], list[str]]] = {
    # our layer, the gates of the operator in our order, and its usual activations
    "RNN": (L.RNN, [0], ["Tanh"]),
    "LSTM": (L.LSTM, [0, 2, 3, 1], ["Sigmoid", "Tanh", "Tanh"]),
    "GRU": (L.GRU, [1, 0, 2], ["Sigmoid", "Tanh"]),
}


@handles("RNN", "LSTM", "GRU")
def recurrent(node: Call) -> Outputs:
    _, order, usual = CELLS[node.op]
    gates = len(order)
    x, W, R, B = node.view(), node.array(1, 3), node.array(2, 3), node.const(3)
    directions = DIRECTIONS.get(node.attribute("direction", "forward"))
    if directions is None:
        raise DataError(f"direction={node.attribute('direction')!r} is not supported")
    H, D = R.shape[2], W.shape[2]
    if len(x.groups) != 3 or size_of(x.groups[2]) != ax.same(D) or node.attribute("layout"):
        raise DataError("its input must be (steps, samples, features)")
    if W.shape != (directions, gates * H, D) or R.shape != (directions, gates * H, H):
        raise DataError(f"its weights of shapes {W.shape} and {R.shape} do not fit")
    bias = np.zeros((directions, 2 * gates * H), W.dtype) if B is None else B.array("its bias")
    if bias.shape != (directions, 2 * gates * H):
        raise DataError(f"its bias of shape {bias.shape} does not fit")
    if any(value is not None for value in node.inputs[4:5]):
        raise DataError("lengths of sequences are not supported in the graph")
    starts = [node.const(5), node.const(6)]
    if any(start is not None and any(a.any() for a in start.each()) for start in starts):
        raise DataError("only states that begin at 0 are supported")
    if len(node.inputs) > 7 or node.attribute("clip") or node.attribute("input_forget"):
        raise DataError("peepholes, clip and input_forget are not supported")
    usual = usual * directions
    given = [f.capitalize() for f in node.attribute("activations", usual)]
    changed = node.attribute("activation_alpha") or node.attribute("activation_beta")
    if given != usual or changed:
        raise DataError(f"the activations {given[:9]} are not supported")
    if node.op == "GRU" and not node.attribute("linear_before_reset"):
        raise DataError("only linear_before_reset=1, which PyTorch has too, is supported")
    T, N, _ = x.groups
    both, units = new(ax.same(directions)), new(ax.same(H))
    weights = [_cell(node.op, *arrays) for arrays in zip(W, R, bias, strict=True)]
    outputs: Outputs = []
    for last, groups in ((False, [T, both, N, units]), (True, [both, N, units])):
        view = node.step(node.op, [x], groups, last=last, both=both, units=units, weights=weights)
        view.step.plan = _layer(view.step, last)
        outputs.append(view)
    return outputs


def last_state(step: Step) -> Plan | None:
    """The last of all states that a recurrent layer returns."""
    x = step.view()
    if x.step.op not in CELLS or x.step.settings["last"] or x.step.settings["both"]:
        return None
    steps = x.step.groups[0]
    along = x.groups[step.settings["axis"]]
    ends = [[n - 1] for n in size_of(steps)]
    if leaves(along) != leaves(steps) or step.settings["places"] != ends:
        return None
    return _layer(x.step, last=True)


def sum_of_directions(step: Step) -> Plan | None:
    x = step.view()
    if x.step.op not in CELLS or not x.step.settings["both"]:
        return None
    if leaves(step.settings["reduced"]) != leaves(x.step.settings["both"]):
        return None
    return _layer(x.step, x.step.settings["last"], merge="add")


def _layer(step: Step, last: bool, merge: str = "concat") -> Plan:
    x, s = step.view(), step.settings

    def write(w: Writer, placed: list[Placed]) -> Placed:
        if leaves(x.groups[1])[:1] != (w.batch,):
            w.vote(placed[0], x, (1, 0, 2))
        p, lead = w.samples_first(placed[0], x.groups[1], (x.groups[0], x.groups[2]))
        layer = CELLS[step.op][0](size_of(s["units"])[0], return_sequences=not last)
        w.weights.append((layer, s["weights"][0]))
        if len(s["weights"]) > 1:
            layer = L.Bidirectional(layer, merge)
            w.weights.append((layer.reverse, s["weights"][1]))
        both = s["both"] if merge == "concat" else ()
        steps = () if last else (x.groups[0],)
        return w.layer(layer, p, (*w.rows(lead), *steps, (*both, *s["units"])), lead)

    return Plan((x,), write)


def _cell(op: str, W: Array, R: Array, B: Array) -> dict[str, Array]:
    """Return our weights of one direction."""
    order = CELLS[op][1]

    def ours(A: Array) -> Array:
        parts = np.split(A, len(order))
        return np.concatenate([parts[k] for k in order]).T

    bias, recurrent_bias = np.split(B, 2)
    weights = {"Wx": ours(W), "Wh": ours(R)}
    if op == "GRU":
        return {**weights, "b": ours(bias), "bh": ours(recurrent_bias)}
    return {**weights, "b": ours(bias + recurrent_bias)}


# --- encodings of positions -----------------------------------------------------------------------


def position(step: Step) -> Plan | None:
    """Add a vector for each step: a table, or sines and cosines."""
    found = step.pair("Add")
    if found is None or len(found.x.groups) != 3:
        return None
    x, c, _ = found
    _, T, D = x.groups
    tables = []
    for a, steps, features in zip(c.each(), size_of(T), size_of(D), strict=True):
        tables.append(_matrix(a))
        if tables[-1].shape != (steps, features):
            return None
    if c.fixed:
        made: L.Layer = L.PositionalEmbedding(len(tables[0]))
        weights = {"W": tables[0]}
    elif whole := _whole(c, tables):
        made, weights = L.PositionalEmbedding(len(whole[0])), {"W": whole[0]}
    elif all(_is_sinusoidal(a) for a in tables):
        made, weights = L.SinusoidalEncoding(), {}
    else:
        return None

    def write(w: Writer, placed: list[Placed]) -> Placed:
        p, lead = w.samples_first(placed[0], x.groups[0], (T, D))
        return w.layer(made, p, p.layout, lead, **weights)

    return Plan((x,), write)


def _matrix(a: Array) -> Array:
    """Return an array (1, ..., 1, T, D) as (T, D), and any other as it is."""
    return a.reshape(a.shape[-2:]) if a.ndim > 2 and a.size == math.prod(a.shape[-2:]) else a


def _whole(c: Constant, tables: list[Array]) -> list[Array]:
    """Return the array whose first rows the tables are, in a list, which may be empty."""
    sources = [_matrix(source) for source in c.sources]
    return [W for W in sources if all(np.array_equal(a, W[: len(a)]) for a in tables)][:1]


def _is_sinusoidal(a: Array) -> bool:
    T, D = a.shape
    angles = position_angles(0, T, (D + 1) // 2, 2 / D)
    wanted = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(T, -1)[:, :D]
    return equal(a, wanted)


def equal(a: Array, b: Array) -> bool:
    """Return whether sines or cosines are equal, up to the last digits of their type."""
    digits = 1e-6 if a.dtype == np.float32 else 1e-12
    return a.shape == b.shape and bool(np.abs(a - b).max(initial=0) <= digits)


ENDLESS = 1 << 40  # positions: more than any sequence has


class Rotated(NamedTuple):
    """A rotation of x by the angles of `rope`, where `time` is the axis of the positions."""

    x: View
    time: Group
    rope: Rope | None


def rotary(step: Step) -> Plan | None:
    """A RotaryEmbedding of sequences."""
    found = rotation(step)
    if found is None or len(found.x.groups) != 3:
        return None
    x, time, rope = found
    if rope is None or type(rope) is not Rope or leaves(time) != leaves(x.groups[1]):
        return None

    def write(w: Writer, placed: list[Placed]) -> Placed:
        p, lead = w.samples_first(placed[0], x.groups[0], x.groups[1:])
        layout = (*p.layout[:-1], step.groups[-1])
        return w.layer(L.RotaryEmbedding(rope.base), p, layout, lead)

    return Plan((x,), write)


def rotation(step: Step) -> Rotated | None:
    """Concat(a cos - b sin, a sin + b cos), with a and b the halves of the last axis of x."""
    if step.op != "Concat" or len(step.inputs) != 2:
        return None
    if step.settings["axis"] != len(step.groups) - 1 or len(step.groups) < 2:
        return None
    first, second = step.view(0).made_by("Sub"), step.view(1).made_by("Add")
    factors = [view.made_by("Mul") for s in (first, second) if s for view in s.views()]
    terms = [found for s in factors if s and (found := s.pair("Mul"))]
    if len(terms) < 4:
        return None
    (a, cos, _), (b, sin, _), (a2, sin2, _), (b2, cos2, _) = terms
    if a2.is_(b):  # the terms of the sum may be in any order
        (a2, sin2), (b2, cos2) = (b2, cos2), (a2, sin2)
    halves = [h for view in (a, b) if (h := _half(view))]
    if not (a.is_(a2) and b.is_(b2)) or len(halves) < 2:
        return None
    (x, i), (x2, j) = halves
    same = all(map(identical, (*cos.each(), *sin.each()), (*cos2.each(), *sin2.each())))
    if (i, j) != (0, 1) or not x.is_(x2) or not same:
        return None
    time = _time(cos, a)
    if time is None or time != _time(sin, a):
        return None
    rope = _rope_of(cos, sin, size_of(time), number(x.groups[-1]))
    return None if rope is None else Rotated(x, time, rope)


def _half(view: View) -> tuple[View, int] | None:
    """Return x and which half of its last axis the view is."""
    step = view.made_by("Take")
    if step is None or step.settings["axis"] != len(step.groups) - 1:
        return None
    x, places = step.view(), step.settings["places"]
    n = number(x.groups[-1])
    for i in (0, 1):
        half = n % 2 == 0 and all(2 * len(p) == n for p in places)
        if half and places == [list(range(i * n // 2, (i + 1) * n // 2))] * PROBES:
            return x, i
    return None


def _time(c: Constant, x: View) -> Group | None:
    """Return the only axis, other than the last, along which a constant differs."""
    varying = set()
    for a in c.each():
        offset = len(x.groups) - a.ndim
        varying |= {offset + i for i, n in enumerate(a.shape[:-1]) if n > 1}
    if len(varying) > 1 or min(varying, default=0) < 0:
        return None
    return x.groups[varying.pop()] if varying else ()


def _rope_of(cos: Constant, sin: Constant, steps: Sequence[int], d: int) -> Rope | None:
    """Return the angles of cos and sin (T, d / 2), or None if no Rope has them."""
    tables = list(zip(cos.each(), sin.each(), steps, strict=True))
    if any(a.size != T * (d // 2) for *both, T in tables for a in both):
        return None
    tables = [(c.reshape(T, -1), s.reshape(T, -1), T) for c, s, T in tables]
    amplitude = float(tables[0][0][0, 0])
    if not math.isfinite(amplitude) or amplitude <= 0:
        return None
    amplitude = 1.0 if abs(amplitude - 1) < 1e-7 else amplitude
    c, s, T = max(tables, key=lambda table: table[2])
    frequencies = [w.ravel().astype(np.float64) for w in cos.sources if w.size == d // 2]
    if T == 1:
        frequencies.append(original(d, 10000.0))
    else:  # those of the first angle
        frequencies.append(np.arctan2(s[1].astype(np.float64), c[1].astype(np.float64)))
    ropes = (rope for w in frequencies for rope in _ropes(w, d, amplitude))
    return next((rope for rope in ropes if all(_fits(rope, *table, d) for table in tables)), None)


def _ropes(w: Array, d: int, amplitude: float) -> Iterator[Rope]:
    """Yield Ropes that may have these frequencies, the simplest first."""
    if not (np.isfinite(w).all() and w.min() > 0):
        return
    if amplitude == 1:
        exact = float(w[1] / w[0]) ** (-d / 2) if len(w) > 1 else 10000.0
        for f in (_rounded, float):
            base, factor = f(exact), f(1 / float(w[0]))
            if 1 < base < 1e30:
                yield Rope(base) if factor == 1 else LinearRope(factor, base)
    factors = (original(d, 10000.0) / w).tolist()
    yield LongRope(factors, factors, ENDLESS, amplitude)


def _rounded(value: float) -> float:
    """Return the value with six digits, if that is what it is up to rounding."""
    short = float(f"{value:.6g}")
    return short if math.isclose(short, value, rel_tol=2e-6) else value


def _fits(rope: Rope, cos: Array, sin: Array, T: int, d: int) -> bool:
    """Return whether a Rope has these cosines and sines (T, d / 2)."""
    double: Any = np.dtype(np.float64)
    wanted = rope.cos_and_sin(0, T, d, double)
    return all(equal(a, b) for a, b in zip((cos, sin), wanted, strict=True))
