"""A call of `train` as data: what a checkpoint must hold so that training continues exactly."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from phitodeep.core.checks import check_count, check_list, check_number
from phitodeep.core.config import alike
from phitodeep.core.state import StateDict, Stateful, check_entries, check_types, load_all
from phitodeep.core.types import Array
from phitodeep.errors import ArgumentError, PhitodeepError, warn
from phitodeep.training.history import History

Sums = dict[str, Array]  # of metrics, by name
EXACT = (  # settings that must stay the same
    *("batch_size", "accumulate", "shuffle", "shortcuts", "samples", "test_samples", "metrics"),
)
PLACE = {  # the types of what a state says about the unfinished epoch
    "first": int,
    "step": int,
    "seconds": float,
    "loss": float,
    "samples": int,
    "sums": dict[str, Array],
    "stopped": str | None,
}
COMPARED = {  # settings of models that may change, or that `TrainingRun` and `state_dict` compare
    *("alpha", "optimizer", "batch_size", "epochs", "metrics", "callbacks", "seed", "dtype"),
    *("input_shape", "frozen"),
}


@dataclass
class Totals:
    """Running sums of an epoch: losses times samples, samples, and the sums of metrics."""

    loss: float = 0.0
    samples: int = 0
    sums: Sums = field(default_factory=Sums)


class TrainingRun:
    """A call of `train`, and where it is between two steps: what `Callback.on_pause` gets.

    settings       the options of the call, as plain JSON values
    epoch          epochs finished, across all calls of `train`
    step           optimizer steps taken in the unfinished epoch; 0 between epochs
    first, last    the numbers of the first and the last epoch of this call
    stopped        why training ends before its last epoch; None while it goes on
    interrupted    whether Ctrl-C was pressed
    history        the finished epochs
    totals         the sums of the unfinished epoch
    """

    def __init__(self, model: Any, callbacks: Sequence[Stateful], settings: dict[str, Any]) -> None:
        self.model, self.callbacks, self.settings = model, callbacks, settings
        self.first = model.epoch + 1
        self.step, self.totals = 0, Totals()
        self.began = 0.0  # when the unfinished epoch began, by `time.perf_counter`
        self.stopped: str | None = None
        self.interrupted = False
        self.history = History()
        self._start: dict[str, Any] = {}  # the optimizer's settings when training began

    @property
    def epoch(self) -> int:
        return int(self.model.epoch)

    @property
    def last(self) -> int:
        return self.first + int(self.settings["epochs"]) - 1

    @property
    def ends(self) -> bool:
        """Whether no step follows."""
        return self.epoch >= self.last or self.interrupted or self.stopped is not None

    @property
    def writes(self) -> bool:
        """Whether this process writes files: if several train the model, rank 0 does."""
        return bool(self.model._ranks.rank == 0)

    def keep_settings(self) -> None:
        """Remember the optimizer's settings, which callbacks may change from now on."""
        with suppress(PhitodeepError):  # `state_dict` raises it, if it is called at all
            self._start = self._start or self.model.optimizer.get_config()

    def state_dict(self, *, weights: bool = True) -> StateDict:
        """Return everything that `train(resume=...)` needs: plain JSON values and array copies.

        model        `model.state_dict()`
        optimizer    its class, its settings when training began, and now
        callbacks    the states of the callbacks that were given to `train`
        history      the finished epochs
        place        the first epoch, the steps taken in the unfinished epoch, and its sums
        settings     the options of the call of `train`

        If several processes train the model, all of them must call this together.

        weights=False leaves out the weights of the model, which a file holds anyway.
        """
        totals = self.totals = self.model._ranks.handed_over(self.totals)
        return {
            "model": self.model.state_dict() if weights else self.model._progress(),
            "optimizer": {
                "class": type(self.model.optimizer).__name__,
                "start": self._start,
                "now": self.model.optimizer.get_config(),
            },
            "callbacks": named_states(self.callbacks),
            "history": self.history.state_dict(),
            "place": {
                "first": self.first,
                "step": self.step,
                "seconds": time.perf_counter() - self.began if self.step else 0.0,
                "loss": float(totals.loss),
                "samples": totals.samples,
                "sums": {name: a.copy() for name, a in totals.sums.items()} if self.step else {},
                "stopped": self.stopped,
            },
            "settings": self.settings,
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from what `state_dict` returned; it is checked before anything changes."""
        who = "the checkpoint"
        keys = ("model", "optimizer", "callbacks", "history", "place", "settings")
        state = check_entries(state, keys, who)
        self._compare(check_entries(state["settings"], self.settings, f"{who}: settings"), who)
        place = self._checked_place(state["place"], who)
        pairs = paired(self.callbacks, state["callbacks"], who)
        optimizer, before = self.model.optimizer, {}
        changed, others = self._changed(state, who)
        try:
            for name, value in changed.items():
                before[name] = getattr(optimizer, name)
                setattr(optimizer, name, value)
            load_all([(self.model, state["model"]), *pairs, (self.history, state["history"])])
        except BaseException:
            for name, value in before.items():
                setattr(optimizer, name, value)
            raise
        if others:
            warn(others)
        self._start = state["optimizer"]["start"]
        self.first, self.step, self.stopped = place["first"], place["step"], place["stopped"]
        self.began = time.perf_counter() - place["seconds"]
        if self.writes:  # the sums of all ranks
            self.totals = Totals(place["loss"], place["samples"], place["sums"])

    def _compare(self, stored: Mapping[str, Any], who: str) -> None:
        """Refuse a call of `train` whose batches would differ from those of the checkpoint."""
        wrong = [
            f"{name} = {stored[name]!r}, and this call has {self.settings[name]!r}"
            for name in EXACT
            if not alike(stored[name], self.settings[name])
        ]
        if wrong:
            raise ArgumentError(
                f"{who} was written with {'; '.join(wrong)}: resume with the same data and "
                "options, or load the model with phitodeep.load(path) and train it as you like."
            )

    def _checked_place(self, place: Any, who: str) -> StateDict:
        who = f"{who}: place"
        place = check_types(place, PLACE, who)
        check_count(place["first"], f"{who}: first")
        check_number(place["seconds"], f"{who}: seconds", minimum=0)
        if place["step"] and not place["samples"]:
            raise ArgumentError(f"{who}: steps were taken, but on no samples.")
        wanted = self.settings["metrics"] if place["step"] else ()
        sums = check_entries(place["sums"], wanted, f"{who}: sums").items()
        return place | {"sums": {name: a.copy() for name, a in sums}}

    def _changed(self, state: StateDict, who: str) -> tuple[dict[str, Any], str]:
        """Return the optimizer's settings that callbacks had changed when the state was written.

        A setting that the script has changed since keeps the script's value; the second value is a
        warning about such settings, or "".
        """
        optimizer = self.model.optimizer
        name = type(optimizer).__name__
        parts = check_entries(state["optimizer"], ("class", "start", "now"), f"{who}: optimizer")
        if parts["class"] != name:
            raise ArgumentError(
                f"{who} was written with the optimizer {parts['class']}, and this model has "
                f"{optimizer!r}: resume with the same optimizer."
            )
        here = optimizer.get_config()
        start, now = (
            check_entries(parts[when], here, f"{who}: settings of {name}")
            for when in ("start", "now")
        )
        others, warning = [n for n in here if difference(start[n], here[n], n)], ""
        if others:
            warning = (
                f"{who} was written with {', '.join(f'{n} = {start[n]!r}' for n in others)} of "
                f"{name}: training goes on with {', '.join(f'{n} = {here[n]!r}' for n in others)}."
            )
        changed = {n: now[n] for n in here if difference(now[n], start[n], n) and n not in others}
        checked = type(optimizer).from_config({**here, **changed})  # as its constructor does
        return {n: getattr(checked, n) for n in changed}, warning


def fixed(config: Any) -> Any:
    """Return the config of a model without the settings that training compares in other ways."""
    settings = config.get("config")
    if not isinstance(settings, Mapping):
        return config
    return {**config, "config": {n: v for n, v in settings.items() if n not in COMPARED}}


def difference(stored: Any, here: Any, path: str) -> str:
    """Return where two configs differ first, and how; "" if they are the same."""
    if isinstance(stored, dict) and isinstance(here, dict) and stored.keys() == here.keys():
        keys = list(here)
    elif isinstance(stored, list) and isinstance(here, list) and len(stored) == len(here):
        keys = list(range(len(here)))
    else:
        same = type(stored) is type(here) and stored == here  # one may be an array
        return "" if same else f"{path} = {_short(stored)}, and this model has {_short(here)}"
    return next(filter(None, (difference(stored[k], here[k], f"{path}.{k}") for k in keys)), "")


def _short(config: Any) -> str:
    return textwrap.shorten(str(config), 60, placeholder=" ...")


def named_states(parts: Sequence[Stateful]) -> list[StateDict]:
    """Return the class and the state of each object that has a state."""
    states = [(type(part).__name__, part.state_dict()) for part in parts]
    return [{"class": name, "state": state} for name, state in states if state]


def paired(parts: Sequence[Stateful], states: Any, who: str) -> list[tuple[Stateful, StateDict]]:
    """Return each state of `named_states` with the object of its class that comes next in `parts`.

    Objects without a stored state start afresh; a state without an object is refused.
    """
    left, pairs = list(parts), []
    for i, stored in enumerate(check_list(states, f"{who}: callbacks")):
        name, state = check_entries(stored, ("class", "state"), f"{who}: callbacks[{i}]").values()
        names = [type(part).__name__ for part in left]
        if name not in names:
            raise ArgumentError(
                f"{who} has the state of a callback {name!r}, but the callbacks of this training "
                f"are {', '.join(type(part).__name__ for part in parts) or 'none'}: give the same "
                "callbacks again, in the same order."
            )
        at = names.index(name)
        pairs.append((left[at], state))
        left = left[at + 1 :]
    return pairs
