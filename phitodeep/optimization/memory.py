"""An optimizer's state for each parameter, such as moments and step counts."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.checks import check_count, check_number
from phitodeep.core.state import StateDict, check_array, check_entries, plain
from phitodeep.core.types import Array
from phitodeep.errors import ArgumentError, ArgumentTypeError
from phitodeep.layers.base import Layer
from phitodeep.optimization.packing import Own, Packing

OPTIONAL = {"ema", "held"}  # slots that a parameter may lack even if it has all others
Walk = Iterable[tuple[str, Layer]]


class Memory(NamedTuple):
    """The state of one parameter: scalars, such as its step count, and arrays of its shape."""

    own: Own
    slots: dict[str, Array]


class Memories:
    """The states of parameters that are not packed.

    A state belongs to a parameter of a layer object, wherever the layer is in the model. In a copy
    or a saved state it belongs to a path instead, until `assign` finds its layer.
    """

    def __init__(self, paths: Mapping[str, Memory] | None = None) -> None:
        self.paths = dict(paths or {})
        self.layers: weakref.WeakKeyDictionary[Layer, dict[str, Memory]]
        self.layers = weakref.WeakKeyDictionary()

    def keep(self, layer: Layer, name: str, memory: Memory) -> None:
        """Store the state of a parameter."""
        self.layers.setdefault(layer._original, {})[name] = memory

    def recall(self, layer: Layer, name: str, start: Mapping[str, float]) -> Memory:
        """Remove and return the state of a parameter; a new parameter starts with `start`."""
        found = self.layers.get(layer._original, {}).pop(name, None)
        shape = layer.params[name].shape
        if found is None or any(a.shape != shape for a in found.slots.values()):
            return Memory(dict(start), {})
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

    def with_packed(self, packing: Packing | None, vectors: Mapping[str, Array]) -> Memories:
        """Return these states, together with copies of those packed in the vectors."""
        found = Memories(self.paths)
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
                found.keep(layer, name, Memory(dict(owns[path]), slots))
        return found

    def by_path(self, walk: Walk | None) -> dict[str, Memory]:
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
    memories: Mapping[str, Memory], paths: Iterable[str], start: Mapping[str, float]
) -> StateDict:
    """The states of the parameters at these paths, as plain values and copies of arrays."""
    every = sorted({slot for memory in memories.values() for slot in memory.slots} - OPTIONAL)
    state: StateDict = {}
    for path in paths:
        own, slots = memories.get(path, Memory(dict(start), {}))
        if slots:  # a slot that is missing is still 0
            like = next(iter(slots.values()))
            slots = {**{slot: np.zeros_like(like) for slot in every}, **slots}
        state[path] = {"own": plain(own), "slots": copy.deepcopy(slots)}
    return state


def read(
    state: Any,
    parameters: Mapping[str, tuple[Layer, str]],
    start: Mapping[str, float],
    who: str,
) -> dict[str, Memory]:
    """The states that `written` returned, with every entry checked."""
    entries = check_entries(state, parameters, who)
    for path, entry in entries.items():
        entries[path] = check_entries(entry, ("own", "slots"), f"{who} of {path}")
        if not isinstance(entries[path]["slots"], Mapping):
            raise ArgumentTypeError(f"{who} of {path}: slots must be a dict.")
    every = {slot for entry in entries.values() for slot in entry["slots"]} - OPTIONAL
    found: dict[str, Memory] = {}
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
            found[path] = Memory({key: own[key] for key in start}, slots)
    return found
