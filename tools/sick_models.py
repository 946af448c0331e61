"""Small models that are healthy, or sick in a known way, to calibrate `model.diagnose`.

A case begins as one of four healthy kinds: an MLP on points, a CNN on images, an LSTM on sequences
and a GPT on tokens. Changes make other healthy models of it (HEALTHY) or spoil it (SICK).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from phitodeep.core.types import Array
from phitodeep.data import make_blobs, make_moons, make_spirals
from phitodeep.layers import (
    LSTM,
    BatchNorm,
    Bidirectional,
    Conv1D,
    Dense,
    Lambda,
    Layer,
    ReLU,
    TransformerBlock,
)
from phitodeep.layers.initialization import Normal, Zeros
from phitodeep.model import Sequential, SequentialBuilder
from phitodeep.model import architectures as models
from phitodeep.optimization import optimizers
from phitodeep.optimization.schedules import CosineDecay

CE, MSE = "softmax_cross_entropy", "mean_squared_error"


@dataclass
class Case:
    """A model, its data, and how it is trained before it is diagnosed."""

    builder: SequentialBuilder
    X: Array
    y: Array
    epochs: int = 20
    batch: int | None = 32
    optimizer: optimizers.Optimizer = field(default_factory=lambda: optimizers.Adam(3e-3))
    loss: str = CE
    seed: int = 0
    touch: Callable[[Sequential], None] = lambda model: None  # changes the model once it is built
    source: Callable[[Array, Array], Any] | None = None  # batches, instead of X and y
    trained: bool = False  # diagnosed after training, instead of before it
    watched: bool = False  # diagnosed by the callback

    def built(self) -> Sequential:
        model = self.builder.loss(self.loss).optimizer(self.optimizer).seed(self.seed).build()
        if model.input_shape is None:
            model.build(self.X.shape[1:])
        self.touch(model)
        return model


# --- the four kinds ----------------------------------------------------------------------------


def mlp(seed: int, activation: str = "relu", sizes: tuple[int, ...] = (32, 32)) -> Case:
    X, y = make_moons(200, seed=seed)
    return Case(models.mlp(2, *sizes, 2, activation=activation), X, y, seed=seed)


def images(n: int, seed: int) -> tuple[Array, Array]:
    """Stripes at one of four angles, with noise: X (n, 8, 8, 1) of values from 0 to 1."""
    rng = np.random.default_rng(seed)
    y, (i, j) = rng.integers(0, 4, n), np.mgrid[:8, :8]
    waves = np.stack([np.sin(1.5 * k) for k in (i, j, (i + j) / 1.4, (i - j) / 1.4)])
    X = 0.5 + 0.3 * waves[y] + 0.1 * rng.standard_normal((n, 8, 8))
    return X[..., None].astype(np.float32), y


def cnn(seed: int, activation: str = "relu") -> Case:
    builder = SequentialBuilder(8, 8, 1).conv2d(8, 3, padding="same")
    builder = getattr(builder, activation)().max_pool2d(2).conv2d(16, 3)
    builder = getattr(builder, activation)().flatten().dense(4)
    return Case(builder, *images(160, seed), seed=seed)


def lstm(seed: int, cell: str = "lstm") -> Case:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((160, 10, 3)).astype(np.float32)
    y = (X[:, 3:, 0].sum(axis=1) > 0).astype(int)
    builder = getattr(SequentialBuilder(10, 3), cell)(16, return_sequences=False)
    return Case(builder.dense(16).relu().dense(2), X, y, seed=seed)


def tokens(n: int, T: int, seed: int) -> tuple[Array, Array]:
    """Sequences that count up by 1, 2 or 3, modulo 12: X and the next tokens, (n, T)."""
    rng = np.random.default_rng(seed)
    start, step = rng.integers(0, 12, (n, 1)), rng.integers(1, 4, (n, 1))
    text = (start + step * np.arange(T + 1)) % 12
    return text[:, :-1], text[:, 1:]


def gpt(seed: int, **options: Any) -> Case:
    builder = models.gpt(12, 12, **{"layers": 2, "heads": 2, "dim": 24, **options})
    return Case(builder, *tokens(96, 12, seed), seed=seed)


KINDS = {"MLP": mlp, "CNN": cnn, "LSTM": lstm, "GPT": gpt}


def changed(case: Case, **changes: Any) -> Case:
    vars(case).update(changes)
    return case


# --- healthy -----------------------------------------------------------------------------------


def points(seed: int, make: Any, classes: int) -> Case:
    X, y = make(seed)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    return changed(mlp(seed), builder=models.mlp(2, 32, 32, classes), X=X, y=y)


def sine(seed: int, outputs: int = 1) -> Case:
    X = np.random.default_rng(seed).uniform(-2, 2, (200, 1)).astype(np.float32)
    y = np.concatenate([np.sin((2 + k) * X) for k in range(outputs)], axis=1)
    builder = models.mlp(1, 32, 32, outputs, activation="tanh")
    return changed(mlp(seed), builder=builder, X=X, y=y, loss=MSE, epochs=30)


def binary(seed: int, loss: str) -> Case:
    builder = models.mlp(2, 32, 1)
    builder = builder.sigmoid() if loss == "binary_cross_entropy" else builder
    return changed(mlp(seed), builder=builder, loss=loss)


def optimised(kind: str, seed: int, optimizer: optimizers.Optimizer, **changes: Any) -> Case:
    return changed(KINDS[kind](seed), optimizer=optimizer, **changes)


def inserted(kind: str, seed: int, at: int, make: Callable[[], Layer]) -> Case:
    case = KINDS[kind](seed)
    layers = list(case.builder.layers)
    layers[at:at] = [make()]
    builder = SequentialBuilder(*case.X.shape[1:])
    for layer in layers:
        builder = builder.add(layer)
    return changed(case, builder=builder)


def character_model(seed: int, cell: Callable[[], Layer], vocabulary: int = 12) -> Case:
    builder = SequentialBuilder(12).embedding(vocabulary, 16).add(cell()).dense(vocabulary)
    return changed(gpt(seed), builder=builder)


def tagger(seed: int) -> Case:
    """A Bidirectional LSTM that says whether each step of X is above the mean of its neighbours."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((128, 10, 2)).astype(np.float32)
    y = (X[..., 0] > (np.roll(X[..., 0], 1, 1) + np.roll(X[..., 0], -1, 1)) / 2).astype(int)
    builder = SequentialBuilder(10, 2).bidirectional(LSTM(12)).dense(2)
    return changed(lstm(seed), builder=builder, X=X, y=y)


def residual(seed: int) -> Case:
    builder = SequentialBuilder(2).dense(24)
    for _ in range(4):
        builder = builder.residual(Dense(24), ReLU(), Dense(24, initializer=Normal(0.05)))
    return changed(mlp(seed), builder=builder.layer_norm().dense(2))


def conv_bn(seed: int) -> Case:
    builder = SequentialBuilder(8, 8, 1).conv2d(8, 3, padding="same", bias=False).batch_norm()
    builder = builder.relu().max_pool2d(2).conv2d(16, 3, bias=False).batch_norm().relu()
    return changed(cnn(seed), builder=builder.global_avg_pool().dense(4))


HEALTHY: dict[str, Callable[[int], Case]] = {
    "MLP": mlp,
    "MLP tanh": partial(mlp, activation="tanh"),
    "MLP gelu": partial(mlp, activation="gelu"),
    "MLP leaky": partial(mlp, activation="leaky_relu"),
    "MLP silu, wide": partial(mlp, activation="silu", sizes=(64, 64, 64)),
    "MLP spirals": partial(points, make=lambda s: make_spirals(300, seed=s), classes=3),
    "MLP blobs": partial(points, make=lambda s: make_blobs(200, 5, seed=s), classes=5),
    "MLP sine": sine,
    "MLP two sines": partial(sine, outputs=2),
    "MLP sigmoid output": partial(binary, loss="binary_cross_entropy"),
    "MLP logit output": partial(binary, loss="binary_cross_entropy_with_logits"),
    "MLP BatchNorm": lambda s: inserted("MLP", s, 1, BatchNorm),
    "MLP dropout": lambda s: changed(mlp(s), builder=models.mlp(2, 48, 48, 2, dropout=0.2)),
    "MLP residual": residual,
    "MLP SGD": lambda s: optimised("MLP", s, optimizers.SGD(0.05)),
    "MLP momentum": lambda s: optimised("MLP", s, optimizers.SGD(0.02, momentum=0.9)),
    "MLP Adam 0.01": lambda s: optimised("MLP", s, optimizers.Adam()),
    "MLP AdamW": lambda s: optimised("MLP", s, optimizers.AdamW(3e-3, weight_decay=0.01)),
    "MLP l2": lambda s: optimised("MLP", s, optimizers.Adam(3e-3, l2=1e-4)),
    "MLP RMSProp": lambda s: optimised("MLP", s, optimizers.RMSProp(1e-3)),
    "MLP Nadam, clipped": lambda s: optimised("MLP", s, optimizers.Nadam(3e-3, clip_norm=3)),
    "MLP cosine": lambda s: optimised("MLP", s, optimizers.Adam(CosineDecay(5e-3, 100))),
    "CNN": cnn,
    "CNN tanh": partial(cnn, activation="tanh"),
    "CNN gelu": partial(cnn, activation="gelu"),
    "CNN BatchNorm": conv_bn,
    "CNN SGD": lambda s: optimised("CNN", s, optimizers.SGD(0.05, momentum=0.9)),
    "CNN AdamW": lambda s: optimised("CNN", s, optimizers.AdamW(2e-3)),
    "LSTM": lstm,
    "GRU": partial(lstm, cell="gru"),
    "RNN": partial(lstm, cell="rnn"),
    "LSTM tagger": tagger,
    "LSTM of characters": lambda s: character_model(s, lambda: LSTM(24)),
    "LSTM clipped": lambda s: optimised("LSTM", s, optimizers.Adam(3e-3, clip_norm=2)),
    "GPT": gpt,
    "GPT untied": partial(gpt, tied=False),
    "GPT dropout": partial(gpt, dropout=0.1),
    "GPT relu": partial(gpt, activation="relu"),
    "GPT swiglu": partial(gpt, activation="swiglu"),
    "GPT AdamW": lambda s: optimised("GPT", s, optimizers.AdamW(2e-3, weight_decay=0.1)),
}


# --- sick --------------------------------------------------------------------------------------


def weights(model: Sequential) -> list[tuple[Layer, str]]:
    """The weight matrices of the model, in order."""
    return [
        (layer, name)
        for _, layer in model.walk()
        for name, param in layer._declared.items()
        if param.decay and name in layer.params
    ]


def scaled(factor: float, *which: int) -> Callable[[Sequential], None]:
    """Multiply the weights with these indices, or all of them, by a factor."""

    def touch(model: Sequential) -> None:
        all_of_them = weights(model)
        for i in which or range(len(all_of_them)):
            layer, name = all_of_them[i]
            setattr(layer, name, factor * getattr(layer, name))

    return touch


def same(value: float) -> Callable[[Sequential], None]:
    """Give all weights the same value."""

    def touch(model: Sequential) -> None:
        for layer, name in weights(model):
            setattr(layer, name, np.full_like(getattr(layer, name), value))

    return touch


def doubled(model: Sequential) -> None:
    """Make the second half of the first hidden units a copy of the first half."""
    (first, _), (second, _), *_ = weights(model)
    first.W = np.tile(first.params["W"][:, :16], (1, 2))
    second.W = np.tile(second.params["W"][:16], (2, 1))


def negative(model: Sequential) -> None:
    """Give every Dense or convolution except the last a bias that no input overcomes."""
    biased = [layer for _, layer in model.walk() if {"W", "b"} <= set(layer.params)]
    for layer in biased[:-1]:
        layer.b = np.full_like(layer.b, -50)


def frozen(model: Sequential) -> None:
    model.trainable = False


def poisoned(model: Sequential) -> None:
    layer, name = weights(model)[-1]
    W = getattr(layer, name).copy()
    W.flat[0] = np.nan
    setattr(layer, name, W)


def zero() -> Layer:
    return Lambda(lambda X: 0 * X, lambda dY, X, Y: 0 * dY)


def root() -> Layer:
    return Lambda(np.sqrt, lambda dY, X, Y: dY / (2 * Y))


def centred() -> Layer:
    """Subtracts the mean over the batch instead of the mean over the features."""
    return Lambda(lambda X: X - X.mean(0), lambda dY, X, Y: dY - dY.mean(0))


def rolled() -> Layer:
    """Mixes up the samples, as a reshape to the wrong axes does."""
    return Lambda(lambda X: np.roll(X, 1, 0), lambda dY, X, Y: np.roll(dY, -1, 0))


def ascending() -> Layer:
    """Its gradient has the wrong sign."""
    return Lambda(lambda X: 2 * X, lambda dY, X, Y: -2 * dY)


def shuffled_labels(case: Case) -> Case:
    y = np.random.default_rng(1).permutation(case.y)
    return changed(case, y=y, trained=True, epochs=2)


def random_tokens(case: Case) -> Case:
    y = np.random.default_rng(1).integers(0, 12, case.y.shape)
    return changed(case, y=y, trained=True, epochs=2)


def contradictory(case: Case) -> Case:
    """The same input for all samples, whose targets differ."""
    return changed(case, X=np.repeat(case.X[:1], len(case.X), 0))


def deep(seed: int, activation: str, std: float, layers: int = 10) -> Case:
    builder = models.mlp(2, *[24] * layers, 2, activation=activation, initializer=Normal(std))
    return changed(mlp(seed), builder=builder)


def deep_cnn(seed: int, std: float) -> Case:
    builder = SequentialBuilder(8, 8, 1)
    for _ in range(7):
        builder = builder.conv2d(6, 3, padding="same", initializer=Normal(std)).relu()
    return changed(cnn(seed), builder=builder.flatten().dense(4))


def deep_rnn(seed: int, std: float) -> Case:
    builder = SequentialBuilder(10, 3)
    for i in range(5):
        options = {"initializer": Normal(std), "recurrent_initializer": Zeros()}
        builder = builder.gru(12, return_sequences=i < 4, **options)
    return changed(lstm(seed), builder=builder.dense(2))


def looking(seed: int, **options: Any) -> Case:
    """A GPT without a causal mask."""
    builder = SequentialBuilder(12).embedding(12, 24).positional_embedding(12)
    return changed(gpt(seed), builder=builder.add(TransformerBlock(2, **options)).dense(12))


def with_outliers(case: Case) -> Case:
    """Every 37th batch is in the wrong unit, and its targets are turned around."""
    number = itertools.count(1)

    def batches(X: Array, y: Array) -> Iterator[tuple[Array, Array]]:
        for i in range(0, len(X), 8):
            part, target = X[i : i + 8], y[i : i + 8]
            wrong = next(number) % 37 == 0
            yield (30 * part, y.max() + y.min() - target) if wrong else (part, target)

    return changed(case, watched=True, source=lambda X, y: lambda: batches(X, y), epochs=6)


def by_class(case: Case) -> Case:
    """Every fourth epoch shows one class alone, as an unshuffled file does."""
    epoch = itertools.count(1)

    def batches(X: Array, y: Array) -> Iterator[tuple[Array, Array]]:
        first = y if y.ndim == 1 else y[:, 0]
        rows = np.flatnonzero(first == 0) if next(epoch) % 4 == 0 else np.arange(len(X))
        for part in np.array_split(rows, min(6, len(rows))):
            yield X[part], y[part]

    return changed(case, watched=True, source=lambda X, y: lambda: batches(X, y), epochs=30)


def by_heart(case: Case, noise: float = 0.4) -> Case:
    """Few samples, many of them with a wrong label, and a model that learns them all by heart."""
    rng = np.random.default_rng(2)
    X, y = case.X[:64], case.y[:64].copy()
    wrong = rng.random(y.shape) < noise
    y[wrong] = rng.integers(0, y.max() + 1, int(wrong.sum()))
    return changed(case, X=X, y=y, watched=True, epochs=80, optimizer=optimizers.Adam(0.01))


def rate(case: Case, optimizer: optimizers.Optimizer) -> Case:
    return changed(case, optimizer=optimizer)


Spoil = Callable[[int], Case]
SICK: dict[str, dict[str, Spoil]] = {  # the expected finding: the cases by name
    "not finite": {
        "MLP root": lambda s: inserted("MLP", s, 1, root),
        "CNN NaN": lambda s: changed(cnn(s), touch=poisoned),
        "LSTM NaN": lambda s: changed(lstm(s), touch=poisoned),
        "GPT infinite": lambda s: changed(gpt(s), touch=scaled(1e38)),
    },
    "inputs off centre": {
        "MLP": lambda s: changed(mlp(s), X=mlp(s).X + 30),
        "CNN": lambda s: changed(cnn(s), X=255 * cnn(s).X),
        "LSTM": lambda s: changed(lstm(s), X=lstm(s).X - 20),
        "sine": lambda s: changed(sine(s), X=sine(s).X + 10),
    },
    "inputs too spread": {
        "MLP": lambda s: changed(mlp(s), X=1000 * mlp(s).X),
        "CNN": lambda s: changed(cnn(s), X=255 * cnn(s).X - 128),
        "LSTM": lambda s: changed(lstm(s), X=50 * lstm(s).X),
        "sine": lambda s: changed(sine(s), X=30 * sine(s).X),
    },
    "inputs too narrow": {
        "MLP": lambda s: changed(mlp(s), X=0.01 * mlp(s).X),
        "CNN": lambda s: changed(cnn(s), X=cnn(s).X / 255),
        "LSTM": lambda s: changed(lstm(s), X=0.01 * lstm(s).X),
        "sine": lambda s: changed(sine(s), X=0.02 * sine(s).X),
    },
    "start loss": {
        "MLP": lambda s: changed(mlp(s), touch=scaled(10, -1)),
        "CNN": lambda s: changed(cnn(s), touch=scaled(10, -1)),
        "LSTM": lambda s: changed(lstm(s), touch=scaled(20, -1)),
        "GPT": lambda s: changed(gpt(s, tied=False), touch=scaled(50, -1)),
        "sine": lambda s: changed(sine(s), y=sine(s).y + 5),
    },
    "cannot overfit": {
        "MLP contradictory": lambda s: contradictory(mlp(s)),
        "MLP wrong sign": lambda s: inserted("MLP", s, 5, ascending),
        "CNN wrong sign": lambda s: inserted("CNN", s, 7, ascending),
        "CNN frozen": lambda s: changed(cnn(s), touch=frozen),
        "LSTM contradictory": lambda s: contradictory(lstm(s)),
        "GPT frozen": lambda s: changed(gpt(s), touch=frozen),
    },
    "input cut off": {
        "MLP": lambda s: inserted("MLP", s, 1, zero),
        "CNN": lambda s: inserted("CNN", s, 0, zero),
        "LSTM": lambda s: inserted("LSTM", s, 1, zero),
        "sine": lambda s: changed(sine(s), builder=SequentialBuilder(1).add(zero()).dense(1)),
    },
    "input unused": {
        "MLP": lambda s: shuffled_labels(mlp(s)),
        "CNN": lambda s: shuffled_labels(cnn(s)),
        "LSTM": lambda s: shuffled_labels(lstm(s)),
        "GPT": lambda s: random_tokens(gpt(s)),
    },
    "samples mix": {
        "MLP mean": lambda s: inserted("MLP", s, 1, centred),
        "MLP roll": lambda s: inserted("MLP", s, 3, rolled),
        "CNN mean": lambda s: inserted("CNN", s, 2, centred),
        "LSTM mean": lambda s: inserted("LSTM", s, 1, centred),
    },
    "reads ahead": {
        "GPT no mask": looking,
        "GPT rope": lambda s: looking(s, rope=True),
        "LSTM both ways": lambda s: character_model(s, lambda: Bidirectional(LSTM(12))),
        "CNN same padding": lambda s: character_model(s, lambda: Conv1D(24, 3, padding="same")),
    },
    "updates too large": {
        "MLP": lambda s: rate(mlp(s), optimizers.Adam(0.2)),
        "MLP SGD": lambda s: rate(mlp(s), optimizers.SGD(10.0)),
        "CNN": lambda s: rate(cnn(s), optimizers.Adam(0.2)),
        "LSTM": lambda s: rate(lstm(s), optimizers.Adam(0.2)),
        "GPT": lambda s: rate(gpt(s), optimizers.Adam(0.1)),
        "MLP watched": lambda s: changed(rate(mlp(s), optimizers.Adam(0.2)), watched=True),
    },
    "updates too small": {
        "MLP": lambda s: rate(mlp(s), optimizers.Adam(1e-6)),
        "MLP SGD": lambda s: rate(mlp(s), optimizers.SGD(1e-5)),
        "CNN": lambda s: rate(cnn(s), optimizers.Adam(1e-6)),
        "LSTM": lambda s: rate(lstm(s), optimizers.SGD(1e-5)),
        "GPT": lambda s: rate(gpt(s), optimizers.Adam(1e-7)),
        "MLP watched": lambda s: changed(rate(mlp(s), optimizers.Adam(1e-6)), watched=True),
    },
    "dead units": {
        "MLP": lambda s: changed(mlp(s), touch=negative),
        "CNN": lambda s: changed(cnn(s), touch=negative),
        "LSTM": lambda s: changed(lstm(s), touch=negative),
        "GPT": lambda s: changed(gpt(s, activation="relu"), touch=negative),
        "MLP high rate": lambda s: changed(
            rate(mlp(s), optimizers.SGD(5.0)), trained=True, epochs=2
        ),
    },
    "saturated units": {
        "MLP": lambda s: changed(mlp(s, "tanh"), touch=scaled(8, 0, 1)),
        "MLP sigmoid": lambda s: changed(mlp(s, "sigmoid"), touch=scaled(15, 0, 1)),
        "CNN": lambda s: changed(cnn(s, "tanh"), touch=scaled(8, 0, 1)),
        "RNN": lambda s: changed(lstm(s, "rnn"), touch=scaled(8, 0)),
    },
    "vanishing gradients": {
        "MLP sigmoid": lambda s: deep(s, "sigmoid", 0.1),
        "MLP small": lambda s: deep(s, "tanh", 0.03),
        "CNN small": lambda s: deep_cnn(s, 0.01),
        "LSTM small": lambda s: deep_rnn(s, 0.02),
    },
    "exploding gradients": {
        "MLP large": lambda s: deep(s, "relu", 1.0),
        "MLP larger": lambda s: deep(s, "leaky_relu", 2.0),
        "CNN large": lambda s: deep_cnn(s, 1.0),
        "MLP deeper": lambda s: deep(s, "relu", 0.8, layers=14),
    },
    "twin units": {
        "MLP": lambda s: changed(mlp(s), touch=same(0.1)),
        "CNN": lambda s: changed(cnn(s), touch=same(0.05)),
        "LSTM": lambda s: changed(lstm(s), touch=same(0.1)),
        "MLP half": lambda s: changed(mlp(s), touch=doubled),
    },
    "penalty rules": {
        "MLP l2": lambda s: rate(mlp(s), optimizers.Adam(3e-3, l2=1)),
        "MLP l1": lambda s: rate(mlp(s), optimizers.Adam(3e-3, l1=0.1)),
        "CNN decay": lambda s: rate(cnn(s), optimizers.AdamW(3e-3, weight_decay=30)),
        "LSTM l2": lambda s: rate(lstm(s), optimizers.SGD(0.01, l2=1)),
        "GPT decay": lambda s: rate(gpt(s), optimizers.AdamW(3e-3, weight_decay=30)),
    },
    "spikes": {
        "MLP": lambda s: with_outliers(mlp(s)),
        "CNN": lambda s: with_outliers(cnn(s)),
        "LSTM": lambda s: with_outliers(lstm(s)),
        "MLP blobs": lambda s: with_outliers(HEALTHY["MLP blobs"](s)),
    },
    "clipped too often": {
        kind: lambda s, kind=kind: changed(
            rate(KINDS[kind](s), optimizers.SGD(0.05, clip_norm=1e-3)), watched=True
        )
        for kind in KINDS
    },
    "validation periodic": {
        "MLP spirals": lambda s: by_class(HEALTHY["MLP spirals"](s)),
        "MLP": lambda s: by_class(rate(mlp(s), optimizers.Adam())),
        "LSTM": lambda s: by_class(lstm(s)),
        "GPT": lambda s: by_class(gpt(s)),
    },
    "validation rising": {
        "MLP": lambda s: by_heart(mlp(s, sizes=(64, 64))),
        "CNN": lambda s: by_heart(cnn(s)),
        "LSTM": lambda s: by_heart(lstm(s)),
        "MLP blobs": lambda s: by_heart(HEALTHY["MLP blobs"](s)),
    },
}
