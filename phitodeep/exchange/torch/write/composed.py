"""The modules of layers that hold other layers, and of those that depend on the layout of X.

Each function takes the writer (see `writing.py`), the layer, its path and the layout of X, and
returns the module and the layout of its output. Of several inputs or outputs, that is a tuple.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phitodeep import layers as L
from phitodeep.core.types import each, one
from phitodeep.exchange.torch.layouts import FIRST, LAST, Layout, outer
from phitodeep.layers.base import Layer

Made = tuple[Any, Any]  # a layout, or a tuple of them


def chain(writer: Any, layer: L.Chain, path: str, layout: Layout) -> Made:
    """Chain, Residual and SkipConcat."""
    names = [_below(path, f"layers.{i}") for i in range(len(layer.layers))]
    end = None if layer._ends_with_last else layout
    inside, returns = writer.chain(layer.layers, names, layout, end)
    if isinstance(layer, L.SkipConcat):
        return writer.own.SkipConcat(layers=inside, dim=_channel(layer, layout)), returns
    kind = writer.own.Residual if isinstance(layer, L.Residual) else writer.own.Chain
    return kind(layers=inside), returns


def parallel(writer: Any, layer: L.Parallel, path: str, layout: Layout) -> Made:
    branches, returns = [], None
    for i, branch in enumerate(layer.branches):
        name = _below(path, f"branches.{i}")
        module, returns = writer.alone(branch, name, layout, returns)
        branches.append(module)
    assert returns is not None
    settings = {"merge": layer.merge, "dim": _channel(layer, returns)}
    return writer.own.Parallel(branches=writer.nn.ModuleList(branches), **settings), returns


def time_distributed(writer: Any, layer: Any, path: str, layout: Layout) -> Made:
    inner, below, ends = layer.layer, _below(path, "layer"), (LAST,) * layer.outputs
    if layer.inputs == layer.outputs == 1:
        return writer.own.TimeDistributed(layer=writer.alone(inner, below, LAST, LAST)[0]), LAST
    takes, returns = (
        tuple([f"{a}{k}" for k in range(len(some))])
        for a, some in (("X", each(layout)), ("Y", ends))
    )
    inside = _between(writer, takes, [(inner, below, takes, returns)], returns, each(layout), ends)
    return writer.own.TimeDistributed(layer=inside), one(ends, layer.outputs == 1)


def bidirectional(writer: Any, layer: Any, path: str, layout: Layout) -> Made:
    parts = {
        name: writer.alone(part, _below(path, name), LAST, LAST)[0]
        for name, part in layer.children().items()
    }
    return writer.own.Bidirectional(**parts, merge=layer.merge), LAST


def wired(writer: Any, layer: L.Wired, path: str, layout: Any) -> Made:
    uses = [
        (part, _below(path, f"layers.{k}"), reads, gives)
        for k, (part, reads, gives) in enumerate(layer.uses)
    ]
    ends = [outer(shape) for shape in layer._outs()]
    module = _between(writer, layer.takes, uses, layer.returns, each(layout), ends)
    module.named = None if path else layer.returns
    made = writer.own.Chain(layers=module) if path else module
    return made, one(ends, layer.outputs == 1)


def _between(
    writer: Any,
    takes: Any,
    uses: Any,
    returns: Any,
    start: Sequence[Layout],
    ends: Sequence[Layout],
) -> Any:
    """Return the module of layers between values, each with its path and what it reads and gives.

    There is a value for each layout in which a module takes it: "maps" and "maps.last".
    """
    layouts = dict(zip(takes, start, strict=True))
    module = writer.own.Wired(takes=takes, returns=(), uses=[], named=None)

    def add(name: str, part: Any, reads: Any, gives: Any) -> None:
        module.add_module(name, part)
        module.uses.append((name, tuple(reads), tuple(gives)))

    def moved(name: str, wanted: Layout) -> str:
        other = name if layouts[name] == wanted else f"{name}.{wanted}"
        if other not in layouts:
            layouts[other] = wanted
            add(other.replace(".", "_"), writer.moving(wanted), [name], [other])
        return other

    for k, (part, path, reads, gives) in enumerate(uses):
        wanted = writer.wanted(part, one([layouts[name] for name in reads], part.inputs == 1))
        reads = tuple(map(moved, reads, each(wanted)))
        made, given = writer.place(part, path, wanted)
        add(f"{k}", made, reads, gives)
        layouts.update(zip(gives, each(given), strict=True))
    module.returns = tuple(map(moved, returns, ends))
    return module


def merge(how: str, writer: Any, layer: Layer, path: str, layout: Any) -> Made:
    axis = layer._along() if isinstance(layer, L.Concat) else len(layer.output_shape or ())
    returns = each(layout)[0]
    return writer.own.Merge(how=how, dim=_axis(axis, layer, returns)), returns


def softmax(writer: Any, layer: Any, path: str, layout: Layout) -> Made:
    axis = layer.axis % (len(layer.input_shape or ()) + 1)
    return getattr(writer.nn, type(layer).__name__)(_axis(axis, layer, layout)), layout


def global_pool(writer: Any, layer: Layer, path: str, layout: Layout) -> Made:
    return getattr(writer.own, type(layer).__name__)(dim=1 if layout == FIRST else -1), LAST


def tied_dense(writer: Any, layer: L.TiedDense, path: str, layout: Layout) -> Made:
    vocab_size, dim = layer.embedding.W.shape
    module = writer.nn.Linear(dim, vocab_size, bias=False)
    writer.tied.append((layer, module))
    return module, LAST


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name.removeprefix("layers.")


def _axis(ours: int, layer: Layer, layout: Layout) -> int:
    """Return the axis in this layout of an axis of a layer's Y (N, ...)."""
    if layout != FIRST:
        return ours
    return 1 if ours == len(layer.output_shape or ()) else ours + 1


def _channel(layer: Layer, layout: Layout) -> int:
    """Return the axis of the channels in the output of a layer."""
    return 1 if layout == FIRST and len(layer.output_shape or ()) > 1 else -1
