"""A character GPT on tinyshakespeare, by nanoGPT's recipe for CPUs; then it writes.

    python examples/char_gpt.py [--steps 2000]

4 layers, 4 heads, 128 wide, context 64, batch 12; AdamW with the rate from 1e-3 to 1e-4 by cosine
after 100 warm-up steps, betas 0.9 and 0.99, decay 0.1, gradients clipped to length 1. The
validation loss is over the whole validation split, the last tenth of the text.
"""

import argparse

import numpy as np

from phitodeep.data import CharTokenizer, load_text, windows
from phitodeep.loss import SoftmaxCrossEntropy
from phitodeep.models import gpt
from phitodeep.optimization.optimizers import AdamW
from phitodeep.optimization.schedules import CosineDecay, WarmUp

CONTEXT, BATCH = 64, 12


def main(steps: int = 2000, write: int = 500) -> float:
    text = load_text("tinyshakespeare")
    tokenizer = CharTokenizer(text)
    tokens = tokenizer.encode(text)
    cut = int(0.9 * len(tokens))
    X, y = windows(tokens[:cut], CONTEXT)
    rows = np.random.default_rng(0).integers(0, len(X), steps * BATCH)

    warm = min(100, steps // 4)
    rate = WarmUp(CosineDecay(1e-3, max(1, steps - warm), 1e-4), warm)
    model = (
        gpt(tokenizer.vocab_size, CONTEXT, layers=4, heads=4, dim=128)
        .loss(SoftmaxCrossEntropy())
        .optimizer(AdamW(beta2=0.99, weight_decay=0.1, clip_norm=1.0))
        .alpha(rate)
        .batch(BATCH)
        .epochs(1)
        .seed(0)
        .build()
    )
    model.summary()
    model.train(X[rows], y[rows], shuffle=False)

    held = tokens[cut:]
    places = np.arange(0, len(held) - CONTEXT - 1, CONTEXT)  # every character is predicted once
    X_val, y_val = windows(held, CONTEXT)
    loss = model.evaluate(X_val[places], y_val[places], batch_size=64)["loss"]
    for token in model.stream(tokenizer.encode("\n"), write, seed=0):
        print(tokenizer.decode(token), end="", flush=True)
    print(f"\nvalidation loss {loss:.4f}")
    return loss


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    main(**vars(parser.parse_args()))
