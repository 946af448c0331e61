"""Regularisation layers: random in training, or with a gradient of their own."""

from __future__ import annotations

import numpy as np

from phitodeep.core.call import current
from phitodeep.core.checks import check_number
from phitodeep.core.types import Array, Shape
from phitodeep.derivations import random as derived
from phitodeep.errors import ShapeError
from phitodeep.layers.base import PerStep

__all__ = ["Dropout", "GaussianNoise", "GradientReversal", "Reparameterize", "SpatialDropout"]


class Dropout(PerStep):
    """Set each element to 0 with probability `rate` in training, and scale up the others.

    Shapes: X, Y, dX, dY are (N, ...).

    Forward: y = m x with m = 0 (probability rate) or 1 / (1 - rate), so that the mean of y is x.
    At inference y = x, without any correction.
    Backward: m does not depend on x, so dx = m dy with the same m.

    Source: Srivastava et al. 2014, "Dropout", JMLR 15, sec. 10 (the scaled form).
    """

    steps = derived.dropout

    def __init__(self, rate: float) -> None:
        self.rate = check_number(rate, "Dropout rate", minimum=0, below=1)

    def forward(self, X: Array) -> Array:
        if not current().training:
            self.save_for_backward(mask=None)
            return X.copy()
        shape = self._mask_shape(X.shape)
        mask = self.buffer("mask", shape, X.dtype)
        np.greater_equal(self.uniform(shape), self.rate, out=mask)
        mask *= 1 / (1 - self.rate)
        self.save_for_backward(mask=mask)
        return np.multiply(X, mask, out=self.buffer("Y", X.shape, X.dtype))

    def backward(self, dY: Array) -> Array:
        mask = self.saved("mask")
        if mask is None:
            return dY.copy()
        return np.multiply(dY, mask, out=self.buffer("dX", dY.shape, dY.dtype))

    def _mask_shape(self, shape: Shape) -> Shape:
        """Return the shape of m for X of this shape: one value for elements that drop together."""
        return shape


class SpatialDropout(Dropout):
    """Dropout of whole channels: all positions of a channel are kept or dropped together.

    Shapes: X, Y, dX, dY are (N, *sizes, C). Forward and backward are Dropout's, with one m for each
    sample and channel. Neighbouring pixels are so similar that dropping single elements would hide
    little.
    Source: Tompson et al. 2015, arXiv:1411.4280, sec. 3.2.
    """

    def _mask_shape(self, shape: Shape) -> Shape:
        return (shape[0], *(1,) * (len(shape) - 2), *shape[1:][-1:])


class GaussianNoise(PerStep):
    """Add normal noise with standard deviation `std` in training; at inference y = x.

    Shapes: X, Y, dX, dY are (N, ...). `std` has the unit of X.

    Forward: y = x + std e, with e standard normal: see `_normal`.
    Backward: the noise does not depend on x, so dx = dy.

    Source: Bishop 1995, "Training with noise is equivalent to Tikhonov regularization", Neural
    Computation 7.
    """

    steps = derived.gaussian_noise

    def __init__(self, std: float) -> None:
        self.std = check_number(std, "GaussianNoise std", minimum=0)

    def forward(self, X: Array) -> Array:
        if not current().training:
            return X.copy()
        E = self._normal(X.shape, X.dtype)
        E *= self.std
        return np.add(X, E, out=self.buffer("Y", X.shape, X.dtype))

    def backward(self, dY: Array) -> Array:
        return dY.copy()


class Reparameterize(PerStep):
    """Draw from the normal distributions whose means and log variances are in X.

    Shapes: X, dX are (N, ..., 2 L), means m and then log variances s; Y, dY are (N, ..., L).

    Forward: y = m + exp(s / 2) e, with e standard normal. This is a draw from N(m, exp(s)), written
    as a differentiable function of m and s, because e depends on neither. At inference y = m.
    Backward: dm = dy and ds = dy exp(s / 2) e / 2. At inference y does not depend on s: ds = 0.

    Log variances above 88, whose exponentials overflow float32, count as 88; for them ds = 0.
    A check by eye: for s = -inf, Y is m; for m = s = 0, it is e.
    Source: Kingma and Welling 2014, arXiv:1312.6114, sec. 2.4 and eq. 10.
    """

    steps = derived.reparameterize

    def create(self, shape: Shape) -> Shape:
        return (*shape[:-1], self._latent(shape))

    def _latent(self, shape: Shape) -> int:
        """Return L for samples of this shape, which must be (..., 2 L)."""
        if not shape or shape[-1] % 2:
            raise ShapeError(
                f"{self!r} takes samples of shape (..., 2 L), with means and log variances side by "
                f"side, got samples of shape {shape}."
            )
        return shape[-1] // 2

    def forward(self, X: Array) -> Array:
        L = self._latent(X.shape[1:])
        M, S = X[..., :L], X[..., L:]
        if not current().training:
            self.save_for_backward(slope=0)
            return M.copy()
        E = np.exp(np.minimum(S, _MAX_LOG_VARIANCE) / 2) * self._normal(M.shape, X.dtype)
        self.save_for_backward(slope=E / 2 * (S <= _MAX_LOG_VARIANCE))
        return np.add(M, E, out=self.buffer("Y", M.shape, X.dtype))

    def backward(self, dY: Array) -> Array:
        L = dY.shape[-1]
        dX = self.buffer("dX", (*dY.shape[:-1], 2 * L), dY.dtype)
        dX[..., :L] = dY
        np.multiply(dY, self.saved("slope"), out=dX[..., L:])
        return dX


_MAX_LOG_VARIANCE = 88.0  # exp(88) is 1.7e38, and the largest float32 is 3.4e38


class GradientReversal(PerStep):
    """Y = X, but dX = -factor dY: what comes before learns to make what comes after fail.

    Shapes: X, Y, dX, dY are (N, ...).

    Between features and a classifier of their domain, the classifier learns to tell the domains
    apart, and the features learn to be alike in all of them.

    Backward. On purpose, this is not the derivative of forward, which is the identity: the
    parameters before this layer get -factor times the gradient of the loss. `check_gradients`
    therefore refuses networks with this layer.

    Source: Ganin and Lempitsky 2015, "Unsupervised domain adaptation by backpropagation",
    arXiv:1409.7495, sec. 3.
    """

    surrogate = True
    steps = derived.gradient_reversal

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = check_number(factor, "GradientReversal factor")

    def forward(self, X: Array) -> Array:
        return X.copy()

    def backward(self, dY: Array) -> Array:
        return np.multiply(dY, -self.factor, out=self.buffer("dX", dY.shape, dY.dtype))
