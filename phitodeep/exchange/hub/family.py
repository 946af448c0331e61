"""What is common to the families of models: a plan of the layers, and of their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from phitodeep.core.types import Shape
from phitodeep.exchange.hub.settings import Settings
from phitodeep.layers import Dense, Embedding, TiedDense
from phitodeep.layers.base import Layer

ACTIVATIONS = {  # names in a config.json -> names of FeedForward
    **dict.fromkeys(["gelu", "gelu_python"], "gelu"),
    **dict.fromkeys(["gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate"], "gelu_tanh"),
    **dict.fromkeys(["silu", "swish"], "silu"),
    "relu": "relu",
}


class Source(NamedTuple):
    """The arrays of a checkpoint that a parameter is made of.

    shapes        the arrays by name; several are joined along the parameter's last axis
    transposed    whether the checkpoint holds (out, in)
    """

    shapes: Mapping[str, Shape]
    transposed: bool = False


class Plan(NamedTuple):
    """A model as a config describes it, before anything is created.

    blocks     the number of blocks; a block has several arrays
    steps      the number of steps of the model's input
    prefix     how the names of the arrays begin, except in checkpoints without a head
    ignored    a pattern of arrays that are not parameters
    sources    the parameters by path
    layers     creates the layers; with True, blocks are checkpoints (see `Chain`)
    """

    blocks: int
    steps: int
    prefix: str
    ignored: str
    sources: Callable[[], dict[str, Source]]
    layers: Callable[[bool], Iterable[Layer]]


def head(embedding: Embedding, tied: bool) -> Layer:
    """Return the layer of scores for the next token."""
    return TiedDense(embedding) if tied else Dense(embedding.vocab_size, bias=False)


def head_source(at: int, D: int, vocab_size: int, tied: bool) -> dict[str, Source]:
    """Return the source of the scores' layer, which is the layer `at`."""
    return {} if tied else {f"{at}.W": Source({"lm_head.weight": (vocab_size, D)}, True)}


def activation(config: Settings, key: str, default: str, known: Iterable[str]) -> str:
    """Return FeedForward's name of an activation; only those in `known` are supported."""
    names = [name for name, ours in ACTIVATIONS.items() if ours in known]
    return ACTIVATIONS[config.option(key, names, default)]
