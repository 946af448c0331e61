"""How far two traces of the same layers are from each other: `Trace.diff`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from phitodeep.core.table import Table, as_html
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.inspect.entries import rms


@dataclass(frozen=True)
class Change:
    """How far the arrays of one layer differ, relative to their size; None where there is none."""

    path: str
    layer: str
    Y: float | None
    dY: float | None
    dW: float | None
    update: float | None

    def cells(self) -> tuple[str, ...]:
        numbers = (self.Y, self.dY, self.dW, self.update)
        shown = ("" if x is None else "same" if x == 0 else f"{x:.2g}" for x in numbers)
        return (self.path, self.layer, *shown)


@dataclass(frozen=True)
class Difference:
    """What differs between two traces of the same layers.

    loss, before    both losses; None before they are known
    rows            one per layer: |A - B| / |B| for each array
    """

    loss: float | None
    before: float | None
    rows: tuple[Change, ...]

    def table(self) -> Table:
        if self.loss is None or self.before is None:
            moved = "the loss is not known yet"
        elif self.loss == self.before:
            moved = f"the loss is the same, {self.loss:.6g}"
        else:
            moved = f"the loss goes from {self.before:.6g} to {self.loss:.6g}"
        title = f"{moved}; entries are |A - B| / |B|"
        head = ("path", "layer", "Y", "dY", "dW", "update")
        return Table(title, head, [row.cells() for row in self.rows], "")

    def __str__(self) -> str:
        return str(self.table()).rstrip()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return as_html(self)


def difference(new: Any, old: Any) -> Difference:
    """Compare two traces layer by layer."""
    rows = []
    for path in new._passes.keys() ^ old._passes.keys():
        raise ArgumentError(
            f"diff compares traces of the same layers, and only one of them has {path!r}."
        )
    for row in old.rows:
        if row.path not in old._passes:
            continue  # it did not run
        a, b = new._passes[row.path], old._passes[row.path]
        if a.Y.shape != b.Y.shape:
            raise ShapeError(
                f"diff compares traces of batches of the same shape, and the Y of {row.path} has "
                f"the shapes {a.Y.shape} and {b.Y.shape}."
            )
        ups = (new._updates.get(row.path), old._updates.get(row.path))
        rows.append(
            Change(
                row.path,
                row.layer,
                far(a.Y, b.Y),
                far(a.dY, b.dY),
                far(a.grads, b.grads),
                far(*ups),
            )
        )
    return Difference(new.loss, old.loss, tuple(rows))


def far(A: Any, B: Any) -> float | None:
    """|A - B| / |B| of two arrays, or of two dicts of arrays; None if one is missing or empty."""
    if A is None or B is None or len(A) == 0:
        return None
    if isinstance(A, dict):
        A, B = (np.concatenate([a.reshape(-1) for a in D.values()]) for D in (A, B))
    apart, size = rms(np.subtract(A, B, dtype=np.float64)), rms(B)
    return apart / size if size else apart
