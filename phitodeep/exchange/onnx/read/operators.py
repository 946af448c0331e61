"""The steps of convolutions, pools, norms, recurrent layers, and the operators of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np

from phitodeep.errors import DataError
from phitodeep.exchange.onnx.read.axes import Group, Size, flat, new, number, same, size_of, times
from phitodeep.exchange.onnx.read.combining import broadcast, product
from phitodeep.exchange.onnx.read.interpreting import (
    Inputs,
    Interpreter,
    array,
    axis_of,
    data,
    fixed_ints,
    handles,
    parameter,
)
from phitodeep.exchange.onnx.read.reading import Node
from phitodeep.exchange.onnx.read.values import Constant, LabelError, Refused, Value, View
from phitodeep.layers.windows import extent

# --- windows --------------------------------------------------------------------------------------


def settings(node: Node, kernel: list[int]) -> dict[str, Any]:
    """Return kernel, strides, dilations and pads (before, after) of each spatial axis."""
    rank = len(kernel)
    a = node.attributes
    found = {
        "kernel": kernel,
        "strides": a.get("strides") or [1] * rank,
        "dilations": a.get("dilations") or [1] * rank,
    }
    if a.get("kernel_shape", kernel) != kernel:
        raise DataError(f"its kernel_shape {a['kernel_shape']} differs from its weights {kernel}")
    for name, values in found.items():
        if len(values) != rank or not all(0 < n < 1 << 31 for n in values):
            raise DataError(f"its {name} {values} do not fit {rank} axes")
    pads = a.get("pads") or [0] * 2 * rank
    if len(pads) != 2 * rank or not all(0 <= n < 1 << 31 for n in pads):
        raise DataError(f"its pads {pads} are not supported")
    auto = a.get("auto_pad", "NOTSET")
    if auto not in ("NOTSET", "VALID", "SAME_UPPER"):
        raise DataError(f"auto_pad={auto} is not supported")
    if auto == "VALID" or auto == "SAME_UPPER":
        pads = [0] * 2 * rank
    found["pads"] = list(zip(pads[:rank], pads[rank:], strict=True))
    found["auto"] = auto == "SAME_UPPER"
    return found


def windows_out(size: Size, s: dict[str, Any], i: int, ceil: bool = False) -> Size:
    """Return the number of windows along spatial axis i."""
    e, stride = extent(s["kernel"][i], s["dilations"][i]), s["strides"][i]
    if s["auto"]:
        return tuple(-(-n // stride) for n in size)
    padded = [n + sum(s["pads"][i]) for n in size]
    if min(padded) < e:
        raise DataError(f"a window of {e} does not fit {min(padded)} positions")
    out = tuple((n - e) // stride + 1 for n in padded)
    if ceil and any((n - e) % stride for n in padded):
        raise DataError("ceil_mode=1 changes its output, which is not supported")
    return out


def spatial(x: View, rank: int) -> tuple[Group, Group, list[Group]]:
    """Return the groups of samples, channels and positions of x (N, C, *sizes)."""
    if len(x.groups) != rank + 2:
        raise DataError(f"its input has {len(x.groups)} axes instead of {rank + 2}")
    if rank not in (1, 2):
        raise DataError(f"windows along {rank} axes are not supported: only along 1 or 2")
    return x.groups[0], x.groups[1], list(x.groups[2:])


@handles("Conv", "ConvTranspose")
def conv(it: Interpreter, node: Node, inputs: Inputs) -> Value:
    x, W = data(inputs), array(inputs, 1)
    samples, channels, sizes = spatial(x, W.ndim - 2)
    groups, C = node.attributes.get("group", 1), number(channels, "its number of channels")
    transposed = node.op == "ConvTranspose"
    if groups < 1 or C % groups or W.shape[0] % groups:
        raise DataError(f"its {C} channels do not fit {groups} groups")
    if (W.shape[0] if transposed else W.shape[1] * groups) != C or 0 in W.shape:
        raise DataError(f"its weights of shape {W.shape} do not fit {C} channels")
    filters = W.shape[1] * groups if transposed else W.shape[0]
    s = settings(node, list(W.shape[2:]))
    extra = node.attributes.get("output_padding") or [0] * len(sizes)
    if transposed:
        if node.attributes.get("output_shape") or s["auto"]:
            raise DataError("output_shape and auto_pad are not supported: give pads")
        if len(extra) != len(sizes):
            raise DataError(f"its output_padding {extra} does not fit {len(sizes)} axes")
        out = []
        for i, group in enumerate(sizes):
            add = extent(s["kernel"][i], s["dilations"][i]) + extra[i] - sum(s["pads"][i])
            out.append(tuple((n - 1) * s["strides"][i] + add for n in size_of(group)))
    else:
        out = [windows_out(size_of(group), s, i) for i, group in enumerate(sizes)]
    b = parameter(inputs, 2)
    if b is not None and b.array("its bias").shape != (filters,):
        raise DataError(f"its bias does not fit {filters} filters")
    after = [samples, new(same(filters)), *map(new, out)]
    return it.step(node, node.op, [x, Constant((W,)), b], after, group=groups, extra=extra, **s)


@handles("MaxPool", "AveragePool")
def pool(it: Interpreter, node: Node, inputs: Inputs) -> list[Value | Refused]:
    x, kernel = data(inputs), node.attributes.get("kernel_shape", [])
    samples, channels, sizes = spatial(x, len(kernel))
    s = settings(node, kernel)
    if any(d != 1 for d in s["dilations"]):
        raise DataError("dilations are not supported in pools")
    ceil = bool(node.attributes.get("ceil_mode"))
    out = [windows_out(size_of(group), s, i, ceil) for i, group in enumerate(sizes)]
    counted = bool(node.attributes.get("count_include_pad"))
    groups = [samples, channels, *map(new, out)]
    return [it.step(node, node.op, [x], groups, counted=counted, **s)]


@handles("Pad")
def pad(it: Interpreter, node: Node, inputs: Inputs) -> Value:
    x = data(inputs)
    pads = fixed_ints(node, "pads", inputs, 1) or []
    fill = parameter(inputs, 2)
    number = node.attributes.get("value", 0.0) if fill is None else fill.scalar()
    if node.attributes.get("mode", "constant") != "constant" or number != 0:
        raise DataError("only zeros can be added around images")
    rank = len(x.groups)
    axes = fixed_ints(node, "axes", inputs, 3)
    axes = list(range(rank)) if axes is None else [axis_of(i, rank) for i in axes]
    if len(pads) != 2 * len(axes) or min(pads, default=0) < 0 or len(set(axes)) < len(axes):
        raise DataError(f"its pads {pads[:9]} are not supported")
    both = {i: pads[k :: len(axes)] for k, i in enumerate(axes)}
    if not any(pads):
        return x
    groups = [
        new(tuple(n + sum(both[i]) for n in size_of(group))) if any(both.get(i, ())) else group
        for i, group in enumerate(x.groups)
    ]
    changed = {i: (before, after) for i, (before, after) in both.items() if before or after}
    return it.step(node, "Pad", [x], groups, pads=changed)


@handles("Resize")
def resize(it: Interpreter, node: Node, inputs: Inputs) -> Value:
    x, scales, sizes = data(inputs), parameter(inputs, 2), parameter(inputs, 3)
    a, rank = node.attributes, len(x.groups)
    policy = a.get("keep_aspect_ratio_policy", "stretch")
    if a.get("axes") or a.get("antialias") or policy != "stretch":
        raise DataError("axes, antialias and aspect ratios are not supported")
    factors: list[int] = []
    for i, group in enumerate(x.groups):
        if sizes is not None:
            wanted = [s[i] if s.shape == (rank,) else 0 for s in sizes.each()]
            found = {w / n for w, n in zip(wanted, size_of(group), strict=True)}
        elif scales is not None and scales.array("its scales").shape == (rank,):
            found = {float(scales.array("its scales")[i])}
        else:
            found = set()
        factor = found.pop() if len(found) == 1 else 0
        if not 1 <= factor < 1 << 16 or factor != int(factor):
            raise DataError("only whole factors are supported")
        factors.append(int(factor))
    pairs = zip(x.groups, factors, strict=True)
    after = [g if f == 1 else new(times(size_of(g), same(f))) for g, f in pairs]
    mode, rounding = a.get("mode", "nearest"), a.get("nearest_mode", "round_prefer_floor")
    where = a.get("coordinate_transformation_mode", "half_pixel")
    return it.step(
        node, "Resize", [x], after, factors=factors, mode=mode, coordinates=where, rounding=rounding
    )


# --- reductions, norms, softmax -------------------------------------------------------------------


@handles("ReduceMean", "ReduceMax", "ReduceSum", "GlobalAveragePool", "GlobalMaxPool")
def reduce(it: Interpreter, node: Node, inputs: Inputs) -> Value:
    x = data(inputs)
    rank = len(x.groups)
    if node.op.startswith("Global"):
        axes, keep = list(range(2, rank)), True
    else:
        given = fixed_ints(node, "axes", inputs, 1)
        keep = bool(node.attributes.get("keepdims", 1))
        if not given and node.attributes.get("noop_with_empty_axes"):
            return x
        axes = [axis_of(i, rank) for i in given or range(rank)]
    op = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}.get(node.op, node.op)
    kept = [() if i in axes else g for i, g in enumerate(x.groups) if keep or i not in axes]
    reduced = flat(x.groups[i] for i in sorted(set(axes)))
    return it.step(node, op, [x], kept, reduced=reduced)


@handles("Softmax", "LogSoftmax")
def softmax(it: Interpreter, node: Node, inputs: Inputs) -> Value:
    x = data(inputs)
    axis = axis_of(node.attributes.get("axis", -1 if it.opset >= 13 else 1), len(x.groups))
    along = x.groups[axis] if it.opset >= 13 else flat(x.groups[axis:])
    return it.step(node, node.op, [x], x.groups, along=along)


@handles("LayerNormalization", "RMSNormalization")
def layer_norm(it: Interpreter, node: Node, inputs: Inputs) -> list[Value | Refused]:
    x, gamma, beta = data(inputs), array(inputs, 1), parameter(inputs, 2)
    axis = axis_of(node.attributes.get("axis", -1), len(x.groups))
    along = flat(x.groups[axis:])
    sizes = tuple(number(group, "what it normalises") for group in x.groups[axis:])
    shift = np.zeros(gamma.shape, gamma.dtype) if beta is None else beta.array("its bias")
    if gamma.shape != sizes or shift.shape != sizes:
        raise DataError(f"its parameters of shape {gamma.shape} do not fit the sizes {sizes}")
    eps = decimal(node.attributes.get("epsilon", 1e-5))
    return [
        it.step(
            node, node.op, [x], x.groups,
            along=along, eps=eps, gamma=gamma.ravel(), beta=shift.ravel(),
        )
    ]  # fmt: skip


def decimal(eps: float) -> float:
    """Return the shortest decimal of a float32, such as 1e-5 for 0.00000999999975."""
    return float(str(np.float32(eps)))


@handles("BatchNormalization", "InstanceNormalization", "GroupNormalization")
def channel_norm(it: Interpreter, node: Node, inputs: Inputs) -> list[Value | Refused]:
    x = data(inputs)
    if len(x.groups) < 2 or node.attributes.get("training_mode"):
        raise DataError("it is in training mode: export the network for inference")
    if node.op == "GroupNormalization" and it.opset < 21:
        raise DataError("GroupNormalization before opset 21 is not supported")
    C = number(x.groups[1], "its number of channels")
    arrays = [array(inputs, i, 1) for i in range(1, 5 if node.op == "BatchNormalization" else 3)]
    if any(a.shape != (C,) for a in arrays):
        raise DataError(f"its parameters do not fit {C} channels")
    a = node.attributes
    return [
        it.step(
            node, node.op, [x], x.groups,
            channels=x.groups[1], arrays=arrays, eps=decimal(a.get("epsilon", 1e-5)),
            momentum=round(1 - decimal(a.get("momentum", 0.9)), 7), count=a.get("num_groups", 1),
        )
    ]  # fmt: skip


# --- recurrent layers -----------------------------------------------------------------------------

GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}
DIRECTIONS = {"forward": 1, "bidirectional": 2}


@handles("RNN", "LSTM", "GRU")
def recurrent(it: Interpreter, node: Node, inputs: Inputs) -> list[Value | Refused]:
    a, g = node.attributes, GATES[node.op]
    x, W, R = data(inputs), array(inputs, 1, 3), array(inputs, 2, 3)
    directions = DIRECTIONS.get(a.get("direction", "forward"))
    if directions is None:
        raise DataError(f"direction={a['direction']!r} is not supported")
    H, D = R.shape[2], W.shape[2]
    if len(x.groups) != 3 or size_of(x.groups[2]) != same(D) or a.get("layout"):
        raise DataError("its input must be (steps, samples, features)")
    if W.shape != (directions, g * H, D) or R.shape != (directions, g * H, H):
        raise DataError(f"its weights of shapes {W.shape} and {R.shape} do not fit")
    B = parameter(inputs, 3)
    bias = np.zeros((directions, 2 * g * H), W.dtype) if B is None else B.array("its bias")
    if bias.shape != (directions, 2 * g * H):
        raise DataError(f"its bias of shape {bias.shape} does not fit")
    if len(inputs) > 4 and inputs[4] is not None:
        raise DataError("lengths of sequences are not supported in the graph")
    for i in (5, 6):
        start = parameter(inputs, i)
        if start is not None and any(state.any() for state in start.each()):
            raise DataError("only states that begin at 0 are supported")
    if len(inputs) > 7 or a.get("clip") or a.get("input_forget"):
        raise DataError("peepholes, clip and input_forget are not supported")
    usual = {"RNN": ["Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"]}
    given = [f.capitalize() for f in a.get("activations", usual[node.op] * directions)]
    if (
        given != usual[node.op] * directions
        or a.get("activation_alpha")
        or a.get("activation_beta")
    ):
        raise DataError(f"the activations {given[:9]} are not supported")
    if node.op == "GRU" and not a.get("linear_before_reset"):
        raise DataError("only linear_before_reset=1, which PyTorch has too, is supported")
    both, units = new(same(directions)), new(same(H))
    T, N, _ = x.groups
    weights: dict[str, Any] = {"W": W, "R": R, "B": bias}
    return [
        it.step(node, node.op, [x], groups, last=last, both=both, units=units, **weights)
        for last, groups in ((False, [T, both, N, units]), (True, [both, N, units]))
    ]


# --- scikit-learn ---------------------------------------------------------------------------------


def feature_count(x: View) -> int:
    if len(x.groups) != 2:
        raise DataError(f"its input has {len(x.groups)} axes instead of 2")
    return number(x.groups[1], "its number of features")


@handles("Scaler")
def scaler(it: Interpreter, node: Node, inputs: Inputs) -> Value:
    """(x - offset) * scale."""
    x = data(inputs)
    D = feature_count(x)
    for op, name in (("Sub", "offset"), ("Mul", "scale")):
        a = np.array(node.attributes.get(name, []), np.float32)
        if a.shape not in ((1,), (D,)):
            raise DataError(f"its {name} does not fit {D} features")
        inputs = [x, Constant((a,))]
        x = it.step(node, op, inputs, broadcast(inputs))
    return x


def linear(it: Interpreter, node: Node, inputs: Inputs, count: int) -> View:
    """Return the scores of a linear model with this many outputs, after its transformation."""
    x, a = data(inputs), node.attributes
    D = feature_count(x)
    W = np.array(a.get("coefficients", []), np.float32)
    if count < 1 or W.size != count * D:
        raise DataError(f"its {W.size} coefficients do not fit {D} features and {count} outputs")
    y = product(it, node, x, W.reshape(count, D).T)
    if "intercepts" in a:
        b = np.array(a["intercepts"], np.float32)
        if b.shape != (count,):
            raise DataError(f"its intercepts do not fit {count} outputs")
        y = it.step(node, "Add", [y, Constant((b,))], y.groups)
    transform = a.get("post_transform", "NONE")
    if transform == "LOGISTIC":
        return it.step(node, "Sigmoid", [y], y.groups)
    if transform == "SOFTMAX":
        return it.step(node, "Softmax", [y], y.groups, along=y.groups[1])
    if transform != "NONE":
        raise DataError(f"post_transform={transform} is not supported")
    return y


@handles("LinearRegressor")
def linear_regressor(it: Interpreter, node: Node, inputs: Inputs) -> Value:
    return linear(it, node, inputs, node.attributes.get("targets", 1))


@handles("LinearClassifier")
def linear_classifier(it: Interpreter, node: Node, inputs: Inputs) -> list[Value | Refused]:
    a = node.attributes
    classes = len(a.get("classlabels_ints") or a.get("classlabels_strings") or [])
    if len(a.get("intercepts", [])) == 1:
        raise DataError("one score for two classes is not supported")
    label = Refused(LabelError(f"{node.name}: labels are not supported: a model returns numbers."))
    return [label, linear(it, node, inputs, classes)]


@handles("Normalizer")
def normalizer(it: Interpreter, node: Node, inputs: Inputs) -> Value:
    """Probabilities add up to 1 already."""
    x = data(inputs)
    after = x.step.op == "Softmax" and x.groups[-1] == x.step.settings["along"]
    if node.attributes.get("norm") == "L1" and after:
        return x
    raise DataError("it is supported only after a softmax, where it changes nothing")
