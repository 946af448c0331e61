"""The names of the losses, such as "huber", which models and builders accept as strings."""

from __future__ import annotations

from phitodeep import loss as losses
from phitodeep.core.checks import snake_case
from phitodeep.loss.base import Elementwise, Loss

LOSSES: dict[str, type[Loss]] = {
    snake_case(name): kind
    for name, kind in vars(losses).items()
    if isinstance(kind, type) and issubclass(kind, Loss) and kind not in (Loss, Elementwise)
}
LOSSES |= {"mse": LOSSES["mean_squared_error"], "mae": LOSSES["mean_absolute_error"]}
