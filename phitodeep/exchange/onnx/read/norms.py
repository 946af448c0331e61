"""How norms are recognised, and constants that scale and shift features."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from phitodeep import layers as L
from phitodeep.core.types import Array
from phitodeep.errors import DataError
from phitodeep.exchange.onnx.read.activations import equal, inside, values
from phitodeep.exchange.onnx.read.axes import Group, expanded, flat, leaves, number
from phitodeep.exchange.onnx.read.building import Placed, Plan, Writer, on_features
from phitodeep.exchange.onnx.read.interpreting import Call, handles
from phitodeep.exchange.onnx.read.values import (
    MOST_FEATURES,
    Constant,
    Step,
    Value,
    View,
    broadcast,
    decimal,
)

# --- constants that scale and shift, in whichever order a graph writes them -----------------------


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


def scale_and_shift(step: Step) -> Plan | None:
    """Constants that scale and shift each feature: a BatchNorm whose statistics never change."""
    found = reflected(step.output) or affine(step.output)
    if found.x.step is step or found.along is None:
        return None
    plan = _per_feature(
        found.x,
        found,
        lambda: L.BatchNorm(eps=EPS),
        {"running_mean": ("start", 0.0), "gamma": ("scale", 1.0), "beta": ("shift", 0.0)},
        running_var=1 - EPS,
    )

    def write(w: Writer, placed: list[Placed]) -> Placed:
        y = plan.write(w, placed)
        w.weights[-1][0].trainable = False
        return y

    return Plan(plan.inputs, write)


EPS = 2.0**-10  # 1 minus this, plus this, is exactly 1


def _per_feature(
    x: View,
    given: Affine,
    make: Callable[[], L.Layer],
    names: dict[str, tuple[str, float]],
    **constants: float,
) -> Plan:
    """Return the plan of a layer whose parameters are parts of an affine map of x."""

    def write(w: Writer, placed: list[Placed]) -> Placed:
        along = given.along or _last_features(placed[0])
        size = number(along)
        w.it.budget.take([size], 64)
        arrays = {name: given.filled(part, size, value) for name, (part, value) in names.items()}
        arrays |= {name: np.full(size, value) for name, value in constants.items()}
        return on_features(x, along, make, arrays).write(w, placed)

    return Plan((x,), write)


def _last_features(placed: Placed) -> Group:
    """Return the axes of the features."""
    return expanded(placed.layout)[-1] if len(placed.layout) > 1 else ()


@handles("PRelu")
def prelu(node: Call) -> Value:
    x, slope = node.view(), node.array(1)
    v = vector(Constant((slope,)), x)
    plan = _per_feature(x, Affine(x, None, v, None), L.PReLU, {"alpha": ("scale", 0.0)})
    return node.step("PRelu", [x], broadcast([x, Constant((slope,))]), False, plan)


# --- norms ----------------------------------------------------------------------------------------


@handles("LayerNormalization", "RMSNormalization")
def layer_norm(node: Call) -> Value:
    x, gamma, beta = node.view(), node.array(1), node.const(2)
    axis = node.axis(len(x.groups), -1)
    sizes = tuple(number(group, "what it normalises") for group in x.groups[axis:])
    kind: type[L.LayerNorm] | type[L.RMSNorm] = L.RMSNorm
    arrays = {"gamma": gamma}
    if node.op == "LayerNormalization":
        arrays["beta"] = np.zeros_like(gamma) if beta is None else beta.array("its bias")
        kind = L.LayerNorm
    if any(a.shape != sizes for a in arrays.values()):
        raise DataError(f"its parameters of shape {gamma.shape} do not fit the sizes {sizes}")
    eps = decimal(node.attribute("epsilon", 1e-5))
    weights = {name: a.ravel() for name, a in arrays.items()}
    plan = on_features(x, flat(x.groups[axis:]), lambda: kind(eps), weights)
    return node.step(node.op, [x], x.groups, False, plan)


@handles("BatchNormalization", "InstanceNormalization", "GroupNormalization")
def channel_norm(node: Call) -> Value:
    x = node.view()
    if len(x.groups) < 2 or node.attribute("training_mode"):
        raise DataError("it is in training mode: export the network for inference")
    if node.op == "GroupNormalization" and node.it.opset < 21:
        raise DataError("GroupNormalization before opset 21 is not supported")
    C = number(x.groups[1], "its number of channels")
    arrays = [node.array(i, 1) for i in range(1, 5 if node.op == "BatchNormalization" else 3)]
    if any(a.shape != (C,) for a in arrays):
        raise DataError(f"its parameters do not fit {C} channels")
    eps, count = decimal(node.attribute("epsilon", 1e-5)), node.attribute("num_groups", C)
    weights = dict(zip(("gamma", "beta", "running_mean", "running_var"), arrays, strict=False))
    if node.op != "BatchNormalization":
        plan = _by_group(x, x, x.groups[1], count, eps, weights)
        return node.step(node.op, [x], x.groups, False, plan, weights=weights, eps=eps, count=count)
    momentum = round(1 - decimal(node.attribute("momentum", 0.9)), 7)
    plan = on_features(x, x.groups[1], lambda: L.BatchNorm(momentum, eps), weights)

    def write(w: Writer, placed: list[Placed]) -> Placed:
        w.vote(placed[0], x, (0, *range(2, len(x.groups)), 1))
        return plan.write(w, placed)

    return node.step(node.op, [x], x.groups, False, Plan((x,), write))


def written_norm(step: Step) -> Plan | None:
    """LayerNorm and RMSNorm written with simpler operators, and GroupNorm; scaled and shifted."""
    found = affine(step.output)
    if found.start is not None or found.along is None:
        return None
    if found.x.step.op == "InstanceNormalization":
        return group_norm(found, found.x.step)
    core = _normalised(found.x)
    if core is None:
        return None
    x, kind, eps = core
    along = leaves(x.groups[-1])
    if (found.along and leaves(found.along) != along) or (found.shift and kind is L.RMSNorm):
        return None
    size = number(along)
    arrays = {"gamma": found.filled("scale", size, 1.0)}
    if kind is L.LayerNorm:
        arrays["beta"] = found.filled("shift", size, 0.0)
    return on_features(x, along, lambda: kind(eps), arrays)


ROWS = np.random.default_rng(0).standard_normal((4, 6)) * [[1], [0.01], [100], [1e-9]]


def _normalised(view: View) -> tuple[View, type[L.LayerNorm] | type[L.RMSNorm], float] | None:
    """Return x, the kind of norm and its eps, if a view has the values of a norm of x."""
    for x in reversed(inside(view, ["ReduceMean"])):
        Y = values(view, x, ROWS)
        if Y is None:
            continue
        for kind, C in ((L.LayerNorm, ROWS - ROWS.mean(-1, keepdims=True)), (L.RMSNorm, ROWS)):
            squares = np.square(C).mean(-1, keepdims=True)
            eps = float(((C / Y) ** 2 - squares)[-1, 0])
            if eps > 1e-30 and equal(Y, C / np.sqrt(squares + eps)):
                return x, kind, decimal(eps)
    return None


def group_norm(found: Affine, inner: Step) -> Plan | None:
    """InstanceNormalization of (samples, groups, rest), then a scale and shift of each channel."""
    s, x = inner.settings, inner.view()
    groups = leaves(x.groups[1])
    along = leaves(found.along or groups)
    if along[: len(groups)] != groups or not set(along) <= set(flat(x.groups[1:])):
        return None
    size = number(along)
    gamma, beta = (np.repeat(a, size // s["count"]) for a in s["weights"].values())
    scale, shift = found.filled("scale", size, 1.0), found.filled("shift", size, 0.0)
    arrays = {"gamma": gamma * scale, "beta": beta * scale + shift}
    return _by_group(View(inner, found.x.groups), x, along, s["count"], s["eps"], arrays)


def _by_group(
    out: View, x: View, along: Group, count: int, eps: float, arrays: dict[str, Array]
) -> Plan:
    """Return the plan of a GroupNorm of the features `along`."""

    def write(w: Writer, placed: list[Placed]) -> Placed:
        lead = w.lead(x.groups[0])
        w.vote(placed[0], out, (0, *range(2, len(out.groups)), 1))
        p, _ = w.features(placed[0], leaves(along) or _last_features(placed[0]), exact=True)
        inside = [g for g in expanded(p.layout)[1:] if not (g and set(g) <= set(lead))]
        p, _ = w.samples_first(p, x.groups[0], tuple(inside))
        size = number(p.layout[-1])
        w.it.budget.take([size])
        filled = {name: np.broadcast_to(a, (size,)) for name, a in arrays.items()}
        made = L.InstanceNorm(eps) if count == size else L.GroupNorm(count, eps)
        return w.layer(made, p, p.layout, lead, **filled)

    return Plan((x,), write)
