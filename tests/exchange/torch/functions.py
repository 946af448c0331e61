"""Networks of PyTorch's own functions: layers, wires, parameters and draws are those of ours."""

import math
from functools import reduce

import numpy as np
import torch
import torch.nn.functional as F

from phitodeep import layers as L
from phitodeep.core.call import current
from phitodeep.core.types import each
from phitodeep.functional.rotary import Rope
from tests.exchange.torch.support import tensor
from tests.random_networks import Gate, Ladder, Scale, one


class Twin:
    """The parameters of a network as tensors; `twin(layer, *X)` is what a layer gives."""

    def __init__(self, layer):
        self.paths = {part: path for path, part in layer.walk()}
        self.own = {
            part: {name: tensor(a) for name, a in part.params.items()} for part in self.paths
        }

    def __call__(self, layer, *X):
        place = Place(self, layer)
        kind = next(kind for kind in type(place.layer).__mro__ if kind in FORMS)
        return FORMS[kind](place, *X)

    def gradients(self):
        return {
            f"{self.paths[part]}.{name}": np.zeros(a.shape) if a.grad is None else a.grad.numpy()
            for part, own in self.own.items()
            for name, a in own.items()
        }


class Place:
    """A layer where it runs: its settings, its parameters, the layers inside and what it draws."""

    def __init__(self, twin, layer):
        self.twin, self.draws, self.layer = twin, layer, layer
        self.parts = list(layer.children().values())
        if isinstance(layer, L.Shared):
            self.draws, self.layer = layer._bound(), layer.layer

    def __getattr__(self, name):
        own = self.twin.own[self.layer]
        return own[name] if name in own else getattr(self.layer, name)

    def get(self, name):
        return self.twin.own[self.layer].get(name)

    def each(self, X):
        return [self.twin(part, X) for part in self.parts]

    @property
    def random(self):
        return current().training


def first(X):
    return X.movedim(-1, 1)


def last(X):
    return X.movedim(1, -1)


# --- layers without others inside ----------------------------------------------------------------


def dropout(at, X):
    if not at.random:
        return X
    kept = at.draws.uniform(at.draws._mask_shape(tuple(X.shape))) >= at.rate
    return X * torch.from_numpy(kept / (1 - at.rate))


def normal(at, X):
    return torch.from_numpy(at.draws._normal(tuple(X.shape), np.float64))


def reparameterize(at, X):
    M, S = X.chunk(2, -1)
    return M + torch.exp(S.clamp(max=88) / 2) * normal(at, M) if at.random else M


def batch_norm(at, X):
    mean, var = (torch.from_numpy(at.layer.state[f"running_{name}"]) for name in ("mean", "var"))
    if at.random and at.trainable:
        rows = X.reshape(-1, X.shape[-1])
        mean, var = rows.mean(0), rows.var(0, correction=0)
    return (X - mean) / torch.sqrt(var + at.eps) * at.gamma + at.beta


def group_norm(at, X):
    groups = X.shape[-1] if isinstance(at.layer, L.InstanceNorm) else at.groups
    return last(torch.group_norm(first(X), groups, at.gamma, at.beta, at.eps))


def padded(at, X, value=0.0):
    """X (N, C, *sizes) with what `padding` adds on both sides."""
    sides = []
    for n, k, s, d in zip(X.shape[2:], at.kernel, at.strides, at.dilations, strict=True):
        total = 0 if isinstance(at.padding, str) else 2 * at.padding
        if at.padding == "same":
            total = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        sides = [total // 2, total - total // 2, *sides]
    return F.pad(X, sides, value=value)


def convolution(at, X):
    run = F.conv1d if X.ndim == 3 else F.conv2d
    W, settings = (
        at.W.movedim((-1, -2), (0, 1)).contiguous(),
        (at.strides, 0, at.dilations, at.groups),
    )
    return last(run(padded(at, first(X)), W, at.get("b"), *settings))


def transposed(at, X):
    run = F.conv_transpose1d if X.ndim == 3 else F.conv_transpose2d
    W = at.W.movedim((-2, -1), (0, 1)).contiguous()
    Y, sides = run(first(X), W, None, at.strides, 0, 0, at.groups, at.dilations), []
    for k, s, d, more in zip(at.kernel, at.strides, at.dilations, at.extra, strict=True):
        before, e = 0 if isinstance(at.padding, str) else at.padding, (k - 1) * d + 1
        after = more - before
        if at.padding == "same":
            before = max(e - s, 0) // 2
            after = s - e + before
        sides = [-before, after, *sides]
    return last(F.pad(Y, sides)) + (at.b if at.bias else 0)


def max_pool(at, X):
    run = F.max_pool1d if X.ndim == 3 else F.max_pool2d
    return last(run(padded(at, first(X), -math.inf), at.pool, at.strides))


def avg_pool(at, X):
    run = F.avg_pool1d if X.ndim == 3 else F.avg_pool2d
    Y = run(padded(at, first(X)), at.pool, at.strides)
    if at.padding == "same":  # the mean is over the positions of X
        Y = Y / run(padded(at, torch.ones_like(first(X))), at.pool, at.strides)
    return last(Y)


def random_flip(at, X):
    up, left = torch.from_numpy(at.draws._flips(X.detach().numpy())).T[..., None, None, None]
    X = torch.where(up, X.flip(1), X)
    return torch.where(left, X.flip(2), X)


def random_crop(at, X):
    (p, q), (h, w) = at.pads, at.layer._window_size(tuple(X.shape[1:]))
    offsets = at.draws._offsets(X.detach().numpy())
    images = zip(F.pad(X, (0, 0, q, q, p, p)), offsets, strict=True)
    return torch.stack([A[i : i + h, j : j + w] for A, (i, j) in images])


def sinusoids(at, X):
    T, D = X.shape[1:]
    angles = torch.arange(T)[:, None] * 10000.0 ** (-2 * torch.arange((D + 1) // 2).double() / D)
    return X + torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :D]


def rotated(rope, X):
    angles = rope.cos_and_sin(0, *X.shape[-2:], np.float64)
    (cos, sin), (x, y) = map(torch.from_numpy, angles), X.chunk(2, -1)
    return torch.cat([x * cos - y * sin, x * sin + y * cos], -1)


def recurrent(at, X, *starts):
    kind = type(at.layer)
    run = {L.RNN: torch.rnn_tanh, L.LSTM: torch.lstm, L.GRU: torch.gru}[kind]
    bh = torch.zeros_like(at.b) if at.get("bh") is None else at.bh
    starts = [s[None] for s in starts or [X.new_zeros(len(X), at.units)] * at.states]
    W, settings = [at.Wx.T, at.Wh.T, at.b, bh], (True, 1, 0.0, False, False, True)
    Y, *ends = run(X, starts if kind is L.LSTM else starts[0], W, *settings)
    ends = [end[0] for end in ends]
    out = Y if at.return_sequences else ends[0]
    return (out, *ends) if at.return_state else out


def attend(at, Q, K, V):
    h = at.heads
    groups, d = h // (at.kv_heads or h), Q.shape[-1] // h
    Q, K, V = (A.unflatten(-1, (-1, d)).transpose(1, 2) for A in (Q, K, V))
    if at.rotary is not None:
        Q, K = rotated(at.rotary, Q), rotated(at.rotary, K)
    K, V = (A.repeat_interleave(groups, 1) for A in (K, V))
    S = Q @ K.mT / math.sqrt(d)
    if at.causal:
        S = S.masked_fill(torch.ones(S.shape[-2:]).triu(1) > 0, -math.inf)
    P = S.softmax(-1)
    if at.random and at.dropout:
        kept = at.draws.uniform((len(P), h // groups, groups, *P.shape[2:])) >= at.dropout
        P = P * torch.from_numpy(kept.reshape(P.shape) / (1 - at.dropout))
    return (P @ V).transpose(1, 2).flatten(2)


def by_head(at, QKV):
    k = at.kv_heads or at.heads
    d = QKV.shape[-1] // (at.heads + 2 * k)
    return attend(at, *QKV.split([at.heads * d, k * d, k * d], -1))


def self_attention(at, X):
    return F.linear(by_head(at, F.linear(X, at.Wqkv.T, at.get("bqkv"))), at.Wo.T, at.get("bo"))


def cross_attention(at, X1, X2):
    Q, KV = F.linear(X1, at.Wq.T, at.get("bq")), F.linear(X2, at.Wkv.T, at.get("bkv"))
    return F.linear(attend(at, Q, *KV.chunk(2, -1)), at.Wo.T, at.get("bo"))


# --- containers -----------------------------------------------------------------------------------


def chain(at, X):
    for part in at.parts:
        X = at.twin(part, X)
    return X


def parallel(at, X):
    merges = {"concat": lambda *A: torch.cat(A, -1), "add": add, "multiply": multiply}
    return merges[at.merge](*at.each(X))


def bidirectional(at, X):
    Y, back = at.twin(at.parts[0], X), at.twin(at.parts[1], X.flip(1))
    back = back.flip(1) if back.ndim == 3 else back
    return Y + back if at.merge == "add" else torch.cat([Y, back], -1)


def time_distributed(at, *X):
    Ys = each(at.twin(at.parts[0], *[A.flatten(0, 1) for A in X]))
    return one([Y.unflatten(0, X[0].shape[:2]) for Y in Ys])


def wired(at, *X):
    values = dict(zip(at.takes, X, strict=True))
    for part, (reads, gives) in zip(at.parts, at.wires, strict=True):
        Y = at.twin(part, *[values[name] for name in reads])
        values |= zip(gives, each(Y), strict=True)
    return one([values[name] for name in at.returns])


def add(*A):
    return sum(A[1:], A[0])


def multiply(*A):
    return math.prod(A[1:], start=A[0])


def plain(run):
    """The form of a layer without settings."""
    return lambda at, *X: run(*X)


SAME = "ReLU SELU SiLU Mish HardSwish HardTanh Sigmoid Tanh Softplus Softsign"  # named alike
FORMS = {
    **{getattr(L, name): plain(getattr(F, name.lower())) for name in SAME.split()},
    L.LeakyReLU: lambda at, X: F.leaky_relu(X, at.alpha),
    L.PReLU: lambda at, X: torch.where(X > 0, X, at.alpha * X),
    L.ELU: lambda at, X: F.elu(X, at.alpha),
    # PyTorch's CELU and hard sigmoid have constants in single precision.
    L.CELU: lambda at, X: torch.where(X > 0, X, at.alpha * torch.expm1(X / at.alpha)),
    L.GELU: lambda at, X: F.gelu(X, approximate=at.approximate),
    L.HardSigmoid: plain(lambda X: torch.clamp(X / 6 + 0.5, 0, 1)),
    L.Softmax: lambda at, X: F.softmax(X, at.axis),
    L.LogSoftmax: lambda at, X: F.log_softmax(X, at.axis),
    L.Dense: lambda at, X: F.linear(X, at.W.T, at.get("b")),
    L.TiedDense: lambda at, X: F.linear(X, at.twin.own[at.embedding]["W"]),
    L.LowRank: lambda at, X: X @ at.A @ at.B * (at.alpha / at.rank),
    L.Lambda: lambda at, X: at.function(X),
    Scale: lambda at, X: X * at.gain + at.shift,
    L.Embedding: lambda at, X: F.embedding(X, at.W),
    L.PositionalEmbedding: lambda at, X: X + at.W[: X.shape[1]],
    L.SinusoidalEncoding: sinusoids,
    L.RotaryEmbedding: lambda at, X: rotated(Rope(at.base), X),
    L.Dropout: dropout,
    L.GaussianNoise: lambda at, X: X + at.std * normal(at, X) if at.random else X,
    L.Reparameterize: reparameterize,
    L.GradientReversal: lambda at, X: (1 + at.factor) * X.detach() - at.factor * X,
    L.LayerNorm: lambda at, X: F.layer_norm(X, X.shape[-1:], at.gamma, at.beta, at.eps),
    L.RMSNorm: lambda at, X: F.rms_norm(X, X.shape[-1:], at.gamma, at.eps),
    L.BatchNorm: batch_norm,
    L.GroupNorm: group_norm,
    L.Flatten: lambda at, X: X.flatten(1),
    L.Reshape: lambda at, X: X.reshape(len(X), *at.shape),
    L.Permute: lambda at, X: X.permute(0, *at.dims),
    L.Select: lambda at, X: X[..., at.columns],
    L.Conv1D: convolution,
    L.Conv2D: convolution,
    L.ConvTranspose1D: transposed,
    L.ConvTranspose2D: transposed,
    L.MaxPool1D: max_pool,
    L.MaxPool2D: max_pool,
    L.AvgPool1D: avg_pool,
    L.AvgPool2D: avg_pool,
    L.GlobalAvgPool: lambda at, X: X.flatten(1, -2).mean(1),
    L.GlobalMaxPool: lambda at, X: X.flatten(1, -2).max(1).values,
    L.Upsample2D: lambda at, X: last(F.interpolate(first(X), None, at.factors, mode=at.mode)),
    L.ZeroPad2D: lambda at, X: F.pad(X, (0, 0, *at.pads[1], *at.pads[0])),
    L.RandomFlip: random_flip,
    L.RandomCrop: random_crop,
    L.RNN: recurrent,
    L.LSTM: recurrent,
    L.GRU: recurrent,
    L.ScaledDotProductAttention: by_head,
    L.MultiHeadAttention: self_attention,
    L.CrossAttention: cross_attention,
    L.Add: plain(add),
    L.Subtract: plain(torch.sub),
    L.Multiply: plain(multiply),
    L.Average: lambda at, *X: add(*X) / len(X),
    L.Maximum: plain(lambda *A: reduce(torch.maximum, A)),
    L.Concat: lambda at, *X: torch.cat(X, at.axis if at.axis < 0 else at.axis + 1),
    L.Dot: plain(lambda X1, X2: (X1 * X2).sum(-1, keepdim=True)),
    L.Bilinear: lambda at, X1, X2: F.bilinear(X1, X2, at.W.movedim(-1, 0), at.get("b")),
    L.Chain: chain,
    Ladder: lambda at, X: 0.5 * chain(at, X),
    L.Residual: lambda at, X: X + chain(at, X),
    L.SkipConcat: lambda at, X: torch.cat([X, chain(at, X)], -1),
    L.Parallel: parallel,
    Gate: lambda at, X: multiply(*at.each(X)),
    L.Bidirectional: bidirectional,
    L.TimeDistributed: time_distributed,
    L.Wired: wired,
}
