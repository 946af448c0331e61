"""The losses: L is a weighted mean, so every term's slope is multiplied by its weight / total."""

from __future__ import annotations

from typing import Any

import numpy as np

from phitodeep.steps.step import Derivation, Let, Step, Sum

# Every loss starts from P and T, and from w (the weights, 1 without any) and share (1 / total).


def mean_squared_error(loss: Any) -> Derivation:
    """Each element costs (p - t)^2."""
    return elementwise([Let("each", "(P - T) ** 2")], [Let("slope", "2 * (P - T)")])


def elementwise(each: list[Step], slope: list[Step]) -> Derivation:
    """The weighted mean of `each`, whose derivative with respect to P is `slope`."""
    return Derivation(
        [*each, *weighted_mean()],
        [*slope, Let("dP", "np.where(w > 0, slope * w * share, 0)")],
    )


def weighted_mean() -> list[Step]:
    """L = sum w each / total; terms of weight 0 do not count even if they are infinite."""
    return [
        Let("counted", "np.where(w > 0, each, 0)"),
        Sum("summed", "...,...->", "counted", "w"),
        Let("L", "summed * share"),
    ]


def givens(loss: Any, P: Any, T: Any, w: Any, total: float | None) -> dict[str, Any]:
    """The symbols that every loss starts from."""
    divisor = loss.divisor(T, w, P.shape) if total is None else total
    shape = loss.positions(P.shape)
    return {
        "P": P,
        "T": T if T.dtype.kind in "iu" else T.astype(P.dtype),
        "w": np.broadcast_to(np.asarray(1.0 if w is None else w, P.dtype), shape),
        "total": float(divisor),
        "share": 1 / divisor if divisor else 0.0,
    }
