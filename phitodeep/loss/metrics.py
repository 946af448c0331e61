"""Metrics: measures of how good predictions are, such as accuracy, F1 and R2.

A metric computes a few sums for each batch (`sums`), combines them over batches (`merge`), and
turns them into its value at the end (`result`). The value over many batches is therefore the same
as the value over all the data at once, except for plain functions (`Custom`). Calling a metric with
(y_pred, y_true), the same order as for losses, returns a float.

Predictions are scores (N, ..., K) of K classes, or scores (N, 1) or (N,) of the positive class,
which is predicted where they are above `threshold`: 0.5 for probabilities, 0 for logits. Labels are
integers without the class axis, (N, 1), or one-hot; negative labels are not counted. Binary labels
are 0 and 1, or -1 and +1, and may be smoothed: the positive class is above 0.5. A prediction with a
NaN score has no class, so it is always wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from phitodeep.core.checks import (
    check_count,
    check_flag,
    check_number,
    check_option,
    choose,
    class_hint,
    snake_case,
)
from phitodeep.core.config import Configurable
from phitodeep.core.types import Array
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError


class Metric(Configurable, registered=False):
    """A measure of predictions against targets that can be computed batch by batch."""

    config_kind = "metric"
    threshold = 0.5
    scalar = True  # whether the result is one number, as `History` requires

    @property
    def name(self) -> str:
        """The key of the metric in reports, such as `top_k_accuracy`."""
        return snake_case(type(self).__name__)

    def __call__(self, y_pred: Any, y_true: Any) -> float:
        return self.result(self.sums(np.asarray(y_pred), np.asarray(y_true)))

    def sums(self, P: Array, T: Array) -> Array:
        """Return the sums over one batch, as a float64 array."""
        raise NotImplementedError(f"{type(self).__name__} must implement sums(P, T).")

    def merge(self, one: Array, other: Array) -> Array:
        """Return the sums over two batches together."""
        return one + other

    def result(self, sums: Array) -> float:
        """Return the value, by default the first sum divided by the second; nan without samples."""
        return float(sums[0] / sums[1]) if sums[1] else math.nan


class Custom(Metric):
    """The mean over batches of any function of (y_pred, y_true), weighted by the batch sizes."""

    def __init__(self, function: Callable[[Array, Array], float]) -> None:
        if not callable(function) or isinstance(function, Configurable | type):
            raise ArgumentTypeError(
                f"Custom takes a function of (y_pred, y_true), got {function!r}."
            )
        self.function = function

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def sums(self, P: Array, T: Array) -> Array:
        value = self.function(P.copy(), T.copy()) if len(P) else 0.0
        return np.array([value * len(P), len(P)], np.float64)


class _Classes(Metric):
    """A metric of classes: one of K at each position, or with `multilabel` any number of K."""

    def __init__(self, threshold: float = 0.5, *, multilabel: bool = False) -> None:
        name = type(self).__name__
        self.threshold = check_number(threshold, f"{name} threshold")
        self.multilabel = check_flag(multilabel, f"{name} multilabel")

    def classes(self, P: Array, T: Array) -> tuple[Array, Array, int]:
        """Return predicted classes (or -1) and true classes, both flat, and their number K."""
        if self.multilabel:
            P, T = P.reshape(-1), _matching(P, T).reshape(-1)
        return as_classes(P, T, self.threshold)


class Accuracy(_Classes):
    """The fraction of positions whose class is predicted correctly."""

    def sums(self, P: Array, T: Array) -> Array:
        predicted, true, _ = self.classes(P, T)
        return np.array([np.count_nonzero(predicted == true), true.size], np.float64)


class TopKAccuracy(Metric):
    """The fraction of positions whose true class is among the k classes with the highest scores.

    A class whose score ties with the true class ranks above it only if its index is lower.
    """

    def __init__(self, k: int = 5) -> None:
        self.k = check_count(k, "TopKAccuracy k")

    @property
    def name(self) -> str:
        return "top_k_accuracy" if self.k == 5 else f"top_{self.k}_accuracy"

    def sums(self, P: Array, T: Array) -> Array:
        if P.ndim < 2 or P.shape[-1] < 2:
            raise ShapeError(f"{self!r} takes scores (N, ..., K) with K >= 2, got shape {P.shape}.")
        _, true, classes = as_classes(P, T, 0.5)
        rows = P.reshape(-1, classes)
        rows = rows if len(rows) == len(true) else rows[T.ravel() >= 0]
        true_score = np.take_along_axis(rows, true[:, None], axis=1)
        lower_index = np.arange(classes) < true[:, None]
        rank = ((rows > true_score) | ((rows == true_score) & lower_index)).sum(axis=1)
        correct = (rank < self.k) & ~np.isnan(rows).any(axis=1)
        return np.array([np.count_nonzero(correct), true.size], np.float64)


class _ByClass(_Classes):
    """The mean over classes of a ratio of hits, predicted counts and actual counts.

    With two classes, only the positive class counts. A class that is neither predicted nor present
    is left out of the mean; 0 divided by 0 counts as 0.
    """

    def sums(self, P: Array, T: Array) -> Array:
        predicted, true, classes = self.classes(P, T)
        hits = np.bincount(true[predicted == true], minlength=classes)
        predicted_count = np.bincount(predicted[predicted >= 0], minlength=classes)
        actual_count = np.bincount(true, minlength=classes)
        return np.array([hits, predicted_count, actual_count], np.float64)

    def result(self, sums: Array) -> float:
        if sums.shape[1] == 2:
            sums = sums[:, 1:]
        else:
            sums = sums[:, sums[1:].any(axis=0)]
        return float(np.mean(self._ratio(*sums))) if sums.size else math.nan

    def _ratio(self, hits: Array, predicted: Array, actual: Array) -> Array:
        raise NotImplementedError(f"{type(self).__name__} must implement _ratio.")


class Precision(_ByClass):
    """The fraction of the predictions of a class that are correct: hits / predicted."""

    def _ratio(self, hits: Array, predicted: Array, actual: Array) -> Array:
        return hits / np.maximum(predicted, 1)


class Recall(_ByClass):
    """The fraction of the members of a class that are predicted to be in it: hits / actual."""

    def _ratio(self, hits: Array, predicted: Array, actual: Array) -> Array:
        return hits / np.maximum(actual, 1)


class F1(_ByClass):
    """The harmonic mean of precision and recall, 2 hits / (predicted + actual)."""

    def _ratio(self, hits: Array, predicted: Array, actual: Array) -> Array:
        return 2 * hits / np.maximum(predicted + actual, 1)


class ConfusionMatrix(_Classes):
    """A (K, K) array of counts: entry [t, p] counts samples of class t that are predicted as p.

        model.evaluate(X, y, metrics=["confusion_matrix"])["confusion_matrix"]

    Its diagonal counts the correct predictions. Predictions with a NaN score have no class and are
    left out. Because the result is not a single number, `train` refuses this metric.
    """

    scalar = False

    def __call__(self, y_pred: Any, y_true: Any) -> Any:
        return super().__call__(y_pred, y_true)

    def sums(self, P: Array, T: Array) -> Array:
        predicted, true, classes = self.classes(P, T)
        valid = predicted >= 0
        pairs = np.bincount(true[valid] * classes + predicted[valid], minlength=classes**2)
        return pairs.reshape(classes, classes).astype(np.float64)

    def result(self, sums: Array) -> Any:
        return sums.astype(np.int64)


class MAE(Metric):
    """The mean absolute error, in the unit of the targets."""

    def sums(self, P: Array, T: Array) -> Array:
        error = np.abs(P - _matching(P, T))
        return np.array([error.sum(dtype=np.float64), error.size])


class R2(Metric):
    """1 - (squared error) / (squared deviation of the targets from their mean).

    multioutput    "pooled": over all elements, with one mean. "uniform_average": for each output,
                   which is an index of the last axis, and then averaged, as scikit-learn's r2_score
                   does; outputs then count the same, whatever their units

    Constant targets have a deviation of 0: the value is then 1 if the error is 0, else 0.
    """

    def __init__(self, multioutput: str = "pooled") -> None:
        options = ("pooled", "uniform_average")
        self.multioutput = check_option(multioutput, "R2 multioutput", options)

    @property
    def name(self) -> str:
        return "r2" if self.multioutput == "pooled" else "r2_uniform_average"

    def sums(self, P: Array, T: Array) -> Array:
        """Return error, count, mean and deviation, (4,) or (4, outputs)."""
        T = _matching(P, T).astype(np.float64)
        if not T.size:
            return np.zeros(4)
        pooled = self.multioutput == "pooled" or T.ndim == 1
        shape = -1 if pooled else (-1, T.shape[-1])
        T, P = T.reshape(shape), P.reshape(shape)
        error = np.square(P - T).sum(axis=0, dtype=np.float64)
        shifted = T - T[0]  # constant targets become exactly 0, and so does their deviation
        mean = shifted.mean(axis=0)
        deviation = np.square(shifted - mean).sum(axis=0)
        return np.array([error, np.full_like(error, len(T)), T[0] + mean, deviation])

    def merge(self, one: Array, other: Array) -> Array:
        """Squared deviations add up, plus a term for the gap between the means.

        Source: Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for
        computing sample variances".
        """
        (e1, n1, m1, d1), (e2, n2, m2, d2) = one, other
        if not (np.any(n1) and np.any(n2)):
            return one if np.any(n1) else other
        n, gap = n1 + n2, m2 - m1
        return np.array([e1 + e2, n, m1 + gap * n2 / n, d1 + d2 + gap * gap * n1 * n2 / n])

    def result(self, sums: Array) -> float:
        values = []
        for error, n, mean, deviation in np.atleast_2d(sums.T):
            if not n:
                return math.nan
            rounding = 4 * n * (np.finfo(np.float64).eps * mean) ** 2
            values.append(1 - error / deviation if deviation > rounding else error <= rounding)
        return float(np.mean(values))


def as_classes(P: Array, T: Array, threshold: float) -> tuple[Array, Array, int]:
    """Return predicted classes (or -1) and true classes, both flat, and their number K."""
    if P.ndim < 2 or P.shape[-1] == 1:
        if T.size != P.size:
            raise ShapeError(f"predictions of shape {P.shape} do not match y of shape {T.shape}.")
        predicted = np.where(np.isnan(P), -1, P > threshold)
        return predicted.ravel(), (T > 0.5).ravel().astype(int), 2
    classes = P.shape[-1]
    if T.shape == P.shape:
        T = T.argmax(axis=-1)
    if T.size != P.size // classes:
        raise ShapeError(f"predictions of shape {P.shape} do not match y of shape {T.shape}.")
    predicted = np.where(np.isnan(P.max(axis=-1)), -1, P.argmax(axis=-1)).ravel()
    true = T.ravel().astype(int)
    if true.max(initial=-1) >= classes:
        raise ArgumentError(
            f"y contains class {true.max()}, but the predictions have scores for {classes} classes."
        )
    counted = true >= 0
    return predicted[counted], true[counted], classes


def _matching(P: Array, T: Array) -> Array:
    """Return T in the shape of P; refuse a T that does not fit."""
    if T.shape != P.shape and (*T.shape, 1) != P.shape:
        raise ShapeError(f"predictions of shape {P.shape} do not match y of shape {T.shape}.")
    return T.reshape(P.shape)


accuracy, top_k_accuracy = Accuracy(), TopKAccuracy()
precision, recall, f1 = Precision(), Recall(), F1()
confusion_matrix = ConfusionMatrix()
mae, r2 = MAE(), R2()

_ALL = (accuracy, top_k_accuracy, precision, recall, f1, confusion_matrix, mae, r2)
METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}

MetricLike = str | Metric | Callable[[Array, Array], float]


def as_metrics(
    metrics: MetricLike | Sequence[MetricLike], threshold: float, multilabel: bool = False
) -> list[Metric]:
    """Return a list of metrics, from names, metrics and functions.

    Metrics of classes that are given by name use this `threshold` and `multilabel`.
    """
    if isinstance(metrics, str) or not isinstance(metrics, Sequence):
        metrics = [metrics]
    result: list[Metric] = []
    for metric in metrics:
        if isinstance(metric, str):
            found = choose(metric, METRICS, "metric")
            if isinstance(found, _Classes):
                found = type(found)(threshold, multilabel=multilabel)
            result.append(found)
        elif isinstance(metric, Metric):
            result.append(metric)
        elif callable(metric) and not isinstance(metric, Configurable | type):
            result.append(Custom(metric))
        else:
            raise ArgumentTypeError(
                f"a metric is a name or a function, got {metric!r}.{class_hint(metric)}"
                + " Pass several as separate arguments, as in .metrics('accuracy', 'f1')."
                * isinstance(metric, list | tuple)
            )
    names = [m.name for m in result]
    for name in names:
        if name == "loss" or names.count(name) > 1:
            raise ArgumentError(
                f"metrics need distinct names, other than 'loss': got {', '.join(names)}."
            )
    return result
