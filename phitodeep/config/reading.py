"""Read objects from plain values: the implementation of `from_config`."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import numpy as np

from phitodeep.config.registry import KINDS, TAGS, Place, find_registered
from phitodeep.errors import ArgumentError, ArgumentTypeError, PhitodeepError, locate


def check_mapping(config: Any, owner: str) -> Mapping[str, Any]:
    """Return a config, which must be a dict."""
    if not isinstance(config, Mapping):
        raise ArgumentTypeError(f"{owner}.from_config takes a dict, got {config!r}.")
    return config


class _Reader:
    """Reads values and remembers the layers that later ones may refer to."""

    def __init__(self) -> None:
        self.layers: dict[Any, Any] = {}  # by id

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
            return self.tagged(tag, value, place)
        except Exception as error:
            locate(error, str(place))
            raise

    def tagged(self, tag: str, value: Mapping[str, Any], place: Place) -> Any:
        """Return the object or value that a tagged dict stands for."""
        try:
            if tag not in KINDS:
                return self.decoded(tag, value[tag], value, place)
            obj = find_registered(tag, value[tag]).from_config(value.get("config", {}))
            if "id" in value:
                self.layers[value["id"]] = obj
            return obj
        except (TypeError, ValueError, OverflowError, SyntaxError) as error:
            if isinstance(error, PhitodeepError):
                raise
            raise ArgumentError(f"{value!r} is not what get_config writes: {error}.") from error

    def decoded(self, tag: str, inside: Any, value: Mapping[str, Any], place: Place) -> Any:
        """Return what a tag other than a class stands for."""
        if tag == "ref":
            if inside not in self.layers:
                raise ArgumentError(f"no earlier layer has the id {inside!r}.")
            return self.layers[inside]
        if tag == "function":
            return find_registered("function", inside)
        if tag == "enum":
            name, _, member = str(inside).rpartition(".")
            members = find_registered("enum", name).__members__
            if member not in members:
                raise ArgumentError(f"{name} has {', '.join(members)}, got {member!r}.")
            return members[member]
        if tag == "float":
            return float(inside)
        if tag == "tuple":
            return tuple(self.value(inside, place))
        if tag == "array":
            array = np.array(self.value(inside, place), value.get("dtype"))
            if array.dtype.kind not in "fiub":
                raise ArgumentTypeError(f"an array of {array.dtype} is not what get_config writes.")
            return array
        return {self.value(k, place): self.value(v, place) for k, v in inside}


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
