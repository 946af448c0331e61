"""How activations are recognised, also when they are written with simpler operators."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from phitodeep import layers as L
from phitodeep.exchange.onnx.read.axes import expanded, leaves
from phitodeep.exchange.onnx.read.expressions import (
    near,
    only,
    op,
    other,
    parts,
    plus,
    product,
    total,
)
from phitodeep.exchange.onnx.read.operators import decimal
from phitodeep.exchange.onnx.read.placing import Placed, Plan, Writer, applied
from phitodeep.exchange.onnx.read.values import Step, View

SAME = ("Sigmoid", "Tanh", "Softplus", "Softsign", "Mish", "HardSwish")
SIMPLE: dict[str, Callable[[], L.Layer]] = {"Relu": L.ReLU, **{op: getattr(L, op) for op in SAME}}


def simple(step: Step) -> Plan:
    return applied(step, step.view(), SIMPLE[step.op]())


WITH_SETTINGS = ("LeakyRelu", "Elu", "Celu", "Selu", "HardSigmoid", "Gelu")


def with_settings(step: Step) -> Plan | None:
    """Activations whose operator has attributes."""
    s = step.settings
    alpha = s.get("alpha", 0.01 if step.op == "LeakyRelu" else 1.0)
    made: L.Layer | None = None
    if step.op == "LeakyRelu":
        made = L.LeakyReLU(decimal(alpha))
    elif step.op in ("Elu", "Celu") and alpha > 0:
        made = (L.ELU if step.op == "Elu" else L.CELU)(decimal(alpha))
    elif step.op == "Selu":
        alpha, gamma = s.get("alpha", L.SELU.alpha), s.get("gamma", L.SELU.scale)
        made = L.SELU() if near(alpha, L.SELU.alpha) and near(gamma, L.SELU.scale) else None
    elif step.op == "HardSigmoid":
        alpha, beta = s.get("alpha", 0.2), s.get("beta", 0.5)
        made = L.HardSigmoid() if near(alpha, 1 / 6) and near(beta, 0.5) else None
    elif step.op == "Gelu":
        made = L.GELU(s.get("approximate", "none"))
    return None if made is None else applied(step, step.view(), made)


def clip(step: Step) -> Plan | None:
    low, high = step.settings["low"], step.settings["high"]
    if (low, high) == (-1, 1):
        return applied(step, step.view(), L.HardTanh())
    if low == 0 and high in (math.inf, float(np.finfo(np.float32).max)):
        return applied(step, step.view(), L.ReLU())
    return None


def compound(step: Step) -> Plan | None:
    """SiLU, Mish, HardSwish, HardSigmoid, GELU and CELU, written with simpler operators."""
    for x in parts(step.output):
        number, factors = product(step.output, keep=x)
        gate = other(factors, x)
        layer = None if gate is None else _gate(number, x, gate)
        if layer is not None:
            return applied(step, x, layer)
    number, factors = product(step.output)
    if len(factors) != 1:
        return None
    if elu := op(factors[0], "Elu"):
        alpha = elu.settings.get("alpha", 1.0)
        for x in parts(elu.view()):
            inverse, inner = product(elu.view(), keep=x)
            fits = near(alpha, 1) and near(number * inverse, 1) and number > 0
            if fits and len(inner) == 1 and inner[0].is_(x):
                return applied(step, x, L.CELU(decimal(number)))
    inside = _relu6(factors[0])
    if inside is not None and near(number, 1 / 6):
        return applied(step, inside, L.HardSigmoid())
    return None


def _relu6(view: View) -> View | None:
    """Return x for clip(x + 3, 0, 6)."""
    step = op(view, "Clip")
    if step is None or (step.settings["low"], step.settings["high"]) != (0, 6):
        return None
    return plus(step.view(), 3)


def _gate(number: float, x: View, gate: View) -> L.Layer | None:
    """Return the layer that computes number * x * gate(x)."""
    step = gate.step
    if number == 1 and op(gate, "Sigmoid") and step.view().is_(x):
        return L.SiLU()
    if number == 1 and op(gate, "Tanh") and (inner := op(step.view(), "Softplus")):
        return L.Mish() if inner.view().is_(x) else None
    if number == 1 and op(gate, "HardSigmoid") and step.view().is_(x):
        alpha, beta = step.settings.get("alpha", 0.2), step.settings.get("beta", 0.5)
        return L.HardSwish() if near(alpha, 1 / 6) and near(beta, 0.5) else None
    if near(number, 1 / 6) and (inside := _relu6(gate)):
        return L.HardSwish() if inside.is_(x) else None
    inner_view = plus(gate, 1) if near(number, 0.5) else None
    if inner_view is None:
        return None
    if erf := op(inner_view, "Erf"):
        argument = only(*product(erf.view(), keep=x), math.sqrt(0.5))
        return L.GELU() if argument and argument.is_(x) else None
    if (tanh := op(inner_view, "Tanh")) and _is_gelu_argument(tanh.view(), x):
        return L.GELU("tanh")
    return None


def _is_gelu_argument(view: View, x: View) -> bool:
    """Return whether a view is sqrt(2 / pi) (x + 0.044715 x^3)."""
    for inside in parts(view):
        if only(*product(view, keep=inside), math.sqrt(2 / math.pi)) is None:
            continue
        number, terms = total(inside, keep=x)
        cubic = other(terms, x) if number == 0 else None
        if cubic is not None:
            return _is_power(cubic, x, 3)
        number, factors = product(inside, keep=x)  # x (1 + 0.044715 x^2)
        rest = other(factors, x) if number == 1 else None
        squared = plus(rest, 1) if rest is not None else None
        if squared is not None:
            return _is_power(squared, x, 2)
    return False


def _is_power(view: View, x: View, n: int) -> bool:
    """Return whether a view is 0.044715 x^n."""
    number, factors = product(view, keep=x)
    return near(number, 0.044715) and len(factors) == n and all(f.is_(x) for f in factors)


def softsign(step: Step) -> Plan | None:
    x, below = step.inputs
    if not isinstance(x, View) or not isinstance(below, View):
        return None
    inner = plus(below, 1)
    absolute = inner and op(inner, "Abs")
    if absolute and absolute.view().is_(x):
        return applied(step, x, L.Softsign())
    return None


def guarded_softplus(step: Step) -> Plan | None:
    """Where(x > 20, x, Softplus(x)): the same, to the last digit of float32."""
    test, x, soft = step.inputs
    if not (isinstance(test, View) and isinstance(x, View) and isinstance(soft, View)):
        return None
    greater, inner = op(test, "Greater"), op(soft, "Softplus")
    if greater and inner and inner.view().is_(x) and greater.inputs[0] == x:
        limit = greater.const(1)
        if limit is not None and (limit.scalar() or 0) >= 20:
            return applied(step, x, L.Softplus())
    return None


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
