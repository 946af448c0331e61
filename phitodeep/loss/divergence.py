"""Losses that compare distributions: KL divergence and the evidence lower bound."""

from __future__ import annotations

from typing import Any

import numpy as np

from phitodeep import functional as F
from phitodeep.checks import check_count, check_number
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.loss.base import Elementwise, Rowwise
from phitodeep.loss.binary import BinaryCrossEntropyWithLogits
from phitodeep.types import Array, Shape


class KLDivergence(Elementwise):
    """The sum of t (log t - p) over each sample, averaged over samples; p are log-probabilities.

    The slope is -t. Shapes: P and T are (N, ..., K); rows of T are distributions. A sample
    weighs as much as its positions do on average, without those of weight 0, such as padding.
    Source: Kullback and Leibler 1951, "On information and sufficiency", eq. 2.4.
    """

    wants = "log-probabilities"

    def targets(self, y: Any, shape: Shape, name: str = "y") -> Array:
        T = super().targets(y, shape, name)
        if (T < 0).any():
            raise ArgumentError(
                f"{self!r} takes probabilities {name} >= 0, the least is {T.min():g}."
            )
        return T

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
    """The mean over samples of a variational autoencoder's two costs, E + beta KL.

    Shapes: P (N, ..., 2 L + D) holds means m and log variances s of L = `latent` numbers, and D
    logits z, side by side, as `models.vae` gives them; T (N, ..., D) is from 0 to 1.

        E  = sum_d softplus(z) - t z                   the reconstruction, in nats
        KL = sum_l (m^2 + exp(s) - s - 1) / 2          of N(m, exp(s)) from N(0, 1)

    With one draw of the latent numbers for each sample, its mean over the draws is the negative
    evidence lower bound for beta = 1: at least -log p(t).
    Gradient: beta m, beta (exp(s) - 1) / 2 and sigmoid(z) - t, side by side.
    Sources: Kingma and Welling 2014, arXiv:1312.6114, eq. 10 and appendix B; beta: Higgins et
    al. 2017, "beta-VAE", ICLR, eq. 4.
    """

    labels = None

    def __init__(self, latent: int = 2, *, beta: float = 1.0) -> None:
        super().__init__()
        self.latent = check_count(latent, "NegativeELBO latent")
        self.beta = check_number(beta, "NegativeELBO beta", least=0)

    def targets(self, y: Any, shape: Shape, name: str = "y") -> Array:
        behind = 2 * self.latent
        if len(shape) < 2 or shape[-1] <= behind:
            raise ShapeError(
                f"{self!r} takes predictions (N, ..., {behind} + D): {self.latent} means, as many "
                f"log variances, and D logits, got shape {shape}: latent= is the model's?"
            )
        return super().targets(y, (*shape[:-1], shape[-1] - behind), name)

    def parts(self, P: Array, T: Array) -> tuple[Array, Array]:
        """E and KL of each sample, (N, ...) both."""
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
