"""Flatten, Reshape, Permute, Select, padding and upsampling: dX moves dY back to its places."""

from __future__ import annotations

from typing import Any

import numpy as np

from phitodeep.derivations.language.step import Arrange, Derivation, Given, Let, Sum
from phitodeep.functional import one_hot


def reshape(layer: Any) -> Derivation:
    """The elements keep their order, so dX is dY in the shape of X."""
    return Derivation.of(
        Given(
            "shape_Y", "the shape of Y", lambda s: (len(s["X"]), *layer.create(s["X"].shape[1:]))
        ),
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

    def places(symbols: Any) -> Any:
        return one_hot(symbols["c"], symbols["X"].shape[-1], symbols["dY"].dtype)

    c = Given("c", "the selected columns", lambda s: np.array(layer._indices(s["X"].shape[1:])))
    if layer.tokens:
        chosen = Arrange("chosen", "X[..., c]", "X", "the columns c of X")
        return Derivation.of(c, chosen, Let("Y", "np.int64(chosen)", "tokens"))
    return Derivation.of(
        c,
        Arrange("Y", "X[..., c]", "X", "the columns c of X"),
        Given("S", "1 at [j, i] where column j of Y is column i of X, else 0", places),
        Sum("dX", "...j,ji->...i", "dY", "S"),
    )


# --- images ------------------------------------------------------------------------------------


def upsample(layer: Any) -> Derivation:
    """Copies of each pixel, whose gradients add up; or Y = A X B^T, and so dX = A^T dY B."""
    f, g = layer.factors
    if layer.mode == "nearest":
        copies = f"dY.reshape(dY.shape[0], -1, {f}, dY.shape[2] // {g}, {g}, dY.shape[3])"
        repeat = f"np.repeat(np.repeat(X, {f}, axis=1), {g}, axis=2)"
        return Derivation.of(
            Arrange("Y", repeat, "X", f"{f} x {g} copies of each pixel"),
            Arrange("V", copies, "dY", "the dY of all copies (i, j) of each pixel"),
            Sum("dX", "nhiwjc->nhwc", "V"),
        )
    return Derivation.of(
        _weights("A", layer, 0),
        _weights("B", layer, 1),
        Sum("AX", "vh,nhwc->nvwc", "A", "X"),
        Sum("Y", "uw,nvwc->nvuc", "B", "AX"),
        Sum("dAX", "uw,nvuc->nvwc", "B", "dY"),
        Sum("dX", "vh,nvwc->nhwc", "A", "dAX"),
    )


def _weights(symbol: str, layer: Any, axis: int) -> Given:
    words = f"how much each {('row', 'column')[axis]} of X counts in each one of Y"
    return Given(symbol, words, lambda s: layer._matrices(s["X"])[axis])


def zero_pad(layer: Any) -> Derivation:
    """X with zeros around it; the gradient of X is dY inside them."""
    (top, _), (left, _) = layer.pads
    ends = ((0, 0), *layer.pads, (0, 0))
    crop = f"dY[:, {top}:{top} + X.shape[1], {left}:{left} + X.shape[2]]"
    return Derivation.of(
        Arrange("Y", f"np.pad(X, {ends})", "X", "X with zeros around it"),
        Arrange("dX", crop, "dY", "dY without its border"),
    )
