"""All optimizers, found by name. The rules are in `rules.py`, `Optimizer.step` is in `base.py`."""

from __future__ import annotations

from phitodeep.optimization.base import Common, Optimizer
from phitodeep.optimization.lbfgs import LBFGS
from phitodeep.optimization.muon import Muon
from phitodeep.optimization.rules import SGD, Adadelta, Adagrad, Adam, AdamW, Lion, Nadam, RMSProp

RULES = (SGD, Adam, AdamW, Nadam, RMSProp, Adagrad, Adadelta, Lion, Muon, LBFGS)
OPTIMIZERS: dict[str, type[Optimizer]] = {rule.__name__.lower(): rule for rule in RULES}

__all__ = [
    "LBFGS", "OPTIMIZERS", "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Common", "Lion", "Muon",
    "Nadam", "Optimizer", "RMSProp",
]  # fmt: skip
