"""The state of an optimizer: its memory of each parameter, written and read by path."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from phitodeep.core.checks import check_count, check_number
from phitodeep.core.config import Configurable
from phitodeep.core.state import (
    StateDict,
    Stateful,
    check_array,
    check_entries,
    check_types,
    load_all,
    plain,
)
from phitodeep.core.types import Array, Schedule
from phitodeep.errors import ArgumentError, OrderError
from phitodeep.layers.base import Layer
from phitodeep.layers.containers import Container
from phitodeep.optimization.gradient_sync import ALONE, GradientSync
from phitodeep.optimization.packing import Group, Groups, Own, Packing, walk_all
from phitodeep.optimization.schedules import stateful

OPTIONAL = {"ema", "held"}  # slots that a parameter may lack even if it has all others
PACKED = {  # what belongs to the packing of one model and its processes, and not to copies
    *("_slots", "_scratch", "_packing", "_group", "own", "_averaged", "_sync", "_owner")
}
Walk = Iterable[tuple[str, Layer]]


class ParameterState(NamedTuple):
    """The state of one parameter: scalars, such as its step count, and arrays of its shape."""

    own: Own
    slots: dict[str, Array]


Memory = ParameterState  # its name in pickles of 0.3


class ParameterStates:
    """The states of parameters that are not packed.

    A state belongs to a parameter of a layer object, wherever the layer is in the model. In a copy
    or a saved state it belongs to a path instead, until `assign` finds its layer.
    """

    def __init__(self, paths: Mapping[str, ParameterState] | None = None) -> None:
        self.paths = dict(paths or {})
        self.layers: weakref.WeakKeyDictionary[Layer, dict[str, ParameterState]]
        self.layers = weakref.WeakKeyDictionary()

    def keep(self, layer: Layer, name: str, memory: ParameterState) -> None:
        """Store the state of a parameter."""
        self.layers.setdefault(layer._original, {})[name] = memory

    def recall(self, layer: Layer, name: str, start: Mapping[str, float]) -> ParameterState:
        """Remove and return the state of a parameter; a new parameter starts with `start`."""
        found = self.layers.get(layer._original, {}).pop(name, None)
        shape = layer.params[name].shape
        if found is None or any(a.shape != shape for a in found.slots.values()):
            return ParameterState(dict(start), {})
        return found

    def assign(self, walk: Walk) -> None:
        """Assign the states stored by path to these layers."""
        if self.paths:
            for path, (layer, name) in named(walk).items():
                if path in self.paths:
                    self.keep(layer, name, self.paths[path])
            self.paths = {}

    def drop(self, slot: str) -> None:
        """Delete this slot of all parameters."""
        for memories in (self.paths, *self.layers.values()):
            for memory in memories.values():
                memory.slots.pop(slot, None)

    def with_packed(self, packing: Packing | None, vectors: Mapping[str, Array]) -> ParameterStates:
        """Return these states, together with copies of those packed in the vectors."""
        found = ParameterStates(self.paths)
        for layer, memories in self.layers.items():
            found.layers[layer] = dict(memories)
        if packing is not None:
            owns = {path: group.own for group in packing.groups for path, _, _ in group.slots}
            for (path, layer, name), (theta, _) in zip(packing.slots, packing.views, strict=True):
                piece = packing.pieces[path]
                slots = {
                    slot: vector[piece].reshape(theta.shape).copy()
                    for slot, vector in vectors.items()
                }
                found.keep(layer, name, ParameterState(dict(owns[path]), slots))
        return found

    def by_path(self, walk: Walk | None) -> dict[str, ParameterState]:
        """The state of each parameter of these layers, by path."""
        if walk is None:
            return dict(self.paths)
        return {
            parameter_path(path, name): memory
            for path, layer in walk
            for name, memory in self.layers.get(layer._original, {}).items()
        }


def parameter_path(path: str, name: str) -> str:
    """The path of a parameter, from its layer's path and its name."""
    return f"{path}.{name}" if path else name


def named(walk: Walk) -> dict[str, tuple[Layer, str]]:
    """Every existing parameter of these layers, trainable or not, by path."""
    return {
        parameter_path(path, name): (layer, name) for path, layer in walk for name in layer.params
    }


def written(
    memories: Mapping[str, ParameterState], paths: Iterable[str], start: Mapping[str, float]
) -> StateDict:
    """The states of the parameters at these paths, as plain values and copies of arrays."""
    every = sorted({slot for memory in memories.values() for slot in memory.slots} - OPTIONAL)
    state: StateDict = {}
    for path in paths:
        own, slots = memories.get(path, ParameterState(dict(start), {}))
        if slots:  # a slot that is missing is still 0
            like = next(iter(slots.values()))
            slots = {**{slot: np.zeros_like(like) for slot in every}, **slots}
        state[path] = {"own": plain(own), "slots": copy.deepcopy(slots)}
    return state


def read(
    state: Any, parameters: Mapping[str, tuple[Layer, str]], start: Mapping[str, float], who: str
) -> dict[str, ParameterState]:
    """The states that `written` returned, with every entry checked."""
    kinds = {"own": dict[str, float], "slots": dict[str, Array]}
    entries = check_entries(state, parameters, who)
    entries = {path: check_types(e, kinds, f"{who} of {path}") for path, e in entries.items()}
    every = {slot for entry in entries.values() for slot in entry["slots"]} - OPTIONAL
    found: dict[str, ParameterState] = {}
    for path, (layer, name) in parameters.items():
        whose, saved = f"{who} of {path}", entries[path]["slots"]
        own = check_entries(entries[path]["own"], start, whose)
        for key, first in start.items():
            if isinstance(first, int):
                own[key] = check_count(own[key], f"{whose}: {key}", minimum=0)
            else:
                own[key] = check_number(own[key], f"{whose}: {key}", minimum=0)
                if own[key] > first:
                    raise ArgumentError(f"{whose}: {key} must be <= {first:g}, got {own[key]}.")
        if saved:
            check_entries(saved, every | saved.keys(), whose)  # none of the others is missing
        shape = layer.params[name].shape
        slots = {
            slot: np.array(check_array(a, shape, f"{whose}: {slot}"), layer.dtype)
            for slot, a in saved.items()
        }
        if slots or own != start:
            found[path] = ParameterState({key: own[key] for key in start}, slots)
    return found


ALL = Group(("", None), [], slice(None), slice(0), {})  # the group of all parameters


class Resumable(Configurable, registered=False):
    """The memory of an optimizer: how it is written, read, copied and pickled."""

    own_start: ClassVar[Mapping[str, float]] = {}  # a parameter's first scalars, such as {"t": 0}
    alpha: float | Schedule
    groups: Groups | None
    _sync: GradientSync = ALONE  # with the other processes, while they train

    def reset(self) -> None:
        """Forget everything but the settings."""
        self.t = 0  # steps taken
        self.last_rate = 0.0  # the learning rate of the last step
        self.own: Own = {}  # the current group's scalar memory: see `own_start`
        self._slots: dict[str, Array] = {}  # the memory of packed parameters, as flat vectors
        self._memories = ParameterStates()  # the memory of the other parameters
        self._packing: Packing | None = None
        self._patterns: list[str] = []  # the patterns of the groups at the last packing
        self._group = ALL  # the group that `update` runs on
        self._averaged = False  # whether the averages have replaced the parameters
        self._scratch: dict[str, Array] = {}
        self._sync = ALONE
        self._owner: weakref.ref[Container] | None = None  # the model

    def memory(self) -> dict[str, dict[str, Array]]:
        """Return copies of what the rule remembers, by parameter path and slot name."""
        return {path: copy.deepcopy(memory.slots) for path, memory in self._by_path().items()}

    def _walk(self, layers: Sequence[Layer] | None = None) -> list[tuple[str, Layer]] | None:
        """Return all (path, layer) of the model, or else of `layers`, or else of the last step."""
        owner = self._owner() if self._owner is not None else None
        if owner is not None:
            return list(owner.walk())
        if layers is not None:
            return walk_all(layers)
        return None if self._packing is None else list(self._packing.walk)

    def _by_path(self) -> dict[str, ParameterState]:
        """Return the memory of each parameter, by path."""
        slots = self._sync.collected(self._slots)
        return self._memories.with_packed(self._packing, slots).by_path(self._walk())

    def state_dict(self) -> StateDict:
        """Return what the optimizer remembers, by parameter path: plain values and array copies.

        Settings are not part of it, but the state of schedules is. Your own rule must keep its
        memory in `slot` and `own`.
        """
        self._check_not_averaged("call state_dict")
        known, walk = self._by_path(), self._walk()
        paths = known if walk is None else every_parameter(walk)
        return {
            "class": type(self).__name__,
            "t": self.t,
            "last_rate": float(self.last_rate),
            "parameters": written(known, paths, self.own_start),
            "schedules": {where: rate.state_dict() for where, rate in self._schedules().items()},
        }

    def load_state_dict(self, state: StateDict, layers: Sequence[Layer] | None = None) -> None:
        """Restore what `state_dict` returned; everything is checked before anything changes.

        layers    the layers that the state belongs to; by default the layers of the model, or of
                  the optimizer's last step
        """
        who = f"{self!r}: the state"
        self._check_not_averaged("call load_state_dict")
        state = check_entries(state, ("class", "t", "last_rate", "parameters", "schedules"), who)
        if str(state["class"]) != type(self).__name__:
            raise ArgumentError(
                f"{who} belongs to class {state['class']}: load it into an optimizer of that class."
            )
        t = check_count(state["t"], f"{who}: t", minimum=0)
        last_rate = check_number(state["last_rate"], f"{who}: last_rate", minimum=0)
        schedules = self._schedules()
        theirs = check_entries(state["schedules"], schedules, f"{who} of the schedules")
        walk = self._walk(layers)
        if walk is None:
            raise OrderError(f"{who} needs its layers: call load_state_dict(state, layers).")
        memories = read(state["parameters"], every_parameter(walk), self.own_start, who)
        load_all((schedules[where], theirs[where]) for where in schedules)
        self.t, self.last_rate = t, last_rate
        self._packing, self._group, self.own = None, ALL, {}
        self._slots, self._scratch, self._memories = {}, {}, ParameterStates(memories)
        if self._owner is not None:
            self._memories.assign(walk)

    def _schedules(self) -> dict[str, Stateful]:
        """Return the schedules that have a state, by their place in the settings."""
        rates = {"alpha": self.alpha}
        for pattern, own in (self.groups or {}).items():
            if "alpha" in own:
                rates[f"groups.{pattern}.alpha"] = own["alpha"]
        found = {where: stateful(rate) for where, rate in rates.items()}
        return {where: rate for where, rate in found.items() if rate is not None}

    def _check_not_averaged(self, what: str) -> None:
        if self._averaged:
            raise OrderError(f"inside `averaged`, the parameters are averages: {what} outside it.")

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the packing: copies of views are not views."""
        kept = {name: value for name, value in vars(self).items() if name not in PACKED}
        return {**kept, "_memories": self._by_path()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.reset()
        if "_alpha" in state:  # of 0.3
            state = {**state, "alpha": state["_alpha"]}
        vars(self).update(state, _memories=ParameterStates(state["_memories"]))


def every_parameter(walk: Iterable[tuple[str, Layer]]) -> dict[str, tuple[Layer, str]]:
    """Return every parameter of these layers by path, creating those that do not exist yet."""
    walk = list(walk)
    for _, layer in walk:
        layer._make_parameters()
    return named(walk)
