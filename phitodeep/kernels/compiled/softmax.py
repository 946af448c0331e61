"""Compiled twins of softmax and cross-entropy, from `functional.py` and `layers/attention.py`."""

from __future__ import annotations

import math

import numpy as np

from phitodeep.core.types import Array
from phitodeep.kernels import twin
from phitodeep.kernels.compiled.jit import jit, part
from phitodeep.kernels.compiled.scalar import exp


@part
def softmax(y: Array, count: int) -> None:
    """The first `count` numbers of y <- their softmax; if all are -inf, they become 0.

    In place, because several numbers are computed at once only if no other array may overlap.
    """
    zero, one = y.dtype.type(0), y.dtype.type(1)
    top = y[0]
    for k in range(1, count):
        top = max(top, y[k])
    top = zero if top == -np.inf else top
    for k in range(count):
        y[k] = exp(y[k] - top)
    s = zero
    for k in range(count):
        s += y[k]
    inverse = one / (one if s == zero else s)
    for k in range(count):
        y[k] *= inverse


@twin
@jit
def softmax_rows(X: Array, Y: Array) -> None:
    """Write the softmax of each row of X into Y, both (n, K); a row of all -inf becomes 0."""
    for i in range(len(X)):
        for k in range(X.shape[1]):
            Y[i, k] = X[i, k]
        softmax(Y[i], X.shape[1])


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
    for a in range(n):
        for i in range(rows):
            softmax(S[a, i], start + i + 1)
            for k in range(start + i + 1, keys):
                S[a, i, k] = S.dtype.type(0)


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
