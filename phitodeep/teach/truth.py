"""The right answers: the derivation of the reference, run step by step on hidden batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.call import calling
from phitodeep.core.types import Array
from phitodeep.derivations.language import run as stepwise
from phitodeep.derivations.language.run import Position, Scope
from phitodeep.derivations.language.step import Step, flat
from phitodeep.derivations.losses import givens
from phitodeep.layers import Layer
from phitodeep.loss import Loss
from phitodeep.teach.attempt import Answer, Question
from phitodeep.teach.exercises import Case, Exercise
from phitodeep.testing.examples import made


class Draw(NamedTuple):
    """One hidden batch, the right symbols for it, and what the student's class returned."""

    question: Question
    reference: Layer | Loss
    right: Scope
    answer: Answer

    @property
    def case(self) -> Case:
        return self.question.case

    def array(self, symbol: str) -> Array:
        """The right array."""
        return np.asarray(self.right[symbol])


def ask(exercise: Exercise, case: Case, rng: np.random.Generator) -> tuple[Question, Layer | Loss]:
    """Draw the data of a batch, and make the reference with the same parameters, in float64."""
    reference = exercise.reference(**case.options)
    X = case.scale * rng.standard_normal(case.shape) + case.shift
    if isinstance(reference, Loss):
        labels = rng.integers(0, case.shape[-1], case.shape[:-1])
        return Question(case, {"P": X, "y": labels}, {}), reference
    layer = made(lambda: reference, case.shape, seed=int(rng.integers(2**31)))
    dY = rng.standard_normal((len(X), *(layer.output_shape or ())))
    params = {name: A.copy() for name, A in layer.params.items()}
    return Question(case, {"X": X, "dY": dY}, params), layer


def solve(reference: Layer | Loss, question: Question, dY: Array | None = None) -> Scope:
    """Run both passes by the derivation; `dY` replaces what arrives."""
    given = question.given
    with calling(training=True, step=0), np.errstate(all="ignore"):
        if isinstance(reference, Loss):
            T = reference.targets(given["y"], given["P"].shape)
            scope = Scope(reference, "loss", **givens(reference, given["P"], T, None, None))
            stepwise.run(stepwise.forward(scope, "P"))
        else:
            scope = Scope(reference, X=given["X"])
            stepwise.run(stepwise.forward(scope))
        stepwise.run(stepwise.backward(scope, given.get("dY") if dY is None else dY))
    return scope


def solve_again(draw: Draw, step: Step, edit: Callable[[Position, Any], Any]) -> Scope:
    """Run the passes once more from the one that has this step; `edit` may replace its value."""
    scope, given = draw.right.at(None), draw.question.given
    back = [*flat(scope.derivation.backward)]
    first = step not in back
    symbols = {each.symbol for each in (scope.derivation.every() if first else back)}
    scope.values = {name: A for name, A in scope.values.items() if name not in symbols}
    scope._series = {k: dict(rounds) for k, rounds in scope._series.items() if k not in symbols}
    with np.errstate(all="ignore"):
        if first:
            stepwise.run(stepwise.forward(scope, "P" if "P" in given else "X"), edit)
        stepwise.run(stepwise.backward(scope, given.get("dY")), edit)
    return scope


def symbols_of(reference: Layer | Loss) -> tuple[str, list[str]]:
    """The result of the forward pass, and the gradients."""
    if isinstance(reference, Loss):
        return "L", ["dP"]
    return "Y", ["dX", *(f"d{name}" for name in reference.params)]
