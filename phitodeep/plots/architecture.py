"""The layers of a model as a drawing in SVG.

How the layers in a container are connected is read from the container's derivation, so containers
of your own are drawn correctly if they have `steps()`. Those of a network stand in rows and
columns, as its values connect them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from phitodeep.core.types import Shape
from phitodeep.derivations.language import run
from phitodeep.derivations.language.step import Arrange, Join, Step, Through
from phitodeep.errors import NotBuiltError
from phitodeep.inspect.summary import Row, summarize
from phitodeep.inspect.trace import kind_of
from phitodeep.layers.base import Layer
from phitodeep.layers.wiring import Wired
from phitodeep.plots.canvas import check_model
from phitodeep.plots.graph import graph
from phitodeep.plots.svg import Block, Drawing, box, drawing, frame, merged, pill, stack

WHO = "plots.architecture"
REPEATED = 3  # how often layers must be repeated to be drawn only once
LONGEST = 4  # layers in a part that is repeated


class Merge(NamedTuple):
    """Branches, each a series of keys of layers or of merges, and how they are combined."""

    sign: str
    branches: tuple[Series, ...]


Series = tuple["str | Merge", ...]


def architecture(model: Layer) -> Drawing:
    """Draw a model: its layers with their paths, output shapes and numbers of parameters.

        drawing = plots.architecture(model)
        drawing.save("model.svg")

    Notebooks show the drawing; it is the text of an SVG, so no library is needed. Layers with
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
        ends = zip(("input", "output"), (model.input_shape, model.output_shape), strict=True)
        first, last = (pill(f"{name} {_written(shape)}") for name, shape in ends)
        whole = stack([first, whole, last])
    known = model.output_shape is not None
    count = f"{_count(rows.values()):,} parameters" if known else "not built yet"
    title = f"{type(model).__name__}: {count}"
    return drawing(frame(whole, title, through=False), title)


# --- how layers are connected ------------------------------------------------------------------


def series_of(layer: Layer) -> Series | None:
    """How the layers in a container are connected; None if its derivation does not say it."""
    if not run.has_steps(layer):
        return None
    paths: dict[str, Series] = {"X": ()}  # what lies between X and each symbol
    for step in run.derivation_of(layer).forward:
        if isinstance(step, Through):
            if step.of not in paths:  # it is computed in a loop
                return None
            paths[step.symbol] = (*paths[step.of], step.child)
            continue
        operands = (step.of,) if isinstance(step, Arrange) else step.operands
        read = [paths[name] for name in operands if name in paths]
        if len(read) == 1:
            paths[step.symbol] = read[0]
        elif read:
            paths[step.symbol] = _joined(read, _sign(step))
    whole = paths.get("Y", ())
    return whole if set(_keys(whole)) == set(layer.children()) else None


def _joined(branches: Sequence[Series], sign: str) -> Series:
    """Branches that meet, after the part that they have in common."""
    common = 0
    while all(len(b) > common and b[common] == branches[0][common] for b in branches):
        common += 1
    return (*branches[0][:common], Merge(sign, tuple(b[common:] for b in branches)))


def _sign(step: Step) -> str:
    if isinstance(step, Join):
        return "concat"
    return "+" if " + " in step.code else "*" if " * " in step.code else step.symbol


def _keys(series: Series) -> Iterator[str]:
    for part in series:
        if isinstance(part, Merge):
            for branch in part.branches:
                yield from _keys(branch)
        else:
            yield part


# --- how they are drawn ------------------------------------------------------------------------


def _inside(layer: Layer, path: str, rows: dict[str, Row]) -> Block:
    """The layers in a container."""
    if isinstance(layer, Wired):
        return _network(layer, path, rows)
    series, keys = series_of(layer), tuple(layer.children())
    known = series is not None
    return stack(_blocks(layer, path, keys if series is None else series, rows), arrows=known)


def _network(layer: Wired, path: str, rows: dict[str, Row]) -> Block:
    """The layers of a network, with its inputs and outputs."""

    def ends(names: Sequence[str], shape: Any) -> list[Block]:
        shapes = [shape] * len(names) if shape is None or len(names) == 1 else shape
        return [pill(f"{n} {_written(s)}") for n, s in zip(names, shapes, strict=True)]

    numbers = {name: k for k, name in enumerate(layer.takes)}
    blocks, reads = ends(layer.takes, layer.input_shape), [list[int]() for _ in layer.takes]
    for k, (names, gives) in enumerate(layer.wires):
        reads.append([numbers[name] for name in names])
        numbers |= dict.fromkeys(gives, len(blocks))
        blocks.append(_part(layer, path, f"layers.{k}", rows))
    blocks += ends(layer.returns, layer.output_shape)
    return graph(blocks, [*reads, *([numbers[name]] for name in layer.returns)])


def _blocks(layer: Layer, path: str, series: Series, rows: dict[str, Row]) -> list[Block]:
    children, found, i = layer.children(), list[Block](), 0
    alike = [p if isinstance(p, Merge) else _looks(children[p]) for p in series]
    while i < len(series):
        size, times = _repetition(alike[i:])
        parts = [_part(layer, path, part, rows) for part in series[i : i + size]]
        if times > 1:
            last = series[i + size * times - 1]
            first, last = (run.path_inside(path, str(key)) for key in (series[i], last))
            parts = [
                frame(stack(parts), f"layers {first} to {last}: {times} times the same, drawn once")
            ]
        found += parts
        i += size * times
    return found


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


def _part(layer: Layer, path: str, part: str | Merge, rows: dict[str, Row]) -> Block:
    if isinstance(part, Merge):
        branches = [stack(_blocks(layer, path, branch, rows)) for branch in part.branches]
        return merged(branches, part.sign)
    child, inner = layer.children()[part], run.path_inside(path, part)
    if not child.children():
        return _leaf(child, inner, rows)
    below = (row for p, row in rows.items() if f"{p}.".startswith(f"{inner}."))
    title = f"{inner}  {kind_of(child)}, {_count(below):,} parameters"
    through = not isinstance(child, Wired) and series_of(child) is not None
    return frame(_inside(child, inner, rows), title, through=through)


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
