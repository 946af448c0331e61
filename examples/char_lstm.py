"""Train a character LSTM on tinyshakespeare, then generate text.

    python examples/char_lstm.py [--steps 4000]

The model has an embedding of size 64, one LSTM with 256 units, and a score for each of the 65
characters. Each step of Adam uses 32 windows of 64 characters; the learning rate decays from 4e-3
to 0 along a cosine. In training, each window starts with a zero state; in generation, the state
carries over. The validation loss is computed over the whole validation split, the last tenth of the
text. After Karpathy's char-rnn.
"""

import argparse

import numpy as np

from phitodeep.data import CharTokenizer, load_text, windows
from phitodeep.loss import SoftmaxCrossEntropy
from phitodeep.model.architectures import char_lstm
from phitodeep.optimization.optimizers import Adam
from phitodeep.optimization.schedules import CosineDecay, WarmUp

CONTEXT, BATCH = 64, 32


def main(steps: int = 4000, units: int = 256, write: int = 500) -> float:
    text = load_text("tinyshakespeare")
    tokenizer = CharTokenizer(text)
    tokens = tokenizer.encode(text)
    cut = int(0.9 * len(tokens))
    X, y = windows(tokens[:cut], CONTEXT)
    rng = np.random.default_rng(0)

    def batches():
        for _ in range(steps):
            rows = rng.integers(0, len(X), BATCH)
            yield X[rows], y[rows]

    model = (
        char_lstm(tokenizer.vocab_size, dim=64, units=units)
        .loss(SoftmaxCrossEntropy())
        .optimizer(Adam(clip_norm=1.0))
        .alpha(WarmUp(CosineDecay(4e-3, steps), min(100, steps // 4)))
        .seed(0)
        .build()
    )
    model.train(batches, epochs=1)
    model.summary()

    validation = tokens[cut:]
    starts = np.arange(0, len(validation) - CONTEXT - 1, CONTEXT)  # predict each character once
    X_val, y_val = windows(validation, CONTEXT)
    loss = model.evaluate(X_val[starts], y_val[starts])["loss"]
    print(tokenizer.decode(model.generate(tokenizer.encode("\n"), write, seed=0)[0]))
    print(f"validation loss {loss:.4f}")
    return loss


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4000)
    main(**vars(parser.parse_args()))
