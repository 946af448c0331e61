"""A layer's two passes on a small example, and the document with which a page runs them again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from phitodeep.core.call import calling
from phitodeep.core.types import Array
from phitodeep.derivations.language.run import Scope, backward, forward, run, symbols_of
from phitodeep.derivations.language.step import Derivation, Step
from phitodeep.inspect.explorer.document import Writer
from phitodeep.layers.base import Layer

DROPPED = ("formula", "text", "code", "words", "line")  # of a step: the page has its own


class Bench:
    """The symbols of both passes, and what `Writer` asks of a recorded step.

    extra    steps that the page adds after the backward pass
    """

    edited, sample = False, None

    def __init__(
        self, layer: Layer, Xs: Sequence[Array], dY: Array, extra: Sequence[Step] = ()
    ) -> None:
        self.model, self.replaced = layer, dict[Any, Any]()
        self.extra = tuple(extra)
        self.given = inputs(layer, Xs) | {"dY": dY}
        with calling(step=0, first=0, training=True, caching=True, needs_dX=True):
            self.whole = Scope(layer, **inputs(layer, Xs))
            run(forward(self.whole))
            self.derivation = self.whole.derivation
            both = self.derivation
            self.whole.derivation = Derivation(both.forward, [*both.backward, *self.extra])
            run(backward(self.whole, dY))
        self.scopes = dict(_inside(self.whole))

    def scope(self, path: str) -> Scope:
        return self.scopes[path]

    def name_of(self, path: str) -> str:
        return path

    def __getitem__(self, symbol: str) -> Any:
        return self.whole.find(symbol)

    def document(self) -> dict[str, Any]:
        """What the explorer's engine needs to run both passes, and whether it can (`live`)."""
        writer = _Writer(self, 1 << 14)
        writer.run("", "forward")
        writer.run("", "backward")
        return {
            "samples": len(self["dY"]),
            "live": writer.live,
            "parameters": writer.parameters,
            "scopes": writer.scopes,
        }

    def movable(self) -> list[str]:
        """The symbols whose numbers may change: nothing that the document stores follows from them.

        A row number that was drawn stays, but the rows of an embedding follow from X.
        """
        document = self.document()
        if not document["live"]:
            return []
        constants = _constants(document)
        layer = self.model
        found = []
        for name in (*self.given, *layer.params):
            if np.asarray(self[name]).dtype.kind != "f":
                continue
            other, given = layer.copy(), self.given.copy()
            moved = 0.1 - 1.3 * self[name]
            if name in given:
                given[name] = moved
            else:
                other.set_weights({**other.get_weights(), name: moved})
            *Xs, dY = given.values()
            if _constants(Bench(other, Xs, dY, self.extra).document()) == constants:
                found.append(name)
        return found


class _Writer(Writer):
    """Leaves out what the page does not show."""

    def names(self, layer: Any, path: str) -> Iterator[tuple[str, str]]:
        """The owner of a tied parameter may be outside the layer."""
        for name in (*layer.params, *layer.tied):
            yield name, f"{path}.{name}".removeprefix(".")

    def source(self, layer: Any) -> str:
        return ""

    def line(self, path: str, symbol: str, direction: str) -> int | None:
        return None

    def described(self, *args: Any) -> dict[str, Any]:
        return {k: v for k, v in super().described(*args).items() if k not in DROPPED}


def inputs(layer: Layer, Xs: Sequence[Array]) -> dict[str, Array]:
    """The inputs by their symbols: X, or X1, X2, ... of several."""
    return dict(zip(symbols_of(layer, "X"), Xs, strict=True))


def one(values: Sequence[Any]) -> Any:
    """A single value itself, or a tuple of several, as layers take and return them."""
    return values[0] if len(values) == 1 else tuple(values)


def _inside(scope: Scope) -> list[tuple[str, Scope]]:
    return [(scope.path, scope), *(pair for s in scope.inside.values() for pair in _inside(s))]


def _constants(document: dict[str, Any]) -> str:
    """All that the document stores, but the inputs and the parameters."""
    scopes = json.loads(json.dumps(document["scopes"]))
    for names in scopes[""]["receives"].values():
        for name in names:
            scopes[""]["values"].pop(name, None)
    return json.dumps(scopes)
