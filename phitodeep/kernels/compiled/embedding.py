"""Compiled twin of the kernel in `layers/embedding.py`."""

from __future__ import annotations

from phitodeep.kernels import twin
from phitodeep.kernels.compiled.jit import jit
from phitodeep.types import Array


@twin
@jit
def sum_by_token(tokens: Array, rows: Array, dW: Array) -> None:
    """dW[v] (V, D) <- the sum of those rows (n, D) whose token (n,) is v."""
    dW[:] = 0
    for i in range(tokens.size):
        for d in range(dW.shape[1]):
            dW[tokens[i], d] += rows[i, d]
