"""Normalizations: Jacobians entry by entry, groups, invariances, running statistics, errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from phitodeep.core.call import inference, saliency
from phitodeep.core.types import Array, Shape
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError
from phitodeep.layers import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, ReLU, RMSNorm
from phitodeep.model import Sequential
from phitodeep.testing import check_gradients
from phitodeep.testing.examples import made, passes
from tests.conftest import assert_same

Norm = LayerNorm | BatchNorm


def built(layer: Any, d: int, dtype: type = np.float64) -> Any:
    layer.build((d,), dtype=dtype)
    layer.gamma, layer.beta = np.random.default_rng(5).standard_normal((2, d))
    return layer


def jacobian(x: Array, eps: float) -> Array:
    """dx_hat_j/dx_i, entry by entry."""
    D, r = len(x), 1 / np.sqrt(x.var() + eps)
    x_hat = (x - x.mean()) * r
    return r * (np.eye(D) - 1 / D - np.outer(x_hat, x_hat) / D)


def test_layer_norm_is_its_jacobian(rng: np.random.Generator) -> None:
    layer, X, dY = built(LayerNorm(eps=0.1), 6), *rng.standard_normal((2, 3, 6))
    Y = layer.forward(X)
    dX = layer.backward(dY)
    for i in range(3):
        x_hat = (X[i] - X[i].mean()) / np.sqrt(X[i].var() + 0.1)
        np.testing.assert_allclose(Y[i], layer.gamma * x_hat + layer.beta)
        np.testing.assert_allclose(dX[i], jacobian(X[i], 0.1) @ (layer.gamma * dY[i]))


@pytest.mark.parametrize("shape", [(5, 3), (2, 4, 3), (2, 2, 2, 3)])
def test_batch_norm_is_its_jacobian(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    layer, X, dY = built(BatchNorm(eps=0.1), 3), *rng.standard_normal((2, *shape))
    Y = layer.forward(X).reshape(-1, 3)
    dX = layer.backward(dY).reshape(-1, 3)
    X, dY = X.reshape(-1, 3), dY.reshape(-1, 3)
    for j in range(3):
        x_hat = (X[:, j] - X[:, j].mean()) / np.sqrt(X[:, j].var() + 0.1)
        np.testing.assert_allclose(Y[:, j], layer.gamma[j] * x_hat + layer.beta[j])
        np.testing.assert_allclose(dX[:, j], jacobian(X[:, j], 0.1) @ (layer.gamma[j] * dY[:, j]))
        assert layer.grads["gamma"][j] == pytest.approx((dY[:, j] * x_hat).sum())
    np.testing.assert_allclose(layer.grads["beta"], dY.sum(0))


@pytest.mark.parametrize(("make", "axis"), [(LayerNorm, -1), (BatchNorm, 0)])
def test_dx_is_blind_to_shift_and_scale(make: Any, axis: int, rng: np.random.Generator) -> None:
    layer, X = built(make(), 8), 100 * rng.standard_normal((6, 8))  # var >> eps
    Y = layer.forward(X)
    dX = layer.backward(rng.standard_normal((6, 8)))
    np.testing.assert_allclose(dX.sum(axis=axis), 0, atol=1e-12)
    np.testing.assert_allclose((dX * X).sum(axis=axis), 0, atol=1e-6)
    np.testing.assert_allclose(layer.forward(3 * X + 7), Y, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("make", [LayerNorm, BatchNorm])
def test_a_large_mean_costs_no_precision(make: Any, dtype: type, rng: np.random.Generator) -> None:
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


def test_one_feature_or_one_row_has_no_variance() -> None:
    layer = built(LayerNorm(), 1)
    np.testing.assert_array_equal(layer.forward(np.array([[3.0], [5.0]])), [layer.beta] * 2)
    np.testing.assert_array_equal(layer.backward(np.ones((2, 1))), np.zeros((2, 1)))
    norm = built(BatchNorm(), 3)
    np.testing.assert_array_equal(norm.forward(np.array([[1.0, 2, 3]])), [norm.beta])
    np.testing.assert_array_equal(norm.backward(np.ones((1, 3))), np.zeros((1, 3)))
    np.testing.assert_array_equal(norm.running_mean, np.zeros(3))
    np.testing.assert_array_equal(norm.running_var, np.ones(3))


@pytest.mark.parametrize("momentum", [0.0, 0.1, 0.3, 1.0])
def test_running_statistics(momentum: float, rng: np.random.Generator) -> None:
    layer = built(BatchNorm(momentum), 3)
    mean, var = np.zeros(3), np.ones(3)
    for n in (5, 2, 9):
        X = 3 + 2 * rng.standard_normal((n, 3))
        mean = (1 - momentum) * mean + momentum * X.mean(0)
        var = (1 - momentum) * var + momentum * X.var(0, ddof=1)
        layer.forward(X)
        np.testing.assert_allclose(layer.running_mean, mean)
        np.testing.assert_allclose(layer.running_var, var)


def test_inference_uses_running_statistics_as_constants(rng: np.random.Generator) -> None:
    layer = built(BatchNorm(eps=0.1), 3)
    layer.running_mean, layer.running_var = [1.0, -2.0, 0.0], [4.0, 0.5, 9.0]
    X, dY = rng.standard_normal((2, 5, 3))
    r = 1 / np.sqrt(layer.running_var + 0.1)
    wanted = layer.gamma * (X - layer.running_mean) * r + layer.beta
    with inference():
        np.testing.assert_allclose(layer.forward(X), wanted)
        np.testing.assert_allclose(layer.forward(X[:1]), wanted[:1])
    with saliency():
        layer.forward(X)
        np.testing.assert_allclose(layer.backward(dY), layer.gamma * r * dY)
        np.testing.assert_allclose(layer.grads["gamma"], (dY * (X - layer.running_mean) * r).sum(0))
    np.testing.assert_array_equal(layer.running_mean, [1, -2, 0])


def test_defaults() -> None:
    assert LayerNorm().eps == BatchNorm().eps == 1e-5
    assert BatchNorm().momentum == 0.1


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


def test_an_empty_batch_says_nothing() -> None:
    layer = built(BatchNorm(), 3)
    assert layer.forward(np.ones((0, 3))).shape == (0, 3)
    np.testing.assert_array_equal(layer.running_var, np.ones(3))


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: LayerNorm(eps=0), ArgumentError, "LayerNorm eps .* > 0, got 0"),
        (lambda: BatchNorm(eps=-1e-5), ArgumentError, "BatchNorm eps .* > 0"),
        (lambda: LayerNorm(eps="1"), ArgumentTypeError, "LayerNorm eps .*number"),
        (lambda: BatchNorm(momentum=1.1), ArgumentError, "BatchNorm momentum"),
        (lambda: BatchNorm(momentum=-0.1), ArgumentError, "BatchNorm momentum must be >= 0"),
        (lambda: BatchNorm(momentum=None), ArgumentTypeError, "BatchNorm momentum"),
    ],
)
def test_bad_settings_are_refused(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()


@pytest.mark.parametrize("make", [LayerNorm, BatchNorm])
def test_errors_name_the_numbers(make: Any) -> None:
    for X in (np.ones((2, 4)), np.ones((2, 5, 1)), np.ones(4)):
        with pytest.raises(ShapeError, match=rf"{make.__name__}.* D = 5 .*got X of shape \("):
            built(make(), 5).forward(X)


SHAPES = [(2, 6), (1, 3, 6), (2, 3, 2, 6), (3, 1, 1, 6), (2, 2, 1, 2, 6)]


shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


@pytest.mark.parametrize(
    ("shape", "groups"),
    [(s, g) for s in SHAPES for g in (1, 2, 3, 6) if math.prod(s[1:]) > g],
    ids=str,
)
def test_group_norm_is_that_of_each_group(shape: Shape, groups: int, rng: Any) -> None:
    layer = made(lambda: GroupNorm(groups, 0.01), shape)
    X = 3 * rng.standard_normal(shape) + 2
    split = X.reshape(shape[0], -1, groups, 6 // groups)
    mean, var = (f(split, axis=(1, 3), keepdims=True) for f in (np.mean, np.var))
    X_hat = ((split - mean) / np.sqrt(var + 0.01)).reshape(shape)
    wanted = layer.params["gamma"] * X_hat + layer.params["beta"]
    np.testing.assert_allclose(layer.forward(X), wanted, rtol=1e-10, atol=1e-12)
    check_gradients(layer, X, max_probes=40)


@pytest.mark.parametrize("shape", [s for s in SHAPES if math.prod(s[1:]) > 6], ids=str)
def test_instance_norm_is_a_group_for_each_channel(shape: Shape, rng: Any) -> None:
    layer, groups = made(lambda: InstanceNorm(0.01), shape), made(lambda: GroupNorm(6, 0.01), shape)
    groups.set_weights(layer.get_weights())
    X, dY = rng.standard_normal((2, *shape))
    assert_same(passes(layer, X, dY), passes(groups, X, dY))
    check_gradients(layer, X, max_probes=40)


@shapes
def test_rms_norm(shape: Shape, rng: Any) -> None:
    layer, X = made(lambda: RMSNorm(0.01), shape), rng.standard_normal(shape) + 1
    size = np.sqrt((X * X).mean(-1, keepdims=True) + 0.01)
    np.testing.assert_allclose(layer.forward(X), layer.params["gamma"] * X / size, rtol=1e-12)
    check_gradients(layer, X, max_probes=40)
    assert set(layer.params) == {"gamma"}


def test_one_group_of_a_row_is_layer_norm(rng: Any) -> None:
    X, dY = rng.standard_normal((2, 4, 6))
    one, row = made(lambda: GroupNorm(1), (4, 6)), made(LayerNorm, (4, 6))
    row.set_weights(one.get_weights())
    assert_same(passes(one, X, dY), passes(row, X, dY), rtol=1e-12)


def test_gradients_sum_to_zero_where_shifts_change_nothing(rng: Any) -> None:
    X, dY = rng.standard_normal((2, 2, 3, 2, 6))
    dX = passes(made(lambda: GroupNorm(3), X.shape), X, dY)["dX"]
    np.testing.assert_allclose(dX.reshape(2, 6, 3, 2).sum((1, 3)), 0, atol=1e-12)
    dX = passes(made(lambda: RMSNorm(1e-12), X.shape), X, dY)["dX"]
    np.testing.assert_allclose((dX * X).sum(-1), 0, atol=1e-9)


@pytest.mark.parametrize("trainable", [True, False])
def test_batch_norm_of_images_counts_all_places_as_rows(trainable: bool, rng: Any) -> None:
    shape = (2, 3, 2, 4)
    image, rows = (made(lambda: BatchNorm(0.3), s) for s in (shape, (12, 4)))
    image.trainable = rows.trainable = trainable
    X, dY = rng.standard_normal((2, *shape))
    found, flat = passes(image, X, dY), passes(rows, X.reshape(12, 4), dY.reshape(12, 4))
    flat |= {name: flat[name].reshape(shape) for name in ("Y", "dX")}
    assert_same(found, flat, rtol=1e-12)
    assert_same(image.state, rows.state, rtol=1e-12)
    check_gradients(image, X, max_probes=40)
    assert set(image.get_weights()) == {"gamma", "beta", "running_mean", "running_var"}
    assert image.count_params() == 8  # running statistics are no parameters


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "make",
    [lambda: GroupNorm(2), InstanceNorm, RMSNorm, BatchNorm],
    ids=lambda m: m().__class__.__name__,
)
def test_constant_images_are_finite(make: Any, dtype: type) -> None:
    layer = made(make, (2, 3, 2, 4), dtype)
    for X in (np.zeros((2, 3, 2, 4), dtype), np.full((2, 3, 2, 4), 1e3, dtype)):
        with np.errstate(all="raise", under="ignore"):
            for a in passes(layer, X, np.ones_like(X)).values():
                assert np.isfinite(a).all()
                assert a.dtype == dtype


@pytest.mark.parametrize(
    ("make", "shape", "says"),
    [
        (lambda: GroupNorm(4), (2, 6), r"GroupNorm\(4\): 6 channels are not divisible by 4 groups"),
        (lambda: GroupNorm(7), (6,), "6 channels are not divisible by 7 groups"),
    ],
)
def test_channels_that_do_not_divide_are_refused(make: Any, shape: Any, says: str) -> None:
    for layer in (make(), Sequential(ReLU(), make())):
        with pytest.raises(ShapeError, match=says) as caught:
            layer.build(shape)
    assert "layer 1 of Sequential" in str(caught.value)


def test_bad_input_of_group_norms_is_refused() -> None:
    for layer in (GroupNorm(2), InstanceNorm(), RMSNorm(), BatchNorm()):
        layer.build((3, 6))
        for shape in ((2, 3, 4), (2, 3), (2, 6, 3)):
            with pytest.raises(ShapeError, match=f"{type(layer).__name__}.*D = 6"):
                layer.forward(np.ones(shape))
    for kind in (InstanceNorm, RMSNorm):
        with pytest.raises(ArgumentError, match=f"{kind.__name__} eps|GroupNorm eps"):
            kind(0.0)
    with pytest.raises(ArgumentError, match="GroupNorm groups must be >= 1"):
        GroupNorm(0)
    with pytest.raises(ArgumentTypeError, match="GroupNorm groups"):
        GroupNorm(2.0)


@pytest.mark.parametrize(("layer", "shape"), [(InstanceNorm(), (4,)), (GroupNorm(3), (1, 3))])
def test_a_group_of_one_number_is_refused(layer: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"several \w+ in each group"):
        layer.build(shape)
    layer.build((5, shape[-1]))
    with pytest.raises(ShapeError, match=r"several \w+ in each group"):
        layer.forward(np.ones((2, 1, shape[-1]), np.float32))
