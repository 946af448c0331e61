"""How convolutions, pools, padding and upsampling are recognised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from phitodeep import layers as L
from phitodeep.core.types import Array
from phitodeep.errors import DataError
from phitodeep.exchange.onnx.read.axes import expanded, flat, leaves
from phitodeep.exchange.onnx.read.building import Placed, Plan, Writer
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
    return ("same", None) if _is_same(step) else ("valid", pads)


def _is_same(step: Step) -> bool:
    """Return whether padding="same" adds the zeros of a step."""
    s, sizes = step.settings, step.view().sizes()[2:]
    for n, k, stride, d, pads in zip(
        sizes, s["kernel"], s["strides"], s["dilations"], s["pads"], strict=True
    ):
        totals = [max((-(-m // stride) - 1) * stride + extent(k, d) - m, 0) for m in n]
        if any((t // 2, t - t // 2) != pads for t in totals):
            return False
    return True


def over_windows(
    step: Step,
    make: Callable[[], L.Layer],
    zeros: Pads | None = None,
    **weights: Array,
) -> Plan:
    """Return the plan of a layer of images or sequences, which may get zeros around them."""
    x = step.view()

    def write(w: Writer, placed: list[Placed]) -> Placed:
        p, lead = w.channels_last(placed[0], x)
        if zeros is not None:
            if len(zeros) != 2:
                raise DataError(
                    f"{step.name} pads the steps of a sequence unevenly, which no layer does."
                )
            p = w.layer(L.ZeroPad2D(zeros), p, p.layout, lead)
        _, channels, *sizes = step.groups
        return w.layer(make(), p, (*w.rows(lead), *sizes, channels), lead, **weights)

    return Plan((x,), write)


def conv(step: Step) -> Plan:
    s, W = step.settings, step.array(1)
    transposed, rank, groups = step.op == "ConvTranspose", W.ndim - 2, s["group"]
    weights = {"W": np.moveaxis(W, (0, 1), (-2, -1) if transposed else (-1, -2))}
    if step.const(2) is not None:
        weights["b"] = step.array(2)
    settings: dict[str, Any] = {"stride": short(s["strides"]), "dilation": short(s["dilations"])}
    settings["bias"] = "b" in weights
    settings["kernel_size"], zeros = short(s["kernel"]), None
    kind: Any
    if transposed:
        kind = L.ConvTranspose1D if rank == 1 else L.ConvTranspose2D
        settings |= {**_transposed_padding(step), "groups": groups}
        settings["filters"] = W.shape[1] * groups
    else:
        settings["padding"], zeros = padding(step)
        if rank == 2 and W.shape[1] == 1 and groups > 1:
            kind = L.DepthwiseConv2D
            settings["multiplier"] = W.shape[0] // groups
        else:
            kind = L.Conv1D if rank == 1 else L.Conv2D
            settings |= {"filters": W.shape[0], "groups": groups}
    return over_windows(step, lambda: kind(**settings), zeros, **weights)


def _transposed_padding(step: Step) -> dict[str, Any]:
    """Return padding and output_padding of a transposed convolution."""
    s = step.settings
    pads, extra = s["pads"], s["extra"]
    larger = any(o >= stride for o, stride in zip(extra, s["strides"], strict=True))
    if len({n for pair in pads for n in pair}) == 1 and not larger:
        return {"padding": pads[0][0], "output_padding": short(extra)}
    axes = zip(s["kernel"], s["strides"], s["dilations"], pads, extra, strict=True)
    for kernel, stride, dilation, pair, o in axes:
        missing = extent(kernel, dilation) - stride
        before = max(missing, 0) // 2
        if pair != (before, max(missing, 0) - before) or o != max(-missing, 0):
            raise DataError(f"{step.name}: its pads {pads} are not supported.")
    return {"padding": "same"}


def pool(step: Step) -> Plan:
    s, average = step.settings, step.op == "AveragePool"
    pad, zeros = padding(step)
    if average and pad == "same" and s["counted"]:
        pad, zeros = "valid", s["pads"]
        if s["auto"]:
            raise DataError(f"{step.name}: count_include_pad with auto_pad is not supported.")
    if average and not s["counted"] and (zeros or isinstance(pad, int)):
        if not _is_same(step):
            raise DataError(
                f"{step.name}: a mean that leaves out the zeros is supported only for the padding "
                '"same".'
            )
        pad, zeros = "same", None
    if zeros and not average:
        raise DataError(f"{step.name}: its pads {s['pads']} are not supported.")
    kinds: Any = (L.AvgPool1D, L.AvgPool2D) if average else (L.MaxPool1D, L.MaxPool2D)
    kind = kinds[len(s["kernel"]) - 1]
    strides = None if s["strides"] == s["kernel"] else short(s["strides"])
    return over_windows(step, lambda: kind(short(s["kernel"]), strides, pad), zeros)


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
        return w.layer(L.ZeroPad2D(both), p, new, lead)

    return Plan((x,), write)


MODES = {
    ("nearest", "asymmetric", "floor"): "nearest",
    ("nearest", "half_pixel", "round_prefer_floor"): "nearest",
    ("nearest", "half_pixel", "round_prefer_ceil"): "nearest",
    ("linear", "half_pixel"): "bilinear",
    ("linear", "pytorch_half_pixel"): "bilinear",
}


def resize(step: Step) -> Plan:
    factors, kind = step.settings["factors"], step.settings["kind"]
    mode = MODES.get(kind[:2] if kind[0] == "linear" else kind)
    if mode is None or len(factors) != 4 or factors[:2] != [1, 1]:
        raise DataError(
            f"{step.name}: only images can be resized, by repeating pixels or with bilinear "
            "interpolation between half-pixel centres."
        )
    return over_windows(step, lambda: L.Upsample2D(short(factors[2:]), mode))


def global_pool(step: Step) -> Plan:
    """A mean or maximum over some axes of each sample."""
    reduced = leaves(step.settings["reduced"])
    kind = L.GlobalAvgPool if step.op == "ReduceMean" else L.GlobalMaxPool

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
            rest = (*(a for a in rest if a not in have[-1]), *have[-1])
        p = w.arranged(placed[0], ((w.batch,), *inside, rest))
        return w.layer(kind(), p, ((w.batch,), rest))

    return Plan((step.view(),), write)
