"""How large gradients and updates are from layer to layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from phitodeep.core.types import PathLike
from phitodeep.errors import ArgumentTypeError
from phitodeep.inspect.diagnosis.findings import LIMITS
from phitodeep.inspect.trace import Trace
from phitodeep.plots.canvas import COLOURS, MUTED, POSITIVE, evenly, figure, save, some_of

WHO = "plots.gradient_flow"
LAYERS = 60  # that are drawn
COLUMNS = {  # of the trace's rows
    "dY": ("|dY|", "gradient of the output,\nroot mean square"),
    "dW": ("|dW|", "gradient of the parameters,\nroot mean square"),
    "update": ("update / W", "length of the update / length of W\n(shaded: what diagnose accepts)"),
}


def gradient_flow(trace: Trace, *, path: PathLike | None = None) -> Any:
    """Draw the gradients and updates of a recorded step, layer by layer; return the figure.

        plots.gradient_flow(model.trace(X, y))

    The three panels share their layers, the first at the top. They show the root mean square of dY,
    the gradient that arrives at a layer, and of dW, the gradients of all its parameters together,
    and the length of the update divided by the length of the parameters. Scales are logarithmic;
    a value that is 0 or not finite is written at the left edge. The shaded range of updates is the
    one that `model.diagnose` accepts. Containers are left out, because the layers inside have rows.
    At most 60 layers are drawn. Saved to `path` if given.
    """
    if not isinstance(trace, Trace):
        raise ArgumentTypeError(f"{WHO} takes model.trace(X, y), got {type(trace).__name__}.")
    paths = [row.path for row in trace.rows]
    leaves = [r for r in trace.rows if not any(p.startswith(f"{r.path}.") for p in paths)]
    rows = [leaves[i] for i in evenly(len(leaves), LAYERS)]
    made = figure(WHO, 10, 1.4 + 0.24 * max(len(rows), 4))
    panels = made.subplots(1, len(COLUMNS), sharey=True)
    for axes, colour, (name, (title, meaning)) in zip(
        panels, COLOURS, COLUMNS.items(), strict=False
    ):
        _draw(axes, [getattr(row, name) for row in rows], colour)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel(meaning, fontsize=8)
        axes.grid(axis="y", alpha=0.25)
    low, high = (LIMITS[f"updates too {how}"].value for how in ("small", "large"))
    panels[-1].axvspan(low, high, color=MUTED, alpha=0.15, lw=0, zorder=0)
    panels[0].set_yticks(range(len(rows)), [f"{r.path}  {r.layer}" for r in rows], fontsize=8)
    panels[0].set_ylim(len(rows) - 0.5, -0.5)  # the first layer at the top
    of = "" if trace.sample is None else f", sample {trace.sample}"
    count = some_of(len(rows), len(leaves), "layers")
    made.suptitle(f"loss {trace.loss:.4g}{of}; {count}", fontsize=10)
    save(made, path)
    return made


def _draw(axes: Any, values: list[float | None], colour: str) -> None:
    """Draw a value per layer, at its number; None where there is none."""
    known = [(v, i) for i, v in enumerate(values) if v is not None]
    drawn = [(v, i) for v, i in known if np.isfinite(v) and v > 0]
    if drawn:
        axes.plot(*zip(*drawn, strict=True), "o-", color=colour, ms=4, lw=1)
    axes.set_xscale("log")
    axes.xaxis.set_minor_formatter("")
    if drawn:  # whole decades, whose ends have labels
        low, high = (np.log10(end(drawn)[0]) for end in (min, max))
        axes.set_xlim(10 ** (np.floor(low) - 0.1), 10 ** (max(np.ceil(high), low + 1) + 0.1))
    for v, i in known:
        if (v, i) not in drawn:
            text = "0" if v == 0 else str(v)
            place = {"transform": axes.get_yaxis_transform(), "va": "center", "fontsize": 8}
            axes.text(0.02, i, text, color=POSITIVE, fontweight="bold", **place)
