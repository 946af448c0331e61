"""Activations: a scalar function applied to each number, and softmax along an axis.

For an elementwise y = f(x) the Jacobian is diagonal, so dx = f'(x) dy. Each class writes f as
`value` and f' as `slope`; `Elementwise` does the rest. Where f has a kink, the slope there is
that of the side that its docstring names.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

from phitodeep.checks import check_number
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError
from phitodeep.functional import (
    erf,
    gaussian,
    log_softmax,
    sigmoid,
    softmax,
    softplus,
    sum_rows,
    zeros,
)
from phitodeep.kernels import kernel
from phitodeep.layers.base import Layer, Param
from phitodeep.types import Array, Shape

F = TypeVar("F", bound=Callable[..., Any])


class Elementwise(Layer):
    """Y = f(X) for each number; X, Y, dX, dY are of one shape (N, ...)."""

    independent_samples, steps = True, "independent"

    def value(self, X: Array) -> Array:
        """f(x)."""
        raise NotImplementedError(f"{type(self).__name__} must implement value(X).")

    def slope(self, X: Array, Y: Array) -> Array:
        """f'(x), given x and y = f(x)."""
        raise NotImplementedError(f"{type(self).__name__} must implement slope(X, Y).")

    def forward(self, X: Array) -> Array:
        Y = self.value(X)
        self.save_for_backward(X=X, Y=Y)
        return Y

    def backward(self, dY: Array) -> Array:
        X, Y = self.saved("X", "Y")
        return np.multiply(dY, self.slope(X, Y), out=self.like("dX", dY))

    def like(self, name: str, X: Array) -> Array:
        """A buffer of X's shape and dtype."""
        return self.buffer(name, X.shape, X.dtype)


class ReLU(Layer):
    """y = max(x, 0); the slope is 1 for x > 0, else 0.

    Source: Nair and Hinton 2010, "Rectified linear units improve restricted Boltzmann machines".
    """

    independent_samples, steps = True, "independent"
    gives = "numbers"

    def forward(self, X: Array) -> Array:
        Y = self.buffer("Y", X.shape, X.dtype)
        relu(X.ravel(), Y.ravel())
        self.save_for_backward(Y=Y)
        return Y

    def backward(self, dY: Array) -> Array:
        Y, dX = self.saved("Y"), self.buffer("dX", dY.shape, dY.dtype)
        relu_back(dY.ravel(), Y.ravel(), dX.ravel())
        return dX


PART = 1 << 14  # numbers that stay in the cache while several passes go over them


def in_parts(run: F) -> F:
    """A function of vectors, elementwise, that goes through them part by part."""

    @functools.wraps(run)
    def in_turn(*vectors: Array) -> None:
        for i in range(0, vectors[0].size, PART):
            run(*[v[i : i + PART] for v in vectors])

    return cast(F, in_turn)


@kernel
@in_parts
def relu(X: Array, Y: Array) -> None:
    """y = max(x, 0), of vectors."""
    np.maximum(X, zeros(PART, X.dtype)[: X.size], out=Y)  # a single 0 would take twice as long


@kernel
@in_parts
def relu_back(dY: Array, Y: Array, dX: Array) -> None:
    """dx = dy where y > 0, else 0, also for a dy that times 0 is NaN: all bits of dy, or none."""
    bits = np.abs(Y, out=dX).view(f"i{dX.itemsize}")  # as integers, 0 or above: no y is below 0
    np.negative(bits, out=bits)
    bits >>= 8 * bits.itemsize - 1  # the sign everywhere: 0, or -1, which is all ones
    bits &= dY.view(bits.dtype)


class LeakyReLU(Elementwise):
    """y = x for x > 0, else alpha x; the slope is 1 for x > 0, else alpha.

    Source: Maas, Hannun and Ng 2013, "Rectifier nonlinearities improve neural network acoustic
    models".
    """

    gives = "numbers"

    def __init__(self, alpha: float = 0.01) -> None:
        super().__init__()
        self.alpha = check_number(alpha, "LeakyReLU alpha")

    def value(self, X: Array) -> Array:
        return np.multiply(X, self.slope(X, X), out=self.like("Y", X))

    def slope(self, X: Array, Y: Array) -> Array:
        S = np.greater(X, 0, out=self.like("slope", X))
        S *= 1 - self.alpha
        S += self.alpha
        return S


class PReLU(Layer):
    """y = x for x > 0, else alpha x, with one learnt alpha for each feature of the last axis.

    Shapes: X, Y, dX, dY are (..., D); alpha is (D,) and begins at `init`.

    Backward: dx = dy for x > 0, else alpha dy. alpha meets only the negative x, so
    dalpha = sum_rows(dy min(x, 0)).

    Source: He et al. 2015, "Delving deep into rectifiers", arXiv:1502.01852, eq. 1 and 8.
    """

    independent_samples, steps = True, "independent"
    gives = "numbers"
    alpha = Param()  # never decayed: that would pull it to ReLU (sec. 2.1 of the paper)

    def __init__(self, init: float = 0.25) -> None:
        super().__init__()
        self.init = check_number(init, "PReLU init")

    def create(self, shape: Shape) -> Shape:
        self.alpha = np.full(shape[-1], self.init)
        return shape

    def forward(self, X: Array) -> Array:
        if X.shape[-1:] != self.alpha.shape:
            raise ShapeError(
                f"{self!r} was built for D = {self.alpha.size} features on the last axis, "
                f"got X of shape {X.shape}."
            )
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

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = check_number(alpha, f"{type(self).__name__} alpha", above=0)

    def value(self, X: Array) -> Array:
        return np.where(X > 0, X, self.alpha * np.expm1(np.minimum(X, 0)))

    def slope(self, X: Array, Y: Array) -> Array:
        return np.where(X > 0, 1, Y + self.alpha)


class CELU(ELU):
    """y = x for x > 0, else alpha (exp(x / alpha) - 1): an ELU whose slope has no jump.

    The slope is 1 for x > 0, else exp(x / alpha) = y / alpha + 1.
    Source: Barron 2017, arXiv:1704.07483.
    """

    def value(self, X: Array) -> Array:
        with np.errstate(over="ignore"):  # exp(-inf) is right for what alpha < 1 makes too large
            below = np.minimum(X, 0) / self.alpha
        return np.where(X > 0, X, self.alpha * np.expm1(below))

    def slope(self, X: Array, Y: Array) -> Array:
        return np.minimum(Y, 0) / self.alpha + 1


class SELU(Elementwise):
    """y = scale times ELU(alpha), with the two constants that keep mean 0 and variance 1.

    Source: Klambauer et al. 2017, "Self-normalizing neural networks", arXiv:1706.02515, eq. 2
    and 14. Initialise with LeCun.
    """

    gives = "numbers"
    alpha, scale = 1.6732632423543772, 1.0507009873554805

    def value(self, X: Array) -> Array:
        return self.scale * np.where(X > 0, X, self.alpha * np.expm1(np.minimum(X, 0)))

    def slope(self, X: Array, Y: Array) -> Array:
        return np.where(X > 0, self.scale, Y + self.scale * self.alpha)


class GELU(Layer):
    """y = x Phi(x), with Phi the standard normal distribution; or its tanh approximation.

    Exact ("none"): Phi = (1 + erf(x / sqrt 2)) / 2 has the density phi as derivative, so

        dx = (Phi + x phi) dy

    "tanh": Phi is replaced by s = sigmoid(2 u), which is (1 + tanh u) / 2, with
    u = k (x + c x^3), k = sqrt(2 / pi), c = 0.044715. Since ds/du = 2 s (1 - s),

        dx = (s + x 2 s (1 - s) k (1 + 3 c x^2)) dy

    Shapes: X, Y, dX, dY are (N, ...).
    By eye: y and its slope go to x and 1 above, and to 0 and 0 below, also at infinity.
    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415, sec. 2.
    """

    _flops_per_output = 8
    independent_samples, steps = True, "independent"
    gives = "numbers"

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ArgumentError(f'GELU approximate must be "none" or "tanh", got {approximate!r}.')
        self.approximate = approximate

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


K, C = math.sqrt(2 / math.pi), 0.044715  # of the tanh approximation
FAR = 40.0  # from here on Phi is 0 or 1, and x phi is 0, in float64 too


@kernel
@in_parts
def gelu(X: Array, Phi: Array, Y: Array) -> None:
    """Phi = (1 + erf(x / sqrt 2)) / 2 and y = x Phi, of vectors."""
    np.multiply(erf(X * math.sqrt(0.5)) + 1, 0.5, out=Phi)
    np.multiply(X.clip(-FAR, np.inf, out=Y), Phi, out=Y)


@kernel
@in_parts
def gelu_back(dY: Array, X: Array, Phi: Array, dX: Array) -> None:
    """dx = (Phi + x phi) dy."""
    X.clip(-FAR, FAR, out=dX)
    dX *= gaussian(dX)
    dX += Phi
    dX *= dY


@kernel
@np.errstate(over="ignore")
@in_parts
def gelu_tanh(X: Array, Phi: Array, Y: Array) -> None:
    """Phi = sigmoid(2 K (x + C x^3)) and y = x Phi, of vectors."""
    np.multiply(X, X, out=Y)
    Y *= 2 * K * C
    Y += 2 * K
    Y *= X
    sigmoid(Y, out=Phi)
    np.multiply(X.clip(-FAR, np.inf, out=Y), Phi, out=Y)


@kernel
@in_parts
def gelu_tanh_back(dY: Array, X: Array, Phi: Array, dX: Array) -> None:
    """dx = (Phi + x 2 K Phi (1 - Phi) (1 + 3 C x^2)) dy."""
    X = X.clip(-FAR, FAR)
    np.multiply(X, X, out=dX)
    dX *= 6 * K * C
    dX += 2 * K
    dX *= X
    dX *= 1 - Phi
    dX += 1
    dX *= Phi
    dX *= dY


class SiLU(Elementwise):
    """y = x s with s = sigmoid(x); the slope is s + x s (1 - s) = s + y (1 - s).

    Sources: Elfwing, Uchibe and Doya 2017, arXiv:1702.03118; as "Swish": Ramachandran, Zoph and
    Le 2017, arXiv:1710.05941.
    """

    gives = "numbers"

    def value(self, X: Array) -> Array:
        return X * sigmoid(X)

    def slope(self, X: Array, Y: Array) -> Array:
        s = sigmoid(X)
        return s + Y * (1 - s)


class Mish(Elementwise):
    """y = x t with t = tanh(softplus(x)); the slope is t + x (1 - t^2) sigmoid(x).

    Source: Misra 2019, arXiv:1908.08681, eq. 1.
    """

    gives = "numbers"

    def value(self, X: Array) -> Array:
        return X * np.tanh(softplus(X))

    def slope(self, X: Array, Y: Array) -> Array:
        t = np.tanh(softplus(X))
        return t + X * (1 - t * t) * sigmoid(X)


class HardSigmoid(Elementwise):
    """y = x / 6 + 1 / 2, held between 0 and 1; the slope is 1 / 6 for -3 < x < 3, else 0.

    Source: the piecewise form of PyTorch's Hardsigmoid; Howard et al. 2019, arXiv:1905.02244.
    """

    gives = "probabilities"

    def value(self, X: Array) -> Array:
        return np.clip(X / 6 + 0.5, 0, 1)

    def slope(self, X: Array, Y: Array) -> Array:
        return ((X > -3) & (X < 3)) * X.dtype.type(1 / 6)


class HardSwish(Elementwise):
    """y = x hardsigmoid(x): 0 up to -3, x from 3 on; the slope between is (2 x + 3) / 6.

    Source: Howard et al. 2019, "Searching for MobileNetV3", arXiv:1905.02244, sec. 5.2.
    """

    gives = "numbers"

    def value(self, X: Array) -> Array:
        return X * np.clip(X / 6 + 0.5, 0, 1)

    def slope(self, X: Array, Y: Array) -> Array:
        return np.where(X <= -3, 0, np.where(X < 3, X / 3 + 0.5, 1))


class HardTanh(Elementwise):
    """y = x held between -1 and 1; the slope is 1 for -1 < x < 1, else 0.

    Source: Collobert 2004, "Large scale machine learning", PhD thesis, Universite Paris VI.
    """

    gives = "numbers"

    def value(self, X: Array) -> Array:
        return np.clip(X, -1, 1, out=self.like("Y", X))

    def slope(self, X: Array, Y: Array) -> Array:
        return np.less(np.abs(X), 1, out=self.buffer("slope", X.shape, bool))


class Sigmoid(Elementwise):
    """y = 1 / (1 + exp(-x)); the slope is y (1 - y).

    Source: Rumelhart, Hinton and Williams 1986, Nature 323, eq. 2.
    """

    gives = "probabilities"

    def value(self, X: Array) -> Array:
        return sigmoid(X, out=self.like("Y", X))

    def slope(self, X: Array, Y: Array) -> Array:
        S = np.subtract(1, Y, out=self.like("slope", Y))
        S *= Y
        return S


class Tanh(Elementwise):
    """y = tanh(x); the slope is 1 - y^2.

    Source: LeCun et al. 1998, "Efficient BackProp", sec. 4.4.
    """

    gives = "numbers"

    def value(self, X: Array) -> Array:
        return np.tanh(X, out=self.like("Y", X))

    def slope(self, X: Array, Y: Array) -> Array:
        S = np.multiply(Y, Y, out=self.like("slope", Y))
        return np.subtract(1, S, out=S)


class Softplus(Elementwise):
    """y = log(1 + exp(x)); the slope is sigmoid(x).

    Source: Dugas et al. 2001, "Incorporating second-order functional knowledge for better
    option pricing", NIPS 13.
    """

    gives = "numbers"

    def value(self, X: Array) -> Array:
        return softplus(X)

    def slope(self, X: Array, Y: Array) -> Array:
        return sigmoid(X)


class Softsign(Elementwise):
    """y = x / (1 + |x|); the slope is 1 / (1 + |x|)^2.

    Source: Turian, Bergstra and Bengio 2009, "Quadratic features and deep architectures for
    chunking", NAACL HLT.
    """

    gives = "numbers"

    def value(self, X: Array) -> Array:
        return X / (1 + np.abs(X))

    def slope(self, X: Array, Y: Array) -> Array:
        return np.square(1 / (1 + np.abs(X)))


class _AlongAxis(Layer):
    """What Softmax and LogSoftmax share: an axis other than that of the batch."""

    _flops_per_output = 5
    independent_samples = True
    _mask_remedy = "axis=-1 works at each step alone"

    @property
    def steps(self) -> str:
        """The axis of the steps is axis 1."""
        axis = self.axis
        if self.output_shape is not None:
            axis %= len(self.output_shape) + 1
        return "independent" if axis == -1 or axis > 1 else "joined"

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        if isinstance(axis, bool) or not isinstance(axis, int):
            raise ArgumentTypeError(f"{type(self).__name__} axis must be an integer, got {axis!r}.")
        if axis == 0:
            raise ArgumentError(f"{type(self).__name__} along axis 0 would mix the samples.")
        self.axis = axis

    def create(self, shape: Shape) -> Shape:
        self._check(len(shape) + 1)
        return shape

    def _check(self, rank: int) -> None:
        if not -rank < self.axis < rank:
            raise ShapeError(f"{self!r} needs that axis beside the batch axis, got rank {rank}.")


class Softmax(_AlongAxis):
    """y_i = exp(x_i) / sum_j exp(x_j) along `axis`: probabilities.

    Shapes: X, Y, dX, dY are (N, ..., K).
    Backward. dy_j/dx_i = y_j ([i = j] - y_i), so

        dx_i = y_i (dy_i - sum_j dy_j y_j)

    A check by eye: dx sums to zero, since a shift of x changes nothing.
    Source: Bridle 1990, "Probabilistic interpretation of feedforward classification network
    outputs".
    """

    gives = "probabilities"

    def forward(self, X: Array) -> Array:
        self._check(X.ndim)
        Y = softmax(X, self.axis, out=self.buffer("Y", X.shape, X.dtype))
        self.save_for_backward(Y=Y)
        return Y

    def backward(self, dY: Array) -> Array:
        Y = self.saved("Y")
        dX = np.multiply(dY, Y, out=self.buffer("dX", Y.shape, Y.dtype))
        mean = dX.sum(axis=self.axis, keepdims=True)
        np.subtract(dY, mean, out=dX)
        dX *= Y
        return dX


class LogSoftmax(_AlongAxis):
    """y_i = x_i - log(sum_j exp(x_j)) along `axis`: the logarithm of Softmax, without underflow.

    Shapes: X, Y, dX, dY are (N, ..., K).
    Backward. dy_j/dx_i = [i = j] - p_i with p = exp(y), so dx_i = dy_i - p_i sum_j dy_j.
    A check by eye: dx sums to zero, as for Softmax.
    Source: Goodfellow, Bengio and Courville 2016, "Deep Learning", eq. 6.30.
    """

    gives = "log-probabilities"

    def forward(self, X: Array) -> Array:
        self._check(X.ndim)
        Y = log_softmax(X, self.axis)
        self.save_for_backward(Y=Y)
        return Y

    def backward(self, dY: Array) -> Array:
        return dY - np.exp(self.saved("Y")) * dY.sum(axis=self.axis, keepdims=True)


ReLu = ReLU  # as the original 0.2.3 spelt them
LeakyReLu = LeakyReLU
Swish = SiLU
