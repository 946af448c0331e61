"""Compiled twins of softmax and cross-entropy, from `functional.py` and `layers/attention.py`."""

from __future__ import annotations

import math

import numpy as np

from phitodeep.core.types import Array
from phitodeep.kernels import twin
from phitodeep.kernels.compiled.jit import jit
from phitodeep.kernels.compiled.scalar import exp


@twin
@jit
def softmax_rows(X: Array, Y: Array) -> None:
    """Write the softmax of each row of X into Y, both (n, K); a row of all -inf becomes 0."""
    n, K = X.shape
    zero, one = X.dtype.type(0), X.dtype.type(1)
    for i in range(n):
        top = X[i, 0]
        for k in range(1, K):
            top = max(top, X[i, k])
        top = zero if top == -np.inf else top
        for k in range(K):
            Y[i, k] = exp(X[i, k] - top)
        s = zero
        for k in range(K):
            s += Y[i, k]
        inverse = one / (one if s == zero else s)
        for k in range(K):
            Y[i, k] *= inverse


@twin
@jit
def softmax_rows_back(dY: Array, Y: Array) -> None:
    """dY <- y (dy - sum(dy y)) for each row; dY and Y are (n, K)."""
    n, K = Y.shape
    for i in range(n):
        s = Y.dtype.type(0)
        for k in range(K):
            s += dY[i, k] * Y[i, k]
        for k in range(K):
            dY[i, k] = Y[i, k] * (dY[i, k] - s)


@twin
@jit
def causal_softmax(S: Array, start: int) -> None:
    """S (n, rows, keys) <- its softmax, over keys 0 to start + i in row i; the others become 0."""
    n, rows, keys = S.shape
    zero, one = S.dtype.type(0), S.dtype.type(1)
    for a in range(n):
        for i in range(rows):
            visible = start + i + 1
            top = S[a, i, 0]
            for k in range(1, visible):
                top = max(top, S[a, i, k])
            top = zero if top == -np.inf else top
            for k in range(visible):
                S[a, i, k] = exp(S[a, i, k] - top)
            s = zero
            for k in range(visible):
                s += S[a, i, k]
            inverse = one / (one if s == zero else s)
            for k in range(visible):
                S[a, i, k] *= inverse
            for k in range(visible, keys):
                S[a, i, k] = zero


@twin
@jit
def cross_entropy_of_labels(
    Z: Array, dZ: Array, labels: Array, weights: Array | None, scale: float
) -> float:
    """Return the loss of logits Z (n, K) and labels (n,), and write its gradient into dZ."""
    n, K = Z.shape
    loss = 0.0
    for i in range(n):
        if weights is not None and weights[i] == 0:
            for k in range(K):
                dZ[i, k] = 0
            continue
        top = Z[i, 0]
        for k in range(1, K):
            top = max(top, Z[i, k])
        target_score = Z[i, labels[i]] - top
        for k in range(K):
            dZ[i, k] = exp(Z[i, k] - top)
        target_exp = dZ[i, labels[i]]
        dZ[i, labels[i]] = Z.dtype.type(0)
        others = Z.dtype.type(0)
        for k in range(K):
            others += dZ[i, k]
        w = Z.dtype.type(1)
        if weights is not None:
            w = weights[i]
        log_sum = math.log1p(others) if target_score == 0 else math.log(target_exp + others)
        loss += w * (log_sum - target_score)
        factor = w * Z.dtype.type(scale) / (target_exp + others)
        for k in range(K):
            dZ[i, k] *= factor
        dZ[i, labels[i]] = -others * factor
    return loss * scale
