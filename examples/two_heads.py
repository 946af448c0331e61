"""Two inputs and two outputs: a digit and a question about it; the answer, and the digit itself.

python examples/two_heads.py

The question is one of ten tokens, "is it a k?". The network answers yes or no, and names the digit.
"""

import argparse

import numpy as np

from phitodeep.data import load_mnist
from phitodeep.model import Network, SequentialBuilder
from phitodeep.optimization.optimizers import Adam


def questions(y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a question for each digit, half of them with the answer yes, and the answers."""
    rng = np.random.default_rng(seed)
    asked = np.where(rng.random(len(y)) < 0.5, y, rng.integers(0, 10, len(y)))
    return asked[:, None], (asked == y).astype(float)[:, None]


def network() -> Network:
    return (
        SequentialBuilder(image=(28, 28), question=(1,), seed=0)
        .at("image")
        .flatten()
        .dense(128)
        .relu()
        .name("seen")
        .dense(10)
        .output("digit", loss="softmax_cross_entropy", metrics=["accuracy"])
        .at("question")
        .embedding(10, 128)
        .flatten()
        .multiply("seen")
        .dense(32)
        .relu()
        .dense(1)
        .output("answer", loss="binary_cross_entropy_with_logits", metrics=["accuracy"])
        .optimizer(Adam(0.002))
        .batch(64)
        .build()
    )


def main(epochs: int = 8) -> tuple[float, float]:
    X, y, X_test, y_test = load_mnist()
    model = network()
    X, X_test = (images.reshape(-1, 28, 28) for images in (X, X_test))
    (asked, answers), (asked_test, answers_test) = questions(y, 0), questions(y_test, 1)
    model.train({"image": X, "question": asked}, {"digit": y, "answer": answers}, epochs=epochs)
    found = model.evaluate(
        {"image": X_test, "question": asked_test}, {"digit": y_test, "answer": answers_test}
    )
    digit, answer = found["digit_accuracy"], found["answer_accuracy"]
    print(f"digits named {digit:.3f}, answers {answer:.3f}")
    return digit, answer


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
