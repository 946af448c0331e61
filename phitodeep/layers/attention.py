"""Attention, and the transformer block that is made of it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from phitodeep.checks import check_count, check_number
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.functional import softmax, softmax_rows_back, sum_rows
from phitodeep.initialization import Initializer, Xavier
from phitodeep.kernels import kernel
from phitodeep.layers.activation import GELU, ReLU, SiLU
from phitodeep.layers.base import Layer, Param, RandomKey
from phitodeep.layers.call import current
from phitodeep.layers.containers import Chain, Parallel, Residual
from phitodeep.layers.dense import Dense
from phitodeep.layers.embedding import rotate, turning
from phitodeep.layers.normalization import LayerNorm, RMSNorm
from phitodeep.layers.regularization import Dropout
from phitodeep.types import Array, DType, Shape

SCORES = 2**18  # scores of one head that are held at once; longer sequences go by query blocks


class MultiHeadAttention(Layer):
    """Each place looks at the others, and takes from those that answer its query.

    Shapes: X, Y, dX, dY are (N, T, D). With `heads` h of size d = D / h, and `kv_heads` k (h
    unless given; fewer are shared by groups of h / k queries), Wqkv is (D, D + 2 k d): all
    queries, then keys, then values, head by head; bqkv (D + 2 k d,), Wo (D, D), bo (D,).

    Forward, for one head:

        Q, K, V = X Wqkv + bqkv        S = Q K^T / sqrt(d)        P = softmax(S)
        Z = P V                        Y = (Z of all heads) Wo + bo

    causal    place t sees places up to t only       rope    Q and K are turned by their places
    dropout   on P                                   mask    padding is not seen

    What is not seen has P = 0, whatever its score. A place that sees nothing, or nothing but
    scores of -inf, has Z = 0 and no gradient.

    Backward. Through the products and the softmax (see Softmax), with m the dropout's factors:

        dV = (P m)^T dZ        dP = (dZ V^T) m        dS = P (dP - sum_j dP_j P_j)
        dQ = dS K / sqrt(d)    dK = dS^T Q / sqrt(d)

    For long sequences P is not kept: it is made again, for a block of queries at a time.

    Sources: Vaswani et al. 2017, arXiv:1706.03762, eq. 1; kv_heads: Ainslie et al. 2023,
    arXiv:2305.13245.
    """

    Wqkv = Param(decay=True)
    bqkv = Param()
    Wo = Param(decay=True)
    bo = Param()
    independent_samples = True

    @property
    def steps(self) -> str:
        return "remembered" if self.causal else "joined"

    def compute_mask(self, mask: Array) -> Array | None:
        return mask

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
                f"MultiHeadAttention: {heads} heads do not divide by {kv_heads} kv_heads."
            )
        self.kv_heads = kv_heads
        self.causal, self.rope, self.bias = causal, rope, bias
        self.dropout = check_number(dropout, "MultiHeadAttention dropout", least=0, below=1)
        self.initializer = initializer

    def create(self, shape: Shape) -> Shape:
        if len(shape) != 2:
            raise ShapeError(f"{self!r} takes samples of shape (T, D), got {shape}.")
        D = shape[-1]
        if D % self.heads or (self.rope and D // self.heads % 2):
            even = " of even size, for rope" if self.rope else ""
            raise ShapeError(f"{self!r}: D = {D} does not divide by {self.heads} heads{even}.")
        wide = D + 2 * (self.kv_heads or self.heads) * (D // self.heads)
        self.Wqkv = self.draw(self.initializer, (D, wide))
        self.Wo = self.draw(self.initializer, (D, D))
        if self.bias:
            self.bqkv, self.bo = np.zeros(wide), np.zeros(D)
        return shape

    def forward(self, X: Array) -> Array:
        D = len(self.Wqkv)
        if X.ndim != 3 or X.shape[-1] != D:
            raise ShapeError(f"{self!r} takes X (N, T, {D}), got shape {X.shape}.")
        call = current()
        mask = self.check_steps(X)
        N, T, _ = X.shape
        QKV = self.buffer("QKV", (N, T, self.Wqkv.shape[1]), X.dtype)
        np.matmul(X.reshape(N * T, D), self.Wqkv, out=QKV.reshape(N * T, -1))
        if self.bias:
            QKV += self.bqkv
        Q, K, V = self._split(QKV)
        past = None if call.memory is None else call.memory.get(self)
        start = 0 if past is None else past[0].shape[-2]
        turn = turning(start, T, Q.shape[-1], 10000.0, X.dtype) if self.rope else None
        if turn is not None:
            Q, K = rotate(Q, *turn), rotate(K, *turn)
        if call.memory is not None:
            if past is not None:
                K, V = np.concatenate([past[0], K], -2), np.concatenate([past[1], V], -2)
            call.memory[self] = K, V
        scale = 1 / math.sqrt(Q.shape[-1])  # on Q, and so not on the larger S
        Q = np.multiply(Q, scale, out=self.buffer("Q", Q.shape, X.dtype))
        Z = self.buffer("Z", (N, T, D), X.dtype)
        Z_h = self._heads(Z)
        ticket = self._random_key() if self.dropout and call.training else None
        blocks = list(self._blocks(T, K.shape[-2], start))
        for part, (rows, seen) in enumerate(blocks):
            P = self._attend(Q[..., rows, :], K[..., seen, :], start + rows.start, mask)
            m = self._factors(P.shape, P.dtype, ticket, part)
            np.matmul(P if m is None else P * m, V[..., seen, :], out=Z_h[..., rows, :])
        kept = P if len(blocks) == 1 else None
        self.save_for_backward(X=X, Q=Q, K=K, V=V, Z=Z, P=kept, turn=turn, ticket=ticket, mask=mask)
        Y = self.buffer("Y", (N, T, D), X.dtype)
        np.matmul(Z.reshape(N * T, D), self.Wo, out=Y.reshape(N * T, D))
        if self.bias:
            Y += self.bo
        return Y

    def backward(self, dY: Array) -> Array | None:
        X, Q, K, V, Z = self.saved("X", "Q", "K", "V", "Z")
        kept, turn, ticket, mask = self.saved("P", "turn", "ticket", "mask")
        N, T, D = X.shape
        rows_X, rows_Z, rows_dY = (A.reshape(N * T, D) for A in (X, Z, dY))
        dZ = self.buffer("dZ", (N, T, D), dY.dtype)
        np.matmul(rows_dY, self.Wo.T, out=dZ.reshape(N * T, D))
        dZ_h = self._heads(dZ)
        dQKV = self.buffer("dQKV", (N, T, self.Wqkv.shape[1]), dY.dtype)
        dQ, dK, dV = self._split(dQKV)
        blocks = list(self._blocks(T, T, 0))  # no pass goes back through generation
        if len(blocks) > 1:  # whose shares of dK and dV are added up
            dQKV.fill(0)
        for part, (rows, seen) in enumerate(blocks):
            Q_b, K_s, V_s, dZ_b = (
                Q[..., rows, :],
                K[..., seen, :],
                V[..., seen, :],
                dZ_h[..., rows, :],
            )
            P = self._attend(Q_b, K_s, rows.start, mask) if kept is None else kept
            m = self._factors(P.shape, P.dtype, ticket, part)
            dP = self.buffer("dP", P.shape, dY.dtype)
            np.matmul(dZ_b, V_s.swapaxes(-1, -2), out=dP)
            if m is not None:
                dP *= m
            add = len(blocks) > 1
            self._share(P if m is None else P * m, dZ_b, dV[..., seen, :], add)
            keys = P.shape[-1]
            softmax_rows_back(dP.reshape(-1, keys), P.reshape(-1, keys))  # now dS
            np.matmul(dP, K_s, out=dQ[..., rows, :])
            self._share(dP, Q_b, dK[..., seen, :], add)
        dQ *= 1 / math.sqrt(Q.shape[-1])
        if turn is not None:
            cos, sin = turn
            dQ[...], dK[...] = rotate(dQ, cos, -sin), rotate(dK, cos, -sin)
        rows_dQKV = dQKV.reshape(N * T, -1)
        np.matmul(rows_X.T, rows_dQKV, out=self.grad_array("Wqkv"))
        np.matmul(rows_Z.T, rows_dY, out=self.grad_array("Wo"))
        if self.bias:
            sum_rows(rows_dQKV, out=self.grad_array("bqkv"))
            sum_rows(rows_dY, out=self.grad_array("bo"))
        if not current().needs_dX:
            return None
        dX = self.buffer("dX", (N, T, D), dY.dtype)
        np.matmul(rows_dQKV, self.Wqkv.T, out=dX.reshape(N * T, D))
        return dX

    # --- the pieces ------------------------------------------------------------------------

    def _heads(self, A: Array) -> Array:
        """(N, T, heads d) as a view (N, k, heads / k, T, d), k the key heads."""
        k = self.kv_heads or self.heads
        split = A.reshape(*A.shape[:2], k, -1, len(self.Wqkv) // self.heads)
        return split.transpose(0, 2, 3, 1, 4)

    def _split(self, QKV: Array) -> tuple[Array, Array, Array]:
        """Queries, keys and values as views (N, k, heads / k or 1, T, d)."""
        D = len(self.Wqkv)
        wide = (QKV.shape[-1] - D) // 2
        parts = (QKV[..., :D], QKV[..., D : D + wide], QKV[..., D + wide :])
        Q, K, V = map(self._heads, parts)
        return Q, K, V

    def _blocks(self, T: int, keys: int, start: int) -> Iterator[tuple[slice, slice]]:
        """Slices of queries, and of the keys that they may see."""
        size = max(1, SCORES // keys)
        for first in range(0, T, size):
            last = min(first + size, T)
            yield slice(first, last), slice(0, start + last if self.causal else keys)

    def _attend(self, Q: Array, K: Array, place: int, mask: Array | None) -> Array:
        """P for the queries Q (scaled), the first of which is at `place`, on the keys K."""
        rows, keys = Q.shape[-2], K.shape[-2]
        S = self.buffer("S", (*Q.shape[:-1], keys), Q.dtype)
        np.matmul(Q, K.swapaxes(-1, -2), out=S)
        if self.causal and mask is None:
            causal_softmax(S.reshape(-1, rows, keys), place)
            return S
        if mask is None:
            return softmax(S, out=S)
        seen = np.broadcast_to(mask[:, None, :keys], (len(mask), rows, keys))
        if self.causal:
            seen = seen & (np.arange(keys) <= np.arange(place, place + rows)[:, None])
        seen = seen[:, None, None]
        np.copyto(S, -np.inf, where=~seen)
        return softmax(S, out=S)

    def _factors(
        self, shape: Shape, dtype: DType, ticket: RandomKey | None, part: int
    ) -> Array | None:
        """Dropout's factors of P, 0 or 1 / (1 - rate); None where nothing is dropped."""
        if ticket is None:
            return None
        m = (self.uniform(shape, ticket, part) >= self.dropout).astype(dtype)
        m *= 1 / (1 - self.dropout)
        return m

    def _share(self, A: Array, B: Array, out: Array, add: bool) -> None:
        """Write A^T B to `out`, or add it there, summed over the query heads of a key head."""
        if A.shape[2] == 1 and not add:
            np.matmul(A.swapaxes(-1, -2), B, out=out)
            return
        product = np.matmul(A.swapaxes(-1, -2), B).sum(axis=2, keepdims=True)
        np.add(out, product, out=out) if add else np.copyto(out, product)

    def matrices(self, name: str, W: Array) -> list[Array]:
        """Queries, keys and values are three."""
        (whole,) = super().matrices(name, W)
        if name != "Wqkv":
            return [whole]
        Q, KV = np.split(whole, [whole.shape[1]], axis=-1)
        return [Q, *np.split(KV, 2, axis=-1)]

    def flops(self) -> int:
        """The four projections, and two products of T by T for each head."""
        T, D = self.input_shape or (0, 0)
        return T * (2 * (self.Wqkv.size + self.Wo.size) + 4 * T * D)


@functools.lru_cache(maxsize=64)
def _highest(rows: int, dtype: np.dtype[Any]) -> Array:
    """The highest scores that may be: -inf where the key comes after the query, else inf."""
    limit = np.where(np.tri(rows, dtype=bool), np.inf, -np.inf).astype(dtype)
    limit.flags.writeable = False
    return limit


@kernel
def causal_softmax(S: Array, place: int) -> None:
    """S (n, rows, keys) <- its softmax over the keys up to each row's own, the first of which is
    at `place`."""
    own = S[..., place:]  # the rows' own places are the last keys
    np.fmin(own, _highest(S.shape[1], S.dtype), out=own)  # which NaN does not pass either
    softmax(S, out=S)


class FeedForward(Chain):
    """Two Dense layers with an activation between, at each place: D -> hidden -> D.

    activation    "gelu", "gelu_tanh" (its approximation, which GPT-2 has) or "relu"; or
                  "swiglu": silu(X W1) times X W3, then W2
    Shapes: X, Y are (N, T, D). Backward: that of the layers it holds.
    Sources: Vaswani et al. 2017, arXiv:1706.03762, sec. 3.3; swiglu: Shazeer 2020,
    arXiv:2002.05202.
    """

    def __init__(self, hidden: int, activation: str = "gelu") -> None:
        super().__init__()
        self.hidden = check_count(hidden, "FeedForward hidden")
        if activation not in ("gelu", "gelu_tanh", "relu", "swiglu"):
            raise ArgumentError(
                'FeedForward activation must be "gelu", "gelu_tanh", "relu" or "swiglu", '
                f"got {activation!r}."
            )
        self.activation = activation

    def create(self, shape: Shape) -> Shape:
        if not self.layers:
            wide, narrow = Dense(self.hidden), Dense(shape[-1])
            if self.activation == "swiglu":
                gate = Chain(wide, SiLU())
                first: list[Layer] = [Parallel(gate, Dense(self.hidden), merge="multiply")]
            else:
                kinds = {"gelu": GELU(), "gelu_tanh": GELU("tanh"), "relu": ReLU()}
                first = [wide, kinds[self.activation]]
            self.layers = self.adopt([*first, narrow])
        return super().create(shape)


class TransformerBlock(Chain):
    """Attention, then a feed-forward net, each on a residual road with a norm.

        pre_norm     X + attention(norm(X)), then the same with the net
        otherwise    norm(X + attention(X)), then the same with the net

    mlp_ratio is the net's width over D; activation is that of FeedForward; norm is "layer" or
    "rms".
    Shapes: X, Y, dX, dY are (N, T, D). Backward: that of the layers it holds.
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
        if norm not in ("layer", "rms"):
            raise ArgumentError(f'TransformerBlock norm must be "layer" or "rms", got {norm!r}.')
        check_number(mlp_ratio, "TransformerBlock mlp_ratio", above=0)
        self.heads, self.mlp_ratio, self.activation = heads, mlp_ratio, activation
        self.causal, self.norm, self.pre_norm = causal, norm, pre_norm
        self.dropout, self.rope = dropout, rope
        MultiHeadAttention(heads, dropout=dropout)  # these refuse what they would refuse later
        FeedForward(1, activation)

    @property
    def steps(self) -> str:
        return "remembered" if self.causal else "joined"

    def create(self, shape: Shape) -> Shape:
        if not self.layers:
            net = FeedForward(round(self.mlp_ratio * shape[-1]), self.activation)
            attention = MultiHeadAttention(
                self.heads, causal=self.causal, rope=self.rope, dropout=self.dropout
            )
            self.layers = self.adopt([*self._road(attention), *self._road(net)])
        return super().create(shape)

    def _road(self, layer: Layer) -> list[Layer]:
        norm = LayerNorm() if self.norm == "layer" else RMSNorm()
        dropout = [Dropout(self.dropout)] if self.dropout else []
        if self.pre_norm:
            return [Residual(norm, layer, *dropout)]
        return [Residual(layer, *dropout), norm]
