"""Compiled twins of the kernels in `layers/pooling.py`."""

from __future__ import annotations

from typing import Any

from phitodeep.core.types import Array, Shape
from phitodeep.kernels import twin
from phitodeep.kernels.compiled.jit import jit


@jit
def better(x: Any, y: Any) -> Any:
    """Return whether x replaces y as the maximum so far; NaN always does."""
    return x > y or x != x


@twin
@jit
def max_pool(X: Array, Y: Array, winner: Array, kernel: Shape, stride: Shape) -> None:
    """Write each window's maximum into Y, and its index within the window into winner.

    X is (N, height, width, C); Y and winner are (N, *out, C).
    """
    if kernel == (2, 2) and stride == (2, 2):
        max_pool_2x2(X, Y, winner)
        return
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
                            wins = better(x[c], y[c])
                            y[c] = x[c] if wins else y[c]
                            w[c] = k if wins else w[c]


@jit
def max_pool_2x2(X: Array, Y: Array, winner: Array) -> None:
    """`max_pool` for kernel and stride 2, which reads and writes each number once."""
    N, height, width, C = Y.shape
    for n in range(N):
        for i in range(height):
            upper, lower = X[n, 2 * i], X[n, 2 * i + 1]
            for j in range(width):
                y, w = Y[n, i, j], winner[n, i, j]
                x0, x1, x2, x3 = upper[2 * j], upper[2 * j + 1], lower[2 * j], lower[2 * j + 1]
                for c in range(C):
                    right, right_below = better(x1[c], x0[c]), better(x3[c], x2[c])
                    above, below = x1[c] if right else x0[c], x3[c] if right_below else x2[c]
                    down = better(below, above)
                    y[c] = below if down else above
                    w[c] = 2 + right_below if down else right


@twin
@jit
def max_pool_back(
    dY: Array, winner: Array, dX: Array, s: Array, kernel: Shape, stride: Shape
) -> None:
    """dX <- the sum of dY over the windows in which each position is the maximum.

    dX is (N, height, width, C); dY and winner are (N, *out, C); s is not used.
    """
    N, height, width, C = dY.shape
    zero, disjoint = dY.dtype.type(0), kernel == stride  # each position is in at most one window
    if not disjoint or dX.size != dY.size * kernel[0] * kernel[1]:
        dX[:] = 0
    for n in range(N):
        for i in range(height):
            for j in range(width):
                dy, w = dY[n, i, j], winner[n, i, j]
                for k in range(kernel[0] * kernel[1]):
                    x = dX[n, i * stride[0] + k // kernel[1], j * stride[1] + k % kernel[1]]
                    if disjoint:
                        for c in range(C):
                            x[c] = dy[c] if w[c] == k else zero
                    else:
                        for c in range(C):
                            x[c] += dy[c] if w[c] == k else zero
