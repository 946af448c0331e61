"""An autoencoder with two heads: one rebuilds a digit from 16 numbers, one names it.

python examples/two_head_autoencoder.py
"""

import argparse

import numpy as np

from phitodeep.data import load_mnist
from phitodeep.model import Network, SequentialBuilder
from phitodeep.optimization.optimizers import Adam


def network() -> Network:
    return (
        SequentialBuilder(image=(784,), seed=0)
        .dense(128)
        .relu()
        .dense(16)
        .tanh()
        .name("code")
        .dense(128)
        .relu()
        .dense(784)
        .output("rebuilt", loss="mse")
        .at("code")
        .dense(10)
        .output("digit", loss="softmax_cross_entropy", metrics=["accuracy"], weight=0.05)
        .optimizer(Adam(0.002))
        .batch(64)
        .build()
    )


def main(epochs: int = 8) -> tuple[float, float]:
    X, y, X_test, y_test = load_mnist()
    X, X_test = (images.reshape(-1, 784) for images in (X, X_test))
    model = network()
    model.train(X, {"rebuilt": X, "digit": y}, epochs=epochs)
    found = model.evaluate(X_test, {"rebuilt": X_test, "digit": y_test})
    left = found["rebuilt_loss"] / float(np.var(X_test, axis=0).mean())
    print(f"{left:.0%} of the variance is left, and {found['digit_accuracy']:.3f} are named right")
    return left, found["digit_accuracy"]


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
