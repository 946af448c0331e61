"""Convolutions over the spatial axes of (N, *sizes, C), channels last.

One linear map serves all of them: `Windows` cuts X into windows, and a kernel W sums each one.
A convolution applies it forward. Its adjoint takes sums apart and lays the parts back: that is
the convolution's backward, and the transposed convolution's forward.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from phitodeep.checks import check_count
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.functional import sum_rows
from phitodeep.initialization import He, Initializer
from phitodeep.layers.base import Layer, Param
from phitodeep.layers.call import current
from phitodeep.layers.windows import (
    Windows,
    check_padding,
    extent,
    places,
    resize_mask,
    sample_shape,
    spread,
    steps_there,
    windows,
)
from phitodeep.types import Array, Shape

BLOCK = 1 << 20  # numbers of windows that are held at once


class _Convolution(Layer):
    """What all convolutions share: settings, W and b, and the two directions of the map.

    W (*kernel, A / G, B) maps A channels to B in G groups: group g of A goes to group g of B.
    Seen as W_g (G, taps, A / G, B / G), each group is a matrix of its own.
    """

    W = Param(decay=True)
    b = Param()
    rank = 0  # spatial axes
    independent_samples = True

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        *,
        stride: int | Sequence[int] = 1,
        padding: str | int = "valid",
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
        initializer: Initializer = He(),
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self.filters = check_count(filters, f"{name} filters")
        self.kernel_size, self.stride, self.dilation = kernel_size, stride, dilation
        self.kernel = spread(kernel_size, self.rank, f"{name} kernel_size")
        self.strides = spread(stride, self.rank, f"{name} stride")
        self.dilations = spread(dilation, self.rank, f"{name} dilation")
        self.padding = check_padding(padding, name)
        self.groups = check_count(groups, f"{name} groups")
        self.bias, self.initializer = bias, initializer
        if self.filters % self.groups:
            raise ArgumentError(f"{name}: {filters} filters do not divide by {groups} groups.")

    def _windows(self, sizes: Shape) -> Windows:
        """The windows on inputs of these sizes."""
        name = type(self).__name__
        return windows(sizes, self.kernel, self.strides, self.padding, self.dilations, name)

    def _channels(self, shape: Shape) -> int:
        """The channels of samples of `shape`, if these fit the layer."""
        if len(shape) != self.rank + 1:
            raise sample_shape(self, self.rank, shape)
        if shape[-1] % self.groups:
            raise ShapeError(
                f"{self!r}: {shape[-1]} channels do not divide by {self.groups} groups."
            )
        return shape[-1]

    def _check(self, X: Array) -> None:
        if X.ndim != self.rank + 2 or X.shape[-1] != self.input_shape[-1]:  # type: ignore[index]
            raise ShapeError(f"{self!r} was built for samples {self.input_shape}, got X {X.shape}.")

    _mask_remedy = "Conv1D and ConvTranspose1D take them, on X (N, T, C)"

    def compute_mask(self, mask: Array) -> Array | None:
        if self.rank != 1:
            return super().compute_mask(mask)
        self._check_front()
        return resize_mask(self, mask, self._steps)

    def _check_front(self) -> None:
        """Refuse padding before the first step that depends on how many steps there are."""

    def _steps(self, n: Any) -> Any:
        """How many steps are made of n, an integer or an array of several."""
        raise NotImplementedError

    def _make(self, wide: int, narrow: int) -> None:
        """Draw W (*kernel, wide / groups, narrow) and b."""
        self.W = self.draw(self.initializer, (*self.kernel, wide // self.groups, narrow))
        if self.bias:
            self.b = np.zeros(self.filters)

    def _grouped(self, A: Array) -> Array:
        """(..., C) as a view (G, rows, C / G)."""
        rows = A.reshape(-1, self.groups, A.shape[-1] // self.groups)
        return rows.transpose(1, 0, 2)

    def _cuts(self, A: Array, windows: Windows) -> Iterator[tuple[slice, Array]]:
        """All windows on A (N, *sizes, C), for some samples at a time: which, and their windows.

        These are rows (G, n * positions, taps * C / G), each time in the same memory.
        """
        padded = windows.pad(A, self.buffer)
        each = math.prod(windows.out) * len(windows.taps) * A.shape[-1]
        count = max(1, min(len(A), -(-len(A) * each // BLOCK)))
        edges = [len(A) * i // count for i in range(count + 1)]
        numbers = self.buffer("columns", (-(-len(A) // count) * each,), A.dtype)
        for first, last in pairwise(edges):
            columns = numbers[: (last - first) * each]
            yield slice(first, last), self._cut(padded[first:last], windows, columns)

    def _cut(self, padded: Array, windows: Windows, columns: Array) -> Array:
        """Write all windows on padded samples to `columns` (numbers,), and return them as rows."""
        G, group = self.groups, padded.shape[-1] // self.groups
        taps = len(windows.taps)
        if padded.shape[-1] == 1:  # one number a place: whole images at each tap are longer runs
            for column, tap in zip(columns.reshape(taps, -1), windows.taps, strict=True):
                at = windows.at(padded, tap)
                np.copyto(column.reshape(at.shape), at)
            return columns.reshape(1, taps, -1).swapaxes(1, 2)
        view = windows.view(padded)  # (N, *out, *kernel, C)
        split = view.reshape(*view.shape[:-1], G, group) if G > 1 else view[..., None, :]
        np.copyto(columns.reshape(G, *view.shape[:-1], group), np.moveaxis(split, -2, 0))
        return columns.reshape(G, -1, taps * group)

    def _lay(self, A_g: Array, taps: Array, windows: Windows, channels: int) -> Array:
        """The adjoint of `_cut` and a sum: A_g (G, rows, a) times taps (taps, G, a, c / G).

        What each row gives to a tap is added to where that tap of its window was cut from; the
        result is (N, *sizes, c).
        """
        rows = A_g.shape[1]
        n = rows // math.prod(windows.out)
        padded = self.buffer("laid", (n, *windows.padded, channels), A_g.dtype)
        padded.fill(0)
        part = self.buffer("part", (rows, channels), A_g.dtype)
        for tap, weights in zip(windows.taps, taps, strict=True):
            np.matmul(A_g, weights, out=self._grouped(part))
            at = windows.at(padded, tap)
            at += part.reshape(at.shape)
        return windows.inside(padded)

    def matrices(self, name: str, W: Array) -> list[Array]:
        """Each group is one, with a kernel (taps A / G, B / G)."""
        W = W.reshape(-1, self.groups, self.params[name].shape[-1] // self.groups)
        return [W.swapaxes(0, 1)]

    def flops(self) -> int:
        """A multiplication and an addition for each weight at each position, and the bias."""
        outputs = math.prod(self.output_shape or ())
        return 2 * self._uses() * self.W.size + self.bias * outputs

    def _uses(self) -> int:
        """How many positions use each weight."""
        raise NotImplementedError


class _Conv(_Convolution):
    """Y[n, i] = sum_t X[n, i s + t d - p] W[t] + b, at each output place i and kernel tap t.

    Shapes: X, dX are (N, *sizes, C); Y, dY are (N, *out, filters); W is
    (*kernel_size, C / groups, filters), b is (filters,). s, d and p are stride, dilation and
    padding along each axis: see `Windows` for "valid", "same" and the output sizes. With G
    groups, group g of the channels goes to group g of the filters. Steps that a mask leaves out
    count as padding: they are zeros.

    Backward. Cut into windows, X is a matrix U with a row for each output place, and Y = U W + b
    is a Dense layer on rows, so

        dW = U^T dY        db = sum_rows(dY)        dU = dY W^T

    and dX adds up what dU holds for each place of X, in all windows that saw it. U is large: it is
    made block by block, and of several blocks none is kept, but made again for dW.

    Sources: LeCun et al. 1989, "Backpropagation applied to handwritten zip code recognition",
    Neural Computation 1; as a product of matrices: Chellapilla, Puri and Simard 2006.
    """

    def create(self, shape: Shape) -> Shape:
        channels = self._channels(shape)
        self._make(channels, self.filters)
        return (*self._windows(shape[:-1]).out, self.filters)

    def forward(self, X: Array) -> Array:
        self._check(X)
        there = steps_there(self, X)
        X = X if there is None else X * there
        windows = self._windows(X.shape[1:-1])
        Y = self.buffer("Y", (len(X), *windows.out, self.filters), X.dtype)
        W, kept = self._matrices(self.W), None
        for part, U in self._cuts(X, windows):
            np.matmul(U, W, out=self._grouped(Y[part]))
            kept = U if part == slice(0, len(X)) else None
        if self.bias:
            Y += self.b
        self.save_for_backward(X=X, U=kept, windows=windows, there=there)
        return Y

    def backward(self, dY: Array) -> Array | None:
        X, kept, windows, there = self.saved("X", "U", "windows", "there")
        total = self._matrices(self.grad_array("W"))
        total[...], share = 0, self.buffer("share", total.shape, dY.dtype)
        for part, U in self._cuts(X, windows) if kept is None else [(slice(None), kept)]:
            total += np.matmul(U.swapaxes(1, 2), self._grouped(dY[part]), out=share)
        if self.bias:
            sum_rows(dY, out=self.grad_array("b"))
        if not current().needs_dX:
            return None
        G, channels = self.groups, X.shape[-1]
        taps = self.W.reshape(len(windows.taps), channels // G, G, self.filters // G)
        dX = self._lay(self._grouped(dY), taps.transpose(0, 2, 3, 1), windows, channels)
        return dX if there is None else dX * there

    def _matrices(self, W: Array) -> Array:
        """W (*kernel, C / G, filters) as a view (G, taps * C / G, filters / G)."""
        return W.reshape(-1, self.groups, self.filters // self.groups).transpose(1, 0, 2)

    def _uses(self) -> int:
        return math.prod(self.output_shape[:-1]) if self.output_shape else 0

    def _check_front(self) -> None:
        e, s = extent(self.kernel[0], self.dilations[0]), self.strides[0]
        if self.padding == "same" and max(e - s, 0) // 2 != (e - 1) // 2:
            raise ArgumentError(
                f'{self!r} does not take `lengths`: with this stride, padding="same" begins at a '
                f"place that depends on the number of steps. Remedy: padding={(e - 1) // 2}."
            )

    def _steps(self, n: Any) -> Any:
        return places(n, extent(self.kernel[0], self.dilations[0]), self.strides[0], self.padding)


class Conv1D(_Conv):
    __doc__ = _Conv.__doc__
    rank = 1


class Conv2D(_Conv):
    __doc__ = _Conv.__doc__
    rank = 2


class DepthwiseConv2D(Conv2D):
    """A Conv2D in which each channel has `multiplier` filters of its own: groups = C.

    Shapes: X is (N, height, width, C); Y is (N, *out, C multiplier); W is
    (*kernel_size, 1, C multiplier). Backward and the rest: those of Conv2D.
    Source: Howard et al. 2017, "MobileNets", arXiv:1704.04861, sec. 3.1.
    """

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        *,
        multiplier: int = 1,
        stride: int | Sequence[int] = 1,
        padding: str | int = "valid",
        dilation: int | Sequence[int] = 1,
        bias: bool = True,
        initializer: Initializer = He(),
    ) -> None:
        self.multiplier = check_count(multiplier, "DepthwiseConv2D multiplier")
        super().__init__(
            self.multiplier,
            kernel_size,
            stride=stride,
            padding=padding,
            dilation=dilation,
            bias=bias,
            initializer=initializer,
        )

    def create(self, shape: Shape) -> Shape:
        filters = shape[-1] * self.multiplier
        if self.params and self.filters != filters:
            raise ShapeError(f"{self!r} was built for {self.groups} channels, got shape {shape}.")
        self.groups, self.filters = shape[-1], filters
        return super().create(shape)


class _ConvTranspose(_Convolution):
    """The adjoint of a convolution: each x lays its kernel, times x, onto the output.

    Shapes: X, dX are (N, *sizes, C); Y, dY are (N, *out, filters); W is
    (*kernel_size, C, filters / groups), b is (filters,). The output has
    (size - 1) stride + (k - 1) dilation + 1 + output_padding - 2 padding places on each axis,
    and size times stride for "same": a convolution of Y with these settings has X's shape.

    Backward. Y = A^T X + b, where A is the map of that convolution; so dX = A dY: a convolution
    of dY. With V the matrix of dY's windows, one row for each place of X,

        dX = V W^T        dW = X^T V        db = sum_rows(dY)

    Source: Zeiler et al. 2010, "Deconvolutional networks"; Dumoulin and Visin 2016,
    arXiv:1603.07285, sec. 4.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        *,
        stride: int | Sequence[int] = 1,
        padding: str | int = "valid",
        output_padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
        initializer: Initializer = He(),
    ) -> None:
        super().__init__(
            filters,
            kernel_size,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            bias=bias,
            initializer=initializer,
        )
        name = type(self).__name__
        self.output_padding = output_padding
        self.extra = spread(output_padding, self.rank, f"{name} output_padding", least=0)
        if any(o >= s for o, s in zip(self.extra, self.strides, strict=True)):
            raise ArgumentError(
                f"{name}: output_padding {self.output_padding} must be less than the stride "
                f"{self.stride}."
            )
        if padding == "same" and any(self.extra):
            raise ArgumentError(f'{name}: padding "same" tells the output size: no output_padding.')

    def _out(self, sizes: Shape) -> Shape:
        """The spatial sizes of the output, for an input of `sizes`."""
        out = tuple(self._places(n, axis) for axis, n in enumerate(sizes))
        if min(out) < 1:
            raise ShapeError(
                f"{self!r}: padding {self.padding} leaves nothing of an input of {sizes}."
            )
        return out

    def _places(self, n: Any, axis: int) -> Any:
        """The size that an axis of n places grows to."""
        s = self.strides[axis]
        if self.padding == "same":
            return n * s
        p = 0 if isinstance(self.padding, str) else self.padding
        spans = extent(self.kernel[axis], self.dilations[axis])
        return (n - 1) * s + spans + self.extra[axis] - 2 * p

    def _steps(self, n: Any) -> Any:
        return self._places(n, 0)

    def create(self, shape: Shape) -> Shape:
        channels = self._channels(shape)
        self.W = self.draw(self.initializer, (*self.kernel, channels, self.filters // self.groups))
        if self.bias:
            self.b = np.zeros(self.filters)
        return (*self._out(shape[:-1]), self.filters)

    def _taps(self) -> Array:
        """W as (taps, G, C / G, filters / G)."""
        channels, narrow = self.W.shape[-2:]
        return self.W.reshape(-1, self.groups, channels // self.groups, narrow)

    def forward(self, X: Array) -> Array:
        self._check(X)
        there = steps_there(self, X)
        X = X if there is None else X * there
        windows = self._windows(self._out(X.shape[1:-1]))
        laid = self._lay(self._grouped(X), self._taps(), windows, self.filters)
        self.save_for_backward(X=X, windows=windows, there=there)
        Y = self.buffer("Y", laid.shape, X.dtype)
        if self.bias:
            return np.add(laid, self.b, out=Y)
        np.copyto(Y, laid)
        return Y

    def backward(self, dY: Array) -> Array | None:
        X, windows, there = self.saved("X", "windows", "there")
        taps, needs_dX = self._taps(), current().needs_dX
        n, G, c, f = taps.shape
        dX = self.buffer("dX", X.shape, dY.dtype)
        matrices = taps.transpose(1, 0, 3, 2).reshape(G, n * f, c)
        dW = np.zeros((G, c, n * f), dY.dtype)
        for part, V in self._cuts(dY, windows):
            dW += np.matmul(self._grouped(X[part]).swapaxes(1, 2), V)
            if needs_dX:
                np.matmul(V, matrices, out=self._grouped(dX[part]))
        dW = dW.reshape(G, c, n, f).transpose(2, 0, 1, 3)
        np.copyto(self.grad_array("W"), dW.reshape(self.W.shape))
        if self.bias:
            sum_rows(dY, out=self.grad_array("b"))
        if not needs_dX:
            return None
        return dX if there is None else np.multiply(dX, there, out=dX)

    def _uses(self) -> int:
        return math.prod(self.input_shape[:-1]) if self.input_shape else 0


class ConvTranspose1D(_ConvTranspose):
    __doc__ = _ConvTranspose.__doc__
    rank = 1


class ConvTranspose2D(_ConvTranspose):
    __doc__ = _ConvTranspose.__doc__
    rank = 2
