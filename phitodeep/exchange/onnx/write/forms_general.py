"""How activations, dense layers, norms and rearrangements are written in ONNX.

One line per form; a lower-case name is a parameter, and [..] a constant. "In any order" means that
the layer takes its X in the order of axes in which it comes (see `graph.py`); a form that does not
say so takes X in our order, with the features last.

    activations           the operator of that name, in any order
    CELU (float64)        Mul(Elu(Div(X, alpha)), alpha): Celu is defined for float32 only
    GELU                  Gelu; before opset 20: Mul(Mul(X, Add(Erf(Div(X, sqrt 2)), 1)), 0.5),
                          or for "tanh" Mul(Mul(X, 0.5), Add(Tanh(Mul(Add(X, Mul(Pow(X, 3),
                          0.044715)), sqrt(2 / pi))), 1))
    HardTanh              Clip(X, -1, 1)
    Mish                  Mish; before opset 18: Mul(X, Tanh(Softplus(X)))
    PReLU                 PRelu(X, alpha), where alpha is (C, 1, ...) if the features are not last
    SiLU                  Mul(X, Sigmoid(X))
    Dense                 Gemm(X, W, b) on X (N, D); otherwise, or without b, Add(MatMul(X, W), b)
    TiedDense             MatMul(X, Transpose(W)), with the W of the Embedding
    LowRank               MatMul(Mul(MatMul(X, A), alpha / rank), B)
    BatchNorm             BatchNormalization(X, gamma, beta, running_mean, running_var), channels
                          first; its momentum is 1 minus ours
    LayerNorm             LayerNormalization(X, gamma, beta), axis -1
    RMSNorm               RMSNormalization(X, gamma); before opset 23:
                          Mul(Div(X, Sqrt(Add(ReduceMean(Mul(X, X)), eps))), gamma)
    GroupNorm             GroupNormalization(X, gamma, beta), channels first; before opset 21:
                          Add(Mul(Reshape(InstanceNormalization(Reshape(X, [0, groups, -1])),
                          Shape(X)), gamma), beta)
    InstanceNorm          InstanceNormalization(X, gamma, beta), channels first
    Flatten               Flatten
    Reshape               Reshape(X, [0, *shape])
    Permute               nothing, or a Transpose where a later layer requires our order
    Select                Gather(X, [columns]) on the axis of the features, in any order; with
                          tokens=True, Cast to int64 after it
    Reparameterize        Slice(X, [0], [L], [axis]): the means, in any order
    Dropout and noise     nothing
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from phitodeep.core.types import Array
from phitodeep.exchange.onnx.write.graph import Form, Graph, Value, rank, type_of
from phitodeep.layers.base import Layer

# --- activations ----------------------------------------------------------------------------------


def nothing(g: Graph, layer: Layer, x: Value) -> Value:
    return x


def elementwise(op: str, **settings: str | float) -> Form:
    """Return the form of an operator with attributes: numbers, or names of the layer's settings."""
    return functools.partial(operator, op, settings)


def operator(op: str, settings: dict[str, Any], g: Graph, layer: Any, x: Value) -> Value:
    found = {n: getattr(layer, a) if isinstance(a, str) else a for n, a in settings.items()}
    return g.node(op, x, **{name: float(value) for name, value in found.items()})


def celu(g: Graph, layer: Any, x: Value) -> Value:
    if g.dtype == np.float32:
        return g.node("Celu", x, alpha=layer.alpha)
    return g.node("Mul", g.node("Elu", g.node("Div", x, layer.alpha)), layer.alpha)


def prelu(g: Graph, layer: Any, x: Value) -> Value:
    return g.node("PRelu", x, by_channel(g, layer, "alpha", x))


def silu(g: Graph, layer: Layer, x: Value) -> Value:
    return g.node("Mul", x, g.node("Sigmoid", x))


def mish(g: Graph, layer: Layer, x: Value) -> Value:
    if g.opset >= 18:
        return g.node("Mish", x)
    return g.node("Mul", x, g.node("Tanh", g.node("Softplus", x)))


def hard_tanh(g: Graph, layer: Layer, x: Value) -> Value:
    return g.node("Clip", x, -1.0, 1.0)


def gelu(g: Graph, layer: Any, x: Value) -> Value:
    if g.opset >= 20:
        return g.node("Gelu", x, approximate=layer.approximate)
    if layer.approximate == "none":
        erf = g.node("Erf", g.node("Div", x, math.sqrt(2)))
        return g.node("Mul", g.node("Mul", x, g.node("Add", erf, 1.0)), 0.5)
    cubes = g.node("Mul", g.node("Pow", x, 3.0), 0.044715)
    tanh = g.node("Tanh", g.node("Mul", g.node("Add", x, cubes), math.sqrt(2 / math.pi)))
    return g.node("Mul", g.node("Mul", x, 0.5), g.node("Add", tanh, 1.0))


def along_axis(op: str) -> Form:
    """Return the form of Softmax or LogSoftmax."""

    def form(g: Graph, layer: Any, x: Value) -> Value:
        return g.node(op, x, axis=x.axis(layer.axis % rank(layer)))

    return form


# --- dense layers ---------------------------------------------------------------------------------


def features_last(g: Graph, layer: Layer, x: Value) -> Value:
    """Return x as it is if its features are on the last axis, or else in our order."""
    return x if x.axis(rank(layer) - 1) == rank(layer) - 1 else g.ordered(x)


def dense(g: Graph, layer: Any, x: Value) -> Value:
    if rank(layer) == 2 and layer.bias:
        return g.node("Gemm", g.ordered(x), *g.params(layer, "W", "b"))
    y = g.node("MatMul", features_last(g, layer, x), g.param(layer, "W"))
    return plus_bias(g, layer, y)


def plus_bias(g: Graph, layer: Any, y: Value, name: str = "b") -> Value:
    """Write y + b, or nothing if the layer has no biases."""
    return g.node("Add", y, g.param(layer, name)) if layer.bias else y


def low_rank(g: Graph, layer: Any, x: Value) -> Value:
    H = g.node("MatMul", features_last(g, layer, x), g.param(layer, "A"))
    return g.node("MatMul", g.node("Mul", H, layer.alpha / layer.rank), g.param(layer, "B"))


def tied_dense(g: Graph, layer: Any, x: Value) -> Value:
    W = g.param(layer, "W")
    W_T = g.shared(("transposed", W.name), lambda: g.node("Transpose", W, perm=[1, 0]))
    return g.node("MatMul", features_last(g, layer, x), W_T)


# --- norms ----------------------------------------------------------------------------------------


def by_channel(g: Graph, layer: Layer, name: str, x: Value) -> Value:
    """Return a parameter (C,) in the shape that applies it to the channels of x."""
    after = rank(layer) - 1 - x.axis(rank(layer) - 1)  # axes
    return g.param(layer, name, lambda a: a.reshape(-1, *[1] * after))


def precision(g: Graph) -> dict[str, int]:
    """Return the attribute that lets a norm compute in the model's dtype: 1 is float32."""
    return {} if g.dtype == np.float32 else {"stash_type": type_of(g.dtype)}


def batch_norm(g: Graph, layer: Any, x: Value) -> Value:
    x = g.channels_first(layer, x)
    params = g.params(layer, "gamma", "beta", "running_mean", "running_var")
    return g.node("BatchNormalization", x, *params, epsilon=layer.eps, momentum=1 - layer.momentum)


def layer_norm(g: Graph, layer: Any, x: Value) -> Value:
    x, params = features_last(g, layer, x), g.params(layer, "gamma", "beta")
    return g.node("LayerNormalization", x, *params, axis=-1, epsilon=layer.eps, **precision(g))


def rms_norm(g: Graph, layer: Any, x: Value) -> Value:
    x, gamma = features_last(g, layer, x), g.param(layer, "gamma")
    if g.opset >= 23:
        return g.node("RMSNormalization", x, gamma, axis=-1, epsilon=layer.eps, **precision(g))
    mean = reduced(g, "ReduceMean", g.node("Mul", x, x), [-1], keepdims=1)
    root = g.node("Sqrt", g.node("Add", mean, layer.eps))
    return g.node("Mul", g.node("Div", x, root), gamma)


def group_norm(g: Graph, layer: Any, x: Value) -> Value:
    x = g.channels_first(layer, x)
    if g.opset >= 21:
        params = g.params(layer, "gamma", "beta")
        attributes = {"num_groups": layer.groups, "epsilon": layer.eps, **precision(g)}
        return g.node("GroupNormalization", x, *params, **attributes)
    groups = g.node("Reshape", x, [0, layer.groups, -1])
    one, zero = (np.full(layer.groups, a, g.dtype) for a in (1, 0))
    groups = g.node("InstanceNormalization", groups, one, zero, epsilon=layer.eps)
    x_hat = g.node("Reshape", groups, g.node("Shape", x))
    y = g.node("Mul", x_hat, by_channel(g, layer, "gamma", x))
    return g.node("Add", y, by_channel(g, layer, "beta", x))


def instance_norm(g: Graph, layer: Any, x: Value) -> Value:
    x, params = g.channels_first(layer, x), g.params(layer, "gamma", "beta")
    return g.node("InstanceNormalization", x, *params, epsilon=layer.eps)


def reduced(g: Graph, op: str, x: Value, axes: list[int], keepdims: int = 0) -> Value:
    """Write a reduction over these axes of the tensor; before opset 18, they are an attribute."""
    if g.opset >= 18 or op == "ReduceSum":
        return g.node(op, x, axes, keepdims=keepdims)
    return g.node(op, x, axes=axes, keepdims=keepdims)


# --- rearrangements -------------------------------------------------------------------------------


def flatten(g: Graph, layer: Layer, x: Value) -> Value:
    return g.node("Flatten", g.ordered(x), axis=1)


def reshape(g: Graph, layer: Layer, x: Value) -> Value:
    shape = [-1 if n is None else n for n in g.sizes(layer)[1]]  # only where layer.shape has -1
    return g.node("Reshape", g.ordered(x), [0, *shape])


def permute(g: Graph, layer: Any, x: Value) -> Value:
    dims = (0, *layer.dims)
    order = tuple(dims.index(ours) for ours in x.order or range(len(dims)))
    return x._replace(order=None if list(order) == sorted(order) else order)


def select(g: Graph, layer: Any, x: Value) -> Value:
    y = g.node("Gather", x, layer.columns, axis=x.axis(rank(layer) - 1))
    if not layer.tokens:
        return y
    return g.node("Cast", y, to=type_of(np.int64))._replace(tokens=True)


def reparameterize(g: Graph, layer: Layer, x: Value) -> Value:
    (*_, L), axis = layer.output_shape or (0,), x.axis(rank(layer) - 1)
    return g.node("Slice", x, [0], [L], [axis])


def moved(A: Array, *axes: int) -> Array:
    """Return A with these axes, counted from the end, first and the others after them."""
    last = [axis % A.ndim for axis in axes]
    return A.transpose(*last, *(axis for axis in range(A.ndim) if axis not in last))
