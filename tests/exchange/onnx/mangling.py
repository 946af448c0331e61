"""The same graph, without anything but the graph: as another exporter might have written it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any


def mangled(path: Path, seed: int) -> None:
    """Rewrite a file without metadata, with other names, in another order, with Constant nodes."""
    import onnx

    rng = random.Random(seed)
    old = onnx.load_model(path)
    new = onnx.ModelProto(ir_version=old.ir_version)
    new.opset_import.extend(old.opset_import)
    graph = new.graph
    graph.name = "g"
    names: dict[str, str] = {"": ""}

    def renamed(name: str) -> str:
        return names.setdefault(name, f"v{rng.randrange(10**9)}_{len(names)}")

    def info(value: Any) -> Any:
        copy = onnx.ValueInfoProto(name=renamed(value.name))
        copy.type.CopyFrom(value.type)
        for dim in copy.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                dim.ClearField("dim_param")
        return copy

    graph.input.extend(map(info, old.graph.input))
    graph.output.extend(map(info, old.graph.output))
    nodes = []
    for tensor in old.graph.initializer:
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        copy.name = renamed(tensor.name)
        copy.ClearField("doc_string")
        if rng.random() < 0.5:
            nodes.append(onnx.helper.make_node("Constant", [], [copy.name], value=copy))
        else:
            graph.initializer.append(copy)
    for node in old.graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for field in ("name", "doc_string", "metadata_props"):
            copy.ClearField(field)
        for values in (copy.input, copy.output):
            for i, name in enumerate(values):
                values[i] = renamed(name)
        nodes.append(copy)
    graph.node.extend(in_some_order(nodes, rng))
    onnx.checker.check_model(new)
    path.write_bytes(new.SerializeToString())


def in_some_order(nodes: list[Any], rng: random.Random) -> list[Any]:
    """Return the nodes in a random order in which they can run."""
    made = {name: node for node in nodes for name in node.output if name}
    waits = {id(n): {id(made[name]) for name in n.input if name in made} for n in nodes}
    ordered: list[Any] = []
    left = list(nodes)
    while left:
        ready = [n for n in left if not waits[id(n)]]
        node = rng.choice(ready)
        ordered.append(node)
        left = [n for n in left if n is not node]
        for n in left:
            waits[id(n)].discard(id(node))
    return ordered
