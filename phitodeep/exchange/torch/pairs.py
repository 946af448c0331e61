"""What of PyTorch corresponds to a layer, and how other authors declare it: see `counterpart`.

`phitodeep/exchange/correspondence.py` says which module stands for which layer of phitodeep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from phitodeep import layers as L
from phitodeep.exchange.correspondence import TABLE, declare, form_of
from phitodeep.exchange.torch.rows import SAME, Move, Pair
from phitodeep.layers.base import Layer

Theirs = TypeVar("Theirs", bound=type)


def counterpart(kind: type[Layer]) -> Callable[[Theirs], Theirs]:
    """Declare the decorated module class as the PyTorch counterpart of a layer class.

        class Scale(Layer):
            s = Param()

        @counterpart(Scale)
        class TorchScale(torch.nn.Module):
            def __init__(self, layer):
                super().__init__()
                self.s = torch.nn.Parameter(torch.tensor(layer.s))

            def forward(self, X):
                return X * self.s

            def as_layer(self):
                return Scale()

            moves = {"s": "s"}

    `to_torch` calls the class with the built layer. X has the layer's own layout, with the channels
    on the last axis. `moves` names the module's parameter for each parameter of the layer; they
    have the same shape. For `from_torch`, `as_layer` returns a new layer, whose parameters are then
    read by `moves`.
    """
    return declare(kind, "torch", "counterpart")


def declared_modules() -> set[Any]:
    """Return the module classes that other authors declared."""
    return {row.torch for row in TABLE.values() if isinstance(row.torch, type)}


def module_of(layer: Layer) -> Any:
    """Return the `Pair` or `Composed` of a built layer, the class of another author, or None."""
    form = form_of(layer, "torch")
    frozen = isinstance(layer, L.BatchNorm) and not layer.trainable
    if isinstance(form, Pair) and form.other and (frozen or getattr(layer, "padding", 0) == "same"):
        return form._replace(theirs=form.other)
    return form


def moves_of(layer: Layer) -> dict[str, tuple[str, Move]]:
    """Return the rearrangements of the layer's own parameters and state."""
    form = form_of(layer, "torch")
    if isinstance(form, type):
        return {name: (there, SAME) for name, there in form.moves.items()}  # type: ignore[attr-defined]
    return dict(form.moves) if isinstance(form, Pair) else {}
