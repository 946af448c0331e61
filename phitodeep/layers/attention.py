"""Scaled dot-product, multi-head and cross attention, feed-forward networks, transformer blocks.

Long because all layers of attention share their passes, and blocks are built from them.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np

from phitodeep.core.call import current
from phitodeep.core.checks import check_count, check_flag, check_number, check_option
from phitodeep.core.settings import Count, Flag, Fraction
from phitodeep.core.types import Array, Shape
from phitodeep.derivations import attention as derived
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.functional import softmax, softmax_rows_back, sum_rows
from phitodeep.functional.rotary import Rope, check_rope
from phitodeep.kernels import kernel
from phitodeep.layers.activation import GELU, ReLU, SiLU
from phitodeep.layers.base import Layer, Param, RandomKey
from phitodeep.layers.containers import Chain, Parallel, Residual
from phitodeep.layers.dense import Dense
from phitodeep.layers.embedding import rotate
from phitodeep.layers.initialization import InitialValues, Xavier
from phitodeep.layers.normalization import LayerNorm, RMSNorm
from phitodeep.layers.regularization import Dropout

__all__ = [
    "GEGLU",
    "CrossAttention",
    "FeedForward",
    "MultiHeadAttention",
    "ScaledDotProductAttention",
    "SwiGLU",
    "TransformerBlock",
]

SCORES = 2**18  # scores per head in memory: a longer sequence is processed in blocks of queries


@dataclass(eq=False, repr=False)
class Attention(Layer):
    """Base class of layers with attention: its settings, and both passes from Q, K, V to Z.

    QKV (N T, (h + 2 k) d) holds all queries, then keys, then values, head by head, for h = `heads`
    heads and k = `kv_heads` heads of keys and values (h by default) of size d. Z (N T, h d) is P V
    of all heads, side by side.
    """

    heads: Count
    _: KW_ONLY
    causal: Flag = False
    kv_heads: Count | None = None
    rope: Annotated[bool | Rope, check_rope] = False
    dropout: Fraction = 0.0
    independent_samples = True
    _mask_remedy = "use a Rope whose angles do not depend on the length of the sequence"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads % (self.kv_heads or 1):
            raise ArgumentError(
                f"{type(self).__name__}: {self.heads} heads are not divisible by "
                f"{self.kv_heads} kv_heads."
            )

    @property
    def rotary(self) -> Rope | None:
        """The angles by which queries and keys are rotated, or None."""
        return Rope() if self.rope is True else self.rope or None

    def _check_size(self, d: int) -> None:
        """Refuse heads whose features cannot be rotated in pairs."""
        if self.rope and d % 2:
            raise ShapeError(
                f"{self!r} has heads of {d} features, not of even size, which rope requires."
            )

    # --- both passes -----------------------------------------------------------------------

    def _attend(self, QKV: Array, N: int, mask: Array | None) -> tuple[Array, dict[str, Any]]:
        """Return Z, and what `_attend_back` needs; the mask is (N, T)."""
        call = current()
        Q, K, V = self._split(QKV, N)
        past = None if call.memory is None else call.memory.get(self)
        start = 0 if past is None else past[0].shape[-2]  # the position of the first query
        rotary = self.rotary
        T, d = Q.shape[-2:]
        rotation = None if rotary is None else rotary.cos_and_sin(start, T, d, QKV.dtype)
        if rotation is not None:
            Q, K = rotate(Q, *rotation), rotate(K, *rotation)
        if call.memory is not None:
            if past is not None:
                K, V = np.concatenate([past[0], K], -2), np.concatenate([past[1], V], -2)
            call.memory[self] = K, V
        Z, kept = self._average(Q, K, V, start, mask)
        return Z, {**kept, "rotation": rotation}

    def _attend_back(self, dZ: Array, N: int) -> Array:
        """Return dQKV for dZ."""
        d = dZ.shape[1] // self.heads
        width = (self.heads + 2 * (self.kv_heads or self.heads)) * d
        dQKV = self.buffer("dQKV", (len(dZ), width), dZ.dtype)
        dQ, dK, dV = self._split(dQKV, N)
        self._average_back(dZ, dQ, dK, dV)
        if (rotation := self.saved("rotation")) is not None:
            cos, sin = rotation
            dQ[...], dK[...] = rotate(dQ, cos, -sin), rotate(dK, cos, -sin)
        return dQKV

    def _average(
        self, Q: Array, K: Array, V: Array, start: int, mask: Array | None
    ) -> tuple[Array, dict[str, Any]]:
        """Return Z = softmax(Q K^T / sqrt(d)) V, and what `_average_back` needs.

        Q, K and V are as `_by_head` returns them, the first query is at position `start`, and the
        mask is that of the keys.
        """
        call, (N, (T, d), S) = current(), (len(Q), Q.shape[-2:], K.shape[-2])
        scale = 1 / math.sqrt(d)  # applied to Q, which is smaller than S
        Q = np.multiply(Q, scale, out=self.buffer("Q", Q.shape, Q.dtype))
        Z = self.buffer("Z", (N * T, self.heads * d), Q.dtype)
        Z_h = self._by_head(Z, N, d)
        random_key = self._random_key() if self.dropout and call.training else None
        blocks = self._blocks(T, S, start)
        for i, (q, k) in enumerate(blocks):
            P = self._probabilities(Q[..., q, :], K[..., k, :], start + q.start, mask)
            m = None if random_key is None else self._dropout_factors(P, random_key, i)
            np.matmul(P if m is None else P * m, V[..., k, :], out=Z_h[..., q, :])
        kept = P if len(blocks) == 1 else None
        return Z, {"Q": Q, "K": K, "V": V, "P": kept, "random_key": random_key, "mask": mask}

    def _average_back(self, dZ: Array, dQ: Array, dK: Array, dV: Array) -> None:
        """Write dQ, dK and dV for dZ."""
        Q, K, V, kept = self.saved("Q", "K", "V", "P")
        random_key, mask = self.saved("random_key", "mask")
        T, d = Q.shape[-2:]
        dZ_h = self._by_head(dZ, len(Q), d)
        blocks = self._blocks(T, K.shape[-2], 0)  # no backward pass follows generation
        add = len(blocks) > 1  # dK and dV are sums over the blocks
        if add:
            dK.fill(0)
            dV.fill(0)
        for i, (q, k) in enumerate(blocks):
            Q_q, dZ_q, K_k = Q[..., q, :], dZ_h[..., q, :], K[..., k, :]
            P = self._probabilities(Q_q, K_k, q.start, mask) if kept is None else kept
            m = None if random_key is None else self._dropout_factors(P, random_key, i)
            dP = self.buffer("dP", P.shape, dZ.dtype)
            np.matmul(dZ_q, V[..., k, :].swapaxes(-1, -2), out=dP)
            if m is not None:
                dP *= m
            self._transposed_product(P if m is None else P * m, dZ_q, dV[..., k, :], add)
            keys = P.shape[-1]
            softmax_rows_back(dP.reshape(-1, keys), P.reshape(-1, keys))  # dP is now dS
            np.matmul(dP, K_k, out=dQ[..., q, :])
            self._transposed_product(dP, Q_q, dK[..., k, :], add)
        dQ *= 1 / math.sqrt(d)  # dK has this factor already, from the scaled Q

    # --- their parts, in order -------------------------------------------------------------

    def _split(self, QKV: Array, N: int) -> tuple[Array, Array, Array]:
        """Return queries, keys and values as views (N, k, heads / k or 1, T, d)."""
        k = self.kv_heads or self.heads
        d = QKV.shape[1] // (self.heads + 2 * k)
        parts = np.split(QKV, [self.heads * d, (self.heads + k) * d], axis=1)
        Q, K, V = [self._by_head(A, N, d) for A in parts]
        return Q, K, V

    def _by_head(self, A: Array, N: int, d: int) -> Array:
        """Return A (N T, heads d) as a view (N, k, heads / k, T, d), for k heads of keys."""
        k = self.kv_heads or self.heads
        return A.reshape(N, -1, k, A.shape[1] // (k * d), d).transpose(0, 2, 3, 1, 4)

    def _blocks(self, T: int, keys: int, start: int) -> list[tuple[slice, slice]]:
        """Return slices of the T queries, each with the slice of the keys that it may attend to."""
        size = max(1, SCORES // keys)
        ends = [(first, min(first + size, T)) for first in range(0, T, size)]
        return [(slice(a, b), slice(0, start + b if self.causal else keys)) for a, b in ends]

    def _probabilities(self, Q: Array, K: Array, start: int, mask: Array | None) -> Array:
        """Return P = softmax(Q K^T) for scaled queries Q, the first one at position `start`."""
        queries, keys = Q.shape[-2], K.shape[-2]
        S = self.buffer("S", (*Q.shape[:-1], keys), Q.dtype)
        np.matmul(Q, K.swapaxes(-1, -2), out=S)
        if self.causal and mask is None:
            causal_softmax(S.reshape(-1, queries, keys), start)
            return S
        if mask is None:
            return softmax(S, out=S)
        visible = np.broadcast_to(mask[:, None, :keys], (len(mask), queries, keys))
        if self.causal:
            visible = visible & (np.arange(keys) <= np.arange(start, start + queries)[:, None])
        visible = visible[:, None, None]
        np.copyto(S, -np.inf, where=~visible)
        return softmax(S, out=S)

    def _dropout_factors(self, P: Array, random_key: RandomKey, block: int) -> Array:
        """Return m, with P's shape: 0 with probability `dropout`, otherwise 1 / (1 - dropout)."""
        m = (self.uniform(P.shape, random_key, block) >= self.dropout).astype(P.dtype)
        m *= 1 / (1 - self.dropout)
        return m

    def _transposed_product(self, A: Array, B: Array, out: Array, add: bool) -> None:
        """Write or add to `out` the product A^T B, summed over the query heads of each key head."""
        if A.shape[2] == 1 and not add:
            np.matmul(A.swapaxes(-1, -2), B, out=out)
            return
        product = np.matmul(A.swapaxes(-1, -2), B).sum(axis=2, keepdims=True)
        np.add(out, product, out=out) if add else np.copyto(out, product)

    # --- declarations --------------------------------------------------------------------------

    @property
    def time_steps(self) -> str:
        return "remembered" if self.causal else "joined"

    def compute_mask(self, mask: Array) -> Array | None:
        return super().compute_mask(mask) if self.rotation == "by length" else mask

    @property
    def rotation(self) -> str:
        """How queries and keys are rotated: "none", "fixed", or "by length" of the sequence."""
        if self.rotary is None:
            return "none"
        return "by length" if self.rotary.by_length else "fixed"

    @property
    def base(self) -> float | None:
        """The base of the rotation's frequencies, or None."""
        return None if self.rotary is None else self.rotary.base

    @property
    def amplitude(self) -> float:
        """The factor of the rotation's cos and sin."""
        return 1.0 if self.rotary is None else self.rotary.amplitude

    @property
    def frequencies(self) -> tuple[float, ...] | None:
        """The rotation's frequencies w (d / 2), or None if they follow from `base`."""
        if self.rotary is None or type(self.rotary) is Rope:
            return None
        return tuple(map(float, self.rotary.frequencies(self._head_size(), 1)))

    def _head_size(self) -> int:
        """Return d."""
        raise NotImplementedError


class ScaledDotProductAttention(Attention):
    """For each query, the average of the values, with weights from the query and the keys.

    Shapes: X and dX are (N, T, (h + 2 k) d), Y and dY are (N, T, h d). X holds h = `heads` heads of
    queries of size d, then k = `kv_heads` heads of keys, then as many of values (k = h by default);
    each head of keys and values is shared by h / k heads of queries.

    Forward, for one head:

        Q, K, V = X        S = Q K^T / sqrt(d)        P = softmax(S)        Y = P V

    causal    position t attends only to positions up to t
    rope      Q and K are rotated by angles that depend on the position: True for those of Rope(),
              or one of the classes in phitodeep.functional.rotary
    dropout   applied to P
    mask      padding is never attended to; refused if the angles of `rope` depend on the length

    A position that is not attended to has P = 0, whatever its score. A query that may attend to no
    position, or only to scores of -inf, has Y = 0 and no gradient.

    Backward. Through the products and the softmax (see Softmax), with m the dropout factors:

        dV = (P m)^T dY        dP = (dY V^T) m        dS = P (dP - sum_j dP_j P_j)
        dQ = dS K / sqrt(d)    dK = dS^T Q / sqrt(d)

    For long sequences P is not kept: backward computes it again, for a block of queries at a time.

    Sources: Vaswani et al. 2017, arXiv:1706.03762, eq. 1; kv_heads: Ainslie et al. 2023,
    arXiv:2305.13245.
    """

    steps = derived.scaled_dot_product_attention

    def create(self, shape: Shape) -> Shape:
        parts = self.heads + 2 * (self.kv_heads or self.heads)
        if len(shape) != 2 or shape[-1] % parts:
            raise ShapeError(
                f"{self!r} takes samples of shape (T, {parts} d), with queries, keys and values of "
                f"size d, got {shape}."
            )
        d = shape[-1] // parts
        self._check_size(d)
        return (shape[0], self.heads * d)

    def forward(self, X: Array) -> Array:
        parts = self.heads + 2 * (self.kv_heads or self.heads)
        if X.ndim != 3 or X.shape[-1] % parts:
            raise ShapeError(f"{self!r} takes X (N, T, {parts} d), got shape {X.shape}.")
        mask = self.check_steps(X)
        N, T, width = X.shape
        Y, kept = self._attend(X.reshape(N * T, width), N, mask)
        self.save_for_backward(**kept)
        return Y.reshape(N, T, -1)

    def backward(self, dY: Array) -> Array:
        N, T, width = dY.shape
        return self._attend_back(dY.reshape(N * T, width), N).reshape(N, T, -1)

    def _head_size(self) -> int:
        return (self.output_shape or (0,))[-1] // self.heads

    def flops(self) -> int:
        """Count the two products with a matrix (T, T) of each head."""
        T, width = self.output_shape or (0, 0)
        return 4 * T * T * width


@kernel
def causal_softmax(S: Array, start: int) -> None:
    """Replace S (n, queries, keys) by its softmax over the keys up to each query's position.

    `start` is the position of the first query.
    """
    last = S[..., start:]  # the keys that may come after a query
    np.fmin(last, _causal_limit(S.shape[1], S.dtype), out=last)  # fmin replaces NaN too
    softmax(S, out=S)


@functools.lru_cache(maxsize=64)
def _causal_limit(queries: int, dtype: np.dtype[Any]) -> Array:
    """Upper limits of the scores: -inf where the key comes after the query, inf elsewhere."""
    limit = np.where(np.tri(queries, dtype=bool), np.inf, -np.inf).astype(dtype)
    limit.flags.writeable = False
    return limit


@dataclass(eq=False, repr=False)
class _Projected(Attention):
    """Base class of attention between products with weights: the last one, Y = Z Wo + bo."""

    _: KW_ONLY
    bias: Flag = True
    head_dim: Count | None = None
    initializer: InitialValues = Xavier()
    Wo = Param(decay=True)
    bo = Param()

    def _size(self, D: int) -> int:
        """Return d for D features."""
        if self.head_dim is None and D % self.heads:
            raise ShapeError(f"{self!r}: D = {D} cannot be divided into {self.heads} heads.")
        d = self.head_dim or D // self.heads
        self._check_size(d)
        return d

    def _product(self, out: str, X: Array, name: str) -> Array:
        """Return X W + b, for the W and b of this name, such as "o"."""
        W: Array = getattr(self, f"W{name}")
        Y = np.matmul(X, W, out=self.buffer(out, (len(X), W.shape[1]), X.dtype))
        if self.bias:
            Y += getattr(self, f"b{name}")
        return Y

    def _product_back(self, out: str, dY: Array, name: str) -> Array:
        """Return dX = dY W^T."""
        W: Array = getattr(self, f"W{name}")
        return np.matmul(dY, W.T, out=self.buffer(out, (len(dY), len(W)), dY.dtype))

    def _gradients(self, W: str, b: str, X: Array, dY: Array) -> None:
        """Write dW = X^T dY and db, of the W and b of these names."""
        if self.needs_grad(W):
            np.matmul(X.T, dY, out=self.grad_array(W))
            if self.bias:
                sum_rows(dY, out=self.grad_array(b))

    def _head_size(self) -> int:
        return len(self.Wo) // self.heads


class MultiHeadAttention(_Projected):
    """A weighted average of the values at all positions, with weights from queries and keys.

    Shapes: X, Y, dX, dY are (N, T, D). There are h = `heads` heads of size d = `head_dim` (D / h by
    default), and k = `kv_heads` heads of keys and values (h by default), each shared by h / k query
    heads. Wqkv is (D, (h + 2 k) d): all queries, then keys, then values, head by head; bqkv is
    ((h + 2 k) d,), Wo is (h d, D), and bo is (D,).

    Forward:

        QKV = X Wqkv + bqkv        Z = attention(QKV)        Y = Z Wo + bo

    where the attention, its options and its backward pass are those of ScaledDotProductAttention.
    Backward, as in Dense:

        dWo = Z^T dY        dZ = dY Wo^T        dWqkv = X^T dQKV        dX = dQKV Wqkv^T

    and dbo and dbqkv are the sums of dY and dQKV over all positions.

    Sources: Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.2; kv_heads: Ainslie et al. 2023,
    arXiv:2305.13245.
    """

    Wqkv = Param(decay=True)
    bqkv = Param()

    steps = derived.multi_head_attention

    def create(self, shape: Shape) -> Shape:
        if len(shape) != 2:
            raise ShapeError(f"{self!r} takes samples of shape (T, D), got {shape}.")
        D = shape[-1]
        d = self._size(D)
        width = (self.heads + 2 * (self.kv_heads or self.heads)) * d
        self.Wqkv = self.draw(self.initializer, (D, width))
        self.Wo = self.draw(self.initializer, (self.heads * d, D))
        if self.bias:
            self.bqkv, self.bo = self.full(width, 0), self.full(D, 0)
        return shape

    def forward(self, X: Array) -> Array:
        D = len(self.Wqkv)
        if X.ndim != 3 or X.shape[-1] != D:
            raise ShapeError(f"{self!r} takes X (N, T, {D}), got shape {X.shape}.")
        mask = self.check_steps(X)
        N, T, _ = X.shape
        X = X.reshape(N * T, D)
        Z, kept = self._attend(self._product("QKV", X, "qkv"), N, mask)
        self.save_for_backward(X=X, Z=Z, **kept)
        return self._product("Y", Z, "o").reshape(N, T, D)

    def backward(self, dY: Array) -> Array | None:
        X, Z = self.saved("X", "Z")
        N, T, D = dY.shape
        dY = dY.reshape(N * T, D)
        dQKV = self._attend_back(self._product_back("dZ", dY, "o"), N)
        self._gradients("Wqkv", "bqkv", X, dQKV)
        self._gradients("Wo", "bo", Z, dY)
        if not current().needs_dX:
            return None
        return self._product_back("dX", dQKV, "qkv").reshape(N, T, D)

    # --- declarations --------------------------------------------------------------------------

    def matrices(self, name: str, W: Array) -> list[Array]:
        """Return one matrix each for queries, keys and values."""
        (whole,) = super().matrices(name, W)
        if name != "Wqkv":
            return [whole]
        queries = len(self.Wo)
        keys = (whole.shape[-1] - queries) // 2
        return np.split(whole, [queries, queries + keys], axis=-1)

    def flops(self) -> int:
        """Count the projections, and for each head the two products with a matrix (T, T)."""
        T, _ = self.input_shape or (0, 0)
        return T * (2 * (self.Wqkv.size + self.Wo.size) + 4 * T * len(self.Wo))


@dataclass(eq=False, repr=False)
class CrossAttention(_Projected):
    """Attention from one sequence to another: queries of X1, keys and values of X2, the memory.

    Shapes: X1, Y, dX1, dY are (N, T, D); X2, dX2 are (N, S, E). There are h = `heads` heads of size
    d = `head_dim` (D / h by default), and k = `kv_heads` heads of keys and values (h by default),
    each shared by h / k query heads. Wq is (D, h d); Wkv is (E, 2 k d), all keys, then all values,
    head by head; Wo is (h d, D). bq, bkv and bo have one number for each column of these.

    Forward:

        Q = X1 Wq + bq        KV = X2 Wkv + bkv        Z = attention(Q, KV)        Y = Z Wo + bo

    where the attention, `dropout` and the backward pass are those of ScaledDotProductAttention.
    Padding of X2 is never attended to; Y has the padding of X1. In generation, the keys and values
    are computed from the X2 of the first call, and kept.

    Backward, as in Dense:

        dWo = Z^T dY     dZ = dY Wo^T     dWq = X1^T dQ     dX1 = dQ Wq^T
                                          dWkv = X2^T dKV   dX2 = dKV Wkv^T

    and dbo, dbq and dbkv are the sums of dY, dQ and dKV over all positions.

    Source: Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.3.
    """

    causal: bool = field(default=False, init=False)
    rope: bool | Rope = field(default=False, init=False)
    inputs = 2
    reads_whole = 1  # each step of Y depends on one step of X1 and on all of X2, input 1
    Wq = Param(decay=True)
    bq = Param()
    Wkv = Param(decay=True)
    bkv = Param()

    steps = derived.cross_attention

    def create(self, *shapes: Shape) -> Shape:
        first, second = shapes
        if len(first) != 2 or len(second) != 2:
            raise ShapeError(
                f"{self!r} takes samples of shapes (T, D) and (S, E), got {first} and {second}."
            )
        d = self._size(first[-1])
        self.Wq = self.draw(self.initializer, (first[-1], self.heads * d))
        width = 2 * (self.kv_heads or self.heads) * d
        self.Wkv = self.draw(self.initializer, (second[-1], width))
        self.Wo = self.draw(self.initializer, (self.heads * d, first[-1]))
        if self.bias:
            self.bq, self.bkv = self.full(self.heads * d, 0), self.full(width, 0)
            self.bo = self.full(first[-1], 0)
        return first

    def forward(self, *Xs: Array) -> Array:
        X1, X2 = Xs
        D, E = len(self.Wq), len(self.Wkv)
        if (X1.ndim, X2.ndim, X1.shape[-1], X2.shape[-1]) != (3, 3, D, E) or len(X1) != len(X2):
            raise ShapeError(
                f"{self!r} takes X1 (N, T, {D}) and X2 (N, S, {E}), got shapes {X1.shape} and "
                f"{X2.shape}."
            )
        self.check_steps(X1)
        mask, memory = self.check_steps(X2, 1), current().memory
        N, T, _ = X1.shape
        X1, X2 = X1.reshape(-1, D), X2.reshape(-1, E)
        keys = None if memory is None else memory.get(self)
        K, V = self._keys(self._product("KV", X2, "kv"), N) if keys is None else keys
        if memory is not None:
            memory[self] = K, V
        Q = self._by_head(self._product("queries", X1, "q"), N, K.shape[-1])
        Z, kept = self._average(Q, K, V, 0, mask)
        self.save_for_backward(X1=X1, X2=X2, Z=Z, **kept)
        return self._product("Y", Z, "o").reshape(N, T, D)

    def backward(self, dY: Array) -> Any:
        X1, X2, Z = self.saved("X1", "X2", "Z")
        N, T, D = dY.shape
        dY = dY.reshape(N * T, D)
        dQ = self.buffer("dQ", Z.shape, dY.dtype)
        dKV = self.buffer("dKV", (len(X2), self.Wkv.shape[1]), dY.dtype)
        dZ, d = self._product_back("dZ", dY, "o"), self._head_size()
        self._average_back(dZ, self._by_head(dQ, N, d), *self._keys(dKV, N))
        self._gradients("Wq", "bq", X1, dQ)
        self._gradients("Wkv", "bkv", X2, dKV)
        self._gradients("Wo", "bo", Z, dY)
        if not current().needs_dX:
            return None
        dX1, dX2 = self._product_back("dX1", dQ, "q"), self._product_back("dX2", dKV, "kv")
        return dX1.reshape(N, T, D), dX2.reshape(N, -1, len(self.Wkv))

    def _keys(self, KV: Array, N: int) -> tuple[Array, Array]:
        """Return keys and values as views (N, k, 1, S, d)."""
        K, V = [self._by_head(A, N, self._head_size()) for A in np.split(KV, 2, axis=1)]
        return K, V

    # --- declarations --------------------------------------------------------------------------

    def compute_mask(self, *masks: Array | None) -> Array | None:
        return masks[0]

    def matrices(self, name: str, W: Array) -> list[Array]:
        """Return one matrix each for keys and values."""
        (whole,) = super().matrices(name, W)
        return np.split(whole, 2, axis=-1) if name == "Wkv" else [whole]

    def flops(self) -> int:
        """Count the projections, and for each head the two products with a matrix (T, S)."""
        shapes: Any = self.input_shape or ((0, 0), (0, 0))
        (T, _), (S, _) = shapes
        own = T * (self.Wq.size + self.Wo.size) + S * self.Wkv.size
        return 2 * own + 4 * T * S * len(self.Wo)


class _Assembled(Chain):
    """Base class of chains that make their layers when the number of features D is known."""

    def create(self, shape: Shape) -> Shape:
        if not self.layers:
            self.layers = self.adopt(self._assembled(shape[-1]))
        return super().create(shape)

    def _assembled(self, D: int) -> list[Layer]:
        """Return the layers."""
        raise NotImplementedError


class _Gated(_Assembled):
    """Base class of feed-forward networks in which one product gates another."""

    def __init__(self, hidden: int, *, bias: bool = False) -> None:
        self.hidden = check_count(hidden, f"{type(self).__name__} hidden")
        self.bias = check_flag(bias, f"{type(self).__name__} bias")

    def _gate(self) -> Layer:
        """Return the activation of the gate."""
        return SiLU()

    def _assembled(self, D: int) -> list[Layer]:
        return [_gated(self.hidden, self._gate(), self.bias), Dense(D, bias=self.bias)]


def _gated(hidden: int, gate: Layer, bias: bool) -> Layer:
    """Return the layer gate(X W1) (X W3)."""
    W1, W3 = (Dense(hidden, bias=bias) for _ in range(2))
    return Parallel(Chain(W1, gate), W3, merge="multiply")


class SwiGLU(_Gated):
    """A feed-forward network with a SiLU gate, Y = (silu(X W1) (X W3)) W2, at each position.

    Shapes: X, Y, dX, dY are (N, ..., D); W1 and W3 are (D, hidden), W2 is (hidden, D). With
    bias=True, each product has a bias.

    Backward is the chain rule through the layers inside: layers.0 is the product of the two
    branches (Chain(Dense, SiLU), Dense), and layers.1 is the last Dense.
    Source: Shazeer 2020, "GLU variants improve transformer", arXiv:2002.05202, eq. 6.
    """


class GEGLU(_Gated):
    """A feed-forward network with a GELU gate, Y = (gelu(X W1) (X W3)) W2, at each position.

    Shapes: X, Y, dX, dY are (N, ..., D); W1 and W3 are (D, hidden), W2 is (hidden, D). With
    bias=True, each product has a bias. `approximate` is GELU's: "none" or "tanh".

    Backward is the chain rule through the layers inside, as in SwiGLU.
    Source: Shazeer 2020, "GLU variants improve transformer", arXiv:2002.05202, eq. 6.
    """

    def __init__(self, hidden: int, *, approximate: str = "none", bias: bool = False) -> None:
        super().__init__(hidden, bias=bias)
        self.approximate = GELU(approximate).approximate

    def _gate(self) -> Layer:
        return GELU(self.approximate)


class FeedForward(_Assembled):
    """Two Dense layers with an activation between them, at each position: D -> hidden -> D.

    Shapes: X, Y, dX, dY are (N, T, D).

    activation    "gelu", "gelu_tanh" (the approximation that GPT-2 uses), "relu", "silu", or
                  "swiglu" or "geglu": the networks SwiGLU and GEGLU with biases

    Backward is the chain rule through the layers inside.
    Source: Vaswani et al. 2017, arXiv:1706.03762, sec. 3.3.
    """

    ACTIVATIONS: ClassVar[dict[str, Callable[[], Layer]]] = {
        "gelu": GELU,
        "gelu_tanh": lambda: GELU("tanh"),
        "relu": ReLU,
        "silu": SiLU,
    }
    GATES: ClassVar[dict[str, Callable[[], Layer]]] = {"swiglu": SiLU, "geglu": GELU}

    def __init__(self, hidden: int, activation: str = "gelu") -> None:
        self.hidden = check_count(hidden, "FeedForward hidden")
        kinds = (*self.ACTIVATIONS, *self.GATES)
        self.activation = check_option(activation, "FeedForward activation", kinds)

    def _assembled(self, D: int) -> list[Layer]:
        if self.activation in self.GATES:
            return [_gated(self.hidden, self.GATES[self.activation](), bias=True), Dense(D)]
        return [Dense(self.hidden), self.ACTIVATIONS[self.activation](), Dense(D)]


@dataclass(eq=False, repr=False)
class TransformerBlock(_Assembled):
    """Attention, then a feed-forward network, each with a residual connection and a norm.

    Shapes: X, Y, dX, dY are (N, T, D).

        pre_norm     X + attention(norm(X)), then the same with the network
        otherwise    norm(X + attention(X)), then the same with the network

    The network's hidden layer has mlp_ratio times D units. For `activation` see FeedForward;
    `norm` is "layer" or "rms". Backward is the chain rule through the layers inside.
    Sources: Vaswani et al. 2017, arXiv:1706.03762, sec. 3; pre-norm: Xiong et al. 2020,
    arXiv:2002.04745.
    """

    heads: int
    _: KW_ONLY
    mlp_ratio: float = 4
    activation: str = "gelu"
    causal: bool = False
    norm: Annotated[str, partial(check_option, options=("layer", "rms"))] = "layer"
    pre_norm: Flag = True
    dropout: float = 0.0
    rope: bool | Rope = False
    checkpoint: Flag = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.mlp_ratio, "TransformerBlock mlp_ratio", above=0, below=sys.maxsize)
        # check the other settings now, not in create
        MultiHeadAttention(self.heads, causal=self.causal, dropout=self.dropout, rope=self.rope)
        FeedForward(1, self.activation)

    @property
    def time_steps(self) -> str:
        return "remembered" if self.causal else "joined"

    def _assembled(self, D: int) -> list[Layer]:
        network = FeedForward(round(self.mlp_ratio * D), self.activation)
        attention = MultiHeadAttention(
            self.heads, causal=self.causal, rope=self.rope, dropout=self.dropout
        )
        return [*self._residual(attention), *self._residual(network)]

    def _residual(self, layer: Layer) -> list[Layer]:
        """Return the layers of X + layer(X), with the norm before `layer` or after the sum."""
        norm = LayerNorm() if self.norm == "layer" else RMSNorm()
        dropout = [Dropout(self.dropout)] if self.dropout else []
        if self.pre_norm:
            return [Residual(norm, layer, *dropout)]
        return [Residual(layer, *dropout), norm]
