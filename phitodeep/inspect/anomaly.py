"""Find the first number of a training step that is not finite: `train(..., anomaly="raise")`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from phitodeep.core.call import Call
from phitodeep.core.types import Array
from phitodeep.derivations.language import run
from phitodeep.derivations.language.run import Position, Scope
from phitodeep.derivations.language.step import Let, Max, Sum, Through
from phitodeep.errors import AnomalyError, DivergenceError, first_few
from phitodeep.inspect.debugger.debugger import Debugger
from phitodeep.inspect.hooks import active, edit_of
from phitodeep.training.objective import Trainable
from phitodeep.training.ranks import Work

LISTED = 8  # samples that the message names


def anomaly(
    model: Trainable,
    work: Work,
    rows: Sequence[Array | None],
    epoch: int,
    step: int,
    error: DivergenceError,
) -> DivergenceError:
    """Return the error to raise for a step that failed, which changed no parameter.

    rows    the places in the data of each batch's samples, or None if they are not known

    The step runs again on a copy, by the derivations of its layers and as written, until a value is
    not finite. If all are finite, the original error is returned.
    """
    twin, hooks, total = model.copy(), edit_of(active(model)), work.total
    if total is None:
        total = sum(model.loss.divisor(b.T, b.w, b.outputs) for b in work.batches)
    for batch, first, places in zip(work.batches, work.firsts, rows, strict=True):
        call = Call(step=model.optimizer.t, first=first, mask=batch.mask)
        kept = batch._pick(lambda A: A[:].copy())  # training reuses its memory
        db = Debugger(twin, kept, call, total, hooks)
        if position := _first_bad(db):
            known = np.arange(batch.n) if places is None else places
            return _error(db, position, epoch, step, known)
    error.message += " Run by the derivations of its layers, the step is finite: overflow in the "
    error.message += "shortcuts or in a layer without steps() may be the cause."
    return error


@np.errstate(all="ignore")
def _first_bad(db: Debugger) -> Position | None:
    """Advance until a value is not finite, and return its position."""
    while db.position is not None:
        position = db.advance()
        if _arises(position, db.value):
            return position
    return None


def _arises(position: Position, value: Any) -> bool:
    """Whether a value is not finite, other than by design.

    Masks and padding are -inf on purpose: such a value is written in the step's code, or was there
    before.
    """
    if not _is_bad(value):
        return False
    step, A = position.step, np.asarray(value)
    written = step.code.replace("-np.inf", "")
    if np.isnan(A).any() or (np.isposinf(A).any() and "np.inf" not in written):
        return True
    before = (np.asarray(position.scope.find(name)) for name in step.operands)
    masked = any(B.dtype.kind == "f" and np.isneginf(B).any() for B in before)
    return "inf" not in step.code and not masked


def _is_bad(value: Any) -> bool:
    A = np.asarray(value)
    return A.dtype.kind == "f" and not np.isfinite(A).all()


def _has_samples(scope: Scope, symbol: str, n: int, seen: tuple[str, ...] = ()) -> bool:
    """Whether the first axis of a symbol counts the n samples, as in Y but not in W or dW."""
    known, value = vars(scope.layer), scope.find(symbol)
    own = {*known.get("params", ()), *known.get("state", ())}
    if symbol in seen or symbol in own or not np.ndim(value) or len(value) != n:
        return False
    step = next((s for s in scope.derivation.every() if s.symbol == symbol), None)
    if step is None or not step.operands:  # what a pass receives, or a drawn mask
        return True
    reads = list(step.operands)
    if isinstance(step, Sum | Max):
        parts, out = step.letters(scope)
        reads = [name for name, part in zip(reads, parts, strict=True) if part[:1] == out[:1]]
    elif isinstance(step, Let):  # which broadcasts from the right
        reads = [name for name in reads if np.ndim(scope.find(name)) == np.ndim(value)]
    return any(_has_samples(scope, name, n, (*seen, symbol)) for name in reads)


def _error(db: Debugger, position: Position, epoch: int, step: int, places: Array) -> AnomalyError:
    scope, found = position.scope, position.step
    value = np.asarray(db.value)
    inputs = tuple(name for name in found.operands if _is_bad(scope.find(name)))
    samples: tuple[int, ...] = ()
    if _has_samples(scope, found.symbol, len(places)) and len(value) == len(places):
        bad = ~np.isfinite(value).reshape(len(places), -1).all(axis=1)
        samples = tuple(int(k) for k in places[bad])
    path, layer, symbol, name = scope.path, scope.layer, found.symbol, position.name
    if isinstance(found, Through):  # what a layer inside passed on, replaced by a hook
        layer, symbol = layer.children()[found.child], "dX" if found.back else "Y"
        path, name = run.path_inside(path, found.child), symbol
    where = {"loss": "the loss", "": "the model"}.get(path, f"layer {path}")
    verb = "was" if len(inputs) == 1 else "were"
    reason = f"{', '.join(inputs)} {verb} not finite already"
    reason = reason if inputs else "all that it reads is finite"
    shown = first_few([*map(str, samples)], LISTED)
    shown = f"; sample{'s' * (len(samples) > 1)} {shown}" if samples else ""
    error = AnomalyError(
        f"epoch {epoch}, step {step}: the first number that is not finite arises in {where}, "
        f"{layer!r}, {position.direction}, in {name}: "
        f"{found.formula}; {reason}{shown}. "
        "No parameter has changed; error.replay() opens the debugger there.",
        path,
        symbol,
    )
    error.epoch, error.step, error.direction = epoch, step, position.direction
    error.symbol, error.inputs, error.samples = symbol, inputs, samples
    values = db._values[:-1]
    error._debugger = lambda: db._again(values)
    return error
