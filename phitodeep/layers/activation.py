"""Activations: a scalar function applied to each element, and softmax along an axis.

For an elementwise y = f(x) the Jacobian is diagonal, so dx = f'(x) dy. Each class writes f as
`value` and f' as `slope`; `Elementwise` does the rest. At a kink, the docstring says which side's
slope is used. Long because there are many of them, each with its formula and its slope.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from phitodeep import functional as F
from phitodeep.core.checks import MOST_AXES, check_count, check_number, check_option
from phitodeep.core.types import Array, Shape
from phitodeep.derivations import activation as derived
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.functional import log_softmax, softmax, sum_rows
from phitodeep.kernels.activation import gelu, gelu_back, gelu_tanh, gelu_tanh_back, relu, relu_back
from phitodeep.layers.base import Layer, Param, PerStep

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "SELU",
    "HardSigmoid",
    "HardSwish",
    "HardTanh",
    "LeakyReLU",
    "LogSoftmax",
    "Mish",
    "PReLU",
    "ReLU",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Softsign",
    "Swish",
    "Tanh",
]


class Elementwise(PerStep, registered=False):
    """Y = f(X), elementwise; X, Y, dX and dY have the same shape (N, ...)."""

    def value(self, X: Array) -> Array:
        """Return f(x)."""
        raise NotImplementedError(f"{type(self).__name__} must implement value(X).")

    def slope(self, X: Array, Y: Array) -> Array:
        """Return f'(x), given x and y = f(x)."""
        raise NotImplementedError(f"{type(self).__name__} must implement slope(X, Y).")

    def forward(self, X: Array) -> Array:
        Y = self.value(X)
        self.save_for_backward(X=X, Y=Y)
        return Y

    def backward(self, dY: Array) -> Array:
        X, Y = self.saved("X", "Y")
        return np.multiply(dY, self.slope(X, Y), out=self.like("dX", dY))

    def like(self, name: str, X: Array) -> Array:
        """Return a buffer with the shape and dtype of X."""
        return self.buffer(name, X.shape, X.dtype)


class ReLU(PerStep):
    """y = max(x, 0); the slope is 1 for x > 0, else 0.

    Shapes: X, Y, dX, dY are (N, ...).
    Source: Nair and Hinton 2010, "Rectified linear units improve restricted Boltzmann machines".
    """

    gives = "numbers"
    steps = derived.relu

    def forward(self, X: Array) -> Array:
        Y = self.buffer("Y", X.shape, X.dtype)
        relu(X.ravel(), Y.ravel())
        self.save_for_backward(Y=Y)
        return Y

    def backward(self, dY: Array) -> Array:
        Y, dX = self.saved("Y"), self.buffer("dX", dY.shape, dY.dtype)
        relu_back(dY.ravel(), Y.ravel(), dX.ravel())
        return dX


class LeakyReLU(Elementwise):
    """y = x for x > 0, else alpha x; the slope is 1 for x > 0, else alpha.

    Source: Maas, Hannun and Ng 2013, "Rectifier nonlinearities improve neural network acoustic
    models".
    """

    gives = "numbers"
    steps = derived.leaky_relu

    def __init__(self, alpha: float = 0.01) -> None:
        self.alpha = check_number(alpha, "LeakyReLU alpha")

    def value(self, X: Array) -> Array:
        return F.leaky_relu(X, self.alpha, out=self.like("Y", X))

    def slope(self, X: Array, Y: Array) -> Array:
        return F.leaky_relu_slope(X, self.alpha, out=self.like("slope", X))


class PReLU(PerStep):
    """y = x for x > 0, else alpha x, with one learnt alpha for each feature of the last axis.

    Shapes: X, Y, dX, dY are (..., D); alpha is (D,) and starts at `init`.

    Backward: dx = dy for x > 0, else alpha dy. alpha multiplies only the negative x, so
    dalpha = sum_rows(dy min(x, 0)).

    Source: He et al. 2015, "Delving deep into rectifiers", arXiv:1502.01852, eq. 1 and 8.
    """

    gives = "numbers"
    alpha = Param()  # never decayed: decay would turn it into ReLU (sec. 2.1 of the paper)
    steps = derived.prelu

    def __init__(self, init: float = 0.25) -> None:
        self.init = check_number(init, "PReLU init")

    def create(self, shape: Shape) -> Shape:
        self.alpha = self.full(shape[-1], self.init)
        return shape

    def forward(self, X: Array) -> Array:
        self._check_features(X.shape, self.alpha.size)
        self.save_for_backward(X=X)
        return np.maximum(X, 0) + self.alpha * np.minimum(X, 0)

    def backward(self, dY: Array) -> Array:
        X = self.saved("X")
        sum_rows(dY * np.minimum(X, 0), out=self.grad_array("alpha"))
        return dY * np.where(X > 0, 1, self.alpha)


class ELU(Elementwise):
    """y = x for x > 0, else alpha (exp(x) - 1); the slope is 1 for x > 0, else alpha exp(x).

    Source: Clevert, Unterthiner and Hochreiter 2016, arXiv:1511.07289, eq. 16.
    """

    gives = "numbers"
    steps = derived.elu

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = check_number(alpha, f"{type(self).__name__} alpha", above=0)

    def value(self, X: Array) -> Array:
        return F.elu(X, self.alpha)

    def slope(self, X: Array, Y: Array) -> Array:
        return F.elu_slope(X, self.alpha, Y)


class CELU(ELU):
    """y = x for x > 0, else alpha (exp(x / alpha) - 1): an ELU whose slope has no jump.

    The slope is 1 for x > 0, else exp(x / alpha) = y / alpha + 1.
    Source: Barron 2017, arXiv:1704.07483.
    """

    steps = derived.celu

    def value(self, X: Array) -> Array:
        with np.errstate(over="ignore"):  # x / alpha may overflow if alpha < 1; exp(-inf) is right
            below = np.minimum(X, 0) / self.alpha
        return np.where(X > 0, X, self.alpha * np.expm1(below))

    def slope(self, X: Array, Y: Array) -> Array:
        return np.minimum(Y, 0) / self.alpha + 1


class SELU(Elementwise):
    """y = scale ELU(x), where scale and alpha keep activations at mean 0 and variance 1.

    The slope is scale for x > 0, else scale alpha exp(x) = y + scale alpha. Use it with the
    initializer LeCun.
    Source: Klambauer et al. 2017, "Self-normalizing neural networks", arXiv:1706.02515, eq. 2
    and 14.
    """

    gives = "numbers"
    alpha, scale = 1.6732632423543772, 1.0507009873554805
    steps = derived.selu

    def value(self, X: Array) -> Array:
        return self.scale * F.elu(X, self.alpha)

    def slope(self, X: Array, Y: Array) -> Array:
        return np.where(X > 0, self.scale, Y + self.scale * self.alpha)


class SiLU(Elementwise):
    """y = x s with s = sigmoid(x); the slope is s + x s (1 - s) = s + y (1 - s).

    Sources: Elfwing, Uchibe and Doya 2017, arXiv:1702.03118; as "Swish": Ramachandran, Zoph and
    Le 2017, arXiv:1710.05941.
    """

    gives = "numbers"
    steps = derived.silu

    def value(self, X: Array) -> Array:
        return F.silu(X)

    def slope(self, X: Array, Y: Array) -> Array:
        return F.silu_slope(X, Y)


class Mish(Elementwise):
    """y = x t with t = tanh(softplus(x)); the slope is t + x (1 - t^2) sigmoid(x).

    Source: Misra 2019, arXiv:1908.08681, eq. 1.
    """

    gives = "numbers"
    steps = derived.mish

    def value(self, X: Array) -> Array:
        return F.mish(X)

    def slope(self, X: Array, Y: Array) -> Array:
        return F.mish_slope(X)


class HardSigmoid(Elementwise):
    """y = x / 6 + 1 / 2, clipped to [0, 1]; the slope is 1 / 6 for -3 < x < 3, else 0.

    Source: the piecewise form of PyTorch's Hardsigmoid; Howard et al. 2019, arXiv:1905.02244.
    """

    gives = "probabilities"
    steps = derived.hard_sigmoid

    def value(self, X: Array) -> Array:
        return np.clip(X / 6 + 0.5, 0, 1)

    def slope(self, X: Array, Y: Array) -> Array:
        return ((X > -3) & (X < 3)) * X.dtype.type(1 / 6)


class HardSwish(Elementwise):
    """y = x hardsigmoid(x): 0 for x <= -3, x for x >= 3; in between, the slope is (2 x + 3) / 6.

    Source: Howard et al. 2019, "Searching for MobileNetV3", arXiv:1905.02244, sec. 5.2.
    """

    gives = "numbers"
    steps = derived.hard_swish

    def value(self, X: Array) -> Array:
        return X * np.clip(X / 6 + 0.5, 0, 1)

    def slope(self, X: Array, Y: Array) -> Array:
        return np.where(X <= -3, 0, np.where(X < 3, X / 3 + 0.5, 1))


class HardTanh(Elementwise):
    """y = x clipped to [-1, 1]; the slope is 1 for -1 < x < 1, else 0.

    Source: Collobert 2004, "Large scale machine learning", PhD thesis, Universite Paris VI.
    """

    gives = "numbers"
    steps = derived.hard_tanh

    def value(self, X: Array) -> Array:
        return np.clip(X, -1, 1, out=self.like("Y", X))

    def slope(self, X: Array, Y: Array) -> Array:
        return np.less(np.abs(X), 1, out=self.buffer("slope", X.shape, bool))


class Sigmoid(Elementwise):
    """y = 1 / (1 + exp(-x)); the slope is y (1 - y).

    Source: Rumelhart, Hinton and Williams 1986, Nature 323, eq. 2.
    """

    gives = "probabilities"
    steps = derived.sigmoid

    def value(self, X: Array) -> Array:
        return F.sigmoid(X, out=self.like("Y", X))

    def slope(self, X: Array, Y: Array) -> Array:
        return F.sigmoid_slope(X, Y, out=self.like("slope", Y))


class Tanh(Elementwise):
    """y = tanh(x); the slope is 1 - y^2.

    Source: LeCun et al. 1998, "Efficient BackProp", sec. 4.4.
    """

    gives = "numbers"
    steps = derived.tanh

    def value(self, X: Array) -> Array:
        return F.tanh(X, out=self.like("Y", X))

    def slope(self, X: Array, Y: Array) -> Array:
        return F.tanh_slope(X, Y, out=self.like("slope", Y))


class Softplus(Elementwise):
    """y = log(1 + exp(x)); the slope is sigmoid(x).

    Source: Dugas et al. 2001, "Incorporating second-order functional knowledge for better
    option pricing", NIPS 13.
    """

    gives = "numbers"
    steps = derived.softplus

    def value(self, X: Array) -> Array:
        return F.softplus(X)

    def slope(self, X: Array, Y: Array) -> Array:
        return F.softplus_slope(X)


class Softsign(Elementwise):
    """y = x / (1 + |x|); the slope is 1 / (1 + |x|)^2.

    Source: Turian, Bergstra and Bengio 2009, "Quadratic features and deep architectures for
    chunking", NAACL HLT.
    """

    gives = "numbers"
    steps = derived.softsign

    def value(self, X: Array) -> Array:
        return F.softsign(X)

    def slope(self, X: Array, Y: Array) -> Array:
        return F.softsign_slope(X)


Swish = SiLU

_OLD_SPELLINGS = {"ReLu": "ReLU", "LeakyReLu": "LeakyReLU"}  # from phitodeep 0.2.3
if TYPE_CHECKING:
    ReLu = ReLU
    LeakyReLu = LeakyReLU


def __getattr__(name: str) -> Any:
    if name not in _OLD_SPELLINGS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    new = _OLD_SPELLINGS[name]
    warnings.warn(f"{name} is an old spelling: write {new}.", DeprecationWarning, stacklevel=2)
    return globals()[new]


class GELU(PerStep):
    """y = x Phi(x), with Phi the standard normal distribution function; or its tanh approximation.

    Shapes: X, Y, dX, dY are (N, ...).

    approximate="none": Phi = (1 + erf(x / sqrt 2)) / 2, and its derivative is the density phi, so

        dx = (Phi + x phi) dy

    approximate="tanh": Phi is replaced by s = sigmoid(2 u), which is (1 + tanh u) / 2, with
    u = k (x + c x^3), k = sqrt(2 / pi), c = 0.044715. Since ds/du = 2 s (1 - s),

        dx = (s + x 2 s (1 - s) k (1 + 3 c x^2)) dy

    A check by eye: as x goes to infinity, y / x and the slope go to 1; as x goes to minus infinity,
    y and the slope go to 0.
    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415, sec. 2.
    """

    _flops_per_output = 8
    gives = "numbers"

    steps = derived.gelu

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = check_option(approximate, "GELU approximate", ("none", "tanh"))

    def forward(self, X: Array) -> Array:
        Phi, Y = (self.buffer(name, X.shape, X.dtype) for name in ("Phi", "Y"))
        run = gelu_tanh if self.approximate == "tanh" else gelu
        run(X.ravel(), Phi.ravel(), Y.ravel())
        self.save_for_backward(X=X, Phi=Phi)
        return Y

    def backward(self, dY: Array) -> Array:
        X, Phi = self.saved("X", "Phi")
        dX = self.buffer("dX", dY.shape, dY.dtype)
        run = gelu_tanh_back if self.approximate == "tanh" else gelu_back
        run(dY.ravel(), X.ravel(), Phi.ravel(), dX.ravel())
        return dX


class _AlongAxis(Layer):
    """Base class of Softmax and LogSoftmax, with any axis except the batch axis."""

    _flops_per_output = 5
    independent_samples = True
    _mask_remedy = "use axis=-1, which treats each step separately"

    def __init__(self, axis: int = -1) -> None:
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
