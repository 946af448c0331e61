"""The modules of layers that hold other layers, and of those that depend on the layout of X.

Each function takes the writer (see `writing.py`), the layer, its path and the layout of X, and
returns the module and the layout of its output. Of several inputs or outputs, that is a tuple.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phitodeep import layers as L
from phitodeep.core.types import each
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
    inside, _ = writer.alone(layer.layer, _below(path, "layer"), LAST, LAST)
    return writer.own.TimeDistributed(layer=inside), LAST


def bidirectional(writer: Any, layer: Any, path: str, layout: Layout) -> Made:
    parts = {
        name: writer.alone(part, _below(path, name), LAST, LAST)[0]
        for name, part in layer.children().items()
    }
    return writer.own.Bidirectional(**parts, merge=layer.merge), LAST


def wired(writer: Any, layer: L.Wired, path: str, layout: Any) -> Made:
    """Between values, one for each layout in which a module takes it: "maps" and "maps.last"."""
    layouts = dict(zip(layer.takes, each(layout), strict=True))
    named = None if path else layer.returns
    module = writer.own.Wired(takes=layer.takes, returns=(), uses=[], named=named)

    def add(name: str, part: Any, reads: Any, gives: Any) -> None:
        module.add_module(name, part)
        module.uses.append((name, tuple(reads), tuple(gives)))

    def moved(name: str, wanted: Layout) -> str:
        other = name if layouts[name] == wanted else f"{name}.{wanted}"
        if other not in layouts:
            layouts[other] = wanted
            add(other.replace(".", "_"), writer.moving(wanted), [name], [other])
        return other

    for k, (part, reads, gives) in enumerate(layer.uses):
        wanted = writer.wanted(part, _one([layouts[name] for name in reads]))
        reads = tuple(map(moved, reads, each(wanted)))
        made, returns = writer.place(part, _below(path, f"layers.{k}"), wanted)
        add(f"{k}", made, reads, gives)
        layouts.update(zip(gives, each(returns), strict=True))
    ends = [outer(shape) for shape in layer._outs()]
    module.returns = tuple(map(moved, layer.returns, ends))
    return (writer.own.Chain(layers=module) if path else module), _one(ends)


def merge(how: str, writer: Any, layer: Layer, path: str, layout: Any) -> Made:
    axis = layer._along() if isinstance(layer, L.Concat) else len(layer.output_shape or ())
    returns = each(layout)[0]
    return writer.own.Merge(how=how, dim=_axis(axis, layer, returns)), returns


def _one(layouts: Sequence[Layout]) -> Any:
    return layouts[0] if len(layouts) == 1 else tuple(layouts)


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
