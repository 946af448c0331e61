"""The table of a model: each layer's output, parameters and cost."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from phitodeep.core.table import Table, Tabled, total
from phitodeep.core.types import Shape
from phitodeep.derivations.language.run import path_inside
from phitodeep.errors import NotBuiltError
from phitodeep.layers.base import Layer
from phitodeep.layers.containers import Container
from phitodeep.layers.tying import Shared
from phitodeep.layers.wiring import Wired

HEAD = ("path", "layer", "output", "trainable", "frozen", "bytes", "FLOPs")


@dataclass(frozen=True)
class Row:
    """One layer, without the layers inside it; a shared parameter counts at its first use."""

    path: str
    layer: str
    output: Shape | None  # None: unknown until the input shape is known
    trainable: int
    frozen: int
    size: int  # bytes of parameters and state
    flops: int | None  # FLOPs of a forward pass, per sample
    reads: str = ""  # in a network: the values that it reads, if not just the one before
    gives: str = ""  # in a network: the values of its that others read so, or that are outputs

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the row, in the order of HEAD."""
        output = "?" if self.output is None else str(self.output)
        flops = "?" if self.flops is None else f"{self.flops:,}"
        counts = (f"{n:,}" for n in (self.trainable, self.frozen, self.size))
        return (self.path, self.layer, output, *counts, flops)


@dataclass(frozen=True, repr=False)
class Summary(Tabled):
    """The rows in the order of the tree, and their totals."""

    title: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()  # how training differs from the layers as listed

    trainable, frozen, size = total("trainable"), total("frozen"), total("size")

    @property
    def flops(self) -> int | None:
        known = [row.flops for row in self.rows if row.flops is not None]
        return sum(known) if len(known) == len(self.rows) else None

    def totals(self) -> str:
        """Return parameters, bytes and FLOPs of all rows, in one line."""
        flops = "unknown" if self.flops is None else f"{self.flops:,}"
        return (
            f"{self.trainable:,} trainable and {self.frozen:,} frozen parameters, "
            f"{self.size:,} bytes, {flops} FLOPs per sample"
        )

    def table(self) -> Table:
        below = self.totals()
        if self.notes:
            below += "\nin training: " + "\n             ".join(self.notes)
        rows = [row.cells() for row in self.rows]
        if not any(row.reads or row.gives for row in self.rows):
            return Table(self.title, HEAD, rows, below, left=3)
        wired = [("reads", "gives"), *((row.reads, row.gives) for row in self.rows)]
        head, *rows = [(*c[:2], *w, *c[2:]) for c, w in zip([HEAD, *rows], wired, strict=True)]
        return Table(self.title, head, rows, below, left=5)


def summarize(layer: Layer, title: str = "", notes: tuple[str, ...] = ()) -> Summary:
    """Return the summary of a layer or model, without creating any parameter.

    Values that depend on an input shape not yet known are shown as "?".
    """
    with contextlib.suppress(NotBuiltError):  # layers that are built show their values
        layer = layer if layer.output_shape is not None else layer._measured()
    seen: set[int] = set()
    walked = list(layer.walk())
    shown = [(path, part) for path, part in walked if path or part.params or len(walked) == 1]
    wired = _wired(layer)
    rows = tuple(_row(path, part, seen, *wired.get(path, ())) for path, part in shown)
    return Summary(title or type(layer).__name__, rows, notes)


def name_of(layer: Any) -> str:
    """A layer or a loss in full; a container without the layers inside, which have rows."""
    if isinstance(layer, Shared):
        return f"Shared({name_of(layer.layer)})"
    return type(layer).__name__ if isinstance(layer, Container) else repr(layer)


def _wired(model: Layer) -> dict[str, tuple[str, str]]:
    """What the layers of networks read and give, by path, where a row does not say it already."""
    found: dict[str, tuple[str, str]] = {}
    for path, part in model.walk():
        if not isinstance(part, Wired):
            continue
        before = [part.takes, *(gives for _, gives in part.wires)]
        far = [r if r != b else () for (r, _), b in zip(part.wires, before, strict=False)]
        named = {*part.returns, *(name for names in far for name in names)}
        for k, (_, gives) in enumerate(part.wires):
            given = ", ".join(name for name in gives if name in named)
            found[path_inside(path, f"layers.{k}")] = ", ".join(far[k]), given
    return found


def _row(path: str, layer: Layer, seen: set[int], reads: str = "", gives: str = "") -> Row:
    own = [a for a in layer.params.values() if id(a) not in seen]
    seen.update(id(a) for a in own)
    count = sum(a.size for a in own)
    known = layer.output_shape is not None
    flops = layer.flops() if known else None
    if flops is not None:
        flops -= sum(child.flops() for child in layer.children().values())
    return Row(
        path=path,
        layer=name_of(layer),
        output=layer.output_shape,
        trainable=count if layer.trainable else 0,
        frozen=0 if layer.trainable else count,
        size=layer.dtype.itemsize * (count + sum(a.size for a in layer.state.values())),
        flops=flops,
        reads=reads,
        gives=gives,
    )
