"""Constant arrays of zeros and ones that share their memory."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from phitodeep.core.types import Array


@functools.lru_cache(maxsize=256)
def ones(n: int, dtype: np.dtype[Any]) -> Array:
    """n ones in a shared, read-only array; a product with them is the fastest way to sum."""
    return _constant(1, n, dtype)


@functools.lru_cache(maxsize=256)
def zeros(n: int, dtype: np.dtype[Any]) -> Array:
    """n zeros in a shared, read-only array."""
    return _constant(0, n, dtype)


KEPT = 1 << 18  # length of the constant arrays that stay in memory


def _constant(value: int, n: int, dtype: np.dtype[Any]) -> Array:
    """n copies of the value: a slice of a shared array, or beyond KEPT, one element broadcast to n.

    Both are views, so constants of all lengths share the memory of one array. During a matrix
    product, NumPy makes a temporary copy of a broadcast array.
    """
    shared = _shared(value, dtype)
    return shared[:n] if n <= KEPT else np.broadcast_to(shared[0], n)


@functools.cache
def _shared(value: int, dtype: np.dtype[Any]) -> Array:
    """A read-only array of KEPT copies of the value."""
    array = np.full(KEPT, value, dtype)
    array.flags.writeable = False
    return array
