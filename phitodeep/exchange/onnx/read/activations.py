"""Activations, which are recognised by their values, however many operators a graph uses."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from phitodeep import functional as F
from phitodeep import layers as L
from phitodeep.core.call import inference
from phitodeep.core.types import Array
from phitodeep.errors import DataError
from phitodeep.exchange.onnx.read.axes import Group, expanded, flat, leaves
from phitodeep.exchange.onnx.read.building import Placed, Plan, Writer, applied
from phitodeep.exchange.onnx.read.interpreting import Call, handles
from phitodeep.exchange.onnx.read.values import MOST, TOLERANCE, Step, Value, View, decimal, scalar
from phitodeep.layers import activation

# --- operators and layers by their values ---------------------------------------------------------


BENT: dict[str, Callable[..., Any]] = {  # what ONNX's operators compute; float64
    "Relu": F.relu,
    "LeakyRelu": F.leaky_relu,
    "Elu": F.elu,
    "Celu": lambda x, alpha=1.0: alpha * F.elu(x / alpha),
    "Selu": lambda x, alpha=1.6732632, gamma=1.050701: gamma * F.elu(x, alpha),
    "Gelu": F.gelu,
    "Mish": F.mish,
    "Tanh": np.tanh,
    "Sigmoid": F.sigmoid,
    "Softplus": F.softplus,
    "Softsign": F.softsign,
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: np.clip(alpha * x + beta, 0, 1),
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "Erf": F.erf,
    "Abs": np.abs,
    "Clip": np.clip,
}
OPERATORS: dict[str, Callable[..., Any]] = {  # those that activations and norms are written with
    **BENT,
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
    "Neg": np.negative,
    "Sqrt": np.sqrt,
    "Reciprocal": np.reciprocal,
    "ReduceMean": lambda x, reduced: x.mean(-1, keepdims=True),
    "Greater": np.greater,
    "Where": np.where,
}
_MIDDLE = np.linspace(0.2, 25, 60)
FAR = float(np.finfo(np.float32).max)  # so that every limit shows
POINTS = np.concatenate([[0.0], _MIDDLE, -_MIDDLE, [1e4, -1e4, FAR, -FAR]])
KINDS = [getattr(activation, name) for name in activation.__all__]
LAYERS: list[Callable[[], L.Layer]] = [  # with their usual settings
    *(kind for kind in KINDS if kind.time_steps == "independent" and kind is not L.PReLU),
    lambda: L.GELU("tanh"),
]


def _at_points(make: Callable[[], L.Layer]) -> Array:
    """Return the values of a layer at POINTS."""
    made = make()
    made.build(POINTS.shape, dtype=np.float64)
    with inference():
        return made.forward(POINTS[None])[0].copy()


@functools.cache
def _known() -> list[Array]:
    """Return the values of each of LAYERS."""
    return [_at_points(make) for make in LAYERS]


def with_values(Y: Array, op: str = "") -> L.Layer | None:
    """Return the layer with these values at POINTS; of several, one that is named like `op`."""
    fits = [make() for make, Z in zip(LAYERS, _known(), strict=True) if equal(Y, Z)]
    low = float(Y[-1])  # which says alpha
    for kind, alpha in ((L.LeakyReLU, low / POINTS[-1]), (L.CELU, -low), (L.ELU, -low)):
        if not fits and math.isfinite(low) and (alpha > 0 or kind is L.LeakyReLU):
            make: Callable[[], L.Layer] = functools.partial(kind, decimal(alpha))
            fits = [make()] if equal(Y, _at_points(make)) else []
    fits.sort(key=lambda layer: type(layer).__name__.lower() != op.lower())
    return fits[0] if fits else None


def equal(Y: Array, Z: Array) -> bool:
    """Return whether two arrays are equal up to a few roundings of float32."""
    return bool((np.abs(Y - Z) <= TOLERANCE * (1 + np.abs(Z))).all())


# --- activations ----------------------------------------------------------------------------------


@handles(*BENT)
def operator(node: Call) -> Value:
    """An operator that may be an activation, or a part of one."""
    x, settings = node.view(), {**node.attributes}
    if node.op == "Clip":
        settings = {}
        for i, (name, free) in enumerate((("min", -math.inf), ("max", math.inf)), 1):
            given = node.const(i)
            limit = node.attribute(name, free) if given is None else given.scalar()
            if limit is None:
                raise DataError(f"its {name} must be a number")
            settings[name] = limit
    return activated(node, node.op, x, **settings)


def activated(node: Call, op: str, x: View, **settings: Any) -> View:
    """Return the output of one of BENT."""
    made = with_values(BENT[op](POINTS, **settings), op)
    plan = None if made is None else applied(x, made)
    return node.step(op, [x], x.groups, False, plan, **settings)


def compound(step: Step) -> Plan | None:
    """An activation written with simpler operators: it has the values of one of our layers."""
    for x in reversed(inside(step.output, BENT)):
        Y = values(step.output, x, POINTS)
        if isinstance(Y, np.ndarray) and (made := with_values(Y)):
            return applied(x, made)
    return None


def inside(end: View, kinds: Collection[str]) -> list[View]:
    """Return the views that an expression is computed from, and what those are computed from.

    Without any operator of these kinds, none are returned.
    """
    found = [end]
    for view in found:  # which grows
        for x in view.step.inputs if view.step.op in OPERATORS else ():
            if isinstance(x, View) and len(found) < MOST and x not in found:
                found.append(x)
    return found[1:] if any(view.step.op in kinds for view in found) else []


def values(end: View, x: View, X: Array) -> Any:
    """Return the values of an expression where x is X; None if it needs anything else.

    Means are those of the rows of X: of the last axis of x.
    """
    known: dict[Step, Any] = {}

    def fits(step: Step) -> bool:
        features = leaves(x.groups[-1]) if X.ndim == 2 else None
        return step.op != "ReduceMean" or (
            leaves(step.settings["reduced"]) == features and not step.groups[-1]
        )

    def of(view: View) -> Any:
        if view.is_(x):
            return X
        step = view.made_by(*OPERATORS)
        if step is None or not fits(step) or (step not in known and len(known) == MOST):
            return None
        if step not in known:
            known[step] = None
            given = [of(i) if isinstance(i, View) else scalar(i) for i in step.inputs]
            if not any(value is None for value in given):
                known[step] = OPERATORS[step.op](*given, **step.settings)
        return known[step]

    return of(end)


# --- softmax --------------------------------------------------------------------------------------


@handles("Softmax", "LogSoftmax")
def softmax(node: Call) -> Value:
    x, new_rule = node.view(), node.it.opset >= 13
    axis = node.axis(len(x.groups), -1 if new_rule else 1)
    along = x.groups[axis] if new_rule else flat(x.groups[axis:])
    return softened(node, L.Softmax if node.op == "Softmax" else L.LogSoftmax, x, along)


def softened(node: Call, kind: Any, x: View, along: Group) -> View:
    """Return the output of a Softmax or LogSoftmax along some axes."""

    def write(w: Writer, placed: list[Placed]) -> Placed:
        layout = expanded(placed[0].layout)
        if leaves(along) in layout[1:]:
            axis = layout.index(leaves(along), 1)
            last = axis == len(layout) - 1
            return w.layer(kind(-1 if last else axis), placed[0], layout)
        p, _ = w.features(placed[0], along)
        return w.layer(kind(), p, p.layout)

    return node.step(kind.__name__, [x], x.groups, False, Plan((x,), write), along=along)
