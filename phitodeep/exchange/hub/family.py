"""What is common to the families of models: a plan of layers and weights, and a config's values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from phitodeep.core.checks import check_count, check_flag, check_list, check_number, check_option
from phitodeep.core.types import Shape
from phitodeep.errors import DataError
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


# --- the values of a config.json: each is checked when it is read ---------------------------------


class Settings:
    """A dict from JSON with typed access; `where` names its file, and its key inside the file.

    A key without a value, or with the value null, has the default. A key without a default is
    required.
    """

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, Mapping):
            raise DataError(f"{where} must be a dict, got {values!r}.")
        self.values, self.where = values, where

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        """Return any value, or refuse a missing one if there is no default."""
        value = self.values.get(key)
        if value is None and default is None:
            raise DataError(f"{self.where} lacks {key!r}.")
        return default if value is None else value

    def count(self, key: str, default: int | None = None, *, minimum: int = 1) -> int:
        return check_count(self.get(key, default), self._name(key), minimum=minimum)

    def number(self, key: str, default: float | None = None, *, above: float = -math.inf) -> float:
        return check_number(self.get(key, default), self._name(key), above=above)

    def rate(self, key: str, default: float) -> float:
        """Return a rate of dropout."""
        return check_number(self.get(key, default), self._name(key), minimum=0, below=1)

    def flag(self, key: str, default: bool) -> bool:
        return check_flag(self.get(key, default), self._name(key))

    def option(self, key: str, options: Sequence[str], default: str | None = None) -> str:
        return check_option(self.get(key, default), self._name(key), options)

    def numbers(self, key: str, length: int) -> list[float]:
        """Return a list of this many numbers above 0."""
        values = check_list(self.get(key), self._name(key))
        if len(values) != length:
            raise DataError(f"{self._name(key)} must have {length} numbers, got {len(values)}.")
        return [check_number(value, self._name(key), above=0) for value in values]

    def inner(self, key: str) -> Settings:
        """Return the dict under a key; an empty one if there is none."""
        return Settings(self.get(key, {}), self._name(key))

    def require(self, **only: Any) -> None:
        """Refuse a key whose value is not the only one that is supported; null stands for it."""
        for key, value in only.items():
            found = self.values.get(key)
            if found is not None and found != value:
                raise DataError(
                    f"{self._name(key)} is {found!r}, which is not supported: only "
                    f"{'null' if value is None else value} is."
                )

    def _name(self, key: str) -> str:
        return f"{self.where}: {key}"
