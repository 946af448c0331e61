"""Arrays and formulas in the explorer's document.

An array is base64 numbers, or a thumbnail if it is large. A NumPy expression of a derivation is a
tree of nested lists, which the explorer evaluates cell by cell: "gamma * X_hat + 1" becomes
["+", ["*", "gamma", "X_hat"], 1.0]. A text is a symbol and a number is itself; a list is an
operation and what it takes.
"""

from __future__ import annotations

import ast
import base64
import math
from typing import Any

import numpy as np

from phitodeep.core.types import Array
from phitodeep.derivations.language.step import Arrange, evaluate
from phitodeep.derivations.language.terms import Replaced
from phitodeep.errors import ArgumentError

Packed = dict[str, Any]
SIDE = 64  # the cells of a thumbnail along each axis
BINS = 40
EXACT = 1 << 12  # numbers of an array that keep all digits of float64
MISSING = -128  # in a thumbnail: a number that is not finite


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
    flat = A.reshape(-1)
    finite = np.where(np.isfinite(flat), flat, 0)
    size = np.where(np.isfinite(flat), np.abs(flat), np.inf)
    scale = float(np.abs(finite).max(initial=0)) or 1.0
    thumb = strongest(finite.reshape(-1, A.shape[-1]), side, side)
    spoilt = strongest(np.isinf(size).astype(float).reshape(-1, A.shape[-1]), side, side)
    cells = np.where(spoilt > 0, MISSING, np.round(127 * (thumb / scale)))
    top = np.argsort(-size, kind="stable")[:side]
    counts, edges = np.histogram(finite[np.isfinite(flat)], BINS)
    return {
        "shape": list(A.shape),
        "n": A.size,
        "thumb": {"shape": list(thumb.shape), "scale": scale, "data": text(cells.astype(np.int8))},
        "top": [[int(i), number(flat[i])] for i in top],
        "histogram": {"counts": counts.tolist(), "from": float(edges[0]), "to": float(edges[-1])},
    }


def strongest(A: Array, rows: int, columns: int) -> Array:
    """Cut the last two axes into at most rows x columns blocks; keep the largest |a| of each."""
    for axis, most in ((-2, rows), (-1, columns)):
        block = math.ceil(A.shape[axis] / most) if A.shape[axis] else 1
        if block > 1:
            A = np.moveaxis(A, axis, -1)
            ends = [(0, 0)] * (A.ndim - 1) + [(0, -A.shape[-1] % block)]
            cut = np.pad(A, ends).reshape(*A.shape[:-1], -1, block)
            best = np.abs(cut).argmax(axis=-1)
            A = np.moveaxis(np.take_along_axis(cut, best[..., None], -1)[..., 0], -1, axis)
    return A


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
    corners = [tuple(int(k == axis) for k in range(cells.ndim)) for axis in range(cells.ndim)]
    strides = [
        int(cells[c]) - start if n > 1 else 0 for c, n in zip(corners, cells.shape, strict=True)
    ]
    grid = np.ogrid[tuple(slice(n) for n in cells.shape)]
    if (
        cells.min() >= 0
        and (cells == start + sum(s * g for s, g in zip(strides, grid, strict=True))).all()
    ):
        return found | {"start": start, "strides": strides}
    each = A.size // max(1, len(A)) if A.ndim else 0
    if A.ndim and len(cells) == len(A) > 1:
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
