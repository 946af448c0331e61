"""Flatten, Reshape, Permute and Select: the same numbers in other places, so dX moves dY back."""

from __future__ import annotations

from typing import Any

import numpy as np

from phitodeep.core.types import Shape
from phitodeep.derivations.language.step import Arrange, Derivation, Given, Let, Sum
from phitodeep.functional import one_hot


def reshape(layer: Any) -> Derivation:
    """The elements keep their order, so dX is dY in the shape of X."""

    def shape(symbols: Any) -> Shape:
        X = symbols["X"]
        return (len(X), *layer.create(X.shape[1:]))

    return Derivation.of(
        Given("shape_Y", "the shape of Y", shape),
        Arrange("Y", "X.reshape(shape_Y)", "X", "X in the shape of Y, in the same order"),
        Given("shape_X", "the shape of X", lambda symbols: symbols["X"].shape),
        Arrange("dX", "dY.reshape(shape_X)", "dY", "dY in the shape of X, in the same order"),
    )


def permute(layer: Any) -> Derivation:
    """The axes of dY return to their places in X."""
    axes = (0, *layer.dims)
    return Derivation.of(
        Given("axes", "the axis of X that each axis of Y is", lambda _: axes),
        Arrange("Y", "X.transpose(axes)", "X", "X with its axes in another order"),
        Given("back", "the axis of Y that each axis of X is", lambda _: np.argsort(axes)),
        Arrange("dX", "dY.transpose(back)", "dY", "dY with its axes as in X"),
    )


def select(layer: Any) -> Derivation:
    """y_j = x_{c_j}: x_i receives the dy_j of all columns j that show it."""

    def columns(symbols: Any) -> Any:
        return np.array(layer._indices(symbols["X"].shape[1:]))

    def places(symbols: Any) -> Any:
        return one_hot(symbols["c"], symbols["X"].shape[-1], symbols["dY"].dtype)

    c = Given("c", "the selected columns", columns)
    if layer.tokens:
        chosen = Arrange("chosen", "X[..., c]", "X", "the columns c of X")
        return Derivation.of(c, chosen, Let("Y", "np.int64(chosen)", "tokens"))
    return Derivation.of(
        c,
        Arrange("Y", "X[..., c]", "X", "the columns c of X"),
        Given("S", "1 at [j, i] where column j of Y is column i of X, else 0", places),
        Sum("dX", "...j,ji->...i", "dY", "S"),
    )
