"""Settings of rules and schedules: each is one line, with its type, its check and its default.

The line `rho: Fraction = 0.9` in a rule's class gives it the keyword argument `rho`, with this
default. Its check, here that it is a number from 0 to below 1, runs whenever it is set.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import Field, field
from inspect import Parameter, Signature
from typing import Any, NamedTuple, Self, dataclass_transform

from phitodeep.core.checks import keywords
from phitodeep.core.settings import Check, checks_of
from phitodeep.core.types import Schedule
from phitodeep.errors import ArgumentTypeError


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class WithSettings:
    """A class that makes its constructor from its annotated attributes and those of its bases.

    The first argument is `alpha`; the others are passed by name. `__post_init__` of a class runs
    when its settings are set. A class that defines `__init__` keeps it, and classes derived from it
    take the same arguments by position.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        hints = inspect.get_annotations(cls).items()
        names = [name for name, a in hints if name in vars(cls) and "ClassVar" not in str(a)]
        own = {name: vars(cls)[name] for name in names}
        if (own or "__post_init__" in vars(cls)) and "__init__" not in vars(cls):
            own = {n: v.default if isinstance(v, Field) else v for n, v in own.items()}
            type.__setattr__(cls, "__init__", _constructor(cls, own))
            checks = checks_of(cls)
            for name, default in own.items():
                inherited = getattr(getattr(super(cls, cls), name, None), "check", None)
                if check := checks.get(name, inherited):
                    type.__setattr__(cls, name, Setting(name, check, default))

    def __new__(cls, *_: Any, **__: Any) -> Self:
        made = super().__new__(cls)
        found = {name: getattr(cls, name, None) for name in dir(cls)}
        vars(made).update({n: s.default for n, s in found.items() if isinstance(s, Setting)})
        return made

    @keywords({"lr": "write alpha=", "learning_rate": "write alpha="})
    def __init__(self, alpha: float | Schedule) -> None:
        self.alpha = alpha


class Setting(NamedTuple):
    """A descriptor that checks what is set.

    It has no `__get__`, so that reading is as fast as ever: each object has the value, from the
    start the default.
    """

    name: str
    check: Check
    default: Any

    def __set__(self, owner: Any, value: Any) -> None:
        vars(owner)[self.name] = self.check(value, f"{type(owner).__name__} {self.name}")


def _constructor(cls: Any, own: dict[str, Any]) -> Callable[..., None]:
    """Return the constructor: it sets the settings of the base classes first, then these."""
    base = next(vars(c)["__init__"] for c in cls.__mro__[1:] if "__init__" in vars(c))
    theirs = inspect.signature(base).parameters
    placed = [n for n, p in theirs.items() if p.kind <= p.POSITIONAL_OR_KEYWORD][1:]
    starred = any(p.kind is p.VAR_POSITIONAL for p in theirs.values())
    finish = vars(cls).get("__post_init__", lambda self: None)

    def __init__(self: Any, *args: Any, **given: Any) -> None:
        if args[len(placed) :] and not starred:
            who, names = type(self).__name__, " and ".join(placed) or "nothing"
            raise ArgumentTypeError(
                f"{who} takes {names} by position: write the names of the rest."
            )
        given = {n: own[n] for n in placed[len(args) :] if n in own} | given
        values = {n: given.pop(n, default) for n, default in own.items() if n not in placed}
        super(cls, self).__init__(*args, **given)
        for name, value in values.items():
            setattr(self, name, value)
        finish(self)

    __init__.__qualname__ = f"{cls.__qualname__}.__init__"
    shown = [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)]
    shown += [theirs[n].replace(default=own.get(n, theirs[n].default)) for n in placed]
    for name in (n for n in own if n not in placed):
        hint = inspect.get_annotations(cls)[name]
        shown.append(Parameter(name, Parameter.KEYWORD_ONLY, default=own[name], annotation=hint))
    if base is not WithSettings.__init__:
        rest = "options" if "common" in theirs else "common"
        shown.append(Parameter(rest, Parameter.VAR_KEYWORD, annotation="Any"))
    vars(__init__)["__signature__"] = Signature(shown, __validate_parameters__=False)
    return __init__
