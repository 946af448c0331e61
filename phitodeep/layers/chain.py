"""Layers one after another: the chain rule, with checkpoints and masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, cast

import numpy as np

from phitodeep.core.call import calling, current, within
from phitodeep.core.checks import check_flag
from phitodeep.core.types import Array, Shape
from phitodeep.derivations import containers as derived
from phitodeep.errors import ArgumentError, locate
from phitodeep.layers.base import Layer
from phitodeep.layers.container import Container, Position


class Chain(Container):
    """Apply layers one after another: Y = f_n(... f_2(f_1(X))).

    Shapes: X, dX are as in the first layer; Y, dY are as in the last layer.
    Backward is the chain rule: dY goes through the layers from the last to the first. If dX is not
    needed, as in training, it stops at the first layer that learns.

    checkpoint    True: forward keeps only X, and backward computes the layers' forward pass again,
                  with the same random numbers. This saves memory and costs the time of one more
                  forward pass.
    Source of checkpointing: Chen et al. 2016, "Training deep nets with sublinear memory cost",
    arXiv:1604.06174, sec. 3.
    """

    _ends_with_last = True  # whether the chain's output is the output of its last layer
    skips_dX = True
    _numbers: Sequence[int] | None = None  # the layers' positions in the chain as written

    steps = derived.chain

    def __init__(self, *layers: Layer, checkpoint: bool = False) -> None:
        super().__init__()
        self.layers = self._held(layers)
        self.checkpoint = check_flag(checkpoint, f"{type(self).__name__} checkpoint")

    def create(self, shape: Shape) -> Shape:
        with Position(type(self).__name__) as at:
            for at.i, layer in enumerate(self.layers):
                shape = layer.build(shape)
        return shape

    def forward(self, X: Array) -> Array:
        return self._through(X)

    def backward(self, dY: Array) -> Array | None:
        return self._back_through(dY)

    # --- both passes through F, which subclasses call ----------------------------------------

    def _through(self, X: Array) -> Array:
        """Return F(X), the output of the last layer; with a checkpoint, keep only X."""
        call = current()
        if not call.caching or call.memory is not None:
            return self._forward(X)
        self._frame.start = (X, call) if self.checkpoint else None
        if not self.checkpoint:
            return self._forward(X)
        with calling(caching=False, reuse=False):
            return self._forward(X)

    def _forward(self, X: Array) -> Array:
        mask, i = current().mask, 0
        masks = None if mask is None else self._masks(mask)
        try:
            for i, layer in enumerate(self.layers):
                if masks is None:
                    X = layer.forward(X)
                    continue
                with calling(mask=masks[i]):
                    X = layer.forward(X)
        except Exception as error:
            locate(error, f"layer {self._number(i)} of {type(self).__name__}")
            raise
        return X

    def _back_through(self, dF: Array) -> Array | None:
        """Return the gradient of F's input, given the gradient of its output."""
        if self._frame.start is None:
            return self._backward(dF)
        X, call = self._frame.start
        now = current()
        replay = call._replace(needs_dX=now.needs_dX, again=True, watch=now.watch)
        with within(replay):
            self._forward(X)
            dX = self._backward(dF)
        for _, layer in self.walk():
            if layer is not self:
                layer._frame.cache = {}
        return dX

    def _backward(self, dY: Array) -> Array | None:
        """Run all layers backward or, if dX is not needed, those down to the first that learns."""
        call, first = current(), 0
        if not call.needs_dX:
            first = next((k for k, layer in enumerate(self.layers) if layer._learns()), -1)
            if first < 0:
                return None
        i = first
        try:
            with within(call if call.needs_dX else call._replace(needs_dX=True)):
                for i in range(len(self.layers) - 1, first, -1):
                    dX = self.layers[i].backward(dY)
                    if dX is None:  # the layer's input holds tokens, which have no gradient
                        return None
                    dY = dX
            i = first
            dX = self.layers[i].backward(dY) if self.layers else dY
        except Exception as error:
            locate(error, f"layer {self._number(i)} of {type(self).__name__}")
            raise
        return dX if call.needs_dX else None

    # --- masks -------------------------------------------------------------------------------

    def compute_mask(self, mask: Array) -> Array | None:
        return self._masks(mask)[-1]

    def _masks(self, mask: Array) -> list[Array | None]:
        """The mask of each layer's X, followed by the mask of the last layer's Y."""
        masks: list[Array | None] = [mask]
        with Position(type(self).__name__) as at:
            for at.i, layer in enumerate(self.layers):
                before = masks[-1]
                masks.append(None if before is None else layer.compute_mask(before))
        return masks

    def _kept_mask(self, mask: Array) -> Array:
        """Return the mask, which F must leave unchanged because X and F(X) are combined."""
        after = Chain.compute_mask(self, mask)
        if after is None or not np.array_equal(after, mask):
            raise ArgumentError(
                f"{self!r} combines X and F(X): with `lengths`, F must keep every step, but it "
                f"{'removes the time axis' if after is None else 'changes which steps count'}."
            )
        return mask

    # --- what the model and the training loop use --------------------------------------------

    @property
    def takes_tokens(self) -> bool:  # type: ignore[override]
        layers = self.layers
        return layers[0].takes_tokens if layers else False

    def known_input(self) -> Shape | None:
        return self.layers[0].known_input() if self.layers else None

    def _build_known(self) -> None:
        """Build the layers whose input shape the settings determine, and check that they fit."""
        shape: Shape | None = None
        with Position(type(self).__name__) as at:
            for at.i, layer in enumerate(self.layers):
                shape = layer.known_input() if shape is None else shape
                shape = None if shape is None else layer.build(shape)

    @property
    def gives(self) -> Any:
        last = self._last if self._ends_with_last else None
        return "" if last is None else last.gives

    @property
    def _last(self) -> Layer | None:
        """The layer whose output is the chain's output, even if it is inside a nested chain."""
        last = self.layers[-1] if self.layers else None
        return last._last if isinstance(last, Chain) and last._ends_with_last else last

    def _without_last(self) -> Self:
        """A chain of the same layer objects, without `_last`."""
        end = self.layers[-1]
        nested = [] if end is self._last else [cast(Chain, end)._without_last()]
        other = self._with_layers([*self.layers[:-1], *nested])
        other.output_shape = other.layers[-1].output_shape if other.layers else self.input_shape
        return other

    def _with_layers(self, layers: list[Layer], numbers: Sequence[int] | None = None) -> Self:
        """A chain with the same settings that holds these layer objects.

        `numbers` are the layers' positions in this chain, which errors report.
        """
        other = Layer._replica(self)
        other.layers, other._numbers = layers, numbers
        return other

    def _number(self, i: int) -> int:
        """Return the position of layer i in the chain as written."""
        return i if self._numbers is None else self._numbers[i]

    def children(self) -> dict[str, Layer]:
        children = super().children()
        if self._numbers is None:
            return children
        written = {f"layers.{i}": f"layers.{n}" for i, n in enumerate(self._numbers)}
        return {written.get(key, key): layer for key, layer in children.items()}
