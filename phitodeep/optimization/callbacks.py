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
from typing import Any, Self

import numpy as np

from phitodeep.checks import check_count, check_number, class_hint
from phitodeep.config import Configurable, register, restored
from phitodeep.errors import ArgumentError, ArgumentTypeError, DataError, warn
from phitodeep.files import atomic_write
from phitodeep.layers.base import Layer
from phitodeep.types import Array, describe

Logs = Mapping[str, float]


class StopTraining(Exception):  # a request, not an error
    """Raised by a callback: training ends in order, after the work of this moment."""


class Callback(Configurable):
    """Override what you need. To end training, raise StopTraining from any of them."""

    config_kind = "callback"

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


class _Watch(Callback):
    """Callbacks that follow one number of the logs, and know when it is the best so far."""

    def __init__(self, monitor: str | None, mode: str | None, min_delta: float = 0.0) -> None:
        name = type(self).__name__
        if mode not in (None, "min", "max"):
            raise ArgumentError(f'{name} mode must be "min" or "max", got {mode!r}.')
        self.monitor, self.mode = monitor, mode
        self.min_delta = check_number(min_delta, f"{name} min_delta", least=0)
        self.best = math.nan

    def on_train_begin(self, model: Layer) -> None:
        self.best = math.nan

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

    def on_train_begin(self, model: Layer) -> None:
        super().on_train_begin(model)
        self.weights, self.best_epoch, self.waited = None, 0, 0

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


class CSVLogger(Callback):
    """Write the logs of each epoch as a row of a CSV file; `append` keeps the rows of before.

    The file is written whole each time, and so never half. That it can be written is tried
    before training begins. If it fails later (a full disk, say), a warning says so, training
    goes on, and the next epoch tries again with all rows.
    """

    def __init__(self, path: str | os.PathLike[str], *, append: bool = False) -> None:
        self.path, self.append = Path(path), append
        self.rows: list[dict[str, Any]] = []

    def on_train_begin(self, model: Layer) -> None:
        self.rows = []
        if self.append and self.path.is_file():
            with self.path.open(newline="") as stream:
                self.rows = list(csv.DictReader(stream))
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
