"""Compute with PyTorch what layers.npz, catalogue.npz, losses.npz and noise.npz store.

    python references/make_references.py                             compare with what is stored
    python references/make_references.py "SwiGLU(5) | wide" 2,3,4    add a case of a layer
    python references/make_references.py "LSTM(2)" 2,3,4 1,3         with a mask of these lengths

Run it with torch installed, and with transformers for rotary angles that are scaled. The stored
files were created with torch 2.13.0+cpu and transformers 5.23; each records torch's version and
the seed. Another machine rounds differently, by 1e-13 at most. phitodeep/testing/references.py
reads the files and needs no torch.

A case is named after the phitodeep call that it checks, with a remark after " | " if there are
several. It holds what a layer or a loss is given, such as X, dY and `params.W`, and what PyTorch
computes from that: Y, dX, `grads.W` and so on, in float64. Given arrays are random, since 1 and 0
would hide a missing factor; those in catalogue.npz are multiples of 1/256, and its cases are
numbered, so that the file stays small.

PyTorch's counterpart of a layer is the module of `phitodeep.io.to_torch`, except for what that
takes over from phitodeep, such as the order of the layers in a block: INDEPENDENT has those.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from phitodeep import layers as L
from phitodeep import loss as losses
from phitodeep.exchange.torch.compare import torch_loss
from phitodeep.exchange.torch.pairs import moves_of
from phitodeep.exchange.torch.write.writing import tensor_of, write
from phitodeep.functional.rotary import Rope, YarnRope
from phitodeep.layers.attention import _Gated
from phitodeep.layers.base import Layer
from phitodeep.testing.references import FOLDER, construct, layer_cases, layer_of, read

SEED = 20240607
TESTS = Path(__file__).parents[1] / "tests" / "reference"  # what only the tests need
FILES = [FOLDER / f"{name}.npz" for name in ("layers", "catalogue", "losses")]
FILES.append(TESTS / "noise.npz")
Params = dict[str, Tensor]
Arrays = dict[str, np.ndarray]


def below(path: str, p: Params) -> Params:
    return {name.removeprefix(path): a for name, a in p.items() if name.startswith(path)}


def array(t: Tensor) -> np.ndarray:
    return t.detach().numpy()


def first(X: Tensor) -> Tensor:
    """Channels first, as in PyTorch."""
    return X.movedim(-1, 1)


def last(X: Tensor) -> Tensor:
    return X.movedim(1, -1)


# --- layers of their own: each function takes the layer for its settings, X, parameters and mask --


def same(layer: Any, X: Tensor, p: Params, mask: Any) -> Tensor:
    """Windows with padding="same", which is ONNX's SAME_UPPER."""
    name, rank, strides, x = type(layer).__name__, X.ndim - 2, layer.strides, first(X)
    pooled, transposed = "Pool" in name, "Transpose" in name
    kernel, dilations = (layer.pool, (1, 1)) if pooled else (layer.kernel, layer.dilations)
    sizes = [n * s if transposed else n for n, s in zip(X.shape[1:-1], strides, strict=True)]
    pads: list[tuple[int, int]] = []  # F.pad takes the last axis first
    for n, k, s, d in zip(sizes, kernel, strides, dilations, strict=False):
        total = max((math.ceil(n / s) - 1) * s + (k - 1) * d + 1 - n, 0)
        pads.insert(0, (total // 2, total - total // 2))

    def windows(kind: str, x: Tensor, *args: Any, value: float = 0.0, **options: Any) -> Tensor:
        padded = F.pad(x, [n for pair in pads for n in pair], value=value)
        return getattr(F, f"{kind}{rank}d")(padded, *args, stride=strides, **options)

    if name.startswith("Max"):
        return last(windows("max_pool", x, kernel, value=-math.inf))
    if pooled:  # the mean without the padding
        return last(windows("avg_pool", x, kernel) / windows("avg_pool", x * 0 + 1, kernel))
    how = {"dilation": dilations, "groups": layer.groups}
    if not transposed:
        return last(windows("conv", x, p["W"].movedim((-1, -2), (0, 1)), p.get("b"), **how))
    starts, pads = reversed(pads), [(0, s - 1) for s in reversed(strides)]  # cut off afterwards
    function = getattr(F, f"conv_transpose{rank}d")
    whole = function(x, p["W"].movedim((-2, -1), (0, 1)), None, strides, **how)
    whole = F.pad(whole, [n for pair in pads for n in pair])
    for axis, ((before, _), n) in enumerate(zip(starts, sizes, strict=True), 2):
        whole = whole.narrow(axis, before, n)
    return last(whole) + p.get("b", 0.0)


def recurrent(layer: Any, X: Tensor, p: Params, mask: Any) -> Tensor:
    """PyTorch's layer, which has both directions and sequences of several lengths."""
    both = isinstance(layer, L.Bidirectional)
    own = layer.layer if both else layer
    kind, weights = getattr(nn, type(own).__name__), {}
    for suffix, path in (("", "layer."), ("_reverse", "reverse.")) if both else (("", ""),):
        q = below(path, p)
        weights[f"weight_ih_l0{suffix}"], weights[f"weight_hh_l0{suffix}"] = q["Wx"].T, q["Wh"].T
        weights[f"bias_ih_l0{suffix}"] = q["b"]
        weights[f"bias_hh_l0{suffix}"] = q.get("bh", torch.zeros_like(q["b"]))
    theirs = kind(X.shape[-1], own.units, batch_first=True, bidirectional=both).double()
    given: Any = X
    if mask is not None:
        given = pack_padded_sequence(X, mask.sum(1), True, enforce_sorted=False)
    Y, state = functional_call(theirs, weights, (given,))
    if mask is not None:
        Y, _ = pad_packed_sequence(Y, batch_first=True, total_length=X.shape[1])
    if not own.return_sequences:
        Y = torch.cat(list(state[0] if kind is nn.LSTM else state), -1)
    return Y.unflatten(-1, (2, -1)).sum(-2) if both and layer.merge == "add" else Y


def sinusoids(layer: Any, X: Tensor, p: Params, mask: Any) -> Tensor:
    T, D = X.shape[1:]
    angles = [[t / 10000 ** (2 * (j // 2) / D) for j in range(D)] for t in range(T)]
    waves = [[(math.sin, math.cos)[j % 2](a) for j, a in enumerate(row)] for row in angles]
    return X + torch.tensor(waves, dtype=torch.float64)


THEIRS = {  # settings of a Rope in transformers
    "base": "rope_theta", "factor": "factor", "low": "low_freq_factor", "high": "high_freq_factor",
    "beta_fast": "beta_fast", "beta_slow": "beta_slow", "truncate": "truncate",
    "short": "short_factor", "long": "long_factor", "amplitude": "attention_factor",
    "max_positions": "original_max_position_embeddings",
}  # fmt: skip


def turned(X: Tensor, rope: Any) -> Tensor:
    """(..., T, d), pairs (i, i + d/2) as complex numbers times exp(i t w) and the amplitude."""
    rope = rope if isinstance(rope, Rope) else Rope()
    T, d = X.shape[-2:]
    w, amplitude = rope.base ** (-torch.arange(0, d, 2).double() / d), 1.0
    if type(rope) is not Rope:
        from transformers import LlamaConfig
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        kind = type(rope).__name__.lower()
        kind = kind if kind == "longrope" else kind.removesuffix("rope")
        settings = {THEIRS[name]: value for name, value in vars(rope).items()}
        if type(rope) is YarnRope and rope == YarnRope(rope.factor, rope.max_positions):
            del settings["attention_factor"]  # transformers finds it
        length = settings.get("original_max_position_embeddings", 64)
        if kind == "dynamic":
            del settings["original_max_position_embeddings"]
        else:
            length = round(length * settings.setdefault("factor", 4.0))
        config = LlamaConfig(
            hidden_size=d,
            num_attention_heads=1,
            head_dim=d,
            max_position_embeddings=length,
            rope_parameters={"rope_type": kind, **settings},
        )
        double = torch.float64
        with patch.multiple(torch, float=double, float32=double):  # what transformers computes in
            w, amplitude = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=T)
    angles = torch.outer(torch.arange(T).double(), w)
    Z = torch.complex(*X.chunk(2, -1)) * torch.polar(torch.full_like(angles, amplitude), angles)
    return torch.cat([Z.real, Z.imag], -1)


def dot_product(layer: Any, X: Tensor, p: Params, mask: Any) -> Tensor:
    heads, kv = layer.heads, getattr(layer, "kv_heads", None) or layer.heads
    d = X.shape[-1] // (heads + 2 * kv)
    parts = X.split([heads * d, kv * d, kv * d], -1)
    Q, K, V = (part.unflatten(-1, (-1, d)).transpose(1, 2) for part in parts)
    if layer.rope:
        Q, K = turned(Q, layer.rope), turned(K, layer.rope)
    seen = visible(layer, X, mask)
    Z = F.scaled_dot_product_attention(Q, K, V, attn_mask=seen, enable_gqa=True)
    return Z.transpose(1, 2).flatten(2)


def visible(layer: Any, X: Tensor, mask: Any) -> Tensor:
    """Return which keys each query sees, (N, 1, T, T)."""
    N, T, _ = X.shape
    seen = torch.ones(N, 1, T, T).bool()
    seen = seen.tril() if layer.causal else seen
    return seen if mask is None else seen & mask[:, None, None]


def attention(layer: Any, X: Tensor, p: Params, mask: Any) -> Tensor:
    """The formula, and PyTorch's layer where that has what is needed; both must agree."""
    QKV = X @ p["Wqkv"] + p.get("bqkv", 0.0)
    Y = dot_product(layer, QKV, p, mask) @ p["Wo"] + p.get("bo", 0.0)
    D, heads = X.shape[-1], layer.heads
    if layer.rope or p["Wqkv"].shape[1] != 3 * D:
        return Y
    rest = (p["Wqkv"].T, p.get("bqkv"), None, None, False, 0.0, p["Wo"].T, p.get("bo"))
    hidden = ~visible(layer, X, mask).repeat_interleave(heads, 1).flatten(0, 1)
    each = [X.transpose(0, 1)] * 3
    A, _ = F.multi_head_attention_forward(
        *each, D, heads, *rest, need_weights=False, attn_mask=hidden
    )
    torch.testing.assert_close(A.transpose(0, 1), Y, rtol=1e-12, atol=1e-12)
    return A.transpose(0, 1)


def dense(X: Tensor, p: Params) -> Tensor:
    return F.linear(X, p["W"].T, p.get("b"))


def network(layer: Any, X: Tensor, p: Params, mask: Any) -> Tensor:
    """FeedForward, SwiGLU and GEGLU."""
    how = getattr(layer, "approximate", "none")
    name = getattr(layer, "activation", type(layer).__name__.lower())
    activations = {"relu": F.relu, "silu": F.silu, "swiglu": F.silu}
    activation = activations.get(name, lambda Z: F.gelu(Z, approximate=how))
    if not name.endswith("glu"):
        return dense(activation(dense(X, below("0.", p))), below("2.", p))
    gate = activation(dense(X, below("0.branches.0.layers.0.", p)))
    return dense(gate * dense(X, below("0.branches.1.", p)), below("1.", p))


def block(layer: Any, X: Tensor, p: Params, mask: Any) -> Tensor:
    def norm(X: Tensor, path: str) -> Tensor:
        q, shape = below(path, p), X.shape[-1:]
        if layer.norm == "rms":
            return F.rms_norm(X, shape, q["gamma"], 1e-5)
        return F.layer_norm(X, shape, q["gamma"], q["beta"], 1e-5)

    def attend(X: Tensor, path: str) -> Tensor:
        return attention(layer, X, below(path, p), mask)

    def feed(X: Tensor, path: str) -> Tensor:
        return network(layer, X, below(path, p), mask)

    if layer.pre_norm:
        X = X + attend(norm(X, "0.layers.0."), "0.layers.1.")
        return X + feed(norm(X, "1.layers.0."), "1.layers.1.layers.")
    X = norm(X + attend(X, "0.layers.0."), "1.")
    return norm(X + feed(X, "2.layers.0.layers."), "3.")


def drawn(layer: Any, X: Tensor, p: Params, mask: Any) -> Tensor:
    mean, log_variance = X.chunk(2, -1)
    torch.manual_seed(SEED)
    return Normal(mean, torch.exp(log_variance / 2)).rsample()


INDEPENDENT: dict[type[Layer], Callable[[Any, Tensor, Params, Any], Tensor]] = {
    # F.hardsigmoid rounds 1 / 6 to float32
    L.HardSigmoid: lambda layer, X, p, mask: F.relu6(X + 3) / 6,
    L.Reshape: lambda layer, X, p, mask: X.reshape(len(X), *layer.shape),
    L.ZeroPad2D: lambda layer, X, p, mask: F.pad(
        X, [0, 0, *np.broadcast_to(layer.padding, (2, 2))[::-1].ravel()]
    ),
    L.GlobalMaxPool: lambda layer, X, p, mask: X.flatten(1, -2).amax(1),
    **dict.fromkeys((L.RNN, L.LSTM, L.GRU, L.Bidirectional), recurrent),
    L.SinusoidalEncoding: sinusoids,
    L.RotaryEmbedding: lambda layer, X, p, mask: turned(X, Rope(layer.base)),
    L.ScaledDotProductAttention: dot_product,
    L.MultiHeadAttention: attention,
    L.FeedForward: network,
    _Gated: network,
    L.TransformerBlock: block,
    L.Reparameterize: drawn,
}


def independent(layer: Layer) -> Callable[[Any, Tensor, Params, Any], Tensor] | None:
    if getattr(layer, "padding", None) == "same":
        return same
    return next((INDEPENDENT[kind] for kind in type(layer).__mro__ if kind in INDEPENDENT), None)


# --- all layers ----------------------------------------------------------------------------------


class Theirs:
    """A layer as PyTorch computes it, with the names of its parameters in phitodeep."""

    def __init__(self, case: str, stored: Arrays) -> None:
        self.training = "saliency" not in case
        self.layer = layer_of(case, stored, np.float64)
        mask = stored.get("mask")
        self.mask = None if mask is None else torch.tensor(mask)
        self.function = independent(self.layer) if self.training else None
        assert self.function or mask is None, f"{case}: modules of to_torch take no mask"
        self.given = {n: torch.tensor(a, requires_grad=True) for n, a in parameters(self.layer)}
        self.written = None if self.function else write(self.layer)

    def __call__(self, X: Tensor) -> Tensor:
        if self.function:
            return self.function(self.layer, X, self.given, self.mask)
        module = self.written.module.train(self.training)
        Y = module(first(X) if module.input_layout == "NCHW" else X)
        return last(Y) if module.output_layout == "NCHW" else Y

    def passes(self, X: np.ndarray, dY: np.ndarray) -> Arrays:
        """Return Y, dX unless X is tokens, and the gradients."""
        tensors = {**self.given, **dict(self._moved(lambda tensor, move: tensor))}
        for tensor in tensors.values():
            tensor.grad = None
        x = torch.tensor(X, requires_grad=X.dtype.kind == "f")
        Y = self(x)
        Y.backward(torch.tensor(dY))
        found = {"Y": array(Y)} | ({} if x.grad is None else {"dX": x.grad.numpy()})
        theirs = {n: tensor.grad.numpy() for n, tensor in self.given.items() if self.function}
        theirs |= self._moved(lambda tensor, move: move.back(tensor.grad.numpy()))
        return found | {f"grads.{name}": a for name, a in theirs.items()}

    def _moved(self, what: Callable[[Tensor, Any], Any]) -> Iterator[tuple[str, Any]]:
        for path, part in self.layer.walk() if self.written else ():
            for name, (there, move) in moves_of(part).items():
                if name in part.params:
                    tensor = tensor_of(self.written.places[path].module, there)
                    yield f"{path}.{name}" if path else name, what(tensor, move)

    def state(self) -> Arrays:
        """Return running statistics."""
        names = self.layer.state
        return {n: getattr(self.written.places[""].module, n).numpy().copy() for n in names}


def parameters(layer: Layer) -> Iterator[tuple[str, np.ndarray]]:
    for path, part in layer.walk():
        yield from ((f"{path}.{n}" if path else n, a) for n, a in part.params.items())


def layer_arrays(case: str, stored: Arrays) -> Arrays:
    """Return all that PyTorch computes for a case of a layer."""
    X, dY = stored["X"], stored["dY"]
    theirs = Theirs(case, stored)
    found = theirs.passes(X, dY)
    if "E" in stored:
        found["E"] = array(theirs(torch.zeros(X.shape).double()))  # mean 0, log variance 0
    if "after.running_mean" in stored:
        found |= {f"after.{n}": a for n, a in theirs.state().items()}
    return found


# --- losses --------------------------------------------------------------------------------------


def each(loss: Any, P: Tensor, T: np.ndarray) -> Tensor:
    """The loss of each sample, or its terms."""
    t = torch.tensor(T)
    if isinstance(loss, losses.LogCosh):
        return torch.log(torch.cosh(P - t)).flatten(1).mean(1)
    if isinstance(loss, losses.NegativeELBO):
        K = loss.latent
        m, s, Z = P.split([K, K, P.shape[-1] - 2 * K], -1)
        far = kl_divergence(Normal(m, torch.exp(s / 2)), Normal(0.0, 1.0)).sum(-1)
        far = F.binary_cross_entropy_with_logits(Z, t, reduction="none").sum(-1) + loss.beta * far
        return far.flatten(1).mean(1) if far.ndim > 1 else far
    rows = [torch_loss(torch, loss, P[i : i + 1], T[i : i + 1]) for i in range(len(P))]
    return torch.stack(rows)


def cross_entropy(loss: Any, P: Tensor, T: np.ndarray, w: Tensor) -> Tensor:
    """From logits, probabilities or log-probabilities, with weights of samples and of classes."""
    P, t, K = P.flatten(0, -2), torch.tensor(T), P.shape[-1]
    s = getattr(loss, "label_smoothing", 0.0)
    if T.dtype.kind == "f":
        return F.cross_entropy(P, t.flatten(0, -2), label_smoothing=s)
    t, w = t.flatten(), w.repeat_interleave(t.numel() // len(w))
    absent = -100 if loss.ignore_index is None else loss.ignore_index
    weight = torch.tensor(loss.class_weight or [1.0] * K).double()
    how = {"weight": weight, "ignore_index": absent, "reduction": "none"}
    kept = (t != absent).double()
    if loss.wants == "logits":
        terms = F.cross_entropy(P, t, label_smoothing=s, **how)
    else:
        log_p = P.log() if loss.wants == "probabilities" else P
        terms = (1 - s) * F.nll_loss(log_p, t, **how) - s / K * kept * (log_p @ weight)
    return (terms * w).sum() / (w * weight[t.clamp(min=0)] * kept).sum()


def loss_arrays(case: str, stored: Arrays) -> Arrays:
    loss, P = construct(case, losses), torch.tensor(stored["y_pred"], requires_grad=True)
    T, w = stored["y_true"], torch.tensor(stored.get("sample_weight", np.ones(len(P))))
    if hasattr(loss, "class_weight"):
        value = cross_entropy(loss, P, T, w)
    else:
        value = (each(loss, P, T) * w).sum() / w.sum()
    value.backward()
    return {"value": array(value), "gradient": P.grad.numpy()}


# --- files ---------------------------------------------------------------------------------------


def compare(path: Path) -> float:
    """Print and return the largest difference from what a file stores, relative above 1."""
    worst = (0.0, "")
    for number, stored in read(path).items():
        case = str(stored.pop("call", number))
        found = (loss_arrays if path.stem == "losses" else layer_arrays)(case, stored)
        given = ("X", "dY", "mask", "y_pred", "y_true", "sample_weight")
        computed = {n for n in stored if n not in given and n.split(".")[0] not in GIVEN}
        assert found.keys() == computed, (case, found.keys() ^ computed)
        for name, a in found.items():
            assert a.shape == stored[name].shape, (case, name)
            far = np.abs(a - stored[name]) / np.maximum(1, np.abs(stored[name]))
            worst = max(worst, (float(far.max(initial=0)), f"{name} of {case}"))
    print(f"{path.name}: {worst[0]:.1e} at most, {worst[1]}")
    return worst[0]


GIVEN = ("params", "before")


def add(case: str, shape: tuple[int, ...], lengths: list[int] | None = None) -> None:
    """Add a case of a layer to catalogue.npz."""
    path = FOLDER / "catalogue.npz"
    if case in layer_cases():
        sys.exit(f"{case!r} is stored already: add a remark after ' | '.")
    with np.load(path) as file:
        arrays = dict(file)
    rng = np.random.default_rng([SEED, len(arrays)])

    def random(shape: tuple[int, ...]) -> np.ndarray:
        return np.round(256 * rng.standard_normal(shape)) / 256

    layer = construct(case, L)
    layer.build(shape[1:], dtype=np.float64)
    given = {f"params.{n}": random(a.shape) for n, a in parameters(layer)}
    tokens = rng.integers(0, layer.vocab_size, shape) if layer.takes_tokens else random(shape)
    given |= {"X": tokens, "dY": random((shape[0], *layer.output_shape))}
    if lengths:
        given["mask"] = np.arange(shape[1]) < np.array(lengths)[:, None]
    number = sum(name.endswith("/call") for name in arrays)
    stored = {"call": np.array(case), **given, **layer_arrays(case, given)}
    arrays |= {f"{number}/{name}": a for name, a in stored.items()}
    np.savez(path, **arrays)  # the wheel compresses all of it at once, which is smaller
    print(f"{path}: {case} is case {number}, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    if sys.argv[1:]:
        case, *sizes = sys.argv[1:]
        add(case, *(tuple(map(int, size.split(","))) for size in sizes))
    else:
        sys.exit(max(map(compare, FILES)) > 1e-12)
