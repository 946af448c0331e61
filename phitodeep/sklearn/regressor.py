"""PhitoRegressor: a network for regression, with the interface of scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.preprocessing import StandardScaler
from sklearn.utils import column_or_1d

from phitodeep.core.types import Array
from phitodeep.loss import Loss, MeanSquaredError
from phitodeep.sklearn.estimator import Part, PhitoEstimator
from phitodeep.sklearn.table import observe


@dataclass(eq=False, repr=False)
class PhitoRegressor(RegressorMixin, PhitoEstimator):
    """A network for regression, with the interface of scikit-learn.

        est = PhitoRegressor((64, 32), random_state=0).fit(X, y)
        est.score(X_test, y_test)

    y is (n,), or (n, outputs) for several outputs at once; predictions have the same shape. The
    parameters and attributes are those of `PhitoClassifier`, without `class_weight` and `classes_`.

    The network learns targets with mean 0 and standard deviation 1, so `loss_curve_` does not
    depend on the unit of y: `target_scaler_` converts between the two. The loss is the mean squared
    error, unless a builder given as `model` has its own, such as `.loss("huber")`. Validation
    scores are R^2.

    Source of the interface: scikit-learn's MLPRegressor.
    """

    _numeric: ClassVar[bool] = True

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train for one epoch on X (n, features) and y, with a constant rate.

        The first call builds the network; each call updates the means and standard deviations of X
        and y. Categories that the first call did not see stay unknown.
        """
        return self._learn(X, y, sample_weight, first=not hasattr(self, "model_"), partial=True)

    def predict(self, X: Any) -> Array:
        """Return the predictions, (n,) or (n, outputs), for X (n, features)."""
        return self._numbers(self._outputs(X))

    def _numbers(self, P: Array) -> Array:
        """Return predictions in the unit of y, for outputs P of the network."""
        y = self.target_scaler_.inverse_transform(P.astype(np.float64))
        return y.ravel() if self.n_outputs_ == 1 else y

    def _read(self, y: Any, *, first: bool, classes: Any) -> Array:
        y = np.asarray(y, np.float64)
        return y if y.ndim == 2 and y.shape[1] > 1 else column_or_1d(y, warn=True)

    def _observe(self, part: Part, *, first: bool) -> None:
        if first:
            self.target_scaler_ = StandardScaler().set_output(transform="default")
        observe(self.target_scaler_, part.y.reshape(len(part.y), -1), part.w, "y")

    def _targets(self, y: Array) -> Array:
        return self.target_scaler_.transform(y.reshape(len(y), -1))

    def _objective(self, y: Array) -> tuple[int, Loss]:
        return (y.shape[1] if y.ndim == 2 else 1), MeanSquaredError()

    def _score(self, P: Array, y: Array, w: Array | None) -> float:
        return float(r2_score(y, self._numbers(P), sample_weight=w))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
