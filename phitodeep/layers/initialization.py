"""Initial values of parameters, scaled so that signals neither grow nor vanish."""

from __future__ import annotations

import math
from enum import Enum
from typing import Annotated, Any

import numpy as np

from phitodeep.core.checks import check_number, class_hint
from phitodeep.core.config import Value, register
from phitodeep.core.types import Array, Shape
from phitodeep.errors import ArgumentTypeError


@register
class InitType(Enum):
    """The distribution of initial values: normal or uniform, with the same variance."""

    NORMAL = "normal"
    UNIFORM = "uniform"

    def __repr__(self) -> str:
        return f"InitType.{self.name}"


def fans(shape: Shape) -> tuple[int, int]:
    """Return (fan_in, fan_out) of a weight: the inputs per output, and the outputs per input.

    The last two axes are (in, out); any axes before them belong to a convolution kernel.
    """
    *kernel, n_in, n_out = shape if len(shape) > 1 else (1, *shape)
    area = math.prod(kernel)
    return area * n_in, area * n_out


class Initializer(Value, registered=False):
    """Draws the initial values of a parameter."""

    config_kind = "initializer"

    def draw(self, shape: Shape, rng: np.random.Generator) -> Array:
        """Return float64 values; the layer casts them, so all dtypes start from the same ones."""
        raise NotImplementedError(f"{type(self).__name__} must implement draw(shape, rng).")


def check_initializer(value: Any, who: str) -> Initializer:
    """Return `value`, which must be an Initializer; `who` begins with the name of the layer."""
    if not isinstance(value, Initializer):
        raise ArgumentTypeError(
            f"{who.split()[0]} takes an initializer such as Xavier(InitType.NORMAL), got {value!r}."
            f"{class_hint(value)}"
        )
    return value


InitialValues = Annotated[Initializer, check_initializer]


class VarianceScaling(Initializer, registered=False):
    """Values with mean 0 and a variance that the subclass computes, normal or uniform."""

    def __init__(self, init_type: InitType = InitType.NORMAL) -> None:
        if not isinstance(init_type, InitType):
            raise ArgumentTypeError(
                f"{type(self).__name__} takes InitType.NORMAL or InitType.UNIFORM, "
                f"got {init_type!r}."
            )
        self.init_type = init_type

    def variance(self, fan_in: int, fan_out: int) -> float:
        raise NotImplementedError(f"{type(self).__name__} must implement variance.")

    def draw(self, shape: Shape, rng: np.random.Generator) -> Array:
        std = math.sqrt(self.variance(*fans(shape)))
        if self.init_type is InitType.NORMAL:
            return std * rng.standard_normal(shape)
        a = math.sqrt(3) * std  # the variance of U(-a, a) is a^2 / 3
        return rng.uniform(-a, a, shape)


class He(VarianceScaling):
    """Variance 2 / fan_in, which compensates for ReLU's halving of a signal's power.

    Source: He et al. 2015, arXiv:1502.01852, eq. 10.
    """

    def variance(self, fan_in: int, fan_out: int) -> float:
        return 2 / fan_in


class Xavier(VarianceScaling):
    """Variance 2 / (fan_in + fan_out), a compromise between forward and backward signals.

    Source: Glorot and Bengio 2010, "Understanding the difficulty of training deep feedforward
    neural networks", AISTATS, eq. 12 and 16.
    """

    def variance(self, fan_in: int, fan_out: int) -> float:
        return 2 / (fan_in + fan_out)


class LeCun(VarianceScaling):
    """Variance 1 / fan_in, which preserves the variance of a signal through a linear layer.

    SELU requires it.

    Source: LeCun et al. 1998, "Efficient BackProp", sec. 4.6.
    """

    def variance(self, fan_in: int, fan_out: int) -> float:
        return 1 / fan_in


class Normal(Initializer):
    """Normal values with mean 0 and standard deviation `std`, the default of embeddings."""

    def __init__(self, std: float = 1.0) -> None:
        self.std = check_number(std, "Normal std", above=0)

    def draw(self, shape: Shape, rng: np.random.Generator) -> Array:
        return self.std * rng.standard_normal(shape)


class Orthogonal(Initializer):
    """`gain` times a random matrix with orthonormal rows or columns, whichever are fewer.

    All axes but the last are merged: a convolution kernel becomes a (k... C_in) by C_out matrix.
    It is the Q of the QR decomposition of a matrix of normal values. Multiplying Q's columns by the
    signs of R's diagonal makes the distribution uniform over all such matrices.
    Source: Saxe, McClelland and Ganguli 2014, arXiv:1312.6120.
    """

    def __init__(self, gain: float = 1.0) -> None:
        self.gain = check_number(gain, "Orthogonal gain", above=0)

    def draw(self, shape: Shape, rng: np.random.Generator) -> Array:
        rows, columns = math.prod(shape[:-1]), shape[-1]
        tall = rng.standard_normal((max(rows, columns), min(rows, columns)))
        Q, R = np.linalg.qr(tall)
        Q *= np.sign(np.diagonal(R))
        return self.gain * (Q if rows >= columns else Q.T).reshape(shape)


class Constant(Initializer):
    """Every element is `value`."""

    def __init__(self, value: float) -> None:
        self.value = check_number(value, "Constant value")

    def draw(self, shape: Shape, rng: np.random.Generator) -> Array:
        return np.full(shape, self.value)


class Zeros(Initializer):
    """Every element is 0, as in biases or in the last layer of a residual branch."""

    def draw(self, shape: Shape, rng: np.random.Generator) -> Array:
        return np.zeros(shape)
