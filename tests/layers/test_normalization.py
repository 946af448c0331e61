"""Normalizations: Jacobians entry by entry, groups, invariances, running statistics, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phitodeep.layers import BatchNorm, LayerNorm

pytestmark = pytest.mark.usefixtures("kernel_set")


def built(layer: Any, d: int, dtype: type = np.float64) -> Any:
    layer.build((d,), dtype=dtype)
    layer.gamma, layer.beta = np.random.default_rng(5).standard_normal((2, d))
    return layer


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("make", [LayerNorm, BatchNorm])
def test_a_large_mean_costs_no_precision(make: Any, dtype: type, rng: Any) -> None:
    """mean(x^2) - mean(x)^2 would: it is mean((x - mu)^2)."""
    layer = built(make(), 16, dtype)
    X = rng.integers(-8, 8, (32, 16)).astype(dtype) / 8
    shifted = (X + 4096).astype(dtype)  # exact in float32
    np.testing.assert_allclose(layer.forward(shifted), layer.forward(X), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("make", [LayerNorm, BatchNorm])
def test_constant_input_gives_beta(make: Any) -> None:
    layer = built(make(), 4)
    X = np.full((3, 4), 7.0)
    np.testing.assert_array_equal(layer.forward(X), np.tile(layer.beta, (3, 1)))
    assert np.isfinite(layer.backward(X)).all()


def test_one_feature_one_row_or_none_have_no_variance() -> None:
    layer = built(LayerNorm(), 1)
    np.testing.assert_array_equal(layer.forward(np.array([[3.0], [5.0]])), [layer.beta] * 2)
    np.testing.assert_array_equal(layer.backward(np.ones((2, 1))), np.zeros((2, 1)))
    norm = built(BatchNorm(), 3)
    np.testing.assert_array_equal(norm.forward(np.array([[1.0, 2, 3]])), [norm.beta])
    np.testing.assert_array_equal(norm.backward(np.ones((1, 3))), np.zeros((1, 3)))
    np.testing.assert_array_equal(norm.running_mean, np.zeros(3))
    np.testing.assert_array_equal(norm.running_var, np.ones(3))
    layer = built(BatchNorm(), 3)
    assert layer.forward(np.ones((0, 3))).shape == (0, 3)
    np.testing.assert_array_equal(layer.running_var, np.ones(3))


@pytest.mark.parametrize("momentum", [0.0, 0.1, 0.3, 1.0])
def test_running_statistics(momentum: float, rng: Any) -> None:
    layer = built(BatchNorm(momentum), 3)
    mean, var = np.zeros(3), np.ones(3)
    for n in (5, 2, 9):
        X = 3 + 2 * rng.standard_normal((n, 3))
        mean = (1 - momentum) * mean + momentum * X.mean(0)
        var = (1 - momentum) * var + momentum * X.var(0, ddof=1)
        layer.forward(X)
        np.testing.assert_allclose(layer.running_mean, mean)
        np.testing.assert_allclose(layer.running_var, var)


def test_state_is_no_parameter() -> None:
    layer = BatchNorm()
    layer.build((3,))
    assert layer.params.keys() == {"gamma", "beta"}
    assert layer.state.keys() == {"running_mean", "running_var"}
    assert layer.count_params() == 6
    np.testing.assert_array_equal(layer.gamma, np.ones(3))
    np.testing.assert_array_equal(layer.beta, np.zeros(3))
    layer.running_mean = [1, 2, 3]
    np.testing.assert_array_equal(layer.state["running_mean"], [1, 2, 3])
