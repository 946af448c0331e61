"""Upsampling and zero padding."""

from __future__ import annotations

from typing import Any

from phitodeep.derivations.language.step import Arrange, Derivation, Given, Sum


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
