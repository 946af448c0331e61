"""Functions that see or replace arrays by name while a model runs: `Sequential.hooks`.

The name of an array is its key, such as "1.backward.dW": a path, a direction and a symbol.
"""

from __future__ import annotations

import copy
import difflib
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.call import Call, Event, Watch, calling, current, within
from phitodeep.core.checks import as_float, as_real
from phitodeep.core.types import Array, each, numbered, one
from phitodeep.derivations.language import run
from phitodeep.derivations.language.run import Edit, Position, Scope
from phitodeep.derivations.language.step import PASSED_ON, RECEIVED, Through, flat
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError, UnknownNameError
from phitodeep.layers.base import Layer
from phitodeep.layers.containers import Container

Key = tuple[str, str, str]  # a path, a direction and a symbol: "1.backward.dW"
Hook = Callable[[Any, "At"], Any]
Visit = tuple[int, str, str, str, int | None]  # the thread, a key, and t in a loop
ENDS = {"forward": ("X", "Y"), "backward": ("dY", "dX")}  # what passes receive and return
DIRECTIONS = tuple(ENDS)


class At(NamedTuple):
    """Where a hook was called."""

    key: str  # such as "1.backward.dX"
    path: str
    direction: str
    symbol: str
    layer: Layer
    t: int | None = None  # the step of the sequence, for a symbol inside a loop over time


class Hooks:
    """The context manager that `Sequential.hooks` returns."""

    def __init__(
        self,
        model: Container,
        fwd: Mapping[str, Hook] | None = None,
        bwd: Mapping[str, Hook] | None = None,
    ) -> None:
        self.model = model
        self.functions: dict[Key, Hook] = {}
        for direction, given in (("forward", fwd), ("backward", bwd)):
            for key, function in (given or {}).items():
                if not callable(function):
                    raise ArgumentTypeError(
                        f"hooks takes functions of (array, at), got {function!r} for {key!r}."
                    )
                self.functions[place(model, key, direction)] = function
        self._entered: dict[Any, calling] = {}  # by watcher, since threads may leave in any order

    def __repr__(self) -> str:
        return f"hooks of {', '.join(joined(*key) for key in self.functions)}"

    def __enter__(self) -> Container:
        watcher = Hooked(self.model, self.functions, current().watch)
        self._entered[watcher] = calling(watch=Watch(watcher, True, None).of(self.model))
        self._entered[watcher].__enter__()
        return self.model

    def __exit__(self, *error: object) -> None:
        watch: Any = current().watch
        self._entered.pop(watch.watcher).__exit__(*error)


class Hooked:
    """The watcher that calls the hooks of a model, inside one `with` block.

    The hooks of a block around it belong to it if they are of the same model: they come first.
    A hook runs once for each array; what it returned is kept for passes that compute it again.
    """

    def __init__(
        self, model: Container, functions: Mapping[Key, Hook], outer: Watch | None
    ) -> None:
        self.model, self.outer = model, outer
        self.functions: dict[Key, tuple[Hook, ...]] = {}
        if outer is not None and isinstance(outer.watcher, Hooked) and outer.watcher.model is model:
            self.outer, self.functions = outer.watcher.outer, dict(outer.watcher.functions)
        for key, function in functions.items():
            self.functions[key] = (*self.functions.get(key, ()), function)
        layers = dict(model.walk())
        self.slow = {  # the layers that run by their steps, so that hooks reach inside them
            path
            for path, direction, symbol in self.functions
            if not is_boundary(symbol)
            if direction == "forward"
            or symbol[1:] not in {*layers[path].params, *layers[path].tied}
        }
        self._thread = threading.get_ident
        self._scopes: dict[tuple[str, int], Scope] = {}  # by path and thread
        self._returned: dict[Visit, Any] = {}

    def apart(self) -> Hooked:
        """Return the same hooks with their own memory, for one step that any thread may look at."""
        other = copy.copy(self)
        other._thread, other._scopes, other._returned = (lambda: 0), {}, {}
        return other

    def __call__(self, event: Event) -> Array | None:
        array = self._outside(event)
        if event.what not in ENDS:
            return array
        given = event.array if array is None else array
        symbol = ENDS[event.what][event.when == "after"]
        if event.when == "before":
            given = self._each_changed(event, symbol, given)
            if event.path in self.slow:
                self._begin(event, given)
        else:
            if event.path in self.slow:
                given = self._by_steps(event)
            elif event.what == "backward":
                self._gradients(event)
            given = self._each_changed(event, symbol, given)
        return None if given is event.array else given

    def _outside(self, event: Event) -> Array | None:
        """What the watcher around this one does."""
        outer = self.outer
        if outer is None:
            return None
        if isinstance(outer.watcher, Hooked) and event.what in ENDS:
            path = (outer.paths or {}).get(id(event.source._original), "?")  # of another model
            event = event._replace(path=path)
        return outer.watcher(event)

    def _begin(self, event: Event, given: Array) -> None:
        """Prepare to run a layer by its steps, for the hooks inside it."""
        key = (event.path, self._thread())
        if event.what == "forward":
            self._scopes[key] = Scope(event.source, event.path, **numbered("X", given))
        else:
            self._scopes[key].values |= numbered("dY", given)

    def _by_steps(self, event: Event) -> Any:
        """Return the result of a layer's steps, which replaces that of the fast pass."""
        scope = self._scopes[event.path, self._thread()]
        if event.what == "forward":
            run.run(run.forward(scope), self.edit)
            return run.all_of(scope, "Y")
        run.run(run.backward(scope, run.all_of(scope, "dY")), self.edit)
        for name in event.source.grads:
            _set_gradient(event.source, name, scope[f"d{name}"])
        return None if event.array is None else run.all_of(scope, "dX")

    def _gradients(self, event: Event) -> None:
        """Call the hooks of the gradients of a layer's parameters."""
        for name, gradient in [*event.source.grads.items()]:
            found = self._changed((event.path, "backward", f"d{name}"), gradient, event.source)
            if found is not gradient:
                _set_gradient(event.source, name, found)

    def _each_changed(self, event: Event, symbol: str, given: Any) -> Any:
        """Call the hooks of what a pass receives or returns; return it, or what they returned."""
        found = [
            self._changed((event.path, event.what, name), A, event.source)
            for name, A in numbered(symbol, given).items()
        ]
        same = all(new is old for new, old in zip(found, each(given), strict=True))
        return given if same else one(found, not isinstance(given, tuple))

    def _changed(self, key: Key, array: Any, layer: Layer, t: int | None = None) -> Any:
        """Call the hooks of a key; return the array, or what they returned instead."""
        functions = self.functions.get(key, ())
        if not functions or array is None:
            return array
        visit = (self._thread(), *key, t)
        again = current().again and key[1] == "forward"
        if not again or visit not in self._returned:
            at = At(joined(*key), *key, layer, t)
            found = array
            for function in functions:
                answer = function(_read_only(found), at)
                found = found if answer is None else _checked(answer, found, at)
            self._returned[visit] = None if found is array else found
        found = self._returned[visit]
        return array if found is None else found

    # --- for the interpreter ---------------------------------------------------------------

    def edit(self, position: Position, value: Any) -> Any:
        """Apply the hooks to a value that the interpreter computed."""
        if is_boundary(position.step.symbol):
            return value  # the watcher applies these hooks
        return self._changed(_at(position), value, position.scope.layer, position.t)

    def replay(self, position: Position, value: Any) -> Any:
        """Apply all hooks, as an interpreter needs that runs on its own.

        What a layer passes on is replaced outside it: its own backward pass does not see that.
        """
        key, layer = _at(position), position.scope.layer
        if isinstance(position.step, Through):
            child, symbol = position.step.child, position.step.result
            inner = run.path_inside(position.scope.path, child), position.direction, symbol
            value = self._changed(inner, value, layer.children()[child], position.t)
        if key[0] and PASSED_ON.fullmatch(key[2]):
            return value
        return self._changed(key, value, layer, position.t)

    def replaced(self) -> Edit:
        """Return an edit that puts the arrays that the hooks returned last in their places."""
        found = {visit[1:]: array for visit, array in self._returned.items()}

        def edit(position: Position, value: Any) -> Any:
            array = found.get((*_at(position), position.t))
            return value if array is None else position.scope.cast(array)

        return edit


def is_boundary(symbol: str) -> bool:
    """Whether a pass receives or returns it."""
    return bool(RECEIVED.fullmatch(symbol) or PASSED_ON.fullmatch(symbol))


def _at(position: Position) -> Key:
    return position.scope.path, position.direction, position.step.symbol


def _read_only(array: Any) -> Any:
    """A view that a hook cannot write to: it returns a new array instead."""
    if not isinstance(array, np.ndarray):
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def _checked(answer: Any, array: Any, at: At) -> Any:
    """What a hook returned, as a new array of the same kind; refuse another shape."""
    who, like = f"the hook of {at.key!r}", np.asarray(array)
    new = as_float(answer, like.dtype, who) if like.dtype.kind == "f" else as_real(answer, who)
    if not np.can_cast(new.dtype, like.dtype, "same_kind"):
        raise ArgumentTypeError(f"{who} must return {like.dtype}, got {new.dtype}.")
    if new.shape != like.shape:
        raise ShapeError(
            f"{who} must return None or an array of shape {like.shape}, got shape {new.shape}."
        )
    new = new.astype(like.dtype)  # a copy
    return new if isinstance(array, np.ndarray) else type(array)(new)


def _set_gradient(layer: Layer, name: str, value: Any) -> None:
    """Replace a gradient, in its place in the optimizer's vector if it has one."""
    if layer.grads[name].flags.writeable:
        layer.grads[name][...] = value
    else:  # such as a broadcast array
        layer.grads[name] = np.array(value)


def active(model: Container) -> Watch | None:
    """The watcher that applies to this model, for a step of its own; not another model's hooks."""
    watch = current().watch
    while watch is not None and watch.paths is not None and watch.paths.get(id(model)) != "":
        watch = watch.watcher.outer if isinstance(watch.watcher, Hooked) else None
    if watch is None or not isinstance(watch.watcher, Hooked):
        return watch
    return watch._replace(watcher=watch.watcher.apart())


def edit_of(watch: Watch | None) -> Edit | None:
    """What the hooks in this watcher do to the values that an interpreter computes."""
    return watch.watcher.replay if watch and isinstance(watch.watcher, Hooked) else None


def replaced_by(watch: Watch | None) -> Edit | None:
    """What the hooks in this watcher returned in the step that just ran, if there are any."""
    return watch.watcher.replaced() if watch and isinstance(watch.watcher, Hooked) else None


# --- keys --------------------------------------------------------------------------------------


def joined(*parts: str) -> str:
    """The key of a path, a direction and a symbol; any of them may be empty."""
    return ".".join(part for part in parts if part)


def parts(key: object) -> Key:
    """The path, the direction or "", and the symbol in a key."""
    if not isinstance(key, str):
        raise ArgumentTypeError(f"keys are texts such as '1.Y', got {key!r}.")
    *path, symbol = key.split(".")
    direction = path.pop() if path and path[-1] in DIRECTIONS else ""
    return ".".join(path), direction, symbol


class Keys(dict[str, dict[str, list[str]]]):
    """The symbols of each direction, by path."""

    def every(self) -> Iterator[str]:
        """All keys, in the order of the step."""
        for path, directions in self.items():
            for direction, names in directions.items():
                yield from (joined(path, direction, name) for name in names)

    def find(self, key: object) -> Key:
        """The path, direction and symbol of a key; the direction may be left out."""
        if not isinstance(key, str):
            raise UnknownNameError(f"keys are texts such as {next(self.every())!r}, got {key!r}.")
        path, direction, name = parts(key)
        if path.rpartition(".")[2] == "update":
            path, direction = path.removesuffix("update").removesuffix("."), "update"
        passes = (direction,) if direction else DIRECTIONS
        found = [d for d in passes if name in self.get(path, {}).get(d, ())]
        if len(found) == 1:
            return path, found[0], name
        if found:
            both = " or ".join(repr(joined(path, d, name)) for d in found)
            raise UnknownNameError(f"{key!r} is ambiguous: write {both}.")
        raise UnknownNameError(self._unknown(key, path))

    def _unknown(self, key: str, path: str) -> str:
        if key in self:
            return f"{key!r} is a path: add a symbol of it, which are {self._listed(key)}."
        keys = list(self.every())
        short = [re.sub(r"(forward|backward)\.", "", k) for k in keys]
        near = difflib.get_close_matches(key, dict.fromkeys([*keys, *short]), n=4)
        if path in self:
            near = [k for k in keys if k.rpartition(".")[2] == key][:4] or near
        there = f". {path or 'The model'} has {self._listed(path)}" if path in self else ""
        if path not in self or "." not in key:  # the layers whose paths are most like this one
            like = difflib.get_close_matches(path or key, self, n=8, cutoff=0)
            paths = [p for p in self if p and p in like]
            more = ", and others" * (len(paths) < len(self) - 1)
            there = f": there are {', '.join(map(repr, paths))}{more}{there}"
        meant = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        return f"there is no {key!r}{there}.{meant}"

    def _listed(self, path: str) -> str:
        return "; ".join(f"{d}: {', '.join(names)}" for d, names in self[path].items())


def place(model: Container, key: str, direction: str = "") -> Key:
    """The path, direction and symbol that a hook's key means; refuse a key that means nothing."""
    layers, (path, given, symbol) = dict(model.walk()), parts(key)
    if path not in layers:
        raise UnknownNameError.of(path, layers, f"one of the layers ({key!r})")
    layer = layers[path]
    direction = direction or given or DIRECTIONS[symbol not in symbols_of(layer, "forward")]
    names, other = symbols_of(layer, direction), DIRECTIONS[direction == "forward"]
    if given == other or (symbol not in names and symbol in symbols_of(layer, other)):
        raise ArgumentError(f"{key!r} belongs to the {other} pass: give it in {other[0]}wd=.")
    if symbol not in names:
        what = f"one of the symbols of {layer!r} in its {direction} pass"
        raise UnknownNameError.of(symbol, names, what)
    if layer.children() and not is_boundary(symbol):
        raise ArgumentError(
            f"{key!r} is inside a container: hook the X, Y, dY or dX of the layers inside it."
        )
    return path, direction, symbol


def symbols_of(layer: Layer, direction: str) -> list[str]:
    """The symbols of a pass, in training or in prediction."""
    modes = (symbols_by_pass(layer, Call(training=training)) for training in (True, False))
    return list(dict.fromkeys(name for mode in modes for name in mode[direction]))


def symbols_by_pass(subject: Any, call: Call) -> dict[str, list[str]]:
    """What a layer or a loss receives and computes in each direction, each symbol once."""
    with within(call):
        passes = zip(run.received(subject).items(), run.derivation_of(subject), strict=True)
        found = {d: [*given, *(s.symbol for s in flat(steps))] for (d, given), steps in passes}
    return {d: [name for name in dict.fromkeys(names) if name != "t"] for d, names in found.items()}
