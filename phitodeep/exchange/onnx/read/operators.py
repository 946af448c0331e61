"""What each operator makes of its inputs: a view where it only rearranges elements, or a step.

Long because it has a function for each operator of ONNX that is read.
"""

from __future__ import annotations

import numpy as np

from phitodeep import layers as L
from phitodeep.core.types import Array
from phitodeep.errors import DataError
from phitodeep.exchange.onnx.read import axes as ax
from phitodeep.exchange.onnx.read.activations import BENT, activated, softened
from phitodeep.exchange.onnx.read.axes import (
    Axis,
    Group,
    Size,
    expanded,
    leaves,
    new,
    number,
    size_of,
)
from phitodeep.exchange.onnx.read.building import Placed, Plan, Writer, translated
from phitodeep.exchange.onnx.read.interpreting import Call, Outputs, handles
from phitodeep.exchange.onnx.read.reading import FLOATS, INTEGERS
from phitodeep.exchange.onnx.read.values import (
    Constant,
    LabelError,
    Value,
    View,
    broadcast,
    constant,
)

# --- rearrangements -------------------------------------------------------------------------------


@handles("Identity", "Dropout", "ZipMap")
def identity(node: Call) -> Value:
    training = node.const(2) if node.op == "Dropout" else None
    if training is not None and training.array("its training mode").any():
        raise DataError("it is in training mode: export the network for inference")
    return node.view()


@handles("Cast")
def cast(node: Call) -> Value:
    x, to = node.view(), node.attribute("to")
    if to not in FLOATS | INTEGERS:
        raise DataError(f"a cast to the type {to} is not supported")
    whole = to in INTEGERS
    if whole == x.step.integers:
        return x
    if not whole:
        return node.step("Numbers", [x], x.groups)
    inner = x.made_by("Take")  # of categories in columns of numbers
    source, axis = (inner.view(), inner.settings["axis"]) if inner else (x, len(x.groups) - 1)
    out = x.groups[axis] if axis >= 0 else ()

    def write(w: Writer, placed: list[Placed]) -> Placed:
        p, _ = w.features(placed[0], source.groups[axis], exact=True)
        count = number(source.groups[axis])
        w.it.budget.take([count], 64)
        columns = chosen(w, inner.settings["places"]) if inner else list(range(count))
        return w.layer(L.Select(columns, tokens=True), p, (*p.layout[:-1], out))

    return node.step("Tokens", [x], x.groups, True, Plan((source,), write))


@handles("Shape")
def shape(node: Call) -> Value:
    return constant(node.tried(node.view().shapes()))


@handles("Transpose", "Squeeze", "Unsqueeze")
def transpose(node: Call) -> Value:
    """Where the axes are moved shows on an array whose axes have different sizes."""
    x = node.view()
    different = [size if group else 1 for size, group in enumerate(x.groups, 2)]
    sizes, *others = {a.shape for a in node.tried([different])}
    if others:
        raise DataError("where its axes are moved depends on the size of the input")
    return View(x.step, tuple(x.groups[size - 2] if size > 1 else () for size in sizes))


@handles("Reshape", "Flatten")
def reshape(node: Call) -> Value:
    x = node.view()
    shapes = [a.shape for a in node.tried(x.shapes())]
    if len({len(shape) for shape in shapes}) > 1:
        raise DataError("its number of axes depends on the size of the input")
    return regroup(node, x, list(zip(*shapes, strict=True)))


def regroup(node: Call, x: View, sizes: list[Size]) -> View:
    """Return x with these sizes."""
    batch = node.it.batch
    groups = ax.regrouped(x.groups, sizes)
    if groups is None and any(len(leaves(g)) > 1 and batch not in g for g in x.groups):
        x = joined(node, x)  # an axis that was split in another way, elsewhere
        groups = ax.regrouped(x.groups, sizes)
    if groups is not None:
        return View(x.step, groups)
    if x.groups[0] != (batch,) or not sizes or sizes[0] != batch.size:
        raise DataError("it cuts across the samples of the batch")
    out = ((batch,), *map(new, sizes[1:]))

    def write(w: Writer, placed: list[Placed]) -> Placed:
        shape = [number(group) for group in out[1:]]
        return w.layer(L.Reshape(*shape), w.arranged(placed[0], x.groups), out)

    return node.step("Reshape", [x], out, False, Plan((x,), write))


def joined(node: Call, x: View) -> View:
    """Return x with one new axis for each group of several axes."""
    old = expanded(x.groups)
    fresh = [(Axis(size_of(g)),) if len(g) > 1 and node.it.batch not in g else g for g in old]

    def write(w: Writer, placed: list[Placed]) -> Placed:
        names = {leaves(g): f for g, f in zip(old, fresh, strict=True) if f is not g}
        p = placed[0]
        if not set(names) <= set(expanded(p.layout)):
            p, _ = w.samples_first(p, x.groups[0], x.groups[1:])
        return Placed(p.value, tuple(names.get(g, g) for g in expanded(p.layout)))

    return node.step("Join", [x], fresh, x.step.integers, Plan((x,), write))


@handles("Expand")
def expand(node: Call) -> Value:
    x, target = node.view(), node.const(1)
    for i, a in enumerate([] if target is None else target.each()):
        sizes = [s[i] for s in x.sizes()]
        last = sizes[len(sizes) - a.size :] if a.size <= len(sizes) else []
        if len(last) < a.size or any(n not in (1, s) for n, s in zip(a.ravel(), last, strict=True)):
            raise DataError("it repeats elements, which no layer does")
    return x


# --- elementwise operators ------------------------------------------------------------------------


@handles(
    *{"Exp", "Log", "Sqrt", "Reciprocal", "Neg", "Sign", "Not", "IsNaN", "ThresholdedRelu"}
    - BENT.keys()
)
def unary(node: Call) -> Value:
    return node.step(node.op, [node.view()], node.view().groups, **node.attributes)


@handles(*("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Greater", "Less", "Equal"), "Where")
def elementwise(node: Call) -> Value:
    if len(node.inputs) != (3 if node.op == "Where" else 2) or None in node.inputs:
        raise DataError(f"it has {len(node.inputs)} inputs")
    return node.step(node.op, node.inputs, broadcast(node.inputs))


# --- products -------------------------------------------------------------------------------------


@handles("MatMul")
def matmul(node: Call) -> Value:
    if len(node.inputs) == 2 and isinstance(node.inputs[1], Constant):
        return product(node, node.view(), node.array(1))
    x, y = node.view(), node.view(1)
    if min(len(x.groups), len(y.groups)) < 2:
        raise DataError("a product with a vector is not supported")
    if size_of(x.groups[-1]) != size_of(y.groups[-2]):
        raise DataError("its matrices do not fit")
    batch = broadcast([View(x.step, x.groups[:-2]), View(y.step, y.groups[:-2])])
    copied = tuple(Axis(axis.size) for axis in leaves(y.groups[-1]))
    return node.step("Product", [x, y], [*batch, x.groups[-2], copied])


def product(node: Call, x: View, W: Array) -> View:
    """Return the product with a constant matrix (D, M) along the last axis."""
    if W.ndim != 2 or not x.groups or W.dtype.kind != "f":
        raise DataError(f"a product with an array of shape {W.shape} is not supported")
    if size_of(x.groups[-1]) != ax.same(W.shape[0]):
        found = size_of(x.groups[-1])[0]
        raise DataError(f"its matrix has {W.shape[0]} rows, but its input has {found} features")
    return node.step("MatMul", [x, Constant((W,))], [*x.groups[:-1], new(ax.same(W.shape[1]))])


@handles("Gemm")
def gemm(node: Call) -> Value:
    if node.attribute("transA") or {node.attribute("alpha", 1), node.attribute("beta", 1)} != {1}:
        raise DataError("only alpha = beta = 1 and transA = 0 are supported")
    x, W, b = node.view(), node.array(1, 2), node.const(2)
    if len(x.groups) != 2:
        raise DataError("its input must have two axes")
    y = product(node, x, W.T if node.attribute("transB") else W)
    return y if b is None else node.step("Add", [y, b], broadcast([y, b]))


# --- parts of values ------------------------------------------------------------------------------


@handles("Gather")
def gather(node: Call) -> Value:
    if isinstance(node.inputs[0], Constant):
        W, x = node.array(0, 2), node.view(1)
        if node.axis(2, 0) != 0 or not x.step.integers or W.dtype.kind != "f":
            raise DataError("only the rows of a matrix can be looked up, by integers")
        features = new(ax.same(W.shape[1]))

        def write(w: Writer, placed: list[Placed]) -> Placed:
            layout = (*placed[0].layout, features)
            return w.layer(L.Embedding(*W.shape), placed[0], layout, W=W)

        plan = Plan((x,), write)
        return node.step("Embedding", [x, node.inputs[0]], [*x.groups, features], False, plan)
    x, indices = node.view(), node.const(1)
    if indices is None:
        raise DataError("its indices are missing")
    axis = node.axis(len(x.groups), 0)
    places = []
    for n, a in zip(size_of(x.groups[axis]), indices.each(), strict=True):
        if a.ndim > 1 or a.size > 1 << 20:
            raise DataError("its indices must be an integer or a list")
        node.it.budget.take(a.shape)
        places.append([i + n if i < 0 else i for i in map(int, a.ravel())])
        if any(not 0 <= i < n for i in places[-1]):
            raise DataError(f"its indices {a.ravel()[:9]} are not all in 0 to {n - 1}")
    y = taken(node, x, axis, places)
    if indices.each()[0].ndim == 1:
        return y
    return View(y.step, (*y.groups[:axis], *y.groups[axis + 1 :]))


def taken(node: Call, x: View, axis: int, places: list[list[int]]) -> View:
    """Return the elements at these places along an axis, for each probe."""
    sizes = size_of(x.groups[axis])
    if all(len(p) == n and p == list(range(n)) for p, n in zip(places, sizes, strict=True)):
        return x
    fresh = new(tuple(map(len, places)))

    def write(w: Writer, placed: list[Placed]) -> Placed:
        columns, along = chosen(w, places), leaves(x.groups[axis])
        if w.batch in along:
            raise DataError(f"{w.at.name} selects samples of the batch.")
        crop = None if x.step.integers else _cropped(w, placed[0], along, columns, fresh)
        if crop is not None:
            return crop
        p, order = w.features(placed[0], along)
        inverse = {} if order is None else {place: i for i, place in enumerate(order)}
        select = L.Select([inverse.get(c, c) for c in columns], tokens=x.step.integers)
        return w.layer(select, p, (*p.layout[:-1], fresh))

    groups, plan = [*x.groups[:axis], fresh, *x.groups[axis + 1 :]], Plan((x,), write)
    return node.step("Take", [x], groups, x.step.integers, plan, axis=axis, places=places)


def chosen(w: Writer, places: list[list[int]]) -> list[int]:
    """Return places along an axis that do not depend on the size of the input."""
    columns, *others = places
    if any(other != columns for other in others):
        raise DataError(f"{w.at.name} selects elements by the size of the input.")
    return columns


def _cropped(
    w: Writer, placed: Placed, along: Group, columns: list[int], fresh: Group
) -> Placed | None:
    """Return a crop of images, if it is the one in the centre."""
    layout = expanded(placed.layout)
    if len(layout) != 4 or along not in layout[1:3]:
        return None
    axis = layout.index(along, 1)
    first = (number(along) - len(columns)) // 2
    if columns != list(range(first, first + len(columns))):
        return None
    sizes = [number(group) for group in layout[1:3]]
    sizes[axis - 1] = len(columns)
    out = (*layout[:axis], fresh, *layout[axis + 1 :])
    made = w.operations[-1] if w.operations else None
    if made and made.output == placed.value and isinstance(made.does, L.RandomCrop):
        placed = Placed(made.inputs[0], layout)  # one crop along both axes
    return w.layer(L.RandomCrop(tuple(sizes)), placed, out)


@handles("Slice")
def slice_(node: Call) -> Value:
    x = y = node.view()
    for axis in range(len(x.groups)):
        places = [np.moveaxis(a, axis, -1) for a in node.tried(x.shapes(), axis)]
        if min(a.size for a in places) == 0:
            raise DataError("it leaves no elements")
        y = taken(node, y, axis, [a[(0,) * (a.ndim - 1)].tolist() for a in places])
    return y


@handles("Split")
def split(node: Call) -> Outputs:
    x, sizes = node.view(), node.ints(1)
    axis = node.axis(len(x.groups), 0)
    total = number(x.groups[axis], "the axis that it splits")
    if sizes is None:
        count = node.attribute("num_outputs", len(node.outputs))
        if not 0 < count <= total:
            raise DataError(f"it cannot split {total} elements into {count} parts")
        size = -(-total // count)
        sizes = [min(size, total - i * size) for i in range(count)]
    if sum(sizes) != total or min(sizes, default=0) < 1 or len(sizes) != len(node.outputs):
        raise DataError(f"its parts {sizes[:9]} do not fit {total} elements")
    node.it.budget.take([total])
    ends = np.cumsum(sizes).tolist()
    return [
        taken(node, x, axis, [list(range(end - n, end))] * ax.PROBES)
        for n, end in zip(sizes, ends, strict=True)
    ]


@handles("Concat")
def concat(node: Call) -> Value:
    views = [node.view(i) for i in range(len(node.inputs))]
    groups = views[0].groups
    axis = node.axis(len(groups))
    if len({len(view.groups) for view in views}) > 1:
        raise DataError("its inputs have different numbers of axes")
    if len(views) == 1:
        return views[0]
    others = [view.sizes() for view in views]
    lengths = [sizes.pop(axis) for sizes in others]
    if any(sizes != others[0] for sizes in others):
        raise DataError("its inputs have different sizes")
    total = tuple(map(sum, zip(*lengths, strict=True)))
    whole = new(total)

    def write(w: Writer, placed: list[Placed]) -> Placed:
        first, _ = w.features(placed[0], groups[axis], exact=True)
        layout = expanded(first.layout)[:-1]
        rest, *others = (View(v.step, v.groups[:axis] + v.groups[axis + 1 :]) for v in views)
        arranged = [first]
        for view, other, p in zip(views[1:], others, placed[1:], strict=True):
            same = translated(layout, rest, other)
            arranged.append(w.arranged(p, (*same, view.groups[axis])))
        return w.add("concat", arranged, (*layout, whole))

    after, plan = [*groups[:axis], whole, *groups[axis + 1 :]], Plan(tuple(views), write)
    return node.step("Concat", views, after, False, plan, axis=axis)


# --- scikit-learn ---------------------------------------------------------------------------------


def feature_count(x: View) -> int:
    if len(x.groups) != 2:
        raise DataError(f"its input has {len(x.groups)} axes instead of 2")
    return number(x.groups[1])


@handles("Scaler")
def scaler(node: Call) -> Value:
    """(x - offset) * scale."""
    x = node.view()
    D = feature_count(x)
    for op, name in (("Sub", "offset"), ("Mul", "scale")):
        a = np.array(node.attribute(name, []), np.float32)
        if a.shape not in ((1,), (D,)):
            raise DataError(f"its {name} does not fit {D} features")
        inputs: list[Value | None] = [x, Constant((a,))]
        x = node.step(op, inputs, broadcast(inputs))
    return x


def linear(node: Call, count: int) -> View:
    """Return the scores of a linear model with this many outputs, after its transformation."""
    x = node.view()
    D = feature_count(x)
    W = np.array(node.attribute("coefficients", []), np.float32)
    if count < 1 or W.size != count * D:
        raise DataError(f"its {W.size} coefficients do not fit {D} features and {count} outputs")
    y = product(node, x, W.reshape(count, D).T)
    if "intercepts" in node.attributes:
        b = np.array(node.attribute("intercepts"), np.float32)
        if b.shape != (count,):
            raise DataError(f"its intercepts do not fit {count} outputs")
        y = node.step("Add", [y, Constant((b,))], y.groups)
    transform = node.attribute("post_transform", "NONE")
    if transform == "LOGISTIC":
        return activated(node, "Sigmoid", y)
    if transform == "SOFTMAX":
        return softened(node, L.Softmax, y, y.groups[1])
    if transform != "NONE":
        raise DataError(f"post_transform={transform} is not supported")
    return y


@handles("LinearRegressor")
def linear_regressor(node: Call) -> Value:
    return linear(node, node.attribute("targets", 1))


@handles("LinearClassifier")
def linear_classifier(node: Call) -> Outputs:
    labels = node.attribute("classlabels_ints") or node.attribute("classlabels_strings") or []
    if len(node.attribute("intercepts", [])) == 1:
        raise DataError("one score for two classes is not supported")
    label = LabelError(f"{node.name}: labels are not supported: a model returns numbers.")
    return [label, linear(node, len(labels))]


@handles("Normalizer")
def normalizer(node: Call) -> Value:
    """Probabilities add up to 1 already."""
    x = node.view()
    after = x.step.op == "Softmax" and x.groups[-1] == x.step.settings["along"]
    if node.attribute("norm") == "L1" and after:
        return x
    raise DataError("it is supported only after a softmax, where it changes nothing")
