"""Flatten and Reshape: the order of the numbers, and shapes that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phitodeep import layers
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError
from phitodeep.layers import Flatten, Reshape


@pytest.mark.parametrize(
    ("layer", "shape", "wanted"),
    [
        (Flatten(), (2, 3, 4), (2, 12)),
        (Flatten(), (2, 3), (2, 3)),
        (Flatten(), (2,), (2, 1)),
        (Flatten(), (0, 3, 4), (0, 12)),
        (Reshape(4, 3), (2, 3, 4), (2, 4, 3)),
        (Reshape(2, -1), (5, 3, 4), (5, 2, 6)),
        (Reshape(-1), (5, 3, 4), (5, 12)),
        (Reshape(1), (5,), (5, 1)),
        (Reshape(2, -1, 2), (0, 12), (0, 2, 3, 2)),
    ],
    ids=repr,
)
def test_numbers_keep_their_order(layer: Any, shape: Any, wanted: Any) -> None:
    X = np.arange(np.prod(shape), dtype=float).reshape(shape)
    Y = layer.forward(X)
    assert Y.shape == wanted
    np.testing.assert_array_equal(Y.ravel(), X.ravel())
    dX = layer.backward(2 * Y)
    np.testing.assert_array_equal(dX, 2 * X)
    assert dX.shape == shape
    assert layer.copy().build(shape[1:]) == wanted[1:]
    assert layer.flops() == 0


def test_a_transposed_X_is_read_in_its_own_order() -> None:
    X = np.arange(12.0).reshape(3, 2, 2).T
    np.testing.assert_array_equal(Flatten().forward(X), X.reshape(2, 6))


@pytest.mark.parametrize(
    "layer", [Reshape(5), Reshape(5, -1), Reshape(12, 2), Reshape(6)], ids=repr
)
def test_sizes_that_do_not_fit_are_refused(layer: Reshape) -> None:
    says = r"Reshape\(.*cannot take samples of shape \(3, 4\) \(12 numbers\)"
    with pytest.raises(ShapeError, match=says):
        layer.build((3, 4))
    with pytest.raises(ShapeError, match=says):
        layer.forward(np.ones((2, 3, 4)))


@pytest.mark.parametrize(
    ("sizes", "error", "says"),
    [
        ((), ArgumentError, "takes sizes"),
        ((-1, -1), ArgumentError, "at most one of them -1"),
        ((0, 3), ArgumentError, "Reshape size must be >= 1, got 0"),
        ((-2,), ArgumentError, "Reshape size must be >= 1, got -2"),
        ((2.0,), ArgumentTypeError, "Reshape size must be an integer"),
        (((2, 3),), ArgumentTypeError, "Reshape size must be an integer"),
    ],
)
def test_bad_sizes_are_refused(sizes: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Reshape(*sizes)


def test_where_the_original_had_it() -> None:
    assert layers.base.Flatten is Flatten  # type: ignore[attr-defined]
