"""A recorded step of training as data for the explorer: one JSON value with a version.

The page runs the steps itself, so the document holds only what they start from: the inputs, the
parameters, what was drawn, and the updates. It has the expressions of all other arrays instead of
their values, and the page can also compute what a different weight would do.

    {"format": "phitodeep.trace", "version": 1, "loss": ..., "samples": ...,
     "parameters": {"0.W": ARRAY, ...}, "updates": {"0.W": ARRAY, ...},
     "scopes": {"": SCOPE, "0": SCOPE, ..., "loss": SCOPE}, "sources": {"Dense": ...}}

A scope is one layer, or the loss: its steps in both directions (STEP) and the values that they
start from. docs/explorer.md describes all fields.

Large arrays are reduced to thumbnails if the document would not fit into `LARGEST` bytes. What the
page cannot compute without them is then stored too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from phitodeep.errors import ArgumentError
from phitodeep.explorer.expressions import tree
from phitodeep.explorer.packing import Packed, arrangement, full, number, reduced
from phitodeep.explorer.source import line_of, source_of
from phitodeep.inspect.entries import Entries
from phitodeep.layers.call import within
from phitodeep.steps import run
from phitodeep.steps.mathml import MATHML
from phitodeep.steps.run import Scope
from phitodeep.steps.step import Arrange, Carry, Given, Join, Let, Loop, Max, Step, Sum, Through
from phitodeep.types import Array

VERSION = 1
LARGEST = 2_800_000  # characters of a document
COUNTS = [1 << k for k in (18, 16, 14, 12, 10)]  # numbers in the largest array stored in full
UPDATE = 1 << 14  # no other array follows from an update, so fewer numbers are enough


def text_of(step: Entries) -> str:
    """The document of a recorded step as JSON, with as many numbers as fit."""
    for count in COUNTS:
        found = json.dumps(Writer(step, count).document(), separators=(",", ":"))
        if len(found) <= LARGEST:
            return found.replace("</", "<\\/").replace("<!--", "<\\u0021--")  # safe in a script
    raise ArgumentError(
        f"the explorer holds at most {LARGEST:,} characters, and this step needs {len(found):,}: "
        "trace fewer samples, shorter sequences or fewer layers."
    )


class Writer:
    """Writes the document of a step; arrays of more than `count` numbers are reduced."""

    def __init__(self, step: Any, count: int) -> None:
        self.step, self.count = step, count
        self.scopes: dict[str, dict[str, Any]] = {}
        self.parameters: dict[str, Packed] = {}
        self.sources: dict[str, Any] = {}
        self.known: dict[str, set[str]] = {}  # the symbols that the page can compute, by path
        self.live = not step.edited
        self.owners = {
            id(layer): path for path, layer in step.model.walk() if path and layer.params
        }

    def document(self) -> dict[str, Any]:
        step = self.step
        Y = self.forward("", step.scope(""), self.first(step.scope("")))
        self.loss(step.scope("loss"), Y)
        self.backward("", "dP" in self.known["loss"])
        updates = {
            f"{path}.{name}": full(array) if array.size <= UPDATE else reduced(array)
            for path, arrays in step.updates.items()
            for name, array in arrays.items()
        }
        return {
            "format": "phitodeep.trace",
            "version": VERSION,
            "live": self.live,
            "loss": number(step.loss),
            "after": None if step.loss_after is None else number(step.loss_after),
            "optimizer": repr(step.model.optimizer),
            "samples": len(step.scope("")["X"]),
            "sample": step.sample,
            "parameters": self.parameters,
            "updates": updates,
            "scopes": self.scopes,
            "sources": self.sources,
            "rows": [list(row.cells()) for row in step.rows],
            "remarks": list(step.remarks),
        }

    # --- scopes ----------------------------------------------------------------------------

    def open(self, path: str, scope: Scope) -> dict[str, Any]:
        """Begin the entry of a layer: what its steps read and do not compute."""
        layer, steps = scope.layer, list(scope.derivation.every())
        computed = {step.symbol for step in steps} | {"X", "dY", "P"}
        named = dict(self.names(layer, path))
        self.known[path] = known = {"t"}
        entry: dict[str, Any] = {
            "path": path,
            "kind": type(layer).__name__,
            "name": self.step.name_of(path),
            "params": named,
            "values": {},
            "source": self.source(layer),
        }
        for name, key in named.items():
            if key not in self.parameters:
                self.parameters[key] = self.packed(scope[name])
            if "n" not in self.parameters[key]:
                known.add(name)
        for name in dict.fromkeys(n for step in steps for n in step.operands):
            if name in computed or name in named or name == "t" or name not in scope:
                continue
            entry["values"][name] = self.value(scope[name])
            known.add(name)
        self.scopes[path] = entry
        return entry

    def names(self, layer: Any, path: str) -> Iterator[tuple[str, str]]:
        """The parameters of a layer, each with its key in the document; a tied one is shared."""
        if not hasattr(layer, "params"):
            return
        for name in layer.params:
            yield name, f"{path}.{name}".removeprefix(".")
        for name, (owner, own) in layer.tied.items():
            yield name, f"{self.owners[id(owner)]}.{own}"

    def source(self, layer: Any) -> str:
        """Store the source of a layer's or a loss's passes, and return its key."""
        kind = type(layer)
        key = f"{kind.__module__}.{kind.__qualname__}"
        if key not in self.sources:
            self.sources[key] = source_of(kind)
        return key

    def first(self, scope: Scope) -> bool:
        """Store the input of the model, and return whether it is stored in full."""
        self.input = self.packed(scope["X"])
        return "n" not in self.input

    # --- passes: each returns whether the page can compute what the layer returns ----------------

    def forward(self, path: str, scope: Scope, X: bool) -> bool:
        entry = self.open(path, scope)
        edge = self.edge(scope, path, "forward", "X", X)
        if path == "" and edge is None:
            edge = self.input
        with within(scope.call):
            entry["forward"] = self.steps(scope, path, scope.derivation.forward, "forward")
        if edge is not None:
            entry["values"]["X"] = edge
        return self.passed(path, "forward", "Y")

    def backward(self, path: str, dY: bool) -> bool:
        scope, entry = self.step.scope(path), self.scopes[path]
        if "dY" not in scope:
            entry["backward"] = []
            return False
        edge = self.edge(scope, path, "backward", "dY", dY)
        if edge is not None:
            entry["values"]["dY"] = edge
        with within(scope.call):
            entry["backward"] = self.steps(scope, path, scope.derivation.backward, "backward")
        return self.passed(path, "backward", "dX")

    def loss(self, scope: Scope, P: bool) -> None:
        entry = self.open("loss", scope)
        edge = self.edge(scope, "loss", "forward", "P", P)
        if edge is not None:
            entry["values"]["P"] = edge
        entry["forward"] = self.steps(scope, "loss", scope.derivation.forward, "forward")
        entry["backward"] = self.steps(scope, "loss", scope.derivation.backward, "backward")

    def edge(self, scope: Scope, path: str, direction: str, name: str, ok: bool) -> Packed | None:
        """What a pass receives, if the page does not compute it; hooks may have changed it."""
        ok = ok and not self.step.edited
        packed = None if ok else self.packed(scope[name])
        if ok or (packed is not None and "n" not in packed):
            self.known[path].add(name)
        if path and not ok:
            self.live = False
        return packed

    def passed(self, path: str, direction: str, name: str) -> bool:
        return name in self.known[path]

    # --- steps -----------------------------------------------------------------------------

    def steps(
        self, scope: Scope, path: str, steps: Sequence[Step], direction: str, times: Any = None
    ) -> list[dict[str, Any]]:
        found = []
        for step in steps:
            if isinstance(step, Loop):
                body = self.steps(scope, path, step.body, direction, step.times(scope))
                found.append(
                    {"kind": "loop", "reverse": step.reverse, "of": step.along, "body": body}
                )
                continue
            if isinstance(step, Through):
                ok = self.through(step, scope, path)
            seen = scope if times is None else scope.at(times[0])
            if seen.find(step.symbol) is None:
                continue  # a gradient of tokens, which have none
            if not isinstance(step, Through):
                reads = (step.of,) if isinstance(step, Arrange) else step.operands
                ok = not isinstance(step, Given) and self.known[path].issuperset(reads)
            new = self.step.replaced.get((path, direction, step.symbol))
            entry = self.described(step, seen) | {"line": self.line(path, step.symbol, direction)}
            if isinstance(step, Arrange) and ok:
                entry["from"] = [arrangement(step, scope.at(t)) for t in times or [None]]
            if not ok or new is not None:
                kept = scope[step.symbol] if new is None else new
                entry["value"] = self.value(kept)
                self.live = self.live and (type(step) is Given or (new is None and ok))
                ok = not isinstance(entry["value"], dict) or "n" not in entry["value"]
            if ok:
                self.known[path].add(step.symbol)
            found.append(entry)
        return found

    def through(self, step: Through, scope: Scope, path: str) -> bool:
        inner = run.path_inside(path, step.child)
        given = step.of in self.known[path]
        if step.back:
            return self.backward(inner, given)
        return self.forward(inner, self.step.scope(inner), given)

    def described(self, step: Step, scope: Scope) -> dict[str, Any]:
        """What a step computes, and how, without its value."""
        entry: dict[str, Any] = {
            "kind": type(step).__name__.lower() if type(step) in KINDS else "given",
            "symbol": step.symbol,
            "formula": step.written(MATHML, scope),
            "text": step.formula,
            "code": step.code,
            "words": step.words,
            "reads": [n for n in step.operands if n != "t"],
        }
        if isinstance(step, Let):
            entry["tree"] = tree(step.code)
        if isinstance(step, Sum | Max):
            entry["letters"], entry["out"] = step.letters(scope)
        if isinstance(step, Arrange):
            entry["of"] = step.of
        if isinstance(step, Carry):
            entry |= {"of": step.of, "start": step.start}
        if isinstance(step, Through):
            entry |= {"of": step.of, "path": run.path_inside(scope.path, step.child)}
            entry["back"] = step.back
        return entry

    def line(self, path: str, symbol: str, direction: str) -> int | None:
        """The line of the layer's own source that computes a symbol."""
        source = self.sources[self.scopes[path]["source"]].get(direction)
        return source and line_of(symbol, [text for _, text in source["lines"]])

    # --- values ----------------------------------------------------------------------------

    def packed(self, array: Array) -> Packed:
        return full(array) if np.size(array) <= self.count else reduced(array)

    def value(self, value: Any) -> Any:
        """A number, or an array."""
        A = np.asarray(value)
        return number(A) if A.ndim == 0 else self.packed(A)


KINDS = {Let, Arrange, Join, Sum, Max, Carry, Through}
