"""All optimizers, found by name. The rules are in `rules.py`, `Optimizer.step` is in `base.py`."""

from __future__ import annotations

from typing import Any

from phitodeep.core.checks import choose, class_hint
from phitodeep.errors import ArgumentTypeError
from phitodeep.optimization.base import *
from phitodeep.optimization.lbfgs import *
from phitodeep.optimization.muon import *
from phitodeep.optimization.rules import *

OPTIMIZERS: dict[str, type[Optimizer]] = {
    name.lower(): value
    for name, value in sorted(vars().items())
    if isinstance(value, type) and issubclass(value, Optimizer) and value is not Optimizer
}


def as_optimizer(optimizer: Any) -> Optimizer:
    """Return an optimizer, which may be given by its name."""
    made = choose(optimizer, OPTIMIZERS, "optimizer")() if isinstance(optimizer, str) else optimizer
    if not isinstance(made, Optimizer):
        raise ArgumentTypeError(
            f"optimizer must be an Optimizer or its name, got {made!r}.{class_hint(made)}"
        )
    return made


# Type checkers follow the stars.
_KINDS: list[type] = [Optimizer, *OPTIMIZERS.values()]
globals()["__all__"] = ["Common", "OPTIMIZERS", *(kind.__name__ for kind in _KINDS)]
