"""Derivations of random layers repeat what the layer draws, in any batch, mode and dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phitodeep import layers
from phitodeep.core.call import calling
from phitodeep.core.types import Shape
from phitodeep.derivations.language.run import passes
from phitodeep.testing.examples import Make, data, made

RANDOM: list[tuple[Make, Shape]] = [
    (lambda: layers.Dropout(0.4), (3, 5)),
    (lambda: layers.SpatialDropout(0.5), (2, 3, 3, 4)),
    (lambda: layers.GaussianNoise(0.3), (3, 5)),
    (layers.Reparameterize, (3, 6)),
    (lambda: layers.RandomFlip(vertical=True), (4, 3, 2, 2)),
    (lambda: layers.RandomCrop((2, 5), padding=(0, 2)), (4, 5, 4, 1)),
    (lambda: layers.RandomShift((4, 7)), (5, 3, 4, 1)),
]
each = pytest.mark.parametrize(("make", "shape"), RANDOM, ids=[repr(m()) for m, _ in RANDOM])


@pytest.mark.parametrize(("scope_dtype", "step", "first"), [(None, 0, 0), (np.float64, 3, 40)])
@each
def test_the_draws_are_those_of_the_pass(
    make: Make, shape: Shape, scope_dtype: Any, step: int, first: int
) -> None:
    layer = made(make, shape)
    X, dY = data(layer, shape)
    with calling(step=step, first=first, reuse=True):
        Y, dX = layer.forward(X).copy(), layer.backward(dY)
        assert dX is not None
        found = passes(layer, X, dY, dtype=scope_dtype)
    np.testing.assert_allclose(found["Y"], Y, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found["dX"], dX, rtol=0, atol=1e-12)


@each
def test_steps_leave_a_pending_backward_pass_alone(make: Make, shape: Shape) -> None:
    layer = made(make, shape)
    X, dY = data(layer, shape)
    with calling(step=0, reuse=True):
        layer.forward(X)
        wanted = np.array(layer.backward(dY))
        layer.forward(X)
        with calling(step=1):
            passes(layer, X, dY)
        np.testing.assert_array_equal(layer.backward(dY), wanted)


@each
def test_float32_stays_float32(make: Make, shape: Shape) -> None:
    layer = made(make, shape, np.float32)
    X, dY = data(layer, shape)
    with calling(step=0):
        scope = passes(layer, X, dY)
    for step in scope.derivation.every():
        assert np.asarray(scope[step.symbol]).dtype != np.float64, step


def test_log_variances_beyond_the_limit_have_no_gradient() -> None:
    layer = made(layers.Reparameterize, (2, 6))
    X = np.array([[1.0, 2, 3, 88, 88.5, -np.inf], [0.5, 0, 1, 1000, 0, -800]])
    dY = np.ones((2, 3))
    with calling(step=0):
        Y, dX = layer.forward(X).copy(), layer.backward(dY)
        found = passes(layer, X, dY)
    np.testing.assert_allclose(found["Y"], Y, rtol=1e-12)
    np.testing.assert_allclose(found["dX"], dX, rtol=1e-12)
    assert found["dS"][0, 1] == found["dS"][1, 0] == 0
