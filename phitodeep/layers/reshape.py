"""Layers that reshape, permute or select elements, without any arithmetic."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import numpy as np

from phitodeep.core.checks import check_count, check_flag, check_shape
from phitodeep.core.types import Array, Shape
from phitodeep.derivations import reshape as derived
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError
from phitodeep.layers.base import Layer

__all__ = ["Flatten", "Permute", "Reshape", "Select"]


class _Rearrangement(Layer):
    """Base class of layers that only move elements, without any operations on them."""

    _flops_per_output = 0
    independent_samples = True
    _mask_remedy = (
        "reduce the steps to one row first, with GlobalAvgPool, GlobalMaxPool or a recurrent layer "
        "with return_sequences=False"
    )


class _Reshaping(_Rearrangement):
    """Base class of layers that only give samples another shape, which `create` returns."""

    steps = derived.reshape

    def forward(self, X: Array) -> Array:
        shape = self.create(X.shape[1:])
        self.save_for_backward(shape=X.shape)
        return X.reshape(len(X), *shape)

    def backward(self, dY: Array) -> Array:
        return dY.reshape(self.saved("shape"))


class Flatten(_Reshaping):
    """Flatten each sample into one row: X (N, ...) -> Y (N, D), with D the product of all sizes.

    Backward: Y holds the elements of X in the same order, so dX is dY reshaped like X.
    Y may be a view of X.
    """

    def create(self, shape: Shape) -> Shape:
        return (math.prod(shape),)


class Reshape(_Reshaping):
    """Give each sample another shape: X (N, ...) -> Y (N, *shape); one size may be -1.

    Backward: dX is dY reshaped like X. Y may be a view of X.
    """

    def __init__(self, *shape: int) -> None:
        free = [isinstance(n, int | np.integer) and n == -1 for n in shape]
        if not shape or sum(free) > 1:
            raise ArgumentError(
                f"Reshape takes one or more sizes, at most one of them -1, got {shape}."
            )
        sizes = [1 if any_size else n for n, any_size in zip(shape, free, strict=True)]
        check_shape([check_count(n, "Reshape size") for n in sizes], "Reshape")
        self.shape = shape

    @property
    def time_steps(self) -> str:
        """The steps of X (N, T, ...) stay separate if each keeps its number of elements.

        In Y (N, T), they would be the features of the next layer.
        """
        if self.input_shape is None or min(len(self.input_shape), len(self.shape)) < 2:
            return "joined"
        same = math.prod(self.shape[1:]) == math.prod(self.input_shape[1:])
        return "independent" if same else "joined"

    def create(self, shape: Shape) -> Shape:
        known = math.prod(n for n in self.shape if n != -1)
        size = math.prod(shape)
        if size % known or (-1 not in self.shape and size != known):
            raise ShapeError(f"{self!r} does not fit samples of shape {shape} ({size} elements).")
        return tuple(size // known if n == -1 else n for n in self.shape)


class Permute(_Rearrangement):
    """Reorder the axes of each sample, counted from 1: `Permute(2, 1)` swaps two axes.

    Shapes: X is (N, ...); axis i of Y is axis dims[i - 1] of X.
    Backward: dX is dY, with the axes back in their original order.
    """

    steps = derived.permute

    def __init__(self, *dims: int) -> None:
        whole = all(isinstance(d, int) and not isinstance(d, bool) for d in dims)
        if not whole or sorted(dims) != list(range(1, len(dims) + 1)):
            raise ArgumentError(f"Permute takes each axis once, counted from 1, got {dims}.")
        self.dims = dims

    @property
    def time_steps(self) -> str:
        return "independent" if self.dims[:1] == (1,) else "joined"

    def create(self, shape: Shape) -> Shape:
        if len(shape) != len(self.dims):
            raise ShapeError(
                f"{self!r} takes samples with {len(self.dims)} axes, got samples of shape {shape}."
            )
        return tuple(shape[d - 1] for d in self.dims)

    def forward(self, X: Array) -> Array:
        self.create(X.shape[1:])
        self.save_for_backward()
        return X.transpose(0, *self.dims).copy()

    def backward(self, dY: Array) -> Array:
        inverse = np.argsort((0, *self.dims))
        return dY.transpose(inverse).copy()


class Select(_Rearrangement):
    """Select features of each sample: y_j = x_{c_j} for the `columns` c, along the last axis.

    Shapes: X, dX are (..., D); Y, dY are (..., len(columns)). `columns` is a sequence of
    integers, or one integer for a single column (Y keeps the axis); -1 is the last, as in NumPy.

    Backward: y_j depends on x_i if c_j = i. A column selected several times therefore receives the
    sum of its dy, and a column left out receives 0.

    tokens    True: the columns hold categories as whole numbers, and Y holds the integers that
              an Embedding expects; tokens have no gradient, so backward returns None

    A table that has both numerical and categorical columns goes through `Parallel`:

        Parallel(Select([0, 1]), Chain(Select([2], tokens=True), Embedding(7, 3), Flatten()))
    """

    time_steps = "independent"

    steps = derived.select

    def __init__(self, columns: int | Sequence[int], *, tokens: bool = False) -> None:
        given = [columns] if isinstance(columns, int | np.integer) else columns
        given = list(given) if isinstance(given, np.ndarray) and given.ndim else given
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise ArgumentTypeError(
                f"Select takes columns such as 3, [0, 3] or range(4), got {columns!r}."
            )
        if len(given) == 0:
            raise ArgumentError("Select takes at least one column, got none.")
        self.columns = [check_count(c, "Select column", minimum=-sys.maxsize) for c in given]
        self.tokens = check_flag(tokens, "Select tokens")

    def create(self, shape: Shape) -> Shape:
        return (*shape[:-1], len(self._indices(shape)))

    def _indices(self, shape: Shape) -> list[int]:
        """Return the columns as indices >= 0, for samples of this shape."""
        D = shape[-1] if shape else 0
        wrong = next((c for c in self.columns if not -D <= c < D), None)
        if wrong is not None:
            raise ShapeError(
                f"{self!r} cannot select column {wrong} of {D} features on the last axis: "
                f"got samples of shape {shape}."
            )
        return [c % D for c in self.columns]

    def forward(self, X: Array) -> Array:
        indices = self._indices(X.shape[1:])
        self.save_for_backward(indices=indices, shape=X.shape)
        if self.tokens:
            return self._as_tokens(X[..., indices], indices)
        out = self.buffer("Y", (*X.shape[:-1], len(indices)), X.dtype)
        return np.take(X, indices, axis=-1, out=out, mode="clip")  # the indices are in range

    def _as_tokens(self, codes: Array, indices: list[int]) -> Array:
        with np.errstate(invalid="ignore"):
            tokens = codes.astype(np.int64)
        wrong = np.argwhere(tokens != codes)
        if len(wrong):
            *row, j = map(int, wrong[0])
            raise ArgumentError(
                f"{self!r} takes whole numbers as tokens, got {codes[*row, j]} at "
                f"X[{', '.join(map(str, (*row, indices[j])))}]: number the categories 0, 1, 2, ..."
            )
        return tokens

    def backward(self, dY: Array) -> Array | None:
        if self.tokens:
            return None
        indices, shape = self.saved("indices", "shape")
        dX = self.buffer("dX", shape, dY.dtype)
        dX.fill(0)
        for j, c in enumerate(indices):
            dX[..., c] += dY[..., j]
        return dX
