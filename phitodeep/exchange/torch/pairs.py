"""The table of layers and the PyTorch modules that compute the same, read in both directions.

A row names both classes, the settings that have the same value in both, and for each parameter its
name there and how its elements are rearranged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from phitodeep import layers as L
from phitodeep.core.types import Array
from phitodeep.errors import ArgumentTypeError
from phitodeep.exchange.numpy.forms import find
from phitodeep.functional.rotary import Rope
from phitodeep.layers.base import Layer


class Move(NamedTuple):
    """How the elements of a parameter are rearranged, from ours to theirs and back."""

    there: Callable[[Array], Array]
    back: Callable[[Array], Array]


SAME = Move(lambda A: A, lambda A: A)
TRANSPOSED = Move(np.transpose, np.transpose)
CONV = Move(
    lambda W: np.moveaxis(W, (-1, -2), (0, 1)),  # (k..., C, F) -> (F, C, k...)
    lambda W: np.moveaxis(W, (0, 1), (-1, -2)),
)
ADJOINT = Move(
    lambda W: np.moveaxis(W, (-2, -1), (0, 1)),  # (k..., C, F) -> (C, F, k...)
    lambda W: np.moveaxis(W, (0, 1), (-2, -1)),
)
Moves = dict[str, tuple[str, Move]]


class Pair(NamedTuple):
    """A layer class and the modules that stand for it.

    theirs      names in torch.nn, or "own." and a name in modules.py. A "#" is the number of
                spatial axes. There may be two: `same` says which of them a layer needs
    layout      which axis of X holds the channels: "first", "last", or "any" if it does not matter
    settings    our settings and theirs that have the same value
    sizes       more arguments of their class, given a built layer
    moves       for each parameter and state of ours: the name there, and the rearrangement
    needs       settings of theirs that have no counterpart, with the only value that is possible
    """

    ours: type[Layer]
    theirs: str
    layout: str = "any"
    settings: Mapping[str, str] = {}
    sizes: Callable[[Any], dict[str, Any]] = lambda layer: {}
    moves: Mapping[str, tuple[str, Move]] = {}
    needs: Mapping[str, Any] = {}


def _unset(*names: str, layout: str = "any") -> list[Pair]:
    """Return rows of layers without any settings, given as "ours:theirs"."""
    split = [name.split(":") for name in names]
    return [Pair(getattr(L, ours), theirs, layout) for ours, theirs in split]


def _width(layer: Layer) -> int:
    assert layer.input_shape is not None
    return layer.input_shape[-1]


_LINEAR: Moves = {"W": ("weight", TRANSPOSED), "b": ("bias", SAME)}
_SCALE: Moves = {"gamma": ("weight", SAME)}
_NORM: Moves = {**_SCALE, "beta": ("bias", SAME)}
_BATCH: Moves = {**_NORM, **{n: (n, SAME) for n in ("running_mean", "running_var")}}
_RECURRENT: Moves = {
    "Wx": ("weight_ih_l0", TRANSPOSED),
    "Wh": ("weight_hh_l0", TRANSPOSED),
    "b": ("bias_ih_l0", SAME),
    "bh": ("bias_hh_l0", SAME),
}
_ATTENTION: Moves = {
    "Wqkv": ("qkv.weight", TRANSPOSED),
    "bqkv": ("qkv.bias", SAME),
    "Wo": ("out.weight", TRANSPOSED),
    "bo": ("out.bias", SAME),
}
_WINDOW = {n: n for n in ("kernel_size", "stride", "dilation", "groups")}
_POOL = {"pool_size": "kernel_size", "stride": "stride"}
_DROPOUT = {"rate": "p"}


def _conv(layer: Any) -> dict[str, Any]:
    own: dict[str, Any] = {} if layer.padding == "same" else {"padding": _zeros(layer)}
    own |= {"output_padding": layer.output_padding} if hasattr(layer, "output_padding") else {}
    if hasattr(layer, "extra") and layer.padding == "same":  # windows that do not touch
        reach = zip(layer.kernel, layer.strides, layer.dilations, strict=True)
        own["output_padding"] = tuple(max(s - (k - 1) * d - 1, 0) for k, s, d in reach)
    sizes = {"in_channels": _width(layer), "out_channels": layer.filters, "bias": layer.bias}
    return {**sizes, **own}


def _zeros(layer: Any) -> int:
    return 0 if layer.padding == "valid" else layer.padding


def _pool(layer: Any) -> dict[str, Any]:
    return {} if layer.padding == "same" else {"padding": _zeros(layer)}


def _same_pool(layer: Any) -> dict[str, Any]:
    return {"kernel_size": layer.pool, "stride": layer.strides}


def _heads(layer: Any) -> dict[str, Any]:
    names = ("heads", "causal", "dropout")
    settings = {name: getattr(layer, name) for name in names}
    return {"kv_heads": layer.kv_heads or layer.heads, "rope": layer.rotary, **settings}


def _attention(layer: Any) -> dict[str, Any]:
    size = len(layer.Wo) // layer.heads
    return {"dim": _width(layer), "size": size, "bias": layer.bias, **_heads(layer)}


def _crop(layer: Any) -> dict[str, Any]:
    size = None if isinstance(layer, L.RandomShift) else layer.window
    return {"size": size, "padding": layer.pads}


PAIRS: list[Pair] = [
    *_unset("ReLU:ReLU", "SELU:SELU", "SiLU:SiLU", "Mish:Mish", "HardSigmoid:Hardsigmoid"),
    *_unset("HardSwish:Hardswish", "Sigmoid:Sigmoid", "Tanh:Tanh", "Softsign:Softsign"),
    *_unset("SinusoidalEncoding:own.SinusoidalEncoding", layout="last"),
    *_unset("Reparameterize:own.Reparameterize", "Flatten:Flatten", layout="last"),
    Pair(L.HardTanh, "Hardtanh", needs={"min_val": -1.0, "max_val": 1.0}),
    # PyTorch's threshold, above which y = x, is 20; ours has none
    Pair(L.Softplus, "Softplus", sizes=lambda _: {"threshold": 40.0}, needs={"beta": 1}),
    Pair(L.LeakyReLU, "LeakyReLU", settings={"alpha": "negative_slope"}),
    Pair(L.ELU, "ELU", settings={"alpha": "alpha"}),
    Pair(L.CELU, "CELU", settings={"alpha": "alpha"}),
    Pair(L.GELU, "GELU", settings={"approximate": "approximate"}),
    Pair(
        L.PReLU,
        "PReLU",
        "first",
        sizes=lambda layer: {"num_parameters": _width(layer)},
        moves={"alpha": ("weight", SAME)},
    ),
    Pair(
        L.Dense,
        "Linear",
        "last",
        sizes=lambda layer: {
            "in_features": layer.input_size,
            "out_features": layer.output_size,
            "bias": layer.bias,
        },
        moves=_LINEAR,
    ),
    Pair(
        L.Embedding,
        "Embedding",
        settings={"vocab_size": "num_embeddings", "dim": "embedding_dim"},
        moves={"W": ("weight", SAME)},
        needs={"padding_idx": None, "max_norm": None, "scale_grad_by_freq": False},
    ),
    *(
        Pair(
            kind,
            f"{prefix}{kind.__name__.lower().replace('conv', 'Conv').replace('trans', 'Trans')}",
            "first",
            _WINDOW,
            _conv,
            {"W": ("weight", move), "b": ("bias", SAME)},
            {"padding_mode": "zeros"},
        )
        for kinds, move in (
            ((L.Conv1D, L.Conv2D), CONV),
            ((L.ConvTranspose1D, L.ConvTranspose2D), ADJOINT),
        )
        for kind in kinds
        for prefix in ("", "own.Same")
    ),
    *(
        Pair(kind, f"{prefix}{kind.__name__[:-1]}d", "first", _POOL, sizes, {}, needs)
        for kinds, only in (
            ((L.MaxPool1D, L.MaxPool2D), {"return_indices": False, "dilation": 1}),
            ((L.AvgPool1D, L.AvgPool2D), {"divisor_override": None}),
        )
        for kind in kinds
        for prefix, sizes, needs in (
            ("", _pool, {"ceil_mode": False, **only}),
            ("own.Same", _same_pool, {}),
        )
    ),
    Pair(
        L.Upsample2D,
        "Upsample",
        "first",
        sizes=lambda layer: {"scale_factor": tuple(map(float, layer.factors)), "mode": layer.mode},
    ),
    Pair(L.ZeroPad2D, "ZeroPad2d", "first", sizes=lambda layer: {"padding": _sides(layer)}),
    Pair(
        L.LayerNorm,
        "LayerNorm",
        "last",
        {"eps": "eps"},
        lambda layer: {"normalized_shape": _width(layer)},
        _NORM,
    ),
    Pair(
        L.RMSNorm,
        "RMSNorm",
        "last",
        {"eps": "eps"},
        lambda layer: {"normalized_shape": _width(layer)},
        _SCALE,
    ),
    Pair(
        L.InstanceNorm,
        "InstanceNorm#d",
        "first",
        {"eps": "eps"},
        lambda layer: {"num_features": _width(layer), "affine": True},
        _NORM,
        {"track_running_stats": False},
    ),
    Pair(
        L.GroupNorm,
        "GroupNorm",
        "first",
        {"groups": "num_groups", "eps": "eps"},
        lambda layer: {"num_channels": _width(layer)},
        _NORM,
    ),
    *(
        Pair(
            L.BatchNorm,
            f"{name}#d",
            "first",
            {"momentum": "momentum", "eps": "eps"},
            lambda layer: {"num_features": _width(layer)},
            _BATCH,
            {"affine": True, "track_running_stats": True},
        )
        for name in ("BatchNorm", "own.FrozenBatchNorm")
    ),
    Pair(L.SpatialDropout, "Dropout#d", "first", _DROPOUT),
    Pair(L.Dropout, "Dropout", settings=_DROPOUT),
    Pair(L.GaussianNoise, "own.GaussianNoise", settings={"std": "std"}),
    Pair(
        L.RandomFlip,
        "own.RandomFlip",
        "first",
        {"horizontal": "horizontal", "vertical": "vertical"},
    ),
    Pair(L.RandomCrop, "own.RandomCrop", "first", sizes=_crop),
    *(
        Pair(
            kind,
            f"own.{kind.__name__}",
            "last",
            {"return_sequences": "return_sequences"},
            lambda layer: {"sizes": (_width(layer), layer.units)},
            _RECURRENT,
        )
        for kind in (L.RNN, L.LSTM, L.GRU)
    ),
    Pair(
        L.PositionalEmbedding,
        "own.PositionalEmbedding",
        "last",
        {},
        lambda layer: {"max_len": layer.max_len, "dim": _width(layer)},
        {"W": ("weight", SAME)},
    ),
    Pair(
        L.RotaryEmbedding,
        "own.RotaryEmbedding",
        "last",
        {},
        lambda layer: {"rope": Rope(layer.base)},
    ),
    Pair(L.ScaledDotProductAttention, "own.ScaledDotProductAttention", "last", {}, _heads),
    Pair(L.MultiHeadAttention, "own.MultiHeadAttention", "last", {}, _attention, _ATTENTION),
    Pair(
        L.LowRank,
        "own.LowRank",
        "last",
        {"alpha": "alpha"},
        lambda layer: {"dim": _width(layer), "output_size": layer.output_size, "rank": layer.rank},
        {"A": ("A", SAME), "B": ("B", SAME)},
    ),
    Pair(
        L.Select,
        "own.Select",
        "last",
        sizes=lambda layer: {"columns": layer.columns, "tokens": layer.tokens},
    ),
    Pair(L.Permute, "own.Permute", "last", sizes=lambda layer: {"sizes": layer.dims}),
    Pair(L.Reshape, "own.Reshape", "last", sizes=lambda layer: {"sizes": layer.output_shape}),
]


def _sides(layer: Any) -> tuple[int, ...]:
    (top, bottom), (left, right) = layer.pads
    return (left, right, top, bottom)


OURS: dict[type[Layer], list[Pair]] = {}
for _pair in PAIRS:
    OURS.setdefault(_pair.ours, []).append(_pair)

REGISTERED: dict[type[Layer], Any] = {}  # module classes of other authors, by their layer class
Theirs = TypeVar("Theirs", bound=type)


def counterpart(kind: type[Layer]) -> Callable[[Theirs], Theirs]:
    """Declare the decorated module class as the PyTorch counterpart of a layer class.

        class Scale(Layer):
            s = Param()

        @counterpart(Scale)
        class TorchScale(torch.nn.Module):
            def __init__(self, layer):
                super().__init__()
                self.s = torch.nn.Parameter(torch.tensor(layer.s))

            def forward(self, X):
                return X * self.s

            def as_layer(self):
                return Scale()

            moves = {"s": "s"}

    `to_torch` calls the class with the built layer. X has the layer's own layout, with the channels
    on the last axis. `moves` names the module's parameter for each parameter of the layer; they
    have the same shape. For `from_torch`, `as_layer` returns a new layer, whose parameters are then
    read by `moves`.
    """
    if not (isinstance(kind, type) and issubclass(kind, Layer)):
        raise ArgumentTypeError(f"counterpart takes a class of layers, got {kind!r}.")

    def declare(theirs: Theirs) -> Theirs:
        REGISTERED[kind] = theirs
        return theirs

    return declare


def pair_of(layer: Layer) -> Pair | None:
    """Return the row for a built layer, or None if there is none."""
    try:
        rows = find(type(layer), OURS)
    except KeyError:
        return None
    other = (
        not layer.trainable if rows[0].ours is L.BatchNorm
        else getattr(layer, "padding", None) == "same"
    )  # fmt: skip
    return rows[-1] if other else rows[0]


def registered(layer: Layer) -> Any:
    """Return the module class that another author declared for a layer, or None."""
    try:
        return find(type(layer), REGISTERED)
    except KeyError:
        return None


def moves_of(layer: Layer) -> dict[str, tuple[str, Move]]:
    """Return the rearrangements of the layer's own parameters and state."""
    theirs = registered(layer)
    if theirs is not None:
        return {name: (there, SAME) for name, there in theirs.moves.items()}
    pair = pair_of(layer)
    return dict(pair.moves) if pair else {}
