"""Settings with a check in their type: a field `rate: Fraction` is a number from 0 to below 1."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, ClassVar, get_args

from phitodeep.core.checks import check_count, check_flag, check_number

Check = Callable[[Any, str], Any]  # (value, its name in errors) -> value
Number = Annotated[float, check_number]
NonNegative = Annotated[float, partial(check_number, minimum=0)]
Positive = Annotated[float, partial(check_number, above=0)]
Fraction = Annotated[float, partial(check_number, minimum=0, below=1)]
Count = Annotated[int, check_count]
Flag = Annotated[bool, check_flag]


class Checked:
    """A class whose fields, if it is a dataclass, are checked once they are set."""

    _checks: ClassVar[dict[str, Check]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if own := checks_of(cls):
            cls._checks = {**cls._checks, **own}

    def __post_init__(self) -> None:
        vars(self).update(self._valid_settings())

    def _valid_settings(self) -> dict[str, Any]:
        """Return the fields as their checks return them."""
        name = type(self).__name__
        return {n: check(getattr(self, n), f"{name} {n}") for n, check in self._checks.items()}


def checks_of(cls: type) -> dict[str, Check]:
    """Return the checks in a class's annotations, such as `Fraction` or `Fraction | None`."""
    found: dict[str, Check] = {}
    names = getattr(sys.modules.get(cls.__module__), "__dict__", {})
    for name, hint in inspect.get_annotations(cls).items():
        with suppress(Exception):  # what only type checkers understand has no check
            hint = eval(hint, names) if isinstance(hint, str) else hint
        for part in (hint, *get_args(hint)):
            for check in getattr(part, "__metadata__", ()):
                found[name] = check if part is hint else partial(_unless_none, check)
    return found


def _unless_none(check: Check, value: Any, who: str) -> Any:
    return None if value is None else check(value, who)
