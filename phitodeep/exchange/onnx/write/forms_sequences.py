"""How embeddings, attention and recurrent layers are written in ONNX.

These values are written once for all layers whose sequences have the same number of steps:

    T            Shape(X, start=1, end=2), one integer (1,)
    positions    Range(0, Gather(T, 0), 1), (T,)
    column       Unsqueeze(positions, [1]), (T, 1)
    angles       Cast(Mod(Mul(Cast(column, float64), frequencies), 2 pi)), with fmod=1, (T, pairs):
                 float32 has too few digits for the angles of late positions

    Embedding             Gather(W, X)
    PositionalEmbedding   Add(X, Slice(W, [0], T, [0]))
    SinusoidalEncoding    Add(X, Sin(angles)), where Add(., phases) precedes Mod. Each pair of
                          features has the same frequency twice, and the phases 0 and pi / 2
    RotaryEmbedding       x, y = Split(X, [D / 2, D / 2])    c, s = Cos(angles), Sin(angles)
                          Concat(Sub(Mul(x, c), Mul(y, s)), Add(Mul(x, s), Mul(y, c)))
    MultiHeadAttention    QKV = Add(MatMul(X, Wqkv), bqkv), then Z as below for X = QKV, then
                          Add(MatMul(Z, Wo), bo); without biases there is no Add
    ScaledDotProductAttention
                          Q, K, V = Split(X, [h d, k d, k d]), each Reshape(., [0, 0, h or k, d])
                          rope: Q and K are rotated as in RotaryEmbedding, with Unsqueeze(c, [1]);
                          if its amplitude is not 1, c is Mul(Cos(angles), amplitude)
                          Q, V = Transpose(., [0, 2, 1, 3])    K = Transpose(K, [0, 2, 3, 1])
                          S = MatMul(Mul(Q, scale), K)
                          causal: S = Where(GreaterOrEqual(column, positions), S, -inf)
                          Z = Reshape(Transpose(MatMul(Softmax(S), V), [0, 2, 1, 3]), [0, 0, h d])
                          With fewer heads of keys (k) than of queries (h), two axes stand for the
                          heads: (k, h / k) in Q and Z, and (k, 1) in K and V
    CrossAttention        Q = Add(MatMul(X1, Wq), bq)    K, V = Split(Add(MatMul(X2, Wkv), bkv)),
                          then as above
    RNN, LSTM, GRU        RNN, LSTM or GRU(X, W, R, B), where X is (T, N, D), then Squeeze(Y, [1]);
                          with return_sequences=False, Squeeze(Y_h, [0]). B holds b, and then bh or
                          zeros; the GRU has linear_before_reset=1. States are unsqueezed before
                          it and squeezed after it: Squeeze(Y_h, [0]), Squeeze(Y_c, [0])
    Bidirectional         the same with direction="bidirectional", then ReduceSum over the
                          directions for "add", or Reshape(Transpose(.), [0, 0, -1]) for "concat"
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from phitodeep.core.types import Array
from phitodeep.exchange.onnx.write.forms_general import plus_bias, reduced
from phitodeep.exchange.onnx.write.graph import Graph, UnknownSizeError, Value, type_of
from phitodeep.exchange.tree import bound
from phitodeep.functional.rotary import Rope
from phitodeep.layers.base import Layer

STEPS_FIRST = (1, 0, 2)


# --- embeddings -----------------------------------------------------------------------------------


def embedding(g: Graph, layer: Any, x: Value) -> Value:
    x = g.ordered(x)
    x = x if x.tokens else g.node("Cast", x, to=type_of(np.int64))
    return g.node("Gather", g.param(layer, "W"), x)


def positional_embedding(g: Graph, layer: Any, x: Value) -> Value:
    x = g.ordered(x)
    W = g.node("Slice", g.param(layer, "W"), [0], g.length(layer, x), [0])
    return g.node("Add", x, W)


def angles(g: Graph, layer: Layer, x: Value, w: Array, phases: Array | None = None) -> Value:
    """Write t w + phase modulo 2 pi for the positions t, as (T, len(w)) in the model's dtype."""
    column = g.column(layer, x)
    float64 = type_of(np.float64)

    def written() -> Value:
        t = g.shared(("float64", column.name), lambda: g.node("Cast", column, to=float64))
        a = g.node("Mul", t, g.constant(w, "frequencies"))
        a = a if phases is None else g.node("Add", a, g.constant(phases, "phases"))
        a = g.node("Mod", a, g.constant(np.array(2 * math.pi), "2pi"), fmod=1)
        return a if g.dtype == np.float64 else g.node("Cast", a, to=type_of(g.dtype))

    phase = b"" if phases is None else phases.tobytes()
    return g.shared(("angles", column.name, w.tobytes(), phase), written)


def sinusoidal_encoding(g: Graph, layer: Any, x: Value) -> Value:
    x, D = g.ordered(x), layer.input_shape[-1]
    w = np.exp(-math.log(10000) * (2 / D) * (np.arange(D) // 2))
    phases = np.where(np.arange(D) % 2, math.pi / 2, 0)  # a cosine is a sine a quarter later
    return g.node("Add", x, g.node("Sin", angles(g, layer, x, w, phases)))


def rotary_embedding(g: Graph, layer: Any, x: Value) -> Value:
    x, D = g.ordered(x), layer.input_shape[-1]
    return rotated(g, x, D // 2, *cos_and_sin(g, layer, x, Rope(layer.base), D))


def cos_and_sin(g: Graph, layer: Layer, x: Value, rope: Rope, d: int, axes: int = 0) -> list[Value]:
    """Return cos and sin of the angles of d features, (T, *axes of size 1, d / 2)."""
    T = g.sizes(layer)[0][0]
    if rope.by_length and T is None:
        raise UnknownSizeError
    a = angles(g, layer, x, rope.frequencies(d, T or 1))

    def written(op: str) -> Value:
        y = g.node(op, a)
        y = y if rope.amplitude == 1 else g.node("Mul", y, rope.amplitude)
        return g.node("Unsqueeze", y, [*range(1, axes + 1)]) if axes else y

    return [
        g.shared((op, a.name, rope.amplitude, axes), partial(written, op)) for op in ("Cos", "Sin")
    ]


def rotated(g: Graph, x: Value, half: int, cos: Value, sin: Value) -> Value:
    """Write x (..., 2 half) with each pair of features (i, i + half) rotated."""
    a, b = g.several("Split", x, [half, half], outputs=2, axis=-1)
    first = g.node("Sub", g.node("Mul", a, cos), g.node("Mul", b, sin))
    second = g.node("Add", g.node("Mul", a, sin), g.node("Mul", b, cos))
    return g.node("Concat", first, second, axis=-1)


# --- attention ------------------------------------------------------------------------------------


def attention(g: Graph, layer: Any, x: Value) -> Value:
    Z = dot_product_attention(g, layer, projected(g, layer, x, "qkv"))
    return projected(g, layer, Z, "o")


def cross_attention(g: Graph, layer: Any, x: Value, memory: Value) -> Value:
    Q, KV = projected(g, layer, x, "q"), projected(g, layer, memory, "kv")
    size = (layer.kv_heads or layer.heads) * layer._head_size()
    K, V = g.several("Split", KV, [size, size], outputs=2, axis=-1)
    return projected(g, layer, attended(g, layer, x, [Q, K, V]), "o")


def projected(g: Graph, layer: Any, x: Value, name: str) -> Value:
    """Write x W + b, for the W and b of this name, such as "o"."""
    y = g.node("MatMul", g.ordered(x), g.param(layer, f"W{name}"))
    return plus_bias(g, layer, y, f"b{name}")


def dot_product_attention(g: Graph, layer: Any, x: Value) -> Value:
    x, h, k, d = g.ordered(x), layer.heads, layer.kv_heads or layer.heads, layer._head_size()
    parts = g.several("Split", x, [h * d, k * d, k * d], outputs=3, axis=-1)
    return attended(g, layer, x, parts)


def attended(g: Graph, layer: Any, x: Value, parts: list[Value]) -> Value:
    """Write the attention of queries, keys and values, for the steps of x."""
    h, k, d = layer.heads, layer.kv_heads or layer.heads, layer._head_size()
    heads = [(k, h // k), (k, 1), (k, 1)] if k < h else [(h,)] * 3
    n = len(heads[0])
    Q, K, V = (
        g.node("Reshape", part, [0, 0, *sizes, d]) for part, sizes in zip(parts, heads, strict=True)
    )
    if layer.rotary is not None:
        rotation = cos_and_sin(g, layer, x, layer.rotary, d, axes=n)
        Q, K = (rotated(g, A, d // 2, *rotation) for A in (Q, K))
    of_heads = [0, *range(2, n + 2)]  # the axes N and heads; 1 is T, and n + 2 is d
    Q, V = (g.node("Transpose", A, perm=[*of_heads, 1, n + 2]) for A in (Q, V))
    K_T = g.node("Transpose", K, perm=[*of_heads, n + 2, 1])
    S = g.node("MatMul", g.node("Mul", Q, 1 / math.sqrt(d)), K_T)
    if layer.causal:
        S = g.node("Where", visible(g, layer, x), S, -math.inf)
    Z = g.node("MatMul", g.node("Softmax", S, axis=-1), V)
    Z = g.node("Transpose", Z, perm=[0, n + 1, *range(1, n + 1), n + 2])
    return g.node("Reshape", Z, [0, 0, h * d])


def visible(g: Graph, layer: Layer, x: Value) -> Value:
    """Return whether position t may attend to position s, (T, T): t >= s."""
    row, column = g.positions(layer, x), g.column(layer, x)
    return g.shared(("visible", row.name), lambda: g.node("GreaterOrEqual", column, row))


# --- recurrent layers -----------------------------------------------------------------------------

GATES = {  # the order of the gates in the operator, as indices of ours
    "rnn": ("RNN", [0], {}),
    "lstm": ("LSTM", [0, 3, 1, 2], {}),
    "gru": ("GRU", [1, 0, 2], {"linear_before_reset": 1}),
}


def recurrent(g: Graph, layer: Any, x: Value, *starts: Value) -> Any:
    Y, *ends = directions(g, layer, [layer], x, "forward", starts)
    shown = ends if layer.return_state else [] if layer.return_sequences else ends[:1]
    ends = [g.node("Squeeze", end, [0]) for end in shown]
    if layer.return_sequences:
        ends.insert(0, g.node("Squeeze", Y, [1])._replace(order=STEPS_FIRST))
    elif layer.return_state:
        ends.insert(0, ends[0])
    return ends if layer.return_state else ends[0]


def bidirectional(g: Graph, layer: Any, x: Value) -> Value:
    cells = [bound(cell) for cell in (layer.layer, layer.reverse)]
    Y, last, *_ = directions(g, layer, cells, x, "bidirectional")
    if len(layer.output_shape) == 2:
        order, y, axis, perm, shape = STEPS_FIRST, Y, 1, [0, 2, 1, 3], [0, 0, -1]
    else:
        order, y, axis, perm, shape = None, last, 0, [1, 0, 2], [0, -1]
    if layer.merge == "add":
        return reduced(g, "ReduceSum", y, [axis])._replace(order=order)
    y = g.node("Reshape", g.node("Transpose", y, perm=perm), shape)
    return y._replace(order=order)


def directions(
    g: Graph, layer: Layer, cells: list[Any], x: Value, direction: str, starts: Sequence[Value] = ()
) -> list[Value]:
    """Write the operator, which begins with some states (N, H), or 0.

    Return h of all steps (T, directions, N, H), and the last h, and c, (directions, N, H).
    """
    op, gates, attributes = GATES[cells[0].cell]

    def rows(A: Array) -> Array:
        """Return A (..., g H) as (g H, ...), with the gates in the operator's order."""
        parts = np.split(A, len(gates), axis=-1)
        return np.concatenate([parts[i] for i in gates], axis=-1).T

    def biases(cell: Any) -> Array:
        return np.concatenate([rows(cell.b), rows(cell.params.get("bh", np.zeros_like(cell.b)))])

    W, R = (np.stack([rows(cell.params[name]) for cell in cells]) for name in ("Wx", "Wh"))
    B = np.stack([biases(cell) for cell in cells])
    named = {"Wx": W, "Wh": R, "b": B}
    x = g.ordered(x, STEPS_FIRST)
    before = [g.node("Unsqueeze", start, [0]) for start in starts]
    return g.several(
        op,
        x._replace(order=None),
        *(g.array(layer, name, a) for name, a in named.items()),
        *([Value("")] if before else []),  # the lengths of the sequences
        *before,
        outputs=3 if op == "LSTM" else 2,
        hidden_size=cells[0].units,
        direction=direction,
        **attributes,
    )
