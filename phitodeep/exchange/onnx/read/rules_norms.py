"""How norms are recognised, and constants that scale and shift features."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from phitodeep import layers as L
from phitodeep.core.types import Array
from phitodeep.exchange.onnx.read.axes import Group, count, expanded, flat, leaves
from phitodeep.exchange.onnx.read.expressions import (
    Affine,
    affine,
    op,
    reflected,
    square,
    total,
    vector,
)
from phitodeep.exchange.onnx.read.operators import decimal
from phitodeep.exchange.onnx.read.placing import Placed, Plan, Writer, on_features
from phitodeep.exchange.onnx.read.values import Constant, Step, View

# --- scale and shift ------------------------------------------------------------------------------


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
        along = given.along or w_last(placed[0])
        w.it.budget.take([count(along)], 64)
        size = count(along)
        arrays = {name: given.filled(part, size, value) for name, (part, value) in names.items()}
        arrays |= {name: np.full(size, value) for name, value in constants.items()}
        return on_features(x, along, make, arrays).write(w, placed)

    return Plan((x,), write)


def w_last(placed: Placed) -> Group:
    """Return the axes of the features."""
    return expanded(placed.layout)[-1] if len(placed.layout) > 1 else ()


def prelu(step: Step) -> Plan | None:
    slope, x = step.const(1), step.view()
    if slope is None:
        return None
    v = vector(slope, x)
    return _per_feature(x, Affine(x, None, v, None), L.PReLU, {"alpha": ("scale", 0.0)})


# --- norms ----------------------------------------------------------------------------------------


def layer_norm(step: Step) -> Plan:
    s = step.settings
    if step.op == "RMSNormalization":
        return on_features(
            step.view(), s["along"], lambda: L.RMSNorm(s["eps"]), {"gamma": s["gamma"]}
        )
    arrays = {"gamma": s["gamma"], "beta": s["beta"]}
    return on_features(step.view(), s["along"], lambda: L.LayerNorm(s["eps"]), arrays)


def written_norm(step: Step) -> Plan | None:
    """LayerNorm and RMSNorm written with simpler operators, and GroupNorm; scaled and shifted."""
    found = affine(step.output)
    if found.start is not None or found.along is None:
        return None
    if (inner := op(found.x, "InstanceNormalization")) is not None or (
        found.x.step.op == "InstanceNormalization"
    ):
        return group_norm(found, inner or found.x.step)
    core = _normalised(found.x)
    if core is None:
        return None
    x, along, eps, centred = core
    if (found.along and leaves(found.along) != along) or (found.shift and not centred):
        return None
    size = count(along)
    arrays = {"gamma": found.filled("scale", size, 1.0)}
    if not centred:
        return on_features(x, along, lambda: L.RMSNorm(eps), arrays)
    arrays["beta"] = found.filled("shift", size, 0.0)
    return on_features(x, along, lambda: L.LayerNorm(eps), arrays)


def _normalised(view: View) -> tuple[View, Group, float, bool] | None:
    """Return x, its features, eps, and whether the mean is subtracted, for a norm of x."""
    parts = _over_root(view)
    if parts is None:
        return None
    d, under = parts
    eps, means = total(under)
    mean = op(means[0], "ReduceMean") if len(means) == 1 else None
    if mean is None or eps <= 0:
        return None
    squared = square(mean.view())
    if squared is None or not squared.is_(d):
        return None
    along = leaves(mean.settings["reduced"])
    if along != leaves(d.groups[-1]):
        return None
    difference = op(d, "Sub")
    if difference and isinstance(difference.inputs[0], View):
        x, centre = difference.view(0), difference.inputs[1]
        average = op(centre, "ReduceMean") if isinstance(centre, View) else None
        same_axes = average and leaves(average.settings["reduced"]) == along
        if average and same_axes and average.view().is_(x):
            return x, along, decimal(eps), True
    return d, along, decimal(eps), False


def _over_root(view: View) -> tuple[View, View] | None:
    """Return a and b for a / sqrt(b), also written as a * reciprocal(sqrt(b))."""
    quotient = op(view, "Div")
    if quotient and isinstance(quotient.inputs[0], View):
        root = _root(quotient.view(1)) if isinstance(quotient.inputs[1], View) else None
        return None if root is None else (quotient.view(0), root)
    times = op(view, "Mul")
    if times and all(isinstance(i, View) for i in times.inputs):
        for i in (0, 1):
            inverse = times.view(1 - i).step
            inner: View | None = None
            if inverse.op == "Reciprocal":
                inner = inverse.view()
            elif inverse.op == "Div" and (c := inverse.inputs[0]) and isinstance(c, Constant):
                inner = inverse.view(1) if c.scalar() == 1 else None
            elif inverse.op == "Pow":
                exponent = inverse.const(1)
                if exponent is not None and exponent.scalar() == -0.5:
                    return times.view(i), inverse.view()
            root = None if inner is None else _root(inner)
            if root is not None:
                return times.view(i), root
    return None


def _root(view: View) -> View | None:
    """Return b for sqrt(b)."""
    step = view.step
    if step.op == "Sqrt":
        return step.view()
    exponent = step.const(1) if step.op == "Pow" and isinstance(step.inputs[1], Constant) else None
    return step.view() if exponent is not None and exponent.scalar() == 0.5 else None


def group_norm(found: Affine, inner: Step) -> Plan | None:
    """InstanceNormalization of (samples, groups, rest), then a scale and shift of each channel."""
    s, x = inner.settings, inner.view()
    groups = leaves(s["channels"])
    along = leaves(found.along or groups)
    if along[: len(groups)] != groups or not set(along) <= set(flat(x.groups[1:])):
        return None
    number, size = count(groups), count(along)
    gamma, beta = (np.repeat(a, size // number) for a in s["arrays"])
    scale, shift = found.filled("scale", size, 1.0), found.filled("shift", size, 0.0)
    arrays = {"gamma": gamma * scale, "beta": beta * scale + shift}
    return _by_group(View(inner, found.x.groups), x, along, number, s["eps"], arrays)


def _by_group(
    out: View, x: View, along: Group, number: int, eps: float, arrays: dict[str, Array]
) -> Plan:
    """Return the plan of a GroupNorm with this number of groups of the features `along`."""

    def write(w: Writer, placed: list[Placed]) -> Placed:
        lead = w.lead(x.groups[0])
        w.vote(placed[0], out, (0, *range(2, len(out.groups)), 1))
        p, _ = w.features(placed[0], along or w_last(placed[0]), exact=True)
        inside = [g for g in expanded(p.layout)[1:] if not (g and set(g) <= set(lead))]
        layout = ((w.batch,), *((axis,) for axis in lead), *inside)
        p = w.arranged(p, layout)
        size = count(layout[-1])
        w.it.budget.take([size])
        filled = {name: np.broadcast_to(a, (size,)) for name, a in arrays.items()}
        made = L.InstanceNorm(eps) if number == size else L.GroupNorm(number, eps)
        return w.layer_in(lead, made, p, layout, **filled)

    return Plan((x,), write)


def channel_norm(step: Step) -> Plan:
    """BatchNormalization, InstanceNormalization and GroupNormalization (samples, channels, ...)."""
    s, x = step.settings, step.view()
    arrays = s["arrays"]
    if step.op == "BatchNormalization":
        names = ("gamma", "beta", "running_mean", "running_var")
        weights = dict(zip(names, arrays, strict=True))
        plan = on_features(x, s["channels"], lambda: L.BatchNorm(s["momentum"], s["eps"]), weights)

        def write(w: Writer, placed: list[Placed]) -> Placed:
            w.vote(placed[0], x, (0, *range(2, len(x.groups)), 1))
            return plan.write(w, placed)

        return Plan(plan.inputs, write)
    number = s["count"] if step.op == "GroupNormalization" else len(arrays[0])
    along = leaves(s["channels"])
    return _by_group(x, x, along, number, s["eps"], {"gamma": arrays[0], "beta": arrays[1]})
