"""Activations, which are recognised by their values, however many operators a graph uses."""

from __future__ import annotations

import copy
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
from phitodeep.exchange.correspondence import TABLE
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
for _row in TABLE.values():  # what is written as one operator without settings
    if isinstance(_row.onnx, functools.partial) and not _row.onnx.args[1] and callable(_row.numpy):
        BENT.setdefault(_row.onnx.args[0], _row.numpy)
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
LINEAR = {"Add", "Sub", "Mul", "Div", "Neg"}
SHARP = {*BENT, "Greater"} - {"Tanh", "Sigmoid"}  # GELU and Mish apply them to curves
_MIDDLE = np.linspace(0.2, 25, 60)
FAR = float(np.finfo(np.float32).max)  # so that every limit shows
DENSE = np.linspace(-30, 30, 20001)
BESIDE = np.outer([0, 1, -1], 10.0 ** np.arange(-46, 39)).ravel()  # all decades of float32
POINTS = np.concatenate([BESIDE, _MIDDLE, -_MIDDLE, [FAR, -FAR]])
SIDES = (POINTS > 0, POINTS < 0)
KINDS = [getattr(activation, name) for name in activation.__all__]
LAYERS: list[Callable[[], L.Layer]] = [  # with their usual settings
    *(kind for kind in KINDS if kind.time_steps == "independent" and kind is not L.PReLU),
    lambda: L.GELU("tanh"),
]


def _at(X: Array, layer: L.Layer) -> Array:
    """Return the values of a layer at these points."""
    layer.build(X.shape, dtype=np.float64)
    with inference():
        return layer.forward(X[None])[0].copy()


@functools.cache
def _known() -> list[Array]:
    """Return the values of each of LAYERS."""
    return [_at(POINTS, make()) for make in LAYERS]


def with_values(Y: Array, op: str = "") -> L.Layer | None:
    """Return the layer with these values at POINTS; of several, one that is named like `op`."""
    fits = [make() for make, Z in zip(LAYERS, _known(), strict=True) if equal(Y, Z, POINTS)]
    low = float(Y[-1])  # which says alpha
    for kind, alpha in ((L.LeakyReLU, low / POINTS[-1]), (L.CELU, -low), (L.ELU, -low)):
        alpha = decimal(alpha)
        possible = alpha > 0 or kind is L.LeakyReLU
        if not fits and possible and math.isfinite(alpha) and (op or alpha != 1):  # 1 is identity
            fits = [kind(alpha)] if equal(Y, _at(POINTS, kind(alpha)), POINTS) else []
    fits.sort(key=lambda layer: type(layer).__name__.lower() != op.lower())
    return fits[0] if fits else None


def equal(Y: Array, Z: Array, X: Array | float = 1.0) -> bool:
    """Return whether two arrays, the values at X, are equal up to a few roundings of float32."""
    return bool((np.abs(Y - Z) <= TOLERANCE * (np.minimum(np.abs(X), 1) + np.abs(Z))).all())


# --- activations ----------------------------------------------------------------------------------


@handles(*BENT)
def operator(node: Call) -> Value:
    """An operator that may be an activation, or a part of one."""
    x, settings = node.view(), {**node.attributes}
    if node.op == "Clip":
        settings = {}
        for i, (name, free) in enumerate((("min", -math.inf), ("max", math.inf)), 1):
            given = node.const(i)
            limit = free if given is None else given.scalar()
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
        known: dict[Step, Any] = {}
        Y = values(step.output, x, POINTS, known)
        made = with_values(Y) if isinstance(Y, np.ndarray) else None
        if made and equal_everywhere(made, step.output, x, known):
            return applied(x, made)
    return None


def equal_everywhere(layer: L.Layer, end: View, x: View, known: dict[Step, Any]) -> bool:
    """Return whether an expression of x, whose steps have these values at POINTS, is a layer.

    It is compared on both sides of wherever a line, a x + b, has the value of a constant, as it may
    bend there. It is refused if it may bend elsewhere: where something else is bent, or is 0.
    """
    lines: dict[Step | None, tuple[float, float]] = {None: (1.0, 0.0)}  # None is x
    constants = {0.0, 3.0, -3.0}  # HardSwish bends at 3 and -3
    for step in sorted(known, key=lambda step: step.index):
        straight = all(i.is_(x) or i.step in lines for i in step.inputs if isinstance(i, View))
        s = step.settings
        constants.update(i for i in [*map(scalar, step.inputs), *s.values()] if type(i) is float)
        if step.op == "HardSigmoid":
            constants |= {(i - s.get("beta", 0.5)) / (s.get("alpha", 0.2) or 1) for i in (0, 1)}
        Y = known[step] + np.zeros_like(POINTS)
        a, b = (Y[-2] - Y[-1]) / (2 * FAR), Y[0]
        error = np.abs(Y - a * POINTS - b) / (np.abs(a * POINTS) + abs(b))
        if straight and step.op in LINEAR and 0 < abs(a) < math.inf and np.nanmax(error) < 1e-12:
            lines[step] = a, b
        elif (step.op in SHARP and not straight) or any(Y[i].min() < 0 < Y[i].max() for i in SIDES):
            return False
    at = np.concatenate([(np.array([*constants]) - b) / a for a, b in lines.values()])[:, None]
    X = np.concatenate([DENSE, (at + BESIDE).ravel(), (at * (1 + BESIDE)).ravel()])
    X = np.clip(X[np.isfinite(X)], -FAR, FAR)
    return equal(values(end, x, X), _at(X, copy.deepcopy(layer)), X)


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


def values(end: View, x: View, X: Array, known: dict[Step, Any] | None = None) -> Any:
    """Return the values of an expression where x is X; None if it needs anything else.

    Means are those of the rows of X: of the last axis of x. Then nothing may bend. The values of
    all steps are put into `known`.
    """
    known = {} if known is None else known

    def fits(step: Step) -> bool:
        features = leaves(x.groups[-1]) if X.ndim == 2 else None
        if step.op == "ReduceMean":
            return leaves(step.settings["reduced"]) == features and not step.groups[-1]
        return features is None or step.op not in SHARP

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
