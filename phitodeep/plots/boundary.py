"""The decision boundary of a classifier of points in the plane."""

from __future__ import annotations

from typing import Any

import numpy as np

from phitodeep.core.checks import as_float, as_real, check_count, check_finite
from phitodeep.core.types import Array, PathLike
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError
from phitodeep.loss.metrics import as_classes
from phitodeep.plots import canvas
from phitodeep.plots.canvas import COLOURS
from phitodeep.training.objective import Trainable

WHO = "plots.decision_boundary"
POINTS = 2000  # samples that are drawn
MARGIN = 0.1  # around the samples, as a share of their range
LIGHT = 0.65  # how much lighter regions are than samples


def decision_boundary(
    model: Any,
    X: Any,
    y: Any,
    *,
    labels: Any = None,
    grid_resolution: int = 200,
    ax: Any = None,
    path: PathLike | None = None,
) -> Any:
    """Draw what a model predicts in the plane, and the samples X (N, 2) with their classes y.

        plots.decision_boundary(model, X, y)

    A model with one output is shown by its output: blue where it predicts class 0, orange where
    it predicts class 1, and a black line between them, at the loss's threshold. A model with K
    outputs is shown by the class with the highest one.

    labels             the names of the classes; by default their numbers
    grid_resolution    predictions along each side of the picture

    Draws on the Axes `ax` and returns it if given, and otherwise returns the figure; saved to
    `path` if given. At most 2,000 samples are drawn.
    """
    canvas.check_model(model, WHO)
    if not isinstance(model, Trainable):
        raise ArgumentTypeError(f"{WHO} takes a whole model, with a loss, got {model!r}.")
    points = as_float(X, np.float64, f"{WHO}: X")
    if points.ndim != 2 or points.shape[1] != 2 or not len(points):
        raise ShapeError(f"{WHO} draws points X (N, 2) in the plane, got shape {points.shape}.")
    check_finite(points, f"{WHO}: X")
    R = check_count(grid_resolution, f"{WHO} grid_resolution", minimum=2, maximum=2000)
    threshold = model.loss.threshold
    predicted, true, K = as_classes(model.predict(X), as_real(y, f"{WHO}: y"), threshold)
    if len(true) != len(points):
        raise ArgumentError(f"{WHO}: y has negative labels: leave out those samples.")
    names = canvas.check_names(labels, K, WHO, "class") or [f"class {k}" for k in range(K)]

    low, high = points.min(axis=0), points.max(axis=0)
    margin = MARGIN * np.where(high > low, high - low, 1)
    sides = np.linspace(low - margin, high + margin, R)  # (R, 2)
    grid = np.stack(np.meshgrid(*sides.T), axis=-1).reshape(-1, 2)
    P = model.predict(grid)

    axes = canvas.panel(WHO, ax, 6, 4.5)
    half = (sides[1] - sides[0]) / 2  # predictions are at the middles of pixels
    extent = [v for s, h in zip(sides.T, half, strict=True) for v in (s[0] - h, s[-1] + h)]
    place = {"extent": extent, "origin": "lower", "aspect": "auto"}
    if P.size == len(P):
        _field(axes, P.reshape(R, R), threshold, sides, place)
    else:
        _regions(axes, P.argmax(axis=-1).reshape(R, R), K, place)
    drawn = canvas.evenly(len(points), POINTS)
    for k in range(K):
        at = points[drawn][true[drawn] == k]
        if len(at):
            colour, marker = COLOURS[k % len(COLOURS)], "os^Dv"[k // len(COLOURS) % 5]
            style = {"edgecolors": "white", "linewidths": 0.6, "s": 24}
            axes.scatter(*at.T, color=colour, marker=marker, label=names[k], **style)
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.12), ncols=5, frameon=False)
    right = np.mean(predicted == true)
    count = canvas.some_of(len(drawn), len(points), "samples")
    axes.set(xlabel="x0", ylabel="x1")
    return canvas.finished(axes, ax, path, f"{right:.1%} correct, {count}")


def _field(axes: Any, P: Array, threshold: float, sides: Array, place: dict[str, Any]) -> None:
    """The output of a model that has one, with the middle of the colours at the threshold."""
    colours = canvas.diverging(P - threshold)
    colours |= {name: colours[name] + threshold for name in ("vmin", "vmax")}
    image = axes.imshow(P, alpha=0.75, **colours, **place)
    axes.figure.colorbar(image, ax=axes, label="output")
    if P.min() < threshold < P.max():
        axes.contour(*sides.T, P, levels=[threshold], colors="black", linewidths=1)


def _regions(axes: Any, classes: Array, K: int, place: dict[str, Any]) -> None:
    """The regions of the classes, in light colours."""
    from matplotlib.colors import ListedColormap, to_rgb

    own = [np.array(to_rgb(COLOURS[k % len(COLOURS)])) for k in range(K)]
    light = ListedColormap([LIGHT + (1 - LIGHT) * colour for colour in own])
    axes.imshow(classes, cmap=light, vmin=-0.5, vmax=K - 0.5, **place)
