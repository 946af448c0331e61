"""Write objects as plain JSON values and read them back: `get_config` and `from_config`.

Every layer, loss, optimizer, initializer, schedule, metric and callback returns its constructor's
arguments by name, as values that `json.dumps` accepts:

    config = model.get_config()
    again = Sequential.from_config(json.loads(json.dumps(config)))

None, booleans, numbers, strings, lists and dicts with string keys are written unchanged. NumPy
numbers become Python numbers; dtypes and paths become strings. A dict with one of these keys stands
for another value:

    {"layer": "Dense", "config": {...}}        an object, by kind and class: see `KINDS`
    {"ref": 1}                                 the layer that has "id": 1 next to its class
    {"function": "name"}                       a function registered with `register`
    {"enum": "InitType.NORMAL"}                a member of an enum
    {"tuple": [2, 1]}                          a tuple
    {"pairs": [[0, 1.5], [1, 2.0]]}            a dict whose keys are not plain strings
    {"array": [1.0, 2.0], "dtype": "float32"}  a small array
    {"float": "inf"}                           infinity or nan, which JSON does not have

Anything else, such as a lambda, is refused when it is written. Reading imports no modules and
runs no code except the constructors of registered classes.

Long because writing and reading mirror each other, and both need the registry of names.
"""

from __future__ import annotations

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

from phitodeep.core.types import constructors, describe, parameters, settings
from phitodeep.errors import ArgumentError, ArgumentTypeError, PhitodeepError, did_you_mean, locate

__all__ = [
    "KINDS", "TAGS", "Configurable", "alike", "being_written", "check_mapping", "outline",
    "register", "restored", "written",
]  # fmt: skip

T = TypeVar("T")

KINDS = (
    *("layer", "loss", "optimizer", "initializer", "schedule", "metric", "callback"),
    "object",  # any other class, such as your own helper class
)
TAGS = (*KINDS, "ref", "function", "enum", "tuple", "pairs", "array", "float")

_REGISTERED: dict[tuple[str, str], Any] = {}  # (kind, name) -> class or function
_NAMES: dict[int, tuple[Any, str]] = {}  # by id: class or function, and its name

MAX_ARRAY_SIZE = 4096  # a larger array is data rather than a setting
FLOATS = ("inf", "-inf", "nan")  # the numbers that JSON does not have
DTYPES = {np.dtype(code).name: np.dtype(code) for code in "?bBhHiIqQefd"}  # of small arrays
MOST_AXES = 32
MOST_OBJECTS = 10_000  # of one config: more than any model has layers

# --- names ---------------------------------------------------------------------------------------


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


# --- writing -------------------------------------------------------------------------------------


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
        if isinstance(value, Configurable):
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
                if self.callbacks
                or not (isinstance(v, Configurable) and v.config_kind == "callback")
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

    def object(self, value: Configurable, place: Place) -> Any:
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
        if id(known) in _NAMES:
            return _NAMES[id(known)][1]
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


# --- reading -------------------------------------------------------------------------------------


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


# --- the base class ------------------------------------------------------------------------------


class Configurable:
    """An object that `get_config` writes as plain values and `from_config` creates again.

    A class that keeps each constructor argument as an attribute of the same name needs no code. If
    it keeps an argument under another name, it declares that name in `kept_as`. Any other class
    overrides `get_config` to return the arguments by name, as any values that can be written.
    """

    config_kind: ClassVar[str] = "object"  # one of KINDS
    kept_as: ClassVar[Mapping[str, str]] = {}  # argument -> attribute, where the names differ

    __repr__ = describe

    def described(self) -> Configurable:
        """Return the object that the configs of others describe instead: as a rule, this one."""
        return self

    def __init_subclass__(cls, registered: bool = True, **kwargs: Any) -> None:
        """Register a class of phitodeep, unless it is only the base of others."""
        super().__init_subclass__(**kwargs)
        if "get_config" in vars(cls):
            cls.get_config = writes_values(vars(cls)["get_config"])  # type: ignore[method-assign]  # wrapped once, here
        ours = cls.__module__.startswith("phitodeep.") and not cls.__name__.startswith("_")
        if ours and registered:
            register(cls)

    @writes_values
    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments by name, as JSON values: see `phitodeep.config`."""
        name = type(self).__name__
        named = [own for own in constructors(type(self)) if own]
        unnamed = [p.name for p in (named[-1] if named else ()) if p.kind is p.VAR_KEYWORD]
        if unnamed:  # of the last constructor, which gets what those before it leave
            raise ArgumentError(
                f"{name} takes **{unnamed[0]}, which get_config cannot read back: override "
                "get_config and from_config, or name the arguments."
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
        """Create an object from what `get_config` returned, directly or after a JSON round trip."""
        known = {p.name: p for p in parameters(cls)}
        for name in check_mapping(config, cls.__name__):
            if name not in known:
                raise ArgumentError(
                    f"the config of {cls.__name__} has the unknown key {name!r}."
                    f"{did_you_mean(name, known, 1)} Known: {', '.join(known) or 'none'}."
                )
        for name, p in known.items():
            if name not in config and p.default is p.empty and p.kind is not p.VAR_POSITIONAL:
                raise ArgumentError(f"the config of {cls.__name__} lacks the key {name!r}.")
        # In the order of writing, so that a ref comes after its layer.
        in_order = {name: config[name] for name in known if name in config}
        values = restored(in_order, cls.__name__)
        positional = [  # arguments that cannot be passed by name
            name
            for i, (name, p) in enumerate(known.items())
            if p.kind is p.POSITIONAL_ONLY
            or any(q.kind is q.VAR_POSITIONAL for q in list(known.values())[i + 1 :])
        ]
        first = [values.pop(name, known[name].default) for name in positional]
        starred = next((name for name, p in known.items() if p.kind is p.VAR_POSITIONAL), "")
        rest = values.pop(starred, [])
        if not isinstance(rest, list | tuple):
            raise ArgumentTypeError(f"{cls.__name__}: {starred} must be a list, got {rest!r}.")
        return cls(*first, *rest, **values)


class Value(Configurable, registered=False):
    """An object that equals another one of its class with the same settings."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and settings(self) == settings(other)

    def __hash__(self) -> int:
        return hash(repr(self))
