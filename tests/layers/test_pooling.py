"""Pools against loops over every window; who wins a tie; sizes and refusals."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from phitodeep.core.types import Array
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError
from phitodeep.layers import (
    AvgPool1D,
    AvgPool2D,
    GlobalAvgPool,
    GlobalMaxPool,
    Layer,
    MaxPool1D,
    MaxPool2D,
    Permute,
    ReLU,
    Upsample2D,
    ZeroPad2D,
)
from phitodeep.model import Sequential
from phitodeep.testing import check_gradients

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
few = pytest.mark.parametrize("row", [*TABLE[:-6:4], *TABLE[-6:]], ids=str)
KINDS = {"max": (MaxPool1D, MaxPool2D), "avg": (AvgPool1D, AvgPool2D)}


def along(value: Any, rank: int) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,) * rank


def pool(kind: str, row: Any) -> Layer:
    sizes, k, s, p = row
    layer = KINDS[kind][len(sizes) - 1](k, s, p)
    layer.build((*sizes, 2), dtype=np.float64)
    return layer


def windows(row: Any) -> tuple[tuple[int, ...], list[list[range]]]:
    """The output's sizes, and of each axis the places that each window covers, padding too."""
    sizes, k, s, p = row
    rank, out, places = len(sizes), [], []
    for n, k_i, s_i in zip(sizes, along(k, rank), along(k if s is None else s, rank), strict=True):
        if p == "same":
            m = -(-n // s_i)
            before = max((m - 1) * s_i + k_i - n, 0) // 2
        else:
            before = 0 if p == "valid" else p
            m = (n + 2 * before - k_i) // s_i + 1
        out.append(m)
        places.append([range(i * s_i - before, i * s_i - before + k_i) for i in range(m)])
    return tuple(out), places


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
def test_forward_is_that_of_each_window(kind: str, rng: np.random.Generator) -> None:
    for row in TABLE:
        layer = pool(kind, row)
        X = rng.standard_normal((2, *row[0], 2)) - 3  # below 0, so that padding would win
        Y = layer.forward(X)
        assert Y.shape[1:] == layer.output_shape
        np.testing.assert_allclose(Y, by_loops(kind, row, X), rtol=1e-12, err_msg=str(row))


@pytest.mark.parametrize("kind", KINDS)
@few
def test_pool_gradients(kind: str, row: Any, rng: np.random.Generator) -> None:
    for n in (1, 3):
        check_gradients(pool(kind, row), rng.standard_normal((n, *row[0], 2)), max_probes=30)


def test_the_first_of_equals_wins() -> None:
    X = np.array([[1.0, 3, 3], [3, 0, 3], [2, 2, 2]]).reshape(1, 3, 3, 1)
    layer = MaxPool2D(2, 1)
    np.testing.assert_array_equal(layer.forward(X).ravel(), [3, 3, 3, 3])
    dX = layer.backward(np.array([1.0, 10, 100, 1000]).reshape(1, 2, 2, 1))
    np.testing.assert_array_equal(dX.reshape(3, 3), [[0, 11, 0], [100, 0, 1000], [0, 0, 0]])
    flat = np.zeros((2, 5, 3))
    for pooling in (MaxPool1D(2), MaxPool1D(3, 1, 1), MaxPool1D(2, 2, "same")):
        Y = pooling.forward(flat)
        dX = pooling.backward(np.ones_like(Y))
        assert dX.sum() == Y.size  # what goes back is what came: once
    top = GlobalMaxPool()
    top.forward(flat)
    np.testing.assert_array_equal(top.backward(np.ones((2, 3))).sum((0, 2)), [6, 0, 0, 0, 0])


def test_padding_never_wins() -> None:
    X = np.full((1, 2, 2, 1), -5.0)
    for padding in ("same", 1):
        layer = MaxPool2D(3, 1, padding)
        np.testing.assert_array_equal(layer.forward(X), X)
        assert layer.backward(np.ones((1, 2, 2, 1))).sum() == 4
    np.testing.assert_array_equal(MaxPool1D(2, 1, 1).forward(X[0]), np.full((2, 3, 1), -5.0))


def test_integer_padding_counts_in_means_and_same_does_not() -> None:
    X = np.full((1, 3, 1), 6.0)
    np.testing.assert_allclose(AvgPool1D(3, 1, 1).forward(X).ravel(), [4, 6, 4])
    np.testing.assert_allclose(AvgPool1D(3, 1, "same").forward(X).ravel(), [6, 6, 6])
    np.testing.assert_allclose(AvgPool1D(2, 2, "same").forward(X).ravel(), [6, 6])


@pytest.mark.parametrize("shape", [(2, 4, 3), (1, 3, 2, 2), (2, 1, 1, 2), (1, 2, 3, 2, 2)])
def test_global_pools(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    X, axes = rng.standard_normal(shape), tuple(range(1, len(shape) - 1))
    for layer, wanted in ((GlobalAvgPool(), X.mean(axes)), (GlobalMaxPool(), X.max(axes))):
        np.testing.assert_allclose(layer.forward(X), wanted, rtol=1e-13)
        check_gradients(layer, X)
        assert layer._measured(shape[1:]).output_shape == shape[-1:]


def test_upsampling_repeats_or_interpolates() -> None:
    X = np.array([0.0, 4, 8]).reshape(1, 1, 3, 1)
    nearest = Upsample2D((1, 2)).forward(X)
    np.testing.assert_array_equal(nearest.ravel(), [0, 0, 4, 4, 8, 8])
    bilinear = Upsample2D((2, 2), "bilinear").forward(X)
    np.testing.assert_allclose(bilinear[0, 0].ravel(), [0, 1, 3, 5, 7, 8])
    np.testing.assert_allclose(bilinear[0, 1].ravel(), [0, 1, 3, 5, 7, 8])
    np.testing.assert_allclose(
        Upsample2D((1, 3), "bilinear").forward(X[:, :, :2]).ravel(),
        [0, 0, 4 / 3, 8 / 3, 4, 4],
        atol=1e-15,
    )


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("factor", [1, 2, 3, (3, 1), (2, 4)])
def test_upsample_gradients(factor: Any, mode: str, rng: np.random.Generator) -> None:
    f, g = along(factor, 2)
    for sizes in ((2, 3), (1, 1), (3, 2)):
        layer, X = Upsample2D(factor, mode), rng.standard_normal((2, *sizes, 2))
        check_gradients(layer, X)
        Y = layer.forward(X)
        assert Y.shape == (2, sizes[0] * f, sizes[1] * g, 2)
        if mode == "nearest":
            np.testing.assert_array_equal(Y, X.repeat(f, 1).repeat(g, 2))
        assert Y.min() >= X.min() - 1e-12
        np.testing.assert_allclose(layer.forward(np.ones_like(X)), 1)


def test_zero_pad(rng: np.random.Generator) -> None:
    X = rng.standard_normal((2, 3, 2, 2))
    for padding, around in ((2, ((2, 2), (2, 2))), (((0, 1), (3, 2)), ((0, 1), (3, 2))), (0, 0)):
        layer = ZeroPad2D(padding)
        wide = ((0, 0), *around, (0, 0)) if around else 0
        np.testing.assert_array_equal(layer.forward(X), np.pad(X, wide))
        check_gradients(layer, X)
        assert layer._measured(X.shape[1:]).output_shape == layer.forward(X).shape[1:]
    assert ZeroPad2D().forward(X).shape == (2, 5, 4, 2)


@pytest.mark.parametrize("dims", [(1, 2, 3), (3, 1, 2), (2, 3, 1), (2, 1, 3), (3, 2, 1)])
def test_permute(dims: tuple[int, ...], rng: np.random.Generator) -> None:
    X = rng.standard_normal((2, 3, 4, 5))
    layer = Permute(*dims)
    Y = layer.forward(X)
    np.testing.assert_array_equal(Y, X.transpose(0, *dims))
    assert Y.flags.c_contiguous
    assert layer._measured((3, 4, 5)).output_shape == Y.shape[1:]
    check_gradients(layer, X)
    np.testing.assert_array_equal(layer.backward(Y), X)


def test_flops_count_what_is_read_or_mixed() -> None:
    for layer, shape, flops in (
        (MaxPool2D((3, 2)), (6, 4, 2), 2 * 2 * 2 * 6),
        (AvgPool1D(3, 1), (5, 2), 3 * 2 * 3),
        (GlobalAvgPool(), (3, 4, 2), 24),
        (Upsample2D(2), (3, 4, 2), 96),
        (Upsample2D(2, "bilinear"), (3, 4, 2), 4 * 96),
        (ZeroPad2D(1), (3, 4, 2), 0),
        (Permute(2, 1), (3, 4), 0),
    ):
        assert layer._measured(shape).flops() == flops


@pytest.mark.parametrize(
    ("make", "shape", "says"),
    [
        (
            lambda: MaxPool2D(5),
            (4, 6, 1),
            r"MaxPool2D: a window of \(5, 5\) does not fit.*\(4, 6\)",
        ),
        (lambda: AvgPool1D(5, padding=1), (2, 1), r"AvgPool1D.*padded to \(4,\)"),
        (lambda: MaxPool2D(2), (4, 4), r"MaxPool2D.*\(height, width, C\), got \(4, 4\)"),
        (lambda: AvgPool1D(2), (4, 4, 2), r"AvgPool1D.*\(steps, C\)"),
        (lambda: GlobalAvgPool(), (4,), r"GlobalAvgPool.*\(\*sizes, C\)"),
        (lambda: GlobalMaxPool(), (4,), r"GlobalMaxPool.*\(\*sizes, C\)"),
        (lambda: Upsample2D(2), (4, 4), "Upsample2D.*height, width, C"),
        (lambda: ZeroPad2D(2), (4, 4), "ZeroPad2D.*height, width, C"),
        (lambda: Permute(2, 1), (4,), "Permute.*2 axes"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(make: Any, shape: Any, says: str) -> None:
    for layer in (make(), Sequential(ReLU(), make())):
        with pytest.raises(ShapeError, match=says) as caught:
            layer.build(shape)
    assert "layer 1 of Sequential" in str(caught.value)
    with pytest.raises(ShapeError, match=type(make()).__name__):
        make().forward(np.ones((2, *shape)))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: MaxPool2D(2, padding=2), "MaxPool2D: padding 2 is more than half"),
        (lambda: AvgPool1D(1, padding=1), "AvgPool1D: padding 1 is more than half"),
        (lambda: MaxPool2D((4, 2), padding=2), "MaxPool2D: padding 2"),
        (lambda: MaxPool2D(0), "MaxPool2D pool_size must be >= 1"),
        (lambda: MaxPool1D(2, 0), "MaxPool1D stride must be >= 1"),
        (lambda: AvgPool2D((1, 2, 3)), "AvgPool2D pool_size takes one integer or 2"),
        (lambda: AvgPool2D(2, padding="full"), "AvgPool2D padding must be"),
        (lambda: Upsample2D(2, "cubic"), "Upsample2D mode must be"),
        (lambda: Upsample2D(0), "Upsample2D factor must be >= 1"),
        (lambda: ZeroPad2D(-1), "ZeroPad2D padding must be >= 0"),
        (lambda: ZeroPad2D(((1, 1), (1, 1), (1, 1))), "ZeroPad2D takes"),
        (lambda: Permute(0, 1), "Permute takes each axis once, counted from 1"),
        (lambda: Permute(1, 1), "Permute takes each axis"),
        (lambda: Permute(1, 3), "Permute takes each axis"),
    ],
)
def test_settings_without_a_meaning_are_refused(make: Any, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        make()


@pytest.mark.parametrize("wrong", [2.0, "2", True, None])
def test_settings_that_are_no_integers_are_refused(wrong: Any) -> None:
    for kind in (MaxPool1D, AvgPool2D, Upsample2D):
        with pytest.raises((ArgumentTypeError, ArgumentError), match=kind.__name__):
            kind(wrong)
