"""NumPy alone: the matrix products of a step, and nothing else."""

from __future__ import annotations

import itertools

import numpy as np
from workloads import GPT, MLPS

VARIANTS = {"products": ("W1", "W4")}


class Side:
    """For each weight (a, b) and n rows: Y = X W, dW = X^T dY and dX = dY W^T."""

    def __init__(self, workload: str, variant: str) -> None:
        if workload in MLPS:
            self.rows, shapes = 1, list(itertools.pairwise(MLPS[workload]))
        else:
            D = GPT["dim"]
            block = [(D, 3 * D), (D, D), (D, 4 * D), (4 * D, D)]
            self.rows, shapes = GPT["context"], GPT["layers"] * block
        self.weights = [np.ones((a, b), np.float32) for a, b in shapes]
        self.arrays: dict[int, list[tuple[np.ndarray, ...]]] = {}  # by number of rows

    def loss(self, X: np.ndarray, y: np.ndarray) -> None:
        """There is none."""

    def train(self, X: np.ndarray, y: np.ndarray, batch: int) -> None:
        n = self.rows * batch
        if n not in self.arrays:
            shapes = [W.shape for W in self.weights]
            self.arrays[n] = [
                tuple(np.ones(s, np.float32) for s in ((n, a), (n, b), (a, b))) for a, b in shapes
            ]
        for _ in range(0, len(X), batch):
            for W, (A, dY, dW) in zip(self.weights, self.arrays[n], strict=True):
                np.matmul(A, W, out=dY)
                np.matmul(A.T, dY, out=dW)
                np.matmul(dY, W.T, out=A)
