"""Losses for regression: squared, absolute and robust errors, counts and directions."""

from __future__ import annotations

import math

import numpy as np

from phitodeep.core.checks import check_flag, check_number
from phitodeep.core.types import Array
from phitodeep.derivations import losses as derived
from phitodeep.loss.base import Elementwise, Rowwise, reciprocal

__all__ = [
    "CosineSimilarityLoss",
    "Huber",
    "LogCosh",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "PoissonNLL",
]


class MeanSquaredError(Elementwise):
    """The mean of (p - t)^2; its slope is 2 (p - t).

    Shapes: P (N, ...), T the same, or (N,) for P (N, 1). The unit is the square of T's unit.
    Source: Gauss 1809, "Theoria motus corporum coelestium", art. 179 (least squares).
    """

    steps = derived.mean_squared_error

    def each(self, P: Array, T: Array) -> Array:
        return np.square(P - T)

    def slope(self, P: Array, T: Array) -> Array:
        return 2 * (P - T)


class MeanAbsoluteError(Elementwise):
    """The mean of |p - t|; its slope is the sign of p - t, which is 0 where they are equal.

    Shapes: as for MeanSquaredError. The unit is T's unit.
    Sources: Laplace 1793 (least absolute deviations); Bishop 2006, "Pattern recognition and
    machine learning", sec. 1.5.5.
    """

    steps = derived.mean_absolute_error

    def each(self, P: Array, T: Array) -> Array:
        return np.abs(P - T)

    def slope(self, P: Array, T: Array) -> Array:
        return np.sign(P - T)


class Huber(Elementwise):
    """The mean of e^2 / 2 where |e| <= delta, else delta (|e| - delta / 2), with e = p - t.

    The slope is e, clipped to the range from -delta to delta. `delta` has the unit of T.
    Shapes: as for MeanSquaredError.
    Source: Huber 1964, "Robust estimation of a location parameter", Ann. Math. Statist. 35.
    """

    steps = derived.huber

    def __init__(self, delta: float = 1.0) -> None:
        self.delta = check_number(delta, "Huber delta", above=0)

    def each(self, P: Array, T: Array) -> Array:
        size = np.abs(P - T)
        quadratic = np.minimum(size, self.delta)
        return quadratic * (size - quadratic / 2)  # covers both branches

    def slope(self, P: Array, T: Array) -> Array:
        return np.clip(P - T, -self.delta, self.delta)


class LogCosh(Elementwise):
    """The mean of log(cosh(e)), with e = p - t.

    Near 0 it is computed as -log(1 - tanh(e)^2) / 2, and elsewhere as
    |e| + log(1 + exp(-2 |e|)) - log 2, so that nearly equal values are never subtracted.
    The slope is tanh(e). The loss behaves like e^2 / 2 near 0, and like |e| far from 0.
    Shapes: as for MeanSquaredError.
    Source: Saleh and Saleh 2022, "Statistical properties of the log-cosh loss function",
    arXiv:2208.04564, eq. 2.
    """

    steps = derived.log_cosh

    def each(self, P: Array, T: Array) -> Array:
        size = np.abs(P - T)
        near = np.log1p(-np.square(np.tanh(np.minimum(size, 1)))) / -2
        far = size + np.log1p(np.exp(-2 * size)) - math.log(2)
        return np.where(size < 1, near, far)

    def slope(self, P: Array, T: Array) -> Array:
        return np.tanh(P - T)


class PoissonNLL(Elementwise):
    """The mean of exp(p) - t p if p is the log of the rate (`log_input`), else of p - t log p.

    The term log(t!) is left out, because it does not depend on the prediction. The slope is
    exp(p) - t, or 1 - t / p. Targets are counts, >= 0.
    Shapes: as for MeanSquaredError.
    Source: Cameron and Trivedi 1998, "Regression analysis of count data", eq. 3.4.
    """

    target_range, targets_are = (0, math.inf), "counts "

    steps = derived.poisson_nll

    def __init__(self, log_input: bool = True) -> None:
        self.log_input = check_flag(log_input, "PoissonNLL log_input")

    def each(self, P: Array, T: Array) -> Array:
        if self.log_input:
            return np.exp(P) - T * P
        return P - T * np.log(np.maximum(P, np.finfo(P.dtype).tiny))

    def slope(self, P: Array, T: Array) -> Array:
        if self.log_input:
            return np.exp(P) - T
        return 1 - T * reciprocal(P)


class CosineSimilarityLoss(Rowwise):
    """The mean over positions of 1 - cos(p, t), for the angle between rows p and t.

    Shapes: P, T are (N, ..., D), with rows along the last axis. With the lengths |p| and |t|, and
    c = cos(p, t), the gradient of a row is

        -(t / |t| - c p / |p|) / |p|

    which is orthogonal to p, because the length of p does not matter. Rows of length 0 have c = 0
    and a gradient of 0. For unit vectors, 1 - c = |p - t|^2 / 2, which is precise at small angles.
    Source: Salton, Wong and Yang 1975, "A vector space model for automatic indexing".
    """

    steps = derived.cosine_similarity

    def each(self, P: Array, T: Array) -> Array:
        P_hat, T_hat = self._unit(P)[0], self._unit(T)[0]
        nonzero = P_hat.any(axis=-1) & T_hat.any(axis=-1)
        return np.where(nonzero, np.square(P_hat - T_hat).sum(axis=-1) / 2, 1)

    def slope(self, P: Array, T: Array) -> Array:
        (P_hat, scale), (T_hat, _) = self._unit(P), self._unit(T)
        cosine = (P_hat * T_hat).sum(axis=-1, keepdims=True)
        return (cosine * P_hat - T_hat) * scale

    def _unit(self, X: Array) -> tuple[Array, Array]:
        """Return rows of length 1 or 0, and 1 / |x| or 0, (..., 1), without over- or underflow."""
        size = np.abs(X).max(axis=-1, keepdims=True)
        size = np.where(size < np.finfo(X.dtype).tiny, 1, size)
        Y = X / size
        scale = reciprocal(np.linalg.norm(Y, axis=-1, keepdims=True))
        return Y * scale, scale / size
