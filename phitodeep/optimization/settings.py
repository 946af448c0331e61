"""Settings of rules and schedules: each is one line, with its type, its check and its default.

The line `rho: Fraction = 0.9` in a rule's class gives it the keyword argument `rho`, with this
default. Its check, here that it is a number from 0 to below 1, runs whenever it is set.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import field
from functools import partial
from inspect import Parameter, Signature
from typing import Annotated, Any, NamedTuple, dataclass_transform, get_args

from phitodeep.core.checks import check_count, check_flag, check_number, keywords
from phitodeep.core.types import Schedule

Check = Callable[[Any, str], Any]  # (value, its name in errors) -> value
NonNegative = Annotated[float, partial(check_number, minimum=0)]
Positive = Annotated[float, partial(check_number, above=0)]
Fraction = Annotated[float, partial(check_number, minimum=0, below=1)]
Count = Annotated[int, check_count]
Flag = Annotated[bool, check_flag]


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class WithSettings:
    """A class that makes its constructor from its annotated attributes and those of its bases.

    The first argument is `alpha`; the others are passed by name. `__post_init__` of a class runs
    when its settings are set. A class that defines `__init__` keeps it.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        found = inspect.get_annotations(cls).items()
        own = [name for name, a in found if name in vars(cls) and "ClassVar" not in str(a)]
        if (own or "__post_init__" in vars(cls)) and "__init__" not in vars(cls):
            type.__setattr__(cls, "__init__", _constructor(cls, {n: vars(cls)[n] for n in own}))
            for name, check in checks_of(cls).items():
                type.__setattr__(cls, name, Setting(name, check))

    @keywords({"lr": "write alpha=", "learning_rate": "write alpha="})
    def __init__(self, alpha: Any) -> None:
        self.alpha = alpha


class Setting(NamedTuple):
    """A descriptor that checks what is set; without `__get__`, reading is as fast as ever."""

    name: str
    check: Check

    def __set__(self, owner: Any, value: Any) -> None:
        vars(owner)[self.name] = self.check(value, f"{type(owner).__name__} {self.name}")


def checks_of(cls: type) -> dict[str, Check]:
    """Return the checks in a class's annotations, such as `Fraction` or `Fraction | None`."""
    found: dict[str, Check] = {}
    names = vars(sys.modules[cls.__module__])
    for name, hint in inspect.get_annotations(cls).items():
        with suppress(NameError):  # of a type that only type checkers know
            hint = eval(hint, names) if isinstance(hint, str) else hint
        for part in (hint, *get_args(hint)):
            for check in getattr(part, "__metadata__", ()):
                found[name] = check if part is hint else partial(_unless_none, check)
    return found


def _unless_none(check: Check, value: Any, who: str) -> Any:
    return None if value is None else check(value, who)


def _constructor(cls: type, own: dict[str, Any]) -> Callable[..., None]:
    """Return the constructor: it sets the settings of the base classes first, then these."""
    base = next(vars(c)["__init__"] for c in cls.__mro__[1:] if "__init__" in vars(c))
    theirs = inspect.signature(base).parameters
    first: Any = own.pop("alpha", theirs["alpha"])
    first = getattr(first, "default", first)  # of a parameter or a field, or the number itself
    finish = vars(cls).get("__post_init__", lambda self: None)

    def __init__(self: Any, alpha: float | Schedule = first, **given: Any) -> None:
        values = {name: given.pop(name, default) for name, default in own.items()}
        base(self, alpha, **given)
        for name, value in values.items():
            setattr(self, name, value)
        finish(self)

    __init__.__qualname__ = f"{cls.__qualname__}.__init__"
    shown = list(inspect.signature(__init__).parameters.values())[:2]
    for name, default in own.items():
        hint = inspect.get_annotations(cls)[name]
        shown.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint))
    if base is not WithSettings.__init__:
        rest = "options" if "common" in theirs else "common"
        shown.append(Parameter(rest, Parameter.VAR_KEYWORD, annotation="Any"))
    vars(__init__)["__signature__"] = Signature(shown)
    return __init__
