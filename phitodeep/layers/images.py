"""Layers of images: upsampling, zero padding, and augmentation by random flips, crops and shifts.

Augmentation is random in training, and nothing is random at inference. It moves pixels without
changing their values, so each backward pass moves the gradients back. The random draws depend only
on the seed, layer path, step and position in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from phitodeep.core.call import current
from phitodeep.core.checks import check_flag, check_option
from phitodeep.core.types import Array, Shape
from phitodeep.derivations import random, reshape
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.layers.random import LARGEST
from phitodeep.layers.windows import Spatial, spread

__all__ = ["RandomCrop", "RandomFlip", "RandomShift", "Upsample2D", "ZeroPad2D"]


class ImageLayer(Spatial, registered=False):
    """Base class of layers whose samples are images (height, width, C)."""

    rank = 2
    _flops_per_output = 0

    def create(self, shape: Shape) -> Shape:
        self._check_rank(shape)
        return shape


class Upsample2D(ImageLayer):
    """Make images `factor` times larger: repeat pixels ("nearest") or interpolate ("bilinear").

    Shapes: X, dX are (N, height, width, C); Y, dY are (N, height f, width g, C). `factor` is
    (f, g), or one integer for both.

    Both modes are linear along each axis: with A (height f, height) and B (width g, width),
    Y = A X B^T for each channel. For "nearest", each row of A holds a single 1. For "bilinear",
    output position i corresponds to input position (i + 1/2) / f - 1/2 (half-pixel centres,
    clipped to the image), and row i holds the weights of the two nearest pixels.

    Backward: dX = A^T dY B.
    Source: the half-pixel rule of PyTorch's interpolate(align_corners=False).
    """

    steps = reshape.upsample

    def __init__(self, factor: int | Sequence[int], mode: str = "nearest") -> None:
        self.factor = factor
        self.factors = spread(factor, 2, "Upsample2D factor")
        self.mode = check_option(mode, "Upsample2D mode", ("nearest", "bilinear"))
        self._flops_per_output = 1 if mode == "nearest" else 4

    def create(self, shape: Shape) -> Shape:
        self._check_rank(shape)
        f, g = self.factors
        return (shape[0] * f, shape[1] * g, shape[2])

    def forward(self, X: Array) -> Array:
        self._check_rank(X.shape[1:])
        A, B = self._matrices(X)
        self.save_for_backward(A=A, B=B)
        return _apply(A, B, X)

    def backward(self, dY: Array) -> Array:
        A, B = self.saved("A", "B")
        return _apply(A.T, B.T, dY)

    def _matrices(self, X: Array) -> list[Array]:
        """Return A and B, for X."""
        return [
            _interpolation_matrix(n, f, self.mode).astype(X.dtype)
            for n, f in zip(X.shape[1:3], self.factors, strict=True)
        ]


def resize(X: Array, height: int, width: int) -> Array:
    """Return X (N, ..., ..., C) as images (N, height, width, C), by bilinear interpolation."""
    A, B = (
        _interpolation_matrix(n, new / n, "bilinear").astype(X.dtype)
        for n, new in zip(X.shape[1:3], (height, width), strict=True)
    )
    return _apply(A, B, X)


def _interpolation_matrix(size: int, factor: float, mode: str) -> Array:
    """Return the matrix (size factor, size) that makes a vector `factor` times longer."""
    eye = np.eye(size)
    if mode == "nearest":
        return np.repeat(eye, int(factor), axis=0)
    position = np.clip((np.arange(round(size * factor)) + 0.5) / factor - 0.5, 0, size - 1)
    low = np.minimum(position.astype(int), size - 1)
    share = (position - low)[:, None]
    return (1 - share) * eye[low] + share * eye[np.minimum(low + 1, size - 1)]


def _apply(A: Array, B: Array, X: Array) -> Array:
    """Return A X B^T for each sample and channel of X (N, height, width, C)."""
    n, height, width, channels = X.shape
    rows = np.matmul(A, X.reshape(n, height, width * channels))
    Y = np.matmul(B, rows.reshape(n * len(A), width, channels))
    return Y.reshape(n, len(A), len(B), channels)


class ZeroPad2D(ImageLayer):
    """Add zeros around images: `padding` on all sides, or ((top, bottom), (left, right)).

    Shapes: X, dX are (N, height, width, C); Y, dY are
    (N, height + top + bottom, width + left + right, C).
    Backward: dX is dY without the padding.
    """

    steps = reshape.zero_pad

    def __init__(self, padding: int | Sequence[Sequence[int]] = 1) -> None:
        pairs = padding if isinstance(padding, Sequence) else ((padding, padding),) * 2
        self.padding = padding
        self.pads = tuple(spread(pair, 2, "ZeroPad2D padding", minimum=0) for pair in pairs)
        if len(self.pads) != 2:
            raise ArgumentError(f"ZeroPad2D takes ((top, bottom), (left, right)), got {padding!r}.")

    def create(self, shape: Shape) -> Shape:
        self._check_rank(shape)
        (t, b), (left, r) = self.pads
        return (shape[0] + t + b, shape[1] + left + r, shape[2])

    def forward(self, X: Array) -> Array:
        self._check_rank(X.shape[1:])
        self.save_for_backward(sizes=X.shape[1:3])
        return np.pad(X, ((0, 0), *self.pads, (0, 0)))

    def backward(self, dY: Array) -> Array:
        height, width = self.saved("sizes")
        (t, _), (left, _) = self.pads
        return dY[:, t : t + height, left : left + width].copy()


# --- augmentation --------------------------------------------------------------------------------


class RandomFlip(ImageLayer):
    """Mirror each image left to right with probability 1/2; with `vertical`, also upside down.

    Shapes: X, Y, dX, dY are (N, height, width, C). The two directions are drawn independently.
    Backward: dX is dY, with the same images flipped back.
    Source: Krizhevsky, Sutskever and Hinton 2012, "ImageNet classification", sec. 4.1.
    """

    steps = random.random_flip

    def __init__(self, *, horizontal: bool = True, vertical: bool = False) -> None:
        self.horizontal = check_flag(horizontal, "RandomFlip horizontal")
        self.vertical = check_flag(vertical, "RandomFlip vertical")
        if not (horizontal or vertical):
            raise ArgumentError("RandomFlip needs horizontal=True or vertical=True.")

    def forward(self, X: Array) -> Array:
        self._check_rank(X.shape[1:])
        flips = self._flips(X)
        self.save_for_backward(flips=flips)
        return self._flipped(X, flips, "Y")

    def backward(self, dY: Array) -> Array:
        return self._flipped(dY, self.saved("flips"), "dX")

    def _flips(self, X: Array) -> Array:
        """Return whether each image is turned upside down and mirrored left to right, (N, 2)."""
        drawn = self.uniform((len(X), 2)) if current().training else np.ones((len(X), 2))
        return drawn < [self.vertical / 2, self.horizontal / 2]

    def _flipped(self, A: Array, flips: Array, name: str) -> Array:
        out = self.buffer(name, A.shape, A.dtype)
        np.copyto(out, A)
        for axis, flip in ((1, flips[:, 0]), (2, flips[:, 1])):
            out[flip] = np.flip(out[flip], axis)
        return out


class RandomCrop(ImageLayer):
    """Crop each image to a randomly placed window, after padding it with zeros on all sides.

    Shapes: X, dX are (N, height, width, C); Y, dY are (N, *size, C). `size` is the (height, width)
    of the window, or one integer for both; `padding` has the same form. At inference, the window
    is centred.
    Backward: dX is dY inside the window, and 0 elsewhere.
    Sources: Krizhevsky, Sutskever and Hinton 2012, sec. 4.1; with padding: He et al. 2016,
    arXiv:1512.03385, sec. 4.2.
    """

    steps = random.random_crop

    def __init__(self, size: int | Sequence[int], *, padding: int | Sequence[int] = 0) -> None:
        name = type(self).__name__
        self.size, self.padding = size, padding
        self.window = spread(size, 2, f"{name} size")
        self.pads = spread(padding, 2, f"{name} padding", minimum=0)

    def create(self, shape: Shape) -> Shape:
        super().create(shape)
        if math.prod(self._padded_shape((1, *shape))) > LARGEST:
            raise ShapeError(f"{self!r} pads images of shape {shape} too far for any computer.")
        self._max_offsets(shape)
        return (*self._window_size(shape), shape[-1])

    def _window_size(self, shape: Shape) -> Shape:
        """Return the height and width of the window in images of this shape."""
        return self.window

    def _max_offsets(self, shape: Shape) -> Array:
        """Return the largest offset of the window along each axis of the padded image."""
        sides = zip(shape, self.pads, self._window_size(shape), strict=False)
        offsets = np.array([n + 2 * p - size for n, p, size in sides])
        if offsets.min() < 0:
            raise ShapeError(f"{self!r} does not fit into images of shape {shape}.")
        return offsets

    def forward(self, X: Array) -> Array:
        shape = X.shape[1:]
        self._check_rank(shape)
        offsets, size = self._offsets(X), self._window_size(shape)
        padded = self.buffer("padded", self._padded_shape(X.shape), X.dtype)
        padded.fill(0)
        self._inside(padded, shape)[...] = X
        Y = self.buffer("Y", (len(X), *size, shape[-1]), X.dtype)
        for y, window in zip(Y, self._windows(padded, offsets, size), strict=True):
            np.copyto(y, window)
        self.save_for_backward(offsets=offsets, shape=X.shape)
        return Y

    def backward(self, dY: Array) -> Array:
        offsets, shape = self.saved("offsets", "shape")
        padded = self.buffer("padded dX", self._padded_shape(shape), dY.dtype)
        padded.fill(0)
        for dy, window in zip(dY, self._windows(padded, offsets, dY.shape[1:3]), strict=True):
            np.copyto(window, dy)
        return self._inside(padded, shape[1:])

    def _offsets(self, X: Array) -> Array:
        """Return the offsets of the windows in the padded images, (N, 2)."""
        largest = self._max_offsets(X.shape[1:])
        if not current().training:
            return np.tile(largest // 2, (len(X), 1))
        return (self.uniform((len(X), 2)) * (largest + 1)).astype(int)

    def _padded_shape(self, shape: Shape) -> Shape:
        n, height, width, channels = shape
        return (n, height + 2 * self.pads[0], width + 2 * self.pads[1], channels)

    def _inside(self, padded: Array, shape: Shape) -> Array:
        """Return a view of the images without their padding."""
        (top, left), (height, width, _) = self.pads, shape
        return padded[:, top : top + height, left : left + width]

    def _windows(self, padded: Array, offsets: Array, size: Shape) -> list[Array]:
        """Return the window of each image, as a view."""
        height, width = size
        return [
            image[i : i + height, j : j + width]
            for image, (i, j) in zip(padded, offsets.tolist(), strict=True)
        ]


class RandomShift(RandomCrop):
    """Shift each image by up to `pixels` along both axes, and fill the gaps with zeros.

    Shapes: X, Y, dX, dY are (N, height, width, C); `pixels` is one integer, or (vertical,
    horizontal). Both passes work like a RandomCrop whose window has the image's size
    and whose padding is `pixels`.
    Source: LeCun et al. 1998, "Gradient-based learning applied to document recognition", sec. 3.2.
    """

    def __init__(self, pixels: int | Sequence[int]) -> None:
        super().__init__(1, padding=pixels)
        self.pixels = pixels

    def _window_size(self, shape: Shape) -> Shape:
        return shape[:2]
