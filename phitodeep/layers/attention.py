"""Attention, and the transformer block built from it."""

from __future__ import annotations

import functools
import math
import sys
from typing import Any

import numpy as np

from phitodeep.checks import check_count, check_flag, check_number, check_option
from phitodeep.derivations import attention as derived
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.functional import cos_and_sin, softmax, softmax_rows_back, sum_rows
from phitodeep.initialization import Initializer, Xavier, check_initializer
from phitodeep.kernels import kernel
from phitodeep.layers.activation import GELU, ReLU, SiLU
from phitodeep.layers.base import Layer, Param, RandomKey
from phitodeep.layers.call import current
from phitodeep.layers.chain import Chain
from phitodeep.layers.containers import Parallel, Residual
from phitodeep.layers.dense import Dense
from phitodeep.layers.embedding import rotate
from phitodeep.layers.normalization import LayerNorm, RMSNorm
from phitodeep.layers.regularization import Dropout
from phitodeep.types import Array, Shape

SCORES = 2**18  # scores per head in memory: a longer sequence is processed in blocks of queries


class MultiHeadAttention(Layer):
    """A weighted average of the values at all positions, with weights from queries and keys.

    Shapes: X, Y, dX, dY are (N, T, D). There are h = `heads` heads of size d = D / h, and
    k = `kv_heads` heads of keys and values (h by default), each shared by h / k query heads. Wqkv
    is (D, D + 2 k d): all queries, then keys, then values, head by head; bqkv is (D + 2 k d,), Wo
    is (D, D), and bo is (D,).

    Forward, for one head:

        Q, K, V = X Wqkv + bqkv        S = Q K^T / sqrt(d)        P = softmax(S)
        Z = P V                        Y = (Z of all heads) Wo + bo

    causal    position t attends only to positions up to t
    rope      Q and K are rotated by angles that depend on the position
    dropout   applied to P
    mask      padding is never attended to

    A position that is not attended to has P = 0, whatever its score. A query that may attend to no
    position, or only to scores of -inf, has Z = 0 and no gradient.

    Backward. Through the products and the softmax (see Softmax), with m the dropout factors:

        dV = (P m)^T dZ        dP = (dZ V^T) m        dS = P (dP - sum_j dP_j P_j)
        dQ = dS K / sqrt(d)    dK = dS^T Q / sqrt(d)

    For long sequences P is not kept: backward computes it again, for a block of queries at a time.

    Sources: Vaswani et al. 2017, arXiv:1706.03762, eq. 1; kv_heads: Ainslie et al. 2023,
    arXiv:2305.13245.
    """

    Wqkv = Param(decay=True)
    bqkv = Param()
    Wo = Param(decay=True)
    bo = Param()
    independent_samples = True

    steps = derived.multi_head_attention

    def __init__(
        self,
        heads: int,
        *,
        causal: bool = False,
        kv_heads: int | None = None,
        rope: bool = False,
        dropout: float = 0.0,
        bias: bool = True,
        initializer: Initializer = Xavier(),
    ) -> None:
        super().__init__()
        self.heads = check_count(heads, "MultiHeadAttention heads")
        if kv_heads is not None and heads % check_count(kv_heads, "MultiHeadAttention kv_heads"):
            raise ArgumentError(
                f"MultiHeadAttention: {heads} heads are not divisible by {kv_heads} kv_heads."
            )
        self.kv_heads = kv_heads
        self.causal = check_flag(causal, "MultiHeadAttention causal")
        self.rope = check_flag(rope, "MultiHeadAttention rope")
        self.bias = check_flag(bias, "MultiHeadAttention bias")
        self.dropout = check_number(dropout, "MultiHeadAttention dropout", minimum=0, below=1)
        self.initializer = check_initializer(initializer, "MultiHeadAttention")

    def create(self, shape: Shape) -> Shape:
        if len(shape) != 2:
            raise ShapeError(f"{self!r} takes samples of shape (T, D), got {shape}.")
        D = shape[-1]
        if D % self.heads or (self.rope and D // self.heads % 2):
            even = " of even size, which rope requires" if self.rope else ""
            raise ShapeError(f"{self!r}: D = {D} cannot be divided into {self.heads} heads{even}.")
        width = D + 2 * (self.kv_heads or self.heads) * (D // self.heads)
        self.Wqkv = self.draw(self.initializer, (D, width))
        self.Wo = self.draw(self.initializer, (D, D))
        if self.bias:
            self.bqkv, self.bo = self.full(width, 0), self.full(D, 0)
        return shape

    def forward(self, X: Array) -> Array:
        D = len(self.Wqkv)
        if X.ndim != 3 or X.shape[-1] != D:
            raise ShapeError(f"{self!r} takes X (N, T, {D}), got shape {X.shape}.")
        call, mask = current(), self.check_steps(X)
        (N, T, _), width = X.shape, self.Wqkv.shape[1]
        X = X.reshape(N * T, D)
        QKV = np.matmul(X, self.Wqkv, out=self.buffer("QKV", (N * T, width), X.dtype))
        if self.bias:
            QKV += self.bqkv
        Q, K, V = self._split(QKV, N)
        past = None if call.memory is None else call.memory.get(self)
        start = 0 if past is None else past[0].shape[-2]  # the position of the first query
        rotation = cos_and_sin(start, T, Q.shape[-1], 10000.0, X.dtype) if self.rope else None
        if rotation is not None:
            Q, K = rotate(Q, *rotation), rotate(K, *rotation)
        if call.memory is not None:
            if past is not None:
                K, V = np.concatenate([past[0], K], -2), np.concatenate([past[1], V], -2)
            call.memory[self] = K, V
        scale = 1 / math.sqrt(Q.shape[-1])  # applied to Q, which is smaller than S
        Q = np.multiply(Q, scale, out=self.buffer("Q", Q.shape, X.dtype))
        Z = self.buffer("Z", (N * T, D), X.dtype)
        Z_h = self._heads(Z, N)
        random_key = self._random_key() if self.dropout and call.training else None
        blocks = self._blocks(T, K.shape[-2], start)
        for i, (q, k) in enumerate(blocks):
            P = self._probabilities(Q[..., q, :], K[..., k, :], start + q.start, mask)
            m = None if random_key is None else self._dropout_factors(P, random_key, i)
            np.matmul(P if m is None else P * m, V[..., k, :], out=Z_h[..., q, :])
        kept = P if len(blocks) == 1 else None
        self.save_for_backward(
            X=X, Q=Q, K=K, V=V, P=kept, Z=Z, rotation=rotation, random_key=random_key, mask=mask
        )
        Y = np.matmul(Z, self.Wo, out=self.buffer("Y", (N * T, D), X.dtype))
        if self.bias:
            Y += self.bo
        return Y.reshape(N, T, D)

    def backward(self, dY: Array) -> Array | None:
        X, Q, K, V, kept, Z = self.saved("X", "Q", "K", "V", "P", "Z")
        rotation, random_key, mask = self.saved("rotation", "random_key", "mask")
        N, T, D = dY.shape
        dY = dY.reshape(N * T, D)
        dZ = np.matmul(dY, self.Wo.T, out=self.buffer("dZ", (N * T, D), dY.dtype))
        dQKV = self.buffer("dQKV", (N * T, self.Wqkv.shape[1]), dY.dtype)
        dZ_h, (dQ, dK, dV) = self._heads(dZ, N), self._split(dQKV, N)
        blocks = self._blocks(T, T, 0)  # no backward pass follows generation
        add = len(blocks) > 1  # dK and dV are sums over the blocks
        if add:
            dQKV.fill(0)
        for i, (q, k) in enumerate(blocks):
            Q_q, dZ_q, K_k = Q[..., q, :], dZ_h[..., q, :], K[..., k, :]
            P = self._probabilities(Q_q, K_k, q.start, mask) if kept is None else kept
            m = None if random_key is None else self._dropout_factors(P, random_key, i)
            dP = self.buffer("dP", P.shape, dY.dtype)
            np.matmul(dZ_q, V[..., k, :].swapaxes(-1, -2), out=dP)
            if m is not None:
                dP *= m
            self._transposed_product(P if m is None else P * m, dZ_q, dV[..., k, :], add)
            keys = P.shape[-1]
            softmax_rows_back(dP.reshape(-1, keys), P.reshape(-1, keys))  # dP is now dS
            np.matmul(dP, K_k, out=dQ[..., q, :])
            self._transposed_product(dP, Q_q, dK[..., k, :], add)
        dQ *= 1 / math.sqrt(Q.shape[-1])  # dK has this factor already, from the scaled Q
        if rotation is not None:
            cos, sin = rotation
            dQ[...], dK[...] = rotate(dQ, cos, -sin), rotate(dK, cos, -sin)
        np.matmul(X.T, dQKV, out=self.grad_array("Wqkv"))
        np.matmul(Z.T, dY, out=self.grad_array("Wo"))
        if self.bias:
            sum_rows(dQKV, out=self.grad_array("bqkv"))
            sum_rows(dY, out=self.grad_array("bo"))
        if not current().needs_dX:
            return None
        dX = np.matmul(dQKV, self.Wqkv.T, out=self.buffer("dX", (N * T, D), dY.dtype))
        return dX.reshape(N, T, D)

    # --- the parts of both passes, in order ----------------------------------------------

    def _split(self, QKV: Array, N: int) -> tuple[Array, Array, Array]:
        """Return queries, keys and values as views (N, k, heads / k or 1, T, d)."""
        D = len(self.Wqkv)
        end = (QKV.shape[1] + D) // 2  # of the keys' columns
        return (
            self._heads(QKV[:, :D], N),
            self._heads(QKV[:, D:end], N),
            self._heads(QKV[:, end:], N),
        )

    def _heads(self, A: Array, N: int) -> Array:
        """Return A (N T, heads d) as a view (N, k, heads / k, T, d), for k heads of keys."""
        k, d = self.kv_heads or self.heads, len(self.Wqkv) // self.heads
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
        return mask

    def matrices(self, name: str, W: Array) -> list[Array]:
        """Return one matrix each for queries, keys and values."""
        (whole,) = super().matrices(name, W)
        if name != "Wqkv":
            return [whole]
        Q, KV = np.split(whole, [whole.shape[1]], axis=-1)
        return [Q, *np.split(KV, 2, axis=-1)]

    def flops(self) -> int:
        """Count the projections, and for each head the two products with a matrix (T, T)."""
        T, D = self.input_shape or (0, 0)
        return T * (2 * (self.Wqkv.size + self.Wo.size) + 4 * T * D)


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


class FeedForward(Chain):
    """Two Dense layers with an activation between them, at each position: D -> hidden -> D.

    Shapes: X, Y, dX, dY are (N, T, D).

    activation    "gelu", "gelu_tanh" (the approximation that GPT-2 uses), "relu", or "swiglu":
                  Y = (silu(X W1) (X W3)) W2, plus a bias after each product

    Backward is the chain rule through the layers inside.
    Sources: Vaswani et al. 2017, arXiv:1706.03762, sec. 3.3; swiglu: Shazeer 2020,
    arXiv:2002.05202.
    """

    def __init__(self, hidden: int, activation: str = "gelu") -> None:
        super().__init__()
        self.hidden = check_count(hidden, "FeedForward hidden")
        kinds = ("gelu", "gelu_tanh", "relu", "swiglu")
        self.activation = check_option(activation, "FeedForward activation", kinds)

    def create(self, shape: Shape) -> Shape:
        if not self.layers:
            widen, narrow = Dense(self.hidden), Dense(shape[-1])
            if self.activation == "swiglu":
                gate = Chain(widen, SiLU())
                first: list[Layer] = [Parallel(gate, Dense(self.hidden), merge="multiply")]
            else:
                kinds = {"gelu": GELU(), "gelu_tanh": GELU("tanh"), "relu": ReLU()}
                first = [widen, kinds[self.activation]]
            self.layers = self.adopt([*first, narrow])
        return super().create(shape)


class TransformerBlock(Chain):
    """Attention, then a feed-forward network, each with a residual connection and a norm.

    Shapes: X, Y, dX, dY are (N, T, D).

        pre_norm     X + attention(norm(X)), then the same with the network
        otherwise    norm(X + attention(X)), then the same with the network

    The network's hidden layer has mlp_ratio times D units. For `activation` see FeedForward;
    `norm` is "layer" or "rms". Backward is the chain rule through the layers inside.
    Sources: Vaswani et al. 2017, arXiv:1706.03762, sec. 3; pre-norm: Xiong et al. 2020,
    arXiv:2002.04745.
    """

    def __init__(
        self,
        heads: int,
        *,
        mlp_ratio: float = 4,
        activation: str = "gelu",
        causal: bool = False,
        norm: str = "layer",
        pre_norm: bool = True,
        dropout: float = 0.0,
        rope: bool = False,
        checkpoint: bool = False,
    ) -> None:
        super().__init__(checkpoint=checkpoint)
        self.norm = check_option(norm, "TransformerBlock norm", ("layer", "rms"))
        check_number(mlp_ratio, "TransformerBlock mlp_ratio", above=0, below=sys.maxsize)
        self.heads, self.mlp_ratio, self.activation = heads, mlp_ratio, activation
        self.pre_norm = check_flag(pre_norm, "TransformerBlock pre_norm")
        self.causal, self.dropout, self.rope = causal, dropout, rope
        # check the settings now, not in create
        MultiHeadAttention(heads, causal=causal, dropout=dropout, rope=rope)
        FeedForward(1, activation)

    @property
    def time_steps(self) -> str:
        return "remembered" if self.causal else "joined"

    def create(self, shape: Shape) -> Shape:
        if not self.layers:
            network = FeedForward(round(self.mlp_ratio * shape[-1]), self.activation)
            attention = MultiHeadAttention(
                self.heads, causal=self.causal, rope=self.rope, dropout=self.dropout
            )
            self.layers = self.adopt([*self._residual(attention), *self._residual(network)])
        return super().create(shape)

    def _residual(self, layer: Layer) -> list[Layer]:
        """Return the layers of X + layer(X), with the norm before `layer` or after the sum."""
        norm = LayerNorm() if self.norm == "layer" else RMSNorm()
        dropout = [Dropout(self.dropout)] if self.dropout else []
        if self.pre_norm:
            return [Residual(norm, layer, *dropout)]
        return [Residual(layer, *dropout), norm]
