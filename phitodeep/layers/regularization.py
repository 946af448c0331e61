"""Layers that disturb training, and do nothing at inference."""

from __future__ import annotations

import numpy as np

from phitodeep.checks import check_number
from phitodeep.layers.base import Layer, current
from phitodeep.types import Array, Shape


class Dropout(Layer):
    """Drop each number with probability `rate` in training, and scale up what stays.

    Shapes: X, Y, dX, dY are (N, ...).

    Forward: y = m x with m = 0 (probability rate) or 1 / (1 - rate), so that the mean of y is x
    and inference needs no correction: there y = x.
    Backward: the same m is a constant factor, so dx = m dy.

    Source: Srivastava et al. 2014, "Dropout", JMLR 15, sec. 10 (the scaled form).
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = check_number(rate, "Dropout rate", least=0, below=1)

    def forward(self, X: Array) -> Array:
        if not current().training:
            self.save(mask=None)
            return X.copy()
        units = self._units(X.shape)
        mask = self.buffer("mask", units, X.dtype)
        np.greater_equal(self.uniform(units), self.rate, out=mask)
        mask *= 1 / (1 - self.rate)
        self.save(mask=mask)
        return np.multiply(X, mask, out=self.buffer("Y", X.shape, X.dtype))

    def _units(self, shape: Shape) -> Shape:
        """The shape of what stays or goes as one."""
        return shape

    def backward(self, dY: Array) -> Array:
        mask = self.saved("mask")
        if mask is None:
            return dY.copy()
        return np.multiply(dY, mask, out=self.buffer("dX", dY.shape, dY.dtype))


class SpatialDropout(Dropout):
    """Dropout of whole channels: all places of a channel stay or go together.

    Shapes: X, Y, dX, dY are (N, *sizes, C). Forward and backward: those of Dropout, with one m
    for each sample and channel. Neighbours in an image are so alike that dropping single numbers
    would hide nothing.
    Source: Tompson et al. 2015, arXiv:1411.4280, sec. 3.2.
    """

    def _units(self, shape: Shape) -> Shape:
        return (shape[0], *(1,) * (len(shape) - 2), *shape[1:][-1:])


class GaussianNoise(Layer):
    """Add normal noise of standard deviation `std` in training; y = x at inference.

    Shapes: X, Y, dX, dY are (N, ...). `std` has the unit of X.

    Forward: y = x + std z, with z made from two uniform numbers u, v by Box and Muller:
    z = sqrt(-2 log(1 - u)) cos(2 pi v), which uses a fixed count of draws for each number.
    Backward: the noise does not depend on x, so dx = dy.

    Sources: Box and Muller 1958, Ann. Math. Statist. 29, p. 610; Bishop 1995, "Training with
    noise is equivalent to Tikhonov regularization", Neural Computation 7.
    """

    def __init__(self, std: float) -> None:
        super().__init__()
        self.std = check_number(std, "GaussianNoise std", least=0)

    def forward(self, X: Array) -> Array:
        self.save()
        if not current().training:
            return X.copy()
        u, v = np.moveaxis(self.uniform((*X.shape, 2)), -1, 0)
        Z = np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * np.pi * v)
        Z *= self.std
        return np.add(X, Z, out=self.buffer("Y", X.shape, X.dtype))

    def backward(self, dY: Array) -> Array:
        return dY.copy()
