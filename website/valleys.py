"""Two valleys, and the paths that the optimizers really take on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from phitodeep.errors import DivergenceError
from phitodeep.layers import Dense
from phitodeep.layers.base import Layer, Param
from phitodeep.optimization.base import Optimizer
from phitodeep.optimization.optimizers import LBFGS, Muon
from website.optimizer_facts import FACTS

Array = Any


class Valley(NamedTuple):
    """A function of two numbers, with its gradient and its contours.

    window     the part that is drawn: x from, x to, y from, y to
    contour    the points of its level sets, one closed line per level
    """

    name: str
    formula: str
    f: Callable[[float, float], float]
    slope: Callable[[float, float], tuple[float, float]]
    start: tuple[float, float]
    bottom: tuple[float, float]
    window: tuple[float, float, float, float]
    steps: int
    contour: Callable[[float], Array]
    levels: tuple[float, ...]


def _ellipse(level: float) -> Array:
    t = np.linspace(0, 2 * np.pi, 97)
    return np.stack([np.sqrt(2 * level) * np.cos(t), np.sqrt(2 * level / 50) * np.sin(t)], axis=1)


def _banana(level: float) -> Array:
    x = 1 + np.sqrt(level) * np.cos(np.linspace(0, 2 * np.pi, 193))
    side = np.where(np.arange(193) < 97, 1, -1)
    height = np.sqrt(np.maximum(level - (1 - x) ** 2, 0) / 100)
    return np.stack([x, x**2 + side * height], axis=1)


VALLEYS = (
    Valley(
        "A narrow valley",
        "x\u00b2 / 2 + 25 y\u00b2",
        lambda x, y: x**2 / 2 + 25 * y**2,
        lambda x, y: (x, 50 * y),
        (-3.6, 0.7),
        (0.0, 0.0),
        (-4.2, 1.6, -1.0, 1.0),
        60,
        _ellipse,
        (0.05, 0.4, 1.5, 4.0, 8.0, 14.0, 22.0),
    ),
    Valley(
        "Rosenbrock's valley",
        "(1 \u2212 x)\u00b2 + 100 (y \u2212 x\u00b2)\u00b2",
        lambda x, y: (1 - x) ** 2 + 100 * (y - x**2) ** 2,
        lambda x, y: (-2 * (1 - x) - 400 * x * (y - x**2), 200 * (y - x**2)),
        (-1.2, 1.0),
        (1.0, 1.0),
        (-1.7, 1.7, -0.6, 1.9),
        400,
        _banana,
        (0.1, 1.0, 4.0, 15.0, 50.0, 150.0, 400.0),
    ),
)


class Point(Layer):
    """Numbers that an optimizer moves: a vector, or the diagonal of a matrix of 2 x 2."""

    W = Param(decay=True)

    def create(self, shape: Any) -> Any:
        self.W = np.zeros(shape)
        return shape


def layers_at(start: tuple[float, float], matrix: bool) -> tuple[list[Layer], Array]:
    """Layers whose only trainable parameter is the point, and the parameter itself."""
    if matrix:  # Muon orthogonalises hidden matrices, so another layer follows
        hidden, last = Dense(2, 2, bias=False), Dense(2, 1, bias=False)
        for layer in (hidden, last):
            layer.build((2,), dtype="float64", seed=0)
        hidden.W = np.diag(start)
        last.trainable = False
        return [hidden, last], hidden.params["W"]
    point = Point()
    point.build((2,), dtype="float64")
    point.W = np.array(start)
    return [point], point.params["W"]


def walk(optimizer: Optimizer, valley: Valley, steps: int | None = None) -> Array:
    """Run an optimizer on a valley; return the points of its path, the start included."""
    layers, W = layers_at(valley.start, isinstance(optimizer, Muon))
    diagonal = (np.arange(2), np.arange(2)) if W.ndim == 2 else np.arange(2)
    path = [tuple(valley.start)]

    def gradient() -> float:
        x, y = map(float, layers[0].params["W"][diagonal])
        if isinstance(optimizer, LBFGS):  # one step is a search of many points
            path.append((x, y))
        G = np.zeros_like(W)
        G[diagonal] = valley.slope(x, y)
        layers[0].grad_array("W")[...] = G
        return float(valley.f(x, y))

    try:
        with np.errstate(over="ignore", invalid="ignore"):
            if isinstance(optimizer, LBFGS):
                optimizer.run(layers, gradient)
                return np.array(path[1:])
            for _ in range(valley.steps if steps is None else steps):
                gradient()
                optimizer.step(layers)
                path.append(tuple(map(float, layers[0].params["W"][diagonal])))
                if not np.all(np.abs(path[-1]) < 1e6):
                    break
    except DivergenceError:
        pass
    return np.array(path)


@cache
def paths(index: int) -> dict[str, list[tuple[float, Array]]]:
    """By optimizer, its path on a valley for each of its rates."""
    valley = VALLEYS[index]
    found: dict[str, list[tuple[float, Array]]] = {}
    for facts in FACTS:
        made = []
        for rate in facts.rates[index]:
            options = {"max_iter": valley.steps} if facts.cls is LBFGS else {}
            made.append((rate, walk(facts.cls(rate, **options), valley)))
        found[facts.cls.__name__] = made
    return found


def best(index: int, name: str) -> int:
    """Which rate of an optimizer serves it best: the mean of log f along its path is lowest."""
    valley, found = VALLEYS[index], paths(index)[name]
    if len(found) == 1:
        return 0
    floor = 1e-4 * valley.f(*valley.start)  # below it, a path has arrived
    heights = [
        np.mean([np.log(valley.f(*point) + floor) for point in path])
        if len(path) > valley.steps
        else np.inf
        for _, path in found
    ]
    return int(np.argmin(heights))
