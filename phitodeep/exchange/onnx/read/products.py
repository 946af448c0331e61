"""How dense layers and merges are recognised."""

from __future__ import annotations

import numpy as np

from phitodeep import layers as L
from phitodeep.core.types import Array
from phitodeep.errors import DataError
from phitodeep.exchange.onnx.read.axes import Group, expanded, leaves, size_of
from phitodeep.exchange.onnx.read.building import Placed, Plan, Writer, translated
from phitodeep.exchange.onnx.read.norms import reflected, vector
from phitodeep.exchange.onnx.read.values import Step, View
from phitodeep.exchange.tree import MERGES

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
            for table, arrays in w.weights:
                if isinstance(table, L.Embedding) and np.array_equal(arrays["W"].T, W):
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


# --- merges --------------------------------------------------------------------------------------


HOW = {"Add": "add", "Sub": "subtract", "Mul": "multiply", "Max": "maximum"}
BOTH = ("add", "multiply")  # as containers too


def merge(step: Step) -> Plan | None:
    """A sum, a difference, a product or the larger of two views."""
    return merging(step, HOW[step.op]) if step.views() else None


def merging(step: Step, how: str) -> Plan:
    """Return the plan of a layer that merges the views of a step; axes of size 1 are repeated."""
    views, sizes = step.views(), [size_of(group) for group in step.groups]
    whole = [i for i, view in enumerate(views) if view.sizes() == sizes]
    alike = len(whole) == len(views)

    def write(w: Writer, placed: list[Placed]) -> Placed:
        out = expanded(placed[0].layout)
        try:
            if alike:
                layouts = [translated(out, views[0], view) for view in views]
            else:
                i = whole[0] if whole else 0
                have, mine = expanded(placed[i].layout), expanded(views[i].groups)
                axes = [mine.index(g) for g in have] if {*have} == {*mine} else [*range(len(mine))]
                layouts = [tuple([view.groups[k] for k in axes]) for view in views]
                out = tuple([step.groups[k] for k in axes])
        except (DataError, KeyError, ValueError, IndexError):
            raise DataError(
                f"{step.name} combines values of different shapes, which no layer does."
            ) from None
        arranged = [w.arranged(p, layout) for p, layout in zip(placed, layouts, strict=True)]
        return w.add(how if alike and how in BOTH else MERGES[how](), arranged, out)

    return Plan(tuple(views), write)


def dot(step: Step) -> Plan | None:
    """The sum of the products of two views along one axis."""
    product = step.view().made_by("Mul")
    views, along = product.views() if product else [], leaves(step.settings["reduced"])
    if not views or views[0].sizes() != views[1].sizes():
        return None
    return dotted(views, along) if along in expanded(views[0].groups) else None


def dotted(views: list[View], along: Group) -> Plan:
    """Return the plan of a Dot of two views along an axis."""

    def write(w: Writer, placed: list[Placed]) -> Placed:
        first, _ = w.features(placed[0], along, exact=True)
        second = w.arranged(placed[1], translated(first.layout, *views))
        return w.add(L.Dot(), [first, second], (*expanded(first.layout)[:-1], ()))

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
