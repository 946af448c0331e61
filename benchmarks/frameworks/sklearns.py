"""scikit-learn's MLPClassifier: its partial_fit goes through the samples once, in batches."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import log_loss
from sklearn.neural_network import MLPClassifier
from workloads import MLPS, RATE, weights

VARIANTS = {"MLPClassifier": ("W1", "W2")}


class Side:
    def __init__(self, workload: str, variant: str) -> None:
        self.workload, self.model = workload, None

    def made(self, batch: int) -> MLPClassifier:
        """The classifier; its batch size is settled when it is made."""
        if self.model is None or self.model.batch_size != batch:
            hidden = MLPS[self.workload][1:-1]
            self.model = MLPClassifier(
                hidden, batch_size=batch, alpha=0.0, learning_rate_init=RATE, random_state=0
            )
            X = np.zeros((batch, 784), np.float32)
            self.model.partial_fit(X, np.zeros(batch, int), classes=np.arange(10))
            made = list(weights(self.workload).values())
            self.model.coefs_, self.model.intercepts_ = made[::2], made[1::2]
            self.model._optimizer = None
            self.model._optimizer = self._fresh()
        return self.model

    def _fresh(self) -> object:
        from sklearn.neural_network._stochastic_optimizers import AdamOptimizer

        return AdamOptimizer(self.model.coefs_ + self.model.intercepts_, RATE)

    def loss(self, X: np.ndarray, y: np.ndarray) -> float:
        return float(log_loss(y, self.made(64).predict_proba(X), labels=np.arange(10)))

    def train(self, X: np.ndarray, y: np.ndarray, batch: int) -> None:
        self.made(batch).partial_fit(X, y)  # which shuffles

    epoch = train

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.made(64).predict_proba(X)
