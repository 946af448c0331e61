"""A table of all layers, each in several settings with the shape of an input; how to run them.

    make, shape = EXAMPLES[0]
    layer = made(make, shape)
    found = passes(layer, *data(layer, shape))    Y, dX and all gradients

The tests of phitodeep and `phitodeep.testing.verify` run every row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from phitodeep.core.call import calling
from phitodeep.core.types import Array, Shape
from phitodeep.functional.rotary import (
    DynamicRope,
    LinearRope,
    Llama3Rope,
    LongRope,
    Rope,
    YarnRope,
)
from phitodeep.layers import (
    CELU,
    ELU,
    GEGLU,
    GELU,
    GRU,
    LSTM,
    RNN,
    SELU,
    AvgPool1D,
    AvgPool2D,
    BatchNorm,
    Bidirectional,
    Chain,
    Conv1D,
    Conv2D,
    ConvTranspose1D,
    ConvTranspose2D,
    Dense,
    DepthwiseConv2D,
    Dropout,
    Embedding,
    FeedForward,
    Flatten,
    GaussianNoise,
    GlobalAvgPool,
    GlobalMaxPool,
    GroupNorm,
    HardSigmoid,
    HardSwish,
    HardTanh,
    InstanceNorm,
    Lambda,
    Layer,
    LayerNorm,
    LeakyReLU,
    LogSoftmax,
    LowRank,
    MaxPool1D,
    MaxPool2D,
    Mish,
    MultiHeadAttention,
    Parallel,
    Permute,
    PositionalEmbedding,
    PReLU,
    RandomCrop,
    RandomFlip,
    RandomShift,
    ReLU,
    Reparameterize,
    Reshape,
    Residual,
    RMSNorm,
    RotaryEmbedding,
    ScaledDotProductAttention,
    Select,
    Sigmoid,
    SiLU,
    SinusoidalEncoding,
    SkipConcat,
    Softmax,
    Softplus,
    Softsign,
    SpatialDropout,
    SwiGLU,
    Tanh,
    TiedDense,
    TimeDistributed,
    TransformerBlock,
    Upsample2D,
    ZeroPad2D,
)
from phitodeep.layers.initialization import InitType, Orthogonal, Xavier

Make = Callable[[], Layer]


def cube(X: Array) -> Array:
    return X**3


def cube_gradient(dY: Array, X: Array, Y: Array) -> Array:
    return 3 * X**2 * dY


def outer(X: Array) -> Array:
    return X[..., None] * X[..., None, :]


def outer_gradient(dY: Array, X: Array, Y: Array) -> Array:
    return ((dY + dY.swapaxes(-1, -2)) @ X[..., None])[..., 0]


def embedding(vocab_size: int = 7, dim: int = 3) -> Embedding:
    """Return a built embedding, which in a model would be another layer."""
    made = Embedding(vocab_size, dim)
    made.build((), seed=1, dtype=np.float64)
    return made


def tied() -> Chain:
    """Return a chain whose embedding is used twice, so that its gradient has two parts."""
    shared = Embedding(5, 3)
    return Chain(shared, Tanh(), TiedDense(shared))


ELEMENTWISE: list[Make] = [
    *(ReLU, LeakyReLU, PReLU, ELU, CELU, SELU, GELU, SiLU, Mish, HardSigmoid, HardSwish, HardTanh),
    *(Sigmoid, Tanh, Softplus, Softsign, Softmax, LogSoftmax, LayerNorm, BatchNorm, Flatten),
    lambda: LeakyReLU(0.3),
    lambda: PReLU(init=-0.1),
    lambda: ELU(1.7),
    lambda: CELU(0.6),
    lambda: GELU("tanh"),
    lambda: Dropout(0.4),
    lambda: GaussianNoise(std=0.3),
    lambda: LayerNorm(eps=0.1),
    lambda: BatchNorm(momentum=0.7, eps=0.1, sync=True),
]
VECTORS: list[tuple[Make, Shape]] = [
    *[(make, shape) for make in ELEMENTWISE for shape in ((4, 5), (2, 3, 7), (1, 3))],
    (lambda: Dense(5, 3), (4, 5)),
    (lambda: Dense(3), (2, 3, 7)),
    (lambda: Dense(1, 1, Xavier(InitType.UNIFORM), bias=False), (1, 1)),
    (lambda: Dense(6, 3, Orthogonal(2.0), bias=False), (3, 2, 2, 6)),
    (lambda: Parallel(Dense(3), LowRank(3, 2, alpha=3), merge="add"), (4, 5)),
    (lambda: Softmax(axis=1), (2, 3, 4)),
    (lambda: LogSoftmax(axis=-2), (2, 3, 4)),
    (lambda: Dropout(0.0), (3, 4)),
    (lambda: Reshape(3, -1), (2, 6)),
    (lambda: Reshape(12), (5, 2, 2, 3)),
    (lambda: Chain(), (3, 4)),
    (lambda: Chain(Flatten(), Dense(6, 4), BatchNorm(), Tanh(), Dropout(0.3), Dense(2)), (5, 2, 3)),
    (lambda: Residual(Dense(4, 3), GELU(), Dropout(0.2), Dense(4)), (4, 4)),
    (lambda: Residual(Chain(LayerNorm(), Dense(5))), (2, 3, 5)),
    (lambda: Residual(Tanh(), Residual(Sigmoid())), (1, 4)),
    (lambda: Parallel(Dense(2)), (4, 5)),
    (lambda: Parallel(Dense(2), merge="multiply"), (4, 5)),
    (lambda: Parallel(Dense(2), Chain(Dense(3), Softplus()), Tanh()), (4, 5)),
    (lambda: Parallel(Dense(5, 3), Chain(LayerNorm(), Dense(3)), merge="add"), (2, 3, 5)),
    (lambda: Parallel(Dense(3), PReLU(), Dense(3), merge="multiply"), (4, 3)),
    (lambda: Parallel(Parallel(Tanh(), Dropout(0.5)), Residual(Dense(3))), (1, 3)),
]
IMAGES: list[tuple[Make, Shape]] = [
    (lambda: Conv2D(4, 3), (2, 5, 4, 3)),
    (lambda: Conv2D(3, (2, 3), stride=(2, 1), padding=1), (3, 5, 4, 2)),
    (lambda: Conv2D(4, 3, stride=2, padding="same", groups=2), (2, 5, 6, 4)),
    (lambda: Conv2D(2, 2, dilation=(2, 1), padding="same", bias=False), (1, 4, 3, 2)),
    (lambda: Conv2D(3, 1), (4, 1, 1, 2)),
    (lambda: DepthwiseConv2D(3, padding="same"), (2, 4, 3, 3)),
    (lambda: DepthwiseConv2D((2, 1), multiplier=2, stride=2, bias=False), (2, 5, 4, 2)),
    (lambda: ConvTranspose2D(3, 3), (2, 3, 2, 2)),
    (lambda: ConvTranspose2D(4, 2, stride=3, output_padding=1, groups=2), (1, 2, 3, 4)),
    (lambda: ConvTranspose2D(2, (3, 2), stride=2, padding="same", bias=False), (2, 2, 3, 2)),
    (lambda: MaxPool2D(2), (2, 4, 5, 3)),
    (lambda: MaxPool2D((3, 2), (1, 2), 1), (2, 4, 5, 2)),
    (lambda: MaxPool2D(3, 2, "same"), (1, 5, 4, 2)),
    (lambda: AvgPool2D(2), (2, 4, 5, 3)),
    (lambda: AvgPool2D((3, 2), (1, 2), 1), (2, 4, 5, 2)),
    (lambda: AvgPool2D(3, 2, "same"), (1, 5, 4, 2)),
    (lambda: GlobalAvgPool(), (2, 3, 4, 2)),
    (lambda: GlobalMaxPool(), (2, 3, 4, 2)),
    (lambda: Upsample2D(2), (2, 2, 3, 2)),
    (lambda: Upsample2D((3, 2), "bilinear"), (1, 3, 2, 2)),
    (lambda: ZeroPad2D(2), (2, 2, 3, 2)),
    (lambda: ZeroPad2D(((0, 1), (2, 0))), (1, 2, 3, 2)),
    (lambda: Permute(3, 1, 2), (2, 2, 3, 4)),
    (lambda: Select([1, 0]), (2, 2, 3, 4)),
    (lambda: GroupNorm(2), (2, 3, 2, 4)),
    (lambda: GroupNorm(1, 0.1), (1, 2, 3, 3)),
    (lambda: InstanceNorm(0.1), (2, 3, 2, 4)),
    (lambda: BatchNorm(), (2, 3, 2, 4)),
    (lambda: SpatialDropout(0.4), (3, 2, 2, 4)),
    (lambda: RandomFlip(), (4, 3, 4, 2)),
    (lambda: RandomFlip(horizontal=False, vertical=True), (3, 1, 2, 1)),
    (lambda: RandomCrop(2), (3, 4, 5, 2)),
    (lambda: RandomCrop((3, 4), padding=(0, 1)), (2, 3, 3, 1)),
    (lambda: RandomShift(1), (3, 3, 4, 2)),
    (lambda: RandomShift((0, 2)), (2, 2, 3, 1)),
    (lambda: Chain(RandomShift(1), Conv2D(2, 2), RandomFlip(), Flatten(), Dense(2)), (3, 3, 3, 1)),
    (lambda: SkipConcat(Conv2D(3, 3, padding="same"), ReLU()), (2, 3, 4, 2)),
    (lambda: SkipConcat(MaxPool2D(2), SkipConcat(Tanh()), Upsample2D(2)), (2, 4, 2, 2)),
    (lambda: TimeDistributed(Chain(Conv2D(2, 2), Flatten())), (2, 3, 3, 3, 2)),
    (
        lambda: Chain(Conv2D(3, 3), BatchNorm(), ReLU(), MaxPool2D(2), Flatten(), Dense(2)),
        (3, 6, 6, 2),
    ),
    (lambda: Residual(Conv2D(2, 3, padding="same"), SpatialDropout(0.3)), (2, 3, 4, 2)),
]
SEQUENCES: list[tuple[Make, Shape]] = [
    (lambda: Conv1D(4, 3), (2, 6, 3)),
    (lambda: Conv1D(2, 2, stride=2, padding=1), (3, 5, 2)),
    (lambda: Conv1D(4, 3, padding="same", dilation=2, groups=2, bias=False), (2, 5, 4)),
    (lambda: ConvTranspose1D(3, 3, stride=2, padding=1, output_padding=1), (2, 4, 2)),
    (lambda: ConvTranspose1D(4, 2, stride=2, padding="same", dilation=2, groups=2), (1, 3, 4)),
    (lambda: MaxPool1D(3, 2, "same"), (2, 6, 2)),
    (lambda: MaxPool1D(2), (2, 5, 3)),
    (lambda: AvgPool1D(3, 2, "same"), (2, 6, 2)),
    (lambda: AvgPool1D(2, padding=1), (2, 5, 3)),
    (lambda: GlobalAvgPool(), (2, 5, 3)),
    (lambda: GlobalMaxPool(), (1, 1, 3)),
    (lambda: Permute(2, 1), (2, 3, 4)),
    (lambda: Permute(2, 1), (2, 1, 4)),
    (lambda: Permute(1, 2), (2, 3, 4)),
    (lambda: Select([2, 0, -1, 2]), (2, 4, 3)),
    (lambda: Select(1), (3, 2)),
    (lambda: Chain(Dense(3), Parallel(Select([0, 2]), Chain(Select([2]), Dense(2)))), (4, 2)),
    (lambda: GroupNorm(3), (2, 4, 6)),
    (lambda: InstanceNorm(), (2, 4, 3)),
    (lambda: RMSNorm(), (2, 3, 5)),
    (lambda: RMSNorm(0.1), (4, 6)),
    (lambda: SpatialDropout(0.4), (2, 3, 5)),
    (lambda: SpatialDropout(0.5), (4, 5)),
    (lambda: PositionalEmbedding(6), (2, 4, 3)),
    (lambda: SinusoidalEncoding(), (2, 4, 5)),
    (lambda: RotaryEmbedding(), (2, 4, 6)),
    (lambda: RotaryEmbedding(50.0), (1, 1, 2)),
    (lambda: RNN(3), (2, 4, 2)),
    (lambda: RNN(2, return_sequences=False), (3, 3, 2)),
    (lambda: LSTM(3), (2, 4, 2)),
    (lambda: LSTM(2, return_sequences=False), (1, 1, 3)),
    (lambda: GRU(3), (2, 4, 2)),
    (lambda: GRU(2, return_sequences=False), (3, 3, 2)),
    (lambda: Bidirectional(LSTM(2)), (2, 3, 2)),
    (lambda: Bidirectional(GRU(2), merge="add"), (1, 3, 2)),
    (lambda: Bidirectional(RNN(2, return_sequences=False)), (2, 3, 2)),
    (lambda: MultiHeadAttention(2), (2, 3, 4)),
    (lambda: MultiHeadAttention(4, causal=True, kv_heads=2, rope=True), (2, 4, 8)),
    (lambda: MultiHeadAttention(2, dropout=0.3, bias=False), (3, 4, 4)),
    (lambda: MultiHeadAttention(1, causal=True), (1, 1, 3)),
    (lambda: MultiHeadAttention(3, kv_heads=1, head_dim=2), (2, 3, 4)),
    (lambda: MultiHeadAttention(2, rope=Rope(50.0), head_dim=4), (2, 4, 3)),
    (lambda: MultiHeadAttention(1, causal=True, rope=LinearRope(4.0)), (2, 4, 4)),
    (lambda: MultiHeadAttention(1, rope=DynamicRope(2.0, max_positions=3)), (2, 5, 4)),
    (lambda: MultiHeadAttention(1, rope=Llama3Rope(max_positions=20, base=9.0)), (2, 4, 8)),
    (lambda: MultiHeadAttention(1, rope=YarnRope(4.0, max_positions=64)), (2, 4, 8)),
    (lambda: MultiHeadAttention(1, rope=LongRope([1.0, 2.0], [3.0, 4.0], 3)), (2, 4, 4)),
    (lambda: FeedForward(5), (2, 3, 4)),
    (lambda: FeedForward(3, "relu"), (2, 3, 4)),
    (lambda: FeedForward(3, "swiglu"), (2, 3, 4)),
    (lambda: FeedForward(3, "geglu"), (2, 3, 4)),
    (lambda: FeedForward(3, "silu"), (2, 3, 4)),
    (lambda: SwiGLU(5), (2, 3, 4)),
    (lambda: SwiGLU(3, bias=True), (4, 5)),
    (lambda: GEGLU(5), (2, 3, 4)),
    (lambda: GEGLU(3, approximate="tanh", bias=True), (4, 5)),
    (lambda: LowRank(3, 2), (4, 5)),
    (lambda: LowRank(4, 1, alpha=0.5, initializer=Xavier()), (2, 3, 7)),
    (lambda: LowRank(1, 1), (1, 1)),
    (lambda: ScaledDotProductAttention(2), (2, 3, 12)),
    (lambda: ScaledDotProductAttention(4, causal=True, kv_heads=2, rope=True), (2, 4, 16)),
    (lambda: ScaledDotProductAttention(2, kv_heads=1, dropout=0.3), (2, 3, 12)),
    (lambda: TransformerBlock(2, mlp_ratio=1.5, causal=True), (2, 3, 4)),
    (lambda: TransformerBlock(2, mlp_ratio=1, norm="rms", pre_norm=False, rope=True), (2, 3, 4)),
    (lambda: TransformerBlock(2, mlp_ratio=1, dropout=0.3), (2, 3, 4)),
    (lambda: Reparameterize(), (4, 6)),
    (lambda: Reparameterize(), (2, 3, 4)),
    (lambda: Reparameterize(), (1, 2)),
    (lambda: Chain(Dense(4), SkipConcat(Reparameterize(), Dense(3))), (3, 5)),
    (lambda: SkipConcat(Dense(3), Tanh()), (4, 2)),
    (lambda: SkipConcat(RNN(3)), (2, 3, 2)),
    (lambda: TimeDistributed(Dense(2)), (2, 3, 4)),
    (lambda: TimeDistributed(Chain(Dense(3), Dropout(0.3))), (2, 3, 4)),
    (lambda: TimeDistributed(RNN(2, return_sequences=False)), (2, 2, 3, 2)),
    (lambda: Lambda(cube, cube_gradient), (3, 4)),
    (lambda: Lambda(outer, outer_gradient), (2, 3)),
    (lambda: TiedDense(embedding()), (4, 3)),
    (lambda: TiedDense(embedding()), (2, 4, 3)),
    (lambda: Chain(Conv1D(3, 2), GlobalMaxPool(), Dense(2)), (2, 4, 2)),
]
TOKENS: list[tuple[Make, Shape, int]] = [  # and how many tokens there are
    (lambda: Embedding(7, 3), (2, 4), 7),
    (lambda: Embedding(5, 1), (1, 1), 5),
    (lambda: Embedding(600, 2), (3, 4), 600),  # more than embedding.ONE_HOT
    (lambda: Embedding(4, 2), (5,), 4),
    (lambda: Chain(Embedding(6, 4), PositionalEmbedding(5), TransformerBlock(2)), (2, 5), 6),
    (lambda: Chain(Embedding(6, 3), LSTM(2, return_sequences=False), Dense(6)), (2, 3), 6),
    (lambda: Chain(Select([2, 0, 2], tokens=True), Embedding(6, 3), Flatten()), (4, 3), 6),
    (tied, (2, 4), 5),
]
EXAMPLES = [*VECTORS, *IMAGES, *SEQUENCES]


def made(make: Make, shape: Shape, dtype: Any = np.float64, seed: int = 1) -> Layer:
    """Build the layer with random parameters and state: 1 and 0 would hide a lost factor."""
    layer, rng = make(), np.random.default_rng(seed)
    layer.build(shape[1:], seed=seed, dtype=dtype)
    layer.set_weights(
        {
            path: rng.uniform(0.5, 2, a.shape) if "var" in path else rng.standard_normal(a.shape)
            for path, a in layer.get_weights().items()
        }
    )
    return layer


def data(
    layer: Layer, shape: Shape, tokens: int = 0, seed: int = 2, scale: float = 1.0
) -> tuple[Array, Array]:
    """Return X, `scale` times normal values or tokens, and dY; both are read-only."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, tokens, shape) if tokens else scale * rng.standard_normal(shape)
    X = X if tokens else X.astype(layer.dtype)
    dY = rng.standard_normal((shape[0], *(layer.output_shape or ()))).astype(layer.dtype)
    X.flags.writeable = dY.flags.writeable = False
    return X, dY


def passes(layer: Layer, X: Array, dY: Array, **call: Any) -> dict[str, Array]:
    """Return copies of Y, dX and all gradients of a forward and a backward pass."""
    with calling(**{"step": 0, **call}):
        found = {"Y": layer.forward(X).copy()}
        dX = layer.backward(dY)
    if dX is not None:
        found["dX"] = dX.copy()
    for path, part in layer.walk():
        found |= {f"{path}.{n}" if path else n: a.copy() for n, a in part.grads.items()}
    return found
