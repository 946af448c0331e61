"""The facts about each optimizer in `facts/optimizers.toml`, and how a rule runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from phitodeep.optimization import optimizers, rules
from phitodeep.optimization.base import Optimizer
from phitodeep.optimization.muon import orthogonal
from website.facts import read


class Line(NamedTuple):
    """One line of a rule: `symbol` becomes the value of `code`; words replace its formula."""

    symbol: str
    code: str
    words: str = ""


class Rule(NamedTuple):
    lines: tuple[Line, ...]
    title: str = ""
    options: Mapping[str, Any] = {}
    start: Mapping[str, float] = {}


class Facts(NamedTuple):
    """The keys of `optimizers.toml`, with the class itself and the functions of `code`."""

    cls: type[Optimizer]
    question: str
    answer: str
    when: str
    rules: tuple[Rule, ...]
    rates: tuple[Sequence[float], Sequence[float]]
    code: tuple[Any, ...]
    siblings: tuple[str, ...]
    names: Mapping[str, str] = {}


def run_rule(rule: Rule, facts: Facts, optimizer: Any, theta: Any, gradients: Any) -> Iterator[Any]:
    """Apply a rule to theta for each gradient in turn; yield theta after each step."""
    symbols: dict[str, Any] = {line.symbol: 0.0 for line in rule.lines} | dict(rule.start)
    symbols |= {symbol: getattr(optimizer, name) for name, symbol in facts.names.items()}
    symbols |= {"np": np, "orthogonal": orthogonal, "theta": theta, "alpha": optimizer.alpha}
    for t, g in enumerate(gradients, 1):
        symbols |= {"t": t, "g": g}
        for line in rule.lines:
            symbols[line.symbol] = eval(line.code, symbols)
        yield symbols["theta"]


def _rule(row: dict[str, Any]) -> Rule:
    return Rule(tuple(Line(*line) for line in row.pop("lines")), **row)


def _facts(name: str, row: dict[str, Any]) -> Facts:
    found = vars(rules) | {"orthogonal": orthogonal}
    code, listed = (row.pop(key) for key in ("code", "rules"))
    made = (tuple(found[each] for each in code), tuple(map(_rule, listed)))
    return Facts(getattr(optimizers, name), code=made[0], rules=made[1], **row)


FACTS = tuple(_facts(name, row) for name, row in read("optimizers").items())
