"""Objects written as plain JSON values, and read back: `get_config` and `from_config`.

Every layer, loss, optimizer, initializer, schedule, metric and callback gives the arguments of
its constructor, by name, as values that `json.dumps` takes:

    config = model.get_config()
    again = Sequential.from_config(json.loads(json.dumps(config)))

None, booleans, numbers, strings, lists and dicts with string keys are written as they are, NumPy
numbers as Python's, dtypes and paths as strings. A dict with one of these keys stands for another
value:

    {"layer": "Dense", "config": {...}}        an object, by family and class: see `KINDS`
    {"ref": 1}                                 the layer that has "id": 1 next to its class
    {"function": "name"}                       a function that `register` made known
    {"enum": "InitType.NORMAL"}                a member of an enum
    {"tuple": [2, 1]}                          a tuple
    {"pairs": [[0, 1.5], [1, 2.0]]}            a dict whose keys are not plain strings
    {"array": [1.0, 2.0], "dtype": "float32"}  a small array
    {"float": "inf"}                           infinity or nan, which JSON does not have

Anything else, such as a lambda, is refused when it is written. Reading imports nothing and runs
no code but the constructors of registered classes.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from pathlib import PurePath
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, overload

import numpy as np

from phitodeep.errors import ArgumentError, ArgumentTypeError, PhitodeepError, locate
from phitodeep.types import parameters

T = TypeVar("T")

KINDS = (
    *("layer", "loss", "optimizer", "initializer", "schedule", "metric", "callback"),
    "object",  # what is of no family: helpers of your own
)
TAGS = (*KINDS, "ref", "function", "enum", "tuple", "pairs", "array", "float")
MOST = 4096  # numbers in an array that is written down; more are data, not a setting

_KNOWN: dict[tuple[str, str], Any] = {}  # (kind, name) -> class or function
_NAMES: dict[int, tuple[Any, str]] = {}  # by id: class or function, and its name


class _Place(NamedTuple):
    """Where a value is in its object, such as `layers[3] of Sequential`."""

    path: str
    owner: Any = ""  # the object, or the name of its class

    def at(self, key: Any) -> _Place:
        return self._replace(path=f"{self.path}[{key!r}]")

    def __str__(self) -> str:
        owner = self.owner if isinstance(self.owner, str) else repr(self.owner)
        owner = owner if len(owner) <= 60 else type(self.owner).__name__
        return f"{self.path} of {owner}" if owner else self.path


class _Tagged(dict[str, Any]):
    """A dict that stands for another value; writing it again leaves it as it is."""


@overload
def register(known: str) -> Callable[[T], T]: ...
@overload
def register(known: T) -> T: ...
def register(known: Any) -> Any:
    """Let configs name a class or function of your own: a decorator.

        @phitodeep.register
        class Scale(Layer): ...

        @phitodeep.register("my_cube")
        def cube(X): ...

    The name is that of the class or function unless given. Whoever reads a config must have
    imported the module that registers what it names. Running a notebook cell again replaces what
    the cell registered; another object of a name that is taken is refused.
    """
    if isinstance(known, str):
        return functools.partial(_register, name=known)
    return _register(known)


def _register(known: Any, name: str | None = None) -> Any:
    if isinstance(known, type):
        if issubclass(known, Configurable):
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
                "of phitodeep, such as Layer, or from phitodeep.config.Configurable."
            )
    else:
        kind, problem = "function", _unfit(known)
        if problem:
            raise ArgumentTypeError(
                f"register takes a class or a function at module level, got {known!r}: {problem}."
            )
    name = known.__name__ if name is None else name
    taken = _KNOWN.get((kind, name))
    if taken is not None and taken is not known and _home(taken) != _home(known):
        raise ArgumentError(
            f"the {kind} {name!r} is registered already, by {'.'.join(_home(taken))}: register "
            f'{".".join(_home(known))} under another name, with @phitodeep.register("...").'
        )
    _KNOWN[kind, name] = known
    _NAMES[id(known)] = known, name
    return known


def _home(known: Any) -> tuple[str, str]:
    return str(getattr(known, "__module__", "")), getattr(known, "__qualname__", known.__name__)


def _unfit(function: Any) -> str:
    """Why a function cannot be known by its name, or ""."""
    if inspect.ismethod(function):
        return "it is a method of an object, which its name does not tell"
    if not callable(function) or not hasattr(function, "__name__"):
        return "it has no name"
    if function.__name__ == "<lambda>":
        return "it is a lambda, which has no name"
    if getattr(function, "__closure__", None):
        return "it is a closure, whose variables its name does not tell"
    return ""


def _find(kind: str, name: Any) -> Any:
    if isinstance(name, str) and (kind, name) in _KNOWN:
        return _KNOWN[kind, name]
    names = [known for family, known in _KNOWN if family == kind]
    near = difflib.get_close_matches(str(name), names)
    guess = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    raise ArgumentError(
        f"unknown {kind} {name!r}.{guess} One of your own must be registered before it is read: "
        "import the module that has @phitodeep.register above it."
    )


_WRITER: ContextVar[_Writer | None] = ContextVar("phitodeep_writer", default=None)


@contextmanager
def _writing(writer: _Writer | None = None) -> Iterator[_Writer]:
    """The writer of the outermost object, made here where there is none."""
    running = writer or _WRITER.get() or _Writer()
    token = _WRITER.set(running)
    try:
        yield running
    finally:
        _WRITER.reset(token)


def _written(get_config: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
    """A `get_config` that may return values of any kind, which are written here."""

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
            return {name: writer.value(v, _Place(name, self)) for name, v in config.items()}

    return guarded


class Configurable:
    """Something that `get_config` writes as plain values and `from_config` makes again.

    A class whose constructor's arguments are attributes of the same names needs no code for it.
    One that keeps an argument under another name declares that in `kept_as`. Any other overrides
    `get_config`, which returns the arguments by name: values of any kind that can be written.
    """

    config_kind: ClassVar[str] = "object"  # the family: one of KINDS
    kept_as: ClassVar[Mapping[str, str]] = {}  # argument -> attribute, where the names differ

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "get_config" in vars(cls):
            cls.get_config = _written(vars(cls)["get_config"])  # type: ignore[method-assign]
        if cls.__module__.startswith("phitodeep.") and not cls.__name__.startswith("_"):
            register(cls)

    @_written
    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments by name, as plain JSON values: see `phitodeep.config`."""
        name, lost = type(self).__name__, _lost_keywords(type(self))
        if lost:
            raise ArgumentError(
                f"{name} takes **{lost}, which get_config cannot read back: override get_config "
                "and from_config, or name the arguments."
            )
        found = {}
        for p in parameters(type(self)):
            attribute = self.kept_as.get(p.name, p.name)
            value: Any = getattr(self, attribute, p.empty)
            if value is p.empty or getattr(value, "__self__", None) is self:  # its own method
                raise ArgumentError(
                    f"{name} does not keep its argument {p.name!r}: write self.{p.name} = "
                    f"{p.name} in __init__, name its attribute in kept_as, or override get_config."
                )
            found[p.name] = list(value) if p.kind is p.VAR_POSITIONAL else value
        return found

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """A new object from what `get_config` gave, also after a way through JSON."""
        known = {p.name: p for p in parameters(cls)}
        for name in check_mapping(config, cls.__name__):
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1)
                guess = f" Did you mean {near[0]!r}?" if near else ""
                raise ArgumentError(
                    f"the config of {cls.__name__} has the unknown key {name!r}.{guess} "
                    f"Known: {', '.join(known) or 'none'}."
                )
        for name, p in known.items():
            if name not in config and p.default is p.empty and p.kind is not p.VAR_POSITIONAL:
                raise ArgumentError(f"the config of {cls.__name__} lacks the key {name!r}.")
        in_order = {name: config[name] for name in known if name in config}  # as written
        values = restored(in_order, cls.__name__)
        by_place = [  # what must be given without its name
            name
            for i, (name, p) in enumerate(known.items())
            if p.kind is p.POSITIONAL_ONLY
            or any(q.kind is q.VAR_POSITIONAL for q in list(known.values())[i + 1 :])
        ]
        first = [values.pop(name, known[name].default) for name in by_place]
        several = next((name for name, p in known.items() if p.kind is p.VAR_POSITIONAL), "")
        return cls(*first, *values.pop(several, ()), **values)


def _lost_keywords(cls: type) -> str | None:
    """The name of `**options` that no constructor below takes one by one."""
    lost = None
    for owner in cls.__mro__[:-1]:
        if "__init__" in vars(owner):
            own = list(inspect.signature(vars(owner)["__init__"]).parameters.values())[1:]
            rest = next((p.name for p in own if p.kind is p.VAR_KEYWORD), None)
            if rest is None:
                return None if own else lost
            lost = rest
    return lost


# --- writing ------------------------------------------------------------------------------------


class _Writer:
    """Writes values, and knows the layers that it has written; one for each outermost object.

    strict    False: what cannot be written stays itself, so that configs can be compared
    """

    def __init__(self, strict: bool = True) -> None:
        self.strict = strict
        self.open: list[Any] = []  # the objects being written, from the outermost in
        self.entries: dict[int, tuple[Any, _Tagged]] = {}  # layers written so far, by id
        self.ids = 0

    def value(self, value: Any, place: _Place) -> Any:
        """`value` as plain values; an error says that it is at `place`."""
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, _Tagged):
            return value
        if isinstance(value, Configurable):
            return self.object(value, place)
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
            return [self.value(v, place.at(i)) for i, v in enumerate(value)]
        if type(value) is tuple:
            return _Tagged(tuple=self.value(list(value), place))
        if isinstance(value, Mapping):
            return self.mapping(value, place)
        if isinstance(value, np.ndarray):
            return self.array(value, place)
        if callable(value) and not isinstance(value, type):
            return _Tagged(function=self.name(value, "function", place))
        return self.refuse(value, place, f"a {type(value).__name__} is not a plain value")

    def object(self, value: Configurable, place: _Place) -> Any:
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

    def mapping(self, value: Mapping[Any, Any], place: _Place) -> Any:
        written = {k: self.value(v, place.at(k)) for k, v in value.items()}
        if all(isinstance(k, str) and k not in TAGS for k in written):
            return written
        return _Tagged(pairs=[[self.value(k, place), v] for k, v in written.items()])

    def array(self, value: np.ndarray, place: _Place) -> Any:
        if value.dtype.kind not in "fiub" or value.size > MOST:
            return self.refuse(
                value.tolist() if not self.strict else value,
                place,
                f"it is an array of {value.size} {value.dtype.name}, and arrays of at most {MOST} "
                "real numbers are settings: keep larger ones as Param or State, or in a file",
            )
        return _Tagged(array=self.value(value.tolist(), place), dtype=value.dtype.name)

    def name(self, known: Any, kind: str, place: _Place) -> Any:
        """The name that a class or function is registered by."""
        if id(known) in _NAMES:
            return _NAMES[id(known)][1]
        if kind == "function":
            remedy = "write @phitodeep.register above a function at module level, and use that"
            problem = _unfit(known) or "it is a function that is not registered"
            return self.refuse(known, place, f"{problem}: {remedy}")
        return self.refuse(
            known, place, "it is a class that is not registered: write @phitodeep.register above it"
        )

    def refuse(self, value: Any, place: _Place, why: str) -> Any:
        if not self.strict:
            return value
        shown = ".".join(_home(value)) if hasattr(value, "__name__") else repr(value)
        raise ArgumentTypeError(f"{shown} cannot be written down: {why}.").at(str(place))


def being_written() -> tuple[Any, ...]:
    """The objects whose `get_config` runs, from the outermost in."""
    writer = _WRITER.get()
    return () if writer is None else tuple(writer.open)


def alike(a: Any, b: Any) -> bool:
    """Whether two values are equal as written; what cannot be written is equal to itself alone."""
    written = []
    for value in (a, b):
        with _writing(_Writer(strict=False)) as writer:
            written.append(writer.value(value, _Place("the value")))
    return bool(written[0] == written[1])


# --- reading ------------------------------------------------------------------------------------


def check_mapping(config: Any, owner: str) -> Mapping[str, Any]:
    """Refuse a config that is no dict."""
    if not isinstance(config, Mapping):
        raise ArgumentTypeError(f"{owner}.from_config takes a dict, got {config!r}.")
    return config


class _Reader:
    """Reads values, and knows the layers that others refer to."""

    def __init__(self) -> None:
        self.held: dict[Any, Any] = {}

    def value(self, value: Any, place: _Place) -> Any:
        """What plain values stand for; an error says that they are at `place`."""
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

    def tagged(self, tag: str, value: Mapping[str, Any], place: _Place) -> Any:
        if tag in KINDS:
            made = _find(tag, value[tag]).from_config(value.get("config", {}))
            if "id" in value:
                self.held[value["id"]] = made
            return made
        try:
            return self.plainly(tag, value[tag], value, place)
        except (TypeError, ValueError) as error:
            if isinstance(error, PhitodeepError):
                raise
            raise ArgumentError(f"{value!r} is not what get_config writes: {error}.") from None

    def plainly(self, tag: str, inside: Any, value: Mapping[str, Any], place: _Place) -> Any:
        if tag == "ref":
            if inside not in self.held:
                raise ArgumentError(f"no layer before it has the id {inside!r}.")
            return self.held[inside]
        if tag == "function":
            return _find("function", inside)
        if tag == "enum":
            name, _, member = str(inside).rpartition(".")
            members = _find("enum", name).__members__
            if member not in members:
                raise ArgumentError(f"{name} has {', '.join(members)}, got {member!r}.")
            return members[member]
        if tag == "float":
            return float(inside)
        if tag == "tuple":
            return tuple(self.value(inside, place))
        if tag == "array":
            return np.array(self.value(inside, place), value.get("dtype"))
        return {self.value(k, place): self.value(v, place) for k, v in inside}


_READER: ContextVar[_Reader | None] = ContextVar("phitodeep_reader", default=None)


def restored(config: Mapping[str, Any], owner: str = "config") -> dict[str, Any]:
    """What the values of a config stand for, by key: for a `from_config` of your own."""
    check_mapping(config, owner)
    reader = _READER.get() or _Reader()
    token = _READER.set(reader)
    try:
        return {name: reader.value(v, _Place(name, owner)) for name, v in config.items()}
    finally:
        _READER.reset(token)
