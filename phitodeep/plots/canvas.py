"""What all pictures share: figures that notebooks show, colours, files, and layers by path."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.checks import as_real
from phitodeep.core.files import atomic_write, check_path
from phitodeep.core.types import Array
from phitodeep.errors import (
    ArgumentError,
    ArgumentTypeError,
    NotBuiltError,
    ShapeError,
    UnknownNameError,
    extra,
)
from phitodeep.inspect.explorer.tiles import mosaic
from phitodeep.layers.base import Layer
from phitodeep.training.inputs import in_order

POSITIVE, NEGATIVE, ZERO = "#d9680f", "#1f6fb4", "#f7f7f7"
MUTED = "#767676"  # what explains: readable on white and on black
# of classes and curves, in an order that colour-blind readers can tell apart
COLOURS = (
    *(NEGATIVE, POSITIVE, "#1a9e77", "#8f5fbf", "#b8960c"),
    *("#56b4e9", "#cc6699", "#6b6b6b", "#8c4a1c", "#0b5d56"),
)
DPI = 120  # of files
VISIBLE = str.maketrans({"\n": "↵", " ": "␣", "\t": "⇥"})


def figure(who: str, width: float, height: float) -> Any:
    """Return an empty figure, in inches, that shows itself as the result of a notebook's cell.

    A figure that pyplot did not make has no picture of its own in Jupyter. This one carries the
    method that IPython looks for, so no backend is chosen and nothing outside the figure changes.
    """
    with extra("plot", "matplotlib", who):
        from matplotlib.figure import Figure
    made: Any = Figure(figsize=(width, height), layout="constrained")
    made._repr_png_ = partial(_written, made, format="png")
    return made


def _written(drawn: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    drawn.savefig(stream, **options)
    return stream.getvalue()


def panel(who: str, ax: Any, width: float, height: float) -> Any:
    """Return the Axes to draw on: `ax`, or the only one of a new figure."""
    made = figure(who, width, height)  # also refuses a missing matplotlib
    if ax is None:
        return made.subplots()
    from matplotlib.axes import Axes

    if not isinstance(ax, Axes):
        raise ArgumentTypeError(f"{who}: ax must be an Axes of matplotlib, got {ax!r}.")
    return ax


def finished(drawn: Any, ax: Any, path: str | os.PathLike[str] | None, title: str = "") -> Any:
    """Save the figure of the Axes `drawn` if there is a path; return `ax`, or else the figure."""
    if title:
        drawn.set_title(title, fontsize=10)
    whole = drawn.figure.canvas.figure  # also of an Axes in a part of a figure
    save(whole, path)
    return whole if ax is None else ax


def save(drawn: Any, path: str | os.PathLike[str] | None) -> None:
    """Write a figure to a file, in the format of its name: .png, .svg, .pdf and so on."""
    if path is None:
        return
    suffix = Path(check_path(path)).suffix[1:].lower() or "png"
    known = drawn.canvas.get_supported_filetypes()
    if suffix not in known:
        raise ArgumentError(
            f"a picture cannot be written as .{suffix}: end the path {os.fspath(path)!r} with "
            f"one of {', '.join(f'.{name}' for name in known)}."
        )
    content = _written(drawn, format=suffix, dpi=DPI)
    with atomic_write(path) as file:
        file.write(content)


# --- colours -----------------------------------------------------------------------------------


def diverging(values: Array) -> dict[str, Any]:
    """Options of imshow for signed values: blue below 0, orange above, and 0 in the middle."""
    limit = float(np.abs(values[np.isfinite(values)]).max(initial=0)) or 1.0
    return {"cmap": _colours(NEGATIVE, ZERO, POSITIVE), "vmin": -limit, "vmax": limit}


def sequential() -> dict[str, Any]:
    """Options of imshow for values that are not negative: from almost white to dark orange."""
    return {"cmap": _colours(ZERO, POSITIVE, "#7a3600"), "vmin": 0}


def _colours(*names: str) -> Any:
    """A colour map through these colours; what is not a number stays empty."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("phitodeep", names).with_extremes(bad=(0, 0, 0, 0))


# --- tiles -------------------------------------------------------------------------------------


def gap_of(h: int, w: int) -> int:
    """The pixels between two tiles of this size."""
    return max(1, round(max(h, w) / 16))


class Numbers(NamedTuple):
    """What is written below the columns of a mosaic, and next to its rows."""

    across: list[Any]
    down: list[Any]
    below: str
    beside: str


def square(chosen: Array, total: int, what: str) -> Numbers:
    """The numbers of tiles in a square; columns have none if only some of all tiles are drawn."""
    columns = math.ceil(math.sqrt(len(chosen)))
    across = [f"+{j}" if len(chosen) == total else "" for j in range(columns)]
    return Numbers(across, chosen[::columns].tolist(), "", f"first {what} of the row")


def tiled(who: str, ax: Any, tiles: Array, numbers: Numbers, label: str) -> Any:
    """Draw signed tiles (n, h, w), or coloured ones (n, h, w, 3); return the Axes."""
    h, w = tiles.shape[1:3]
    gap = gap_of(h, w)
    whole = mosaic(tiles, len(numbers.across), gap)
    height, width = (6 * side / max(whole.shape[:2]) for side in whole.shape[:2])
    axes = panel(who, ax, max(3.5, width + 1.6), max(2.2, height + 0.9))
    options = diverging(tiles)
    if tiles.ndim == 4:
        shades = np.clip(0.5 + whole / (2 * options["vmax"]), 0, 1)
        axes.imshow(np.nan_to_num(shades, nan=1.0), interpolation="nearest")
    else:
        image = axes.imshow(whole, interpolation="nearest", **options)
        axes.figure.colorbar(image, ax=axes, label=label, shrink=0.8)
    for axis, side, names in ((axes.xaxis, w, numbers.across), (axes.yaxis, h, numbers.down)):
        axis.set_ticks([j * (side + gap) + (side - 1) / 2 for j in range(len(names))], names)
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    axes.set(xlabel=numbers.below, ylabel=numbers.beside)
    return axes


def some_of(shown: int, total: int, what: str) -> str:
    """How many of something a picture shows: "64 of 512 filters", or "16 filters"."""
    return f"{total:,} {what}" if shown == total else f"{shown:,} of {total:,} {what}"


def evenly(total: int, limit: int) -> Array:
    """At most `limit` indices below `total`, evenly spaced, with the first and the last."""
    return np.linspace(0, total - 1, min(total, limit)).round().astype(int)


# --- models ------------------------------------------------------------------------------------


def check_model(model: Any, who: str) -> None:
    """Refuse what is not a model or a layer, such as a builder."""
    if not isinstance(model, Layer):
        remedy = ": call its build() first" if hasattr(model, "build") else ""
        raise ArgumentTypeError(f"{who} takes a model, got {type(model).__name__}{remedy}.")


def layer_at(model: Layer, path: Any, who: str) -> Layer:
    """Return the layer at a path such as "3.layers.0"; refuse a path that no layer has."""
    check_model(model, who)
    layers = {place: part for place, part in model.walk() if place}
    if str(path) not in layers:
        raise UnknownNameError.of(path, layers, f"one of the layers ({who})")
    return layers[str(path)]


def weights_of(layer: Layer, path: str, who: str) -> Array | None:
    """Return the layer's W, or None if it has none; refuse a layer that is not built."""
    W = layer.params.get("W")
    if W is None and "W" in layer._declared:
        raise NotBuiltError(
            f"{who}: layer {path!r} has no weights yet: call build(input_shape), or train it first."
        )
    return W


def the_path(given: Any, paths: Sequence[str], who: str, what: str) -> str:
    """Return the path that was given, or else the only one; refuse None if there are several."""
    if given is None and len(paths) != 1:
        listed = f"name one of {', '.join(map(repr, paths))}" if paths else "there is none"
        raise ArgumentError(f"{who} needs {what}: {listed}.")
    return paths[0] if given is None else str(given)


def one_sample(model: Any, x: Any, who: str) -> Any:
    """Return one sample, which may be a batch of one, as a batch (1, ...), or one per input."""
    check_model(model, who)
    if model.input_shape is None:
        raise NotBuiltError(f"{who} needs a model that is built: call build(input_shape) first.")
    batch = []
    for A, shape in zip(in_order(x, model.takes, f"{who}: x"), model._ins(), strict=True):
        X = as_real(A, f"{who}: x")
        X = X[None] if X.ndim == len(shape) else X
        if X.ndim != len(shape) + 1 or len(X) != 1:
            raise ShapeError(
                f"{who} shows one sample of shape {shape}, got x of shape {np.shape(A)}: pass one "
                "of the samples, such as X[0]."
            )
        batch.append(X)
    return batch[0] if len(batch) == 1 else tuple(batch)


def texts_of(tokenizer: Any, tokens: Iterable[int]) -> list[str]:
    """The text of each token, with signs for spaces."""
    return [tokenizer.decode([token]).translate(VISIBLE) for token in tokens]


def check_names(labels: Any, count: int, who: str, what: str) -> list[str] | None:
    """Return `count` labels as texts, or None.

    Matplotlib would read what stands between two dollar signs as a formula.
    """
    if labels is None:
        return None
    if not isinstance(labels, Iterable):
        raise ArgumentTypeError(f"{who}: labels must be a list of texts, got {labels!r}.")
    names = [str(label) for label in labels]
    names = [name.replace("$", r"\$") if name.count("$") > 1 else name for name in names]
    if len(names) != count:
        raise ArgumentError(f"{who} needs {count} labels, one per {what}, got {len(names)}.")
    return names
