"""Constants that scale and shift the values of steps, in whichever order a graph writes them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phitodeep.core.types import Array
from phitodeep.errors import DataError
from phitodeep.exchange.onnx.read.axes import Group, flat
from phitodeep.exchange.onnx.read.values import Constant, View

MOST = 16  # operations of one expression
MOST_FEATURES = 1 << 20  # for which a constant of the file is repeated
TOLERANCE = 5e-7  # relative: a few roundings of float32


def near(found: float, value: float) -> bool:
    """Return whether a constant of a graph is this value, rounded to float32."""
    return abs(found - value) <= TOLERANCE * abs(value)


def scalar(value: object) -> float | None:
    return value.scalar() if isinstance(value, Constant) else None


def scaled(view: View) -> tuple[float, View]:
    """Return a number and what the view is this multiple of."""
    number = 1.0
    for _ in range(MOST):
        step = view.step
        found, c = step.pair("Mul", "Div"), None
        if found and not (step.op == "Div" and found.swapped):
            c = found.c.scalar()
        if found and c is not None and (c or step.op == "Mul"):
            number = number * c if step.op == "Mul" else number / c
            view = View(found.x.step, view.groups)
        elif step.op == "Neg":
            number, view = -number, View(step.view().step, view.groups)
        else:
            break
    return number, view


def square(view: View) -> View | None:
    """Return x for x * x, also written as a power."""
    step = view.made_by("Mul", "Pow")
    if step and step.op == "Mul" and (both := step.views()):
        return both[0] if both[0].is_(both[1]) else None
    return step.view() if step and step.op == "Pow" and scalar(step.inputs[1]) == 2 else None


class Vector(NamedTuple):
    """The values of a constant along the axes where they differ; a scalar has none."""

    along: Group
    values: Array


def vector(constant: Constant, view: View) -> Vector:
    """Return a constant that is combined with a view."""
    a = constant.array("a constant")
    rank = len(view.groups)
    shape = (1,) * (rank - a.ndim) + a.shape[max(0, a.ndim - rank) :]
    varying = [group for n, group in zip(shape, view.groups, strict=True) if n != 1]
    return Vector(flat(varying), a.ravel())


class Affine(NamedTuple):
    """((x - start) * scale) + shift; a part that is None is left out."""

    x: View
    start: Vector | None
    scale: Vector | None
    shift: Vector | None

    @property
    def along(self) -> Group | None:
        """The axes of all parts, or None if they differ."""
        found = {v.along for v in (self.start, self.scale, self.shift) if v and v.along}
        return None if len(found) > 1 else found.pop() if found else ()

    def filled(self, name: str, size: int, default: float) -> Array:
        """Return a part as an array of this size."""
        part = getattr(self, name)
        if size > MOST_FEATURES and (part is None or part.values.size < size):
            raise DataError(f"one number for each of {size} features would take too much memory")
        values = np.array([default]) if part is None else part.values
        return np.broadcast_to(values, (size,)).copy()


def affine(view: View) -> Affine:
    """Return what remains of a view after constants that scale and shift it."""
    x, shift = _without(view, "Add", "Sub")
    x, scale = _without(x, "Mul", "Div")
    if scale is None:
        return Affine(x, None, None, shift)
    x, start = _without(x, "Add", "Sub")
    return Affine(x, start and Vector(start.along, -start.values), scale, shift)


def _without(view: View, op: str, inverse: str) -> tuple[View, Vector | None]:
    """Return a view before a constant is combined with it, and the constant."""
    step = view.made_by(op, inverse)
    found = step and step.pair(op, inverse)
    if not step or not found or not found.c.fixed or (step.op == inverse and found.swapped):
        return view, None
    v = vector(found.c, view)
    if step.op == inverse:
        v = Vector(v.along, -v.values if inverse == "Sub" else 1 / v.values)
    return found.x, v


def reflected(view: View) -> Affine | None:
    """Return c - x as ((x - c) * -1)."""
    step = view.made_by("Sub")
    found = step and step.pair("Sub")
    if not found or not found.swapped or not found.c.fixed:
        return None
    return Affine(found.x, vector(found.c, view), Vector((), np.array([-1.0])), None)
