"""How containers are written in ONNX.

    Sequential, Chain    the layers one after another
    Residual             Add(X, F)
    SkipConcat           Concat(X, F) on the axis of the features
    Parallel             Concat, or Add or Mul of two at a time
    TimeDistributed      Reshape to (N T, ...), the layer, Reshape back to (N, T, ...)

Before a merge, all values are brought into the same order of axes: the most common one, or the
later of them.
"""

from __future__ import annotations

from collections import Counter
from functools import reduce
from typing import Any

from phitodeep.exchange.onnx.write.graph import Graph, Value
from phitodeep.exchange.tree import branches_of


def chain(g: Graph, layer: Any, x: Value) -> Value:
    return reduce(lambda value, inner: g.add(inner, value), layer.layers, x)


def merged(g: Graph, layer: Any, x: Value) -> Value:
    """Residual, SkipConcat and Parallel."""
    branches, merge = branches_of(layer)
    outs = [reduce(lambda value, inner: g.add(inner, value), branch, x) for branch in branches]
    ((order, _),) = Counter(value.order for value in reversed(outs)).most_common(1)
    first, *others = (g.ordered(value, order) for value in outs)
    if merge == "concat":
        return g.node("Concat", first, *others, axis=first.axis(len(layer.output_shape)))
    return reduce(
        lambda a, b: g.node({"add": "Add", "multiply": "Mul"}[merge], a, b), others, first
    )


def time_distributed(g: Graph, layer: Any, x: Value) -> Value:
    x = g.ordered(x)
    T = g.sizes(layer)[0][0]
    flat = g.node("Reshape", x, [-1, *layer.input_shape[1:]])
    y = g.ordered(g.add(layer.layer, flat._replace(tokens=x.tokens)))
    if T is not None:
        return g.node("Reshape", y, [-1, T, *layer.output_shape[1:]])
    parts = [g.constant([-1]), g.length(layer, x), g.constant(layer.output_shape[1:])]
    return g.node("Reshape", y, g.node("Concat", *parts, axis=0))
