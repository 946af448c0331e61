"""What the layers of the first lessons compute, as steps.

These layers exist only to be compared with: the reader of a lesson writes the passes. They have no
place in a network that should be fast, so no config can name them.
"""

from __future__ import annotations

import numpy as np

from phitodeep.core.types import Shape
from phitodeep.derivations.language.step import Arrange, Derivation, Given, Let, Size, Step, Sum
from phitodeep.layers import Layer, Param


class Neuron(Layer, registered=False):
    """y = sum_i w_i x_i + b, for a single sample: X (1, D), Y (1, 1)."""

    W = Param(decay=True)
    b = Param()

    def create(self, shape: Shape) -> Shape:
        self.W, self.b = np.ones(shape[-1]), np.zeros(1)
        return (1,)

    def steps(self) -> Derivation:
        return Derivation(
            [Sum("XW", "ni,i->n1", "X", "W"), Let("Y", "XW + b")],
            [
                Arrange("x", "X[0]", "X", "the only sample"),
                Arrange("dy", "dY[0]", "dY", "what arrives"),
                Let("dW", "dy * x"),
                Let("db", "dy"),
                Let("dX", "dY * W"),
            ],
        )


class Chain(Layer, registered=False):
    """Y = v tanh(w X), element by element, with two fixed weights."""

    Y = "v * h"

    def __init__(self, w: float, v: float) -> None:
        self.w, self.v = w, v

    def steps(self) -> Derivation:
        return Derivation(
            [
                Given("w", "the first weight", lambda _: np.float64(self.w)),
                Given("v", "the second weight", lambda _: np.float64(self.v)),
                Let("u", "w * X"),
                Let("h", "np.tanh(u)"),
                Let("Y", self.Y),
            ],
            [Let("dh", "dY * v"), Let("du", "dh * (1 - h ** 2)"), *self.end()],
        )

    def end(self) -> list[Step]:
        return [Let("dX", "du * w")]


class TwoPaths(Chain, registered=False):
    """Y = X + v tanh(w X), element by element."""

    Y = "X + v * h"

    def end(self) -> list[Step]:
        through = Let("through", "du * w", "what x passes on through tanh")
        return [through, Let("dX", "dY + through")]


class Swish(Layer, registered=False):
    """Y = X sigmoid(a X), with one a for each feature."""

    a = Param()

    def create(self, shape: Shape) -> Shape:
        self.a = np.ones(shape[-1])
        return shape

    def steps(self) -> Derivation:
        return Derivation(
            [Let("s", "1 / (1 + np.exp(-(a * X)))", "how far the gate is open"), Let("Y", "X * s")],
            [
                Let("ds", "dY * X"),
                Let("du", "ds * s * (1 - s)", "what arrives at a x"),
                Let("through", "du * a", "what x passes on through the gate"),
                Let("dX", "dY * s + through"),
                Sum("da", "...i,...i->i", "du", "X"),
            ],
        )


class ScaledDense(Layer, registered=False):
    """Y = X W / sqrt(D), so that weights of variance 1 keep the size of X."""

    W = Param(decay=True)

    def __init__(self, units: int) -> None:
        self.units = units

    def create(self, shape: Shape) -> Shape:
        self.W = np.ones((shape[-1], self.units))
        return (*shape[:-1], self.units)

    def steps(self) -> Derivation:
        return Derivation(
            [
                Size("D", "X", -1, "the number of inputs"),
                Sum("XW", "...i,ij->...j", "X", "W"),
                Let("Y", "XW / np.sqrt(D)"),
            ],
            [
                Let("g", "dY / np.sqrt(D)", "what arrives at X W"),
                Sum("dW", "...i,...j->ij", "X", "g"),
                Sum("dX", "...j,ij->...i", "g", "W"),
            ],
        )
