"""Muon: an optimizer that orthogonalises the steps of hidden matrices, and how it does so."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import field
from functools import partial
from typing import Annotated

import numpy as np

from phitodeep.core.checks import check_option
from phitodeep.core.settings import Count, Flag, Fraction, NonNegative
from phitodeep.core.types import Array
from phitodeep.errors import ArgumentTypeError, ShapeError
from phitodeep.layers.base import Layer
from phitodeep.optimization.base import Settings
from phitodeep.optimization.packing import Group, Slot
from phitodeep.optimization.rules import Adam
from phitodeep.optimization.schedules import Rate

__all__ = ["Muon"]

SCALES = ("original", "match_rms_adamw")


class Muon(Adam):
    """Momentum with orthogonalised steps for hidden matrices: W <- W - lr c orthogonal(B).

        M <- mu M + g                running sum of g
        B = M, or g + mu M           nesterov: one step of momentum ahead
        orthogonal(U S V^T) = U V^T  approximately, by `ns_steps` Newton-Schulz steps

    A step has the same size in all directions, while a step of SGD is dominated by the few
    directions in which g is large. The factor c depends on the shape (r rows, k columns), so that
    one rate suits matrices of all sizes:

        original           c = sqrt(max(1, k / r))
        match_rms_adamw    c = 0.2 sqrt(max(r, k)): elements move as far as with Adam, so use
                           Adam's alpha and weight_decay, and adam_ratio=1

    A step costs about 4 ns_steps r^2 k operations, with r the smaller side, compared with 6 N r k
    for the forward and backward passes of N rows: little if N is much larger than r.

    Convolution kernels are treated as matrices (taps C, filters). Queries, keys and values, the
    gates of recurrent layers and the groups of a convolution are separate matrices.

    All other parameters are updated by Adam, with `beta1`, `beta2` and `eps`, at adam_ratio times
    the rate: vectors, embeddings, and the last layer that has matrices. A group's own alpha is not
    multiplied by adam_ratio. weight_decay is decoupled, as in AdamW.

    Sources: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks";
    match_rms_adamw: Liu et al. 2025, "Muon is scalable for LLM training", arXiv:2502.16982.
    """

    elementwise = False
    alpha: Rate = field(default=0.02, kw_only=False)
    momentum: Fraction = 0.95
    nesterov: Flag = True
    ns_steps: Count = 5
    adjust_lr_fn: Annotated[str, partial(check_option, options=SCALES)] = SCALES[0]
    adam_ratio: NonNegative = 0.015

    def kinds(self, layers: Sequence[Layer], slots: Sequence[Slot]) -> list[Hashable]:
        """One kind per hidden matrix, and None for all other parameters."""
        matrices = hidden(layers)
        return [path if (layer, name) in matrices else None for path, layer, name in slots]

    def _settings(self, group: Group, lr: float) -> Settings:
        _, matrix = group.key
        return super()._settings(group, lr if matrix else lr * self.adam_ratio)

    def update(self, theta: Array, g: Array, lr: float) -> None:
        _, matrix = self._group.key
        if matrix is None:
            super().update(theta, g, lr)
            return
        M, B = self.slot("M"), self.scratch()
        M *= self.momentum
        M += g
        if self.nesterov:
            np.multiply(M, self.momentum, out=B)
            B += g
        else:
            B[...] = M
        _, layer, name = self._group.slots[0]
        for W, D in zip(layer.matrices(name, theta), layer.matrices(name, B), strict=True):
            _, rows, columns = W.shape
            if self.adjust_lr_fn == "original":
                rate = lr * math.sqrt(max(1, columns / rows))
            else:
                rate = lr * 0.2 * math.sqrt(max(rows, columns))
            W -= rate * orthogonal(D, self.ns_steps)


COEFFICIENTS = 3.4445, -4.7750, 2.0315  # of s, s^3 and s^5
MIN_NORM = 1e-7  # a matrix with a smaller norm is not scaled up to norm 1


def orthogonal(G: Array, steps: int = 5) -> Array:
    """Approximate U V^T for G = U S V^T: every singular value of G becomes about 1.

    Shapes: G and the result are (..., rows, columns).

    Each step applies an odd polynomial to X = U S V^T. It leaves U and V unchanged, and changes
    only the singular values:

        X <- a X + b (X X^T) X + c (X X^T)^2 X    =    U (a S + b S^3 + c S^5) V^T

    The singular values of G / ||G|| are at most 1. The polynomial is steep at 0 and stays near 1
    above it: five steps bring all values above 0.01 to between 0.68 and 1.21.

    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks".
    """
    a, b, c = COEFFICIENTS
    tall = G.shape[-2] > G.shape[-1]
    X = G.swapaxes(-2, -1) if tall else G  # X X^T is the smaller of the two products
    X = X / np.maximum(np.linalg.norm(X, axis=(-2, -1), keepdims=True), MIN_NORM)
    for _ in range(steps):
        A = X @ X.swapaxes(-2, -1)
        X = a * X + (b * A + c * A @ A) @ X
    return X.swapaxes(-2, -1) if tall else X


def hidden(layers: Sequence[Layer]) -> set[tuple[Layer, str]]:
    """Return the matrices of hidden layers, as (layer, name).

    Three kinds are left out: the matrices of embeddings; those of the output layer, which is the
    last layer that has a matrix or uses another layer's; and matrices with a single row or column.
    """
    every = [layer for top in layers for _, layer in top.walk()]
    found = {layer: [name for name, W in layer.params.items() if W.ndim > 1] for layer in every}
    head = next((layer for layer in reversed(every) if found[layer] or layer.tied), None)
    return {
        (layer, name)
        for layer, names in found.items()
        for name in names
        if layer is not head and _holds_matrices(layer, name)
    }


def _holds_matrices(layer: Layer, name: str) -> bool:
    """Whether the layer declares matrices of this parameter, each with several rows and columns."""
    W = layer.params[name]
    stacks = layer.matrices(name, W)
    if not isinstance(stacks, list) or not all(
        isinstance(A, np.ndarray) and A.ndim == 3 and np.may_share_memory(A, W) for A in stacks
    ):
        raise ArgumentTypeError(
            f"{layer!r}: matrices({name!r}, W) must return a list of stacks (n, rows, columns) "
            "that are views of W, not copies."
        )
    if stacks and sum(A.size for A in stacks) != W.size:
        raise ShapeError(f"{layer!r}: matrices({name!r}, W) must hold each element of W once.")
    return bool(stacks) and all(min(A.shape[1:]) > 1 for A in stacks)
