"""GELU, exact or by its tanh approximation; import it from `phitodeep.layers.activation`."""

from __future__ import annotations

from phitodeep.core.checks import check_option
from phitodeep.core.types import Array
from phitodeep.derivations import activation as derived
from phitodeep.kernels.activation import gelu, gelu_back, gelu_tanh, gelu_tanh_back
from phitodeep.layers.base import Layer


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
