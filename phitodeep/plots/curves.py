"""Curves of training: losses and metrics by epoch, and the loss by learning rate."""

from __future__ import annotations

import math
from typing import Any

from phitodeep.core.types import PathLike
from phitodeep.plots.canvas import COLOURS, MUTED, figure, finished, panel, save

FEW = 30  # epochs that are marked one by one


def history(history: Any, path: PathLike | None = None, *, who: str = "plots.history") -> Any:
    """Plot losses and metrics against epochs, one panel each; return the figure.

    `history` is what `train` returned. The figure is saved to `path` if given.
    """
    names = list(dict.fromkeys(n.split("_", 1)[1] for n in history.metrics))
    made = figure(who, 5 * (1 + len(names)), 3.5)
    panels = made.subplots(1, 1 + len(names), squeeze=False)[0]
    epochs = range(1, len(history) + 1)
    curves = {"train_loss": [a for a, _ in history], "test_loss": [b for _, b in history]}
    marker = "." if len(history) <= FEW else None  # a single epoch has no line
    for axes, name in zip(panels, ["loss", *names], strict=True):
        for part, colour in zip(("train", "test"), COLOURS, strict=False):
            values = {**curves, **history.metrics}.get(f"{part}_{name}", [math.nan])
            if not all(map(math.isnan, values)):
                axes.plot(epochs[: len(values)], values, label=part, color=colour, marker=marker)
        axes.set(xlabel="epoch", ylabel=name)
        axes.xaxis.get_major_locator().set_params(integer=True)
        if axes.lines:
            axes.legend()
    save(made, path)
    return made


def rates(
    found: Any, path: PathLike | None = None, *, ax: Any = None, who: str = "plots.rates"
) -> Any:
    """Plot the loss of a range test against the learning rate, and mark the suggested rate.

    `found` is what `find_alpha` returned. Draws on the Axes `ax` and returns it if given, and
    otherwise returns the figure; saved to `path` if given.
    """
    axes = panel(who, ax, 5, 3.5)
    axes.plot(found.rates, found.losses, color=COLOURS[0])
    label = f"suggested: {found.suggestion:.2g}"
    axes.axvline(found.suggestion, ls="--", color=MUTED, label=label)
    axes.set(xlabel="learning rate", ylabel="training loss, smoothed", xscale="log")
    axes.legend()
    return finished(axes, ax, path)
