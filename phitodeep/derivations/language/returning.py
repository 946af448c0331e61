"""Steps that send a gradient back to where elements came from, as derived backward passes do.

Returned    each number of a gradient to the place from which an Arrange took its element
ToLargest   the gradient of a maximum to the largest element
"""

from __future__ import annotations

from typing import Any

import numpy as np

from phitodeep.derivations.language.step import Arrange, Max, Step, evaluate
from phitodeep.derivations.language.terms import Replaced


class Returned(Step):
    """The gradient of what an Arrange moved: each number returns to where its element came from."""

    def __init__(self, symbol: str, gradient: str, step: Arrange) -> None:
        words = f"{gradient}, each number back where {step.of} had it, added up"
        super().__init__(symbol, f"{gradient} of {step.code}", (gradient, *step.operands), words)
        self.step, self.gradient = step, gradient

    def value(self, symbols: Any) -> Any:
        A, g = np.asarray(symbols[self.step.of]), np.asarray(symbols[self.gradient])
        numbered = np.arange(1, A.size + 1).reshape(A.shape)  # 0 is nobody's
        places = evaluate(self.step.code, Replaced(symbols, self.step.of, numbered))
        found = np.bincount(places.ravel(), g.ravel(), A.size + 1)[1:]
        return found.reshape(A.shape).astype(g.dtype)


class ToLargest(Step):
    """The gradient of a maximum, at the place of the largest element; of equal ones, the first."""

    def __init__(self, symbol: str, gradient: str, step: Max) -> None:
        (of,) = step.operands
        super().__init__(symbol, f"{gradient} where {of} is largest, else 0", (gradient, of))
        self.step, self.gradient, self.of = step, gradient, of

    def value(self, symbols: Any) -> Any:
        A = symbols[self.of]
        rows = self.step.rows(symbols, A)
        places = self.step.rows(symbols, np.arange(A.size).reshape(A.shape))
        first = np.take_along_axis(places, rows.argmax(-1)[..., None], -1)
        found = np.zeros_like(A)
        found.flat[first.ravel()] = symbols[self.gradient].ravel()
        return found
