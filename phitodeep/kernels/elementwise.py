"""Elementwise functions that need no other: sigmoid, softplus, erf, the normal density.

Functions of arrays keep the dtype of float32 and float64 input, and compute all other input in
float64. Import them from `phitodeep.functional`.
"""

from __future__ import annotations

import math

import numpy as np

from phitodeep.core.types import Array
from phitodeep.kernels.erf import ERF_NEAR, ERF_TAIL


def floats(X: Array) -> Array:
    """Return X as an array of float32 if it is one, else of float64.

    Without it, NumPy would compute tanh of int8 in float16, and -x of uint8 as 256 - x.
    """
    X = np.asarray(X)
    kept = X.dtype.char in "fd" and X.dtype.isnative
    return X if kept else X.astype(np.float64)


def sigmoid(X: Array, out: Array | None = None) -> Array:
    """1 / (1 + exp(-x)), elementwise, written as exp(min(x, 0)) / (1 + exp(-|x|)).

    `out` may be X.
    """
    X = floats(X)
    denominator = _exp_minus_abs(X)
    denominator += 1
    Y = np.minimum(X, 0, out=np.empty_like(X, order="C") if out is None else out)
    np.exp(Y, out=Y)
    Y /= denominator
    return Y


def softplus(X: Array) -> Array:
    """log(1 + exp(x)), elementwise: max(x, 0) + log(1 + exp(-|x|))."""
    X = floats(X)
    Y = _exp_minus_abs(X)
    np.log1p(Y, out=Y)
    Y += np.maximum(X, 0)
    return Y


def log_sigmoid(X: Array) -> Array:
    """log(sigmoid(x)) = -softplus(-x), elementwise."""
    Y = softplus(np.negative(floats(X)))
    return np.negative(Y, out=Y)


def _exp_minus_abs(X: Array) -> Array:
    """exp(-|x|), elementwise."""
    Y = np.abs(X, out=np.empty_like(X, order="C"))
    np.negative(Y, out=Y)
    return np.exp(Y, out=Y)


def exp_minus_line(X: Array) -> Array:
    """exp(x) - 1 - x, elementwise.

    Near 0, where the terms cancel, it is computed as x^2 / 2 + x^3 / 6 + ...
    """
    X = floats(X)
    near = np.clip(X, -0.1, 0.1)
    series = near * near * _polynomial(_EXP_SERIES, near)
    return np.where(near == X, series, np.expm1(X) - X)


_EXP_SERIES = tuple(1 / math.factorial(k) for k in range(10, 1, -1))


def erf(X: Array) -> Array:
    """2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x, elementwise.

    In float64, the result is within 1e-14 of `math.erf`. For |x| < 1 it is x P(x^2); for larger
    |x| it is 1 - exp(-x^2) Q(t) with t = (|x| - 3) / (|x| + 3), times the sign of x. P and Q are
    polynomials.
    """
    shape = np.shape(X)
    X = np.atleast_1d(floats(X))
    size = np.minimum(np.abs(X), 6)  # erf(6) is 1 in float64
    near = X * _polynomial(ERF_NEAR[X.dtype.char], np.minimum(size, 1) ** 2)
    far = _polynomial(ERF_TAIL[X.dtype.char], (size - 3) / (size + 3))
    far *= np.exp(-size * size)
    np.subtract(1, far, out=far)
    return np.where(size < 1, near, np.copysign(far, X)).reshape(shape)


def _polynomial(coefficients: tuple[float, ...], X: Array) -> Array:
    """The polynomial with these coefficients, highest power first, by Horner's rule."""
    Y = coefficients[0] * X
    for c in coefficients[1:-1]:
        Y += c
        Y *= X
    Y += coefficients[-1]
    return Y


def gaussian(X: Array) -> Array:
    """The standard normal density exp(-x^2 / 2) / sqrt(2 pi), elementwise."""
    X = floats(X)
    with np.errstate(over="ignore"):  # x^2 may overflow: exp(-infinity) is 0
        Y = np.square(X, out=np.empty_like(X, order="C"))
    Y *= -0.5
    np.exp(Y, out=Y)
    Y *= 1 / math.sqrt(2 * math.pi)
    return Y
