"""The operators that only rearrange elements: they become views, not steps."""

from __future__ import annotations

from phitodeep.errors import DataError
from phitodeep.exchange.onnx.read import folding
from phitodeep.exchange.onnx.read.axes import Axis, Size, flat, leaves, new, regrouped, size_of
from phitodeep.exchange.onnx.read.folding import axis_of, ints
from phitodeep.exchange.onnx.read.interpreting import (
    Inputs,
    Interpreter,
    data,
    fixed_ints,
    handles,
    parameter,
)
from phitodeep.exchange.onnx.read.reading import FLOATS, INTEGERS, MOST_AXES, Node
from phitodeep.exchange.onnx.read.values import Refused, Value, View

# --- rearrangements -------------------------------------------------------------------------------


@handles("Identity", "Dropout", "ZipMap")
def identity(it: Interpreter, node: Node, inputs: Inputs) -> list[Value | Refused]:
    training = parameter(inputs, 2) if node.op == "Dropout" else None
    if training is not None and training.array("its training mode").any():
        raise DataError("it is in training mode: export the network for inference")
    return [data(inputs)]


@handles("Cast")
def cast(it: Interpreter, node: Node, inputs: Inputs) -> Value:
    x, to = data(inputs), node.attributes.get("to")
    if (to in FLOATS and not x.step.integers) or (to in INTEGERS and x.step.integers):
        return x
    if to in INTEGERS | FLOATS:
        op = "Tokens" if to in INTEGERS else "Numbers"
        return it.step(node, op, [x], x.groups, integers=to in INTEGERS)
    raise DataError(f"a cast to the type {to} is not supported")


@handles("Transpose")
def transpose(it: Interpreter, node: Node, inputs: Inputs) -> Value:
    x = data(inputs)
    perm = node.attributes.get("perm", list(range(len(x.groups)))[::-1])
    if sorted(perm) != list(range(len(x.groups))):
        raise DataError(f"its perm {perm} does not fit {len(x.groups)} axes")
    return View(x.step, tuple(x.groups[i] for i in perm))


@handles("Reshape")
def reshape(it: Interpreter, node: Node, inputs: Inputs) -> Value:
    x, target = data(inputs), parameter(inputs, 1)
    if target is None:
        raise DataError("its shape is missing")
    sizes = x.sizes()
    after = [
        folding.sizes_after(node, [s[i] for s in sizes], ints(node, "shape", [None, a], 1))
        for i, a in enumerate(target.each())
    ]
    if len({len(s) for s in after}) > 1:
        raise DataError("its number of axes depends on the size of the input")
    return regroup(it, node, x, [tuple(column) for column in zip(*after, strict=True)])


def regroup(it: Interpreter, node: Node, x: View, sizes: list[Size]) -> View:
    """Return x with these sizes."""
    groups = regrouped(x.groups, sizes)
    if groups is None and any(len(leaves(g)) > 1 and it.batch not in g for g in x.groups):
        x = joined(it, node, x)  # an axis that was split in another way, elsewhere
        groups = regrouped(x.groups, sizes)
    if groups is not None:
        return View(x.step, groups)
    if x.groups[0] != (it.batch,) or not sizes or sizes[0] != it.batch.size:
        raise DataError("it cuts across the samples of the batch")
    return it.step(node, "Reshape", [x], [(it.batch,), *map(new, sizes[1:])])


def joined(it: Interpreter, node: Node, x: View) -> View:
    """Return x with one new axis for each group of several axes."""
    old = [leaves(g) for g in x.groups]
    fresh = [(Axis(size_of(g)),) if len(g) > 1 and it.batch not in g else g for g in old]
    pairs = [(g, f[0]) for g, f in zip(old, fresh, strict=True) if f is not g]
    return it.step(node, "Join", [x], fresh, x.step.integers, pairs=pairs)


@handles("Flatten")
def flatten(it: Interpreter, node: Node, inputs: Inputs) -> Value:
    x, axis = data(inputs), node.attributes.get("axis", 1)
    axis = axis if axis == len(x.groups) else axis_of(axis, len(x.groups))
    return View(x.step, (flat(x.groups[:axis]), flat(x.groups[axis:])))


@handles("Squeeze")
def squeeze(it: Interpreter, node: Node, inputs: Inputs) -> Value:
    x = data(inputs)
    axes = fixed_ints(node, "axes", inputs, 1)
    if axes is None:
        axes = [i for i, group in enumerate(x.groups) if not group]
    drop = {axis_of(axis, len(x.groups)) for axis in axes}
    if any(x.groups[i] for i in drop):
        raise DataError(f"the axes {axes} must have one element each")
    return View(x.step, tuple(g for i, g in enumerate(x.groups) if i not in drop))


@handles("Unsqueeze")
def unsqueeze(it: Interpreter, node: Node, inputs: Inputs) -> Value:
    x, axes = data(inputs), fixed_ints(node, "axes", inputs, 1) or []
    rank = len(x.groups) + len(axes)
    if rank > MOST_AXES:
        raise DataError("it makes too many axes")
    added = {axis_of(axis, rank) for axis in axes}
    if len(added) < len(axes):
        raise DataError(f"its axes {axes} repeat")
    rest = iter(x.groups)
    return View(x.step, tuple(() if i in added else next(rest) for i in range(rank)))


@handles("Expand")
def expand(it: Interpreter, node: Node, inputs: Inputs) -> Value:
    x, target = data(inputs), parameter(inputs, 1)
    if target is None or any(a.size > len(x.groups) for a in target.each()):
        raise DataError("it repeats elements, which no layer does")
    for i, a in enumerate(target.each()):
        wanted = [int(n) for n in a.ravel()]
        sizes = [s[i] for s in x.sizes()][len(x.groups) - len(wanted) :]
        if any(n not in (1, s) for n, s in zip(wanted, sizes, strict=True)):
            raise DataError("it repeats elements, which no layer does")
    return x
