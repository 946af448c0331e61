"""Compiled twins of the kernels in `layers/normalization.py`."""

from __future__ import annotations

import numpy as np

from phitodeep.core.types import Array
from phitodeep.kernels import twin
from phitodeep.kernels.compiled.jit import jit


@twin
def layer_norm(
    X: Array, gamma: Array, beta: Array, eps: float, X_hat: Array, r: Array, Y: Array
) -> None:
    """Write x_hat (n, D), r (n, 1) and y (n, D) for the rows of X (n, D); gamma, beta are (D,)."""
    if _layer_norm(X, gamma, beta, X.dtype.type(eps), X_hat, r, Y):
        _scaled_layer_norm(X, gamma, beta, X.dtype.type(eps), X_hat, r, Y)


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


@jit
def _scaled_layer_norm(
    X: Array, gamma: Array, beta: Array, eps: float, X_hat: Array, r: Array, Y: Array
) -> None:
    """Redo rows that overflowed, divided by their maximum |x|: see `scaled` in the NumPy file."""
    n, D = X.shape
    zero, one, tiny = X.dtype.type(0), X.dtype.type(1), np.finfo(X.dtype).tiny
    share, root = one / X.dtype.type(D), np.sqrt(eps)
    for i in range(n):
        if r[i, 0] > zero:
            continue
        x, z = X[i], X_hat[i]
        m, mean, var = zero, zero, zero
        for d in range(D):
            m = max(m, abs(x[d]))
        for d in range(D):
            z[d] = x[d] / m
            mean += z[d] * share
        for d in range(D):
            z[d] -= mean
            var += z[d] * z[d] * share
        std = np.sqrt(var)
        size = max(np.hypot(std, root / m), tiny)
        for d in range(D):
            z[d] /= size
            Y[i, d] = z[d] * gamma[d] + beta[d]
        r[i, 0] = one / np.hypot(m * std, root)


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
