"""PyTorch modules for layers that PyTorch has no module for; this file is imported with torch.

Each is named like its layer. `pairs.py` says how their settings and weights belong together.
X is channels last unless a docstring says otherwise. Long because all of them are in one file, so
that a pickled module names a single place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phitodeep.functional.rotary import Rope

# --- layouts and containers ----------------------------------------------------------------------


class ChannelsFirst(nn.Module):
    """Move the last axis to the second place: (N, H, W, C) becomes (N, C, H, W)."""

    def forward(self, X: Tensor) -> Tensor:
        return X.movedim(-1, 1)


class ChannelsLast(nn.Module):
    """Move the second axis to the end: (N, C, H, W) becomes (N, H, W, C)."""

    def forward(self, X: Tensor) -> Tensor:
        return X.movedim(1, -1)


class Function(nn.Module):
    """A function of PyTorch by its name, elementwise, such as "sin"."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, X: Tensor) -> Tensor:
        return getattr(torch, self.name)(X)


class Chain(nn.Module):
    """Modules one after another."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, X: Tensor) -> Tensor:
        return self.layers(X)


class Residual(Chain):
    def forward(self, X: Tensor) -> Tensor:
        return X + self.layers(X)


class SkipConcat(Chain):
    """Concatenate X and F(X) along `dim`."""

    def __init__(self, layers: nn.Module, dim: int) -> None:
        super().__init__(layers)
        self.dim = dim

    def forward(self, X: Tensor) -> Tensor:
        return torch.cat([X, self.layers(X)], self.dim)


class Parallel(nn.Module):
    """Merge the outputs of branches: "add", "multiply", or "concat" along `dim`."""

    def __init__(self, branches: Iterable[nn.Module], merge: str, dim: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.merge, self.dim = merge, dim

    def forward(self, X: Tensor) -> Tensor:
        outs = [branch(X) for branch in self.branches]
        if self.merge == "concat":
            return torch.cat(outs, self.dim)
        merged = outs[0]
        for Y in outs[1:]:
            merged = merged + Y if self.merge == "add" else merged * Y
        return merged


class TimeDistributed(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, X: Tensor) -> Tensor:
        return self.layer(X.flatten(0, 1)).unflatten(0, X.shape[:2])


# --- moving elements -----------------------------------------------------------------------------


class Reshape(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, X: Tensor) -> Tensor:
        return X.reshape(len(X), *self.shape)


class Permute(nn.Module):
    def __init__(self, *dims: int) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, X: Tensor) -> Tensor:
        return X.permute(0, *self.dims)


class Select(nn.Module):
    def __init__(self, columns: list[int], tokens: bool = False) -> None:
        super().__init__()
        self.columns, self.tokens = columns, tokens

    def forward(self, X: Tensor) -> Tensor:
        Y = X[..., self.columns]
        return Y.long() if self.tokens else Y


class GlobalAvgPool(nn.Module):
    """The mean over all axes between the batch and the channels; `dim` is the channels' axis."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, X: Tensor) -> Tensor:
        return X.movedim(self.dim, 1).flatten(2).mean(2)


class GlobalMaxPool(GlobalAvgPool):
    def forward(self, X: Tensor) -> Tensor:
        return X.movedim(self.dim, 1).flatten(2).max(2).values


# --- windows with "same" padding, channels first -------------------------------------------------


def same_padding(X: Tensor, kernel: Any, stride: Any, dilation: Any) -> list[int]:
    """Return the padding that F.pad takes, for ceil(size / stride) windows along each axis."""
    pads: list[int] = []
    for n, k, s, d in zip(X.shape[2:], kernel, stride, dilation, strict=True):
        total = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        pads = [total // 2, total - total // 2, *pads]  # the last axis comes first
    return pads


class _SameConv(nn.Module):
    def forward(self, X: Tensor) -> Tensor:
        pads = same_padding(X, self.kernel_size, self.stride, self.dilation)
        return super().forward(F.pad(X, pads))


class SameConv1d(_SameConv, nn.Conv1d):
    pass


class SameConv2d(_SameConv, nn.Conv2d):
    pass


class _SameConvTranspose(nn.Module):
    """The output is `stride` times as long as the input: the rest is cut off on both sides."""

    def forward(self, X: Tensor) -> Tensor:
        Y = super().forward(X)
        axes = zip(self.kernel_size, self.stride, self.dilation, strict=True)
        for axis, (k, s, d) in enumerate(axes, 2):
            start = max((k - 1) * d + 1 - s, 0) // 2
            Y = Y.narrow(axis, start, X.shape[axis] * s)
        return Y


class SameConvTranspose1d(_SameConvTranspose, nn.ConvTranspose1d):
    pass


class SameConvTranspose2d(_SameConvTranspose, nn.ConvTranspose2d):
    pass


class _SameMaxPool(nn.Module):
    pool: Any

    def __init__(self, kernel_size: tuple[int, ...], stride: tuple[int, ...]) -> None:
        super().__init__()
        self.kernel_size, self.stride = kernel_size, stride

    def forward(self, X: Tensor) -> Tensor:
        pads = same_padding(X, self.kernel_size, self.stride, (1,) * len(self.stride))
        return self.pool(F.pad(X, pads, value=-math.inf), self.kernel_size, self.stride)


class SameMaxPool1d(_SameMaxPool):
    pool = staticmethod(F.max_pool1d)


class SameMaxPool2d(_SameMaxPool):
    pool = staticmethod(F.max_pool2d)


class _SameAvgPool(_SameMaxPool):
    """The mean of the positions that are not padding."""

    def forward(self, X: Tensor) -> Tensor:
        pads = same_padding(X, self.kernel_size, self.stride, (1,) * len(self.stride))
        sums, counts = (
            self.pool(F.pad(A, pads), self.kernel_size, self.stride)
            for A in (X, torch.ones_like(X))
        )
        return sums / counts


class SameAvgPool1d(_SameAvgPool):
    pool = staticmethod(F.avg_pool1d)


class SameAvgPool2d(_SameAvgPool):
    pool = staticmethod(F.avg_pool2d)


# --- norms ---------------------------------------------------------------------------------------


class _Frozen(nn.Module):
    """A batch norm that always uses its running statistics, as a frozen BatchNorm does."""

    def train(self, mode: bool = True) -> Any:
        return super().train(False)


class FrozenBatchNorm1d(_Frozen, nn.BatchNorm1d):
    pass


class FrozenBatchNorm2d(_Frozen, nn.BatchNorm2d):
    pass


class FrozenBatchNorm3d(_Frozen, nn.BatchNorm3d):
    pass


# --- random in training --------------------------------------------------------------------------


class GaussianNoise(nn.Module):
    def __init__(self, std: float) -> None:
        super().__init__()
        self.std = std

    def forward(self, X: Tensor) -> Tensor:
        return X + self.std * torch.randn_like(X) if self.training else X


class Reparameterize(nn.Module):
    def forward(self, X: Tensor) -> Tensor:
        M, S = X.chunk(2, -1)
        return M + (S.clamp(max=88.0) / 2).exp() * torch.randn_like(M) if self.training else M


class RandomFlip(nn.Module):
    """X is (N, C, H, W)."""

    def __init__(self, *, horizontal: bool = True, vertical: bool = False) -> None:
        super().__init__()
        self.horizontal, self.vertical = horizontal, vertical

    def forward(self, X: Tensor) -> Tensor:
        for axis, flips in ((2, self.vertical), (3, self.horizontal)):
            if self.training and flips:
                drawn = torch.rand(len(X), 1, 1, 1, device=X.device) < 0.5
                X = torch.where(drawn, X.flip(axis), X)
        return X


class RandomCrop(nn.Module):
    """X is (N, C, H, W); `size` None keeps the size of the image."""

    def __init__(self, size: tuple[int, int] | None, padding: tuple[int, int]) -> None:
        super().__init__()
        self.size, self.padding = size, padding

    def forward(self, X: Tensor) -> Tensor:
        height, width = self.size or X.shape[2:]
        top, left = self.padding
        X = F.pad(X, (left, left, top, top))
        down, right = X.shape[2] - height, X.shape[3] - width
        if not self.training:
            return X[:, :, down // 2 : down // 2 + height, right // 2 : right // 2 + width]
        ys = torch.randint(down + 1, (len(X),)).tolist()
        xs = torch.randint(right + 1, (len(X),)).tolist()
        windows = zip(X, ys, xs, strict=True)
        return torch.stack([x[:, i : i + height, j : j + width] for x, i, j in windows])


# --- sequences -----------------------------------------------------------------------------------


class _Last(nn.Module):
    """A recurrent module that returns its outputs (N, T, H), or only its last state (N, H)."""

    def __init__(self, *sizes: int, return_sequences: bool) -> None:
        super().__init__(*sizes, batch_first=True)
        self.return_sequences = return_sequences

    def forward(self, X: Tensor) -> Tensor:
        Y, _ = super().forward(X)
        return Y if self.return_sequences else Y[:, -1]


class RNN(_Last, nn.RNN):
    pass


class LSTM(_Last, nn.LSTM):
    pass


class GRU(_Last, nn.GRU):
    pass


class Bidirectional(nn.Module):
    def __init__(self, layer: nn.Module, reverse: nn.Module, merge: str) -> None:
        super().__init__()
        self.layer, self.reverse, self.merge = layer, reverse, merge

    def forward(self, X: Tensor) -> Tensor:
        Y, R = self.layer(X), self.reverse(X.flip(1))
        R = R.flip(1) if R.ndim == 3 else R
        return Y + R if self.merge == "add" else torch.cat([Y, R], -1)


class PositionalEmbedding(nn.Module):
    def __init__(self, max_len: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(max_len, dim))

    def forward(self, X: Tensor) -> Tensor:
        return X + self.weight[: X.shape[1]]


class SinusoidalEncoding(nn.Module):
    def forward(self, X: Tensor) -> Tensor:
        T, D = X.shape[1:]
        angles = _angles(T, [10000.0 ** (-2 * i / D) for i in range((D + 1) // 2)], X)
        encoding = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :D]
        return X + encoding.to(X.dtype)


class RotaryEmbedding(nn.Module):
    def __init__(self, rope: Rope) -> None:
        super().__init__()
        self.rope = rope

    def forward(self, X: Tensor) -> Tensor:
        T, D = X.shape[-2:]
        angles = _angles(T, self.rope.frequencies(D, T), X)
        cos, sin = (self.rope.amplitude * f.to(X.dtype) for f in (angles.cos(), angles.sin()))
        first, second = X.chunk(2, -1)
        return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


def _angles(T: int, frequencies: Any, X: Tensor) -> Tensor:
    """Return t w for positions t and frequencies w, (T, len(w)), in double precision if possible.

    The frequencies are no buffer, since the module's dtype has too few digits for late positions.
    """
    dtype = torch.float32 if X.device.type == "mps" else torch.float64
    t = torch.arange(T, dtype=dtype, device=X.device)
    return t[:, None] * torch.as_tensor(frequencies, dtype=dtype, device=X.device)


class ScaledDotProductAttention(nn.Module):
    """X holds all queries, then all keys, then all values, head by head."""

    def __init__(
        self, heads: int, kv_heads: int, causal: bool, rope: Rope | None, dropout: float
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.causal, self.dropout = heads, kv_heads, causal, dropout
        self.rope = None if rope is None else RotaryEmbedding(rope)

    def forward(self, X: Tensor) -> Tensor:
        h, k = self.heads, self.kv_heads
        Q, K, V = X.unflatten(-1, (h + 2 * k, -1)).transpose(1, 2).split([h, k, k], 1)
        if self.rope is not None:
            Q, K = self.rope(Q), self.rope(K)
        K, V = K.repeat_interleave(h // k, 1), V.repeat_interleave(h // k, 1)
        p = self.dropout if self.training else 0.0
        Z = F.scaled_dot_product_attention(Q, K, V, dropout_p=p, is_causal=self.causal)
        return Z.transpose(1, 2).flatten(2)  # from (N, heads, T, d)


class MultiHeadAttention(nn.Module):
    def __init__(
        self, dim: int, size: int, heads: int, kv_heads: int, bias: bool, **settings: Any
    ) -> None:
        super().__init__()
        self.qkv = nn.Linear(dim, (heads + 2 * kv_heads) * size, bias=bias)
        self.attention = ScaledDotProductAttention(heads, kv_heads, **settings)
        self.out = nn.Linear(heads * size, dim, bias=bias)

    def forward(self, X: Tensor) -> Tensor:
        return self.out(self.attention(self.qkv(X)))


# --- other layers --------------------------------------------------------------------------------


class LowRank(nn.Module):
    def __init__(self, dim: int, output_size: int, rank: int, alpha: float) -> None:
        super().__init__()
        self.A = nn.Parameter(torch.zeros(dim, rank))
        self.B = nn.Parameter(torch.zeros(rank, output_size))
        self.alpha = alpha

    def forward(self, X: Tensor) -> Tensor:
        return X @ self.A * (self.alpha / len(self.B)) @ self.B
