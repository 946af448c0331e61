"""The learning-rate range test: train with rates that grow from tiny to too large."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from phitodeep.checks import check_count, check_number
from phitodeep.errors import ArgumentError, MissingExtraError, PhitodeepWarning
from phitodeep.optimization.schedules import ExponentialDecay
from phitodeep.training.callback import LambdaCallback, StopTraining
from phitodeep.training.objective import Trainable


@dataclass(frozen=True)
class RateRange:
    """The smoothed loss at each tested rate, and a suggested rate."""

    rates: list[float]
    losses: list[float]
    suggestion: float

    def plot(self, path: str | None = None) -> Any:
        """Plot loss against rate as a matplotlib figure; save it if `path` is given."""
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise MissingExtraError.of("matplotlib", "plot", "RateRange.plot") from None
        figure = Figure(figsize=(5, 3.5), layout="constrained")
        panel = figure.subplots()
        panel.plot(self.rates, self.losses)
        panel.axvline(self.suggestion, ls="--", color="gray", label=f"{self.suggestion:.2g}")
        panel.set(xlabel="alpha", ylabel="training loss", xscale="log")
        panel.legend()
        if path is not None:
            figure.savefig(path, dpi=120)
        return figure


def find_alpha(
    model: Trainable,
    X: Any,
    y: Any,
    *,
    batch_size: int,
    low: float = 1e-6,
    high: float = 1.0,
    steps: int = 100,
    smooth: float = 0.9,
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
        mean = smooth * mean + (1 - smooth) * loss
        rates.append(rate(step - first - 1))
        losses.append(mean / (1 - smooth ** (len(losses) + 1)))  # corrects the bias toward 0
        if len(losses) == steps or losses[-1] - min(losses) > 4 * abs(losses[0]):
            raise StopTraining

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PhitodeepWarning)  # divergence is expected
        record_each = LambdaCallback(on_batch_end=record)
        trial.train(X, y, epochs=steps, batch_size=batch_size, callbacks=[record_each], verbose=0)
    if len(losses) < 3:
        raise ArgumentError("the loss diverged immediately: call find_alpha with a smaller low.")
    lowest = rates[int(np.argmin(losses))]
    return RateRange(
        rates, losses, min(rate for rate in rates if rate >= min(lowest / 10, rates[-1]))
    )
