"""Multi-head attention, feed-forward networks, and the transformer block built from them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from phitodeep.core.call import current
from phitodeep.core.checks import check_count, check_flag, check_number, check_option
from phitodeep.core.types import Array, Shape
from phitodeep.derivations import attention as derived
from phitodeep.errors import ShapeError
from phitodeep.functional import sum_rows
from phitodeep.functional.rotary import Rope
from phitodeep.layers.activation import GELU, ReLU, SiLU
from phitodeep.layers.base import Layer, Param
from phitodeep.layers.containers import Chain, Parallel, Residual
from phitodeep.layers.dense import Dense
from phitodeep.layers.dot_product import Attention
from phitodeep.layers.dot_product import causal_softmax as causal_softmax
from phitodeep.layers.initialization import Initializer, Xavier, check_initializer
from phitodeep.layers.normalization import LayerNorm, RMSNorm
from phitodeep.layers.regularization import Dropout

__all__ = ["GEGLU", "FeedForward", "MultiHeadAttention", "SwiGLU", "TransformerBlock"]


class MultiHeadAttention(Attention):
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
    Wo = Param(decay=True)
    bo = Param()

    steps = derived.multi_head_attention

    def __init__(
        self,
        heads: int,
        *,
        causal: bool = False,
        kv_heads: int | None = None,
        rope: bool | Rope = False,
        dropout: float = 0.0,
        bias: bool = True,
        head_dim: int | None = None,
        initializer: Initializer = Xavier(),
    ) -> None:
        super().__init__(heads, causal=causal, kv_heads=kv_heads, rope=rope, dropout=dropout)
        if head_dim is not None:
            check_count(head_dim, "MultiHeadAttention head_dim")
        self.head_dim = head_dim
        self.bias = check_flag(bias, "MultiHeadAttention bias")
        self.initializer = check_initializer(initializer, "MultiHeadAttention")

    def create(self, shape: Shape) -> Shape:
        if len(shape) != 2:
            raise ShapeError(f"{self!r} takes samples of shape (T, D), got {shape}.")
        D = shape[-1]
        if self.head_dim is None and D % self.heads:
            raise ShapeError(f"{self!r}: D = {D} cannot be divided into {self.heads} heads.")
        d = self.head_dim or D // self.heads
        self._check_size(d)
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
        (N, T, _), width = X.shape, self.Wqkv.shape[1]
        X = X.reshape(N * T, D)
        QKV = np.matmul(X, self.Wqkv, out=self.buffer("QKV", (N * T, width), X.dtype))
        if self.bias:
            QKV += self.bqkv
        Z, kept = self._attend(QKV, N, mask)
        self.save_for_backward(X=X, Z=Z, **kept)
        Y = np.matmul(Z, self.Wo, out=self.buffer("Y", (N * T, D), X.dtype))
        if self.bias:
            Y += self.bo
        return Y.reshape(N, T, D)

    def backward(self, dY: Array) -> Array | None:
        X, Z = self.saved("X", "Z")
        N, T, D = dY.shape
        dY = dY.reshape(N * T, D)
        dZ = np.matmul(dY, self.Wo.T, out=self.buffer("dZ", Z.shape, dY.dtype))
        dQKV = self._attend_back(dZ, N)
        learns = self.needs_grad("Wqkv")
        if learns:
            np.matmul(X.T, dQKV, out=self.grad_array("Wqkv"))
            np.matmul(Z.T, dY, out=self.grad_array("Wo"))
        if learns and self.bias:
            sum_rows(dQKV, out=self.grad_array("bqkv"))
            sum_rows(dY, out=self.grad_array("bo"))
        if not current().needs_dX:
            return None
        dX = np.matmul(dQKV, self.Wqkv.T, out=self.buffer("dX", (N * T, D), dY.dtype))
        return dX.reshape(N, T, D)

    # --- declarations --------------------------------------------------------------------------

    def matrices(self, name: str, W: Array) -> list[Array]:
        """Return one matrix each for queries, keys and values."""
        (whole,) = super().matrices(name, W)
        if name != "Wqkv":
            return [whole]
        queries = len(self.Wo)
        keys = (whole.shape[-1] - queries) // 2
        return np.split(whole, [queries, queries + keys], axis=-1)

    def _head_size(self) -> int:
        return len(self.Wo) // self.heads

    def flops(self) -> int:
        """Count the projections, and for each head the two products with a matrix (T, T)."""
        T, _ = self.input_shape or (0, 0)
        return T * (2 * (self.Wqkv.size + self.Wo.size) + 4 * T * len(self.Wo))


class _Gated(Chain):
    """Base class of feed-forward networks in which one product gates another."""

    def __init__(self, hidden: int, *, bias: bool = False) -> None:
        super().__init__()
        self.hidden = check_count(hidden, f"{type(self).__name__} hidden")
        self.bias = check_flag(bias, f"{type(self).__name__} bias")

    def _gate(self) -> Layer:
        """Return the activation of the gate."""
        return SiLU()

    def create(self, shape: Shape) -> Shape:
        if not self.layers:
            product = _gated(self.hidden, self._gate(), self.bias)
            self.layers = self.adopt([product, Dense(shape[-1], bias=self.bias)])
        return super().create(shape)


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


class FeedForward(Chain):
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
        super().__init__()
        self.hidden = check_count(hidden, "FeedForward hidden")
        kinds = (*self.ACTIVATIONS, *self.GATES)
        self.activation = check_option(activation, "FeedForward activation", kinds)

    def create(self, shape: Shape) -> Shape:
        if not self.layers:
            if self.activation in self.GATES:
                first = [_gated(self.hidden, self.GATES[self.activation](), bias=True)]
            else:
                first = [Dense(self.hidden), self.ACTIVATIONS[self.activation]()]
            self.layers = self.adopt([*first, Dense(shape[-1])])
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
        rope: bool | Rope = False,
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
