"""Derivations at inputs, masks, modes and settings that the table of examples lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phitodeep import layers
from phitodeep.core.call import calling
from phitodeep.core.types import Shape
from phitodeep.derivations.language.run import passes as by_passes
from phitodeep.derivations.language.step import Sum
from phitodeep.layers import Layer
from phitodeep.testing.examples import ELEMENTWISE, Make, data, made, passes
from tests.derivations.test_contract import by_steps, check_terms, check_written, same_passes
from tests.rows import over

EDGES = [0, 5e-324, 1e-310, 1, 3, 20, 41, 710, 1e4, 1e30, 1e200]  # where fast passes differ
EDGES += [np.nextafter(1, 0), np.nextafter(3, 0), np.nextafter(3, 4)]
NORMS = {layers.BatchNorm, layers.LayerNorm, layers.Dropout, layers.GaussianNoise, layers.Flatten}
UNBOUNDED = [make for make in ELEMENTWISE if type(make()) not in NORMS]


@pytest.mark.parametrize("make", UNBOUNDED, ids=[repr(make()) for make in UNBOUNDED])
def test_steps_of_activations_equal_the_fast_pass_at_edges(make: Make) -> None:
    X = np.array([*EDGES, *np.negative(EDGES)])[:, None]
    layer = made(make, X.shape)
    fast, slow = passes(layer, X, np.ones_like(X)), by_steps(layer, X, np.ones_like(X))
    for name, wanted in fast.items():  # relative to each element: one of them is 1e200
        found = slow[name if name in ("Y", "dX") else f"d{name}"]
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12, err_msg=name)


@pytest.mark.parametrize(
    ("shape", "kept", "training", "trainable"),
    [
        ((3, 4, 2), 0.5, True, True),
        ((2, 3, 2, 3), 0.5, True, True),
        ((2, 3, 2, 3), 0.5, True, False),
        ((3, 4, 2), 0.5, False, True),
        ((3, 4, 2), 0.0, True, True),
        ((2, 3, 2, 3), 0.0, False, True),
        ((3, 4, 2), 1.0, True, True),
        ((1, 1, 2), 1.0, True, True),
        ((1, 1, 2), 0.0, True, True),
    ],
)
def test_batch_norm_with_a_mask(shape: Shape, kept: float, training: bool, trainable: bool) -> None:
    layer = made(layers.BatchNorm, shape)
    layer.trainable = trainable
    X, dY = (A.copy() for A in data(layer, shape))
    mask = np.random.default_rng(3).random(shape[:2]) < kept
    X[~mask] = dY[~mask] = np.nan  # padding is never read
    call = {"training": training, "mask": mask}
    scope = same_passes(layer, X, dY, **call)
    check_written(scope, {*layer.params, *layer.state, "X", "dY"}, repr(layer))
    check_terms(by_steps(layer, np.nan_to_num(X), np.nan_to_num(dY), **call))


def test_frozen_batch_norm_uses_the_running_statistics() -> None:
    layer = made(layers.BatchNorm, (4, 3))
    layer.trainable = False
    same_passes(layer, *data(layer, (4, 3)))


@pytest.mark.parametrize("axis", [-3, -2, -1, 1, 2, 3])
@pytest.mark.parametrize("kind", [layers.Softmax, layers.LogSoftmax])
def test_softmax_along_any_axis(kind: type[Layer], axis: int) -> None:
    layer, rng = kind(axis), np.random.default_rng(1)
    X, dY = 100 * rng.standard_normal((2, 3, 4, 5)), rng.standard_normal((2, 3, 4, 5))
    if axis % 2:
        layer.build(X.shape[1:], dtype=np.float64)
    same_passes(layer, X, dY)
    check_terms(by_steps(layer, X, dY))


def test_the_layout_of_a_sum_is_always_the_same() -> None:
    rng = np.random.default_rng(0)
    X, W = rng.standard_normal((6, 3)), rng.standard_normal((3, 4))
    for code in ("ni,ij->nj", "ni,ij->jn"):
        assert Sum("Y", code, "X", "W").value({"X": X, "W": W}).flags.c_contiguous


def test_a_scope_converts_to_its_dtype() -> None:
    layer = made(layers.ReLU, (2, 3))
    X = np.ones((2, 3), np.float32)
    with calling(step=0):
        assert by_passes(layer, X, X)["slope"].dtype == np.float32
        assert by_passes(layer, X, X, dtype=np.float64)["Y"].dtype == np.float64


# --- random layers -----------------------------------------------------------------------------

RANDOM: list[tuple[Make, Shape]] = [
    (lambda: layers.Dropout(0.4), (3, 5)),
    (lambda: layers.SpatialDropout(0.5), (2, 3, 3, 4)),
    (lambda: layers.GaussianNoise(0.3), (3, 5)),
    (layers.Reparameterize, (3, 6)),
    (lambda: layers.RandomFlip(vertical=True), (4, 3, 2, 2)),
    (lambda: layers.RandomCrop((2, 5), padding=(0, 2)), (4, 5, 4, 1)),
    (lambda: layers.RandomShift((4, 7)), (5, 3, 4, 1)),
]
each_draw = pytest.mark.parametrize(("make", "shape"), RANDOM, ids=[repr(m()) for m, _ in RANDOM])


@over([*(((make, (4, 5), 0)) for make in ELEMENTWISE), *((*row, 0) for row in RANDOM)])
def test_float32_stays_float32(make: Make, shape: Shape, tokens: int) -> None:
    layer = made(make, shape, np.float32)
    scope = by_steps(layer, *data(layer, shape, tokens))
    for name in (*scope.values, *scope._series):
        value = scope[name]
        assert np.asarray(value).dtype != np.float64 or type(value) is float, name


@pytest.mark.parametrize(("scope_dtype", "step", "first"), [(None, 0, 0), (np.float64, 3, 40)])
@each_draw
def test_the_draws_are_those_of_the_pass(
    make: Make, shape: Shape, scope_dtype: Any, step: int, first: int
) -> None:
    layer = made(make, shape)
    X, dY = data(layer, shape)
    with calling(step=step, first=first, reuse=True):
        Y, dX = layer.forward(X).copy(), layer.backward(dY)
        assert dX is not None
        found = by_passes(layer, X, dY, dtype=scope_dtype)
    np.testing.assert_allclose(found["Y"], Y, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found["dX"], dX, rtol=0, atol=1e-12)


@each_draw
def test_steps_leave_a_pending_backward_pass_alone(make: Make, shape: Shape) -> None:
    layer = made(make, shape)
    X, dY = data(layer, shape)
    with calling(step=0, reuse=True):
        layer.forward(X)
        wanted = np.array(layer.backward(dY))
        layer.forward(X)
        with calling(step=1):
            by_passes(layer, X, dY)
        np.testing.assert_array_equal(layer.backward(dY), wanted)


def test_log_variances_beyond_the_limit_have_no_gradient() -> None:
    layer = made(layers.Reparameterize, (2, 6))
    X = np.array([[1.0, 2, 3, 88, 88.5, -np.inf], [0.5, 0, 1, 1000, 0, -800]])
    dY = np.ones((2, 3))
    with calling(step=0):
        Y, dX = layer.forward(X).copy(), layer.backward(dY)
        found = by_passes(layer, X, dY)
    np.testing.assert_allclose(found["Y"], Y, rtol=1e-12)
    np.testing.assert_allclose(found["dX"], dX, rtol=1e-12)
    assert found["dS"][0, 1] == found["dS"][1, 0] == 0


# --- windows -----------------------------------------------------------------------------------

POOLS: list[tuple[Make, Shape]] = [
    (lambda: layers.MaxPool2D(3, 1, 1), (2, 5, 4, 2)),
    (lambda: layers.MaxPool2D((2, 3), 2, "same"), (2, 5, 4, 2)),
    (lambda: layers.MaxPool1D(3, 2), (2, 9, 2)),
    (layers.GlobalMaxPool, (2, 3, 4, 2)),
    (layers.GlobalMaxPool, (2, 9, 2)),
]


@pytest.mark.parametrize(("make", "shape"), POOLS)
def test_one_of_equal_cells_wins_and_only_winners_receive_inf_or_nan(
    make: Make, shape: Shape
) -> None:
    layer = made(make, shape)
    X, dY = data(layer, shape)
    for other in (np.nan, 1):
        same_passes(layer, np.where(X < 0, other, np.sign(X)), dY)
    for bad in (np.inf, np.nan):
        changed = dY.copy()
        changed.flat[0] = bad
        same_passes(layer, X, changed)


@pytest.mark.parametrize("make", [layers.GlobalMaxPool, layers.GlobalAvgPool])
def test_global_pools_of_masked_images(make: Make) -> None:
    layer = made(make, (3, 4, 2, 2))
    X, dY = data(layer, (3, 4, 2, 2))
    same_passes(layer, X, dY, mask=np.arange(4) < np.array([[4], [2], [0]]))


def test_nearest_pixels_of_two_factors() -> None:
    layer = made(lambda: layers.Upsample2D((3, 2)), (2, 3, 4, 2))
    same_passes(layer, *data(layer, (2, 3, 4, 2)))
