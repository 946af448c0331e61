"""Train a small transformer on names, then generate 20 new ones.

    python examples/names_transformer.py [--epochs 12]

Like makemore's transformer, it has 4 layers, 4 heads and width 64. The context of 16 holds the
newline that begins a name and up to 15 letters. Targets after the end of a name are -1, which the
loss ignores. The optimizer is AdamW with clipped gradients; the learning rate rises to 2e-3 in 200
steps and falls to 0 along a cosine. The validation loss is the mean over all letters and final
newlines of the names in the second-to-last tenth; makemore reports about 1.92.
"""

import argparse
import random

import numpy as np

from phitodeep.core.types import Array
from phitodeep.data import CharTokenizer, load_text
from phitodeep.loss import SoftmaxCrossEntropy
from phitodeep.model import Sequential
from phitodeep.model.architectures import gpt
from phitodeep.optimization.optimizers import AdamW
from phitodeep.optimization.schedules import CosineDecay, WarmUp

CONTEXT, BATCH, IGNORED = 16, 64, -1


def padded(names: list[str], tokenizer: CharTokenizer) -> tuple[Array, Array]:
    """X (N, CONTEXT): a newline and a name's letters; y: its letters and a newline."""
    X = np.zeros((len(names), CONTEXT), int)
    y = np.full((len(names), CONTEXT), IGNORED)
    for i, name in enumerate(names):
        tokens = tokenizer.encode(f"\n{name}\n")
        X[i, : len(tokens) - 1] = tokens[:-1]
        y[i, : len(tokens) - 1] = tokens[1:]
    return X, y


def build(V: int, steps: int) -> Sequential:
    warm = min(200, steps // 4)
    return (
        gpt(V, CONTEXT, layers=4, heads=4, dim=64)
        .loss(SoftmaxCrossEntropy(ignore_index=IGNORED))
        .optimizer(AdamW(beta2=0.99, weight_decay=0.1, clip_norm=1.0))
        .alpha(WarmUp(CosineDecay(2e-3, max(1, steps - warm)), warm))
        .batch(BATCH)
        .seed(0)
        .build()
    )


def main(epochs: int = 12, names: int | None = None, write: int = 20) -> float:
    text = load_text("names")
    tokenizer = CharTokenizer(text)
    shuffled = text.split("\n")
    random.Random(42).shuffle(shuffled)
    shuffled = shuffled[:names]
    cuts = int(0.8 * len(shuffled)), int(0.9 * len(shuffled))
    X, y = padded(shuffled[: cuts[0]], tokenizer)
    X_val, y_val = padded(shuffled[cuts[0] : cuts[1]], tokenizer)

    model = build(tokenizer.vocab_size, epochs * -(-len(X) // BATCH))
    model.summary()
    model.train(X, y, X_val, y_val, epochs=epochs)
    loss = model.evaluate(X_val, y_val)["loss"]

    known, new, seed = set(shuffled), [], 0
    while len(new) < write:  # a name ends when the model generates a newline
        rows = model.generate(np.zeros((100, 1), int), CONTEXT, seed=seed, stop=0)
        written = [tokenizer.decode(row).split("\n")[1] for row in rows]
        new += [name for name in written if name and name not in known]
        seed += 1
    print(*new[:write])
    print(f"validation loss {loss:.4f}")
    return loss


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    main(**vars(parser.parse_args()))
