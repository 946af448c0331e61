"""Activations without state, each with its derivative: `relu(X)` and `relu_slope(X)`.

Each keeps the dtype of float32 and float64 input. Where a slope takes `Y`, that is the value of the
function, for callers who have it already. The layers of `phitodeep.layers.activation` run the same
code. Import the functions from `phitodeep.functional`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from phitodeep.checks import check_option
from phitodeep.elementwise import empty_float, sigmoid, softplus
from phitodeep.kernels import activation as kernels
from phitodeep.types import Array

Approximation = Literal["none", "tanh"]


def relu(X: Array) -> Array:
    """max(x, 0), elementwise."""
    X, Y = _pair(X)
    kernels.relu(X.ravel(), Y.ravel())
    return Y


def relu_slope(X: Array) -> Array:
    """1 for x > 0, else 0."""
    Y = relu(X)
    S = np.empty_like(Y)
    kernels.relu_back(np.ones_like(Y).ravel(), Y.ravel(), S.ravel())
    return S


def leaky_relu(X: Array, alpha: float = 0.01, out: Array | None = None) -> Array:
    """x for x > 0, else alpha x, elementwise."""
    Y = leaky_relu_slope(X, alpha, out)
    Y *= X
    return Y


def leaky_relu_slope(X: Array, alpha: float = 0.01, out: Array | None = None) -> Array:
    """1 for x > 0, else alpha."""
    S = np.greater(X, 0, out=_out(X, out))
    S *= 1 - alpha
    S += alpha
    return S


def elu(X: Array, alpha: float = 1.0) -> Array:
    """x for x > 0, else alpha (exp(x) - 1), elementwise."""
    X = _floats(X)
    return np.where(X > 0, X, alpha * np.expm1(np.minimum(X, 0)))


def elu_slope(X: Array, alpha: float = 1.0, Y: Array | None = None) -> Array:
    """1 for x > 0, else alpha exp(x) = y + alpha."""
    X = _floats(X)
    return np.where(X > 0, 1, (elu(X, alpha) if Y is None else Y) + alpha)


def gelu(X: Array, approximate: Approximation = "none") -> Array:
    """x Phi(x), with Phi the standard normal distribution function, or its tanh approximation."""
    return _gelu(X, approximate)[2]


def gelu_slope(X: Array, approximate: Approximation = "none") -> Array:
    """Phi(x) + x phi(x), with phi the density; or the derivative of the tanh approximation."""
    X, Phi, _ = _gelu(X, approximate)
    S, one = np.empty_like(X), np.ones_like(X)
    run = kernels.gelu_tanh_back if approximate == "tanh" else kernels.gelu_back
    run(one.ravel(), X.ravel(), Phi.ravel(), S.ravel())
    return S


def _gelu(X: Array, approximate: Approximation) -> tuple[Array, Array, Array]:
    """Return x, Phi and x Phi."""
    check_option(approximate, "gelu approximate", ("none", "tanh"))
    X, Y = _pair(X)
    Phi = np.empty_like(X)
    run = kernels.gelu_tanh if approximate == "tanh" else kernels.gelu
    run(X.ravel(), Phi.ravel(), Y.ravel())
    return X, Phi, Y


def silu(X: Array) -> Array:
    """x sigmoid(x), elementwise; also known as Swish."""
    return np.multiply(X, sigmoid(X))


def silu_slope(X: Array, Y: Array | None = None) -> Array:
    """s + y (1 - s), with s = sigmoid(x) and y = x s."""
    s = sigmoid(X)
    return s + (silu(X) if Y is None else Y) * (1 - s)


def mish(X: Array) -> Array:
    """x tanh(softplus(x)), elementwise."""
    return np.multiply(X, np.tanh(softplus(X)))


def mish_slope(X: Array) -> Array:
    """t + x (1 - t^2) sigmoid(x), with t = tanh(softplus(x))."""
    t = np.tanh(softplus(X))
    return t + X * (1 - t * t) * sigmoid(X)


def tanh(X: Array, out: Array | None = None) -> Array:
    """tanh(x), elementwise."""
    return np.tanh(X, out=_out(X, out))


def tanh_slope(X: Array, Y: Array | None = None, out: Array | None = None) -> Array:
    """1 - tanh(x)^2, elementwise."""
    Y = tanh(X) if Y is None else Y
    S = np.multiply(Y, Y, out=_out(Y, out))
    return np.subtract(1, S, out=S)


def sigmoid_slope(X: Array, Y: Array | None = None, out: Array | None = None) -> Array:
    """y (1 - y), with y = sigmoid(x)."""
    Y = sigmoid(X) if Y is None else Y
    S = np.subtract(1, Y, out=_out(Y, out))
    S *= Y
    return S


def softplus_slope(X: Array) -> Array:
    """sigmoid(x), the derivative of log(1 + exp(x))."""
    return sigmoid(X)


def softsign(X: Array) -> Array:
    """x / (1 + |x|), elementwise."""
    return np.divide(X, 1 + np.abs(X), out=empty_float(X))


def softsign_slope(X: Array) -> Array:
    """1 / (1 + |x|)^2, elementwise."""
    return np.square(1 / (1 + np.abs(X)), out=empty_float(X))


def _floats(X: Array) -> Array:
    """X as an array of floating-point numbers."""
    X = np.asarray(X)
    return X if X.dtype.kind == "f" else X.astype(np.float64)


def _pair(X: Array) -> tuple[Array, Array]:
    """X in the order of C, and an uninitialised array like it."""
    X = np.array(_floats(X), order="C", copy=None)
    return X, np.empty_like(X)


def _out(X: Array, out: Array | None) -> Array:
    return empty_float(X) if out is None else out
