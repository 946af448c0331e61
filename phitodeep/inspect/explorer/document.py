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

import inspect
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from phitodeep.core.call import within
from phitodeep.derivations.language import run
from phitodeep.derivations.language.mathml import MATHML
from phitodeep.derivations.language.run import Scope
from phitodeep.derivations.language.step import (
    Arrange,
    Carry,
    Given,
    Join,
    Let,
    Loop,
    Max,
    Step,
    Sum,
    Through,
)
from phitodeep.errors import ArgumentError
from phitodeep.inspect.entries import PASSED_ON
from phitodeep.inspect.explorer.packing import (
    SIDE,
    Packed,
    arrangement,
    full,
    number,
    reduced,
    tree,
)
from phitodeep.inspect.explorer.source import line_of, source_of

FORMAT, VERSION = "phitodeep.trace", 1
LARGEST = 2_800_000  # characters of a document
SIZES = [  # numbers in the largest array stored in full, and the side of a thumbnail
    *((1 << k, SIDE) for k in (18, 16, 14, 12, 10)),
    *((1 << 10, side) for side in (SIDE // 2, SIDE // 4)),
]
UPDATE = 1 << 14  # no other array follows from an update, so fewer numbers are enough


def text_of(step: Any) -> str:
    """The document of a recorded step as JSON, with as many numbers as fit."""
    for count, side in SIZES:
        found = json.dumps(
            Writer(step, count, side).document(), separators=(",", ":"), allow_nan=False
        )
        if len(found) <= LARGEST:
            return found.replace("</", "<\\/").replace("<!--", "<\\u0021--")  # safe in a script
    raise ArgumentError(
        f"the explorer holds at most {LARGEST:,} characters, and this step needs {len(found):,}: "
        "trace fewer samples, shorter sequences or a smaller model."
    )


class Writer:
    """Writes the document of a step; arrays of more than `count` numbers are reduced.

    `known` has the symbols that the page can compute or read in full, by path.
    """

    def __init__(self, step: Any, count: int, side: int = SIDE) -> None:
        self.step, self.count, self.side = step, count, side
        self.scopes: dict[str, dict[str, Any]] = {}
        self.parameters: dict[str, Packed] = {}
        self.sources: dict[str, Any] = {}
        self.known: dict[str, set[str]] = {}
        self.live = not step.edited  # until something is stored that other weights would change
        self.owners = {id(layer): path for path, layer in step.model.walk() if path}

    def document(self) -> dict[str, Any]:
        step = self.step
        self.forward("", given=False)
        self.forward("loss", "Y" in self.known[""], "P")
        self.backward("loss", "P" in self.known["loss"], "P")
        self.backward("", "dP" in self.known["loss"])
        updates = {
            f"{path}.{name}": self.packed(array, min(self.count, UPDATE))
            for path, arrays in step.updates.items()
            for name, array in arrays.items()
        }
        return {
            "format": FORMAT,
            "version": VERSION,
            "live": self.live,
            "loss": number(step.loss),
            "after": None if step.loss_after is None else number(step.loss_after),
            "optimizer": {"name": repr(step.model.optimizer), "about": about(step.model.optimizer)},
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
        elsewhere = {step.symbol for step in steps} | {"X", "dY", "P", "t"}
        named = dict(self.names(layer, path))
        values = {
            name: self.value(scope[name])
            for name in dict.fromkeys(name for step in steps for name in step.operands)
            if name not in elsewhere and name not in named and name in scope
        }
        for name, key in named.items():
            if key not in self.parameters:
                self.parameters[key] = self.packed(scope[name])
        stored = {name: self.parameters[key] for name, key in named.items()} | values
        self.known[path] = {"t"} | {name for name, value in stored.items() if in_full(value)}
        entry: dict[str, Any] = {
            "path": path,
            "kind": type(layer).__name__,
            "name": self.step.name_of(path),
            "about": about(layer),
            "params": named,
            "values": values,
            "source": self.source(layer),
        }
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

    # --- passes: `given` is whether the page can compute what the layer receives ---------------

    def forward(self, path: str, given: bool, received: str = "X") -> None:
        scope = self.step.scope(path)
        entry = self.open(path, scope)
        self.receive(scope, received, given)
        with within(scope.call):
            entry["forward"] = self.steps(scope, scope.derivation.forward, "forward")

    def backward(self, path: str, given: bool, received: str = "dY") -> None:
        scope, entry = self.step.scope(path), self.scopes[path]
        entry["backward"] = []
        if received not in scope:
            return  # nothing learns before this layer
        self.receive(scope, received, given)
        with within(scope.call):
            entry["backward"] = self.steps(scope, scope.derivation.backward, "backward")

    def receive(self, scope: Scope, name: str, given: bool) -> None:
        """Store what a pass receives if the page does not compute it, or if a hook changed it."""
        given = given and not self.step.edited
        if not given:
            packed = self.packed(scope[name])
            self.scopes[scope.path]["values"][name] = packed
            given = in_full(packed)
        if given:
            self.known[scope.path].add(name)

    # --- steps -----------------------------------------------------------------------------

    def steps(
        self, scope: Scope, steps: Sequence[Step], direction: str, times: Sequence[int | None] = ()
    ) -> list[dict[str, Any]]:
        """The steps of a direction, or of a loop with these rounds."""
        found = []
        for step in steps:
            if isinstance(step, Loop):
                found.append(self.loop(step, scope, direction))
                continue
            if isinstance(step, Through):
                self.through(step, scope)
            seen = scope.at(times[0]) if times else scope
            if seen.find(step.symbol) is not None:
                found.append(self.computed(step, scope, direction, times or [None]))
            elif isinstance(step, Through):  # tokens have no gradient, but the layer's W has one
                found.append(self.described(step, scope, direction))
        return found

    def loop(self, step: Loop, scope: Scope, direction: str) -> dict[str, Any]:
        """A loop; what it carries on is known from the start if its body computes it."""
        known, times = self.known[scope.path], step.times(scope)
        before = known.copy()
        carried = {inner.of for inner in step.body if isinstance(inner, Carry)}
        known |= carried
        body = self.steps(scope, step.body, direction, times)
        if any(s["symbol"] in carried and not in_full(s.get("value")) for s in body):
            known &= before
            body = self.steps(scope, step.body, direction, times)
        return {"kind": "loop", "reverse": step.reverse, "of": step.along, "body": body}

    def computed(
        self, step: Step, scope: Scope, direction: str, times: Sequence[int | None]
    ) -> dict[str, Any]:
        """A step, with its value if the page cannot compute it."""
        path, known = scope.path, self.known[scope.path]
        entry = self.described(step, scope.at(times[0]), direction)
        if isinstance(step, Through):
            inner = run.path_inside(path, step.child)
            follows = ("dX" if step.back else "Y") in self.known[inner] and not self.step.edited
        else:
            reads = (step.of,) if isinstance(step, Arrange) else step.operands
            follows = not isinstance(step, Given) and known.issuperset(reads)
        if isinstance(step, Arrange) and follows:
            entry["from"] = [arrangement(step, scope.at(t)) for t in times]
        key = (path, direction, step.symbol)
        if key in self.step.replaced and step.symbol not in PASSED_ON:
            follows = False
        if not follows:
            entry["value"] = self.value(scope[step.symbol])
            constant = isinstance(step, Given) and run.has_steps(scope.layer)
            if not constant:
                entry["recorded"] = True
                self.live = False
        if key in self.step.replaced and step.symbol in PASSED_ON:
            entry["returned"] = self.value(self.step.replaced[key])
            self.live = False
        if follows or in_full(entry["value"]):
            known.add(step.symbol)
        return entry

    def through(self, step: Through, scope: Scope) -> None:
        inner = run.path_inside(scope.path, step.child)
        given = step.of in self.known[scope.path]
        (self.backward if step.back else self.forward)(inner, given)

    def described(self, step: Step, scope: Scope, direction: str) -> dict[str, Any]:
        """What a step computes, and how, without its value."""
        entry: dict[str, Any] = {
            "kind": type(step).__name__.lower() if type(step) in KINDS else "given",
            "symbol": step.symbol,
            "formula": step.written(MATHML, scope),
            "text": step.formula,
            "code": step.code,
            "words": step.words,
            "reads": [n for n in step.operands if n != "t" or isinstance(step, Let)],
            "line": self.line(scope.path, step.symbol, direction),
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

    def packed(self, array: Any, count: int | None = None) -> Packed:
        small = np.size(array) <= (count or self.count)
        return full(array) if small else reduced(array, self.side)

    def value(self, value: Any) -> Any:
        """A number, or an array."""
        A = np.asarray(value)
        return number(A) if A.ndim == 0 else self.packed(A)


def in_full(value: Any) -> bool:
    """Whether a stored value has all its numbers."""
    return not isinstance(value, dict) or "n" not in value


def about(thing: Any) -> str:
    """The first sentence of a class's docstring, if it has one of its own."""
    doc = inspect.cleandoc(vars(type(thing)).get("__doc__") or "")
    return " ".join(doc.partition("\n\n")[0].replace("`", "").split())


KINDS = {Let, Arrange, Join, Sum, Max, Carry, Through}
