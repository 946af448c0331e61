"""How attention is recognised: softmax(Q K^T / sqrt(d)) V, with or without the products around it.

Exporters write the division into heads in many ways. Here only the axes count: the axis of the
steps is the same object in queries, keys and values, and so are the axes of the samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from phitodeep import layers as L
from phitodeep.core.types import Array
from phitodeep.exchange.onnx.read import axes as ax
from phitodeep.exchange.onnx.read.axes import (
    Axis,
    Group,
    fixed_sizes,
    flat,
    leaves,
    number,
    size_of,
)
from phitodeep.exchange.onnx.read.building import Placed, Plan, Writer
from phitodeep.exchange.onnx.read.products import dense_parts
from phitodeep.exchange.onnx.read.sequences import Rotated, rotation
from phitodeep.exchange.onnx.read.values import (
    MOST,
    MOST_FEATURES,
    Constant,
    Step,
    View,
    near,
    scalar,
)
from phitodeep.functional.rotary import Rope

HIDDEN = -1e30  # scores that are so low have probability 0


def scaled(view: View) -> tuple[float, View]:
    """Return a number and what the view is this multiple of."""
    number = 1.0
    for _ in range(MOST):
        step = view.step
        found, c = step.pair("Mul", "Div"), None
        if found and not (step.op == "Div" and found.swapped):
            c = found.c.scalar()
        if found and c is not None and (c or step.op == "Mul"):
            number = number * c if step.op == "Mul" else number / c
            view = View(found.x.step, view.groups)
        elif step.op == "Neg":
            number, view = -number, View(step.view().step, view.groups)
        else:
            break
    return number, view


class Columns(NamedTuple):
    """Which features of x, or of the product x W + b, a view holds.

    places    their places, with an axis for each of `axes`
    """

    x: View
    W: Array | None
    b: Array | None
    places: Array
    axes: Group

    def ordered(self, axes: Group) -> Array:
        """Return the places of all elements, in the order of these axes."""
        order: Array = self.places.transpose([self.axes.index(axis) for axis in axes]).ravel()
        return order


def columns(view: View, dense: bool) -> Columns | None:
    """Return which features of a value a view holds; with `dense`, the value is a product."""
    takes, step = list[Step](), view.step
    while step.op == "Take":
        takes.append(step)
        step = step.view().step
    x, W, b = dense_parts(step) if dense else (step.output, None, None)
    if x is None or (dense and W is None) or not step.groups:
        return None
    axes = leaves(step.groups[-1])
    if number(axes) > MOST_FEATURES:
        return None
    places = np.arange(number(axes)).reshape(fixed_sizes(axes))
    for take in reversed(takes):
        s, inner = take.settings, take.view()
        along = leaves(inner.groups[s["axis"]])
        kept = leaves(take.groups[s["axis"]])
        if not set(along) <= set(axes) or any(p != s["places"][0] for p in s["places"]):
            return None
        rest = tuple(a for a in axes if a not in along)
        places = places.transpose([axes.index(a) for a in (*rest, *along)])
        places = places.reshape([*fixed_sizes(rest), -1])[..., s["places"][0]]
        axes = (*rest, *kept)
        places = places.reshape(fixed_sizes(axes))
    return Columns(x, W, b, places, axes)


def _before_rotation(view: View) -> Rotated:
    """Return queries, keys or values (samples and heads, steps, features) before their rotation."""
    found = rotation(view.step)
    if found is None:
        return Rotated(view, (), None)
    rotated, before = leaves(view.step.groups[-1]), found.x.groups[-1]
    groups = tuple(before if leaves(g) == rotated else g for g in view.groups)
    return Rotated(View(found.x.step, groups), found.time, found.rope)


def attended(step: Step) -> tuple[list[Rotated], bool] | None:
    """Return Q, K and V of a product P V, if P is such a softmax, and whether it is causal."""
    soft = _unguarded(step.view())
    if soft is None or leaves(soft.settings["along"]) != leaves(soft.groups[-1]):
        return None
    masked, mask = _mask(soft.view())
    scale, scores = scaled(masked)
    QK = scores.made_by("Product")
    if QK is None:
        return None
    (scale_q, Q), (scale_k, K), (scale_v, V) = map(scaled, (QK.view(0), QK.view(1), step.view(1)))
    *batch, features, steps = K.groups
    views = (Q, View(K.step, (*batch, steps, features)), V)
    parts = [_before_rotation(view) for view in views]
    d, T = number(parts[0].x.groups[-1]), size_of(parts[0].x.groups[-2])
    fits = scale_v == 1 and near(scale * scale_q * scale_k, 1 / math.sqrt(d))
    if not fits or (mask is not None and not is_causal(mask, T)):
        return None
    return parts, mask is not None


def _unguarded(P: View) -> Step | None:
    """Return the softmax; Where(IsNaN(P), 0, P) leaves it as it is, since no row is masked."""
    guard = P.made_by("Where")
    if guard and scalar(guard.inputs[1]) == 0:
        test, P = guard.view(0), guard.view(2)
        nan = test.made_by("IsNaN")
        if nan is None or not nan.view().is_(P):
            return None
    return P.made_by("Softmax")


def _mask(scores: View) -> tuple[View, Constant | None]:
    """Return the scores before a mask, and the mask: numbers to add, or True for what is seen."""
    step = scores.made_by("Add", "Where")
    if step and (added := step.pair("Add")):
        return added.x, added.c
    if step and step.op == "Where" and isinstance(step.inputs[0], Constant):
        limit, x = scalar(step.inputs[2]), step.inputs[1]
        if isinstance(x, View) and limit is not None and limit <= HIDDEN:
            return x, step.inputs[0]
    return scores, None


def is_causal(mask: Constant, steps: Sequence[int]) -> bool:
    """Return whether a mask hides later steps, and nothing else."""
    for a, T in zip(mask.each(), steps, strict=True):
        if a.size != T * T or a.shape[-2:] != (T, T):
            return False
        a, seen = a.reshape(T, T), np.tri(T, dtype=bool)
        low = ~a if a.dtype == bool else a <= HIDDEN
        if np.any(low == seen) or (a.dtype != bool and np.any(a[seen])):
            return False
    return True


class Heads:
    """The axes of an attention.

    source    what Q, K and V are features of, or products of
    lead      the axes of the samples
    heads     the axes of the heads of the queries; those of the keys come first
    shared    how many of them the keys have too
    steps     the axes of the steps
    orders    the axes of Q, K and V in the order in which our layer has them
    """

    def __init__(self, parts: list[Rotated], causal: bool, sources: Sequence[Columns]) -> None:
        self.parts, self.causal, self.sources = parts, causal, sources
        self.source, Q = sources[0].x, parts[0]
        self.steps = leaves(Q.x.groups[-2])
        inside = {axis for source in sources for axis in source.axes}
        batch = flat(Q.x.groups[:-2])
        self.lead = tuple(a for a in batch if a not in inside)
        self.heads = tuple(a for a in batch if a in inside)
        self.d = number(Q.x.groups[-1])
        self.shared: list[int] = []
        self.orders = [(*self.heads, *leaves(Q.x.groups[-1]))]

    def fit(self) -> bool:
        """Return whether the axes belong together as in attention; fill `orders`."""
        Q, K, V = self.parts
        rows = {*flat(self.source.groups[:-1])}
        if not (
            {*self.lead, *self.steps} == rows
            and not set(self.lead) & set(self.steps)
            and all(source.x.is_(self.source) for source in self.sources)
            and all(leaves(part.x.groups[-2]) == self.steps for part in self.parts)
            and [{*flat(part.x.groups)} for part in self.parts]
            == [rows | {*source.axes} for source in self.sources]
            and V.rope is None
            and Q.rope == K.rope
            and all(leaves(part.time) == self.steps for part in (Q, K) if part.time)
        ):
            return False
        orders = [self._order(K, pair=True), self._order(V, pair=False)]
        if None in orders or len(set(self.shared)) != 1:
            return False
        self.orders += [order for order in orders if order is not None]
        return True

    def _order(self, part: Rotated, pair: bool) -> Group | None:
        """Return the axes of heads and features of keys or values, in the order of the queries'."""
        Q = self.parts[0].x
        mine, theirs = Q.groups[:-2], part.x.groups[:-2]
        if len(mine) != len(theirs):
            return None
        found: dict[Axis, Axis] = {}  # the axis of the part for each of the queries
        for a, b in zip(mine, theirs, strict=True):
            pairs = ax.aligned(a, b) if b else {}
            if pairs is None:
                return None
            found |= pairs
        if any(found.get(axis) is not axis for axis in self.lead):
            return None
        own = [axis for axis in self.heads if axis in found]
        if own != list(self.heads[: len(own)]):  # a key serves queries that are neighbours
            return None
        self.shared.append(len(own))
        features = leaves(part.x.groups[-1])
        if pair:  # features of keys and queries are multiplied
            pairs = ax.aligned(Q.groups[-1], part.x.groups[-1])
            if pairs is None:
                return None
            features = tuple(pairs[axis] for axis in leaves(Q.groups[-1]))
        return (*(found[axis] for axis in own), *features)

    def places(self) -> list[Array]:
        """Return the places of all queries, keys and values, head by head."""
        pairs = zip(self.sources, self.orders, strict=True)
        return [source.ordered(leaves(order)) for source, order in pairs]

    def settings(self) -> dict[str, Any]:
        """Return the settings of our layer."""
        h, k = number(self.heads), number(self.heads[: self.shared[0]])
        rope = self.parts[0].rope
        return {
            "heads": h,
            "causal": self.causal,
            "kv_heads": None if k == h else k,
            "rope": False if rope is None else rope == Rope() or rope,
        }

    def placed(self, w: Writer, x: Placed) -> tuple[Placed, Group]:
        """Return the source (samples, steps, features), and the axes of samples but the batch."""
        samples = tuple(sorted(self.lead, key=lambda axis: axis is not w.batch))
        return w.samples_first(x, samples, (self.steps, self.source.groups[-1]))


def _heads(step: Step, dense: bool) -> Heads | None:
    """Return the axes of a product P V that is an attention."""
    found = attended(step)
    if found is None:
        return None
    sources = [s for part in found[0] if (s := columns(part.x, dense))]
    heads = Heads(*found, sources) if len(sources) == 3 else None
    return heads if heads and heads.fit() else None


def multi_head_attention(step: Step) -> Plan | None:
    """Attention between the products that make Q, K and V and the one that mixes the heads."""
    x, Wo, bo = dense_parts(step)
    if x is None or Wo is None or x.step.op != "Product":
        return None
    heads = _heads(x.step, dense=True)
    if heads is None:
        return None
    source, out = heads.source, step.groups[-1]
    D = number(source.groups[-1])
    canonical = leaves((*heads.heads, *x.step.groups[-1]))
    if Wo.shape[1] != D or set(leaves(x.groups[-1])) != set(canonical):
        return None
    products, biases = [], []
    for found, places in zip(heads.sources, heads.places(), strict=True):
        assert found.W is not None
        products.append(found.W[:, places])
        biases.append(np.zeros(len(places)) if found.b is None else found.b[places])
    arrays = {"Wqkv": np.concatenate(products, axis=1)}
    arrays["Wo"] = Wo[ax.positions(canonical, leaves(x.groups[-1]))]
    bias = bo is not None or any(found.b is not None for found in heads.sources)
    if bias:
        arrays["bqkv"] = np.concatenate(biases)
        arrays["bo"] = np.zeros(D) if bo is None else bo
    head_dim = None if number(heads.heads) * heads.d == D else heads.d
    settings = {**heads.settings(), "bias": bias, "head_dim": head_dim}

    def write(w: Writer, placed: list[Placed]) -> Placed:
        p, lead = heads.placed(w, placed[0])
        layer = L.MultiHeadAttention(**settings)
        return w.layer(layer, p, (*p.layout[:-1], out), lead, **arrays)

    return Plan((source,), write)


def dot_product_attention(step: Step) -> Plan | None:
    """Attention on queries, keys and values that are features of one value."""
    heads = _heads(step, dense=False)
    if heads is None:
        return None
    source = heads.source
    places = np.concatenate(heads.places())
    settings = heads.settings()

    def write(w: Writer, placed: list[Placed]) -> Placed:
        p, lead = heads.placed(w, placed[0])
        if not np.array_equal(places, np.arange(number(source.groups[-1]))):
            p = w.layer(L.Select(places.tolist()), p, p.layout)
        out = (*heads.heads, *step.groups[-1])
        return w.layer(L.ScaledDotProductAttention(**settings), p, (*p.layout[:-1], out), lead)

    return Plan((source,), write)
