"""The backward steps that `derive` writes for a layer, next to those by hand.

Both run on the same numbers. So steps that compute the same are found, whatever their names: on the
page, what is derived has the names of the derivation by hand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import copy
from html import escape
from itertools import product
from string import ascii_letters
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.call import calling
from phitodeep.core.types import Array
from phitodeep.derivations.derive.algebra import parse
from phitodeep.derivations.derive.reverse import reverse
from phitodeep.derivations.language.returning import Returned
from phitodeep.derivations.language.run import Scope, backward, forward, perform, run
from phitodeep.derivations.language.step import Arrange, Given, Let, Loop, Max, Step, Sum, flat
from phitodeep.errors import DerivationError
from phitodeep.layers import Lambda
from phitodeep.layers.base import Layer
from website.bench import inputs
from website.parts import BLOCK, typeset

TITLE = "## Derived, and by hand"
INTRO = "[`derive`](../derive.md) finds the backward steps from the forward steps alone. "
EQUAL = INTRO + "For this layer, it finds the steps of the derivation by hand."
DIFFERENT = INTRO + (
    "Where they differ from those by hand, both are shown: two ways to the same gradients, which "
    "a test compares for every layer. What both ways compute has the same name here. At a kink, "
    "which has no slope, they may choose different values."
)


class Row(NamedTuple):
    """Derived steps and those by hand that lead to the same value; `same` if nothing differs."""

    derived: Sequence[Step]
    hand: Sequence[Step]
    same: bool = False


def section(layer: Layer, Xs: Sequence[Array]) -> list[str]:
    """The blocks of a page: none if there is nothing to derive."""
    if isinstance(layer, Lambda) or layer.surrogate:
        return []
    both = Comparison(layer, Xs)
    rows = both.rows(both.steps, both.by_hand)
    if all(row.same for row in rows):
        return [TITLE, EQUAL]
    return [TITLE, DIFFERENT, f'<div class="wb-compared">{both.listed(rows)}</div>']


class Comparison:
    """Both backward passes of a layer, on more samples with other numbers.

    hand, derived    the symbols of each
    steps            what was derived, with the names of the derivation by hand
    """

    def __init__(self, layer: Layer, Xs: Sequence[Array]) -> None:
        rng = np.random.default_rng(0)
        more = [np.concatenate([X] * 7) for X in Xs]
        more = [X + rng.standard_normal(X.shape) if X.dtype.kind == "f" else X for X in more]
        with calling(step=0, first=0, training=True, caching=True, needs_dX=True):
            self.hand, self.derived = (Scope(layer, **inputs(layer, more)) for _ in range(2))
            for scope in (self.hand, self.derived):
                run(forward(scope))
            dY = rng.standard_normal(self.hand["Y"].shape)
            run(backward(self.hand, dY))
            inner = (*inputs(layer, Xs), *layer.params, *layer.tied)
            wanted = [name for name in inner if self.hand.find(f"d{name}") is not None]
            steps = reverse(self.derived.derivation.forward, self.derived, wanted)
            self.derived["dY"] = dY
            run(perform(steps, self.derived, "backward"))
        self.by_hand = self.hand.derivation.backward
        derived, symbols = map(symbols_of, (steps, self.by_hand))
        names = self.names(derived, symbols)
        if wrong := {*derived, *(f"d{name}" for name in wanted)} & {*symbols} - {*names}:
            raise AssertionError(f"{layer!r}: {wrong} by hand and as derived differ.")
        self.steps = [renamed(step, names) for step in steps]

    def names(self, derived: Sequence[str], hand: Sequence[str]) -> dict[str, str]:
        """The name by hand of each symbol that both compute: the same one, if it can be."""
        found: dict[str, str] = {}
        for name, other in (*zip(derived, derived, strict=True), *product(derived, hand)):
            free = name not in found and other in hand and other not in found.values()
            if free and close(self.derived.find(name), self.hand.find(other)):
                found[name] = other
        return found

    def rows(self, derived: Sequence[Step], hand: Sequence[Step]) -> list[Row]:
        """The steps in the order by hand, each with what was derived up to the same symbol."""
        known, rows = {step.symbol for step in hand}, list[Row]()
        left, alone = [*derived], list[Step]()
        for step in hand:
            at = next((k for k, other in enumerate(left) if other.symbol == step.symbol), None)
            if at is None:
                alone += [step] * self.counts(step)
                continue
            own, other = [s for s in left[:at] if s.symbol not in known], left[at]
            left = [s for s in left if s not in own and s is not other]
            same = isinstance(step, Given) or self.form(other) == self.form(step)
            if same or isinstance(step, Loop):
                rows += [Row(own, alone)] * bool(own or alone)
                rows.append(Row([other], [step], same))
            else:
                rows.append(Row([*own, other], [*alone, step]))
            alone = []
        return rows + [Row(left, alone)] * bool(left or alone)

    def listed(self, rows: Sequence[Row]) -> str:
        return f'<ol class="wb-steps">{"".join(map(self.row, rows))}</ol>'

    def row(self, row: Row) -> str:
        step, other = (row.hand or row.derived)[-1], row.derived and row.derived[-1]
        if isinstance(step, Loop) and isinstance(other, Loop):
            inner = self.listed(self.rows(other.body, step.body))
            return f'<li class="wb-loop">{self.typeset(step)}{inner}</li>'
        if row.same:
            return f"<li>{self.typeset(step)}</li>"
        return f"<li>{self.way('derived', row.derived)}{self.way('by hand', row.hand)}</li>"

    def way(self, title: str, steps: Sequence[Step]) -> str:
        body = "".join(map(self.typeset, steps))
        box = f'<div tabindex="0" role="group" aria-label="{title}"><p>{title}</p>{body}</div>'
        return box if steps else ""

    def typeset(self, step: Step) -> str:
        formula, words = typeset(step, BLOCK, self)
        said = step.formula.endswith(words)  # the words of other steps are on the page already
        return f"<div>{formula} {escape(words) if said else ''}</div>"

    def counts(self, step: Step) -> bool:
        """Whether a step computes numbers, rather than places."""
        return np.asarray(self.hand.find(step.symbol)).dtype.kind == "f"

    def __getitem__(self, symbol: str) -> Any:
        return (self.hand if symbol in self.hand else self.derived)[symbol]

    def form(self, step: Step) -> Any:
        """What two steps share if only the order of factors or the letters of indices differ."""
        match step:
            case Let():
                try:
                    return parse(step.code)
                except DerivationError:
                    return step.code
            case Sum() | Max():
                parts, out = step.letters(self)
                pairs = sorted(zip(step.operands, parts, strict=True))
                letters = "".join(dict.fromkeys("".join(part for _, part in pairs)))
                table = str.maketrans(letters, ascii_letters[: len(letters)])
                return [(n, part.translate(table)) for n, part in pairs], out.translate(table)
            case Returned():
                return step.gradient
            case Arrange():
                return step.of
            case Loop():
                return [self.form(inner) for inner in step.body]
        return step.code


def symbols_of(steps: Sequence[Step]) -> list[str]:
    return [step.symbol for step in flat(steps) if not isinstance(step, Loop)]


def close(A: Any, B: Any) -> bool:
    """Whether two arrays hold the same numbers, but for rounding."""
    return np.shape(A) == np.shape(B) and A is not None and np.allclose(A, B, 1e-9, 1e-12)


def renamed(step: Step, names: Mapping[str, str]) -> Step:
    """A step with other names for symbols."""

    def of(part: Any) -> Any:
        if isinstance(part, str):
            return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), part)
        if isinstance(part, Step):
            return renamed(part, names)
        return type(part)(map(of, part)) if isinstance(part, list | tuple) else part

    made, kept = copy(step), {"code", "child"} if isinstance(step, Sum | Max) else {"child"}
    vars(made).update({k: of(part) for k, part in vars(step).items() if k not in kept})
    return made
