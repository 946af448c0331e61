"""The small picture of each layer in the index: the curve of an activation, or X and Y as tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from phitodeep.core.call import calling
from phitodeep.core.types import Array
from phitodeep.layers.base import Layer
from website.playground.session.panel import Panel, svg

WIDTH, HEIGHT = 200, 80
BY_ROW = ("Softmax", "LogSoftmax")  # activations that are no function of one number


def picture(name: str, layer: Layer, Xs: Sequence[Array], curve: bool) -> str:
    if curve and name not in BY_ROW:
        return _curve(name, layer)
    with calling(step=0, training=True):
        Y = layer.forward(*Xs)
    width = 84 / len(Xs)
    return svg(
        WIDTH,
        HEIGHT,
        f"What {name} makes of the example",
        *(_tiles(X, 4 + k * width, width - 4 * (len(Xs) > 1)) for k, X in enumerate(Xs)),
        '<path class="wb-arrow" d="M92 40h14m-5 -5l5 5l-5 5"/>',
        _tiles(np.asarray(Y), 112, 84),
    )


def _curve(name: str, layer: Layer) -> str:
    """Y, and dashed the slope, for x from -4 to 4."""
    x = np.linspace(-4, 4, 81)
    assert layer.output_shape
    X = np.repeat(x[:, None], layer.output_shape[-1], axis=1)
    Y = layer.forward(X)
    slope = layer.backward(np.ones_like(X))
    panel = Panel((4, 4, WIDTH - 8, HEIGHT - 8), (-4, 4), (-1.6, 3))
    lines = []
    for kind, A in (("pd-L", Y[:, 0]), ("pd-slope wb-slope", slope[:, 0])):
        inside = (panel.y[0] <= A) & (panel.y[1] >= A)
        points = panel.path(zip(x[inside], A[inside], strict=True))
        lines.append(f'<path class="{kind}" d="{points}"/>')
    zero = f'<path class="pd-zero" d="{panel.path([(-4, 0), (4, 0)])}"/>'
    return svg(WIDTH, HEIGHT, f"The curve of {name} and its slope", zero, *lines)


def _tiles(A: Array, left: float, width: float) -> str:
    """The first sample, or all samples of a matrix, as coloured squares."""
    table = _matrix(np.asarray(A, float))
    rows, columns = table.shape
    side = min(width / columns, (HEIGHT - 8) / rows, 18)
    top = (HEIGHT - rows * side) / 2
    start = left + (width - columns * side) / 2
    largest = float(np.abs(table).max()) or 1.0
    return "".join(
        f'<rect class="wb-{"plus" if value > 0 else "minus"}" x="{start + j * side:.1f}" '
        f'y="{top + i * side:.1f}" width="{side - 1:.1f}" height="{side - 1:.1f}" '
        f'fill-opacity="{0.12 + 0.88 * abs(value) / largest:.2f}"/>'
        for i, row in enumerate(table)
        for j, value in enumerate(row)
    )


def _matrix(A: Any) -> Any:
    if A.ndim == 4:
        return A[0, :, :, 0]
    return A[0] if A.ndim == 3 else np.atleast_2d(A)
