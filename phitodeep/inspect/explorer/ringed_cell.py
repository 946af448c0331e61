"""The ringed cell of a picture: one number of a gradient, and the terms that it is the sum of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from phitodeep.core.types import each
from phitodeep.derivations.language.step import Arrange, Sum, flat
from phitodeep.derivations.language.terms import Term, Why, origin
from phitodeep.inspect.entries import Entry
from phitodeep.inspect.explorer.tiles import number

LAYERS, CELLS = 10, 12  # how many parameters, and cells of each, compete for the ring


@dataclass(frozen=True)
class Ring:
    """A cell of a parameter's gradient.

    path      the layer
    name      the parameter, such as "W"
    cell      its place
    entry     the gradient in the trace, which a Sum computes
    why       the terms of its sum
    sample    the sample with the largest share of the terms' size, and this share
    """

    path: str
    name: str
    cell: tuple[int, ...]
    entry: Entry
    why: Why
    sample: int
    share: float

    @property
    def place(self) -> str:
        return f"[{', '.join(map(str, self.cell))}]"

    @property
    def best(self) -> Term:
        """The largest term of the sample."""
        return next(term for term in self.why if term.at["n"] == self.sample)

    def sentence(self) -> str:
        """What is said about it in words."""
        term, several = self.best, len(self.why._at) > 1
        first = (
            f"{self.path}.d{self.name}{self.place} = {number(self.why.total)}: "
            f"{self.share:.0%} of its terms' size came from sample {self.sample}".replace("%", " %")
        )
        names = " \u00d7 ".join(term.factors)
        numbers = " \u00d7 ".join(map(number, term.factors.values()))
        place = ", ".join(f"{i} = {k}" for i, k in term.at.items() if i != "n")
        where = f"Its largest term, at {place}," if several else "Its term"
        return f"{first}. {where} is {names} = {numbers} = {number(term.value)}."

    def factors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The numbers of the best term that the layer received: ("X", index) and ("dY", index)."""
        step: Any = self.entry.step
        scope = self.entry._scope
        steps = {s.symbol: s for s in flat([*scope.derivation.forward, *scope.derivation.backward])}
        parts, out = step.letters(scope)
        where = {**dict(zip(out, self.cell, strict=True)), **self.best.at}
        for name, part in zip(step.operands, parts, strict=True):
            place: tuple[int, ...] | None = tuple(where[i] for i in part)
            moved = steps.get(name)
            while isinstance(moved, Arrange) and place is not None:
                name, place = moved.of, origin(moved, scope, place)
                moved = steps.get(name)
            if name in ("X", "dY") and place is not None:
                yield name, place


def ring(trace: Any) -> Ring | None:
    """The cell with the most telling sum: large, and mostly from one sample among several."""
    candidates = [
        (path, name, grad)
        for path, passes in trace._passes.items()
        if path and len(each(passes.X)[0]) == trace._recording.data.n
        for name, grad in passes.grads.items()
        if grad.ndim >= 2 and np.isfinite(grad).all() and grad.any()
    ]
    flat_first = sorted(candidates, key=lambda c: c[0].count("."))
    if len(flat_first) > LAYERS:  # some of them, from the first to the last
        flat_first = [flat_first[round(k)] for k in np.linspace(0, len(flat_first) - 1, LAYERS)]
    found = [
        (score, ring)
        for path, name, grad in flat_first
        for score, ring in _cells(trace, path, name, grad)
    ]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _cells(trace: Any, path: str, name: str, grad: Any) -> Iterator[tuple[float, Ring]]:
    """The largest cells of a gradient, each with how telling it is."""
    entry = trace[f"{path}.backward.d{name}"]
    if not isinstance(entry.step, Sum):
        return
    size = np.abs(entry.array)
    clear = 2.0 if grad.size <= 160 else 1.0  # its cells can be seen
    near = 1.5 if "." not in path else 1.0  # what it multiplies can be seen
    for k in np.argsort(-size, axis=None)[:CELLS]:
        cell = tuple(int(i) for i in np.unravel_index(k, size.shape))
        why = entry.why(*cell)
        terms = np.abs(why._values)
        if "n" not in why._at or not terms.sum():
            continue
        by_sample = np.bincount(why._at["n"], terms)
        sample = int(by_sample.argmax())
        share = float(by_sample[sample] / terms.sum())
        alone = 0.4 if share > 0.9 else 1.0  # a sum of one term is no sum
        flags = any(np.isin(factor, (0, 1)).all() for factor in why._factors.values())
        score = share**2 * alone * clear * near * (size[cell] / size.max()) ** 0.5
        score *= 0.1 if flags else 1.0  # a product with 0 or 1 only selects
        yield float(score), Ring(path, name, cell, entry, why, sample, share)
