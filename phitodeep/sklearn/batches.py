"""Sparse matrices as batches: only the rows of one batch are dense at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.sparse import issparse

from phitodeep.sequential import Sequential
from phitodeep.types import Array

SMALLEST, LARGEST, STEPS = 4, 256, 24  # batches by default: their sizes, and how many per epoch


def automatic_size(n: int) -> int:
    """Return a power of two near n / STEPS, from SMALLEST to LARGEST samples per batch."""
    return int(np.clip(2 ** round(np.log2(n / STEPS)), SMALLEST, LARGEST))


class SparseBatches:
    """A function that yields batches (X, y) or (X, y, w), for `Sequential.train`.

    X, y, w    (n, features) in CSR format, (n, ...), and (n,) or None
    size       samples per batch
    rng        shuffles the samples in each epoch; None: they stay in order
    """

    def __init__(
        self, X: Any, y: Array, w: Array | None, size: int, rng: np.random.Generator | None = None
    ) -> None:
        self.X, self.others = X, [y] if w is None else [y, w]
        self.size, self.rng = size, rng

    def __call__(self) -> Iterator[tuple[Array, ...]]:
        n = self.X.shape[0]
        order = np.arange(n) if self.rng is None else self.rng.permutation(n)
        for start in range(0, n, self.size):
            rows = order[start : start + self.size]
            yield self.X[rows].toarray(), *(a[rows] for a in self.others)

    def __len__(self) -> int:
        return -(-self.X.shape[0] // self.size)


def as_batches(X: Any, y: Array, w: Array | None) -> SparseBatches | list[tuple[Array, ...]]:
    """Return test data for `Sequential.train`: one batch if X is dense, several if it is sparse."""
    if issparse(X):
        return SparseBatches(X, y, w, LARGEST)
    return [(X, y) if w is None else (X, y, w)]


def outputs(model: Sequential, X: Any, threads: int | str) -> Array:
    """Return the model's outputs for X (n, features), dense or sparse."""
    if not issparse(X):
        return model.predict(X, threads=threads)
    size = model.samples_at_once()
    parts = (X[start : start + size].toarray() for start in range(0, X.shape[0], size))
    return np.concatenate([model.predict(part, threads=threads) for part in parts])
