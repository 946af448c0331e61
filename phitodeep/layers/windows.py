"""Sliding windows over the spatial axes of (N, *sizes, C), which convolutions and pools share."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Annotated, Any

import numpy as np

from phitodeep.core.call import current
from phitodeep.core.checks import check_count
from phitodeep.core.frame import Buffered
from phitodeep.core.types import Array, DType, Shape
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.layers.base import Layer
from phitodeep.layers.random import LARGEST

FIRST_TO_LAST = (
    " Images are (N, height, width, C): np.moveaxis(X, 1, -1) moves channels from first to last."
)


class Windows:
    """The positions of a kernel's windows on inputs of given spatial sizes.

    With kernel size k, stride s and dilation d, a window covers e = (k - 1) d + 1 positions.
    Padding adds zeros before and after each axis:

        "valid"     none: positions that only a partial window would cover are left out
        an integer  p on both sides
        "same"      enough for an output of ceil(size / s) positions: in total
                    max((ceil(size / s) - 1) s + e - size, 0); if that is odd, one more after

    Output sizes are (size + before + after - e) // s + 1.
    """

    def __init__(
        self,
        sizes: Shape,
        kernel: Shape,
        stride: Shape,
        padding: str | int,
        dilation: Shape,
        who: str,
    ) -> None:
        self.sizes, self.kernel = sizes, kernel
        extents = [extent(k, d) for k, d in zip(kernel, dilation, strict=True)]
        self.pads: list[tuple[int, int]] = []
        self.out: Shape = ()
        for n, e, s in zip(sizes, extents, stride, strict=True):
            self.out += (output_size(n, e, s, padding),)
            total = 0 if isinstance(padding, str) else 2 * padding
            if padding == "same":
                total = max((self.out[-1] - 1) * s + e - n, 0)
            self.pads.append((total // 2, total - total // 2))
        self.padded = tuple(n + sum(p) for n, p in zip(sizes, self.pads, strict=True))
        if math.prod(self.padded) > LARGEST:
            raise ShapeError(f"{who}: an input padded to {self.padded} is too large.")
        # the steps along axes with one window or one tap, which may be too large for NumPy
        self.stride = tuple(s if n > 1 else 1 for s, n in zip(stride, self.out, strict=True))
        self.dilation = tuple(d if k > 1 else 1 for d, k in zip(dilation, kernel, strict=True))
        if any(n < e for n, e in zip(self.padded, extents, strict=True)):
            channels_first = len(sizes) == 2 and sizes[0] in (1, 3)  # a guess
            raise ShapeError(
                f"{who}: a window of {tuple(extents)} does not fit into an input of {sizes}"
                f"{'' if self.padded == sizes else f', padded to {self.padded}'}."
                f"{FIRST_TO_LAST if channels_first else ''}"
            )

    @functools.cached_property
    def taps(self) -> list[Shape]:
        """The positions in the kernel, listed when they are first needed."""
        return list(product(*map(range, self.kernel)))

    def pad(self, X: Array, buffer: Callable[[str, Shape, DType], Array], fill: float = 0) -> Array:
        """Return X (N, *sizes, C) padded to (N, *padded, C), or X itself if there is no padding."""
        if self.padded == self.sizes:
            return X
        padded = buffer("padded", (len(X), *self.padded, X.shape[-1]), X.dtype)
        padded.fill(fill)
        self.inside(padded)[...] = X
        return padded

    def inside(self, padded: Array) -> Array:
        """Return a view of a padded array without its padding."""
        where = [slice(a, a + n) for (a, _), n in zip(self.pads, self.sizes, strict=True)]
        return padded[(slice(None), *where)]

    def at(self, padded: Array, tap: Shape) -> Array:
        """Return a view (N, *out, C) of the value that each window has at `tap`."""
        where = [
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, self.dilation, self.out, self.stride, strict=True)
        ]
        return padded[(slice(None), *where)]

    def view(self, padded: Array) -> Array:
        """Return a read-only view (N, *out, *kernel, C) of all windows."""
        steps = padded.strides[1:-1]
        strides = (
            padded.strides[0],
            *(a * s for a, s in zip(steps, self.stride, strict=True)),
            *(a * d for a, d in zip(steps, self.dilation, strict=True)),
            padded.strides[-1],
        )
        shape = (len(padded), *self.out, *self.kernel, padded.shape[-1])
        return np.lib.stride_tricks.as_strided(padded, shape, strides, writeable=False)

    def im2col(self, padded: Array, groups: int, columns: Array, ones: bool = False) -> Array:
        """Copy all windows of padded samples (n, *padded, C) into `columns`, a flat array.

        Return them as rows (groups, n * positions, taps * C / groups), a view of `columns`. With
        `ones`, which requires one channel, each row has a 1 after its taps.
        """
        taps, channels = len(self.taps), padded.shape[-1]
        if channels == 1:  # faster here, because each copy is a longer contiguous run
            columns = columns.reshape(taps + ones, -1)
            columns[taps:] = 1
            for column, tap in zip(columns[:taps], self.taps, strict=True):
                at = self.at(padded, tap)
                np.copyto(column.reshape(at.shape), at)
            return columns[None].swapaxes(1, 2)
        view = self.view(padded)  # (n, *out, *kernel, C)
        group = channels // groups
        split = view.reshape(*view.shape[:-1], groups, group) if groups > 1 else view[..., None, :]
        np.copyto(columns.reshape(groups, *view.shape[:-1], group), np.moveaxis(split, -2, 0))
        return columns.reshape(groups, -1, taps * group)

    def col2im(self, rows: Array, taps: Array, memory: Buffered) -> Array:
        """Sum rows (G, n * positions, a) times taps (taps, G, a, c / G) into images (n, *sizes, c).

        This is the adjoint of `im2col` followed by a product. Each product is added at the position
        that `im2col` reads for the same window and tap, so overlapping windows add up.
        """
        G, count = rows.shape[:2]
        channels = G * taps.shape[-1]
        shape = (count // math.prod(self.out), *self.padded, channels)
        images = memory.buffer("images", shape, rows.dtype)
        images.fill(0)
        product = memory.scratch("product", (count, channels), rows.dtype)
        product_g = by_group(product, G)
        for tap, weights in zip(self.taps, taps, strict=True):
            np.matmul(rows, weights, out=product_g)
            at = self.at(images, tap)
            at += product.reshape(at.shape)
        return self.inside(images)


cached_windows = functools.lru_cache(maxsize=256)(Windows)  # a layer has few input sizes


class Spatial(Layer, registered=False):
    """Base class of layers whose samples are (*sizes, C), with `rank` spatial axes."""

    rank: int
    independent_samples = True

    def _check_rank(self, shape: Shape) -> None:
        """Refuse samples that have not `rank` spatial axes and one of channels."""
        if len(shape) != self.rank + 1:
            axes = ("steps", "height, width")[self.rank - 1]
            hint = f": .reshape({', '.join(map(str, shape))}, 1) adds an axis for one channel"
            raise ShapeError(
                f"{self!r} takes samples of shape ({axes}, C), got {shape}"
                f"{hint * (len(shape) == self.rank)}."
            )


class Windowed(Spatial, registered=False):
    """Base class of layers with windows over the spatial axes of (N, *sizes, C)."""

    kernel: Shape  # the sizes of a window, and the other settings of `Windows`
    strides: Shape
    dilations: Shape
    padding: str | int

    def _windows(self, sizes: Shape) -> Windows:
        """Return the windows on inputs of these spatial sizes."""
        name = type(self).__name__
        return cached_windows(sizes, self.kernel, self.strides, self.padding, self.dilations, name)

    # --- masks of steps, which exist along one spatial axis ----------------------------------

    def compute_mask(self, mask: Array) -> Array | None:
        if self.rank != 1:
            return super().compute_mask(mask)
        self._check_mask()
        return resize_mask(self, mask, self._output_steps)

    def _check_mask(self) -> None:
        """Refuse masks if the settings do not allow them."""

    def _output_steps(self, n: Any) -> Any:
        """Return the number of steps of Y for n steps of X: an integer, or an array of them."""
        e = extent(self.kernel[0], self.dilations[0])
        return output_size(n, e, self.strides[0], self.padding)

    def _step_mask(self, X: Array) -> Array | None:
        """Return the call's mask as (N, T, 1), or None if it has none or X has no steps."""
        if X.ndim != 3 or current().mask is None:
            return None
        mask = self.check_steps(X)
        return None if mask is None else mask[..., None]


def by_group(A: Array, groups: int) -> Array:
    """Return A (..., C) as a view (groups, rows, C / groups)."""
    return A.reshape(-1, groups, A.shape[-1] // groups).transpose(1, 0, 2)


def extent(k: int, dilation: int) -> int:
    """Return the number of positions that a kernel of k taps covers."""
    return (k - 1) * dilation + 1


def output_size(size: Any, extent: int, stride: int, padding: str | int) -> Any:
    """Return the number of windows along an axis of `size` positions (integer or array)."""
    if padding == "same":
        return -(-size // stride)
    p = 0 if isinstance(padding, str) else padding
    return (size + 2 * p - extent) // stride + 1


def spread(value: int | Sequence[int], rank: int, who: str, minimum: int = 1) -> Shape:
    """Return `value` as one integer per spatial axis; a single integer is used for all axes."""
    given: Any = value
    several = isinstance(given, Sequence) and not isinstance(given, str)
    values = tuple(given) if several else (given,) * rank
    if len(values) != rank:
        raise ArgumentError(f"{who} takes one integer or {rank}, got {value!r}.")
    return tuple(check_count(v, who, minimum=minimum) for v in values)


def check_padding(padding: str | int, who: str) -> str | int:
    """Return `padding`, which must be "valid", "same" or the number of zeros on each side."""
    if isinstance(padding, str):
        if padding not in ("valid", "same"):
            raise ArgumentError(f'{who} must be "valid", "same" or an integer, got {padding!r}.')
        return padding
    return check_count(padding, who, minimum=0)


Padding = Annotated[str | int, check_padding]


def resize_mask(layer: Layer, mask: Array, resize: Callable[[Any], Any]) -> Array:
    """Return the mask (N, T') of Y, for a layer that turns n steps into resize(n)."""
    T = mask.shape[1]
    if (mask[:, 1:] > mask[:, :-1]).any():
        if resize(T) == T and resize(T + 1) == T + 1:
            return mask
        raise ShapeError(
            f"{layer!r} turns {T} steps into {resize(T)}, so it requires lengths, or a mask that "
            "is True up to a sample's last step and False after it."
        )
    lengths = mask.sum(axis=1)
    return np.arange(resize(T)) < np.where(lengths, resize(lengths), 0)[:, None]
