"""Networks and data for the programs that the tests run on several ranks."""

import os

import numpy as np

from phitodeep import Network, PhitodeepError, Sequential
from phitodeep import layers as nn
from phitodeep.core.types import cut
from phitodeep.distributed import DataParallel
from phitodeep.loss import CategoricalCrossEntropy, MeanSquaredError, SoftmaxCrossEntropy

os.fsync = lambda handle: None  # files are written without waiting until the disk has them


def error_of(call):
    """Return the kind and the message of the error that a call raises, or ""."""
    try:
        call()
    except PhitodeepError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def mlp(rng, **options):
    """Dropout, ignored labels, and sizes that no number of ranks divides."""
    layers = nn.Dense(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Dense(16, 5), nn.Softmax()
    model = Sequential(*layers, loss_class=CategoricalCrossEntropy(ignore_index=-1), **options)
    return model, rng.normal(size=(37, 6)), rng.integers(-1, 5, 37), {}


def cnn(rng, **options):
    """Convolution with batch statistics of all ranks, and sample weights."""
    first = nn.Conv2D(4, 3, bias=False), nn.BatchNorm(sync=True), nn.ReLU(), nn.MaxPool2D(2)
    last = nn.Flatten(), nn.Dropout(0.2), nn.Dense(3)
    model = Sequential(*first, *last, loss_class=SoftmaxCrossEntropy(), **options)
    X = rng.normal(size=(21, 8, 8, 2))
    return model, X, rng.integers(0, 3, 21), {"sample_weight": rng.uniform(0.2, 3, 21)}


def lstm(rng, **options):
    """Sequences of different lengths."""
    layers = nn.Embedding(11, 8), nn.LSTM(12), nn.Dropout(0.2), nn.Dense(4)
    model = Sequential(*layers, loss_class=SoftmaxCrossEntropy(), **options)
    X, y = rng.integers(0, 11, (23, 7)), rng.integers(0, 4, (23, 7))
    return model, X, y, {"lengths": 1 + np.arange(23) % 7}


def gpt(rng, **options):
    """A transformer block in a checkpoint, with an embedding that is used twice."""
    tokens = nn.Embedding(13, 8)
    block = nn.TransformerBlock(2, causal=True, dropout=0.1, checkpoint=True)
    inside = nn.Residual(nn.LayerNorm(), nn.Dense(16), nn.GELU(), nn.Dense(8))
    layers = tokens, nn.PositionalEmbedding(6), block, inside, nn.LayerNorm(), nn.TiedDense(tokens)
    model = Sequential(*layers, loss_class=SoftmaxCrossEntropy(ignore_index=0), **options)
    X = rng.integers(0, 13, (19, 6))
    return model, X, rng.integers(0, 13, (19, 6)), {}


def heads(rng, **options):
    """Two inputs and three heads, of which two have losses, and a layer at two places."""
    tower = nn.Chain(nn.Dense(8), nn.ReLU(), nn.Dropout(0.2))
    uses = [
        (tower, ["a"], ["left"]),
        (nn.Shared(tower), ["b"], ["right"]),
        (nn.Add(), ["left", "right"], ["both"]),
        (nn.Dense(5), ["both"], ["kind"]),
        (nn.Dense(2), ["both"], ["place"]),
    ]
    losses = {"kind": SoftmaxCrossEntropy(ignore_index=-1), "place": MeanSquaredError()}
    options |= {"loss_class": losses, "loss_weights": {"place": 0.3}}
    model = Network(["a", "b"], uses, ["kind", "place", "both"], **options)
    X = tuple(rng.normal(size=(2, 29, 6)))
    y = rng.integers(-1, 5, 29), rng.normal(size=(29, 2)), None
    return model, X, y, {"sample_weight": {"place": rng.uniform(0.2, 3, 29)}}


NETWORKS = {"mlp": mlp, "cnn": cnn, "lstm": lstm, "gpt": gpt, "heads": heads}


def difference(network, rule, dtype, options, **parallel):
    """Return the largest differences between training alone and on all ranks."""
    found = []
    for together in (False, True):
        settings = {"optimizer": rule(), "seed": 1, "dtype": dtype}
        model, X, y, data = NETWORKS[network](np.random.default_rng(5), **settings)
        if together:
            model = DataParallel(model, timeout=60, **parallel)
        tested = () if "lengths" in data else (cut(X, slice(9)), cut(y, slice(9)))
        metrics = {"kind": ["accuracy"]} if network in ("heads", "tied") else ["accuracy"]
        history = model.train(X, y, *tested, verbose=0, metrics=metrics, **data, **options)
        found.append((model.get_weights(), history, model.optimizer.memory()))
    (weights, history, memory), (weights2, history2, memory2) = found
    return {
        "weights": max(float(abs(weights[k] - weights2[k]).max()) for k in weights),
        "memory": max(
            [float(abs(memory[k][s] - memory2[k][s]).max()) for k in memory for s in memory[k]],
            default=0.0,
        ),
        "losses": float(np.nanmax(np.abs(np.array(history) - np.array(history2)))),
        "metrics": max(
            float(np.nanmax(np.abs(np.array(values) - np.array(history2.metrics[name]))))
            for name, values in history.metrics.items()
        ),
    }
