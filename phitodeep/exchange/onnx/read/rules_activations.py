"""How activations are recognised: by their operator, or by their values if it takes several."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from phitodeep import layers as L
from phitodeep.core.types import Array
from phitodeep.exchange.onnx.read.axes import expanded, leaves
from phitodeep.exchange.onnx.read.building import Placed, Plan, Writer, applied
from phitodeep.exchange.onnx.read.expressions import MOST, TOLERANCE, near, scalar
from phitodeep.exchange.onnx.read.operators import decimal
from phitodeep.exchange.onnx.read.values import Step, View

Settings = dict[str, Any]
NO_LIMIT = (math.inf, float(np.finfo(np.float32).max))


def _selu(s: Settings) -> L.Layer | None:
    alpha, gamma = s.get("alpha", L.SELU.alpha), s.get("gamma", L.SELU.scale)
    return L.SELU() if near(alpha, L.SELU.alpha) and near(gamma, L.SELU.scale) else None


def _hard_sigmoid(s: Settings) -> L.Layer | None:
    fits = near(s.get("alpha", 0.2), 1 / 6) and near(s.get("beta", 0.5), 0.5)
    return L.HardSigmoid() if fits else None


def _elu(kind: type[L.ELU] | type[L.CELU]) -> Callable[[Settings], L.Layer | None]:
    def make(s: Settings) -> L.Layer | None:
        alpha = s.get("alpha", 1.0)
        return kind(decimal(alpha)) if alpha > 0 else None

    return make


def _clip(s: Settings) -> L.Layer | None:
    if (s["min"], s["max"]) == (-1, 1):
        return L.HardTanh()
    return L.ReLU() if s["min"] == 0 and s["max"] in NO_LIMIT else None


LAYERS: dict[str, Callable[[Settings], L.Layer | None]] = {  # of each operator, by its settings
    "Relu": lambda s: L.ReLU(),
    "Sigmoid": lambda s: L.Sigmoid(),
    "Tanh": lambda s: L.Tanh(),
    "Softplus": lambda s: L.Softplus(),
    "Softsign": lambda s: L.Softsign(),
    "Mish": lambda s: L.Mish(),
    "HardSwish": lambda s: L.HardSwish(),
    "Gelu": lambda s: L.GELU(s.get("approximate", "none")),
    "LeakyRelu": lambda s: L.LeakyReLU(decimal(s.get("alpha", 0.01))),
    "Elu": _elu(L.ELU),
    "Celu": _elu(L.CELU),
    "Selu": _selu,
    "HardSigmoid": _hard_sigmoid,
    "Clip": _clip,
}


def operator(step: Step) -> Plan | None:
    """An activation that is a single operator."""
    made = LAYERS[step.op](step.settings)
    return None if made is None else applied(step.view(), made)


# --- activations of several operators -------------------------------------------------------------


def _erf(x: Array) -> Array:
    return np.array([math.erf(value) for value in x])


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


def _scaled_elu(x: Array, alpha: float) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(x / alpha))


OPERATORS: dict[str, Callable[..., Any]] = {  # of which activations are written; float64
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
    "Neg": np.negative,
    "Abs": np.abs,
    "Greater": np.greater,
    "Where": np.where,
    "Tanh": np.tanh,
    "Sigmoid": _sigmoid,
    "Softplus": _softplus,
    "Erf": _erf,
    "Elu": lambda x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(x)),
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: np.clip(alpha * x + beta, 0, 1),
    "Clip": lambda x, min, max: np.clip(x, min, max),
}
BENT = {"Tanh", "Sigmoid", "Softplus", "Erf", "Elu", "HardSigmoid", "Clip", "Abs"}
COMPOUND: list[tuple[Callable[[], L.Layer], Callable[[Array], Array]]] = [
    (L.SiLU, lambda x: x * _sigmoid(x)),
    (L.Mish, lambda x: x * np.tanh(_softplus(x))),
    (L.HardSwish, lambda x: x * np.clip(x + 3, 0, 6) / 6),
    (L.HardSigmoid, lambda x: np.clip(x + 3, 0, 6) / 6),
    (L.Softsign, lambda x: x / (1 + np.abs(x))),
    (L.Softplus, _softplus),
    (L.GELU, lambda x: x / 2 * (1 + _erf(x / math.sqrt(2)))),
    (
        lambda: L.GELU("tanh"),
        lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
]
_MIDDLE = np.linspace(0.2, 25, 60)
POINTS = np.concatenate([[0.0], _MIDDLE, -_MIDDLE, [1e4, -1e4, 1e30, -1e30]])


def compound(step: Step) -> Plan | None:
    """An activation written with simpler operators: it has the values of one of our layers."""
    for x in reversed(_inside(step)):
        Y = _values(step.output, x)
        if isinstance(Y, np.ndarray) and (made := _with_values(Y)):
            return applied(x, made)
    return None


def _inside(step: Step) -> list[View]:
    """Return the views that an expression is computed from, and what those are computed from.

    Without any bent operator, there is no activation, and none are returned.
    """
    found = [step.output]
    for view in found:  # which grows
        for x in view.step.inputs if view.step.op in OPERATORS else ():
            if isinstance(x, View) and len(found) < MOST and not any(x.is_(y) for y in found):
                found.append(x)
    return found[1:] if any(view.step.op in BENT for view in found) else []


def _values(end: View, x: View) -> Any:
    """Return the values of an expression where x is POINTS; None if it needs anything else."""
    known: dict[Step, Any] = {}

    def values(view: View) -> Any:
        if view.is_(x):
            return POINTS
        step = view.made_by(*OPERATORS)
        if step is None or (step not in known and len(known) == MOST):
            return None
        if step not in known:
            known[step] = None
            given = [values(i) if isinstance(i, View) else scalar(i) for i in step.inputs]
            if not any(value is None for value in given):
                known[step] = OPERATORS[step.op](*given, **step.settings)
        return known[step]

    return values(end)


def _with_values(Y: Array) -> L.Layer | None:
    """Return the layer that computes these values from POINTS."""
    alpha = -float(Y[-1])  # of a CELU, where x is negative and large
    if 0 < alpha < -POINTS[-1] and _equal(Y, _scaled_elu(POINTS, alpha)):
        return L.CELU(decimal(alpha))
    equal = _equal(Y, _known()).tolist()
    return COMPOUND[equal.index(True)][0]() if True in equal else None


@functools.cache
def _known() -> Array:
    """Return the values of each row of COMPOUND."""
    return np.array([values(POINTS) for _, values in COMPOUND])


def _equal(Y: Array, Z: Array) -> Any:
    return (np.abs(Y - Z) <= TOLERANCE * (1 + np.abs(Z))).all(axis=-1)


# --- softmax --------------------------------------------------------------------------------------


def softmax(step: Step) -> Plan:
    kind = L.Softmax if step.op == "Softmax" else L.LogSoftmax
    x, along = step.view(), step.settings["along"]

    def write(w: Writer, placed: list[Placed]) -> Placed:
        layout = expanded(placed[0].layout)
        if leaves(along) in layout[1:]:
            axis = layout.index(leaves(along), 1)
            last = axis == len(layout) - 1
            return w.layer(kind(-1 if last else axis), placed[0], layout)
        p, _ = w.features(placed[0], along)
        return w.layer(kind(), p, p.layout)

    return Plan((x,), write)
