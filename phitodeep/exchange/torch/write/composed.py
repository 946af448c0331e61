"""The modules of layers that hold other layers, and of those that depend on the layout of X.

Each function takes the writer (see `writing.py`), the layer, its path and the layout of X, and
returns the module and the layout of its output.
"""

from __future__ import annotations

from typing import Any

from phitodeep import layers as L
from phitodeep.exchange.torch.layouts import FIRST, LAST, Layout
from phitodeep.layers.base import Layer

Made = tuple[Any, Layout]


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


def softmax(writer: Any, layer: Any, path: str, layout: Layout) -> Made:
    axes = len(layer.input_shape or ())
    axis = layer.axis % (axes + 1)
    if layout == FIRST:
        axis = 1 if axis == axes else axis + 1
    return getattr(writer.nn, type(layer).__name__)(axis), layout


def global_pool(writer: Any, layer: Layer, path: str, layout: Layout) -> Made:
    return getattr(writer.own, type(layer).__name__)(dim=1 if layout == FIRST else -1), LAST


def tied_dense(writer: Any, layer: L.TiedDense, path: str, layout: Layout) -> Made:
    vocab_size, dim = layer.embedding.W.shape
    module = writer.nn.Linear(dim, vocab_size, bias=False)
    writer.tied.append((layer, module))
    return module, LAST


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name.removeprefix("layers.")


def _channel(layer: Layer, layout: Layout) -> int:
    """Return the axis of the channels in the output of a layer."""
    return 1 if layout == FIRST and len(layer.output_shape or ()) > 1 else -1
