"""Compiled twin of the kernel in `layers/embedding.py`."""

from __future__ import annotations

from phitodeep.core.types import Array
from phitodeep.kernels import twin
from phitodeep.kernels.compiled.jit import jit


@twin
@jit
def sum_by_token(tokens: Array, rows: Array, dW: Array) -> None:
    """dW[v] <- the sum of the rows whose token is v; dW is (V, D), rows (n, D), tokens (n,)."""
    dW[:] = 0
    for i in range(tokens.size):
        for d in range(dW.shape[1]):
            dW[tokens[i], d] += rows[i, d]
