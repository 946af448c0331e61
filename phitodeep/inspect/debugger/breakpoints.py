"""What the user of the debugger writes: places to stop at, expressions, elements to replace."""

from __future__ import annotations

import ast
import builtins
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from phitodeep.core.call import Call, within
from phitodeep.core.types import settings
from phitodeep.derivations.language import run
from phitodeep.derivations.language.run import Position, Scope
from phitodeep.derivations.language.step import Through, evaluate, flat
from phitodeep.errors import ArgumentError, ArgumentTypeError, PhitodeepError, UnknownNameError
from phitodeep.inspect.debugger.display import so_far
from phitodeep.inspect.trace import kind_of
from phitodeep.training.objective import Trainable


@dataclass(frozen=True)
class Breakpoint:
    """A place to stop at: a path, and a direction and a symbol if given, and a condition.

    Without a symbol, the layers inside belong to the place too.
    """

    key: str
    path: str
    direction: str
    symbol: str
    when: str | None

    def covers(self, position: Position) -> bool:
        return (
            self.includes(position.scope.path)
            and self.direction in ("", position.direction)
            and self.symbol in ("", position.step.symbol)
        )

    def includes(self, path: str) -> bool:
        """Whether the layer at this path belongs to the place."""
        inside = not self.path or path.startswith(f"{self.path}.")
        return path == self.path or (inside and not self.symbol)

    def __str__(self) -> str:
        return self.key + (f" when {self.when}" if self.when else "")


def breakpoint_at(model: Trainable, call: Call, key: str, when: str | None) -> Breakpoint:
    """Return the breakpoint at a key such as "2.backward"; refuse a place that there is not."""
    parts = str(key).split(".")
    k = next((i for i, p in enumerate(parts) if p in ("forward", "backward")), len(parts))
    path, direction, symbol = (
        ".".join(parts[:k]),
        "".join(parts[k : k + 1]),
        ".".join(parts[k + 1 :]),
    )
    layers = {place: (layer, inside) for place, layer, inside in reached(model, call)}
    unknown = not direction and path not in layers and path not in dict(model.walk())
    if unknown and ".".join(parts[:-1]) in layers:
        path, symbol = ".".join(parts[:-1]), parts[-1]
        direction = _direction(*layers[path], path, symbol, str(key))
    if path not in layers or (symbol and not direction):
        raise _unreached(model, call, str(key), path)
    layer, inside = layers[path]
    if symbol:
        names = _names(layer, path, direction, inside)
        if symbol not in names:
            what = f"one of the symbols of {kind_of(layer)} in its {direction} pass"
            raise UnknownNameError.of(symbol, names, what)
    found = Breakpoint(str(key), path, direction, symbol, when)
    if when is not None:
        _check_condition(found, model, call)
    return found


def _direction(layer: Any, call: Call, path: str, symbol: str, key: str) -> str:
    """The pass of a key such as "2.dW", which leaves it out; "" if the model has no such symbol."""
    ways = ("forward", "backward")
    names = {way: _names(layer, path, way, call) for way in ways}
    found = [way for way in ways if symbol in names[way]]
    if path and not found:
        every = [name for way in ways for name in names[way]]
        raise UnknownNameError.of(symbol, every, f"one of the symbols of {kind_of(layer)}")
    if len(found) > 1:
        raise UnknownNameError(f"{key!r} is ambiguous: put forward or backward before {symbol}.")
    return "".join(found)


def _unreached(model: Trainable, call: Call, key: str, path: str) -> PhitodeepError:
    """The error to raise for a key without a place in the layers that are `reached`."""
    if path in dict(model.walk()) and path not in [place for place, *_ in reached(model, call)]:
        return ArgumentError(
            f"the debugger does not stop in {path!r}: a layer around it has no steps(), so both of "
            "its passes are one step."
        )
    near = difflib.get_close_matches(key, list(keys(model, call)), n=3)
    meant = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    paths = ", ".join(repr(place) for place, *_ in reached(model, call) if place)
    return UnknownNameError(
        f"there is no place {key!r}: a place is one of {paths}, its pass, such as '0.backward', or "
        f"a symbol of it, such as '0.backward.dX'.{meant}"
    )


def reached(model: Trainable, call: Call) -> Iterator[tuple[str, Any, Call]]:
    """Yield (path, layer, call) of the layers that run step by step, and of the loss."""
    yield from _inside("", model, call)
    yield "loss", model.loss, call


def _inside(path: str, layer: Any, call: Call) -> Iterator[tuple[str, Any, Call]]:
    yield path, layer, call
    with within(call):
        steps = list(flat(run.derivation_of(layer).forward))
    for step in steps:
        if isinstance(step, Through):
            mask = call.mask if isinstance(step.mask, str) else step.mask
            child = layer.children()[step.child]
            yield from _inside(run.path_inside(path, step.child), child, call._replace(mask=mask))


def keys(model: Trainable, call: Call) -> Iterator[str]:
    """Yield every key of a model that a breakpoint takes, from whole layers to single symbols."""
    for path, layer, inside in reached(model, call):
        if path:
            yield path
        for direction in ("forward", "backward"):
            place = f"{path}.{direction}".removeprefix(".")
            yield place
            yield from (f"{place}.{name}" for name in _names(layer, path, direction, inside))


def _names(layer: Any, path: str, direction: str, call: Call) -> list[str]:
    """The symbols of one pass of a layer, in order: what it receives, then what it computes."""
    given = {"forward": ["X"], "backward": ["dY"]}[direction]
    if path == "loss":
        given = {"forward": ["P"], "backward": []}[direction]
    with within(call):
        steps = getattr(run.derivation_of(layer), direction)
    return list(dict.fromkeys([*given, *(s.symbol for s in flat(steps) if s.symbol != "t")]))


# --- what the user writes ----------------------------------------------------------------------


def _check_condition(found: Breakpoint, model: Trainable, call: Call) -> None:
    """Refuse a condition that is not an expression, or has names that no layer there has."""
    when = checked_text(found.when, "a condition")
    try:
        nodes = list(ast.walk(ast.parse(when, mode="eval")))
    except (SyntaxError, ValueError) as error:
        raise ArgumentError(f"when={when!r} is not a Python expression: {error}.") from None
    names = [node for node in nodes if isinstance(node, ast.Name)]
    own = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    known = ["L", "t"]
    for path, layer, inside in reached(model, call):
        if found.includes(path):
            known += _known(layer, path, inside)
    for node in names:
        if node.id not in {*known, *own, *vars(builtins), "np"}:
            raise UnknownNameError.of(node.id, dict.fromkeys(known), "one of the symbols there")


def _known(layer: Any, path: str, call: Call) -> list[str]:
    """All symbols that the scope of a layer or a loss may have."""
    if path == "loss":
        own = ["T", "w", "total", "share"]
    else:
        own = [*layer.params, *layer.state, *layer.tied]
    passes = [_names(layer, path, direction, call) for direction in ("forward", "backward")]
    numbers = [name for name, value in settings(layer).items() if type(value) in (int, float)]
    return [*passes[0], *passes[1], *own, *numbers]


FAILURES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # of expressions


def checked_text(value: object, what: str) -> str:
    """Return a text that the user gives; refuse anything else."""
    if not isinstance(value, str):
        raise ArgumentTypeError(f"the debugger takes {what} as a text, got {value!r:.80}.")
    return value


class Named:
    """The symbols of a scope, and L for the loss."""

    def __init__(self, scope: Scope, loss: float | None) -> None:
        self.scope, self.loss = scope, loss

    def __getitem__(self, name: str) -> Any:
        return self.loss if name == "L" and self.loss is not None else self.scope[name]


def value_of(expression: str, scope: Scope, loss: float | None) -> Any:
    """Return the value of an expression of the symbols of a scope."""
    try:
        return evaluate(expression, Named(scope, loss))
    except NameError as error:
        raise UnknownNameError(f"{error}: {so_far(scope)}.") from None
    except SyntaxError as error:
        raise ArgumentError(
            f"p takes a Python expression, got {expression!r}: {error.msg}. A symbol with a path "
            "stands alone, as in p('1.Y')."
        ) from None


def replaced(old: Any, place: str, value: Any) -> Any:
    """Return the value of a symbol with the elements of a place such as "dY[0, 3]" replaced."""
    new = np.array(old, copy=True)
    key, bracket, rest = place.partition("[")
    try:
        if value is None or old is None:
            raise TypeError("None is not a number" if value is None else "it has no elements")
        cells = evaluate(f"np.s_[{rest}", {}) if bracket else ...
        new[cells] = value
        if new.dtype.kind != "f" and (new[cells] != value).any():
            raise ValueError(f"its elements are {new.dtype} numbers")
    except (*FAILURES, NameError, SyntaxError) as error:
        raise ArgumentError(
            f"{place!r} cannot be set to {value!r:.60} ({key.rpartition('.')[2]} has shape "
            f"{new.shape}): {error}."
        ) from None
    number = type(old) in (bool, int, float)  # it takes the dtype of what it meets
    return new.item() if number else new
