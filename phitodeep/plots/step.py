"""One training step, there and back."""

from __future__ import annotations

from phitodeep.core.types import PathLike
from phitodeep.errors import ArgumentTypeError
from phitodeep.inspect.explorer.picture import picture
from phitodeep.inspect.trace import Trace
from phitodeep.plots.svg import Drawing


def step(trace: Trace, *, moving: bool = False, path: PathLike | None = None) -> Drawing:
    """Draw a recorded step: activations from left to right, gradients back, and one cell's terms.

        plots.step(model.trace(X, y))

    The result is the text of an SVG file, which notebooks show as a picture. `moving` plays the
    step as a loop of five seconds. Saved to `path` if given.

    Raises ArgumentTypeError if `trace` is not a Trace.
    """
    if not isinstance(trace, Trace):
        raise ArgumentTypeError(f"plots.step takes model.trace(X, y), got {type(trace).__name__}.")
    drawn = Drawing(picture(trace, moving=moving))
    if path is not None:
        drawn.save(path)
    return drawn
