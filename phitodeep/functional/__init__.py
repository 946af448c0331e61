"""Stateless mathematics: plain functions of arrays that layers and losses share.

Functions of arrays keep the dtype of float32 and float64 input. Sigmoids, softmax and their
logarithms do not overflow, because they only apply exp to values that are zero or negative.

Activations have derivatives, such as `relu_slope` for `relu`. They compute other input in float64.
Where a slope takes `Y`, that is the value of the function, for callers who
have it already. The layers of `phitodeep.layers.activation` run the same code.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from phitodeep.core.checks import check_option
from phitodeep.core.types import Array, DType
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError
from phitodeep.kernels import activation as kernels
from phitodeep.kernels import kernel
from phitodeep.kernels.constants import ones as ones
from phitodeep.kernels.constants import zeros as zeros
from phitodeep.kernels.elementwise import erf as erf
from phitodeep.kernels.elementwise import exp_minus_line as exp_minus_line
from phitodeep.kernels.elementwise import floats
from phitodeep.kernels.elementwise import gaussian as gaussian
from phitodeep.kernels.elementwise import log_sigmoid as log_sigmoid
from phitodeep.kernels.elementwise import sigmoid as sigmoid
from phitodeep.kernels.elementwise import softplus as softplus


def logsumexp(X: Array, axis: int = -1, keepdims: bool = False) -> Array:
    """log(sum(exp(x))) along `axis`; -inf if all entries are -inf."""
    top = X.max(axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    with np.errstate(divide="ignore", over="ignore"):
        Y = np.log(np.exp(X - top).sum(axis=axis, keepdims=True)) + top
    return Y if keepdims else Y.squeeze(axis)


def softmax(X: Array, axis: int = -1, out: Array | None = None) -> Array:
    """exp(x) / sum(exp(x)) along `axis`: the results are positive and sum to one.

    If all x are -inf, all results are 0.
    """
    Y = np.empty_like(X) if out is None else out
    if axis in (-1, X.ndim - 1) and X.flags.c_contiguous and Y.flags.c_contiguous and X.size:
        softmax_rows(X.reshape(-1, X.shape[-1]), Y.reshape(-1, X.shape[-1]))
    else:
        _softmax(X, axis, Y)
    return Y


@np.errstate(over="ignore", invalid="ignore")  # x - max(x) may overflow to -inf, whose exp is 0
def _softmax(X: Array, axis: int, Y: Array) -> None:
    lowest = np.finfo(X.dtype).min  # keeps the maximum finite, so that a row of -inf stays -inf
    np.subtract(X, X.max(axis=axis, keepdims=True, initial=lowest), out=Y)
    np.exp(Y, out=Y)
    Y /= np.maximum(_sum(Y, axis), 1)  # exp(0) is in the sum, or the sum is 0


@kernel
def softmax_rows(X: Array, Y: Array) -> None:
    """Write the softmax of each row of X (n, K) into Y, which may be X."""
    _softmax(X, -1, Y)


@kernel
def softmax_rows_back(dY: Array, Y: Array) -> None:
    """dY <- y (dy - sum(dy y)) for each row of dY (n, K)."""
    dY -= np.einsum("nk,nk->n", dY, Y)[:, None]
    dY *= Y


@np.errstate(over="ignore", invalid="ignore")
def log_softmax(X: Array, axis: int = -1) -> Array:
    """log(softmax(x)) along `axis`, finite even if the softmax itself rounds to 0.

    With z = x - max(x), the result is z - log(1 + r), where r is the sum of all exp(z) except the
    largest. The largest is exp(0) = 1: if it were part of the sum, a small r would be rounded away.
    """
    top = X.argmax(axis=axis, keepdims=True)
    Y = X - np.take_along_axis(X, top, axis)
    E = np.exp(Y)
    np.put_along_axis(E, top, 0, axis)
    Y -= np.log1p(_sum(E, axis))
    return Y


def _sum(X: Array, axis: int) -> Array:
    """The sum along `axis`, kept as an axis of size 1; for the last axis, a product with ones."""
    if axis in (-1, X.ndim - 1) and X.ndim > 1:
        return np.matmul(X, ones(X.shape[-1], X.dtype)[:, None])
    return X.sum(axis=axis, keepdims=True)


@kernel
def product(A: Array, B: Array, out: Array) -> Array:
    """Write A B into `out` and return it, with A (m, k) and B (k, n); A may be a transpose."""
    return A.dot(B, out)


def sum_rows(X: Array, out: Array | None = None) -> Array:
    """The sum over all axes except the last, (..., D) -> (D,)."""
    rows = X
    if X.ndim != 2:
        rows = X.reshape(-1, X.shape[-1]) if X.size else X.reshape(0, X.shape[-1])
    return ones(len(rows), X.dtype).dot(rows, out=out)


def all_finite(X: Array) -> bool:
    """Whether the sum of squares of X (contiguous) is finite; if so, every element is finite."""
    return math.isfinite(np.vdot(X, X))


def one_hot(labels: Any, classes: int, dtype: DType = np.float32) -> Array:
    """Turn integer labels (...,) into rows (..., classes) with a single 1 each."""
    labels = check_labels(labels, classes)
    Y = np.zeros((*labels.shape, classes), dtype)
    np.put_along_axis(Y, labels[..., None], 1, axis=-1)
    return Y


def check_labels(
    labels: Any, classes: int, ignore_index: int | None = None, name: str = "y"
) -> Array:
    """Return labels as int64; refuse any outside 0 to classes - 1 except `ignore_index`."""
    labels = np.asarray(labels)
    if labels.dtype.kind not in "iu":
        raise ArgumentTypeError(
            f"class labels must be integers, got dtype {labels.dtype}: use {name}.astype(int)."
        )
    bad = (labels < 0) | (labels >= classes)
    if ignore_index is not None:
        bad &= labels != ignore_index
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        index = ", ".join(map(str, where))
        raise ArgumentError(
            f"class labels must be from 0 to {classes - 1} for {classes} classes, "
            f"got {labels[where]} at {name}[{index}]."
        )
    return labels.astype(np.int64, copy=False)


def cross_entropy(
    logits: Array, targets: Array, weights: Array | None = None, total: float | None = None
) -> float:
    """Cross-entropy: -sum_i w_i sum_k t_ik log softmax(logits_i)_k / total.

    `logits` are (..., K). `targets` are labels (...,), which stand for their one-hot rows, or
    rows (..., K), which need not sum to one. `weights` are (...,) and default to 1. `total`
    defaults to the sum of all w_i t_ik.
    """
    return nll(log_softmax(logits), *_rows(logits, targets, weights), total)


def cross_entropy_gradient(
    logits: Array, targets: Array, weights: Array | None = None, total: float | None = None
) -> Array:
    """Return the gradient of `cross_entropy` with respect to the logits.

    It is w_i (p_ik sum_j t_ij - t_ik) / total, with p = softmax(logits).
    """
    return cross_entropy_and_gradient(logits, targets, weights, total)[1]


def cross_entropy_and_gradient(
    logits: Array,
    targets: Array,
    weights: Array | None = None,
    total: float | None = None,
    out: Array | None = None,
) -> tuple[float, Array]:
    """Return `cross_entropy` and its gradient, written to `out` if given; exp is computed once.

    With z the logits minus their maximum and s = sum(exp(z)), the loss of row i is
    log(s) sum_k t_k - sum_k t_k z_k, and p = exp(z) / s. A logit of -inf adds nothing to the loss
    if its target is 0, and makes the loss infinite otherwise. s = 1 + r, where r is the sum of all
    exp(z) except the largest, so log(s) = log1p(r), which is accurate even if s rounds to 1.
    A row of weight 0 has loss 0 and gradient 0, whatever its logits.
    """
    targets, weights = _rows(logits, targets, weights)
    if total is None:
        total = target_weight(targets, weights)
    scale = 1 / total if total else 0.0
    if targets.ndim < logits.ndim and logits.flags.c_contiguous and logits.size:
        dZ, K = np.empty_like(logits) if out is None else out, logits.shape[-1]
        w = None if weights is None else weights.ravel()
        rows = logits.reshape(-1, K), dZ.reshape(-1, K)
        return cross_entropy_of_labels(*rows, targets.ravel(), w, scale), dZ
    if targets.ndim < logits.ndim:
        targets = one_hot(targets, logits.shape[-1], logits.dtype)
    Z = np.empty(logits.shape, logits.dtype) if out is None else out
    flat, top = Z.reshape(-1), logits.argmax(axis=-1).ravel()
    top += np.arange(0, Z.size, Z.shape[-1])
    with np.errstate(invalid="ignore"):
        np.subtract(logits, logits.max(axis=-1, keepdims=True), out=Z)
    target_score, mass = _target_score(targets, Z), targets.sum(-1)
    P = np.exp(Z, out=Z)
    flat[top] = 0
    r = _sum(P, -1)
    flat[top] = 1
    losses = np.log1p(r[..., 0]) * mass - target_score
    factor = scale / (1 + r)
    if weights is not None:
        losses = _weighted(losses, weights)
        factor *= weights[..., None]
    P *= mass[..., None]  # (p mass - t) s, in an order that is exactly -r if t = p = 1
    P -= targets
    P -= targets * r
    P *= factor
    if weights is not None:
        P[weights == 0] = 0
    return float(losses.sum()) * scale, P


@kernel
def cross_entropy_of_labels(
    Z: Array, dZ: Array, labels: Array, weights: Array | None, scale: float
) -> float:
    """Return the loss of logits Z (n, K) and labels (n,), and write its gradient into dZ.

    See `cross_entropy_and_gradient`; here s is the label's exp(z) plus the sum of the others.
    """
    with np.errstate(invalid="ignore"):
        np.subtract(Z, Z.max(axis=-1, keepdims=True), out=dZ)
    flat, at = dZ.reshape(-1), np.arange(0, Z.size, Z.shape[-1]) + labels
    target_score = flat.take(at)
    np.exp(dZ, out=dZ)
    target_exp = flat.take(at)  # 1 if the label's logit is the largest
    flat[at] = 0
    others = _sum(dZ, -1)[:, 0]
    losses = np.log1p(target_exp - 1 + others) - target_score
    factor = scale / (target_exp + others)
    if weights is not None:
        losses = _weighted(losses, weights)
        factor *= weights
    dZ *= factor[:, None]
    flat[at] = -others * factor  # p - 1 is -others / s
    if weights is not None:
        dZ[weights == 0] = 0
    return float(losses.sum()) * scale


def nll(
    log_p: Array, targets: Array, weights: Array | None = None, total: float | None = None
) -> float:
    """Negative log-likelihood: -sum_i w_i sum_k t_ik log_p_ik / total.

    Shapes and `total` are as in `cross_entropy`.
    """
    if targets.ndim < log_p.ndim:
        scores = np.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0]
    else:
        scores = _target_score(targets, log_p)
    if weights is not None:
        scores = _weighted(scores, weights)
    if total is None:
        total = target_weight(targets, weights)
    return -float(scores.sum()) / total if total else 0.0


def _target_score(targets: Array, X: Array) -> Array:
    """sum_k t_k x_k, with 0 times infinity counted as 0."""
    return np.einsum("...k,...k->...", targets, np.where(targets != 0, X, 0))


def _weighted(losses: Array, weights: Array) -> Array:
    """w_i l_i, which is 0 if the weight is 0, even if l_i is infinite."""
    return np.where(weights != 0, losses, 0) * weights


def target_weight(targets: Array, weights: Array | None) -> float:
    """The sum of all w_i t_ik, by which a cross-entropy is divided."""
    if targets.dtype.kind in "iu":
        return float(targets.size if weights is None else weights.sum(dtype=np.float64))
    mass = targets.sum(axis=-1, dtype=np.float64)
    return float((mass if weights is None else mass * weights).sum())


def _rows(logits: Array, targets: Array, weights: Array | None) -> tuple[Array, Array | None]:
    """Check targets and weights against the logits, and convert both to arrays."""
    targets = np.asarray(targets)
    if targets.shape not in (logits.shape[:-1], logits.shape):
        raise ShapeError(
            f"cross-entropy expects labels of shape {logits.shape[:-1]} or rows of shape "
            f"{logits.shape}, got {targets.shape}."
        )
    if targets.shape == logits.shape:
        targets = targets.astype(logits.dtype, copy=False)
    if weights is not None:
        weights = np.broadcast_to(weights, logits.shape[:-1]).astype(logits.dtype)
    return targets, weights


def maximum_mean_discrepancy(X: Array, Y: Array, bandwidth: float | None = None) -> float:
    """Estimate the squared distance between the distributions that X and Y were drawn from.

    Shapes: X (m, ...), Y (n, ...), at least two samples each. With k(a, b) the mean of a
    Gaussian kernel, exp(-|a - b|^2 / (2 bandwidth^2)), over pairs of different samples:

        k(x, x') + k(y, y') - 2 k(x, y)

    Its expected value is 0 if the distributions are equal, and positive otherwise. The estimate
    is unbiased, so a single value may be negative. `bandwidth` defaults to the median distance
    between any two samples.
    Source: Gretton et al. 2012, "A kernel two-sample test", JMLR 13, eq. 3 and sec. 8.
    """
    X, Y = (np.reshape(A, (len(A), -1)).astype(np.float64) for A in (X, Y))
    m, n = len(X), len(Y)
    if X.shape[1:] != Y.shape[1:] or min(m, n) < 2:
        raise ShapeError(
            f"maximum_mean_discrepancy requires at least two samples each of X and Y, all of the "
            f"same size, got shapes {X.shape} and {Y.shape}."
        )
    A = np.concatenate([X, Y])
    A -= A.mean(axis=0)  # the distances stay the same, with less rounding
    lengths = np.einsum("ij,ij->i", A, A)
    D = np.maximum(lengths[:, None] + lengths - 2 * A @ A.T, 0)  # squared distances
    if bandwidth is None:
        bandwidth = float(np.median(np.sqrt(D[np.triu_indices(m + n, 1)])))
    if not bandwidth > 0:
        raise ArgumentError(
            f"maximum_mean_discrepancy requires a bandwidth > 0, got {bandwidth}: by default it is "
            "the median distance, which is 0 if most samples are equal."
        )
    np.fill_diagonal(K := np.exp(D / (-2 * bandwidth**2)), 0)
    within_X, within_Y = K[:m, :m].sum() / (m * (m - 1)), K[m:, m:].sum() / (n * (n - 1))
    return float(within_X + within_Y - 2 * K[:m, m:].mean())


def position_angles(start: int, T: int, pairs: int, step: float, base: float = 10000.0) -> Array:
    """Return the angles t base^(-i step) of shape (T, pairs), in float64."""
    frequencies = np.exp(-math.log(base) * step * np.arange(pairs))
    return np.arange(start, start + T)[:, None] * frequencies


# --- activations -------------------------------------------------------------------------------

Approximation = Literal["none", "tanh"]


def relu(X: Array) -> Array:
    """max(x, 0), elementwise."""
    X, Y = _pair(X)
    kernels.relu(X.ravel(), Y.ravel())
    return Y


def relu_slope(X: Array) -> Array:
    """1 for x > 0, else 0."""
    Y = relu(X)
    S = np.empty_like(Y)
    kernels.relu_back(np.ones_like(Y).ravel(), Y.ravel(), S.ravel())
    return S


def leaky_relu(X: Array, alpha: float = 0.01, out: Array | None = None) -> Array:
    """x for x > 0, else alpha x, elementwise; `out` may be X."""
    X = floats(X)
    S = leaky_relu_slope(X, alpha, _unshared(out, X))
    return np.multiply(X, S, out=S if out is None else out)


def leaky_relu_slope(X: Array, alpha: float = 0.01, out: Array | None = None) -> Array:
    """1 for x > 0, else alpha; `out` may be X."""
    X = floats(X)
    S = np.greater(X, 0, out=_out(X, out))
    S *= 1 - alpha
    S += alpha
    return S


def elu(X: Array, alpha: float = 1.0) -> Array:
    """x for x > 0, else alpha (exp(x) - 1), elementwise."""
    X = floats(X)
    return np.where(X > 0, X, float(alpha) * np.expm1(np.minimum(X, 0)))


def elu_slope(X: Array, alpha: float = 1.0, Y: Array | None = None) -> Array:
    """1 for x > 0, else alpha exp(x) = y + alpha."""
    X = floats(X)
    return np.where(X > 0, 1, (elu(X, alpha) if Y is None else Y) + float(alpha))


def gelu(X: Array, approximate: Approximation = "none") -> Array:
    """x Phi(x), with Phi the standard normal distribution function, or its tanh approximation."""
    return _gelu(X, approximate)[2]


def gelu_slope(X: Array, approximate: Approximation = "none") -> Array:
    """Phi(x) + x phi(x), with phi the density; or the derivative of the tanh approximation."""
    X, Phi, _ = _gelu(X, approximate)
    S, one = np.empty_like(X), np.ones_like(X)
    run = kernels.gelu_tanh_back if approximate == "tanh" else kernels.gelu_back
    run(one.ravel(), X.ravel(), Phi.ravel(), S.ravel())
    return S


def _gelu(X: Array, approximate: Approximation) -> tuple[Array, Array, Array]:
    """Return x, Phi and x Phi."""
    check_option(approximate, "gelu approximate", ("none", "tanh"))
    X, Y = _pair(X)
    Phi = np.empty_like(X)
    run = kernels.gelu_tanh if approximate == "tanh" else kernels.gelu
    run(X.ravel(), Phi.ravel(), Y.ravel())
    return X, Phi, Y


def silu(X: Array) -> Array:
    """x sigmoid(x), elementwise; also known as Swish."""
    X = floats(X)
    return X * sigmoid(X)


def silu_slope(X: Array, Y: Array | None = None) -> Array:
    """s + y (1 - s), with s = sigmoid(x) and y = x s."""
    s = sigmoid(X)
    return s + (silu(X) if Y is None else Y) * (1 - s)


def mish(X: Array) -> Array:
    """x tanh(softplus(x)), elementwise."""
    X = floats(X)
    return X * np.tanh(softplus(X))


def mish_slope(X: Array) -> Array:
    """t + x (1 - t^2) sigmoid(x), with t = tanh(softplus(x))."""
    X = floats(X)
    t = np.tanh(softplus(X))
    return t + X * (1 - t * t) * sigmoid(X)


def tanh(X: Array, out: Array | None = None) -> Array:
    """tanh(x), elementwise; `out` may be X."""
    X = floats(X)
    return np.tanh(X, out=_out(X, out))


def tanh_slope(X: Array, Y: Array | None = None, out: Array | None = None) -> Array:
    """1 - tanh(x)^2, elementwise; `out` may be X or Y."""
    Y = tanh(X) if Y is None else Y
    S = np.multiply(Y, Y, out=_out(Y, out))
    return np.subtract(1, S, out=S)


def sigmoid_slope(X: Array, Y: Array | None = None, out: Array | None = None) -> Array:
    """y (1 - y), with y = sigmoid(x); `out` may be X or Y."""
    Y = sigmoid(X) if Y is None else Y
    S = np.subtract(1, Y, out=_out(Y, _unshared(out, Y)))
    return np.multiply(S, Y, out=S if out is None else out)


def softplus_slope(X: Array) -> Array:
    """sigmoid(x), the derivative of log(1 + exp(x))."""
    return sigmoid(X)


def softsign(X: Array) -> Array:
    """x / (1 + |x|), elementwise."""
    X = floats(X)
    return np.divide(X, 1 + np.abs(X), out=_out(X, None))


def softsign_slope(X: Array) -> Array:
    """1 / (1 + |x|)^2, elementwise."""
    X = floats(X)
    return np.square(1 / (1 + np.abs(X)), out=_out(X, None))


def _pair(X: Array) -> tuple[Array, Array]:
    """X in the order of C, and an uninitialised array like it."""
    X = np.array(floats(X), order="C", copy=None)
    return X, np.empty_like(X)


def _out(X: Array, out: Array | None) -> Array:
    return np.empty_like(X, order="C") if out is None else out


def _unshared(out: Array | None, X: Array) -> Array | None:
    """`out`, or None if writing into it might change X."""
    return None if out is None or np.may_share_memory(out, X) else out
