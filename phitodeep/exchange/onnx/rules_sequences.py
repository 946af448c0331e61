"""How recurrent layers, attention and encodings of positions are recognised."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from phitodeep.errors import DataError
from phitodeep.exchange.onnx.axes import (
    PROBES,
    Axis,
    Group,
    aligned,
    expanded,
    flat,
    leaves,
    positions,
    size_of,
)
from phitodeep.exchange.onnx.expressions import near, op, product, scalar
from phitodeep.exchange.onnx.placing import Placed, Plan, Writer, count
from phitodeep.exchange.onnx.rules_general import dense_parts
from phitodeep.exchange.onnx.values import Constant, Step, View
from phitodeep.functional import cos_and_sin, position_angles
from phitodeep.layers import (
    GRU,
    LSTM,
    RNN,
    Bidirectional,
    Layer,
    MultiHeadAttention,
    PositionalEmbedding,
    RotaryEmbedding,
    SinusoidalEncoding,
)
from phitodeep.types import Array

# --- recurrent layers -----------------------------------------------------------------------------

CELLS: dict[str, tuple[type[Any], list[int]]] = {  # and the gates of the operator in our order
    "RNN": (RNN, [0]),
    "LSTM": (LSTM, [0, 2, 3, 1]),
    "GRU": (GRU, [1, 0, 2]),
}


def recurrent(step: Step) -> Plan:
    return _recurrent(step, step.settings["last"])


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
    return _recurrent(x.step, last=True)


def sum_of_directions(step: Step) -> Plan | None:
    x = step.view()
    if x.step.op not in CELLS or not x.step.settings["both"]:
        return None
    if leaves(step.settings["reduced"]) != leaves(x.step.settings["both"]):
        return None
    return _recurrent(x.step, x.step.settings["last"], merge="add")


def _recurrent(step: Step, last: bool, merge: str = "concat") -> Plan:
    x, s = step.view(), step.settings
    kind, gates = CELLS[step.op]
    cells = [_cell(step, i, gates) for i in range(len(s["W"]))]

    def write(w: Writer, placed: list[Placed]) -> Placed:
        if leaves(x.groups[1])[:1] != (w.batch,):
            w.vote(placed[0], x, (1, 0, 2))
        lead = w.lead(x.groups[1])
        first = ((w.batch,), *((axis,) for axis in lead))
        p = w.arranged(placed[0], (*first, x.groups[0], x.groups[2]))
        layer = kind(s["R"].shape[2], return_sequences=not last)
        w.weights.append((layer, cells[0]))
        if len(cells) > 1:
            layer = Bidirectional(layer, merge)
            w.weights.append((layer.reverse, cells[1]))
        both = s["both"] if merge == "concat" else ()
        steps = () if last else (x.groups[0],)
        return w.layer_in(lead, layer, p, (*first, *steps, (*both, *s["units"])))

    return Plan((x,), write)


def _cell(step: Step, i: int, gates: list[int]) -> dict[str, Array]:
    """Return our weights of one direction."""
    g = len(gates)

    def ours(A: Array) -> Array:
        parts = np.split(A, g)
        return np.concatenate([parts[k] for k in gates]).T

    bias, recurrent_bias = np.split(step.settings["B"][i], 2)
    weights = {"Wx": ours(step.settings["W"][i]), "Wh": ours(step.settings["R"][i])}
    if step.op == "GRU":
        return {**weights, "b": ours(bias), "bh": ours(recurrent_bias)}
    return {**weights, "b": ours(bias + recurrent_bias)}


# --- encodings of positions -----------------------------------------------------------------------


def position(step: Step) -> Plan | None:
    """Add a vector for each step: a table, or sines and cosines."""
    for i in (0, 1):
        x, c = step.inputs[i], step.inputs[1 - i]
        if isinstance(x, View) and isinstance(c, Constant):
            return _position(step, x, c)
    return None


def _position(step: Step, x: View, c: Constant) -> Plan | None:
    if len(x.groups) != 3:
        return None
    _, T, D = x.groups
    tables = []
    for a, steps, features in zip(c.each(), size_of(T), size_of(D), strict=True):
        a = a.reshape(a.shape[-2:]) if a.ndim >= 2 and a.size == math.prod(a.shape[-2:]) else a
        if a.shape != (steps, features):
            return None
        tables.append(a)
    if c.fixed:
        made: Layer = PositionalEmbedding(len(tables[0]))
        weights = {"W": tables[0]}
    elif c.table is not None and all(
        c.table.ndim == 2 and np.array_equal(a, c.table[: len(a)]) for a in tables
    ):
        made, weights = PositionalEmbedding(len(c.table)), {"W": c.table}
    elif all(_is_sinusoidal(a) for a in tables):
        made, weights = SinusoidalEncoding(), {}
    else:
        return None

    def write(w: Writer, placed: list[Placed]) -> Placed:
        lead = w.lead(x.groups[0])
        layout = ((w.batch,), *((axis,) for axis in lead), T, D)
        p = w.arranged(placed[0], layout)
        return w.layer_in(lead, made, p, layout, **weights)

    return Plan((x,), write)


def _is_sinusoidal(a: Array) -> bool:
    T, D = a.shape
    angles = position_angles(0, T, (D + 1) // 2, 2 / D)
    wanted = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(T, -1)[:, :D]
    return _equal(a, wanted)


def _equal(a: Array, b: Array) -> bool:
    """Return whether sines or cosines are equal, up to the last digits of their type."""
    digits = 1e-6 if a.dtype == np.float32 else 1e-12
    return a.shape == b.shape and bool(np.abs(a - b).max(initial=0) <= digits)


class Rotated(NamedTuple):
    """A rotary embedding of x, whose base is None if it does not matter."""

    x: View
    base: float | None


def rotary(step: Step) -> Plan | None:
    found = rotation(step)
    if found is None or len(found.x.groups) != 3:
        return None
    x, base = found

    def write(w: Writer, placed: list[Placed]) -> Placed:
        lead = w.lead(x.groups[0])
        layout = ((w.batch,), *((axis,) for axis in lead), *x.groups[1:])
        p = w.arranged(placed[0], layout)
        made = RotaryEmbedding() if base is None else RotaryEmbedding(base)
        return w.layer_in(lead, made, p, (*layout[:-1], step.groups[-1]))

    return Plan((x,), write)


def rotation(step: Step) -> Rotated | None:
    """Concat(a cos - b sin, a sin + b cos), with a and b the halves of x (..., T, D)."""
    if step.op != "Concat" or len(step.inputs) != 2:
        return None
    if step.settings["axis"] != len(step.groups) - 1 or len(step.groups) < 2:
        return None
    first, second = op(step.view(0), "Sub"), op(step.view(1), "Add")
    if first is None or second is None:
        return None
    terms = [_turned(s.inputs[i]) for s in (first, second) for i in (0, 1)]
    if None in terms:
        return None
    (a, cos), (b, sin), (a2, sin2), (b2, cos2) = [t for t in terms if t]
    if a2.is_(b):  # the terms of the sum may be in any order
        (a2, sin2), (b2, cos2) = (b2, cos2), (a2, sin2)
    halves = [_half(view) for view in (a, b)]
    if not (a.is_(a2) and b.is_(b2)) or None in halves:
        return None
    (x, i), (x2, j) = [h for h in halves if h]
    pairs = zip((cos, sin), (cos2, sin2), strict=True)
    if (i, j) != (0, 1) or not x.is_(x2):
        return None
    if not all(np.array_equal(p, q) for c, d in pairs for p, q in zip(c.each(), d.each(), strict=True)):
        return None
    base = _base_of(cos, sin, size_of(x.groups[-2]), count(x.groups[-1]))
    return None if base is None else Rotated(x, base or None)


def _turned(value: object) -> tuple[View, Constant] | None:
    """Return the view and the constant that are multiplied."""
    step = op(value, "Mul") if isinstance(value, View) else None
    if step is not None:
        for i in (0, 1):
            x, c = step.inputs[i], step.inputs[1 - i]
            if isinstance(x, View) and isinstance(c, Constant):
                return x, c
    return None


def _half(view: View) -> tuple[View, int] | None:
    """Return x and which half of its last axis the view is."""
    step = op(view, "Take")
    if step is None or step.settings["axis"] != len(step.groups) - 1:
        return None
    x, places = step.view(), step.settings["places"]
    n = size_of(x.groups[-1])[0] // 2
    for i in (0, 1):
        if places == [list(range(i * n, (i + 1) * n))] * PROBES and 2 * n == count(x.groups[-1]):
            return x, i
    return None


def _base_of(cos: Constant, sin: Constant, steps: Sequence[int], D: int) -> float | None:
    """Return the base of the angles, 0 if any base gives them, or None if no base does."""
    arrays = list(zip(cos.each(), sin.each(), steps, strict=True))
    base = 0.0
    for c, s, T in arrays:
        if c.size != T * (D // 2) or s.size != c.size:
            return None
        if T > 1 and D > 2 and not base:
            c, s = c.reshape(T, -1), s.reshape(T, -1)
            angle = math.atan2(float(s[1, 1]), float(c[1, 1]))
            base = angle ** (-D / 2) if 0 < angle < 1 else 0.0
            rounded = float(f"{base:.6g}")
            base = rounded if math.isclose(base, rounded, rel_tol=1e-5) else base
    if base and base <= 1:
        return None
    for c, s, T in arrays:
        wanted = cos_and_sin(0, T, D, base or 10000.0, np.dtype(np.float64))  # type: ignore[arg-type]
        if not all(_equal(a.reshape(T, -1), b) for a, b in zip((c, s), wanted, strict=True)):
            return None
    return base


# --- attention ------------------------------------------------------------------------------------


class Columns(NamedTuple):
    """Features that some columns of x W + b hold: `places` has an axis for each of `axes`."""

    x: View
    W: Array
    b: Array | None
    places: Array
    axes: Group

    def ordered(self, axes: Group) -> Array:
        """Return the places of all elements, in the order of these axes."""
        return self.places.transpose([self.axes.index(axis) for axis in axes]).ravel()


def columns(view: View) -> Columns | None:
    """Return which columns of a product a view holds, through selections of features."""
    takes, step = list[Step](), view.step
    while step.op == "Take":
        takes.append(step)
        step = step.view().step
    x, W, b = dense_parts(step)
    if x is None or W is None:
        return None
    axes = leaves(step.groups[-1])
    places = np.arange(W.shape[1]).reshape([size_of((a,))[0] for a in axes])
    for take in reversed(takes):
        s, inner = take.settings, take.view()
        along = leaves(inner.groups[s["axis"]])
        kept = leaves(take.groups[s["axis"]]) if s["axis"] < len(take.groups) else ()
        if not set(along) <= set(axes) or any(p != s["places"][0] for p in s["places"]):
            return None
        rest = tuple(a for a in axes if a not in along)
        sizes = [size_of((a,))[0] for a in rest]
        moved = places.transpose([axes.index(a) for a in (*rest, *along)])
        moved = moved.reshape(*sizes, -1)[..., s["places"][0]]
        axes = (*rest, *kept)
        places = moved.reshape(*sizes, *(size_of((a,))[0] for a in kept))
    return Columns(x, W, b, places, axes)


class Head(NamedTuple):
    """Queries, keys or values (samples and heads, steps, features) before a rotation."""

    found: Columns
    view: View
    base: float | None


def _head(view: View) -> Head | None:
    """Return where queries, keys or values come from."""
    base = None
    found = rotation(view.step)
    if found is not None:
        (new,) = view.step.groups[-1] or (None,)
        inside = found.x
        groups = tuple(
            flat((inside.groups[-1],)) if leaves(g) == ((new,) if new else ()) else g
            for g in view.groups
        )
        view, base = View(inside.step, groups), found.base or 10000.0
    source = columns(view)
    return None if source is None else Head(source, view, base)


def attention(step: Step) -> Plan | None:
    """softmax(Q K^T / sqrt(d)) V, between products that make Q, K and V and that mix the heads."""
    x, Wo, bo = dense_parts(step)
    if x is None or Wo is None or x.step.op != "Product":
        return None
    P, V_view = x.step.view(0), x.step.view(1)
    soft = _unguarded(P)
    if soft is None or leaves(soft.settings["along"]) != leaves(soft.groups[-1]):
        return None
    scores, mask = _mask(soft.view())
    scale, factors = product(scores)
    qk = factors[0].step
    if len(factors) != 1 or qk.op != "Product" or expanded(factors[0].groups) != expanded(qk.groups):
        return None
    scale_q, queries = product(qk.view(0))
    scale_k, keys = product(qk.view(1))
    scale_v, values = product(V_view)
    if not len(queries) == len(keys) == len(values) == 1 or scale_v != 1:
        return None
    K_T = View(keys[0].step, (*keys[0].groups[:-2], keys[0].groups[-1], keys[0].groups[-2]))
    heads = [_head(queries[0]), _head(K_T), _head(values[0])]
    Q, K, V = heads
    if Q is None or K is None or V is None or V.base is not None or Q.base != K.base:
        return None
    if Q.base not in (None, 10000.0):
        return None
    plan = _Heads(step, x, Q, K, V)
    if not plan.fits or not near(scale * scale_q * scale_k, 1 / math.sqrt(plan.d)):
        return None
    causal = _is_causal(mask, size_of(plan.steps))
    return None if causal is None else plan.plan(Wo, bo, causal, Q.base is not None)


def _unguarded(P: View) -> Step | None:
    """Return the softmax; Where(IsNaN(P), 0, P) leaves it as it is, since no row is masked."""
    guard = op(P, "Where")
    if guard and scalar(guard.inputs[1]) == 0:
        test, P = guard.view(0), guard.view(2)
        nan = op(test, "IsNaN")
        if nan is None or not nan.view().is_(P):
            return None
    return op(P, "Softmax")


Mask = tuple[str, Constant] | None


def _mask(scores: View) -> tuple[View, Mask]:
    """Return the scores before a mask, and the mask: "add" or "where"."""
    step = op(scores, "Add")
    if step is not None:
        for i in (0, 1):
            x, c = step.inputs[i], step.inputs[1 - i]
            if isinstance(x, View) and isinstance(c, Constant):
                return x, ("add", c)
    step = op(scores, "Where")
    if step is not None and isinstance(step.inputs[0], Constant):
        limit, x = scalar(step.inputs[2]), step.inputs[1]
        if isinstance(x, View) and limit is not None and limit <= HIDDEN:
            return x, ("where", step.inputs[0])
    return scores, None


HIDDEN = -1e30  # scores that are so low have probability 0


def _is_causal(mask: Mask, steps: Sequence[int]) -> bool | None:
    """Return whether a mask hides later steps; None if it hides anything else."""
    if mask is None:
        return False
    kind, c = mask
    for a, T in zip(c.each(), steps, strict=True):
        if a.size != T * T or a.shape[-2:] != (T, T):
            return None
        a = a.reshape(T, T)
        seen = np.tri(T, dtype=bool)
        if kind == "where":
            if a.dtype != bool or not np.array_equal(a, seen):
                return None
        elif not (np.all(a[seen] == 0) and np.all(a[~seen] <= HIDDEN)):
            return None
    return True


class _Heads:
    """Which columns of the products hold which head.

    fits     whether the axes belong together as in attention
    steps    the axes of the steps
    d        the size of a head
    """

    def __init__(self, step: Step, x: View, Q: Head, K: Head, V: Head) -> None:
        self.step, self.x, self.parts = step, x, (Q, K, V)
        self.source = Q.found.x
        self.steps = leaves(Q.view.groups[-2])
        self.d = count(Q.view.groups[-1])
        self.fits = self._fits()

    def _fits(self) -> bool:
        Q, K, V = self.parts
        if not all(part.found.x.is_(self.source) for part in (K, V)):
            return False
        if any(leaves(part.view.groups[-2]) != self.steps for part in (K, V)):
            return False
        rows = {*flat(self.source.groups[:-1])}
        if any({*flat(p.view.groups)} != rows | {*p.found.axes} for p in self.parts):
            return False
        batch = flat(Q.view.groups[:-2])
        self.lead = tuple(a for a in batch if a in rows)
        self.heads = tuple(a for a in batch if a not in rows)
        if {*self.lead, *self.steps} != rows or set(self.lead) & set(self.steps):
            return False
        self.orders = [(*self.heads, *leaves(Q.view.groups[-1]))]
        self.shared: list[set[Axis]] = []
        for part in (K, V):
            order = self._order(part)
            if order is None:
                return False
            self.orders.append(order)
        if self.shared[0] != self.shared[1]:  # keys and values differ in their heads
            return False
        canonical = (*self.heads, *self.x.step.groups[-1])
        return set(flat((leaves(self.x.groups[-1]),))) == {*flat((canonical,))}

    def _order(self, part: Head) -> Group | None:
        """Return the part's axes of heads and features, in the order of the queries' axes."""
        Q = self.parts[0]
        mine, theirs = Q.view.groups[:-2], part.view.groups[:-2]
        if len(mine) != len(theirs):
            return None
        found: dict[Axis, Axis] = {}
        for a, b in zip(mine, theirs, strict=True):
            if not b:
                continue
            pairs = aligned(a, b)
            if pairs is None:
                return None
            found |= {y: x for x, y in pairs.items()}
        if any(found.get(axis, axis) is not axis for axis in self.lead):
            return None
        if not set(self.lead) <= set(found):
            return None
        kept = [found[axis] for axis in self.heads if axis in found]
        own = [axis for axis in self.heads if axis in found]
        if own != list(self.heads[: len(own)]):  # each key must serve heads that are neighbours
            return None
        self.shared.append(set(own))
        features = leaves(part.view.groups[-1])
        if part is self.parts[1]:
            pairs = aligned(Q.view.groups[-1], part.view.groups[-1])
            if pairs is None:
                return None
            features = tuple({q: k for k, q in pairs.items()}[q] for q in leaves(Q.view.groups[-1]))
        return (*kept, *features)

    def plan(self, Wo: Array, bo: Array | None, causal: bool, rope: bool) -> Plan | None:
        D, h = count(self.source.groups[-1]), count(self.heads)
        kv = count(tuple(a for a in self.heads if a in self.shared[0]))
        if h * self.d != D or Wo.shape != (D, D):
            return None
        weights, biases = [], []
        for part, order in zip(self.parts, self.orders, strict=True):
            places = part.found.ordered(leaves(order))
            weights.append(part.found.W[:, places])
            b = part.found.b
            biases.append(np.zeros(len(places), Wo.dtype) if b is None else b[places])
        bias = bo is not None or any(part.found.b is not None for part in self.parts)
        canonical = leaves((*self.heads, *self.x.step.groups[-1]))
        rows = positions(canonical, leaves(self.x.groups[-1]))
        arrays = {"Wqkv": np.concatenate(weights, axis=1), "Wo": Wo[rows]}
        if bias:
            arrays |= {
                "bqkv": np.concatenate(biases),
                "bo": np.zeros(D, Wo.dtype) if bo is None else bo,
            }
        kv_heads = None if kv == h else kv

        def write(w: Writer, placed: list[Placed]) -> Placed:
            if w.batch not in self.lead:
                raise DataError(f"{self.step.name} attends to other samples.")
            lead = tuple(a for a in self.lead if a is not w.batch)
            first = ((w.batch,), *((axis,) for axis in lead), self.steps)
            p = w.arranged(placed[0], (*first, self.source.groups[-1]))
            layer = MultiHeadAttention(h, causal=causal, kv_heads=kv_heads, rope=rope, bias=bias)
            return w.layer_in(lead, layer, p, (*first, self.step.groups[-1]), **arrays)

        return Plan((self.source,), write)
