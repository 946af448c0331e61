"""Whether Y is linear in X and in the parameters, from the degrees of a layer's forward steps.

Each symbol is a sum of terms. X and a parameter are terms of degree 1, a product has the degrees of
its factors, and a function of what moves has none. Y of Dense has the terms X W and b.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from phitodeep.derivations.derive.algebra import parse
from phitodeep.derivations.derive.tangents import tangents
from phitodeep.derivations.language.step import (
    OUTPUT,
    Arrange,
    Derivation,
    Join,
    Let,
    Loop,
    Step,
    Sum,
    names_in,
)

Names = frozenset[str]
Term = tuple[int, tuple[str, ...]]  # how often X is a factor, and which parameters are
Degrees = dict[str, set[Term]]  # the terms of each symbol that moves
CONSTANT: Term = (0, ())


def biases(steps: Sequence[Step], X: Names, params: Names) -> Names | None:
    """Return the parameters that X does not multiply, or None if Y is not linear.

    Linear is Y whose terms have one factor X, or none, and one parameter if there are any.
    """
    degrees: Degrees = {n: {(1, ())} for n in X}
    degrees |= {n: {(0, (n,))} for n in params}
    for step in steps:
        moving = degrees.keys() & {*step.operands}
        match step:
            case Loop():
                return None
            case _ if not moving:
                continue
            case Let():
                sums = [_product(degrees, dict(powers)) for powers in parse(step.code)]
            case Sum():
                sums = [_product(degrees, Counter(step.operands))]
            case Arrange() if moving == {step.of}:
                sums = [degrees[step.of]]
            case Join():
                sums = [_product(degrees, {n: 1}) for n in step.operands]
            case _:
                return None
        found = set[Term]()
        for terms in sums:
            if terms is None:
                return None
            found |= terms
        degrees[step.symbol] = found
    ends = [degrees.get(step.symbol, {CONSTANT}) for step in steps if OUTPUT.fullmatch(step.symbol)]
    terms = set[Term]().union(*ends)
    alone, factors = ({own for x, own in terms if x == k} for k in (0, 1))
    if any(x > 1 or len(own) != bool(params) for x, own in terms) or alone & (factors | {()}):
        return None
    return Names(n for own in alone for n in own)


def _product(degrees: Degrees, factors: Mapping[str, Any]) -> set[Term] | None:
    """The terms of a product of powers; None if it is not a product of what moves."""
    found = {CONSTANT}
    for text, k in factors.items():
        if not degrees.keys() & {*names_in(text)}:
            continue
        if text not in degrees or k != 1:
            return None
        found = {(x + y, a + b) for x, a in found for y, b in degrees[text]}
    return found


def is_gate(derivation: Derivation) -> bool:
    """Whether each element is multiplied by a slope that is constant, but for kinks."""
    gate = [step.code for step in derivation.backward[-1:]] == ["dY * slope"]
    return gate and "tslope" not in {s.symbol for s in tangents(derivation, ("X", "dY")).backward}
