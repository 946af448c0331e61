"""Derivations of activations and norms at inputs, masks and settings that the table lacks."""

from __future__ import annotations

import numpy as np
import pytest

from phitodeep import layers
from phitodeep.core.call import calling
from phitodeep.core.types import Shape
from phitodeep.derivations.language import run as stepwise
from phitodeep.derivations.language.step import Sum
from phitodeep.layers import Layer
from phitodeep.testing.examples import ELEMENTWISE, Make, data, made, passes
from tests.derivations.test_contract import by_steps, check_terms, check_written, same_passes

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


@pytest.mark.parametrize("make", ELEMENTWISE, ids=[repr(make()) for make in ELEMENTWISE])
def test_steps_keep_float32(make: Make) -> None:
    layer = made(make, (4, 5), np.float32)
    scope = by_steps(layer, *data(layer, (4, 5)))
    for name, value in ((n, scope[n]) for n in (*scope.values, *scope._series)):
        if np.asarray(value).dtype.kind == "f" and not isinstance(value, float):
            assert value.dtype == np.float32, name


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
    own = {*layer.params, *layer.state, "X", "dY", "eps"}
    check_written(list(scope.derivation.every()), own, repr(layer))
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
        assert stepwise.passes(layer, X, X)["slope"].dtype == np.float32
        assert stepwise.passes(layer, X, X, dtype=np.float64)["Y"].dtype == np.float64
