"""checkpoint=True computes a forward pass again in backward, and changes nothing else."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from phitodeep import layers as nn
from phitodeep.core.call import calling, inference
from phitodeep.model import Sequential, SequentialBuilder
from phitodeep.testing.examples import made, passes
from tests.conftest import assert_same

SHAPE = (3, 5, 4)
MAKES: dict[str, Callable[[bool], nn.Layer]] = {
    "chain": lambda on: nn.Chain(nn.Dense(6), nn.Tanh(), nn.Dense(4), checkpoint=on),
    "dropout and statistics": lambda on: nn.Chain(
        nn.Dense(6),
        nn.BatchNorm(),
        nn.ReLU(),
        nn.Dropout(0.4),
        nn.GaussianNoise(0.1),
        nn.Dense(4),
        checkpoint=on,
    ),
    "residual": lambda on: nn.Residual(nn.LayerNorm(), nn.Dense(4), nn.Dropout(0.2), checkpoint=on),
    "skip": lambda on: nn.SkipConcat(nn.Dense(3), nn.Tanh(), checkpoint=on),
    "nested": lambda on: nn.Chain(
        nn.Chain(nn.Dense(4), nn.Dropout(0.3), checkpoint=on),
        nn.Residual(nn.GRU(4), checkpoint=on),
        checkpoint=on,
    ),
    "block": lambda on: nn.TransformerBlock(2, causal=True, dropout=0.2, checkpoint=on),
    "recurrent": lambda on: nn.Chain(nn.Dense(3), nn.GRU(4), checkpoint=on),
}
each = pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)


def pair(make: Callable[[bool], nn.Layer]) -> tuple[nn.Layer, nn.Layer]:
    plain, lean = made(lambda: make(False), SHAPE), made(lambda: make(True), SHAPE)
    lean.set_weights(plain.get_weights())
    return plain, lean


@each
@pytest.mark.parametrize(
    "call", [{}, {"reuse": True}, {"step": None}, {"needs_dX": False}], ids=str
)
def test_all_is_the_same_to_the_bit(make: Any, call: dict[str, Any], rng: Any) -> None:
    plain, lean = pair(make)
    X = rng.standard_normal(SHAPE)
    dY = rng.standard_normal(plain.copy().forward(X).shape)
    mask = np.arange(5) < np.array([5, 2, 3])[:, None]
    for m in (None, mask, None):
        assert_same(passes(lean, X, dY, mask=m, **call), passes(plain, X, dY, mask=m, **call))
    assert_same(lean.get_weights(), plain.get_weights())  # running statistics were noted once


@each
def test_backward_twice_and_predictions_between(make: Any, rng: Any) -> None:
    plain, lean = pair(make)
    X = rng.standard_normal(SHAPE)
    with calling(step=4):
        Y = lean.forward(X)
        dY = rng.standard_normal(Y.shape)
        with inference():
            lean.forward(2 * X)
        first = lean.backward(dY).copy()
        np.testing.assert_array_equal(lean.backward(dY), first)
        plain.forward(X)
        np.testing.assert_array_equal(plain.backward(dY), first)
    for path, layer in lean.walk():
        assert layer is lean or not layer.cache, path
    lean.checkpoint = False  # it may be turned off again
    lean.forward(2 * X)
    plain.forward(2 * X)
    np.testing.assert_array_equal(lean.backward(dY), plain.backward(dY))


def deep(checkpoint: bool) -> Sequential:
    builder = SequentialBuilder(64, seed=0)
    for _ in range(6):
        inner = [layer for _ in range(5) for layer in (nn.Dense(64), nn.Tanh(), nn.Dropout(0.1))]
        builder = builder.chain(*inner, checkpoint=checkpoint)
    return builder.dense(4).loss("softmax_cross_entropy").build()


def test_training_takes_less_memory_and_ends_alike(rng: Any) -> None:
    X, y = rng.standard_normal((256, 64)).astype(np.float32), rng.integers(0, 4, 256)
    peaks, models = [], []
    for checkpoint in (False, True):
        model = deep(checkpoint)
        tracemalloc.start()
        model.train(X, y, epochs=2, batch_size=128, verbose=0)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        models.append(model.get_weights())
    assert peaks[1] < 0.55 * peaks[0]
    assert_same(models[1], models[0])
