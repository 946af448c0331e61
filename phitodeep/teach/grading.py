"""Grading: hidden batches, what a student's class makes of them, and one verdict per check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from phitodeep.core.checks import check_count, check_number
from phitodeep.core.types import Array
from phitodeep.derivations.language.run import Scope
from phitodeep.derivations.language.step import Given, Loop, Step, Sum, ones_in
from phitodeep.errors import ArgumentError, ArgumentTypeError, UnknownNameError
from phitodeep.layers import Layer
from phitodeep.loss import Loss
from phitodeep.teach import attempt
from phitodeep.teach.attempt import LIMIT, Answer, Question
from phitodeep.teach.exercises import EXERCISES, Exercise
from phitodeep.teach.mistakes import Mistake, Way, mistake
from phitodeep.teach.mutations import chain
from phitodeep.teach.report import LEVELS, Grade, Verdict
from phitodeep.teach.truth import Draw, ask, solve, symbols_of

ORDINARY = 2  # the fewest ordinary batches
FIRST = "Not checked yet: nothing else counts while the forward pass is wrong. Fix that first."
NOT_YET = "Not checked yet: no gradient is right so far."
CLOSE = {np.dtype(np.float64): 1e-7, np.dtype(np.float32): 2e-3}  # of the largest right number


def grade(
    layer_class: type[Any] | str,
    spec: str | Exercise = "dense",
    seed: int = 0,
    *,
    hints: int = 1,
    seconds: float = LIMIT,
) -> Grade:
    """Grade a layer or a loss that a student wrote.

    `spec` names one of `EXERCISES`, or is an Exercise. The class is built with other arguments,
    other parameters and batches of other shapes for every `seed`: an ordinary batch, a batch of 1,
    rank 3, and whatever else belongs to the exercise. What it returns is compared with the
    derivation of the reference layer.

    Points: 1 for the forward pass, 2 for each gradient on ordinary batches, 1 for each special
    batch, 1 for staying in float32, and 1 for having no side effects. Each wrong check has a
    verdict in words. A mistake is named only if it explains what came back on all batches. Nothing
    counts while the forward pass is wrong.

    What counts is what the class computes, not how: one that derives from phitodeep's own layer, or
    calls it, passes. Whether that is allowed is for you to say, and to check by reading.

    `hints` is the level of the hints that printing shows, from 0 to 3: see `Grade.hint`.

    The methods run in a process of their own, which sends back only arrays and sentences. Whatever
    they do there, such as raise, exit or loop, the verdict says what happened. A batch may take
    `seconds`, then the process is killed. A class that you pass was defined in your own process,
    where its module could do anything; `"homework.py::Dense"` instead of a class also runs the file
    in the other process. On Windows and in a browser there is none: see
    `phitodeep/teach/attempt.py`.

    Raises ArgumentTypeError if `layer_class` is not a class of layers or losses, ArgumentError if
    it names no file, and UnknownNameError for an unknown `spec`.
    """
    exercise = _exercise(spec)
    check_count(hints, "hints", minimum=0, maximum=len(LEVELS) - 1)
    check_number(seconds, "seconds", above=0)
    is_loss = isinstance(exercise.reference, type) and issubclass(exercise.reference, Loss)
    find, name = _source(layer_class, Loss if is_loss else Layer, exercise.name)
    rng = np.random.default_rng(check_count(seed, "seed", minimum=0))
    cases = exercise.cases(rng)
    if sum(not case.part for case in cases) < ORDINARY:
        raise ArgumentError(
            f"the exercise {exercise.name!r} needs at least {ORDINARY} ordinary batches, which are "
            f"cases without a part, got {cases}."
        )
    drawn = [ask(exercise, case, rng) for case in cases]
    questions = [question for question, _ in drawn]
    first = next(question for question in questions if not question.case.part)
    more = replace(first, dtype=np.float32), replace(first, before=_other_batch(first))
    *answers, single, again = attempt.ask(find, [*questions, *more], seconds)
    with np.errstate(all="ignore"):  # students return any numbers
        draws = [
            Draw(question, reference, solve(reference, question), answer)
            for (question, reference), answer in zip(drawn, answers, strict=True)
        ]
        verdicts = tuple(_Grading(draws, single, again).verdicts())
    return Grade(name, exercise.name, seed, verdicts, hints)


def _source(given: Any, kind: type[Any], exercise: str) -> tuple[Callable[[], type[Any]], str]:
    """What gives the class to the process that runs it, and its name."""
    if isinstance(given, type) and issubclass(given, kind):
        # by `type`, whatever its metaclass does
        return lambda: given, type.__dict__["__name__"].__get__(given)
    if isinstance(given, str):
        path, _, name = given.rpartition("::")
        if not Path(path).is_file():
            raise ArgumentError(
                f'grade takes a file and a class in it as "homework.py::Dense"; got {given!r}, but '
                f"{path!r} is not a file."
            )
        return cache(partial(attempt.load, path, name, kind)), name
    raise ArgumentTypeError(
        f"grade takes a class itself, a subclass of {kind.__name__}, as in "
        f"grade(Dense, {exercise!r}), got {given!r}."
    )


def _exercise(spec: str | Exercise) -> Exercise:
    if isinstance(spec, Exercise):
        return spec
    if not isinstance(spec, str) or spec not in EXERCISES:
        raise UnknownNameError.of(spec, EXERCISES, "one of the exercises")
    return EXERCISES[spec]


class _Grading:
    """The checks of one class, after all hidden batches ran."""

    def __init__(self, draws: Sequence[Draw], single: Answer, again: Answer) -> None:
        self.draws, self.single, self.again = draws, single, again
        self.ordinary = [draw for draw in draws if not draw.case.part]
        self.result, self.gradients = symbols_of(draws[0].reference)
        self.ways: list[Way] = []  # of the mistakes so far

    def verdicts(self) -> list[Verdict]:
        first = [self._compared("forward", self.result, 1), *map(self.gradient, self.gradients)]
        parts = dict.fromkeys(draw.case.part for draw in self.draws if draw.case.part)
        special = [self.special(part) for part in parts]
        for part, faults in (("float32", self.float32()), ("side effects", self.side_effects())):
            words, hint = next(faults, ("", ""))
            special.append(Verdict(part, not words, 1, words, (hint, "", "")))
        return [*first, *special]

    def gradient(self, symbol: str) -> Verdict:
        if not self._right(self.result):
            return Verdict(symbol, False, 2, FIRST)
        return self._compared(symbol, symbol, 2)

    def special(self, part: str) -> Verdict:
        """Everything that is right on ordinary batches, on the batches of one part."""
        draws = [draw for draw in self.draws if draw.case.part == part]
        ready = [s for s in (self.result, *self.gradients) if self._right(s)]
        if not set(ready) & set(self.gradients):
            return Verdict(part, False, 1, NOT_YET)
        for symbol in ready:
            for draw in draws:
                if words := _wrong(symbol, draw):
                    return Verdict(part, False, 1, words, self._hints(symbol, [draw]))
        left = [s for s in self.gradients if s not in ready]
        are = "are" if len(left) > 1 else "is"
        words = f"Checked without {_and(left)}, which {are} already wrong." if left else ""
        return Verdict(part, True, 1, words)

    def float32(self) -> Iterator[tuple[str, str]]:
        """Yield faults and hints: in float32, every result stays float32."""
        draw = self.ordinary[0]
        if not any(map(self._right, self.gradients)):
            yield NOT_YET, ""
        for symbol in (self.result, *self.gradients):
            A = self.single.arrays.get(symbol)
            if A is None and symbol in draw.answer.arrays:
                yield f"In float32, {self.single.missing(symbol)}", ""
            if A is not None and A.ndim and A.dtype != np.float32:
                yield (
                    f"{symbol} is {A.dtype}, although X is float32: a result keeps X's dtype.",
                    "Is there an np.sqrt(D) instead of D**0.5, an integer array, or an np.zeros or "
                    "np.ones without dtype=X.dtype?",
                )
            close = A is None or _difference(A, draw.array(symbol), np.float32) is None
            if not close and self._right(symbol):
                yield f"{symbol} is right in float64, but not in float32.", ""

    def side_effects(self) -> Iterator[tuple[str, str]]:
        """Yield faults and hints: arguments are left alone, and earlier batches leave no trace."""
        written = dict.fromkeys(w for draw in self.draws for w in draw.answer.written)
        if written:
            yield (
                f"These arrays must stay as they are, but were overwritten: {'; '.join(written)}.",
                "Operators such as += and *= write into their array: make a new one or a copy.",
            )
        if not any(map(self._right, self.gradients)):
            yield NOT_YET, ""
        draw = self.ordinary[0]._replace(answer=self.again)
        for symbol in (self.result, *self.gradients):
            if self._right(symbol) and _wrong(symbol, draw):
                yield (
                    f"After another batch, the same object returns a different {symbol}.",
                    "Does an attribute keep numbers from earlier batches, or does += add to it?",
                )

    # --- what the checks share -----------------------------------------------------------------

    def _right(self, symbol: str) -> bool:
        """Whether it counts: the forward pass and the symbol are right on all ordinary batches."""
        both = (self.result, symbol)
        return not any(_wrong(name, draw) for name in both for draw in self.ordinary)

    def _compared(self, part: str, symbol: str, points: int) -> Verdict:
        """Compare a symbol on all ordinary batches."""
        for draw in self.ordinary:
            if words := _wrong(symbol, draw):
                return Verdict(part, False, points, words, self._hints(symbol))
        return Verdict(part, True, points, "")

    def _hints(self, symbol: str, special: Sequence[Draw] = ()) -> tuple[str, str, str]:
        """The likely mistake, the formula, and the code."""
        found = mistake(symbol, [*self.ordinary, *special], self.ways) or Mistake("")
        self.ways.append(found.way)
        scope, (step, _) = self.ordinary[0].right, found.way
        return found.words, formula_hint(symbol, scope, step), code_hint(symbol, scope, step)


def _other_batch(question: Question) -> Question:
    """A batch with the same options and parameters, and other numbers; its first half."""
    rows = max(1, question.case.shape[0] // 2)
    given = {
        k: (0.5 - A[:rows] if A.dtype.kind == "f" else A[:rows]) for k, A in question.given.items()
    }
    return Question(question.case, given, question.params)


def _wrong(symbol: str, draw: Draw) -> str:
    """What is wrong with a symbol on one batch, in words; "" if it is right."""
    if words := draw.answer.missing(symbol):
        return words
    got, right = draw.answer.arrays[symbol], draw.array(symbol)
    where = f"for {'X' if 'X' in draw.question.given else 'P'} of shape {draw.case.shape}"
    options = ", ".join(f"{k}={v!r}" for k, v in draw.case.options.items())
    where += f" and {options}" if options else ""
    if got.shape != right.shape:
        return f"{symbol} should have shape {right.shape}, but has {got.shape}, {where}."
    if not np.isfinite(got).all():
        first = [int(i) for i in np.argwhere(~np.isfinite(got))[0]]
        whole = np.isnan(got).all() and symbol[1:] in draw.question.params
        return f"{symbol} contains NaN or infinity, first at {first}, {where}." + (
            f' All of it is NaN: self.grad_array("{symbol[1:]}") holds arbitrary numbers until you '
            f"write into it with {symbol}[...] = and neither {symbol} = nor +=."
            if whole
            else " Did an exp overflow, or was something divided by 0?"
        )
    worst = _difference(got, right, np.float64)
    if worst is None:
        return ""
    index = np.unravel_index(worst, right.shape)
    place = f"{symbol}{[int(i) for i in index]}" if index else symbol
    wrong = int((np.abs(got - right) > CLOSE[np.dtype(np.float64)] * _size(right)).sum())
    cells = f": {wrong} of {right.size} cells are wrong, this one most" if right.ndim else ""
    ours = right[index] if abs(right[index]) > 1e-12 * _size(right) else 0.0  # not -6e-15
    pairs = ((f"{ours:.{n}g}", f"{got[index]:.{n}g}") for n in range(6, 18))
    expected, came = next(pair for pair in pairs if pair[0] != pair[1])
    return f"{place} should be {expected}, but is {came}{cells}, {where}."


def _difference(got: Array, right: Array, dtype: Any) -> int | None:
    """The flat index of the worst cell, or None if all are close."""
    if got.shape != right.shape or not np.isfinite(got).all():
        return 0
    error = np.abs(got - right)
    return int(error.argmax()) if (error > CLOSE[np.dtype(dtype)] * _size(right)).any() else None


def _size(right: Array) -> float:
    """The number that differences are relative to."""
    return max(1e-3, float(np.abs(right).max(initial=0)))


def _and(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def formula_hint(symbol: str, scope: Scope, broken: str = "") -> str:
    """The formula of the broken step, or all formulas that the symbol follows from."""
    steps = _steps(symbol, scope, broken)
    lines = [f"  {step.formula}{_words(step)}" for step in steps]
    return "\n".join(["The formula:" if len(lines) == 1 else "The formulas:", *lines])


def code_hint(symbol: str, scope: Scope, broken: str = "") -> str:
    """The same as lines of NumPy, for arrays of the shapes in this scope."""
    steps = [step for step in _steps(symbol, scope, broken) if not isinstance(step, Given)]
    return "\n".join(["In NumPy:", *(f"  {code_of(step, scope)}" for step in steps)])


def code_of(step: Step, scope: Scope) -> str:
    """One step as a line of code."""
    if not isinstance(step, Sum):
        return f"{step.symbol} = {step.code}"
    inside = _at_some_time(step, scope)
    parts, out = step.letters(inside)
    kept = out.replace("1", "")
    call = f'np.einsum("{",".join(parts)}->{kept}", {", ".join(step.operands)})'
    return f"{step.symbol} = {f'np.expand_dims({call}, {ones_in(out)})' if '1' in out else call}"


def _steps(symbol: str, scope: Scope, broken: str) -> list[Step]:
    found = chain(symbol, scope.derivation)
    return [step for step in found if step.symbol == broken] if broken else found


def _at_some_time(step: Step, scope: Scope) -> Scope:
    """The symbols as the step sees them: inside a loop, the values of one round."""
    for loop in scope.derivation.every():
        if isinstance(loop, Loop) and step in loop.body:
            return scope.at(loop.times(scope)[-1])
    return scope


def _words(step: Step) -> str:
    return f"    ({step.words})" if step.words and step.words not in step.formula else ""
