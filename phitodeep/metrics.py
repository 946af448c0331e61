"""Metrics: how good predictions are, in the words of those who use them.

A metric takes a few numbers from each batch (`sums`), puts them together (`merge`), and turns
them into its value at the end (`result`), so that a value over many batches is exactly that over
all the data at once. Called with (y_pred, y_true), in the order of the losses, a metric gives a
float.

Predictions are (N, ..., K) scores of K classes, or (N, 1) or (N,) of which those above
`threshold` mean the positive class: 0.5 for probabilities, 0 for logits. Labels are integers
without the class axis, (N, 1), or one-hot, and negative ones do not count; binary labels are 0
and 1, or -1 and +1, also smoothed: the positive class is above 0.5. A prediction with a score
that is NaN is of no class, and so never right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from phitodeep.checks import check_count, choose, class_hint, snake_case
from phitodeep.config import Configurable
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError
from phitodeep.types import Array, describe


class Metric(Configurable):
    """A function of predictions and targets that can be added up batch by batch."""

    config_kind = "metric"
    threshold = 0.5
    scalar = True  # whether the result is one number, as a training's history takes it

    @property
    def name(self) -> str:
        """The key of the metric in reports, such as `top_k_accuracy`."""
        return snake_case(type(self).__name__)

    def __repr__(self) -> str:
        return describe(self)

    def __call__(self, y_pred: Any, y_true: Any) -> float:
        return self.result(self.sums(np.asarray(y_pred), np.asarray(y_true)))

    def sums(self, P: Array, T: Array) -> Array:
        """The numbers to add up, as one float64 array."""
        raise NotImplementedError(f"{type(self).__name__} must implement sums(P, T).")

    def merge(self, one: Array, other: Array) -> Array:
        """The numbers of two batches together."""
        return one + other

    def result(self, sums: Array) -> float:
        """The metric from the sums: by default the first over the second, nan for nothing."""
        return float(sums[0] / sums[1]) if sums[1] else math.nan


class Custom(Metric):
    """Any function of (y_pred, y_true): its mean over batches, weighted by their sizes."""

    def __init__(self, function: Callable[[Array, Array], float]) -> None:
        self.function = function

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def sums(self, P: Array, T: Array) -> Array:
        value = self.function(P.copy(), T.copy()) if len(P) else 0.0
        return np.array([value * len(P), len(P)], np.float64)


class _Classes(Metric):
    """Metrics of classes: one of K at each position, or with `multilabel` yes or no for each."""

    def __init__(self, threshold: float = 0.5, *, multilabel: bool = False) -> None:
        self.threshold, self.multilabel = threshold, multilabel

    def classes(self, P: Array, T: Array) -> tuple[Array, Array, int]:
        """(predicted classes or -1, true classes, number of classes), the first two flat."""
        if self.multilabel:
            P, T = P.reshape(-1), _alike(P, T).reshape(-1)
        return as_classes(P, T, self.threshold)


class Accuracy(_Classes):
    """The share of positions whose class is right."""

    def sums(self, P: Array, T: Array) -> Array:
        predicted, true, _ = self.classes(P, T)
        return np.array([np.count_nonzero(predicted == true), true.size], np.float64)


class TopKAccuracy(Metric):
    """The share of positions whose true class is among the k of highest score.

    A class that ties with the true one counts as above it only where its index is lower.
    """

    def __init__(self, k: int = 5) -> None:
        self.k = check_count(k, "TopKAccuracy k")

    @property
    def name(self) -> str:
        return "top_k_accuracy" if self.k == 5 else f"top_{self.k}_accuracy"

    def sums(self, P: Array, T: Array) -> Array:
        if P.ndim < 2 or P.shape[-1] < 2:
            raise ShapeError(f"{self!r} takes scores (N, ..., K) of K >= 2, got shape {P.shape}.")
        _, true, classes = as_classes(P, T, 0.5)
        rows = P.reshape(-1, classes)
        rows = rows if len(rows) == len(true) else rows[T.ravel() >= 0]
        own = np.take_along_axis(rows, true[:, None], axis=1)
        before = np.arange(classes) < true[:, None]
        above = ((rows > own) | ((rows == own) & before)).sum(axis=1)
        right = (above < self.k) & ~np.isnan(rows).any(axis=1)
        return np.array([np.count_nonzero(right), true.size], np.float64)


class _ByClass(_Classes):
    """Metrics of true positives, predicted and actual counts: their mean over classes.

    Of two classes, only the positive one counts. A class that is neither predicted nor there is
    left out of the mean; a division of 0 by 0 counts as 0.
    """

    def sums(self, P: Array, T: Array) -> Array:
        predicted, true, classes = self.classes(P, T)
        hits = np.bincount(true[predicted == true], minlength=classes)
        guesses = np.bincount(predicted[predicted >= 0], minlength=classes)
        return np.array([hits, guesses, np.bincount(true, minlength=classes)], np.float64)

    def result(self, sums: Array) -> float:
        if sums.shape[1] == 2:
            sums = sums[:, 1:]
        else:
            sums = sums[:, sums[1:].any(axis=0)]
        return float(np.mean(self.of(*sums))) if sums.size else math.nan

    def of(self, hits: Array, guesses: Array, there: Array) -> Array:
        raise NotImplementedError(f"{type(self).__name__} must implement of.")


class Precision(_ByClass):
    """Of those predicted to be of a class, the share that is."""

    def of(self, hits: Array, guesses: Array, there: Array) -> Array:
        return hits / np.maximum(guesses, 1)


class Recall(_ByClass):
    """Of those that are of a class, the share that is predicted to be."""

    def of(self, hits: Array, guesses: Array, there: Array) -> Array:
        return hits / np.maximum(there, 1)


class F1(_ByClass):
    """The harmonic mean of precision and recall, 2 hits / (predicted + actual)."""

    def of(self, hits: Array, guesses: Array, there: Array) -> Array:
        return 2 * hits / np.maximum(guesses + there, 1)


class ConfusionMatrix(_Classes):
    """Counts of classes, a (K, K) array of integers: entry [t, p] is of class t, predicted as p.

        model.evaluate(X, y, metrics=["confusion_matrix"])["confusion_matrix"]

    Its diagonal holds the right predictions. Predictions of no class, whose scores are NaN, are
    left out. It is no single number, so `train` refuses it.
    """

    scalar = False

    def __call__(self, y_pred: Any, y_true: Any) -> Any:
        return super().__call__(y_pred, y_true)

    def sums(self, P: Array, T: Array) -> Array:
        predicted, true, classes = self.classes(P, T)
        there = predicted >= 0
        pairs = np.bincount(true[there] * classes + predicted[there], minlength=classes**2)
        return pairs.reshape(classes, classes).astype(np.float64)

    def result(self, sums: Array) -> Any:
        return sums.astype(np.int64)


class MAE(Metric):
    """The mean absolute error, in the unit of the targets."""

    def sums(self, P: Array, T: Array) -> Array:
        error = np.abs(P - _alike(P, T))
        return np.array([error.sum(dtype=np.float64), error.size])


class R2(Metric):
    """1 - (squared error) / (squared deviation of the targets from their mean), over all elements.

    Constant targets have no deviation: the value is then 1 for no error, else 0.
    """

    def sums(self, P: Array, T: Array) -> Array:
        T = _alike(P, T).astype(np.float64)
        if not T.size:
            return np.zeros(4)
        error = np.square(P - T).sum(dtype=np.float64)
        first = T.flat[0]
        shifted = T - first  # exactly 0 if the targets are constant, and so is their deviation
        mean = shifted.mean()
        return np.array([error, T.size, first + mean, np.square(shifted - mean).sum()])

    def merge(self, one: Array, other: Array) -> Array:
        """Chan, Golub and LeVeque 1979: squared deviations add up, and so does the means' gap."""
        (e1, n1, m1, d1), (e2, n2, m2, d2) = one, other
        if not (n1 and n2):
            return one if n1 else other
        n, gap = n1 + n2, m2 - m1
        return np.array([e1 + e2, n, m1 + gap * n2 / n, d1 + d2 + gap * gap * n1 * n2 / n])

    def result(self, sums: Array) -> float:
        error, n, mean, deviation = sums
        if not n:
            return math.nan
        rounding = 4 * n * (np.finfo(np.float64).eps * mean) ** 2
        return float(1 - error / deviation) if deviation > rounding else float(error <= rounding)


def as_classes(P: Array, T: Array, threshold: float) -> tuple[Array, Array, int]:
    """(predicted classes or -1, true classes, number of classes), the first two flat."""
    if P.ndim < 2 or P.shape[-1] == 1:
        if T.size != P.size:
            raise ShapeError(f"predictions of shape {P.shape} do not fit y of shape {T.shape}.")
        predicted = np.where(np.isnan(P), -1, P > threshold)
        return predicted.ravel(), (T > 0.5).ravel().astype(int), 2
    classes = P.shape[-1]
    if T.shape == P.shape:
        T = T.argmax(axis=-1)
    if T.size != P.size // classes:
        raise ShapeError(f"predictions of shape {P.shape} do not fit y of shape {T.shape}.")
    predicted = np.where(np.isnan(P.max(axis=-1)), -1, P.argmax(axis=-1)).ravel()
    true = T.ravel().astype(int)
    counted = true >= 0
    return predicted[counted], true[counted], classes


def _alike(P: Array, T: Array) -> Array:
    if T.shape != P.shape and (*T.shape, 1) != P.shape:
        raise ShapeError(f"predictions of shape {P.shape} do not fit y of shape {T.shape}.")
    return T.reshape(P.shape)


accuracy, top_k_accuracy = Accuracy(), TopKAccuracy()
precision, recall, f1 = Precision(), Recall(), F1()
confusion_matrix = ConfusionMatrix()
mae, r2 = MAE(), R2()

METRICS: dict[str, Metric] = {
    m.name: m for m in (accuracy, top_k_accuracy, precision, recall, f1, confusion_matrix, mae, r2)
}


MetricLike = str | Metric | Callable[[Array, Array], float]


def as_metrics(
    metrics: MetricLike | Sequence[MetricLike], threshold: float, multilabel: bool = False
) -> list[Metric]:
    """Names, metrics and functions as metrics; those of classes by name take what follows."""
    if isinstance(metrics, str) or not isinstance(metrics, Sequence):
        metrics = [metrics]
    made: list[Metric] = []
    for metric in metrics:
        if isinstance(metric, str):
            found = choose(metric, METRICS, "metric")
            if isinstance(found, _Classes):
                found = type(found)(threshold, multilabel=multilabel)
            made.append(found)
        elif isinstance(metric, Metric):
            made.append(metric)
        elif callable(metric) and not isinstance(metric, type):
            made.append(Custom(metric))
        else:
            raise ArgumentTypeError(
                f"a metric is a name or a function, got {metric!r}.{class_hint(metric)}"
                + " Several come one by one, as in .metrics('accuracy', 'f1')."
                * isinstance(metric, list | tuple)
            )
    names = [m.name for m in made]
    for name in names:
        if name == "loss" or names.count(name) > 1:
            raise ArgumentError(
                f"metrics need names of their own, and loss is taken: got {', '.join(names)}."
            )
    return made
