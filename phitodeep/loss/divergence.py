"""Losses that compare distributions: the KL divergence and the evidence lower bound."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from phitodeep import functional as F
from phitodeep.core.checks import check_count, check_number
from phitodeep.core.types import Array, Shape
from phitodeep.derivations import losses as derived
from phitodeep.errors import ShapeError
from phitodeep.loss.base import Elementwise, Rowwise
from phitodeep.loss.binary import BinaryCrossEntropyWithLogits

__all__ = ["KLDivergence", "NegativeELBO"]


class KLDivergence(Elementwise):
    """The sum of t (log t - p) over each sample, averaged over samples; p are log-probabilities.

    The slope is -t. Shapes: P and T are (N, ..., K); rows of T are distributions. The weight of a
    sample is the mean weight of its positions, not counting those of weight 0, such as padding.
    Source: Kullback and Leibler 1951, "On information and sufficiency", eq. 2.4.
    """

    wants = "log-probabilities"
    target_range, targets_are = (0, math.inf), "probabilities "

    steps = derived.kl_divergence

    def divisor(self, T: Array, w: Array | None, shape: Shape) -> float:
        if w is None:
            return float(shape[0])
        rows = w.reshape(len(w), -1)
        counted = np.maximum(np.count_nonzero(rows, axis=1), 1)
        return float((rows.sum(axis=1, dtype=np.float64) / counted).sum())

    def each(self, P: Array, T: Array) -> Array:
        ratio = np.log(np.maximum(T, np.finfo(P.dtype).tiny)) - P
        return T * np.where(T != 0, ratio, 0)  # 0 times infinity is 0

    def slope(self, P: Array, T: Array) -> Array:
        return -T


class NegativeELBO(Rowwise, BinaryCrossEntropyWithLogits):
    """The loss of a variational autoencoder: the mean over samples of E + beta KL.

    Shapes: P (N, ..., 2 L + D) holds the means m and the log variances s of L = `latent` variables
    and D logits z, side by side, as `models.vae` returns them; T (N, ..., D) is in [0, 1].

        E  = sum_d softplus(z) - t z                   the reconstruction error, in nats
        KL = sum_l (m^2 + exp(s) - s - 1) / 2          of N(m, exp(s)) from N(0, 1)

    The latent variables are drawn once per sample. For beta = 1, the mean of the loss over such
    draws is the negative evidence lower bound, which is at least -log p(t).
    Gradient: beta m, beta (exp(s) - 1) / 2 and sigmoid(z) - t, side by side.
    Sources: Kingma and Welling 2014, arXiv:1312.6114, eq. 10 and appendix B; beta: Higgins et
    al. 2017, "beta-VAE", ICLR, eq. 4.
    """

    labels = None

    steps = derived.negative_elbo

    def __init__(self, latent: int = 2, *, beta: float = 1.0) -> None:
        self.latent = check_count(latent, "NegativeELBO latent")
        self.beta = check_number(beta, "NegativeELBO beta", minimum=0)

    def targets(self, y: Any, shape: Shape, name: str = "y") -> Array:
        statistics = 2 * self.latent
        if len(shape) < 2 or shape[-1] <= statistics:
            raise ShapeError(
                f"{self!r} takes predictions (N, ..., {statistics} + D): {self.latent} means, as "
                f"many log variances, and D logits, got shape {shape}. Does latent= match the "
                "model's?"
            )
        return super().targets(y, (*shape[:-1], shape[-1] - statistics), name)

    def parts(self, P: Array, T: Array) -> tuple[Array, Array]:
        """E and KL of each sample, both (N, ...)."""
        m, s, Z = self._split(P)
        divergence = (np.square(m) + F.exp_minus_line(s)).sum(axis=-1) / 2
        return super().each(Z, T).sum(axis=-1), divergence

    def each(self, P: Array, T: Array) -> Array:
        reconstruction, divergence = self.parts(P, T)
        return reconstruction + self.beta * divergence

    def slope(self, P: Array, T: Array) -> Array:
        m, s, Z = self._split(P)
        dm, ds, dZ = self.beta * m, self.beta / 2 * np.expm1(s), super().slope(Z, T)
        return np.concatenate([dm, ds, dZ], axis=-1)

    def _split(self, P: Array) -> list[Array]:
        return np.split(P, [self.latent, 2 * self.latent], axis=-1)
