"""The table from classes of layers to the functions that write them as ONNX, and the containers.

    Sequential, Chain    the layers one after another
    Residual             Add(X, F)
    SkipConcat           Concat(X, F) on the axis of the features
    Parallel             Concat, or Add or Mul of two at a time
    TimeDistributed      Reshape to (N T, ...), the layer, Reshape back to (N, T, ...)

Before a merge, all values are brought into the same order of axes. See `forms_general.py`,
`forms_images.py` and `forms_sequences.py` for the other layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import reduce
from typing import Any, TypeVar

from phitodeep import layers
from phitodeep.errors import ArgumentTypeError
from phitodeep.exchange.onnx.write import forms_general as general
from phitodeep.exchange.onnx.write import forms_images as images
from phitodeep.exchange.onnx.write import forms_sequences as sequences
from phitodeep.exchange.onnx.write.forms_general import elementwise, nothing
from phitodeep.exchange.onnx.write.graph import Form, Graph, Value
from phitodeep.layers.base import Layer
from phitodeep.layers.containers import Chain, Parallel, Residual, SkipConcat, TimeDistributed

F = TypeVar("F", bound=Form)


def chain(g: Graph, layer: Any, x: Value) -> Value:
    return reduce(lambda value, inner: g.add(inner, value), layer.layers, x)


def residual(g: Graph, layer: Any, x: Value) -> Value:
    return g.node("Add", *alike(g, [x, chain(g, layer, x)]))


def skip_concat(g: Graph, layer: Any, x: Value) -> Value:
    return joined(g, layer, [x, chain(g, layer, x)])


def parallel(g: Graph, layer: Any, x: Value) -> Value:
    outs = [g.add(branch, x) for branch in layer.branches]
    if layer.merge == "concat":
        return joined(g, layer, outs)
    op = {"add": "Add", "multiply": "Mul"}[layer.merge]
    return reduce(lambda a, b: g.node(op, a, b), alike(g, outs))


def joined(g: Graph, layer: Layer, values: list[Value]) -> Value:
    """Write the values side by side on the axis of the features."""
    first, *others = alike(g, values)
    last = len(layer.output_shape or ())
    return g.node("Concat", first, *others, axis=first.axis(last))


def alike(g: Graph, values: list[Value]) -> list[Value]:
    """Return the values in the same order of axes: the most common one, or the later of them."""
    counts = Counter(value.order for value in reversed(values))
    ((order, _),) = counts.most_common(1)
    return [g.ordered(value, order) for value in values]


def time_distributed(g: Graph, layer: Any, x: Value) -> Value:
    x = g.ordered(x)
    T = g.sizes(layer)[0][0]
    flat = g.node("Reshape", x, [-1, *layer.input_shape[1:]])
    y = g.ordered(g.add(layer.layer, flat._replace(tokens=x.tokens)))
    if T is not None:
        return g.node("Reshape", y, [-1, T, *layer.output_shape[1:]])
    parts = [g.constant([-1]), g.length(layer, x), g.constant(layer.output_shape[1:])]
    return g.node("Reshape", y, g.node("Concat", *parts, axis=0))


FORMS: dict[type[Layer], Form] = {
    Chain: chain,
    Residual: residual,
    SkipConcat: skip_concat,
    Parallel: parallel,
    TimeDistributed: time_distributed,
    layers.Bidirectional: sequences.bidirectional,
    layers.CELU: general.celu,
    layers.ELU: elementwise("Elu", alpha="alpha"),
    layers.GELU: general.gelu,
    layers.SELU: elementwise("Selu", alpha="alpha", gamma="scale"),
    layers.HardSigmoid: general.hard_sigmoid,
    layers.HardSwish: elementwise("HardSwish"),
    layers.HardTanh: general.hard_tanh,
    layers.LeakyReLU: elementwise("LeakyRelu", alpha="alpha"),
    layers.LogSoftmax: general.along_axis("LogSoftmax"),
    layers.Mish: general.mish,
    layers.PReLU: general.prelu,
    layers.ReLU: elementwise("Relu"),
    layers.Sigmoid: elementwise("Sigmoid"),
    layers.SiLU: general.silu,
    layers.Softmax: general.along_axis("Softmax"),
    layers.Softplus: elementwise("Softplus"),
    layers.Softsign: elementwise("Softsign"),
    layers.Tanh: elementwise("Tanh"),
    layers.Dense: general.dense,
    layers.TiedDense: general.tied_dense,
    layers.LowRank: general.low_rank,
    layers.Embedding: sequences.embedding,
    layers.PositionalEmbedding: sequences.positional_embedding,
    layers.SinusoidalEncoding: sequences.sinusoidal_encoding,
    layers.RotaryEmbedding: sequences.rotary_embedding,
    layers.MultiHeadAttention: sequences.attention,
    layers.ScaledDotProductAttention: sequences.dot_product_attention,
    layers.RNN: sequences.recurrent,
    layers.LSTM: sequences.recurrent,
    layers.GRU: sequences.recurrent,
    layers.Conv1D: images.conv,
    layers.Conv2D: images.conv,
    layers.ConvTranspose1D: images.conv_transpose,
    layers.ConvTranspose2D: images.conv_transpose,
    layers.MaxPool1D: images.max_pool,
    layers.MaxPool2D: images.max_pool,
    layers.AvgPool1D: images.avg_pool,
    layers.AvgPool2D: images.avg_pool,
    layers.GlobalAvgPool: images.global_pool("ReduceMean"),
    layers.GlobalMaxPool: images.global_pool("ReduceMax"),
    layers.BatchNorm: general.batch_norm,
    layers.GroupNorm: general.group_norm,
    layers.InstanceNorm: general.instance_norm,
    layers.LayerNorm: general.layer_norm,
    layers.RMSNorm: general.rms_norm,
    layers.Flatten: general.flatten,
    layers.Reshape: general.reshape,
    layers.Permute: general.permute,
    layers.Select: general.select,
    layers.Upsample2D: images.upsample,
    layers.ZeroPad2D: images.zero_pad,
    layers.RandomCrop: images.random_crop,
    layers.RandomFlip: nothing,
    layers.RandomShift: nothing,
    layers.Dropout: nothing,
    layers.SpatialDropout: nothing,
    layers.GaussianNoise: nothing,
    layers.Reparameterize: general.reparameterize,
}


def exports(kind: type[Layer]) -> Callable[[F], F]:
    """Declare how a class of layers is written as ONNX.

        class Scale(Layer):
            s = Param()

        @exports(Scale)
        def scale(graph, layer, x):
            return graph.node("Mul", x, graph.param(layer, "s"))

    The function adds nodes to the graph and returns the value of Y. x is X, with its axes in our
    order. `graph.node(operator, *inputs, **attributes)` adds a standard operator of ONNX, whose
    inputs are values, NumPy arrays, numbers or lists of integers; `graph.param` gives a parameter
    or a state; `graph.opset` is the version. A container writes a layer inside it with
    `graph.add(layer, x)`.
    """
    if not (isinstance(kind, type) and issubclass(kind, Layer)):
        raise ArgumentTypeError(f"exports takes a class of layers, got {kind!r}.")

    def declare(form: F) -> F:
        def in_our_order(g: Graph, layer: Any, x: Value) -> Value:
            return form(g, layer, g.ordered(x))

        FORMS[kind] = in_our_order
        return form

    return declare
