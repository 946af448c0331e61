"""The weights of a layer as pictures, one per filter."""

from __future__ import annotations

import math
from typing import Any

from phitodeep.core.checks import check_count, check_shape
from phitodeep.core.types import Array, PathLike, Shape
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.layers.base import Layer
from phitodeep.plots import canvas

WHO = "plots.filters"
SIDE = 16  # filters and input channels that are drawn, if a filter has many channels


def filters(
    model: Any,
    layer: str | None = None,
    *,
    shape: Shape | None = None,
    limit: int = 64,
    ax: Any = None,
    path: PathLike | None = None,
) -> Any:
    """Draw the weights of a layer: for each filter, the pattern that it looks for.

        plots.filters(model, "0")                       # a Conv2D
        plots.filters(model, "2", shape=(28, 28))       # a Dense after Flatten, unit by unit

    Positive weights are orange, negative ones blue, and 0 is white. Filters of one input channel
    are tiles in a square. Filters of three channels are coloured tiles, in which grey is 0. For
    other filters, each row is a filter, and each column an input channel. A filter of a Conv1D is
    one tile, with a row per input channel and a column per step.

    layer    the path of a layer, such as "3.layers.0"; by default the only convolution, or the
             only Dense if there is a `shape`
    shape    for a Dense: the shape of its input as an image, (h, w) or (h, w, C)
    limit    how many filters are drawn at most; evenly spaced ones, and the title says so

    Draws on the Axes `ax` and returns it if given, and otherwise returns the figure; saved to
    `path` if given. Raises UnknownNameError for a path that no layer has, ArgumentError for a layer
    without filters and NotBuiltError for a layer without weights yet.
    """
    limit = check_count(limit, f"{WHO} limit")
    canvas.check_model(model, WHO)
    fitting = [p for p, part in model.walk() if _is_map(part) and _is_flat(part) == bool(shape)]
    layer = canvas.the_path(layer, fitting, WHO, "the path of a built layer with filters")
    W = _filters_of(model, layer, shape)
    total, h, w, C = W.shape
    side = C not in (1, 3)
    chosen = canvas.evenly(total, min(limit, SIDE) if side else limit)
    channels = canvas.evenly(C, SIDE)
    count = canvas.some_of(len(chosen), total, "filters")
    if side:
        tiles = W[chosen][..., channels].transpose(0, 3, 1, 2).reshape(-1, h, w)
        numbers = canvas.Numbers(channels.tolist(), chosen.tolist(), "input channel", "filter")
        count += f", {canvas.some_of(len(channels), C, 'input channels')}"
    else:
        tiles = W[chosen] if C == 3 else W[chosen, ..., 0]
        numbers = canvas.square(chosen, total, "filter")
    if C == 3:
        count += f"; full colour is ±{canvas.diverging(tiles)['vmax']:.2g}"
    axes = canvas.tiled(WHO, ax, tiles, numbers, "weight")
    return canvas.finished(axes, ax, path, f"layer {layer}: {count}")


def _filters_of(model: Layer, path: str, shape: Shape | None) -> Array:
    """The weights of a layer as filters (n, h, w, C)."""
    layer = canvas.layer_at(model, path, WHO)
    W = canvas.weights_of(layer, path, WHO)
    if W is None or not _is_map(layer):
        others = [p for p, part in model.walk() if _is_map(part)]
        raise ArgumentError(
            f"{WHO} needs a layer with filters, but layer {path!r} is {layer!r}: the layers with "
            f"filters are {', '.join(others) or 'none'}."
        )
    if W.ndim == 4:  # (kh, kw, C, n)
        return W.transpose(3, 0, 1, 2)
    if W.ndim == 3:  # (k, C, n)
        return W.transpose(2, 1, 0)[..., None]
    sizes = () if shape is None else check_shape(shape, f"{WHO} shape")
    if len(sizes) not in (2, 3) or math.prod(sizes) != len(W):
        example = f", such as shape=(28, 28) for {28 * 28} inputs"
        raise ShapeError(
            f"{WHO}: layer {path!r} takes {len(W)} features: pass the shape of the image that "
            f"they are, (h, w) or (h, w, C){example}; got shape={shape}."
        )
    return W.T.reshape(-1, *sizes, *(1,) * (3 - len(sizes)))


def _is_flat(layer: Layer) -> bool:
    """Whether W is a matrix, so that only `shape` says how to draw its columns."""
    return layer.params["W"].ndim == 2


def _is_map(layer: Layer) -> bool:
    """Whether W multiplies the input of a layer, as it declares by `Layer.matrices`."""
    W = layer.params.get("W")
    return W is not None and len(layer.matrices("W", W)) > 0
