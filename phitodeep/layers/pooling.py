"""Pooling, and other changes of the spatial sizes of (N, *sizes, C)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.kernels import kernel
from phitodeep.layers.base import Layer
from phitodeep.layers.call import current
from phitodeep.layers.windows import (
    Windows,
    check_padding,
    places,
    resize_mask,
    sample_shape,
    spread,
    steps_there,
    windows,
)
from phitodeep.types import Array, DType, Shape


class _Pool(Layer):
    """What pools share: windows of `pool_size`, side by side unless `stride` says otherwise."""

    rank = 0
    independent_samples = True

    def __init__(
        self,
        pool_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: str | int = "valid",
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self.pool_size, self.stride = pool_size, stride
        self.pool = spread(pool_size, self.rank, f"{name} pool_size")
        given = self.pool if stride is None else stride
        self.strides = spread(given, self.rank, f"{name} stride")
        self.padding = check_padding(padding, name)
        if not isinstance(padding, str) and 2 * padding > min(self.pool):
            raise ArgumentError(f"{name}: padding {padding} is more than half of {pool_size}.")
        self._flops_per_output = math.prod(self.pool)

    def create(self, shape: Shape) -> Shape:
        return (*self._windows(shape).out, shape[-1])

    _mask_remedy = "MaxPool1D and AvgPool1D take them, on X (N, T, C)"

    def compute_mask(self, mask: Array) -> Array | None:
        if self.rank != 1:
            return super().compute_mask(mask)
        self._check_front()
        return resize_mask(self, mask, self._steps)

    def _check_front(self) -> None:
        """Refuse a mask where windows reach beyond the steps."""
        if self.padding != "valid":
            raise ArgumentError(
                f'{self!r} takes `lengths` with padding="valid" only: its windows would reach '
                "what they leave out."
            )

    def _steps(self, n: Any) -> Any:
        return places(n, self.pool[0], self.strides[0], self.padding)

    def _inputs(self, X: Array) -> Windows:
        """The windows on X."""
        if steps_there(self, X) is not None:
            self._check_front()
        return self._windows(X.shape[1:])

    def _windows(self, shape: Shape) -> Windows:
        if len(shape) != self.rank + 1:
            raise sample_shape(self, self.rank, shape)
        once = (1,) * self.rank
        name = type(self).__name__
        return windows(shape[:-1], self.pool, self.strides, self.padding, once, name)


class _MaxPool(_Pool):
    """y = the greatest x of each window; padding never wins.

    Shapes: X, dX are (N, *sizes, C); Y, dY are (N, *out, C): see `Windows`.
    Backward. dy goes to the place that won, the first one in row order where several are equal;
    a place that won in several windows gets the sum.
    Source: Zhou and Chellappa 1988, "Computation of optical flow using a neural network".
    """

    def forward(self, X: Array) -> Array:
        windows = self._inputs(X)
        padded = windows.pad(np.ascontiguousarray(X), self.buffer, fill=-np.inf)
        Y = self.buffer("Y", (len(X), *windows.out, X.shape[-1]), X.dtype)
        winner = self.buffer("winner", Y.shape, np.min_scalar_type(len(windows.taps)))
        max_pool(_plane(padded), _plane(Y), _plane(winner), *self._in_the_plane())
        self.save_for_backward(winner=winner, windows=windows)
        return Y

    def backward(self, dY: Array) -> Array:
        winner, windows = self.saved("winner", "windows")
        dY = np.ascontiguousarray(dY)
        laid = self.buffer("laid", (len(dY), *windows.padded, dY.shape[-1]), dY.dtype)
        part = self.buffer("part", dY.shape, dY.dtype)
        kernel, stride = self._in_the_plane()
        max_pool_back(_plane(dY), _plane(winner), _plane(laid), _plane(part), kernel, stride)
        return windows.inside(laid)

    def _in_the_plane(self) -> tuple[Shape, Shape]:
        """Kernel and stride in the plane: those of one axis are a plane of one column."""
        one = (1,) * (2 - self.rank)
        return (*self.pool, *one), (*self.strides, *one)


def _plane(A: Array) -> Array:
    """(N, *sizes, C) as (N, height, width, C)."""
    return A.reshape(*A.shape[:2], math.prod(A.shape[2:-1]), A.shape[-1])


def _taps(A: Array, out: Shape, kernel: Shape, stride: Shape) -> Iterator[Array]:
    """The view of what all windows on A (N, height, width, C) have at each of their places."""
    (h, w), (s, t) = out, stride
    for i, j in product(*map(range, kernel)):
        yield A[:, i : i + (h - 1) * s + 1 : s, j : j + (w - 1) * t + 1 : t]


@kernel
def max_pool(X: Array, Y: Array, winner: Array, kernel: Shape, stride: Shape) -> None:
    """The greatest of each window, and the number of the first place in it that has it."""
    for k, at in enumerate(_taps(X, Y.shape[1:3], kernel, stride)):
        if k == 0:
            np.copyto(Y, at)
            winner.fill(0)
        else:
            better = np.greater(at, Y)
            np.maximum(Y, at, out=Y)
            winner *= ~better
            winner += better.view(np.uint8) * winner.dtype.type(k)


@kernel
def max_pool_back(
    dY: Array, winner: Array, dX: Array, s: Array, kernel: Shape, stride: Shape
) -> None:
    """dX <- the sum of the dY that each place has won; s is scratch like dY."""
    apart = kernel == stride  # then each place is in one window at most
    if not apart or dX.size != dY.size * math.prod(kernel):
        dX.fill(0)
    bits = f"i{dY.itemsize}"
    for k, at in enumerate(_taps(dX, dY.shape[1:3], kernel, stride)):
        won = -(winner == k).view(np.int8)  # -1 is all ones: all bits of dY or none, also of NaN
        share = at if apart else s
        np.bitwise_and(dY.view(bits), won, out=share.view(bits))
        if not apart:
            at += s


class MaxPool1D(_MaxPool):
    __doc__ = _MaxPool.__doc__
    rank = 1


class MaxPool2D(_MaxPool):
    __doc__ = _MaxPool.__doc__
    rank = 2


class _AvgPool(_Pool):
    """y = the mean x of each window.

    Zeros of an integer padding count in the mean; places that "same" adds do not.
    Shapes: X, dX are (N, *sizes, C); Y, dY are (N, *out, C): see `Windows`.
    Backward. Each of the m places of a window has the share 1 / m in y, so it gets dy / m, and
    the sum of that over the windows that hold it.
    Source: LeCun et al. 1989, "Handwritten digit recognition with a back-propagation network".
    """

    def forward(self, X: Array) -> Array:
        windows = self._inputs(X)
        padded = windows.pad(X, self.buffer)
        Y = self.buffer("Y", (len(X), *windows.out, X.shape[-1]), X.dtype)
        Y.fill(0)
        for tap in windows.taps:
            Y += windows.at(padded, tap)
        shares = self._shares(windows, X.dtype)
        Y *= shares
        self.save_for_backward(windows=windows, shares=shares)
        return Y

    def _shares(self, windows: Windows, dtype: DType) -> Array:
        """1 / m of each window, as (1, *out, 1), or as one number for all."""
        if self.padding != "same":
            return np.full((1,) * (self.rank + 2), 1 / len(windows.taps), dtype)
        there = windows.pad(np.ones((1, *windows.sizes, 1), dtype), _fresh)
        return 1 / np.sum([windows.at(there, tap) for tap in windows.taps], axis=0)

    def backward(self, dY: Array) -> Array:
        windows, shares = self.saved("windows", "shares")
        part = np.multiply(dY, shares, out=self.buffer("part", dY.shape, dY.dtype))
        shape = (len(dY), *windows.padded, dY.shape[-1])
        laid = self.buffer("laid", shape, dY.dtype)
        laid.fill(0)
        for tap in windows.taps:
            at = windows.at(laid, tap)
            at += part
        return windows.inside(laid)


class AvgPool1D(_AvgPool):
    __doc__ = _AvgPool.__doc__
    rank = 1


class AvgPool2D(_AvgPool):
    __doc__ = _AvgPool.__doc__
    rank = 2


def _fresh(name: str, shape: Shape, dtype: DType) -> Array:
    return np.empty(shape, dtype)


class _Global(Layer):
    """What global pools share: (N, *sizes, C) becomes (N, C); of steps, those that are there."""

    independent_samples = True

    def compute_mask(self, mask: Array) -> Array | None:
        return None

    def create(self, shape: Shape) -> Shape:
        if len(shape) < 2:
            raise ShapeError(f"{self!r} takes samples (*sizes, C), got shape {shape}.")
        return shape[-1:]

    def flops(self) -> int:
        return math.prod(self.input_shape or ())

    def _mask(self, X: Array) -> Array | None:
        """The call's mask as (N, places, 1)."""
        mask = None if current().mask is None else self.check_steps(X)
        if mask is None:
            return None
        return np.repeat(mask, math.prod(X.shape[2:-1]), axis=1)[..., None]

    def _places(self, X: Array) -> Array:
        """X as (N, places, C)."""
        if X.ndim < 3:
            raise ShapeError(f"{self!r} takes X (N, *sizes, C), got shape {X.shape}.")
        if X.size == 0:
            raise ShapeError(f"{self!r} needs at least one number, got shape {X.shape}.")
        return X.reshape(len(X), -1, X.shape[-1])


class GlobalAvgPool(_Global):
    """y = the mean of each channel over all places; 0 where a mask leaves none.

    Shapes: X, dX are (N, *sizes, C); Y, dY are (N, C).
    Backward. Each of the m places that count gets dy / m.
    Source: Lin, Chen and Yan 2014, "Network in network", arXiv:1312.4400, sec. 3.2.
    """

    def forward(self, X: Array) -> Array:
        rows, there = self._places(X), self._mask(X)
        if there is None:
            self.save_for_backward(shape=X.shape, shares=X.dtype.type(1 / rows.shape[1]))
            return rows.mean(axis=1)
        shares = there / np.maximum(there.sum(axis=1, keepdims=True), 1).astype(X.dtype)
        self.save_for_backward(shape=X.shape, shares=shares)
        return (rows * shares).sum(axis=1)

    def backward(self, dY: Array) -> Array:
        shape, shares = self.saved("shape", "shares")
        dX = self.buffer("dX", (len(dY), math.prod(shape[1:-1]), dY.shape[-1]), dY.dtype)
        return np.multiply(dY[:, None], shares, out=dX).reshape(shape)


class GlobalMaxPool(_Global):
    """y = the greatest x of each channel over all places; 0 where a mask leaves none.

    Shapes: X, dX are (N, *sizes, C); Y, dY are (N, C).
    Backward. dy goes to the place that won, the first one where several are equal.
    Source: Oquab et al. 2015, "Is object localization for free?", CVPR.
    """

    def forward(self, X: Array) -> Array:
        rows, there = self._places(X), self._mask(X)
        if there is not None:
            rows = np.where(there, rows, -np.inf).astype(X.dtype, copy=False)
        winner = rows.argmax(axis=1)[:, None]
        Y = np.take_along_axis(rows, winner, axis=1)[:, 0]
        any_there = None if there is None else there.any(axis=1)
        self.save_for_backward(shape=X.shape, winner=winner, any_there=any_there)
        return Y if any_there is None else np.where(any_there, Y, 0).astype(X.dtype, copy=False)

    def backward(self, dY: Array) -> Array:
        shape, winner, any_there = self.saved("shape", "winner", "any_there")
        dY = dY if any_there is None else dY * any_there
        dX = np.zeros((len(dY), math.prod(shape[1:-1]), dY.shape[-1]), dY.dtype)
        np.put_along_axis(dX, winner, dY[:, None], axis=1)
        return dX.reshape(shape)


class Upsample2D(Layer):
    """Make images `factor` times larger: by repeating ("nearest"), or along lines ("bilinear").

    Shapes: X, dX are (N, height, width, C); Y, dY are (N, height f, width g, C).

    Both are linear along each axis: with A (height f, height) and B (width g, width),
    Y = A X B^T for each channel. A row of A holds a single 1 for "nearest"; for "bilinear",
    output place i lies at (i + 1/2) / f - 1/2 of the input (half-pixel centres, held inside),
    and its row holds the two neighbours' shares.

    Backward: dX = A^T dY B.
    Source: the half-pixel rule of PyTorch's interpolate(align_corners=False).
    """

    independent_samples = True

    def __init__(self, factor: int | Sequence[int], mode: str = "nearest") -> None:
        super().__init__()
        self.factor = factor
        self.factors = spread(factor, 2, "Upsample2D factor")
        if mode not in ("nearest", "bilinear"):
            raise ArgumentError(f'Upsample2D mode must be "nearest" or "bilinear", got {mode!r}.')
        self.mode = mode
        self._flops_per_output = 1 if mode == "nearest" else 4

    def create(self, shape: Shape) -> Shape:
        if len(shape) != 3:
            raise ShapeError(f"{self!r} takes samples of shape (height, width, C), got {shape}.")
        f, g = self.factors
        return (shape[0] * f, shape[1] * g, shape[2])

    def forward(self, X: Array) -> Array:
        if X.ndim != 4:
            raise ShapeError(f"{self!r} takes X (N, height, width, C), got shape {X.shape}.")
        A, B = (
            spreading(n, f, self.mode).astype(X.dtype)
            for n, f in zip(X.shape[1:3], self.factors, strict=True)
        )
        self.save_for_backward(A=A, B=B)
        return _apply(A, B, X)

    def backward(self, dY: Array) -> Array:
        A, B = self.saved("A", "B")
        return _apply(A.T, B.T, dY)


def spreading(size: int, factor: int, mode: str) -> Array:
    """The matrix (size factor, size) that makes a line of numbers `factor` times longer."""
    eye = np.eye(size)
    if mode == "nearest":
        return np.repeat(eye, factor, axis=0)
    at = np.clip((np.arange(size * factor) + 0.5) / factor - 0.5, 0, size - 1)
    low = np.minimum(at.astype(int), size - 1)
    share = (at - low)[:, None]
    return (1 - share) * eye[low] + share * eye[np.minimum(low + 1, size - 1)]


def _apply(A: Array, B: Array, X: Array) -> Array:
    """A X B^T for each sample and channel of X (N, height, width, C)."""
    n, height, width, channels = X.shape
    rows = np.matmul(A, X.reshape(n, height, width * channels))
    Y = np.matmul(B, rows.reshape(n * len(A), width, channels))
    return Y.reshape(n, len(A), len(B), channels)


class ZeroPad2D(Layer):
    """Zeros around images: `padding` on all sides, or ((top, bottom), (left, right)).

    Shapes: X, dX are (N, height, width, C); Y, dY are larger by the padding.
    Backward: dX is dY without the padding.
    """

    _flops_per_output = 0
    independent_samples = True

    def __init__(self, padding: int | Sequence[Sequence[int]] = 1) -> None:
        super().__init__()
        pairs = padding if isinstance(padding, Sequence) else ((padding, padding),) * 2
        self.padding = padding
        self.pads = tuple(spread(pair, 2, "ZeroPad2D padding", least=0) for pair in pairs)
        if len(self.pads) != 2:
            raise ArgumentError(f"ZeroPad2D takes ((top, bottom), (left, right)), got {padding!r}.")

    def create(self, shape: Shape) -> Shape:
        if len(shape) != 3:
            raise ShapeError(f"{self!r} takes samples of shape (height, width, C), got {shape}.")
        (t, b), (left, r) = self.pads
        return (shape[0] + t + b, shape[1] + left + r, shape[2])

    def forward(self, X: Array) -> Array:
        if X.ndim != 4:
            raise ShapeError(f"{self!r} takes X (N, height, width, C), got shape {X.shape}.")
        self.save_for_backward(sizes=X.shape[1:3])
        return np.pad(X, ((0, 0), *self.pads, (0, 0)))

    def backward(self, dY: Array) -> Array:
        height, width = self.saved("sizes")
        (t, _), (left, _) = self.pads
        return dY[:, t : t + height, left : left + width].copy()
