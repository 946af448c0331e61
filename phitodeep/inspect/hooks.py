"""Functions that see or replace arrays by name while a model runs, and a cache of all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from phitodeep.checks import as_float
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError, UnknownNameError
from phitodeep.inspect.entries import Entries
from phitodeep.inspect.recording import Recorder
from phitodeep.layers.base import Layer
from phitodeep.layers.call import Call, Event, Watch, calling, current, within
from phitodeep.layers.chain import Chain
from phitodeep.steps import run
from phitodeep.steps.run import Edit, Position, Scope
from phitodeep.steps.step import flat
from phitodeep.training.inputs import model_mask, validate_inputs
from phitodeep.types import Array

Hook = Callable[[Any, "At"], Any]
BOUNDARIES = {"X", "Y", "dY", "dX"}


class At(NamedTuple):
    """Where a hook was called."""

    key: str  # such as "1.backward.dX"
    path: str
    direction: str
    symbol: str
    layer: Layer


class Hooks:
    """A context manager, and the watcher that it installs: see `Sequential.hooks`."""

    def __init__(
        self,
        model: Chain,
        fwd: Mapping[str, Hook] | None = None,
        bwd: Mapping[str, Hook] | None = None,
    ) -> None:
        self.model = model
        self.functions: dict[tuple[str, str, str], Hook] = {}
        for direction, given in (("forward", fwd), ("backward", bwd)):
            for key, function in (given or {}).items():
                if not callable(function):
                    raise ArgumentTypeError(
                        f"hooks takes functions of (array, at), got {function!r} for {key!r}."
                    )
                self.functions[place(model, key, direction)] = function
        inner = {k[0] for k in self.functions if k[2] not in BOUNDARIES and not _gradient(model, k)}
        self.slow = inner  # the layers that run by their steps, so that hooks reach inside them
        self.outer: Watch | None = None
        self._scopes: dict[tuple[str, int], Scope] = {}

    def __enter__(self) -> Chain:
        self.outer = current().watch
        watch = Watch(self, True, None).of(self.model)
        self._within = calling(watch=watch)
        self._within.__enter__()
        return self.model

    def __exit__(self, *error: object) -> None:
        self._within.__exit__(*error)
        self._scopes.clear()

    # --- the watcher -----------------------------------------------------------------------

    def __call__(self, event: Event) -> Array | None:
        array = None if self.outer is None else self.outer.watcher(event)
        if event.what not in ("forward", "backward"):
            return array
        given = event.array if array is None else array
        key = (event.path, event.what, _boundary(event.what, event.when))
        if event.when == "before":
            given = self._changed(key, given, event.source)
            if event.path in self.slow:
                self._begin(event, given)
        else:
            if event.path in self.slow:
                given = self._by_steps(event)
            elif event.what == "backward":
                self._gradients(event)
            given = self._changed(key, given, event.source)
        return None if given is event.array else given

    def _begin(self, event: Event, given: Array) -> None:
        """Prepare to run a layer by its steps, for the hooks inside it."""
        key = (event.path, threading.get_ident())
        if event.what == "forward":
            call = current()
            scope = Scope(event.source, event.path, call=call, dtype=given.dtype, X=given)
            self._scopes[key] = scope
        else:
            self._scopes[key].values["dY"] = given

    def _by_steps(self, event: Event) -> Any:
        """Return the result of a layer's steps, which replaces that of the fast pass."""
        scope = self._scopes[event.path, threading.get_ident()]
        if event.what == "forward":
            run.run(run.forward(scope), self.edit)
            return scope["Y"]
        run.run(run.backward(scope, scope["dY"]), self.edit)
        for name in [*event.source.params, *event.source.tied]:
            event.source.grads[name][...] = scope[f"d{name}"]
        return scope.find("dX")

    def _gradients(self, event: Event) -> None:
        """Call the hooks of the gradients of a layer's parameters."""
        for name, gradient in event.source.grads.items():
            found = self._changed((event.path, "backward", f"d{name}"), gradient, event.source)
            if found is not gradient:
                gradient[...] = found

    def _changed(self, key: tuple[str, str, str], array: Any, layer: Layer) -> Any:
        function = self.functions.get(key)
        if function is None or array is None:
            return array
        at = At(".".join(part for part in key if part), *key, layer)
        found = function(array, at)
        if found is None:
            return array
        if np.shape(found) != np.shape(array):
            raise ShapeError(
                f"the hook of {at.key!r} must return None or an array of shape "
                f"{np.shape(array)}, got {found!r:.80}."
            )
        return (
            as_float(found, array.dtype, f"the hook of {at.key!r}")
            if array.dtype.kind == "f"
            else found
        )

    def edit(self, position: Position, value: Any) -> Any:
        """Apply the hooks to a value that the interpreter computed."""
        if position.step.symbol in BOUNDARIES:
            return value  # the watcher applies these hooks
        key = (position.scope.path, position.direction, position.step.symbol)
        return self._changed(key, value, position.scope.layer)

    def replay(self, position: Position, value: Any) -> Any:
        """Apply all hooks, boundaries included, as an interpreter needs that runs on its own."""
        key = (position.scope.path, position.direction, position.step.symbol)
        value = self._changed(key, value, position.scope.layer)
        outer = self.outer.watcher if self.outer is not None else None
        return outer.replay(position, value) if isinstance(outer, Hooks) else value


def active_edit() -> Edit | None:
    """What the hooks that are active here do to the values that the interpreter computes."""
    watch = current().watch
    return watch.watcher.replay if watch is not None and isinstance(watch.watcher, Hooks) else None


def _boundary(what: str, when: str) -> str:
    return {"forward": ("X", "Y"), "backward": ("dY", "dX")}[what][when == "after"]


def _gradient(model: Chain, key: tuple[str, str, str]) -> bool:
    """Whether a key means the gradient of a parameter."""
    path, direction, symbol = key
    layer = dict(model.walk())[path]
    return direction == "backward" and symbol[1:] in {*layer.params, *layer.tied}


def layer_at(model: Chain, key: str) -> Layer:
    """The layer that a key such as "1.backward.dX" belongs to; refuse a path that no layer has."""
    layers, path = dict(model.walk()), path_of(key)
    if path not in layers:
        raise UnknownNameError.of(path, layers, f"one of the layers ({key!r})")
    return layers[path]


def path_of(key: str) -> str:
    """The path in a key, which may have a direction or not."""
    rest = f".{key}".rpartition(".")[0]
    return rest.removesuffix(".forward").removesuffix(".backward").removeprefix(".")


def place(model: Chain, key: str, direction: str) -> tuple[str, str, str]:
    """The path, direction and symbol that a hook's key means; refuse a key that means nothing."""
    layer, path, symbol = layer_at(model, key), path_of(key), key.rpartition(".")[2]
    names = symbols_of(layer, direction)
    if symbol not in names:
        what = f"one of the symbols of {layer!r} in its {direction} pass"
        raise UnknownNameError.of(symbol, names, what)
    if layer.children() and symbol not in BOUNDARIES:
        raise ArgumentError(
            f"{key!r} is inside a container: hook the X, Y, dY or dX of the layers inside it."
        )
    return path, direction, symbol


def symbols_of(layer: Layer, direction: str) -> list[str]:
    """The symbols of a pass, in training or in prediction."""
    found = ["X" if direction == "forward" else "dY"]
    for training in (True, False):
        with within(Call(training=training)):
            derivation = run.derivation_of(layer)
        found += [s.symbol for s in flat(getattr(derivation, direction)) if s.symbol != "t"]
    return list(dict.fromkeys(found))


# --- a cache of all arrays -----------------------------------------------------------------------


class Cache(Mapping[str, Array]):
    """The arrays of a prediction, by keys such as "1.Y", in the model's dtype.

    Keys are those of a trace without the direction: path and symbol. What happens inside a layer is
    computed by its steps when it is asked for.
    """

    def __init__(self, entries: Entries) -> None:
        self._entries = entries

    def __getitem__(self, key: str) -> Array:
        path, _, symbol = self._entries.find(key)
        recorded = self._entries._passes[path]
        if symbol in ("X", "Y"):
            return getattr(recorded, symbol)
        return self._entries[key].array

    def __iter__(self) -> Iterator[str]:
        return (key.replace("forward.", "") for key in self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __repr__(self) -> str:
        return f"Cache of {len(self)} arrays: {', '.join(self)}"


def run_with_cache(model: Chain, X: Any, *, lengths: Any = None) -> tuple[Array, Cache]:
    """Return the output for X and all arrays on the way: see `Sequential.run_with_cache`."""
    mask = model_mask(model, X, lengths)
    X = validate_inputs(model, X, mask=mask)
    twin, edit = model.copy(), active_edit()
    recorder = Recorder(current().watch)
    call = Call(training=False, caching=False, mask=mask, draw=1)
    watch = Watch(recorder, True, None).of(twin)
    with within(call._replace(watch=watch)):
        Y = twin.forward(X)
    return Y, Cache(Entries(recorder.passes, dtype=twin.dtype, edit=edit))


class Patched:
    """A model that runs with some of its arrays replaced: see `Sequential.patch`."""

    def __init__(self, model: Any, values: Mapping[str, Array]) -> None:
        self.model, self.values = model, dict(values)
        fwd, bwd = dict[str, Hook](), dict[str, Hook]()
        for key, value in self.values.items():
            forward = key.rpartition(".")[2] in symbols_of(layer_at(model, key), "forward")
            (fwd if forward else bwd)[key] = _constant(value)
        self.hooks = Hooks(model, fwd, bwd)

    def trace(self, X: Any, y: Any, **options: Any) -> Any:
        """`Sequential.trace`, with these arrays replaced."""
        with self.hooks:
            return self.model.trace(X, y, **options)

    def predict(self, X: Any, **options: Any) -> Array:
        """`Sequential.predict`, with these arrays replaced."""
        with self.hooks:
            return self.model.predict(X, **options)

    def run_with_cache(self, X: Any, **options: Any) -> tuple[Array, Cache]:
        """`Sequential.run_with_cache`, with these arrays replaced."""
        with self.hooks:
            return self.model.run_with_cache(X, **options)

    def debug(self, X: Any, y: Any, **options: Any) -> Any:
        """`Sequential.debug`, with these arrays replaced."""
        with self.hooks:
            return self.model.debug(X, y, **options)

    def __repr__(self) -> str:
        return f"{self.model!r} with {', '.join(self.values)} replaced"


def _constant(value: Any) -> Hook:
    return lambda array, at: value
