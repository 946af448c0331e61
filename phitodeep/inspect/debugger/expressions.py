"""What the user of the debugger writes: expressions of symbols, and elements to replace."""

from __future__ import annotations

from typing import Any

import numpy as np

from phitodeep.derivations.language.run import Scope
from phitodeep.derivations.language.step import evaluate
from phitodeep.errors import ArgumentError, ArgumentTypeError, UnknownNameError
from phitodeep.inspect.debugger.display import so_far

FAILURES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # of expressions


def checked_text(value: object, what: str) -> str:
    """Return a text that the user gives; refuse anything else."""
    if not isinstance(value, str):
        raise ArgumentTypeError(f"the debugger takes {what} as a text, got {value!r:.80}.")
    return value


class Named:
    """The symbols of a scope, and L for the loss."""

    def __init__(self, scope: Scope, loss: float | None) -> None:
        self.scope, self.loss = scope, loss

    def __getitem__(self, name: str) -> Any:
        return self.loss if name == "L" and self.loss is not None else self.scope[name]


def value_of(expression: str, scope: Scope, loss: float | None) -> Any:
    """Return the value of an expression of the symbols of a scope."""
    try:
        return evaluate(expression, Named(scope, loss))
    except NameError as error:
        raise UnknownNameError(f"{error}: {so_far(scope)}.") from None
    except SyntaxError as error:
        raise ArgumentError(
            f"p takes a Python expression, got {expression!r}: {error.msg}. A symbol with a path "
            "stands alone, as in p('1.Y')."
        ) from None


def replaced(old: Any, place: str, value: Any) -> Any:
    """Return the value of a symbol with the elements of a place such as "dY[0, 3]" replaced."""
    new = np.array(old, copy=True)
    key, bracket, rest = place.partition("[")
    try:
        if value is None or old is None:
            raise TypeError("None is not a number" if value is None else "it has no elements")
        cells = evaluate(f"np.s_[{rest}", {}) if bracket else ...
        new[cells] = value
        if new.dtype.kind != "f" and (new[cells] != value).any():
            raise ValueError(f"its elements are {new.dtype} numbers")
    except (*FAILURES, NameError, SyntaxError) as error:
        raise ArgumentError(
            f"{place!r} cannot be set to {value!r:.60} ({key.rpartition('.')[2]} has shape "
            f"{new.shape}): {error}."
        ) from None
    number = type(old) in (bool, int, float)  # it takes the dtype of what it meets
    return new.item() if number else new
