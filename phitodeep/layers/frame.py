"""The memory of a pass: its cache, its gradients, and the arrays that are written again."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from phitodeep.errors import (
    BackwardError,
)
from phitodeep.layers.call import Call, current
from phitodeep.types import Array, DType, Shape


class _NoGrads(dict[str, Array]):
    """The gradients before the first backward pass."""

    def __missing__(self, name: str) -> NoReturn:
        raise BackwardError(
            f"there is no gradient {name!r} yet: backward leaves gradients, after forward."
        )


class Frame:
    """The memory of one pass: cache, gradients, and buffers that the training loop reuses."""

    def __init__(self) -> None:
        self.cache: dict[str, Any] = {}
        self.grads: dict[str, Array] = _NoGrads()
        self.grad_arrays: dict[str, Array] = {}  # where a training step wants gradients written
        self.buffers: dict[str, Array] = {}
        self.output: tuple[Shape, np.dtype[Any]] | None = None  # of the last cached forward
        self.passes = 0  # forward passes that drew random numbers outside any counted step
        self.start: tuple[Array, Call] | None = None  # of a pass that is to be computed again


class Buffered:
    """Something that writes its results into a frame."""

    _frame: Frame

    def buffer(self, name: str, shape: Shape, dtype: DType) -> Array:
        """An uninitialised array to write into: last step's one inside the training loop, else new.

        A shorter last batch gets the head of the longer one, so that an epoch allocates once.
        """
        return self._reused(name, shape, dtype) if current().reuse else np.empty(shape, dtype)

    def _reused(self, name: str, shape: Shape, dtype: DType) -> Array:
        """The array of this name that the frame keeps, made where there is none that fits."""
        old = self._frame.buffers.get(name)
        if old is not None and old.dtype == dtype:
            if old.shape == shape:
                return old
            if old.shape[1:] == shape[1:] and old.ndim and shape[0] < old.shape[0]:
                return old[: shape[0]]
        made = self._frame.buffers[name] = np.empty(shape, dtype)
        return made
