"""Losses of numbers: squared, absolute and robust errors, counts, directions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from phitodeep.checks import check_number
from phitodeep.errors import ArgumentError
from phitodeep.loss.base import Elementwise, Rowwise, inverse
from phitodeep.types import Array, Shape


class MeanSquaredError(Elementwise):
    """The mean of (p - t)^2; its slope is 2 (p - t).

    Shapes: P (N, ...), T the same, or (N,) for P (N, 1). Unit: that of T, squared.
    Source: Gauss 1809, "Theoria motus corporum coelestium", art. 179 (least squares).
    """

    def each(self, P: Array, T: Array) -> Array:
        return np.square(P - T)

    def slope(self, P: Array, T: Array) -> Array:
        return 2 * (P - T)


class MeanAbsoluteError(Elementwise):
    """The mean of |p - t|; its slope is the sign of p - t, and 0 where they are equal.

    Shapes and unit: those of T, as in MeanSquaredError.
    Source: Laplace 1793 (least absolute deviations); Bishop 2006, "Pattern recognition and
    machine learning", sec. 1.5.5.
    """

    def each(self, P: Array, T: Array) -> Array:
        return np.abs(P - T)

    def slope(self, P: Array, T: Array) -> Array:
        return np.sign(P - T)


class Huber(Elementwise):
    """With e = p - t: e^2 / 2 where |e| <= delta, else delta (|e| - delta / 2).

    The slope is e held between -delta and delta. `delta` has the unit of T.
    Source: Huber 1964, "Robust estimation of a location parameter", Ann. Math. Statist. 35.
    """

    def __init__(self, delta: float = 1.0) -> None:
        super().__init__()
        self.delta = check_number(delta, "Huber delta", above=0)

    def each(self, P: Array, T: Array) -> Array:
        size = np.abs(P - T)
        quadratic = np.minimum(size, self.delta)
        return quadratic * (size - quadratic / 2)  # both branches: q is |e| or delta

    def slope(self, P: Array, T: Array) -> Array:
        return np.clip(P - T, -self.delta, self.delta)


class LogCosh(Elementwise):
    """The mean of log(cosh(e)), e = p - t.

    Near 0 it is -log(1 - tanh(e)^2) / 2, far from it |e| + log(1 + exp(-2 |e|)) - log 2:
    neither subtracts nearly equal numbers there. The slope is tanh(e): like a square near 0,
    like |e| far away, and smooth between.
    Source: Saleh and Saleh 2022, "Statistical properties of the log-cosh loss function",
    arXiv:2208.04564, eq. 2.
    """

    def each(self, P: Array, T: Array) -> Array:
        size = np.abs(P - T)
        near = np.log1p(-np.square(np.tanh(np.minimum(size, 1)))) / -2
        far = size + np.log1p(np.exp(-2 * size)) - math.log(2)
        return np.where(size < 1, near, far)

    def slope(self, P: Array, T: Array) -> Array:
        return np.tanh(P - T)


class PoissonNLL(Elementwise):
    """The mean of exp(p) - t p where p is the log of the rate, else of p - t log p.

    Without the term log(t!), which no prediction changes. The slope is exp(p) - t, or 1 - t / p.
    Targets are counts, >= 0.
    Source: Cameron and Trivedi 1998, "Regression analysis of count data", eq. 3.4.
    """

    def __init__(self, log_input: bool = True) -> None:
        super().__init__()
        self.log_input = log_input

    def targets(self, y: Any, shape: Shape, name: str = "y") -> Array:
        T = super().targets(y, shape, name)
        if (T < 0).any():
            raise ArgumentError(f"{self!r} takes counts {name} >= 0, the least is {T.min():g}.")
        return T

    def each(self, P: Array, T: Array) -> Array:
        if self.log_input:
            return np.exp(P) - T * P
        return P - T * np.log(np.maximum(P, np.finfo(P.dtype).tiny))

    def slope(self, P: Array, T: Array) -> Array:
        if self.log_input:
            return np.exp(P) - T
        return 1 - T * inverse(P)


class CosineSimilarityLoss(Rowwise):
    """The mean over positions of 1 - cos(p, t), the angle being between rows of the last axis.

    Shapes: P, T are (N, ..., D). With lengths |p|, |t| and c = cos(p, t), a row's gradient is

        -(t / |t| - c p / |p|) / |p|

    which is orthogonal to p: its length does not matter. Rows of length 0 have c = 0 and no
    gradient. With unit vectors, 1 - c is |p - t|^2 / 2, which stays exact for small angles.
    Source: Salton, Wong and Yang 1975, "A vector space model for automatic indexing".
    """

    def each(self, P: Array, T: Array) -> Array:
        P_hat, T_hat = self._unit(P)[0], self._unit(T)[0]
        angled = P_hat.any(axis=-1) & T_hat.any(axis=-1)
        return np.where(angled, np.square(P_hat - T_hat).sum(axis=-1) / 2, 1)

    def slope(self, P: Array, T: Array) -> Array:
        (P_hat, scale), (T_hat, _) = self._unit(P), self._unit(T)
        cosine = (P_hat * T_hat).sum(axis=-1, keepdims=True)
        return (cosine * P_hat - T_hat) * scale

    def _unit(self, X: Array) -> tuple[Array, Array]:
        """Rows of length 1 or 0, and 1 / |x| (..., 1) or 0; no square over- or underflows."""
        size = np.abs(X).max(axis=-1, keepdims=True)
        size = np.where(size < np.finfo(X.dtype).tiny, 1, size)
        Y = X / size
        scale = inverse(np.linalg.norm(Y, axis=-1, keepdims=True))
        return Y * scale, scale / size
