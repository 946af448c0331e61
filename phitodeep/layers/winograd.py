"""Convolutions with 3 x 3 kernels in a quarter of the products: Winograd's F(4 x 4, 3 x 3).

Y is cut into tiles y of 4 x 4 outputs. Each depends on a tile x of 6 x 6 numbers of X, so the tiles
of X overlap by 2. With the constant matrices A, B and G,

    v = B^T x B        U = G W G^T        m = v U        y = A^T m A + b

where v, U and m have 6 x 6 points, and v U is a product (tiles, C) times (C, filters) at each
point: 36 products per channel for 16 outputs, instead of 9 x 16 = 144. `docs/winograd.md` derives
the matrices.

Backward. All maps are linear, so the adjoint of each, in reverse order, gives the exact derivative:

    dm = A dy A^T      dv = dm U^T        dx = B dv B^T, added where tiles overlap
                       dU = v^T dm        dW = G^T dU G

The maps of tiles are compiled: `phitodeep/kernels/compiled/winograd.py` has A and B. Without
compiled kernels, convolutions use windows instead of tiles.

The tiles of a block of samples, about BLOCK numbers, are in memory at once, so they stay in the
processor's cache. Blocks depend on sizes alone. Backward computes v again instead of keeping it.

Coefficients of up to 8 enlarge rounding errors to about 1e-5 of the largest value in float32.
The environment variable PHITODEEP_WINOGRAD=0 switches tiles off.

Source: Lavin and Gray 2016, "Fast algorithms for convolutional neural networks", arXiv:1509.09308.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import ModuleType

import numpy as np

from phitodeep import kernels
from phitodeep.core.types import Array, DType, Shape
from phitodeep.layers.windows import Windows

Buffer = Callable[[str, Shape, DType], Array]
SETTINGS = ((3, 3), (1, 1), (1, 1), 1)  # kernel, stride, dilation and groups
BLOCK = 1 << 19  # numbers in the tiles of one block

G = np.array([[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]]) / 24
G_G = np.kron(G, G)  # (36, 9): G W G^T of a kernel W, both as vectors


def pays(N: int, out: Shape, channels: int, filters: int) -> bool:
    """Return whether tiles are faster than windows, and switched on.

    With few channels, the maps cost more than the products that they save; with few tiles, U does.
    """
    tiles = N * math.prod(-(-size // 4) for size in out)
    fast = min(channels, filters) >= 12 and 6 * tiles >= channels + filters
    return fast and os.environ.get("PHITODEEP_WINOGRAD") != "0" and kernels.chosen() == "numba"


def convolve(
    X: Array, W: Array, b: Array | None, windows: Windows, Y: Array, buffer: Buffer
) -> None:
    """Y <- the products of all windows on X with W (3, 3, C, filters), plus b."""
    U, pad = _points(W, buffer("U", (36, *W.shape[2:]), W.dtype)), windows.pads[0][0]
    b = np.zeros(W.shape[-1], W.dtype) if b is None else b
    maps = _maps()
    for part, V, M in _blocks(X, Y, buffer):
        maps.tiles_of_images(X[part], pad, V)
        np.matmul(_matrices(V), U, out=_matrices(M))
        maps.images_of_tiles(M, b, Y[part])


def convolve_back(
    X: Array, W: Array, dY: Array, windows: Windows, dW: Array | None, dX: Array | None,
    buffer: Buffer,
) -> None:  # fmt: skip
    """Write dW and dX, unless they are None, for `convolve`."""
    (C, filters), pad = W.shape[2:], windows.pads[0][0]
    U_T = _points(W.swapaxes(2, 3), buffer("U^T", (36, filters, C), W.dtype))
    dU, share = (buffer(name, (36, C, filters), W.dtype) for name in ("dU", "dU of a block"))
    dU.fill(0)
    maps = _maps()
    for part, V, dM in _blocks(X, dY, buffer):
        maps.images_of_tiles_back(dY[part], dM)
        if dW is not None:
            maps.tiles_of_images(X[part], pad, V)
            dU += np.matmul(_matrices(V).swapaxes(1, 2), _matrices(dM), out=share)
        if dX is not None:
            dV = V  # overwritten
            np.matmul(_matrices(dM), U_T, out=_matrices(dV))
            maps.tiles_of_images_back(dV, pad, dX[part])
    if dW is not None:
        np.matmul(G_G.T.astype(dW.dtype), dU.reshape(36, -1), out=dW.reshape(9, -1))


def _maps() -> ModuleType:
    """Return the compiled maps, also if kernels were switched since the forward pass."""
    return importlib.import_module("phitodeep.kernels.compiled.winograd")


def _points(W: Array, U: Array) -> Array:
    """Write U (36, C, filters) <- G W G^T, for W (3, 3, C, filters), and return it."""
    np.matmul(G_G.astype(W.dtype), W.reshape(9, -1), out=U.reshape(36, -1))
    return U


def _matrices(V: Array) -> Array:
    """Return tiles (6, 6, N, rows, columns, C) as one matrix (tiles, C) for each point."""
    return V.reshape(36, -1, V.shape[-1])


def _blocks(X: Array, Y: Array, buffer: Buffer) -> Iterator[tuple[slice, Array, Array]]:
    """Yield a slice of the samples, and memory for its tiles of X and of Y, block by block."""
    N, rows, columns = len(X), -(-Y.shape[1] // 4), -(-Y.shape[2] // 4)
    v, m = (36 * rows * columns * A.shape[-1] for A in (X, Y))  # numbers per sample
    block = max(BLOCK, 18 * X.shape[-1] * Y.shape[-1])  # half the size of U, which each block reads
    count = min(N, -(-N * (v + m) // block))
    largest = -(-N // count)
    V, M = buffer("V", (largest * v,), X.dtype), buffer("M", (largest * m,), X.dtype)
    for first, last in pairwise(N * i // count for i in range(count + 1)):
        n = last - first
        shape = (6, 6, n, rows, columns, -1)
        yield slice(first, last), V[: n * v].reshape(shape), M[: n * m].reshape(shape)
