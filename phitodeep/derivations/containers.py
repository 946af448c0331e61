"""The containers: the chain rule through the layers inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phitodeep.core.call import current
from phitodeep.core.types import each, one
from phitodeep.derivations.language.run import symbols_of
from phitodeep.derivations.language.step import Arrange, Derivation, Join, Let, Size, Step, Through
from phitodeep.derivations.merging import parts


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
        Size("C", "X", -1, "the number of features of X"),
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
        sizes = [out.replace("Y", "C") for out in outs]
        split = parts(outs, sizes, -1, "the number of features")
        return Join("Y", *outs, words="the outputs side by side"), shares, split
    for out in outs:
        others = [other for other in outs if other != out]
        split.append(Let(f"d{out}", " * ".join(["dY", *others])))
    return Let("Y", " * ".join(outs)), shares, split


def time_distributed(layer: Any) -> Derivation:
    """Each step is a sample of the layer inside."""
    Xs, Ys = symbols_of(layer, "X"), symbols_of(layer, "Y")
    dXs, dYs = [f"d{X}" for X in Xs], [f"d{Y}" for Y in Ys]
    N_T = f"*{Xs[0]}.shape[:2]"

    def rows(A: str) -> Step:
        code = f"{A}.reshape(-1, *{A}.shape[2:])"
        return Arrange(f"{A}_rows", code, A, f"{A} with every step as a sample")

    def through(received: list[str], found: list[str], **options: Any) -> list[Step]:
        of = one([f"{A}_rows" for A in received], len(received) == 1)
        return [
            Through(f"{A}_rows", of, "layer", result=A, runs=not k, **options)
            for k, A in enumerate(found)
        ]

    def steps(A: str) -> Step:
        code = f"{A}_rows.reshape({N_T}, *{A}_rows.shape[1:])"
        return Arrange(A, code, f"{A}_rows", "the samples as steps again")

    return Derivation.of(
        Size("T", Xs[0], 1, "the number of steps"),
        *map(rows, Xs),
        *through(Xs, Ys, mask=None, each="T"),
        *map(steps, Ys),
        *map(rows, dYs),
        *through(dYs, dXs, back=True),
        *map(steps, dXs),
    )


def wired(layer: Any) -> Derivation:
    """A value v reaches the outputs through all its readers: dv is the sum of what they return."""
    mask = current().mask
    masks = {} if mask is None else layer._masks(*each(mask))
    inputs, outputs = _several("X", layer.takes), _several("Y", layer.returns)
    shares = {v: [f"d{Y}" for u, Y in outputs if u == v] for v in layer.values()}
    several = {v for v in shares if layer.readers(v) > 1 or shares[v]}
    forward: list[Step] = [Let(v, X) for v, X in inputs]
    back: list[Step] = []
    for k, (_, reads, gives) in enumerate(layer.uses):
        own = one([masks.get(v) for v in reads], len(reads) == 1)
        forward += _pass(k, reads, _several("Y", gives), mask=own)
    forward += [Let(Y, v) for v, Y in outputs]
    for k, (_, reads, gives) in reversed([*enumerate(layer.uses)]):
        dYs = [_summed(v, shares[v], back) for v in gives]
        found = _several("dX", reads)
        named = [
            (f"d{v}_{k}_{i}" if reads.count(v) > 1 else f"d{v}_{k}" if v in several else f"d{v}", X)
            for i, (v, X) in enumerate(found)
        ]
        back += _pass(k, dYs, named, back=True)
        for v, (share, _) in zip(reads, named, strict=True):
            shares[v].append(share)
    back += [Let(f"d{X}", " + ".join(shares[v])) for v, X in inputs]
    return Derivation.of(*forward, *back)


def _several(symbol: str, values: Sequence[str]) -> list[tuple[str, str]]:
    """Each value with the symbol of its place: X of a single one, X1, X2, ... of several."""
    if len(values) == 1:
        return [(values[0], symbol)]
    return [(v, f"{symbol}{k}") for k, v in enumerate(values, 1)]


def _pass(
    k: int, of: Sequence[str], found: Sequence[tuple[str, str]], **options: Any
) -> list[Step]:
    """The pass of layer k of a network: one step for each array that it returns."""
    return [
        Through(symbol, one(of, len(of) == 1), f"layers.{k}", result=result, runs=not i, **options)
        for i, (symbol, result) in enumerate(found)
    ]


def _summed(v: str, shares: list[str], back: list[Step]) -> str:
    """The symbol of dv, after a step that adds its shares if there are several."""
    if len(shares) == 1:
        return shares[0]
    back.append(Let(f"d{v}", " + ".join(shares) or f"0 * {v}"))
    return f"d{v}"
