"""Predict the next letter of a name from the three before it: makemore's 12,297-parameter MLP.

    python examples/names_mlp.py [--epochs 35]

The model has an embedding of size 10 for each of the three letters, a dense layer of 200 units with
BatchNorm and tanh, and 27 scores. The split of the names, the batch size of 32 and the learning
rate follow Karpathy's makemore, part 4, "becoming a backprop ninja". Its hand-written gradients
reach a validation loss of 2.1099 in 200,000 steps, at a rate of 0.1 and, in the second half, 0.01.
Here, 35 epochs are 199,780 steps.
"""

import argparse
import random

import numpy as np

from phitodeep.core.types import Array
from phitodeep.data import CharTokenizer, load_text, windows
from phitodeep.loss import SoftmaxCrossEntropy
from phitodeep.model import Sequential, SequentialBuilder
from phitodeep.optimization.optimizers import SGD
from phitodeep.optimization.schedules import StepDecay

CONTEXT, BATCH = 3, 32


def contexts(names: list[str], tokenizer: CharTokenizer) -> tuple[Array, Array]:
    """X (N, CONTEXT): the letters before each letter or newline; y (N,): that letter or newline."""
    start = "\n" * CONTEXT
    rows = [np.array(windows(tokenizer.encode(f"{start}{name}\n"), CONTEXT)) for name in names]
    X, y = np.concatenate(rows, axis=1)
    return X, y[:, -1]


def build(V: int, steps: int) -> Sequential:
    return (
        SequentialBuilder(CONTEXT, seed=0)
        .embedding(V, 10)
        .flatten()
        .dense(200)
        .batch_norm(momentum=0.01)  # the mean of a batch of 32 is noisy
        .tanh()
        .dense(V)
        .loss(SoftmaxCrossEntropy())
        .optimizer(SGD())
        .alpha(StepDecay(0.1, every=max(1, steps // 2)))
        .batch(BATCH)
        .build()
    )


def main(epochs: int = 35, names: int | None = None) -> float:
    text = load_text("names")
    tokenizer = CharTokenizer(text)
    shuffled = text.split("\n")
    random.Random(42).shuffle(shuffled)
    shuffled = shuffled[:names]
    cuts = int(0.8 * len(shuffled)), int(0.9 * len(shuffled))
    X, y = contexts(shuffled[: cuts[0]], tokenizer)
    X_val, y_val = contexts(shuffled[cuts[0] : cuts[1]], tokenizer)

    model = build(tokenizer.vocab_size, epochs * -(-len(X) // BATCH))
    model.summary()
    model.train(X, y, X_val, y_val, epochs=epochs)
    loss = model.evaluate(X_val, y_val)["loss"]
    rows = model.generate(np.zeros((10, CONTEXT), int), 30, seed=0, stop=0)  # 0 is the newline
    print("generated:", *(tokenizer.decode(row[CONTEXT:]).split("\n")[0] for row in rows))
    print(f"validation loss {loss:.4f}")
    return loss


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=35)
    main(**vars(parser.parse_args()))
