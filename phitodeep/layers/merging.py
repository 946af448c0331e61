"""Layers that merge several values into one: sums, products, means, maxima, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from typing import Any

import numpy as np

from phitodeep.core.call import current
from phitodeep.core.checks import check_count, check_flag
from phitodeep.core.types import Array, Shape
from phitodeep.derivations import merging as derived
from phitodeep.errors import ShapeError
from phitodeep.functional import sum_rows
from phitodeep.layers.base import Param, PerStep
from phitodeep.layers.initialization import Initializer, LeCun, check_initializer

__all__ = ["Add", "Average", "Bilinear", "Concat", "Dot", "Maximum", "Multiply", "Subtract"]


class _Elementwise(PerStep):
    """Base class of merges element by element: axes of size 1 are repeated, as NumPy does.

    Where an axis of X_i was repeated, dX_i is the sum over its repetitions.
    """

    inputs: Any = None
    merge: Any = np.add  # of two values; more are merged one by one

    def create(self, *shapes: Shape) -> Shape:
        remedy = ""
        with suppress(ValueError):
            merged = np.broadcast_shapes(*shapes)
            short = min(shapes, key=len)
            if len(short) == len(merged):
                return merged
            ones = (1,) * (len(merged) - len(short))
            remedy = f" .reshape{(*ones, *short)} gives {short} as many."
        raise ShapeError(
            f"{self!r} merges samples element by element, and these do not fit: "
            f"{' and '.join(map(str, shapes))}. Equal numbers of axes are needed, each of equal "
            f"size or 1.{remedy}"
        )

    def forward(self, *Xs: Array) -> Array:
        self.save_for_backward(Xs=Xs)
        return self._merged(Xs)

    def backward(self, dY: Array) -> Any:
        Xs = self.saved("Xs")
        return tuple([_summed_to(X.shape, self._slope(dY, Xs, k)) for k, X in enumerate(Xs)])

    def _merged(self, Xs: Sequence[Array]) -> Array:
        return reduce(self.merge, Xs)

    def _slope(self, dY: Array, Xs: Sequence[Array], k: int) -> Array:
        """Return dY dY/dX_k, with the shape of Y."""
        return dY

    def flops(self) -> int:
        return (len(self.input_shape or (0,)) - 1) * super().flops()


def _summed_to(shape: Shape, dX: Array) -> Array:
    """Return the sum of dX over the axes that were repeated to make it from this shape."""
    axes = tuple([k for k, (n, m) in enumerate(zip(shape, dX.shape, strict=True)) if n < m])
    return dX.sum(axes, keepdims=True) if axes else dX


class Add(_Elementwise):
    """Y = X1 + X2 + ...; axes of size 1 are repeated.

    Shapes: X_i and dX_i are (N, ...), Y and dY are (N, ...), with the larger size of each axis.
    Backward: every X_i reaches Y directly, so dX_i = dY, summed over the axes that were repeated.
    """

    steps = derived.add


class Subtract(_Elementwise):
    """Y = X1 - X2; axes of size 1 are repeated.

    Shapes: as in Add. Backward: dX1 = dY and dX2 = -dY, summed over the axes that were repeated.
    """

    inputs, merge = 2, np.subtract
    steps = derived.subtract

    def _slope(self, dY: Array, Xs: Sequence[Array], k: int) -> Array:
        return -dY if k else dY


class Multiply(_Elementwise):
    """Y = X1 X2 ..., element by element; axes of size 1 are repeated, as those of a gate.

    Shapes: as in Add. Backward: dX_i is dY times the product of the others, summed over the axes
    that were repeated.
    """

    merge = np.multiply
    steps = derived.multiply

    def _slope(self, dY: Array, Xs: Sequence[Array], k: int) -> Array:
        return reduce(np.multiply, [*Xs[:k], *Xs[k + 1 :]], dY)


class Average(_Elementwise):
    """Y = (X1 + X2 + ...) / n, for n inputs; axes of size 1 are repeated.

    Shapes: as in Add. Backward: dX_i = dY / n, summed over the axes that were repeated.
    """

    steps = derived.average

    def _merged(self, Xs: Sequence[Array]) -> Array:
        return super()._merged(Xs) / len(Xs)

    def _slope(self, dY: Array, Xs: Sequence[Array], k: int) -> Array:
        return dY / len(Xs)


class Maximum(_Elementwise):
    """Y = the larger of X1, X2, ..., element by element; axes of size 1 are repeated.

    Shapes: as in Add. Backward: dY goes to the largest X_i, to the first one if several are equal,
    summed over the axes that were repeated.
    """

    merge = np.maximum
    steps = derived.maximum

    def _slope(self, dY: Array, Xs: Sequence[Array], k: int) -> Array:
        first = np.argmax(np.broadcast_arrays(*Xs), axis=0)
        return np.where(first == k, dY, 0)


class Concat(PerStep):
    """Y = X1, X2, ... side by side along an axis.

    axis    of a sample; -1 is the last one, the features

    Shapes: X_i and dX_i are (N, ...), equal but for the axis; Y and dY have the sum of its sizes.
    Backward: each X_i gets its part of dY.
    """

    inputs: Any = None
    steps = derived.concat

    def __init__(self, axis: int = -1) -> None:
        self.axis = check_count(axis, "Concat axis", minimum=-32, maximum=31)

    @property
    def time_steps(self) -> str:  # type: ignore[override]
        rank = len(self.output_shape or (0,))
        return "joined" if rank > 1 and self._along() == 1 else "independent"

    def _along(self) -> int:
        """Return the axis of X (N, ...)."""
        return 1 + self.axis % len(self.output_shape or (0,))

    def create(self, *shapes: Shape) -> Shape:
        rank = len(shapes[0])
        if not -rank <= self.axis < rank:
            raise ShapeError(f"{self!r} has no axis {self.axis} in samples of shape {shapes[0]}.")
        k = self.axis % rank
        if len({(*s[:k], *s[k + 1 :], len(s)) for s in shapes}) > 1:
            raise ShapeError(
                f"{self!r} puts samples side by side along axis {self.axis}, and their other axes "
                f"must be equal: got {' and '.join(map(str, shapes))}."
            )
        return (*shapes[0][:k], sum(s[k] for s in shapes), *shapes[0][k + 1 :])

    def forward(self, *Xs: Array) -> Array:
        axis = self._along()
        self.save_for_backward(ends=np.cumsum([X.shape[axis] for X in Xs])[:-1])
        return np.concatenate(Xs, axis=axis)

    def backward(self, dY: Array) -> Any:
        return tuple(np.split(dY, self.saved("ends"), axis=self._along()))


class Dot(PerStep):
    """y = sum_d x1_d x2_d on the last axis: how alike two vectors are.

    Shapes: X1, X2, dX1 and dX2 are (N, ..., D); Y and dY are (N, ..., 1).
    Backward: dX1 = dy x2 and dX2 = dy x1.
    """

    inputs = 2
    steps = derived.dot

    def create(self, *shapes: Shape) -> Shape:
        first, second = shapes
        if first != second or not first:
            raise ShapeError(
                f"{self!r} needs two samples of equal shape, got {first} and {second}."
            )
        return (*first[:-1], 1)

    def forward(self, *Xs: Array) -> Array:
        X1, X2 = Xs
        self.save_for_backward(X1=X1, X2=X2)
        return np.einsum("...d,...d->...", X1, X2)[..., None]

    def backward(self, dY: Array) -> Any:
        X1, X2 = self.saved("X1", "X2")
        return dY * X2, dY * X1

    def flops(self) -> int:
        shapes: Any = self.input_shape or ((0,),)
        return 2 * int(np.prod(shapes[0]))


class Bilinear(PerStep):
    """y_k = x1^T W_k x2 + b_k on the last axis: a weighted sum of all products x1_i x2_j.

    Shapes: X1, dX1 are (..., D1); X2, dX2 are (..., D2); Y, dY are (..., K), with K =
    `out_features`; W is (D1, D2, K), with the matrices W_k, and b is (K,).

    Forward, in two products: v_jk = sum_i x1_i W_ijk, and y_k = sum_j x2_j v_jk + b_k.
    Backward, through both, where every row uses the same W and b:

        dx2_j = sum_k v_jk dy_k        dv_jk = x2_j dy_k        dx1_i = sum_jk W_ijk dv_jk
        dW_ijk = sum_rows(x1_i dv_jk)                           db_k = sum_rows(dy_k)

    Source: Tenenbaum and Freeman 2000, "Separating style and content with bilinear models", Neural
    Computation 12, eq. 1.
    """

    inputs = 2
    W = Param(decay=True)
    b = Param()
    gives = "numbers"
    steps = derived.bilinear

    def __init__(
        self, out_features: int, initializer: Initializer = LeCun(), *, bias: bool = True
    ) -> None:
        self.out_features = check_count(out_features, "Bilinear out_features")
        self.initializer = check_initializer(initializer, "Bilinear")
        self.bias = check_flag(bias, "Bilinear bias")

    def create(self, *shapes: Shape) -> Shape:
        first, second = shapes
        self._check(first, second)
        self.W = self.draw(self.initializer, (first[-1], second[-1], self.out_features))
        if self.bias:
            self.b = self.full(self.out_features, 0)
        return (*first[:-1], self.out_features)

    def forward(self, *Xs: Array) -> Array:
        X1, X2 = Xs
        D1, D2, K = self.W.shape
        self._check(X1.shape, X2.shape)
        X1, X2, shape = X1.reshape(-1, D1), X2.reshape(-1, D2), (*X1.shape[:-1], K)
        V = (X1 @ self.W.reshape(D1, D2 * K)).reshape(-1, D2, K)
        self.save_for_backward(X1=X1, X2=X2, V=V)
        Y = (X2[:, None] @ V)[:, 0]
        if self.bias:
            Y += self.b
        return Y.reshape(shape)

    def backward(self, dY: Array) -> Any:
        (X1, X2, V), (D1, D2, K) = self.saved("X1", "X2", "V"), self.W.shape
        rows = dY.reshape(-1, K)
        dV = (X2[:, :, None] * rows[:, None]).reshape(-1, D2 * K)
        if self.needs_grad("W"):
            np.matmul(X1.T, dV, out=self.grad_array("W").reshape(D1, D2 * K))
            if self.bias:
                sum_rows(rows, out=self.grad_array("b"))
        if not current().needs_dX:
            return None
        dX1, dX2 = dV @ self.W.reshape(D1, D2 * K).T, (V @ rows[:, :, None])[..., 0]
        return tuple([dX.reshape(*dY.shape[:-1], -1) for dX in (dX1, dX2)])

    def _check(self, first: Shape, second: Shape) -> None:
        """Refuse shapes, of arrays or of samples, that differ before the last axis or from W's."""
        sizes = first[-1:] + second[-1:]
        fit = len(sizes) == 2 and ("W" not in self.params or self.W.shape[:2] == sizes)
        if first[:-1] != second[:-1] or not fit:
            needs = " of {} and {} features".format(*self.W.shape) if "W" in self.params else ""
            raise ShapeError(
                f"{self!r} takes two inputs of equal shapes, but for their last axes{needs}: "
                f"got {first} and {second}."
            )

    def matrices(self, name: str, W: Array) -> list[Array]:
        """Return one matrix for each output."""
        return [W.reshape(self.W.shape).transpose(2, 0, 1)]

    def flops(self) -> int:
        """Count two operations per weight and position, and those of the sum over j."""
        D1, D2, K = self.W.shape
        return int(np.prod((self.output_shape or (1,))[:-1])) * (2 * D1 + 2) * D2 * K
