"""How the values of an array change in the course of training."""

from __future__ import annotations

from typing import Any

import numpy as np

from phitodeep.core.types import PathLike
from phitodeep.errors import ArgumentError
from phitodeep.plots.canvas import MUTED, evenly, finished, panel, sequential, some_of, the_path

WHO = "plots.histograms"
RIDGES = 20  # histograms that are drawn
TAIL = 0.002  # the share of a histogram's values that may lie outside the picture, at each end
TALL = 2.2  # the height of a histogram, in distances from one to the next


def histograms(
    recorded: Any,
    key: str | None = None,
    *,
    ax: Any = None,
    path: PathLike | None = None,
) -> Any:
    """Draw the histograms of one array as ridges, from the first at the back to the last.

        plots.histograms(watch, "0.W")

    `recorded` is a `Histograms` callback after training, and `key` one of its arrays: "0.W" is a
    parameter, "0.dW" its gradient, "1.Y" the output of a layer; it may be left out if there is only
    one. Every ridge has the same height, because the ranges differ; its step is written at the
    left. At most 20 histograms are drawn.

    Draws on the Axes `ax` and returns it if given, and otherwise returns the figure; saved to
    `path` if given.
    """
    if not [*recorded]:
        raise ArgumentError(
            f"{WHO} has nothing to draw, because nothing was recorded yet: first train with "
            "callbacks=[watch], until at least one histogram is due."
        )
    key = the_path(key, [*recorded], WHO, "the key of an array")
    series = recorded[key]
    chosen = evenly(len(series.steps), RIDGES)
    n = len(chosen)
    axes = panel(WHO, ax, 6, max(2.6, 1.6 + 0.16 * n))
    colours, ends = sequential()["cmap"], []
    for place, i in enumerate(chosen):
        counts, edges = series.counts[i], series.edges[i]
        middles = (edges[1:] + edges[:-1]) / 2
        density = counts / (edges[1:] - edges[:-1])
        height = TALL * density / (density.max() or 1)
        at = np.concatenate([edges[:1], middles, edges[-1:]])
        ridge = n - 1 - place + np.concatenate([[0], height, [0]])
        light, dark = (colours(shade + 0.35 * place / max(n - 1, 1)) for shade in (0.08, 0.45))
        axes.fill_between(at, n - 1 - place, ridge, color=light, lw=0, zorder=2 + place)
        axes.plot(at, ridge, color=dark, lw=0.9, zorder=2 + place)
        below = np.cumsum(counts) / max(counts.sum(), 1)
        ends.append((edges[:-1][below > TAIL][0], edges[1:][below >= 1 - TAIL][0]))
    low, high = np.min(ends), np.max(ends)
    axes.set_xlim(low - 0.03 * (high - low), high + 0.03 * (high - low))
    axes.axvline(0, color=MUTED, lw=0.8, ls=":", zorder=1)
    marked = range(0, n, -(-n // 10))
    axes.set_yticks([n - 1 - p for p in marked], [series.steps[chosen[p]] for p in marked])
    axes.set_ylim(-0.3, n - 1 + TALL + 0.3)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    count = some_of(n, len(series.steps), "histograms")
    axes.set(xlabel=f"value of {key}", ylabel="step")
    return finished(axes, ax, path, f"{key}: {count}")
