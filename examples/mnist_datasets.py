"""The quickstart on all of MNIST from the Hugging Face Hub: pip install "phitodeep[data]".

    python examples/mnist_datasets.py [--alpha 0.001]

With the learning rate of the original quickstart, 0.05, the test accuracy stays near 0.9; with
0.001, it reaches 0.97.
"""

import argparse
import sys

import numpy as np

from phitodeep.layers.initialization import InitType, Xavier
from phitodeep.loss import CategoricalCrossEntropy
from phitodeep.model import SequentialBuilder
from phitodeep.optimization.optimizers import Adam

try:
    from datasets import load_dataset
except ImportError:
    sys.exit('This example needs the datasets library: pip install "phitodeep[data]".')


def main(alpha: float = 0.001, epochs: int = 5) -> float:
    train_dataset = load_dataset("ylecun/mnist", split="train")
    test_dataset = load_dataset("ylecun/mnist", split="test")

    X_train = np.array(train_dataset["image"]).astype(np.float32) / 255.0
    y_train = np.array(train_dataset["label"])
    X_test = np.array(test_dataset["image"]).astype(np.float32) / 255.0
    y_test = np.array(test_dataset["label"])

    model = (
        SequentialBuilder()
        .flatten()
        .dense(784, 128)
        .relu()
        .dense(128, 64, Xavier(InitType.NORMAL))
        .relu()
        .dense(64, 10, Xavier(InitType.NORMAL))
        .softmax()
        .optimizer(Adam())
        .loss(CategoricalCrossEntropy())
        .metrics("accuracy")
        .alpha(alpha)
        .epochs(epochs)
        .batch(64)
        .build()
    )
    model.summary()
    model.train(X_train, y_train, X_test, y_test)
    accuracy = model.evaluate(X_test, y_test)["accuracy"]
    print(f"test accuracy {accuracy:.4f}")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alpha", type=float, default=0.001)
    main(**vars(parser.parse_args()))
