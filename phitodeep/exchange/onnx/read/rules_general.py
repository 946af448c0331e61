"""How dense layers, embeddings, parts of values and merges are recognised."""

from __future__ import annotations

import numpy as np

from phitodeep import layers as L
from phitodeep.core.types import Array
from phitodeep.errors import DataError
from phitodeep.exchange.onnx.read.axes import Group, count, expanded, leaves, size_of
from phitodeep.exchange.onnx.read.expressions import op, reflected, vector
from phitodeep.exchange.onnx.read.placing import Placed, Plan, Writer, merged
from phitodeep.exchange.onnx.read.values import Constant, Step, View

# --- dense layers ---------------------------------------------------------------------------------


def dense(step: Step) -> Plan | None:
    """A product with a matrix, with or without a bias after it."""
    x, W, b = dense_parts(step)
    if x is None or W is None:
        return None
    out = step.groups[-1]
    bias = {} if b is None else {"b": b}

    def write(w: Writer, placed: list[Placed]) -> Placed:
        p, order = w.features(placed[0], x.groups[-1])
        rows = W if order is None else W[order]
        if b is None and order is None:
            for table in w.tables:
                if table_of(w, table).T.shape == W.shape and np.array_equal(
                    table_of(w, table).T, W
                ):
                    return w.layer(L.TiedDense(table), p, (*p.layout[:-1], out))
        made = L.Dense(W.shape[1], bias=b is not None)
        return w.layer(made, p, (*p.layout[:-1], out), W=rows, **bias)

    return Plan((x,), write)


def dense_parts(step: Step) -> tuple[View | None, Array | None, Array | None]:
    """Return x, W and b of x W + b; b may be missing."""
    if step.op == "MatMul":
        return step.view(), step.array(1), None
    if step.op != "Add":
        return None, None, None
    for i in (0, 1):
        x, c = step.inputs[i], step.inputs[1 - i]
        if isinstance(x, View) and isinstance(c, Constant) and c.fixed:
            inner = op(x, "MatMul")
            v = vector(c, x) if inner else None
            if inner and v and leaves(v.along) in (leaves(inner.groups[-1]), ()):
                size = size_of(inner.groups[-1])[0]
                return inner.view(), inner.array(1), np.broadcast_to(v.values, (size,))
    return None, None, None


def table_of(w: Writer, table: L.Embedding) -> Array:
    """Return the vectors of an embedding."""
    return next(arrays["W"] for layer, arrays in w.weights if layer is table)


def embedding(step: Step) -> Plan:
    tokens, W = step.view(), step.array(1)

    def write(w: Writer, placed: list[Placed]) -> Placed:
        made = L.Embedding(*W.shape)
        w.tables.append(made)
        return w.layer(made, placed[0], (*placed[0].layout, step.groups[-1]), W=W)

    return Plan((tokens,), write)


# --- parts, merges --------------------------------------------------------------------------------


def take(step: Step) -> Plan:
    """Elements at some places along an axis."""
    x, places = step.view(), step.settings["places"]
    along = leaves(x.groups[step.settings["axis"]])
    columns = places[0]

    def write(w: Writer, placed: list[Placed]) -> Placed:
        if any(p != columns for p in places):
            raise DataError(f"{step.name} selects elements by the size of the input.")
        if w.batch in along:
            raise DataError(f"{step.name} selects samples of the batch.")
        crop = _cropped(w, placed[0], along, columns, step)
        if crop is not None:
            return crop
        p, order = w.features(placed[0], along)
        inverse = {} if order is None else {place: i for i, place in enumerate(order)}
        chosen = [inverse.get(c, c) for c in columns]
        out = step.groups[step.settings["axis"]] if step.groups else ()
        return w.layer(L.Select(chosen, tokens=step.integers), p, (*p.layout[:-1], out))

    return Plan((x,), write)


def _cropped(
    w: Writer, placed: Placed, along: Group, columns: list[int], step: Step
) -> Placed | None:
    """Return a crop of images, if it is the one in the centre."""
    layout = expanded(placed.layout)
    if len(layout) != 4 or along not in layout[1:3] or step.integers:
        return None
    axis, n = layout.index(along, 1), count(along)
    first = (n - len(columns)) // 2
    if columns != list(range(first, first + len(columns))):
        return None
    made = w.operations[-1] if w.operations else None
    sizes = [count(group) for group in layout[1:3]]
    sizes[axis - 1] = len(columns)
    out = (*layout[:axis], step.groups[step.settings["axis"]], *layout[axis + 1 :])
    before = made.does if made and made.output == placed.value else None
    if made and isinstance(before, L.RandomCrop):  # one crop along both axes
        placed = Placed(made.inputs[0], layout)
    return w.layer(L.RandomCrop(tuple(sizes)), placed, out)


def tokens(step: Step) -> Plan | None:
    """Categories in columns of numbers."""
    inner = op(step.view(), "Take")
    x = inner.view() if inner else step.view()
    axis = inner.settings["axis"] if inner else len(x.groups) - 1
    along, out = x.groups[axis], step.groups[axis] if len(step.groups) > axis else ()
    places = inner.settings["places"] if inner else None

    def write(w: Writer, placed: list[Placed]) -> Placed:
        p, _ = w.features(placed[0], along, exact=True)
        w.it.budget.take([count(along)], 64)
        columns = list(range(count(along))) if places is None else places[0]
        if places is not None and any(other != columns for other in places):
            raise DataError(f"{step.name} selects elements by the size of the input.")
        return w.layer(L.Select(columns, tokens=True), p, (*p.layout[:-1], out))

    return Plan((x,), write)


def reshape(step: Step) -> Plan:
    """A Reshape that cuts across axes."""
    x = step.view()
    shape = [count(group) for group in step.groups[1:]]

    def write(w: Writer, placed: list[Placed]) -> Placed:
        p = w.arranged(placed[0], x.groups)
        return w.layer(L.Reshape(*shape), p, step.groups)

    return Plan((x,), write)


def merge(step: Step) -> Plan | None:
    views = [i for i in step.inputs if isinstance(i, View)]
    how = {"Add": "add", "Mul": "multiply"}[step.op]
    return merged(step, views, how) if len(views) == 2 else None


def two_classes(step: Step) -> Plan | None:
    """Concat(1 - sigmoid(z), sigmoid(z)), which is softmax(0, z), for a single score z."""
    if len(step.inputs) != 2:
        return None
    p = op(step.view(1), "Sigmoid")
    found = reflected(step.view(0))
    if p is None or found is None or not found.x.is_(step.view(1)) or step.view(1).groups[-1]:
        return None
    if found.start is None or found.start.values.tolist() != [1.0]:
        return None
    if step.settings["axis"] != len(step.groups) - 1:
        return None

    def write(w: Writer, placed: list[Placed]) -> Placed:
        x, _ = w.features(placed[0], ())
        layout = (*x.layout[:-1], step.groups[-1])
        W = np.array([[0.0, 1.0]])
        return w.layer(L.Softmax(), w.layer(L.Dense(2, bias=False), x, layout, W=W), layout)

    return Plan((p.view(),), write)
