"""PyTorch modules for layers that PyTorch has no module for; this file is imported with torch.

Each is named like its layer. `pairs.py` says how their settings and weights belong together.
X is channels last unless a docstring says otherwise. Long because all of them are in one file, so
that a pickled module names a single place.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phitodeep.core.types import each, on_each, one
from phitodeep.functional.rotary import Rope


def __getattr__(name: str) -> type:
    """Return the class of modules that apply PyTorch's function of this name, such as sin."""
    function = None if name.startswith("_") else getattr(torch, name, None)
    if not callable(function):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    forward = {"forward": lambda self, X: function(X), "__module__": __name__}
    globals()[name] = type(name, (nn.Module,), forward)  # where pickled modules find it
    return globals()[name]


def define(prefix: str, mixin: type, *names: str) -> None:
    """Define a class for each of these classes of PyTorch, which the mixin changes."""
    for name in names:
        kind = type(prefix + name, (mixin, getattr(nn, name)), {"__module__": __name__})
        globals()[kind.__name__] = kind


class Module(nn.Module):
    """A module whose arguments are its attributes."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        for name, value in settings.items():
            setattr(self, name, value)


# --- layouts and containers ----------------------------------------------------------------------


class ChannelsFirst(nn.Module):
    """Move the last axis to the second place: (N, H, W, C) becomes (N, C, H, W)."""

    def forward(self, X: Tensor) -> Tensor:
        return X.movedim(-1, 1)


class ChannelsLast(nn.Module):
    """Move the second axis to the end: (N, C, H, W) becomes (N, H, W, C)."""

    def forward(self, X: Tensor) -> Tensor:
        return X.movedim(1, -1)


def merge(how: str, Xs: Sequence[Tensor], dim: int = -1) -> Tensor:
    """Merge tensors: "concat" and "dot" are along `dim`; others are functions of two at a time."""
    if how == "concat":
        return torch.cat(list(Xs), dim)
    if how == "dot":
        return (Xs[0] * Xs[1]).sum(dim, keepdim=True)
    if how == "average":
        return merge("add", Xs) / len(Xs)
    return functools.reduce(getattr(torch, how), Xs)


class Merge(Module):
    """Merge several values: see `merge`."""

    def forward(self, *Xs: Tensor) -> Tensor:
        return merge(self.how, Xs, self.dim)


class Wired(Module):
    """Modules between named values, such as "maps", in their order.

    takes, returns    the names of the inputs and outputs
    uses              the name of each module, and those of the values that it reads and gives
    named             the names by which it returns several outputs in a dict; None: in a tuple
    """

    def forward(self, *Xs: Tensor) -> Any:
        values = dict(zip(self.takes, Xs, strict=True))
        for name, reads, gives in self.uses:
            outs = getattr(self, name)(*[values[value] for value in reads])
            values.update(zip(gives, outs if len(gives) > 1 else [outs], strict=True))
        found = tuple([values[name] for name in self.returns])
        if len(found) == 1:
            return found[0]
        return found if self.named is None else dict(zip(self.named, found, strict=True))


class Chain(Module):
    """Modules one after another: `layers`."""

    def forward(self, *Xs: Tensor) -> Any:
        return self.layers(*Xs)


class Shared(Module):
    """The module `layer` at a second place."""

    def forward(self, *Xs: Tensor) -> Any:
        return self.layer(*Xs)


class Residual(Chain):
    def forward(self, X: Tensor) -> Tensor:
        return X + self.layers(X)


class SkipConcat(Chain):
    """Concatenate X and F(X) along `dim`."""

    def forward(self, X: Tensor) -> Tensor:
        return torch.cat([X, self.layers(X)], self.dim)


class Parallel(Module):
    """Merge the outputs of `branches`: `merge` is "add", "multiply", or "concat" along `dim`."""

    def forward(self, X: Tensor) -> Tensor:
        return merge(self.merge, [branch(X) for branch in self.branches], self.dim)


class TimeDistributed(Module):
    """Apply `layer` to each step."""

    def forward(self, *Xs: Tensor) -> Any:
        Y = self.layer(*[X.flatten(0, 1) for X in Xs])
        return on_each(lambda A: A.unflatten(0, Xs[0].shape[:2]), Y)


# --- moving elements -----------------------------------------------------------------------------


class Reshape(Module):
    """Give each sample another `shape`."""

    def forward(self, X: Tensor) -> Tensor:
        return X.reshape(X.shape[0], *self.shape)  # len(X) would fix the number of samples


class Permute(Module):
    """Reorder the axes of each sample, which `dims` counts from 1."""

    def forward(self, X: Tensor) -> Tensor:
        return X.permute(0, *self.dims)


class Select(Module):
    """Take `columns` of the last axis, as integers if they hold `tokens`."""

    def forward(self, X: Tensor) -> Tensor:
        Y = X[..., self.columns]
        return Y.long() if self.tokens else Y


class GlobalAvgPool(Module):
    """The mean over all axes between the batch and the channels; `dim` is the channels' axis."""

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


class _Same(nn.Module):
    """Windows of X with zeros around it, or what `around` says."""

    around = 0.0

    def forward(self, X: Tensor) -> Tensor:
        dilation = getattr(self, "dilation", 1)
        dilation = (dilation,) * len(self.stride) if isinstance(dilation, int) else dilation
        pads = same_padding(X, self.kernel_size, self.stride, dilation)
        return super().forward(F.pad(X, pads, value=self.around))


class _SameMaxPool(_Same):
    around = -math.inf


class _SameAvgPool(_Same):
    """The mean of the positions that are not padding."""

    def forward(self, X: Tensor) -> Tensor:
        return super().forward(X) / super().forward(torch.ones_like(X))


class _SameConvTranspose(nn.Module):
    """The output is `stride` times as long as the input: the rest is cut off on both sides."""

    def forward(self, X: Tensor) -> Tensor:
        Y = super().forward(X)
        axes = zip(self.kernel_size, self.stride, self.dilation, strict=True)
        for axis, (k, s, d) in enumerate(axes, 2):
            start = max((k - 1) * d + 1 - s, 0) // 2
            Y = Y.narrow(axis, start, X.shape[axis] * s)
        return Y


define("Same", _Same, "Conv1d", "Conv2d")
define("Same", _SameMaxPool, "MaxPool1d", "MaxPool2d")
define("Same", _SameAvgPool, "AvgPool1d", "AvgPool2d")
define("Same", _SameConvTranspose, "ConvTranspose1d", "ConvTranspose2d")


# --- norms ---------------------------------------------------------------------------------------


class _Frozen(nn.Module):
    """A batch norm that always uses its running statistics, as a frozen BatchNorm does."""

    def train(self, mode: bool = True) -> Any:
        return super().train(False)


define("Frozen", _Frozen, "BatchNorm1d", "BatchNorm2d", "BatchNorm3d")


# --- random in training --------------------------------------------------------------------------


class GaussianNoise(Module):
    """Add noise with the standard deviation `std`."""

    def forward(self, X: Tensor) -> Tensor:
        return X + self.std * torch.randn_like(X) if self.training else X


class GradientReversal(Module):
    """Return X; backward, multiply its gradient by -`factor`."""

    def forward(self, X: Tensor) -> Tensor:
        Y = X.clone()
        if Y.requires_grad:
            Y.register_hook(lambda dY: -self.factor * dY)
        return Y


class Reparameterize(nn.Module):
    def forward(self, X: Tensor) -> Tensor:
        M, S = X.chunk(2, -1)
        return M + (S.clamp(max=88.0) / 2).exp() * torch.randn_like(M) if self.training else M


class RandomFlip(Module):
    """X is (N, C, H, W); `horizontal` and `vertical` say along which axes it is flipped."""

    def forward(self, X: Tensor) -> Tensor:
        for axis, flips in ((2, self.vertical), (3, self.horizontal)):
            if self.training and flips:
                drawn = torch.rand(len(X), 1, 1, 1, device=X.device) < 0.5
                X = torch.where(drawn, X.flip(axis), X)
        return X


class RandomCrop(Module):
    """X is (N, C, H, W), with zeros of `padding` around it; `size` None keeps the image's size."""

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
    """A recurrent module that returns its outputs (N, T, H), or only its last state (N, H).

    It may be given the states before the first step; with `return_state`, it also returns those
    after the last step, each (N, H).
    """

    def __init__(
        self, return_sequences: bool, return_state: bool, initial_state: bool, **sizes: int
    ) -> None:
        super().__init__(**sizes, batch_first=True)
        self.return_sequences, self.return_state = return_sequences, return_state
        self.initial_state = initial_state

    def forward(self, X: Tensor, *start: Tensor) -> Any:
        given = [state[None] for state in start]
        Y, ends = super().forward(X, one(given, len(given) == 1) if given else None)
        Y = Y if self.return_sequences else Y[:, -1]
        return (Y, *[end[0] for end in each(ends)]) if self.return_state else Y


define("", _Last, "RNN", "LSTM", "GRU")


class Bidirectional(Module):
    """Merge the outputs of `layer` and of `reverse`, which reads the steps from the end."""

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


class RotaryEmbedding(Module):
    """Rotate pairs of features by the angles of `rope`."""

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


class ScaledDotProductAttention(Module):
    """X holds all queries, then all keys, then all values, head by head."""

    def __init__(self, rope: Rope | None, **settings: Any) -> None:
        super().__init__(rope=None if rope is None else RotaryEmbedding(rope=rope), **settings)

    def forward(self, X: Tensor) -> Tensor:
        h, k = self.heads, self.kv_heads
        return self.attend(*X.unflatten(-1, (h + 2 * k, -1)).transpose(1, 2).split([h, k, k], 1))

    def attend(self, Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        """Return the attention of Q (N, heads, T, d), K and V (N, kv_heads, S, d)."""
        n = self.heads // self.kv_heads
        if self.rope is not None:
            Q, K = self.rope(Q), self.rope(K)
        K, V = K.repeat_interleave(n, 1), V.repeat_interleave(n, 1)
        p = self.dropout if self.training else 0.0
        Z = F.scaled_dot_product_attention(Q, K, V, dropout_p=p, is_causal=self.causal)
        return Z.transpose(1, 2).flatten(2)  # from (N, heads, T, d)


class MultiHeadAttention(nn.Module):
    def __init__(
        self, dim: int, size: int, heads: int, kv_heads: int, bias: bool, **settings: Any
    ) -> None:
        super().__init__()
        self.qkv = nn.Linear(dim, (heads + 2 * kv_heads) * size, bias=bias)
        self.attention = ScaledDotProductAttention(heads=heads, kv_heads=kv_heads, **settings)
        self.out = nn.Linear(heads * size, dim, bias=bias)

    def forward(self, X: Tensor) -> Tensor:
        return self.out(self.attention(self.qkv(X)))


class CrossAttention(nn.Module):
    """X1 gives the queries, X2 the keys and values."""

    def __init__(
        self, dim: int, memory: int, size: int, heads: int, kv_heads: int, bias: bool, **given: Any
    ) -> None:
        super().__init__()
        self.q = nn.Linear(dim, heads * size, bias=bias)
        self.kv = nn.Linear(memory, 2 * kv_heads * size, bias=bias)
        self.attention = ScaledDotProductAttention(heads=heads, kv_heads=kv_heads, **given)
        self.out = nn.Linear(heads * size, dim, bias=bias)

    def forward(self, X1: Tensor, X2: Tensor) -> Tensor:
        h, k = self.attention.heads, self.attention.kv_heads
        Q = self.q(X1).unflatten(-1, (h, -1)).transpose(1, 2)
        KV = self.kv(X2).unflatten(-1, (2 * k, -1)).transpose(1, 2)
        return self.out(self.attention.attend(Q, *KV.split(k, 1)))


# --- other layers --------------------------------------------------------------------------------


class LowRank(nn.Module):
    def __init__(self, dim: int, output_size: int, rank: int, alpha: float) -> None:
        super().__init__()
        self.A = nn.Parameter(torch.zeros(dim, rank))
        self.B = nn.Parameter(torch.zeros(rank, output_size))
        self.alpha = alpha

    def forward(self, X: Tensor) -> Tensor:
        return X @ self.A * (self.alpha / len(self.B)) @ self.B
