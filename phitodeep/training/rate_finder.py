"""The learning-rate range test: train with rates that grow from tiny to too large."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from phitodeep.core.checks import check_count, check_number
from phitodeep.core.table import Shown, facts
from phitodeep.core.types import PathLike
from phitodeep.errors import ArgumentError, PhitodeepWarning
from phitodeep.optimization.schedules import ExponentialDecay
from phitodeep.training.callback import LambdaCallback, StopTraining
from phitodeep.training.objective import Trainable

SMOOTH = 0.9  # the weight of earlier losses in the running mean


@dataclass(frozen=True, repr=False)
class RateRange(Shown):
    """The smoothed loss at each tested rate, and a suggested rate."""

    rates: list[float]
    losses: list[float]
    suggestion: float

    def __str__(self) -> str:
        low, high = self.rates[0], self.rates[-1]
        best = int(np.argmin(self.losses))
        return facts(
            {
                "suggested rate": f"{self.suggestion:.3g}",
                "tested": f"{len(self.rates)} rates from {low:.3g} to {high:.3g}",
                "lowest loss": f"{self.losses[best]:.4g} at {self.rates[best]:.3g}",
            }
        )

    def plot(self, path: PathLike | None = None, *, ax: Any = None) -> Any:
        """Plot loss against rate; return the figure, or `ax` if given, saved to `path` if given."""
        from phitodeep.plots.curves import rates

        return rates(self, path, ax=ax, who="RateRange.plot")


def find_alpha(
    model: Trainable, X: Any, y: Any, *, batch_size: int, low: float, high: float, steps: int
) -> RateRange:
    """Run a rate-range test on a copy of `model`: see `Sequential.find_alpha`."""
    low, high = check_number(low, "low", above=0), check_number(high, "high", above=0)
    if high <= low:
        raise ArgumentError(f"find_alpha needs low < high, got {low} and {high}.")
    steps, trial = check_count(steps, "steps", minimum=10), model.copy()
    trial.callbacks, trial.metrics = [], []
    trial.optimizer.alpha = rate = ExponentialDecay(low, steps - 1, high / low)
    first = trial.optimizer.t
    trial.optimizer.alpha = lambda step: rate(step - first)
    rates: list[float] = []
    losses: list[float] = []
    mean = 0.0

    def record(_: Any, step: int, loss: float) -> None:
        nonlocal mean
        mean = SMOOTH * mean + (1 - SMOOTH) * loss
        rates.append(rate(step - first - 1))
        losses.append(mean / (1 - SMOOTH ** (len(losses) + 1)))  # corrects the bias toward 0
        if len(losses) == steps or losses[-1] - min(losses) > 4 * abs(losses[0]):
            raise StopTraining

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PhitodeepWarning)  # divergence is expected
        record_each = LambdaCallback(on_batch_end=record)
        record_each.every_rank = True
        trial.train(X, y, epochs=steps, batch_size=batch_size, callbacks=[record_each], verbose=0)
    if len(losses) < 3:
        raise ArgumentError("the loss diverged immediately: call find_alpha with a smaller low.")
    lowest = rates[int(np.argmin(losses))]
    return RateRange(rates, losses, min(rate for rate in rates if rate >= lowest / 10))
