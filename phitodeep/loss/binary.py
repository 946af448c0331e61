"""Losses for two classes: binary cross-entropies and hinge losses."""

from __future__ import annotations

from typing import Any

import numpy as np

from phitodeep.core.types import Array, Shape
from phitodeep.derivations import losses as derived
from phitodeep.errors import ArgumentError
from phitodeep.loss.base import Elementwise, reciprocal

__all__ = ["BinaryCrossEntropy", "BinaryCrossEntropyWithLogits", "Hinge", "SquaredHinge"]


class BinaryCrossEntropy(Elementwise):
    """The mean of -t log p - (1 - t) log(1 - p), for probabilities p (the output of Sigmoid).

    The argument of each logarithm is clipped at the dtype's smallest normal number, so the loss is
    flat below it. The slope is (1 - t) / (1 - p) - t / p.
    Shapes: P (N, ...), T the same, or (N,) for P (N, 1).
    Source: Bishop 2006, "Pattern recognition and machine learning", eq. 4.90.
    """

    wants = "probabilities"
    target_range = (0, 1)  # probabilities of the positive class, usually 0 or 1
    labels: tuple[int, ...] | None = (0, 1)

    steps = derived.binary_cross_entropy

    def each(self, P: Array, T: Array) -> Array:
        tiny = np.finfo(P.dtype).tiny
        log_q = np.full_like(P, np.log(tiny))  # q = 1 - p
        np.log1p(-P, out=log_q, where=~(P >= 1))  # more exact than the log of a rounded 1 - p
        return -T * np.log(np.maximum(P, tiny)) - (1 - T) * log_q

    def slope(self, P: Array, T: Array) -> Array:
        return reciprocal(1 - P) * (1 - T) - reciprocal(P) * T


class BinaryCrossEntropyWithLogits(Elementwise):
    """BinaryCrossEntropy of sigmoid(z), computed from z: the mean of softplus(z) - t z.

    The slope is sigmoid(z) - t. Let u be t for negative z and 1 - t otherwise, which is how much
    the target contradicts the sign of z. Then the loss and the slope are

        |z| u + log(1 + exp(-|z|))        sign(z) (u - exp(-|z|) / (1 + exp(-|z|)))

    and neither subtracts nearly equal values. Where u is 0, an infinite logit costs nothing.
    Shapes and source: as for BinaryCrossEntropy; -log sigmoid(z) = softplus(-z) = softplus(z) - z.
    """

    wants = "logits"
    target_range = (0, 1)
    labels: tuple[int, ...] | None = (0, 1)
    threshold = 0.0

    steps = derived.binary_cross_entropy_with_logits

    def each(self, P: Array, T: Array) -> Array:
        size, loss = np.abs(P), np.abs(~np.signbit(P) - T)
        with np.errstate(invalid="ignore"):
            loss *= size
        np.fmax(loss, 0, out=loss)  # 0 times infinity is NaN, and counts as 0
        loss += np.log1p(np.exp(-size))
        return loss

    def slope(self, P: Array, T: Array) -> Array:
        slope = np.abs(~np.signbit(P) - T)
        E = np.exp(-np.abs(P))
        slope -= E / (1 + E)
        slope *= np.copysign(1, P)
        return slope


class Hinge(Elementwise):
    """The mean of max(0, 1 - t p) for labels t of -1 and +1.

    The slope is -t where t p < 1, else 0.
    Shapes: as for BinaryCrossEntropy.
    Source: Cortes and Vapnik 1995, "Support-vector networks", Machine Learning 20.
    """

    threshold = 0.0
    labels = (-1, 1)

    steps = derived.hinge

    def targets(self, y: Any, shape: Shape, name: str = "y") -> Array:
        T = super().targets(y, shape, name)
        if not (np.abs(T) == 1).all():
            raise ArgumentError(
                f"{self!r} takes only -1 and +1 as {name}: convert 0 and 1 with 2 * {name} - 1."
            )
        return T

    def each(self, P: Array, T: Array) -> Array:
        return np.maximum(1 - T * P, 0)

    def slope(self, P: Array, T: Array) -> Array:
        return -T * (T * P < 1)


class SquaredHinge(Hinge):
    """The mean of max(0, 1 - t p)^2 for labels t of -1 and +1; its slope is -2 t max(0, 1 - t p).

    Shapes: as for BinaryCrossEntropy.
    Source: Lee and Mangasarian 2001, "SSVM: a smooth support vector machine".
    """

    steps = derived.squared_hinge

    def each(self, P: Array, T: Array) -> Array:
        return np.square(super().each(P, T))

    def slope(self, P: Array, T: Array) -> Array:
        return -2 * T * super().each(P, T)
