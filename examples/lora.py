"""Pre-train a small character GPT on tinyshakespeare, and fine-tune it on names by LoRA.

    python examples/lora.py [--steps 500] [--tuning 300] [--rank 4]

The model has 3 layers, 4 heads, width 96 and context 64. `add_lora` freezes it and gives both
products of each attention layer an update of low rank, which alone learns to write names. The
updates are saved alone, in a small file; merged into the weights, they cost nothing. The
losses are on held-out text: the last tenth of the plays, and a tenth of the names.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from phitodeep.data import CharTokenizer, load_text, windows
from phitodeep.model import Sequential
from phitodeep.model.architectures import gpt
from phitodeep.optimization.optimizers import AdamW

CONTEXT, BATCH = 64, 16


def split(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the training part of a text and its last tenth."""
    cut = int(0.9 * len(tokens))
    return tokens[:cut], tokens[cut:]


def train(model: Sequential, tokens: np.ndarray, steps: int) -> None:
    """Train on `steps` batches of windows of the text, drawn at random."""
    X, y = windows(tokens, CONTEXT)
    rows = np.random.default_rng(0).integers(0, len(X), steps * BATCH)
    model.train(X[rows], y[rows], shuffle=False)


def loss(model: Sequential, tokens: np.ndarray) -> float:
    """Return the mean loss over a text; each of its characters is predicted once."""
    X, y = windows(tokens, CONTEXT)
    starts = np.arange(0, len(X), CONTEXT)
    return model.evaluate(X[starts], y[starts], batch_size=64)["loss"]


def show(model: Sequential, tokenizer: CharTokenizer, write: int) -> None:
    tokens = model.generate(tokenizer.encode("\n"), write, temperature=0.8, seed=0)
    for line in tokenizer.decode(tokens[0]).strip().splitlines():
        print(f"    {line}")


def main(
    steps: int = 500, tuning: int = 300, rank: int = 4, write: int = 120
) -> dict[str, tuple[float, float]]:
    plays, names = load_text("tinyshakespeare"), load_text("names").split("\n")
    names = "\n".join(np.random.default_rng(0).permutation(names))
    tokenizer = CharTokenizer(plays + names)
    plays, held_plays = split(tokenizer.encode(plays))
    names, held_names = split(tokenizer.encode(names))
    losses = {}

    model = (
        gpt(tokenizer.vocab_size, CONTEXT, layers=3, heads=4, dim=96)
        .loss("softmax_cross_entropy")
        .optimizer(AdamW(clip_norm=1.0))
        .alpha(3e-3)
        .batch(BATCH)
        .epochs(1)
        .seed(0)
        .build()
    )
    train(model, plays, steps)
    losses["base"] = loss(model, held_plays), loss(model, held_names)
    print("The base model writes:")
    show(model, tokenizer, write)

    print(f"\n{model.add_lora(rank=rank)}")
    model.alpha = 1e-2
    train(model, names, tuning)
    losses["tuned"] = loss(model, held_plays), loss(model, held_names)
    print("The tuned model writes:")
    show(model, tokenizer, write)

    with tempfile.TemporaryDirectory() as folder:
        model.save_lora(Path(folder) / "names.safetensors")
        model.merge_lora()
        model.save(Path(folder) / "merged.safetensors")
        sizes = [path.stat().st_size for path in sorted(Path(folder).iterdir())]
    losses["merged"] = loss(model, held_plays), loss(model, held_names)
    print(f"\nthe whole model: {sizes[0]:,} bytes; the updates alone: {sizes[1]:,} bytes")
    print("loss       plays   names")
    for name, (on_plays, on_names) in losses.items():
        print(f"{name:8}  {on_plays:.4f}  {on_names:.4f}")
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=500, help="of the training on plays")
    parser.add_argument("--tuning", type=int, default=300, help="steps of the training on names")
    parser.add_argument("--rank", type=int, default=4)
    main(**vars(parser.parse_args()))
