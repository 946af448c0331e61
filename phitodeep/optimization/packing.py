"""All parameters as one vector: what an optimizer moves, and where it finds the gradients."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from phitodeep.errors import ArgumentTypeError, BackwardError, ShapeError
from phitodeep.layers.base import Layer
from phitodeep.types import Array, Shape

Slot = tuple[str, Layer, str]  # path, layer, parameter name
Key = tuple[str, Hashable]  # the pattern of a parameter's options, "" for none, and its kind
Own = dict[str, Any]  # numbers that a parameter remembers, such as its count of steps


class Group(NamedTuple):
    """Parameters that are stepped together, and so lie together."""

    key: Key  # what they have in common
    slots: list[Slot]
    piece: slice  # of the vectors
    decayed: slice  # the first part of the piece: those that decay
    own: Own  # the numbers that each of them remembers: all the same


class Packing:
    """Parameters and gradients as views into one vector each, group by group.

    theta, g    the vectors (P,), P numbers in all
    groups      the slots with one key and equal numbers of their own, as one piece of the
                vectors, decayed ones first
    pieces      where each parameter lies in them, by path
    walk        every layer with its path, trainable or not
    received    whether backward passes write their gradients into g
    """

    def __init__(
        self,
        slots: list[Slot],
        walk: Sequence[tuple[str, Layer]],
        keys: Sequence[Key],
        owns: Sequence[Own],
    ) -> None:
        dtypes = {layer.dtype for _, layer, _ in slots}
        if len(dtypes) > 1:
            raise ArgumentTypeError(f"the layers have several dtypes: {sorted(map(str, dtypes))}.")
        self.slots, self.walk, self.received = slots, walk, False
        self.pieces: dict[str, slice] = {}
        self.groups: list[Group] = []
        own_of = {path: own for (path, _, _), own in zip(slots, owns, strict=True)}
        alike: dict[tuple[Key, Hashable], list[Slot]] = {}
        for slot, key, own in zip(slots, keys, owns, strict=True):
            alike.setdefault((key, tuple(own.items())), []).append(slot)
        end = 0
        for (key, _), members in alike.items():
            bounds = [end]
            for decays in (True, False):
                for path, layer, name in members:
                    if layer._declared[name].decay is decays:
                        start, end = end, end + layer.params[name].size
                        self.pieces[path] = slice(start, end)
                bounds.append(end)
            first, middle, last = bounds
            piece, decayed = slice(first, last), slice(first, middle)
            self.groups.append(Group(key, members, piece, decayed, own_of[members[0][0]]))
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
            (f"{path}.{name}", user, name, owned[id(owner), param])
            for path, user in walk
            for name, (owner, param) in user.tied.items()
            if (id(owner), param) in owned
        ]
        theta_of = {id(layer): [] for _, layer in walk}  # type: dict[int, list[Array]]
        for (_, layer, _), (theta, _) in zip(slots, self.views, strict=True):
            theta_of[id(layer)].append(theta)
        self._order: list[Any] = []  # every layer, and after it its parameters here
        for _, layer in walk:
            self._order += [layer, *theta_of[id(layer)]]
        self._order.append(None)

    def holds(self, layers: Sequence[Layer]) -> bool:
        """Whether the tree is as packed, with each trainable parameter a view of theta."""
        return self._follow(layers, 0) == len(self._order) - 1

    def _follow(self, layers: Iterable[Layer], i: int) -> int:
        """The place in the order after these layers and all below, or -1 if they differ."""
        order = self._order
        for layer in layers:
            if order[i] is not layer:
                return -1
            i += 1
            if layer.params and layer.trainable:
                for a in layer.params.values():
                    if order[i] is not a:
                        return -1
                    i += 1
            if type(layer).children is not Layer.children:
                i = self._follow(layer.children().values(), i)
                if i < 0:
                    return -1
        return i

    def receive(self) -> None:
        """Make g the arrays that backward writes gradients into, in training steps."""
        self.received = True
        shared = {id(g) for *_, g in self.ties}  # these are sums of several uses' gradients
        for (_, layer, name), (_, g) in zip(self.slots, self.views, strict=True):
            if id(g) not in shared:
                layer._frame.grad_arrays[name] = g

    def succeed(self, old: Packing | None) -> None:
        """Receive the gradients that `old` received until now."""
        if old is not None and old.received:
            for _, layer, name in old.slots:
                layer._frame.grad_arrays.pop(name, None)
            self.receive()

    def gather(self) -> None:
        """Bring the layers' gradients into g; those that backward wrote there are there."""
        for (path, layer, name), (_, g) in zip(self.slots, self.views, strict=True):
            grad = layer._frame.grads.get(name)
            if grad is not g:
                if type(grad) is not np.ndarray or grad.shape != g.shape or grad.dtype != g.dtype:
                    _check_gradient(grad, path, layer, name, g.shape)
                g[...] = grad
        for path, user, name, g in self.ties:
            grad = user._frame.grads.get(name)
            _check_gradient(grad, path, user, name, g.shape)
            g += cast(Array, grad)


def _check_gradient(grad: Any, path: str, layer: Layer, name: str, shape: Shape) -> None:
    """Refuse what `layer` left under this name, unless it fits a parameter of this shape."""
    if grad is None:
        left = layer._frame.grads
        if not left:
            raise BackwardError(f"no gradient for {path}: {layer!r} has not been through backward.")
        unknown = {key.lower(): key for key in left if key not in layer.params}
        near = difflib.get_close_matches(name.lower(), unknown, n=1)
        hint = f" (write {name!r}, not {unknown[near[0]]!r})" if near else ""
        raise BackwardError(
            f"no gradient for {path}: {layer!r} left gradients of {', '.join(left)}, but its "
            f"parameters are {', '.join(layer.params or [name])}{hint}."
        )
    if not isinstance(grad, np.ndarray) or grad.dtype.kind not in "fiub":
        came = f"dtype {grad.dtype}" if isinstance(grad, np.ndarray) else type(grad).__name__
        raise ArgumentTypeError(
            f"the gradient of {path} must be an array of real numbers: {layer!r} left {came}."
        )
    if grad.shape != shape:
        raise ShapeError(
            f"the gradient of {path} has shape {grad.shape}, the parameter {shape}: "
            f"{layer!r} must leave one number for each of the parameter's."
        )


def trainable(layers: Sequence[Layer]) -> Iterator[Slot]:
    """The parameters that may change, in the order of the tree."""
    for i, top in enumerate(layers):
        for path, layer in top.walk(str(i)):
            if layer.trainable:
                layer._make_parameters()
                for name in layer.params:
                    yield f"{path}.{name}", layer, name
