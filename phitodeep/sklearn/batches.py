"""Sparse matrices as batches: only the rows of one batch are dense at a time."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import issparse

from phitodeep.core.types import Array
from phitodeep.model.sequential import Sequential
from phitodeep.training.inputs import validate
from phitodeep.training.sources import Arrays, Source, Table

SMALLEST, LARGEST, STEPS = 4, 256, 24  # batches by default: their sizes, and how many per epoch


def automatic_size(n: int) -> int:
    """Return a power of two near n / STEPS, from SMALLEST to LARGEST samples per batch."""
    return int(np.clip(2 ** round(np.log2(n / STEPS)), SMALLEST, LARGEST))


def samples(model: Sequential, X: Any, y: Array, w: Array | None) -> Source:
    """Return data for `Sequential.train`, whose order does not depend on whether X is sparse.

    X, y, w    (n, features), dense or in CSR format, (n, ...), and (n,) or None
    """
    as_data = partial(validate, model, model.loss)
    if not issparse(X):
        return Arrays(as_data(X, y, w))

    def read(rows: Array) -> dict[str, Any]:
        weights = None if w is None else w[rows]
        return {"X": X[rows].toarray(), "y": y[rows], "sample_weight": weights}

    return Table(read, np.arange(X.shape[0]), as_data)


def outputs(model: Sequential, X: Any, threads: int | str) -> Array:
    """Return the model's outputs for X (n, features), dense or sparse."""
    if not issparse(X):
        return model.predict(X, threads=threads)
    size = model.samples_at_once()
    parts = (X[start : start + size].toarray() for start in range(0, X.shape[0], size))
    return np.concatenate([model.predict(part, threads=threads) for part in parts])
