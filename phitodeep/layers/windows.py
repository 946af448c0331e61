"""Sliding windows over the spatial axes of (N, *sizes, C): what convolutions and pools share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from phitodeep.checks import check_count
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.layers.base import Layer
from phitodeep.layers.call import current
from phitodeep.types import Array, DType, Shape

FIRST_TO_LAST = (
    " Images are (N, height, width, C): np.moveaxis(X, 1, -1) takes channels from first to last."
)


def sample_shape(layer: Layer, rank: int, shape: Shape) -> ShapeError:
    """The error for samples of `shape`, which have not `rank` spatial axes and channels."""
    axes = ("steps", "height, width")[rank - 1]
    hint = (
        f": .reshape({', '.join(map(str, shape))}, 1) makes one channel"
        if len(shape) == rank
        else ""
    )
    return ShapeError(f"{layer!r} takes samples of shape ({axes}, C), got {shape}{hint}.")


def spread(value: int | Sequence[int], rank: int, who: str, least: int = 1) -> Shape:
    """One integer for all spatial axes, or one for each."""
    values = tuple(value) if isinstance(value, Sequence) else (value,) * rank
    if len(values) != rank:
        raise ArgumentError(f"{who} takes one integer or {rank}, got {value!r}.")
    return tuple(check_count(v, who, least=least) for v in values)


def check_padding(padding: str | int, who: str) -> str | int:
    """`padding` as "valid", "same" or a count of zeros on each side."""
    if isinstance(padding, str):
        if padding not in ("valid", "same"):
            raise ArgumentError(
                f'{who} padding must be "valid", "same" or an integer, got {padding!r}.'
            )
        return padding
    return check_count(padding, f"{who} padding", least=0)


def extent(k: int, dilation: int) -> int:
    """The places that a kernel of k taps spans."""
    return (k - 1) * dilation + 1


def places(size: Any, extent: int, stride: int, padding: str | int) -> Any:
    """How many windows fit on an axis of `size` places (an integer, or an array of several)."""
    if padding == "same":
        return -(-size // stride)
    p = 0 if isinstance(padding, str) else padding
    return (size + 2 * p - extent) // stride + 1


class Windows:
    """Where the windows of a kernel lie on inputs of given spatial sizes.

    With kernel k, stride s and dilation d, a window spans e = (k - 1) d + 1 places. Padding adds
    zeros (before, after) each axis:

        "valid"     none, and what a last stride does not reach is left out
        an integer  p on both sides
        "same"      so many that the output has ceil(size / s) places: in all
                    max((ceil(size / s) - 1) s + e - size, 0), the odd one after

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
        self.sizes, self.kernel, self.stride, self.dilation = sizes, kernel, stride, dilation
        extents = [extent(k, d) for k, d in zip(kernel, dilation, strict=True)]
        self.pads: list[tuple[int, int]] = []
        self.out = tuple(
            places(n, e, s, padding) for n, e, s in zip(sizes, extents, stride, strict=True)
        )
        for size, out, e, s in zip(sizes, self.out, extents, stride, strict=True):
            if padding == "same":
                total = max((out - 1) * s + e - size, 0)
                self.pads.append((total // 2, total - total // 2))
            else:
                p = 0 if isinstance(padding, str) else padding
                self.pads.append((p, p))
        self.padded = tuple(n + sum(p) for n, p in zip(sizes, self.pads, strict=True))
        if any(n < e for n, e in zip(self.padded, extents, strict=True)):
            first = len(sizes) == 2 and sizes[0] in (1, 3)  # channels, where rows should be
            raise ShapeError(
                f"{who}: a window of {tuple(extents)} does not fit into an input of {sizes}"
                f"{'' if self.padded == sizes else f', padded to {self.padded}'}."
                f"{FIRST_TO_LAST if first else ''}"
            )
        self.taps = list(product(*map(range, kernel)))

    def pad(self, X: Array, buffer: Callable[[str, Shape, DType], Array], fill: float = 0) -> Array:
        """X (N, *sizes, C) inside its padding, (N, *padded, C); X itself where there is none."""
        if self.padded == self.sizes:
            return X
        padded = buffer("padded", (len(X), *self.padded, X.shape[-1]), X.dtype)
        padded.fill(fill)
        self.inside(padded)[...] = X
        return padded

    def inside(self, padded: Array) -> Array:
        """The view of a padded array without its padding."""
        where = [slice(a, a + n) for (a, _), n in zip(self.pads, self.sizes, strict=True)]
        return padded[(slice(None), *where)]

    def at(self, padded: Array, tap: Shape) -> Array:
        """The view (N, *out, C) of what all windows have at `tap`."""
        where = [
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, self.dilation, self.out, self.stride, strict=True)
        ]
        return padded[(slice(None), *where)]

    def view(self, padded: Array) -> Array:
        """All windows as a read-only view (N, *out, *kernel, C)."""
        steps = padded.strides[1:-1]
        strides = (
            padded.strides[0],
            *(a * s for a, s in zip(steps, self.stride, strict=True)),
            *(a * d for a, d in zip(steps, self.dilation, strict=True)),
            padded.strides[-1],
        )
        shape = (len(padded), *self.out, *self.kernel, padded.shape[-1])
        return np.lib.stride_tricks.as_strided(padded, shape, strides, writeable=False)


def steps_there(layer: Layer, X: Array) -> Array | None:
    """The call's mask as (N, T, 1), where X (N, T, C) has steps."""
    if X.ndim != 3 or current().mask is None:
        return None
    mask = layer.check_steps(X)
    return None if mask is None else mask[..., None]


def resize_mask(layer: Layer, mask: Array, steps: Callable[[Any], Any]) -> Array:
    """The mask (N, T') after a layer that makes steps(n) steps of n."""
    T = mask.shape[1]
    if (mask[:, 1:] > mask[:, :-1]).any():
        if steps(T) == T and steps(T + 1) == T + 1:
            return mask
        raise ShapeError(
            f"{layer!r} makes {steps(T)} steps of {T}, so it takes lengths, or a mask that is True "
            "up to a sample's last step and False after it."
        )
    lengths = mask.sum(axis=1)
    return np.arange(steps(T)) < np.where(lengths, steps(lengths), 0)[:, None]


windows = functools.lru_cache(maxsize=256)(Windows)  # a layer sees few sizes, and many batches
