"""Losses for K classes: the categorical cross-entropies."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from phitodeep import functional as F
from phitodeep.core.checks import as_real, check_count, check_finite, check_number
from phitodeep.core.types import Array, Shape
from phitodeep.derivations import losses as derived
from phitodeep.errors import LONGEST, ArgumentError, ArgumentTypeError, PhitodeepError, ShapeError
from phitodeep.loss.base import Loss, class_weights, missing_flatten_hint, reciprocal

__all__ = ["CategoricalCrossEntropy", "NegativeLogLikelihood", "SoftmaxCrossEntropy"]


class _CrossEntropy(Loss):
    """Cross-entropy in general: -sum_i w_i sum_k q_ik log p_ik / total.

    Targets are integer labels or rows of probabilities. Rows have the predictions' shape; labels
    have that shape without the class axis K, or (n, 1) for predictions (n, K). With label smoothing
    s, row q_i is (1 - s) onehot + s / K, times the class weights. A label equal to `ignore_index`
    has weight 0. `total` is the sum of the class weights times the sample weights.
    """

    label_smoothing = 0.0

    def __init__(
        self,
        ignore_index: int | None = None,
        class_weight: Sequence[float] | Mapping[int, float] | Array | None = None,
    ) -> None:
        if ignore_index is not None:
            ignore_index = check_count(ignore_index, "ignore_index", minimum=-sys.maxsize)
        self.ignore_index = ignore_index
        self.class_weight = _plain(class_weight)

    def positions(self, shape: Shape) -> Shape:
        return shape[:-1]

    def classes(self, shape: Shape) -> tuple[int, ...]:
        return tuple(range(shape[-1]))

    def targets(self, y: Any, shape: Shape, name: str = "y") -> Array:
        T = as_real(y, f"{type(self).__name__} {name}")
        classes = shape[-1] if shape else 0
        if len(shape) < 2 or classes < 2:
            raise ShapeError(
                f"{self!r} needs predictions (N, ..., K) of K >= 2 classes, got shape {shape}: "
                "for a single output, use BinaryCrossEntropy."
            )
        self._class_weights(classes, np.dtype(np.float64))
        if T.shape == shape:
            return self._distributions(T, name)
        if T.shape != shape[:-1] and (len(shape) > 2 or T.shape != (shape[0], 1)):
            raise ShapeError(
                f"{self!r} compares predictions of shape {shape} with labels of shape "
                f"{shape[:-1]} or one-hot rows of shape {shape}, got {name} of shape {T.shape}."
                f"{missing_flatten_hint(T.shape, shape)}"
            )
        check_finite(T, name)
        return F.check_labels(T, classes, self.ignore_index, name).reshape(shape[:-1])

    def _distributions(self, T: Array, name: str) -> Array:
        check_finite(T, name)
        T = T.astype(np.float64 if T.dtype == np.float64 else np.float32)
        if (T < 0).any() or not np.allclose(T.sum(axis=-1), 1, atol=1e-3):
            raise ArgumentError(
                f"{self!r} takes {name} as one-hot or probability rows, >= 0 and summing to 1."
            )
        return T

    def divisor(self, T: Array, w: Array | None, shape: Shape) -> float:
        return self._weighted(T, w, shape, np.dtype(np.float64))[2]

    def _weighted(
        self,
        T: Array,
        w: Array | None,
        shape: Shape,
        dtype: np.dtype[Any],
        total: float | None = None,
    ) -> tuple[Array, Array | None, float]:
        """Labels or rows q, position weights w, and the total: see `functional.cross_entropy`."""
        classes = shape[-1]
        labels = T.ndim < len(shape)
        if w is not None:
            w = np.broadcast_to(w, shape[:-1])
        if labels and self.ignore_index is not None:
            counted = np.asarray(T != self.ignore_index)
            T = np.where(counted, T, 0)
            w = counted.astype(dtype) if w is None else w * counted
        if labels and self.class_weight is None and not self.label_smoothing:
            return T, w, F.target_weight(T, w) if total is None else total
        q = F.one_hot(T, classes, dtype) if labels else T.astype(dtype, copy=False)
        per_class = self._class_weights(classes, dtype)
        total = F.target_weight(q * per_class, w) if total is None else total
        if self.label_smoothing:
            q = (1 - self.label_smoothing) * q + self.label_smoothing / classes
        return q * per_class, w, total

    def _class_weights(self, classes: int, dtype: np.dtype[Any]) -> Array:
        """One weight per class; classes missing from a mapping have weight 1."""
        if self.class_weight is None:
            return F.ones(classes, dtype)
        if isinstance(self.class_weight, str):
            raise ArgumentError(
                f"{type(self).__name__} takes one number per class as class_weight, got "
                f'{self.class_weight!r}: class_weight="balanced" is an option of train.'
            )
        given = self.class_weight
        if isinstance(given, Mapping):
            given = {_label(k): v for k, v in given.items()}
        return class_weights(given, range(classes), dtype)

    def log_probabilities(self, P: Array) -> Array:
        """Return log p, for predictions P, which are log p themselves by default."""
        return P

    def value(self, P: Array, T: Array, w: Array | None, total: float | None) -> float:
        q, w, total = self._weighted(T, w, P.shape, P.dtype, total)
        return F.nll(self.log_probabilities(P), q, w, total)

    def gradient(self, P: Array, T: Array, w: Array | None, total: float | None) -> Array:
        """Return the gradient with respect to log p: -w_i q_ik / total."""
        q, w, total = self._weighted(T, w, P.shape, P.dtype, total)
        dlogP = F.one_hot(q, P.shape[-1], P.dtype) if q.ndim < P.ndim else q.copy()
        dlogP *= -1 / total if total else 0.0
        if w is not None:
            dlogP *= w[..., None].astype(P.dtype, copy=False)
        return dlogP


class CategoricalCrossEntropy(_CrossEntropy):
    """The mean of -log p[label], for rows of probabilities p (the output of Softmax).

    The argument of the logarithm is clipped at the dtype's smallest normal number, so the gradient
    of a row is -w q / (total p), and 0 where p is smaller. After a Softmax, training and evaluation
    use SoftmaxCrossEntropy on the logits instead: see training/shortcuts.py.
    Shapes: P (N, ..., K); T (N, ...) labels, (N, 1) for P (N, K), or rows (N, ..., K).
    Sources: Bishop 2006, "Pattern recognition and machine learning", eq. 4.108; label smoothing:
    Szegedy et al. 2016, arXiv:1512.00567, sec. 7.
    """

    wants = "probabilities"

    steps = derived.categorical_cross_entropy

    def __init__(
        self,
        label_smoothing: float = 0.0,
        ignore_index: int | None = None,
        class_weight: Sequence[float] | Mapping[int, float] | Array | None = None,
    ) -> None:
        super().__init__(ignore_index, class_weight)
        self.label_smoothing = check_number(label_smoothing, "label_smoothing", minimum=0, below=1)

    def log_probabilities(self, P: Array) -> Array:
        return np.log(np.maximum(P, np.finfo(P.dtype).tiny))

    def gradient(self, P: Array, T: Array, w: Array | None, total: float | None) -> Array:
        dP = super().gradient(P, T, w, total)
        dP *= reciprocal(P)
        return dP


class SoftmaxCrossEntropy(CategoricalCrossEntropy):
    """CategoricalCrossEntropy of softmax(z), computed from the logits z.

    With p = softmax(z), the gradient of a row is w (p sum_k q_k - q) / total.
    Shapes and sources: as for CategoricalCrossEntropy.
    """

    wants = "logits"

    steps = derived.softmax_cross_entropy

    def log_probabilities(self, P: Array) -> Array:
        return F.log_softmax(P)

    def gradient(self, P: Array, T: Array, w: Array | None, total: float | None) -> Array:
        return self.value_and_gradient(P, T, w, total)[1]

    def value_and_gradient(
        self, P: Array, T: Array, w: Array | None = None, total: float | None = None
    ) -> tuple[float, Array]:
        q, w, total = self._weighted(T, w, P.shape, P.dtype, total)
        out = self.buffer("dP", P.shape, P.dtype)
        return F.cross_entropy_and_gradient(P, q, w, total, out=out)


class NegativeLogLikelihood(_CrossEntropy):
    """The mean of -p[label], for rows of log-probabilities p (the output of LogSoftmax).

    The gradient of a row is -w q / total. Shapes: as for CategoricalCrossEntropy.
    Source: Bishop 2006, "Pattern recognition and machine learning", eq. 4.108.
    """

    wants = "log-probabilities"

    steps = derived.negative_log_likelihood


def _label(key: Any) -> int:
    """Return the class that a key of class weights names: an integer, or its digits."""
    text = isinstance(key, str) and key.isdecimal() and len(key) < 19
    return check_count(int(key) if text else key, "class_weight: a class", minimum=-sys.maxsize)


def _plain(class_weight: Any) -> Any:
    """A sequence of class weights as a tuple of floats, which a configuration can hold.

    Anything else is returned as it is: `_class_weights` accepts a mapping and refuses the rest.
    """
    numbers = int | float | np.generic
    listed = isinstance(class_weight, list | tuple)
    if listed and not all(isinstance(w, numbers) for w in class_weight):
        shown = repr(class_weight)
        if len(shown) > LONGEST:  # NumPy would take as much memory for each text as for the longest
            raise ArgumentTypeError(f"class_weight takes one number per class, got {shown}.")
    if class_weight is None or isinstance(class_weight, str | Mapping):
        return class_weight
    try:
        weights = as_real(class_weight, "class_weight")
    except PhitodeepError:
        return class_weight
    return tuple(map(float, weights)) if weights.ndim == 1 else class_weight
