"""All parameters in one vector, and their gradients in another, for an optimizer; their groups."""

from __future__ import annotations

import difflib
import weakref
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from operator import is_
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.checks import check_number
from phitodeep.core.types import Array, Shape
from phitodeep.errors import ArgumentError, ArgumentTypeError, BackwardError, ShapeError
from phitodeep.layers.base import Layer
from phitodeep.layers.containers import Container
from phitodeep.optimization.schedules import check_rate

Slot = tuple[str, Layer, str]  # path, layer, parameter name
Key = tuple[str, Hashable]  # the pattern of a parameter's group ("" for none), and its kind
Tie = tuple[str, Layer, str, tuple[Layer, str], Array]  # path, user, name, owner, its part of g
PRODUCT = 1 << 20  # elements of a product in memory at a time
Outputs = frozenset[str]
Own = dict[str, Any]  # scalar state of a parameter, such as its number of steps


class Group(NamedTuple):
    """Parameters that are updated together, so they are contiguous in the vectors."""

    key: Key
    slots: list[Slot]
    piece: slice  # where the group lies in the vectors
    decayed: slice  # the first part of the piece: the parameters with weight decay
    own: Own  # the scalar state that all of them share
    outputs: Outputs = frozenset()  # those that depend on them, of a network with several

    def moves(self, without: Outputs) -> bool:
        """Whether a step without targets of these outputs changes the parameters."""
        return not self.outputs or not self.outputs <= without


class Packing:
    """Parameters and gradients as views into one vector each, group by group.

    theta, g    the vectors of all P parameter elements and of their gradients, (P,)
    groups      the slots with the same key, scalar state and outputs: one piece of the vectors
                each, with the parameters that decay first, both in the order of the backward pass
    views       the parts of theta and g of each slot, in the parameter's shape
    pieces      where each parameter lies in the vectors, by path
    ties        the uses of a parameter in other layers, whose gradients are added to the owner's
    walk        every layer with its path, trainable or not
    received    whether backward passes write their gradients directly into g
    owner       the model, if the optimizer belongs to one
    """

    def __init__(
        self, layers: Sequence[Layer], slots: list[Slot], keys: Sequence[Key], owns: Sequence[Own],
        owner: weakref.ref[Container] | None,
    ) -> None:  # fmt: skip
        dtypes = {layer.dtype for _, layer, _ in slots}
        if len(dtypes) > 1:
            raise ArgumentTypeError(f"the layers have several dtypes: {sorted(map(str, dtypes))}.")
        self.slots, self.walk, self.received, self.owner = slots, walk_all(layers), False, owner
        model = None if owner is None else owner()
        outputs: dict[Layer, Outputs] = {} if model is None else model._outputs_by_layer()
        self.pieces: dict[str, slice] = {}
        self.groups: list[Group] = []
        own_of = {path: own for (path, _, _), own in zip(slots, owns, strict=True)}
        grouped: dict[tuple[Key, Hashable, Outputs], list[Slot]] = {}
        for slot, key, own in zip(slots, keys, owns, strict=True):
            ends = outputs.get(slot[1], frozenset())
            grouped.setdefault((key, tuple(own.items()), ends), []).append(slot)
        end = 0
        for (key, _, ends), members in grouped.items():
            bounds = [end]
            for decays in (True, False):
                for path, layer, name in reversed(members):
                    if layer._declared[name].decay is decays:
                        start, end = end, end + layer.params[name].size
                        self.pieces[path] = slice(start, end)
                bounds.append(end)
            start, middle, end = bounds
            piece, decayed = slice(start, end), slice(start, middle)
            self.groups.append(Group(key, members, piece, decayed, own_of[members[0][0]], ends))
        self.theta = np.empty(end, dtypes.pop() if dtypes else np.float32)
        self.g = np.zeros_like(self.theta)
        self.views: list[tuple[Array, Array]] = []
        for path, layer, name in slots:
            piece, old = self.pieces[path], layer.params[name]
            self.theta[piece] = old.ravel()
            theta, g = self.theta[piece].reshape(old.shape), self.g[piece].reshape(old.shape)
            layer.params[name] = theta
            self.views.append((theta, g))
        g_of = {
            (id(layer), name): g for (_, layer, name), (_, g) in zip(slots, self.views, strict=True)
        }
        self.ties: list[Tie] = [
            (f"{path}.{name}", user, name, (owner, param), g_of[id(owner), param])
            for path, user in self.walk
            for name, (owner, param) in user.tied.items()
            if (id(owner), param) in g_of
        ]
        self._packed = _contents([], layers)

    def holds(self, layers: Sequence[Layer]) -> bool:
        """Return whether these layers are packed, with all trainable parameters views of theta."""
        found = _contents([], layers)
        return len(found) == len(self._packed) and all(map(is_, found, self._packed))

    def receive(self) -> None:
        """Let backward passes of training write their gradients directly into g."""
        self.received = True
        for (_, layer, name), (_, g) in zip(self.slots, self.views, strict=True):
            layer._frame.grad_arrays[name] = g
        for _, user, name, *_ in self.ties:
            user._frame.later.add(name)

    def replace(self, old: Packing | None) -> None:
        """Replace `old`: if backward passes wrote into its g, they now write into this one."""
        if old is not None and old.received:
            for _, layer, name in old.slots:
                layer._frame.grad_arrays.pop(name, None)
            for _, user, name, *_ in old.ties:
                user._frame.later.discard(name)
            self.receive()

    def gather(self) -> None:
        """Copy the layers' gradients into g, unless backward wrote them there already."""
        self.gather_slots(zip(self.slots, self.views, strict=True))
        self.gather_ties(self.ties)

    def gather_slots(self, slots: Iterable[tuple[Slot, tuple[Array, Array]]]) -> None:
        """Copy the gradients of these parameters, given with their views, as `gather` does."""
        for (path, layer, name), (_, g) in slots:
            grad = layer._frame.grads.get(name)
            if grad is not g:
                if type(grad) is not np.ndarray or grad.shape != g.shape or grad.dtype != g.dtype:
                    _check_gradient(grad, path, layer, name, g.shape)
                g[...] = grad

    def gather_ties(self, ties: Iterable[Tie]) -> None:
        """Add the gradients of these uses to those of the owners, which are gathered already."""
        for path, user, name, (owner, param), g in ties:
            grads, product = user._frame.grads, user._frame.products.pop(name, None)
            if product is not None:
                add_product(g, *product)
            else:
                _check_gradient(grads.get(name), path, user, name, g.shape)
                g += grads[name]
            if owner._frame.grads.get(param) is g:  # it holds the sum now
                grads.pop(name, None)


def _contents(found: list[Any], layers: Iterable[Layer]) -> list[Any]:
    """Add to `found` these layers and all inside, each followed by its trainable parameters."""
    for layer in layers:
        found.append(layer)
        if layer._trainable:
            found += layer.params.values()
        if type(layer).children is not Layer.children:
            _contents(found, layer.children().values())
    return found


def add_product(g: Array, A: Array, B: Array) -> None:
    """Add A^T B to g (rows, columns), block by block."""
    size = max(1, PRODUCT // B.shape[1])
    for i in range(0, len(g), size):
        g[i : i + size] += A[:, i : i + size].T @ B


def _check_gradient(grad: Any, path: str, layer: Layer, name: str, shape: Shape) -> None:
    """Refuse the gradient that `layer` left, unless it is an array that fits the parameter."""
    if grad is None:
        left = layer._frame.grads
        if not left:
            raise BackwardError(f"no gradient for {path}: {layer!r} has not run its backward pass.")
        unknown = {key.lower(): key for key in left if key not in layer.params}
        near = difflib.get_close_matches(name.lower(), unknown, n=1)
        hint = f" (write {name!r}, not {unknown[near[0]]!r})" if near else ""
        raise BackwardError(
            f"no gradient for {path}: {layer!r} left gradients of {', '.join(left)}, but its "
            f"parameters are {', '.join(layer.params or [name])}{hint}."
        )
    if not isinstance(grad, np.ndarray) or grad.dtype.kind not in "fiub":
        received = f"dtype {grad.dtype}" if isinstance(grad, np.ndarray) else type(grad).__name__
        raise ArgumentTypeError(
            f"the gradient of {path} must be an array of real numbers: {layer!r} left {received}."
        )
    if grad.shape != shape:
        raise ShapeError(
            f"the gradient of {path} has shape {grad.shape}, but the parameter has shape {shape}: "
            f"{layer!r} must leave a gradient of the parameter's shape."
        )


def walk_all(layers: Sequence[Layer]) -> list[tuple[str, Layer]]:
    """Return (path, layer) of these layers, numbered from 0, and of all layers below them."""
    return [place for i, top in enumerate(layers) for place in top.walk(str(i))]


def trainable(layers: Sequence[Layer]) -> Iterator[Slot]:
    """Yield the parameters of all layers that are not frozen, in the order of the tree."""
    for path, layer in walk_all(layers):
        if layer.trainable:
            layer._make_parameters()
            for name in layer.params:
                yield f"{path}.{name}", layer, name


Groups = Mapping[str, Mapping[str, Any]]  # pattern of paths -> alpha, weight_decay


def checked_groups(groups: Any, who: str) -> dict[str, dict[str, Any]]:
    """Return `groups` as dicts, after checking patterns, options and values."""
    if not isinstance(groups, Mapping):
        raise ArgumentTypeError(
            f'{who} must be a dict such as {{"0.*": {{"alpha": 1e-4}}}}, got {groups!r}.'
        )
    for pattern, own in groups.items():
        if not (isinstance(pattern, str) and pattern and isinstance(own, Mapping)):
            raise ArgumentTypeError(
                f"{who} must map each pattern to a dict of options, got {pattern!r}: {own!r}."
            )
        for option, value in own.items():
            where = f"{who}: {option} of {pattern!r}"
            if option == "alpha":
                check_rate(value, where)
            elif option == "weight_decay":
                check_number(value, where, minimum=0)
            else:
                raise ArgumentError(
                    f"{who}: {pattern!r} has the unknown option {option!r}. "
                    "Known: alpha, weight_decay."
                )
    return {pattern: dict(own) for pattern, own in groups.items()}


def matching(pattern: str, paths: Sequence[str], who: str) -> list[str]:
    """Return the paths that a pattern matches; refuse a pattern that matches none."""
    found = [path for path in paths if fnmatchcase(path, pattern)]
    if not found:
        near = difflib.get_close_matches(pattern, paths, n=8, cutoff=0)
        raise ArgumentError(
            f"{who}: {pattern!r} matches no parameter. Similar ones: {', '.join(near)}."
        )
    return found


def first_matches(patterns: Sequence[str], paths: Sequence[str]) -> dict[str, str]:
    """Return for each path the first pattern that matches it, or "".

    A pattern that is the first match of no path is refused.
    """
    first = {path: next((p for p in patterns if fnmatchcase(path, p)), "") for path in paths}
    for pattern in patterns:
        if pattern not in first.values():
            matching(pattern, paths, "groups")
            raise ArgumentError(
                f"groups: all parameters that {pattern!r} matches belong to earlier patterns."
            )
    return first
