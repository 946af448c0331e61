"""Small graphs that tests write, and exported ones rewritten as another exporter might do it."""

import ast
import random

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
helper = onnx.helper


def floats(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def nodes(text):
    """Return nodes such as `Conv x W -> a pads=[1,1]; Relu a`: without an arrow, they give y."""
    found = []
    for line in text.split(";"):
        words = [word for word in line.split() if "=" not in word]
        attributes = dict(word.split("=") for word in line.split() if "=" in word)
        inputs, _, outputs = " ".join(words).partition(" -> ")
        op, *given = inputs.split()
        domain, _, op = op.rpartition(":")
        name = attributes.pop("name", "")
        given = ["" if i == "_" else i for i in given]
        settings = {key: ast.literal_eval(value) for key, value in attributes.items()}
        made = helper.make_node(op, given, outputs.split() or ["y"], name=name, **settings)
        made.domain = domain
        found.append(made)
    return found


def proto(text, shape, arrays, opset=18):
    """Return a graph from x (`shape`), float32, to y, with these constants."""
    constants = [
        a if isinstance(a, onnx.TensorProto) else onnx.numpy_helper.from_array(np.asarray(a), name)
        for name, a in arrays.items()
    ]
    x = helper.make_tensor_value_info("x", 1, shape)
    y = helper.make_tensor_value_info("y", 1, [None])
    made = nodes(text) if isinstance(text, str) else text
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph(made, "g", [x], [y], constants)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def write(path, *graph, opset=18):
    """Write a graph, given as for `proto`, into a.onnx in this folder."""
    path = path / "a.onnx"
    path.write_bytes(proto(*graph, opset).SerializeToString())
    return path


def mangled(path, seed):
    """Rewrite a file without metadata, with other names, in another order, with Constant nodes."""
    rng = random.Random(seed)
    old = onnx.load_model(path)
    new = onnx.ModelProto(ir_version=old.ir_version, opset_import=old.opset_import)
    graph = new.graph
    graph.name = "g"
    names = {"": ""}

    def renamed(name):
        return names.setdefault(name, f"v{rng.randrange(10**9)}_{len(names)}")

    for before, after in ((old.graph.input, graph.input), (old.graph.output, graph.output)):
        for value in before:
            copy = after.add(name=renamed(value.name), type=value.type)
            for dim in copy.type.tensor_type.shape.dim:
                dim.ClearField("dim_param")
    made = []
    for tensor in old.graph.initializer:
        tensor.name = renamed(tensor.name)
        tensor.ClearField("doc_string")
        if rng.random() < 0.5:
            made.append(helper.make_node("Constant", [], [tensor.name], value=tensor))
        else:
            graph.initializer.append(tensor)
    for node in old.graph.node:
        for field in ("name", "doc_string", "metadata_props"):
            node.ClearField(field)
        for values in (node.input, node.output):
            values[:] = [renamed(name) for name in values]
        made.append(node)
    graph.node.extend(in_some_order(made, rng))
    onnx.checker.check_model(new)
    path.write_bytes(new.SerializeToString())


def in_some_order(left, rng):
    """Return the nodes in a random order in which they can run."""
    waiting = {name for node in left for name in node.output}
    ordered = []
    while left:
        node = rng.choice([n for n in left if not waiting & set(n.input)])
        ordered.append(node)
        left = [n for n in left if n is not node]
        waiting -= set(node.output)
    return ordered
