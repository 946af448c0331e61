"""GELU, exact or by its tanh approximation; import it from `phitodeep.layers.activation`."""

from __future__ import annotations

import math

import numpy as np

from phitodeep.checks import check_option
from phitodeep.derivations import activation as derived
from phitodeep.functional import erf, gaussian
from phitodeep.kernels import kernel
from phitodeep.kernels.blocks import in_blocks
from phitodeep.layers.base import Layer
from phitodeep.types import Array


class GELU(Layer):
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
    independent_samples, time_steps = True, "independent"
    gives = "numbers"

    steps = derived.gelu

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
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


K, C = math.sqrt(2 / math.pi), 0.044715  # constants of the tanh approximation
FAR = 40.0  # for |x| > FAR, Phi is 0 or 1 and x phi is 0, even in float64


@kernel
@in_blocks
def gelu(X: Array, Phi: Array, Y: Array) -> None:
    """Write Phi = (1 + erf(x / sqrt 2)) / 2 and y = x Phi for vectors (n,)."""
    np.multiply(erf(X * math.sqrt(0.5)) + 1, 0.5, out=Phi)
    np.multiply(X.clip(-FAR, np.inf, out=Y), Phi, out=Y)


@kernel
@in_blocks
def gelu_back(dY: Array, X: Array, Phi: Array, dX: Array) -> None:
    """Write dx = (Phi + x phi) dy for vectors (n,)."""
    X.clip(-FAR, FAR, out=dX)
    dX *= gaussian(dX)
    dX += Phi
    dX *= dY


@kernel
@np.errstate(over="ignore")
@in_blocks
def gelu_tanh(X: Array, Phi: Array, Y: Array) -> None:
    """Write Phi = sigmoid(2 K (x + C x^3)) and y = x Phi for vectors (n,)."""
    np.multiply(X, X, out=Y)
    Y *= -2 * K * C
    Y -= 2 * K
    Y *= X
    np.exp(Y, out=Phi)  # exp(-2 u), which may overflow: 1 / infinity is 0
    Phi += 1
    np.divide(1, Phi, out=Phi)
    np.multiply(X.clip(-FAR, np.inf, out=Y), Phi, out=Y)


@kernel
@in_blocks
def gelu_tanh_back(dY: Array, X: Array, Phi: Array, dX: Array) -> None:
    """Write dx = (Phi + x 2 K Phi (1 - Phi) (1 + 3 C x^2)) dy for vectors (n,)."""
    X = X.clip(-FAR, FAR)
    np.multiply(X, X, out=dX)
    dX *= 6 * K * C
    dX += 2 * K
    dX *= X
    dX *= 1 - Phi
    dX += 1
    dX *= Phi
    dX *= dY
