"""The containers: the chain rule through the layers inside."""

from __future__ import annotations

from typing import Any

from phitodeep.core.call import current
from phitodeep.derivations.language.step import Arrange, Derivation, Join, Let, Step, Through, size


def chain(layer: Any) -> Derivation:
    """Y = f_n(... f_2(f_1(X))): the gradient goes through the layers from the last to the first."""
    forward, backward = through(layer, "Y", "dY", "dX")
    return Derivation.of(*forward, *backward)


def residual(layer: Any) -> Derivation:
    """Y = X + F(X): X reaches Y directly and through F."""
    forward, backward = through(layer, "F", "dY", "dF")
    return Derivation.of(*forward, Let("Y", "X + F"), *backward, Let("dX", "dY + dF"))


def skip_concat(layer: Any) -> Derivation:
    """Y = [X, F(X)]: X reaches Y directly, as its first C features, and through F."""
    forward, backward = through(layer, "F", "dF", "through_F")
    return Derivation.of(
        *forward,
        Join("Y", "X", "F", words="X and F(X) side by side"),
        size("C", "X", -1, "the number of features of X"),
        Arrange("direct", "dY[..., :C]", "dY", "what arrives at X directly"),
        Arrange("dF", "dY[..., C:]", "dY", "what arrives at F"),
        *backward,
        Let("dX", "direct + through_F"),
    )


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


def parallel(layer: Any) -> Derivation:
    """X reaches Y through every branch, so dX is the sum of what the branches pass on."""
    every = range(len(layer.branches))
    outs = [f"Y_{i}" for i in every]
    merge, shares, split = merging(layer.merge, outs)
    return Derivation.of(
        *(Through(outs[i], "X", f"branches.{i}") for i in every),
        merge,
        *split,
        *(Through(f"dX_{i}", shares[i], f"branches.{i}", back=True) for i in every),
        Let("dX", " + ".join(f"dX_{i}" for i in every)),
    )


def merging(merge: str, outs: list[str]) -> tuple[Step, list[str], list[Step]]:
    """The step from the outputs to Y, what each output receives of dY, and the steps to it."""
    if merge == "add":
        return Let("Y", " + ".join(outs)), ["dY"] * len(outs), []
    shares, split = [f"d{out}" for out in outs], list[Step]()
    if merge == "concat":
        return Join("Y", *outs, words="the outputs side by side"), shares, _parts(outs)
    for out in outs:
        others = [other for other in outs if other != out]
        split.append(Let(f"d{out}", " * ".join(["dY", *others])))
    return Let("Y", " * ".join(outs)), shares, split


def _parts(outs: list[str]) -> list[Step]:
    """The gradient of each output, given the gradient dY of all of them side by side."""
    sizes = [out.replace("Y", "C") for out in outs]
    found: list[Step] = []
    for k, out in enumerate(outs):
        start, end = " + ".join(sizes[:k]), " + ".join(sizes[: k + 1])
        found.append(size(sizes[k], out, -1, f"the number of features of {out}"))
        found.append(Arrange(f"d{out}", f"dY[..., {start}:{end}]", "dY", f"the part for {out}"))
    return found


def time_distributed(layer: Any) -> Derivation:
    """Each step is a sample of the layer inside."""
    rows = "X.reshape(-1, *X.shape[2:])"
    back = "dY.reshape(-1, *dY.shape[2:])"
    Y = "Y_rows.reshape(*X.shape[:2], *Y_rows.shape[1:])"
    return Derivation.of(
        size("T", "X", 1, "the number of steps"),
        Arrange("X_rows", rows, "X", "X with every step as a sample"),
        Through("Y_rows", "X_rows", "layer", mask=None, each="T"),
        Arrange("Y", Y, "Y_rows", "the samples as steps again"),
        Arrange("dY_rows", back, "dY", "dY with every step as a sample"),
        Through("dX_rows", "dY_rows", "layer", back=True),
        Arrange("dX", "dX_rows.reshape(X.shape)", "dX_rows", "the samples as steps again"),
    )
