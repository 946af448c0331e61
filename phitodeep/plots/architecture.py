"""The layers of a model as a drawing in SVG.

How the layers in a container are connected is read from the container's derivation, so containers
of your own are drawn correctly if they have `steps()`. Layers stand in rows and columns, as their
values connect them: see `plots/graph.py`.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

from phitodeep.core.types import PathLike, Shape
from phitodeep.derivations.language import run
from phitodeep.derivations.language.step import Arrange, Join, Step, Through
from phitodeep.errors import NotBuiltError
from phitodeep.inspect.summary import Row, summarize
from phitodeep.inspect.trace import kind_of
from phitodeep.layers.base import Layer
from phitodeep.layers.wiring import Wired
from phitodeep.plots.canvas import POSITIVE, check_model
from phitodeep.plots.graph import graph, stack
from phitodeep.plots.svg import Block, Drawing, box, drawing, frame, pill

WHO = "plots.architecture"
REPEATED = 3  # how often layers must be repeated to be drawn only once
LONGEST = 4  # layers in a part that is repeated


def architecture(model: Layer, *, path: PathLike | None = None) -> Drawing:
    """Draw a model: its layers with their paths, output shapes and numbers of parameters.

        plots.architecture(model, path="model.svg")

    Notebooks show the drawing; it is the text of an SVG, so no library is needed. Saved to `path`
    if given. Layers with
    parameters are blue, and have a dashed border if they are frozen. Skip connections are orange.
    Layers that are repeated three times or more are drawn once. Shapes that depend on an input
    shape not yet known are shown as "?". A container without `steps()` is a frame whose layers are
    not connected, because only its code says how they are.
    """
    check_model(model, WHO)
    summary = summarize(model)
    with contextlib.suppress(NotBuiltError):
        model = model if model.output_shape is not None else model._measured()
    rows = {row.path: row for row in summary.rows}
    whole = _inside(model, "", rows) if model.children() else _leaf(model, "", rows)
    if not isinstance(model, Wired):  # which has them inside
        first, last = _pills(["input"], model._ins()), _pills(["output"], model._outs())
        whole = stack([*first, whole, *last])
    known = model.output_shape is not None
    count = f"{_count(rows.values()):,} parameters" if known else "not built yet"
    title = f"{type(model).__name__}: {count}"
    drawn = drawing(frame(whole._replace(through=False), title), title)
    if path is not None:
        drawn.save(path)
    return drawn


# --- how layers are connected ------------------------------------------------------------------


def wiring_of(layer: Layer) -> tuple[list[str], list[list[int]], list[int]] | None:
    """How the layers in a container are connected; None if its derivation does not say it.

    Returns its parts, which are the symbols that it receives, keys of layers, and signs; the
    numbers of the parts that each part reads, which come before it; and those that it returns.
    """
    if not run.has_steps(layer):
        return None
    parts = run.symbols_of(layer, "X")
    reads: list[list[int]] = [[] for _ in parts]
    at = {name: k for k, name in enumerate(parts)}  # the part that each symbol comes from
    for step in run.derivation_of(layer).forward:
        operands = (step.of,) if isinstance(step, Arrange) else step.operands
        read = list(dict.fromkeys(at[name] for name in operands if name in at))
        if isinstance(step, Through) and not at.keys() >= {*operands}:
            return None  # it is computed in a loop
        if step.runs if isinstance(step, Through) else len(read) > 1:
            parts.append(_name(step))
            reads.append(read)
            read = [len(parts) - 1]
        if read:
            at[step.symbol] = len(parts) - 1 if isinstance(step, Through) else read[0]
    ends = [at[name] for name in run.symbols_of(layer, "Y") if name in at]
    known = {*layer.children()} <= {*parts} and len(ends) == layer.outputs
    return (parts, reads, ends) if known else None


def _name(step: Step) -> str:
    """The key of the layer that a step goes through, or the sign of how it joins values."""
    if isinstance(step, Through):
        return step.child
    if isinstance(step, Join):
        return "concat"
    return "+" if " + " in step.code else "*" if " * " in step.code else step.symbol


# --- how they are drawn ------------------------------------------------------------------------


def _pills(names: Sequence[str], shapes: Sequence[Shape | None]) -> list[Block]:
    return [pill(f"{name} {_written(s)}") for name, s in itertools.zip_longest(names, shapes)]


def _inside(layer: Layer, path: str, rows: dict[str, Row]) -> Block:
    """The layers in a container; in a network, with its inputs and outputs."""
    children, wiring = layer.children(), wiring_of(layer)
    if wiring is None:
        blocks = [_part(key, layer, path, rows) for key in children]
        return graph(blocks, [[] for _ in blocks], range(len(blocks)))._replace(through=False)
    parts, reads, ends = wiring
    readers = Counter([*itertools.chain(*reads), *ends])
    if isinstance(layer, Wired):
        blocks = _pills(layer.takes, layer._ins())
    else:  # where the line from above divides
        blocks = [Block(0, 0, 0, arrow=False)] * (readers[0] > 1)
    number = {k: k for k in range(len(blocks))}  # of the block of each part
    alike = [
        _looks(children[part]) if (reads[k], readers[k]) == ([k - 1], 1) else k
        for k, part in enumerate(parts)
    ]
    wires: list[list[int]] = [[] for _ in blocks]
    k = layer.inputs
    while k < len(parts):
        size, times = _repetition(alike[k:])
        last = k + size * times - 1
        found = [_part(part, layer, path, rows) for part in parts[k : k + size]]
        if times > 1:
            first, to = (run.path_inside(path, parts[i]) for i in (k, last))
            words = f"layers {first} to {to}: {times} times the same, drawn once"
            found = [frame(stack(found), words)]
        wires.append([number[s] for s in reads[k] if s in number])
        number[last] = len(blocks)
        blocks += found
        k = last + 1
    if not isinstance(layer, Wired):
        return graph(blocks, wires)
    wires += [[number[end]] for end in ends]
    return graph([*blocks, *_pills(layer.returns, layer._outs())], wires)._replace(through=False)


def _repetition(alike: Sequence[object]) -> tuple[int, int]:
    """How many parts at the start are repeated, and how often; (1, 1) if too rarely."""
    best = (1, 1)
    for size in range(1, LONGEST + 1):
        times = 1
        while alike[size * times : size * (times + 1)] == alike[:size]:
            times += 1
        if times >= REPEATED and size * times > best[0] * best[1]:
            best = (size, times)
    return best


def _looks(layer: Layer) -> object:
    """What two layers that are drawn once have in common."""
    inside = [(repr(part), part.trainable) for _, part in layer.walk()]
    return inside, layer.input_shape, layer.output_shape


def _part(part: str, layer: Layer, path: str, rows: dict[str, Row]) -> Block:
    """A layer in a container, or the sign of how values meet."""
    if part not in layer.children():
        return pill(part, POSITIVE)
    child, inner = layer.children()[part], run.path_inside(path, part)
    if not child.children():
        return _leaf(child, inner, rows)
    below = (row for p, row in rows.items() if f"{p}.".startswith(f"{inner}."))
    title = f"{inner}  {kind_of(child)}, {_count(below):,} parameters"
    return frame(_inside(child, inner, rows), title)


def _leaf(layer: Layer, path: str, rows: dict[str, Row]) -> Block:
    row = rows[path]
    count = _count([row])
    below = _written(row.output) + (f"  {count:,} parameters" if count else "")
    return box(
        kind_of(layer), below + ", frozen" * (row.frozen > 0), path, repr(layer), filled=count > 0,
        dashed=row.frozen > 0,
    )  # fmt: skip


def _count(rows: Iterable[Row]) -> int:
    return sum(row.trainable + row.frozen for row in rows)


def _written(shape: Shape | None) -> str:
    return "?" if shape is None else str(tuple(shape))
