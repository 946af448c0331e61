"""How activations, dense layers, norms, lookups and selections are recognised."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from phitodeep.errors import DataError
from phitodeep.exchange.onnx.axes import Group, count, expanded, flat, leaves, size_of
from phitodeep.exchange.onnx.expressions import (
    Affine,
    affine,
    near,
    only,
    op,
    other,
    parts,
    plus,
    product,
    reflected,
    square,
    total,
    vector,
)
from phitodeep.exchange.onnx.placing import (
    Placed,
    Plan,
    Writer,
    applied,
    concatenated,
    merged,
    on_features,
)
from phitodeep.exchange.onnx.values import Constant, Step, View
from phitodeep.layers import (
    CELU,
    ELU,
    GELU,
    SELU,
    BatchNorm,
    Dense,
    Embedding,
    GroupNorm,
    HardSigmoid,
    HardSwish,
    HardTanh,
    InstanceNorm,
    Layer,
    LayerNorm,
    LeakyReLU,
    LogSoftmax,
    Mish,
    PReLU,
    RandomCrop,
    ReLU,
    Reshape,
    RMSNorm,
    Select,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Softsign,
    Tanh,
    TiedDense,
)
from phitodeep.types import Array

# --- activations ----------------------------------------------------------------------------------

SIMPLE: dict[str, Callable[[], Layer]] = {
    "Relu": ReLU,
    "Sigmoid": Sigmoid,
    "Tanh": Tanh,
    "Softplus": Softplus,
    "Softsign": Softsign,
    "Mish": Mish,
    "HardSwish": HardSwish,
}


def simple(step: Step) -> Plan:
    return applied(step, step.view(), SIMPLE[step.op]())


def with_settings(step: Step) -> Plan | None:
    """Activations whose operator has attributes."""
    s = step.settings
    alpha = s.get("alpha", 0.01 if step.op == "LeakyRelu" else 1.0)
    made: Layer | None = None
    if step.op == "LeakyRelu":
        made = LeakyReLU(_short(alpha))
    elif step.op in ("Elu", "Celu") and alpha > 0:
        made = (ELU if step.op == "Elu" else CELU)(_short(alpha))
    elif step.op == "Selu":
        alpha, gamma = s.get("alpha", SELU.alpha), s.get("gamma", SELU.scale)
        made = SELU() if near(alpha, SELU.alpha) and near(gamma, SELU.scale) else None
    elif step.op == "HardSigmoid":
        alpha, beta = s.get("alpha", 0.2), s.get("beta", 0.5)
        made = HardSigmoid() if near(alpha, 1 / 6) and near(beta, 0.5) else None
    elif step.op == "Gelu":
        made = GELU(s.get("approximate", "none"))
    return None if made is None else applied(step, step.view(), made)


def _short(alpha: float) -> float:
    """Return the shortest decimal of a float32."""
    return float(str(np.float32(alpha)))


def clip(step: Step) -> Plan | None:
    low, high = step.settings["low"], step.settings["high"]
    if (low, high) == (-1, 1):
        return applied(step, step.view(), HardTanh())
    if low == 0 and high in (math.inf, float(np.finfo(np.float32).max)):
        return applied(step, step.view(), ReLU())
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
                return applied(step, x, CELU(_short(number)))
    inside = _relu6(factors[0])
    if inside is not None and near(number, 1 / 6):
        return applied(step, inside, HardSigmoid())
    return None


def _relu6(view: View) -> View | None:
    """Return x for clip(x + 3, 0, 6)."""
    step = op(view, "Clip")
    if step is None or (step.settings["low"], step.settings["high"]) != (0, 6):
        return None
    return plus(step.view(), 3)


def _gate(number: float, x: View, gate: View) -> Layer | None:
    """Return the layer that computes number * x * gate(x)."""
    step = gate.step
    if number == 1 and op(gate, "Sigmoid") and step.view().is_(x):
        return SiLU()
    if number == 1 and op(gate, "Tanh") and (inner := op(step.view(), "Softplus")):
        return Mish() if inner.view().is_(x) else None
    if number == 1 and op(gate, "HardSigmoid") and step.view().is_(x):
        alpha, beta = step.settings.get("alpha", 0.2), step.settings.get("beta", 0.5)
        return HardSwish() if near(alpha, 1 / 6) and near(beta, 0.5) else None
    if near(number, 1 / 6) and (inside := _relu6(gate)):
        return HardSwish() if inside.is_(x) else None
    inner_view = plus(gate, 1) if near(number, 0.5) else None
    if inner_view is None:
        return None
    if erf := op(inner_view, "Erf"):
        argument = only(*product(erf.view(), keep=x), math.sqrt(0.5))
        return GELU() if argument and argument.is_(x) else None
    if (tanh := op(inner_view, "Tanh")) and _is_gelu_argument(tanh.view(), x):
        return GELU("tanh")
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
        return applied(step, x, Softsign())
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
            return applied(step, x, Softplus())
    return None


def prelu(step: Step) -> Plan | None:
    slope, x = step.const(1), step.view()
    if slope is None:
        return None
    v = vector(slope, x)
    return _per_feature(x, Affine(x, None, v, None), PReLU, {"alpha": ("scale", 0.0)})


def softmax(step: Step) -> Plan:
    kind = Softmax if step.op == "Softmax" else LogSoftmax
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
        rows = W if order is None else W[order]
        if b is None and order is None:
            for table in w.tables:
                if table_of(w, table).T.shape == W.shape and np.array_equal(
                    table_of(w, table).T, W
                ):
                    return w.layer(TiedDense(table), p, (*p.layout[:-1], out))
        made = Dense(W.shape[1], bias=b is not None)
        return w.layer(made, p, (*p.layout[:-1], out), W=rows, **bias)

    return Plan((x,), write)


def dense_parts(step: Step) -> tuple[View | None, Array | None, Array | None]:
    """Return x, W and b of x W + b; b may be missing."""
    if step.op == "MatMul":
        return step.view(), step.array(1), None
    if step.op != "Add":
        return None, None, None
    for i in (0, 1):
        x, c = step.inputs[i], step.inputs[1 - i]
        if isinstance(x, View) and isinstance(c, Constant) and c.fixed:
            inner = op(x, "MatMul")
            v = vector(c, x) if inner else None
            if inner and v and leaves(v.along) in (leaves(inner.groups[-1]), ()):
                size = size_of(inner.groups[-1])[0]
                return inner.view(), inner.array(1), np.broadcast_to(v.values, (size,))
    return None, None, None


def table_of(w: Writer, table: Embedding) -> Array:
    """Return the vectors of an embedding."""
    return next(arrays["W"] for layer, arrays in w.weights if layer is table)


def embedding(step: Step) -> Plan:
    tokens, W = step.view(), step.array(1)

    def write(w: Writer, placed: list[Placed]) -> Placed:
        made = Embedding(*W.shape)
        w.tables.append(made)
        return w.layer(made, placed[0], (*placed[0].layout, step.groups[-1]), W=W)

    return Plan((tokens,), write)


# --- scale and shift ------------------------------------------------------------------------------


def scale_and_shift(step: Step) -> Plan | None:
    """Constants that scale and shift each feature: a BatchNorm whose statistics never change."""
    found = reflected(step.output) or affine(step.output)
    if found.x.step is step or found.along is None:
        return None
    plan = _per_feature(
        found.x,
        found,
        lambda: BatchNorm(eps=EPS),
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
    make: Callable[[], Layer],
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
        return on_features(x, along, make, **arrays).write(w, placed)

    return Plan((x,), write)


def w_last(placed: Placed) -> Group:
    """Return the axes of the features."""
    return expanded(placed.layout)[-1] if len(placed.layout) > 1 else ()


# --- norms ----------------------------------------------------------------------------------------


def layer_norm(step: Step) -> Plan:
    s = step.settings
    if step.op == "RMSNormalization":
        return on_features(step.view(), s["along"], lambda: RMSNorm(s["eps"]), gamma=s["gamma"])
    arrays = {"gamma": s["gamma"], "beta": s["beta"]}
    return on_features(step.view(), s["along"], lambda: LayerNorm(s["eps"]), **arrays)


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
    if found.along and leaves(found.along) != along or (found.shift and not centred):
        return None
    size = count(along)
    arrays = {"gamma": found.filled("scale", size, 1.0)}
    if not centred:
        return on_features(x, along, lambda: RMSNorm(eps), **arrays)
    arrays["beta"] = found.filled("shift", size, 0.0)
    return on_features(x, along, lambda: LayerNorm(eps), **arrays)


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
            return x, along, _short(eps), True
    return d, along, _short(eps), False


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
        made = InstanceNorm(eps) if number == size else GroupNorm(number, eps)
        return w.layer_in(lead, made, p, layout, **filled)

    return Plan((x,), write)


def channel_norm(step: Step) -> Plan:
    """BatchNormalization, InstanceNormalization and GroupNormalization (samples, channels, ...)."""
    s, x = step.settings, step.view()
    arrays = s["arrays"]
    if step.op == "BatchNormalization":
        names = ("gamma", "beta", "running_mean", "running_var")
        made: Callable[[], Layer] = lambda: BatchNorm(s["momentum"], s["eps"])  # noqa: E731
        plan = on_features(x, s["channels"], made, **dict(zip(names, arrays, strict=True)))

        def write(w: Writer, placed: list[Placed]) -> Placed:
            w.vote(placed[0], x, (0, *range(2, len(x.groups)), 1))
            return plan.write(w, placed)

        return Plan(plan.inputs, write)
    number = s["count"] if step.op == "GroupNormalization" else len(arrays[0])
    along = leaves(s["channels"])
    return _by_group(x, x, along, number, s["eps"], {"gamma": arrays[0], "beta": arrays[1]})


# --- parts, merges --------------------------------------------------------------------------------


def take(step: Step) -> Plan:
    """Elements at some places along an axis."""
    x, places = step.view(), step.settings["places"]
    along = leaves(x.groups[step.settings["axis"]])
    columns = places[0]

    def write(w: Writer, placed: list[Placed]) -> Placed:
        if any(p != columns for p in places):
            raise DataError(f"{step.name} selects elements by the size of the input.")
        if w.batch in along:
            raise DataError(f"{step.name} selects samples of the batch.")
        crop = _cropped(w, placed[0], along, columns, step)
        if crop is not None:
            return crop
        p, order = w.features(placed[0], along)
        inverse = {} if order is None else {place: i for i, place in enumerate(order)}
        chosen = [inverse.get(c, c) for c in columns]
        out = step.groups[step.settings["axis"]] if step.groups else ()
        return w.layer(Select(chosen, tokens=step.integers), p, (*p.layout[:-1], out))

    return Plan((x,), write)


def _cropped(
    w: Writer, placed: Placed, along: Group, columns: list[int], step: Step
) -> Placed | None:
    """Return a crop of images, if it is the one in the centre."""
    layout = expanded(placed.layout)
    if len(layout) != 4 or along not in layout[1:3] or step.integers:
        return None
    axis, n = layout.index(along, 1), count(along)
    first = (n - len(columns)) // 2
    if columns != list(range(first, first + len(columns))):
        return None
    made = w.operations[-1] if w.operations else None
    sizes = [count(group) for group in layout[1:3]]
    sizes[axis - 1] = len(columns)
    out = (*layout[:axis], step.groups[step.settings["axis"]], *layout[axis + 1 :])
    before = made.does if made and made.output == placed.value else None
    if made and isinstance(before, RandomCrop):  # one crop along both axes
        placed = Placed(made.inputs[0], layout)
    return w.layer(RandomCrop(tuple(sizes)), placed, out)


def tokens(step: Step) -> Plan | None:
    """Categories in columns of numbers."""
    inner = op(step.view(), "Take")
    x = inner.view() if inner else step.view()
    axis = inner.settings["axis"] if inner else len(x.groups) - 1
    along, out = x.groups[axis], step.groups[axis] if len(step.groups) > axis else ()
    places = inner.settings["places"] if inner else None

    def write(w: Writer, placed: list[Placed]) -> Placed:
        p, _ = w.features(placed[0], along, exact=True)
        w.it.budget.take([count(along)], 64)
        columns = list(range(count(along))) if places is None else places[0]
        if places is not None and any(other != columns for other in places):
            raise DataError(f"{step.name} selects elements by the size of the input.")
        return w.layer(Select(columns, tokens=True), p, (*p.layout[:-1], out))

    return Plan((x,), write)


def reshape(step: Step) -> Plan:
    """A Reshape that cuts across axes."""
    x = step.view()
    shape = [count(group) for group in step.groups[1:]]

    def write(w: Writer, placed: list[Placed]) -> Placed:
        p = w.arranged(placed[0], x.groups)
        return w.layer(Reshape(*shape), p, step.groups)

    return Plan((x,), write)


def add(step: Step) -> Plan | None:
    views = [i for i in step.inputs if isinstance(i, View)]
    return merged(step, views, "add") if len(views) == 2 else None


def multiply(step: Step) -> Plan | None:
    views = [i for i in step.inputs if isinstance(i, View)]
    return merged(step, views, "multiply") if len(views) == 2 else None


def two_classes(step: Step) -> Plan | None:
    """Concat(1 - sigmoid(z), sigmoid(z)), which is softmax(0, z), for a single score z."""
    if len(step.inputs) != 2:
        return None
    p = op(step.view(1), "Sigmoid")
    found = reflected(step.view(0))
    if p is None or found is None or not found.x.is_(step.view(1)) or step.view(1).groups[-1]:
        return None
    if found.start is None or found.start.values.tolist() != [1.0]:
        return None
    if step.settings["axis"] != len(step.groups) - 1:
        return None

    def write(w: Writer, placed: list[Placed]) -> Placed:
        x, _ = w.features(placed[0], ())
        layout = (*x.layout[:-1], step.groups[-1])
        W = np.array([[0.0, 1.0]])
        return w.layer(Softmax(), w.layer(Dense(2, bias=False), x, layout, W=W), layout)

    return Plan((p.view(),), write)


def concat(step: Step) -> Plan:
    return concatenated(step)


