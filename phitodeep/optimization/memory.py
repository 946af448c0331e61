"""What a rule remembers of each parameter: slots and numbers of its own, by layer and by path."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from phitodeep.checks import check_count, check_number
from phitodeep.errors import ArgumentTypeError
from phitodeep.layers.base import Layer
from phitodeep.optimization.packing import Own, Packing
from phitodeep.state import StateDict, check_array, check_entries, plain
from phitodeep.types import Array

LATER = {"ema", "held"}  # slots that a parameter may lack where it has the others
Walk = Iterable[tuple[str, Layer]]


class Memory(NamedTuple):
    """What is remembered of one parameter."""

    own: Own
    slots: dict[str, Array]  # of the parameter's shape


class Memories:
    """What is remembered of parameters that are not packed.

    It belongs to a parameter of a layer object, whatever its place among the others. A copy or a
    state knows parameters by their paths, until it meets the layers.
    """

    def __init__(self, paths: Mapping[str, Memory] | None = None) -> None:
        self.paths = dict(paths or {})
        self.layers: weakref.WeakKeyDictionary[Layer, dict[str, Memory]]
        self.layers = weakref.WeakKeyDictionary()

    def keep(self, layer: Layer, name: str, memory: Memory) -> None:
        self.layers.setdefault(layer._original, {})[name] = memory

    def recall(self, layer: Layer, name: str, start: Mapping[str, float]) -> Memory:
        """What is remembered of a parameter, and no longer kept here; `start` if it is new."""
        found = self.layers.get(layer._original, {}).pop(name, None)
        shape = layer.params[name].shape
        if found is None or any(a.shape != shape for a in found.slots.values()):
            return Memory(dict(start), {})
        return found

    def meet(self, walk: Walk) -> None:
        """Give the layers what was known by their paths."""
        if self.paths:
            for path, (layer, name) in named(walk).items():
                if path in self.paths:
                    self.keep(layer, name, self.paths[path])
            self.paths = {}

    def drop(self, slot: str) -> None:
        """Forget this slot of all parameters."""
        for memories in (self.paths, *self.layers.values()):
            for memory in memories.values():
                memory.slots.pop(slot, None)

    def and_packed(self, packing: Packing | None, vectors: Mapping[str, Array]) -> Memories:
        """These, and copies of what lies in the vectors."""
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
        """What is remembered of each parameter of these layers, by path."""
        if walk is None:
            return dict(self.paths)
        return {
            joined(path, name): memory
            for path, layer in walk
            for name, memory in self.layers.get(layer._original, {}).items()
        }


def joined(path: str, name: str) -> str:
    """The path of a parameter, from that of its layer."""
    return f"{path}.{name}" if path else name


def named(walk: Walk) -> dict[str, tuple[Layer, str]]:
    """Every parameter of these layers that is made, trainable or not, by path."""
    return {joined(path, name): (layer, name) for path, layer in walk for name in layer.params}


def written(
    memories: Mapping[str, Memory], paths: Iterable[str], start: Mapping[str, float]
) -> StateDict:
    """The memories of the parameters at these paths, as plain values and copies of arrays."""
    every = sorted({slot for memory in memories.values() for slot in memory.slots} - LATER)
    state: StateDict = {}
    for path in paths:
        own, slots = memories.get(path, Memory(dict(start), {}))
        if slots:  # what it lacks is 0 still
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
    """The memories that `written` wrote, with every entry checked."""
    entries = check_entries(state, parameters, who)
    for path, entry in entries.items():
        entries[path] = check_entries(entry, ("own", "slots"), f"{who} of {path}")
        if not isinstance(entries[path]["slots"], Mapping):
            raise ArgumentTypeError(f"{who} of {path}: slots must be a dict.")
    every = {slot for entry in entries.values() for slot in entry["slots"]} - LATER
    found: dict[str, Memory] = {}
    for path, (layer, name) in parameters.items():
        whose, given = f"{who} of {path}", entries[path]["slots"]
        own = check_entries(entries[path]["own"], start, whose)
        for key, first in start.items():
            if isinstance(first, int):
                own[key] = check_count(own[key], f"{whose}: {key}", least=0)
            else:
                own[key] = check_number(own[key], f"{whose}: {key}")
        if given:
            check_entries(given, every | (LATER & given.keys()), whose)
        shape = layer.params[name].shape
        slots = {
            slot: np.array(check_array(a, shape, f"{whose}: {slot}"), layer.dtype)
            for slot, a in given.items()
        }
        if slots or own != start:
            found[path] = Memory({key: own[key] for key in start}, slots)
    return found
