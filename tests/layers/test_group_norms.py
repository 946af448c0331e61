"""GroupNorm, InstanceNorm, RMSNorm, BatchNorm of images, and SpatialDropout."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError
from phitodeep.layers import (
    BatchNorm,
    Dropout,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    ReLU,
    RMSNorm,
    SpatialDropout,
)
from phitodeep.layers.call import calling, inference
from phitodeep.model import Sequential
from phitodeep.testing import check_gradients
from phitodeep.types import Shape
from tests.layers.catalogue_examples import assert_same, made, passes

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
        (lambda: GroupNorm(4), (2, 6), r"GroupNorm\(4\): 6 channels do not divide by 4 groups"),
        (lambda: GroupNorm(7), (6,), "6 channels do not divide by 7 groups"),
    ],
)
def test_channels_that_do_not_divide_are_refused(make: Any, shape: Any, says: str) -> None:
    for layer in (make(), Sequential(ReLU(), make())):
        with pytest.raises(ShapeError, match=says) as caught:
            layer.build(shape)
    assert "layer 1 of Sequential" in str(caught.value)


def test_bad_input_is_refused() -> None:
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
        GroupNorm(2.0)  # type: ignore[arg-type]


# --- SpatialDropout ----------------------------------------------------------------------------


def test_channels_go_as_a_whole(rng: Any) -> None:
    X, dY = rng.standard_normal((2, 40, 3, 2, 50)) + 3
    layer = made(lambda: SpatialDropout(0.4), X.shape)
    with calling(step=0):
        mask = layer.forward(X) / X
        np.testing.assert_allclose(layer.backward(dY), dY * mask, rtol=1e-12)
        np.testing.assert_array_equal(layer.forward(X) / X, mask)
    np.testing.assert_allclose(mask, np.broadcast_to(mask[:, :1, :1], X.shape), rtol=1e-12)
    kept = mask[:, 0, 0] > 0
    np.testing.assert_allclose(mask[:, 0, 0][kept], 1 / 0.6)
    assert kept.mean() == pytest.approx(0.6, abs=0.05)
    assert 0 < kept.mean(0).std() < 0.2  # samples are dropped apart
    with inference():
        np.testing.assert_array_equal(layer.forward(X), X)
    row = rng.standard_normal((5, 4))
    one, other = made(lambda: SpatialDropout(0.4), row.shape), made(lambda: Dropout(0.4), row.shape)
    with calling(step=0):
        np.testing.assert_array_equal(one.forward(row), other.forward(row))


@pytest.mark.parametrize("shape", [(2, 3, 4), (3, 2, 2, 3), (1, 1, 5)])
def test_spatial_dropout_gradients(shape: Shape, rng: Any) -> None:
    for rate in (0.0, 0.3, 0.7):
        check_gradients(SpatialDropout(rate), rng.standard_normal(shape))
    for wrong in (1.0, -0.1):
        with pytest.raises(ArgumentError, match="Dropout rate"):
            SpatialDropout(wrong)


@pytest.mark.parametrize(("layer", "shape"), [(InstanceNorm(), (4,)), (GroupNorm(3), (1, 3))])
def test_a_group_of_one_number_is_refused(layer: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="several elements in each group"):
        layer.build(shape)
    layer.build((5, shape[-1]))
    with pytest.raises(ShapeError, match="several elements in each group"):
        layer.forward(np.ones((2, 1, shape[-1]), np.float32))
