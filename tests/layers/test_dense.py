"""Dense beyond the contract: its formula, how it can be called, and Dense with ReLU in one step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phitodeep import layers
from phitodeep.core.call import calling, inference
from phitodeep.core.types import Shape
from phitodeep.layers import Chain, Dense, ReLU
from phitodeep.layers.dense import DenseReLU
from phitodeep.layers.initialization import He, InitType, Xavier


@pytest.mark.parametrize("shape", [(5, 4), (2, 3, 4), (2, 1, 3, 4), (4,), (0, 4), (2, 0, 4)])
def test_matrix_product_on_the_last_axis(shape: tuple[int, ...], rng: Any) -> None:
    layer = Dense(4, 3)
    layer.build((4,), dtype=np.float64)
    layer.W, layer.b = rng.standard_normal((4, 3)), rng.standard_normal(3)
    X, dY = rng.standard_normal(shape), rng.standard_normal((*shape[:-1], 3))
    np.testing.assert_allclose(layer.forward(X), X @ layer.W + layer.b)
    np.testing.assert_allclose(layer.backward(dY), dY @ layer.W.T)
    np.testing.assert_allclose(layer.grads["W"], X.reshape(-1, 4).T @ dY.reshape(-1, 3))
    np.testing.assert_allclose(layer.grads["b"], dY.reshape(-1, 3).sum(0))


def test_arrays_that_are_not_contiguous_and_no_dX_where_nobody_needs_it(rng: Any) -> None:
    layer = Dense(4, 3)
    layer.build((4,), dtype=np.float64)
    X, dY = rng.standard_normal((4, 6, 2)).T, rng.standard_normal((3, 6, 2)).T
    np.testing.assert_allclose(layer.forward(X), X @ layer.W)
    np.testing.assert_allclose(layer.backward(dY), dY @ layer.W.T)
    np.testing.assert_allclose(layer.grads["W"], np.einsum("abi,abj->ij", X, dY))
    with calling(needs_dX=False):
        assert layer.backward(np.ones((2, 6, 3))) is None
    np.testing.assert_array_equal(layer.grads["b"], [12, 12, 12])


def test_sizes_defaults_and_positions_of_the_original() -> None:
    layer = Dense(3)
    assert (layer.input_size, layer.output_size) == (None, 3)
    assert layer.known_input() is None
    assert repr(layer) == "Dense(3)"
    layer.build((2, 5))
    assert layer.W.shape == (5, 3)
    assert repr(layer) == "Dense(5, 3)"
    assert Dense(5, 3).known_input() == (5,)
    assert Dense(4, 3).initializer == He()
    layer = Dense(4, 3, Xavier(InitType.UNIFORM))
    assert np.abs(layer.W).max() <= np.sqrt(6 / 7)
    assert repr(layer) == "Dense(4, 3, Xavier(InitType.UNIFORM))"
    np.testing.assert_array_equal(layer.b, np.zeros(3))
    assert Dense(4, 3).flops() == 2 * 12 + 3  # known before it is built
    assert layers.base.Dense is Dense


@pytest.mark.parametrize("shape", [(5, 4), (1, 4), (2, 5, 4), (0, 4)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dense_relu_equals_dense_and_relu(shape: Shape, dtype: type, rng: Any) -> None:
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


def test_dense_relu_takes_any_layout_and_refuses_a_bias_that_does_not_fit(rng: Any) -> None:
    layer = DenseReLU(Dense(4, 3), ReLU())
    X, dY = np.ones((5, 4), np.float32), rng.standard_normal((3, 5)).astype(np.float32).T
    layer.forward(X)
    dX = layer.backward(dY)
    assert dX is not None
    np.testing.assert_array_equal(dX, layer.backward(np.ascontiguousarray(dY)))
    with calling(needs_dX=False):
        assert layer.backward(dY) is None
    assert layer._learns()
    layer.layers[0].trainable = False
    assert not layer._learns()
    layer.layers[0].params["b"] = np.zeros(2, np.float32)
    with pytest.raises(ValueError, match=r"column|broadcast"):
        layer.forward(X)
