"""scikit-learn's MLPClassifier: partial_fit runs one epoch in batches."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import log_loss
from sklearn.neural_network import MLPClassifier
from workloads import MLPS, RATE, weights

VARIANTS = {"MLPClassifier": ("W1", "W2")}


class Side:
    def __init__(self, workload: str, variant: str) -> None:
        self.workload, self.model = workload, None

    def classifier(self, batch: int) -> MLPClassifier:
        """The classifier; its batch size is fixed when it is created."""
        if self.model is None or self.model.batch_size != batch:
            hidden = MLPS[self.workload][1:-1]
            self.model = MLPClassifier(
                hidden, batch_size=batch, alpha=0.0, learning_rate_init=RATE, random_state=0
            )
            X = np.zeros((batch, 784), np.float32)
            self.model.partial_fit(X, np.zeros(batch, int), classes=np.arange(10))
            initial = list(weights(self.workload).values())
            self.model.coefs_, self.model.intercepts_ = initial[::2], initial[1::2]
            self.model._optimizer = None
            self.model._optimizer = self._fresh()
        return self.model

    def _fresh(self) -> object:
        from sklearn.neural_network._stochastic_optimizers import AdamOptimizer

        return AdamOptimizer(self.model.coefs_ + self.model.intercepts_, RATE)

    def loss(self, X: np.ndarray, y: np.ndarray) -> float:
        return float(log_loss(y, self.classifier(64).predict_proba(X), labels=np.arange(10)))

    def train(self, X: np.ndarray, y: np.ndarray, batch: int) -> None:
        self.classifier(batch).partial_fit(X, y)  # it shuffles

    epoch = train

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.classifier(64).predict_proba(X)
