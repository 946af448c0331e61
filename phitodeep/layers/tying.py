"""Layers that own no parameters: tied weights, and any pair of functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from phitodeep.core.call import current
from phitodeep.core.checks import check_flag, check_option
from phitodeep.core.types import Array, Shape
from phitodeep.derivations import dense as derived
from phitodeep.errors import ArgumentTypeError, ShapeError
from phitodeep.layers.base import Layer, PerStep
from phitodeep.layers.embedding import Embedding

__all__ = ["Lambda", "TiedDense"]

LARGEST_SAMPLE = 1 << 26  # numbers: as many as a quarter of a gigabyte holds


class TiedDense(PerStep):
    """Scores of all tokens: Y = X W^T, with the W of an Embedding.

    Shapes: X, dX are (..., dim); Y, dY are (..., vocab_size); W (vocab_size, dim) belongs to the
    embedding, so it is counted, saved and updated once. Each score is the dot product of x with a
    token's vector.

    Backward. dX = dY W. The gradient of W from this use is dY^T X, which the optimizer adds to the
    gradient from the embedding's own use.
    Source: Press and Wolf 2017, "Using the output embedding", arXiv:1608.05859.
    """

    refers_to = ("embedding",)  # which the model holds at another path

    steps = derived.tied_dense

    def __init__(self, embedding: Embedding) -> None:
        super().__init__()
        if not isinstance(embedding, Embedding):
            raise ArgumentTypeError(f"TiedDense takes an Embedding, got {embedding!r}.")
        self.embedding = embedding

    @property
    def tied(self) -> dict[str, tuple[Layer, str]]:
        return {"W": (self.embedding, "W")}

    def create(self, shape: Shape) -> Shape:
        self._check_features(shape, self.embedding.dim)
        return (*shape[:-1], self.embedding.vocab_size)

    def forward(self, X: Array) -> Array:
        self._check_features(X.shape, self.embedding.dim)
        W, rows = self.embedding.W, X.reshape(-1, X.shape[-1])
        Y = self.buffer("Y", (len(rows), len(W)), X.dtype)
        np.matmul(rows, W.T, out=Y)
        self.save_for_backward(rows=rows)
        return Y.reshape(*X.shape[:-1], len(W))

    def backward(self, dY: Array) -> Array | None:
        W, rows = self.embedding.W, self.saved("rows")
        dY_rows = dY.reshape(-1, len(W))
        if self.needs_grad("W"):
            self.grad_product("W", dY_rows, rows)
        if not current().needs_dX:
            return None
        dX = np.matmul(dY_rows, W, out=self.buffer("dX", rows.shape, dY.dtype))
        return dX.reshape(*dY.shape[:-1], W.shape[1])

    def flops(self) -> int:
        positions = int(np.prod(self.output_shape[:-1])) if self.output_shape else 0
        return 2 * positions * self.embedding.vocab_size * self.embedding.dim

    def __repr__(self) -> str:
        return f"TiedDense({self.embedding!r})"


class Lambda(Layer):
    """Your own function and its backward: Y = forward(X), dX = backward(dY, X, Y).

    Shapes: X, Y are (N, ...), as the functions require. The layer has no parameters. Test the two
    functions with `check_gradients`.

    independent_samples    True: sample i of Y depends only on sample i of X, so that threads may
                           split a batch
    steps                  "independent": step t of Y depends only on step t of X (N, T, ...), so
                           that masks pass through and `generate` can work step by step
    """

    kept_as: ClassVar = {"forward": "function", "backward": "derivative", "steps": "time_steps"}
    _mask_remedy = (
        'if its functions treat each step separately, write Lambda(..., steps="independent")'
    )

    def __init__(
        self,
        forward: Callable[[Array], Array],
        backward: Callable[[Array, Array, Array], Array],
        *,
        independent_samples: bool = False,
        steps: str = "joined",
    ) -> None:
        super().__init__()
        if not callable(forward) or not callable(backward):
            raise ArgumentTypeError("Lambda takes two functions: forward(X), backward(dY, X, Y).")
        self.function, self.derivative = forward, backward
        self.independent_samples = check_flag(independent_samples, "Lambda independent_samples")
        self.time_steps = check_option(steps, "Lambda steps", ("independent", "joined"))

    def create(self, shape: Shape) -> Shape:
        if math.prod(shape) > LARGEST_SAMPLE:
            raise ShapeError(
                f"{self!r} runs its function on a sample of zeros to learn the shape of Y, and "
                f"samples of shape {shape} are too large for that."
            )
        with np.errstate(all="ignore"):
            return self.function(np.zeros((1, *shape), self.dtype)).shape[1:]

    def forward(self, X: Array) -> Array:
        Y = self.function(X).astype(X.dtype, copy=False)
        self.save_for_backward(X=X, Y=Y)
        return Y

    def backward(self, dY: Array) -> Array:
        X, Y = self.saved("X", "Y")
        return self.derivative(dY, X, Y).astype(dY.dtype, copy=False)

    def __repr__(self) -> str:
        names = (getattr(f, "__name__", "?") for f in (self.function, self.derivative))
        return f"Lambda({', '.join(names)})"
