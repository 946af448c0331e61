"""Callbacks: what happens at the ends of batches and epochs of training.

Logs are a dict with `train_loss`, and where there is test data `test_loss`, and the metrics as
`train_accuracy`, `test_accuracy` and so on. Epochs count from 1, over all calls of `train`.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from phitodeep.checks import as_real, check_count, check_number, class_hint
from phitodeep.config import Configurable, register, restored
from phitodeep.errors import ArgumentError, ArgumentTypeError, DataError, warn
from phitodeep.files import atomic_write
from phitodeep.layers.base import Layer
from phitodeep.state import StateDict, check_entries, is_number, plain
from phitodeep.types import Array, describe

Logs = Mapping[str, float]


class StopTraining(Exception):  # a request, not an error
    """Raised by a callback: training ends in order, after the work of this moment."""


class Callback(Configurable):
    """Override what you need. To end training, raise StopTraining from any of them."""

    config_kind = "callback"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        known = [name for name in vars(Callback) if name.startswith("on_")]
        for name in vars(cls):
            if name.startswith("on_") and name not in known:
                warn(f"{cls.__name__}.{name} is never called: training calls {', '.join(known)}.")

    def __repr__(self) -> str:
        return describe(self)

    def on_train_begin(self, model: Layer) -> None:
        """Before the first batch."""

    def on_epoch_begin(self, model: Layer, epoch: int) -> None:
        """Before an epoch's first batch."""

    def on_batch_end(self, model: Layer, step: int, loss: float) -> None:
        """After an optimizer step; `loss` is that batch's."""

    def on_epoch_end(self, model: Layer, epoch: int, logs: Logs) -> None:
        """After an epoch and its evaluation."""

    def on_train_end(self, model: Layer) -> None:
        """After the last epoch, also when training was stopped or interrupted."""

    def state_dict(self) -> StateDict:
        """What the callback remembers, as plain values and copies of arrays: override both."""
        return {}

    def load_state_dict(self, state: StateDict) -> None:
        """Go on from what `state_dict` gave; refuse what it cannot be."""
        check_entries(state, (), f"the state of {self!r}")


def as_callbacks(callbacks: Any) -> list[Callback]:
    """One callback or several, as a list."""
    held = list(callbacks) if isinstance(callbacks, Sequence) else [callbacks]
    for callback in held:
        if not isinstance(callback, Callback):
            raise ArgumentTypeError(
                f"callbacks must be Callback objects, got {callback!r}.{class_hint(callback)}"
            )
    return held


class LambdaCallback(Callback):
    """Functions in the place of methods: `LambdaCallback(on_epoch_end=f)`."""

    def __init__(self, **functions: Callable[..., None]) -> None:
        known = {name for name in vars(Callback) if name.startswith("on_")}
        for name, function in functions.items():
            if name not in known:
                raise ArgumentError(f"LambdaCallback knows {sorted(known)}, got {name!r}.")
            setattr(self, name, function)

    def __repr__(self) -> str:
        functions = (f"{name}={f!r}" for name, f in self._functions().items())
        return f"{type(self).__name__}({', '.join(functions)})"

    def _functions(self) -> dict[str, Callable[..., None]]:
        return {name: vars(self)[name] for name in vars(Callback) if name in vars(self)}

    def get_config(self) -> dict[str, Any]:
        return self._functions()

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        return cls(**restored(config, cls.__name__))


class _Resumable(Callback):
    """Callbacks that each training begins afresh, unless their state is of the middle of one.

    `remembered` names the attributes that make up the state.
    """

    remembered: ClassVar[tuple[str, ...]] = ()

    training = False  # whether a training runs, or is to be resumed
    resumes = False

    def forget(self) -> None:
        """Begin afresh."""

    def on_train_begin(self, model: Layer) -> None:
        if not self.resumes:
            self.forget()
        self.training, self.resumes = True, False

    def on_train_end(self, model: Layer) -> None:
        self.training = self.resumes = False

    def state_dict(self) -> StateDict:
        kept = {name: plain(getattr(self, name)) for name in self.remembered}
        return {"training": self.training, **kept}

    def load_state_dict(self, state: StateDict) -> None:
        who = f"the state of {self!r}"
        state = plain(check_entries(state, ("training", *self.remembered), who))
        if not isinstance(state["training"], bool):
            raise ArgumentTypeError(f"{who}: training must be a bool, got {state['training']!r}.")
        self.check_state(state, who)
        vars(self).update(state)
        self.resumes = self.training

    def check_state(self, state: StateDict, who: str) -> None:
        """Refuse a state with values that this callback cannot go on from."""


class _Watch(_Resumable):
    """Callbacks that follow one number of the logs, and know when it is the best so far."""

    remembered: ClassVar[tuple[str, ...]] = ("best",)

    def __init__(self, monitor: str | None, mode: str | None, min_delta: float = 0.0) -> None:
        name = type(self).__name__
        if mode not in (None, "min", "max"):
            raise ArgumentError(f'{name} mode must be "min" or "max", got {mode!r}.')
        self.monitor, self.mode = monitor, mode
        self.min_delta = check_number(min_delta, f"{name} min_delta", least=0)
        self.best = math.nan

    def forget(self) -> None:
        self.best = math.nan

    def state_dict(self) -> StateDict:
        state = super().state_dict()
        return {**state, "best": None if math.isnan(self.best) else float(self.best)}

    def check_state(self, state: StateDict, who: str) -> None:
        best = math.nan if state["best"] is None else state["best"]
        if not is_number(best):
            raise ArgumentTypeError(f"{who}: best must be a number or None, got {best!r}.")
        state["best"] = float(best)

    def improved(self, logs: Logs) -> bool:
        """Whether the number is better than all before by more than min_delta; notes it if so.

        The number is the test loss, or the training loss where there is none, unless named; it
        is to fall if its name ends in loss or mae, else to rise, unless `mode` says.
        """
        key = self.monitor or ("test_loss" if "test_loss" in logs else "train_loss")
        if key not in logs:
            raise ArgumentError(
                f"{self!r} watches {key!r}, but the logs have {', '.join(logs)} only."
            )
        value = logs[key]
        falls = self.mode == "min" if self.mode else key.endswith(("loss", "mae"))
        gain = self.best - value if falls else value - self.best
        better = not math.isnan(value) and (math.isnan(self.best) or gain > self.min_delta)
        if better:
            self.best = value
        return better


class EarlyStopping(_Watch):
    """End training when a number has not become better for `patience` epochs.

    restore_best    at the end, the model gets back the weights and state of its best epoch
    """

    remembered = ("best", "best_epoch", "waited", "weights")

    def __init__(
        self,
        patience: int = 10,
        *,
        monitor: str | None = None,
        mode: str | None = None,
        min_delta: float = 0.0,
        restore_best: bool = True,
    ) -> None:
        super().__init__(monitor, mode, min_delta)
        self.patience = check_count(patience, "EarlyStopping patience")
        self.restore_best = restore_best
        self.weights: dict[str, Array] | None = None
        self.best_epoch = self.waited = 0

    def forget(self) -> None:
        super().forget()
        self.weights, self.best_epoch, self.waited = None, 0, 0

    def check_state(self, state: StateDict, who: str) -> None:
        super().check_state(state, who)
        for name in ("best_epoch", "waited"):
            check_count(state[name], f"{who}: {name}", least=0)
        weights = state["weights"]
        if weights is not None:
            if not isinstance(weights, Mapping):
                raise ArgumentTypeError(f"{who}: weights must be a dict, got {weights!r}.")
            state["weights"] = {path: as_real(a, f"{who}: {path}") for path, a in weights.items()}

    def on_epoch_end(self, model: Layer, epoch: int, logs: Logs) -> None:
        if self.improved(logs):
            self.best_epoch, self.waited = epoch, 0
            if self.restore_best:
                self.weights = model.get_weights()
            return
        self.waited += 1
        if self.waited >= self.patience:
            raise StopTraining

    def on_train_end(self, model: Layer) -> None:
        super().on_train_end(model)
        if self.weights is not None:
            model.set_weights(self.weights)
            self.weights = None


@register
def save_weights(model: Layer, path: str | os.PathLike[str]) -> None:
    """All parameters and state as an .npz file by path, written as a whole or not at all."""
    with atomic_write(path) as stream:
        np.savez(stream, **model.get_weights())  # type: ignore[arg-type]


class ModelCheckpoint(_Watch):
    """Save the model after each epoch, or after those that are the best so far.

    A file that cannot be written is warned of, and training goes on.

    path    may hold {epoch} and the names of the logs, such as "net-{epoch:02d}-{test_loss:.3f}"
    save    the function that writes: (model, path) -> None
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        save_best_only: bool = False,
        monitor: str | None = None,
        mode: str | None = None,
        save: Callable[[Any, str], None] = save_weights,
    ) -> None:
        super().__init__(monitor, mode)
        self.path, self.save_best_only, self.save = os.fspath(path), save_best_only, save

    def on_epoch_end(self, model: Layer, epoch: int, logs: Logs) -> None:
        better = self.improved(logs)
        if not better and self.save_best_only:
            return
        try:
            path = self.path.format(epoch=epoch, **logs)
        except KeyError as error:
            raise ArgumentError(
                f"{self!r}: the path names {error}, the logs have epoch, {', '.join(logs)}."
            ) from None
        try:
            self.save(model, path)
        except DataError as error:
            warn(f"{error} Training goes on.")


class CSVLogger(_Resumable):
    """Write the logs of each epoch as a row of a CSV file; `append` keeps the rows of before.

    The file is written whole each time, and so never half. That it can be written is tried
    before training begins. If it fails later (a full disk, say), a warning says so, training
    goes on, and the next epoch tries again with all rows.
    """

    remembered = ("rows",)

    def __init__(self, path: str | os.PathLike[str], *, append: bool = False) -> None:
        self.path, self.append = Path(path), append
        self.rows: list[dict[str, Any]] = []

    def forget(self) -> None:
        self.rows = []
        if self.append and self.path.is_file():
            with self.path.open(newline="") as stream:
                self.rows = list(csv.DictReader(stream))

    def check_state(self, state: StateDict, who: str) -> None:
        rows = state["rows"]
        if not (isinstance(rows, list) and all(isinstance(row, Mapping) for row in rows)):
            raise ArgumentTypeError(f"{who}: rows must be a list of dicts, got {rows!r}.")

    def on_train_begin(self, model: Layer) -> None:
        super().on_train_begin(model)
        self._write()

    def on_epoch_end(self, model: Layer, epoch: int, logs: Logs) -> None:
        self.rows.append({"epoch": epoch, **logs})
        try:
            self._write()
        except DataError as error:
            warn(f"{error} Training goes on; {len(self.rows)} rows wait to be written.")

    def _write(self) -> None:
        columns = list(dict.fromkeys(key for row in self.rows for key in row)) or ["epoch"]
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows(self.rows)
        with atomic_write(self.path) as stream:
            stream.write(text.getvalue().encode())
