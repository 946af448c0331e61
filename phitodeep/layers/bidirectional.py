"""A recurrent layer in both directions."""

from __future__ import annotations

import numpy as np

from phitodeep.errors import ArgumentError, ArgumentTypeError
from phitodeep.layers.base import Layer
from phitodeep.layers.call import calling, current
from phitodeep.layers.container import Container
from phitodeep.layers.recurrent import _Recurrent
from phitodeep.types import Array, Shape, settings


class Bidirectional(Container):
    """Two recurrent layers of the same kind: one reads the steps in order, one in reverse.

    Shapes: X, dX are (N, T, D); Y, dY are (N, T, M), or (N, M) if `layer` returns only its last
    state, with M = 2 H for merge="concat" and M = H for "add".

    `layer` reads forward. The second layer has the same settings and separate weights. With a mask,
    both skip the steps that it leaves out, so the second begins at the last step that is kept.

    Backward: each direction receives its part of dY, and dX is the sum of both gradients.
    Source: Schuster and Paliwal 1997, "Bidirectional recurrent neural networks".
    """

    steps = "joined"
    skips_dX = True

    def __init__(self, layer: Layer, merge: str = "concat") -> None:
        super().__init__()
        if not isinstance(layer, _Recurrent):
            raise ArgumentTypeError(f"Bidirectional takes a recurrent layer, got {layer!r}.")
        if merge not in ("concat", "add"):
            raise ArgumentError(f'Bidirectional merge must be "concat" or "add", got {merge!r}.')
        self.layer, self.merge = layer, merge
        self.reverse = type(layer)(**settings(layer))

    def create(self, shape: Shape) -> Shape:
        out = self.layer.build(shape)
        self.reverse.build(shape)
        return (*out[:-1], out[-1] * 2) if self.merge == "concat" else out

    def forward(self, X: Array) -> Array:
        if current().memory is not None:
            raise ArgumentError(f"{self!r} cannot generate: it needs the steps that come later.")
        Y, mask = self.layer.forward(X), self.check_steps(X)
        with calling(mask=None if mask is None else mask[:, ::-1]):
            Y_reverse = self._flip(self.reverse.forward(X[:, ::-1]))
        return Y + Y_reverse if self.merge == "add" else np.concatenate([Y, Y_reverse], axis=-1)

    def backward(self, dY: Array) -> Array | None:
        dY, dY_reverse = np.split(dY, 2, axis=-1) if self.merge == "concat" else (dY, dY)
        dX, dX_reverse = self.layer.backward(dY), self.reverse.backward(self._flip(dY_reverse))
        if dX is None or dX_reverse is None:
            return None
        return dX + dX_reverse[:, ::-1]

    def _flip(self, Y: Array) -> Array:
        """Return Y with its steps in reverse order, if it has steps."""
        return Y[:, ::-1] if Y.ndim == 3 else Y

    def compute_mask(self, mask: Array) -> Array | None:
        return self.layer.compute_mask(mask)

    def flops(self) -> int:
        return self.layer.flops() + self.reverse.flops()
