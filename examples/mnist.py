"""Train a 784-128-64-10 network on the digits that come with phitodeep: `make demo`.

python examples/mnist.py [--epochs 15] [--show 6]
"""

import argparse

import numpy as np
from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from phitodeep.data import load_mnist
from phitodeep.loss import CategoricalCrossEntropy
from phitodeep.model import Sequential, SequentialBuilder
from phitodeep.optimization.optimizers import Adam


def build(epochs: int) -> Sequential:
    return (
        SequentialBuilder(28, 28, seed=0)
        .flatten()
        .dense(128)
        .relu()
        .dense(64)
        .relu()
        .dense(10)
        .softmax()
        .optimizer(Adam(0.001))
        .loss(CategoricalCrossEntropy())
        .metrics("accuracy")
        .batch(64)
        .epochs(epochs)
        .build()
    )


def drawn(image: np.ndarray) -> Text:
    """The middle of a (28, 28) image in [0, 1] as 12 lines of 24 shades, two rows per line."""
    middle = image[2:26, 2:26].reshape(12, 2, 24).mean(axis=1)
    shades = np.array(list(" ░▒▓█"))[np.minimum(5 * middle, 4).astype(int)]
    return Text("\n".join("".join(line) for line in shades))


def show_mistakes(model: Sequential, X: np.ndarray, y: np.ndarray, count: int) -> None:
    """Draw the wrong predictions in which the model is most confident."""
    P = model.predict(X)
    predicted, confidence = P.argmax(axis=1), P.max(axis=1)
    wrong = np.flatnonzero(predicted != y)
    worst = wrong[np.argsort(-confidence[wrong])][:count]
    titles = [f"{y[i]}, read as {predicted[i]} ({confidence[i]:.1%})" for i in worst]
    panels = [
        Panel(drawn(X[i]), title=t, width=26, height=14) for i, t in zip(worst, titles, strict=True)
    ]
    console = Console()
    console.print(f"{len(wrong)} of {len(y)} test digits are misread. The most confident mistakes:")
    console.print(Columns(panels))


def main(epochs: int = 15, show: int = 6) -> float:
    X_train, y_train, X_test, y_test = load_mnist()
    model = build(epochs)
    model.summary()
    model.train(X_train, y_train, X_test, y_test)
    show_mistakes(model, X_test, y_test, show)
    accuracy = model.evaluate(X_test, y_test)["accuracy"]
    print(f"test accuracy {accuracy:.4f}")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--show", type=int, default=6, help="how many mistakes to draw")
    main(**vars(parser.parse_args()))
