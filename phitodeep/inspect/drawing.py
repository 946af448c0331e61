"""A small net as a drawing in plain text, with its values and gradients: `Trace.draw`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import numpy as np

from phitodeep.core.types import each
from phitodeep.errors import ArgumentError
from phitodeep.inspect.entries import Text, rms
from phitodeep.inspect.recording import Recording
from phitodeep.inspect.summary import name_of
from phitodeep.layers.wiring import Wired

MOST_LAYERS = 24
COLUMNS, ROWS = 8, 8  # an array with more of them is described instead of written
MARKS, ASCII = "↓↑┌│└─", "v^+|+-"
Row = tuple[str, str | None]  # the texts of both columns; a rule across has one of them


def draw(recording: Recording, sample: int, ascii_only: bool | None) -> Text:
    """Draw the step of one sample, given its share: see `Trace.draw`."""
    model = recording.model
    if len(model.layers) > MOST_LAYERS:
        raise ArgumentError(
            f"draw writes every number of a small net, of at most {MOST_LAYERS} layers, got "
            f"{len(model.layers)}: print(t) shows one line per layer."
        )
    if ascii_only is None:  # whether standard output cannot encode the marks
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        ascii_only = MARKS.encode(encoding, "replace").decode(encoding) != MARKS
    rows = list(_rows(recording, sample))
    left = max(len(text) for text, _ in rows) + 3
    lines = [f"{text:{left}}{more or ''}".rstrip() for text, more in rows]
    width = max(map(len, lines))
    lines = [
        text.ljust(width, "─") if more is None else line
        for (text, more), line in zip(rows, lines, strict=True)
    ]
    title = f"loss {recording.value:.6g}: the share of sample {sample} of {recording.data.n}"
    whole = "\n".join([title, *lines])
    return Text(whole.translate(str.maketrans(MARKS, ASCII)) if ascii_only else whole)


def _rows(recording: Recording, sample: int) -> Iterator[Row]:
    model, passes = recording.model, recording.passes
    chain = [*[((), ("Y",))] * (len(model.layers) - 1), ((), ("P",))]
    wires = model.wires if isinstance(model, Wired) else chain

    def values(names: tuple[str, ...], arrays: Any, gradients: Any) -> Iterator[Row]:
        """What a pass receives or returns, by name."""
        for name, A, dA in zip_longest(names, each(arrays), each(gradients)):
            own = None if dA is None else dA[sample]
            yield from _beside("  ", f"↓ {name}", A[sample], f"↑ d{name}", own)

    yield from values(model.takes, passes[""].X, passes[""].dX)
    for i, (layer, (reads, gives)) in enumerate(zip(model.layers, wires, strict=False)):
        here, of = passes[str(i)], f"of {', '.join(reads)} " * bool(reads)
        yield f"┌─ {i} {name_of(layer)} {of}", None
        for path, part in layer.walk(str(i)):
            inner = path.removeprefix(str(i)).removeprefix(".")
            for name, W in part.params.items():
                shown, back = (f"{inner}.{n}".removeprefix(".") for n in (name, f"d{name}"))
                dW = passes[path].grads.get(name) if path in passes else None
                yield from _beside("│ ", shown, W, back, dW)
        yield "└─", None
        yield from values(gives, here.Y, here.dY)
    yield from _beside("  ", name_of(recording.loss), recording.value, "", None)


def _beside(margin: str, name: str, A: Any, back: str, dA: Any) -> Iterator[Row]:
    """An array and its gradient next to each other, each after its name."""
    both = _written(f"{margin}{name}  ", A, margin), _written(f"{back}  ", dA)
    for text, more in zip_longest(*both):
        yield margin if text is None else text, more or ""


def _written(name: str, A: Any, margin: str = "") -> list[str]:
    """An array as lines of aligned numbers, or its shape and size if it is large."""
    if A is None:
        return []
    A = np.asarray(A)
    rows = A.reshape(-1, A.shape[-1]) if A.ndim else A.reshape(1, 1)
    lines = [" ".join(f"{x:9.3g}" for x in row.tolist()) for row in rows[:ROWS]]
    if rows.shape[1] > COLUMNS or rows.shape[0] > ROWS:
        lines = [f"{A.shape}, root mean square {rms(A):.3g}"]
    return [(margin.ljust(len(name)) if k else name) + line for k, line in enumerate(lines)]
