"""Writes the file of a derived loss: its terms, their slopes and its steps."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import numpy as np

from phitodeep.derivations.language.step import Arrange, Derivation, Step
from phitodeep.errors import DerivationError
from phitodeep.testing.writing import Writer, returning


class LossWriter(Writer):
    """The parts of a loss's source.

    terms     the steps from P and T to L
    labels    whether targets may be labels
    parts     those of `Writer`; the steps from P and T to each term, in which sums keep their
              axes, and those from there to the slope. X and Y stand for P and L
    """

    source_of, call = "formula", "weighted"
    passes = "each(self, P: Array, T", "slope(self, P: Array, T"

    def __init__(self, terms: Sequence[Step], labels: bool, *parts: Any) -> None:
        super().__init__(*parts)
        axes = len(self.X) - np.ndim(self.scope["Y"])
        self.told = Derivation(terms, self.found.backward)
        self.base = "OneHot" if labels else "Rowwise" if axes else "Elementwise"
        self.head = f"    axes = {axes}\n\n" * (axes > 1) + self.constructor()
        self.more = f"\n            {axes},"
        compared = "".join(f", {i}" for i in "ABCTHWD"[7 - axes :])
        self.summary = f"The weighted mean of L (N, ...), from P and T (N, ...{compared})."

    def source(self) -> str:
        if self.fixed is not None:
            raise DerivationError(
                "L must have a meaning for other sizes of P, and for one axis more: count the axes "
                "from the last one, as in .sum(axis=-1)."
            )
        whole = [*self.found.forward, *self.found.backward]
        return self.file(self.head, self.body(self.told.forward), self.body(whole))

    def modules(self) -> dict[str, list[str]]:
        own = {"phitodeep.derivations.losses": ["weighted"], "phitodeep.loss.base": [self.base]}
        return {"phitodeep.core.types": ["Array"], **own}

    def body(self, steps: Sequence[Step]) -> list[str]:
        """The statements that compute the last step, without those that it does not need."""
        lines, last = list[str](), steps[-1]
        needed = {last.symbol}
        for step in reversed(steps):
            if step.symbol in needed:
                line = self.line(step, "P")
                lines[:0] = line.split("\n")
                needed |= {n.id for n in ast.walk(ast.parse(line)) if isinstance(n, ast.Name)}
        same = [s.symbol for s in steps[:-1] if isinstance(s, Arrange) or s.code.isidentifier()]
        if isinstance(last, Arrange) or last.code in ("P", "T", *same):  # the caller writes into it
            wide = last.code.startswith("np.broadcast_to(")  # of a number, which has another dtype
            lines[-1] += ".astype(P.dtype)" if wide else ".copy()"
        return returning(last.symbol, lines)
