"""From a cold start to a score: how long a process takes to learn MNIST.

A new process imports its framework, reads the four IDX files, trains 784-128-64-10 with Adam
for three epochs of 60,000 samples in batches of 64, and scores the 10,000 test images.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from entries import FAST, PEERS, PLAIN
from processes import fresh
from workloads import RATE

WANTED, EPOCHS, BATCH = 0.97, 3, 64
SIZES = (784, 128, 64, 10)
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


def read(folder: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """X, y, X_test, y_test from the IDX files: rows of float32 between 0 and 1, and digits."""

    def one(name: str) -> np.ndarray:
        (path, *_) = sorted(Path(folder).glob(f"{name}?idx*-ubyte*"))
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3])

    def rows(name: str) -> np.ndarray:
        return one(name).reshape(-1, 784) / np.float32(255)

    def digits(name: str) -> np.ndarray:
        return one(name).astype(np.int64)

    images, labels = "{}-images", "{}-labels"
    (X, X_test), (y, y_test) = (
        [make(pattern.format(part)) for part in ("train", "t10k")]
        for make, pattern in ((rows, images), (digits, labels))
    )
    return X, y, X_test, y_test


def phitodeep(data: Arrays, seed: int) -> np.ndarray:
    from phitodeep.model.architectures import mlp
    from phitodeep.optimization.optimizers import Adam

    X, y, X_test = data
    model = mlp(*SIZES).loss("softmax_cross_entropy").optimizer(Adam(RATE)).seed(seed).build()
    model.train(X, y, epochs=EPOCHS, batch_size=BATCH, verbose=0)
    return model.predict(X_test).argmax(axis=1)


def _torch(data: Arrays, seed: int, loader: bool) -> np.ndarray:
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    X, y, X_test = data
    torch.manual_seed(seed)
    layers = [nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)
    T, t = torch.from_numpy(X), torch.from_numpy(y)
    if loader:
        dataset = torch.utils.data.TensorDataset(T, t)
        batches = torch.utils.data.DataLoader(dataset, batch_size=BATCH, shuffle=True)
    for _ in range(EPOCHS):
        if not loader:
            batches = ((T[rows], t[rows]) for rows in torch.randperm(len(T)).split(BATCH))
        for inputs, targets in batches:
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    with torch.inference_mode():
        return model(torch.from_numpy(X_test)).argmax(dim=1).numpy()


def torch_indexing(data: Arrays, seed: int) -> np.ndarray:
    return _torch(data, seed, loader=False)


def torch_loader(data: Arrays, seed: int) -> np.ndarray:
    return _torch(data, seed, loader=True)


def scikit_learn(data: Arrays, seed: int) -> np.ndarray:
    from sklearn.neural_network import MLPClassifier

    X, y, X_test = data
    options = {"batch_size": BATCH, "learning_rate_init": RATE, "alpha": 0.0, "random_state": seed}
    model = MLPClassifier(SIZES[1:-1], max_iter=EPOCHS, **options)
    return model.fit(X, y).predict(X_test)


def keras(data: Arrays, seed: int) -> np.ndarray:
    import keras

    X, y, X_test = data
    keras.utils.set_random_seed(seed)
    inner = [keras.layers.Dense(size, activation="relu") for size in SIZES[1:-1]]
    layers = [keras.layers.Input(SIZES[:1]), *inner, keras.layers.Dense(SIZES[-1])]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(RATE), loss=loss)
    model.fit(X, y, batch_size=BATCH, epochs=EPOCHS, verbose=0)
    return model.predict(X_test, batch_size=1000, verbose=0).argmax(axis=1)


CACHED, EMPTY = f"{FAST.label}, kernels cached", f"{FAST.label}, first run ever"


def runs() -> dict[str, tuple[str, dict[str, str]]]:
    """By label: the function above that runs, and its environment."""
    found = {PLAIN.label: ("phitodeep", dict(PLAIN.environment))}
    if importlib.util.find_spec("numba"):
        found = {CACHED: ("phitodeep", dict(FAST.environment)), **found}
    peers = {
        "PyTorch, indexing": ("torch_indexing", "pytorch"),
        "PyTorch, DataLoader": ("torch_loader", "pytorch"),
        "scikit-learn": ("scikit_learn", "sklearns"),
        "Keras on JAX": ("keras", "keras3"),
    }
    for label, (name, module) in peers.items():
        if importlib.util.find_spec(PEERS[module]):
            found[label] = (name, {"KERAS_BACKEND": "jax"})
    return found


def cold(folder: str, rounds: int) -> dict[str, dict[str, object]]:
    """By label: median seconds of a whole process and median score, runs, and runs that missed.

    Each round has another seed. A first round, which fills all caches, is not counted. The "first
    run ever" starts with an empty folder of compiled kernels, and runs once.
    """
    seconds: dict[str, list[float]] = {}
    scores: dict[str, list[float]] = {}

    def run(label: str, name: str, environment: dict[str, str], seed: int) -> None:
        began = time.perf_counter()
        try:
            arguments = (name, folder, str(seed))
            answer = fresh("import sys, cold; cold.learn(*sys.argv[1:])", environment, arguments)
        except subprocess.CalledProcessError as error:
            print(f"  {label} failed: {' '.join(error.stderr.splitlines()[-1:])}", flush=True)
            return
        if seed:
            seconds.setdefault(label, []).append(time.perf_counter() - began)
            scores.setdefault(label, []).append(json.loads(answer.splitlines()[-1]))
            print(f"  {label:36} {seconds[label][-1]:6.2f} s, {scores[label][-1]:.4f}", flush=True)

    for seed in range(rounds + 1):
        for label, (name, environment) in runs().items():
            run(label, name, environment, seed)
    if CACHED in seconds:
        with tempfile.TemporaryDirectory() as empty:
            run(EMPTY, "phitodeep", {**dict(FAST.environment), "NUMBA_CACHE_DIR": empty}, 1)
    return {
        label: {
            "seconds": statistics.median(taken),
            "score": statistics.median(scores[label]),
            "runs": len(taken),
            "missed": sum(score < WANTED for score in scores[label]),
            "peer": label not in (CACHED, EMPTY, PLAIN.label),
        }
        for label, taken in seconds.items()
    }


def learn(name: str, folder: str, seed: str) -> None:
    """Train and print the test score: what a cold process does."""
    X, y, X_test, y_test = read(folder)
    found = getattr(sys.modules[__name__], name)((X, y, X_test), int(seed))
    print(json.dumps(float((found == y_test).mean())))
