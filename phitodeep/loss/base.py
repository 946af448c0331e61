"""The base classes of losses: checked targets and weights, the value, and its gradient."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from phitodeep.core.call import calling, current
from phitodeep.core.checks import as_float, as_real, check_finite, check_number
from phitodeep.core.config import Configurable
from phitodeep.core.frame import Buffered, Frame
from phitodeep.core.settings import Checked
from phitodeep.core.types import Array, DType, Shape
from phitodeep.derivations.language.step import Derivation
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.functional import one_hot

__all__ = ["Elementwise", "Loss"]

_MUST_IMPLEMENT = "{} must implement {}(P, T, w, total), which loss_func and loss_gradient call."


class Loss(Buffered, Checked, Configurable, registered=False):
    """A loss that compares predictions P with targets T.

    Users call `loss_func` and `loss_gradient`, which check their arguments. The training loop
    checks all targets once, with `targets`, and then calls only `value_and_gradient`. The author of
    a loss implements `value` and `gradient`, and also `targets` and `divisor` if their defaults do
    not fit.
    """

    config_kind = "loss"
    wants = "numbers"  # the kind of predictions required: see training/shortcuts.py
    threshold = 0.5  # predictions above it mean the positive class
    labels: tuple[int, ...] | None = None  # the labels of a binary loss's two classes
    independent_samples = False  # True declares a sum over samples that is divided by `total`

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = {"value", "gradient", "value_and_gradient"} & set(vars(cls))
        if own and "independent_samples" not in vars(cls):
            cls.independent_samples = cls.__module__.startswith("phitodeep.")
        replaced = {"value", "gradient", "value_and_gradient", "each", "slope"} & set(vars(cls))
        for name in ["steps"] if replaced and "steps" not in vars(cls) else []:
            setattr(cls, name, getattr(Loss, name))  # a derivation is that of its own class

    def __init__(self) -> None:
        """Take no settings."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_frame": Frame()}

    def _replica(self, frame: Frame) -> Self:
        """Return the same loss with memory of its own, for a thread or one of several outputs."""
        twin = copy.copy(self)
        twin._frame = frame
        return twin

    def loss_func(
        self, y_pred: Any, y_true: Any, sample_weight: Any = None, total: float | None = None
    ) -> float:
        """Return the loss as a Python float.

        Shapes: y_pred (N, ...); y_true as the class documents; sample_weight (N,), or one weight
        per position. `total` replaces the divisor.
        """
        return self._watched(*self._validated(y_pred, y_true, sample_weight, total), whole=False)[0]

    def loss_gradient(
        self, y_pred: Any, y_true: Any, sample_weight: Any = None, total: float | None = None
    ) -> Array:
        """Return the gradient of the loss with respect to y_pred, in y_pred's shape and dtype."""
        dP: Array = self._watched(*self._validated(y_pred, y_true, sample_weight, total))[1]
        return dP

    def _validated(
        self, y_pred: Any, y_true: Any, sample_weight: Any, total: float | None
    ) -> tuple[Array, Array, Array | None, float | None]:
        P = as_float(y_pred, None, f"{type(self).__name__} y_pred")
        if P.size == 0:
            raise ShapeError(f"{self!r} needs at least one prediction, got shape {P.shape}.")
        T = self.targets(y_true, P.shape)
        w = self.weights(sample_weight, T, P.shape)
        return P, T, w, None if total is None else check_number(total, "total", minimum=0)

    # --- what the author of a loss implements ----------------------------------------------

    def targets(self, y: Any, shape: Shape, name: str = "y") -> Array:
        """Return the targets y, checked for predictions of this shape; errors call them `name`."""
        T = as_real(y, f"{type(self).__name__} {name}")
        if T.shape != shape and (*T.shape, 1) != shape:
            raise ShapeError(
                f"{self!r} compares predictions of shape {shape} with {name} of the same shape"
                f"{' or (n,)' if shape[1:] == (1,) else ''}, got {name} of shape {T.shape}."
                f"{missing_flatten_hint(T.shape, shape)}"
            )
        check_finite(T, name)
        return T.reshape(shape).astype(np.float64 if T.dtype == np.float64 else np.float32)

    def positions(self, shape: Shape) -> Shape:
        """The shape of the weights, one per term, for predictions of this shape."""
        return shape

    def classes(self, shape: Shape) -> tuple[int, ...] | None:
        """The class labels for predictions of this shape, or None if there are no classes."""
        return self.labels

    def divisor(self, T: Array, w: Array | None, shape: Shape) -> float:
        """The default divisor: the number of terms, or the sum of their weights."""
        count = math.prod(self.positions(shape))
        return float(count if w is None else w.sum(dtype=np.float64) * (count // w.size))

    def value(self, P: Array, T: Array, w: Array | None, total: float | None) -> float:
        """Return the loss of P (N, ...), for T from `targets` and w from `weights`."""
        raise NotImplementedError(_MUST_IMPLEMENT.format(type(self).__name__, "value"))

    def gradient(self, P: Array, T: Array, w: Array | None, total: float | None) -> Array:
        """Return the gradient of `value` with respect to P, in the shape of P."""
        raise NotImplementedError(_MUST_IMPLEMENT.format(type(self).__name__, "gradient"))

    def value_and_gradient(
        self, P: Array, T: Array, w: Array | None = None, total: float | None = None
    ) -> tuple[float, Array]:
        """Return the value and the gradient, for T from `targets` and w from `weights`."""
        with calling(needs_dX=True, reuse=False):  # a custom loss may run layers
            return self.value(P, T, w, total), self.gradient(P, T, w, total)

    def present(self, T: Any) -> Loss:
        """Return the part of the loss that these targets have; all of it, but for several heads."""
        return self

    def weights_of(self, n: int, P: Any, w: Any) -> Any:
        """Return the weights with which only sample n counts, for predictions P (N, ...)."""
        only = np.zeros(self.positions(P.shape), P.dtype)
        only[n] = 1 if w is None else np.broadcast_to(w, only.shape)[n]
        return only

    def steps(self) -> Derivation | None:
        """Return the loss's derivation as data, from P, T, w and share to L and dP, or None.

        w (the shape of `positions`) holds the weights, 1 by default; share is 1 / total. See
        `phitodeep/derivations/language/step.py`.
        """
        return None

    # --- with a watcher --------------------------------------------------------------------

    def _watched(
        self, P: Array, T: Array, w: Array | None, total: float | None, whole: bool = True
    ) -> tuple[float, Any]:
        """The value and, if `whole`, the gradient; a watcher may replace P before, and dP after."""
        watch = current().watch
        if watch is not None:
            P = watch.notify("loss", "before", self, P)
        given = P, T, w, total
        value, dP = self.value_and_gradient(*given) if whole else (self.value(*given), None)
        return value, dP if watch is None else watch.notify("loss", "after", self, dP, value)

    # --- helpers for the author ------------------------------------------------------------

    def weights(
        self, sample_weight: Any, T: Array, shape: Shape, name: str = "sample_weight"
    ) -> Array | None:
        """Return checked sample weights; (N,) weights become (N, 1, ...), to fit the positions."""
        if sample_weight is None:
            return None
        w = as_float(sample_weight, None, name)
        positions = self.positions(shape)
        if w.shape not in (positions[:1], positions):
            wanted = " or ".join(dict.fromkeys(map(str, (positions[:1], positions))))
            raise ShapeError(f"{name} must have shape {wanted}, got {w.shape}.")
        check_finite(w, name)
        if (w < 0).any():
            raise ArgumentError(f"{name} must be >= 0, got a minimum of {w.min()}.")
        return w if w.shape == positions else w.reshape(-1, *[1] * (len(positions) - 1))


class Elementwise(Loss, registered=False):
    """A loss computed element by element: its author implements `each` and `slope`.

    An element of their results may depend only on the same element of P and T, because large
    batches are computed in parts.
    """

    target_range: ClassVar[tuple[float, float] | None] = None  # of what targets may be, if limited
    targets_are = ""  # such as "counts ", for errors

    def targets(self, y: Any, shape: Shape, name: str = "y") -> Array:
        T = super().targets(y, shape, name)
        low, high = self.target_range or (-math.inf, math.inf)
        if self.target_range and T.size and not low <= T.min() <= T.max() <= high:
            limits = f"from {low} to {high}" if high < math.inf else f">= {low}"
            raise ArgumentError(
                f"{self!r} takes {self.targets_are}{name} {limits}, "
                f"got values from {T.min():g} to {T.max():g}."
            )
        return T

    def each(self, P: Array, T: Array) -> Array:
        """The loss of each element, in a new array."""
        raise NotImplementedError(f"{type(self).__name__} must implement each(P, T).")

    def slope(self, P: Array, T: Array) -> Array:
        """The derivative of `each` with respect to P, in a new array."""
        raise NotImplementedError(f"{type(self).__name__} must implement slope(P, T).")

    def value(self, P: Array, T: Array, w: Array | None, total: float | None) -> float:
        each = self.each(P, T.astype(P.dtype, copy=False))
        if w is not None:
            np.copyto(each, 0, where=w == 0)  # even where the loss is infinite or NaN
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


class Rowwise(Elementwise, registered=False):
    """A loss that compares rows along the last axis, or arrays along the last `axes` axes.

    Shapes: P and its `slope` are (N, ..., D); `each` and the weights are (N, ...).
    """

    axes: ClassVar[int] = 1

    def positions(self, shape: Shape) -> Shape:
        return shape[: -self.axes]

    def gradient(self, P: Array, T: Array, w: Array | None, total: float | None) -> Array:
        w = None if w is None else np.expand_dims(w, tuple(range(-self.axes, 0)))
        return super().gradient(P, T, w, total)


class OneHot(Rowwise, registered=False):
    """A loss that compares rows of K classes with targets, which are labels or rows.

    Shapes: P is (N, ..., K), and y (N, ...) or (N, ..., K). T, which `each` and `slope` get, has
    rows: that of label k is 1 for class k, else 0.
    """

    def classes(self, shape: Shape) -> tuple[int, ...]:
        return tuple(range(shape[-1]))

    def targets(self, y: Any, shape: Shape, name: str = "y") -> Array:
        T = as_real(y, f"{type(self).__name__} {name}")
        if T.shape in (shape[:-1], (*shape[:-1], 1)):
            T = one_hot(T.reshape(shape[:-1]), shape[-1])
        return super().targets(T, shape, name)


def class_weights(given: Any, classes: Sequence[int], dtype: DType = np.float64) -> Array:
    """Return a weight for each class, (K,), given in order, or by class; others then have 1."""
    weights = given
    if isinstance(given, Mapping):
        weights = np.ones(len(classes))
        for label, weight in given.items():
            if label not in classes:
                raise ArgumentError(f"class_weight names {label!r}; the classes are {classes}.")
            number = check_number(weight, f"class_weight of {label}", minimum=0)
            weights[classes.index(label)] = number
    weights = as_float(weights, dtype, "class_weight")
    if weights.shape != (len(classes),) or not ((weights >= 0) & np.isfinite(weights)).all():
        raise ArgumentError(
            f"class_weight must be {len(classes)} finite numbers >= 0, got {given!r}."
        )
    return weights


def reciprocal(P: Array) -> Array:
    """1 / p where p is at least `tiny`, the dtype's smallest normal number; otherwise 0.

    It is the derivative of log(max(p, tiny)), the logarithm that the losses use.
    """
    return np.divide(1, P, out=np.zeros_like(P), where=np.finfo(P.dtype).tiny <= P)


def missing_flatten_hint(targets: Shape, predictions: Shape) -> str:
    """A hint for models that predict at every position although each sample has one target."""
    one_each = targets in (predictions[:1], (*predictions[:1], predictions[-1]))
    return (
        " The model predicts at every position of a sample: is .flatten() or a global pool "
        "missing before the last layers?"
        if len(predictions) > 2 and one_each
        else ""
    )
