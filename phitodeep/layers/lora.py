"""LoRA: a trained low-rank update next to a frozen weight, and layers that carry such updates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from phitodeep.core.call import current
from phitodeep.core.config import being_written
from phitodeep.core.settings import Count, Positive
from phitodeep.core.types import Array, Shape
from phitodeep.derivations import dense as derived
from phitodeep.errors import ArgumentError
from phitodeep.layers.attention import MultiHeadAttention, ScaledDotProductAttention
from phitodeep.layers.base import Layer, Param, PerStep
from phitodeep.layers.containers import Chain, Container, Parallel
from phitodeep.layers.dense import Dense
from phitodeep.layers.initialization import He, InitialValues

__all__ = ["LowRank"]


@dataclass(eq=False, repr=False)
class LowRank(PerStep):
    """A product with a matrix of low rank: Y = s X A B on the last axis, with s = alpha / rank.

    Shapes: X, dX are (..., D); Y, dY are (..., output_size); A is (D, rank) and B is
    (rank, output_size). B starts at 0, and so does Y: next to a layer with the weight W, where
    LoRA puts it, training starts from X W and learns W + s A B with few parameters.

    Backward. With H = s X A, Y = H B is a product like that of Dense, and so is X A:

        dB = H^T dY        dH = dY B^T        dA = s X^T dH        dX = s dH A^T

    At the start, B = 0 gives dA = 0: the first step changes only B.

    Source: Hu et al. 2021, "LoRA", arXiv:2106.09685, sec. 4.1.
    """

    output_size: Count
    rank: Count = 8
    alpha: Positive = 16.0
    _: KW_ONLY
    initializer: InitialValues = He()
    A = Param(decay=True)
    B = Param(decay=True)
    gives = "numbers"

    steps = derived.low_rank

    def create(self, shape: Shape) -> Shape:
        D = shape[-1]
        if self.rank > min(D, self.output_size):
            raise ArgumentError(
                f"{self!r} has a matrix ({D}, {self.output_size}), whose rank is at most "
                f"{min(D, self.output_size)}: choose a smaller rank."
            )
        self.A = self.draw(self.initializer, (D, self.rank))
        self.B = self.full(self.rank * self.output_size, 0).reshape(self.rank, self.output_size)
        return (*shape[:-1], self.output_size)

    def forward(self, X: Array) -> Array:
        self._check_features(X.shape, len(self.A))
        rows = X.reshape(-1, X.shape[-1])
        H = np.matmul(rows, self.A, out=self.buffer("H", (len(rows), self.rank), X.dtype))
        H *= self.alpha / self.rank
        Y = np.matmul(H, self.B, out=self.buffer("Y", (len(rows), self.output_size), X.dtype))
        self.save_for_backward(X=rows, H=H)
        return Y.reshape(*X.shape[:-1], self.output_size)

    def backward(self, dY: Array) -> Array | None:
        X, H = self.saved("X", "H")
        shape, dY = dY.shape, dY.reshape(-1, self.output_size)
        np.matmul(H.T, dY, out=self.grad_array("B"))
        dH = np.matmul(dY, self.B.T, out=self.buffer("dH", H.shape, dY.dtype))
        dH *= self.alpha / self.rank
        np.matmul(X.T, dH, out=self.grad_array("A"))
        if not current().needs_dX:
            return None
        dX = np.matmul(dH, self.A.T, out=self.buffer("dX", X.shape, dY.dtype))
        return dX.reshape(*shape[:-1], X.shape[-1])

    def product(self) -> Array:
        """Return s A B, the update of the weight, (D, output_size)."""
        update: Array = self.alpha / self.rank * (self.A @ self.B)
        return update

    def flops(self) -> int:
        """Count two operations per element of A and B and position, and the scaling."""
        positions = math.prod((self.output_shape or ())[:-1])
        D = (self.input_shape or (0,))[-1]
        return positions * self.rank * (2 * (D + self.output_size) + 1)


class Update(NamedTuple):
    """The settings of a low-rank update."""

    rank: int
    alpha: float


class Adapted(Container, registered=False):
    """Base class of layers that compute what another layer computes, plus low-rank updates.

    `original` is that layer. Configs describe it instead of this one: the model writes down the
    updates itself, since they may be inside layers that create their own.
    """

    original: Any
    names: ClassVar[tuple[str, ...]]  # the original's weights that can have updates

    def __repr__(self) -> str:
        updates = (f"{name}={low!r}" for name, low in self.updates().items())
        return f"LoRA({self.original!r}, {', '.join(updates)})"

    def parts(self) -> dict[str, tuple[Any, Any]]:
        """Return the Dense and the update, or None, of each of the original's weights."""
        raise NotImplementedError

    def updates(self) -> dict[str, LowRank]:
        """Return the low-rank updates, by the name of the original's weight."""
        return {name: low for name, (_, low) in self.parts().items() if low is not None}

    def weight(self, name: str) -> Array:
        """Return the original's weight of this name."""
        W: Array = self.parts()[name][0].W
        return W

    def add_updates(self) -> None:
        """Add the updates to the weights."""
        for name, update in self.updates().items():
            W = self.weight(name)
            W += update.product()

    def restored(self) -> Layer:
        """Return the original layer, with the weights as they are now."""
        layer: Layer = self.original
        return layer

    def described(self) -> Layer:
        if not any(hasattr(outer, "merge_lora") for outer in being_written()):
            raise ArgumentError(
                f"{self!r} has updates that only the config of a whole model includes: call "
                "get_config or save of the model, or merge_lora first."
            )
        layer: Layer = self.original
        return layer

    def get_config(self) -> dict[str, Any]:
        return self.described().get_config()

    def _build_like(self, original: Layer) -> None:
        """Build for the same samples, with the same seed; no existing weight is drawn again."""
        existing = [part for _, part in self.walk() if part.params]
        before = original._shapes_only
        for part in existing:
            part._shapes_only = True
        try:
            self._set_seed(original._seed_sequence)
            self.build(original.input_shape or (), dtype=original.dtype)
        finally:
            for part in existing:
                part._shapes_only = before


class AdaptedDense(Adapted, Parallel, registered=False):
    """A Dense with an update of its weight: Y = X (W + s A B) + b.

    Shapes: as in Dense. Backward is that of Parallel with merge="add".
    """

    gives = "numbers"
    names = ("W",)

    def __init__(self, original: Dense, updates: Mapping[str, Update]) -> None:
        super().__init__(*_branches(original, updates["W"]), merge="add")
        self._build_like(original)

    @property
    def original(self) -> Any:
        return self.branches[0]

    def _set_seed(self, seed: Any) -> None:
        super()._set_seed(seed)
        self.original._set_seed(self._seed_sequence)

    def parts(self) -> dict[str, tuple[Any, Any]]:
        return {"W": (self.branches[0], self.branches[1])}


PROJECTIONS = {"Wqkv": "bqkv", "Wo": "bo"}  # the weights of MultiHeadAttention, with their biases


class AdaptedAttention(Adapted, Chain, registered=False):
    """A MultiHeadAttention with updates of Wqkv, Wo or both.

    Shapes: X, Y, dX, dY are (N, T, D), as in MultiHeadAttention. The layers inside are a Dense with
    Wqkv and bqkv, ScaledDotProductAttention, and a Dense with Wo and bo; a Dense with an update is
    inside a Parallel. Backward is the chain rule through them. The random values of dropout are
    those of the original.
    """

    refers_to = ("original",)
    names = ("Wqkv", "Wo")

    def __init__(self, original: MultiHeadAttention, updates: Mapping[str, Update]) -> None:
        core = ScaledDotProductAttention(
            original.heads,
            causal=original.causal,
            kv_heads=original.kv_heads,
            rope=original.rope,
            dropout=original.dropout,
        )
        parts = [
            Parallel(*_branches(dense, updates[name]), merge="add") if name in updates else dense
            for name, dense in ((name, _projection(original, name)) for name in PROJECTIONS)
        ]
        super().__init__(parts[0], core, parts[1])
        self.original = original
        self._build_like(original)

    def _set_seed(self, seed: Any) -> None:
        super()._set_seed(seed)
        self.layers[1]._set_seed(self._seed_sequence)

    def parts(self) -> dict[str, tuple[Any, Any]]:
        outer = zip(PROJECTIONS, (self.layers[0], self.layers[2]), strict=True)
        return {
            name: (layer.branches[0], layer.branches[1])
            if isinstance(layer, Parallel)
            else (layer, None)
            for name, layer in outer
        }

    def restored(self) -> Layer:
        layer = super().restored()
        for name, (dense, _) in self.parts().items():
            layer.params[name] = dense.W
            if dense.bias:
                layer.params[PROJECTIONS[name]] = dense.b
        layer.dtype, layer._shapes_only = self.dtype, self._shapes_only
        layer.input_shape, layer.output_shape = self.input_shape, self.output_shape
        layer._set_seed(self._seed_sequence)
        return layer


ADAPTED: dict[type[Layer], Any] = {Dense: AdaptedDense, MultiHeadAttention: AdaptedAttention}


def _branches(dense: Dense, update: Update) -> tuple[Dense, LowRank]:
    return dense, LowRank(dense.output_size, *update)


def _projection(attention: MultiHeadAttention, name: str) -> Dense:
    """Return a Dense with this weight of the layer and its bias: the same arrays."""
    W = attention.params[name]
    dense = Dense(*W.shape, bias=attention.bias)
    dense.dtype, dense.params = attention.dtype, {"W": W}
    if attention.bias:
        dense.params["b"] = attention.params[PROJECTIONS[name]]
    return dense
