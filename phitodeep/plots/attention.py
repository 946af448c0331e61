"""Where the heads of an attention layer look."""

from __future__ import annotations

import math
from typing import Any

from phitodeep.core.checks import check_count
from phitodeep.core.types import Array, PathLike
from phitodeep.errors import ArgumentError, UnknownNameError
from phitodeep.inspect.attributions import attention_maps
from phitodeep.plots import canvas

WHO = "plots.attention"
HEADS = 16  # that are drawn
NAMED = 40  # positions up to which each has a name


def attention(
    model: Any,
    x: Any,
    layer: str | None = None,
    *,
    head: int | None = None,
    labels: Any = None,
    ax: Any = None,
    path: PathLike | None = None,
) -> Any:
    """Draw where an attention layer looks when the model predicts one sample x.

        plots.attention(model, tokens[0], "2.layers.0.layers.1")

    Each row is a position, and the columns are the positions that it looks at; a row sums to 1.
    There is one panel per head.

    layer     the path of an attention layer: see `model.attention_maps`; by default the only one
    head      the only head to draw, from 0
    labels    the names of the positions; by default, the tokens' texts, if the model has a
              tokenizer

    With `head`, draws on the Axes `ax` and returns it if given. Otherwise returns the figure.
    Saved to `path` if given. Raises UnknownNameError if no attention layer has that path.
    """
    if ax is not None and head is None:
        raise ArgumentError(f"{WHO} draws one panel per head: pass head= along with ax=.")
    X = canvas.one_sample(model, x, WHO)
    maps = attention_maps(model, X)
    layer = canvas.the_path(layer, [*maps], WHO, "the path of an attention layer")
    if layer not in maps:
        raise UnknownNameError.of(layer, maps, "one of the attention layers")
    P = maps[layer][0]  # (heads, T, T)
    if labels is None and model.tokenizer is not None and model.takes_tokens is True:
        labels = canvas.texts_of(model.tokenizer, X[0])
    names = canvas.check_names(labels, P.shape[1], WHO, "position")
    options = {**canvas.sequential(), "vmax": float(P.max()) or 1.0}
    if head is not None:
        head = check_count(head, f"{WHO} head", minimum=0, maximum=len(P) - 1)
        axes = canvas.panel(WHO, ax, 5.2, 4.5)
        image = _draw(axes, P[head], names, options)
        axes.figure.colorbar(image, ax=axes, label="weight", shrink=0.8)
        return canvas.finished(axes, ax, path, f"layer {layer}, head {head}")
    chosen = canvas.evenly(len(P), HEADS)
    columns = min(4, math.ceil(math.sqrt(len(chosen))))
    rows = -(-len(chosen) // columns)
    each = 4.2 if columns == 1 else 3.2
    made = canvas.figure(WHO, each * columns + 1, each * rows + 0.5)
    panels = made.subplots(rows, columns, squeeze=False)
    used = panels.flat[: len(chosen)]
    for axes, i in zip(used, chosen, strict=True):
        image = _draw(axes, P[i], names, options)
        axes.set_title(f"head {i}", fontsize=9)
    for axes in panels.flat[len(chosen) :]:
        axes.set_axis_off()
    for axes in used:
        axes.label_outer()
    made.colorbar(image, ax=panels, label="weight", shrink=0.6)
    made.suptitle(f"layer {layer}: {canvas.some_of(len(chosen), len(P), 'heads')}", fontsize=10)
    canvas.save(made, path)
    return made


def _draw(axes: Any, P: Array, names: list[str] | None, options: dict[str, Any]) -> Any:
    image = axes.imshow(P, interpolation="nearest", **options)
    axes.set(xlabel="looks at", ylabel="position")
    if names is not None and len(names) <= NAMED:
        size = 8 if len(names) <= 24 else 6
        turn = 90 if max(map(len, names)) > 1 else 0
        axes.set_xticks(range(len(names)), names, rotation=turn, fontsize=size)
        axes.set_yticks(range(len(names)), names, fontsize=size)
    return image
