"""Arrays in the explorer's document: base64 numbers, or a thumbnail of a large array."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from phitodeep.steps.step import Arrange, evaluate
from phitodeep.steps.terms import Replaced
from phitodeep.types import Array

Packed = dict[str, Any]
SIDE = 64  # the cells of a thumbnail along each axis
TOP = 64  # the largest numbers of a reduced array that are stored exactly
BINS = 40


def full(array: Any) -> Packed:
    """All numbers of an array: `data` in the type `as`, or one number `all` that fills it."""
    A = np.asarray(array)
    found: Packed = {"shape": list(A.shape)}
    if A.size and (A == A.flat[0]).all():
        return found | {"all": number(A.flat[0])}
    if A.dtype.kind in "biu" or (np.isfinite(A).all() and A.max(initial=0) < 256 and _whole(A)):
        kind = "u1" if A.min(initial=0) >= 0 and A.max(initial=0) < 256 else "i4"
    else:
        kind = "f4"
    with np.errstate(over="ignore"):
        return found | {"as": kind, "data": text(A.astype(f"<{kind}"))}


def _whole(A: Array) -> bool:
    return bool(((A >= 0) & (A == np.floor(A))).all())


def number(value: Any) -> float | str:
    """A number for JSON, which has no words for infinity and NaN."""
    value = float(value)
    return value if np.isfinite(value) else str(value)


def text(A: Array) -> str:
    return base64.b64encode(np.ascontiguousarray(A).tobytes()).decode()


def reduced(array: Any) -> Packed:
    """A thumbnail of an array with `n` numbers, its largest numbers and its histogram.

    A cell of the thumbnail is the number of largest size in its block, since a mean would hide
    spikes.
    """
    A = np.asarray(array, np.float64)
    flat = A.reshape(-1)
    finite = np.where(np.isfinite(flat), flat, 0)
    scale = float(np.abs(finite).max(initial=0)) or 1.0
    small = _blocks(finite.reshape(-1, A.shape[-1]))
    top = np.argsort(-np.abs(finite), kind="stable")[:TOP]
    counts, edges = np.histogram(finite, BINS)
    return {
        "shape": list(A.shape),
        "n": A.size,
        "thumb": {
            "shape": list(small.shape),
            "scale": scale,
            "data": text(np.round(127 * small / scale).astype(np.int8)),
        },
        "top": [[int(i), number(flat[i])] for i in top],
        "histogram": {"counts": counts.tolist(), "from": float(edges[0]), "to": float(edges[-1])},
    }


def _blocks(A: Array) -> Array:
    """The number of largest size in each of at most SIDE x SIDE blocks of a matrix."""
    for axis in (0, 1):
        n = A.shape[axis]
        starts = np.unique(np.arange(min(SIDE, n)) * n // min(SIDE, n))
        low, high = (f.reduceat(A, starts, axis=axis) for f in (np.minimum, np.maximum))
        A = np.where(-low > high, low, high)
    return A


def arrangement(step: Arrange, scope: Any) -> Packed:
    """From which cell of `step.of` each cell comes: its number in memory, or -1 for a 0.

    Most arrangements are regular: the number is `start` plus `strides` times the indices. Otherwise
    `cells` has all numbers, or those of the first sample if each later one adds `each`.
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
