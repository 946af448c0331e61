"""What a picture shows of each layer: which layers, which of their arrays, and their names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from phitodeep.inspect.explorer.picture_ring import Ring

MOST = 6  # layers that are shown


class Slot(NamedTuple):
    """A layer of the picture, or a gap for layers that are left out (no path)."""

    path: str
    layer: Any = None
    hidden: int = 0


def slots(trace: Any, ring: Ring | None) -> list[Slot]:
    """The layers of the chain that fit: the first, the last, and those around the ringed one."""
    layers = [
        Slot(str(k), layer)
        for k, layer in enumerate(trace._recording.model.layers)
        if str(k) in trace._passes
    ]
    if len(layers) <= MOST:
        return layers
    paths = [slot.path for slot in layers]
    at = paths.index(ring.path.split(".")[0]) if ring else len(layers) // 2
    at = min(max(at, 2), len(layers) - 3)
    shown = sorted({0, at - 1, at, at + 1, len(layers) - 1})
    found: list[Slot] = []
    for before, k in zip([-1, *shown], shown, strict=False):
        if k - before > 1:
            found.append(Slot("", hidden=k - before - 1))
        found.append(layers[k])
    return found


def arrays(trace: Any, shown: list[Slot]) -> Iterator[tuple[str, Any, str, Any]]:
    """Yield the key and value of each array, and the key and value of its gradient."""
    passes = trace._passes
    first = passes[shown[0].path]
    yield "X", first.X, f"{shown[0].path}.dX", first.dX
    for k, slot in enumerate(shown):
        if not slot.path:  # what the next layer receives
            after = passes[shown[k + 1].path]
            yield f"{shown[k + 1].path}.X", after.X, f"{shown[k + 1].path}.dX", after.dX
        else:
            own = passes[slot.path]
            yield f"{slot.path}.Y", own.Y, f"{slot.path}.dY", own.dY


def pair(trace: Any, slot: Slot, ring: Ring | None) -> tuple[str, str, Any, Any, bool] | None:
    """What is shown of a layer: path, symbol, value and gradient; if attention."""
    if ring and (ring.path + ".").startswith(slot.path + "."):
        path, name = ring.path, ring.name
        layer = trace._passes[path].layer
        owner, own = layer.tied.get(name, (layer, name))
        return path, name, owner.params[own], trace._passes[path].grads[name], False
    inside = [p for p in trace._passes if p == slot.path or p.startswith(slot.path + ".")]
    for path in inside:
        if f"{path}.forward.P" in trace and f"{path}.backward.dP" in trace:
            P = trace[f"{path}.forward.P"].array
            if np.ndim(P) == 4:
                return path, "P", P, trace[f"{path}.backward.dP"].array, True
    for least in (2, 1):
        for path in inside:
            passes = trace._passes[path]
            for name, grad in passes.grads.items():
                owner, own = passes.layer.tied.get(name, (passes.layer, name))
                if grad.ndim >= least:
                    return path, name, owner.params[own], grad, False
    return None


def called(slot: Slot) -> str:
    whole = repr(slot.layer)
    return f"{slot.path} {whole if len(whole) <= 30 else type(slot.layer).__name__}"
