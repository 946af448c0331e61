"""Pools against loops over every window; who wins a tie; sizes and refusals."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from phitodeep import layers as nn
from phitodeep.core.types import Array
from tests.layers.test_convolution import rule

TABLE: list[tuple[tuple[int, ...], Any, Any, Any]] = [  # sizes, pool, stride, padding
    *[
        ((n,), k, s, p)
        for n, k, s, p in itertools.product(
            (1, 4, 7), (1, 2, 3), (None, 1, 2, 4), ("valid", "same", 1)
        )
        if (p != "valid" or k <= n) and (p != 1 or k > 1)
    ],
    ((4, 5), 2, None, "valid"),
    ((5, 4), (3, 2), (1, 3), 1),
    ((5, 6), 3, 2, "same"),
    ((1, 3), (1, 2), (2, 1), "same"),
    ((3, 3), 3, None, "valid"),
    ((2, 2), 2, 3, 1),
]
KINDS = {"max": (nn.MaxPool1D, nn.MaxPool2D), "avg": (nn.AvgPool1D, nn.AvgPool2D)}


def pool(kind: str, row: Any) -> nn.Layer:
    sizes, k, s, p = row
    layer = KINDS[kind][len(sizes) - 1](k, s, p)
    layer.build((*sizes, 2), dtype=np.float64)
    return layer


def windows(row: Any) -> tuple[tuple[int, ...], list[list[range]]]:
    """The output's sizes, and of each axis the places that each window covers, padding too."""
    sizes, k, s, p = row
    axes = rule((sizes, k, k if s is None else s, p, 1, 1))
    places = [[range(i * s - b, i * s - b + k) for i in range(m)] for m, b, k, s, _ in axes]
    return tuple(m for m, *_ in axes), places


def by_loops(kind: str, row: Any, X: Array) -> Array:
    out, places = windows(row)
    Y = np.empty((len(X), *out, X.shape[-1]))
    for at in np.ndindex(out):
        cells = list(itertools.product(*(axis[i] for axis, i in zip(places, at, strict=True))))
        inside = [c for c in cells if all(0 <= i < n for i, n in zip(c, row[0], strict=True))]
        there = np.stack([X[(slice(None), *c)] for c in inside])
        if kind == "max":
            Y[(slice(None), *at)] = there.max(0)
        else:
            count = len(inside) if row[-1] == "same" else len(cells)
            Y[(slice(None), *at)] = there.sum(0) / count
    return Y


@pytest.mark.parametrize("kind", KINDS)
def test_forward_is_that_of_each_window(kind: str, rng: Any) -> None:
    for row in TABLE:
        layer = pool(kind, row)
        X = rng.standard_normal((2, *row[0], 2)) - 3  # below 0, so that padding would win
        Y = layer.forward(X)
        assert Y.shape[1:] == layer.output_shape
        np.testing.assert_allclose(Y, by_loops(kind, row, X), rtol=1e-12, err_msg=str(row))


def test_the_first_of_equals_wins_and_flops_count_what_is_read_or_mixed() -> None:
    X = np.array([[1.0, 3, 3], [3, 0, 3], [2, 2, 2]]).reshape(1, 3, 3, 1)
    layer = nn.MaxPool2D(2, 1)
    np.testing.assert_array_equal(layer.forward(X).ravel(), [3, 3, 3, 3])
    dX = layer.backward(np.array([1.0, 10, 100, 1000]).reshape(1, 2, 2, 1))
    np.testing.assert_array_equal(dX.reshape(3, 3), [[0, 11, 0], [100, 0, 1000], [0, 0, 0]])
    flat = np.zeros((2, 5, 3))
    for pooling in (nn.MaxPool1D(2), nn.MaxPool1D(3, 1, 1), nn.MaxPool1D(2, 2, "same")):
        Y = pooling.forward(flat)
        dX = pooling.backward(np.ones_like(Y))
        assert dX.sum() == Y.size  # what goes back is what came: once
    top = nn.GlobalMaxPool()
    top.forward(flat)
    np.testing.assert_array_equal(top.backward(np.ones((2, 3))).sum((0, 2)), [6, 0, 0, 0, 0])
    for layer, shape, flops in (
        (nn.MaxPool2D((3, 2)), (6, 4, 2), 2 * 2 * 2 * 6),
        (nn.AvgPool1D(3, 1), (5, 2), 3 * 2 * 3),
        (nn.GlobalAvgPool(), (3, 4, 2), 24),
        (nn.Upsample2D(2), (3, 4, 2), 96),
        (nn.Upsample2D(2, "bilinear"), (3, 4, 2), 4 * 96),
        (nn.ZeroPad2D(1), (3, 4, 2), 0),
        (nn.Permute(2, 1), (3, 4), 0),
    ):
        assert layer._measured(shape).flops() == flops
