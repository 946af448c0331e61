"""The fully connected layer, alone and with the ReLU after it: see training/shortcuts.py."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from phitodeep.core.call import current
from phitodeep.core.checks import check_count, check_flag
from phitodeep.core.types import Array, Shape
from phitodeep.derivations import dense as derived
from phitodeep.errors import ShapeError
from phitodeep.functional import product, sum_rows
from phitodeep.kernels import kernel
from phitodeep.kernels.activation import relu, relu_back
from phitodeep.layers.activation import ReLU
from phitodeep.layers.base import Param, PerStep
from phitodeep.layers.containers import Chain
from phitodeep.layers.initialization import He, Initializer, check_initializer

__all__ = ["Dense"]


class Dense(PerStep):
    """A fully connected layer: Y = X W + b on the last axis.

    Shapes: X, dX are (..., input_size); Y, dY are (..., output_size); W is
    (input_size, output_size) and b is (output_size,). `Dense(128)` specifies only the output size
    and infers the input size from the previous layer.

    Backward. For one row, y_j = sum_i x_i W_ij + b_j, and every row uses the same W and b:

        dL/dW_ij = sum_rows(x_i dy_j)    dL/db_j = sum_rows(dy_j)    dL/dx_i = sum_j dy_j W_ij

    so dW = X^T dY, db is the sum of the rows of dY, and dX = dY W^T. Nothing is divided by the
    number of rows: the loss has already done that.

    Source: Rumelhart, Hinton and Williams 1986, "Learning representations by back-propagating
    errors", Nature 323, eq. 5 to 7.
    """

    W = Param(decay=True)
    b = Param()
    gives = "numbers"
    kept_as: ClassVar = {"input_size": "_given_size"}  # as given, not as inferred by `create`

    steps = derived.dense

    def __init__(
        self,
        input_size: int,
        output_size: int | None = None,
        initializer: Initializer = He(),
        *,
        bias: bool = True,
    ) -> None:
        sizes = (None, input_size) if output_size is None else (input_size, output_size)
        self.input_size = None if sizes[0] is None else check_count(sizes[0], "Dense input_size")
        self._given_size = self.input_size
        self.output_size = check_count(sizes[1], "Dense output_size")
        self.initializer = check_initializer(initializer, "Dense")
        self.bias = check_flag(bias, "Dense bias")

    def known_input(self) -> Shape | None:
        return None if self.input_size is None else (self.input_size,)

    def create(self, shape: Shape) -> Shape:
        if self.input_size is None:
            self.input_size = shape[-1]
        self._check(shape)
        self.W = self.draw(self.initializer, (self.input_size, self.output_size))
        if self.bias:
            self.b = self.full(self.output_size, 0)
        return (*shape[:-1], self.output_size)

    def forward(self, X: Array) -> Array:
        Y = self.product(X)
        if self.bias:
            Y += self.b
        return Y

    def backward(self, dY: Array) -> Array | None:
        dX = self.product_back(dY)
        if self.bias and self.needs_grad("b"):
            sum_rows(dY, out=self.grad_array("b"))
        return dX

    def product(self, X: Array) -> Array:
        """Return X W, and save X for `product_back`."""
        shape = X.shape
        if shape[-1] != self.input_size:
            self._check(shape)
        if len(shape) != 2:
            X = X.reshape(-1, shape[-1])
        out = self.buffer("Y", (len(X), self.output_size), X.dtype)
        Y = product(X, self.W, out)
        self.save_for_backward(X=X)
        return Y if len(shape) == 2 else Y.reshape(*shape[:-1], self.output_size)

    def product_back(self, dY: Array) -> Array | None:
        """Write dW and return dX, each if it is needed."""
        X, shape = self.saved("X"), dY.shape
        if len(shape) != 2:
            dY = dY.reshape(-1, self.output_size)
        if self.needs_grad("W"):
            product(X.T, dY, self.grad_array("W"))
        if not current().needs_dX:
            return None
        dX = dY.dot(self.W.T, out=self.buffer("dX", X.shape, X.dtype))
        return dX if len(shape) == 2 else dX.reshape(*shape[:-1], X.shape[-1])

    def flops(self) -> int:
        """Count two operations per weight and position, and one addition per bias."""
        positions = int(np.prod(self.output_shape[:-1])) if self.output_shape else 1
        inputs = self.input_size or 0
        return positions * self.output_size * (2 * inputs + self.bias)

    def _check(self, shape: Shape) -> None:
        if shape[-1:] != (self.input_size,):
            flat = any(math.prod(shape[i:]) == self.input_size for i in range(len(shape) - 1))
            hint = f" Their product is {self.input_size}: add .flatten() before it." if flat else ""
            raise ShapeError(
                f"{self!r} takes {self.input_size} features on the last axis, got shape "
                f"{shape}.{hint}"
            )


class DenseReLU(Chain, registered=False):
    """A Dense with a bias, and the ReLU after it: Y = max(X W + b, 0).

    Shapes: X, dX are (..., input_size); Y, dY are (..., output_size).

    Forward adds the bias in the pass of the ReLU.

    Backward. Z = X W + b has the gradient dz = dy where y > 0, else 0, as in ReLU; with dZ, Dense
    gives db = sum_rows(dZ), dW = X^T dZ and dX = dZ W^T, which the optimizer finds in the Dense.
    """

    takes_tokens = False

    def __init__(self, dense: Dense, relu: ReLU) -> None:
        super().__init__(dense, relu)
        self.input_shape, self.output_shape = dense.input_shape, dense.output_shape
        self.dtype = dense.dtype

    def forward(self, X: Array) -> Array:
        dense: Any = self.layers[0]
        Y = dense.product(X)
        bias_relu(Y.reshape(-1, Y.shape[-1]), dense.b)
        self.save_for_backward(Y=Y)
        return Y

    def backward(self, dY: Array) -> Array | None:
        dense: Any = self.layers[0]
        Y = self.saved("Y")
        dZ = self.buffer("dZ", Y.shape, Y.dtype)
        dense.grads = {}
        relu_back(dY.ravel(), Y.ravel(), dZ.ravel())
        if dense.needs_grad("b"):
            sum_rows(dZ, out=dense.grad_array("b"))
        return dense.product_back(dZ)

    def _learns(self) -> bool:
        return self.layers[0]._trainable


@kernel
def bias_relu(Y: Array, b: Array) -> None:
    """Y (n, D) <- max(y + b, 0), with b (D,)."""
    Y += b
    relu(Y.ravel(), Y.ravel())
