"""From the nodes of a graph to steps: rearrangements disappear, constants are computed.

`Interpreter` runs through the nodes once. A node with constant inputs becomes a constant. A node
that only rearranges elements becomes a view. Any other node becomes a `Step`, whose output axes
are known. What cannot be understood becomes `Refused`, and is an error only if the output of the
graph depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from phitodeep.errors import DataError
from phitodeep.exchange.onnx import folding
from phitodeep.exchange.onnx.axes import (
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
from phitodeep.exchange.onnx.folding import Budget, axis_of, folded, ints
from phitodeep.exchange.onnx.reading import FLOATS, INTEGERS, File, Node
from phitodeep.exchange.onnx.values import Constant, LabelError, Refused, Step, Value, View, constant

CONTROL = {"If", "Loop", "Scan", "SequenceMap"}
LABELS = {
    *("ArgMax", "ArgMin", "ArrayFeatureExtractor", "Binarizer", "LabelEncoder", "TopK"),
}
Inputs = list[Any]  # constants, views, and None for those that are left out
Handler = Callable[["Interpreter", Node, Inputs], Value | list[Value | Refused]]
HANDLERS: dict[str, Handler] = {}


def handles(*ops: str) -> Callable[[Handler], Handler]:
    """Declare the function that turns nodes of these operators into values."""

    def declare(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(ops, handler))
        return handler

    return declare


class Interpreter:
    """The values of a graph.

    unknown    for each axis of unknown size of the input, its size in each probe
    batch      the axis of the samples; `batch_at` is its place in the input
    """

    def __init__(self, file: File, unknown: Sequence[Size], batch_at: int = 0) -> None:
        self.file, self.opset = file, file.opset
        self.budget = Budget(file.size)
        self.steps: list[Step] = []
        self.values: dict[str, Value | Refused] = {}
        for name, array in file.constants.items():
            wrong = isinstance(array, DataError)
            self.values[name] = Refused(array) if wrong else Constant((array,))
        self.input = self._input(unknown, batch_at)
        for node in file.nodes:
            self._run(node)

    def _input(self, unknown: Sequence[Size], batch_at: int) -> Step:
        """Return the step that stands for the only input."""
        if len(self.file.inputs) != 1:
            names = ", ".join(repr(i.name) for i in self.file.inputs[:9]) or "none"
            raise DataError(
                f"{self.file.path} has the inputs {names}: a model takes exactly one. Export the "
                "network with a single input."
            )
        given = self.file.inputs[0]
        if given.type not in FLOATS | INTEGERS:
            raise DataError(
                f"the input {given.name!r} of {self.file.path} holds elements of type "
                f"{given.type}: float32, float64, int32 and int64 are supported."
            )
        if len(given.sizes) < 1 + (given.type in FLOATS):
            raise DataError(
                f"the input {given.name!r} of {self.file.path} must have the batch as its first "
                f"axis, followed by features, got {len(given.sizes)} axes."
            )
        rest = iter(unknown)
        sizes = [next(rest) if n is None else same(n) for n in given.sizes]
        groups: list[Group] = [new(size) for size in sizes]
        if batch_at < len(sizes):
            groups[batch_at] = (Axis(sizes[batch_at]),)
        integers = given.type in INTEGERS
        step = Step(0, f"the input {given.name!r}", "Input", (), {}, tuple(groups), integers)
        self.batch = groups[min(batch_at, len(groups) - 1)][0]
        self.steps.append(step)
        self.values[given.name] = step.output
        return step

    def _run(self, node: Node) -> None:
        """Add the outputs of a node."""
        inputs: Inputs = []
        for name in node.inputs:
            if name and name not in self.values:
                raise DataError(f"{node.name} reads {name!r}, which nothing before it computes.")
            inputs.append(self.values[name] if name else None)
        while inputs and inputs[-1] is None:
            inputs.pop()
        refused = next((i for i in inputs if isinstance(i, Refused)), None)
        found: Value | Refused | list[Value | Refused]
        if refused is not None:
            found = refused
        else:
            try:
                found = self._outputs(node, inputs)
            except DataError as error:
                found = Refused(type(error)(f"{node.name}: {error}."))
        for i, name in enumerate(node.outputs):
            if isinstance(found, list):
                missing = Refused(DataError(f"{node.name}: its output {name!r} is not supported."))
                self.values[name] = found[i] if i < len(found) else missing
            else:
                self.values[name] = found

    def _outputs(self, node: Node, inputs: Inputs) -> Value | list[Value | Refused]:
        if node.op in CONTROL or any(value is None for value in node.attributes.values()):
            raise DataError("control flow is not supported: export the network without it")
        if node.op in LABELS:
            raise LabelError("labels are not supported: a model returns numbers")
        if not inputs and node.op != "Constant":
            raise DataError("it has no inputs")
        if node.op == "Shape" and isinstance(inputs[0], View):
            return self._shape(node, inputs[0])
        if all(i is None or isinstance(i, Constant) for i in inputs):
            if node.op not in ("Dropout",):
                return folded(node, inputs, self.budget, self.opset)
        handler = HANDLERS.get(node.op)
        if handler is None:
            raise DataError("no layer computes this operator")
        return handler(self, node, inputs)

    def _shape(self, node: Node, x: View) -> Constant:
        sizes = folding.cut(node, x.sizes())
        return constant([np.array([s[i] for s in sizes], np.int64) for i in range(PROBES)])

    # --- what handlers use -----------------------------------------------------------------

    def step(
        self,
        node: Node,
        op: str,
        inputs: Sequence[Value | None],
        groups: Sequence[Group],
        integers: bool = False,
        **settings: Any,
    ) -> View:
        """Add a step, and return its output."""
        step = Step(len(self.steps), node.name, op, tuple(inputs), settings, tuple(groups), integers)
        self.steps.append(step)
        return step.output


def data(inputs: Inputs, i: int = 0) -> View:
    """Return an input that depends on the input of the graph."""
    if i >= len(inputs) or not isinstance(inputs[i], View):
        raise DataError(f"its input {i} must depend on the input of the graph")
    view: View = inputs[i]
    return view


def parameter(inputs: Inputs, i: int) -> Constant | None:
    """Return a constant input, or None if it is left out."""
    if i >= len(inputs) or inputs[i] is None:
        return None
    if not isinstance(inputs[i], Constant):
        raise DataError(f"its input {i} must be a constant")
    found: Constant = inputs[i]
    return found


def array(inputs: Inputs, i: int, rank: int | None = None) -> np.ndarray:
    """Return a constant input that is an array of this rank."""
    found = parameter(inputs, i)
    if found is None:
        raise DataError(f"its input {i} is missing")
    a = found.array(f"its input {i}")
    if rank is not None and a.ndim != rank:
        raise DataError(f"its input {i} has {a.ndim} axes instead of {rank}")
    return a


def fixed_ints(node: Node, name: str, inputs: Inputs, i: int) -> list[int] | None:
    """Return integers, from an input or an attribute, that do not depend on the input's shape."""
    given = parameter(inputs, i)
    arrays = [None] * i + ([] if given is None else [given.array(f"its {name}")])
    return ints(node, name, arrays, i)


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
    if to in FLOATS and not x.step.integers or to in INTEGERS and x.step.integers:
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
    fresh = [
        (Axis(size_of(g)),) if len(g) > 1 and it.batch not in g else g for g in old
    ]
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
    if rank > folding.MOST_AXES:
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
        raise DataError(
            f"its matrix has {W.shape[0]} rows, but its input has {size_of(x.groups[-1])[0]} features"
        )
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
        found.append(folding.ranges(node, sizes, *folding.slices(node, arrays)))
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
