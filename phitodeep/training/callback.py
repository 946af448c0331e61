"""Callbacks: training calls their methods around the whole run, each epoch and each step.

Logs are a dict with `train_loss`, `test_loss` if there is test data, and the metrics as
`train_accuracy`, `test_accuracy` and so on. Epochs are numbered from 1, across all calls of
`train`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

from phitodeep.core.checks import check_count, check_number, class_hint
from phitodeep.core.config import Configurable, restored
from phitodeep.core.state import StateDict, check_entries, check_types, plain
from phitodeep.core.types import Array, describe
from phitodeep.errors import ArgumentError, ArgumentTypeError, warn
from phitodeep.layers.base import Layer
from phitodeep.training.run import TrainingRun

Logs = Mapping[str, float]


class StopTraining(Exception):  # a request, not an error
    """Raise this in a callback to end training, after the other callbacks have been called."""


class Callback(Configurable, registered=False):
    """Base class of callbacks: override what you need, and raise StopTraining to end training."""

    config_kind = "callback"
    every_rank = False  # True: if several processes train the model, all call it, not rank 0 alone

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        known = [name for name in vars(Callback) if name.startswith("on_")]
        for name in vars(cls):
            if name.startswith("on_") and name not in known:
                warn(f"{cls.__name__}.{name} is never called: training calls {', '.join(known)}.")

    __repr__ = describe

    def on_train_begin(self, model: Layer) -> None:
        """Called before the first batch of training."""

    def on_epoch_begin(self, model: Layer, epoch: int) -> None:
        """Called before the first batch of an epoch."""

    def on_batch_end(self, model: Layer, step: int, loss: float) -> None:
        """Called after optimizer step number `step`, with the loss before the step."""

    def on_epoch_end(self, model: Layer, epoch: int, logs: Logs) -> None:
        """Called after an epoch and its evaluation."""

    def on_pause(self, model: Layer, run: TrainingRun) -> None:
        """Called between two steps, once all callbacks have seen the last one.

        That is before the first step, after each step, and after each epoch: the moments at which
        `run.state_dict()` holds all that training needs to continue.
        """

    def on_train_end(self, model: Layer) -> None:
        """Called after the last epoch, even if training was stopped or interrupted."""

    def state_dict(self) -> StateDict:
        """Return the state as plain values and copies of arrays; override `load_state_dict` too."""
        return {}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore a state from `state_dict`; refuse an invalid one."""
        check_entries(state, (), f"the state of {self!r}")


def as_callbacks(callbacks: Any) -> list[Callback]:
    """Return one callback or several as a list."""
    given = list(callbacks) if isinstance(callbacks, Sequence) else [callbacks]
    for callback in given:
        if not isinstance(callback, Callback):
            raise ArgumentTypeError(
                f"callbacks must be Callback objects, got {callback!r}.{class_hint(callback)}"
            )
    return given


class LambdaCallback(Callback):
    """A callback built from functions: `LambdaCallback(on_epoch_end=f)`."""

    def __init__(self, **functions: Callable[..., None]) -> None:
        known = {name for name in vars(Callback) if name.startswith("on_")}
        for name, function in functions.items():
            if name not in known:
                raise ArgumentError(f"LambdaCallback takes {sorted(known)}, got {name!r}.")
            setattr(self, name, function)
        self.functions = functions

    def __repr__(self) -> str:
        functions = (f"{name}={f!r}" for name, f in self.functions.items())
        return f"{type(self).__name__}({', '.join(functions)})"

    def get_config(self) -> dict[str, Any]:
        return dict(self.functions)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        return cls(**restored(config, cls.__name__))


def check_intervals(who: str, every: Any, every_steps: Any) -> None:
    """Refuse intervals that are no counts of epochs or steps; one of the two may be None."""
    for name, count in (("every", every), ("every_steps", every_steps)):
        if count is not None:
            check_count(count, f"{who} {name}")
    if every is None and every_steps is None:
        raise ArgumentError(f"{who} needs every= (epochs) or every_steps=.")


class _Resumable(Callback):
    """A callback that starts over in each call of `train`, unless it resumes an interrupted one.

    `remembered` has the types of the attributes that make up the state: see `check_type`.
    """

    remembered: ClassVar[dict[str, Any]] = {}

    training = False  # True: training is running, or will be resumed
    resumes = False  # True: the next call of `train` resumes the loaded state

    def forget(self) -> None:
        """Reset the state."""

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
        state = plain(check_types(state, {"training": bool, **self.remembered}, who))
        self.check_state(state, who)
        vars(self).update(state)
        self.resumes = self.training

    def check_state(self, state: StateDict, who: str) -> None:
        """Refuse a state with invalid values."""


class _Monitor(_Resumable):
    """A callback that monitors one value of the logs and keeps the best so far."""

    remembered: ClassVar[dict[str, Any]] = {"best": float | None}

    monitor: str | None
    mode: str | None
    min_delta = 0.0

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.mode not in (None, "min", "max"):
            raise ArgumentError(f'{name} mode must be "min" or "max", got {self.mode!r}.')
        self.min_delta = check_number(self.min_delta, f"{name} min_delta", minimum=0)
        self.forget()

    def forget(self) -> None:
        self.best = math.nan

    def state_dict(self) -> StateDict:
        state = super().state_dict()
        return {**state, "best": None if math.isnan(self.best) else float(self.best)}

    def check_state(self, state: StateDict, who: str) -> None:
        state["best"] = math.nan if state["best"] is None else float(state["best"])

    def improved(self, logs: Logs) -> bool:
        """Return whether the value beats the best so far by more than min_delta; if so, store it.

        By default the value is the test loss, or the training loss if there is no test data. If no
        `mode` is given, values whose names end in loss or mae should fall, and others should rise.
        """
        key = self.monitor or ("test_loss" if "test_loss" in logs else "train_loss")
        if key not in logs:
            raise ArgumentError(
                f"{self!r} monitors {key!r}, but the logs have only {', '.join(logs)}."
            )
        value = logs[key]
        minimize = self.mode == "min" if self.mode else key.endswith(("loss", "mae"))
        gain = self.best - value if minimize else value - self.best
        better = not math.isnan(value) and (math.isnan(self.best) or gain > self.min_delta)
        if better:
            self.best = value
        return better


@dataclass(eq=False, repr=False)
class EarlyStopping(_Monitor):
    """End training when a monitored value has not improved for `patience` epochs.

    restore_best    at the end of training, restore the weights and state of the best epoch
    """

    remembered: ClassVar[dict[str, Any]] = {
        **_Monitor.remembered,
        "best_epoch": int,
        "waited": int,
        "weights": dict[str, Array] | None,
    }
    every_rank = True

    patience: int = 10
    _: KW_ONLY
    monitor: str | None = None
    mode: str | None = None
    min_delta: float = 0.0
    restore_best: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.patience = check_count(self.patience, "EarlyStopping patience")

    def forget(self) -> None:
        super().forget()
        self.weights: dict[str, Array] | None = None
        self.best_epoch = self.waited = 0

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
