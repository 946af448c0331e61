"""Scaled dot-product attention: from queries, keys and values to weighted averages."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from phitodeep.core.call import current
from phitodeep.core.checks import check_count, check_flag, check_number
from phitodeep.core.types import Array, Shape
from phitodeep.derivations import attention as derived
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.functional import softmax, softmax_rows_back
from phitodeep.functional.rotary import Rope, check_rope
from phitodeep.kernels import kernel
from phitodeep.layers.base import Layer, RandomKey
from phitodeep.layers.embedding import rotate

__all__ = ["ScaledDotProductAttention"]

SCORES = 2**18  # scores per head in memory: a longer sequence is processed in blocks of queries


class Attention(Layer):
    """Base class of layers with attention: its settings, and both passes from QKV to Z.

    QKV (N T, (h + 2 k) d) holds all queries, then keys, then values, head by head, for h = `heads`
    heads and k = `kv_heads` heads of keys and values (h by default) of size d. Z (N T, h d) is P V
    of all heads, side by side.
    """

    independent_samples = True
    _mask_remedy = "use a Rope whose angles do not depend on the length of the sequence"

    def __init__(
        self,
        heads: int,
        *,
        causal: bool = False,
        kv_heads: int | None = None,
        rope: bool | Rope = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self.heads = check_count(heads, f"{name} heads")
        if kv_heads is not None and heads % check_count(kv_heads, f"{name} kv_heads"):
            raise ArgumentError(f"{name}: {heads} heads are not divisible by {kv_heads} kv_heads.")
        self.kv_heads = kv_heads
        self.causal = check_flag(causal, f"{name} causal")
        self.rope = check_rope(rope, f"{name} rope")
        self.dropout = check_number(dropout, f"{name} dropout", minimum=0, below=1)

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
        T = len(QKV) // N
        Q, K, V = self._split(QKV, N)
        d = Q.shape[-1]
        past = None if call.memory is None else call.memory.get(self)
        start = 0 if past is None else past[0].shape[-2]  # the position of the first query
        rotary = self.rotary
        rotation = None if rotary is None else rotary.cos_and_sin(start, T, d, QKV.dtype)
        if rotation is not None:
            Q, K = rotate(Q, *rotation), rotate(K, *rotation)
        if call.memory is not None:
            if past is not None:
                K, V = np.concatenate([past[0], K], -2), np.concatenate([past[1], V], -2)
            call.memory[self] = K, V
        scale = 1 / math.sqrt(d)  # applied to Q, which is smaller than S
        Q = np.multiply(Q, scale, out=self.buffer("Q", Q.shape, QKV.dtype))
        Z = self.buffer("Z", (N * T, self.heads * d), QKV.dtype)
        Z_h = self._by_head(Z, N, d)
        random_key = self._random_key() if self.dropout and call.training else None
        blocks = self._blocks(T, K.shape[-2], start)
        for i, (q, k) in enumerate(blocks):
            P = self._probabilities(Q[..., q, :], K[..., k, :], start + q.start, mask)
            m = None if random_key is None else self._dropout_factors(P, random_key, i)
            np.matmul(P if m is None else P * m, V[..., k, :], out=Z_h[..., q, :])
        kept = P if len(blocks) == 1 else None
        how = {"rotation": rotation, "random_key": random_key, "mask": mask}
        return Z, {"Q": Q, "K": K, "V": V, "P": kept, **how}

    def _attend_back(self, dZ: Array, N: int) -> Array:
        """Return dQKV for dZ."""
        Q, K, V, kept = self.saved("Q", "K", "V", "P")
        rotation, random_key, mask = self.saved("rotation", "random_key", "mask")
        T, d = len(dZ) // N, Q.shape[-1]
        width = (self.heads + 2 * (self.kv_heads or self.heads)) * d
        dQKV = self.buffer("dQKV", (N * T, width), dZ.dtype)
        dZ_h, (dQ, dK, dV) = self._by_head(dZ, N, d), self._split(dQKV, N)
        blocks = self._blocks(T, T, 0)  # no backward pass follows generation
        add = len(blocks) > 1  # dK and dV are sums over the blocks
        if add:
            dQKV.fill(0)
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
        if rotation is not None:
            cos, sin = rotation
            dQ[...], dK[...] = rotate(dQ, cos, -sin), rotate(dK, cos, -sin)
        return dQKV

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
