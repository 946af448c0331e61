"""Find the first number of a training step that is not finite: `train(..., anomaly="raise")`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from phitodeep.errors import AnomalyError, DivergenceError
from phitodeep.inspect.debugger import Debugger
from phitodeep.layers.call import Call
from phitodeep.steps import notation
from phitodeep.steps.run import Position
from phitodeep.training.inputs import Data
from phitodeep.training.objective import Trainable
from phitodeep.types import Array

LISTED = 8  # samples that the message names


def anomaly(
    model: Trainable,
    batches: Sequence[Data],
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
    twin, first = model.copy(), 0
    total = sum(model.loss.divisor(b.T, b.w, b.outputs) for b in batches)
    for batch, places in zip(batches, rows, strict=True):
        call = Call(step=model.optimizer.t, first=first, mask=batch.mask)
        kept = batch._pick(lambda _, A: A.copy())  # training reuses its memory

        def debugger(kept: Data = kept, call: Call = call) -> Debugger:
            return Debugger(twin, kept, call, total)

        db = debugger()
        position = _first_bad(db)
        if position is not None:
            known = np.arange(len(batch.X)) if places is None else places
            return _error(db, position, epoch, step, debugger, known)
        first += len(batch.X)
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
    A = np.asarray(value)
    if A.dtype.kind != "f" or np.isfinite(A).all():
        return False
    step = position.step
    if np.isnan(A).any() or (((A > 0) & np.isinf(A)).any() and "inf" not in step.code):
        return True
    before = (np.asarray(position.scope.find(name)) for name in step.operands)
    masked = any(B.dtype.kind == "f" and np.isneginf(B).any() for B in before)
    return "inf" not in step.code and not masked


def _is_bad(value: Any) -> bool:
    A = np.asarray(value)
    return A.dtype.kind == "f" and not np.isfinite(A).all()


def _error(
    db: Debugger, position: Position, epoch: int, step: int, debugger: Any, places: Array
) -> AnomalyError:
    scope, found = position.scope, position.step
    value = np.asarray(db.value)
    inputs = tuple(name for name in found.operands if _is_bad(scope.find(name)))
    samples: tuple[int, ...] = ()
    if value.ndim and len(value) == len(places):
        bad = ~np.isfinite(value).reshape(len(places), -1).all(axis=1)
        samples = tuple(int(k) for k in places[bad])
    where = "the loss" if scope.path == "loss" else f"layer {scope.path}"
    reason = (
        f"{', '.join(inputs)} was not finite already" if inputs else "all that it reads is finite"
    )
    shown = ", ".join(map(str, samples[:LISTED])) + (" and others" if len(samples) > LISTED else "")
    error = AnomalyError(
        f"epoch {epoch}, step {step}: the first number that is not finite arises in {where}, "
        f"{scope.layer!r}, {position.direction}, in {position.name}: "
        f"{notation.text(found, None)}; {reason}{'; samples ' + shown if samples else ''}. "
        "No parameter has changed; error.replay() opens the debugger there.",
        scope.path,
        position.step.symbol,
    )
    error.epoch, error.step, error.direction = epoch, step, position.direction
    error.symbol, error.inputs, error.samples = found.symbol, inputs, samples
    steps = db.count - 1

    def replay() -> Debugger:
        replayed = debugger()
        with np.errstate(all="ignore"):
            for _ in range(steps):
                replayed.advance()
        return replayed

    error._debugger = replay
    return error
