"""How convolutions, pools, padding and upsampling are recognised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from phitodeep import layers as L
from phitodeep.errors import DataError
from phitodeep.exchange.onnx.read.axes import expanded, flat, leaves, size_of
from phitodeep.exchange.onnx.read.placing import Placed, Plan, Writer
from phitodeep.exchange.onnx.read.values import Step
from phitodeep.layers.windows import extent

Pads = list[tuple[int, int]]


def short(values: list[int]) -> int | tuple[int, ...]:
    """Return one integer if all are equal."""
    return values[0] if len(set(values)) == 1 else tuple(values)


def padding(step: Step) -> tuple[str | int, Pads | None]:
    """Return the padding of a layer with windows, or zeros to add before it."""
    s = step.settings
    pads: Pads = s["pads"]
    if s["auto"]:
        return "same", None
    if not any(map(any, pads)):
        return "valid", None
    if len({n for pair in pads for n in pair}) == 1:
        return pads[0][0], None
    sizes = [size_of(group) for group in step.view().groups[2:]]
    axes = zip(sizes, s["kernel"], s["strides"], s["dilations"], pads, strict=True)
    if all(_is_same(*axis) for axis in axes):
        return "same", None
    return "valid", pads


def _is_same(
    sizes: tuple[int, ...], kernel: int, stride: int, dilation: int, pads: tuple[int, int]
) -> bool:
    """Return whether padding="same" adds these zeros."""
    e = extent(kernel, dilation)
    totals = [max((-(-n // stride) - 1) * stride + e - n, 0) for n in sizes]
    return all((t // 2, t - t // 2) == pads for t in totals)


def padded(w: Writer, x: Placed, pads: Pads | None, lead: Any) -> Placed:
    """Return x with zeros around its images. The layout is that of x, with other sizes."""
    if pads is None:
        return x
    if len(pads) != 2:
        raise DataError(f"{w.at.name} pads the steps of a sequence unevenly, which no layer does.")
    return w.layer(w.wrapped(lead, L.ZeroPad2D(pads)), x, x.layout)


def conv(step: Step) -> Plan:
    s, x, W = step.settings, step.view(), step.array(1)
    bias = {} if step.const(2) is None else {"b": step.array(2)}
    rank, groups = W.ndim - 2, s["group"]
    pad, zeros = padding(step)
    settings: dict[str, Any] = {"stride": short(s["strides"]), "padding": pad}
    settings |= {"dilation": short(s["dilations"])}
    settings |= {"bias": bool(bias)}
    kernel = short(s["kernel"])
    depthwise = rank == 2 and W.shape[1] == 1 and groups > 1

    def made() -> L.Layer:
        if depthwise:
            return L.DepthwiseConv2D(kernel, multiplier=W.shape[0] // groups, **settings)
        kind = L.Conv1D if rank == 1 else L.Conv2D
        return kind(W.shape[0], kernel, groups=groups, **settings)

    def write(w: Writer, placed: list[Placed]) -> Placed:
        p, lead = w.channels_last(placed[0], x)
        p = padded(w, p, zeros, lead)
        out = _layout(w, step, lead)
        weights = np.moveaxis(W, (0, 1), (-1, -2))
        return w.layer_in(lead, made(), p, out, W=weights, **bias)

    return Plan((x,), write)


def conv_transpose(step: Step) -> Plan:
    s, x, W = step.settings, step.view(), step.array(1)
    bias = {} if step.const(2) is None else {"b": step.array(2)}
    rank, groups = W.ndim - 2, s["group"]
    pads, extra = s["pads"], s["extra"]
    pad: str | int = pads[0][0]
    if len({n for pair in pads for n in pair}) > 1 or any(
        o >= stride for o, stride in zip(extra, s["strides"], strict=True)
    ):
        pad = "same"
        for i, (k, stride, d) in enumerate(
            zip(s["kernel"], s["strides"], s["dilations"], strict=True)
        ):
            missing = max(extent(k, d) - stride, 0)
            same = pads[i] == (missing // 2, missing - missing // 2)
            if not same or extra[i] != max(stride - extent(k, d), 0):
                raise DataError(f"{step.name}: its pads {pads} are not supported.")
    kind: Any = L.ConvTranspose1D if rank == 1 else L.ConvTranspose2D

    def write(w: Writer, placed: list[Placed]) -> Placed:
        p, lead = w.channels_last(placed[0], x)
        made = kind(
            W.shape[1] * groups,
            short(s["kernel"]),
            stride=short(s["strides"]),
            padding=pad,
            output_padding=0 if pad == "same" else short(extra),
            dilation=short(s["dilations"]),
            groups=groups,
            bias=bool(bias),
        )
        weights = np.moveaxis(W, (0, 1), (-2, -1))
        return w.layer_in(lead, made, p, _layout(w, step, lead), W=weights, **bias)

    return Plan((x,), write)


def _layout(w: Writer, step: Step, lead: Any) -> Any:
    """Return the layout of a step (samples, channels, *sizes)."""
    _, channels, *sizes = step.groups
    return ((w.batch,), *((axis,) for axis in lead), *sizes, channels)


def pool(step: Step) -> Plan:
    s, x = step.settings, step.view()
    average = step.op == "AveragePool"
    pad, zeros = padding(step)
    if average and pad == "same" and s["counted"]:
        pad, zeros = "valid", s["pads"]
        if s["auto"]:
            raise DataError(f"{step.name}: count_include_pad with auto_pad is not supported.")
    if average and not s["counted"] and (zeros or isinstance(pad, int)):
        sizes = [size_of(group) for group in x.groups[2:]]
        axes = zip(sizes, s["kernel"], s["strides"], s["dilations"], s["pads"], strict=True)
        if not all(_is_same(*axis) for axis in axes):
            raise DataError(
                f"{step.name}: a mean that leaves out the zeros is supported only for the padding "
                '"same".'
            )
        pad, zeros = "same", None
    if zeros and not average:
        raise DataError(f"{step.name}: its pads {s['pads']} are not supported.")
    one_axis: Any = L.AvgPool1D if average else L.MaxPool1D
    two_axes: Any = L.AvgPool2D if average else L.MaxPool2D
    strides = None if s["strides"] == s["kernel"] else short(s["strides"])
    kind = one_axis if len(s["kernel"]) == 1 else two_axes

    def write(w: Writer, placed: list[Placed]) -> Placed:
        p, lead = w.channels_last(placed[0], x)
        p = padded(w, p, zeros, lead)
        made = kind(short(s["kernel"]), strides, pad)
        return w.layer_in(lead, made, p, _layout(w, step, lead))

    return Plan((x,), write)


def zero_pad(step: Step) -> Plan:
    x, pads = step.view(), step.settings["pads"]

    def write(w: Writer, placed: list[Placed]) -> Placed:
        have = expanded(placed[0].layout)
        where = {leaves(x.groups[i]): (i, both) for i, both in pads.items()}
        if len(have) != 4 or not set(where) <= set(have[1:3]) or () in where:
            p, lead = w.channels_last(placed[0], x)
            have = expanded(p.layout)
        else:
            p, lead = placed[0], ()
        inside = have[1 + len(lead) :]
        if len(inside) != 3 or not set(where) <= set(inside[:2]):
            raise DataError(f"{step.name}: zeros can be added only around images.")
        both = [where[g][1] if g in where else (0, 0) for g in inside[:2]]
        new = tuple(step.groups[where[g][0]] if g in where else g for g in have)
        return w.layer_in(lead, L.ZeroPad2D(both), p, new)

    return Plan((x,), write)


MODES = {
    ("nearest", "asymmetric", "floor"): "nearest",
    ("nearest", "half_pixel", "round_prefer_floor"): "nearest",
    ("nearest", "half_pixel", "round_prefer_ceil"): "nearest",
    ("linear", "half_pixel", ""): "bilinear",
    ("linear", "pytorch_half_pixel", ""): "bilinear",
}


def resize(step: Step) -> Plan:
    s, x = step.settings, step.view()
    rounding = "" if s["mode"] == "linear" else s["rounding"]
    mode = MODES.get((s["mode"], s["coordinates"], rounding))
    if mode is None or len(x.groups) != 4 or s["factors"][:2] != [1, 1]:
        raise DataError(
            f"{step.name}: only images can be resized, by repeating pixels or with bilinear "
            "interpolation between half-pixel centres."
        )

    def write(w: Writer, placed: list[Placed]) -> Placed:
        p, lead = w.channels_last(placed[0], x)
        made = L.Upsample2D(short(s["factors"][2:]), mode)
        return w.layer_in(lead, made, p, _layout(w, step, lead))

    return Plan((x,), write)


def global_pool(kind: Callable[[], L.Layer]) -> Callable[[Step], Plan]:
    """Return the rule of a mean or maximum over some axes of each sample."""

    def rule(step: Step) -> Plan:
        x, reduced = step.view(), leaves(step.settings["reduced"])

        def write(w: Writer, placed: list[Placed]) -> Placed:
            if not reduced:
                return placed[0]
            if w.batch in reduced:
                raise DataError(f"{step.name} reduces the batch.")
            have = expanded(placed[0].layout)
            rest = tuple(a for a in flat(have[1:]) if a not in reduced)
            inside = [g for g in have[1:] if set(g) & set(reduced)]
            if any(set(g) - set(reduced) for g in inside):
                inside = [(axis,) for axis in reduced]
            if have[-1] and set(have[-1]) <= set(rest):
                front = tuple(a for a in rest if a not in have[-1])
                rest = (*front, *have[-1])
            p = w.arranged(placed[0], ((w.batch,), *inside, rest))
            return w.layer(kind(), p, ((w.batch,), rest))

        return Plan((x,), write)

    return rule


global_avg_pool, global_max_pool = global_pool(L.GlobalAvgPool), global_pool(L.GlobalMaxPool)
