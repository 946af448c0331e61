"""Pairs of layers that run as one: see the table in training/shortcuts.py."""

from __future__ import annotations

from typing import Any

from phitodeep.core.types import Array
from phitodeep.functional import sum_rows
from phitodeep.kernels import kernel
from phitodeep.layers.activation import ReLU, relu, relu_back
from phitodeep.layers.chain import Chain
from phitodeep.layers.dense import Dense


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
