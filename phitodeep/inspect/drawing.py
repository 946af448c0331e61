"""A small net as a drawing in plain text, with its values and gradients: `Trace.draw`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
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
MARKS = {"down": "↓", "up": "↑", "top": "┌─", "side": "│ ", "bottom": "└─", "line": "─"}
ASCII = {"down": "v", "up": "^", "top": "+-", "side": "| ", "bottom": "+-", "line": "-"}
Block = tuple[list[str], list[str]]  # lines of both columns; a rule across has one of them


def draw(recording: Recording, sample: int, ascii_only: bool | None) -> Text:
    """Draw the step of one sample, given its share: see `Trace.draw`."""
    model = recording.model
    if len(model.layers) > MOST_LAYERS:
        raise ArgumentError(
            f"draw writes every number of a small net, of at most {MOST_LAYERS} layers, got "
            f"{len(model.layers)}: print(t) shows one line per layer."
        )
    if ascii_only is None:
        ascii_only = not _can_write("".join(MARKS.values()))
    marks = ASCII if ascii_only else MARKS
    blocks = list(_blocks(recording, sample, marks))
    left = max(len(line) for block, _ in blocks for line in block) + 3
    lines = [line for block in blocks for line in _joined(*block, left)]
    width = max(map(len, lines))
    title = f"loss {recording.value:.6g}: the share of sample {sample} of {recording.data.n}"
    return Text("\n".join([title, *(_ruled(line, width, marks) for line in lines)]))


def _joined(values: list[str], gradients: list[str], left: int) -> Iterator[str]:
    """Lines in two columns: values on the left, gradients on the right."""
    for text, more in itertools.zip_longest(values, gradients):
        yield f"{values[0][:2] if text is None else text:{left}}{more or ''}".rstrip()


def _block(margin: str, name: str, values: Any, back: str, gradients: Any) -> Block:
    """An array and its gradient, each after its name."""
    right = [] if gradients is None else _beside(back, _written(gradients), "")
    return _beside(margin + name, _written(values), margin), right


def _blocks(recording: Recording, sample: int, marks: dict[str, str]) -> Iterator[Block]:
    down, up, side = marks["down"], marks["up"], marks["side"]
    model, passes = recording.model, recording.passes
    chain = [*[((), ("Y",))] * (len(model.layers) - 1), ((), ("P",))]
    wires = model.wires if isinstance(model, Wired) else chain

    def values(names: tuple[str, ...], arrays: Any, gradients: Any) -> Iterator[Block]:
        """What a pass receives or returns, by name."""
        every = each(gradients) if gradients is not None else (None,) * len(names)
        for name, A, dA in zip(names, each(arrays), every, strict=True):
            own = None if dA is None else dA[sample]
            yield _block("  ", f"{down} {name}  ", A[sample], f"{up} d{name}  ", own)

    yield from values(model.takes, passes[""].X, passes[""].dX)
    for i, (layer, (reads, gives)) in enumerate(zip(model.layers, wires, strict=False)):
        here, of = passes[str(i)], f"of {', '.join(reads)} " * bool(reads)
        yield [f"{marks['top']} {i} {name_of(layer)} {of}"], []
        for path, part in layer.walk(str(i)):
            inner = path.removeprefix(str(i)).removeprefix(".")
            for name, W in part.params.items():
                shown, back = (f"{inner}.{n}".removeprefix(".") for n in (name, f"d{name}"))
                dW = passes[path].grads.get(name) if path in passes else None
                yield _block(side, f"{shown}  ", W, f"{back}  ", dW)
        yield [marks["bottom"]], []
        yield from values(gives, here.Y, here.dY)
    yield _block("  ", f"{name_of(recording.loss)}  ", np.float64(recording.value), "", None)


def _written(A: Any) -> list[str]:
    """An array as lines of aligned numbers, or its shape and size if it is large."""
    A = np.asarray(A)
    rows = A.reshape(-1, A.shape[-1]) if A.ndim else A.reshape(1, 1)
    if rows.shape[1] > COLUMNS or rows.shape[0] > ROWS:
        return [f"{A.shape}, root mean square {rms(A):.3g}"]
    return [" ".join(f"{x:9.3g}" for x in row.tolist()) for row in rows]


def _beside(name: str, lines: list[str], margin: str) -> list[str]:
    return [(name if i == 0 else margin.ljust(len(name))) + line for i, line in enumerate(lines)]


def _ruled(line: str, width: int, marks: dict[str, str]) -> str:
    """Draw the head or the foot of a layer up to the right edge."""
    if not line.startswith((marks["top"], marks["bottom"])):
        return line
    joint = " " if line.startswith(marks["top"]) and len(line) > 2 else ""
    return (line + joint).ljust(width, marks["line"])


def _can_write(text: str) -> bool:
    """Whether standard output can encode the text."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding) == text
