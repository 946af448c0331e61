"""Vectors with many features as points in the plane, by principal components."""

from __future__ import annotations

from typing import Any

import numpy as np

from phitodeep.core.checks import as_float, as_real, check_count, check_finite
from phitodeep.core.types import Array, PathLike
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.layers.base import Layer
from phitodeep.plots import canvas
from phitodeep.plots.canvas import COLOURS

WHO = "plots.embedding"


def embedding(
    model_or_W: Any,
    *,
    labels: Any = None,
    y: Any = None,
    layer: str | None = None,
    limit: int = 5000,
    ax: Any = None,
    path: PathLike | None = None,
) -> Any:
    """Draw the rows of W (n, D) as points, projected on their two principal components.

        plots.embedding(np.asarray([[1.0, 0.0, 0.2], [0.9, 0.1, 0.1], [0.0, 1.0, 0.0]]))

    The projection keeps as much of the variance as two axes can; their titles say how much. For a
    model, W holds the vectors of its Embedding. W may also be the output of a layer for n samples,
    such as `model.run_with_cache(X)[1]["3.Y"]`.

    labels    the names of the rows; by default, the tokens' texts, if the model has a tokenizer.
              A name that would cover another one is left out, and the title says so
    y         the class of each row, (n,) integers: points get its colour
    layer     for a model: the path of the Embedding; by default the first one
    limit     how many points are drawn at most; evenly spaced rows, and the title says so

    Draws on the Axes `ax` and returns it if given, and otherwise returns the figure; saved to
    `path` if given. Source: Pearson 1901, "On lines and planes of closest fit to systems of points
    in space"; computed by the singular values of the centred rows.
    """
    W = as_float(_rows(model_or_W, layer), np.float64, f"{WHO}: W")
    if W.ndim != 2 or min(W.shape) < 2:
        raise ShapeError(f"{WHO} needs rows W (n, D) with n > 1 and D > 1, got shape {W.shape}.")
    check_finite(W, f"{WHO}: W")
    tokenizer = getattr(model_or_W, "tokenizer", None)
    if labels is None and tokenizer is not None and tokenizer.vocab_size == len(W):
        labels = canvas.texts_of(tokenizer, range(len(W)))
    names = canvas.check_names(labels, len(W), WHO, "row")
    points, shares = principal(W)
    chosen = canvas.evenly(len(W), check_count(limit, f"{WHO} limit"))
    axes = canvas.panel(WHO, ax, 6, 4.8)
    for label, rows, colour in _groups(y, len(W)):
        at = points[chosen[rows[chosen]]]
        axes.scatter(*at.T, s=14, color=colour, label=label, linewidths=0)
    title = canvas.some_of(len(chosen), len(W), "rows")
    if y is not None:
        axes.legend(title="class", fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    for i, side in enumerate(("x", "y")):
        axes.set(**{f"{side}label": f"component {i + 1} ({shares[i]:.0%} of the variance)"})
    if names is not None:
        axes.margins(0.08)
        written = _write(axes, points[chosen], [names[i] for i in chosen])
        title += f", {canvas.some_of(written, len(chosen), 'names')}"
    return canvas.finished(axes, ax, path, title)


def principal(W: Array) -> tuple[Array, Array]:
    """Return the rows' coordinates on the two principal components, (n, 2), and their shares.

    The shares are of the variance. The largest entry of each component is positive, because the
    sign is otherwise arbitrary.
    """
    centred = W - W.mean(axis=0)
    _, s, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:2]
    largest = np.abs(axes).argmax(axis=1)
    axes = axes * np.where(axes[np.arange(2), largest] < 0, -1, 1)[:, None]
    variance = s**2
    return centred @ axes.T, variance[:2] / (variance.sum() or 1.0)


def _rows(given: Any, path: str | None) -> Any:
    """The rows to project: given ones, or the vectors of an Embedding."""
    if not isinstance(given, Layer):
        if path is not None:
            raise ArgumentError(f"{WHO}: layer= is an option for a model, got {type(given)!r}.")
        return given
    tokens = [p for p, part in given.walk() if "W" in part._declared and part.takes_tokens]
    if path is None and not tokens:
        raise ArgumentError(
            f"{WHO}: the model has no Embedding: pass rows W (n, D), or the path layer=."
        )
    path = tokens[0] if path is None else path
    layer = canvas.layer_at(given, path, WHO)
    W = canvas.weights_of(layer, path, WHO)
    if W is None:
        raise ArgumentError(f"{WHO}: layer {path!r}, {layer!r}, has no parameter W.")
    return W


def _groups(y: Any, n: int) -> list[tuple[str, Array, str]]:
    """The rows of each class, with its name and colour."""
    if y is None:
        return [("", np.ones(n, bool), COLOURS[0])]
    classes = as_real(y, f"{WHO}: y")
    if classes.shape != (n,):
        raise ShapeError(
            f"{WHO}: y must have the shape ({n},), one class per row, got {classes.shape}."
        )
    kinds = np.unique(classes)
    if len(kinds) > len(COLOURS):
        raise ArgumentError(
            f"{WHO} has colours for {len(COLOURS)} classes, but y has {len(kinds)}: leave y out, "
            "and pass labels instead."
        )
    return [(str(k), classes == k, colour) for k, colour in zip(kinds, COLOURS, strict=False)]


def _write(axes: Any, points: Array, names: list[str]) -> int:
    """Write the names of points, without those that would cover an earlier one; return how many."""
    from matplotlib.transforms import Bbox

    whole = axes.figure.canvas.figure
    whole.draw_without_rendering()  # so that texts have their places
    taken: list[Any] = []
    for point, name in zip(points, names, strict=True):
        text = axes.annotate(name, point, (3, 3), textcoords="offset points", fontsize=8)
        box = text.get_window_extent()
        if Bbox.count_overlaps(box, taken) if taken else False:
            text.remove()
        else:
            taken.append(box)
    return len(taken)
