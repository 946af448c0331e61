"""What the lanes show of a layer: its formulas, its parameters, and how far a step moved them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from phitodeep.derivations.language.mathml import MATHML


def formulas(layer: Any) -> dict[str, str]:
    """The formulas of a layer's backward pass and of Y, as MathML."""
    derivation = layer.steps()
    if derivation is None:
        return {}
    return {step.symbol: step.written(MATHML, None) for step in derivation.every()}


def flat(A: Any) -> Any:
    """A parameter as rows and columns."""
    return A.reshape(1, -1) if A.ndim < 2 else A.reshape(-1, A.shape[-1])


def parameters(model: Any) -> dict[str, Any]:
    return {
        str(k): [A.copy() for A in layer.params.values()]
        for k, layer in enumerate(model.layers)
        if layer.params
    }


@np.errstate(all="ignore")
def ratios(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
    """|update| / |parameters| of each layer."""
    found = {}
    for path, arrays in before.items():
        pairs = list(zip(arrays, after[path], strict=True))
        moved = math.sqrt(sum(float(((b - a) ** 2).sum()) for a, b in pairs))
        size = math.sqrt(sum(float((a**2).sum()) for a in arrays))
        found[path] = moved / size if size else math.nan
    return found
