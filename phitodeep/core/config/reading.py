"""Read objects from plain values: the implementation of `from_config`."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import numpy as np

from phitodeep.core.config.registry import KINDS, TAGS, Place, find_registered
from phitodeep.errors import ArgumentError, ArgumentTypeError, locate

FLOATS = ("inf", "-inf", "nan")  # the numbers that JSON does not have
DTYPES = {np.dtype(code).name: np.dtype(code) for code in "?bBhHiIqQefd"}  # of small arrays
MOST_AXES = 32
MOST_OBJECTS = 10_000  # of one config: more than any model has layers


def check_mapping(config: Any, owner: str) -> Mapping[str, Any]:
    """Return a config, which must be a dict."""
    if not isinstance(config, Mapping):
        raise ArgumentTypeError(f"{owner}.from_config takes a dict, got {config!r}.")
    return config


class _Reader:
    """Reads values and remembers the layers that later ones may refer to.

    Every value is checked before it is used, and the constructors check theirs, so that a wrong
    config raises an error of phitodeep wherever it is wrong. Errors of your own constructors reach
    the caller as they are.
    """

    def __init__(self) -> None:
        self.layers: dict[int, Any] = {}  # by id
        self.objects = 0  # created so far

    def value(self, value: Any, place: Place) -> Any:
        """Return what plain values stand for; an error names their `place`."""
        if isinstance(value, list):
            return [self.value(v, place.at(i)) for i, v in enumerate(value)]
        if not isinstance(value, Mapping):
            return value
        tag = next((tag for tag in TAGS if tag in value), None)
        if tag is None:
            return {k: self.value(v, place.at(k)) for k, v in value.items()}
        try:
            return (self.object if tag in KINDS else self.decoded)(tag, value, place)
        except Exception as error:
            locate(error, str(place))
            raise

    def object(self, kind: str, value: Mapping[str, Any], place: Place) -> Any:
        """Return the object of a registered class that a tagged dict describes."""
        self.objects += 1
        if self.objects > MOST_OBJECTS:
            raise ArgumentError(f"a config describes at most {MOST_OBJECTS} objects.")
        obj = find_registered(kind, value[kind]).from_config(value.get("config", {}))
        if "id" in value:
            self.layers[self.id(value["id"], value)] = obj
        return obj

    def decoded(self, tag: str, value: Mapping[str, Any], place: Place) -> Any:
        """Return what a tag other than a class stands for."""
        inside = value[tag]
        if tag == "ref":
            if self.id(inside, value) not in self.layers:
                raise ArgumentError(f"no earlier layer has the id {inside!r}.")
            return self.layers[inside]
        if tag == "function":
            return find_registered("function", inside)
        if tag == "enum":
            name, _, member = (
                inside.rpartition(".") if isinstance(inside, str) else (inside, "", "")
            )
            members = find_registered("enum", name).__members__
            if member not in members:
                raise ArgumentError(f"{name} has {', '.join(members)}, got {member!r}.")
            return members[member]
        if tag == "float":
            if not isinstance(inside, str) or inside not in FLOATS:
                raise _misread(value, f"a float is one of {', '.join(FLOATS)}")
            return float(inside)
        if tag == "array":
            return _array(self.value(inside, place), value)
        if not isinstance(inside, list):
            raise _misread(value, f"{tag} needs a list")
        if tag == "tuple":
            return tuple(self.value(inside, place))
        return dict(self.pair(pair, value, place) for pair in inside)

    def id(self, given: Any, value: Mapping[str, Any]) -> int:
        if not isinstance(given, int):
            raise _misread(value, "an id is an integer")
        return given

    def pair(self, pair: Any, value: Mapping[str, Any], place: Place) -> tuple[Any, Any]:
        """Return the key and the value of an item of a dict."""
        if not isinstance(pair, list) or len(pair) != 2:
            raise _misread(value, "pairs are lists of two")
        key, inside = (self.value(v, place) for v in pair)
        try:
            hash(key)
        except TypeError:
            raise _misread(value, f"a {type(key).__name__} cannot be a key") from None
        return key, inside


def _array(values: Any, value: Mapping[str, Any]) -> Any:
    """Return an array of real numbers; refuse numbers that its dtype cannot hold exactly."""
    name = value.get("dtype")
    dtype = DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise _misread(value, f"the dtype of an array is one of {', '.join(DTYPES)}")
    shape: list[int] = []
    flat: list[Any] = [values]
    while flat and all(isinstance(v, list) for v in flat):
        shape.append(len(flat[0]))
        if len(shape) > MOST_AXES or any(len(v) != shape[-1] for v in flat):
            raise _misread(value, "the rows of an array have equal lengths")
        flat = [v for row in flat for v in row]
    if not all(isinstance(v, float) or (isinstance(v, int) and _fits(v)) for v in flat):
        raise _misread(value, "an array holds real numbers of at most 64 bits")
    with np.errstate(all="ignore"):
        found = np.array(flat) if flat else np.array(flat, dtype)
        array = found.astype(dtype)
    if dtype.kind != "f" and not np.array_equal(array, found):
        raise _misread(value, f"its numbers do not fit into {name}")
    return array.reshape(shape)


def _fits(number: int) -> bool:
    return -(1 << 63) <= number < 1 << 64


def _misread(value: Any, why: str) -> ArgumentError:
    return ArgumentError(f"{value!r} is not what get_config writes: {why}.")


_READER: ContextVar[_Reader | None] = ContextVar("phitodeep_reader", default=None)


def restored(config: Mapping[str, Any], owner: str = "config") -> dict[str, Any]:
    """Return what the values of a config stand for, by key. Call it in your own `from_config`."""
    check_mapping(config, owner)
    outer = _READER.get()
    reader = outer or _Reader()
    token = _READER.set(reader)
    try:
        return {name: reader.value(v, Place(name, owner)) for name, v in config.items()}
    except RecursionError:
        if outer is not None:
            raise
        raise ArgumentError(
            f"the config of {owner} is nested too deeply or contains itself."
        ) from None
    finally:
        _READER.reset(token)
