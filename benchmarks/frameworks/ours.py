"""phitodeep, through its public API: model.train and model.predict."""

from __future__ import annotations

import numpy as np
from workloads import DECAY, GPT, LSTM, MLPS, RATE, weights

from phitodeep.model import Sequential, SequentialBuilder
from phitodeep.models import char_lstm, gpt, mlp
from phitodeep.optimization.optimizers import Adam

ALL = ("W1", "W2", "W3", "W4", "W5")
VARIANTS = {"fast": ALL, "fast, 2 threads": ("W3", "W4", "W5"), "NumPy only": ALL}


def network(workload: str) -> SequentialBuilder:
    if workload in MLPS:
        return mlp(*MLPS[workload])
    if workload == "W3":
        builder = SequentialBuilder(28, 28, 1)
        for filters in (32, 64):
            builder = builder.conv2d(filters, 3, padding="same").relu().max_pool2d(2)
        return builder.flatten().dense(128).relu().dense(10)
    if workload == "W4":
        shape = {key: GPT[key] for key in ("layers", "heads", "dim")}
        return gpt(GPT["vocab"], GPT["context"], tied=False, activation="gelu_tanh", **shape)
    return char_lstm(LSTM["vocab"], dim=LSTM["dim"], units=LSTM["units"]).input(LSTM["context"])


def path_of(key: str, workload: str) -> str:
    """The path in the model of a weight with this name in `workloads`."""
    if workload in MLPS:
        return f"{2 * int(key[1])}.{key[0]}"
    if workload == "W3":
        place = 3 * int(key[1]) if key[0] in "Kk" else 7 + 2 * int(key[1])
        return f"{place}.{'W' if key[0] in 'KW' else 'b'}"
    if workload == "W5":
        return {"tokens": "0.W", "head": "2.W", "head.b": "2.b"}.get(key, f"1.{key}")
    last = GPT["layers"] + 2
    block, _, inner = key.partition(".")
    if not block.isdigit():
        plain = {"tokens": "0.W", "places": "1.W", "head": f"{last + 1}.W"}
        return plain.get(key, f"{last}.{inner}")
    paths = {"norm1": "0.layers.0", "norm2": "1.layers.0", "b1": "1.layers.1.layers.0.b"}
    paths |= {"W1": "1.layers.1.layers.0.W", "W2": "1.layers.1.layers.2.W"}
    paths |= {"b2": "1.layers.1.layers.2.b"}
    part, _, scale = inner.partition(".")
    inside = paths.get(part, f"0.layers.1.{part}") + (f".{scale}" if scale else "")
    return f"{int(block) + 2}.layers.{inside}"


class Side:
    def __init__(self, workload: str, variant: str) -> None:
        self.threads = 2 if "2 threads" in variant else 1
        rule = Adam(RATE, weight_decay=DECAY if workload == "W4" else 0.0)
        builder = network(workload).loss("softmax_cross_entropy").optimizer(rule).seed(0)
        self.model: Sequential = builder.build()
        initial = weights(workload)
        self.model.set_weights({path_of(key, workload): a for key, a in initial.items()})

    def loss(self, X: np.ndarray, y: np.ndarray) -> float:
        return self.model.evaluate(X, y)["loss"]

    def train(self, X: np.ndarray, y: np.ndarray, batch: int) -> None:
        self.epoch(X, y, batch, shuffle=False)

    def epoch(self, X: np.ndarray, y: np.ndarray, batch: int, shuffle: bool = True) -> None:
        options = {"batch_size": batch, "shuffle": shuffle, "threads": self.threads}
        self.model.train(X, y, epochs=1, verbose=0, **options)

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.model.predict(X)
