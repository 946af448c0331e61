"""Networks of PyTorch's own functions: wiring, settings, parameters and draws are those of ours."""

import math
from collections import defaultdict
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from phitodeep import layers as L
from phitodeep.core.call import current
from phitodeep.core.types import each
from tests.exchange.torch.support import tensor
from tests.random_networks import Gate, Ladder, Scale, one


class Twin:
    """The parameters of a network as tensors; `twin(layer, *X)` is what a layer gives."""

    def __init__(self, layer):
        parts = [part for _, part in layer.walk()]
        self.own = {part: {name: tensor(a) for name, a in part.params.items()} for part in parts}

    def __call__(self, layer, *X):
        tied = {name: self.own[owner][own] for name, (owner, own) in layer.tied.items()}
        own = defaultdict(lambda: None, tied | self.own[layer])
        inside = [partial(self, part) for part in layer.children().values()]
        layer = layer._bound() if isinstance(layer, L.Shared) else layer
        kind = next(kind for kind in type(layer).__mro__ if kind in FORMS)
        return FORMS[kind](Place(layer, own, inside), *X)


class Place(NamedTuple):
    """A layer with its settings and draws, its parameters as tensors, and the layers inside."""

    layer: Any
    own: Any
    inside: Any


def constant(A):
    return torch.from_numpy(np.array(A, np.float64))


def projected(at, X, name=""):
    return F.linear(X, at.own[f"W{name}"].T, at.own[f"b{name}"])


def dropout(at, X):
    shape, rate = at.layer._mask_shape(tuple(X.shape)), at.layer.rate
    return X * constant((at.layer.uniform(shape) >= rate) / (1 - rate)) if current().training else X


def batch_norm(at, X):
    mean, var = map(constant, at.layer.state.values())
    if current().training and at.layer.trainable:
        rows = X.reshape(-1, X.shape[-1])
        mean, var = rows.mean(0), rows.var(0, correction=0)
    return (X - mean) / torch.sqrt(var + at.layer.eps) * at.own["gamma"] + at.own["beta"]


def convolution(at, X):
    layer, run, sides = at.layer, F.conv1d if X.ndim == 3 else F.conv2d, []
    settings = layer.kernel, layer.strides, layer.dilations
    for n, k, s, d in zip(X.shape[1:-1], *settings, strict=True):
        total = 0 if isinstance(layer.padding, str) else 2 * layer.padding
        if layer.padding == "same":
            total = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        sides = [total // 2, total - total // 2, *sides]
    X, W = F.pad(X.movedim(-1, 1), sides), at.own["W"].movedim((-1, -2), (0, 1)).contiguous()
    Y = run(X, W, at.own["b"], layer.strides, 0, layer.dilations, layer.groups)
    return Y.movedim(1, -1)


def recurrent(at, X, *starts):
    layer, kind = at.layer, type(at.layer)
    run = {L.RNN: torch.rnn_tanh, L.LSTM: torch.lstm, L.GRU: torch.gru}[kind]
    Wx, Wh, b, bh = (at.own[name] for name in ("Wx", "Wh", "b", "bh"))
    W = [Wx.T, Wh.T, b, torch.zeros_like(b) if bh is None else bh]
    starts = [s[None] for s in starts or [X.new_zeros(len(X), layer.units)] * layer.states]
    starts = starts if kind is L.LSTM else starts[0]
    Y, *ends = run(X, starts, W, True, 1, 0.0, False, False, True)
    Y = Y if layer.return_sequences else Y[:, -1]
    return (Y, *[end[0] for end in ends]) if layer.return_state else Y


def attention(at, Q, K, V):
    layer, h = at.layer, at.layer.heads
    groups, d = h // (layer.kv_heads or h), Q.shape[-1] // h
    Q, K, V = (A.unflatten(-1, (-1, d)).transpose(1, 2) for A in (Q, K, V))
    if layer.rotary is not None:
        angles = layer.rotary.cos_and_sin(0, *Q.shape[-2:], np.float64)
        Q, K = (rotated(A, *map(constant, angles)) for A in (Q, K))
    S = Q @ K.repeat_interleave(groups, 1).mT / math.sqrt(d)
    if layer.causal:
        S = S.masked_fill(torch.ones(S.shape[-2:]).triu(1) > 0, -math.inf)
    P = S.softmax(-1)
    if current().training and layer.dropout:
        kept = layer.uniform((len(P), h // groups, groups, *P.shape[2:])) >= layer.dropout
        P = P * constant(kept.reshape(P.shape) / (1 - layer.dropout))
    return (P @ V.repeat_interleave(groups, 1)).transpose(1, 2).flatten(2)


def rotated(X, cos, sin):
    x, y = X.chunk(2, -1)
    return torch.cat([x * cos - y * sin, x * sin + y * cos], -1)


def self_attention(at, X):
    h, k = at.layer.heads, at.layer.kv_heads or at.layer.heads
    d = X.shape[-1] // (h + 2 * k)
    return attention(at, *X.split([h * d, k * d, k * d], -1))


def cross_attention(at, X1, X2):
    K, V = projected(at, X2, "kv").chunk(2, -1)
    return projected(at, attention(at, projected(at, X1, "q"), K, V), "o")


def chain(at, X):
    return reduce(lambda X, run: run(X), at.inside, X)


def parallel(at, X):
    merges = {"concat": lambda Ys: torch.cat(Ys, -1), "add": sum, "multiply": math.prod}
    return merges[at.layer.merge]([run(X) for run in at.inside])


def time_distributed(at, *X):
    Ys = each(at.inside[0](*[A.flatten(0, 1) for A in X]))
    return one([Y.unflatten(0, X[0].shape[:2]) for Y in Ys])


def wired(at, *X):
    values = dict(zip(at.layer.takes, X, strict=True))
    for run, (reads, gives) in zip(at.inside, at.layer.wires, strict=True):
        values |= zip(gives, each(run(*[values[name] for name in reads])), strict=True)
    return one([values[name] for name in at.layer.returns])


def plain(run):
    """The form of a layer without settings."""
    return lambda at, *X: run(*X)


SAME = "ReLU SELU SiLU Mish HardSwish HardTanh Sigmoid Tanh Softplus Softsign"  # named alike
FORMS = {
    **{getattr(L, name): plain(getattr(F, name.lower())) for name in SAME.split()},
    L.LeakyReLU: lambda at, X: F.leaky_relu(X, at.layer.alpha),
    L.PReLU: lambda at, X: torch.where(X > 0, X, at.own["alpha"] * X),
    L.ELU: lambda at, X: F.elu(X, at.layer.alpha),
    # PyTorch's CELU and hard sigmoid have constants in single precision.
    L.CELU: lambda at, X: torch.where(X > 0, X, at.layer.alpha * torch.expm1(X / at.layer.alpha)),
    L.HardSigmoid: plain(lambda X: torch.clamp(X / 6 + 0.5, 0, 1)),
    L.GELU: lambda at, X: F.gelu(X, approximate=at.layer.approximate),
    L.Softmax: lambda at, X: F.softmax(X, at.layer.axis),
    L.LogSoftmax: lambda at, X: F.log_softmax(X, at.layer.axis),
    L.Dense: projected,
    L.TiedDense: lambda at, X: F.linear(X, at.own["W"]),
    L.LowRank: lambda at, X: X @ at.own["A"] @ at.own["B"] * (at.layer.alpha / at.layer.rank),
    L.Bilinear: lambda at, *X: F.bilinear(*X, at.own["W"].movedim(-1, 0), at.own["b"]),
    L.Lambda: lambda at, X: at.layer.function(X),
    Scale: lambda at, X: X * at.own["gain"] + at.own["shift"],
    L.Embedding: lambda at, X: F.embedding(X, at.own["W"]),
    L.PositionalEmbedding: lambda at, X: X + at.own["W"][: X.shape[1]],
    L.Dropout: dropout,
    L.GradientReversal: lambda at, X: X.detach() + at.layer.factor * (X.detach() - X),
    L.LayerNorm: lambda at, X: F.layer_norm(
        X, X.shape[-1:], at.own["gamma"], at.own["beta"], at.layer.eps
    ),
    L.RMSNorm: lambda at, X: F.rms_norm(X, X.shape[-1:], at.own["gamma"], at.layer.eps),
    L.BatchNorm: batch_norm,
    L.Flatten: lambda at, X: X.flatten(1),
    L.Reshape: lambda at, X: X.reshape(len(X), *at.layer.shape),
    L.Permute: lambda at, X: X.permute(0, *at.layer.dims),
    L.Select: lambda at, X: X[..., at.layer.columns],
    **dict.fromkeys((L.Conv1D, L.Conv2D), convolution),
    L.GlobalAvgPool: lambda at, X: X.flatten(1, -2).mean(1),
    L.GlobalMaxPool: lambda at, X: X.flatten(1, -2).max(1).values,
    **dict.fromkeys((L.RNN, L.LSTM, L.GRU), recurrent),
    L.ScaledDotProductAttention: self_attention,
    L.MultiHeadAttention: lambda at, X: projected(
        at, self_attention(at, projected(at, X, "qkv")), "o"
    ),
    L.CrossAttention: cross_attention,
    L.Add: lambda at, *X: sum(X),
    L.Subtract: plain(torch.sub),
    L.Multiply: lambda at, *X: math.prod(X),
    L.Average: lambda at, *X: sum(X) / len(X),
    L.Maximum: lambda at, *X: reduce(torch.maximum, X),
    L.Concat: lambda at, *X: torch.cat(X, at.layer.axis + (at.layer.axis >= 0)),
    L.Dot: plain(lambda X1, X2: (X1 * X2).sum(-1, keepdim=True)),
    L.Chain: chain,
    Ladder: lambda at, X: 0.5 * chain(at, X),
    L.Residual: lambda at, X: X + chain(at, X),
    L.SkipConcat: lambda at, X: torch.cat([X, chain(at, X)], -1),
    L.Parallel: parallel,
    Gate: lambda at, X: at.inside[0](X) * at.inside[1](X),
    L.TimeDistributed: time_distributed,
    L.Wired: wired,
}
# Layers whose forms would take many lines: their own tests compare them with PyTorch's numbers.
UNWRITTEN = (L.ConvTranspose1D, L.ConvTranspose2D, L.AvgPool1D, L.AvgPool2D, L.MaxPool1D)
UNWRITTEN += (L.MaxPool2D, L.RandomFlip, L.RandomCrop, L.Upsample2D, L.ZeroPad2D, L.GroupNorm)
UNWRITTEN += (L.GaussianNoise, L.Reparameterize, L.SinusoidalEncoding, L.RotaryEmbedding)
UNWRITTEN += (L.Bidirectional,)
