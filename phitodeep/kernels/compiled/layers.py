"""Compiled twins of the kernels in `layers/`: activations, norms, pools and embeddings.

Arrays of activations are (n,) or (n, D).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from phitodeep.core.types import Array, Shape
from phitodeep.kernels import KERNELS, twin
from phitodeep.kernels.compiled.jit import jit
from phitodeep.kernels.compiled.scalar import erf, exp, tanh

K, C = math.sqrt(2 / math.pi), 0.044715  # constants of GELU's tanh approximation

# --- activations ---------------------------------------------------------------------------------


@twin
@jit
def relu(X: Array, Y: Array) -> None:
    """Write y = max(x, 0) into Y (n,); NaN stays NaN."""
    zero = X.dtype.type(0)
    for i in range(X.size):
        Y[i] = X[i] if not (X[i] < zero) else zero


@twin
@jit
def relu_back(dY: Array, Y: Array, dX: Array) -> None:
    """Write dx = dy if y > 0, else 0, into dX (n,)."""
    zero = Y.dtype.type(0)
    for i in range(Y.size):
        dX[i] = zero if Y[i] <= zero else dY[i]


@twin
@jit
def bias_relu(Y: Array, b: Array) -> None:
    """Y (n, D) <- max(y + b, 0), with b (D,); NaN stays NaN."""
    zero = Y.dtype.type(0)
    n, D = Y.shape
    if b.size != D:
        raise ValueError("b does not have an element for each column")
    for i in range(n):
        for j in range(D):
            y = Y[i, j] + b[j]
            Y[i, j] = y if not (y < zero) else zero


@twin
@jit
def gelu(X: Array, Phi: Array, Y: Array) -> None:
    """Write Phi = (1 + erf(x / sqrt 2)) / 2 and y = x Phi into Phi and Y (n,)."""
    one, half, root = X.dtype.type(1), X.dtype.type(0.5), X.dtype.type(math.sqrt(0.5))
    zero = X.dtype.type(0)
    for i in range(X.size):
        p = half * (one + erf(X[i] * root))
        Phi[i] = p
        Y[i] = zero if p == zero else X[i] * p  # -inf times 0 would be NaN


@twin
@jit
def gelu_back(dY: Array, X: Array, Phi: Array, dX: Array) -> None:
    """Write dx = (Phi + x phi) dy into dX (n,)."""
    half, height = X.dtype.type(0.5), X.dtype.type(1 / math.sqrt(2 * math.pi))
    zero = X.dtype.type(0)
    for i in range(X.size):
        x = X[i]
        e = exp(-half * x * x)
        dX[i] = dY[i] * (Phi[i] + (zero if e == zero else x * height * e))


@twin
@jit
def gelu_tanh(X: Array, Phi: Array, Y: Array) -> None:
    """Write Phi = (1 + tanh(K (x + C x^3))) / 2 and y = x Phi into Phi and Y (n,)."""
    zero, one, half = X.dtype.type(0), X.dtype.type(1), X.dtype.type(0.5)
    a, b = X.dtype.type(K), X.dtype.type(K * C)
    for i in range(X.size):
        x = X[i]
        p = half * (one + tanh(x * (a + b * x * x)))
        Phi[i] = p
        Y[i] = zero if p == zero else x * p


@twin
@jit
def gelu_tanh_back(dY: Array, X: Array, Phi: Array, dX: Array) -> None:
    """Write dx = (Phi + x 2 K Phi (1 - Phi) (1 + 3 C x^2)) dy into dX (n,)."""
    zero, one = X.dtype.type(0), X.dtype.type(1)
    a, b = X.dtype.type(2 * K), X.dtype.type(6 * K * C)
    for i in range(X.size):
        x, p = X[i], Phi[i]
        slope = p * (one - p)
        dX[i] = dY[i] * (p + (zero if slope == zero else x * slope * (a + b * x * x)))


# --- norms ---------------------------------------------------------------------------------------


@twin
def layer_norm(
    X: Array, gamma: Array, beta: Array, eps: float, X_hat: Array, r: Array, Y: Array
) -> None:
    """Write x_hat (n, D), r (n, 1) and y (n, D) for the rows of X (n, D); gamma, beta are (D,).

    Rows whose squares overflow are left to the NumPy form, which computes them again.
    """
    if _layer_norm(X, gamma, beta, X.dtype.type(eps), X_hat, r, Y):
        bad = ~(r[:, 0] > 0)
        rows = [A[bad] for A in (X_hat, r, Y)]
        KERNELS["layer_norm"].plain(X[bad], gamma, beta, eps, *rows)
        X_hat[bad], r[bad], Y[bad] = rows


@jit
def _layer_norm(
    X: Array, gamma: Array, beta: Array, eps: float, X_hat: Array, r: Array, Y: Array
) -> bool:
    """The loop of `layer_norm`: return whether the squares in any row overflowed."""
    n, D = X.shape
    share = X.dtype.type(1) / X.dtype.type(D)
    overflowed = False
    for i in range(n):
        mean = X.dtype.type(0)
        for d in range(D):
            mean += X[i, d]
        mean *= share
        var = X.dtype.type(0)
        for d in range(D):
            var += (X[i, d] - mean) * (X[i, d] - mean)
        k = X.dtype.type(1) / np.sqrt(var * share + eps)
        overflowed |= not k > X.dtype.type(0)
        r[i, 0] = k
        for d in range(D):
            x = (X[i, d] - mean) * k
            X_hat[i, d] = x
            Y[i, d] = x * gamma[d] + beta[d]
    return overflowed


@twin
@jit
def layer_norm_back(
    dY: Array, X_hat: Array, r: Array, gamma: Array,
    dX: Array, dgamma: Array, dbeta: Array, s: Array,
) -> None:  # fmt: skip
    """Write dX (n, D), dgamma and dbeta (D,), given dY and x_hat (n, D), r (n, 1), gamma (D,)."""
    n, D = dY.shape
    share = dY.dtype.type(1) / dY.dtype.type(D)
    dgamma[:] = 0
    dbeta[:] = 0
    for i in range(n):
        a = dY.dtype.type(0)
        b = dY.dtype.type(0)
        for d in range(D):
            dy, x = dY[i, d], X_hat[i, d]
            dbeta[d] += dy
            dgamma[d] += dy * x
            a += dy * gamma[d]
            b += dy * gamma[d] * x
        a *= share
        b *= share
        for d in range(D):
            dX[i, d] = (dY[i, d] * gamma[d] - a - X_hat[i, d] * b) * r[i, 0]


BLOCK = 128  # rows that are added up before their sum is: float32 would lose digits


@twin
@jit
def column_squares(X: Array, mu: Array, squares: Array, s: Array) -> None:
    """squares (D,) <- the sum of (x - mu)^2 over the rows of X (n, D); s is not used."""
    n, D = X.shape
    part = np.empty_like(squares)
    squares[:] = 0
    for start in range(0, n, BLOCK):
        part[:] = 0
        for i in range(start, min(start + BLOCK, n)):
            for d in range(D):
                part[d] += (X[i, d] - mu[d]) * (X[i, d] - mu[d])
        squares += part


@twin
@jit
def normalise_columns(
    X: Array, mu: Array, r: Array, gamma: Array, beta: Array, X_hat: Array, Y: Array
) -> None:
    """Write x_hat = (x - mu) r and y = gamma x_hat + beta for X (n, D)."""
    n, D = X.shape
    for i in range(n):
        for d in range(D):
            x = (X[i, d] - mu[d]) * r[d]
            X_hat[i, d] = x
            Y[i, d] = x * gamma[d] + beta[d]


@twin
@jit
def column_gradients(dY: Array, X_hat: Array, dgamma: Array, dbeta: Array, s: Array) -> None:
    """dgamma, dbeta (D,) <- the sums of dy x_hat and of dy over the rows (n, D); s is not used."""
    n, D = dY.shape
    a, b = np.empty_like(dgamma), np.empty_like(dbeta)
    dgamma[:] = 0
    dbeta[:] = 0
    for start in range(0, n, BLOCK):
        a[:] = 0
        b[:] = 0
        for i in range(start, min(start + BLOCK, n)):
            for d in range(D):
                a[d] += dY[i, d] * X_hat[i, d]
                b[d] += dY[i, d]
        dgamma += a
        dbeta += b


@twin
@jit
def normalise_columns_back(
    dY: Array, X_hat: Array, a: Array, b: Array, scale: Array, dX: Array
) -> None:
    """Write dx = scale (dy - x_hat a - b) for dY (n, D)."""
    n, D = dY.shape
    for i in range(n):
        for d in range(D):
            dX[i, d] = (dY[i, d] - X_hat[i, d] * a[d] - b[d]) * scale[d]


# --- pools ---------------------------------------------------------------------------------------


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


# --- embeddings ----------------------------------------------------------------------------------


@twin
@jit
def sum_by_token(tokens: Array, rows: Array, dW: Array) -> None:
    """dW[v] <- the sum of the rows whose token is v; dW is (V, D), rows (n, D), tokens (n,)."""
    dW[:] = 0
    for i in range(tokens.size):
        for d in range(dW.shape[1]):
            dW[tokens[i], d] += rows[i, d]
