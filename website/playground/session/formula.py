"""What the page of formulas shows of a forward pass: what `derive` makes of it."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from phitodeep.derivations.language.mathml import MathML
from phitodeep.layers.base import Layer
from phitodeep.testing import check_gradients, derive

from . import program
from .panel import Panel, svg

BLOCK = MathML("block")
WIDTH, HEIGHT = 560, 280
SHAPES = "write the shapes as in X=(4, 5), beta=(5,), eps=1e-5."


@np.errstate(all="ignore")
def derived(text: str, given: str, name: str) -> dict[str, Any]:
    """Both passes as formulas, the layer's source, its check, and a plot as SVG."""
    shapes = _read(given)
    found = derive(text, name=name or "Derived", **shapes)
    source, layer = found.source, found.layer()
    X = np.random.default_rng(0).normal(size=shapes["X"])
    report = check_gradients(layer, X)
    layer.build(X.shape[1:], seed=0, dtype=np.float64)
    plot, caption = _plot(layer, X)
    return {
        "name": found.name,
        "forward": [step.written(BLOCK) for step in found.steps.forward],
        "backward": [step.written(BLOCK) for step in found.steps.backward],
        "source": source,
        "check": str(report),
        "plot": plot,
        "caption": caption,
    }


def _read(given: str) -> dict[str, Any]:
    """Shapes and numbers by name, from the text of keyword arguments."""
    try:
        call = ast.parse(f"f({given})", mode="eval").body
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args:
            return {key.arg or "": ast.literal_eval(key.value) for key in call.keywords}
    except (SyntaxError, ValueError):
        pass
    raise program.Refused(SHAPES)


def _plot(layer: Layer, X: Any) -> tuple[str, str]:
    """One number of Y and its slope, as the first number of X moves and all others stay."""
    first, xs = (0,) * X.ndim, np.linspace(-4, 4, 161)

    def Y_at(x: float) -> Any:
        X[first] = x
        return layer.forward(X)

    moved = np.nan_to_num(np.abs(Y_at(1.0) - Y_at(-1.0)))
    cell = np.unravel_index(int(np.argmax(moved)), moved.shape)
    one = np.zeros_like(moved)
    one[cell] = 1
    curves = np.array([(Y_at(x)[cell], layer.backward(one)[first]) for x in xs])
    seen = curves[np.isfinite(curves)]
    low, high = (seen.min(), seen.max()) if seen.size else (0.0, 1.0)
    margin = 0.08 * (high - low) or 1.0
    box, y = (48, 12, WIDTH - 64, HEIGHT - 52), (low - margin, high + margin)
    panel = Panel(box, (-4, 4), y)
    at = f"Y[{', '.join(map(str, cell))}]", f"X[{', '.join(map(str, first))}]"
    lines = [
        f'<path class="{look}" d="{panel.path(zip(xs[kept], values[kept], strict=True))}"/>'
        for look, values in zip(("pd-L", "pd-slope wb-slope"), curves.T, strict=True)
        if (kept := np.isfinite(values)).any()
    ]
    caption = (
        f"{at[0]} (solid) and its slope (dashed), as {at[1]} moves from \u22124 to 4 and all other "
        "numbers stay."
    )
    return svg(WIDTH, HEIGHT, caption, panel.axes(at[1], ""), *lines), caption
