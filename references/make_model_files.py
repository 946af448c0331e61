"""Create the model files of this format version in tests/reference, with their predictions.

    python references/make_model_files.py

model_v1.safetensors is a small language model with its tokenizer, checkpoint_v1.safetensors is
training in the middle of its second epoch, and model_v1.npz holds what the tests compare: inputs,
predictions, and the losses of the whole training. Later versions of phitodeep must read the files
of all versions, so never make those of an old version again: raise `VERSION` first.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from phitodeep.io.model_file import VERSION
from phitodeep.layers import (
    BatchNorm,
    Dense,
    Dropout,
    Embedding,
    PositionalEmbedding,
    Residual,
    Tanh,
    TiedDense,
    TransformerBlock,
)
from phitodeep.model import Sequential
from phitodeep.model.callbacks import Callback, EarlyStopping, ModelCheckpoint
from phitodeep.optimization.optimizers import Adam
from phitodeep.optimization.schedules import CosineDecay, ReduceOnPlateau, WarmUp
from phitodeep.text import CharTokenizer


def language() -> Sequential:
    """Layers that share weights, layers in layers, and a tokenizer."""
    embedding = Embedding(7, 4)
    layers = [embedding, PositionalEmbedding(6), TransformerBlock(2, causal=True)]
    model = Sequential(
        *(*layers, TiedDense(embedding)),
        loss_class="softmax_cross_entropy",
        metrics=["accuracy"],
        seed=1,
    )
    model.build((5,))
    model.tokenizer = CharTokenizer("abcdefg")
    return model


def regression() -> Sequential:
    """A state with a bit of everything: averages, groups, schedules that observe, frozen layers."""
    groups = {"0.*": {"alpha": CosineDecay(0.05, 20)}}
    model = Sequential(
        *(Dense(3, 4), BatchNorm(), Residual(Dense(4, 4), Tanh(), Dropout(0.2)), Dense(4, 1)),
        optimizer=Adam(WarmUp(ReduceOnPlateau(0.1, patience=1), 2), ema=0.9, groups=groups),
        batch_size=5,
        metrics=["mae"],
        seed=2,
    )
    model.build((3,))
    model.layers[1].trainable = False
    return model


def callbacks(folder: Path) -> list[Callback]:
    path = folder / "ck.safetensors"
    return [EarlyStopping(9), ModelCheckpoint(path, every_steps=2, monitor="train_loss", keep=99)]


def main() -> None:
    out = Path(__file__).parent.parent / "tests" / "reference"
    rng = np.random.default_rng(0)
    X, tokens = rng.standard_normal((12, 3)), rng.integers(0, 7, (3, 5))
    Y = np.tanh(X.sum(1, keepdims=True))
    language().save(out / f"model_v{VERSION}.safetensors")
    arrays: dict[str, Any] = {"X": X, "Y": Y, "tokens": tokens}
    arrays["predictions"] = language().predict(tokens)
    with tempfile.TemporaryDirectory() as folder:
        model = regression()
        history = model.train(X, Y, epochs=3, callbacks=callbacks(Path(folder)), verbose=0)
        kept = out / f"checkpoint_v{VERSION}.safetensors"
        shutil.copyfile(Path(folder) / "ck-step4.safetensors", kept)
    arrays["losses"], arrays["at the end"] = np.array(history)[:, 0], model.predict(X)
    arrays["half way"] = Sequential.load(kept).predict(X)
    np.savez_compressed(out / f"model_v{VERSION}.npz", **arrays)


if __name__ == "__main__":
    main()
