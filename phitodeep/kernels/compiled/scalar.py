"""exp, tanh and erf of one float, for use in kernels.

The float32 forms have no calls and no branches, so that the processor computes several elements
at once. The float64 forms come from the C library.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from phitodeep.kernels.erf import ERF_NEAR, ERF_TAIL

f4 = np.float32
N0, N1, N2, N3, N4, N5, N6 = map(f4, ERF_NEAR["f"])
T0, T1, T2, T3, T4, T5, T6, T7, T8 = map(f4, ERF_TAIL["f"])


def in_float32(library: Callable[[float], float]) -> Callable[[Any], Any]:
    """Decorate the float32 form of a function of the C library, for use in compiled code."""

    def decorate(single: Any) -> Any:
        def function(x: Any) -> Any:
            return library(x)

        functools.update_wrapper(function, single)

        @overload(function)
        def form(x: Any) -> Any:
            return single if x == types.float32 else function

        return function

    return decorate


@in_float32(math.exp)
def exp(x: Any) -> Any:
    """exp(x): in float32, Cody and Waite's x = n log 2 + r, with the Cephes polynomial in r."""
    clamped = min(max(x, f4(-87.3)), f4(88.7))
    n = min(np.floor(clamped * f4(1.44269504) + f4(0.5)), f4(127))
    r = clamped - n * f4(0.693359375) + n * f4(2.12194440e-4)
    y = f4(1.9875691500e-4)
    y = y * r + f4(1.3981999507e-3)
    y = y * r + f4(8.3334519073e-3)
    y = y * r + f4(4.1665795894e-2)
    y = y * r + f4(1.6666665459e-1)
    y = y * r + f4(0.5)
    y = y * r * r + r + f4(1.0)
    y *= np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    y = f4(0) if x < f4(-87.3) else y
    return f4(np.inf) if x > f4(88.7) else y


@in_float32(math.tanh)
def tanh(x: Any) -> Any:
    """tanh(x): in float32, Eigen's quotient of two polynomials in x^2."""
    clamped = min(max(x, f4(-7.9053111)), f4(7.9053111))
    q = clamped * clamped
    p = f4(-2.76076847742355e-16)
    p = p * q + f4(2.00018790482477e-13)
    p = p * q + f4(-8.60467152213735e-11)
    p = p * q + f4(5.12229709037114e-08)
    p = p * q + f4(1.48572235717979e-05)
    p = p * q + f4(6.37261928875436e-04)
    p = p * q + f4(4.89352455891786e-03)
    d = f4(1.19825839466702e-06)
    d = d * q + f4(1.18534705686654e-04)
    d = d * q + f4(2.26843463243900e-03)
    d = d * q + f4(4.89352518554385e-03)
    y = clamped * p / d
    end = f4(1) if x > 0 else f4(-1) if x < 0 else x  # the last case is NaN or 0
    return y if abs(x) < f4(9) else end


@in_float32(math.erf)
def erf(x: Any) -> Any:
    """erf(x): in float32, the polynomials of `functional.erf`."""
    size = min(abs(x), f4(6))
    q = min(size, f4(1)) ** 2
    near = x * ((((((N0 * q + N1) * q + N2) * q + N3) * q + N4) * q + N5) * q + N6)
    t = (size - f4(3)) / (size + f4(3))
    far = ((((T0 * t + T1) * t + T2) * t + T3) * t + T4) * t + T5
    far = ((far * t + T6) * t + T7) * t + T8
    far = f4(1) - far * exp(-size * size)
    far = far if x > 0 else -far
    return near if size < f4(1) else far
