"""Softmax and its logarithm; import them from `phitodeep.layers.activation`."""

from __future__ import annotations

import numpy as np

from phitodeep.core.checks import MOST_AXES, check_count
from phitodeep.core.types import Array, Shape
from phitodeep.derivations import activation as derived
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.functional import log_softmax, softmax
from phitodeep.layers.base import Layer


class _AlongAxis(Layer):
    """Base class of Softmax and LogSoftmax, with any axis except the batch axis."""

    _flops_per_output = 5
    independent_samples = True
    _mask_remedy = "use axis=-1, which treats each step separately"

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        check_count(axis, f"{type(self).__name__} axis", minimum=-MOST_AXES, maximum=MOST_AXES)
        if axis == 0:
            raise ArgumentError(f"{type(self).__name__} along axis 0 would mix the samples.")
        self.axis = axis

    @property
    def time_steps(self) -> str:
        """Steps are "joined" if the axis is the time axis, 1, and "independent" otherwise."""
        axis = self.axis
        if self.output_shape is not None:
            axis %= len(self.output_shape) + 1
        return "independent" if axis == -1 or axis > 1 else "joined"

    def create(self, shape: Shape) -> Shape:
        self._check(len(shape) + 1)
        return shape

    def _check(self, rank: int) -> None:
        if not -rank < self.axis < rank:
            raise ShapeError(
                f"{self!r} requires this axis in addition to the batch axis, got rank {rank}."
            )


class Softmax(_AlongAxis):
    """y_i = exp(x_i) / sum_j exp(x_j) along `axis`: probabilities.

    Shapes: X, Y, dX, dY are (N, ...); i and j count the elements along `axis`.
    Backward. dy_j/dx_i = y_j ([i = j] - y_i), so

        dx_i = y_i (dy_i - sum_j dy_j y_j)

    A check by eye: dx sums to zero, because adding a constant to all x does not change y.
    Source: Bridle 1990, "Probabilistic interpretation of feedforward classification network
    outputs".
    """

    gives = "probabilities"

    steps = derived.softmax

    def forward(self, X: Array) -> Array:
        self._check(X.ndim)
        Y = softmax(X, self.axis, out=self.buffer("Y", X.shape, X.dtype))
        self.save_for_backward(Y=Y)
        return Y

    def backward(self, dY: Array) -> Array:
        Y = self.saved("Y")
        dX = np.multiply(dY, Y, out=self.buffer("dX", Y.shape, Y.dtype))
        total = dX.sum(axis=self.axis, keepdims=True)
        np.subtract(dY, total, out=dX)
        dX *= Y
        return dX


class LogSoftmax(_AlongAxis):
    """y_i = x_i - log(sum_j exp(x_j)) along `axis`: log(softmax(x)), without underflow.

    Shapes: X, Y, dX, dY are (N, ...); i and j count the elements along `axis`.
    Backward. dy_j/dx_i = [i = j] - p_i with p = exp(y), so dx_i = dy_i - p_i sum_j dy_j.
    A check by eye: dx sums to zero, as in Softmax.
    Source: Goodfellow, Bengio and Courville 2016, "Deep Learning", eq. 6.30.
    """

    gives = "log-probabilities"

    steps = derived.log_softmax

    def forward(self, X: Array) -> Array:
        self._check(X.ndim)
        Y = log_softmax(X, self.axis)
        self.save_for_backward(Y=Y)
        return Y

    def backward(self, dY: Array) -> Array:
        return dY - np.exp(self.saved("Y")) * dY.sum(axis=self.axis, keepdims=True)
