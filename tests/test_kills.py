"""Tests that tools/mutants.py asked for: each kills a mutant that no other test killed."""

from __future__ import annotations

import numpy as np
import pytest

from phitodeep.layers import Chain, Dense, Dropout, GaussianNoise, Layer, Tanh
from phitodeep.layers.call import calling, saliency
from phitodeep.loss import SoftmaxCrossEntropy
from phitodeep.types import Array


def gradients(
    chain: Chain, X: Array, dY: Array, needs_dX: bool
) -> tuple[Array | None, list[Array]]:
    for _, layer in chain.walk():
        layer.grads = {}
    with calling(needs_dX=needs_dX):
        chain.forward(X)
        dX = chain.backward(dY)
    return dX, [g for _, layer in chain.walk() if layer._learns() for g in layer.grads.values()]


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_chain_gives_the_same_gradients_where_nobody_needs_dX(
    frozen: int, rng: np.random.Generator
) -> None:
    chain = Chain(Tanh(), Dense(4, 4), Tanh(), Dense(4, 4), Dense(4, 3))
    chain.build((4,), seed=1, dtype=np.float64)
    for layer in [layer for layer in chain.layers if isinstance(layer, Dense)][:frozen]:
        layer.trainable = False
    X, dY = rng.standard_normal((5, 4)), rng.standard_normal((5, 3))
    dX, expected = gradients(chain, X, dY, needs_dX=True)
    nothing, found = gradients(chain, X, dY, needs_dX=False)
    assert dX is not None
    assert nothing is None
    assert len(found) == len(expected) == 2 * (3 - frozen)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("layer", [Dropout(0.4), GaussianNoise(0.3)], ids=repr)
def test_dX_is_no_view_of_dY_where_noise_is_off(layer: Layer, rng: np.random.Generator) -> None:
    dY = rng.standard_normal((4, 3))
    with saliency():
        layer.forward(rng.standard_normal((4, 3)))
        dX = layer.backward(dY)
    assert dX is not None
    np.testing.assert_array_equal(dX, dY)
    assert not np.shares_memory(dX, dY)


def test_softmax_cross_entropy_gives_its_gradient_alone(rng: np.random.Generator) -> None:
    loss, P, T = SoftmaxCrossEntropy(0.1), rng.standard_normal((4, 3)), np.array([0, 2, 1, 1])
    np.testing.assert_array_equal(loss.gradient(P, T, None, None), loss.loss_gradient(P, T))
