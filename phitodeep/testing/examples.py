"""Tables of all layers, losses and optimizers, each in several settings; how to run them.

    make, shape = EXAMPLES[0]
    layer = made(make, shape)
    found = passes(layer, *data(layer, shape))    Y, dX and all gradients

    loss, targets = LOSSES[0]
    P, y = pair(loss, (5, 4))                     predictions, and targets of this kind

The tests run every row, and `phitodeep.testing.verify` those of the layers. Whoever adds a layer, a
loss or an optimizer adds a row here: CONTRIBUTING.md shows how.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from phitodeep import layers as nn
from phitodeep import loss as losses
from phitodeep.core.call import calling
from phitodeep.core.types import Array, Shape, each, numbered
from phitodeep.functional import log_softmax, rotary, sigmoid, softmax
from phitodeep.layers import Layer
from phitodeep.layers.initialization import InitType, Orthogonal, Xavier
from phitodeep.loss import Loss

Make = Callable[[], Layer]


def cube(X: Array) -> Array:
    return X**3


def cube_gradient(dY: Array, X: Array, Y: Array) -> Array:
    return 3 * X**2 * dY


def outer(X: Array) -> Array:
    return X[..., None] * X[..., None, :]


def outer_gradient(dY: Array, X: Array, Y: Array) -> Array:
    return ((dY + dY.swapaxes(-1, -2)) @ X[..., None])[..., 0]


def embedding(vocab_size: int = 7, dim: int = 3) -> nn.Embedding:
    """Return a built embedding, which in a model would be another layer."""
    made = nn.Embedding(vocab_size, dim)
    made.build((), seed=1, dtype=np.float64)
    return made


def tied() -> nn.Chain:
    """Return a chain whose embedding is used twice, so that its gradient has two parts."""
    shared = nn.Embedding(5, 3)
    return nn.Chain(shared, nn.Tanh(), nn.TiedDense(shared))


def merged(merge: Layer, *branches: Layer) -> nn.Wired:
    """Return a network of x, in which layers read x, and a layer with several inputs their Y."""
    outs = [f"y{k}" for k in range(1, len(branches) + 1)]
    uses = [(branch, ["x"], [out]) for branch, out in zip(branches, outs, strict=True)]
    return nn.Wired(["x"], [*uses, (merge, outs, ["y"])], ["y"])


def squeezed() -> nn.Wired:
    """Return a network in which a branch of 1 x 1 pixels scales the feature maps."""
    return nn.Wired(
        ["x"],
        [
            (nn.Conv2D(4, 3, padding="same"), ["x"], ["maps"]),
            (nn.GlobalAvgPool(), ["maps"], ["means"]),
            (nn.Dense(4), ["means"], ["weights"]),
            (nn.Sigmoid(), ["weights"], ["shares"]),
            (nn.Reshape(1, 1, 4), ["shares"], ["gate"]),
            (nn.Multiply(), ["maps", "gate"], ["scaled"]),
            (nn.Add(), ["scaled", "maps", "gate"], ["sum"]),
        ],
        ["sum"],
    )


def twice(layer: Layer) -> nn.Chain:
    """Return a chain that has a layer at two places, with one set of weights."""
    return nn.Chain(layer, nn.Tanh(), nn.Shared(layer))


def subject(layer: Layer) -> Layer:
    """Return the layer that a row is about: inside a network, one with several inputs."""
    parts = [part for _, part in layer.walk()]
    inside: list[Layer] = [part for part in parts if isinstance(part, nn.Shared)]
    inside = inside or [part for part in parts if part.inputs != 1]
    return inside[0] if len({type(part) for part in inside}) == 1 else layer


def handed_on(cell: Any, units: int) -> nn.Wired:
    """Return a network in which a second recurrent layer begins with the states of a first."""
    first = cell(units, return_sequences=False, return_state=True)
    last, h, *c = [f"state{k}" for k in range(first.outputs)]
    uses = [
        (first, ["x"], [last, h, *c]),
        (nn.Multiply(), [last, h], ["start"]),
        (cell(units, initial_state=True), ["x", "start", *c], ["y"]),
    ]
    return nn.Wired(["x"], uses, ["y"])


DEFAULTS = """
ReLU LeakyReLU PReLU ELU CELU SELU GELU SiLU Mish HardSigmoid HardSwish HardTanh Sigmoid Tanh
Softplus Softsign Softmax LogSoftmax LayerNorm BatchNorm Flatten"""  # without arguments
ELEMENTS: list[Layer] = [
    *(getattr(nn, name)() for name in DEFAULTS.split()),
    nn.LeakyReLU(0.3),
    nn.PReLU(init=-0.1),
    nn.ELU(1.7),
    nn.CELU(0.6),
    nn.GELU("tanh"),
    nn.Dropout(0.4),
    nn.GaussianNoise(std=0.3),
    nn.LayerNorm(eps=0.1),
    nn.BatchNorm(momentum=0.7, eps=0.1, sync=True),
]
VECTORS: list[tuple[Layer, Shape]] = [
    *[(layer, shape) for layer in ELEMENTS for shape in ((4, 5), (2, 3, 7), (1, 3))],
    (nn.Dense(5, 3), (4, 5)),
    (nn.Dense(3), (2, 3, 7)),
    (nn.Dense(1, 1, Xavier(InitType.UNIFORM), bias=False), (1, 1)),
    (nn.Dense(6, 3, Orthogonal(2.0), bias=False), (3, 2, 2, 6)),
    (nn.Parallel(nn.Dense(3), nn.LowRank(3, 2, alpha=3), merge="add"), (4, 5)),
    (nn.Softmax(axis=1), (2, 3, 4)),
    (nn.LogSoftmax(axis=-2), (2, 3, 4)),
    (nn.Dropout(0.0), (3, 4)),
    (nn.GradientReversal(), (3, 4)),
    (nn.Chain(nn.Dense(3), nn.GradientReversal(0.3), nn.Dense(2)), (2, 3, 4)),
    (nn.Reshape(3, -1), (2, 6)),
    (nn.Reshape(12), (5, 2, 2, 3)),
    (merged(nn.Add(), nn.Dense(3), nn.Dense(1), nn.Dense(3)), (4, 5)),
    (merged(nn.Add(), nn.Tanh(), nn.Dense(7)), (2, 3, 7)),
    (merged(nn.Subtract(), nn.Dense(1), nn.Dense(3)), (4, 5)),
    (merged(nn.Multiply(), nn.Dense(3), nn.Sigmoid(), nn.Dense(1)), (4, 3)),
    (merged(nn.Average(), nn.Dense(1), nn.Tanh(), nn.Dense(3)), (2, 3, 3)),
    (merged(nn.Maximum(), nn.Dense(3), nn.Tanh(), nn.Dense(1)), (4, 3)),
    (merged(nn.Concat(), nn.Dense(3), nn.Tanh(), nn.Dense(1)), (4, 2)),
    (merged(nn.Concat(0), nn.Dense(5), nn.Tanh(), nn.Dense(5)), (2, 3, 5)),
    (merged(nn.Dot(), nn.Dense(3), nn.Dense(3)), (4, 2)),
    (merged(nn.Dot(), nn.Tanh(), nn.Dense(5)), (2, 3, 5)),
    (merged(nn.Bilinear(4), nn.Dense(3), nn.Tanh()), (4, 5)),
    (merged(nn.Bilinear(1, bias=False), nn.Tanh(), nn.Dense(2)), (2, 3, 4)),
    (squeezed(), (2, 4, 3, 2)),
    (twice(nn.Dense(5)), (4, 5)),
    (twice(nn.Chain(nn.LayerNorm(), nn.Dense(3), nn.Dropout(0.3))), (2, 4, 3)),
    (nn.Chain(), (3, 4)),
    (
        nn.Chain(
            nn.Flatten(), nn.Dense(6, 4), nn.BatchNorm(), nn.Tanh(), nn.Dropout(0.3), nn.Dense(2)
        ),
        (5, 2, 3),
    ),
    (nn.Residual(nn.Dense(4, 3), nn.GELU(), nn.Dropout(0.2), nn.Dense(4)), (4, 4)),
    (nn.Residual(nn.Chain(nn.LayerNorm(), nn.Dense(5))), (2, 3, 5)),
    (nn.Residual(nn.Tanh(), nn.Residual(nn.Sigmoid())), (1, 4)),
    (nn.Parallel(nn.Dense(2)), (4, 5)),
    (nn.Parallel(nn.Dense(2), merge="multiply"), (4, 5)),
    (nn.Parallel(nn.Dense(2), nn.Chain(nn.Dense(3), nn.Softplus()), nn.Tanh()), (4, 5)),
    (nn.Parallel(nn.Dense(5, 3), nn.Chain(nn.LayerNorm(), nn.Dense(3)), merge="add"), (2, 3, 5)),
    (nn.Parallel(nn.Dense(3), nn.PReLU(), nn.Dense(3), merge="multiply"), (4, 3)),
    (nn.Parallel(nn.Parallel(nn.Tanh(), nn.Dropout(0.5)), nn.Residual(nn.Dense(3))), (1, 3)),
]
IMAGES: list[tuple[Layer, Shape]] = [
    (nn.Conv2D(4, 3), (2, 5, 4, 3)),
    (nn.Conv2D(3, (2, 3), stride=(2, 1), padding=1), (3, 5, 4, 2)),
    (nn.Conv2D(4, 3, stride=2, padding="same", groups=2), (2, 5, 6, 4)),
    (nn.Conv2D(2, 2, dilation=(2, 1), padding="same", bias=False), (1, 4, 3, 2)),
    (nn.Conv2D(3, 1), (4, 1, 1, 2)),
    (nn.DepthwiseConv2D(3, padding="same"), (2, 4, 3, 3)),
    (nn.DepthwiseConv2D((2, 1), multiplier=2, stride=2, bias=False), (2, 5, 4, 2)),
    (nn.ConvTranspose2D(3, 3), (2, 3, 2, 2)),
    (nn.ConvTranspose2D(4, 2, stride=3, output_padding=1, groups=2), (1, 2, 3, 4)),
    (nn.ConvTranspose2D(2, (3, 2), stride=2, padding="same", bias=False), (2, 2, 3, 2)),
    (nn.MaxPool2D(2), (2, 4, 5, 3)),
    (nn.MaxPool2D((3, 2), (1, 2), 1), (2, 4, 5, 2)),
    (nn.MaxPool2D(3, 2, "same"), (1, 5, 4, 2)),
    (nn.AvgPool2D(2), (2, 4, 5, 3)),
    (nn.AvgPool2D((3, 2), (1, 2), 1), (2, 4, 5, 2)),
    (nn.AvgPool2D(3, 2, "same"), (1, 5, 4, 2)),
    (nn.GlobalAvgPool(), (2, 3, 4, 2)),
    (nn.GlobalMaxPool(), (2, 3, 4, 2)),
    (nn.Upsample2D(2), (2, 2, 3, 2)),
    (nn.Upsample2D((3, 2), "bilinear"), (1, 3, 2, 2)),
    (nn.ZeroPad2D(2), (2, 2, 3, 2)),
    (nn.ZeroPad2D(((0, 1), (2, 0))), (1, 2, 3, 2)),
    (nn.Permute(3, 1, 2), (2, 2, 3, 4)),
    (nn.Select([1, 0]), (2, 2, 3, 4)),
    (nn.GroupNorm(2), (2, 3, 2, 4)),
    (nn.GroupNorm(1, 0.1), (1, 2, 3, 3)),
    (nn.InstanceNorm(0.1), (2, 3, 2, 4)),
    (nn.BatchNorm(), (2, 3, 2, 4)),
    (nn.SpatialDropout(0.4), (3, 2, 2, 4)),
    (nn.RandomFlip(), (4, 3, 4, 2)),
    (nn.RandomFlip(horizontal=False, vertical=True), (3, 1, 2, 1)),
    (nn.RandomCrop(2), (3, 4, 5, 2)),
    (nn.RandomCrop((3, 4), padding=(0, 1)), (2, 3, 3, 1)),
    (nn.RandomShift(1), (3, 3, 4, 2)),
    (nn.RandomShift((0, 2)), (2, 2, 3, 1)),
    (
        nn.Chain(nn.RandomShift(1), nn.Conv2D(2, 2), nn.RandomFlip(), nn.Flatten(), nn.Dense(2)),
        (3, 3, 3, 1),
    ),
    (nn.SkipConcat(nn.Conv2D(3, 3, padding="same"), nn.ReLU()), (2, 3, 4, 2)),
    (nn.SkipConcat(nn.MaxPool2D(2), nn.SkipConcat(nn.Tanh()), nn.Upsample2D(2)), (2, 4, 2, 2)),
    (nn.TimeDistributed(nn.Chain(nn.Conv2D(2, 2), nn.Flatten())), (2, 3, 3, 3, 2)),
    (
        nn.Chain(
            nn.Conv2D(3, 3), nn.BatchNorm(), nn.ReLU(), nn.MaxPool2D(2), nn.Flatten(), nn.Dense(2)
        ),
        (3, 6, 6, 2),
    ),
    (nn.Residual(nn.Conv2D(2, 3, padding="same"), nn.SpatialDropout(0.3)), (2, 3, 4, 2)),
]
SEQUENCES: list[tuple[Layer, Shape]] = [
    (nn.Conv1D(4, 3), (2, 6, 3)),
    (nn.Conv1D(2, 2, stride=2, padding=1), (3, 5, 2)),
    (nn.Conv1D(4, 3, padding="same", dilation=2, groups=2, bias=False), (2, 5, 4)),
    (nn.ConvTranspose1D(3, 3, stride=2, padding=1, output_padding=1), (2, 4, 2)),
    (nn.ConvTranspose1D(4, 2, stride=2, padding="same", dilation=2, groups=2), (1, 3, 4)),
    (nn.MaxPool1D(3, 2, "same"), (2, 6, 2)),
    (nn.MaxPool1D(2), (2, 5, 3)),
    (nn.AvgPool1D(3, 2, "same"), (2, 6, 2)),
    (nn.AvgPool1D(2, padding=1), (2, 5, 3)),
    (nn.GlobalAvgPool(), (2, 5, 3)),
    (nn.GlobalMaxPool(), (1, 1, 3)),
    (nn.Permute(2, 1), (2, 3, 4)),
    (nn.Permute(2, 1), (2, 1, 4)),
    (nn.Permute(1, 2), (2, 3, 4)),
    (nn.Select([2, 0, -1, 2]), (2, 4, 3)),
    (nn.Select(1), (3, 2)),
    (
        nn.Chain(
            nn.Dense(3), nn.Parallel(nn.Select([0, 2]), nn.Chain(nn.Select([2]), nn.Dense(2)))
        ),
        (4, 2),
    ),
    (nn.GroupNorm(3), (2, 4, 6)),
    (nn.InstanceNorm(), (2, 4, 3)),
    (nn.RMSNorm(), (2, 3, 5)),
    (nn.RMSNorm(0.1), (4, 6)),
    (nn.SpatialDropout(0.4), (2, 3, 5)),
    (nn.SpatialDropout(0.5), (4, 5)),
    (nn.PositionalEmbedding(6), (2, 4, 3)),
    (nn.SinusoidalEncoding(), (2, 4, 5)),
    (nn.RotaryEmbedding(), (2, 4, 6)),
    (nn.RotaryEmbedding(50.0), (1, 1, 2)),
    (nn.RNN(3), (2, 4, 2)),
    (nn.RNN(2, return_sequences=False), (3, 3, 2)),
    (nn.LSTM(3), (2, 4, 2)),
    (nn.LSTM(2, return_sequences=False), (1, 1, 3)),
    (nn.GRU(3), (2, 4, 2)),
    (nn.GRU(2, return_sequences=False), (3, 3, 2)),
    (handed_on(nn.RNN, 3), (2, 4, 2)),
    (handed_on(nn.LSTM, 2), (3, 3, 2)),
    (handed_on(nn.GRU, 3), (2, 3, 2)),
    (nn.Bidirectional(nn.LSTM(2)), (2, 3, 2)),
    (nn.Bidirectional(nn.GRU(2), merge="add"), (1, 3, 2)),
    (nn.Bidirectional(nn.RNN(2, return_sequences=False)), (2, 3, 2)),
    (nn.MultiHeadAttention(2), (2, 3, 4)),
    (nn.MultiHeadAttention(4, causal=True, kv_heads=2, rope=True), (2, 4, 8)),
    (nn.MultiHeadAttention(2, dropout=0.3, bias=False), (3, 4, 4)),
    (nn.MultiHeadAttention(1, causal=True), (1, 1, 3)),
    (nn.MultiHeadAttention(3, kv_heads=1, head_dim=2), (2, 3, 4)),
    (nn.MultiHeadAttention(2, rope=rotary.Rope(50.0), head_dim=4), (2, 4, 3)),
    (nn.MultiHeadAttention(1, causal=True, rope=rotary.LinearRope(4.0)), (2, 4, 4)),
    (nn.MultiHeadAttention(1, rope=rotary.DynamicRope(2.0, max_positions=3)), (2, 5, 4)),
    (nn.MultiHeadAttention(1, rope=rotary.Llama3Rope(max_positions=20, base=9.0)), (2, 4, 8)),
    (nn.MultiHeadAttention(1, rope=rotary.YarnRope(4.0, max_positions=64)), (2, 4, 8)),
    (nn.MultiHeadAttention(1, rope=rotary.LongRope([1.0, 2.0], [3.0, 4.0], 3)), (2, 4, 4)),
    (merged(nn.CrossAttention(2), nn.Dense(4), nn.Tanh()), (2, 3, 5)),
    (merged(nn.CrossAttention(4, kv_heads=2, dropout=0.3), nn.Tanh(), nn.Conv1D(3, 2)), (2, 4, 8)),
    (merged(nn.CrossAttention(2, bias=False, head_dim=3), nn.Select([0]), nn.Tanh()), (2, 3, 5)),
    (nn.FeedForward(5), (2, 3, 4)),
    (nn.FeedForward(3, "relu"), (2, 3, 4)),
    (nn.FeedForward(3, "swiglu"), (2, 3, 4)),
    (nn.FeedForward(3, "geglu"), (2, 3, 4)),
    (nn.FeedForward(3, "silu"), (2, 3, 4)),
    (nn.SwiGLU(5), (2, 3, 4)),
    (nn.SwiGLU(3, bias=True), (4, 5)),
    (nn.GEGLU(5), (2, 3, 4)),
    (nn.GEGLU(3, approximate="tanh", bias=True), (4, 5)),
    (nn.LowRank(3, 2), (4, 5)),
    (nn.LowRank(4, 1, alpha=0.5, initializer=Xavier()), (2, 3, 7)),
    (nn.LowRank(1, 1), (1, 1)),
    (nn.ScaledDotProductAttention(2), (2, 3, 12)),
    (nn.ScaledDotProductAttention(4, causal=True, kv_heads=2, rope=True), (2, 4, 16)),
    (nn.ScaledDotProductAttention(2, kv_heads=1, dropout=0.3), (2, 3, 12)),
    (nn.TransformerBlock(2, mlp_ratio=1.5, causal=True), (2, 3, 4)),
    (nn.TransformerBlock(2, mlp_ratio=1, norm="rms", pre_norm=False, rope=True), (2, 3, 4)),
    (nn.TransformerBlock(2, mlp_ratio=1, dropout=0.3), (2, 3, 4)),
    (nn.Reparameterize(), (4, 6)),
    (nn.Reparameterize(), (2, 3, 4)),
    (nn.Reparameterize(), (1, 2)),
    (nn.Chain(nn.Dense(4), nn.SkipConcat(nn.Reparameterize(), nn.Dense(3))), (3, 5)),
    (nn.SkipConcat(nn.Dense(3), nn.Tanh()), (4, 2)),
    (nn.SkipConcat(nn.RNN(3)), (2, 3, 2)),
    (nn.TimeDistributed(nn.Dense(2)), (2, 3, 4)),
    (nn.TimeDistributed(nn.Chain(nn.Dense(3), nn.Dropout(0.3))), (2, 3, 4)),
    (nn.TimeDistributed(nn.RNN(2, return_sequences=False)), (2, 2, 3, 2)),
    (nn.Lambda(cube, cube_gradient), (3, 4)),
    (nn.Lambda(outer, outer_gradient), (2, 3)),
    (nn.TiedDense(embedding()), (4, 3)),
    (nn.TiedDense(embedding()), (2, 4, 3)),
    (nn.Chain(nn.Conv1D(3, 2), nn.GlobalMaxPool(), nn.Dense(2)), (2, 4, 2)),
]
READING: list[tuple[Layer, Shape, int]] = [  # and how many tokens there are
    (nn.Embedding(7, 3), (2, 4), 7),
    (nn.Embedding(5, 1), (1, 1), 5),
    (nn.Embedding(600, 2), (3, 4), 600),  # more than embedding.ONE_HOT
    (nn.Embedding(4, 2), (5,), 4),
    (nn.Chain(nn.Embedding(6, 4), nn.PositionalEmbedding(5), nn.TransformerBlock(2)), (2, 5), 6),
    (nn.Chain(nn.Embedding(6, 3), nn.LSTM(2, return_sequences=False), nn.Dense(6)), (2, 3), 6),
    (nn.Chain(nn.Select([2, 0, 2], tokens=True), nn.Embedding(6, 3), nn.Flatten()), (4, 3), 6),
    (tied(), (2, 4), 5),
]
# Each call of `copy` makes a new layer.
ELEMENTWISE: list[Make] = [layer.copy for layer in ELEMENTS]
EXAMPLES: list[tuple[Make, Shape]] = [
    (layer.copy, shape) for layer, shape in (*VECTORS, *IMAGES, *SEQUENCES)
]
TOKENS: list[tuple[Make, Shape, int]] = [(layer.copy, shape, n) for layer, shape, n in READING]


def made(make: Make, shape: Any, dtype: Any = np.float64, seed: int = 1) -> Layer:
    """Build the layer with random parameters and state: 1 and 0 would hide a lost factor.

    `shape` is that of X, or a tuple of those of X1, X2, ...
    """
    layer, rng = make(), np.random.default_rng(seed)
    several = isinstance(shape[0], tuple)
    layer.build(tuple(s[1:] for s in shape) if several else shape[1:], seed=seed, dtype=dtype)
    layer.set_weights(
        {
            path: rng.uniform(0.5, 2, a.shape) if "var" in path else rng.standard_normal(a.shape)
            for path, a in layer.get_weights().items()
        }
    )
    return layer


def data(
    layer: Layer, shape: Any, tokens: int = 0, seed: int = 2, scale: float = 1.0
) -> tuple[Any, Any]:
    """Return X, `scale` times normal values or tokens, and dY; in float64, all are read-only.

    Of a layer with several inputs, `shape` and X are tuples; with several outputs, dY is one.
    """
    rng = np.random.default_rng(seed)

    def drawn(shape: Shape) -> Array:
        if tokens:
            return rng.integers(0, tokens, shape)
        return (scale * rng.standard_normal(shape)).astype(layer.dtype)

    shapes = shape if isinstance(shape[0], tuple) else (shape,)
    Xs = tuple([drawn(s) for s in shapes])
    outs = [(shapes[0][0], *out) for out in layer._outs() or ((),)]
    dYs = tuple([rng.standard_normal(out).astype(layer.dtype) for out in outs])
    for A in (*Xs, *dYs):
        A.flags.writeable = layer.dtype == np.float32  # Numba compiles for either: once is enough
    return Xs if layer.inputs != 1 else Xs[0], dYs if layer.outputs != 1 else dYs[0]


def passes(layer: Layer, X: Any, dY: Any, **call: Any) -> dict[str, Array]:
    """Return copies of Y, dX and all gradients of a forward and a backward pass.

    Several are Y1, Y2, ... and dX1, dX2, ...
    """
    with calling(**{"step": 0, **call}):
        found = {n: a.copy() for n, a in numbered("Y", layer.forward(*each(X))).items()}
        dX = layer.backward(*each(dY))
    found |= {n: a.copy() for n, a in numbered("dX", dX).items() if a is not None}
    for path, part in layer.walk():
        found |= {f"{path}.{n}" if path else n: a.copy() for n, a in part.grads.items()}
    return found


# --- losses ------------------------------------------------------------------------------------

WEIGHTS = [0.5, 2.0, 1.0, 0.25]  # of four classes
LOSSES: list[tuple[Loss, str]] = [  # and the kind of targets
    (losses.MeanSquaredError(), "numbers"),
    (losses.MeanAbsoluteError(), "numbers"),
    (losses.Huber(0.7), "numbers"),
    (losses.Huber(), "numbers"),
    (losses.LogCosh(), "numbers"),
    (losses.BinaryCrossEntropy(), "shares"),
    (losses.BinaryCrossEntropyWithLogits(), "shares"),
    (losses.Hinge(), "signs"),
    (losses.SquaredHinge(), "signs"),
    (losses.PoissonNLL(), "counts"),
    (losses.PoissonNLL(log_input=False), "counts"),
    (losses.KLDivergence(), "numbers"),
    (losses.CosineSimilarityLoss(), "numbers"),
    (losses.NegativeELBO(1), "pixels"),
    (losses.NegativeELBO(1, beta=2.5), "pixels"),
    (losses.CategoricalCrossEntropy(), "labels"),
    (losses.CategoricalCrossEntropy(0.2, -1, WEIGHTS), "labels"),
    (losses.SoftmaxCrossEntropy(), "labels"),
    (losses.SoftmaxCrossEntropy(label_smoothing=0.1), "labels"),
    (losses.SoftmaxCrossEntropy(ignore_index=-1), "labels"),
    (losses.SoftmaxCrossEntropy(class_weight={1: 3.0}), "labels"),
    (losses.SoftmaxCrossEntropy(0.1, 2, np.array(WEIGHTS)), "labels"),
    (losses.NegativeLogLikelihood(), "labels"),
    (losses.NegativeLogLikelihood(-1, WEIGHTS), "labels"),
]
TARGETS: dict[str, Callable[[np.random.Generator, Shape], Array]] = {
    "numbers": lambda rng, shape: softmax(rng.standard_normal(shape)),
    "shares": lambda rng, shape: rng.random(shape),
    "signs": lambda rng, shape: rng.choice([-1.0, 1.0], shape),
    "counts": lambda rng, shape: rng.integers(0, 5, shape),
    "pixels": lambda rng, shape: rng.random((*shape[:-1], shape[-1] - 2)),  # one latent number
    "labels": lambda rng, shape: rng.integers(0, shape[-1], shape[:-1]),
}


def pair(loss: Loss, shape: Shape, seed: int = 3) -> tuple[Array, Array]:
    """Return predictions (N, ..., K) that suit the loss, and targets."""
    kind = next(kind for example, kind in LOSSES if type(example) is type(loss))
    rng = np.random.default_rng(seed)
    P = 2 * rng.standard_normal(shape)
    if loss.wants == "probabilities":
        P = sigmoid(P) if kind == "shares" else softmax(P)
    elif loss.wants == "log-probabilities":
        P = log_softmax(P)
    elif not getattr(loss, "log_input", True):  # a positive rate
        P = np.abs(P) + 0.1
    return P, TARGETS[kind](rng, shape)


# --- optimizers --------------------------------------------------------------------------------

ADAM = {"alpha": 0.05, "beta1": 0.8, "beta2": 0.99, "eps": 1e-7}
OPTIMIZERS: dict[str, dict[str, Any]] = {  # settings with which each uses all its memory
    "SGD": {"alpha": 0.05, "momentum": 0.9, "nesterov": True},
    "Adam": ADAM,
    "AdamW": ADAM,
    "Nadam": {**ADAM, "psi": 0.01},
    "RMSProp": {"alpha": 0.02, "rho": 0.8, "eps": 1e-6, "momentum": 0.5},
    "Adagrad": {"alpha": 0.2, "eps": 1e-6},
    "Adadelta": {"alpha": 3.0, "rho": 0.5, "eps": 1e-7},
    "Lion": {"alpha": 0.02, "beta1": 0.8, "beta2": 0.9},
    "Muon": {
        **ADAM,
        "alpha": 0.2,
        "momentum": 0.9,
        "nesterov": False,
        "ns_steps": 3,
        "adjust_lr_fn": "match_rms_adamw",
        "adam_ratio": 0.1,
    },
    "LBFGS": {"max_iter": 3, "history_size": 4, "tolerance_grad": 1e-5, "tolerance_change": 1e-6},
}
