"""A small convolutional network that reaches 99.2 % on all of MNIST within 6 epochs.

python examples/mnist_cnn.py --data FOLDER      # FOLDER holds the four IDX files
python examples/mnist_cnn.py                    # downloads MNIST: needs phitodeep[data]
"""

import argparse

from phitodeep.data import load_mnist
from phitodeep.loss import SoftmaxCrossEntropy
from phitodeep.model import Sequential, SequentialBuilder
from phitodeep.optimization.optimizers import Adam
from phitodeep.optimization.schedules import CosineDecay


def build(steps: int, epochs: int) -> Sequential:
    return (
        SequentialBuilder(28, 28, seed=0)
        .reshape(28, 28, 1)
        .conv2d(32, 3, padding="same")
        .relu()
        .max_pool2d(2)
        .conv2d(64, 3, padding="same")
        .relu()
        .max_pool2d(2)
        .dropout(0.25)
        .flatten()
        .dense(128)
        .relu()
        .dropout(0.5)
        .dense(10)
        .loss(SoftmaxCrossEntropy())
        .optimizer(Adam(CosineDecay(0.002, steps)))
        .metrics("accuracy")
        .batch(64)
        .epochs(epochs)
        .build()
    )


def main(data: str | None = None, epochs: int = 6, small: bool = False) -> float:
    X, y, X_test, y_test = load_mnist("small") if small else load_mnist("full", folder=data)
    model = build(epochs * -(-len(X) // 64), epochs)
    model.summary()
    model.train(X, y, X_test, y_test)
    accuracy = model.evaluate(X_test, y_test)["accuracy"]
    print(f"test accuracy {accuracy:.4f}")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder with the four IDX files of MNIST")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument(
        "--small", action="store_true", help="use the digits that come with phitodeep"
    )
    main(**vars(parser.parse_args()))
