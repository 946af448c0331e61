"""What every loss is: targets and weights checked, a value, and its derivative."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from phitodeep.checks import as_float, as_real, check_finite, check_number
from phitodeep.config import Configurable
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.layers.call import calling, current
from phitodeep.layers.frame import Buffered, Frame
from phitodeep.types import Array, Shape, describe

_TO_WRITE = "{} must implement {}(P, T, w, total), which loss_func and loss_gradient call."


def places_hint(targets: Shape, predictions: Shape) -> str:
    """What to write where there is one target for each sample, and predictions at its places."""
    one_each = targets in (predictions[:1], (*predictions[:1], predictions[-1]))
    return (
        " The model predicts at each place of a sample: is .flatten() or a global pool missing "
        "before the last layers?"
        if len(predictions) > 2 and one_each
        else ""
    )


class Loss(Buffered, Configurable):
    """A loss for predictions P and targets T.

    Users call `loss_func` and `loss_gradient`, which check what they are given. The training
    loop checks all targets once with `targets`, and then calls `value_and_gradient` alone.
    An author writes `targets`, `divisor`, `value` and `gradient`.
    """

    config_kind = "loss"
    wants = "numbers"  # what the predictions must be: see fusion.py
    threshold = 0.5  # predictions above it mean the positive class
    labels: tuple[int, ...] | None = None  # of the two classes of a binary loss
    independent_samples = (
        False  # it is a sum over samples, divided by `total`; own code declares it
    )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = {"value", "gradient", "value_and_gradient"} & set(vars(cls))
        if own and "independent_samples" not in vars(cls):
            cls.independent_samples = cls.__module__.startswith("phitodeep.")

    def __init__(self) -> None:
        self._frame = Frame()

    def __repr__(self) -> str:
        return describe(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_frame": Frame()}

    def loss_func(
        self, y_pred: Any, y_true: Any, sample_weight: Any = None, total: float | None = None
    ) -> float:
        """The loss as a Python float.

        Shapes: y_pred (N, ...); y_true as the class says; sample_weight (N,) or one for each
        position; `total` replaces the divisor.
        """
        return self._watched_value(*self._validated(y_pred, y_true, sample_weight, total))

    def loss_gradient(
        self, y_pred: Any, y_true: Any, sample_weight: Any = None, total: float | None = None
    ) -> Array:
        """The derivative of `loss_func` by y_pred, of y_pred's shape and dtype."""
        return self._watched(*self._validated(y_pred, y_true, sample_weight, total))[1]

    def _validated(
        self, y_pred: Any, y_true: Any, sample_weight: Any, total: float | None
    ) -> tuple[Array, Array, Array | None, float | None]:
        P = as_float(y_pred, None, f"{type(self).__name__} y_pred")
        if P.size == 0:
            raise ShapeError(f"{self!r} needs at least one prediction, got shape {P.shape}.")
        T = self.targets(y_true, P.shape)
        w = self.weights(sample_weight, T, P.shape)
        return P, T, w, None if total is None else check_number(total, "total", least=0)

    # --- what an author writes -------------------------------------------------------------

    def targets(self, y: Any, shape: Shape, name: str = "y") -> Array:
        """The targets y, checked against predictions of `shape` (N, ...); errors say `name`."""
        T = as_real(y, f"{type(self).__name__} {name}")
        if T.shape != shape and (*T.shape, 1) != shape:
            raise ShapeError(
                f"{self!r} compares predictions of shape {shape} with {name} of the same shape"
                f"{' or (n,)' if shape[1:] == (1,) else ''}, got {name} of shape {T.shape}."
                f"{places_hint(T.shape, shape)}"
            )
        check_finite(T, name)
        return T.reshape(shape).astype(np.float64 if T.dtype == np.float64 else np.float32)

    def positions(self, shape: Shape) -> Shape:
        """The shape of what carries one weight each, for predictions of `shape`."""
        return shape

    def classes(self, shape: Shape) -> tuple[int, ...] | None:
        """The labels of the classes, for predictions of `shape`, or None for no classes."""
        return self.labels

    def divisor(self, T: Array, w: Array | None, shape: Shape) -> float:
        """What the sum is divided by: the count of terms, or the sum of their weights."""
        count = math.prod(self.positions(shape))
        return float(count if w is None else w.sum(dtype=np.float64) * (count // w.size))

    def value(self, P: Array, T: Array, w: Array | None, total: float | None) -> float:
        raise NotImplementedError(_TO_WRITE.format(type(self).__name__, "value"))

    def gradient(self, P: Array, T: Array, w: Array | None, total: float | None) -> Array:
        raise NotImplementedError(_TO_WRITE.format(type(self).__name__, "gradient"))

    def value_and_gradient(
        self, P: Array, T: Array, w: Array | None = None, total: float | None = None
    ) -> tuple[float, Array]:
        """Both at once; P floats, T from `targets` and w from `weights`."""
        with calling(needs_dX=True, reuse=False):  # an author's loss may run layers of its own
            return self.value(P, T, w, total), self.gradient(P, T, w, total)

    # --- what is told to a watcher ---------------------------------------------------------

    def _watched(
        self, P: Array, T: Array, w: Array | None, total: float | None
    ) -> tuple[float, Array]:
        """`value_and_gradient`, with whoever watches told of P before, and of dP after."""
        watch = current().watch
        if watch is None:
            return self.value_and_gradient(P, T, w, total)
        P = watch.tell("loss", "before", self, P)
        value, dP = self.value_and_gradient(P, T, w, total)
        return value, watch.tell("loss", "after", self, dP, value)

    def _watched_value(self, P: Array, T: Array, w: Array | None, total: float | None) -> float:
        """`value`, with whoever watches told of P before, and of the value after."""
        watch = current().watch
        if watch is None:
            return self.value(P, T, w, total)
        P = watch.tell("loss", "before", self, P)
        value = self.value(P, T, w, total)
        watch.tell("loss", "after", self, None, value)
        return value

    # --- what an author uses ---------------------------------------------------------------

    def weights(self, sample_weight: Any, T: Array, shape: Shape) -> Array | None:
        """Sample weights (N,), or of the positions' shape, as (N, 1, ...) or that shape."""
        if sample_weight is None:
            return None
        w = as_float(sample_weight, None, "sample_weight")
        positions = self.positions(shape)
        if w.shape not in (positions[:1], positions):
            raise ShapeError(
                f"sample_weight must have shape {positions[:1]} or {positions}, got {w.shape}."
            )
        check_finite(w, "sample_weight")
        if (w < 0).any():
            raise ArgumentError(f"sample_weight must be >= 0, its least is {w.min()}.")
        return w if w.shape == positions else w.reshape(-1, *[1] * (len(positions) - 1))


class Elementwise(Loss):
    """A loss that compares each element alone: an author writes `each` and its `slope`."""

    def each(self, P: Array, T: Array) -> Array:
        """The loss of each element, as a new array."""
        raise NotImplementedError(f"{type(self).__name__} must implement each(P, T).")

    def slope(self, P: Array, T: Array) -> Array:
        """The derivative of `each` by P, as a new array."""
        raise NotImplementedError(f"{type(self).__name__} must implement slope(P, T).")

    def value(self, P: Array, T: Array, w: Array | None, total: float | None) -> float:
        each = self.each(P, T.astype(P.dtype, copy=False))
        if w is not None:
            np.copyto(each, 0, where=w == 0)  # also where it is infinite or NaN
            each *= w
        total = self.divisor(T, w, P.shape) if total is None else total
        return float(each.sum()) / total if total else 0.0

    def gradient(self, P: Array, T: Array, w: Array | None, total: float | None) -> Array:
        total = self.divisor(T, w, P.shape) if total is None else total
        slope = self.slope(P, T.astype(P.dtype, copy=False))
        slope *= 1 / total if total else 0.0
        if w is not None:
            np.copyto(slope, 0, where=w == 0)
            slope *= w
        return slope


class Rowwise(Elementwise):
    """A loss that compares rows of the last axis: `each` is (N, ...), `slope` of P's shape."""

    def positions(self, shape: Shape) -> Shape:
        return shape[:-1]

    def gradient(self, P: Array, T: Array, w: Array | None, total: float | None) -> Array:
        return super().gradient(P, T, None if w is None else w[..., None], total)


def inverse(P: Array) -> Array:
    """1 / p, and 0 where p is below the dtype's least normal number: there log p is held flat."""
    return np.divide(1, P, out=np.zeros_like(P), where=np.finfo(P.dtype).tiny <= P)
