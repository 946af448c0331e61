"""Tangents: from a derivation, the steps that say how every symbol moves.

If X and the parameters move along tX and tW, then every symbol A of a derivation moves along tA.
There is one rule for each kind of step:

    Let       the derivative of its expression              tY = tgamma X_hat + gamma tX_hat + tbeta
    Sum       linear in each factor: one sum for each       tY = sum X tW + sum tX W
    Arrange   the same places of the tangent                tU = windows of tX
    Join      the tangents side by side
    Max       the tangent of the element that is largest
    Carry     the previous tangent
    Loop      the body's tangents, in a loop of their own
    Through   the tangents of the layer inside
    Given     none: a size, a mask or what was drawn is a constant

The backward steps have tangents too, by the same rules. The tangent of dW is a Hessian times the
direction: no graph and no second derivation is needed. Both passes run first, and the tangents read
the symbols that they left in the scopes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from phitodeep.core.types import Array
from phitodeep.derivations.derive.algebra import atom, directional, parse, put, show
from phitodeep.derivations.derive.known import Known
from phitodeep.derivations.language import run
from phitodeep.derivations.language.returning import Returned, ToLargest
from phitodeep.derivations.language.run import Scope
from phitodeep.derivations.language.step import (
    Arrange,
    Carry,
    Derivation,
    Given,
    Join,
    Let,
    Loop,
    Max,
    Step,
    Sum,
    Through,
)
from phitodeep.errors import DerivationError

Directions = Mapping[tuple[Any, str], Array]  # of parameters: (layer, name) -> tangent


def tangents(derivation: Derivation, moving: Iterable[str], owner: str = "") -> Derivation:
    """Return the steps of the tangents of both passes.

        print(tangents(Dense(4, 3).steps(), moving=("X", "W")))

    moving    the names of X, dY and parameters that move; the others are constants
    owner     what errors call the layer
    """
    return _Tangents(derivation, {*moving}, owner).found()


class _Tangents:
    def __init__(self, derivation: Derivation, moving: set[str], owner: str) -> None:
        self.derivation, self.moving, self.owner = derivation, moving, owner
        self.known = Known(derivation.forward)
        taken = {step.symbol for step in derivation.every()}
        if clash := [name for name in taken if f"t{name}" in taken]:
            raise DerivationError(
                f"{owner}: t{clash[0]} is the tangent of {clash[0]}: give one of them another name."
            )

    def found(self) -> Derivation:
        forward, backward = self.derivation
        gate = bool(backward) and backward[-1].code == "dY * slope" and self.moving == {"X", "dY"}
        moved = self.all(forward)
        if gate:
            # Y may be written so that exp cannot overflow, with kinks that the function does not
            # have; at true kinks, the gradient decides. So the slope of the gradient is taken.
            moved = [step for step in moved if step.symbol != "tY"]
            moved += [*backward[:-1], Let("tY", "slope * tX")]
        return Derivation(moved, self.all(backward))

    def all(self, steps: Sequence[Step]) -> list[Step]:
        found: list[Step] = []
        for step in steps:
            new = [*self.of(step)]
            if new:
                self.moving.add(step.symbol)
            found += new
        return found

    def of(self, step: Step) -> Iterator[Step]:
        """The steps of a step's tangent; none if it does not move."""
        t, moving = f"t{step.symbol}", self.moving
        match step:
            case Let():
                moves = {name: atom(f"t{name}") for name in step.operands if name in moving}
                try:
                    tangent = self.known.shorten(directional(parse(step.code), moves))
                except DerivationError as error:
                    raise DerivationError(f"{self.owner}, {step!r}: {error.message}") from None
                if tangent:
                    yield Let(t, show(tangent))
            case Sum():
                yield from self.of_sum(step)
            case Arrange() if step.of in moving:
                yield Arrange(
                    t, put(step.code, {step.of: f"t{step.of}"}), f"t{step.of}", step.words
                )
            case Join() if not moving.isdisjoint(step.operands):
                yield from [Let(f"t{n}", f"0 * {n}") for n in step.operands if n not in moving]
                yield Join(t, *(f"t{n}" for n in step.operands), words=step.words)
            case Max() if step.operands[0] in moving:
                yield AtLargest(t, step)
            case Returned() if step.gradient in moving:
                yield Returned(t, f"t{step.gradient}", step.step)
            case ToLargest() if step.gradient in moving:
                yield ToLargest(t, f"t{step.gradient}", step.step)
            case Loop():
                yield from self.of_loop(step)
            case Carry():
                yield Carry(t, f"t{step.of}", f"t{step.start}", step.words)
            case Through():
                yield Inside(t, step)
            case Given() if "which has no steps()" in step.words:
                raise DerivationError(
                    f"{self.owner} has no steps(), so no tangents can be derived: write steps()."
                )

    def of_sum(self, step: Sum) -> Iterator[Step]:
        """The product rule: one sum for each factor that moves; equal sums are counted."""
        t, given = f"t{step.symbol}", step.code.replace(" ", "").partition("->")[0].split(",")
        moves = [k for k, name in enumerate(step.operands) if name in self.moving]
        sums: dict[Any, tuple[Sum, int]] = {}
        for k in moves:
            names = [f"t{n}" if i == k else n for i, n in enumerate(step.operands)]
            again = f"_{k}" * (step.operands.count(step.operands[k]) > 1)
            symbol = t if len(moves) == 1 else f"{t}_{step.operands[k]}{again}"
            same = tuple(sorted((n, given[i]) for i, n in enumerate(names)))
            first, count = sums.get(same, (Sum(symbol, step.code, *names), 0))
            sums[same] = first, count + 1
        yield from [total for total, _ in sums.values()]
        if len(moves) > 1:
            terms = [f"{n} * " * (n > 1) + total.symbol for total, n in sums.values()]
            yield Let(t, " + ".join(terms))

    def of_loop(self, loop: Loop) -> Iterator[Step]:
        """A state moves, so its start does, be it along 0."""
        still = {step.start for step in loop.body if isinstance(step, Carry)} - self.moving
        yield from [Let(f"t{name}", f"0 * {name}") for name in sorted(still)]
        yield Loop(loop.along, self.all(loop.body), reverse=loop.reverse)


class AtLargest(Step):
    """The tangent of the element that is the largest: of equal ones, the first."""

    def __init__(self, symbol: str, step: Max) -> None:
        (of,) = step.operands
        super().__init__(symbol, f"t{of} where {of} is largest", (f"t{of}", of))
        self.step, self.of = step, of

    def value(self, symbols: Any) -> Any:
        A, tA = symbols[self.of], np.broadcast_to(symbols[f"t{self.of}"], symbols[self.of].shape)
        first = self.step.rows(symbols, A).argmax(-1)[..., None]
        found = np.take_along_axis(self.step.rows(symbols, tA), first, -1)
        return found.reshape(np.shape(symbols[self.step.symbol]))


class Inside(Step):
    """The tangent of what a pass of a layer inside returns: tY from tX, or tdX from tdY."""

    def __init__(self, symbol: str, step: Through) -> None:
        super().__init__(symbol, f"tangent of {step.code}", ())
        self.step = step

    def value(self, symbols: Any) -> Any:
        inner, step = symbols.inside[self.step.child], self.step
        if step.runs:
            names = received(inner, "dY" if step.back else "X")
            for name, of in zip(names, step.operands, strict=False):  # a loss receives no dY
                if (moved := symbols.find(f"t{of}")) is not None:
                    inner[f"t{name}"] = moved
            perform(inner, "backward" if step.back else "forward")
        value, moved = inner.find(step.result), inner.find(f"t{step.result}")
        return np.zeros_like(value) if moved is None and value is not None else moved


# --- running them --------------------------------------------------------------------------------


def perform(scope: Scope, direction: str) -> None:
    """Run the tangents of a pass in a scope in which that pass has run."""
    if scope.tangents is None:
        moving = {name for name in scope.values if f"t{name}" in scope.values}
        moving |= {*received(scope, "dY")}
        scope.tangents = tangents(scope.derivation, moving, repr(scope.layer))
    for name in received(scope, "dY"):
        if name in scope.values and f"t{name}" not in scope.values:
            scope[f"t{name}"] = np.zeros_like(scope[name])
    steps = scope.tangents.forward if direction == "forward" else scope.tangents.backward
    run.run(run.perform(steps, scope, direction))


def received(scope: Scope, symbol: str) -> list[str]:
    """The symbols of what a pass of a layer receives; the backward pass of a loss receives none."""
    if hasattr(scope.layer, "params"):
        return run.symbols_of(scope.layer, symbol)
    return [] if symbol == "dY" else run.names_of(scope, "P")


def owned(layer: Any) -> dict[str, tuple[Any, str]]:
    """The parameters that a layer uses by their names in it: whose each is, and its name there."""
    return {name: (layer, name) for name in layer.params} | layer.tied


def seed(scope: Scope, directions: Directions) -> None:
    """Give the parameters of a layer, and of those inside, their tangents; 0 by default."""
    for name, (owner, own) in owned(scope.layer).items():
        moved = directions.get((owner, own))
        scope[f"t{name}"] = np.zeros_like(scope[name]) if moved is None else moved
    for inner in scope.inside.values():
        seed(inner, directions)
