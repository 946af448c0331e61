"""Images seen a little differently in each step of training, and as they are at inference.

All of them move numbers and compute none, so each backward pass moves them back. What is drawn is
a function of seed, layer path, step and the sample's place in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.layers.base import Layer
from phitodeep.layers.call import current
from phitodeep.layers.windows import spread
from phitodeep.types import Array, Shape


class _Image(Layer):
    """What these layers share: samples (height, width, C)."""

    _flops_per_output = 0
    independent_samples = True

    def create(self, shape: Shape) -> Shape:
        self._check(shape)
        return shape

    def _check(self, shape: Shape) -> None:
        if len(shape) != 3:
            raise ShapeError(f"{self!r} takes samples of shape (height, width, C), got {shape}.")


class RandomFlip(_Image):
    """Turn each image over, left for right, with probability 1/2; `vertical`: upside down too.

    Shapes: X, Y, dX, dY are (N, height, width, C). The two directions are drawn apart.
    Backward: what was turned over is turned back.
    Source: Krizhevsky, Sutskever and Hinton 2012, "ImageNet classification", sec. 4.1.
    """

    def __init__(self, *, horizontal: bool = True, vertical: bool = False) -> None:
        super().__init__()
        if not (horizontal or vertical):
            raise ArgumentError("RandomFlip needs horizontal=True or vertical=True.")
        self.horizontal, self.vertical = horizontal, vertical

    def forward(self, X: Array) -> Array:
        self._check(X.shape[1:])
        drawn = self.uniform((len(X), 2)) if current().training else np.ones((len(X), 2))
        flips = drawn < [self.vertical / 2, self.horizontal / 2]
        self.save_for_backward(flips=flips)
        return self._flipped(X, flips, "Y")

    def backward(self, dY: Array) -> Array:
        return self._flipped(dY, self.saved("flips"), "dX")

    def _flipped(self, A: Array, flips: Array, name: str) -> Array:
        out = self.buffer(name, A.shape, A.dtype)
        np.copyto(out, A)
        for axis, flip in ((1, flips[:, 0]), (2, flips[:, 1])):
            out[flip] = np.flip(out[flip], axis)
        return out


class RandomCrop(_Image):
    """A window of `size` at a random place of each image, after `padding` zeros on all sides.

    Shapes: X, dX are (N, height, width, C); Y, dY are (N, *size, C), size being (height, width)
    or one number for both. At inference, the window is in the middle.
    Backward: dX is dY where the window was, and 0 elsewhere.
    Source: Krizhevsky, Sutskever and Hinton 2012, sec. 4.1; with padding: He et al. 2016,
    arXiv:1512.03385, sec. 4.2.
    """

    def __init__(self, size: int | Sequence[int], *, padding: int | Sequence[int] = 0) -> None:
        super().__init__()
        name = type(self).__name__
        self.size, self.padding = size, padding
        self.window = spread(size, 2, f"{name} size")
        self.pads = spread(padding, 2, f"{name} padding", least=0)

    def create(self, shape: Shape) -> Shape:
        super().create(shape)
        self._room(shape)
        return (*self._sizes(shape), shape[-1])

    def _sizes(self, shape: Shape) -> Shape:
        """The window's height and width on images of `shape`."""
        return self.window

    def _room(self, shape: Shape) -> Array:
        """How many places the window has, beside the first, along each axis."""
        room = np.array(shape[:2]) + 2 * np.array(self.pads) - self._sizes(shape)
        if room.min() < 0:
            raise ShapeError(f"{self!r} does not fit into images of shape {shape}.")
        return room

    def forward(self, X: Array) -> Array:
        shape = X.shape[1:]
        self._check(shape)
        room, sizes = self._room(shape), self._sizes(shape)
        if current().training:
            at = (self.uniform((len(X), 2)) * (room + 1)).astype(int)
        else:
            at = np.tile(room // 2, (len(X), 1))
        padded = self.buffer("padded", self._padded(X.shape), X.dtype)
        padded.fill(0)
        self._inside(padded, shape)[...] = X
        Y = self.buffer("Y", (len(X), *sizes, shape[-1]), X.dtype)
        for y, window in zip(Y, self._windows(padded, at, sizes), strict=True):
            np.copyto(y, window)
        self.save_for_backward(at=at, shape=X.shape)
        return Y

    def backward(self, dY: Array) -> Array:
        at, shape = self.saved("at", "shape")
        padded = self.buffer("laid", self._padded(shape), dY.dtype)
        padded.fill(0)
        for dy, window in zip(dY, self._windows(padded, at, dY.shape[1:3]), strict=True):
            np.copyto(window, dy)
        return self._inside(padded, shape[1:])

    def _padded(self, shape: Shape) -> Shape:
        n, height, width, channels = shape
        return (n, height + 2 * self.pads[0], width + 2 * self.pads[1], channels)

    def _inside(self, padded: Array, shape: Shape) -> Array:
        (top, left), (height, width, _) = self.pads, shape
        return padded[:, top : top + height, left : left + width]

    def _windows(self, padded: Array, at: Array, sizes: Shape) -> list[Array]:
        """The view of each image's window."""
        height, width = sizes
        return [
            image[i : i + height, j : j + width]
            for image, (i, j) in zip(padded, at.tolist(), strict=True)
        ]


class RandomShift(RandomCrop):
    """Move each image by up to `pixels` along both axes; zeros come in at the edges.

    Shapes: X, Y, dX, dY are (N, height, width, C); pixels is one number or (down, across).
    Forward and backward: those of a RandomCrop of the image's size with `pixels` as padding.
    Source: LeCun et al. 1998, "Gradient-based learning applied to document recognition", sec. 3.2.
    """

    def __init__(self, pixels: int | Sequence[int]) -> None:
        super().__init__(1, padding=pixels)
        self.pixels = pixels

    def _sizes(self, shape: Shape) -> Shape:
        return shape[:2]
