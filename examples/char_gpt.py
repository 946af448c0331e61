"""Train a character GPT on tinyshakespeare with nanoGPT's recipe for CPUs, then generate text.

    python examples/char_gpt.py [--steps 2000]

The model has 4 layers, 4 heads, width 128 and context 64. It is trained with batches of 12 by AdamW
(betas 0.9 and 0.99, weight decay 0.1, gradients clipped to norm 1); after 100 warm-up steps the
learning rate decays from 1e-3 to 1e-4 along a cosine. The validation loss is computed over the
whole validation split, the last tenth of the text.
"""

import argparse

import numpy as np

from phitodeep.data import CharTokenizer, load_text, windows
from phitodeep.loss import SoftmaxCrossEntropy
from phitodeep.model.architectures import gpt
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

    validation = tokens[cut:]
    starts = np.arange(0, len(validation) - CONTEXT - 1, CONTEXT)  # predict each character once
    X_val, y_val = windows(validation, CONTEXT)
    loss = model.evaluate(X_val[starts], y_val[starts], batch_size=64)["loss"]
    for token in model.stream(tokenizer.encode("\n"), write, seed=0):
        print(tokenizer.decode(token), end="", flush=True)
    print(f"\nvalidation loss {loss:.4f}")
    return loss


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    main(**vars(parser.parse_args()))
