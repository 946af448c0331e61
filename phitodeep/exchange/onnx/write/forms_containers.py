"""How containers and merges of several values are written in ONNX.

    Sequential, Chain    the layers one after another
    Residual             Add(X, F)
    SkipConcat           Concat(X, F) on the axis of the features
    Parallel             Concat, or Add or Mul of two at a time
    Add, Subtract,       Add, Sub, Mul or Max of two at a time
    Multiply, Maximum
    Average              Div(Add, n)
    Concat               Concat on its axis
    Dot                  ReduceSum(Mul(X1, X2), axis of the features)
    Bilinear             Add(Einsum(X1, W, X2), b), with the equation "...i,ijk,...j->...k"
    Wired                its layers in their order
    TimeDistributed      Reshape to (N T, ...), the layer, Reshape back to (N, T, ...)

Before a merge, all values are brought into the same order of axes (`Graph.alike`).
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from phitodeep.exchange.onnx.write.forms_general import plus_bias, reduced
from phitodeep.exchange.onnx.write.graph import Form, Graph, Value, several
from phitodeep.exchange.tree import branches_of


def chain(g: Graph, layer: Any, x: Value) -> Value:
    return reduce(lambda value, inner: g.add(inner, value), layer.layers, x)


def merged(g: Graph, layer: Any, x: Value) -> Value:
    """Residual, SkipConcat and Parallel."""
    branches, how = branches_of(layer)
    outs = [reduce(lambda value, inner: g.add(inner, value), branch, x) for branch in branches]
    return FORMS[how](g, layer, *outs)


def two_at_a_time(op: str) -> Form:
    """Return the form of an operator of two values, applied from the first to the last."""

    def form(g: Graph, layer: Any, *xs: Value) -> Value:
        return reduce(lambda a, b: g.node(op, a, b), g.alike(xs))

    return form


def concat(g: Graph, layer: Any, *xs: Value) -> Value:
    first, *others = g.alike(xs)
    rank = len(layer.output_shape)
    axis = 1 + getattr(layer, "axis", -1) % rank
    return g.node("Concat", first, *others, axis=first.axis(axis))


def average(g: Graph, layer: Any, *xs: Value) -> Value:
    return g.node("Div", FORMS["add"](g, layer, *xs), float(len(xs)))


def dot(g: Graph, layer: Any, *xs: Value) -> Value:
    first, second = g.alike(xs)
    axis = first.axis(len(layer.output_shape))
    return reduced(g, "ReduceSum", g.node("Mul", first, second), [axis], keepdims=1)


def bilinear(g: Graph, layer: Any, x: Value, other: Value) -> Value:
    x, other = g.ordered(x), g.ordered(other)
    y = g.node("Einsum", x, g.param(layer, "W"), other, equation="...i,ijk,...j->...k")
    return plus_bias(g, layer, y)


FORMS: dict[str, Form] = {
    "add": two_at_a_time("Add"),
    "multiply": two_at_a_time("Mul"),
    "concat": concat,
}


def wired(g: Graph, layer: Any, *xs: Value) -> Any:
    values = dict(zip(layer.takes, xs, strict=True))
    for part, reads, gives in layer.uses:
        outs = several(g.add(part, *[values[name] for name in reads]))
        values.update(zip(gives, outs, strict=True))
    outs = [values[name] for name in layer.returns]
    return outs[0] if len(outs) == 1 else outs


def time_distributed(g: Graph, layer: Any, *xs: Value) -> Any:
    xs, T, outs = tuple(map(g.ordered, xs)), g.sizes(layer)[0][0], list[Value]()
    flat = [
        g.node("Reshape", x, [-1, *shape[1:]])._replace(tokens=x.tokens)
        for x, shape in zip(xs, layer._ins(), strict=True)
    ]
    for y, (_, *inner) in zip(several(g.add(layer.layer, *flat)), layer._outs(), strict=True):
        shape: Any = [-1, T, *inner]
        if T is None:
            parts = [g.constant([-1]), g.length(layer, xs[0]), g.constant(inner)]
            shape = g.node("Concat", *parts, axis=0)
        outs.append(g.node("Reshape", g.ordered(y), shape))
    return outs[0] if len(outs) == 1 else outs
