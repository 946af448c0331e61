"""Create catalogue.npz: layers for images and sequences, as computed by PyTorch.

Run `python references/make_catalogue_references.py` with torch and transformers installed. The
stored file was created with torch 2.13.0+cpu, and records that version and the seed; transformers
5.23 agreed with the frequencies of rotary encodings. The file's readers need neither.

Cases are numbered, since long names take space in a zip file: `17/call` is the phitodeep call that
the case checks, with a remark after " | " as in references/make_references.py, and `17/X`, `17/dY`,
`17/params.W` and so on are its arrays, with a mask or a state if there is one. Inputs are multiples
of 1/256, so that the file stays small. All values are float64.

The file is long because it is one table: all cases draw from one generator, in this order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from make_references import FOLDER, SEED, Arrays, Params, array, leaf
from torch import Tensor
from torch.distributions import Normal
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

rng = np.random.default_rng(SEED)
Function = Callable[[Tensor, Params], Tensor]
Shapes = dict[str, tuple[int, ...]]
CASES: dict[str, Arrays] = {}


def random(*shape: int) -> np.ndarray:
    return np.round(256 * rng.standard_normal(shape)) / 256


def case(name: str, X: np.ndarray, function: Function, shapes: Shapes, **more: Any) -> None:
    """Store Y, dX and the gradients of all parameters, for a random dY."""
    x = torch.tensor(X) if X.dtype.kind == "i" else leaf(X)
    params = {n: leaf(random(*s)) for n, s in shapes.items()}
    Y = function(x, params)
    dY = random(*Y.shape)
    Y.backward(torch.tensor(dY))
    stored = {"X": X, "Y": array(Y), "dY": dY, **more}
    if x.grad is not None:
        stored["dX"] = array(x.grad)
    for n, p in params.items():
        stored[f"params.{n}"], stored[f"grads.{n}"] = array(p), array(p.grad)
    assert name not in CASES, name
    CASES[name] = stored


def call(kind: str, *args: Any, **kwargs: Any) -> str:
    shown = [repr(a) for a in args] + [f"{k}={v!r}" for k, v in kwargs.items()]
    return f"{kind}({', '.join(shown)})"


def first(X: Tensor) -> Tensor:
    """Channels first, as in PyTorch."""
    return X.movedim(-1, 1)


def last(X: Tensor) -> Tensor:
    return X.movedim(1, -1)


def pairs(value: Any, rank: int) -> list[int]:
    return list(value) if isinstance(value, tuple) else [value] * rank


# --- convolution -------------------------------------------------------------------------------


def same(sizes: list[int], k: list[int], s: list[int], d: list[int]) -> list[tuple[int, int]]:
    """ONNX's SAME_UPPER."""
    total = [
        max((math.ceil(n / b) - 1) * b + (a - 1) * c + 1 - n, 0)
        for n, a, b, c in zip(sizes, k, s, d, strict=True)
    ]
    return [(t // 2, t - t // 2) for t in total]


def padded(X: Tensor, pads: list[tuple[int, int]], value: float = 0.0) -> Tensor:
    return F.pad(X, [p for pair in reversed(pads) for p in pair], value=value)


def conv(kind: str, shape: tuple[int, ...], filters: int, kernel: Any, **options: Any) -> None:
    """Conv1D, Conv2D, and DepthwiseConv2D, where `filters` is the multiplier."""
    rank, channels = len(shape) - 2, shape[-1]
    k, s, d = (
        pairs(v, rank) for v in (kernel, options.get("stride", 1), options.get("dilation", 1))
    )
    deep = kind == "DepthwiseConv2D"
    groups = channels if deep else options.get("groups", 1)
    wide = channels * filters if deep else filters
    function = (F.conv1d, F.conv2d)[rank - 1]

    def run(X: Tensor, p: Params) -> Tensor:
        padding = options.get("padding", "valid")
        if padding == "same":
            pads = same(list(shape[1:-1]), k, s, d)
        else:
            pads = [(0, 0) if padding == "valid" else (padding, padding)] * rank
        W = p["W"].movedim((-1, -2), (0, 1))
        return last(
            function(padded(first(X), pads), W, p.get("b"), stride=s, dilation=d, groups=groups)
        )

    shapes: Shapes = {"W": (*k, channels // groups, wide)}
    if options.get("bias", True):
        shapes["b"] = (wide,)
    given = (kernel,) if deep else (filters, kernel)
    more = {"multiplier": filters} if deep else {}
    case(f"{call(kind, *given, **more, **options)} | {shape}", random(*shape), run, shapes)


def transposed(shape: tuple[int, ...], filters: int, kernel: Any, **options: Any) -> None:
    rank, channels = len(shape) - 2, shape[-1]
    kind, groups = f"ConvTranspose{rank}D", options.get("groups", 1)
    k, s, d, o = (
        pairs(v, rank)
        for v in (
            kernel,
            options.get("stride", 1),
            options.get("dilation", 1),
            options.get("output_padding", 0),
        )
    )
    function = (F.conv_transpose1d, F.conv_transpose2d)[rank - 1]

    def run(X: Tensor, p: Params) -> Tensor:
        padding = options.get("padding", "valid")
        W, b, x = p["W"].movedim((-2, -1), (0, 1)), p.get("b"), first(X)
        if padding != "same":
            zeros = 0 if padding == "valid" else padding
            return last(function(x, W, b, s, zeros, o, groups, d))
        out = [n * step for n, step in zip(shape[1:-1], s, strict=True)]
        whole = function(x, W, None, s, 0, 0, groups, d)
        whole = padded(
            whole, [(0, max(0, n - m)) for n, m in zip(out, whole.shape[2:], strict=True)]
        )
        for axis, ((before, _), n) in enumerate(zip(same(out, k, s, d), out, strict=True)):
            whole = whole.narrow(axis + 2, before, n)
        return last(whole) if b is None else last(whole) + b

    shapes: Shapes = {"W": (*k, channels, filters // groups)}
    if options.get("bias", True):
        shapes["b"] = (filters,)
    case(f"{call(kind, filters, kernel, **options)} | {shape}", random(*shape), run, shapes)


def convolutions() -> None:
    conv("Conv1D", (2, 7, 3), 4, 3)
    conv("Conv1D", (1, 6, 2), 3, 2, stride=2, padding=1)
    conv("Conv1D", (2, 8, 4), 6, 3, padding="same", dilation=2, groups=2)
    conv("Conv1D", (2, 7, 2), 2, 4, stride=3, padding="same", bias=False)
    conv("Conv1D", (3, 1, 2), 3, 1)
    conv("Conv2D", (2, 5, 6, 3), 4, 3)
    conv("Conv2D", (2, 6, 5, 2), 3, (3, 2), stride=(2, 1), padding=1)
    conv("Conv2D", (1, 7, 6, 4), 4, 3, stride=2, padding="same", groups=2)
    conv("Conv2D", (2, 5, 4, 2), 3, (2, 4), padding="same")
    conv("Conv2D", (1, 7, 8, 2), 2, (2, 3), dilation=(3, 2), stride=(1, 2), padding="same")
    conv("Conv2D", (1, 8, 7, 6), 3, 3, dilation=2, padding=2, groups=3, bias=False)
    conv("Conv2D", (2, 4, 4, 2), 3, 1, stride=3, padding="same")
    conv("Conv2D", (1, 3, 4, 1), 2, (3, 4))
    conv("DepthwiseConv2D", (2, 5, 4, 3), 1, 3, padding="same")
    conv("DepthwiseConv2D", (2, 6, 5, 2), 3, (2, 3), stride=2, padding=1, dilation=(2, 1))
    transposed((2, 4, 3), 2, 3)
    transposed((2, 4, 4), 6, 3, stride=2, padding=1, output_padding=1, groups=2)
    transposed((1, 5, 2), 3, 3, stride=3, padding="same", dilation=2)
    transposed((2, 3, 2), 2, 2, stride=3, padding="same", bias=False)
    transposed((2, 3, 4, 3), 2, 2, stride=2)
    transposed((1, 4, 3, 2), 3, (3, 2), stride=(2, 3), padding=1, output_padding=(1, 2))
    transposed((2, 3, 3, 4), 4, 3, dilation=(1, 2), groups=2, bias=False)
    transposed((1, 3, 4, 2), 2, (4, 3), stride=2, padding="same")
    transposed((1, 1, 1, 2), 3, 3)


# --- pooling and size --------------------------------------------------------------------------


def pool(rank: int, shape: tuple[int, ...], size: Any, stride: Any, padding: Any) -> None:
    k, s = pairs(size, rank), pairs(size if stride is None else stride, rank)
    pads = same(list(shape[1:-1]), k, s, [1] * rank)
    highest = (F.max_pool1d, F.max_pool2d)[rank - 1]
    mean = (F.avg_pool1d, F.avg_pool2d)[rank - 1]

    def maximum(X: Tensor, p: Params) -> Tensor:
        if padding == "same":
            return last(highest(padded(first(X), pads, -math.inf), k, s))
        return last(highest(first(X), k, s, 0 if padding == "valid" else padding))

    def average(X: Tensor, p: Params) -> Tensor:
        if padding == "same":  # the mean without the padding
            share = mean(padded(first(torch.ones_like(X)), pads), k, s)
            return last(mean(padded(first(X), pads), k, s) / share)
        return last(mean(first(X), k, s, 0 if padding == "valid" else padding))

    arguments = f"{size}, {stride}, {padding!r}"
    X = random(*shape)
    case(f"MaxPool{rank}D({arguments}) | {shape}", X, maximum, {})
    case(f"AvgPool{rank}D({arguments}) | {shape}", X, average, {})
    ties = rng.integers(-1, 2, shape).astype(np.float64)
    if padding != "same":
        case(f"MaxPool{rank}D({arguments}) | {shape}, ties", ties, maximum, {})


def pools() -> None:
    pool(1, (2, 7, 3), 3, None, "valid")
    pool(1, (2, 6, 2), 3, 2, 1)
    pool(1, (1, 7, 2), 2, 3, "same")
    pool(2, (2, 4, 6, 2), 2, None, "valid")
    pool(2, (2, 5, 6, 2), (3, 2), (1, 3), 1)
    pool(2, (1, 5, 6, 2), 3, 2, "same")
    pool(2, (1, 6, 5, 1), (2, 3), (1, 2), "same")
    for shape in ((2, 5, 3), (2, 3, 4, 3)):
        axes = tuple(range(1, len(shape) - 1))
        X = random(*shape)
        case(f"GlobalAvgPool() | {shape}", X, lambda X, p, axes=axes: X.mean(axes), {})
        case(f"GlobalMaxPool() | {shape}", X, lambda X, p, axes=axes: X.amax(axes), {})
    for factor, shape in (((2, 2), (2, 3, 4, 2)), ((3, 2), (1, 2, 5, 1)), ((4, 3), (1, 1, 2, 2))):
        for mode in ("nearest", "bilinear"):
            options = {} if mode == "nearest" else {"align_corners": False}

            def up(
                X: Tensor, p: Params, f: Any = factor, m: str = mode, o: Any = options
            ) -> Tensor:
                return last(F.interpolate(first(X), scale_factor=f, mode=m, **o))

            case(f"Upsample2D({factor}, {mode!r}) | {shape}", random(*shape), up, {})
    case("ZeroPad2D(2)", random(2, 3, 2, 2), lambda X, p: F.pad(X, (0, 0, 2, 2, 2, 2)), {})
    case(
        "ZeroPad2D(((1, 0), (3, 2)))",
        random(2, 3, 2, 2),
        lambda X, p: F.pad(X, (0, 0, 3, 2, 1, 0)),
        {},
    )
    case("Permute(3, 1, 2)", random(2, 3, 4, 5), lambda X, p: X.permute(0, 3, 1, 2), {})


# --- norms -------------------------------------------------------------------------------------


def norms() -> None:
    both: Shapes = {"gamma": (6,), "beta": (6,)}
    for shape in ((2, 6), (2, 3, 6), (2, 3, 2, 6)):
        X = 2 * random(*shape) + 1
        for groups in (1, 2, 3):

            def group(X: Tensor, p: Params, groups: int = groups) -> Tensor:
                return last(F.group_norm(first(X), groups, p["gamma"], p["beta"], 0.01))

            case(f"GroupNorm({groups}, 0.01) | {shape}", X, group, both)
        if len(shape) > 2:
            case(
                f"InstanceNorm(0.02) | {shape}",
                X,
                lambda X, p: last(
                    F.instance_norm(first(X), weight=p["gamma"], bias=p["beta"], eps=0.02)
                ),
                both,
            )
        case(
            f"RMSNorm(0.03) | {shape}",
            X,
            lambda X, p: F.rms_norm(X, (6,), p["gamma"], 0.03),
            {"gamma": (6,)},
        )
    state = {"running_mean": random(6), "running_var": np.abs(random(6)) + 0.5}
    after = {n: torch.tensor(a.copy()) for n, a in state.items()}

    def batch(X: Tensor, p: Params) -> Tensor:
        return last(F.batch_norm(first(X), *after.values(), p["gamma"], p["beta"], True, 0.3, 0.02))

    case(
        "BatchNorm(0.3, 0.02) | (2, 3, 2, 6)",
        random(2, 3, 2, 6),
        batch,
        both,
        **{f"before.{n}": a for n, a in state.items()},
    )
    CASES["BatchNorm(0.3, 0.02) | (2, 3, 2, 6)"] |= {
        f"after.{n}": array(a) for n, a in after.items()
    }
    known = {n: torch.tensor(a) for n, a in state.items()}
    case(
        "BatchNorm(0.3, 0.02) | saliency",
        random(2, 3, 2, 6),
        lambda X, p: last(
            F.batch_norm(first(X), *known.values(), p["gamma"], p["beta"], False, 0.3, 0.02)
        ),
        both,
        **{f"before.{n}": a for n, a in state.items()},
    )


# --- embedding ---------------------------------------------------------------------------------


def turned(X: Tensor) -> Tensor:
    """(..., T, D), pairs (i, i + D/2) as complex numbers times exp(i t w)."""
    T, D = X.shape[-2:]
    w = 10000.0 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    angles = torch.outer(torch.arange(T, dtype=torch.float64), w)
    Z = torch.complex(X[..., : D // 2], X[..., D // 2 :]) * torch.polar(
        torch.ones_like(angles), angles
    )
    return torch.cat([Z.real, Z.imag], -1)


def sinusoids(T: int, D: int) -> Tensor:
    angles = [[t / 10000 ** (2 * (j // 2) / D) for j in range(D)] for t in range(T)]
    waves = [[(math.sin, math.cos)[j % 2](a) for j, a in enumerate(row)] for row in angles]
    return torch.tensor(waves, dtype=torch.float64)


def embeddings() -> None:
    def look_up(X: Tensor, p: Params) -> Tensor:
        return F.embedding(X, p["W"])

    case("Embedding(7, 3) | (2, 5)", rng.integers(0, 7, (2, 5)), look_up, {"W": (7, 3)})
    case("Embedding(5, 2) | (4,)", rng.integers(0, 5, 4), look_up, {"W": (5, 2)})
    case("Embedding(5, 2) | (2, 3, 2)", rng.integers(0, 5, (2, 3, 2)), look_up, {"W": (5, 2)})
    case(
        "PositionalEmbedding(6)",
        random(2, 4, 3),
        lambda X, p: X + p["W"][:4],
        {"W": (6, 3)},
    )
    for D in (6, 5):
        case(
            f"SinusoidalEncoding() | {D}",
            random(2, 4, D),
            lambda X, p, D=D: X + sinusoids(4, D),
            {},
        )
    case("RotaryEmbedding()", random(2, 5, 6), lambda X, p: turned(X), {})


# --- recurrent ---------------------------------------------------------------------------------

KINDS = {"RNN": torch.nn.RNN, "LSTM": torch.nn.LSTM, "GRU": torch.nn.GRU}
GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}


def recurrent_shapes(kind: str, D: int, H: int, path: str = "") -> Shapes:
    wide = GATES[kind] * H
    shapes = {"bh": (wide,)} if kind == "GRU" else {}
    shapes |= {"Wx": (D, wide), "Wh": (H, wide), "b": (wide,)}
    return {f"{path}{n}": s for n, s in shapes.items()}


def recurrent(
    kind: str, shape: tuple[int, int, int], H: int, *, both: str = "", sequences: bool = True,
    lengths: list[int] | None = None,
) -> None:  # fmt: skip
    """`both` is the merge of a Bidirectional, or "" for one direction."""
    _, T, D = shape
    torch_layer = KINDS[kind](D, H, batch_first=True, bidirectional=bool(both)).double()
    paths = {"": "layer.", "_reverse": "reverse."} if both else {"": ""}

    def run(X: Tensor, p: Params) -> Tensor:
        weights = {}
        for suffix, path in paths.items():
            zeros = torch.zeros(GATES[kind] * H).double()
            weights[f"weight_ih_l0{suffix}"] = p[f"{path}Wx"].T
            weights[f"weight_hh_l0{suffix}"] = p[f"{path}Wh"].T
            weights[f"bias_ih_l0{suffix}"] = p[f"{path}b"]
            weights[f"bias_hh_l0{suffix}"] = p.get(f"{path}bh", zeros)
        given = X
        if lengths:
            given = pack_padded_sequence(X, torch.tensor(lengths), True, enforce_sorted=False)
        Y, state = functional_call(torch_layer, weights, (given,))
        if lengths:
            Y, _ = pad_packed_sequence(Y, batch_first=True, total_length=T)
        if not sequences:
            Y = torch.cat(list(state[0] if kind == "LSTM" else state), -1)
        return Y[..., :H] + Y[..., H:] if both == "add" else Y

    shapes: Shapes = {}
    for path in paths.values():
        shapes |= recurrent_shapes(kind, D, H, path)
    layer = f"{kind}({H})" if sequences else f"{kind}({H}, return_sequences=False)"
    merge = "" if both == "concat" else f", merge={both!r}"
    layer = f"Bidirectional({layer}{merge})" if both else layer
    mask = {} if lengths is None else {"mask": np.arange(T) < np.array(lengths)[:, None]}
    remark = f"{shape}" if lengths is None else f"{shape}, lengths {lengths}"
    case(f"{layer} | {remark}", random(*shape), run, shapes, **mask)


def recurrents() -> None:
    for kind in KINDS:
        recurrent(kind, (2, 4, 3), 2)
        recurrent(kind, (1, 1, 2), 3)
        recurrent(kind, (2, 3, 2), 3, sequences=False)
        recurrent(kind, (3, 4, 2), 2, lengths=[2, 4, 1])
        recurrent(kind, (3, 4, 2), 2, lengths=[3, 1, 4], sequences=False)
        recurrent(kind, (2, 3, 2), 2, both="concat")
        recurrent(kind, (2, 3, 2), 2, both="add")
        recurrent(kind, (3, 4, 2), 2, both="concat", lengths=[2, 4, 1])
        recurrent(kind, (3, 4, 2), 2, both="add", lengths=[1, 4, 3], sequences=False)


# --- attention ---------------------------------------------------------------------------------


def hidden(T: int, causal: bool, mask: np.ndarray | None, heads: int) -> Tensor | None:
    """A mask to add to the scores, -inf where hidden: (N, heads, T, T) or (T, T)."""
    seen = torch.ones(T, T).bool()
    if causal:
        seen = seen.tril()
    if mask is not None:
        seen = (seen & torch.tensor(mask)[:, None])[:, None].expand(-1, heads, -1, -1)
    return torch.zeros(seen.shape).double().masked_fill(~seen, -math.inf)


def attend(X: Tensor, p: Params, path: str, heads: int, seen: Tensor | None) -> Tensor:
    """PyTorch's attention layer."""
    _, T, D = X.shape
    zeros = torch.zeros(D).double()
    Y, _ = F.multi_head_attention_forward(
        *[X.transpose(0, 1)] * 3,
        D,
        heads,
        p[f"{path}Wqkv"].T,
        p.get(f"{path}bqkv"),
        None,
        None,
        False,
        0.0,
        p[f"{path}Wo"].T,
        p.get(f"{path}bo", zeros),
        need_weights=False,
        attn_mask=seen if seen is None or seen.ndim == 2 else seen.reshape(-1, T, T),
    )
    return Y.transpose(0, 1)


def attend_by_formula(
    X: Tensor, p: Params, path: str, heads: int, seen: Tensor | None, kv: int, rope: bool
) -> Tensor:
    """The formula, for what PyTorch's layer lacks: shared keys and rotation."""
    N, T, D = X.shape
    d = D // heads
    QKV = X @ p[f"{path}Wqkv"] + p.get(f"{path}bqkv", 0.0)
    Q, K, V = (
        part.reshape(N, T, -1, d).transpose(1, 2) for part in QKV.split([D, kv * d, kv * d], -1)
    )
    if rope:
        Q, K = turned(Q), turned(K)
    K, V = (A.repeat_interleave(heads // kv, 1) for A in (K, V))
    S = Q @ K.transpose(-1, -2) / math.sqrt(d)
    Z = torch.softmax(S if seen is None else S + seen, -1) @ V
    return Z.transpose(1, 2).reshape(N, T, D) @ p[f"{path}Wo"] + p.get(f"{path}bo", 0.0)


def attention_shapes(D: int, heads: int, kv: int, bias: bool, path: str = "") -> Shapes:
    wide = D + 2 * kv * (D // heads)
    shapes: Shapes = {"Wqkv": (D, wide), "Wo": (D, D)}
    shapes |= {"bqkv": (wide,), "bo": (D,)} if bias else {}
    return {f"{path}{n}": s for n, s in shapes.items()}


def attention(
    shape: tuple[int, int, int], heads: int, lengths: list[int] | None = None, **options: Any
) -> None:
    _, T, D = shape
    kv, rope = options.get("kv_heads", heads), options.get("rope", False)
    mask = None if lengths is None else np.arange(T) < np.array(lengths)[:, None]
    seen = hidden(T, options.get("causal", False), mask, heads)

    def run(X: Tensor, p: Params) -> Tensor:
        Y = attend_by_formula(X, p, "", heads, seen, kv, rope)
        if kv == heads and not rope:
            torch.testing.assert_close(Y, attend(X, p, "", heads, seen), rtol=1e-12, atol=1e-12)
            return attend(X, p, "", heads, seen)
        return Y

    shapes = attention_shapes(D, heads, kv, options.get("bias", True))
    remark = f"{shape}" if lengths is None else f"{shape}, lengths {lengths}"
    more = {} if mask is None else {"mask": mask}
    case(
        f"{call('MultiHeadAttention', heads, **options)} | {remark}",
        random(*shape),
        run,
        shapes,
        **more,
    )


def net(X: Tensor, p: Params, path: str, activation: str = "gelu") -> Tensor:
    def dense(X: Tensor, at: str) -> Tensor:
        return F.linear(X, p[f"{path}{at}.W"].T, p[f"{path}{at}.b"])

    if activation == "swiglu":
        gate = F.silu(dense(X, "layers.0.branches.0.layers.0"))
        return dense(gate * dense(X, "layers.0.branches.1"), "layers.1")
    return dense((F.gelu if activation == "gelu" else F.relu)(dense(X, "layers.0")), "layers.2")


def net_shapes(D: int, H: int, path: str, activation: str = "gelu") -> Shapes:
    wide, narrow = {"W": (D, H), "b": (H,)}, {"W": (H, D), "b": (D,)}
    places = {"layers.0": wide, "layers.2": narrow}
    if activation == "swiglu":
        places = {"layers.0.branches.0.layers.0": wide, "layers.0.branches.1": wide}
        places["layers.1"] = narrow
    return {f"{path}{at}.{n}": s for at, shapes in places.items() for n, s in shapes.items()}


def top(f: Function) -> Function:
    """Adapt a function to the paths of a whole chain, which do not start with `layers.`."""
    return lambda X, p: f(X, {f"layers.{n}": a for n, a in p.items()})


def feed_forward(activation: str) -> None:
    shapes = {n.removeprefix("layers."): s for n, s in net_shapes(4, 3, "", activation).items()}
    function = top(lambda X, p: net(X, p, "", activation))
    case(f"FeedForward(3, {activation!r})", random(2, 3, 4), function, shapes)


def block(
    shape: tuple[int, int, int], heads: int, lengths: list[int] | None, **options: Any
) -> None:
    _, T, D = shape
    pre, rms = options.get("pre_norm", True), options.get("norm") == "rms"
    mask = None if lengths is None else np.arange(T) < np.array(lengths)[:, None]
    seen = hidden(T, options.get("causal", False), mask, heads)
    H = round(options.get("mlp_ratio", 4) * D)
    norm_1, inner, norm_2, outer = (
        ("0.layers.0.", "0.layers.1.", "1.layers.0.", "1.layers.1.")
        if pre
        else ("1.", "0.layers.0.", "3.", "2.layers.0.")
    )

    def norm(X: Tensor, p: Params, path: str) -> Tensor:
        if rms:
            return F.rms_norm(X, (D,), p[f"{path}gamma"], 1e-5)
        return F.layer_norm(X, (D,), p[f"{path}gamma"], p[f"{path}beta"], 1e-5)

    def look(X: Tensor, p: Params) -> Tensor:
        if options.get("rope"):
            return attend_by_formula(X, p, inner, heads, seen, heads, True)
        return attend(X, p, inner, heads, seen)

    def run(X: Tensor, p: Params) -> Tensor:
        if pre:
            X = X + look(norm(X, p, norm_1), p)
            return X + net(norm(X, p, norm_2), p, outer)
        X = norm(X + look(X, p), p, norm_1)
        return norm(X + net(X, p, outer), p, norm_2)

    shapes = attention_shapes(D, heads, heads, True, inner) | net_shapes(D, H, outer)
    for path in (norm_1, norm_2):
        shapes |= {f"{path}gamma": (D,)} if rms else {f"{path}gamma": (D,), f"{path}beta": (D,)}
    remark = f"{shape}" if lengths is None else f"{shape}, lengths {lengths}"
    more = {} if mask is None else {"mask": mask}
    case(
        f"{call('TransformerBlock', heads, **options)} | {remark}",
        random(*shape),
        run,
        shapes,
        **more,
    )


def attentions() -> None:
    attention((2, 4, 4), 2)
    attention((2, 5, 4), 2, causal=True)
    attention((1, 1, 2), 1, bias=False)
    attention((3, 4, 4), 2, [2, 4, 1])
    attention((3, 4, 6), 3, [3, 1, 4], causal=True, bias=False)
    attention((2, 3, 8), 4, kv_heads=2)
    attention((2, 4, 4), 2, [4, 2], causal=True, kv_heads=1)
    attention((2, 4, 8), 2, rope=True)
    attention((2, 3, 8), 4, [2, 3], causal=True, kv_heads=2, rope=True, bias=False)
    for activation in ("gelu", "relu", "swiglu"):
        feed_forward(activation)
    block((2, 3, 4), 2, None, mlp_ratio=1.5)
    block((2, 3, 4), 2, [2, 3], causal=True, mlp_ratio=1, pre_norm=False)
    block((2, 3, 4), 1, None, causal=True, mlp_ratio=1, norm="rms", rope=True)
    block((2, 3, 4), 2, [3, 1], mlp_ratio=1, norm="rms", pre_norm=False)


# --- combinators -------------------------------------------------------------------------------


def combinators() -> None:
    def conv1(X: Tensor, p: Params, path: str) -> Tensor:
        W = p[f"{path}W"].movedim((-1, -2), (0, 1))
        return last(F.conv1d(first(X), W, p[f"{path}b"], padding=1))

    case(
        "SkipConcat(Conv1D(3, 3, padding=1), Tanh())",
        random(2, 4, 2),
        lambda X, p: torch.cat([X, torch.tanh(conv1(X, p, "0."))], -1),
        {"0.W": (3, 2, 3), "0.b": (3,)},
    )

    def film(X: Tensor, p: Params) -> Tensor:
        return torch.stack([conv1(frame, p, "layer.") for frame in X.unbind(1)], 1)

    case(
        "TimeDistributed(Conv1D(2, 3, padding=1))",
        random(2, 3, 4, 2),
        film,
        {"layer.W": (3, 2, 2), "layer.b": (2,)},
    )


def noise() -> None:
    """Layers that draw random values: without drawing, they return the mean, or X itself."""
    for shape in ((3, 4), (2, 3, 6)):
        half = shape[-1] // 2
        case(
            f"Reparameterize() | saliency, {shape}",
            random(*shape),
            lambda X, p, half=half: Normal(X[..., :half], torch.exp(X[..., half:] / 2)).mean,
            {},
        )


# --- later layers: at the end, so that the cases above keep their numbers ------------------------


def gated(kind: str, hidden: int, shape: tuple[int, ...], **options: Any) -> None:
    D, bias, gate = shape[-1], options.get("bias", False), "layers.0.branches.0.layers.0"

    def run(X: Tensor, p: Params) -> Tensor:
        def dense(X: Tensor, at: str) -> Tensor:
            b = p[f"{at}.b"] if bias else None
            return F.linear(X, p[f"{at}.W"].T, b)

        Z = dense(X, gate)
        approximate = options.get("approximate", "none")
        Z = F.silu(Z) if kind == "SwiGLU" else F.gelu(Z, approximate=approximate)
        return dense(Z * dense(X, "layers.0.branches.1"), "layers.1")

    sizes = {gate: (D, hidden), "layers.0.branches.1": (D, hidden), "layers.1": (hidden, D)}
    shapes: Shapes = {f"{at}.W": size for at, size in sizes.items()}
    shapes |= {f"{at}.b": size[1:] for at, size in sizes.items()} if bias else {}
    case(
        f"{call(kind, hidden, **options)} | {shape}",
        random(*shape),
        top(run),
        {name.removeprefix("layers."): size for name, size in shapes.items()},
    )


def scaled_angles(rope: str, T: int, d: int) -> Tensor:
    """exp(i t w) times the amplitude, (T, d / 2), checked with transformers in float32."""
    settings, length = ROPES[rope]
    w, amplitude = scaled(settings, T, d)
    if settings["rope_type"] != "default":
        config = LlamaConfig(
            hidden_size=d,
            num_attention_heads=1,
            head_dim=d,
            max_position_embeddings=length,
            rope_parameters=dict(settings),
        )
        find = ROPE_INIT_FUNCTIONS[settings["rope_type"]]
        theirs, factor = find(config, torch.device("cpu"), seq_len=T)
        torch.testing.assert_close(w.float(), theirs, rtol=1e-6, atol=0)
        assert amplitude == factor
    angles = torch.outer(torch.arange(T).double(), w)
    return torch.polar(torch.full_like(angles, amplitude), angles)


def scaled(settings: dict[str, Any], T: int, d: int) -> tuple[Tensor, float]:
    """The frequencies w (d / 2), pair by pair, and the amplitude."""
    kind, base, factor = (
        settings["rope_type"],
        settings["rope_theta"],
        settings.get("factor", 1.0),
    )
    trained = settings.get("original_max_position_embeddings", 3)
    amplitude = settings.get("attention_factor", 1.0)
    if kind == "dynamic" and trained < T:
        base *= (factor * T / trained - factor + 1) ** (d / (d - 2))
    found = []
    for i in range(d // 2):
        w = base ** (-2 * i / d)
        if kind == "linear":
            w /= factor
        if kind == "llama3":
            low, high = settings["low_freq_factor"], settings["high_freq_factor"]
            turns = trained * w / (2 * math.pi)
            share = min(max((turns - low) / (high - low), 0.0), 1.0)
            w *= share + (1 - share) / factor
        if kind == "yarn":
            ends = [
                d * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))
                for turns in (settings.get("beta_fast", 32), settings.get("beta_slow", 1))
            ]
            if settings.get("truncate", True):
                ends = [math.floor(ends[0]), math.ceil(ends[1])]
            start, stop = max(ends[0], 0), min(ends[1], d - 1)
            share = min(max((i - start) / (stop - start), 0.0), 1.0)
            w *= share / factor + 1 - share
        if kind == "longrope":
            w /= settings["long_factor" if trained < T else "short_factor"][i]
        found.append(w)
    if kind == "yarn" and "attention_factor" not in settings:
        amplitude = 0.1 * math.log(factor) + 1
    return torch.tensor(found, dtype=torch.float64), amplitude


def dot_products(
    shape: tuple[int, int, int], heads: int, kv: int, lengths: list[int] | None, **options: Any
) -> None:
    N, T, width = shape
    d = width // (heads + 2 * kv)
    mask = None if lengths is None else np.arange(T) < np.array(lengths)[:, None]
    seen = hidden(T, options.get("causal", False), mask, heads)

    def run(X: Tensor, p: Params) -> Tensor:
        parts = X.split([heads * d, kv * d, kv * d], -1)
        Q, K, V = (part.reshape(N, T, -1, d).transpose(1, 2) for part in parts)
        if options.get("rope"):
            Q, K = turned(Q), turned(K)
        Z = F.scaled_dot_product_attention(Q, K, V, attn_mask=seen, enable_gqa=True)
        return Z.transpose(1, 2).reshape(N, T, heads * d)

    given = {"kv_heads": kv} if kv != heads else {}
    more = {} if mask is None else {"mask": mask}
    remark = f"{shape}" if lengths is None else f"{shape}, lengths {lengths}"
    name = f"{call('ScaledDotProductAttention', heads, **given, **options)} | {remark}"
    case(name, random(*shape), run, {}, **more)


def wide_heads(shape: tuple[int, int, int], heads: int, d: int, rope: str = "") -> None:
    """MultiHeadAttention with heads of another size than D / heads, or scaled frequencies."""
    N, T, D = shape

    def run(X: Tensor, p: Params) -> Tensor:
        QKV = X @ p["Wqkv"] + p["bqkv"]
        Q, K, V = (A.reshape(N, T, heads, d).transpose(1, 2) for A in QKV.chunk(3, -1))
        if rope:
            turn = scaled_angles(rope, T, d)
            Q, K = (
                torch.cat([Z.real, Z.imag], -1)
                for Z in (torch.complex(*A.chunk(2, -1)) * turn for A in (Q, K))
            )
        Z = F.scaled_dot_product_attention(Q, K, V)
        return Z.transpose(1, 2).reshape(N, T, heads * d) @ p["Wo"] + p["bo"]

    shapes: Shapes = {"Wqkv": (D, 3 * heads * d), "bqkv": (3 * heads * d,)}
    shapes |= {"Wo": (heads * d, D), "bo": (D,)}
    with_rope = f", rope={rope}" if rope else ""
    case(
        f"MultiHeadAttention({heads}{with_rope}, head_dim={d}) | {shape}",
        random(*shape),
        run,
        shapes,
    )


def low_rank(shape: tuple[int, ...], size: int, rank: int, alpha: float) -> None:
    case(
        f"LowRank({size}, {rank}, {alpha}) | {shape}",
        random(*shape),
        lambda X, p: alpha / rank * F.linear(F.linear(X, p["A"].T), p["B"].T),
        {"A": (shape[-1], rank), "B": (rank, size)},
    )


ROPES: dict[str, tuple[dict[str, Any], int]] = {  # settings in transformers, trained positions
    "Rope(50.0)": ({"rope_type": "default", "rope_theta": 50.0}, 64),
    "LinearRope(4.0)": ({"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}, 64),
    "DynamicRope(2.0, 3)": ({"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}, 3),
    "Llama3Rope(8.0, 1.0, 4.0, 20, 9.0)": (
        {"rope_type": "llama3", "rope_theta": 9.0, "factor": 8.0, "low_freq_factor": 1.0,
         "high_freq_factor": 4.0, "original_max_position_embeddings": 20},
        160,
    ),
    "YarnRope(4.0, 64)": (
        {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
         "original_max_position_embeddings": 64},
        256,
    ),
    "YarnRope(8.0, 16, 3.0, 0.5, 1.25, False, 500.0)": (
        {"rope_type": "yarn", "rope_theta": 500.0, "factor": 8.0, "beta_fast": 3.0,
         "beta_slow": 0.5, "attention_factor": 1.25, "truncate": False,
         "original_max_position_embeddings": 16},
        128,
    ),
    "LongRope([1.0, 2.0, 1.5, 3.0], [3.0, 4.0, 5.0, 9.0], 3, 1.5)": (
        {"rope_type": "longrope", "rope_theta": 10000.0, "attention_factor": 1.5, "factor": 4.0,
         "short_factor": [1.0, 2.0, 1.5, 3.0], "long_factor": [3.0, 4.0, 5.0, 9.0],
         "original_max_position_embeddings": 3},
        12,
    ),
}  # fmt: skip


def later() -> None:
    gated("SwiGLU", 5, (2, 3, 4))
    gated("SwiGLU", 3, (4, 5), bias=True)
    gated("GEGLU", 5, (2, 3, 4))
    gated("GEGLU", 3, (4, 5), approximate="tanh", bias=True)
    dot_products((2, 3, 12), 2, 2, None)
    dot_products((2, 4, 16), 4, 2, None, causal=True, rope=True)
    dot_products((3, 4, 18), 4, 1, [2, 4, 1], causal=True)
    wide_heads((2, 3, 4), 3, 2)
    for rope in ROPES:
        wide_heads((2, 5, 6), 2, 8, rope)
    wide_heads((1, 3, 6), 1, 8, "LongRope([1.0, 2.0, 1.5, 3.0], [3.0, 4.0, 5.0, 9.0], 3, 1.5)")
    low_rank((4, 5), 3, 2, 16.0)
    low_rank((2, 3, 7), 4, 1, 0.5)


def write() -> None:
    arrays: Arrays = {}
    for i, (name, stored) in enumerate(CASES.items()):
        assert all(np.isfinite(a).all() for a in stored.values()), name
        arrays |= {f"{i}/{key}": a for key, a in {"call": np.array(name), **stored}.items()}
    path = FOLDER / "catalogue.npz"
    np.savez_compressed(path, torch=np.array(torch.__version__), seed=np.array(SEED), **arrays)
    print(f"{path}: {len(CASES)} cases, {len(arrays)} arrays, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    catalogue = (convolutions, pools, norms, embeddings, recurrents, attentions, combinators, noise)
    for make in (*catalogue, later):
        make()
    write()
