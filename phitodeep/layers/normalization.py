"""Normalisation layers. Here D is the size of the last axis, and dY means dL/dY."""

from __future__ import annotations

import numpy as np

from phitodeep.checks import check_number
from phitodeep.errors import ShapeError
from phitodeep.functional import sum_rows
from phitodeep.layers.base import Layer, Param, State, current
from phitodeep.types import Array, Shape


class _ScaleAndShift(Layer):
    """What the norms share: gamma and beta of shape (D,), and their gradients."""

    gamma = Param()  # scale; never decayed: pulling it to 0 would switch the layer off
    beta = Param()  # shift
    flops_per_output = 8  # mean, centring, squares, their mean, scaling, gamma and beta

    def create(self, shape: Shape) -> Shape:
        self.gamma = np.ones(shape[-1])
        self.beta = np.zeros(shape[-1])
        return shape

    def _check(self, X: Array) -> None:
        if X.shape[-1:] != self.gamma.shape:
            raise ShapeError(
                f"{self!r} was built for D = {self.gamma.size} features on the last axis, "
                f"got X of shape {X.shape}."
            )

    def _scale_and_shift(self, X_hat: Array) -> Array:
        Y = np.multiply(X_hat, self.gamma, out=self.buffer("Y", X_hat.shape, X_hat.dtype))
        Y += self.beta
        return Y

    def _gradients(self, dY: Array, X_hat: Array) -> dict[str, Array]:
        """gamma and beta serve every row: dgamma = sum_rows(dy x_hat), dbeta = sum_rows(dy)."""
        product = np.multiply(dY, X_hat, out=self.buffer("product", dY.shape, dY.dtype))
        return {
            "gamma": sum_rows(product, out=self.buffer("dgamma", self.gamma.shape, dY.dtype)),
            "beta": sum_rows(dY, out=self.buffer("dbeta", self.beta.shape, dY.dtype)),
        }


class LayerNorm(_ScaleAndShift):
    """Normalise each sample over its last axis, then scale and shift it.

    Shapes: X, Y, dX, dY are (..., D); gamma and beta are (D,).
    Units: X may carry any unit u (and eps carries u^2); X_hat has none, so Y has that of gamma.

    Forward, for one row x of D features:

        mu = mean(x)    var = mean((x - mu)^2)    r = (var + eps)^(-1/2)
        x_hat = (x - mu) r                        y = gamma x_hat + beta

    Backward. x_i moves x_hat_j by three roads: directly, through mu, and through r.

        dmu/dx_i = 1/D      dr/dx_i = -r^2 x_hat_i / D
        dx_hat_j/dx_i = r ([i = j] - 1/D - x_hat_i x_hat_j / D)

    Summing over j against g = gamma dy turns the last two into means over D:

        dx = r (g - mean(g) - x_hat mean(g x_hat))

    Two checks by eye: dx sums to zero along the row (shifting x changes nothing), and for
    eps -> 0 it is orthogonal to x_hat (nor does rescaling x).

    Source: Ba, Kiros and Hinton 2016, "Layer Normalization", arXiv:1607.06450, sec. 3.
    """

    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = check_number(eps, "LayerNorm eps (a constant row has var = 0)", above=0)

    def forward(self, X: Array) -> Array:
        self._check(X)
        X_hat = np.subtract(
            X, X.mean(axis=-1, keepdims=True), out=self.buffer("X_hat", X.shape, X.dtype)
        )
        var = np.einsum("...d,...d->...", X_hat, X_hat)[..., None] / X.shape[-1]
        r = 1 / np.sqrt(var + self.eps)
        X_hat *= r
        self.save(X_hat=X_hat, r=r)
        return self._scale_and_shift(X_hat)

    def backward(self, dY: Array) -> Array:
        X_hat, r = self.saved("X_hat", "r")
        self.grads = self._gradients(dY, X_hat)
        g = np.multiply(dY, self.gamma, out=self.buffer("dX", dY.shape, dY.dtype))
        along_shift = g.mean(axis=-1, keepdims=True)
        along_scale = np.einsum("...d,...d->...", g, X_hat)[..., None] / g.shape[-1]
        g -= along_shift
        g -= np.multiply(X_hat, along_scale, out=self.buffer("product", dY.shape, dY.dtype))
        g *= r
        return g


class BatchNorm(_ScaleAndShift):
    """Normalise each feature over the batch in training, and by running statistics otherwise.

    Shapes: X, Y, dX, dY are (N, ..., D); gamma, beta and the state running_mean, running_var
    are (D,). All axes but the last count as rows, n in all.
    Units: those of LayerNorm.

    Forward in training, for one feature x of n rows:

        mu = mean(x)    var = mean((x - mu)^2)    r = (var + eps)^(-1/2)
        x_hat = (x - mu) r                        y = gamma x_hat + beta
        running_mean += momentum (mu - running_mean)
        running_var  += momentum (var n / (n - 1) - running_var)

    One row has no variance: then y = beta, and the running statistics stay as they are.
    At inference, or frozen, mu and var are the running ones, and so constants.

    Backward. As in LayerNorm, with rows in the place of features; gamma is one number here:

        training     dx = gamma r (dy - mean(dy) - x_hat mean(dy x_hat))
        otherwise    dx = gamma r dy

    A check by eye: in training, dx sums to zero over the rows.

    Source: Ioffe and Szegedy 2015, "Batch Normalization", arXiv:1502.03167, algorithm 1.
    """

    running_mean = State()
    running_var = State()

    def __init__(self, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum = check_number(momentum, "BatchNorm momentum", least=0, below=1 + 1e-12)
        self.eps = check_number(eps, "BatchNorm eps (a constant feature has var = 0)", above=0)

    def create(self, shape: Shape) -> Shape:
        self.running_mean = np.zeros(shape[-1])
        self.running_var = np.ones(shape[-1])
        return super().create(shape)

    def forward(self, X: Array) -> Array:
        self._check(X)
        batch = current().training and self.trainable
        mu = sum_rows(X) / max(1, X.size // X.shape[-1]) if batch else self.running_mean
        X_hat = np.subtract(X, mu, out=self.buffer("X_hat", X.shape, X.dtype))
        var = self._variance(X_hat, mu) if batch else self.running_var
        r = 1 / np.sqrt(var + self.eps)
        X_hat *= r
        self.save(X_hat=X_hat, r=r, batch=batch)
        return self._scale_and_shift(X_hat)

    def _variance(self, centred: Array, mu: Array) -> Array:
        """The variance of each feature over the rows; records it and the mean as it goes."""
        n = max(1, centred.size // centred.shape[-1])
        square = np.multiply(centred, centred, out=self.buffer("Y", centred.shape, centred.dtype))
        var = sum_rows(square) / n
        if n > 1:
            self.running_mean += self.momentum * (mu - self.running_mean)
            self.running_var += self.momentum * (var * (n / (n - 1)) - self.running_var)
        return var

    def backward(self, dY: Array) -> Array:
        X_hat, r, batch = self.saved("X_hat", "r", "batch")
        self.grads = grads = self._gradients(dY, X_hat)
        dX = self.buffer("dX", dY.shape, dY.dtype)
        if not batch:
            return np.multiply(dY, self.gamma * r, out=dX)
        n = max(1, dY.size // dY.shape[-1])
        np.multiply(X_hat, grads["gamma"] / n, out=dX)
        np.subtract(dY, dX, out=dX)
        dX -= grads["beta"] / n
        dX *= self.gamma * r
        return dX
