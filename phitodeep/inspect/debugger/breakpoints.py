"""What the user of the debugger writes: places to stop at, expressions, elements to replace."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from phitodeep.core.call import Call, within
from phitodeep.derivations.language import run
from phitodeep.derivations.language.run import Position, Scope
from phitodeep.derivations.language.step import Through, evaluate, flat
from phitodeep.derivations.language.terms import Replaced
from phitodeep.errors import ArgumentError, ArgumentTypeError, UnknownNameError
from phitodeep.inspect.debugger.display import so_far
from phitodeep.inspect.hooks import Keys, joined, symbols_by_pass
from phitodeep.layers.base import Layer
from phitodeep.training.objective import Trainable

PLACES = (
    "A place is a layer, such as '0', its pass, such as '0.backward', or a symbol of it, such as "
    "'0.backward.dX'."
)


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
    known, (path, _, last) = keys_of(model, call), str(key).rpartition(".")
    direction = symbol = ""
    if str(key) in known:
        path = str(key)
    elif last in ("forward", "backward") and path in known:
        direction = last
    else:
        around = [place for place, _ in model.walk() if place not in known]
        if any(f"{key}.".startswith(f"{place}.") for place in around):
            raise ArgumentError(
                f"the debugger does not stop in {key!r}: a layer around it has no steps(), so both "
                "of its passes are one step."
            )
        try:
            path, direction, symbol = known.find(key)
        except UnknownNameError as error:
            raise UnknownNameError(f"{error} {PLACES}") from None
    found = Breakpoint(str(key), path, direction, symbol, when)
    if when is not None:
        _check_condition(found, model, call)
    return found


def keys_of(model: Trainable, call: Call) -> Keys:
    """The symbols of each pass of each layer that runs step by step, and of the loss."""
    found = reached(model, call)
    return Keys({path: symbols_by_pass(layer, inside) for path, layer, inside in found})


def places(model: Trainable, call: Call) -> Iterator[str]:
    """Yield every key that a breakpoint takes, from whole layers to single symbols."""
    for path, directions in keys_of(model, call).items():
        yield from [path] if path else []
        for direction, names in directions.items():
            yield joined(path, direction)
            yield from (joined(path, direction, name) for name in names)


def reached(model: Trainable, call: Call) -> Iterator[tuple[str, Any, Call]]:
    """Yield (path, layer, call) of the layers that run step by step, and of the loss."""
    yield from _inside("", model, call)
    yield from _inside("loss", model.loss, call)


def _inside(path: str, layer: Any, call: Call) -> Iterator[tuple[str, Any, Call]]:
    yield path, layer, call
    with within(call):
        steps = list(flat(run.derivation_of(layer).forward))
    for step in steps:
        if isinstance(step, Through):
            mask = call.mask if isinstance(step.mask, str) else step.mask
            child = layer.children()[step.child]
            yield from _inside(run.path_inside(path, step.child), child, call._replace(mask=mask))


# --- what the user writes ----------------------------------------------------------------------


def _check_condition(found: Breakpoint, model: Trainable, call: Call) -> None:
    """Refuse a condition that is not an expression, or has names that no layer there has."""
    when = checked_text(found.when, "a condition")
    try:
        nodes = [*ast.walk(ast.parse(when, mode="eval"))]
    except (SyntaxError, ValueError) as error:
        raise ArgumentError(f"when={when!r} is not a Python expression: {error}.") from None
    known = ["L"]  # which is there once the loss is
    for path, layer, inside in reached(model, call):
        if found.includes(path):
            scope = Scope(layer, path, call=inside)
            known += [*scope.values, *(step.symbol for step in scope.derivation.every())]
            known += [name for names in run.received(layer).values() for name in names]
            known += [] if isinstance(layer, Layer) else ["T", "w", "total", "share"]
    names = [node for node in nodes if isinstance(node, ast.Name)]
    known += [node.arg for node in nodes if isinstance(node, ast.arg)]  # of a lambda
    known += [node.id for node in names if isinstance(node.ctx, ast.Store)]
    for name in (n.id for n in names if n.id not in {*known, *vars(builtins), "np"}):
        raise UnknownNameError.of(name, dict.fromkeys(known), "one of the symbols there")


FAILURES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # of expressions


def checked_text(value: object, what: str) -> str:
    """Return a text that the user gives; refuse anything else."""
    if not isinstance(value, str):
        raise ArgumentTypeError(f"the debugger takes {what} as a text, got {value!r:.80}.")
    return value


def with_loss(scope: Scope, loss: float | None) -> Any:
    """The symbols of a scope, and L for the loss once it is known."""
    return scope if loss is None else Replaced(scope, "L", loss)


def value_of(expression: str, scope: Scope, loss: float | None) -> Any:
    """Return the value of an expression of the symbols of a scope."""
    try:
        return evaluate(expression, with_loss(scope, loss))
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
