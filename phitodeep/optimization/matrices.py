"""Matrices of hidden layers, and how to make one orthogonal. `Muon` steps by these."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from phitodeep.errors import ArgumentTypeError, ShapeError
from phitodeep.layers.base import Layer
from phitodeep.types import Array

COEFFICIENTS = 3.4445, -4.7750, 2.0315  # of s, s^3 and s^5
LEAST = 1e-7  # a shorter matrix is not brought to length 1


def orthogonal(G: Array, steps: int = 5) -> Array:
    """U V^T of G = U S V^T, nearly: all singular values of G become about 1.

    Shapes: G and the result are (..., rows, columns).

    X = U S V^T goes through an odd polynomial in each step, which leaves U and V as they are
    and changes the singular values alone:

        X <- a X + b (X X^T) X + c (X X^T)^2 X    =    U (a S + b S^3 + c S^5) V^T

    G / ||G|| has singular values of at most 1. The polynomial is steep at 0 and stays near 1
    above: five steps bring all that were over 0.01 to between 0.68 and 1.21.

    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks".
    """
    a, b, c = COEFFICIENTS
    tall = G.shape[-2] > G.shape[-1]
    X = G.swapaxes(-2, -1) if tall else G  # X X^T is the smaller of the two products
    X = X / np.maximum(np.linalg.norm(X, axis=(-2, -1), keepdims=True), LEAST)
    for _ in range(steps):
        A = X @ X.swapaxes(-2, -1)
        X = a * X + (b * A + c * A @ A) @ X
    return X.swapaxes(-2, -1) if tall else X


def hidden(layers: Sequence[Layer]) -> set[tuple[Layer, str]]:
    """The matrices of hidden layers, as (layer, name).

    Not those of embeddings, nor of the last layer that has any, or that uses another's; and none
    of one row or column.
    """
    every = [layer for top in layers for _, layer in top.walk()]
    found = {layer: [name for name, W in layer.params.items() if W.ndim > 1] for layer in every}
    head = next((layer for layer in reversed(every) if found[layer] or layer.tied), None)
    return {
        (layer, name)
        for layer, names in found.items()
        for name in names
        if layer is not head and _wide(layer, name)
    }


def _wide(layer: Layer, name: str) -> bool:
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
        raise ShapeError(f"{layer!r}: matrices({name!r}, W) must hold each number of W once.")
    return bool(stacks) and all(min(A.shape[1:]) > 1 for A in stacks)
