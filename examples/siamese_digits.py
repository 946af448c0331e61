"""A siamese network learns which digits are alike: one tower, at two places.

python examples/siamese_digits.py

The loss is the contrastive loss of Hadsell et al. 2006, eq. 4, written by hand: pairs of the same
digit are pulled together, others are pushed apart up to a margin. Afterwards a digit is recognized
by the nearest mean of ten examples of each kind.
"""

import argparse

import numpy as np

from phitodeep.core.types import Array
from phitodeep.data import load_mnist
from phitodeep.layers import Chain, Dense, Flatten, ReLU
from phitodeep.loss import Loss
from phitodeep.model import SequentialBuilder
from phitodeep.optimization.optimizers import Adam

MARGIN = 1.0


class Contrastive(Loss):
    """L = mean of t d^2 + (1 - t) max(0, margin - d)^2, for the distance d = |a - b| of a pair.

    Shapes: P (N, D) holds a - b; y is (N, 1), 1 for a pair that is alike and 0 for another.
    """

    independent_samples = True

    def targets(self, y: Array, shape: tuple[int, ...], name: str = "y") -> Array:
        return np.asarray(y, np.float32).reshape(-1, 1)

    def positions(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0], 1)

    def value(self, P: Array, T: Array, w: Array | None, total: float | None) -> float:
        d = np.sqrt((P**2).sum(axis=1, keepdims=True) + 1e-12)
        each = T * d**2 + (1 - T) * np.maximum(0, MARGIN - d) ** 2
        return float(each.sum() / (len(P) if total is None else total))

    def gradient(self, P: Array, T: Array, w: Array | None, total: float | None) -> Array:
        d = np.sqrt((P**2).sum(axis=1, keepdims=True) + 1e-12)
        slope = 2 * T - 2 * (1 - T) * np.maximum(0, MARGIN - d) / d
        return (slope * P / (len(P) if total is None else total)).astype(P.dtype)


def pairs(X: Array, y: Array, n: int, seed: int) -> tuple[dict[str, Array], Array]:
    """Return n pairs of digits, half of them alike, and which are alike."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, len(X), n)
    second = rng.integers(0, len(X), n)
    by_digit = [np.flatnonzero(y == k) for k in range(10)]
    for i in range(0, n, 2):
        second[i] = rng.choice(by_digit[y[first[i]]])
    return {"a": X[first], "b": X[second]}, (y[first] == y[second]).astype(float)


def main(epochs: int = 10, n: int = 20000) -> float:
    X, y, X_test, y_test = load_mnist()
    tower = Chain(Flatten(), Dense(128), ReLU(), Dense(16))
    model = (
        SequentialBuilder(a=X.shape[1:], b=X.shape[1:], seed=0)
        .at("a")
        .add(tower)
        .name("left")
        .at("b")
        .shared(tower)
        .subtract("left")
        .loss(Contrastive())
        .optimizer(Adam(0.002))
        .batch(64)
        .build()
    )
    model.train(*pairs(X, y, n, seed=0), epochs=epochs)
    tower = model.layers[0]
    codes = tower.forward(X_test).copy()
    centres = np.stack([tower.forward(X[y == k][:10]).mean(axis=0) for k in range(10)])
    distances = ((codes[:, None] - centres) ** 2).sum(axis=-1)
    accuracy = float((distances.argmin(axis=1) == y_test).mean())
    print(f"recognized by the mean of ten examples of each digit: {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
