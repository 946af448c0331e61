"""Learning rate schedules: functions from the optimizer's step (0, 1, ...) to a rate.

Any function that maps a step to a float is a schedule. The classes here are the common ones, as
values that can be compared, copied and pickled. `alpha` is the base rate. Durations are counted in
steps: the number of batches per epoch times the number of epochs.
"""

from __future__ import annotations

import math
import sys
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Protocol, runtime_checkable

from phitodeep.core.checks import check_number
from phitodeep.core.config import Configurable
from phitodeep.core.settings import Checked, Count, Fraction, NonNegative, Positive
from phitodeep.core.state import StateDict, Stateful, check_entries, check_types
from phitodeep.core.types import Schedule, describe
from phitodeep.errors import ArgumentError, ArgumentTypeError

MOST_LOG = math.log(sys.float_info.max)


@runtime_checkable
class Observer(Protocol):
    """A schedule that depends on the loss of each epoch."""

    def observe(self, loss: float) -> None: ...


def check_rate(alpha: float | Schedule, who: str = "the learning rate alpha") -> float | Schedule:
    """Return a schedule unchanged, or a number after checking that it is finite and >= 0."""
    if isinstance(alpha, type):
        raise ArgumentTypeError(
            f"{who} is the class {alpha.__name__}: create an instance, with its settings."
        )
    if callable(alpha) and getattr(alpha, "config_kind", "schedule") == "schedule":
        return alpha
    return check_number(alpha, who, minimum=0)


Rate = Annotated[float | Schedule, lambda value, _: check_rate(value)]  # of an optimizer


def as_schedule(alpha: float | Schedule) -> Schedule:
    """Return a schedule unchanged, or a number as a constant schedule."""
    return alpha if callable(alpha) else Constant(alpha)


def stateful(alpha: float | Schedule) -> Stateful | None:
    """Return the schedule if it has state to save, else None."""
    if isinstance(alpha, Stateful):
        return alpha
    if isinstance(alpha, Observer):
        raise ArgumentTypeError(
            f"{alpha!r} observes losses, so its state must be saved with the training: give it "
            "state_dict() and load_state_dict(state)."
        )
    return None


def _cosine(start: float, end: float, fraction: float) -> float:
    """A half cosine that goes from `start` to `end` as `fraction` goes from 0 to 1."""
    return float(end + (start - end) * (1 + math.cos(math.pi * fraction)) / 2)


def _power(base: float, exponent: float) -> float:
    """Return base^exponent for base > 0, which may be infinite; a rate must not be."""
    logarithm = math.log(base) * exponent
    return math.inf if logarithm > MOST_LOG else float(base) ** exponent


class _Schedule(Checked, Configurable):
    """Keeps every field as it was given, after a check."""

    config_kind = "schedule"

    def __post_init__(self) -> None:
        self._valid_settings()


@dataclass(frozen=True)
class Constant(_Schedule):
    """The rate `alpha` at every step."""

    alpha: NonNegative

    def __call__(self, step: int) -> float:
        return float(self.alpha)


@dataclass(frozen=True)
class StepDecay(_Schedule):
    """alpha factor^k, where k is the number of completed periods of `every` steps."""

    alpha: NonNegative
    every: Count
    factor: Positive = 0.1

    def __call__(self, step: int) -> float:
        return float(self.alpha * _power(self.factor, step // self.every))


@dataclass(frozen=True)
class ExponentialDecay(_Schedule):
    """alpha factor^(step / steps): a smooth decay by `factor` over every `steps` steps."""

    alpha: NonNegative
    steps: Count
    factor: Positive = 0.1

    def __call__(self, step: int) -> float:
        return float(self.alpha * _power(self.factor, step / self.steps))


@dataclass(frozen=True)
class InverseTimeDecay(_Schedule):
    """alpha / (1 + rate step). Source: Robbins and Monro 1951, "A stochastic approximation"."""

    alpha: NonNegative
    rate: NonNegative = 0.01

    def __call__(self, step: int) -> float:
        return float(self.alpha / (1 + self.rate * step))


@dataclass(frozen=True)
class PolynomialDecay(_Schedule):
    """alpha_min + (alpha - alpha_min) (1 - step / steps)^power; after `steps` steps, alpha_min."""

    alpha: NonNegative
    steps: Count
    alpha_min: NonNegative = 0.0
    power: Positive = 1.0

    def __call__(self, step: int) -> float:
        left = 1 - min(step, self.steps) / self.steps
        return float(self.alpha_min + (self.alpha - self.alpha_min) * left**self.power)


@dataclass(frozen=True)
class CosineDecay(_Schedule):
    """A decay along half a cosine from alpha to alpha_min, where it stays after `steps` steps.

    Source: Loshchilov and Hutter 2017, arXiv:1608.03983, eq. 5.
    """

    alpha: NonNegative
    steps: Count
    alpha_min: NonNegative = 0.0

    def __call__(self, step: int) -> float:
        return _cosine(self.alpha, self.alpha_min, min(step, self.steps) / self.steps)


@dataclass(frozen=True)
class WarmUp(_Schedule):
    """A linear warm-up, (step + 1) / steps times the first rate of `after`; then `after`.

    `after` is a number or a schedule, which starts at step 0 when the warm-up ends.
    Source: Goyal et al. 2017, arXiv:1706.02677, sec. 2.2.
    """

    after: Annotated[float | Schedule, check_rate]
    steps: Count

    def __call__(self, step: int) -> float:
        schedule = as_schedule(self.after)
        if step < self.steps:
            return schedule(0) * (step + 1) / self.steps
        return schedule(step - self.steps)

    def observe(self, loss: float) -> None:
        """Pass an epoch's loss on to `after`, if it observes losses."""
        if isinstance(self.after, Observer):
            self.after.observe(loss)

    def state_dict(self) -> StateDict:
        """The state of `after`, if it has any."""
        after = stateful(self.after)
        return {} if after is None else {"after": after.state_dict()}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore the state of `after` from what `state_dict` returned."""
        after = stateful(self.after)
        state = check_entries(state, ["after"] if after else [], "the state of WarmUp")
        if after is not None:
            after.load_state_dict(state["after"])


@dataclass(frozen=True)
class OneCycle(_Schedule):
    """A rise from alpha / divide to alpha, then a fall to alpha / divide_last.

    The rate rises for the fraction `up` of `steps`, and falls for the rest. Each part is half a
    cosine.
    Source: Smith and Topin 2018, "Super-convergence", arXiv:1708.07120.
    """

    alpha: NonNegative
    steps: Count
    up: Fraction = 0.3
    divide: Positive = 25.0
    divide_last: Positive = 1e4

    def __call__(self, step: int) -> float:
        top = self.up * self.steps
        if step < top:
            return _cosine(self.alpha / self.divide, self.alpha, step / top)
        fraction = min(step - top, self.steps - top) / (self.steps - top)
        return _cosine(self.alpha, self.alpha / self.divide_last, fraction)


@dataclass(eq=False)
class ReduceOnPlateau(_Schedule):
    """Multiply the rate by `factor` when the loss has not fallen for `patience` epochs.

    The loss of an epoch is its test loss, or its training loss if there is no test data. A fall of
    `min_delta` or less does not count. The rate never goes below `alpha_min`.
    """

    alpha: NonNegative
    _: KW_ONLY
    factor: Positive = 0.1
    patience: Count = 10
    min_delta: NonNegative = 0.0
    alpha_min: NonNegative = 0.0

    def __post_init__(self) -> None:
        vars(self).update(self._valid_settings())
        if self.factor >= 1:
            raise ArgumentError(f"ReduceOnPlateau factor must be < 1, got {self.factor}.")
        if self.alpha_min > self.alpha:
            raise ArgumentError(
                f"ReduceOnPlateau alpha_min {self.alpha_min} is above alpha {self.alpha}."
            )
        self.rate, self.best, self.waited = float(self.alpha), math.inf, 0

    __repr__ = describe

    def __call__(self, step: int) -> float:
        return self.rate

    def observe(self, loss: float) -> None:
        """Lower the rate if this epoch's loss completes `patience` epochs without a fall."""
        if loss < self.best - self.min_delta:
            self.best, self.waited = loss, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            self.rate, self.waited = max(self.alpha_min, self.rate * self.factor), 0

    def state_dict(self) -> StateDict:
        """The rate, the best loss (None before the first one), and the epochs waited since."""
        best = None if self.best == math.inf else float(self.best)
        return {"rate": self.rate, "best": best, "waited": self.waited}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from what `state_dict` returned."""
        who = "the state of ReduceOnPlateau"
        state = check_types(state, {"rate": float, "best": float | None, "waited": int}, who)
        best = math.inf if state["best"] is None else float(state["best"])
        self.rate, self.best = check_number(state["rate"], f"{who}: rate", minimum=0), best
        self.waited = state["waited"]
