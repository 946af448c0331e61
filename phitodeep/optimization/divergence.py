"""Find gradients and losses that are not finite, and create the errors for them."""

from __future__ import annotations

import math
import sys

import numpy as np

from phitodeep.core.types import Array
from phitodeep.errors import DivergenceError
from phitodeep.optimization.packing import Packing


def length(g: Array) -> float:
    """Return the length of g, which is infinite if and only if an entry of g is not finite."""
    square = np.vdot(g, g)  # unlike dot, it does not warn if squares overflow
    if square < math.inf:
        return math.sqrt(square)
    largest = float(abs(g).max())
    if not math.isfinite(largest):
        return math.inf
    return min(largest * float(np.linalg.norm(g.astype(float) / largest)), sys.float_info.max)


def bad_gradient(packing: Packing, g: Array, step: int, remedy: str) -> DivergenceError:
    """Return the error that names the first bad gradient in the order of the backward pass."""
    for slot in reversed(packing.slots):
        part = g[packing.pieces[slot[0]]]
        bad = np.flatnonzero(~np.isfinite(part))
        if len(bad):
            break
    full, layer, name = slot
    at = ", ".join(map(str, np.unravel_index(bad[0], layer.params[name].shape)))
    return DivergenceError(
        f"the gradient of {full} is {part[bad[0]]} at [{at}], in {layer!r}, at step {step}: the "
        f"step was not taken. {remedy} A square root, logarithm or division at 0 in that layer, or "
        "after it, can also cause this.",
        full.removesuffix(name).removesuffix("."),
        name,
    )


def bad_loss(loss: float, step: int, remedy: str) -> DivergenceError:
    """Return the error for a loss that is not finite."""
    return DivergenceError(f"the loss is {loss} at step {step}: the step was not taken. {remedy}")
