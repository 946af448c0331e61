"""Convolutions and pools against loops over every number; who wins a tie; sizes and work."""

import itertools

import numpy as np
import pytest

from phitodeep import layers as nn
from phitodeep.core.call import calling
from phitodeep.errors import PhitodeepError
from phitodeep.layers import convolution
from phitodeep.testing import check_gradients
from phitodeep.testing.examples import made
from tests.rows import few

LINES = [  # sizes, kernel, stride, padding, dilation, groups
    ((n,), k, s, p, d, g)
    for n, k, s, p, d, g in itertools.product(
        (1, 4, 7), (1, 2, 3), (1, 2, 3), ("valid", "same", 2), (1, 2), (1, 2)
    )
    if p != "valid" or (k - 1) * d < n
]
IMAGES = [
    ((4, 5), (3, 2), 1, "valid", 1, 1),
    ((5, 4), (2, 3), (2, 1), "same", 1, 2),
    ((5, 6), 3, 2, 1, 1, 1),
    ((1, 1), 3, 1, 1, 1, 2),
    ((1, 4), (1, 3), (1, 2), "same", (1, 2), 1),
    ((4, 4), 2, 3, "same", 1, 1),
    ((5, 3), 2, 1, 2, (2, 1), 2),
    ((3, 2), (3, 2), 1, "valid", 1, 1),
]
TABLE = [*few(LINES, 80), *IMAGES]


def channels(groups):
    return (2, 4) if groups == 2 else (3, 2)


def conv(row, *, bias=True):
    sizes, k, s, p, d, g = row
    c, f = channels(g)
    kind = (nn.Conv1D, nn.Conv2D)[len(sizes) - 1]
    options = {"stride": s, "padding": p, "dilation": d, "groups": g, "bias": bias}
    return made(lambda: kind(f, k, **options), (2, *sizes, c))


def along(value, rank):
    return value if isinstance(value, tuple) else (value,) * rank


def rule(row):
    """(output size, zeros before, kernel, stride, dilation) of each axis, from the definitions."""
    sizes, k, s, p, d, _ = row
    rank, found = len(sizes), []
    for n, k_i, s_i, d_i in zip(sizes, along(k, rank), along(s, rank), along(d, rank), strict=True):
        extent = (k_i - 1) * d_i + 1
        if p == "same":
            out = int(np.ceil(n / s_i))
            before = max((out - 1) * s_i + extent - n, 0) // 2
        else:
            before = 0 if p == "valid" else p
            out = (n + 2 * before - extent) // s_i + 1
        found.append((out, before, k_i, s_i, d_i))
    return found


def by_loops(row, X, W, b):
    """The sum in Conv's docstring, one product at a time."""
    axes, groups = rule(row), row[-1]
    c, f = X.shape[-1] // groups, W.shape[-1] // groups
    Y = np.zeros((len(X), *(a[0] for a in axes), W.shape[-1])) + b
    for place in np.ndindex(Y.shape[1:-1]):
        for tap in np.ndindex(W.shape[:-2]):
            at = tuple(
                i * s + t * d - before
                for i, t, (_, before, _, s, d) in zip(place, tap, axes, strict=True)
            )
            if all(0 <= i < n for i, n in zip(at, X.shape[1:-1], strict=True)):
                for g in range(groups):
                    G = slice(g * f, (g + 1) * f)
                    x = X[(slice(None), *at, slice(g * c, (g + 1) * c))]
                    Y[(slice(None), *place, G)] += x @ W[(*tap, slice(None), G)]
    return Y


def transposed(row, layer):
    """The transposed convolution of the same settings and the same weights: the adjoint."""
    sizes, k, s, p, d, g = row
    left = tuple(
        (n + 2 * b - (k - 1) * d - 1) % s
        for n, (_, b, k, s, d) in zip(sizes, rule(row), strict=True)
    )
    options = {} if p == "same" else {"output_padding": left}
    kind = (nn.ConvTranspose1D, nn.ConvTranspose2D)[len(sizes) - 1]
    back = kind(channels(g)[0], k, stride=s, padding=p, dilation=d, groups=g, bias=False, **options)
    back.build(layer.output_shape or (), dtype=np.float64)
    back.W = layer.params["W"].swapaxes(-1, -2)
    return back


@pytest.mark.parametrize("rank", [1, 2])
def test_forward_is_the_sum_over_places_taps_and_groups(rank, rng):
    for row in TABLE:
        if len(row[0]) == rank:
            layer = conv(row)
            X = rng.standard_normal((2, *row[0], channels(row[-1])[0]))
            Y = layer.forward(X)
            assert Y.shape[1:] == layer.output_shape
            wanted = by_loops(row, X, layer.params["W"], layer.params["b"])
            np.testing.assert_allclose(Y, wanted, rtol=1e-12, atol=1e-12, err_msg=str(row))
            dY, W, Y = rng.standard_normal(Y.shape), layer.params["W"], Y - layer.params["b"]
            dX, dW = layer.backward(dY), layer.grads["W"]
            linear = [np.vdot(dX, X), np.vdot(dW, W)]  # Y is linear in X, and in W
            assert linear == pytest.approx([np.vdot(dY, Y)] * 2, rel=1e-9, abs=1e-9), row
            back = transposed(row, layer)
            if back.output_shape == X.shape[1:]:  # a "same" convolution may have lost the size
                found = back.forward(dY), back.backward(X), back.grads["W"].swapaxes(-1, -2)
                for one, other in zip(found, (dX, Y, dW), strict=True):
                    np.testing.assert_allclose(one, other, rtol=0, atol=1e-11, err_msg=str(row))


@pytest.mark.parametrize("kind", [nn.Conv1D, nn.Conv2D, nn.DepthwiseConv2D])
@pytest.mark.parametrize("needs_dX", [True, False])
def test_one_channel_is_two_if_one_is_zero(kind, needs_dX, rng):
    """With one channel, b is one more row of W."""
    one = nn.DepthwiseConv2D(2, multiplier=3) if kind is nn.DepthwiseConv2D else kind(3, 2)
    sizes = (6,) if kind is nn.Conv1D else (6, 5)
    one.build((*sizes, 1), seed=0, dtype=np.float64)
    two = (nn.Conv1D if kind is nn.Conv1D else nn.Conv2D)(3, 2)
    two.build((*sizes, 2), seed=0, dtype=np.float64)
    one.b = two.b = rng.standard_normal(3)
    two.W = np.concatenate([one.W, one.W], axis=-2)
    X, found = rng.standard_normal((4, *sizes, 1)), []
    dY = rng.standard_normal((4, *(one.output_shape or ())))
    for layer, A in ((one, X), (two, np.concatenate([X, 0 * X], axis=-1))):
        Y = layer.forward(A)
        with calling(needs_dX=needs_dX):
            dX = layer.backward(dY)
        assert (dX is None) != needs_dX
        dX = np.zeros(1) if dX is None else dX
        found.append([Y, dX[..., :1], layer.grads["W"][..., :1, :], layer.grads["b"]])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("block", [1, 300, 800])
def test_windows_in_blocks(block, channels, rng, monkeypatch):
    groups = min(channels, 2)
    layer = nn.Conv2D(6, 3, stride=2, padding="same", groups=groups)
    layer.build((9, 7, channels), seed=0, dtype=np.float64)
    layer.b = rng.standard_normal(6)
    X, dY = rng.standard_normal((7, 9, 7, channels)), rng.standard_normal((7, 5, 4, 6))
    seen = []
    for numbers in (1 << 20, block):
        monkeypatch.setattr(convolution, "BLOCK", numbers)
        with calling(reuse=True):
            for n in (7, 5):  # a shorter last batch
                Y = layer.forward(X[:n]).copy()
                for _ in range(2):  # backward again gives the same
                    dX = layer.backward(dY[:n])
                    assert dX is not None
                    seen.append([Y, dX.copy(), *layer.gradients().values()])
        kept = layer.cache["U"]
        assert (kept is None) == (numbers == block)
    for one, two in zip(seen[: len(seen) // 2], seen[len(seen) // 2 :], strict=True):
        for a, b in zip(one, two, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_images_of_another_size_strided_views_scales_of_weights_and_flops(rng):
    layer = made(lambda: nn.Conv2D(2, 3, padding="same"), (2, 4, 4, 2))
    for sizes in ((3, 7), (1, 1)):
        check_gradients(layer, rng.standard_normal((2, *sizes, 2)), max_probes=6)
    for layer in (conv(IMAGES[0]), made(lambda: nn.ConvTranspose2D(2, 2), (2, 4, 5, 3))):
        X = rng.standard_normal((5, 4, 2, 3)).transpose(2, 1, 0, 3)
        Y = layer.forward(X)
        dY = rng.standard_normal(Y.shape[::-1]).T
        dX = layer.backward(dY)
        np.testing.assert_array_equal(layer.forward(X.copy()), Y)
        np.testing.assert_allclose(layer.backward(dY.copy()), dX, rtol=1e-12)
    layer, X = made(lambda: nn.DepthwiseConv2D(3), (1, 5, 5, 3)), rng.standard_normal((1, 5, 5, 3))
    Y = layer.forward(X)
    with pytest.raises(PhitodeepError):
        layer.build((5, 5, 4))
    np.testing.assert_array_equal(layer.forward(X), Y)
    for make, fan_in in (
        (lambda: nn.Conv2D(64, 3), 9 * 32),
        (lambda: nn.Conv2D(64, 3, groups=4), 9 * 8),
        (lambda: nn.Conv1D(200, 5), 5 * 32),
    ):
        layer = make()
        layer.build((8,) * layer.rank + (32,), seed=1)
        assert layer.W.std() == pytest.approx(np.sqrt(2 / fan_in), rel=0.05)
        assert not layer.b.any()
    assert nn.Conv2D(2, 3, bias=False)._measured((4, 4, 1)).count_params() == 18
    conv2d = nn.Conv2D(4, 3, groups=2)._measured((5, 6, 2))
    assert conv2d.flops() == 2 * (3 * 4) * (9 * 1 * 4) + 3 * 4 * 4
    back = nn.ConvTranspose2D(4, 3, stride=2, bias=False)._measured((5, 6, 2))
    assert back.flops() == 2 * (5 * 6) * (9 * 2 * 4)


POOLS = [  # sizes, pool, stride, padding
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
POOLINGS = {"max": (nn.MaxPool1D, nn.MaxPool2D), "avg": (nn.AvgPool1D, nn.AvgPool2D)}


def pool(kind, row):
    sizes, k, s, p = row
    layer = POOLINGS[kind][len(sizes) - 1](k, s, p)
    layer.build((*sizes, 2), dtype=np.float64)
    return layer


def windows(row):
    """The output's sizes, and of each axis the places that each window covers, padding too."""
    sizes, k, s, p = row
    axes = rule((sizes, k, k if s is None else s, p, 1, 1))
    places = [[range(i * s - b, i * s - b + k) for i in range(m)] for m, b, k, s, _ in axes]
    return tuple(m for m, *_ in axes), places


def pooled_by_loops(kind, row, X):
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


@pytest.mark.parametrize("kind", POOLINGS)
def test_pools_are_those_of_each_window(kind, rng):
    for row in POOLS:
        layer = pool(kind, row)
        X = rng.standard_normal((2, *row[0], 2)) - 3  # below 0, so that padding would win
        Y = layer.forward(X)
        assert Y.shape[1:] == layer.output_shape
        np.testing.assert_allclose(Y, pooled_by_loops(kind, row, X), rtol=1e-12, err_msg=str(row))


def test_the_first_of_equals_wins_and_flops_count_what_is_read_or_mixed():
    X = np.array([[1.0, 3, 3], [3, 0, 3], [2, 2, 2]]).reshape(1, 3, 3, 1)
    layer = nn.MaxPool2D(2, 1)
    np.testing.assert_array_equal(layer.forward(X).ravel(), [3, 3, 3, 3])
    dX = layer.backward(np.array([1.0, 10, 100, 1000]).reshape(1, 2, 2, 1))
    np.testing.assert_array_equal(dX.reshape(3, 3), [[0, 11, 0], [100, 0, 1000], [0, 0, 0]])
    flat = np.zeros((2, 5, 3))
    for T, pooling in (
        *((5, nn.MaxPool1D(2)), (5, nn.MaxPool1D(3, 1, 1)), (5, nn.MaxPool1D(2, 2, "same"))),
        (6, nn.MaxPool1D(3, 2)),  # as many steps as windows times taps, but windows overlap
    ):
        with calling(reuse=True):
            for _ in range(2):
                Y = pooling.forward(np.zeros((2, T, 3)))
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
