"""Compiled twins of the kernels in `layers/pooling.py`."""

from __future__ import annotations

from phitodeep.kernels import twin
from phitodeep.kernels.compiled.jit import jit
from phitodeep.types import Array, Shape


@twin
@jit
def max_pool(X: Array, Y: Array, winner: Array, kernel: Shape, stride: Shape) -> None:
    """Write each window's maximum into Y, and its index within the window into winner.

    X is (N, height, width, C); Y and winner are (N, *out, C).
    """
    N, height, width, C = Y.shape
    for n in range(N):
        for i in range(height):
            for j in range(width):
                y, w = Y[n, i, j], winner[n, i, j]
                for k in range(kernel[0] * kernel[1]):
                    x = X[n, i * stride[0] + k // kernel[1], j * stride[1] + k % kernel[1]]
                    if k == 0:
                        for c in range(C):
                            y[c] = x[c]
                            w[c] = 0
                    else:
                        for c in range(C):
                            better = x[c] > y[c] or x[c] != x[c]  # NaN wins
                            y[c] = x[c] if better else y[c]
                            w[c] = k if better else w[c]


@twin
@jit
def max_pool_back(
    dY: Array, winner: Array, dX: Array, s: Array, kernel: Shape, stride: Shape
) -> None:
    """dX <- the sum of dY over the windows in which each position is the maximum.

    dX is (N, height, width, C); dY and winner are (N, *out, C); s is not used.
    """
    N, height, width, C = dY.shape
    dX[:] = 0
    for n in range(N):
        for i in range(height):
            for j in range(width):
                dy, w = dY[n, i, j], winner[n, i, j]
                for k in range(kernel[0] * kernel[1]):
                    x = dX[n, i * stride[0] + k // kernel[1], j * stride[1] + k % kernel[1]]
                    for c in range(C):
                        x[c] += dy[c] if w[c] == k else dY.dtype.type(0)
