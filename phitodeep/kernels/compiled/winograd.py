"""The compiled maps between images and tiles of `layers/winograd.py`.

A map such as B^T x B is applied to the columns of x and then to the rows of the result, for a whole
row of tiles at a time. Between the two, the place p along the width of an image is number p // 4 of
p % 4: the numbers of all tiles that are multiplied alike are then next to each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from phitodeep.core.types import Array
from phitodeep.kernels.compiled.jit import jit

TWO, FOUR, FIVE, EIGHT = map(np.float32, (2, 4, 5, 8))  # float64 times float32 is float64


@jit
def B_T(x0: Any, x1: Any, x2: Any, x3: Any, x4: Any, x5: Any) -> Any:
    """B^T x."""
    p, q = x4 - FOUR * x2, x3 - FOUR * x1
    u, v = x4 - x2, TWO * (x3 - x1)
    first, last = FOUR * x0 - FIVE * x2 + x4, FOUR * x1 - FIVE * x3 + x5
    return first, p + q, p - q, u + v, u - v, last


@jit
def B(v0: Any, v1: Any, v2: Any, v3: Any, v4: Any, v5: Any) -> Any:
    """B v."""
    p, q, u, w = v1 + v2, v2 - v1, v3 + v4, v4 - v3
    x1, x2 = FOUR * (v5 + q) + TWO * w, -FIVE * v0 - FOUR * p - u
    return FOUR * v0, x1, x2, -q - TWO * w - FIVE * v5, v0 + p + u, v5


@jit
def A_T(m0: Any, m1: Any, m2: Any, m3: Any, m4: Any, m5: Any) -> Any:
    """A^T m."""
    p, q, u, v = m1 + m2, m1 - m2, m3 + m4, m3 - m4
    return m0 + p + u, q + TWO * v, p + FOUR * u, q + EIGHT * v + m5


@jit
def A(y0: Any, y1: Any, y2: Any, y3: Any) -> Any:
    """A y."""
    p, q, u, v = y0 + y2, y1 + y3, y0 + FOUR * y2, TWO * y1 + EIGHT * y3
    return y0, p + q, p - q, u + v, u - v, y3


@jit
def row(images: Array, n: int, y: int, outside: Array) -> Array:
    """Return row y of image n; `outside` stands for the rows above and below it."""
    return images[n, y] if 0 <= y < images.shape[1] else outside


@jit
def rows_from(images: Array, n: int, y: int, outside: Array) -> Any:
    """Return the rows y to y + 3 of image n."""
    r0, r1 = row(images, n, y, outside), row(images, n, y + 1, outside)
    return r0, r1, row(images, n, y + 2, outside), row(images, n, y + 3, outside)


@jit
def points(V: Array, i: int, at: int) -> Any:
    """Return the numbers of tiles at the points (i, 0) to (i, 5), from number `at` on."""
    return V[i, 0, at:], V[i, 1, at:], V[i, 2, at:], V[i, 3, at:], V[i, 4, at:], V[i, 5, at:]


@jit
def places(t: Array, k: int, here: Any) -> Any:
    """Return the numbers `here` of the six rows of t, at place k of a tile."""
    return t[0, k, here], t[1, k, here], t[2, k, here], t[3, k, here], t[4, k, here], t[5, k, here]


@jit
def tiles_of_images(X: Array, pad: int, V: Array) -> None:
    """V (6, 6, N, rows, columns, C) <- B^T x B, for the 6 x 6 numbers x of each tile of X."""
    N, _, W, C = X.shape
    rows, columns = V.shape[3], V.shape[4]
    V, T, at = V.reshape(6, 6, -1), columns * C, 0
    t, zeros = np.zeros((6, 4, T + C), X.dtype), np.zeros((W, C), X.dtype)
    for n in range(N):
        for r in range(rows):
            y = 4 * r - pad
            r0, r1, r2, r3 = rows_from(X, n, y, zeros)
            r4, r5 = row(X, n, y + 4, zeros), row(X, n, y + 5, zeros)
            for x in range(W):
                tile, k = divmod(x + pad, 4)
                here = slice(tile * C, tile * C + C)
                x0, x1, x2, x3, x4, x5 = r0[x], r1[x], r2[x], r3[x], r4[x], r5[x]
                t0, t1, t2, t3, t4, t5 = places(t, k, here)
                for c in range(C):
                    t0[c], t1[c], t2[c], t3[c], t4[c], t5[c] = B_T(
                        x0[c], x1[c], x2[c], x3[c], x4[c], x5[c]
                    )
            for i in range(6):
                t0, t1, t2, t3 = t[i, 0], t[i, 1], t[i, 2], t[i, 3]
                t4, t5 = t[i, 0, C:], t[i, 1, C:]
                v0, v1, v2, v3, v4, v5 = points(V, i, at)
                for c in range(T):
                    v0[c], v1[c], v2[c], v3[c], v4[c], v5[c] = B_T(
                        t0[c], t1[c], t2[c], t3[c], t4[c], t5[c]
                    )
            at += T


@jit
def tiles_of_images_back(dV: Array, pad: int, dX: Array) -> None:
    """dX <- the sum of B dv B^T over the tiles that contain each number."""
    N, _, W, C = dX.shape
    rows, columns = dV.shape[3], dV.shape[4]
    dV, T, at = dV.reshape(6, 6, -1), columns * C, 0
    t, outside = np.zeros((6, 4, T + C), dX.dtype), np.empty((W, C), dX.dtype)
    next = np.zeros((6, 2, T + C), dX.dtype)  # the last two places of each tile
    dX[:] = 0
    for n in range(N):
        for r in range(rows):
            for i in range(6):
                v0, v1, v2, v3, v4, v5 = points(dV, i, at)
                t0, t1, t2, t3 = t[i, 0], t[i, 1], t[i, 2], t[i, 3]
                t4, t5 = next[i, 0, C:], next[i, 1, C:]
                for c in range(T):
                    t0[c], t1[c], t2[c], t3[c], t4[c], t5[c] = B(
                        v0[c], v1[c], v2[c], v3[c], v4[c], v5[c]
                    )
                for k in range(2):  # the last two places of a tile are the first two of the next
                    t0, t4 = t[i, k], next[i, k]
                    for c in range(C, T):
                        t0[c] += t4[c]
                    for c in range(T, T + C):
                        t0[c] = t4[c]
            at += T
            y = 4 * r - pad
            r0, r1, r2, r3 = rows_from(dX, n, y, outside)
            r4, r5 = row(dX, n, y + 4, outside), row(dX, n, y + 5, outside)
            for x in range(W):
                tile, k = divmod(x + pad, 4)
                here = slice(tile * C, tile * C + C)
                t0, t1, t2, t3, t4, t5 = places(t, k, here)
                x0, x1, x2, x3, x4, x5 = r0[x], r1[x], r2[x], r3[x], r4[x], r5[x]
                for c in range(C):
                    y0, y1, y2, y3, y4, y5 = B(t0[c], t1[c], t2[c], t3[c], t4[c], t5[c])
                    x0[c] += y0
                    x1[c] += y1
                    x2[c] += y2
                    x3[c] += y3
                    x4[c] += y4
                    x5[c] += y5


@jit
def images_of_tiles(M: Array, b: Array, Y: Array) -> None:
    """Y (N, _, W, filters) <- A^T m A + b of each tile, cut off at the edges of Y."""
    N, _, W, K = Y.shape
    rows, columns = M.shape[3], M.shape[4]
    M, T, at = M.reshape(6, 6, -1), columns * K, 0
    s, outside = np.empty((6, 4, T), Y.dtype), np.empty((W, K), Y.dtype)
    for n in range(N):
        for r in range(rows):
            for i in range(6):
                m0, m1, m2, m3, m4, m5 = points(M, i, at)
                s0, s1, s2, s3 = s[i, 0], s[i, 1], s[i, 2], s[i, 3]
                for k in range(T):
                    s0[k], s1[k], s2[k], s3[k] = A_T(m0[k], m1[k], m2[k], m3[k], m4[k], m5[k])
            at += T
            y0, y1, y2, y3 = rows_from(Y, n, 4 * r, outside)
            for x in range(W):
                tile, k = divmod(x, 4)
                here = slice(tile * K, tile * K + K)
                m0, m1, m2, m3, m4, m5 = places(s, k, here)
                r0, r1, r2, r3 = y0[x], y1[x], y2[x], y3[x]
                for k in range(K):
                    p, q, u, v = A_T(m0[k], m1[k], m2[k], m3[k], m4[k], m5[k])
                    r0[k], r1[k], r2[k], r3[k] = p + b[k], q + b[k], u + b[k], v + b[k]


@jit
def images_of_tiles_back(dY: Array, dM: Array) -> None:
    """dM <- A dy A^T, for the 4 x 4 numbers dy of each tile, which are zeros outside dY."""
    N, _, W, K = dY.shape
    rows, columns = dM.shape[3], dM.shape[4]
    dM, T, at = dM.reshape(6, 6, -1), columns * K, 0
    s, zeros = np.zeros((6, 4, T), dY.dtype), np.zeros((W, K), dY.dtype)
    for n in range(N):
        for r in range(rows):
            y0, y1, y2, y3 = rows_from(dY, n, 4 * r, zeros)
            for x in range(W):
                tile, k = divmod(x, 4)
                here = slice(tile * K, tile * K + K)
                s0, s1, s2, s3, s4, s5 = places(s, k, here)
                r0, r1, r2, r3 = y0[x], y1[x], y2[x], y3[x]
                for k in range(K):
                    s0[k], s1[k], s2[k], s3[k], s4[k], s5[k] = A(r0[k], r1[k], r2[k], r3[k])
            for i in range(6):
                s0, s1, s2, s3 = s[i, 0], s[i, 1], s[i, 2], s[i, 3]
                m0, m1, m2, m3, m4, m5 = points(dM, i, at)
                for k in range(T):
                    m0[k], m1[k], m2[k], m3[k], m4[k], m5[k] = A(s0[k], s1[k], s2[k], s3[k])
            at += T
