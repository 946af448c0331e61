"""Names for mistakes: what comes out of a known mistake is compared with what the student returned.

A mistake is named only if it explains all batches: on each of them, the student's array equals what
that mistake gives. Some mistakes can happen in every layer: they are those that the gradient
checker knows, and a few that only the right answers show. All others are the mutations of the
layer's own derivation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.types import Array
from phitodeep.derivations.language.run import Position
from phitodeep.derivations.language.step import Step
from phitodeep.teach.mutations import Wrong, chain, mutations
from phitodeep.teach.truth import Draw, solve, solve_again
from phitodeep.testing.diagnoses import SHAPES, alike, exact_diagnosis
from phitodeep.testing.report import Finding
from phitodeep.testing.slopes import Probe, Trial

Way = tuple[str, str]  # a step of the derivation, and how it is computed wrongly


class Mistake(NamedTuple):
    """A mistake in words, and the step of the derivation in which it happened, if that is known."""

    words: str
    way: Way = ("", "")


Other = Callable[[Draw, str], Any]  # what a symbol would be after a mistake, or None


@np.errstate(all="ignore")  # students return any numbers
def mistake(symbol: str, draws: Sequence[Draw], likely: Sequence[Way] = ()) -> Mistake | None:
    """Name the mistake that explains a symbol on all batches that returned it, if one is known.

    likely    ways that explain other symbols, which are tried first
    """
    returned = [d for d in draws if symbol in d.answer.arrays]
    if any(_got(d, symbol).shape != d.array(symbol).shape for d in returned):
        return _misshapen(symbol, returned)
    finite = [d for d in returned if np.isfinite(_got(d, symbol)).all()]
    if all(alike(_got(d, symbol), d.array(symbol)) for d in finite):
        return None
    if words := next(_anywhere(symbol, finite), ""):
        return Mistake(words)
    # those that are wrong come first, and small batches, which are faster to compute again
    finite.sort(key=lambda d: (alike(_got(d, symbol), d.array(symbol)), d.array(symbol).size))
    return _mutated(symbol, finite, likely)


def _got(draw: Draw, symbol: str) -> Array:
    return np.asarray(draw.answer.arrays[symbol], np.float64)  # float16 would overflow


def _explains(symbol: str, draws: Sequence[Draw], other: Other) -> bool:
    """Whether the student's arrays equal other ones on all batches."""
    for draw in draws:
        found = other(draw, symbol)
        if found is None or np.shape(found) != draw.array(symbol).shape:
            return False
        if not np.isfinite(found).all() or not alike(_got(draw, symbol), np.asarray(found)):
            return False
    return True


# --- in every layer ----------------------------------------------------------------------------


def _arriving(upstream: Callable[[Draw], Array]) -> Other:
    """The right array if another one arrived instead of dY, provided that the shapes agree."""

    def other(draw: Draw, symbol: str) -> Any:
        given = draw.question.given
        if symbol == "Y" or "dY" not in given or upstream(draw).shape != given["dY"].shape:
            return None
        return solve(draw.reference, draw.question, dY=upstream(draw)).find(symbol)

    return other


ANYWHERE: tuple[tuple[Other, str], ...] = (
    (
        _arriving(lambda d: np.ones_like(d.question.given["dY"])),
        "{} ignores dY: it is right only if dY is 1 everywhere.",
    ),
    (_arriving(lambda d: d.question.given["X"]), "{} is what comes out with X instead of dY."),
    (_arriving(lambda d: d.array("Y")), "{} is what comes out with Y instead of dY."),
)


def _anywhere(symbol: str, draws: Sequence[Draw]) -> Iterator[str]:
    """Yield mistakes that do not depend on the layer."""
    if diagnosis := exact_diagnosis([_finding(symbol, draw) for draw in draws]):
        yield f"{symbol}: {diagnosis}"
    for other, words in ANYWHERE:
        if _explains(symbol, draws, other):
            yield words.format(symbol)
    for name in draws[0].question.params:
        if _explains(symbol, draws, partial(_times, name)):
            yield f"{symbol} has the factor {name} once too often."
    if symbol == "dX" and all(map(_reordered, draws)):
        yield "dX holds the right rows, but in another order: they must be in the order of X."


def _finding(symbol: str, draw: Draw) -> Finding:
    """What the gradient checker would have found: every entry is probed."""
    got, right, given = _got(draw, symbol), draw.array(symbol), draw.question.given
    pairs = enumerate(zip(got.flat, right.flat, strict=True))
    probes = {i: Probe(a, b, 1.0, "wrong") for i, (a, b) in pairs}
    arrays = {"dX": given["X"], **draw.question.params} if "X" in given else {}
    shapes = {"": draw.case.shape}
    trial = Trial(lambda: None, None, given.get("dY"), arrays, {symbol: got}, shapes, None, None)
    return Finding(symbol, trial, [], probes, [])


def _times(name: str, draw: Draw, symbol: str) -> Array | None:
    """The right array times a parameter, if that keeps its shape."""
    right, param = draw.array(symbol), draw.question.params[name]
    return right * param if right.shape[-param.ndim :] == param.shape else None


def _reordered(draw: Draw) -> bool:
    got, right = (A.reshape(len(A), -1) for A in (_got(draw, "dX"), draw.array("dX")))
    first, second = (A[np.lexsort(np.round(A.T, 6))] for A in (got, right))
    return alike(first, second)


# --- shapes ------------------------------------------------------------------------------------


def _misshapen(symbol: str, draws: Sequence[Draw]) -> Mistake | None:
    """Name what turns arrays of other shapes into the right ones."""
    wrong = [d for d in draws if _got(d, symbol).shape != d.array(symbol).shape]
    if symbol == "dX" and all(np.array_equal(_got(d, "dX"), d.question.given["dY"]) for d in wrong):
        return Mistake("It is dY unchanged.")
    for fits, words in SHAPES:
        if all(fits(_got(d, symbol).shape, d.array(symbol).shape) for d in wrong):
            return Mistake(words)
    return None


# --- in this layer -----------------------------------------------------------------------------


def _mutated(symbol: str, draws: Sequence[Draw], likely: Sequence[Way]) -> Mistake | None:
    """Find the mutation of the derivation that gives the student's arrays."""
    ways = cache(lambda k: _ways(symbol, draws[k]))  # most are needed for the first batch only
    # a lost part is likelier than a mix-up
    for way in sorted(ways(0), key=lambda way: (way not in likely, " instead of `" in way[1])):
        if all(way in ways(k) and _matches(symbol, d, *ways(k)[way]) for k, d in enumerate(draws)):
            step, sentence = way
            words = f"This is exactly what comes out if `{step}` is computed {sentence}."
            return Mistake(words, way)
    return None


def _ways(symbol: str, draw: Draw) -> dict[Way, tuple[Step, Wrong]]:
    """All mutations of the steps that a symbol follows from, the last step first."""
    derivation, found = draw.right.derivation, dict[Way, tuple[Step, Wrong]]()
    for step in reversed(chain(symbol, derivation)):
        for sentence, wrong in mutations(step, derivation):
            found.setdefault((step.symbol, sentence), (step, wrong))
    return found


def _matches(symbol: str, draw: Draw, step: Step, wrong: Wrong) -> bool:
    """Whether a broken step gives the student's array."""

    def edit(position: Position, value: Any) -> Any:
        if position.step is not step:
            return value
        try:
            other = position.scope.cast(np.asarray(wrong(position.scope)))
        except (ValueError, LookupError, NameError):  # other shapes, or a symbol of a later step
            return value
        return other if other.shape == np.shape(value) else value  # else it cannot go on

    found = solve_again(draw, step, edit).find(symbol)
    return _explains(symbol, [draw], lambda *_: found)
