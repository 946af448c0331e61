"""What each operator makes of its inputs: a view where it only rearranges elements, or a step.

Long because it has a function for each operator of ONNX that is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from phitodeep.core.types import Array
from phitodeep.errors import DataError
from phitodeep.exchange.onnx.read import axes as ax
from phitodeep.exchange.onnx.read.axes import Axis, Group, Size, flat, leaves, new, number, size_of
from phitodeep.exchange.onnx.read.interpreting import Call, axis_of, handles, integers
from phitodeep.exchange.onnx.read.reading import FLOATS, INTEGERS, MOST_AXES
from phitodeep.exchange.onnx.read.values import Constant, LabelError, Refused, Value, View, constant
from phitodeep.layers.windows import extent

Outputs = list[Value | Refused]

# --- rearrangements -------------------------------------------------------------------------------


@handles("Identity", "Dropout", "ZipMap")
def identity(node: Call) -> Value:
    training = node.const(2) if node.op == "Dropout" else None
    if training is not None and training.array("its training mode").any():
        raise DataError("it is in training mode: export the network for inference")
    return node.view()


@handles("Cast")
def cast(node: Call) -> Value:
    x, to = node.view(), node.attribute("to")
    if to not in FLOATS | INTEGERS:
        raise DataError(f"a cast to the type {to} is not supported")
    whole = to in INTEGERS
    if whole == x.step.integers:
        return x
    return node.step("Tokens" if whole else "Numbers", [x], x.groups, whole)


@handles("Shape")
def shape(node: Call) -> Value:
    sizes = node.view().sizes()[slice(node.attribute("start", 0), node.attribute("end"))]
    return constant([np.array([s[i] for s in sizes], np.int64) for i in range(ax.PROBES)])


@handles("Transpose")
def transpose(node: Call) -> Value:
    x = node.view()
    perm = node.attribute("perm", list(range(len(x.groups)))[::-1])
    if sorted(perm) != list(range(len(x.groups))):
        raise DataError(f"its perm {perm} does not fit {len(x.groups)} axes")
    return View(x.step, tuple(x.groups[i] for i in perm))


@handles("Reshape")
def reshape(node: Call) -> Value:
    x, target = node.view(), node.const(1)
    if target is None:
        raise DataError("its shape is missing")
    keep = not node.attribute("allowzero")
    after = [
        sizes_after([s[i] for s in x.sizes()], integers("shape", a), keep)
        for i, a in enumerate(target.each())
    ]
    if len({len(s) for s in after}) > 1:
        raise DataError("its number of axes depends on the size of the input")
    return regroup(node, x, [tuple(column) for column in zip(*after, strict=True)])


def sizes_after(sizes: list[int], target: list[int], keep: bool) -> list[int]:
    """Return the sizes after a Reshape; -1 is what remains, and with `keep`, 0 keeps a size."""
    if len(target) > MOST_AXES:
        raise DataError("its shape has too many axes")
    if keep:
        if any(n == 0 and i >= len(sizes) for i, n in enumerate(target)):
            raise DataError(f"its shape {target} keeps an axis that its input does not have")
        target = [sizes[i] if n == 0 else n for i, n in enumerate(target)]
    total = math.prod(sizes)
    if target.count(-1) == 1:
        known = math.prod(n for n in target if n != -1)
        if known < 1 or total % known:
            raise DataError(f"its shape {target} does not fit {total} elements")
        target = [total // known if n == -1 else n for n in target]
    if min(target, default=1) < 0 or math.prod(target) != total:
        raise DataError(f"its shape {target} does not fit the sizes {sizes}")
    return target


def regroup(node: Call, x: View, sizes: list[Size]) -> View:
    """Return x with these sizes."""
    batch = node.it.batch
    groups = ax.regrouped(x.groups, sizes)
    if groups is None and any(len(leaves(g)) > 1 and batch not in g for g in x.groups):
        x = joined(node, x)  # an axis that was split in another way, elsewhere
        groups = ax.regrouped(x.groups, sizes)
    if groups is not None:
        return View(x.step, groups)
    if x.groups[0] != (batch,) or not sizes or sizes[0] != batch.size:
        raise DataError("it cuts across the samples of the batch")
    return node.step("Reshape", [x], [(batch,), *map(new, sizes[1:])])


def joined(node: Call, x: View) -> View:
    """Return x with one new axis for each group of several axes."""
    old = ax.expanded(x.groups)
    fresh = [
        (Axis(size_of(g)),) if len(g) > 1 and node.it.batch not in g else g for g in old
    ]  # fmt: skip
    pairs = [(g, f[0]) for g, f in zip(old, fresh, strict=True) if f is not g]
    return node.step("Join", [x], fresh, x.step.integers, pairs=pairs)


@handles("Flatten")
def flatten(node: Call) -> Value:
    x = node.view()
    rank = len(x.groups)
    axis = rank if node.attribute("axis", 1) == rank else node.axis(rank, 1)
    return View(x.step, (flat(x.groups[:axis]), flat(x.groups[axis:])))


@handles("Squeeze")
def squeeze(node: Call) -> Value:
    x, axes = node.view(), node.ints("axes", 1)
    if axes is None:
        axes = [i for i, group in enumerate(x.groups) if not group]
    drop = {axis_of(axis, len(x.groups)) for axis in axes}
    if any(x.groups[i] for i in drop):
        raise DataError(f"the axes {axes} must have one element each")
    return View(x.step, tuple(g for i, g in enumerate(x.groups) if i not in drop))


@handles("Unsqueeze")
def unsqueeze(node: Call) -> Value:
    x, axes = node.view(), node.ints("axes", 1) or []
    rank = len(x.groups) + len(axes)
    if rank > MOST_AXES:
        raise DataError("it makes too many axes")
    added = {axis_of(axis, rank) for axis in axes}
    if len(added) < len(axes):
        raise DataError(f"its axes {axes} repeat")
    rest = iter(x.groups)
    return View(x.step, tuple(() if i in added else next(rest) for i in range(rank)))


@handles("Expand")
def expand(node: Call) -> Value:
    x, target = node.view(), node.const(1)
    for i, a in enumerate([] if target is None else target.each()):
        sizes = [s[i] for s in x.sizes()]
        last = sizes[len(sizes) - a.size :] if a.size <= len(sizes) else []
        if len(last) < a.size or any(n not in (1, s) for n, s in zip(a.ravel(), last, strict=True)):
            raise DataError("it repeats elements, which no layer does")
    return x


# --- elementwise operators ------------------------------------------------------------------------


@handles(
    *("Relu", "Sigmoid", "Tanh", "Softplus", "Softsign", "Mish", "Gelu", "HardSwish", "Erf", "Abs"),
    *("Exp", "Log", "Sqrt", "Reciprocal", "Neg", "LeakyRelu", "Elu", "Celu", "Selu", "HardSigmoid"),
    *("IsNaN", "ThresholdedRelu", "Sign", "Not"),
)
def unary(node: Call) -> Value:
    return node.step(node.op, [node.view()], node.view().groups, **node.attributes)


@handles("Clip")
def clip(node: Call) -> Value:
    limits = {"min": -math.inf, "max": math.inf}
    for i, (name, free) in enumerate(limits.items(), 1):
        given = node.const(i)
        limit = node.attribute(name, free) if given is None else given.scalar()
        if limit is None:
            raise DataError(f"its {name} must be a number")
        limits[name] = limit
    return node.step("Clip", [node.view()], node.view().groups, **limits)


@handles(
    *("Add", "Sub", "Mul", "Div", "Pow", "PRelu", "Max", "Min", "Greater", "Less", "Equal"),
    "Where",
)
def elementwise(node: Call) -> Value:
    if len(node.inputs) != (3 if node.op == "Where" else 2) or None in node.inputs:
        raise DataError(f"it has {len(node.inputs)} inputs")
    return node.step(node.op, node.inputs, broadcast(node.inputs))


def broadcast(inputs: Sequence[Value | None]) -> list[Group]:
    """Return the axes after NumPy's broadcasting of views and constants."""
    views = [i for i in inputs if isinstance(i, View)]
    arrays = [(p, a) for i in inputs if isinstance(i, Constant) for p, a in enumerate(i.each())]
    rank = max([len(view.groups) for view in views] + [a.ndim for _, a in arrays])
    out: list[Group] = [()] * rank
    for view in views:
        for i, group in enumerate(view.groups, rank - len(view.groups)):
            if not out[i]:
                out[i] = group
            elif group and size_of(group) != size_of(out[i]):
                raise DataError("its inputs have different sizes")
    for probe, a in arrays:
        sizes = [size_of(group)[probe] for group in out]
        if any(n not in (1, s) for n, s in zip(a.shape[::-1], sizes[::-1], strict=False)):
            raise DataError(f"a constant of shape {a.shape} does not fit the sizes {sizes}")
    return out


# --- products -------------------------------------------------------------------------------------


@handles("MatMul")
def matmul(node: Call) -> Value:
    if len(node.inputs) == 2 and isinstance(node.inputs[1], Constant):
        return product(node, node.view(), node.array(1))
    x, y = node.view(), node.view(1)
    if min(len(x.groups), len(y.groups)) < 2:
        raise DataError("a product with a vector is not supported")
    if size_of(x.groups[-1]) != size_of(y.groups[-2]):
        raise DataError("its matrices do not fit")
    batch = broadcast([View(x.step, x.groups[:-2]), View(y.step, y.groups[:-2])])
    copied = tuple(Axis(axis.size) for axis in leaves(y.groups[-1]))
    return node.step("Product", [x, y], [*batch, x.groups[-2], copied])


def product(node: Call, x: View, W: Array) -> View:
    """Return the product with a constant matrix (D, M) along the last axis."""
    if W.ndim != 2 or not x.groups or W.dtype.kind != "f":
        raise DataError(f"a product with an array of shape {W.shape} is not supported")
    if size_of(x.groups[-1]) != ax.same(W.shape[0]):
        found = size_of(x.groups[-1])[0]
        raise DataError(f"its matrix has {W.shape[0]} rows, but its input has {found} features")
    return node.step("MatMul", [x, Constant((W,))], [*x.groups[:-1], new(ax.same(W.shape[1]))])


@handles("Gemm")
def gemm(node: Call) -> Value:
    if node.attribute("transA") or {node.attribute("alpha", 1), node.attribute("beta", 1)} != {1}:
        raise DataError("only alpha = beta = 1 and transA = 0 are supported")
    x, W, b = node.view(), node.array(1, 2), node.const(2)
    if len(x.groups) != 2:
        raise DataError("its input must have two axes")
    y = product(node, x, W.T if node.attribute("transB") else W)
    return y if b is None else node.step("Add", [y, b], broadcast([y, b]))


# --- parts of values ------------------------------------------------------------------------------


@handles("Gather")
def gather(node: Call) -> Value:
    if isinstance(node.inputs[0], Constant):
        W, x = node.array(0, 2), node.view(1)
        if node.axis(2, 0) != 0 or not x.step.integers or W.dtype.kind != "f":
            raise DataError("only the rows of a matrix can be looked up, by integers")
        return node.step("Embedding", [x, node.inputs[0]], [*x.groups, new(ax.same(W.shape[1]))])
    x, indices = node.view(), node.const(1)
    if indices is None:
        raise DataError("its indices are missing")
    axis = node.axis(len(x.groups), 0)
    places = []
    for n, a in zip(size_of(x.groups[axis]), indices.each(), strict=True):
        if a.ndim > 1 or a.size > 1 << 20:
            raise DataError("its indices must be an integer or a list")
        node.it.budget.take(a.shape)
        places.append([i + n if i < 0 else i for i in map(int, a.ravel())])
        if any(not 0 <= i < n for i in places[-1]):
            raise DataError(f"its indices {a.ravel()[:9]} are not all in 0 to {n - 1}")
    y = taken(node, x, axis, places)
    if indices.each()[0].ndim == 1:
        return y
    return View(y.step, (*y.groups[:axis], *y.groups[axis + 1 :]))


def taken(node: Call, x: View, axis: int, places: list[list[int]]) -> View:
    """Return the elements at these places along an axis, for each probe."""
    sizes = size_of(x.groups[axis])
    if all(len(p) == n and p == list(range(n)) for p, n in zip(places, sizes, strict=True)):
        return x
    groups = [*x.groups[:axis], new(tuple(map(len, places))), *x.groups[axis + 1 :]]
    return node.step("Take", [x], groups, x.step.integers, axis=axis, places=places)


@handles("Slice")
def slice_(node: Call) -> Value:
    x = node.view()
    found = [_cuts(node, [s[i] for s in x.sizes()], i) for i in range(ax.PROBES)]
    for cuts in zip(*found, strict=True):
        for _, positions in cuts:
            node.it.budget.take([len(positions)])
        x = taken(node, x, cuts[0][0], [list(positions) for _, positions in cuts])
    return x


def _cuts(node: Call, sizes: list[int], probe: int) -> list[tuple[int, range]]:
    """Return (axis, positions) for each axis that a Slice cuts."""
    given: dict[str, list[int] | None] = {}
    for i, name in enumerate(("starts", "ends", "axes", "steps"), 1):
        value = node.const(i)
        found = node.attribute(name) if value is None else integers(name, value.each()[probe])
        given[name] = found
    starts, ends, axes, steps = given.values()
    if starts is None or ends is None:
        raise DataError("its starts or ends are missing")
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise DataError("its starts, ends, axes and steps do not fit together")
    axes = [axis_of(axis, len(sizes)) for axis in axes]
    if len(set(axes)) < len(axes):
        raise DataError("it cuts one axis twice")
    cuts = zip(axes, starts, ends, steps, strict=True)
    return [(i, range(sizes[i])[start:end:step]) for i, start, end, step in cuts]


@handles("Split")
def split(node: Call) -> Outputs:
    x, sizes = node.view(), node.ints("split", 1)
    axis = node.axis(len(x.groups), 0)
    total = number(x.groups[axis], "the axis that it splits")
    if sizes is None:
        count = node.attribute("num_outputs", len(node.outputs))
        if not 0 < count <= total:
            raise DataError(f"it cannot split {total} elements into {count} parts")
        size = -(-total // count)
        sizes = [min(size, total - i * size) for i in range(count)]
    if sum(sizes) != total or min(sizes, default=0) < 1 or len(sizes) != len(node.outputs):
        raise DataError(f"its parts {sizes[:9]} do not fit {total} elements")
    node.it.budget.take([total])
    ends = np.cumsum(sizes).tolist()
    return [
        taken(node, x, axis, [list(range(end - n, end))] * ax.PROBES)
        for n, end in zip(sizes, ends, strict=True)
    ]


@handles("Concat")
def concat(node: Call) -> Value:
    views = [node.view(i) for i in range(len(node.inputs))]
    groups = views[0].groups
    axis = node.axis(len(groups))
    if len({len(view.groups) for view in views}) > 1:
        raise DataError("its inputs have different numbers of axes")
    if len(views) == 1:
        return views[0]
    others = [view.sizes() for view in views]
    lengths = [sizes.pop(axis) for sizes in others]
    if any(sizes != others[0] for sizes in others):
        raise DataError("its inputs have different sizes")
    total = tuple(map(sum, zip(*lengths, strict=True)))
    return node.step("Concat", views, [*groups[:axis], new(total), *groups[axis + 1 :]], axis=axis)


# --- windows --------------------------------------------------------------------------------------


def settings(node: Call, kernel: list[int]) -> dict[str, Any]:
    """Return kernel, strides, dilations and pads (before, after) of each spatial axis."""
    rank = len(kernel)
    found: dict[str, Any] = {"kernel": kernel}
    found |= {name: node.attribute(name) or [1] * rank for name in ("strides", "dilations")}
    if node.attribute("kernel_shape", kernel) != kernel:
        raise DataError(
            f"its kernel_shape {node.attribute('kernel_shape')} differs from its weights {kernel}"
        )
    for name, values in found.items():
        if len(values) != rank or not all(0 < n < 1 << 31 for n in values):
            raise DataError(f"its {name} {values} do not fit {rank} axes")
    pads = node.attribute("pads") or [0] * 2 * rank
    if len(pads) != 2 * rank or not all(0 <= n < 1 << 31 for n in pads):
        raise DataError(f"its pads {pads} are not supported")
    auto = node.attribute("auto_pad", "NOTSET")
    if auto not in ("NOTSET", "VALID", "SAME_UPPER"):
        raise DataError(f"auto_pad={auto} is not supported")
    if auto != "NOTSET":
        pads = [0] * 2 * rank
    both = list(zip(pads[:rank], pads[rank:], strict=True))
    return {**found, "pads": both, "auto": auto == "SAME_UPPER"}


def windows_out(size: Size, s: dict[str, Any], i: int) -> Size:
    """Return the number of windows along spatial axis i."""
    e, stride = extent(s["kernel"][i], s["dilations"][i]), s["strides"][i]
    if s["auto"]:
        return tuple(-(-n // stride) for n in size)
    padded = [n + sum(s["pads"][i]) for n in size]
    if min(padded) < e:
        raise DataError(f"a window of {e} does not fit {min(padded)} positions")
    if s.get("ceil") and any((n - e) % stride for n in padded):
        raise DataError("ceil_mode=1 changes its output, which is not supported")
    return tuple((n - e) // stride + 1 for n in padded)


def spatial(x: View, rank: int) -> tuple[Group, Group, list[Group]]:
    """Return the groups of samples, channels and positions of x (N, C, *sizes)."""
    if len(x.groups) != rank + 2:
        raise DataError(f"its input has {len(x.groups)} axes instead of {rank + 2}")
    if rank not in (1, 2):
        raise DataError(f"windows along {rank} axes are not supported: only along 1 or 2")
    return x.groups[0], x.groups[1], list(x.groups[2:])


@handles("Conv", "ConvTranspose")
def conv(node: Call) -> Value:
    x, W, b = node.view(), node.array(1), node.const(2)
    samples, channels, sizes = spatial(x, W.ndim - 2)
    groups, C = node.attribute("group", 1), number(channels, "its number of channels")
    transposed = node.op == "ConvTranspose"
    if groups < 1 or C % groups or W.shape[0] % groups:
        raise DataError(f"its {C} channels do not fit {groups} groups")
    if (W.shape[0] if transposed else W.shape[1] * groups) != C or 0 in W.shape:
        raise DataError(f"its weights of shape {W.shape} do not fit {C} channels")
    filters = W.shape[1] * groups if transposed else W.shape[0]
    s = settings(node, list(W.shape[2:]))
    extra = node.attribute("output_padding") or [0] * len(sizes)
    if transposed:
        if node.attribute("output_shape") or s["auto"]:
            raise DataError("output_shape and auto_pad are not supported: give pads")
        if len(extra) != len(sizes):
            raise DataError(f"its output_padding {extra} does not fit {len(sizes)} axes")
        out = []
        for i, group in enumerate(sizes):
            add = extent(s["kernel"][i], s["dilations"][i]) + extra[i] - sum(s["pads"][i])
            out.append(tuple((n - 1) * s["strides"][i] + add for n in size_of(group)))
    else:
        out = [windows_out(size_of(group), s, i) for i, group in enumerate(sizes)]
    if b is not None and b.array("its bias").shape != (filters,):
        raise DataError(f"its bias does not fit {filters} filters")
    after = [samples, new(ax.same(filters)), *map(new, out)]
    return node.step(node.op, [x, Constant((W,)), b], after, group=groups, extra=extra, **s)


@handles("MaxPool", "AveragePool")
def pool(node: Call) -> Value:
    x, kernel = node.view(), node.attribute("kernel_shape", [])
    samples, channels, sizes = spatial(x, len(kernel))
    s = settings(node, kernel)
    if any(d != 1 for d in s["dilations"]):
        raise DataError("dilations are not supported in pools")
    s |= {"ceil": node.attribute("ceil_mode"), "counted": node.attribute("count_include_pad")}
    out = [windows_out(size_of(group), s, i) for i, group in enumerate(sizes)]
    return node.step(node.op, [x], [samples, channels, *map(new, out)], **s)


@handles("Pad")
def pad(node: Call) -> Value:
    x, pads, fill = node.view(), node.ints("pads", 1) or [], node.const(2)
    value = node.attribute("value", 0.0) if fill is None else fill.scalar()
    if node.attribute("mode", "constant") != "constant" or value != 0:
        raise DataError("only zeros can be added around images")
    rank = len(x.groups)
    axes = node.ints("axes", 3)
    axes = list(range(rank)) if axes is None else [axis_of(i, rank) for i in axes]
    if len(pads) != 2 * len(axes) or min(pads, default=0) < 0 or len(set(axes)) < len(axes):
        raise DataError(f"its pads {pads[:9]} are not supported")
    both = {i: tuple(pads[k :: len(axes)]) for k, i in enumerate(axes)}
    changed = {i: pair for i, pair in both.items() if any(pair)}
    if not changed:
        return x
    groups = [
        new(tuple(n + sum(changed[i]) for n in size_of(group))) if i in changed else group
        for i, group in enumerate(x.groups)
    ]
    return node.step("Pad", [x], groups, pads=changed)


@handles("Resize")
def resize(node: Call) -> Value:
    x, scales, sizes = node.view(), node.const(2), node.const(3)
    rank = len(x.groups)
    policy = node.attribute("keep_aspect_ratio_policy", "stretch")
    if node.attribute("axes") or node.attribute("antialias") or policy != "stretch":
        raise DataError("axes, antialias and aspect ratios are not supported")
    factors: list[int] = []
    for i, group in enumerate(x.groups):
        found: set[float] = set()
        if sizes is not None:
            wanted = [s[i] if s.shape == (rank,) else 0 for s in sizes.each()]
            found = {w / n for w, n in zip(wanted, size_of(group), strict=True)}
        elif scales is not None and scales.array("its scales").shape == (rank,):
            found = {float(scales.array("its scales")[i])}
        factor = found.pop() if len(found) == 1 else 0
        if not 1 <= factor < 1 << 16 or factor != int(factor):
            raise DataError("only whole factors are supported")
        factors.append(int(factor))
    pairs = zip(x.groups, factors, strict=True)
    after = [g if f == 1 else new(ax.times(size_of(g), ax.same(f))) for g, f in pairs]
    defaults = {
        "mode": "nearest",
        "coordinate_transformation_mode": "half_pixel",
        "nearest_mode": "round_prefer_floor",
    }
    kind = tuple(node.attribute(name, default) for name, default in defaults.items())
    return node.step("Resize", [x], after, factors=factors, kind=kind)


# --- reductions, norms, softmax -------------------------------------------------------------------


@handles("ReduceMean", "ReduceMax", "ReduceSum", "GlobalAveragePool", "GlobalMaxPool")
def reduce(node: Call) -> Value:
    x, op, keep = node.view(), node.op, bool(node.attribute("keepdims", 1))
    rank = len(x.groups)
    if op.startswith("Global"):
        op = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}[op]
        axes = list(range(2, rank))
    else:
        given = node.ints("axes", 1)
        if not given and node.attribute("noop_with_empty_axes"):
            return x
        axes = [axis_of(i, rank) for i in given or range(rank)]
    kept = [() if i in axes else g for i, g in enumerate(x.groups) if keep or i not in axes]
    reduced = flat(x.groups[i] for i in sorted(set(axes)))
    return node.step(op, [x], kept, reduced=reduced)


@handles("Softmax", "LogSoftmax")
def softmax(node: Call) -> Value:
    x, new_rule = node.view(), node.it.opset >= 13
    axis = node.axis(len(x.groups), -1 if new_rule else 1)
    along = x.groups[axis] if new_rule else flat(x.groups[axis:])
    return node.step(node.op, [x], x.groups, along=along)


@handles("LayerNormalization", "RMSNormalization")
def layer_norm(node: Call) -> Value:
    x, gamma, beta = node.view(), node.array(1), node.const(2)
    axis = node.axis(len(x.groups), -1)
    sizes = tuple(number(group, "what it normalises") for group in x.groups[axis:])
    arrays = {"gamma": gamma}
    if node.op == "LayerNormalization":
        arrays["beta"] = np.zeros_like(gamma) if beta is None else beta.array("its bias")
    if any(a.shape != sizes for a in arrays.values()):
        raise DataError(f"its parameters of shape {gamma.shape} do not fit the sizes {sizes}")
    eps = decimal(node.attribute("epsilon", 1e-5))
    along = flat(x.groups[axis:])
    weights = {name: a.ravel() for name, a in arrays.items()}
    return node.step(node.op, [x], x.groups, along=along, eps=eps, weights=weights)


def decimal(eps: float) -> float:
    """Return the shortest decimal of a float32, such as 1e-5 for 0.00000999999975."""
    return float(str(np.float32(eps)))


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
    return node.step(
        node.op,
        [x],
        x.groups,
        channels=x.groups[1],
        arrays=arrays,
        eps=decimal(node.attribute("epsilon", 1e-5)),
        momentum=round(1 - decimal(node.attribute("momentum", 0.9)), 7),
        count=node.attribute("num_groups", C),
    )


# --- recurrent layers -----------------------------------------------------------------------------

ACTIVATIONS = {  # one gate for each product of an LSTM, and so on
    "RNN": (1, ["Tanh"]),
    "LSTM": (4, ["Sigmoid", "Tanh", "Tanh"]),
    "GRU": (3, ["Sigmoid", "Tanh"]),
}
DIRECTIONS = {"forward": 1, "bidirectional": 2}


@handles("RNN", "LSTM", "GRU")
def recurrent(node: Call) -> Outputs:
    gates, usual = ACTIVATIONS[node.op]
    x, W, R, B = node.view(), node.array(1, 3), node.array(2, 3), node.const(3)
    directions = DIRECTIONS.get(node.attribute("direction", "forward"))
    if directions is None:
        raise DataError(f"direction={node.attribute('direction')!r} is not supported")
    H, D = R.shape[2], W.shape[2]
    if len(x.groups) != 3 or size_of(x.groups[2]) != ax.same(D) or node.attribute("layout"):
        raise DataError("its input must be (steps, samples, features)")
    if W.shape != (directions, gates * H, D) or R.shape != (directions, gates * H, H):
        raise DataError(f"its weights of shapes {W.shape} and {R.shape} do not fit")
    bias = np.zeros((directions, 2 * gates * H), W.dtype) if B is None else B.array("its bias")
    if bias.shape != (directions, 2 * gates * H):
        raise DataError(f"its bias of shape {bias.shape} does not fit")
    if any(value is not None for value in node.inputs[4:5]):
        raise DataError("lengths of sequences are not supported in the graph")
    starts = [node.const(5), node.const(6)]
    if any(start is not None and any(a.any() for a in start.each()) for start in starts):
        raise DataError("only states that begin at 0 are supported")
    if len(node.inputs) > 7 or node.attribute("clip") or node.attribute("input_forget"):
        raise DataError("peepholes, clip and input_forget are not supported")
    usual = usual * directions
    given = [f.capitalize() for f in node.attribute("activations", usual)]
    changed = node.attribute("activation_alpha") or node.attribute("activation_beta")
    if given != usual or changed:
        raise DataError(f"the activations {given[:9]} are not supported")
    if node.op == "GRU" and not node.attribute("linear_before_reset"):
        raise DataError("only linear_before_reset=1, which PyTorch has too, is supported")
    both, units = new(ax.same(directions)), new(ax.same(H))
    T, N, _ = x.groups
    weights: dict[str, Any] = {"W": W, "R": R, "B": bias}
    return [
        node.step(node.op, [x], groups, last=last, both=both, units=units, **weights)
        for last, groups in ((False, [T, both, N, units]), (True, [both, N, units]))
    ]


# --- scikit-learn ---------------------------------------------------------------------------------


def feature_count(x: View) -> int:
    if len(x.groups) != 2:
        raise DataError(f"its input has {len(x.groups)} axes instead of 2")
    return number(x.groups[1])


@handles("Scaler")
def scaler(node: Call) -> Value:
    """(x - offset) * scale."""
    x = node.view()
    D = feature_count(x)
    for op, name in (("Sub", "offset"), ("Mul", "scale")):
        a = np.array(node.attribute(name, []), np.float32)
        if a.shape not in ((1,), (D,)):
            raise DataError(f"its {name} does not fit {D} features")
        inputs: list[Value | None] = [x, Constant((a,))]
        x = node.step(op, inputs, broadcast(inputs))
    return x


def linear(node: Call, count: int) -> View:
    """Return the scores of a linear model with this many outputs, after its transformation."""
    x = node.view()
    D = feature_count(x)
    W = np.array(node.attribute("coefficients", []), np.float32)
    if count < 1 or W.size != count * D:
        raise DataError(f"its {W.size} coefficients do not fit {D} features and {count} outputs")
    y = product(node, x, W.reshape(count, D).T)
    if "intercepts" in node.attributes:
        b = np.array(node.attribute("intercepts"), np.float32)
        if b.shape != (count,):
            raise DataError(f"its intercepts do not fit {count} outputs")
        y = node.step("Add", [y, Constant((b,))], y.groups)
    transform = node.attribute("post_transform", "NONE")
    if transform == "LOGISTIC":
        return node.step("Sigmoid", [y], y.groups)
    if transform == "SOFTMAX":
        return node.step("Softmax", [y], y.groups, along=y.groups[1])
    if transform != "NONE":
        raise DataError(f"post_transform={transform} is not supported")
    return y


@handles("LinearRegressor")
def linear_regressor(node: Call) -> Value:
    return linear(node, node.attribute("targets", 1))


@handles("LinearClassifier")
def linear_classifier(node: Call) -> Outputs:
    labels = node.attribute("classlabels_ints") or node.attribute("classlabels_strings") or []
    if len(node.attribute("intercepts", [])) == 1:
        raise DataError("one score for two classes is not supported")
    label = Refused(LabelError(f"{node.name}: labels are not supported: a model returns numbers."))
    return [label, linear(node, len(labels))]


@handles("Normalizer")
def normalizer(node: Call) -> Value:
    """Probabilities add up to 1 already."""
    x = node.view()
    after = x.step.op == "Softmax" and x.groups[-1] == x.step.settings["along"]
    if node.attribute("norm") == "L1" and after:
        return x
    raise DataError("it is supported only after a softmax, where it changes nothing")
