"""Layers that make images larger: upsampling and zero padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from phitodeep.core.checks import check_option
from phitodeep.core.types import Array, Shape
from phitodeep.derivations import reshape as derived
from phitodeep.errors import ArgumentError
from phitodeep.layers.windows import Spatial, spread


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

    steps = derived.upsample

    def __init__(self, factor: int | Sequence[int], mode: str = "nearest") -> None:
        super().__init__()
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

    steps = derived.zero_pad

    def __init__(self, padding: int | Sequence[Sequence[int]] = 1) -> None:
        super().__init__()
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
