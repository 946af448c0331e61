"""Whether a model computes what its graph computes: both are run on a small random input.

The importer refuses what it does not understand, so the two agree unless it has a fault. This is a
safety net for such a fault: ONNX's own reference evaluator computes the graph, and the outputs are
compared. Only the nodes that the importer understood are run, and
only if the graph is small, so a hostile file cannot make this expensive.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from phitodeep.core.call import inference
from phitodeep.core.types import Array, each
from phitodeep.errors import DataError
from phitodeep.exchange.onnx.read.axes import Groups, expanded, flat, size_of
from phitodeep.exchange.onnx.read.building import Placed, Writer
from phitodeep.exchange.onnx.read.interpreting import CANNOT, Interpreter
from phitodeep.exchange.onnx.read.reading import TYPES, File, Node
from phitodeep.exchange.onnx.read.values import Step, View

LARGEST_FILE = 1 << 25  # bytes
MOST_ELEMENTS = 1 << 21  # of all values together
MOST_OPERATIONS = 10**8  # floating-point operations of the layers
MOST_NODES = 2000
TOLERANCE = 1e-4  # relative to the largest element


def check_values(
    file: File, it: Interpreter, w: Writer, model: Any, outs: list[tuple[str, View, Placed]]
) -> None:
    """Raise a DataError that names the first output that the model computes differently.

    `outs` are the outputs in the graph and in the model.
    """
    nodes = _needed(file, [name for name, _, _ in outs])
    if any(_misjudged(file.nodes[i], it) for i in nodes):
        return
    sizes = [size_of(flat(step.groups))[0] for step in it.steps]
    if (
        file.size > LARGEST_FILE
        or len(nodes) > MOST_NODES
        or sum(sizes) > MOST_ELEMENTS
        or model.flops() > MOST_OPERATIONS
    ):
        return
    pairs = [*zip(file.inputs, it.inputs, strict=True)]
    X = {given.name: _random(it, step, given.type) for given, step in pairs}
    theirs = _evaluated(file, nodes, X, [name for name, _, _ in outs])
    with inference():
        places = [w.orders.get(step.name, range(len(step.groups))) for step in it.inputs]
        starts = [A.transpose(at) for A, at in zip(X.values(), places, strict=True)]
        ours = each(model.forward(*map(np.ascontiguousarray, starts)))
    for (name, view, placed), Y in zip(outs, ours, strict=True):
        if name in theirs and not _agree(_rearranged(Y, placed, view.groups), theirs[name]):
            raise DataError(
                f"{view.step.name}, whose output is {name!r}: the model would compute something "
                "else than the graph. Please report this file."
            )


def _misjudged(node: Node, it: Interpreter) -> bool:
    """Return whether the evaluator of ONNX 1.23 computes something else than onnxruntime."""
    a, x = node.attributes, it.values[node.inputs[0]] if node.inputs else None
    if not isinstance(x, View):
        return False
    rank, pads = len(x.groups), a.get("pads") or []
    if node.op in ("Softmax", "LogSoftmax"):
        return it.opset < 13 and a.get("axis", 1) not in (-1, rank - 1)
    return (
        (node.op == "BatchNormalization" and it.opset < 14)
        or (node.op == "ConvTranspose" and a.get("group", 1) > 1)
        or (node.op == "GlobalMaxPool" and rank != 4)
        or (node.op == "MaxPool" and pads[: rank - 2] != pads[rank - 2 :])
    )


def _needed(file: File, todo: list[str]) -> list[int]:
    """Return the places of the nodes that these values depend on."""
    made = {name: i for i, node in enumerate(file.nodes) for name in node.outputs}
    needed = set[int]()
    while todo:
        i = made.get(todo.pop(), -1)
        if i >= 0 and i not in needed:
            needed.add(i)
            todo += file.nodes[i].inputs
    return sorted(needed)


def _random(it: Interpreter, step: Step, kind: int) -> Array:
    """Return an input of the graph, of the sizes of the first probe."""
    rng = np.random.default_rng(0)
    shape = [size_of(group)[0] for group in step.groups]
    if step.integers or any(s.op == "Tokens" for s in it.steps):
        tables = [s.array(1) for s in it.steps if s.op == "Embedding"]
        return rng.integers(0, min(map(len, tables), default=2), shape).astype(TYPES[kind])
    return rng.standard_normal(shape).astype(TYPES[kind])


def _rearranged(a: Array, placed: Placed, wanted: Groups) -> Array:
    """Return an array of a layer with its axes as in the graph."""
    have, want = flat(placed.layout), flat(wanted)
    a = a.reshape([axis.size[0] for axis in have]).transpose([have.index(axis) for axis in want])
    return a.reshape([math.prod(axis.size[0] for axis in group) for group in expanded(wanted)])


def _agree(a: Array, b: Any) -> bool:
    """Return whether two arrays are equal up to rounding; what is not finite is not compared."""
    b = np.asarray(b)
    if a.shape != b.shape:
        return False
    finite = np.isfinite(a) & np.isfinite(b)
    a, b = a[finite].astype(np.float64), b[finite].astype(np.float64)
    return bool(np.abs(a - b).max(initial=0) <= TOLERANCE * (np.abs(b).max(initial=0) + 1e-3))


def _evaluated(
    file: File, nodes: list[int], X: dict[str, Array], names: list[str]
) -> dict[str, Any]:
    """Return the values with these names, computed by ONNX's reference evaluator."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    used = {name for i in nodes for name in file.nodes[i].inputs}
    computed = {name for i in nodes for name in file.nodes[i].outputs}
    wanted = [name for name in names if name in computed]
    graph = onnx.helper.make_graph(
        [file.proto.graph.node[i] for i in nodes],
        "needed",
        [i for i in file.proto.graph.input if i.name in X],
        [onnx.ValueInfoProto(name=name) for name in wanted],
        [
            onnx.numpy_helper.from_array(value, name)
            for name, value in file.constants.items()
            if name in used and isinstance(value, np.ndarray)
        ],
    )
    opsets, version = file.proto.opset_import, file.proto.ir_version
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=version)
    try:
        found = ReferenceEvaluator(model).run(wanted, X)
    except CANNOT:
        return {}
    return dict(zip(wanted, found, strict=True))
