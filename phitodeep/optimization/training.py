"""The old import path of `phitodeep.training`."""

from typing import Any

from phitodeep.training.history import History
from phitodeep.training.objective import Objective, Trainable

__all__ = ["History", "Objective", "fit"]


def fit(model: Trainable, X: Any, y: Any = None, *args: Any, **options: Any) -> History:
    """Train `model`: see `Sequential.train`."""
    return model.train(X, y, *args, **options)
