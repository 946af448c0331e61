"""Convolutions in tiles against convolutions by windows, and their errors."""

import numpy as np
import pytest

from phitodeep import kernels
from phitodeep.core.call import calling
from phitodeep.layers import Conv2D, winograd
from tests.conftest import assert_same

SIZES = [  # N, height, width, C, filters, padding
    (1, 16, 12, 12, 12, "valid"),
    (3, 7, 9, 13, 17, "same"),
    (2, 11, 6, 12, 20, 1),
    (4, 5, 5, 24, 12, 2),
    (64, 1, 1, 16, 16, "same"),
    (5, 3, 18, 12, 14, 5),
]
sizes = pytest.mark.parametrize("size", SIZES, ids=str)


@pytest.fixture(autouse=True)
def _compiled(same_kernels):
    pytest.importorskip("numba")
    kernels.use("numba")


def conv(size, dtype, *, bias=True):
    """A layer, X and dY."""
    N, *shape, filters, padding = size
    layer, rng = Conv2D(filters, 3, padding=padding, bias=bias), np.random.default_rng(1)
    out = layer.build(tuple(shape), seed=0, dtype=dtype)
    if bias:
        layer.b = np.linspace(-1, 1, filters)
    X, dY = (rng.standard_normal((N, *s)).astype(dtype) for s in (shape, out))
    return layer, X, dY


def passes(layer, X, dY, tiled=True):
    found = {"Y": layer.forward(X).copy()}
    assert tiled is None or layer.cache["tiled"] == tiled
    dX = layer.backward(dY)
    return found | {"dX": dX.copy()} | {f"d{k}": dW.copy() for k, dW in layer.grads.items()}


def by_windows(layer, X, dY):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PHITODEEP_WINOGRAD", "0")
        return passes(layer, X, dY, tiled=False)


@sizes
def test_tiles_give_what_windows_give(size, monkeypatch):
    for block, bias in ((1, True), (winograd.BLOCK, True), (winograd.BLOCK, False)):
        monkeypatch.setattr(winograd, "BLOCK", block)
        layer, X, dY = conv(size, np.float64, bias=bias)
        wanted, found = by_windows(layer, X, dY), passes(layer, X, dY)
        assert_same(found, wanted, atol=1e-11)


@pytest.mark.parametrize("size", [*SIZES, (8, 14, 14, 32, 64, 1), (12, 8, 8, 128, 128, 1)], ids=str)
def test_errors_in_float32_stay_small(size):
    layer, X, dY = conv(size, np.float32)
    found = passes(layer, X, dY)
    layer.cast(np.float64)
    wanted = by_windows(layer, X.astype(np.float64), dY.astype(np.float64))
    for name, exact in wanted.items():
        assert found[name].dtype == np.float32
        assert abs(found[name] - exact).max() < 1e-5 * abs(exact).max(), name


@sizes
def test_reused_buffers_and_a_shorter_last_batch(size):
    layer, X, dY = conv(size, np.float32)
    half = max(1, size[0] // 2)
    wanted = [passes(layer, X, dY), passes(layer, X[:half], dY[:half], None)] * 2
    with calling(reuse=True):
        found = [passes(layer, X[:n], dY[:n], None) for n in (size[0], half, size[0], half)]
    for one, two in zip(found, wanted, strict=True):
        assert_same(one, two)


def test_strided_and_read_only_arrays_no_dX_and_kernels_switched_between_the_passes():
    layer, X, dY = conv(SIZES[1], np.float32)
    wanted = passes(layer, X, dY)
    wide_X, wide_dY = np.repeat(X, 2, axis=2), np.repeat(dY, 2, axis=3)
    frozen_X, frozen_dY = X.copy(), dY.copy()
    frozen_X.flags.writeable = frozen_dY.flags.writeable = False
    for other in ((wide_X[:, :, ::2], wide_dY[:, :, :, ::2]), (frozen_X, frozen_dY)):
        assert_same(passes(layer, *other), wanted)
    with calling(needs_dX=False):
        layer.forward(X)
        assert layer.backward(dY) is None
    for name in ("W", "b"):
        np.testing.assert_array_equal(layer.grads[name], wanted[f"d{name}"])
    layer.forward(X)
    kernels.use("numpy")
    np.testing.assert_array_equal(layer.backward(dY), wanted["dX"])


def test_which_convolutions_are_in_tiles(monkeypatch):
    monkeypatch.delenv("PHITODEEP_WINOGRAD", raising=False)

    def tiled(N=64, size=14, C=32, filters=64, **options):
        layer = Conv2D(filters, **{"kernel_size": 3, **options})
        layer.build((size, size, C))
        return layer._in_tiles(N, layer._windows((size, size)))

    assert tiled()
    assert tiled(padding="same", N=1)
    assert tiled(padding=3, bias=False)
    assert not tiled(N=0)
    assert not tiled(N=1, size=5)  # 1 tile: more time for the kernels than for the tile
    assert not tiled(C=1)
    assert not tiled(filters=8)
    assert not tiled(kernel_size=5)
    assert not tiled(kernel_size=(3, 1))
    assert not tiled(stride=(2, 1))
    assert not tiled(dilation=2)
    assert not tiled(groups=2)
    monkeypatch.setenv("PHITODEEP_WINOGRAD", "0")
    assert not tiled()
    monkeypatch.setenv("PHITODEEP_WINOGRAD", "1")
    assert tiled()
    kernels.use("numpy")
    assert not tiled()
