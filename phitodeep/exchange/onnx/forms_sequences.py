"""How embeddings, attention and recurrent layers are written in ONNX.

Three values are written once for all layers whose sequences have the same number of steps T:

    T           Shape(X, start=1, end=2), as (1,) integers
    column      Unsqueeze(Range(0, Squeeze(T, [0]), 1), [1]): the positions (T, 1)
    angles      Mod(Mul(Cast(column, float64), frequencies), 2 pi), fmod=1, (T, pairs) in float64:
                float32 has too few digits for the angles of late positions

    Embedding             Gather(W, X)
    PositionalEmbedding   Add(X, Slice(W, [0], T, [0]))
    SinusoidalEncoding    Add(X, Sin(Cast(Mod(Add(Mul(Cast(column, float64), frequencies), phases),
                          2 pi)))), with two equal frequencies and the phases 0 and pi / 2 for each
                          pair of features
    RotaryEmbedding       x, y = Split(X, 2 halves); cos, sin = Cos(Cast(angles)), Sin(Cast(angles))
                          Concat(Sub(Mul(x, cos), Mul(y, sin)), Add(Mul(x, sin), Mul(y, cos)))
    MultiHeadAttention    QKV = MatMul(X, Wqkv), then Add bqkv
                          Q, K, V = Split(QKV, [h d, k d, k d]), each then Reshape to
                          [0, 0, h, d] and Transpose to (N, h, T, d); with rope, Q and K are then
                          rotated as in RotaryEmbedding
                          S = MatMul(Mul(Q, scale), Transpose(K)); if causal, then
                          Where(GreaterOrEqual(column, Squeeze(column, [1])), S, -inf)
                          MatMul(Softmax(S), V), Transpose, Reshape to [0, 0, h d], MatMul Wo, Add
                          bo. With k < h heads of keys, the heads are two axes (k, h / k), and
                          those of keys and values (k, 1)
    RNN, LSTM, GRU        RNN, LSTM, GRU(X, W, R, B) with steps first (T, N, D), then Squeeze the
                          axis of directions; the last state is the second output
    Bidirectional         the same with direction="bidirectional"; "concat" is then
                          Reshape(Transpose(Y), [0, 0, -1]), and "add" is ReduceSum
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from phitodeep.exchange.onnx.forms_general import product, reduced
from phitodeep.exchange.onnx.graph import Graph, Value, rank, type_of
from phitodeep.layers.base import Layer
from phitodeep.types import Array

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


def angles(g: Graph, layer: Layer, x: Value, frequencies: Array, phases: Array | None) -> Value:
    """Return position times frequency plus phase, modulo 2 pi, as (T, pairs) in the model's dtype."""
    column = g.positions(layer, x)

    def written() -> Value:
        positions = g.shared(
            ("float64", column.name), lambda: g.node("Cast", column, to=type_of(np.float64))
        )
        a = g.node("Mul", positions, frequencies)
        a = a if phases is None else g.node("Add", a, phases)
        a = g.node("Mod", a, np.array(2 * math.pi), fmod=1)
        return a if g.dtype == np.float64 else g.node("Cast", a, to=type_of(g.dtype))

    phase = b"" if phases is None else phases.tobytes()
    return g.shared(("angles", column.name, frequencies.tobytes(), phase), written)


def frequencies(pairs: int, step: float, base: float = 10000.0) -> Array:
    """Return base^(-i step) for the pairs i."""
    return np.exp(-math.log(base) * step * np.arange(pairs))


def sinusoidal_encoding(g: Graph, layer: Any, x: Value) -> Value:
    x, D = g.ordered(x), layer.input_shape[-1]
    w = np.repeat(frequencies((D + 1) // 2, 2 / D), 2)[:D]
    phases = np.where(np.arange(D) % 2, math.pi / 2, 0)  # a cosine is a sine a quarter later
    return g.node("Add", x, g.node("Sin", angles(g, layer, x, w, phases)))


def rotary_embedding(g: Graph, layer: Any, x: Value) -> Value:
    x, D = g.ordered(x), layer.input_shape[-1]
    return rotated(g, x, *cos_and_sin(g, layer, x, D, layer.base), D)


def cos_and_sin(g: Graph, layer: Layer, x: Value, D: int, base: float) -> tuple[Value, Value]:
    """Return the cosines and sines (T, D / 2) of the angles by which D features are rotated."""
    a = angles(g, layer, x, frequencies(D // 2, 2 / D, base), None)
    cos = g.shared(("cos", a.name), lambda: g.node("Cos", a))
    return cos, g.shared(("sin", a.name), lambda: g.node("Sin", a))


def rotated(g: Graph, x: Value, cos: Value, sin: Value, D: int) -> Value:
    """Write x (..., T, D) with each pair of features (i, i + D / 2) rotated."""
    a, b = g.several("Split", x, [D // 2, D // 2], outputs=2, axis=-1)
    first = g.node("Sub", g.node("Mul", a, cos), g.node("Mul", b, sin))
    second = g.node("Add", g.node("Mul", a, sin), g.node("Mul", b, cos))
    return g.node("Concat", first, second, axis=-1)


# --- attention ------------------------------------------------------------------------------------


def attention(g: Graph, layer: Any, x: Value) -> Value:
    x, h, k = g.ordered(x), layer.heads, layer.kv_heads or layer.heads
    d = layer.input_shape[-1] // h
    biases = [g.param(layer, n) if layer.bias else None for n in ("bqkv", "bo")]
    QKV = product(g, x, g.param(layer, "Wqkv"), biases[0])
    parts = g.several("Split", QKV, [h * d, k * d, k * d], outputs=3, axis=-1)
    shared = [(k, h // k), (k, 1), (k, 1)] if k < h else [(h,)] * 3
    Q, K, V = (by_head(g, part, heads, d) for part, heads in zip(parts, shared, strict=True))
    if layer.rope:
        cos, sin = cos_and_sin(g, layer, x, d, 10000.0)
        Q, K = rotated(g, Q, cos, sin, d), rotated(g, K, cos, sin, d)
    Z = attend(g, layer, x, (Q, K, V), len(shared[0]), 1 / math.sqrt(d), layer.causal)
    Z = g.node("Reshape", Z, [0, 0, h * d])
    return product(g, Z, g.param(layer, "Wo"), biases[1])


def by_head(g: Graph, x: Value, heads: tuple[int, ...], d: int) -> Value:
    """Write x (N, T, heads d) as (N, *heads, T, d)."""
    x = g.node("Reshape", x, [0, 0, *heads, d])
    n = len(heads)
    return g.node("Transpose", x, perm=[0, *range(2, n + 2), 1, n + 2])


def attend(
    g: Graph,
    layer: Layer,
    x: Value,
    QKV: tuple[Value, Value, Value],
    n: int,
    scale: float,
    causal: bool,
) -> Value:
    """Write softmax(Q K^T scale) V as (N, T, *heads, d); there are n axes of heads."""
    Q, K, V = QKV
    K_T = g.node("Transpose", K, perm=[*range(n + 1), n + 2, n + 1])
    S = g.node("MatMul", g.node("Mul", Q, scale), K_T)
    if causal:
        S = g.node("Where", visible(g, layer, x), S, -math.inf)
    Z = g.node("MatMul", g.node("Softmax", S, axis=-1), V)
    return g.node("Transpose", Z, perm=[0, n + 1, *range(1, n + 1), n + 2])


def visible(g: Graph, layer: Layer, x: Value) -> Value:
    """Return whether position t may attend to position s, (T, T): s <= t."""
    column = g.positions(layer, x)
    row = g.shared(("row", column.name), lambda: g.node("Squeeze", column, [1]))
    return g.shared(("visible", column.name), lambda: g.node("GreaterOrEqual", column, row))


# --- recurrent layers -----------------------------------------------------------------------------

GATES = {  # the order of the gates in the operator, as indices of ours
    "rnn": ("RNN", [0], {}),
    "lstm": ("LSTM", [0, 3, 1, 2], {}),
    "gru": ("GRU", [1, 0, 2], {"linear_before_reset": 1}),
}


def recurrent(g: Graph, layer: Any, x: Value) -> Value:
    Y, last = directions(g, layer, [layer], x, "forward")
    if layer.return_sequences:
        return g.node("Squeeze", Y, [1])._replace(order=STEPS_FIRST)
    return g.node("Squeeze", last, [0])


def bidirectional(g: Graph, layer: Any, x: Value) -> Value:
    Y, last = directions(g, layer, [layer.layer, layer.reverse], x, "bidirectional")
    if layer.layer.return_sequences:
        order, y, axis, perm, shape = STEPS_FIRST, Y, 1, [0, 2, 1, 3], [0, 0, -1]
    else:
        order, y, axis, perm, shape = None, last, 0, [1, 0, 2], [0, -1]
    if layer.merge == "add":
        return reduced(g, "ReduceSum", y, [axis])._replace(order=order)
    y = g.node("Reshape", g.node("Transpose", y, perm=perm), shape)
    return y._replace(order=order)


def directions(
    g: Graph, layer: Layer, cells: list[Any], x: Value, direction: str
) -> tuple[Value, Value]:
    """Write the operator; return all states (T, directions, N, H) and the last (directions, N, H)."""
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
    Y, last, *_ = g.several(
        op,
        x._replace(order=None),
        *(g.array(layer, name, a) for name, a in named.items()),
        outputs=3 if op == "LSTM" else 2,
        hidden_size=cells[0].units,
        direction=direction,
        **attributes,
    )
    return Y, last
