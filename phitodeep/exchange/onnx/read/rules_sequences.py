"""How recurrent layers and encodings of positions are recognised."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from phitodeep.core.types import Array
from phitodeep.exchange.onnx.read.axes import leaves, size_of
from phitodeep.exchange.onnx.read.placing import Placed, Plan, Writer
from phitodeep.exchange.onnx.read.values import Constant, Step, View
from phitodeep.functional import position_angles
from phitodeep.layers import (
    GRU,
    LSTM,
    RNN,
    Bidirectional,
    Layer,
    PositionalEmbedding,
    SinusoidalEncoding,
)

# --- recurrent layers -----------------------------------------------------------------------------

CELLS: dict[str, tuple[type[Any], list[int]]] = {  # and the gates of the operator in our order
    "RNN": (RNN, [0]),
    "LSTM": (LSTM, [0, 2, 3, 1]),
    "GRU": (GRU, [1, 0, 2]),
}


def recurrent(step: Step) -> Plan:
    return _recurrent(step, step.settings["last"])


def last_state(step: Step) -> Plan | None:
    """The last of all states that a recurrent layer returns."""
    x = step.view()
    if x.step.op not in CELLS or x.step.settings["last"] or x.step.settings["both"]:
        return None
    steps = x.step.groups[0]
    along = x.groups[step.settings["axis"]]
    ends = [[n - 1] for n in size_of(steps)]
    if leaves(along) != leaves(steps) or step.settings["places"] != ends:
        return None
    return _recurrent(x.step, last=True)


def sum_of_directions(step: Step) -> Plan | None:
    x = step.view()
    if x.step.op not in CELLS or not x.step.settings["both"]:
        return None
    if leaves(step.settings["reduced"]) != leaves(x.step.settings["both"]):
        return None
    return _recurrent(x.step, x.step.settings["last"], merge="add")


def _recurrent(step: Step, last: bool, merge: str = "concat") -> Plan:
    x, s = step.view(), step.settings
    kind, gates = CELLS[step.op]
    cells = [_cell(step, i, gates) for i in range(len(s["W"]))]

    def write(w: Writer, placed: list[Placed]) -> Placed:
        if leaves(x.groups[1])[:1] != (w.batch,):
            w.vote(placed[0], x, (1, 0, 2))
        lead = w.lead(x.groups[1])
        first = ((w.batch,), *((axis,) for axis in lead))
        p = w.arranged(placed[0], (*first, x.groups[0], x.groups[2]))
        layer = kind(s["R"].shape[2], return_sequences=not last)
        w.weights.append((layer, cells[0]))
        if len(cells) > 1:
            layer = Bidirectional(layer, merge)
            w.weights.append((layer.reverse, cells[1]))
        both = s["both"] if merge == "concat" else ()
        steps = () if last else (x.groups[0],)
        return w.layer_in(lead, layer, p, (*first, *steps, (*both, *s["units"])))

    return Plan((x,), write)


def _cell(step: Step, i: int, gates: list[int]) -> dict[str, Array]:
    """Return our weights of one direction."""
    g = len(gates)

    def ours(A: Array) -> Array:
        parts = np.split(A, g)
        return np.concatenate([parts[k] for k in gates]).T

    bias, recurrent_bias = np.split(step.settings["B"][i], 2)
    weights = {"Wx": ours(step.settings["W"][i]), "Wh": ours(step.settings["R"][i])}
    if step.op == "GRU":
        return {**weights, "b": ours(bias), "bh": ours(recurrent_bias)}
    return {**weights, "b": ours(bias + recurrent_bias)}


# --- encodings of positions -----------------------------------------------------------------------


def position(step: Step) -> Plan | None:
    """Add a vector for each step: a table, or sines and cosines."""
    for i in (0, 1):
        x, c = step.inputs[i], step.inputs[1 - i]
        if isinstance(x, View) and isinstance(c, Constant):
            return _position(step, x, c)
    return None


def _position(step: Step, x: View, c: Constant) -> Plan | None:
    if len(x.groups) != 3:
        return None
    _, T, D = x.groups
    tables = []
    for a, steps, features in zip(c.each(), size_of(T), size_of(D), strict=True):
        a = a.reshape(a.shape[-2:]) if a.ndim >= 2 and a.size == math.prod(a.shape[-2:]) else a
        if a.shape != (steps, features):
            return None
        tables.append(a)
    if c.fixed:
        made: Layer = PositionalEmbedding(len(tables[0]))
        weights = {"W": tables[0]}
    elif table := _table(c, tables):
        made, weights = PositionalEmbedding(len(table[0])), {"W": table[0]}
    elif all(_is_sinusoidal(a) for a in tables):
        made, weights = SinusoidalEncoding(), {}
    else:
        return None

    def write(w: Writer, placed: list[Placed]) -> Placed:
        lead = w.lead(x.groups[0])
        layout = ((w.batch,), *((axis,) for axis in lead), T, D)
        p = w.arranged(placed[0], layout)
        return w.layer_in(lead, made, p, layout, **weights)

    return Plan((x,), write)


def _table(c: Constant, tables: list[Array]) -> list[Array]:
    """Return the array whose first rows the tables are, in a list, which may be empty."""
    return [
        source.reshape(source.shape[-2:])
        for source in c.sources
        if source.ndim >= 2 and source.size == math.prod(source.shape[-2:])
        if all(np.array_equal(a, source.reshape(source.shape[-2:])[: len(a)]) for a in tables)
    ][:1]


def _is_sinusoidal(a: Array) -> bool:
    T, D = a.shape
    angles = position_angles(0, T, (D + 1) // 2, 2 / D)
    wanted = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(T, -1)[:, :D]
    return equal(a, wanted)


def equal(a: Array, b: Array) -> bool:
    """Return whether sines or cosines are equal, up to the last digits of their type."""
    digits = 1e-6 if a.dtype == np.float32 else 1e-12
    return a.shape == b.shape and bool(np.abs(a - b).max(initial=0) <= digits)
