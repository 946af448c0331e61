"""The memory of a pass: what forward caches, the gradients, and buffers that are reused."""

from __future__ import annotations

import math
from typing import Any, NoReturn, Self

import numpy as np

from phitodeep.core.call import Call, current
from phitodeep.core.types import Array, DType, Shape
from phitodeep.errors import BackwardError


class _NoGrads(dict[str, Array]):
    """The gradients before the first backward pass."""

    def __missing__(self, name: str) -> NoReturn:
        raise BackwardError(f"there is no gradient {name!r} yet: run forward, then backward.")


class Frame:
    """The memory of one pass: cache, gradients, and buffers that the training loop reuses."""

    def __init__(self) -> None:
        self.cache: dict[str, Any] = {}
        self.grads: dict[str, Array] = _NoGrads()
        self.grad_arrays: dict[str, Array] = {}  # where a training step writes gradients
        self.later: set[str] = set()  # tied parameters, whose gradient the optimizer computes
        self.products: dict[str, tuple[Array, Array]] = {}  # (A, B) for such a gradient A^T B
        self.buffers: dict[str, Array] = {}
        self.output: Any = None  # shape and dtype of cached Y, or a list of them for several
        self.passes = 0  # forward passes outside training that drew random numbers
        self.start: tuple[Any, Call] | None = None  # input of the pass to recompute


class Buffered:
    """Base class of objects that write results into the buffers of a frame."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        made = super().__new__(cls)
        made._begin()
        return made

    def _begin(self) -> None:
        """Set what every such object has, before its constructor sets the rest."""
        self._frame = Frame()

    def buffer(self, name: str, shape: Shape, dtype: DType) -> Array:
        """Return an uninitialised array: a new one or, in training, the previous step's.

        A shorter last batch uses the first rows of the longer array, so an epoch allocates once.
        A checkpoint that computes its forward pass again keeps nothing between steps.
        """
        call = current()
        if call.reuse and not call.again:
            return self._reused(name, shape, dtype)
        return np.empty(shape, dtype)

    def scratch(self, name: str, shape: Shape, dtype: DType) -> Array:
        """Return an uninitialised array that nobody reads once this pass of the layer has ended.

        In training, all layers that run in the same thread share one array of this name.
        """
        pool, size = current().scratch, math.prod(shape)
        if pool is None:
            return np.empty(shape, dtype)
        key = name, np.dtype(dtype)
        if key not in pool or pool[key].size < size:
            pool[key] = np.empty(size, dtype)
        return pool[key][:size].reshape(shape)

    def _reused(self, name: str, shape: Shape, dtype: DType) -> Array:
        """Return the frame's array of this name, or a new one if it does not fit."""
        old = self._frame.buffers.get(name)
        if old is not None and old.dtype == dtype:
            if old.shape == shape:
                return old
            if old.shape[1:] == shape[1:] and old.ndim and shape[0] < old.shape[0]:
                return old[: shape[0]]
        new = self._frame.buffers[name] = np.empty(shape, dtype)
        return new
