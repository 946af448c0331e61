"""How dense layers, embeddings, parts of values and merges are recognised."""

from __future__ import annotations

import numpy as np

from phitodeep import layers as L
from phitodeep.core.types import Array
from phitodeep.errors import DataError
from phitodeep.exchange.onnx.read.axes import Group, expanded, leaves, number, size_of
from phitodeep.exchange.onnx.read.building import Placed, Plan, Writer, translated
from phitodeep.exchange.onnx.read.expressions import reflected, vector
from phitodeep.exchange.onnx.read.values import Step, View

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
        layout = (*p.layout[:-1], out)
        if b is None and order is None:
            for table in w.tables:
                if np.array_equal(table_of(w, table).T, W):
                    return w.layer(L.TiedDense(table), p, layout)
        rows = W if order is None else W[order]
        return w.layer(L.Dense(W.shape[1], bias=b is not None), p, layout, W=rows, **bias)

    return Plan((x,), write)


def dense_parts(step: Step) -> tuple[View | None, Array | None, Array | None]:
    """Return x, W and b of x W + b; b may be missing."""
    if step.op == "MatMul":
        return step.view(), step.array(1), None
    found = step.pair("Add")
    inner = found and found.c.fixed and found.x.made_by("MatMul")
    if found and inner:
        v, out = vector(found.c, found.x), inner.groups[-1]
        if leaves(v.along) in (leaves(out), ()):
            return inner.view(), inner.array(1), np.broadcast_to(v.values, (size_of(out)[0],))
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
    x, axis = step.view(), step.settings["axis"]
    along = leaves(x.groups[axis])

    def write(w: Writer, placed: list[Placed]) -> Placed:
        columns = _columns(step, step)
        if w.batch in along:
            raise DataError(f"{step.name} selects samples of the batch.")
        crop = _cropped(w, placed[0], along, columns, step)
        if crop is not None:
            return crop
        p, order = w.features(placed[0], along)
        inverse = {} if order is None else {place: i for i, place in enumerate(order)}
        chosen = [inverse.get(c, c) for c in columns]
        layout = (*p.layout[:-1], step.groups[axis])
        return w.layer(L.Select(chosen, tokens=step.integers), p, layout)

    return Plan((x,), write)


def _columns(step: Step, take: Step) -> list[int]:
    """Return the places that a Take selects, which do not depend on the size of the input."""
    columns, *others = take.settings["places"]
    if any(other != columns for other in others):
        raise DataError(f"{step.name} selects elements by the size of the input.")
    found: list[int] = columns
    return found


def _cropped(
    w: Writer, placed: Placed, along: Group, columns: list[int], step: Step
) -> Placed | None:
    """Return a crop of images, if it is the one in the centre."""
    layout = expanded(placed.layout)
    if len(layout) != 4 or along not in layout[1:3] or step.integers:
        return None
    axis = layout.index(along, 1)
    first = (number(along) - len(columns)) // 2
    if columns != list(range(first, first + len(columns))):
        return None
    sizes = [number(group) for group in layout[1:3]]
    sizes[axis - 1] = len(columns)
    out = (*layout[:axis], step.groups[step.settings["axis"]], *layout[axis + 1 :])
    made = w.operations[-1] if w.operations else None
    if made and made.output == placed.value and isinstance(made.does, L.RandomCrop):
        placed = Placed(made.inputs[0], layout)  # one crop along both axes
    return w.layer(L.RandomCrop(tuple(sizes)), placed, out)


def tokens(step: Step) -> Plan | None:
    """Categories in columns of numbers."""
    inner = step.view().made_by("Take")
    x = inner.view() if inner else step.view()
    axis = inner.settings["axis"] if inner else len(x.groups) - 1
    along, out = x.groups[axis], step.groups[axis] if len(step.groups) > axis else ()

    def write(w: Writer, placed: list[Placed]) -> Placed:
        p, _ = w.features(placed[0], along, exact=True)
        w.it.budget.take([number(along)], 64)
        columns = _columns(step, inner) if inner else list(range(number(along)))
        return w.layer(L.Select(columns, tokens=True), p, (*p.layout[:-1], out))

    return Plan((x,), write)


def reshape(step: Step) -> Plan:
    """A Reshape that cuts across axes."""
    x = step.view()
    shape = [number(group) for group in step.groups[1:]]

    def write(w: Writer, placed: list[Placed]) -> Placed:
        return w.layer(L.Reshape(*shape), w.arranged(placed[0], x.groups), step.groups)

    return Plan((x,), write)


def merge(step: Step) -> Plan | None:
    """A sum or a product of two views with the same sizes."""
    views = step.views()
    if not views:
        return None

    def write(w: Writer, placed: list[Placed]) -> Placed:
        try:
            layouts = [translated(placed[0].layout, views[0], view) for view in views]
        except (DataError, KeyError):
            raise DataError(
                f"{step.name} combines values of different shapes, which no layer does."
            ) from None
        arranged = [w.arranged(p, layout) for p, layout in zip(placed, layouts, strict=True)]
        how = {"Add": "add", "Mul": "multiply"}[step.op]
        return w.add(how, arranged, expanded(placed[0].layout))

    return Plan(tuple(views), write)


def two_classes(step: Step) -> Plan | None:
    """Concat(1 - sigmoid(z), sigmoid(z)), which is softmax(0, z), for a single score z."""
    if len(step.inputs) != 2 or step.settings["axis"] != len(step.groups) - 1:
        return None
    rest, p = step.views()
    sigmoid, found = p.made_by("Sigmoid"), reflected(rest)
    if not sigmoid or not found or not found.x.is_(p) or p.groups[-1]:
        return None
    if found.start is None or found.start.values.tolist() != [1.0]:
        return None

    def write(w: Writer, placed: list[Placed]) -> Placed:
        x, _ = w.features(placed[0], ())
        layout = (*x.layout[:-1], step.groups[-1])
        W = np.array([[0.0, 1.0]])
        return w.layer(L.Softmax(), w.layer(L.Dense(2, bias=False), x, layout, W=W), layout)

    return Plan((sigmoid.view(),), write)
