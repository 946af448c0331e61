"""Places where the debugger stops."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from phitodeep.errors import ArgumentError, UnknownNameError
from phitodeep.inspect.hooks import layer_at
from phitodeep.inspect.trace import kind_of
from phitodeep.layers.call import Call, within
from phitodeep.steps import run
from phitodeep.steps.run import Position
from phitodeep.steps.step import flat
from phitodeep.training.objective import Trainable


@dataclass(frozen=True)
class Breakpoint:
    """A place to stop at: a path, and a direction and a symbol if given, and a condition."""

    key: str
    path: str
    direction: str
    symbol: str
    when: str | None

    def covers(self, position: Position) -> bool:
        path = position.scope.path
        return (
            (path == self.path or path.startswith(f"{self.path}.") or not self.path)
            and self.direction in ("", position.direction)
            and self.symbol in ("", position.step.symbol)
        )

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
    if not direction and path != "loss" and path not in dict(model.walk()):
        path, direction, symbol = _without_direction(model, call, str(key))
    layer = model.loss if path == "loss" else layer_at(model, f"{path}.Y".removeprefix("."))
    if symbol:
        names = _names(layer, path, direction, call)
        if symbol not in names:
            what = f"one of the symbols of {kind_of(layer)} in its {direction} pass"
            raise UnknownNameError.of(symbol, names, what)
    if when is not None:
        try:
            ast.parse(when, mode="eval")
        except SyntaxError as error:
            raise ArgumentError(f"when={when!r} is not a Python expression: {error.msg}.") from None
    return Breakpoint(str(key), path, direction, symbol, when)


def _without_direction(model: Trainable, call: Call, key: str) -> tuple[str, str, str]:
    """The parts of a key such as "2.dW", which leaves out the direction."""
    layers = dict([*model.walk(), ("loss", model.loss)])
    path, _, symbol = key.rpartition(".")
    if path not in layers:
        raise UnknownNameError.of(path, layers, f"one of the layers ({key!r})")
    names = {way: _names(layers[path], path, way, call) for way in ("forward", "backward")}
    found = [way for way, symbols in names.items() if symbol in symbols]
    if len(found) > 1:
        raise UnknownNameError(f"{key!r} is ambiguous: put forward or backward before {symbol}.")
    if not found and not path:
        raise UnknownNameError.of(key, layers, "one of the layers")
    if not found:
        every = [name for symbols in names.values() for name in symbols]
        raise UnknownNameError.of(symbol, every, f"one of the symbols of {kind_of(layers[path])}")
    return path, found[0], symbol


def keys(model: Trainable, call: Call) -> Iterator[str]:
    """Yield every key of a model that a breakpoint takes, from whole layers to single symbols."""
    for path, layer in [*model.walk(), ("loss", model.loss)]:
        if path:
            yield path
        for direction in ("forward", "backward"):
            place = f"{path}.{direction}".removeprefix(".")
            yield place
            yield from (f"{place}.{name}" for name in _names(layer, path, direction, call))


def _names(layer: Any, path: str, direction: str, call: Call) -> list[str]:
    """The symbols of one pass of a layer, in order: what it receives, then what it computes."""
    given = {"forward": ["X"], "backward": ["dY"]}[direction]
    if path == "loss":
        given = {"forward": ["P"], "backward": []}[direction]
    with within(call):
        steps = getattr(run.derivation_of(layer), direction)
    return list(dict.fromkeys([*given, *(s.symbol for s in flat(steps) if s.symbol != "t")]))
