"""How convolutions, pools and what else works on images or windows is written in ONNX.

These operators take channels first. `pads` holds the zeros before all axes and then those after
them, also for "same". Only where the zeros depend on a free number of steps, because the stride is
more than 1, "same" is `auto_pad="SAME_UPPER"`. The number of steps is fixed if there are dilations
or if windows are shorter than the stride.

    Conv1D, Conv2D, DepthwiseConv2D   Conv(X, W, b), W (filters, C / groups, *kernel_size)
    ConvTranspose1D, ConvTranspose2D  ConvTranspose(X, W, b), W (C, filters / groups, *kernel_size)
    MaxPool1D, MaxPool2D              MaxPool(X)
    AvgPool1D, AvgPool2D              AveragePool(X), count_include_pad=0 only for "valid", "same"
    GlobalAvgPool, GlobalMaxPool      ReduceMean or ReduceMax over the positions, in any order
    Upsample2D                        Resize(X, scales): mode="nearest" with asymmetric and floor,
                                      or mode="linear" with half_pixel
    ZeroPad2D                         Pad(X, [pads]), in any order
    RandomCrop                        Pad(X, [pads]) if it has padding and needs some of it, then
                                      Slice(X, [starts], [ends], [axes]) if it cuts anything off;
                                      in any order
    RandomFlip, RandomShift           nothing
"""

from __future__ import annotations

from typing import Any

import numpy as np

from phitodeep.exchange.onnx.write.forms_general import moved, reduced
from phitodeep.exchange.onnx.write.graph import Form, Graph, UnknownSizeError, Value, rank
from phitodeep.layers.windows import Windows, extent


def windows(g: Graph, layer: Any, kernel: tuple[int, ...], dilations: tuple[int, ...]) -> Any:
    """Return the attributes of an operator that slides windows over its input."""
    sizes, strides = g.sizes(layer)[0][:-1], layer.strides
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides}
    axes = [*zip(sizes, kernel, strides, strict=True)]
    if layer.padding == "same" and any(n is None and s > 1 < k for n, k, s in axes):
        if max(dilations) > 1 or any(k < s for _, k, s in axes):
            raise UnknownSizeError  # of SAME_UPPER, onnxruntime knows only the usual cases
        return {**attributes, "auto_pad": "SAME_UPPER"}
    shape, who = layer.input_shape[:-1], type(layer).__name__
    pads = Windows(shape, kernel, strides, layer.padding, dilations, who).pads
    return {**attributes, "pads": both_ends(pads)}


def both_ends(pads: list[tuple[int, int]]) -> list[int]:
    """Return all zeros before the axes, then all zeros after them."""
    return [*(before for before, _ in pads), *(after for _, after in pads)]


def conv(g: Graph, layer: Any, x: Value) -> Value:
    attributes = windows(g, layer, layer.kernel, layer.dilations)
    attributes |= {"dilations": layer.dilations, "group": layer.groups}
    W = g.param(layer, "W", lambda W: moved(W, -1, -2))
    params = [W, *g.params(layer, *["b"] * layer.bias)]
    return g.node("Conv", g.channels_first(layer, x), *params, **attributes)


def conv_transpose(g: Graph, layer: Any, x: Value) -> Value:
    shapes, steps = (layer.input_shape, layer.output_shape[:-1]), layer.strides
    pads = Windows(shapes[1], layer.kernel, steps, layer.padding, layer.dilations, "").pads
    axes = zip(*shapes, pads, layer.kernel, steps, layer.dilations, strict=False)
    extra = [out + sum(p) - (n - 1) * s - extent(k, d) for n, out, p, k, s, d in axes]
    W = g.param(layer, "W", lambda W: moved(W, -2, -1))
    return g.node(
        "ConvTranspose",
        g.channels_first(layer, x),
        W,
        *g.params(layer, *["b"] * layer.bias),
        kernel_shape=layer.kernel,
        strides=layer.strides,
        pads=both_ends(pads),
        output_padding=extra,
        dilations=layer.dilations,
        group=layer.groups,
    )


def max_pool(g: Graph, layer: Any, x: Value) -> Value:
    x = g.channels_first(layer, x)
    return g.node("MaxPool", x, **windows(g, layer, layer.pool, (1,) * layer.rank))


def avg_pool(g: Graph, layer: Any, x: Value) -> Value:
    x = g.channels_first(layer, x)
    attributes = windows(g, layer, layer.pool, (1,) * layer.rank)
    counted = not isinstance(layer.padding, str)
    return g.node("AveragePool", x, **attributes, count_include_pad=int(counted))


def global_pool(op: str) -> Form:
    """Return the form of a global pool, which reduces all axes between samples and channels."""

    def form(g: Graph, layer: Any, x: Value) -> Value:
        order = x.order or tuple(range(rank(layer)))
        axes = [i for i, ours in enumerate(order) if 0 < ours < len(order) - 1]
        y = reduced(g, op, x, axes)
        samples_first = x.axis(0) < x.axis(len(order) - 1)
        return y._replace(order=None if samples_first else (1, 0))

    return form


def upsample(g: Graph, layer: Any, x: Value) -> Value:
    scales = np.array([1, 1, *layer.factors], np.float32)
    modes = {
        "nearest": ("nearest", "asymmetric", {"nearest_mode": "floor"}),
        "bilinear": ("linear", "half_pixel", {}),
    }
    mode, coordinates, rounding = modes[layer.mode]
    x = g.channels_first(layer, x)
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates, **rounding}
    return g.node("Resize", x, Value(""), scales, **attributes)


def zero_pad(g: Graph, layer: Any, x: Value) -> Value:
    return padded(g, x, [(0, 0), *layer.pads, (0, 0)])


def padded(g: Graph, x: Value, pads: list[tuple[int, int]]) -> Value:
    """Write zeros around x, given their numbers before and after each of our axes."""
    return g.node("Pad", x, both_ends([pads[ours] for ours in x.order or range(len(pads))]))


def random_crop(g: Graph, layer: Any, x: Value) -> Value:
    pads, cuts = [(0, 0)], []
    offsets = (layer._max_offsets(layer.input_shape) // 2).tolist()  # of the padded image
    sides = zip(layer.input_shape, layer.pads, offsets, layer.window, strict=False)
    for ours, (n, padding, offset, size) in enumerate(sides, 1):
        start = offset - padding
        before, after = max(-start, 0), max(start + size - n, 0)
        pads.append((before, after))
        if before + n + after > size:
            cuts.append((start + before, start + before + size, x.axis(ours)))
    if any(map(any, pads)):
        x = padded(g, x, [*pads, (0, 0)])
    if not cuts:
        return x
    starts, ends, axes = ([*column] for column in zip(*cuts, strict=True))
    return g.node("Slice", x, starts, ends, axes)
