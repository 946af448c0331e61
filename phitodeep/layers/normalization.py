"""The normalisation layers.

Long because all of them are in one file: every derivation builds on LayerNorm's. D is the
size of the last axis, and dY means dL/dY.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from phitodeep.core.call import current
from phitodeep.core.checks import check_count, check_flag, check_number
from phitodeep.core.types import Array, Shape
from phitodeep.derivations import normalization as derived
from phitodeep.errors import ShapeError
from phitodeep.functional import ones, sum_rows
from phitodeep.kernels import kernel
from phitodeep.layers.base import Param, PerStep, State

__all__ = ["BatchNorm", "GroupNorm", "InstanceNorm", "LayerNorm", "RMSNorm"]


class _Scale(PerStep):
    """Base class of all norms, with gamma (D,) and its gradient."""

    gamma = Param()  # scale; never decayed: gamma = 0 would switch the layer off
    _flops_per_output = 8  # mean, centring, squares, their mean, scaling, gamma and beta
    eps: float

    def create(self, shape: Shape) -> Shape:
        self.gamma = self.full(shape[-1], 1)
        return shape

    def _gradients(self, dY: Array, X_hat: Array) -> None:
        """Write dgamma = sum_rows(dy x_hat): every row uses the same gamma."""
        if self.needs_grad("gamma"):
            product = np.multiply(dY, X_hat, out=self.buffer("product", dY.shape, dY.dtype))
            sum_rows(product, out=self.grad_array("gamma"))


class _ScaleAndShift(_Scale):
    """Base class of the norms that centre X, with beta (D,) and its gradient."""

    beta = Param()  # shift

    def create(self, shape: Shape) -> Shape:
        self.beta = self.full(shape[-1], 0)
        return super().create(shape)

    def _scale_and_shift(self, X_hat: Array) -> Array:
        Y = np.multiply(X_hat, self.gamma, out=self.buffer("Y", X_hat.shape, X_hat.dtype))
        Y += self.beta
        return Y

    def _gradients(self, dY: Array, X_hat: Array) -> None:
        """Write dgamma, and dbeta = sum_rows(dy)."""
        super()._gradients(dY, X_hat)
        if self.needs_grad("beta"):
            sum_rows(dY, out=self.grad_array("beta"))


class LayerNorm(_ScaleAndShift):
    """Normalise each sample over its last axis, then scale and shift it.

    Shapes: X, Y, dX, dY are (..., D); gamma and beta are (D,).
    Units: if X has the unit u, eps has u^2. X_hat has no unit, so Y has the unit of gamma.

    Forward, for one row x of D features:

        mu = mean(x)    var = mean((x - mu)^2)    r = (var + eps)^(-1/2)
        x_hat = (x - mu) r                        y = gamma x_hat + beta

    Backward. x_i affects x_hat_j in three ways: directly, through mu, and through r.

        dmu/dx_i = 1/D      dr/dx_i = -r^2 x_hat_i / D
        dx_hat_j/dx_i = r ([i = j] - 1/D - x_hat_i x_hat_j / D)

    Multiplying by g = gamma dy and summing over j turns the last two into means over D:

        dx = r (g - mean(g) - x_hat mean(g x_hat))

    Every row uses the same gamma and beta: dgamma = sum_rows(dy x_hat) and dbeta = sum_rows(dy).

    Two checks by eye: dx sums to zero along the row (shifting x does not change y), and for
    eps -> 0 it is orthogonal to x_hat (rescaling x does not change y either).

    Source: Ba, Kiros and Hinton 2016, "Layer Normalization", arXiv:1607.06450, sec. 3.
    """

    steps = derived.layer_norm

    def __init__(self, eps: float = 1e-5) -> None:
        self.eps = check_number(eps, "LayerNorm eps (a constant row has var = 0)", above=0)

    def forward(self, X: Array) -> Array:
        self._check_features(X.shape, self.gamma.size)
        rows = X.reshape(-1, X.shape[-1])
        X_hat, Y = (self.buffer(name, rows.shape, X.dtype) for name in ("X_hat", "Y"))
        r = self.buffer("r", (len(rows), 1), X.dtype)
        layer_norm(rows, self.gamma, self.beta, self.eps, X_hat, r, Y)
        self.save_for_backward(X_hat=X_hat, r=r)
        return Y.reshape(X.shape)

    def backward(self, dY: Array) -> Array:
        X_hat, r = self.saved("X_hat", "r")
        dX, s = (self.buffer(name, X_hat.shape, dY.dtype) for name in ("dX", "scratch"))
        dgamma, dbeta = self.grad_array("gamma"), self.grad_array("beta")
        layer_norm_back(dY.reshape(X_hat.shape), X_hat, r, self.gamma, dX, dgamma, dbeta, s)
        return dX.reshape(dY.shape)


@kernel
def layer_norm(
    X: Array, gamma: Array, beta: Array, eps: float, X_hat: Array, r: Array, Y: Array
) -> None:
    """Write x_hat, r (n, 1) and y for the rows of X (n, D)."""
    normalise(X, eps, X_hat, r)
    np.multiply(X_hat, gamma, out=Y)
    Y += beta


@kernel
def layer_norm_back(
    dY: Array, X_hat: Array, r: Array, gamma: Array,
    dX: Array, dgamma: Array, dbeta: Array, s: Array,
) -> None:  # fmt: skip
    """Write dX (n, D), dgamma and dbeta (D,); s is scratch of dX's shape."""
    np.multiply(dY, X_hat, out=s)
    sum_rows(s, out=dgamma)
    sum_rows(dY, out=dbeta)
    normalise_back(np.multiply(dY, gamma, out=dX), X_hat, r, s)


@np.errstate(over="ignore", invalid="ignore")
def normalise(X: Array, eps: float, X_hat: Array, r: Array) -> None:
    """Write x_hat = (x - mu) r and r (n, 1) for the rows of X (n, D)."""
    np.subtract(X, _mean(X), out=X_hat)
    np.vecdot(X_hat, X_hat, out=r[..., 0])
    r /= X.shape[-1]
    r += eps
    np.sqrt(r, out=r)
    np.divide(1, r, out=r)
    X_hat *= r
    if overflowed(r):  # rows whose squares overflow have r = 0 or NaN, and are computed again
        bad = ~(r[..., 0] > 0)
        X_hat[bad], r[bad] = scaled(X[bad], eps)[:2]


def normalise_back(g: Array, X_hat: Array, r: Array, s: Array) -> None:
    """g <- r (g - mean(g) - x_hat mean(g x_hat)) for each row; s is scratch of g's shape."""
    np.multiply(g, X_hat, out=s)
    np.multiply(X_hat, _mean(s), out=s)
    g -= _mean(g)
    g -= s
    g *= r


def _mean(X: Array) -> Array:
    """Return the mean of each row, (n, 1), computed as a product with ones."""
    means = np.matmul(X, ones(X.shape[-1], X.dtype)[:, None])
    means /= X.shape[-1]
    return means


class GroupNorm(_ScaleAndShift):
    """Normalise each group of channels of a sample over its channels and positions.

    Shapes: X, Y, dX, dY are (N, *sizes, C); gamma and beta are (C,). Units as in LayerNorm.

    Forward: x_hat as in LayerNorm, where a row holds all elements of one group of one sample; then
    y = gamma x_hat + beta, with one gamma and beta per channel.
    Backward: dx as in LayerNorm, on the same rows of g = gamma dy.

    Source: Wu and He 2018, "Group normalization", arXiv:1803.08494, eq. 7.
    """

    time_steps = "joined"
    _mask_remedy = "use LayerNorm or RMSNorm, which normalise each step separately"

    steps = derived.group_norm

    def __init__(self, groups: int, eps: float = 1e-5) -> None:
        self.groups = check_count(groups, "GroupNorm groups")
        self.eps = check_number(eps, "GroupNorm eps (a constant group has var = 0)", above=0)

    def create(self, shape: Shape) -> Shape:
        if shape[-1] % self._count(shape[-1]):
            raise ShapeError(
                f"{self!r}: {shape[-1]} channels are not divisible by {self.groups} groups."
            )
        self._check_groups(shape)
        return super().create(shape)

    def forward(self, X: Array) -> Array:
        self._check_features(X.shape, self.gamma.size)
        if X.size == 0:
            raise ShapeError(f"{self!r} needs at least one element, got shape {X.shape}.")
        self._check_groups(X.shape[1:])
        rows = self._to_rows(X)
        rows_hat = self.buffer("X_hat", rows.shape, X.dtype)
        r = self.buffer("r", (len(rows), 1), X.dtype)
        normalise(rows, self.eps, rows_hat, r)
        X_hat = self._from_rows(rows_hat, X.shape)
        self.save_for_backward(X_hat=X_hat, rows_hat=rows_hat, r=r)
        return self._scale_and_shift(X_hat)

    def backward(self, dY: Array) -> Array:
        X_hat, rows_hat, r = self.saved("X_hat", "rows_hat", "r")
        self._gradients(dY, X_hat)
        g = np.multiply(dY, self.gamma, out=self.buffer("dX", dY.shape, dY.dtype))
        rows = self._to_rows(g)
        normalise_back(rows, rows_hat, r, self.buffer("scratch", rows.shape, rows.dtype))
        return self._from_rows(rows, dY.shape)

    def _to_rows(self, X: Array) -> Array:
        """Return X (N, *sizes, C) as rows (N groups, elements of a group)."""
        groups = self._count(X.shape[-1])
        split = X.reshape(len(X), -1, groups, X.shape[-1] // groups)
        return split.transpose(0, 2, 1, 3).reshape(len(X) * groups, -1)

    def _from_rows(self, rows: Array, shape: Shape) -> Array:
        """Return rows as (N, *sizes, C), the inverse of `_to_rows`."""
        groups = self._count(shape[-1])
        split = rows.reshape(shape[0], groups, -1, shape[-1] // groups)
        return split.transpose(0, 2, 1, 3).reshape(shape)

    def _count(self, channels: int) -> int:
        """Return the number of groups."""
        return self.groups

    def _check_groups(self, shape: Shape) -> None:
        """Refuse samples whose groups hold a single element."""
        if math.prod(shape) <= self._count(shape[-1]):
            raise ShapeError(
                f"{self!r} needs several elements in each group, got samples of shape {shape}: "
                "a single element would always become 0."
            )


class InstanceNorm(GroupNorm):
    """GroupNorm with one channel per group: normalise each channel over the positions of a sample.

    Shapes: X, Y, dX, dY are (N, *sizes, C); gamma and beta are (C,).
    Source: Ulyanov, Vedaldi and Lempitsky 2016, "Instance normalization", arXiv:1607.08022.
    """

    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__(1, eps)

    def _count(self, channels: int) -> int:
        return channels


class RMSNorm(_Scale):
    """Divide each row by its root mean square, then scale it.

    Shapes: X, Y, dX, dY are (..., D); gamma is (D,). Units as in LayerNorm.

    Forward, for one row: r = (mean(x^2) + eps)^(-1/2), x_hat = x r, y = gamma x_hat.

    Backward. dr/dx_i = -r^2 x_hat_i / D, and nothing was centred, so with g = gamma dy

        dx = r (g - x_hat mean(g x_hat))        dgamma = sum_rows(dy x_hat)

    A check by eye: for eps -> 0, dx is orthogonal to x (rescaling x does not change y).
    Source: Zhang and Sennrich 2019, "Root mean square layer normalization", arXiv:1910.07467.
    """

    steps = derived.rms_norm

    def __init__(self, eps: float = 1e-5) -> None:
        self.eps = check_number(eps, "RMSNorm eps (a row of zeros has mean square 0)", above=0)

    def forward(self, X: Array) -> Array:
        self._check_features(X.shape, self.gamma.size)
        mean_square = np.einsum("...d,...d->...", X, X)[..., None] / X.shape[-1]
        r = 1 / np.sqrt(mean_square + self.eps)
        X_hat = np.multiply(X, r, out=self.buffer("X_hat", X.shape, X.dtype))
        if overflowed(r):
            bad = ~(r[..., 0] > 0)
            X_hat[bad], r[bad] = scaled(X[bad], self.eps, centre=False)[:2]
        self.save_for_backward(X_hat=X_hat, r=r)
        return np.multiply(X_hat, self.gamma, out=self.buffer("Y", X.shape, X.dtype))

    def backward(self, dY: Array) -> Array:
        X_hat, r = self.saved("X_hat", "r")
        self._gradients(dY, X_hat)
        g = np.multiply(dY, self.gamma, out=self.buffer("dX", dY.shape, dY.dtype))
        mean = np.einsum("...d,...d->...", g, X_hat)[..., None] / g.shape[-1]
        g -= np.multiply(X_hat, mean, out=self.buffer("product", g.shape, g.dtype))
        g *= r
        return g


class BatchNorm(_ScaleAndShift):
    """Normalise each feature over the batch in training, and with running statistics otherwise.

    Shapes: X, Y, dX, dY are (N, ..., D); gamma, beta and the state running_mean, running_var
    are (D,). All axes except the last are merged into rows; n is the number of rows.
    Units as in LayerNorm.

    Forward in training, for one feature x of n rows:

        mu = mean(x)    var = mean((x - mu)^2)    r = (var + eps)^(-1/2)
        x_hat = (x - mu) r                        y = gamma x_hat + beta
        running_mean += momentum (mu - running_mean)
        running_var  += momentum (var n / (n - 1) - running_var)

    A single row has no variance: y = beta, and the running statistics stay unchanged.
    With a mask, only the steps that it keeps count as rows; at the others, y and dx are 0.
    At inference, or if the layer is frozen, mu and var are the running statistics, which are
    constants.

    A variance too large for the dtype enters running_var as half of the dtype's maximum.

    If several processes share a batch (`phitodeep.distributed`), sync=True takes the means over the
    rows of all of them; n is their number. Otherwise each process normalises its own rows.

    Backward. dgamma and dbeta are as in LayerNorm. So is dx, but the means are over the rows, and
    gamma is a single factor:

        training     dx = gamma r (dy - mean(dy) - x_hat mean(dy x_hat))
        otherwise    dx = gamma r dy

    A check by eye: in training, dx sums to zero over the rows.

    Source: Ioffe and Szegedy 2015, "Batch Normalization", arXiv:1502.03167, algorithm 1.
    """

    @property
    def independent_samples(self) -> bool:  # type: ignore[override]
        call = current()
        return call.part.joins or not (self.trainable and call.training)

    running_mean = State()
    running_var = State()

    steps = derived.batch_norm

    def __init__(self, momentum: float = 0.1, eps: float = 1e-5, *, sync: bool = False) -> None:
        self.sync = check_flag(sync, "BatchNorm sync")
        self.momentum = check_number(momentum, "BatchNorm momentum", minimum=0, below=1 + 1e-12)
        self.eps = check_number(eps, "BatchNorm eps (a constant feature has var = 0)", above=0)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        if not self.sync:
            del config["sync"]  # files of versions without it are the same
        return config

    def create(self, shape: Shape) -> Shape:
        self.running_mean = self.full(shape[-1], 0)
        self.running_var = self.full(shape[-1], 1)
        return super().create(shape)

    def forward(self, X: Array) -> Array:
        self._check_features(X.shape, self.gamma.size)
        call = current()
        batch = call.training and self.trainable
        mask = None if call.mask is None else self.check_steps(X)
        if mask is not None:
            X = X[mask]
        rows = X.reshape(-1, self.gamma.size)
        X_hat, Y = (self.buffer(name, rows.shape, X.dtype) for name in ("X_hat", "Y"))
        if batch:
            r = self._normalise_batch(rows, X_hat, Y)
        else:
            r = 1 / np.sqrt(self.running_var + self.eps)
            normalise_columns(rows, self.running_mean, r, self.gamma, self.beta, X_hat, Y)
        self.save_for_backward(X_hat=X_hat, r=r, batch=batch, mask=mask)
        Y = Y.reshape(X.shape)
        return Y if mask is None else self._unmask("Y unmasked", Y, mask)

    @np.errstate(over="ignore", invalid="ignore")
    def _normalise_batch(self, X: Array, X_hat: Array, Y: Array) -> Array:
        """Write x_hat and y, and return r (D,); also update the running statistics."""
        part = current().part
        n, (total,) = self._over_all(X, sum_rows(X))
        mu = total / n
        squares = np.empty_like(mu)
        column_squares(X, mu, squares, Y)
        _, (total,) = self._over_all(X, squares)
        var = total / n
        r = 1 / np.sqrt(var + self.eps)
        bad = found = None
        if overflowed(r) and not (self.sync and current().ranks):
            bad = ~(r > 0)
            columns = part.gather(X[:, bad])
            found, *statistics = scaled(np.concatenate(columns), self.eps, axis=0)
            found = found[sum(map(len, columns[: part.index])) :][: len(X)]
            r[bad], mu[bad], var[bad] = (a[0] for a in statistics)
        normalise_columns(X, mu, r, self.gamma, self.beta, X_hat, Y)
        if found is not None:
            X_hat[:, bad], Y[:, bad] = found, found * self.gamma[bad] + self.beta[bad]
        if n > 1 and not current().again and not part.index:
            self.running_mean += self.momentum * (mu - self.running_mean)
            self.running_var += self.momentum * (var * (n / (n - 1)) - self.running_var)
        return r

    def _over_all(self, X: Array, *sums: Array) -> tuple[int, Sequence[Array]]:
        """Return the number of rows of X and these sums over them (D,), or of all parts and ranks.

        Sums are added in the order of the parts. The first part speaks for all with other ranks.
        """
        n, part, ranks = X.size // X.shape[-1], current().part, current().ranks
        if not (self.sync and ranks) and not part.joins:
            return max(1, n), sums
        both = np.sum(part.gather(np.concatenate([[n], *sums], dtype=np.float64)), axis=0)
        if self.sync and ranks is not None:
            both = part.gather(both if part.index else ranks.sum(both))[0]
        return max(1, int(both[0])), np.split(both[1:].astype(X.dtype), len(sums))

    def backward(self, dY: Array) -> Array:
        X_hat, r, batch, mask = self.saved("X_hat", "r", "batch", "mask")
        dY = dY if mask is None else dY[mask]
        rows = dY.reshape(X_hat.shape)
        dX = self.buffer("dX", rows.shape, dY.dtype)
        if batch or self.needs_grad("gamma", "beta"):
            dgamma, dbeta = self.grad_array("gamma"), self.grad_array("beta")
            column_gradients(rows, X_hat, dgamma, dbeta, dX)
        if batch:
            n, (a, b) = self._over_all(rows, dgamma, dbeta)
            normalise_columns_back(rows, X_hat, a / n, b / n, self.gamma * r, dX)
            ranks = current().ranks
            if self.sync and ranks is not None and not ranks.counts:  # the rows are placeholders
                dX.fill(0)
        else:
            np.multiply(rows, self.gamma * r, out=dX)
        dX = dX.reshape(dY.shape)
        return dX if mask is None else self._unmask("dX unmasked", dX, mask)

    def _unmask(self, name: str, rows: Array, mask: Array) -> Array:
        """Return an array with the rows at the steps that the mask keeps, and 0 at the others."""
        A = self.buffer(name, (*mask.shape, *rows.shape[1:]), rows.dtype)
        A.fill(0)
        A[mask] = rows
        return A


@kernel
def column_squares(X: Array, mu: Array, squares: Array, s: Array) -> None:
    """Write the sum of (x - mu)^2 over the rows of X (n, D) into squares (D,); s is scratch."""
    np.square(np.subtract(X, mu, out=s), out=s)
    sum_rows(s, out=squares)


@kernel
def normalise_columns(
    X: Array, mu: Array, r: Array, gamma: Array, beta: Array, X_hat: Array, Y: Array
) -> None:
    """Write x_hat = (x - mu) r and y = gamma x_hat + beta for X (n, D); mu and r are (D,)."""
    np.subtract(X, mu, out=X_hat)
    X_hat *= r
    np.multiply(X_hat, gamma, out=Y)
    Y += beta


@kernel
def column_gradients(dY: Array, X_hat: Array, dgamma: Array, dbeta: Array, s: Array) -> None:
    """Write dgamma = sum_rows(dy x_hat) and dbeta = sum_rows(dy); s is scratch of dY's shape."""
    sum_rows(np.multiply(dY, X_hat, out=s), out=dgamma)
    sum_rows(dY, out=dbeta)


@kernel
def normalise_columns_back(
    dY: Array, X_hat: Array, a: Array, b: Array, scale: Array, dX: Array
) -> None:
    """Write dx = scale (dy - x_hat a - b) for dY (n, D); a, b and scale are (D,)."""
    np.multiply(X_hat, a, out=dX)
    np.subtract(dY, dX, out=dX)
    dX -= b
    dX *= scale


# --- rows whose sums or squares overflow --------------------------------------------------------


def overflowed(r: Array) -> bool:
    """Whether a sum or square overflowed in the computation of r: an element is then 0 or NaN."""
    return not np.minimum.reduce(r, axis=None, initial=np.inf) > 0


@np.errstate(over="ignore", invalid="ignore")
def scaled(
    X: Array, eps: float, axis: int = -1, centre: bool = True
) -> tuple[Array, Array, Array, Array]:
    """Return x_hat, r, mean and var along `axis`, without overflow in sums or squares.

    With m the maximum of |x|, z = x / m (minus its mean), s = mean(z^2)^(1/2) and e = eps^(1/2),

        x_hat = z / hypot(s, e / m)        r = 1 / hypot(m s, e)        var = (m s)^2

    Only var can still overflow: it is clipped to half of the dtype's maximum.
    """
    limits, e = np.finfo(X.dtype), math.sqrt(eps)
    m = np.abs(X).max(axis=axis, keepdims=True)
    Z = X / m
    mean = Z.mean(axis=axis, keepdims=True) if centre else np.zeros_like(m)
    Z -= mean
    s = np.sqrt(np.square(Z).mean(axis=axis, keepdims=True))
    X_hat = Z / np.maximum(np.hypot(s, e / m), limits.tiny)
    var = np.minimum(np.square(m * s), limits.max / 2)
    return X_hat, 1 / np.hypot(m * s, e), m * mean, var
