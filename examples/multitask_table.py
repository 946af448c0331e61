"""Three targets of one table, of which most are missing: a head that has none is not trained.

python examples/multitask_table.py

Each batch has targets for some of the three heads. A shared trunk learns from all of them, and is
better at a target with few rows than a network that sees only these.
"""

import argparse

import numpy as np

from phitodeep.model import Network, SequentialBuilder
from phitodeep.optimization.optimizers import Adam

Table = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]


def table(n: int, seed: int) -> Table:
    """Return n rows of eight numbers and a category, and three targets of hidden factors."""
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(99)
    numbers, port = rng.standard_normal((n, 8)), rng.integers(0, 4, (n, 1))
    shift = fixed.standard_normal((4, 2))[port[:, 0]]
    hidden = np.tanh(numbers @ fixed.standard_normal((8, 2)) + shift)
    price = hidden @ [[1.0], [-2.0]] + 0.1 * rng.standard_normal((n, 1))
    left = (hidden[:, :1] * hidden[:, 1:] > 0).astype(float)
    kind = (hidden[:, 0] > 0) + 2 * (hidden[:, 1] > 0)
    return {"numbers": numbers, "port": port}, {"price": price, "left": left, "kind": kind}


def network() -> Network:
    return (
        SequentialBuilder(numbers=(8,), port=(1,), seed=0)
        .at("port")
        .embedding(4, 16)
        .flatten()
        .name("harbour")
        .at("numbers")
        .dense(16)
        .add("harbour")
        .relu()
        .dense(16)
        .relu()
        .name("trunk")
        .dense(1)
        .output("price", loss="mse")
        .at("trunk")
        .dense(1)
        .output("left", loss="binary_cross_entropy_with_logits", metrics=["accuracy"])
        .at("trunk")
        .dense(4)
        .output("kind", loss="softmax_cross_entropy", metrics=["accuracy"])
        .optimizer(Adam(0.01))
        .build()
    )


def batches(known: dict[str, int], size: int = 50, seed: int = 0) -> list[Table]:
    """Return batches of 2,000 rows; each target is known in as many of the first batches."""
    X, y = table(2000, seed)
    found = []
    for i, start in enumerate(range(0, 2000, size)):
        rows = slice(start, start + size)
        targets = {name: t[rows] if i < known[name] else None for name, t in y.items()}
        found.append(({name: A[rows] for name, A in X.items()}, targets))
    return [batch for batch in found if any(t is not None for t in batch[1].values())]


def main(epochs: int = 30) -> tuple[float, float]:
    """Return the accuracy of `kind`, known in 2 of 40 batches, alone and with the others."""
    X_test, y_test = table(1000, seed=1)
    accuracies = []
    for known in ({"price": 0, "left": 0, "kind": 2}, {"price": 40, "left": 30, "kind": 2}):
        model = network()
        steps = epochs * 40 // len(batches(known))  # as many steps for both
        model.train(batches(known), epochs=steps, verbose=0)
        accuracies.append(float(model.evaluate(X_test, y_test)["kind_accuracy"]))
    print("kind alone {:.3f}, with price and left {:.3f}".format(*accuracies))
    return accuracies[0], accuracies[1]


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
