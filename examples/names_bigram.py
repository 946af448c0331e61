"""Learn which letter follows which in 32,033 names, by counting and by gradient descent.

    python examples/names_bigram.py [--steps 500] [--write 10]

A newline begins and ends each name, which gives 27 characters and 228,146 pairs. The mean of
-log P(next | this) over the pairs is 2.4546 for the counts plus one. For the plain counts it is
2.4540, the minimum for any bigram model. The network is one table of 27 x 27 scores. It sees each
distinct pair once, with its count as the weight, and reaches the same loss, because the softmax of
the log counts is the relative frequencies. After Karpathy's makemore, part 1.
"""

import argparse

import numpy as np

from phitodeep.data import CharTokenizer, load_text
from phitodeep.loss import SoftmaxCrossEntropy
from phitodeep.model import SequentialBuilder
from phitodeep.optimization.optimizers import Adam
from phitodeep.optimization.schedules import CosineDecay


def main(steps: int = 500, write: int = 10) -> tuple[float, float]:
    text = "\n" + load_text("names") + "\n"
    tokenizer = CharTokenizer(text)
    tokens, V = tokenizer.encode(text), tokenizer.vocab_size
    counts = np.bincount(V * tokens[:-1] + tokens[1:], minlength=V * V).reshape(V, V)

    P = (counts + 1) / (counts + 1).sum(axis=1, keepdims=True)
    counted = float(-(counts * np.log(P)).sum() / counts.sum())
    print(f"counting {counts.sum():,} pairs, plus one: loss {counted:.4f}")

    X, y = np.nonzero(counts)  # the pairs that occur
    X, y, weight = X[:, None], y[:, None], counts[X, y]  # samples of one step each
    model = (
        SequentialBuilder(1, seed=0)
        .embedding(V, V)
        .loss(SoftmaxCrossEntropy())
        .optimizer(Adam())
        .alpha(CosineDecay(0.3, steps))
        .epochs(steps)  # all pairs form one batch, so an epoch is one step
        .build()
    )
    model.summary()
    model.train(X, y, sample_weight=weight, verbose=0)
    learnt = model.evaluate(X, y, sample_weight=weight)["loss"]
    print(f"{steps} steps on a table of {V} x {V} scores: loss {learnt:.4f}")

    rows = model.generate(np.zeros((write, 1), int), 30, seed=0, stop=0)  # token 0 is the newline
    print("\ngenerated:", *(tokenizer.decode(row).split("\n")[1] for row in rows))
    return counted, learnt


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--write", type=int, default=10, help="how many names to generate")
    main(**vars(parser.parse_args()))
