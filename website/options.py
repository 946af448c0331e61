"""What the arguments of layers, losses and optimizers mean, in one table for a class.

An argument means what the facts about a layer say, or what the docstring of its class says in a
column. Otherwise it means what `facts/arguments.toml` says about all classes.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from phitodeep.optimization.base import Optimizer
from website.facts import read
from website.layer_facts import FACTS

ARGUMENTS = read("arguments")
ENTRY = re.compile(r"^(\w+(?:, \w+)*) {2,}(\S.*(?:\n {2,}\S.*)*)", re.MULTILINE)

EVERY = "phitodeep.optimization.base.Optimizer"


def table(cls: type, link: str = f"[{EVERY}]") -> str:
    """The arguments of a class as a table in Markdown; `link` leads to those of all optimizers."""
    rows = [
        f"| `{name}` | {f'`{default}`' if default else 'required'} | {meaning(cls, name)} |"
        for name, default in arguments(cls)
    ]
    if issubclass(cls, Optimizer):
        rows.append(f"| and | | the [arguments of every optimizer]{link} |")
    if not rows:
        return ""
    return "\n".join(["| argument | default | meaning |", "|---|---|---|", *rows])


def arguments(cls: type) -> list[tuple[str, str]]:
    """The arguments of a class, and their defaults as text."""
    found, base = {}, cls
    while True:
        parameters = inspect.signature(base.__init__).parameters
        found |= {name: p.default for name, p in parameters.items() if name not in found}
        if "options" not in parameters:  # **options belong to the base class
            break
        base = base.__mro__[1]
    if issubclass(cls, Optimizer) and cls().weight_decay:
        found["weight_decay"] = cls().weight_decay
    left_out = ("self", "args", "kwargs", "common", "options")
    return [
        (name, "" if default is inspect.Parameter.empty else written(default))
        for name, default in found.items()
        if name not in left_out
    ]


def written(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def meaning(cls: type, name: str) -> str:
    """What an argument means; KeyError if nothing says it."""
    facts = FACTS.get(cls.__name__)
    own = facts.arguments.get(name) if facts else None
    return str(own or described(cls).get(name) or ARGUMENTS[name]).replace("|", "\\|")


def described(cls: type) -> dict[str, str]:
    """The entries of columns in the docstrings of a class and of its bases."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__[:-1]):
        for names, text in ENTRY.findall(inspect.cleandoc(each.__doc__ or "")):
            found |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return found
