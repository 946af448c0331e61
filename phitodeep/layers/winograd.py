"""Convolutions with 3 x 3 kernels in a quarter of the products: Winograd's F(4 x 4, 3 x 3).

`docs/winograd.md` derives it. Y is cut into tiles of 4 x 4, each of which depends on 6 x 6 numbers
x of X, so tiles of X overlap by 2. With the matrices A, B and G below, for each tile,

    v = B^T x B        U = G W G^T        m = v U        y = A^T m A

where v, m and U have 36 points, and `v U` is a product of channels by channels x filters at each
point: 36 products for 16 outputs, where the windows need 9 x 16 = 144. All maps are linear.

Backward. Each map gives way to its adjoint, so it is the exact derivative of this forward pass:

    dm = A dy A^T      dv = dm U^T        dx = B dv B^T, which overlapping tiles add up
                       dU = sum of v^T dm over the tiles, and dW = G^T dU G

The tiles of a block of images are in memory at once, about BLOCK numbers, so that they stay in the
processor's cache. Blocks depend on sizes alone. Backward computes v again.

The result differs from that of the windows by rounding: numbers are multiplied by up to 5, added
and subtracted, which costs about one decimal digit. The environment variable PHITODEEP_WINOGRAD=0
switches it off.

Source: Lavin and Gray 2016, "Fast algorithms for convolutional neural networks", arXiv:1509.09308.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from phitodeep import kernels
from phitodeep.kernels import kernel
from phitodeep.layers.windows import Windows
from phitodeep.types import Array, DType, Shape

Buffer = Callable[[str, Shape, DType], Array]
SETTINGS = ((3, 3), (1, 1), (1, 1), 1)  # kernel, stride, dilation and groups
BLOCK = 1 << 19  # numbers in the tiles of one block

A = np.array(
    [[1, 0, 0, 0], [1, 1, 1, 1], [1, -1, 1, -1], [1, 2, 4, 8], [1, -2, 4, -8], [0, 0, 0, 1]]
)
B = np.array(
    [
        [4, 0, 0, 0, 0, 0],
        [0, -4, 4, -2, 2, 4],
        [-5, -4, -4, -1, -1, 0],
        [0, 1, -1, 2, -2, -5],
        [1, 1, 1, 1, 1, 0],
        [0, 0, 0, 0, 0, 1],
    ]
)
G = np.array([[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]]) / 24
G_G = np.kron(G, G)  # (36, 9): G W G^T of a kernel W, both as vectors


def pays(N: int, out: Shape, channels: int, filters: int) -> bool:
    """Return whether tiles are faster than windows, and switched on."""
    tiles = N * math.prod(-(-size // 4) for size in out)
    fast = min(channels, filters) >= 12 and 6 * tiles >= channels + filters
    return fast and os.environ.get("PHITODEEP_WINOGRAD") != "0" and kernels.chosen() == "numba"


def convolve(
    X: Array, W: Array, b: Array | None, windows: Windows, Y: Array, buffer: Buffer
) -> None:
    """Y <- the products of all windows on X with W (3, 3, C, filters), plus b."""
    U, pad = _points(W), windows.pads[0][0]
    b = np.zeros(W.shape[-1], W.dtype) if b is None else b
    for part, V, M in _blocks(X, Y, buffer):
        tiles_of_images(X[part], pad, V)
        np.matmul(_matrices(V), U, out=_matrices(M))
        images_of_tiles(M, b, Y[part])


def convolve_back(
    X: Array,
    W: Array,
    dY: Array,
    windows: Windows,
    dW: Array,
    dX: Array | None,
    buffer: Buffer,
) -> None:
    """Write dW, and dX unless it is None, for `convolve`."""
    U_T, pad = _points(W.swapaxes(2, 3)), windows.pads[0][0]
    C, filters = W.shape[2:]
    dU, share = (buffer(name, (36, C, filters), dY.dtype) for name in ("dU", "share"))
    dU.fill(0)
    for part, V, dM in _blocks(X, dY, buffer):
        tiles_of_images(X[part], pad, V)
        images_of_tiles_back(dY[part], dM)
        dU += np.matmul(_matrices(V).swapaxes(1, 2), _matrices(dM), out=share)
        if dX is not None:
            dV = V  # overwritten
            np.matmul(_matrices(dM), U_T, out=_matrices(dV))
            tiles_of_images_back(dV, pad, dX[part])
    np.matmul(G_G.T.astype(dW.dtype), dU.reshape(36, -1), out=dW.reshape(9, -1))


def _points(W: Array) -> Array:
    """Return U (36, C, filters) = G W G^T, for W (3, 3, C, filters)."""
    return (G_G.astype(W.dtype) @ W.reshape(9, -1)).reshape(36, *W.shape[2:])


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


@kernel
def tiles_of_images(X: Array, pad: int, V: Array) -> None:
    """V (6, 6, N, rows, columns, C) <- B^T x B, for the 6 x 6 numbers x of each tile of X."""
    padded, inside = _padded(X, pad, V)
    inside[...] = X
    x = np.lib.stride_tricks.sliding_window_view(padded, (6, 6), (1, 2))[:, ::4, ::4]
    B_ = B.astype(X.dtype)
    np.einsum("pi,qj,nrscpq->ijnrsc", B_, B_, x, out=V, optimize=True)


@kernel
def tiles_of_images_back(dV: Array, pad: int, dX: Array) -> None:
    """dX <- the sum of B dv B^T over the tiles that contain each number."""
    padded, inside = _padded(dX, pad, dV)
    rows, columns = dV.shape[3:5]
    for p, q in np.ndindex(6, 6):
        at = padded[:, p : p + 4 * rows : 4, q : q + 4 * columns : 4]
        at += np.einsum("i,j,ijnrsc->nrsc", *B[[p, q]].astype(dV.dtype), dV, optimize=True)
    dX[...] = inside


@kernel
def images_of_tiles(M: Array, b: Array, Y: Array) -> None:
    """Y (N, H, W, filters) <- A^T m A + b of each tile, cut off at the edges of Y."""
    N, H, W, filters = Y.shape
    rows, columns = M.shape[3:5]
    A_ = A.astype(M.dtype)
    y = np.einsum("ip,jq,ijnrsk->nrpsqk", A_, A_, M, optimize=True)
    np.add(y.reshape(N, 4 * rows, 4 * columns, filters)[:, :H, :W], b, out=Y)


@kernel
def images_of_tiles_back(dY: Array, dM: Array) -> None:
    """dM <- A dy A^T, for the 4 x 4 numbers dy of each tile, which are zeros outside dY."""
    N, H, W, filters = dY.shape
    rows, columns = dM.shape[3:5]
    padded = np.zeros((N, 4 * rows, 4 * columns, filters), dY.dtype)
    padded[:, :H, :W] = dY
    A_ = A.astype(dY.dtype)
    dy = padded.reshape(N, rows, 4, columns, 4, filters)
    np.einsum("ip,jq,nrpsqk->ijnrsk", A_, A_, dy, out=dM, optimize=True)


def _padded(X: Array, pad: int, V: Array) -> tuple[Array, Array]:
    """Return zeros that the tiles V cover, and a view of the places of X in them."""
    N, H, W, C = X.shape
    rows, columns = V.shape[3:5]
    padded = np.zeros((N, 4 * rows + 2, 4 * columns + 2, C), X.dtype)
    return padded, padded[:, pad : pad + H, pad : pad + W]
