"""A recorded step of training as data for the explorer: one JSON value with a version.

The page runs the steps itself, so the document holds only what they start from: the inputs, the
parameters, what was drawn, and the updates. It has the expressions of all other arrays instead of
their values, and the page can also compute what a different weight would do.

    {"format": "phitodeep.trace", "version": 2, "loss": ..., "samples": ...,
     "parameters": {"0.W": ARRAY, ...}, "updates": {"0.W": ARRAY, ...},
     "scopes": {"": SCOPE, "0": SCOPE, ..., "loss": SCOPE}, "sources": {"Dense": ...}}

A scope is one layer, or the loss: its steps in both directions (STEP) and the values that they
start from. docs/explorer.md describes all fields.

An array is base64 numbers. Large arrays are reduced to thumbnails if the document would not fit in
`LARGEST` bytes. What the page cannot compute without them is then stored too.

A NumPy expression of a derivation is a tree of nested lists, which the page evaluates cell by cell:
"gamma * X_hat + 1" becomes ["+", ["*", "gamma", "X_hat"], 1.0]. A text is a symbol and a number is
itself; a list is an operation and what it takes.
"""

from __future__ import annotations

import ast
import base64
import inspect
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from phitodeep.core.call import within
from phitodeep.core.types import Array, each
from phitodeep.derivations.language import run
from phitodeep.derivations.language.mathml import MATHML
from phitodeep.derivations.language.run import Scope
from phitodeep.derivations.language.step import (
    PASSED_ON,
    Arrange,
    Carry,
    Given,
    Let,
    Loop,
    Max,
    Step,
    Sum,
    Through,
    evaluate,
)
from phitodeep.derivations.language.terms import Replaced
from phitodeep.errors import ArgumentError
from phitodeep.inspect.explorer.source import line_of, source_of
from phitodeep.inspect.explorer.tiles import SIDE, strongest

Packed = dict[str, Any]
BINS = 40
EXACT = 1 << 12  # numbers of an array that keep all digits of float64
MISSING = -128  # in a thumbnail: a number that is not finite
FORMAT, VERSION = "phitodeep.trace", 2
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
        self.run("", "forward")
        self.run("loss", "forward", self.knows("", self.scopes[""]["returns"]["forward"]))
        self.run("loss", "backward")
        self.run("", "backward", self.knows("loss", self.scopes["loss"]["returns"]["backward"]))
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
            "samples": len(each(run.all_of(step.scope(""), "X"))[0]),
            "sample": step.sample,
            "parameters": self.parameters,
            "updates": updates,
            "scopes": self.scopes,
            "sources": self.sources,
            "rows": [list(row.cells()) for row in step.rows],
            "remarks": list(step.remarks),
        }

    # --- scopes ----------------------------------------------------------------------------

    def open(self, path: str, scope: Scope) -> None:
        """Begin the entry of a layer: what its steps read and do not compute."""
        layer, steps, ends = scope.layer, list(scope.derivation.every()), ends_of(scope)
        received = [name for names in ends["receives"].values() for name in names]
        elsewhere = {step.symbol for step in steps} | {*received, "t"}
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
        self.scopes[path] = {
            "path": path,
            "kind": type(layer).__name__,
            "name": self.step.name_of(path),
            "about": about(layer),
            "params": named,
            "values": values,
            "source": self.source(layer),
            **ends,
        }

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

    def run(self, path: str, direction: str, given: Iterable[bool] = repeat(False)) -> None:
        """Store a pass: its steps, and what it receives.

        The latter only if the page cannot compute it, as `given` says of each, or if a hook
        changed it.
        """
        scope = self.step.scope(path)
        if direction == "forward":
            self.open(path, scope)
        entry = self.scopes[path]
        entry[direction] = []
        received = entry["receives"][direction]
        if any(name not in scope for name in received):
            return  # nothing learns before this layer
        for name, computed in zip(received, given, strict=False):
            packed = None if computed and not self.step.edited else self.packed(scope[name])
            if packed is not None:
                entry["values"][name] = packed
            if in_full(packed):
                self.known[path].add(name)
        with within(scope.call):
            entry[direction] = self.steps(scope, getattr(scope.derivation, direction), direction)

    def knows(self, path: str, names: Iterable[str]) -> list[bool]:
        """Whether the page can compute each of these symbols, or reads it in full."""
        return [name in self.known[path] for name in names]

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
            if isinstance(step, Through) and step.runs:
                inner, given = run.path_inside(scope.path, step.child), step.operands
                self.run(inner, direction, self.knows(scope.path, given))
            seen = scope.at(times[0]) if times else scope
            if seen.find(step.symbol) is not None:
                found.append(self.computed(step, scope, direction, times or [None]))
            elif isinstance(step, Through) and step.runs:
                # tokens have no gradient, but the layer's W has one
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
            follows = step.result in self.known[inner] and not self.step.edited
        else:
            reads = (step.of,) if isinstance(step, Arrange) else step.operands
            follows = not isinstance(step, Given) and known.issuperset(reads)
        if isinstance(step, Arrange) and follows:
            entry["from"] = [arrangement(step, scope.at(t)) for t in times]
        key = (path, direction, step.symbol)
        if key in self.step.replaced and not PASSED_ON.fullmatch(step.symbol):
            follows = False
        if not follows:
            entry["value"] = self.value(scope[step.symbol])
            constant = isinstance(step, Given) and run.has_steps(scope.layer)
            if not constant:
                entry["recorded"] = True
                self.live = False
        if key in self.step.replaced and PASSED_ON.fullmatch(step.symbol):
            entry["returned"] = self.value(self.step.replaced[key])
            self.live = False
        if follows or in_full(entry["value"]):
            known.add(step.symbol)
        return entry

    def described(self, step: Step, scope: Scope, direction: str) -> dict[str, Any]:
        """What a step computes, and how, without its value."""
        entry: dict[str, Any] = {
            "kind": "given" if isinstance(step, Given) else type(step).__name__.lower(),
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
            entry |= {"path": run.path_inside(scope.path, step.child), "back": step.back}
            entry |= {"result": step.result, "runs": step.runs}
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


def ends_of(scope: Scope) -> dict[str, dict[str, list[str]]]:
    """The symbols of what each pass of a layer or a loss receives and returns."""
    given = run.received(scope.layer)
    Y = run.symbols_of(scope.layer, "Y") if hasattr(scope.layer, "params") else ["L"]
    dX = [f"d{name}" for name in given["forward"]]
    return {"receives": given, "returns": {"forward": Y, "backward": dX}}


def about(thing: Any) -> str:
    """The first sentence of a class's docstring, if it has one of its own."""
    doc = inspect.cleandoc(vars(type(thing)).get("__doc__") or "")
    return " ".join(doc.partition("\n\n")[0].replace("`", "").split())


# --- arrays and formulas -------------------------------------------------------------------------


def full(array: Any) -> Packed:
    """All numbers of an array: `data` in the type `as`, or one number `all` that fills it."""
    A = np.asarray(array)
    found: Packed = {"shape": list(A.shape)}
    if A.size and (A == A.flat[0]).all():
        return found | {"all": number(A.flat[0])}
    kind = _kind(A)
    with np.errstate(over="ignore"):
        return found | {"as": kind, "data": text(A.astype(f"<{kind}"))}


def _kind(A: Array) -> str:
    """The smallest type that holds all numbers exactly; in a large array, float32 is enough."""
    with np.errstate(invalid="ignore", over="ignore"):
        for kind in ("u1", "i4", "f4"):
            if np.array_equal(A.astype(kind), A, equal_nan=kind == "f4"):
                return kind
        fits = np.array_equal(np.isinf(A.astype("f4")), np.isinf(A))
    return "f4" if fits and A.size > EXACT else "f8"


def number(value: Any) -> float | str:
    """A number for JSON, which has no infinity and no NaN: JavaScript's words stand for them."""
    value = float(value)
    if np.isfinite(value):
        return value
    return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def text(A: Array) -> str:
    return base64.b64encode(np.ascontiguousarray(A).tobytes()).decode()


def reduced(array: Any, side: int = SIDE) -> Packed:
    """A thumbnail of an array with `n` numbers, its largest numbers and its histogram.

    A cell of the thumbnail is the number of largest size in its block, since a mean would hide
    spikes. Infinity and NaN come before all numbers.
    """
    A = np.asarray(array, np.float64)
    known = np.isfinite(A)
    numbers = np.where(known, A, np.inf)
    scale = float(np.abs(A[known]).max(initial=0)) or 1.0
    thumb = strongest(numbers.reshape(-1, A.shape[-1]), side, side)
    cells = np.where(np.isinf(thumb), MISSING, np.round(127 * (thumb / scale)))
    top = np.argsort(-np.abs(numbers), axis=None, kind="stable")[:side]
    counts, edges = np.histogram(A[known], BINS)
    return {
        "shape": list(A.shape),
        "n": A.size,
        "thumb": {"shape": list(thumb.shape), "scale": scale, "data": text(cells.astype(np.int8))},
        "top": [[int(i), number(A.flat[i])] for i in top],
        "histogram": {"counts": counts.tolist(), "from": float(edges[0]), "to": float(edges[-1])},
    }


def arrangement(step: Arrange, scope: Any) -> Packed:
    """From which cell of `step.of` each cell comes: its number in memory, or -1 for a 0.

    Most arrangements are regular: the number is `start` plus `strides` times the indices. Otherwise
    `cells` lists all numbers, or only the first sample's if each later sample adds `each`.
    """
    A = np.asarray(scope[step.of])
    numbered = np.arange(1, A.size + 1).reshape(A.shape)
    cells = np.asarray(evaluate(step.code, Replaced(scope, step.of, numbered))) - 1
    found: Packed = {"shape": list(cells.shape)}
    if not cells.size:
        return found | {"start": 0, "strides": [0] * cells.ndim}
    start = int(cells.flat[0])
    seconds = (cells.take(min(1, n - 1), axis) for axis, n in enumerate(cells.shape))
    strides = [int(second.flat[0]) - start for second in seconds]
    grid = np.ogrid[tuple(map(slice, cells.shape))]
    regular = start + sum(s * g for s, g in zip(strides, grid, strict=True))
    if cells.min() >= 0 and (cells == regular).all():
        return found | {"start": start, "strides": strides}
    if A.ndim and len(cells) == len(A) > 1:
        each = A.size // len(A)
        offsets = each * np.arange(len(A)).reshape(-1, *[1] * (cells.ndim - 1))
        if (cells == np.where(cells[:1] < 0, -1, cells[:1] + offsets)).all():
            return found | {"each": each, "cells": _integers(cells[0])}
    return found | {"cells": _integers(cells)}


def _integers(A: Array) -> Packed:
    """Numbers from -1, stored plus 1."""
    kind = next(k for k, n in (("u1", 1 << 8), ("u2", 1 << 16), ("i4", 1 << 31)) if A.max() + 1 < n)
    return {"as": kind, "data": text((A + 1).astype(f"<{kind}"))}


BINARY = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**", ast.Mod: "%",
    ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor",
}  # fmt: skip
UNARY = {ast.USub: "neg", ast.UAdd: "plus", ast.Invert: "not", ast.Not: "not"}
COMPARE = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
SAME = {"logical_and": "and", "logical_or": "or", "logical_not": "not", "int64": "trunc"}
CONSTANTS = {"pi": math.pi, "inf": "Infinity"}  # JSON has no infinity


def tree(code: str) -> Any:
    """An expression as nested lists."""
    return _tree(ast.parse(code, mode="eval").body)


def _tree(node: ast.expr) -> Any:
    match node:
        case ast.Name():
            return node.id
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.Attribute() if node.attr in CONSTANTS:
            return ["number", CONSTANTS[node.attr]]
        case ast.BinOp() if type(node.op) in BINARY:
            return [BINARY[type(node.op)], _tree(node.left), _tree(node.right)]
        case ast.UnaryOp():
            return [UNARY[type(node.op)], _tree(node.operand)]
        case ast.Compare(ops=[op], comparators=[other]) if type(op) in COMPARE:
            return [COMPARE[type(op)], _tree(node.left), _tree(other)]
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return [SAME.get(name, name), *map(_tree, node.args)]
    raise ArgumentError(f"the explorer cannot evaluate {ast.unparse(node)!r}.")
