"""Names for mistakes: what comes out of a known mistake is compared with what the student returned.

A mistake is named only if it explains all batches: on each of them, the student's array equals what
that mistake gives. Some mistakes can happen in every layer, such as a wrong constant. All others
are the mutations of the layer's own derivation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from phitodeep.steps.run import Position
from phitodeep.steps.step import Derivation, Step
from phitodeep.teach.mutations import Wrong, chain, mutations
from phitodeep.teach.truth import Draw, solve
from phitodeep.testing.diagnoses import alike, factor
from phitodeep.types import Array


class Mistake(NamedTuple):
    """A mistake in words, and the step of the derivation in which it happened, if that is known."""

    words: str
    step: str = ""


def mistake(symbol: str, draws: Sequence[Draw]) -> Mistake | None:
    """Name the mistake that explains a symbol on all batches that returned it, if one is known."""
    shaped = [d for d in draws if np.shape(_got(d, symbol)) == d.array(symbol).shape]
    if len(shaped) < len([d for d in draws if symbol in d.answer.arrays]):
        return _misshapen(symbol, draws)
    shaped = [d for d in shaped if np.isfinite(_got(d, symbol)).all()]
    wrong = [d for d in shaped if not alike(_got(d, symbol), d.array(symbol))]
    if not wrong:
        return None
    for words in _anywhere(symbol, shaped, wrong):
        return Mistake(words)
    return _mutated(symbol, wrong[:1] + [d for d in shaped if d is not wrong[0]])


def _got(draw: Draw, symbol: str) -> Array | None:
    return draw.answer.arrays.get(symbol)


def _explains(symbol: str, draws: Sequence[Draw], other: Callable[[Draw], Any]) -> bool:
    """Whether the student's arrays equal other ones on all batches."""
    for draw in draws:
        found = other(draw)
        if found is None or np.shape(found) != draw.array(symbol).shape:
            return False
        if not np.isfinite(found).all() or not alike(draw.answer.arrays[symbol], np.asarray(found)):
            return False
    return True


# --- in every layer ----------------------------------------------------------------------------

SIZES: dict[str, Callable[[Draw], int]] = {
    "the batch size": lambda d: d.case.shape[0],
    "the number of rows": lambda d: int(np.prod(d.case.shape[:-1])),
    "the size of the last axis": lambda d: d.case.shape[-1],
    "the number of elements of a sample": lambda d: int(np.prod(d.case.shape[1:])),
    "the number of elements of X": lambda d: int(np.prod(d.case.shape)),
}


def _anywhere(symbol: str, draws: Sequence[Draw], wrong: Sequence[Draw]) -> Iterator[str]:
    """Yield mistakes that do not depend on the layer."""

    def explains(other: Callable[[Draw], Any]) -> bool:
        return _explains(symbol, draws, other)

    if not any(d.answer.arrays[symbol].any() for d in draws):
        yield f"{symbol} is 0 everywhere: is it computed at all?"
        return
    if explains(lambda d: d.question.given.get("dY")):
        yield f"{symbol} is dY unchanged: what arrives must still be multiplied by the local slope."
    if explains(lambda d: -d.array(symbol)):
        yield f"{symbol} has the right size, but its sign is wrong everywhere."
    backward = symbol not in ("Y", "L")
    for name, count in SIZES.items():
        for times, power in (("small", -1), ("large", 1)):
            if explains(lambda d, c=count, p=power: d.array(symbol) * float(c(d)) ** p):
                seen = _listed(count(d) for d in wrong)
                why = ADVICE.get((times, symbol == "dP"), "") if backward else ""
                yield (
                    f"{symbol} has the right direction, but is too {times} by a factor that is "
                    f"{name} ({seen} here).{why}"
                )
    factors = [factor(d.answer.arrays[symbol].ravel(), d.array(symbol).ravel()) for d in draws]
    if min(factors) and np.ptp(factors) <= 1e-5 * abs(factors[0]) and np.size(draws) > 1:
        yield f"{symbol} is {factors[0]:.4g} times what it should be, on every batch."
    for name in draws[0].question.params:
        params = [_fitting(d.question.params[name], d.array(symbol)) for d in draws]
        if all(A is not None for A in params):
            times = {id(d): d.array(symbol) * A for d, A in zip(draws, params, strict=True)}
            if explains(lambda d, times=times: times[id(d)]):
                yield f"{symbol} has the factor {name} once too often."
    if backward and "dY" in draws[0].question.given:
        for other, words in UPSTREAM:
            if explains(lambda d, other=other: _with_upstream(d, other).get(symbol)):
                yield f"{symbol} {words}"
    if symbol == "dX" and all(map(_reordered, draws)):
        yield "dX holds the right rows, but in another order: they must be in the order of X."


UPSTREAM: tuple[tuple[Callable[[Draw], Any], str], ...] = (
    (lambda d: np.ones_like(d.question.given["dY"]), "ignores dY: it is right only if dY is 1."),
    (lambda d: d.question.given["X"], "is what comes out with X in place of dY."),
    (lambda d: d.array("Y"), "is what comes out with Y in place of dY."),
)


def _with_upstream(draw: Draw, other: Callable[[Draw], Any]) -> dict[str, Any]:
    """The right arrays if another array arrived, provided that it has the shape of dY."""
    dY = other(draw)
    if dY.shape != draw.question.given["dY"].shape:
        return {}
    return solve(draw.reference, draw.question, dY=dY).values


def _fitting(param: Array, right: Array) -> Array | None:
    """The parameter, if a product with it keeps the shape."""
    return param if param.shape == right.shape[right.ndim - param.ndim :] else None


ADVICE = {  # by the direction, and whether the gradient is that of a loss
    ("small", False): " The loss already divides by the batch size: a layer sums, and divides by nothing.",
    ("large", False): " Was a sum used instead of a mean?",
    ("small", True): " A loss divides once, by the batch size.",
    ("large", True): " If the loss is a mean, its gradient has the same divisor.",
}


def _listed(numbers: Any) -> str:
    *first, last = dict.fromkeys(str(n) for n in numbers)
    return f"{', '.join(first)} and {last}" if first else last


def _reordered(draw: Draw) -> bool:
    got, right = (A.reshape(len(A), -1) for A in (draw.answer.arrays["dX"], draw.array("dX")))
    order = [A[np.lexsort(np.round(A.T, 6))] for A in (got, right)]
    return alike(*order)


# --- shapes ------------------------------------------------------------------------------------

RESHAPED: tuple[tuple[Callable[[Array, Array], bool], str], ...] = (
    (lambda A, R: A.T.shape == R.shape and alike(A.T, R), "It is the right array, transposed."),
    (
        lambda A, R: A.size == R.size and alike(A.ravel(), R.ravel()),
        "Its numbers are right: it only needs a reshape (was keepdims left on?).",
    ),
    (
        lambda A, R: A.shape[-R.ndim :] == R.shape
        and alike(A.sum(axis=tuple(range(A.ndim - R.ndim))), R),
        "Its sum over the rows is right: sum over all axes except the last.",
    ),
)


def _misshapen(symbol: str, draws: Sequence[Draw]) -> Mistake | None:
    """Name what turns an array of another shape into the right one."""
    pairs = [
        (A, d.array(symbol))
        for d in draws
        if (A := _got(d, symbol)) is not None and A.shape != d.array(symbol).shape
    ]
    if symbol == "dX" and all(np.array_equal(d.answer.arrays["dX"], d.question.given["dY"]) for d in draws):
        return Mistake("It is dY unchanged.")
    for fits, words in RESHAPED:
        if all(fits(*pair) for pair in pairs):
            return Mistake(words)
    return None


# --- in this layer -----------------------------------------------------------------------------


def _mutated(symbol: str, draws: Sequence[Draw]) -> Mistake | None:
    """Find the mutation of the derivation that gives the student's arrays."""
    first, *others = draws
    derivation = first.right.derivation
    ways = [
        (step, sentence, wrong)
        for step in reversed(chain(symbol, derivation))
        for sentence, wrong in mutations(step, derivation)
    ]
    ways.sort(key=lambda way: " instead of `" in way[1])  # a lost part is likelier than a mix-up
    for step, sentence, wrong in ways:
        if _matches(symbol, first, step, wrong) and all(
            _again(symbol, draw, step.symbol, sentence) for draw in others
        ):
            words = f"This is exactly what comes out if `{step.symbol}` is computed {sentence}."
            return Mistake(words, step.symbol)
    return None


def _matches(symbol: str, draw: Draw, step: Step, wrong: Wrong) -> bool:
    """Whether a broken step gives the student's array."""

    def edit(derivation: Derivation) -> Callable[[Position, Any], Any]:
        steps = [*draw.right.derivation.every()]
        target = [*derivation.every()][steps.index(step)]  # the same place in a new derivation

        def edited(position: Position, value: Any) -> Any:
            if position.step is not target:
                return value
            try:
                other = position.scope.cast(np.asarray(wrong(position.scope)))
            except (ValueError, LookupError, NameError):  # other shapes, or a symbol of a later step
                return value
            return other if other.shape == np.shape(value) else value  # else it cannot go on

        return edited

    with np.errstate(all="ignore"):
        found = solve(draw.reference, draw.question, edit).find(symbol)
        return _explains(symbol, [draw], lambda _: found)


def _again(symbol: str, draw: Draw, broken: str, sentence: str) -> bool:
    """Whether the mutation of the same name gives the student's array on another batch."""
    derivation = draw.right.derivation
    for step in chain(symbol, derivation):
        if step.symbol == broken:
            for other, wrong in mutations(step, derivation):
                if other == sentence:
                    return _matches(symbol, draw, step, wrong)
    return False
