"""The registry of classes and functions that configs name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar, NamedTuple, TypeVar, overload

from phitodeep.errors import ArgumentError, ArgumentTypeError, did_you_mean

T = TypeVar("T")

KINDS = (
    *("layer", "loss", "optimizer", "initializer", "schedule", "metric", "callback"),
    "object",  # any other class, such as your own helper class
)
TAGS = (*KINDS, "ref", "function", "enum", "tuple", "pairs", "array", "float")

_REGISTERED: dict[tuple[str, str], Any] = {}  # (kind, name) -> class or function
_NAMES: dict[int, tuple[Any, str]] = {}  # by id: class or function, and its name


class Writable:
    """The base of `Configurable`: a class that configs name by its kind and its registered name."""

    config_kind: ClassVar[str] = "object"  # one of KINDS

    def get_config(self) -> dict[str, Any]:
        raise NotImplementedError

    def described(self) -> Writable:
        """Return the object that the configs of others describe instead: as a rule, this one."""
        return self


class Place(NamedTuple):
    """The position of a value in its object, such as `layers[3] of Sequential`."""

    path: str
    owner: Any = ""  # the object, or the name of its class

    def at(self, key: Any) -> Place:
        return self._replace(path=f"{self.path}[{key!r}]")

    def __str__(self) -> str:
        owner = self.owner if isinstance(self.owner, str) else repr(self.owner)
        owner = owner if len(owner) <= 60 else type(self.owner).__name__
        return f"{self.path} of {owner}" if owner else self.path


@overload
def register(known: str) -> Callable[[T], T]: ...
@overload
def register(known: T) -> T: ...
def register(known: Any) -> Any:
    """Decorate your own class or function so that configs can refer to it by name.

        @phitodeep.register
        class Scale(Layer): ...

        @phitodeep.register("my_cube")
        def cube(X): ...

    Unless you give a name, the class or function is registered under its own. A program that
    reads a config must first import the module that registers the names in it. Running a notebook
    cell again replaces what the cell registered; any other reuse of a name is refused.
    """
    if isinstance(known, str):
        return functools.partial(_register, name=known)
    return _register(known)


def _register(known: Any, name: str | None = None) -> Any:
    if isinstance(known, type):
        if issubclass(known, Writable):
            kind = known.config_kind
            if kind not in KINDS:
                raise ArgumentError(
                    f"{known.__name__}: config_kind must be one of {', '.join(KINDS)}, "
                    f"got {kind!r}."
                )
        elif issubclass(known, Enum):
            kind = "enum"
        else:
            raise ArgumentTypeError(
                f"register: the class {known.__name__} has no get_config: derive it from a class "
                "of phitodeep, such as Layer, or from phitodeep.core.config.Configurable."
            )
    else:
        kind, problem = "function", name_problem(known)
        if problem:
            raise ArgumentTypeError(
                f"register takes a class or a function at module level, got {known!r}: {problem}."
            )
    name = known.__name__ if name is None else name
    taken = _REGISTERED.get((kind, name))
    if taken is not None and taken is not known and qualified_name(taken) != qualified_name(known):
        raise ArgumentError(
            f"the {kind} {name!r} is already registered, by {qualified_name(taken)}: register "
            f'{qualified_name(known)} under another name, with @phitodeep.register("...").'
        )
    _REGISTERED[kind, name] = known
    _NAMES[id(known)] = known, name
    return known


def qualified_name(known: Any) -> str:
    """Return the module and name of a class or function, such as `phitodeep.layers.dense.Dense`."""
    module, name = getattr(known, "__module__", ""), getattr(known, "__qualname__", known.__name__)
    return f"{module}.{name}"


def name_problem(function: Any) -> str:
    """Return why a function cannot be registered by name, or "" if it can."""
    if inspect.ismethod(function):
        return "it is a method of an object, which a name cannot identify"
    if not callable(function) or not hasattr(function, "__name__"):
        return "it has no name"
    if function.__name__ == "<lambda>":
        return "it is a lambda, which has no name"
    if getattr(function, "__closure__", None):
        return "it is a closure, whose variables a name cannot restore"
    return ""


def find_registered(kind: str, name: Any) -> Any:
    """Return the class or function of this kind that is registered under `name`."""
    if isinstance(name, str) and (kind, name) in _REGISTERED:
        return _REGISTERED[kind, name]
    names = [known for other_kind, known in _REGISTERED if other_kind == kind]
    raise ArgumentError(
        f"unknown {kind} {name!r}.{did_you_mean(name, names)} Register your own before reading "
        "them: import the module that has @phitodeep.register in it."
    )


def registered_name(known: Any) -> str | None:
    """Return the name under which a class or function is registered, or None."""
    return _NAMES[id(known)][1] if id(known) in _NAMES else None
