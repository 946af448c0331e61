"""How the debugger shows its place: the layer and the pass, their steps, and the whole step."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from phitodeep.derivations.language.run import Input, Position, Scope, received
from phitodeep.derivations.language.step import Loop, Step, Through
from phitodeep.inspect.entries import rms
from phitodeep.inspect.trace import kind_of

GIVEN = {"X": "the input", "dY": "dL/dY, which arrives", "P": "the predictions"}
WIDEST = 48  # characters of a formula in a list
FEW = 3  # numbers that a list shows in full
BAR = 18  # characters of the forward and the backward pass in the strip


def heading(position: Position) -> str:
    """The layer and the pass of a position."""
    inside = "" if position.t is None else f", t = {position.t}"
    path = f"{position.scope.path}." if position.scope.path else ""
    return f"{path}{position.direction} of {kind_of(position.scope.layer)}{inside}"


def formula(step: Step) -> str:
    """A step as plain text."""
    if not isinstance(step, Input):
        return step.formula.replace("= layers.", "= ")
    return f"{step.symbol} = {GIVEN[step.symbol.rstrip('0123456789')]}"


def listing(
    position: Position, arrow: Step | None, star: Step | None = None, around: int | None = None
) -> str:
    """The steps of a pass, one per line, with the shape and size of what has been computed.

    arrow     the step that runs next, marked with ->
    star      a step that is marked with *
    around    how many steps before and after the marked one are shown; None for all
    """
    scope, rows = position.scope, list(_rows(position))
    marks = {step.symbol: mark for step, mark in ((star, " *"), (arrow, "->")) if step is not None}
    at = next((k for k, (_, step) in enumerate(rows) if step.symbol in marks), 0)
    first = 0 if around is None else max(0, min(at - around, len(rows) - 2 * around - 1))
    shown = rows[first:] if around is None else rows[first : first + 2 * around + 1]
    texts = ["  " * depth + _shortened(_with_layer(step, scope)) for depth, step in shown]
    width = max(map(_width, texts))
    lines = []
    for text, (_, step) in zip(texts, shown, strict=True):
        mark, space = marks.get(step.symbol, "  "), " " * (width - _width(text))
        size = "" if mark == "->" else _size(step, scope)
        lines.append(f"{mark} {text}{space}  {size}".rstrip())
    before, after = first, len(rows) - first - len(shown)
    return "\n".join([*_more(before, "earlier"), *lines, *_more(after, "later")])


def _rows(position: Position) -> Iterator[tuple[int, Step]]:
    """What the pass receives, then its steps, each with its depth in loops."""
    for name in received(position.scope.layer)[position.direction]:
        yield 0, Input(name, "given", lambda _: None)
    yield from _deep(getattr(position.scope.derivation, position.direction))


def is_loss(path: str) -> bool:
    """Whether a scope belongs to the loss, or to one of several losses."""
    return path.partition(".")[0] == "loss"


def _deep(steps: Sequence[Step], depth: int = 0) -> Iterator[tuple[int, Step]]:
    for step in steps:
        yield depth, step
        if isinstance(step, Loop):
            yield from _deep(step.body, depth + 1)


def _with_layer(step: Step, scope: Scope) -> str:
    """The formula, and which layer it goes through."""
    if not isinstance(step, Through):
        return formula(step)
    return f"{formula(step):23}  {kind_of(scope.layer.children()[step.child])}"


def _size(step: Step, scope: Scope) -> str:
    """The shape of what a step has computed, and its numbers, or |A| if there are many."""
    value = None if isinstance(step, Loop) else scope.find(step.symbol)
    if value is None:
        return ""
    numbers = np.asarray(value).reshape(-1)
    if len(numbers) <= FEW and numbers.dtype.kind in "biuf":
        return f"{np.shape(value)!s:9} {', '.join(f'{x:.4g}' for x in numbers)}"
    return f"{np.shape(value)!s:9} |{rms(value):.4g}|"


def _more(count: int, which: str) -> list[str]:
    return [f"   ... {count} {which}"] if count else []


def _shortened(text: str) -> str:
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"


def _width(text: str) -> int:
    """The number of columns of a text, whose combining marks take none."""
    return sum(not unicodedata.combining(character) for character in text)


def known(scope: Scope) -> tuple[str, ...]:
    """The symbols that have a value; in a loop, in this round of it."""
    return tuple(name for name in {**scope.values, **scope._series} if name in scope)


def so_far(scope: Scope, names: Iterable[str] | None = None) -> str:
    """Which symbols a scope has, for messages."""
    listed = ", ".join(known(scope) if names is None else names) or "nothing"
    return f"{scope.path or 'the model'} has so far {listed}"


def strip(model: Scope, position: Position | None) -> str:
    """How far the whole step has come: `forward ━━━━ loss ━━ backward ━╸──`."""
    phases = ("forward", "loss", "backward")
    if position is None:
        now, share = len(phases), 0.0
    elif is_loss(position.scope.path):
        now, share = 1, 0.5 if position.direction == "backward" else 0.0
    else:
        now, share = phases.index(position.direction), _share(model, position)
    shares = [1.0] * now + [share] + [0.0] * len(phases)
    bars = [
        f"{name} {_bar(BAR if name != 'loss' else 4, share, k == now)}"
        for k, (name, share) in enumerate(zip(phases, shares, strict=False))
    ]
    return "  ".join(bars)


def _share(model: Scope, position: Position) -> float:
    """The share of the model's own layers that have run in this pass; half of the current one."""
    steps = getattr(model.derivation, position.direction)
    layers = [step for step in steps if isinstance(step, Through)]
    done = sum(step.symbol in model for step in layers)
    current = 0.5 if position.scope.path else float(isinstance(position.step, Through))
    return (done + current) / max(1, len(layers))


def _bar(width: int, share: float, now: bool) -> str:
    done = min(int(share * width), width - now)
    return "━" * done + "╸" * now + "─" * (width - done - now)
