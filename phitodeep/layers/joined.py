"""Pairs of layers that run as one in training: see the table in training/shortcuts.py."""

from __future__ import annotations

from typing import cast

import numpy as np

from phitodeep.functional import sum_rows, zeros
from phitodeep.kernels import kernel
from phitodeep.layers.activation import relu_back
from phitodeep.layers.chain import Chain
from phitodeep.layers.dense import Dense
from phitodeep.types import Array


class DenseReLU(Chain):
    """A Dense with a bias, and the ReLU after it: Y = max(X W + b, 0).

    Shapes: X, dX are (..., input_size); Y, dY are (..., output_size).

    Each pass of the two layers over Y becomes part of another one: forward adds the bias in the
    pass of the ReLU, and backward sums up db in the pass that cuts dY.

    Backward. Z = X W + b has the gradient dz = dy where y > 0, else 0, as in ReLU; with dZ, Dense
    gives db = sum_rows(dZ), dW = X^T dZ and dX = dZ W^T, which the optimizer finds in the Dense.
    """

    takes_tokens = False

    def forward(self, X: Array) -> Array:
        dense = cast(Dense, self.layers[0])
        Y = dense.product(X)
        bias_relu(Y.reshape(-1, Y.shape[-1]), dense.b)
        self.save_for_backward(Y=Y)
        return Y

    def backward(self, dY: Array) -> Array | None:
        dense, Y = cast(Dense, self.layers[0]), self.saved("Y")
        dense.grads, rows = {}, (-1, Y.shape[-1])
        dZ = self.buffer("dZ", Y.shape, Y.dtype)
        db = dense.grad_array("b")
        bias_relu_back(dY.reshape(rows), Y.reshape(rows), dZ.reshape(rows), db)
        return dense.product_back(dZ)

    def _learns(self) -> bool:
        return self.layers[0].trainable


@kernel
def bias_relu(Y: Array, b: Array) -> None:
    """Y (n, D) <- max(y + b, 0), with b (D,)."""
    Y += b
    np.maximum(Y, zeros(len(b), b.dtype), out=Y)  # a scalar 0 would take longer


@kernel
def bias_relu_back(dY: Array, Y: Array, dZ: Array, db: Array) -> None:
    """Write dz = dy if y > 0, else 0, into dZ (n, D), and the sum of its rows into db (D,)."""
    relu_back(dY.ravel(), Y.ravel(), dZ.ravel())
    sum_rows(dZ, out=db)
