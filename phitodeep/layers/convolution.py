"""Convolutions over the spatial axes of (N, *sizes, C), channels last.

All of them use one linear map: `Windows.im2col` copies each window of X into a row, which is then
multiplied by the kernel W. A convolution applies this map in its forward pass. The adjoint map,
`Windows.col2im`, adds each row back into the image: it is the backward pass of a convolution and
the forward pass of a transposed convolution.

Long because a transposed convolution is the adjoint of a convolution, and is derived from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from phitodeep.core.call import current
from phitodeep.core.checks import check_count
from phitodeep.core.settings import Count, Flag
from phitodeep.core.types import Array, Shape
from phitodeep.derivations import windows as derived
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.functional import sum_rows
from phitodeep.layers import winograd
from phitodeep.layers.base import Param
from phitodeep.layers.initialization import He, Initializer, InitialValues
from phitodeep.layers.windows import Padding, Windowed, Windows, by_group, extent, spread

__all__ = ["Conv1D", "Conv2D", "ConvTranspose1D", "ConvTranspose2D", "DepthwiseConv2D"]

BLOCK = 1 << 20  # number of window elements in memory at once


@dataclass(eq=False, repr=False)
class _Convolution(Windowed):
    """Base class of all convolutions: settings, W and b, and windows."""

    filters: Count
    kernel_size: int | Sequence[int]
    _: KW_ONLY
    stride: int | Sequence[int] = 1
    padding: Padding = "valid"
    output_padding: int | Sequence[int] = 0  # of transposed convolutions
    dilation: int | Sequence[int] = 1
    groups: Count = 1
    bias: Flag = True
    initializer: InitialValues = He()
    W = Param(decay=True)
    b = Param()
    _mask_remedy = "use Conv1D or ConvTranspose1D, on X (N, T, C)"
    _multiplied: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        self.kernel = spread(self.kernel_size, self.rank, f"{name} kernel_size")
        self.strides = spread(self.stride, self.rank, f"{name} stride")
        self.dilations = spread(self.dilation, self.rank, f"{name} dilation")
        if self.filters % self.groups:
            raise ArgumentError(
                f"{name}: {self.filters} filters are not divisible by {self.groups} groups."
            )

    def create(self, shape: Shape) -> Shape:
        self._check_rank(shape)
        if shape[-1] % self.groups:
            raise ShapeError(
                f"{self!r}: {shape[-1]} channels are not divisible by {self.groups} groups."
            )
        self.W = self.draw(self.initializer, (*self.kernel, *self._matrix(shape[-1])))
        if self.bias:
            self.b = self.full(self.filters, 0)
        return (*self._out(shape[:-1]), self.filters)

    def _matrix(self, channels: int) -> Shape:
        """Return the shape of W at each tap."""
        raise NotImplementedError

    def _out(self, sizes: Shape) -> Shape:
        """Return the spatial sizes of the output, for an input of `sizes`."""
        return self._windows(sizes).out

    def _unmasked(self, X: Array) -> tuple[Array, Array | None]:
        """Return X with zeros at the steps that the mask leaves out, and the mask (N, T, 1)."""
        if X.ndim != self.rank + 2 or X.shape[-1] != self.input_shape[-1]:  # type: ignore[index]
            raise ShapeError(
                f"{self!r} was built for samples of shape {self.input_shape}, "
                f"got X of shape {X.shape}."
            )
        mask = self._step_mask(X)
        return (X if mask is None else X * mask), mask

    def _windows_on(self, X: Array) -> Windows:
        """Return the windows on X, or in a transposed convolution on Y."""
        return self._windows(X.shape[1:-1])

    def _chunks(
        self, A: Array, windows: Windows, ones: bool = False
    ) -> Iterator[tuple[slice, Array]]:
        """Yield the windows on A (N, *sizes, C) as rows, for a slice of the samples at a time.

        Each item is a slice and its rows (G, n * positions, taps * C / G), or one number longer
        with `ones`. All chunks use the same memory, about BLOCK elements.
        """
        padded = windows.pad(A, self.scratch)
        per_sample = math.prod(windows.out) * (len(windows.taps) * A.shape[-1] + ones)
        count = max(1, min(len(A), -(-len(A) * per_sample // BLOCK)))
        edges = [len(A) * i // count for i in range(count + 1)]
        new = self.buffer if count == 1 else self.scratch  # backward may read a single chunk
        memory = new("columns", (-(-len(A) // count) * per_sample,), A.dtype)
        for first, last in pairwise(edges):
            columns = memory[: (last - first) * per_sample]
            rows = windows.im2col(padded[first:last], self.groups, columns, ones)
            yield slice(first, last), rows

    def matrices(self, name: str, W: Array) -> list[Array]:
        """Return one kernel matrix (taps * C / G, filters / G) per group."""
        W = W.reshape(-1, self.groups, self.params[name].shape[-1] // self.groups)
        return [W.swapaxes(0, 1)]

    def flops(self) -> int:
        """Count two operations per weight and position, and one addition of b per output."""
        shape = getattr(self, self._multiplied) or (0, 0)
        outputs = math.prod(self.output_shape or ())
        return 2 * math.prod(shape[:-1]) * self.W.size + self.bias * outputs


@dataclass(eq=False, repr=False)
class _Conv(_Convolution):
    """Multiply each window of X by a kernel: Y[n, i] = sum_t X[n, i s + t d - p] W[t] + b.

    Shapes: X, dX are (N, *sizes, C); Y, dY are (N, *out, filters); W is
    (*kernel_size, C / groups, filters), b is (filters,).

    i is an output position and t a position in the kernel (a tap); s, d and p are stride, dilation
    and padding: see `Windows`. With G groups, group g of the channels is connected only to group g
    of the filters. Steps that a mask leaves out are treated as zeros, like padding.

    Backward. Let U = im2col(X) be the matrix of the windows, with a row for each output position.
    Then Y = U W + b is a Dense layer on rows, so

        dW = U^T dY        db = sum_rows(dY)        dU = dY W^T

    and dX = col2im(dU) sums, for each position of X, the entries of dU in all windows that contain
    it. U is large, so it is computed for one chunk of the samples at a time. If there are several
    chunks, none is kept, and backward computes U again for dW.

    With one channel, U has few columns, and adding b would take as long as U W. U then has one more
    column, of ones, so b is one more row of W, and db one more row of dW. Kernels of 3 x 3 with
    stride 1 are computed in tiles where that is faster than windows: see `layers/winograd.py`,
    which PHITODEEP_WINOGRAD=0 switches off.

    Sources: LeCun et al. 1989, "Backpropagation applied to handwritten zip code recognition",
    Neural Computation 1; as a matrix product: Chellapilla, Puri and Simard 2006.
    """

    output_padding: int | Sequence[int] = field(default=0, init=False)
    steps = derived.convolution
    _multiplied = "output_shape"  # has the positions at which each weight is used

    def _matrix(self, channels: int) -> Shape:
        return channels // self.groups, self.filters

    def forward(self, X: Array) -> Array:
        X, mask = self._unmasked(X)
        windows = self._windows_on(X)
        Y = self.buffer("Y", (len(X), *windows.out, self.filters), X.dtype)
        if self._in_tiles(len(X), windows):
            X = np.ascontiguousarray(X)
            winograd.convolve(X, self.W, self.b if self.bias else None, windows, Y, self.scratch)
            self.save_for_backward(X=X, windows=windows, tiled=True)
            return Y
        W_g, kept = self._by_group(self.W), None
        if ones := self._has_ones:
            W_g = np.append(W_g, self.b[None, None], axis=1)
        for chunk, U in self._chunks(X, windows, ones):
            np.matmul(U, W_g, out=by_group(Y[chunk], self.groups))
            kept = U if chunk == slice(0, len(X)) else None
        if self.bias and not ones:
            Y += self.b
        self.save_for_backward(X=X, windows=windows, tiled=False, mask=mask, U=kept)
        return Y

    def backward(self, dY: Array) -> Array | None:
        X, windows, tiled = self.saved("X", "windows", "tiled")
        learns, needs_dX, G = self.needs_grad("W", "b"), current().needs_dX, self.groups
        if self.bias and learns and not self._has_ones:
            sum_rows(dY, out=self.grad_array("b"))
        if tiled:
            dW, dY = self.grad_array("W") if learns else None, np.ascontiguousarray(dY)
            dX = self.buffer("dX", X.shape, X.dtype) if needs_dX else None
            winograd.convolve_back(X, self.W, dY, windows, dW, dX, self.scratch)
            return dX
        mask, kept = self.saved("mask", "U")
        if learns:
            dW_g = self._by_group(self.grad_array("W"))
            if ones := self._has_ones:
                dW_g = self.buffer("dW and db", (1, len(windows.taps) + 1, self.filters), dY.dtype)
            dW_g[...], share = 0, self.buffer("share", dW_g.shape, dY.dtype)
            chunks = self._chunks(X, windows, ones) if kept is None else [(slice(None), kept)]
            for chunk, U in chunks:
                dW_g += np.matmul(U.swapaxes(1, 2), by_group(dY[chunk], G), out=share)
            if ones:
                self._by_group(self.grad_array("W"))[...] = dW_g[:, :-1]
                self.grad_array("b")[...] = dW_g[0, -1]
        if not needs_dX:
            return None
        taps = self.W.reshape(len(windows.taps), X.shape[-1] // G, G, self.filters // G)
        dX = windows.col2im(by_group(dY, G), taps.transpose(0, 2, 3, 1), self)
        return dX if mask is None else dX * mask

    def _in_tiles(self, N: int, windows: Windows) -> bool:
        """Return whether to use Winograd's tiles instead of windows, for N samples."""
        settings = self.kernel, self.strides, self.dilations, self.groups
        return settings == winograd.SETTINGS and winograd.pays(
            N, windows.out, self.W.shape[-2], self.filters
        )

    @property
    def _has_ones(self) -> bool:
        """Whether U has a column of ones, so that b is one more row of W."""
        return self.bias and self.W.shape[-2] == self.groups == 1

    def _by_group(self, W: Array) -> Array:
        """Return W (*kernel, C / G, filters) as a view (G, taps * C / G, filters / G)."""
        return W.reshape(-1, self.groups, self.filters // self.groups).transpose(1, 0, 2)

    def _check_mask(self) -> None:
        """Refuse padding that makes the first window depend on the number of steps."""
        e, s = extent(self.kernel[0], self.dilations[0]), self.strides[0]
        if self.padding == "same" and max(e - s, 0) // 2 != (e - 1) // 2:
            raise ArgumentError(
                f'{self!r} does not accept `lengths`: with this stride, padding="same" puts the '
                "first window at a position that depends on the number of steps. "
                f"Remedy: padding={(e - 1) // 2}."
            )


class Conv1D(_Conv):
    __doc__ = _Conv.__doc__
    rank = 1


class Conv2D(_Conv):
    __doc__ = _Conv.__doc__
    rank = 2


class DepthwiseConv2D(Conv2D):
    """A Conv2D that applies `multiplier` separate filters to each channel: groups = C.

    Shapes: X is (N, height, width, C); Y is (N, *out, C multiplier); W is
    (*kernel_size, 1, C multiplier). Forward and backward are as in Conv2D.
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
            self.multiplier, kernel_size, stride=stride, padding=padding, dilation=dilation,
            bias=bias, initializer=initializer,
        )  # fmt: skip

    def create(self, shape: Shape) -> Shape:
        filters = shape[-1] * self.multiplier
        if self.params and self.filters != filters:
            raise ShapeError(f"{self!r} was built for {self.groups} channels, got shape {shape}.")
        self.groups, self.filters = shape[-1], filters
        return super().create(shape)


class _ConvTranspose(_Convolution):
    """The adjoint of a convolution: each x adds x times the kernel to a window of the output.

    Shapes: X, dX are (N, *sizes, C); Y, dY are (N, *out, filters); W is
    (*kernel_size, C, filters / groups), b is (filters,). Along an axis with k taps, the output size
    is (size - 1) stride + (k - 1) dilation + 1 + output_padding - 2 padding, or size times stride
    for "same". A convolution with the same settings turns Y's shape back into X's.

    Backward. Y = A^T X + b, where A is the linear map of that convolution, so dX = A dY is a
    convolution of dY. With V = im2col(dY), which has one row for each position of X,

        dX = V W^T        dW = X^T V        db = sum_rows(dY)

    Sources: Zeiler et al. 2010, "Deconvolutional networks"; Dumoulin and Visin 2016,
    arXiv:1603.07285, sec. 4.
    """

    steps = derived.transposed_convolution
    _multiplied = "input_shape"

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        self.extra = spread(self.output_padding, self.rank, f"{name} output_padding", minimum=0)
        if any(o >= s for o, s in zip(self.extra, self.strides, strict=True)):
            raise ArgumentError(
                f"{name}: output_padding {self.output_padding} must be less than the stride "
                f"{self.stride}."
            )
        if self.padding == "same" and any(self.extra):
            raise ArgumentError(
                f'{name}: padding "same" sets the output size, so leave out output_padding.'
            )

    def _matrix(self, channels: int) -> Shape:
        return channels, self.filters // self.groups

    def forward(self, X: Array) -> Array:
        X, mask = self._unmasked(X)
        windows = self._windows_on(X)
        images = windows.col2im(by_group(X, self.groups), self._taps(), self)
        self.save_for_backward(X=X, windows=windows, mask=mask)
        Y = self.buffer("Y", images.shape, X.dtype)
        if self.bias:
            return np.add(images, self.b, out=Y)
        np.copyto(Y, images)
        return Y

    def backward(self, dY: Array) -> Array | None:
        X, windows, mask = self.saved("X", "windows", "mask")
        taps, needs_dX, learns = self._taps(), current().needs_dX, self.needs_grad("W", "b")
        n, G, c, f = taps.shape
        dX = self.buffer("dX", X.shape, dY.dtype)
        W_T = taps.transpose(1, 0, 3, 2).reshape(G, n * f, c)
        dW = np.zeros((G, c, n * f), dY.dtype)
        for chunk, V in self._chunks(dY, windows):
            if learns:
                dW += np.matmul(by_group(X[chunk], G).swapaxes(1, 2), V)
            if needs_dX:
                np.matmul(V, W_T, out=by_group(dX[chunk], G))
        if learns:
            dW = dW.reshape(G, c, n, f).transpose(2, 0, 1, 3)
            np.copyto(self.grad_array("W"), dW.reshape(self.W.shape))
        if self.bias and learns:
            sum_rows(dY, out=self.grad_array("b"))
        if not needs_dX:
            return None
        return dX if mask is None else np.multiply(dX, mask, out=dX)

    def _taps(self) -> Array:
        """Return W as (taps, G, C / G, filters / G)."""
        channels, f = self.W.shape[-2:]
        return self.W.reshape(-1, self.groups, channels // self.groups, f)

    def matrices(self, name: str, W: Array) -> list[Array]:
        """Return one matrix (taps * C, filters), or one (C / G, filters / G) per tap and group."""
        if self.groups == 1:
            return super().matrices(name, W)
        C, filters = self.params[name].shape[-2:]
        return [W.reshape(-1, C // self.groups, filters)]

    def _windows_on(self, X: Array) -> Windows:
        return self._windows(self._out(X.shape[1:-1]))

    def _out(self, sizes: Shape) -> Shape:
        out = tuple(self._output_size(n, axis) for axis, n in enumerate(sizes))
        if min(out) < 1:
            raise ShapeError(
                f"{self!r}: padding {self.padding} leaves nothing of an input of size {sizes}."
            )
        return out

    def _output_size(self, n: Any, axis: int) -> Any:
        """Return the output size along an axis, for an input of n positions."""
        s = self.strides[axis]
        if self.padding == "same":
            return n * s
        p = 0 if isinstance(self.padding, str) else self.padding
        e = extent(self.kernel[axis], self.dilations[axis])
        return (n - 1) * s + e + self.extra[axis] - 2 * p

    def _output_steps(self, n: Any) -> Any:
        return self._output_size(n, 0)


class ConvTranspose1D(_ConvTranspose):
    __doc__ = _ConvTranspose.__doc__
    rank = 1


class ConvTranspose2D(_ConvTranspose):
    __doc__ = _ConvTranspose.__doc__
    rank = 2
