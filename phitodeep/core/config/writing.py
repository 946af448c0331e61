"""Write objects as plain values: the implementation of `get_config`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np

from phitodeep.core.config.registry import (
    TAGS,
    Place,
    Writable,
    name_problem,
    qualified_name,
    registered_name,
)
from phitodeep.errors import ArgumentError, ArgumentTypeError, PhitodeepError, locate

MAX_ARRAY_SIZE = 4096  # a larger array is data rather than a setting


class _Tagged(dict[str, Any]):
    """A dict that stands for another value; writing it again leaves it unchanged."""


class _Writer:
    """Writes an object with everything inside it; remembers the layers already written.

    strict       False: values that cannot be written stay as they are, to compare configs
    callbacks    False: lists are written without the callbacks in them
    """

    def __init__(self, strict: bool = True, callbacks: bool = True) -> None:
        self.strict, self.callbacks = strict, callbacks
        self.open: list[Any] = []  # the objects being written, outermost first
        self.entries: dict[int, tuple[Any, _Tagged]] = {}  # layers written so far, by id
        self.ids = 0

    def value(self, value: Any, place: Place) -> Any:
        """Return `value` as plain values; an error names its `place`."""
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, _Tagged):
            return value
        if isinstance(value, Writable):
            return self.object(value.described(), place)
        if isinstance(value, Enum):
            return _Tagged(enum=f"{self.name(type(value), 'enum', place)}.{value.name}")
        if isinstance(value, float) and not math.isfinite(value):
            return _Tagged(float=repr(float(value)))
        if isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, np.dtype) or (
            isinstance(value, type) and issubclass(value, np.generic)
        ):
            return np.dtype(value).name
        if isinstance(value, PurePath):
            return str(value)
        if type(value) is list:
            return [
                self.value(v, place.at(i))
                for i, v in enumerate(value)
                if self.callbacks or not (isinstance(v, Writable) and v.config_kind == "callback")
            ]
        if type(value) is tuple:
            return _Tagged(tuple=self.value(list(value), place))
        if isinstance(value, Mapping):
            return self.mapping(value, place)
        if isinstance(value, np.ndarray):
            return self.array(value, place)
        if callable(value) and not isinstance(value, type):
            return _Tagged(function=self.name(value, "function", place))
        return self.refuse(value, place, f"a {type(value).__name__} is not a plain value")

    def object(self, value: Writable, place: Place) -> Any:
        entry = self.entries.get(id(value), (value, None))[1]
        if any(value is outer for outer in self.open):
            self.refuse(value, place, "it contains itself")
        if entry is not None:
            if "id" not in entry:
                self.ids += 1
                entry["id"] = self.ids
            return _Tagged(ref=entry["id"])
        kind = value.config_kind
        entry = _Tagged({kind: self.name(type(value), kind, place)})
        if kind == "layer":
            self.entries[id(value)] = value, entry
        self.open.append(value)
        try:
            entry["config"] = value.get_config()
        except PhitodeepError as error:
            if not self.strict:
                return value
            raise error.at(str(place)) from None
        except Exception as error:
            locate(error, str(place))
            raise
        finally:
            self.open.pop()
        return entry

    def mapping(self, value: Mapping[Any, Any], place: Place) -> Any:
        written = {k: self.value(v, place.at(k)) for k, v in value.items()}
        if all(isinstance(k, str) and k not in TAGS for k in written):
            return written
        return _Tagged(pairs=[[self.value(k, place), v] for k, v in written.items()])

    def array(self, value: np.ndarray, place: Place) -> Any:
        if value.dtype.kind not in "fiub" or value.size > MAX_ARRAY_SIZE:
            return self.refuse(
                value.tolist() if not self.strict else value,
                place,
                f"it is an array of {value.size} {value.dtype.name} values, and a config holds "
                f"arrays of at most {MAX_ARRAY_SIZE} real numbers: keep larger ones as Param or "
                "State, or in a file",
            )
        return _Tagged(array=self.value(value.tolist(), place), dtype=value.dtype.name)

    def name(self, known: Any, kind: str, place: Place) -> Any:
        """Return the name under which a class or function is registered."""
        registered = registered_name(known)
        if registered is not None:
            return registered
        if kind == "function":
            remedy = "write @phitodeep.register above a function at module level, and use that"
            problem = name_problem(known) or "it is a function that is not registered"
            return self.refuse(known, place, f"{problem}: {remedy}")
        return self.refuse(
            known, place, "it is a class that is not registered: write @phitodeep.register above it"
        )

    def refuse(self, value: Any, place: Place, why: str) -> Any:
        if not self.strict:
            return value
        shown = qualified_name(value) if hasattr(value, "__name__") else repr(value)
        raise ArgumentTypeError(f"{shown} cannot be written down: {why}.").at(str(place))


_WRITER: ContextVar[_Writer | None] = ContextVar("phitodeep_writer", default=None)


def being_written() -> tuple[Any, ...]:
    """Return the objects whose `get_config` is running, outermost first."""
    writer = _WRITER.get()
    return () if writer is None else tuple(writer.open)


def outline(value: Any) -> Any:
    """Return the config of any value; a part that cannot be written stays as it is."""
    with _writing(_Writer(strict=False)) as writer:
        return writer.value(value, Place("the value"))


def written(values: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Return values by key as plain ones, which `restored` reads; an error names the owner.

    Lists are written without the callbacks in them.
    """
    with _writing(_Writer(callbacks=False)) as writer:
        return {name: writer.value(value, Place(name, owner)) for name, value in values.items()}


def alike(a: Any, b: Any) -> bool:
    """Return whether two values have the same config; if they have none, whether they are equal."""
    return bool(outline(a) == outline(b))


@contextmanager
def _writing(writer: _Writer | None = None) -> Iterator[_Writer]:
    """Use the writer of the outermost object, or a new one if this is the outermost."""
    running = writer or _WRITER.get() or _Writer()
    token = _WRITER.set(running)
    try:
        yield running
    finally:
        _WRITER.reset(token)


def writes_values(get_config: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
    """Wrap a `get_config` so that it may return any values; they are written as plain ones."""

    @functools.wraps(get_config)
    def guarded(self: Any) -> dict[str, Any]:
        with _writing() as writer:
            if not writer.open:
                writer.open.append(self)
            config = get_config(self)
            if not isinstance(config, Mapping) or not all(isinstance(k, str) for k in config):
                raise ArgumentTypeError(
                    f"{type(self).__name__}.get_config must return the constructor's arguments "
                    f"by name, got {config!r}."
                )
            try:
                return {name: writer.value(v, Place(name, self)) for name, v in config.items()}
            except RecursionError:
                if self is not writer.open[0]:
                    raise
                raise ArgumentError(
                    f"{type(self).__name__} holds values that are nested too deeply or contain "
                    "themselves, and cannot be written down."
                ) from None

    return guarded
