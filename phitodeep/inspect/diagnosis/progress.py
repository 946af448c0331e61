"""Symptoms that show only over many steps: what `Diagnose` keeps, and what is measured in it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from phitodeep.inspect.diagnosis.findings import Measure, NotChecked

Measures = Iterator[Measure]

WINDOW = 100  # gradient norms whose median is taken
ENOUGH = 20  # steps to compare with
EPOCHS = 18  # test losses that show a period
PATIENCE = 3  # epochs without a lower test loss


@dataclass
class Course:
    """What the callback `Diagnose` has seen of a training so far, as plain values.

    steps, clipped    optimizer steps, and those whose gradient was longer than clip_norm
    norms             the lengths of the last gradients
    spike, at         the largest length / the median of those before it, and its step
    ratios            the largest |dW step| / |W| of each weight matrix
    train, test       the losses of each epoch that was tested
    clips             whether the optimizer clips the gradient by its length
    """

    steps: int = 0
    clipped: int = 0
    norms: list[float] = field(default_factory=list)
    spike: float = 0.0
    at: int = 0
    ratios: dict[str, float] = field(default_factory=dict)
    train: list[float] = field(default_factory=list)
    test: list[float] = field(default_factory=list)
    clips: bool = False

    def add_norm(self, step: int, norm: float, clip_norm: float | None) -> None:
        self.steps += 1
        self.clips = clip_norm is not None
        self.clipped += clip_norm is not None and norm > clip_norm
        if len(self.norms) >= ENOUGH:
            factor = norm / max(statistics.median(self.norms), 1e-30)
            if factor > self.spike:
                self.spike, self.at = factor, step
        self.norms = [*self.norms[1 - WINDOW :], norm]

    def add_ratio(self, path: str, ratio: float) -> None:
        self.ratios[path] = max(self.ratios.get(path, 0.0), ratio)


def spikes(course: Course) -> Measures:
    if course.steps <= ENOUGH:
        raise NotChecked("there were too few steps")
    text = f"at step {course.at}, the gradient is {course.spike:.1f} times as long as the median"
    yield Measure("", course.spike, f"{text} of the {WINDOW} steps before")


def clipped_too_often(course: Course) -> Measures:
    if not course.clips or course.steps <= ENOUGH:
        raise NotChecked("the optimizer has no clip_norm, or took too few steps")
    share = course.clipped / course.steps
    yield Measure("", share, f"{course.clipped} of {course.steps} steps were clipped, {share:.0%}")


def largest_update(course: Course) -> Measures:
    if not course.ratios:
        raise NotChecked("no step was measured")
    for path, ratio in course.ratios.items():
        yield Measure(path, ratio, f"the largest step changes W by {ratio:.2g} of |W|")


def validation_periodic(course: Course) -> Measures:
    """The autocorrelation of the changes that one period and two periods have in common."""
    if len(course.test) < EPOCHS:
        raise NotChecked(f"there are fewer than {EPOCHS} epochs with test data")
    _check_positive(course)
    changes = np.diff(np.log(course.test))
    changes -= np.median(changes)
    bound = 3 * float(np.quantile(np.abs(changes), 0.75))  # a few large ones must not decide
    changes = np.clip(changes, -bound, bound)
    changes -= changes.mean()
    n, power = len(changes), float(changes @ changes) or 1.0
    r = [float(changes[k:] @ changes[: n - k]) / power * n / (n - k) for k in range(n // 2 + 1)]
    common = {k: min(r[k], r[2 * k], r[k] - min(r[1:k])) for k in range(2, n // 4 + 1)}
    period = max(common, key=lambda k: common[k])
    text = f"the test loss repeats itself every {period} epochs: its autocorrelation is "
    yield Measure("", common[period], f"{text}{common[period]:.2f}")


def _check_positive(course: Course) -> None:
    if min(course.test) <= 0:
        raise NotChecked("the test loss is not always positive")


def validation_rising(course: Course) -> Measures:
    test, train = course.test, course.train
    if len(test) <= PATIENCE:
        raise NotChecked("there are too few epochs with test data")
    _check_positive(course)
    best = int(np.argmin(test))
    since, last = len(test) - 1 - best, min(test[-PATIENCE:])
    rise = last / test[best] - 1 if train[-1] < train[best] else 0.0
    text = f"the test loss was lowest {since} epochs before the end, {test[best]:.4g}; since then "
    yield Measure("", rise, f"{text}the training loss fell, and the test loss is {rise:.0%} higher")
