"""Train a 784-128-64-10 network on the digits that come with phitodeep, and draw its mistakes.

`make demo`, `phitodeep demo` and examples/mnist.py run `train_digits`.
"""

from __future__ import annotations

import shutil

import numpy as np

from phitodeep.core.types import Array
from phitodeep.data import load_mnist
from phitodeep.loss import CategoricalCrossEntropy
from phitodeep.model import Sequential, SequentialBuilder
from phitodeep.optimization.optimizers import Adam


def train_digits(epochs: int = 15, show: int = 6) -> Sequential:
    """Train the network, draw `show` mistakes, print its test accuracy, and return it."""
    X_train, y_train, X_test, y_test = load_mnist()
    model = build(epochs)
    model.summary()
    model.train(X_train, y_train, X_test, y_test)
    show_mistakes(model, X_test, y_test, show)
    print(f"test accuracy {model.evaluate(X_test, y_test)['accuracy']:.4f}")
    return model


def build(epochs: int) -> Sequential:
    """Return the untrained network."""
    builder = SequentialBuilder(28, 28, seed=0).flatten().dense(128).relu().dense(64).relu()
    builder = builder.dense(10).softmax().loss(CategoricalCrossEntropy()).metrics("accuracy")
    return builder.optimizer(Adam(0.001)).batch(64).epochs(epochs).build()


def show_mistakes(model: Sequential, X: Array, y: Array, count: int) -> None:
    """Draw the wrong predictions in which the model is most confident."""
    P = model.predict(X)
    predicted, confidence = P.argmax(axis=1), P.max(axis=1)
    wrong = np.flatnonzero(predicted != y)
    worst = wrong[np.argsort(-confidence[wrong])][:count]
    print(f"{len(wrong)} of {len(y)} test digits are misread.")
    if len(worst) == 0:
        return
    print("The most confident mistakes:")
    titles = [f"{y[i]}, read as {predicted[i]} ({confidence[i]:.1%})" for i in worst]
    pictures = [[f"{title:24}", *drawn(X[i])] for i, title in zip(worst, titles, strict=True)]
    columns = max(1, shutil.get_terminal_size().columns // 27)
    for row in (pictures[k : k + columns] for k in range(0, len(pictures), columns)):
        print("", *("   ".join(lines).rstrip() for lines in zip(*row, strict=True)), sep="\n")


def drawn(image: Array) -> list[str]:
    """Return the middle of an image (28, 28) in [0, 1] as 12 lines of 24 shades."""
    middle = image[2:26, 2:26].reshape(12, 2, 24).mean(axis=1)
    shades = np.array(list(" ░▒▓█"))[np.minimum(5 * middle, 4).astype(int)]
    return ["".join(line) for line in shades]
