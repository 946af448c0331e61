"""Token embeddings, and encodings of positions in a sequence."""

from __future__ import annotations

import numpy as np

from phitodeep.core.call import current
from phitodeep.core.checks import check_count, check_number
from phitodeep.core.types import Array, Shape
from phitodeep.derivations import embedding as derived
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.functional import all_finite, one_hot, position_angles
from phitodeep.functional.rotary import Rope
from phitodeep.kernels import kernel
from phitodeep.layers.base import Layer, Param, PerStep
from phitodeep.layers.initialization import Initializer, Normal, check_initializer

__all__ = ["Embedding", "PositionalEmbedding", "RotaryEmbedding", "SinusoidalEncoding"]

ONE_HOT = 512  # up to this vocabulary size, dW is a product with one-hot rows


class Embedding(PerStep):
    """y = W[x]: look up a learnt vector for each token.

    Shapes: X is (N, ...) integers from 0 to vocab_size - 1; Y, dY are (N, ..., dim); W is
    (vocab_size, dim).
    Backward. Every occurrence of token v reads the same row W[v], so dW[v] is the sum of dy over
    all of them. Tokens have no gradient: backward returns None.
    Source: Bengio et al. 2003, "A neural probabilistic language model", JMLR 3.
    """

    W = Param(decay=True)
    takes_tokens = True
    _flops_per_output = 0

    steps = derived.embedding

    def __init__(self, vocab_size: int, dim: int, *, initializer: Initializer = Normal()) -> None:
        self.vocab_size = check_count(vocab_size, "Embedding vocab_size")
        self.dim = check_count(dim, "Embedding dim")
        self.initializer = check_initializer(initializer, "Embedding")

    def _make_parameters(self) -> None:
        if self.output_shape is None:  # W does not depend on how many tokens a sample has
            self.build(())

    def create(self, shape: Shape) -> Shape:
        self.W = self.draw(self.initializer, (self.vocab_size, self.dim))
        return (*shape, self.dim)

    def forward(self, X: Array) -> Array:
        if X.size and not (X.min() >= 0 and X.max() < self.vocab_size):
            where = tuple(map(int, np.argwhere((X < 0) | (X >= self.vocab_size))[0]))
            raise ArgumentError(
                f"{self!r} takes tokens from 0 to {self.vocab_size - 1}, got {X[where]} at "
                f"X[{', '.join(map(str, where))}]."
            )
        self.save_for_backward(tokens=X)
        out = self.buffer("Y", (*X.shape, self.dim), self.dtype)
        return np.take(self.W, X, axis=0, out=out, mode="clip")  # checked above

    def backward(self, dY: Array) -> None:
        tokens, rows = self.saved("tokens").ravel(), dY.reshape(-1, self.dim)
        sum_by_token(tokens, rows, self.grad_array("W"))

    def matrices(self, name: str, W: Array) -> list[Array]:
        return []  # W is a lookup table


@kernel
def sum_by_token(tokens: Array, rows: Array, dW: Array) -> None:
    """dW[v] <- the sum of the rows (n, dim) whose token is v."""
    if len(dW) <= ONE_HOT and all_finite(rows):  # 0 times infinity would be NaN
        np.matmul(one_hot(tokens, len(dW), rows.dtype).T, rows, out=dW)
        return
    order = np.argsort(tokens, kind="stable")
    ranked = tokens[order]
    starts = np.flatnonzero(np.diff(ranked, prepend=-1))
    dW.fill(0)
    dW[ranked[starts]] = np.add.reduceat(rows[order], starts, axis=0)


class _Positional(Layer):
    """Base class of layers whose output depends on the position t in (N, T, D)."""

    independent_samples, time_steps = True, "remembered"  # only the position is remembered

    def compute_mask(self, mask: Array) -> Array | None:
        return mask

    def _start(self, T: int) -> int:
        """Return the position of the first of T steps; in generation, it follows earlier calls."""
        memory = current().memory
        if memory is None:
            self._check(T)
            return 0
        start: int = memory.get(self, 0)
        self._check(start + T)
        memory[self] = start + T
        return start

    def _check(self, T: int) -> None:
        """Refuse sequences that are too long, if the layer has a limit."""

    def create(self, shape: Shape) -> Shape:
        if len(shape) != 2:
            raise ShapeError(f"{self!r} takes samples of shape (T, D), got {shape}.")
        return shape


class PositionalEmbedding(_Positional):
    """y_t = x_t + W[t]: add a learnt vector for each position.

    Shapes: X, Y, dX, dY are (N, T, D), T <= max_len; W is (max_len, D).
    Backward. dX = dY. Every sample uses the same rows, so dW[t] is the sum of dy_t over the
    samples, and 0 for positions after the last step.
    Source: Gehring et al. 2017, arXiv:1705.03122, sec. 3.1.
    """

    W = Param(decay=True)

    steps = derived.positional_embedding

    def __init__(self, max_len: int, *, initializer: Initializer = Normal(0.02)) -> None:
        self.max_len = check_count(max_len, "PositionalEmbedding max_len")
        self.max_steps = self.max_len
        self.initializer = check_initializer(initializer, "PositionalEmbedding")

    def create(self, shape: Shape) -> Shape:
        self._check(super().create(shape)[0])
        self.W = self.draw(self.initializer, (self.max_len, shape[-1]))
        return shape

    def forward(self, X: Array) -> Array:
        if X.ndim != 3 or X.shape[-1] != self.W.shape[-1]:
            raise ShapeError(f"{self!r} takes X (N, T, {self.W.shape[-1]}), got shape {X.shape}.")
        T = X.shape[1]
        start = self._start(T)
        self.save_for_backward(positions=slice(start, start + T))
        return np.add(X, self.W[start : start + T], out=self.buffer("Y", X.shape, X.dtype))

    def backward(self, dY: Array) -> Array:
        dW = self.grad_array("W")
        dW.fill(0)
        np.sum(dY, axis=0, out=dW[self.saved("positions")])
        return dY.copy()

    def matrices(self, name: str, W: Array) -> list[Array]:
        return []  # W is a lookup table

    def _check(self, T: int) -> None:
        if T > self.max_len:
            raise ShapeError(f"{self!r} has {self.max_len} positions, got a sequence of {T} steps.")


class SinusoidalEncoding(_Positional):
    """y_t = x_t + e_t: add a fixed vector of sines and cosines for each position.

    Shapes: X, Y, dX, dY are (N, T, D), for any T.
    Forward: e_t,2i = sin(t w_i) and e_t,2i+1 = cos(t w_i), with w_i = 10000^(-2i / D).
    Backward: e is constant, so dX = dY.
    Source: Vaswani et al. 2017, arXiv:1706.03762, sec. 3.5.
    """

    steps = derived.sinusoidal_encoding

    def forward(self, X: Array) -> Array:
        if X.ndim != 3:
            raise ShapeError(f"{self!r} takes X (N, T, D), got shape {X.shape}.")
        self.save_for_backward()
        return X + self._encoding(self._start(X.shape[1]), X)

    def backward(self, dY: Array) -> Array:
        return dY.copy()

    def _encoding(self, start: int, X: Array) -> Array:
        """Return e (T, D) for X, whose first step has the position `start`."""
        T, D = X.shape[1:]
        angles = position_angles(start, T, (D + 1) // 2, 2 / D)
        e = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(T, -1)[:, :D]
        return e.astype(X.dtype)


class RotaryEmbedding(_Positional):
    """Rotate each pair of features by an angle that grows with the position.

    Shapes: X, Y, dX, dY are (N, T, D), D even.
    Pair i is (x_i, x_{i + D/2}). At position t it is rotated by t w_i with w_i = base^(-2i / D).
    The dot product of two rotated vectors then depends on the distance between their positions
    only. Attention with rope=True rotates queries and keys in this way.
    Backward. The transpose of a rotation is its inverse: dX is dY rotated by the negative angles.
    Source: Su et al. 2021, "RoFormer", arXiv:2104.09864, eq. 34.
    """

    steps = derived.rotary_embedding

    def __init__(self, base: float = 10000.0) -> None:
        self.base = check_number(base, "RotaryEmbedding base", above=1)
        self._flops_per_output = 3

    def create(self, shape: Shape) -> Shape:
        if shape[-1] % 2:
            raise ShapeError(f"{self!r} rotates pairs of features, so D must be even, got {shape}.")
        return super().create(shape)

    def forward(self, X: Array) -> Array:
        if X.ndim != 3 or X.shape[-1] % 2:
            raise ShapeError(f"{self!r} takes X (N, T, D) with D even, got shape {X.shape}.")
        T, D = X.shape[1:]
        cos, sin = Rope(self.base).cos_and_sin(self._start(T), T, D, X.dtype)
        self.save_for_backward(cos=cos, sin=sin)
        return rotate(X, cos, sin)

    def backward(self, dY: Array) -> Array:
        cos, sin = self.saved("cos", "sin")
        return rotate(dY, cos, -sin)


def rotate(X: Array, cos: Array, sin: Array) -> Array:
    """Rotate the pairs (x_i, x_{i + D/2}) of X (..., T, D), given cos and sin of the angles."""
    first, second = np.split(X, 2, axis=-1)
    Y = np.empty(X.shape, X.dtype)
    y1, y2 = np.split(Y, 2, axis=-1)
    np.subtract(first * cos, second * sin, out=y1)
    np.add(first * sin, second * cos, out=y2)
    return Y
