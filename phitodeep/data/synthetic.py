"""Small labelled point sets that a model learns within a second.

Each call draws from its own `numpy.random.default_rng(seed)`: equal arguments give equal arrays.
Class sizes differ by at most one point, and the points are shuffled, so `X[:80], X[80:]` is a
fair split.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from phitodeep.core.checks import check_count, check_number
from phitodeep.core.types import Array

Points = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


def make_moons(n: int = 100, noise: float = 0.1, seed: int = 0) -> tuple[Points, Labels]:
    """Return `X, y`: two interleaving half circles of radius 1.

    Shapes: X (n, 2) float32; y (n,) int64 in {0, 1}. Class 0 is the upper half circle around
    (0, 0) with n // 2 points, class 1 the lower one around (1, 0.5); both are evenly spaced.
    `noise` is the standard deviation of the Gaussian added to each coordinate.

    Raises ArgumentError for n < 2, noise < 0 or seed < 0.
    Source: the geometry of scikit-learn's `sklearn.datasets.make_moons`.
    """
    n, noise = check_count(n, "n", minimum=2), check_number(noise, "noise", minimum=0)
    rng = _rng(seed)
    upper, lower = np.linspace(0, np.pi, n // 2), np.linspace(0, np.pi, n - n // 2)
    X = np.concatenate(
        [
            np.stack([np.cos(upper), np.sin(upper)], axis=1),
            np.stack([1 - np.cos(lower), 0.5 - np.sin(lower)], axis=1),
        ]
    )
    y = np.repeat([0, 1], [len(upper), len(lower)])
    return _shuffled(X + rng.normal(0, noise, X.shape), y, rng)


def make_spirals(
    n: int = 300, classes: int = 3, noise: float = 0.2, seed: int = 0
) -> tuple[Points, Labels]:
    """Return `X, y`: spiral arms that wind 4 radians around the origin, up to a radius of 1.

    Shapes: X (n, 2) float32; y (n,) int64 in 0 .. classes - 1. Arm k starts at the angle
    2 pi k / classes. `noise` is the standard deviation of the angle, in radians. The displacement
    shrinks with the radius, so the arms stay apart near the origin too.

    Raises ArgumentError for classes < 1, n < classes, noise < 0 or seed < 0.
    Source: Karpathy, "Minimal neural network case study", Stanford CS231n notes.
    """
    classes = check_count(classes, "classes")
    n, noise = check_count(n, "n", minimum=classes), check_number(noise, "noise", minimum=0)
    rng = _rng(seed)
    r, y = np.arange(1, n + 1) / n, np.arange(n) % classes  # never 0, where all arms would meet
    angle = 4 * r + 2 * np.pi * y / classes + rng.normal(0, noise, n)
    return _shuffled(np.stack([r * np.cos(angle), r * np.sin(angle)], axis=1), y, rng)


def make_blobs(
    n: int = 300, classes: int = 3, dims: int = 2, spread: float = 1.0, seed: int = 0
) -> tuple[Points, Labels]:
    """Return `X, y`: one round Gaussian cluster per class.

    Shapes: X (n, dims) float32; y (n,) int64 in 0 .. classes - 1. The centres are uniform in
    the cube from -10 to 10 and may lie close together. `spread` is the standard deviation of each
    coordinate around its centre; it does not move the centres.

    Raises ArgumentError for classes < 1, n < classes, dims < 1, spread < 0 or seed < 0.
    Source: the distribution of scikit-learn's `sklearn.datasets.make_blobs`.
    """
    classes, dims = check_count(classes, "classes"), check_count(dims, "dims")
    n, spread = check_count(n, "n", minimum=classes), check_number(spread, "spread", minimum=0)
    rng = _rng(seed)
    y = np.arange(n) % classes
    centres = rng.uniform(-10, 10, (classes, dims))
    return _shuffled(centres[y] + rng.normal(0, spread, (n, dims)), y, rng)


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(check_count(seed, "seed", minimum=0))


def _shuffled(X: Array, y: Array, rng: np.random.Generator) -> tuple[Points, Labels]:
    order = rng.permutation(len(y))
    return X[order].astype(np.float32), y[order].astype(np.int64)
