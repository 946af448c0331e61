"""The old path of `phitodeep.training`."""

from typing import Any

from phitodeep.training.history import History
from phitodeep.training.objective import Objective, Trainable

__all__ = ["History", "Objective", "fit"]


def fit(
    model: Trainable,
    X: Any,
    y: Any,
    *tests: Any,
    epochs: int,
    batch_size: int | None,
    **options: Any,
) -> History:
    """Train `model` with these options, without its own callbacks and metrics."""
    own = model.callbacks, model.batch_size
    model.callbacks, model.batch_size = [], batch_size
    try:
        return model.train(X, y, *tests, epochs=epochs, **{"metrics": (), **options})
    finally:
        model.callbacks, model.batch_size = own
