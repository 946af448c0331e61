"""Convolutions and pools: where windows lie, who wins a tie, blocks, sizes and work."""

import itertools
from functools import partial

import numpy as np
import pytest

from phitodeep import PhitodeepError, check_gradients
from phitodeep import layers as nn
from phitodeep.core.call import calling
from phitodeep.layers import convolution
from phitodeep.testing.examples import data, made
from tests.derivations.test_contract import same_passes
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


def check_rule(layer, sizes, k, s, p, d=1):
    """Windows are as many, and the first begins as far before X, as their docstring says."""
    windows = layer._windows(sizes)
    spread = [np.broadcast_to(setting, len(sizes)) for setting in (k, s, d)]
    for n, out, (before, _), k_i, s_i, d_i in zip(
        sizes, windows.out, windows.pads, *spread, strict=True
    ):
        extent = (k_i - 1) * d_i + 1
        if p == "same":
            assert out == np.ceil(n / s_i)
            assert before == max((out - 1) * s_i + extent - n, 0) // 2
        else:
            assert before == (0 if p == "valid" else p)
            assert out == (n + 2 * before - extent) // s_i + 1


def transposed(layer, sizes, channels):
    """The transposed convolution of the same settings and weights: its adjoint."""
    windows, last = layer._windows(sizes), np.array(layer.kernel) - 1
    covered = (np.array(windows.out) - 1) * layer.strides + last * layer.dilations + 1
    left = tuple((windows.padded - covered).tolist())
    kind = (nn.ConvTranspose1D, nn.ConvTranspose2D)[len(sizes) - 1]
    options = {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation}
    options |= {} if layer.padding == "same" else {"output_padding": left}
    back = kind(channels, layer.kernel_size, groups=layer.groups, bias=False, **options)
    back.build(layer.output_shape, dtype=np.float64)
    back.W = layer.W.swapaxes(-1, -2)
    return back


@pytest.mark.parametrize("channels", [1, 3])  # of each group; with one, b is one more row of W
def test_convolutions_are_their_derivations_and_adjoint_to_the_transposed_ones(channels):
    for sizes, k, s, p, d, g in [*few(LINES, 80), *IMAGES]:
        kind, shape = (nn.Conv1D, nn.Conv2D)[len(sizes) - 1], (2, *sizes, g * channels)
        make = partial(kind, 2 * g, k, stride=s, padding=p, dilation=d, groups=g)
        layer = made(make, shape)
        check_rule(layer, sizes, k, s, p, d)
        X, dY = data(layer, shape)
        same_passes(layer, X, dY)
        back = transposed(layer, sizes, g * channels)
        found = back.forward(dY)
        same_passes(back, dY, found)
        if found.shape == X.shape:  # a "same" convolution may have lost the size
            np.testing.assert_allclose(layer.backward(dY), found, rtol=0, atol=1e-11)


@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("block", [1, 300, 800])
def test_windows_in_blocks(block, channels, monkeypatch):
    monkeypatch.setattr(convolution, "BLOCK", block)
    groups, shape = min(channels, 2), (7, 9, 7, channels)
    layer = made(lambda: nn.Conv2D(6, 3, stride=2, padding="same", groups=groups), shape)
    X, dY = data(layer, shape)
    for n in (7, 5):  # a shorter last batch
        same_passes(layer, X[:n], dY[:n], reuse=True)
    layer.forward(X)
    assert layer.cache["U"] is None
    np.testing.assert_array_equal(layer.backward(dY), layer.backward(dY))


def test_columns_that_backward_reads_are_not_in_memory_that_layers_share():
    """Two layers of a training step, which run one after the other in one thread."""
    make, shape = (lambda: nn.Conv1D(3, 2)), (4, 9, 3)
    layers = [made(make, shape), made(make, (4, 8, 3))]
    X, dY = data(layers[0], shape)[0], data(layers[1], (4, 8, 3))[1]
    found = []
    for shared in (None, {}):
        with calling(scratch=shared):
            layers[1].forward(layers[0].forward(X))
            found.append([layers[0].backward(layers[1].backward(dY)), layers[0].grads["W"].copy()])
    for alone, together in zip(*found, strict=True):
        np.testing.assert_array_equal(together, alone)


def test_images_of_another_size_strided_views_scales_of_weights_and_flops(rng):
    layer = made(lambda: nn.Conv2D(2, 3, padding="same"), (2, 4, 4, 2))
    for sizes in ((3, 7), (1, 1)):
        check_gradients(layer, rng.standard_normal((2, *sizes, 2)), max_probes=6)
    for make in (lambda: nn.Conv2D(2, (3, 2)), lambda: nn.ConvTranspose2D(2, 2)):
        layer = made(make, (2, 4, 5, 3))
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


def test_pools_are_their_derivations_and_average_what_the_padding_says():
    pools = ((nn.MaxPool1D, nn.AvgPool1D), (nn.MaxPool2D, nn.AvgPool2D))
    for sizes, k, s, p in POOLS:
        for kind in pools[len(sizes) - 1]:
            layer, shape = made(partial(kind, k, s, p), (2, *sizes, 2)), (2, *sizes, 2)
            check_rule(layer, sizes, k, k if s is None else s, p)
            X, dY = data(layer, shape)
            same_passes(layer, X - 3, dY)  # below 0, so that padding would win
        if p == "same":  # of averages, which do not count its zeros, and count those of numbers
            np.testing.assert_allclose(layer.forward(np.ones(shape)), 1, rtol=1e-12)
        elif p != "valid":
            padded = np.pad(X, ((0, 0), *[(p, p)] * len(sizes), (0, 0)))
            wanted = kind(k, s).forward(padded)
            np.testing.assert_allclose(layer.forward(X), wanted, rtol=1e-12)


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
