"""All parameters as one vector: what an optimizer moves, and where it finds the gradients."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from phitodeep.errors import ArgumentTypeError, BackwardError, ShapeError
from phitodeep.layers.base import Layer
from phitodeep.types import Array

Slot = tuple[str, Layer, str]  # path, layer, parameter name
Key = tuple[str, Hashable]  # the pattern of a parameter's options, "" for none, and its kind


class Group(NamedTuple):
    """Parameters that are stepped together, and so lie together."""

    key: Key  # what they have in common
    slots: list[Slot]
    piece: slice  # of the vectors
    decayed: slice  # the first part of the piece: those that decay


class Packing:
    """Parameters and gradients as views into one vector each, group by group.

    theta, g    the vectors (P,), P numbers in all
    groups      the slots with one key, as one piece of the vectors, decayed ones first
    pieces      where each parameter lies in them, by path
    users       layers with gradients for parameters of others, which `gather` adds
    """

    def __init__(self, slots: list[Slot], users: Iterable[Layer], keys: Sequence[Key]) -> None:
        dtypes = {layer.dtype for _, layer, _ in slots}
        if len(dtypes) > 1:
            raise ArgumentTypeError(f"the layers have several dtypes: {sorted(map(str, dtypes))}.")
        self.slots = slots
        self.pieces: dict[str, slice] = {}
        self.groups: list[Group] = []
        alike: dict[Key, list[Slot]] = {}
        for slot, key in zip(slots, keys, strict=True):
            alike.setdefault(key, []).append(slot)
        end = 0
        for key, members in alike.items():
            bounds = [end]
            for decays in (True, False):
                for path, layer, name in members:
                    if layer.declared[name].decay is decays:
                        start, end = end, end + layer.params[name].size
                        self.pieces[path] = slice(start, end)
                bounds.append(end)
            first, middle, last = bounds
            self.groups.append(Group(key, members, slice(first, last), slice(first, middle)))
        self.theta = np.empty(end, dtypes.pop() if dtypes else np.float32)
        self.g = np.zeros_like(self.theta)
        self.views: list[tuple[Array, Array]] = []
        for path, layer, name in slots:
            piece, old = self.pieces[path], layer.params[name]
            self.theta[piece] = old.ravel()
            theta, g = self.theta[piece].reshape(old.shape), self.g[piece].reshape(old.shape)
            layer.params[name] = theta
            self.views.append((theta, g))
        owned = {
            (id(layer), name): g for (_, layer, name), (_, g) in zip(slots, self.views, strict=True)
        }
        self.ties = [
            (user, name, owned[id(owner), param])
            for user in users
            for name, (owner, param) in user.tied.items()
            if (id(owner), param) in owned
        ]

    def holds(self, layers: Sequence[Layer]) -> bool:
        """Whether these layers' trainable parameters are those packed, each a view of theta."""
        i, n = 0, len(self.views)
        for layer in _every(layers):
            if layer.trainable:
                for a in layer.params.values():
                    if i == n or a is not self.views[i][0] or layer is not self.slots[i][1]:
                        return False
                    i += 1
        return i == n

    def receive(self) -> None:
        """Make g the arrays that backward writes gradients into, in training steps."""
        shared = {id(g) for _, _, g in self.ties}  # these are sums of several uses' gradients
        for (_, layer, name), (_, g) in zip(self.slots, self.views, strict=True):
            if id(g) not in shared:
                layer.frame.grad_arrays[name] = g

    def gather(self) -> None:
        """Bring the layers' gradients into g; those that backward wrote there are there."""
        for (path, layer, name), (_, g) in zip(self.slots, self.views, strict=True):
            grad = layer.frame.grads.get(name)
            if grad is None:
                raise BackwardError(
                    f"no gradient for {path}: {layer!r} has not been through backward."
                )
            if grad is not g:
                if grad.shape != g.shape:
                    raise ShapeError(
                        f"the gradient of {path} has shape {grad.shape}, the parameter {g.shape}."
                    )
                g[...] = grad
        for user, name, g in self.ties:
            g += user.frame.grads[name]


def _every(layers: Iterable[Layer]) -> Iterator[Layer]:
    """These layers and all below them, in the order of the tree."""
    for layer in layers:
        yield layer
        children = layer.children()
        if children:
            yield from _every(children.values())


def trainable(layers: Sequence[Layer]) -> Iterator[Slot]:
    """The parameters that may change, in the order of the tree."""
    for i, top in enumerate(layers):
        for path, layer in top.walk(str(i)):
            if layer.trainable:
                layer.make_parameters()
                for name in layer.params:
                    yield f"{path}.{name}", layer, name
