"""How the table of correspondences names a PyTorch module, read in both directions.

A row names the module's class, the settings that have the same value in both, and for each
parameter its name there and how its elements are rearranged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.types import Array
from phitodeep.exchange.torch.layouts import FIRST, LAST
from phitodeep.layers.base import Layer


class Move(NamedTuple):
    """How the elements of a parameter are rearranged, from ours to theirs and back."""

    there: Callable[[Array], Array]
    back: Callable[[Array], Array]


def _moved(ours: tuple[int, ...], theirs: tuple[int, ...]) -> Move:
    return Move(lambda W: np.moveaxis(W, ours, theirs), lambda W: np.moveaxis(W, theirs, ours))


EMPTY: Mapping[str, Any] = MappingProxyType({})
SAME = Move(lambda A: A, lambda A: A)
TRANSPOSED = Move(np.transpose, np.transpose)
CONV = _moved((-1, -2), (0, 1))  # (k..., C, F) -> (F, C, k...)
ADJOINT = _moved((-2, -1), (0, 1))  # (k..., C, F) -> (C, F, k...)


class Pair(NamedTuple):
    """The module that stands for a layer class: see `pair`."""

    theirs: str
    layout: str
    sizes: Callable[[Any], dict[str, Any]]
    moves: Mapping[str, tuple[str, Move]]
    needs: Mapping[str, Any]
    other: str
    settings: Mapping[str, str]
    ours: type[Layer] = Layer  # `correspondence.PAIRS` fills it in


def pair(
    theirs: str,
    layout: str = "any",
    sizes: Callable[[Any], dict[str, Any]] = lambda layer: {},
    moves: Mapping[str, tuple[str, Move]] = EMPTY,
    needs: Mapping[str, Any] = EMPTY,
    other: str = "",
    **settings: str,
) -> Pair:
    """Return the module that stands for a layer class.

    theirs      a name in torch.nn, or "own." and a name in modules.py or of a function of PyTorch,
                such as "own.sin". A "#" is the number of spatial axes
    layout      which axis of X holds the channels: "first", "last", or "any" if it does not matter
    sizes       more arguments of their class, given a built layer
    moves       for each parameter and state of ours: the name there, and the rearrangement
    needs       settings of theirs that have no counterpart, with the only value that is possible
    other       the module of a layer with padding="same", or of a frozen BatchNorm
    settings    our settings and theirs that have the same value
    """
    return Pair(theirs, layout, sizes, moves, needs, other, settings)


class Composed(NamedTuple):
    """A layer whose module is made from what surrounds it or what is inside.

    make      make(writer, layer, path, layout) returns the module, and the layout of its output
    layout    of X, as in Pair
    """

    make: Callable[[Any, Any, str, Any], tuple[Any, Any]]
    layout: str = "any"


LINEAR = {"W": ("weight", TRANSPOSED), "b": ("bias", SAME)}
WEIGHT = {"W": ("weight", SAME)}
SCALE = {"gamma": ("weight", SAME)}
FACTORS = {name: (name, SAME) for name in "AB"}
NORM = {**SCALE, "beta": ("bias", SAME)}
BATCH = {**NORM, **{n: (n, SAME) for n in ("running_mean", "running_var")}}
BILINEAR = {"W": ("weight", _moved((-1,), (0,))), "b": ("bias", SAME)}


def _products(**names: str) -> dict[str, tuple[str, Move]]:
    """Return where the W and b of products are: modules by the names of the products."""
    weights = {f"W{ours}": (f"{theirs}.weight", TRANSPOSED) for ours, theirs in names.items()}
    return weights | {f"b{ours}": (f"{theirs}.bias", SAME) for ours, theirs in names.items()}


ATTENTION = _products(qkv="qkv", o="out")
CROSS_ATTENTION = _products(q="q", kv="kv", o="out")
_RECURRENT = {
    "Wx": ("weight_ih_l0", TRANSPOSED),
    "Wh": ("weight_hh_l0", TRANSPOSED),
    "b": ("bias_ih_l0", SAME),
    "bh": ("bias_hh_l0", SAME),
}
RETURNS = ("return_sequences", "return_state", "initial_state")
_WINDOW = {n: n for n in ("kernel_size", "stride", "dilation", "groups")}
_POOL = {"pool_size": "kernel_size", "stride": "stride"}


def width(name: str) -> Callable[[Any], dict[str, Any]]:
    """Return the `sizes` of a module that is given the size of the last axis by this name."""
    return lambda layer: {name: layer.input_shape[-1]}


def conv(theirs: str, move: Move) -> Pair:
    moves = {"W": ("weight", move), "b": ("bias", SAME)}
    needs = {"padding_mode": "zeros"}
    return pair(theirs, FIRST, _conv, moves, needs, f"own.Same{theirs}", **_WINDOW)


def _conv(layer: Any) -> dict[str, Any]:
    sizes = {"in_channels": layer.input_shape[-1], "out_channels": layer.filters}
    if hasattr(layer, "extra"):  # a transposed convolution
        sizes["output_padding"] = layer.output_padding
        if layer.padding == "same":  # windows that do not touch
            reach = zip(layer.kernel, layer.strides, layer.dilations, strict=True)
            sizes["output_padding"] = tuple(max(s - (k - 1) * d - 1, 0) for k, s, d in reach)
    return {**sizes, "bias": layer.bias, **_zeros(layer)}


def _zeros(layer: Any) -> dict[str, Any]:
    """Return the padding of a module that takes a number of zeros."""
    if layer.padding == "same":
        return {}
    return {"padding": 0 if layer.padding == "valid" else layer.padding}


def pool(theirs: str, **needs: Any) -> Pair:
    needs = {"ceil_mode": False, **needs}
    return pair(theirs, FIRST, _pool, {}, needs, f"own.Same{theirs}", **_POOL)


def _pool(layer: Any) -> dict[str, Any]:
    if layer.padding == "same":
        return {"kernel_size": layer.pool, "stride": layer.strides}
    return _zeros(layer)


def recurrent(theirs: str) -> Pair:
    names = {"units": "hidden_size", **{n: n for n in RETURNS}}
    return pair(theirs, LAST, _features, _RECURRENT)._replace(settings=names)


def _features(layer: Any) -> dict[str, Any]:
    return {"input_size": len(layer.Wx)}


def linear(layer: Any) -> dict[str, Any]:
    sizes = {"in_features": layer.input_size, "out_features": layer.output_size}
    return {**sizes, "bias": layer.bias}


def heads(layer: Any) -> dict[str, Any]:
    settings = {name: getattr(layer, name) for name in ("heads", "causal", "dropout")}
    return {"kv_heads": layer.kv_heads or layer.heads, "rope": layer.rotary, **settings}


def attention(layer: Any) -> dict[str, Any]:
    size = len(layer.Wo) // layer.heads
    return {"dim": layer.Wo.shape[1], "size": size, "bias": layer.bias, **heads(layer)}


def cross_attention(layer: Any) -> dict[str, Any]:
    return {"memory": len(layer.Wkv), **attention(layer)}


def bilinear(layer: Any) -> dict[str, Any]:
    sizes = dict(zip(("in1_features", "in2_features", "out_features"), layer.W.shape, strict=True))
    return {**sizes, "bias": layer.bias}


def positions(layer: Any) -> dict[str, Any]:
    return {"max_len": layer.max_len, "dim": layer.input_shape[-1]}


def instance_norm(layer: Any) -> dict[str, Any]:
    return {"num_features": layer.input_shape[-1], "affine": True}


def low_rank(layer: Any) -> dict[str, Any]:
    sizes = {"dim": layer.input_shape[-1], "output_size": layer.output_size}
    return {**sizes, "rank": layer.rank}


def upsample(layer: Any) -> dict[str, Any]:
    return {"scale_factor": tuple(map(float, layer.factors)), "mode": layer.mode}


def sides(layer: Any) -> dict[str, Any]:
    (top, bottom), (left, right) = layer.pads
    return {"padding": (left, right, top, bottom)}
