"""Activations without state, each with its derivative: `relu(X)` and `relu_slope(X)`.

Each keeps the dtype of float32 and float64 input, and computes all other input in float64. Where a
slope takes `Y`, that is the value of the function, for callers who have it already. The layers of
`phitodeep.layers.activation` run the same code. Import the functions from `phitodeep.functional`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from phitodeep.core.checks import check_option
from phitodeep.core.types import Array
from phitodeep.kernels import activation as kernels
from phitodeep.kernels.elementwise import floats, sigmoid, softplus

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
    """x for x > 0, else alpha x, elementwise; `out` may be X."""
    X = floats(X)
    S = leaky_relu_slope(X, alpha, _unshared(out, X))
    return np.multiply(X, S, out=S if out is None else out)


def leaky_relu_slope(X: Array, alpha: float = 0.01, out: Array | None = None) -> Array:
    """1 for x > 0, else alpha; `out` may be X."""
    X = floats(X)
    S = np.greater(X, 0, out=_out(X, out))
    S *= 1 - alpha
    S += alpha
    return S


def elu(X: Array, alpha: float = 1.0) -> Array:
    """x for x > 0, else alpha (exp(x) - 1), elementwise."""
    X = floats(X)
    return np.where(X > 0, X, float(alpha) * np.expm1(np.minimum(X, 0)))


def elu_slope(X: Array, alpha: float = 1.0, Y: Array | None = None) -> Array:
    """1 for x > 0, else alpha exp(x) = y + alpha."""
    X = floats(X)
    return np.where(X > 0, 1, (elu(X, alpha) if Y is None else Y) + float(alpha))


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
    X = floats(X)
    return X * sigmoid(X)


def silu_slope(X: Array, Y: Array | None = None) -> Array:
    """s + y (1 - s), with s = sigmoid(x) and y = x s."""
    s = sigmoid(X)
    return s + (silu(X) if Y is None else Y) * (1 - s)


def mish(X: Array) -> Array:
    """x tanh(softplus(x)), elementwise."""
    X = floats(X)
    return X * np.tanh(softplus(X))


def mish_slope(X: Array) -> Array:
    """t + x (1 - t^2) sigmoid(x), with t = tanh(softplus(x))."""
    X = floats(X)
    t = np.tanh(softplus(X))
    return t + X * (1 - t * t) * sigmoid(X)


def tanh(X: Array, out: Array | None = None) -> Array:
    """tanh(x), elementwise; `out` may be X."""
    X = floats(X)
    return np.tanh(X, out=_out(X, out))


def tanh_slope(X: Array, Y: Array | None = None, out: Array | None = None) -> Array:
    """1 - tanh(x)^2, elementwise; `out` may be X or Y."""
    Y = tanh(X) if Y is None else Y
    S = np.multiply(Y, Y, out=_out(Y, out))
    return np.subtract(1, S, out=S)


def sigmoid_slope(X: Array, Y: Array | None = None, out: Array | None = None) -> Array:
    """y (1 - y), with y = sigmoid(x); `out` may be X or Y."""
    Y = sigmoid(X) if Y is None else Y
    S = np.subtract(1, Y, out=_out(Y, _unshared(out, Y)))
    return np.multiply(S, Y, out=S if out is None else out)


def softplus_slope(X: Array) -> Array:
    """sigmoid(x), the derivative of log(1 + exp(x))."""
    return sigmoid(X)


def softsign(X: Array) -> Array:
    """x / (1 + |x|), elementwise."""
    X = floats(X)
    return np.divide(X, 1 + np.abs(X), out=_out(X, None))


def softsign_slope(X: Array) -> Array:
    """1 / (1 + |x|)^2, elementwise."""
    X = floats(X)
    return np.square(1 / (1 + np.abs(X)), out=_out(X, None))


def _pair(X: Array) -> tuple[Array, Array]:
    """X in the order of C, and an uninitialised array like it."""
    X = np.array(floats(X), order="C", copy=None)
    return X, np.empty_like(X)


def _out(X: Array, out: Array | None) -> Array:
    return np.empty_like(X, order="C") if out is None else out


def _unshared(out: Array | None, X: Array) -> Array | None:
    """`out`, or None if writing into it might change X."""
    return None if out is None or np.may_share_memory(out, X) else out
