"""Products, sums and constants of steps, in whichever order a graph writes them."""

from __future__ import annotations

import operator
from typing import NamedTuple

import numpy as np

from phitodeep.core.types import Array
from phitodeep.errors import DataError
from phitodeep.exchange.onnx.read.axes import Group, expanded, flat
from phitodeep.exchange.onnx.read.values import Constant, Step, View

MOST = 16  # operations of one expression
MOST_FEATURES = 1 << 20  # for which a constant of the file is repeated
COMPUTE = {"Mul": operator.mul, "Div": operator.truediv, "Add": operator.add, "Sub": operator.sub}
TOLERANCE = 5e-7  # relative: a few roundings of float32


def near(found: float, value: float) -> bool:
    """Return whether a constant of a graph is this value, rounded to float32."""
    return abs(found - value) <= TOLERANCE * abs(value)


def op(view: View, name: str) -> Step | None:
    """Return the step of this kind whose output the view is, without rearrangement."""
    step = view.step
    if step.op != name or expanded(view.groups) != expanded(step.groups):
        return None
    return step


def scalar(value: object) -> float | None:
    return value.scalar() if isinstance(value, Constant) else None


def product(view: View, keep: View | None = None) -> tuple[float, list[View]]:
    """Return a number and the factors that the view is the product of.

    A factor equal to `keep` stays whole; otherwise factors are products no longer.
    """
    return _apart(view, keep, 1.0, "Mul", "Div")


def total(view: View, keep: View | None = None) -> tuple[float, list[View]]:
    """Return a number and the terms that the view is the sum of; `keep` stays whole."""
    return _apart(view, keep, 0.0, "Add", "Sub")


def _apart(
    view: View, keep: View | None, number: float, joins: str, undoes: str
) -> tuple[float, list[View]]:
    """Return a number and the views that an operator joins, and which another one undoes."""
    found, todo = list[View](), [view]
    for _ in range(MOST):
        if not todo:
            break
        x = todo.pop()
        step = x.step
        if keep is not None and x.is_(keep):
            found.append(x)
            continue
        a, b = step.inputs if len(step.inputs) == 2 else (None, None)
        if joins == "Mul" and step.op == "Neg":
            number, todo = -number, [*todo, View(step.view().step, x.groups)]
        elif step.op == joins and (c := scalar(b)) is not None:
            number, todo = COMPUTE[joins](number, c), [*todo, View(step.view(0).step, x.groups)]
        elif step.op == joins and (c := scalar(a)) is not None:
            number, todo = COMPUTE[joins](number, c), [*todo, View(step.view(1).step, x.groups)]
        elif step.op == undoes and (c := scalar(b)) is not None and (c or undoes == "Sub"):
            number, todo = COMPUTE[undoes](number, c), [*todo, View(step.view(0).step, x.groups)]
        elif (m := op(x, joins)) and isinstance(a, View) and isinstance(b, View):
            todo += [m.view(1), m.view(0)]
        elif joins == "Mul" and step.op == "Pow" and (c := scalar(b)) in (2.0, 3.0):
            todo += [View(step.view(0).step, x.groups)] * int(c)
        else:
            found.append(x)
    return number, found + todo


def parts(view: View) -> list[View]:
    """Return the views inside a product: its factors, their factors, and so on."""
    found, todo = list[View](), [view]
    while todo and len(found) < MOST:
        step = todo.pop().step
        if step.op in ("Mul", "Div", "Neg"):
            inside = [i for i in step.inputs if isinstance(i, View)]
            found += inside
            todo += inside
    return found


def square(view: View) -> View | None:
    """Return x for x * x, also written as a power."""
    if (step := op(view, "Mul")) and all(isinstance(i, View) for i in step.inputs):
        return step.view() if step.view(0).is_(step.view(1)) else None
    step = op(view, "Pow")
    return step.view() if step and scalar(step.inputs[1]) == 2 else None


def plus(view: View, number: float) -> View | None:
    """Return x for x + number."""
    step = op(view, "Add")
    for i in (0, 1) if step else ():
        if step and isinstance(step.inputs[i], View) and scalar(step.inputs[1 - i]) == number:
            return step.view(i)
    return None


def only(number: float, views: list[View], value: float) -> View | None:
    """Return the only factor or term, if the number has this value."""
    fits = number == value if value in (0, 1) else near(number, value)
    return views[0] if fits and len(views) == 1 else None


def other(views: list[View], x: View) -> View | None:
    """Return the view that is not x, if x is one of the two."""
    if len(views) != 2:
        return None
    first, second = views
    return second if first.is_(x) else first if second.is_(x) else None


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
    x, shift = _shifted(view)
    x, scale = _scaled(x)
    if scale is None:
        return Affine(x, None, None, shift)
    x, start = _shifted(x)
    if start is not None:
        start = Vector(start.along, -start.values)
    return Affine(x, start, scale, shift)


def _constant(step: Step) -> tuple[View, Constant, bool] | None:
    """Return the view and the constant that a step combines, and whether the constant is first."""
    if len(step.inputs) == 2:
        a, b = step.inputs
        if isinstance(a, View) and isinstance(b, Constant) and b.fixed:
            return a, b, False
        if isinstance(b, View) and isinstance(a, Constant) and a.fixed:
            return b, a, True
    return None


def _shifted(view: View) -> tuple[View, Vector | None]:
    step = op(view, "Add") or op(view, "Sub")
    found = step and _constant(step)
    if not step or not found or (step.op == "Sub" and found[2]):
        return view, None
    x, c, _ = found
    v = vector(c, view)
    return x, Vector(v.along, -v.values) if step.op == "Sub" else v


def _scaled(view: View) -> tuple[View, Vector | None]:
    """A difference from a constant is left to `reflected`."""
    step = op(view, "Mul") or op(view, "Div")
    found = step and _constant(step)
    if not step or not found or (step.op == "Div" and found[2]):
        return view, None
    x, c, _ = found
    v = vector(c, view)
    return x, Vector(v.along, 1 / v.values) if step.op == "Div" else v


def reflected(view: View) -> Affine | None:
    """Return c - x as ((x - c) * -1)."""
    step = op(view, "Sub")
    found = step and _constant(step)
    if not found or not found[2]:
        return None
    return Affine(found[0], vector(found[1], view), Vector((), np.array([-1.0])), None)
