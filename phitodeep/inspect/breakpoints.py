"""Places where the debugger stops."""

from __future__ import annotations

import ast
from dataclasses import dataclass

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
    layer = model.loss if path == "loss" else layer_at(model, f"{path}.Y".removeprefix("."))
    if symbol:
        given = {"forward": ["P" if path == "loss" else "X"], "backward": ["dY"]}[direction]
        with within(call):
            steps = getattr(run.derivation_of(layer), direction)
        names = [*given, *(s.symbol for s in flat(steps) if s.symbol != "t")]
        if symbol not in names:
            what = f"one of the symbols of {kind_of(layer)} in its {direction} pass"
            raise UnknownNameError.of(symbol, names, what)
    if when is not None:
        try:
            ast.parse(when, mode="eval")
        except SyntaxError as error:
            raise ArgumentError(f"when={when!r} is not a Python expression: {error.msg}.") from None
    return Breakpoint(str(key), path, direction, symbol, when)
