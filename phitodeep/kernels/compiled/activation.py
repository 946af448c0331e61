"""Compiled twins of the kernels of activations, in `layers/`, on arrays (n,) or (n, D)."""

from __future__ import annotations

import math

from phitodeep.core.types import Array
from phitodeep.kernels import twin
from phitodeep.kernels.compiled.jit import jit
from phitodeep.kernels.compiled.scalar import erf, exp, tanh

K, C = math.sqrt(2 / math.pi), 0.044715  # constants of GELU's tanh approximation


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
