"""What the table of examples does not reach in layers with windows, such as ties and NaN."""

from __future__ import annotations

import numpy as np
import pytest

from phitodeep import layers
from phitodeep.core.types import Shape
from phitodeep.testing.examples import Make, data, made
from tests.derivations.test_contract import same_passes

POOLS: list[tuple[Make, Shape]] = [
    (lambda: layers.MaxPool2D(3, 1, 1), (2, 5, 4, 2)),
    (lambda: layers.MaxPool2D((2, 3), 2, "same"), (2, 5, 4, 2)),
    (lambda: layers.MaxPool1D(3, 2), (2, 9, 2)),
    (layers.GlobalMaxPool, (2, 3, 4, 2)),
    (layers.GlobalMaxPool, (2, 9, 2)),
]
pools = pytest.mark.parametrize(("make", "shape"), POOLS)


@pytest.mark.parametrize("nan", [False, True])
@pools
def test_of_equal_cells_the_same_one_receives_the_gradient(
    make: Make, shape: Shape, nan: bool
) -> None:
    layer = made(make, shape)
    X, dY = data(layer, shape)
    X = np.sign(X)
    X[X < 0] = np.nan if nan else 1
    same_passes(layer, X, dY)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pools
def test_only_winners_receive_a_gradient_that_is_not_finite(
    make: Make, shape: Shape, bad: float
) -> None:
    layer = made(make, shape)
    X, dY = data(layer, shape)
    dY = dY.copy()
    dY.flat[0] = bad
    same_passes(layer, X, dY)


@pytest.mark.parametrize("make", [layers.GlobalMaxPool, layers.GlobalAvgPool])
def test_global_pools_of_masked_images(make: Make) -> None:
    layer = made(make, (3, 4, 2, 2))
    X, dY = data(layer, (3, 4, 2, 2))
    same_passes(layer, X, dY, mask=np.arange(4) < np.array([[4], [2], [0]]))


def test_nearest_pixels_of_two_factors() -> None:
    layer = made(lambda: layers.Upsample2D((3, 2)), (2, 3, 4, 2))
    same_passes(layer, *data(layer, (2, 3, 4, 2)))
