"""Whether a model computes what its graph computes: both are run on a small random input.

The importer refuses what it does not understand, so the two agree unless it has a fault. This is a
safety net for such a fault: ONNX's own reference evaluator computes the graph, and the outputs of
all steps that became layers are compared. Only the nodes that the importer understood are run, and
only if the graph is small, so a hostile file cannot make this expensive.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from phitodeep.core.call import inference
from phitodeep.core.types import Array
from phitodeep.errors import DataError
from phitodeep.exchange.onnx.read.axes import Groups, expanded, flat, size_of
from phitodeep.exchange.onnx.read.building import Placed, Writer
from phitodeep.exchange.onnx.read.interpreting import CANNOT, Interpreter
from phitodeep.exchange.onnx.read.reading import TYPES, File, Node
from phitodeep.exchange.onnx.read.values import View
from phitodeep.exchange.tree import Operation
from phitodeep.layers.base import Layer

LARGEST_FILE = 1 << 25  # bytes
MOST_ELEMENTS = 1 << 21  # of all values together
MOST_OPERATIONS = 10**8  # floating-point operations of the layers
MOST_NODES = 2000
TOLERANCE = 1e-4  # relative to the largest element


def check_values(file: File, it: Interpreter, w: Writer, out: View) -> None:
    """Raise a DataError that names the first node whose output the layers compute differently."""
    nodes = _needed(file, it, out)
    if any(_misjudged(file.nodes[i], it) for i in nodes):
        return
    sizes = [size_of(flat(step.groups))[0] for step in it.steps]
    layers = [op.does for op in w.operations if isinstance(op.does, Layer)]
    if (
        file.size > LARGEST_FILE
        or len(nodes) > MOST_NODES
        or sum(sizes) > MOST_ELEMENTS
        or sum(layer.flops() for layer in layers) > MOST_OPERATIONS
    ):
        return
    X = _random(it)
    ours = _run(w, X)
    names = {
        name: value
        for name, value in it.values.items()
        if isinstance(value, View) and value.step in w.placed and not value.step.integers
    }
    theirs = _evaluated(file, nodes, X, it, list(names))
    for name, view in names.items():
        if name not in theirs:
            continue
        placed = w.placed[view.step]
        a = _rearranged(ours[placed.value], placed, view.groups)
        if not _agree(a, theirs[name]):
            raise DataError(
                f"{view.step.name}: its layers would compute something else than the graph. "
                "Please report this file."
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


def _needed(file: File, it: Interpreter, out: View) -> list[int]:
    """Return the places of the nodes that the output depends on."""
    made = {name: i for i, node in enumerate(file.nodes) for name in node.outputs}
    ends = [name for name, v in it.values.items() if isinstance(v, View) and v.is_(out)]
    needed, todo = set[int](), [made[name] for name in ends if name in made]
    while todo:
        i = todo.pop()
        if i not in needed:
            needed.add(i)
            todo += [made[name] for name in file.nodes[i].inputs if name in made]
    return sorted(needed)


def _random(it: Interpreter) -> Array:
    """Return an input of the graph, of the sizes of the first probe."""
    step, rng = it.input, np.random.default_rng(0)
    shape = [size_of(group)[0] for group in step.groups]
    dtype = TYPES[it.file.inputs[0].type]
    if step.integers or any(s.op == "Tokens" for s in it.steps):
        tables = [s.array(1) for s in it.steps if s.op == "Embedding"]
        return rng.integers(0, min(map(len, tables), default=2), shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def _run(w: Writer, X: Array) -> Mapping[str, Array]:
    """Return the values of all layers and merges."""
    start = X if w.order is None else X.transpose(w.order)
    values = {"input": np.ascontiguousarray(start)}
    with inference():
        for op in w.operations:
            values[op.output] = _computed(op, [values[name] for name in op.inputs])
    return values


def _computed(op: Operation, inputs: list[Array]) -> Array:
    if isinstance(op.does, Layer):
        output: Array = op.does.forward(*inputs)
        return output
    if op.does == "concat":
        return np.concatenate(inputs, axis=-1)
    merge = np.add if op.does == "add" else np.multiply
    return merge(*inputs)


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
    file: File, nodes: list[int], X: Array, it: Interpreter, names: list[str]
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
        [i for i in file.proto.graph.input if i.name == file.inputs[0].name],
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
        found = ReferenceEvaluator(model).run(wanted, {file.inputs[0].name: X})
    except CANNOT:
        return {}
    return dict(zip(wanted, found, strict=True))
