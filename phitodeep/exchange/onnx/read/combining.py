"""The operators that rearrange, combine or select elements.

Those that only rearrange become views. Elementwise operators, products, and parts of values become
steps.
"""

from __future__ import annotations

import math

import numpy as np

from phitodeep.errors import DataError
from phitodeep.exchange.onnx.read.axes import (
    ONE,
    PROBES,
    Axis,
    Group,
    Groups,
    Size,
    flat,
    leaves,
    new,
    number,
    regrouped,
    same,
    size_of,
)
from phitodeep.exchange.onnx.read.interpreting import (
    Inputs,
    Interpreter,
    array,
    axis_of,
    data,
    fixed_ints,
    handles,
    ints,
    parameter,
    ranges,
    sizes_after,
    slices,
)
from phitodeep.exchange.onnx.read.reading import FLOATS, INTEGERS, MOST_AXES, Node
from phitodeep.exchange.onnx.read.values import Constant, Refused, Value, View

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
        sizes_after(node, [s[i] for s in sizes], ints(node, "shape", [None, a], 1))
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


# --- elementwise operators ------------------------------------------------------------------------


UNARY = (
    *("Relu", "Sigmoid", "Tanh", "Softplus", "Softsign", "Mish", "Gelu", "HardSwish", "Erf", "Abs"),
    *("Exp", "Log", "Sqrt", "Reciprocal", "Neg", "LeakyRelu", "Elu", "Celu", "Selu", "HardSigmoid"),
    *("IsNaN", "ThresholdedRelu", "Sign", "Not"),
)


@handles(*UNARY)
def unary(it: Interpreter, node: Node, inputs: Inputs) -> Value:
    x = data(inputs)
    return it.step(node, node.op, [x], x.groups, **node.attributes)


@handles("Clip")
def clip(it: Interpreter, node: Node, inputs: Inputs) -> Value:
    x = data(inputs)
    limits = []
    for i, (name, free) in enumerate((("min", -math.inf), ("max", math.inf)), 1):
        given = parameter(inputs, i)
        limit = node.attributes.get(name, free) if given is None else given.scalar()
        if limit is None:
            raise DataError(f"its {name} must be a number")
        limits.append(limit)
    return it.step(node, "Clip", [x], x.groups, low=limits[0], high=limits[1])


BINARY = (
    *("Add", "Sub", "Mul", "Div", "Pow", "PRelu", "Max", "Min", "Greater", "Less", "Equal"),
    "Where",
)


@handles(*BINARY)
def binary(it: Interpreter, node: Node, inputs: Inputs) -> Value:
    if len(inputs) != (3 if node.op == "Where" else 2) or None in inputs:
        raise DataError(f"it has {len(inputs)} inputs")
    return it.step(node, node.op, inputs, broadcast(inputs))


def broadcast(inputs: Inputs) -> list[Group]:
    """Return the axes after NumPy's broadcasting of views and constants."""
    views = [i for i in inputs if isinstance(i, View)]
    ranks = [a.ndim for i in inputs if isinstance(i, Constant) for a in i.each()]
    rank = max([len(view.groups) for view in views] + ranks)
    out: list[Group] = [()] * rank
    for view in views:
        for i, group in enumerate(view.groups, rank - len(view.groups)):
            if not out[i]:
                out[i] = group
            elif group and size_of(group) != size_of(out[i]):
                raise DataError("its inputs have different sizes")
    for value in inputs:
        for probe, a in enumerate(value.each() if isinstance(value, Constant) else []):
            sizes = [size_of(group)[probe] for group in out]
            if any(n not in (1, s) for n, s in zip(a.shape[::-1], sizes[::-1], strict=False)):
                raise DataError(f"a constant of shape {a.shape} does not fit the sizes {sizes}")
    return out


# --- products -------------------------------------------------------------------------------------


@handles("MatMul")
def matmul(it: Interpreter, node: Node, inputs: Inputs) -> Value:
    if len(inputs) == 2 and isinstance(inputs[1], Constant):
        return product(it, node, data(inputs), array(inputs, 1))
    x, y = data(inputs), data(inputs, 1)
    if min(len(x.groups), len(y.groups)) < 2:
        raise DataError("a product with a vector is not supported")
    if size_of(x.groups[-1]) != size_of(y.groups[-2]):
        raise DataError("its matrices do not fit")
    rows = View(x.step, x.groups[:-2])
    columns = View(y.step, y.groups[:-2])
    batch = broadcast([rows, columns]) if rows.groups or columns.groups else []
    copied = tuple(Axis(axis.size) for axis in leaves(y.groups[-1]))
    return it.step(node, "Product", [x, y], [*batch, x.groups[-2], copied])


def product(it: Interpreter, node: Node, x: View, W: np.ndarray) -> View:
    """Return the product with a constant matrix (D, M) along the last axis."""
    if W.ndim != 2 or not x.groups or W.dtype.kind != "f":
        raise DataError(f"a product with an array of shape {W.shape} is not supported")
    if size_of(x.groups[-1]) != same(W.shape[0]):
        found = size_of(x.groups[-1])[0]
        raise DataError(f"its matrix has {W.shape[0]} rows, but its input has {found} features")
    return it.step(node, "MatMul", [x, Constant((W,))], [*x.groups[:-1], new(same(W.shape[1]))])


@handles("Gemm")
def gemm(it: Interpreter, node: Node, inputs: Inputs) -> Value:
    a = node.attributes
    if a.get("transA") or a.get("alpha", 1) != 1 or a.get("beta", 1) != 1:
        raise DataError("only alpha = beta = 1 and transA = 0 are supported")
    x, W = data(inputs), array(inputs, 1, 2)
    if len(x.groups) != 2:
        raise DataError("its input must have two axes")
    y = product(it, node, x, W.T if a.get("transB") else W)
    b = parameter(inputs, 2)
    return y if b is None else it.step(node, "Add", [y, b], broadcast([y, b]))


# --- parts of values ------------------------------------------------------------------------------


@handles("Gather")
def gather(it: Interpreter, node: Node, inputs: Inputs) -> Value:
    axis = node.attributes.get("axis", 0)
    if isinstance(inputs[0], Constant):
        W, x = array(inputs, 0, 2), data(inputs, 1)
        if axis_of(axis, 2) != 0 or not x.step.integers or W.dtype.kind != "f":
            raise DataError("only the rows of a matrix can be looked up, by integers")
        return it.step(node, "Embedding", [x, inputs[0]], [*x.groups, new(same(W.shape[1]))])
    x, indices = data(inputs), parameter(inputs, 1)
    if indices is None:
        raise DataError("its indices are missing")
    axis = axis_of(axis, len(x.groups))
    sizes = size_of(x.groups[axis])
    places = []
    for n, a in zip(sizes, indices.each(), strict=True):
        if a.ndim > 1 or a.size > 1 << 20:
            raise DataError("its indices must be an integer or a list")
        it.budget.take(a.shape)
        places.append([i + n if i < 0 else i for i in map(int, a.ravel())])
        if any(not 0 <= i < n for i in places[-1]):
            raise DataError(f"its indices {a.ravel()[:9]} are not all in 0 to {n - 1}")
    keep = indices.at(0).ndim == 1
    return taken(it, node, x, axis, places, keep)


def taken(
    it: Interpreter, node: Node, x: View, axis: int, places: list[list[int]], keep: bool = True
) -> View:
    """Return the elements at these places along an axis, for each probe; keep it or drop it."""
    group = x.groups[axis]
    sizes = size_of(group)
    counts = tuple(map(len, places))
    before, after = x.groups[:axis], x.groups[axis + 1 :]
    if all(len(p) == n and p == list(range(n)) for p, n in zip(places, sizes, strict=True)):
        return x if keep else View(x.step, (*before, *after))
    kept = new(counts) if counts != ONE else ()
    y = it.step(
        node, "Take", [x], [*before, kept, *after], x.step.integers, axis=axis, places=places
    )
    return y if keep else View(y.step, (*before, *after))


@handles("Slice")
def slice_(it: Interpreter, node: Node, inputs: Inputs) -> Value:
    x = data(inputs)
    given = [parameter(inputs, i) for i in range(1, 5)]
    found = []
    for probe in range(PROBES):
        arrays = [None, *(None if g is None else g.at(probe) for g in given)]
        sizes = [s[probe] for s in x.sizes()]
        found.append(ranges(node, sizes, *slices(node, arrays)))
    for cuts in zip(*found, strict=True):
        axis = cuts[0][0]
        for _, r in cuts:
            it.budget.take([len(r)])
        x = taken(it, node, x, axis, [list(r) for _, r in cuts])
    return x


@handles("Split")
def split(it: Interpreter, node: Node, inputs: Inputs) -> list[Value | Refused]:
    x = data(inputs)
    axis = axis_of(node.attributes.get("axis", 0), len(x.groups))
    total = number(x.groups[axis], "the axis that it splits")
    sizes = fixed_ints(node, "split", inputs, 1)
    if sizes is None:
        count = node.attributes.get("num_outputs", len(node.outputs))
        if not 0 < count <= total:
            raise DataError(f"it cannot split {total} elements into {count} parts")
        size = -(-total // count)
        sizes = [min(size, total - i * size) for i in range(count)]
    if sum(sizes) != total or min(sizes, default=0) < 1 or len(sizes) != len(node.outputs):
        raise DataError(f"its parts {sizes[:9]} do not fit {total} elements")
    it.budget.take([total])
    ends = np.cumsum(sizes).tolist()
    return [
        taken(it, node, x, axis, [list(range(end - n, end))] * PROBES)
        for n, end in zip(sizes, ends, strict=True)
    ]


@handles("Concat")
def concat(it: Interpreter, node: Node, inputs: Inputs) -> Value:
    views = [data(inputs, i) for i in range(len(inputs))]
    axis = axis_of(node.attributes.get("axis"), len(views[0].groups))
    if len({len(view.groups) for view in views}) > 1:
        raise DataError("its inputs have different numbers of axes")
    if len(views) == 1:
        return views[0]
    total: Size = (0,) * PROBES
    for view in views:
        size = size_of(view.groups[axis])
        total = tuple(a + b for a, b in zip(total, size, strict=True))
        sizes = [s for i, s in enumerate(view.sizes()) if i != axis]
        if sizes != [s for i, s in enumerate(views[0].sizes()) if i != axis]:
            raise DataError("its inputs have different sizes")
    groups: Groups = views[0].groups
    return it.step(
        node, "Concat", views, [*groups[:axis], new(total), *groups[axis + 1 :]], axis=axis
    )
