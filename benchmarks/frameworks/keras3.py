"""Keras 3 on JAX, through fit and predict_on_batch."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "jax"
import keras
import numpy as np
from workloads import LSTM, MLPS, RATE, weights

VARIANTS = {"JAX": ("W1", "W2", "W3", "W5")}


def network(workload: str) -> keras.Sequential:
    layers = keras.layers
    if workload in MLPS:
        *hidden, last = MLPS[workload][1:]
        inner = [layers.Dense(size, activation="relu") for size in hidden]
        return keras.Sequential([layers.Input((784,)), *inner, layers.Dense(last)])
    if workload == "W3":
        inner = []
        for filters in (32, 64):
            inner += [layers.Conv2D(filters, 3, padding="same", activation="relu")]
            inner += [layers.MaxPooling2D()]
        tail = [layers.Flatten(), layers.Dense(128, activation="relu"), layers.Dense(10)]
        return keras.Sequential([layers.Input((28, 28, 1)), *inner, *tail])
    return keras.Sequential(
        [
            layers.Input((LSTM["context"],), dtype="int32"),
            layers.Embedding(LSTM["vocab"], LSTM["dim"]),
            layers.LSTM(LSTM["units"], return_sequences=True),
            layers.Dense(LSTM["vocab"]),
        ]
    )


class Side:
    def __init__(self, workload: str, variant: str) -> None:
        self.model = network(workload)
        self.model.set_weights(list(weights(workload).values()))
        self.model.compile(
            optimizer=keras.optimizers.Adam(RATE),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )

    def loss(self, X: np.ndarray, y: np.ndarray) -> float:
        return float(self.model.evaluate(X, y, verbose=0))

    def train(self, X: np.ndarray, y: np.ndarray, batch: int) -> None:
        self.model.fit(X, y, batch_size=batch, epochs=1, verbose=0, shuffle=False)

    def epoch(self, X: np.ndarray, y: np.ndarray, batch: int) -> None:
        self.model.fit(X, y, batch_size=batch, epochs=1, verbose=0)

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.model.predict_on_batch(X)
