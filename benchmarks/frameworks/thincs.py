"""Thinc with its NumPy operations."""

from __future__ import annotations

import numpy as np
from thinc.api import Adam, Linear, Relu, chain
from workloads import MLPS, RATE, weights

VARIANTS = {"NumpyOps": ("W1", "W2")}


class Side:
    def __init__(self, workload: str, variant: str) -> None:
        sizes = MLPS[workload]
        shapes = list(zip(sizes[1:], sizes[:-1], strict=True))
        self.model = chain(*[Relu(o, i) for o, i in shapes[:-1]], Linear(*shapes[-1]))
        self.model.initialize()
        initial = list(weights(workload).values())
        for layer, W, b in zip(self.model.layers, initial[::2], initial[1::2], strict=True):
            layer.set_param("W", np.ascontiguousarray(W.T))
            layer.set_param("b", b)
        self.optimizer, self.rng = Adam(RATE), np.random.default_rng(0)
        self.one_hot = np.eye(10, dtype=np.float32)

    def loss(self, X: np.ndarray, y: np.ndarray) -> float:
        Z = self.predict(X).astype(np.float64)
        return float((np.log(np.exp(Z).sum(axis=1)) - Z[np.arange(len(y)), y]).mean())

    def step(self, X: np.ndarray, y: np.ndarray) -> None:
        Z, back = self.model.begin_update(X)
        P = np.exp(Z - Z.max(axis=1, keepdims=True))
        P /= P.sum(axis=1, keepdims=True)
        back((P - self.one_hot[y]) / np.float32(len(y)))
        self.model.finish_update(self.optimizer)

    def train(self, X: np.ndarray, y: np.ndarray, batch: int) -> None:
        for start in range(0, len(X), batch):
            self.step(X[start : start + batch], y[start : start + batch])

    def epoch(self, X: np.ndarray, y: np.ndarray, batch: int) -> None:
        order = self.rng.permutation(len(X))
        for start in range(0, len(X), batch):
            rows = order[start : start + batch]
            self.step(X[rows], y[rows])

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.model.predict(X)
