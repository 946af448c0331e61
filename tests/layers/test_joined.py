"""Layers that run as one, compared with the layers as written."""

from __future__ import annotations

import numpy as np
import pytest

from phitodeep.core.call import calling, inference
from phitodeep.core.types import Shape
from phitodeep.layers import Chain, Dense, ReLU
from phitodeep.layers.dense import DenseReLU


@pytest.mark.parametrize("shape", [(5, 4), (1, 4), (2, 5, 4), (0, 4)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dense_relu_equals_dense_and_relu(
    shape: Shape, dtype: type, rng: np.random.Generator
) -> None:
    dense, relu = Dense(4, 3), ReLU()
    plain = Chain(dense, relu)
    plain.build((4,), seed=0, dtype=dtype)
    dense.b = rng.standard_normal(3)
    X = rng.standard_normal(shape).astype(dtype)
    dY = rng.standard_normal((*shape[:-1], 3)).astype(dtype)
    seen = []
    for layer in (plain, DenseReLU(dense, relu)):
        X_before, dY_before = X.copy(), dY.copy()
        earlier = dense.grads
        Y, dX = layer.forward(X), layer.backward(dY)
        assert dX is not None
        assert dense.grads is not earlier
        seen.append((Y, dX, dense.grads["W"], dense.grads["b"]))
        np.testing.assert_array_equal(X, X_before)
        np.testing.assert_array_equal(dY, dY_before)
        with inference():
            np.testing.assert_array_equal(layer.forward(X), Y)
    eps = np.finfo(dtype).eps
    for a, b in zip(*seen, strict=True):
        assert a.dtype == b.dtype == dtype
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=8 * eps, atol=8 * eps)


def test_dense_relu_takes_a_gradient_in_any_layout(rng: np.random.Generator) -> None:
    layer = DenseReLU(Dense(4, 3), ReLU())
    X, dY = rng.standard_normal((5, 4)), rng.standard_normal((3, 5)).T
    layer.forward(X.astype(np.float32))
    dX = layer.backward(dY.astype(np.float32))
    assert dX is not None
    np.testing.assert_array_equal(dX, layer.backward(np.ascontiguousarray(dY, np.float32)))


def test_a_bias_that_does_not_fit_is_refused() -> None:
    layer = DenseReLU(Dense(4, 3), ReLU())
    X = np.ones((2, 4), np.float32)
    layer.forward(X)
    layer.layers[0].params["b"] = np.zeros(2, np.float32)
    with pytest.raises(ValueError, match=r"column|broadcast"):
        layer.forward(X)


def test_dense_relu_leaves_out_dX_where_nobody_needs_it() -> None:
    layer = DenseReLU(Dense(4, 3), ReLU())
    layer.forward(np.ones((2, 4), np.float32))
    with calling(needs_dX=False):
        assert layer.backward(np.ones((2, 3), np.float32)) is None
    assert layer._learns()
    layer.layers[0].trainable = False
    assert not layer._learns()
