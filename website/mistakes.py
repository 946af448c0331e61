"""A layer with one mistake in its backward pass, and what the gradient checker says about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.types import Array
from phitodeep.derivations.language.notation import PLAIN
from phitodeep.derivations.language.run import Position, Scope, backward, forward, gradients, run
from phitodeep.derivations.language.step import Arrange, Derivation, Step, Through
from phitodeep.errors import ArgumentError
from phitodeep.layers import Lambda
from phitodeep.layers.base import Layer
from phitodeep.teach.mutations import mutations
from phitodeep.testing import GradientError, check_gradients
from website.bench import inputs, one

MOST = 3
DULL = ("without the factor `dY`", "with `dY` transposed", "with `V` transposed")


class Mistake(NamedTuple):
    step: Step
    sentence: str
    verdict: str


def broken(layer: Layer, symbol: str, wrong: Any) -> Layer:
    """A copy of a layer whose backward pass runs its derivation, with one step done wrongly."""
    kind = type(layer)

    def go(self: Any, *Xs: Array) -> Array:
        vars(self)["seen"] = inputs(self, [X.copy() for X in Xs])
        return kind.forward(self, *Xs)

    def back(self: Any, dY: Array) -> Any:
        def edit(position: Position, value: Any) -> Any:
            here = position.scope is scope and position.direction == "backward"
            return wrong(position.seen) if here and position.step.symbol == symbol else value

        scope = Scope(self, **vars(self)["seen"])
        run(forward(scope))
        run(backward(scope, dY), edit)
        parts = dict(self.walk())
        for path, gradient in gradients(scope).items():
            owner, _, name = path.rpartition(".")
            parts[owner].grad_array(name)[...] = gradient
        return one([scope.find(f"d{X}") for X in vars(self)["seen"]])

    def steps(self: Layer) -> Derivation:  # those of a source would be compared with `back`
        return kind.steps(layer if isinstance(layer, Lambda) else self)

    made = layer.copy()
    made.__class__ = type(kind.__name__, (kind,), {"forward": go, "backward": back, "steps": steps})
    return made


def verdict(layer: Layer, Xs: Sequence[Array]) -> str:
    """What the checker says: its report, or its error."""
    with np.errstate(all="ignore"):
        try:
            return str(check_gradients(layer, one(Xs)))
        except (GradientError, ArgumentError) as error:
            return str(error)


def mistakes(
    layer: Layer, Xs: Sequence[Array], derivation: Derivation, wanted: Sequence[tuple[str, str]]
) -> list[Mistake]:
    """The wanted mistakes, or the likeliest that the checker finds."""
    found: list[Mistake] = []
    for step, sentence, wrong in candidates(derivation, wanted):
        try:
            said = verdict(broken(layer, step.symbol, wrong), Xs)
        except (ValueError, LookupError, NameError):  # this mistake does not even run
            said = ""
        if "has wrong gradients" in said:
            found.append(Mistake(step, sentence, said))
        elif wanted:
            raise AssertionError(f"{layer!r}: the checker does not mind {sentence!r}:\n{said}")
        if len(found) == MOST:
            break
    return found


def candidates(
    derivation: Derivation, wanted: Sequence[tuple[str, str]]
) -> Iterator[tuple[Step, str, Any]]:
    """The step, the sentence and the function of each mistake to try."""
    back = [*Derivation([], derivation.backward).every()]
    steps = {step.symbol: step for step in back}
    if wanted:
        for symbol, part in wanted:
            every = list(mutations(steps[symbol], derivation))
            hits = [(sentence, wrong) for sentence, wrong in every if part in sentence]
            if not hits:
                raise AssertionError(f"{symbol} has no mistake {part!r}: {[s for s, _ in every]}")
            yield steps[symbol], *hits[0]
        return
    for step in reversed(back):
        if isinstance(step, Through | Arrange):
            said = "without the layer's slope" if isinstance(step, Through) else "left as it is"
            yield step, f"as `{PLAIN.symbol(step.of)}` {said}", itemgetter(step.of)
        plain = (m for m in mutations(step, derivation) if not m[0].startswith(DULL))
        for sentence, wrong in list(plain)[:1]:
            yield step, sentence, wrong
