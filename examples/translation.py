"""An encoder and a decoder translate a toy language: cross-attention looks words up in the source.

python examples/translation.py

The other language says the words in the opposite order, and the last five of its twelve words
consist of two tokens. In training the decoder reads the true translation, one token late;
afterwards `generate` reads what it has written, and the memory of the source is computed once.
Source: Vaswani et al. 2017, "Attention is all you need", arXiv:1706.03762, fig. 1.
"""

import argparse

import numpy as np

from phitodeep.model import Network, SequentialBuilder
from phitodeep.optimization.optimizers import Adam

WORDS, LENGTH = 12, 5
START, END = 0, 1
SOURCE = 2 + WORDS  # tokens
TARGET = 2 + WORDS + 5
STEPS = 2 * LENGTH + 1


def translated(words: np.ndarray) -> list[int]:
    """Return the tokens of a sentence in the other language."""
    found: list[int] = []
    for word in words[::-1]:
        found += [2 + int(word)] + ([2 + WORDS + int(word) - 7] if word >= 7 else [])
    return found


def sentences(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return sentences (n, LENGTH) and translations (n, STEPS), which end with END."""
    words = np.random.default_rng(seed).integers(0, WORDS, (n, LENGTH))
    targets = np.full((n, STEPS), END)
    for row, sentence in zip(targets, words, strict=True):
        tokens = translated(sentence)
        row[: len(tokens)] = tokens
    return 2 + words, targets


def network(D: int = 32, heads: int = 4) -> Network:
    return (
        SequentialBuilder(source=(LENGTH,), target=(STEPS,), seed=0)
        .at("source")
        .embedding(SOURCE, D)
        .sinusoidal_encoding()
        .transformer_block(heads)
        .name("memory")
        .at("target")
        .embedding(TARGET, D)
        .sinusoidal_encoding()
        .name("x")
        .layer_norm()
        .multi_head_attention(heads, causal=True)
        .add("x")
        .name("x")
        .layer_norm()
        .cross_attention("memory", heads=heads)
        .add("x")
        .name("x")
        .layer_norm()
        .feed_forward(2 * D)
        .add("x")
        .dense(TARGET)
        .output("next", loss="softmax_cross_entropy")
        .optimizer(Adam(0.003))
        .batch(64)
        .build()
    )


def main(epochs: int = 12, n: int = 4000) -> float:
    source, targets = sentences(n, seed=0)
    late = np.concatenate([np.full((n, 1), START), targets[:, :-1]], axis=1)
    model = network()
    model.train({"source": source, "target": late}, targets, epochs=epochs)
    source, targets = sentences(500, seed=1)
    start = np.full((len(source), 1), START)
    found = model.generate(start, STEPS, given={"source": source}, temperature=0)[:, 1:]
    exact = float((found == targets).all(axis=1).mean())
    print(f"translated without a mistake: {exact:.3f}")
    return exact


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
