"""The prediction of every layer as a plain NumPy function, which exported files contain.

`Sequential.export_numpy` copies the source of the functions that a model uses, so each of them is
written for its readers: it uses NumPy, Python's own modules and other functions of this kind, and
it is the shortest form of the mathematics that is not slow. A function is named like its layer, or
`exchange/correspondence.py` names it there. The layers compute the same with less memory and with
their derivatives.

Shapes: X is (N, ...), with the samples on the first axis. No function writes into X.
Long because a reader of exported files finds all of their functions in one place.
"""

from __future__ import annotations

import argparse
import math
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phitodeep.core.types import Array
from phitodeep.functional import erf

# --- activations ----------------------------------------------------------------------------------


def relu(X: Array) -> Array:
    """max(x, 0), elementwise."""
    return np.maximum(X, 0)


def leaky_relu(X: Array, alpha: float | Array) -> Array:
    """x if x > 0, else alpha x; alpha is a number, or one number for each feature (D,)."""
    return np.where(X > 0, X, alpha * X)


def elu(X: Array, alpha: float) -> Array:
    """x if x > 0, else alpha (exp(x) - 1)."""
    return np.where(X > 0, X, alpha * np.expm1(np.minimum(X, 0)))


def celu(X: Array, alpha: float) -> Array:
    """x if x > 0, else alpha (exp(x / alpha) - 1)."""
    return np.where(X > 0, X, alpha * np.expm1(np.minimum(X, 0) / alpha))


def selu(X: Array, alpha: float, scale: float) -> Array:
    """scale x if x > 0, else scale alpha (exp(x) - 1)."""
    return scale * np.where(X > 0, X, alpha * np.expm1(np.minimum(X, 0)))


def sigmoid(X: Array) -> Array:
    """1 / (1 + exp(-x)), written so that exp cannot overflow."""
    return np.exp(np.minimum(X, 0)) / (1 + np.exp(-np.abs(X)))


def softplus(X: Array) -> Array:
    """log(1 + exp(x)), written so that exp cannot overflow."""
    return np.maximum(X, 0) + np.log1p(np.exp(-np.abs(X)))


def silu(X: Array) -> Array:
    """x sigmoid(x)."""
    return X * sigmoid(X)


def mish(X: Array) -> Array:
    """x tanh(softplus(x))."""
    return X * np.tanh(softplus(X))


def hard_sigmoid(X: Array) -> Array:
    """x / 6 + 1 / 2, clipped to [0, 1]."""
    return np.clip(X / 6 + 0.5, 0, 1)


def hard_swish(X: Array) -> Array:
    """x hard_sigmoid(x)."""
    return X * hard_sigmoid(X)


def hard_tanh(X: Array) -> Array:
    """x, clipped to [-1, 1]."""
    return np.clip(X, -1, 1)


def softsign(X: Array) -> Array:
    """x / (1 + |x|)."""
    return X / (1 + np.abs(X))


def gelu(X: Array) -> Array:
    """x Phi(x), with Phi the normal distribution function, (1 + erf(x / sqrt 2)) / 2."""
    return X * (0.5 * (1 + erf(X * math.sqrt(0.5))))


def gelu_tanh(X: Array) -> Array:
    """The approximation of gelu that GPT-2 uses: x sigmoid(2 u), u = k (x + 0.044715 x^3)."""
    k, Z = math.sqrt(2 / math.pi), np.clip(X, -100, 100)  # farther out, the sigmoid is 0 or 1
    return X * sigmoid(2 * k * (Z + 0.044715 * Z**3))


def softmax(X: Array, axis: int = -1) -> Array:
    """exp(x) / sum(exp(x)) along `axis`; subtracting the maximum first changes nothing."""
    E = np.exp(X - X.max(axis=axis, keepdims=True))
    return E / E.sum(axis=axis, keepdims=True)


def log_softmax(X: Array, axis: int = -1) -> Array:
    """log(softmax(x)) along `axis`."""
    Z = X - X.max(axis=axis, keepdims=True)
    return Z - np.log(np.exp(Z).sum(axis=axis, keepdims=True))


# --- dense layers and embeddings ------------------------------------------------------------------


def dense(X: Array, W: Array, b: Array | None = None) -> Array:
    """X W + b on the last axis: X (..., in), W (in, out), b (out,)."""
    Y = X @ W
    return Y if b is None else Y + b


def tied_dense(X: Array, W: Array) -> Array:
    """X W^T, the score of each token: X (..., dim), and W (tokens, dim) of the embedding."""
    return X @ W.T


def low_rank(X: Array, A: Array, B: Array, rank: int, alpha: float) -> Array:
    """(alpha / rank) X A B on the last axis: X (..., in), A (in, rank), B (rank, out)."""
    return alpha / rank * (X @ A) @ B


def embedding(X: Array, W: Array) -> Array:
    """The row W[x] for each token x: X (N, ...) integers, W (tokens, dim) -> (N, ..., dim)."""
    if X.size and not 0 <= X.min() <= X.max() < len(W):
        wrong = X[(X < 0) | (X >= len(W))][0]
        raise ValueError(f"tokens must be from 0 to {len(W) - 1}, got {wrong}.")
    return W[X]


def positional_embedding(X: Array, W: Array) -> Array:
    """x_t + W[t]: X (N, T, D), W (max T, D)."""
    T = X.shape[1]
    if T > len(W):
        raise ValueError(f"the network takes at most {len(W)} steps, got {T}.")
    return X + W[:T]


def angles(T: int, pairs: int, step: float, base: float = 10000.0) -> Array:
    """t base^(-i step) for the positions t < T and the pairs i: (T, pairs), in float64."""
    return np.arange(T)[:, None] * np.exp(-math.log(base) * step * np.arange(pairs))


def sinusoidal_encoding(X: Array) -> Array:
    """X (N, T, D) plus sin(t w_i) at the features 2 i, and cos(t w_i) at the features 2 i + 1."""
    T, D = X.shape[1:]
    tw = angles(T, (D + 1) // 2, 2 / D)
    waves = np.stack([np.sin(tw), np.cos(tw)], axis=-1).reshape(T, -1)[:, :D]
    return X + waves.astype(X.dtype)


def rotary_embedding(
    X: Array,
    base: float = 10000.0,
    frequencies: tuple[float, ...] | None = None,
    amplitude: float = 1.0,
) -> Array:
    """Rotate each pair (x_i, x_{i + D/2}) of X (..., T, D) by an angle that grows with t."""
    T, D = X.shape[-2:]
    tw = angles(T, D // 2, 2 / D, base)
    if frequencies is not None:
        tw = np.arange(T)[:, None] * np.array(frequencies)
    cos, sin = (amplitude * np.cos(tw)).astype(X.dtype), (amplitude * np.sin(tw)).astype(X.dtype)
    x, y = np.split(X, 2, axis=-1)
    return np.concatenate([x * cos - y * sin, x * sin + y * cos], axis=-1)


# --- attention ------------------------------------------------------------------------------------


def by_head(A: Array, kv_heads: int, d: int) -> Array:
    """A (N, T, heads d) as (N, k, heads per group, T, d): k heads of keys, each for a group."""
    return A.reshape(*A.shape[:2], kv_heads, -1, d).transpose(0, 2, 3, 1, 4)


def split_heads(QKV: Array, heads: int, kv_heads: int | None) -> list[Array]:
    """Queries, keys and values, each as in `by_head`: QKV (N, T, (heads + 2 k) d).

    QKV holds all queries, then all keys, then all values, head by head. There are k heads of keys
    and values, and each serves a group of query heads; k is `heads` by default.
    """
    k = kv_heads or heads
    d = QKV.shape[-1] // (heads + 2 * k)
    parts = np.split(QKV, [heads * d, (heads + k) * d], axis=-1)
    return [by_head(A, k, d) for A in parts]


def attend(Q: Array, K: Array, V: Array, causal: bool = False) -> Array:
    """softmax(Q K^T / sqrt(d)) V for each head, side by side: (N, T, D).

    Causal: position t attends to positions up to t only.
    """
    S = Q @ K.swapaxes(-1, -2) / math.sqrt(Q.shape[-1])  # scores of all keys, for each query
    if causal:
        S = np.where(np.tri(S.shape[-1], dtype=bool), S, -np.inf)
    Z = (softmax(S) @ V).transpose(0, 3, 1, 2, 4)
    return Z.reshape(*Z.shape[:2], -1)


def dot_product_attention(
    QKV: Array, *, heads: int, kv_heads: int | None = None, causal: bool = False
) -> Array:
    """The attention of all heads: QKV (N, T, (heads + 2 k) d) -> (N, T, heads d)."""
    Q, K, V = split_heads(QKV, heads, kv_heads)
    return attend(Q, K, V, causal)


def rotary_dot_product_attention(
    QKV: Array,
    *,
    heads: int,
    kv_heads: int | None = None,
    causal: bool = False,
    base: float = 10000.0,
    frequencies: tuple[float, ...] | None = None,
    amplitude: float = 1.0,
) -> Array:
    """The same, where queries and keys are rotated by angles that depend on their positions."""
    Q, K, V = split_heads(QKV, heads, kv_heads)
    Q, K = (rotary_embedding(A, base, frequencies, amplitude) for A in (Q, K))
    return attend(Q, K, V, causal)


def cross_attention(
    X1: Array,
    X2: Array,
    Wq: Array,
    Wkv: Array,
    Wo: Array,
    bq: Array | None = None,
    bkv: Array | None = None,
    bo: Array | None = None,
    *,
    heads: int,
    kv_heads: int | None = None,
) -> Array:
    """Attention with the queries of X1 (N, T, D), and the keys and values of X2 (N, S, E)."""
    k, d = kv_heads or heads, len(Wo) // heads
    K, V = (by_head(A, k, d) for A in np.split(dense(X2, Wkv, bkv), 2, axis=-1))
    return dense(attend(by_head(dense(X1, Wq, bq), k, d), K, V), Wo, bo)


# --- recurrent layers -----------------------------------------------------------------------------
# They begin with the states that are given after X, or with 0, and return all h (N, T, H) and the
# states after the last step (N, H). X is (N, T, D).


def rnn(X: Array, *start: Array, Wx: Array, Wh: Array, b: Array) -> list[Array]:
    """h_t = tanh(x_t Wx + h_{t-1} Wh + b)."""
    (h,), Y = start or np.zeros((1, len(X), len(Wh)), X.dtype), []
    for A in (X @ Wx + b).swapaxes(0, 1):  # step by step
        h = np.tanh(A + h @ Wh)
        Y.append(h)
    return [np.stack(Y, axis=1), h]


def lstm(X: Array, *start: Array, Wx: Array, Wh: Array, b: Array) -> list[Array]:
    """LSTM, with the states h and c.

    The gates are the four parts of A = x_t Wx + h_{t-1} Wh + b (N, 4 H).
    """
    (h, c), Y = start or np.zeros((2, len(X), len(Wh)), X.dtype), []
    for A in (X @ Wx + b).swapaxes(0, 1):  # step by step
        i, f, g, o = np.split(A + h @ Wh, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        Y.append(h)
    return [np.stack(Y, axis=1), h, c]


def gru(X: Array, *start: Array, Wx: Array, Wh: Array, b: Array, bh: Array) -> list[Array]:
    """GRU.

    The gates are the three parts of A = x_t Wx + b and U = h_{t-1} Wh + bh, both (N, 3 H).
    """
    (h,), Y = start or np.zeros((1, len(X), len(Wh)), X.dtype), []
    for A in (X @ Wx + b).swapaxes(0, 1):  # step by step
        (ar, az, an), (ur, uz, un) = np.split(A, 3, axis=1), np.split(h @ Wh + bh, 3, axis=1)
        z = sigmoid(az + uz)
        h = (1 - z) * np.tanh(an + sigmoid(ar + ur) * un) + z * h
        Y.append(h)
    return [np.stack(Y, axis=1), h]


# --- convolutions and pools -----------------------------------------------------------------------


def taps(
    X: Array,
    kernel: int | Sequence[int],
    stride: int | Sequence[int],
    padding: str | int,
    dilation: int | Sequence[int] = 1,
    value: float = 0,
) -> Iterator[Array]:
    """For each position in the kernel, row by row: the x of every window there, (N, *out, C).

    X is (N, *sizes, C). Padding is with `value`: "valid" adds nothing, an integer adds that many on
    both sides, and "same" adds what ceil(size / stride) windows require.
    """
    n = np.array(X.shape[1:-1])
    k, s, d = (np.broadcast_to(a, n.shape) for a in (kernel, stride, dilation))
    if padding == "same":
        total = np.maximum((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        pads = np.stack([total // 2, total - total // 2], axis=1)
    else:
        pads = np.full((len(n), 2), 0 if padding == "valid" else padding)
    if pads.any():
        X = np.pad(X, [(0, 0), *pads, (0, 0)], constant_values=value)
    ends = n + pads.sum(axis=1) - (k - 1) * d
    if ends.min() < 1:
        sizes = X.shape[1:-1]
        raise ValueError(f"a window of {tuple(k.tolist())} does not fit into {sizes} positions.")
    starts = (np.array(at) * d for at in np.ndindex(*k))
    return (X[(slice(None), *map(slice, a, a + ends, s))] for a in starts)


def conv(
    X: Array,
    W: Array,
    b: Array | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int = "valid",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Array:
    """Convolution: every window of X, as a row, times W.

    X is (N, *sizes, C), W is (*kernel, C / groups, filters), and b is (filters,). Group g of the
    channels is connected to group g of the filters.
    """
    *kernel, C, filters = W.shape
    U = np.stack(list(taps(X, kernel, stride, padding, dilation)), axis=-2)
    out = U.shape[:-2]  # U is (N, *out, taps, channels)
    U = np.moveaxis(U.reshape(*U.shape[:-1], groups, C), -2, 0).reshape(groups, math.prod(out), -1)
    Y = U @ W.reshape(-1, groups, filters // groups).swapaxes(0, 1)  # (groups, windows, filters)
    Y = Y.swapaxes(0, 1).reshape(*out, filters)
    return Y if b is None else Y + b


def conv_transpose(
    X: Array,
    W: Array,
    b: Array | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int = "valid",
    output_padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Array:
    """Transposed convolution: each x adds x times W to a window of the output.

    X is (N, *sizes, C), W is (*kernel, C, filters / groups), and b is (filters,). Integer padding
    removes that many positions on both sides, and "same" leaves size times stride.
    """
    (N, *_, C), (*kernel, _, f), n = X.shape, W.shape, np.array(X.shape[1:-1])
    s, d = (np.broadcast_to(a, n.shape) for a in (stride, dilation))
    covered = (n - 1) * s + (np.array(kernel) - 1) * d + 1
    first, out = 0 * n, covered + output_padding
    if padding == "same":
        first, out = np.maximum(covered - n * s, 0) // 2, n * s
    elif padding != "valid":
        first, out = first + int(padding), out - 2 * int(padding)
    Y = np.zeros((N, *(covered + s), groups * f), X.dtype)
    rows = X.reshape(-1, groups, C // groups).swapaxes(0, 1)
    for at in np.ndindex(*kernel):
        Y_at = (rows @ W[at].reshape(groups, -1, f)).swapaxes(0, 1)
        start = np.array(at) * d
        Y[(slice(None), *map(slice, start, start + n * s, s))] += Y_at.reshape(N, *n, groups * f)
    Y = Y[(slice(None), *map(slice, first, first + out))]
    return Y if b is None else Y + b


def max_pool(
    X: Array,
    pool_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: str | int = "valid",
) -> Array:
    """The maximum of every window of X (N, *sizes, C)."""
    stride = pool_size if stride is None else stride
    found = taps(X, pool_size, stride, padding, value=-np.inf)
    Y = next(found).copy()
    for x in found:
        np.maximum(Y, x, out=Y)
    return Y


def avg_pool(
    X: Array,
    pool_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: str | int = "valid",
) -> Array:
    """The mean of every window of X (N, *sizes, C), without the positions that "same" adds."""
    stride, ones = pool_size if stride is None else stride, np.ones((1, *X.shape[1:-1], 1), X.dtype)
    total, all_taps = (np.stack(list(taps(A, pool_size, stride, padding))) for A in (X, ones))
    count = all_taps.sum(axis=0) if padding == "same" else len(all_taps)
    return total.sum(axis=0) / count


def global_avg_pool(X: Array) -> Array:
    """The mean of each channel over all positions: (N, *sizes, C) -> (N, C)."""
    return X.reshape(len(X), -1, X.shape[-1]).mean(axis=1)


def global_max_pool(X: Array) -> Array:
    """The maximum of each channel over all positions: (N, *sizes, C) -> (N, C)."""
    return X.reshape(len(X), -1, X.shape[-1]).max(axis=1)


# --- norms ----------------------------------------------------------------------------------------


def rescale(X: Array, eps: float) -> Array:
    """x / sqrt(mean(x^2) + eps) along the last axis, written so that squares cannot overflow."""
    s = np.maximum(np.abs(X).max(axis=-1, keepdims=True), 1)
    return X / s / np.sqrt(np.square(X / s).mean(axis=-1, keepdims=True) + eps / s / s)


def normalise(X: Array, eps: float) -> Array:
    """(x - mean) / sqrt(variance + eps) along the last axis."""
    return rescale(X - X.mean(axis=-1, keepdims=True), eps)


def layer_norm(X: Array, gamma: Array, beta: Array, eps: float) -> Array:
    """gamma (x - mean) / sqrt(variance + eps) + beta along the last axis of X (..., D)."""
    return gamma * normalise(X, eps) + beta


def rms_norm(X: Array, gamma: Array, eps: float) -> Array:
    """gamma x / sqrt(mean(x^2) + eps) along the last axis of X (..., D)."""
    return gamma * rescale(X, eps)


def group_norm(X: Array, gamma: Array, beta: Array, groups: int, eps: float) -> Array:
    """Normalise each group of channels of each sample of X (N, *sizes, C)."""
    N, C = len(X), X.shape[-1]
    Z = X.reshape(N, -1, groups, C // groups).swapaxes(1, 2)  # (N, groups, positions, C / groups)
    Z = normalise(Z.reshape(N, groups, -1), eps).reshape(Z.shape).swapaxes(1, 2)
    return gamma * Z.reshape(X.shape) + beta


def instance_norm(X: Array, gamma: Array, beta: Array, eps: float) -> Array:
    """Normalise each channel of each sample of X (N, *sizes, C)."""
    return group_norm(X, gamma, beta, X.shape[-1], eps)


def batch_norm(
    X: Array, gamma: Array, beta: Array, running_mean: Array, running_var: Array, eps: float
) -> Array:
    """Normalise each feature of X (..., D) with the mean and variance recorded in training."""
    return gamma * ((X - running_mean) / np.sqrt(running_var + eps)) + beta


# --- layers that move elements --------------------------------------------------------------------


def flatten(X: Array) -> Array:
    """Each sample as one row: (N, ...) -> (N, D)."""
    return X.reshape(len(X), -1)


def reshape(X: Array, shape: Sequence[int]) -> Array:
    """Each sample in another shape: (N, ...) -> (N, *shape)."""
    return X.reshape(len(X), *shape)


def permute(X: Array, dims: Sequence[int]) -> Array:
    """Reorder the axes of each sample, counted from 1."""
    return X.transpose(0, *dims)


def select(X: Array, columns: Sequence[int]) -> Array:
    """These columns of the last axis."""
    return X[..., list(columns)]


def select_tokens(X: Array, columns: Sequence[int]) -> Array:
    """These columns of the last axis, which hold whole numbers, as integers."""
    codes = X[..., list(columns)]
    if (codes != np.round(codes)).any():
        raise ValueError(f"the columns {columns} of X must hold whole numbers.")
    return codes.astype(np.int64)


def upsample_nearest(X: Array, factors: Sequence[int]) -> Array:
    """Repeat the pixels of images (N, height, width, C), `factors` times along both axes."""
    return X.repeat(factors[0], axis=1).repeat(factors[1], axis=2)


def upsample_bilinear(X: Array, factors: Sequence[int]) -> Array:
    """Enlarge images (N, height, width, C) along both axes, by interpolation."""
    for axis, factor in zip((1, 2), factors, strict=True):
        n = X.shape[axis]
        at = np.clip((np.arange(n * factor) + 0.5) / factor - 0.5, 0, n - 1)  # in the old image
        low = at.astype(int)
        share = (at - low).astype(X.dtype).reshape(-1, *[1] * (3 - axis))
        high = np.minimum(low + 1, n - 1)
        X = X.take(low, axis) * (1 - share) + X.take(high, axis) * share
    return X


def zero_pad(X: Array, pads: Sequence[tuple[int, int]]) -> Array:
    """Add zeros around images (N, height, width, C): pads is ((top, bottom), (left, right))."""
    return np.pad(X, ((0, 0), *pads, (0, 0)))


def center_crop(X: Array, window: Sequence[int], pads: Sequence[int]) -> Array:
    """The middle (height, width) of images (N, height, width, C), after adding zeros around."""
    X = np.pad(X, ((0, 0), *((p, p) for p in pads), (0, 0)))
    top, left = ((n - w) // 2 for n, w in zip(X.shape[1:3], window, strict=True))
    if min(top, left) < 0:
        raise ValueError(f"{tuple(window)} does not fit into {X.shape[1:3]} pixels.")
    return X[:, top : top + window[0], left : left + window[1]]


def latent_mean(X: Array) -> Array:
    """The means: the first half of the last axis; the log variances after it are not used."""
    return X[..., : X.shape[-1] // 2]


def dot(X1: Array, X2: Array) -> Array:
    """The products of vectors on the last axis, (..., 1)."""
    return np.einsum("...d,...d->...", X1, X2)[..., None]


def bilinear(X1: Array, X2: Array, W: Array, b: Array | None = None) -> Array:
    """y_k = x1^T W_k x2 + b_k on the last axis: X1 (..., D1), X2 (..., D2), W (D1, D2, K)."""
    Y = np.einsum("...j,...jk->...k", X2, np.tensordot(X1, W, axes=1))
    return Y if b is None else Y + b


# --- what surrounds the network -------------------------------------------------------------------


def as_array(X: Any, shape: Sequence[int | None], dtype: str, name: str = "X") -> Array:
    """X as a checked array (N, *shape), N > 0; a size of None may be anything above 0."""
    X = np.asarray(X)
    tokens = dtype == "int64"
    if X.dtype.kind not in ("iu" if tokens else "fiub"):
        what = "tokens, which are integers" if tokens else "real numbers"
        raise TypeError(f"{name} must hold {what}, got dtype {X.dtype}.")
    sizes = X.shape[1:]
    if len(sizes) != len(shape) or any(
        n == 0 if wanted is None else n != wanted for n, wanted in zip(sizes, shape, strict=True)
    ):
        wanted = ", ".join(["N", *("any" if n is None else str(n) for n in shape)])
        hint = " For a single sample, write predict([x])." if X.ndim == len(shape) else ""
        raise ValueError(f"{name} must have the shape ({wanted}), got {X.shape}.{hint}")
    if len(X) == 0:
        raise ValueError(f"{name} has no samples.")
    with np.errstate(over="ignore"):
        X = X.astype(dtype)
    if not np.isfinite(X).all():
        raise ValueError(
            f"{name} must be finite, but holds NaN, infinity or a number that is too large."
        )
    return X


def batches(Xs: Sequence[Array], batch_size: int) -> list[list[Array]]:
    """The inputs in parts of at most `batch_size` samples."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
    if len({len(X) for X in Xs}) > 1:
        raise ValueError(f"the inputs have different numbers of samples: {[len(X) for X in Xs]}.")
    return [[X[i : i + batch_size] for X in Xs] for i in range(0, len(Xs[0]), batch_size)]


def in_order(X: Any, names: Sequence[str]) -> list[Any]:
    """The inputs in this order, from a dict by name, or a list or tuple in the same order."""
    if isinstance(X, dict) and sorted(X) == sorted(names):
        return [X[name] for name in names]
    if isinstance(X, list | tuple) and len(X) == len(names):
        return list(X)
    raise TypeError(f"X must be a dict with the inputs {', '.join(names)}, or a tuple of them.")


def load_weights(path: Path, export_id: str) -> dict[str, Array]:
    """Read the arrays that were exported together with this file, by name."""
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing. It holds the weights of the network: copy it next to this file."
        )
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            weights = {name: file[name] for name in file.files}
    except (EOFError, OSError, RuntimeError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged: export the network again.") from error
    if str(weights.pop("export_id", "")) != export_id:
        raise ValueError(
            f"{path} does not belong to this file: they come from different exports. Export the "
            "network again, and copy both files."
        )
    return weights


def main(predict: Callable[[Any], Any], ending: str = "npy") -> None:
    """Read X from a .npy file, and print the predictions or save them to another .npy file.

    Several arrays by name are in a .npz file.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("source", metavar="input.npy")
    parser.add_argument("target", metavar="output.npy", nargs="?", default="")
    given = parser.parse_args()
    if given.target and not given.target.endswith(f".{ending}"):
        what = f"is an .{ending} file, so its name must end in .{ending}"
        sys.exit(f"{given.target}: the output {what}.")
    try:
        with open(given.source, "rb") as stream:
            X = np.load(stream, allow_pickle=False)
            X = X if isinstance(X, np.ndarray) else dict(X)
    except OSError as error:
        sys.exit(f"{given.source}: {error.strerror}")
    except Exception:  # NumPy raises many kinds for what is not its own
        sys.exit(f"{given.source} is not an .npy file of numbers.")
    try:
        Y = predict(X)
    except (TypeError, ValueError) as error:
        sys.exit(f"{given.source}: {error}")
    if not given.target:
        print(Y)
        return
    try:
        np.savez(given.target, **Y) if isinstance(Y, dict) else np.save(given.target, Y)
    except OSError as error:
        sys.exit(f"{given.target}: {error.strerror or error}")
