"""The right answers: the derivation of the reference, run step by step on hidden batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.call import calling
from phitodeep.core.types import Array
from phitodeep.derivations.language import run as stepwise
from phitodeep.derivations.language.run import Position, Scope
from phitodeep.derivations.language.step import Derivation
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


Edit = Callable[[Derivation], Callable[[Position, Any], Any]]


def solve(
    reference: Layer | Loss, question: Question, edit: Edit | None = None, dY: Array | None = None
) -> Scope:
    """Run both passes by the derivation; `edit` may break a step, `dY` replaces what arrives."""
    given = question.given
    with calling(training=True, step=0), np.errstate(all="ignore"):
        if isinstance(reference, Loss):
            P, y = given["P"], given["y"]
            T = reference.targets(y, P.shape)
            scope = Scope(reference, "loss", **givens(reference, P, T, None, None))
            programs = stepwise.forward(scope, "P"), stepwise.backward(scope)
        else:
            scope = Scope(reference, X=given["X"])
            upstream = given["dY"] if dY is None else dY
            programs = stepwise.forward(scope), stepwise.backward(scope, upstream)
        for program in programs:
            stepwise.run(program, None if edit is None else edit(scope.derivation))
    return scope


def symbols_of(reference: Layer | Loss) -> tuple[str, list[str]]:
    """The result of the forward pass, and the gradients."""
    if isinstance(reference, Loss):
        return "L", ["dP"]
    return "Y", ["dX", *(f"d{name}" for name in reference.params)]
