"""Convolutions, pools, padding, upsampling and reductions: operators along positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from phitodeep import layers as L
from phitodeep.core.types import Array
from phitodeep.errors import DataError
from phitodeep.exchange.onnx.read.axes import Group, expanded, flat, leaves, new, number, size_of
from phitodeep.exchange.onnx.read.building import Placed, Plan, Writer
from phitodeep.exchange.onnx.read.interpreting import Call, axis_of, handles
from phitodeep.exchange.onnx.read.values import Value, View
from phitodeep.layers import windows as layers
from phitodeep.layers.random import shapes_only

Pads = list[tuple[int, int]]


def short(values: list[int]) -> int | tuple[int, ...]:
    """Return one integer if all are equal."""
    return values[0] if len(set(values)) == 1 else tuple(values)


class Windows(NamedTuple):
    """What an operator says of its windows, for each spatial axis; pads are before and after."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    pads: Pads
    auto: bool

    def padding(self, x: View) -> tuple[str | int, Pads | None]:
        """Return the padding of a layer, or zeros to add before it."""
        if self.auto:
            return "same", None
        if not any(map(any, self.pads)):
            return "valid", None
        if len({n for pair in self.pads for n in pair}) == 1:
            return self.pads[0][0], None
        return ("same", None) if self.is_same(x) else ("valid", self.pads)

    def is_same(self, x: View) -> bool:
        """Return whether padding="same" adds the same zeros."""
        kernel, strides, dilations = map(tuple, self[:3])
        return all(
            layers.Windows(sizes, kernel, strides, "same", dilations, "").pads == self.pads
            for sizes in zip(*x.sizes()[2:], strict=True)
        )


def windows(node: Call, kernel: list[int]) -> Windows:
    """Return the windows of an operator on (N, C, *sizes), whose input it checks."""
    rank, axes = len(kernel), len(node.view().groups)
    if axes != rank + 2:
        raise DataError(f"its input has {axes} axes instead of {rank + 2}")
    if rank not in (1, 2):
        raise DataError(f"windows along {rank} axes are not supported: only along 1 or 2")
    strides, dilations = (node.attribute(name) or [1] * rank for name in ("strides", "dilations"))
    if node.attribute("kernel_shape", kernel) != kernel:
        raise DataError(
            f"its kernel_shape {node.attribute('kernel_shape')} differs from its weights {kernel}"
        )
    for name, values in (("kernel", kernel), ("strides", strides), ("dilations", dilations)):
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
    return Windows(kernel, strides, dilations, both, auto == "SAME_UPPER")


def layer(
    node: Call, make: Callable[[], L.Layer], zeros: Pads | None = None, **weights: Array
) -> View:
    """Add a layer of images or sequences, which may get zeros around them; it says the sizes."""
    x = node.view()
    if zeros is not None and len(zeros) != 2:
        raise DataError("it pads the steps of a sequence unevenly, which no layer does")
    shapes = []
    for channels, *sizes in zip(*x.sizes()[1:], strict=True):
        sizes = [n + sum(pair) for n, pair in zip(sizes, zeros or [(0, 0)] * 2, strict=False)]
        with shapes_only():
            shapes.append(make().build((*sizes, channels)))
    *out, filters = map(new, zip(*shapes, strict=True))
    channels_out = filters if weights else x.groups[1]

    def write(w: Writer, placed: list[Placed]) -> Placed:
        p, lead = w.channels_last(placed[0], x)
        if zeros is not None:
            p = w.layer(L.ZeroPad2D(zeros), p, p.layout, lead)
        return w.layer(make(), p, (*w.rows(lead), *out, channels_out), lead, **weights)

    return node.step(node.op, [x], [x.groups[0], channels_out, *out], False, Plan((x,), write))


@handles("Conv", "ConvTranspose")
def conv(node: Call) -> Value:
    x, W, b = node.view(), node.array(1), node.const(2)
    s, groups = windows(node, list(W.shape[2:])), node.attribute("group", 1)
    C, transposed = number(x.groups[1], "its number of channels"), node.op == "ConvTranspose"
    if groups < 1 or C % groups or W.shape[0] % groups:
        raise DataError(f"its {C} channels do not fit {groups} groups")
    if (W.shape[0] if transposed else W.shape[1] * groups) != C or 0 in W.shape:
        raise DataError(f"its weights of shape {W.shape} do not fit {C} channels")
    filters, one = W.shape[1] * groups if transposed else W.shape[0], len(s.kernel) == 1
    weights = {"W": np.moveaxis(W, (0, 1), (-2, -1) if transposed else (-1, -2))}
    if b is not None:
        weights["b"] = b.array("its bias")
        if weights["b"].shape != (filters,):
            raise DataError(f"its bias does not fit {filters} filters")
    given: dict[str, Any] = {"kernel_size": short(s.kernel), "stride": short(s.strides)}
    given |= {"dilation": short(s.dilations), "bias": b is not None}
    kind: Any
    zeros = None
    if transposed:
        kind = L.ConvTranspose1D if one else L.ConvTranspose2D
        given |= {"filters": filters, "groups": groups, **_transposed_padding(node, s)}
    else:
        given["padding"], zeros = s.padding(x)
        if not one and W.shape[1] == 1 and groups > 1:
            kind, given["multiplier"] = L.DepthwiseConv2D, filters // groups
        else:
            kind = L.Conv1D if one else L.Conv2D
            given |= {"filters": filters, "groups": groups}
    return layer(node, lambda: kind(**given), zeros, **weights)


def _transposed_padding(node: Call, s: Windows) -> dict[str, Any]:
    """Return padding and output_padding of a transposed convolution."""
    extra = node.attribute("output_padding") or [0] * len(s.kernel)
    if node.attribute("output_shape") or s.auto:
        raise DataError("output_shape and auto_pad are not supported: give pads")
    if len(extra) != len(s.kernel):
        raise DataError(f"its output_padding {extra} does not fit {len(s.kernel)} axes")
    larger = any(o >= stride for o, stride in zip(extra, s.strides, strict=True))
    if len({n for pair in s.pads for n in pair}) == 1 and not larger:
        return {"padding": s.pads[0][0], "output_padding": short(extra)}
    for kernel, stride, dilation, pair, o in zip(*s[:4], extra, strict=True):
        missing = layers.extent(kernel, dilation) - stride
        before = max(missing, 0) // 2
        if pair != (before, max(missing, 0) - before) or o != max(-missing, 0):
            raise DataError(f"its pads {s.pads} are not supported")
    return {"padding": "same"}


@handles("MaxPool", "AveragePool")
def pool(node: Call) -> Value:
    x, average = node.view(), node.op == "AveragePool"
    s = windows(node, node.attribute("kernel_shape", []))
    counted = node.attribute("count_include_pad")
    if any(d != 1 for d in s.dilations):
        raise DataError("dilations are not supported in pools")
    axes = zip(x.sizes()[2:], s.kernel, s.strides, s.pads, strict=True)
    uneven = any((n + sum(p) - k) % stride for size, k, stride, p in axes for n in size)
    if node.attribute("ceil_mode") and uneven and not s.auto:
        raise DataError("ceil_mode=1 changes its output, which is not supported")
    pad, zeros = s.padding(x)
    if average and pad == "same" and counted:
        pad, zeros = "valid", s.pads
        if s.auto:
            raise DataError("count_include_pad with auto_pad is not supported")
    if average and not counted and (zeros or isinstance(pad, int)):
        if not s.is_same(x):
            raise DataError(
                'a mean that leaves out the zeros is supported only for the padding "same"'
            )
        pad, zeros = "same", None
    if zeros and not average:
        raise DataError(f"its pads {s.pads} are not supported")
    kinds: Any = (L.AvgPool1D, L.AvgPool2D) if average else (L.MaxPool1D, L.MaxPool2D)
    kind = kinds[len(s.kernel) - 1]
    strides = None if s.strides == s.kernel else short(s.strides)
    return layer(node, lambda: kind(short(s.kernel), strides, pad), zeros)


@handles("Pad")
def pad(node: Call) -> Value:
    x, pads, fill = node.view(), node.ints(1) or [], node.const(2)
    if node.attribute("mode", "constant") != "constant" or (fill and fill.scalar() != 0):
        raise DataError("only zeros can be added around images")
    rank = len(x.groups)
    axes = node.ints(3)
    axes = list(range(rank)) if axes is None else [axis_of(i, rank) for i in axes]
    if len(pads) != 2 * len(axes) or min(pads, default=0) < 0 or len(set(axes)) < len(axes):
        raise DataError(f"its pads {pads[:9]} are not supported")
    changed: dict[int, tuple[int, int]] = {
        i: (before, after)
        for i, before, after in zip(axes, pads, pads[len(axes) :], strict=False)
        if before or after
    }
    if not changed:
        return x
    groups = [
        new(tuple(n + sum(changed[i]) for n in size_of(group))) if i in changed else group
        for i, group in enumerate(x.groups)
    ]

    def write(w: Writer, placed: list[Placed]) -> Placed:
        have = expanded(placed[0].layout)
        where = {leaves(x.groups[i]): (groups[i], both) for i, both in changed.items()}
        if len(have) != 4 or not set(where) <= set(have[1:3]) or () in where:
            p, lead = w.channels_last(placed[0], x)
            have = expanded(p.layout)
        else:
            p, lead = placed[0], ()
        inside = have[1 + len(lead) :]
        if len(inside) != 3 or not set(where) <= set(inside[:2]):
            raise DataError(f"{w.at.name}: zeros can be added only around images.")
        after = {group: where.get(group, (group, (0, 0))) for group in have}
        made = L.ZeroPad2D([after[group][1] for group in inside[:2]])
        return w.layer(made, p, tuple(after[group][0] for group in have), lead)

    return node.step("Pad", [x], groups, False, Plan((x,), write))


MODES = {
    ("nearest", "asymmetric", "floor"): "nearest",
    ("nearest", "half_pixel", "round_prefer_floor"): "nearest",
    ("nearest", "half_pixel", "round_prefer_ceil"): "nearest",
    ("linear", "half_pixel"): "bilinear",
    ("linear", "pytorch_half_pixel"): "bilinear",
}


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
    defaults = {
        "mode": "nearest",
        "coordinate_transformation_mode": "half_pixel",
        "nearest_mode": "round_prefer_floor",
    }
    kind = tuple(node.attribute(name, default) for name, default in defaults.items())
    mode = MODES.get(kind[:2] if kind[0] == "linear" else kind)
    if mode is None or len(factors) != 4 or factors[:2] != [1, 1]:
        raise DataError(
            "only images can be resized, by repeating pixels or with bilinear interpolation "
            "between half-pixel centres"
        )
    return layer(node, lambda: L.Upsample2D(short(factors[2:]), mode))


@handles("ReduceMean", "ReduceMax", "ReduceSum", "GlobalAveragePool", "GlobalMaxPool")
def reduce(node: Call) -> Value:
    x, op, keep = node.view(), node.op, bool(node.attribute("keepdims", 1))
    rank = len(x.groups)
    if op.startswith("Global"):
        op = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}[op]
        axes = list(range(2, rank))
    else:
        given = node.ints(1)
        if not given and node.attribute("noop_with_empty_axes"):
            return x
        axes = [axis_of(i, rank) for i in given or range(rank)]
    kept = [() if i in axes else g for i, g in enumerate(x.groups) if keep or i not in axes]
    reduced = flat(x.groups[i] for i in sorted(set(axes)))
    plan = None if op == "ReduceSum" else _pooled(x, reduced, op == "ReduceMean")
    return node.step(op, [x], kept, False, plan, reduced=reduced)


def _pooled(x: View, axes: Group, mean: bool) -> Plan:
    """Return the plan of a mean or maximum over some axes of each sample."""
    kind = L.GlobalAvgPool if mean else L.GlobalMaxPool

    def write(w: Writer, placed: list[Placed]) -> Placed:
        reduced = leaves(axes)
        if not reduced:
            return placed[0]
        if w.batch in reduced:
            raise DataError(f"{w.at.name} reduces the batch.")
        have = expanded(placed[0].layout)
        rest = tuple(a for a in flat(have[1:]) if a not in reduced)
        inside = [g for g in have[1:] if set(g) & set(reduced)]
        if any(set(g) - set(reduced) for g in inside):
            inside = [(axis,) for axis in reduced]
        if have[-1] and set(have[-1]) <= set(rest):
            rest = (*(a for a in rest if a not in have[-1]), *have[-1])
        p = w.arranged(placed[0], ((w.batch,), *inside, rest))
        return w.layer(kind(), p, ((w.batch,), rest))

    return Plan((x,), write)
