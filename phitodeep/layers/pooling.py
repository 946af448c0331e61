"""Pooling over the spatial axes of (N, *sizes, C)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from phitodeep.core.call import current
from phitodeep.core.types import Array, DType, Shape
from phitodeep.derivations import windows as derived
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.kernels import kernel
from phitodeep.layers.base import Layer
from phitodeep.layers.images import Upsample2D as Upsample2D
from phitodeep.layers.images import ZeroPad2D as ZeroPad2D
from phitodeep.layers.windows import Padding, Windowed, Windows, spread

__all__ = ["AvgPool1D", "AvgPool2D", "GlobalAvgPool", "GlobalMaxPool", "MaxPool1D", "MaxPool2D"]


@dataclass(eq=False, repr=False)
class _Pool(Windowed):
    """Base class of pooling over windows; `stride` defaults to `pool_size`."""

    pool_size: int | Sequence[int]
    stride: int | Sequence[int] | None = None
    padding: Padding = "valid"
    _mask_remedy = "use MaxPool1D or AvgPool1D, on X (N, T, C)"

    def __post_init__(self) -> None:
        super().__post_init__()
        name, stride = type(self).__name__, self.stride
        self.pool = self.kernel = spread(self.pool_size, self.rank, f"{name} pool_size")
        self.strides = spread(self.pool if stride is None else stride, self.rank, f"{name} stride")
        self.dilations = (1,) * self.rank
        if not isinstance(self.padding, str) and 2 * self.padding > min(self.pool):
            raise ArgumentError(
                f"{name}: padding {self.padding} is more than half of {self.pool_size}."
            )
        self._flops_per_output = math.prod(self.pool)

    def __setstate__(self, state: dict[str, Any]) -> None:
        missing = {"kernel": state["pool"], "dilations": (1,) * self.rank}  # in pickles of 0.3
        vars(self).update({**missing, **state})

    def create(self, shape: Shape) -> Shape:
        self._check_rank(shape)
        return (*self._windows(shape[:-1]).out, shape[-1])

    def _windows_on(self, X: Array) -> Windows:
        """Return the windows on X, after checking that they fit X and the call's mask."""
        if X.ndim != self.rank + 2:
            self._check_rank(X.shape[1:])
        if self._step_mask(X) is not None:
            self._check_mask()
        return self._windows(X.shape[1:-1])

    def _check_mask(self) -> None:
        """Refuse a mask if a window may contain steps that the mask leaves out."""
        if self.padding != "valid":
            raise ArgumentError(
                f'{self!r} accepts `lengths` only with padding="valid": otherwise its windows '
                "would contain steps that `lengths` leave out."
            )


class _MaxPool(_Pool):
    """y = the maximum x in each window; padding is never the maximum.

    Shapes: X, dX are (N, *sizes, C); Y, dY are (N, *out, C), with `out` as in `Windows`.
    Backward. dy goes to the position of the maximum, the first one in row order if several are
    equal. A window that contains NaN gives NaN, and its dy goes to the last NaN, as in PyTorch. A
    position that is the maximum of several windows receives the sum.
    Source: Zhou and Chellappa 1988, "Computation of optical flow using a neural network".
    """

    steps = derived.max_pool
    tangent = derived.at_winners

    def forward(self, X: Array) -> Array:
        windows = self._windows_on(X)
        padded = windows.pad(np.ascontiguousarray(X), self.buffer, fill=-np.inf)
        Y = self.buffer("Y", (len(X), *windows.out, X.shape[-1]), X.dtype)
        winner = self.buffer("winner", Y.shape, np.min_scalar_type(len(windows.taps)))
        kernel, stride = self._kernel_and_stride()
        max_pool(_images(padded), _images(Y), _images(winner), kernel, stride)
        self.save_for_backward(winner=winner, windows=windows)
        return Y

    def backward(self, dY: Array) -> Array:
        winner, windows = self.saved("winner", "windows")
        dY = np.ascontiguousarray(dY)
        dX = self.buffer("dX", (len(dY), *windows.padded, dY.shape[-1]), dY.dtype)
        s = self.buffer("s", dY.shape, dY.dtype)
        kernel, stride = self._kernel_and_stride()
        max_pool_back(_images(dY), _images(winner), _images(dX), _images(s), kernel, stride)
        return windows.inside(dX)

    def _kernel_and_stride(self) -> tuple[Shape, Shape]:
        """Return kernel and stride for images; a sequence is an image of width 1."""
        one = (1,) * (2 - self.rank)
        return (*self.pool, *one), (*self.strides, *one)


@kernel
def max_pool(X: Array, Y: Array, winner: Array, kernel: Shape, stride: Shape) -> None:
    """Write the maximum of each window to Y, and the index of its first position to winner."""
    for k, at in enumerate(_each_tap(X, Y.shape[1:3], kernel, stride)):
        if k == 0:
            np.copyto(Y, at)
            winner.fill(0)
        else:
            better = np.greater(at, Y)
            np.maximum(Y, at, out=Y)
            winner *= ~better
            winner += better.view(np.uint8) * winner.dtype.type(k)
    if np.isnan(Y).any():
        for k, at in enumerate(_each_tap(X, Y.shape[1:3], kernel, stride)):
            winner[np.isnan(at)] = k


@kernel
def max_pool_back(
    dY: Array, winner: Array, dX: Array, s: Array, kernel: Shape, stride: Shape
) -> None:
    """dX <- the sum of dY over the windows in which each position is the maximum.

    s is scratch of dY's shape.
    """
    disjoint = kernel == stride  # each position is in at most one window
    if not disjoint or dX.size != dY.size * math.prod(kernel):
        dX.fill(0)
    bits = f"i{dY.itemsize}"
    for k, at in enumerate(_each_tap(dX, dY.shape[1:3], kernel, stride)):
        won = -(winner == k).view(np.int8)  # -1 has all bits set and keeps dY; 0 clears even NaN
        share = at if disjoint else s
        np.bitwise_and(dY.view(bits), won, out=share.view(bits))
        if not disjoint:
            at += s


def _each_tap(A: Array, out: Shape, kernel: Shape, stride: Shape) -> Iterator[Array]:
    """Yield views of A (N, height, width, C): for each tap, its value in every window."""
    (h, w), (s, t) = out, stride
    for i, j in product(*map(range, kernel)):
        yield A[:, i : i + (h - 1) * s + 1 : s, j : j + (w - 1) * t + 1 : t]


def _images(A: Array) -> Array:
    """Return A (N, *sizes, C) as (N, height, width, C)."""
    return A.reshape(*A.shape[:2], math.prod(A.shape[2:-1]), A.shape[-1])


class MaxPool1D(_MaxPool):
    __doc__ = _MaxPool.__doc__
    rank = 1


class MaxPool2D(_MaxPool):
    __doc__ = _MaxPool.__doc__
    rank = 2


class _AvgPool(_Pool):
    """y = the mean of the x in each window.

    Shapes: X, dX are (N, *sizes, C); Y, dY are (N, *out, C), with `out` as in `Windows`.
    The mean includes the zeros of integer padding, but not the positions that "same" adds.
    Backward. Each of the m positions of a window contributes x / m to y, so it receives dy / m,
    summed over the windows that contain it.
    Source: LeCun et al. 1989, "Handwritten digit recognition with a back-propagation network".
    """

    steps = derived.avg_pool

    def forward(self, X: Array) -> Array:
        windows = self._windows_on(X)
        padded = windows.pad(X, self.buffer)
        Y = self.buffer("Y", (len(X), *windows.out, X.shape[-1]), X.dtype)
        Y.fill(0)
        for tap in windows.taps:
            Y += windows.at(padded, tap)
        shares = self._shares(windows, X.dtype)
        Y *= shares
        self.save_for_backward(windows=windows, shares=shares)
        return Y

    def backward(self, dY: Array) -> Array:
        windows, shares = self.saved("windows", "shares")
        share = np.multiply(dY, shares, out=self.buffer("share", dY.shape, dY.dtype))
        dX = self.buffer("dX", (len(dY), *windows.padded, dY.shape[-1]), dY.dtype)
        dX.fill(0)
        for tap in windows.taps:
            at = windows.at(dX, tap)
            at += share
        return windows.inside(dX)

    def _shares(self, windows: Windows, dtype: DType) -> Array:
        """Return 1 / m for each window, as (1, *out, 1), or as (1, ..., 1) if all are equal."""
        if self.padding != "same":
            return np.full((1,) * (self.rank + 2), 1 / len(windows.taps), dtype)
        ones = np.ones((1, *windows.sizes, 1), dtype)
        padded = windows.pad(ones, lambda _, shape, dtype: np.empty(shape, dtype))
        return 1 / np.sum([windows.at(padded, tap) for tap in windows.taps], axis=0)


class AvgPool1D(_AvgPool):
    __doc__ = _AvgPool.__doc__
    rank = 1


class AvgPool2D(_AvgPool):
    __doc__ = _AvgPool.__doc__
    rank = 2


class _Global(Layer):
    """Base class of pooling over all positions, (N, *sizes, C) -> (N, C); masks are for axis 1."""

    independent_samples = True

    def create(self, shape: Shape) -> Shape:
        if len(shape) < 2:
            raise ShapeError(f"{self!r} takes samples of shape (*sizes, C), got {shape}.")
        return shape[-1:]

    def _rows(self, X: Array) -> Array:
        """Return X as (N, positions, C)."""
        if X.ndim < 3:
            raise ShapeError(f"{self!r} takes X (N, *sizes, C), got shape {X.shape}.")
        if X.size == 0:
            raise ShapeError(f"{self!r} needs at least one value, got shape {X.shape}.")
        return X.reshape(len(X), -1, X.shape[-1])

    def _mask(self, X: Array) -> Array | None:
        """Return the call's mask as (N, positions, 1), or None."""
        mask = None if current().mask is None else self.check_steps(X)
        if mask is None:
            return None
        return np.repeat(mask, math.prod(X.shape[2:-1]), axis=1)[..., None]

    def compute_mask(self, mask: Array) -> Array | None:
        return None

    def flops(self) -> int:
        return math.prod(self.input_shape or ())


class GlobalAvgPool(_Global):
    """y = the mean of each channel over all positions, or 0 if the mask leaves none.

    Shapes: X, dX are (N, *sizes, C); Y, dY are (N, C).
    Backward. Each of the m positions that the mask keeps receives dy / m, and the others receive 0.
    Source: Lin, Chen and Yan 2014, "Network in network", arXiv:1312.4400, sec. 3.2.
    """

    steps = derived.global_avg_pool

    def forward(self, X: Array) -> Array:
        rows, mask = self._rows(X), self._mask(X)
        if mask is None:
            self.save_for_backward(shape=X.shape, shares=X.dtype.type(1 / rows.shape[1]))
            return rows.mean(axis=1)
        shares = mask / np.maximum(mask.sum(axis=1, keepdims=True), 1).astype(X.dtype)
        self.save_for_backward(shape=X.shape, shares=shares)
        return (rows * shares).sum(axis=1)

    def backward(self, dY: Array) -> Array:
        shape, shares = self.saved("shape", "shares")
        dX = self.buffer("dX", (len(dY), math.prod(shape[1:-1]), dY.shape[-1]), dY.dtype)
        return np.multiply(dY[:, None], shares, out=dX).reshape(shape)


class GlobalMaxPool(_Global):
    """y = the maximum of each channel over all positions, or 0 if the mask leaves none.

    Shapes: X, dX are (N, *sizes, C); Y, dY are (N, C).
    Backward. dy goes to the position of the maximum, the first one if several are equal.
    Source: Oquab et al. 2015, "Is object localization for free?", CVPR.
    """

    steps = derived.global_max_pool

    def forward(self, X: Array) -> Array:
        rows, mask = self._rows(X), self._mask(X)
        if mask is not None:
            rows = np.where(mask, rows, -np.inf).astype(X.dtype, copy=False)
        winner = rows.argmax(axis=1)[:, None]
        Y = np.take_along_axis(rows, winner, axis=1)[:, 0]
        any_left = None if mask is None else mask.any(axis=1)
        self.save_for_backward(shape=X.shape, winner=winner, any_left=any_left)
        return Y if any_left is None else np.where(any_left, Y, 0).astype(X.dtype, copy=False)

    def backward(self, dY: Array) -> Array:
        shape, winner, any_left = self.saved("shape", "winner", "any_left")
        dY = dY if any_left is None else dY * any_left
        dX = np.zeros((len(dY), math.prod(shape[1:-1]), dY.shape[-1]), dY.dtype)
        np.put_along_axis(dX, winner, dY[:, None], axis=1)
        return dX.reshape(shape)
