"""PhitoClassifier: a network for classification, with the interface of scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from scipy.sparse import issparse
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.preprocessing import LabelEncoder
from sklearn.utils import column_or_1d
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight
from sklearn.utils.multiclass import (
    _check_partial_fit_first_call,
    check_classification_targets,
    type_of_target,
)

from phitodeep import functional as F
from phitodeep.core.checks import check_number
from phitodeep.core.types import Array
from phitodeep.errors import ArgumentError, ArgumentTypeError
from phitodeep.loss import BinaryCrossEntropyWithLogits, Loss, SoftmaxCrossEntropy
from phitodeep.sklearn.estimator import PhitoEstimator


@dataclass(eq=False, repr=False)
class PhitoClassifier(ClassifierMixin, PhitoEstimator):
    """A network for classification, with the interface of scikit-learn.

        est = PhitoClassifier((64, 32), dropout=0.1, random_state=0).fit(X, y)
        est.score(X_test, y_test)

    y is (n,) classes, numbers or texts, or (n, L) with 0 or 1 for each of L labels (multilabel).

    hidden          the number of units of each hidden layer; () for a linear model
    activation      the name of an activation, such as "relu", "gelu" or "tanh"
    model           a SequentialBuilder instead of the hidden layers, such as
                    `SequentialBuilder().dense(64).gelu()`. If its last layer is not a Dense with as
                    many units as there are outputs, such a layer is appended. If it has an input
                    shape with several axes, such as (8, 8, 1), each row is reshaped to it. It may
                    set a loss for logits and callbacks, but none of the settings below
    dropout         the fraction of values that are dropped after each hidden layer
    optimizer       an Optimizer, which is copied, or its name; None: AdamW(0.015) with a strong
                    weight decay: 0.5, or less if an epoch has more than 24 steps
    learning_rate   a number, or a schedule (a function of the step); None: the optimizer's own. A
                    number falls to 0 along half a cosine over the epochs of `fit`
    batch_size      samples per step; "auto": from 4 to 256, near a 24th of the samples; None: all
    epochs          the number of epochs, or its maximum if training stops early
    early_stopping  hold out a part of the samples, stratified by class, and stop when its loss has
                    not improved for `n_iter_no_change` epochs; keep the weights of the best epoch
    validation_fraction   the fraction of the samples that are held out
    categories      columns whose values are categories, by name or index: they go through an
                    embedding. "auto": the columns of a pandas DataFrame that hold categories or
                    texts; None: no columns. Missing values (None, NaN or pandas.NA) are a category
                    of their own. A category that `fit` did not see counts as the average of those
                    that it saw
    scale           subtract the mean of each column of numbers in the training part, and divide by
                    its standard deviation. Sparse X is not scaled
    dtype           "float32", which is faster, or "float64"; None: that of X, or "float64" for
                    tables with columns of categories
    class_weight    a weight for each class, as a dict; "balanced": the inverse frequencies
    random_state    an integer makes results reproducible bit for bit; see scikit-learn's glossary
    warm_start      continue with the network of the previous call of `fit`
    threads         see `Sequential.train`
    verbose         1 shows progress

    X may be an array, a DataFrame or sparse; the rows of sparse X become dense batch by batch.

    model_          the trained Sequential, for every tool that looks into networks; its input is
                    `encode(X)`. `model_.save("net.safetensors")` saves it
    encoder_        the fitted TableEncoder
    classes_        the classes in the order of the outputs
    n_iter_         the epochs of the last call
    loss_curve_     the training loss of each epoch since the network was built
    best_loss_      the lowest one; with early stopping, the lowest validation loss
    validation_scores_, best_validation_score_   with early stopping: the validation part's
                    accuracy in each epoch, and in the best one; otherwise None
    n_features_in_, feature_names_in_, n_outputs_   as in scikit-learn

    Source of the interface: scikit-learn's MLPClassifier.
    """

    class_weight: Mapping[Any, float] | str | None = field(default=None, kw_only=True)

    _numeric: ClassVar[bool] = False

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, classes: Any = None) -> Self:
        """Train for one epoch on X (n, features) and y, with a constant rate.

        The first call builds the network and needs all `classes`, except for multilabel targets.
        Each call updates the means and standard deviations of X. Categories that the first call did
        not see stay unknown.
        """
        first = not hasattr(self, "model_")
        if first:
            self.__dict__.pop("classes_", None)  # which a call that failed may have left
        if not type_of_target(y, input_name="y").startswith("multilabel"):
            _check_partial_fit_first_call(self, classes)
        return self._learn(X, y, sample_weight, first=first, partial=True, classes=classes)

    def predict(self, X: Any) -> Array:
        """Return the classes (n,), or the labels (n, L) of 0 and 1, for X (n, features)."""
        return self._decided(self._outputs(X))

    def decision_function(self, X: Any) -> Array:
        """Return the logits (n, K) for X (n, features).

        With two classes: (n,), the logit of the second class minus the logit of the first. For
        multilabel targets: (n, L), positive for the labels that are predicted.
        """
        Z = self._logits(X)
        binary = not self.multilabel_ and self.n_outputs_ == 2
        return Z[:, 1] - Z[:, 0] if binary else Z

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
            if first:
                self.classes_ = np.arange(y.shape[1])
            return y.astype(np.float32)
        y = column_or_1d(y, warn=True)
        if first:
            self._labels = LabelEncoder().fit(y if classes is None else classes)
            self.classes_ = self._labels.classes_
        if len(self.classes_) < 2:
            raise ArgumentError(
                f"y has only one class, {self.classes_.tolist()[0]!r}, and a classifier needs at "
                "least 2."
            )
        return self._labels.transform(y)

    def _class_weights(self, y: Array, *, partial: bool) -> Array | None:
        weights = self.class_weight
        if weights is None:
            return None
        if self.multilabel_:
            raise ArgumentError(
                "class_weight needs one class per sample, but y is multilabel: pass sample_weight."
            )
        if isinstance(weights, Mapping):
            for label, value in weights.items():
                check_number(value, f"class_weight[{label!r}]", minimum=0)
            return compute_class_weight(dict(weights), classes=self.classes_, y=self.classes_)[y]
        if weights != "balanced":
            raise ArgumentTypeError(
                f'class_weight must be "balanced", None or a dict such as {{0: 1.0, 1: 5.0}}, got '
                f"{weights!r}."
            )
        if partial:
            raise ArgumentError(
                'class_weight="balanced" needs all labels at once, but partial_fit sees a part: '
                "give the weights by class, such as {0: 1.0, 1: 5.0}."
            )
        return compute_sample_weight("balanced", y)

    def _strata(self, y: Array) -> Array | None:
        return None if self.multilabel_ else y

    def _objective(self, y: Array) -> tuple[int, Loss]:
        loss = BinaryCrossEntropyWithLogits() if self.multilabel_ else SoftmaxCrossEntropy()
        return (y.shape[1] if self.multilabel_ else len(self.classes_)), loss

    def _score(self, P: Array, y: Array, w: Array | None) -> float:
        labels = y if self.multilabel_ else self.classes_[y]
        return float(accuracy_score(labels, self._decided(P), sample_weight=w))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags
