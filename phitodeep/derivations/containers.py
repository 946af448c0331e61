"""The containers: the chain rule through the layers inside."""

from __future__ import annotations

from typing import Any

from phitodeep.layers.call import current
from phitodeep.steps.step import Derivation, Let, Step, Through


def chain(layer: Any) -> Derivation:
    """Y = f_n(... f_2(f_1(X))): the gradient goes through the layers from the last to the first."""
    forward, backward = through(layer, "Y", "dY", "dX")
    return Derivation(forward, backward)


def residual(layer: Any) -> Derivation:
    """Y = X + F(X): X reaches Y directly and through F."""
    forward, backward = through(layer, "F", "dY", "dF")
    return Derivation([*forward, Let("Y", "X + F")], [*backward, Let("dX", "dY + dF")])


def through(layer: Any, Y: str, dY: str, dX: str) -> tuple[list[Step], list[Step]]:
    """The steps through the layers of a chain, from X to `Y` and from `dY` to `dX`."""
    keys = [f"layers.{layer._number(i)}" for i in range(len(layer.layers))]
    if not keys:
        return [Let(Y, "X")], [Let(dX, dY)]
    mask = current().mask
    masks = [None] * len(keys) if mask is None else layer._masks(mask)
    outs = ["X", *(f"Y_{k}" for k in range(len(keys) - 1)), Y]
    backs = [dX, *(f"d{name}" for name in outs[1:-1]), dY]
    every = list(enumerate(keys))
    forward: list[Step] = [Through(outs[k + 1], outs[k], key, mask=masks[k]) for k, key in every]
    back: list[Step] = [
        Through(backs[k], backs[k + 1], key, back=True) for k, key in reversed(every)
    ]
    return forward, back
