"""What a layer computes from one sample, channel by channel."""

from __future__ import annotations

from typing import Any

from phitodeep.core.checks import check_count
from phitodeep.core.types import PathLike
from phitodeep.errors import ShapeError
from phitodeep.inspect.cache import run_with_cache
from phitodeep.plots import canvas

WHO = "plots.feature_maps"


def feature_maps(
    model: Any,
    x: Any,
    layer: str | None = None,
    *,
    limit: int = 64,
    ax: Any = None,
    path: PathLike | None = None,
) -> Any:
    """Draw the output of a layer when the model predicts one sample x: a tile per channel.

        plots.feature_maps(model, X[0], "0")

    The layer returns images (h, w, C), or sequences (T, C), which become one picture with a row per
    channel. Positive values are orange, negative ones blue, and 0 is white.

    layer    the path of a layer, such as "3.layers.0"; by default the only one that fits
    limit    how many channels are drawn at most; evenly spaced ones, and the title says so

    Draws on the Axes `ax` and returns it if given, and otherwise returns the figure; saved to
    `path` if given. Raises UnknownNameError for a path that no layer has, and ShapeError for a
    layer that returns neither images nor sequences, and for several samples.
    """
    limit = check_count(limit, f"{WHO} limit")
    X = canvas.one_sample(model, x, WHO)
    fitting = [p for p, part in model.walk() if p and len(part.output_shape or ()) in (2, 3)]
    layer = canvas.the_path(
        layer, fitting, WHO, "the path of a layer that returns images or sequences"
    )
    shown = canvas.layer_at(model, layer, WHO)
    _, cache = run_with_cache(model, X)
    Y = cache[f"{layer}.Y"]
    if Y.ndim not in (3, 4) or len(Y) != 1:
        raise ShapeError(
            f"{WHO} draws images (h, w, C) or sequences (T, C), but layer {layer!r}, {shown!r}, "
            f"returns samples of shape {Y.shape[1:]}."
        )
    chosen = canvas.evenly(Y.shape[-1], limit)
    count = canvas.some_of(len(chosen), Y.shape[-1], "channels")
    maps = Y[0][..., chosen]
    if Y.ndim == 3:
        axes = canvas.panel(WHO, ax, 7, 4)
        image = axes.imshow(
            maps.T, aspect="auto", interpolation="nearest", **canvas.diverging(maps)
        )
        step = -(-len(chosen) // 16)
        axes.set_yticks(range(0, len(chosen), step), [str(c) for c in chosen[::step]])
        axes.set(xlabel="step", ylabel="channel")
        axes.figure.colorbar(image, ax=axes, label="value", shrink=0.8)
    else:
        numbers = canvas.square(chosen, Y.shape[-1], "channel")
        axes = canvas.tiled(WHO, ax, maps.transpose(2, 0, 1), numbers, "value")
    return canvas.finished(axes, ax, path, f"output of layer {layer}: {count}")
