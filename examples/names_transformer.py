"""A small transformer on names, and 20 that it writes.

    python examples/names_transformer.py [--epochs 12]

4 layers, 4 heads, 64 wide, as makemore's own transformer, and a context of 16: the newline that
begins a name and its letters, 15 at most. Targets behind a name's end are -1, which the loss
leaves out. AdamW with clipped gradients, the rate up to 2e-3 within 200 steps and down to 0 by
cosine. The validation loss is over each letter and each end of the names in the split's second
tenth; makemore names about 1.92 for its own.
"""

import argparse
import random

import numpy as np

from phitodeep.data import CharTokenizer, load_text
from phitodeep.loss import SoftmaxCrossEntropy
from phitodeep.model import Sequential
from phitodeep.models import gpt
from phitodeep.optimization.optimizers import AdamW
from phitodeep.optimization.schedules import CosineDecay, WarmUp
from phitodeep.types import Array

CONTEXT, BATCH, IGNORED = 16, 64, -1


def padded(names: list[str], tokenizer: CharTokenizer) -> tuple[Array, Array]:
    """X (N, CONTEXT): the newline and a name's letters; y: its letters and the newline."""
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
    while len(new) < write:  # a name ends where the model writes the newline
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
