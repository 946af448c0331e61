"""Networks and data for the programs that the tests run on several ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from phitodeep import Sequential
from phitodeep.layers import (
    GELU,
    LSTM,
    BatchNorm,
    Conv2D,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    LayerNorm,
    MaxPool2D,
    PositionalEmbedding,
    ReLU,
    Residual,
    Softmax,
    TiedDense,
    TransformerBlock,
)
from phitodeep.loss import CategoricalCrossEntropy, MeanSquaredError, SoftmaxCrossEntropy

Case = tuple[Sequential, Any, Any, dict[str, Any]]


def mlp(rng: np.random.Generator, **options: Any) -> Case:
    """Dropout, ignored labels, and sizes that no number of ranks divides."""
    model = Sequential(
        Dense(6, 16), ReLU(), Dropout(0.3), Dense(16, 5), Softmax(),
        loss_class=CategoricalCrossEntropy(ignore_index=-1), **options,
    )  # fmt: skip
    return model, rng.normal(size=(37, 6)), rng.integers(-1, 5, 37), {}


def cnn(rng: np.random.Generator, **options: Any) -> Case:
    """Convolution with batch statistics of all ranks, and sample weights."""
    model = Sequential(
        Conv2D(4, 3, bias=False), BatchNorm(sync=True), ReLU(), MaxPool2D(2), Flatten(),
        Dropout(0.2), Dense(3), loss_class=SoftmaxCrossEntropy(), **options,
    )  # fmt: skip
    X = rng.normal(size=(21, 8, 8, 2))
    return model, X, rng.integers(0, 3, 21), {"sample_weight": rng.uniform(0.2, 3, 21)}


def lstm(rng: np.random.Generator, **options: Any) -> Case:
    """Sequences of different lengths."""
    model = Sequential(
        Embedding(11, 8), LSTM(12), Dropout(0.2), Dense(4),
        loss_class=SoftmaxCrossEntropy(), **options,
    )  # fmt: skip
    X, y = rng.integers(0, 11, (23, 7)), rng.integers(0, 4, (23, 7))
    return model, X, y, {"lengths": 1 + np.arange(23) % 7}


def gpt(rng: np.random.Generator, **options: Any) -> Case:
    """A transformer block in a checkpoint, with an embedding that is used twice."""
    tokens = Embedding(13, 8)
    block = TransformerBlock(2, causal=True, dropout=0.1, checkpoint=True)
    model = Sequential(
        tokens, PositionalEmbedding(6), block,
        Residual(LayerNorm(), Dense(16), GELU(), Dense(8)), LayerNorm(), TiedDense(tokens),
        loss_class=SoftmaxCrossEntropy(ignore_index=0), **options,
    )  # fmt: skip
    X = rng.integers(0, 13, (19, 6))
    return model, X, rng.integers(0, 13, (19, 6)), {}


def regression(rng: np.random.Generator, **options: Any) -> Case:
    """Batch statistics of each rank's own rows: not those of one process."""
    model = Sequential(
        Dense(4, 8), BatchNorm(), ReLU(), Dense(8, 1), loss_class=MeanSquaredError(), **options
    )
    X = rng.normal(size=(24, 4))
    return model, X, X.sum(1, keepdims=True), {}


NETWORKS: dict[str, Callable[..., Case]] = {"mlp": mlp, "cnn": cnn, "lstm": lstm, "gpt": gpt}
