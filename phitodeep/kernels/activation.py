"""The kernels of ReLU and GELU, forward and backward, which layers and functions share."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

from phitodeep.core.types import Array
from phitodeep.kernels import kernel
from phitodeep.kernels.constants import zeros
from phitodeep.kernels.elementwise import erf, gaussian

F = TypeVar("F", bound=Callable[..., Any])
BLOCK = 1 << 14  # elements of a long vector that stay in the processor's cache


def in_blocks(run: F) -> F:
    """Make an elementwise function of vectors process them block by block."""

    @functools.wraps(run)
    def run_in_blocks(*vectors: Array) -> None:
        for i in range(0, vectors[0].size, BLOCK):
            run(*[v[i : i + BLOCK] for v in vectors])

    return cast(F, run_in_blocks)


@kernel
@in_blocks
def relu(X: Array, Y: Array) -> None:
    """Write y = max(x, 0) for vectors (n,)."""
    np.maximum(X, zeros(BLOCK, X.dtype)[: X.size], out=Y)  # a scalar 0 would take twice as long


@kernel
@in_blocks
def relu_back(dY: Array, Y: Array, dX: Array) -> None:
    """Write dx = dy if y > 0, else 0, for vectors (n,).

    dx has all the bits of dy or none of them, so that it can be 0 even if dy is infinite or NaN.
    """
    bits = np.abs(Y, out=dX).view(f"i{dX.itemsize}")  # the bits of y >= 0 are an integer >= 0
    np.negative(bits, out=bits)
    bits >>= 8 * bits.itemsize - 1  # copies the sign to every bit: 0, or -1, which is all ones
    bits &= dY.view(bits.dtype)


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
