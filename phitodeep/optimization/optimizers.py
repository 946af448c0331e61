"""All optimizers, found by name. The rules are in `rules.py`, `Optimizer.step` is in `base.py`."""

from __future__ import annotations

from phitodeep.optimization.base import *
from phitodeep.optimization.lbfgs import *
from phitodeep.optimization.muon import *
from phitodeep.optimization.rules import *

OPTIMIZERS: dict[str, type[Optimizer]] = {
    name.lower(): value
    for name, value in sorted(vars().items())
    if isinstance(value, type) and issubclass(value, Optimizer) and value is not Optimizer
}
# Type checkers follow the stars.
globals()["__all__"] = ["OPTIMIZERS", *(n for n, v in vars().items() if isinstance(v, type))]
