"""PhitoClassifier: a network for classification, with the interface of scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from scipy.sparse import issparse
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.preprocessing import LabelEncoder
from sklearn.utils import column_or_1d
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets, type_of_target

from phitodeep import functional as F
from phitodeep.errors import ArgumentError
from phitodeep.loss import BinaryCrossEntropyWithLogits, Loss, SoftmaxCrossEntropy
from phitodeep.sklearn.estimator import PhitoEstimator
from phitodeep.types import Array


@dataclass(eq=False, repr=False)
class PhitoClassifier(ClassifierMixin, PhitoEstimator):
    """A network for classification, with the interface of scikit-learn."""

    class_weight: Any = field(default=None, kw_only=True)

    _numeric: ClassVar[bool] = False

    def partial_fit(
        self, X: Any, y: Any, sample_weight: Any = None, classes: Any = None
    ) -> Self:
        """Train for one epoch on X (n, features) and y, with a constant rate.

        The first call builds the network and needs all `classes`, except for multilabel targets.
        Each call updates the means and standard deviations of X. Categories that the first call did
        not see stay unknown.
        """
        first = not hasattr(self, "model_")
        return self._learn(X, y, sample_weight, first=first, partial=True, classes=classes)

    def predict(self, X: Any) -> Array:
        """Return the classes (n,), or the labels (n, L) of 0 and 1, for X (n, features)."""
        return self._decided(self._outputs(X))

    def decision_function(self, X: Any) -> Array:
        """Return the logits (n, K) for X (n, features).

        With two classes: (n,), the logit of the second class minus that of the first. For multilabel
        targets: (n, L), positive for the labels that are predicted.
        """
        Z = self._logits(X)
        return Z[:, 1] - Z[:, 0] if self._binary else Z

    def predict_proba(self, X: Any) -> Array:
        """Return the probabilities of the classes (n, K), or of the labels (n, L)."""
        Z = self._logits(X)
        return F.sigmoid(Z) if self.multilabel_ else F.softmax(Z)

    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithms of `predict_proba`, which are finite even if those are 0."""
        Z = self._logits(X)
        return F.log_sigmoid(Z) if self.multilabel_ else F.log_softmax(Z)

    def _logits(self, X: Any) -> Array:
        """Return the logits (n, K) in float64, in which probabilities near 1 stay distinct."""
        return self._outputs(X).astype(np.float64)

    @property
    def _binary(self) -> bool:
        return not self.multilabel_ and self.n_outputs_ == 2

    def _decided(self, Z: Array) -> Array:
        """Return the predictions for logits Z (n, K)."""
        if self.multilabel_:
            return (Z > 0).astype(np.int64)
        return self.classes_[Z.argmax(axis=1)]

    def _read(self, y: Any, *, first: bool, classes: Any) -> Array:
        check_classification_targets(y)
        kind = type_of_target(y, input_name="y")
        if kind == "multiclass-multioutput":
            raise ArgumentError(
                "y has several columns with more than two classes: wrap the estimator, as in "
                "sklearn.multioutput.MultiOutputClassifier(PhitoClassifier())."
            )
        multilabel = kind == "multilabel-indicator"
        if first:
            self.multilabel_ = multilabel
        elif multilabel != self.multilabel_:
            raise ArgumentError(
                "y is multilabel in some calls and not in others: call fit with warm_start=False."
            )
        if multilabel:
            y = y.toarray() if issparse(y) else y
            self.classes_ = np.arange(y.shape[1])
            return y.astype(np.float32)
        y = column_or_1d(y, warn=True)
        if first:
            self._labels = LabelEncoder().fit(y if classes is None else classes)
            self.classes_ = self._labels.classes_
        if len(self.classes_) < 2:
            raise ArgumentError(
                f"y has only one class, {self.classes_.tolist()[0]!r}: a classifier needs at least 2."
            )
        return self._labels.transform(y)

    def _class_weights(self, y: Array, *, partial: bool) -> Array | None:
        if self.class_weight is None:
            return None
        if self.multilabel_:
            raise ArgumentError(
                "class_weight needs one class per sample, but y is multilabel: pass sample_weight."
            )
        if partial and self.class_weight == "balanced":
            raise ArgumentError(
                'class_weight="balanced" needs all labels at once, but partial_fit sees a part: '
                "give the weights by class, such as {0: 1.0, 1: 5.0}."
            )
        return compute_sample_weight(self.class_weight, self.classes_[y])

    def _strata(self, y: Array) -> Array | None:
        return None if self.multilabel_ else y

    def _objective(self, y: Array) -> tuple[int, Loss]:
        loss = BinaryCrossEntropyWithLogits() if self.multilabel_ else SoftmaxCrossEntropy()
        return len(self.classes_), loss

    def _score(self, P: Array, y: Array, w: Array | None) -> float:
        labels = y if self.multilabel_ else self.classes_[y]
        return float(accuracy_score(labels, self._decided(P), sample_weight=w))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags
