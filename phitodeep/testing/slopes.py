"""Numeric slopes by central differences: step sizes, rounding errors, and kinks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.checks import check_number
from phitodeep.core.types import Array, Shape
from phitodeep.errors import ArgumentTypeError

Arrays = dict[str, Array]
Curve = Callable[[float], Any]

STEPS = (1e-3, 1e-4, 1e-5, 1e-6)  # each is tried if the one before disagrees
ROUNDING = 32 * float(np.finfo(np.float64).eps)  # the rounding error allowed per output


def numeric_gradient(f: Callable[[Array], Any], X: Array, *, step: float = 1e-3) -> Array:
    """Compute the gradient of the scalar function f at X by central differences.

    For each element x of X, with h = step max(1, rms(X)) and D(h) = (f(x + h) - f(x - h)) / 2h,

        D(h) = f' + h^2 f''' / 6 + O(h^4)      so      (4 D(h) - D(2h)) / 3 = f' + O(h^4)

    X must be float64; it is modified while f is called, and restored. The result has X's shape.
    Source: Richardson 1911, "The approximate arithmetical solution by finite differences".
    """
    if not isinstance(X, np.ndarray) or X.dtype != np.float64:
        raise ArgumentTypeError(
            f"numeric_gradient needs a float64 array, got {getattr(X, 'dtype', type(X).__name__)}: "
            "float32 has too few digits for differences (X.astype(np.float64)?)."
        )
    h = check_number(step, "step", above=0) * length(X)
    G = np.empty_like(X)
    for at in np.ndindex(X.shape):
        G[at] = derivative(line(lambda: np.float64(f(X)), X, at), h)
    return G


def length(A: Array) -> float:
    """Return the size that step sizes are relative to: max(1, rms(A))."""
    return max(1.0, math.sqrt(np.mean(A * A))) if A.size else 1.0


def line(f: Callable[[], Any], A: Array, at: Any, v: Any = 1.0) -> Curve:
    """Return the function t -> f() with A[at] moved by t v."""
    kept = A[at].copy()

    def moved(t: float) -> Any:
        A[at] = kept + t * v
        try:
            return f()
        finally:
            A[at] = kept

    return moved


def derivative(curve: Curve, h: float) -> Any:
    """Return the derivative of curve(t) at t = 0, elementwise if it returns an array."""
    return (8 * (curve(h) - curve(-h)) - (curve(2 * h) - curve(-2 * h))) / (12 * h)


class Trial(NamedTuple):
    """A function of some arrays, the gradients claimed for it, and data for diagnoses."""

    run: Callable[[], Any]  # the output, or the loss, at the current values of `arrays`
    Y: Any  # the result of `run`
    dY: Any  # its upstream gradient; 1 for a loss
    arrays: Arrays
    claims: Arrays
    shapes: dict[str, Shape]  # "" for X and " of Y" for Y, whose sizes may be wrong divisors
    y: Any
    sample_weight: Any
    linear: bool = True  # whether the gradients double if dY does


class Probe(NamedTuple):
    """One slope, as claimed and as measured."""

    got: float
    expected: float
    scale: float  # an error of rtol times this is allowed
    verdict: str  # "right", "wrong" or "kink"

    def __str__(self) -> str:
        return f"expected {self.expected:.9g}, got {self.got:.9g}"

    @property
    def error(self) -> float:
        return abs(self.got - self.expected)

    @property
    def relative(self) -> float:
        return self.error / self.scale if self.error else 0.0


Probes = dict[int, Probe]  # by flat index


def probe(
    trial: Trial, curve: Curve, got: float, size: float, own: float, rtol: float, atol: float
) -> Probe:
    """Compare the claim `got` with the slope of sum(dY curve(t)) at t = 0, where curve(0) = Y.

    Outputs are subtracted before they are multiplied by dY, which cancels fewer digits. Steps are
    relative to the array's `size`. If the `own` size of the element is far smaller, such as a
    probability near 0, one more step is relative to that, provided that rounding allows it.
    """
    Y, dY = trial.Y, trial.dY
    rounding = ROUNDING * float(np.linalg.norm(dY * Y))  # of a difference; h divides it
    floor = atol + ROUNDING * float(np.linalg.norm(dY)) / STEPS[0]
    steps = [step * size for step in STEPS]
    if 0 < own * STEPS[0] < steps[-1] and rounding < 1e-5 * abs(got) * own * STEPS[0]:
        steps.append(own * STEPS[0])
    slopes = []
    for h in steps:
        slopes.append(slope := float(np.sum(dY * derivative(curve, h))))
        scale = max(abs(got), abs(slope), (floor + rounding / h) / rtol)
        if abs(got - slope) <= rtol * scale:
            return Probe(got, slope, scale, "right")
    sides = dY * (curve(h) - Y) / h, dY * (Y - curve(-h)) / h
    low, high = float(np.minimum(*sides).sum()), float(np.maximum(*sides).sum())
    slack = (high - low) / 10 + rounding / h  # the curve bends within h
    kink = low - slack <= got <= high + slack
    return Probe(got, float(np.median(slopes)), scale, "kink" if kink else "wrong")


def probes_of(
    trial: Trial, name: str, rng: np.random.Generator, max_probes: int | None, **tolerances: float
) -> tuple[Probes, list[Probe]]:
    """Probe single elements; if there are too many, some of them and one random direction."""
    A, G = trial.arrays[name].reshape(-1), trial.claims[name].reshape(-1)
    size, indices, along = length(A), np.arange(A.size), []

    def probed(at: Any, v: Any, got: Any, own: float) -> Probe:
        return probe(trial, line(trial.run, A, at, v), float(got), size, own, **tolerances)

    if max_probes is not None and A.size > max_probes:
        v = rng.standard_normal(A.size) / math.sqrt(A.size)
        along = [probed(slice(None), v, G @ v, 0.0)]
        indices = np.sort(rng.choice(indices, max_probes, replace=False))
    return {int(i): probed(i, 1.0, G[i], abs(A[i])) for i in indices}, along
