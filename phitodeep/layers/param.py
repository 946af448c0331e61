"""Parameters and state of a layer, as attributes that check what is written into them."""

from __future__ import annotations

from typing import Any, Protocol, Self, overload

import numpy as np

from phitodeep.core.checks import as_real
from phitodeep.core.types import Array
from phitodeep.errors import NotBuiltError, ShapeError


class Owner(Protocol):
    """The attributes of a layer that its parameters use."""

    dtype: np.dtype[Any]
    _creating: bool  # while `create` runs
    _shapes_only: bool  # in a copy that only computes shapes

    def _make_parameters(self) -> None: ...


class Param:
    """A parameter of a layer: `layer.W` reads it, `layer.W = a` writes into it.

    decay    whether weight decay and penalties apply: they do for a layer's weight matrices,
             and never for biases or the scales of norms
    """

    store = "params"

    def __init__(self, *, decay: bool = False) -> None:
        self.decay = decay

    def __set_name__(self, owner: type[Owner], name: str) -> None:
        self.name = name

    @overload
    def __get__(self, layer: None, owner: type[Owner]) -> Self: ...
    @overload
    def __get__(self, layer: Owner, owner: type[Owner]) -> Array: ...
    def __get__(self, layer: Owner | None, owner: type[Owner]) -> Self | Array:
        if layer is None:
            return self
        store: dict[str, Array] = getattr(layer, self.store)
        try:
            return store[self.name]
        except KeyError:
            layer._make_parameters()
            return self._existing(layer)

    def __set__(self, layer: Owner, value: Any) -> None:
        """Write into the array, because other objects may hold views of it; `create` makes it.

        A layer that is built again keeps the values that it has.
        """
        new = value
        if type(new) is not np.ndarray or new.dtype.kind not in "fiub":
            new = as_real(new, f"{layer!r}: parameter {self.name!r}")
        store: dict[str, Array] = getattr(layer, self.store)
        if self.name not in store:
            if layer._creating:
                store[self.name] = new if layer._shapes_only else np.array(new, layer.dtype)
                return
            layer._make_parameters()
        old = self._existing(layer)
        if old.shape != new.shape:
            raise ShapeError(
                f"{layer!r}: parameter {self.name!r} has shape {old.shape}, got {new.shape}."
            )
        if not layer._creating:
            old[...] = new

    def _existing(self, layer: Owner) -> Array:
        store: dict[str, Array] = getattr(layer, self.store)
        if self.name not in store:
            raise NotBuiltError(f"{layer!r} has no parameter {self.name!r}.")
        return store[self.name]


class State(Param):
    """An array that a layer remembers but does not learn, such as running statistics."""

    store = "state"
