"""phitodeep, through its public API: model.train and model.predict."""

from __future__ import annotations

import numpy as np
from workloads import CNNS, DECAY, GPT, LSTM, MLPS, RATE, weights

from phitodeep.model import Sequential, SequentialBuilder
from phitodeep.model.architectures import char_lstm, gpt, mlp
from phitodeep.model.callbacks import LambdaCallback
from phitodeep.optimization.optimizers import Adam

ALL = ("W1", "W2", "W3", "W4", "W5", "W6")
VARIANTS = {"fast": ALL, "NumPy only": ALL}


def network(workload: str) -> SequentialBuilder:
    if workload in MLPS:
        return mlp(*MLPS[workload])
    if workload in CNNS:
        builder = SequentialBuilder(28, 28, 1)
        for filters in (32, 64):
            builder = builder.conv2d(filters, 3, padding="same")
            builder = (builder.batch_norm() if workload == "W6" else builder).relu().max_pool2d(2)
        return builder.flatten().dense(128).relu().dense(10)
    if workload == "W4":
        shape = {key: GPT[key] for key in ("layers", "heads", "dim")}
        return gpt(GPT["vocab"], GPT["context"], tied=False, activation="gelu_tanh", **shape)
    return char_lstm(LSTM["vocab"], dim=LSTM["dim"], units=LSTM["units"]).input(LSTM["context"])


def path_of(key: str, workload: str) -> str:
    """The path in the model of a weight with this name in `workloads`."""
    if workload in MLPS:
        return f"{2 * int(key[1])}.{key[0]}"
    if workload in CNNS:
        layers = 3 if workload == "W3" else 4  # per convolution
        if key.startswith("norm"):
            return f"{layers * int(key[4]) + 1}.{key[6:]}"
        place = layers * int(key[1]) if key[0] in "Kk" else 2 * layers + 1 + 2 * int(key[1])
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
    def __init__(
        self, workload: str, variant: str, threads: int | None = None, dtype: str = "float32"
    ) -> None:
        self.options = {} if threads is None else {"threads": threads}
        rule = Adam(RATE, weight_decay=DECAY if workload == "W4" else 0.0)
        builder = network(workload).loss("softmax_cross_entropy").optimizer(rule).seed(0)
        self.model: Sequential = builder.dtype(dtype).build()
        initial = weights(workload)
        states = {
            key: a
            for key, a in self.model.get_weights().items()
            if key.rpartition(".")[2].startswith("running")
        }
        named = {path_of(key, workload): a for key, a in initial.items()}
        self.model.set_weights(states | named)

    def loss(self, X: np.ndarray, y: np.ndarray) -> float:
        return self.model.evaluate(X, y)["loss"]

    def train(self, X: np.ndarray, y: np.ndarray, batch: int) -> None:
        self.epoch(X, y, batch, shuffle=False)

    def epoch(self, X: np.ndarray, y: np.ndarray, batch: int, shuffle: bool = True) -> None:
        options = {"batch_size": batch, "shuffle": shuffle, **self.options}
        self.model.train(X, y, epochs=1, verbose=0, **options)

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.model.predict(X)

    def gradients(self, X: np.ndarray, y: np.ndarray) -> tuple[float, dict[str, np.ndarray]]:
        losses: list[float] = []
        found: dict[str, np.ndarray] = {}

        def keep(model: Sequential, step: int, loss: float) -> None:
            losses.append(loss)
            for path, layer in model.walk():
                found.update({f"{path}.{name}": dW.copy() for name, dW in layer.grads.items()})

        callbacks = [LambdaCallback(on_batch_end=keep)]
        self.model.train(X, y, batch_size=len(X), epochs=1, verbose=0, callbacks=callbacks)
        return losses[0], found
