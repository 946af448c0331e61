"""Measure `Sequential.trace`: its time, and its memory in multiples of the activations.

    python benchmarks/trace.py

Prints a line for the networks of `workloads.py`: the median time of a trace and of printing it, the
largest memory that it takes, and the memory of the activations, which are the outputs of all layers
and what they keep for backward.
"""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np

from phitodeep.inspect.trace import Trace
from phitodeep.model import SequentialBuilder
from phitodeep.model import architectures as models

Case = tuple[SequentialBuilder, np.ndarray, np.ndarray]


def cases() -> dict[str, Case]:
    rng = np.random.default_rng(0)
    cnn = SequentialBuilder(28, 28, 1).conv2d(16, 3).relu().max_pool2d(2)
    cnn = cnn.conv2d(32, 3).relu().max_pool2d(2).flatten().dense(10)
    gpt = models.gpt(65, 64, layers=4, heads=4, dim=128)
    lstm = SequentialBuilder(64).embedding(65, 64).lstm(128).dense(65)
    images, tokens = rng.random((64, 28, 28, 1)), rng.integers(0, 65, (32, 64))
    return {
        "MLP 784-128-64-10, batch 64": (
            models.mlp(784, 128, 64, 10),
            rng.random((64, 784)),
            rng.integers(0, 10, 64),
        ),
        "CNN of two convolutions, batch 64": (cnn, images, rng.integers(0, 10, 64)),
        "GPT of four blocks, batch 16": (gpt, tokens[:16], tokens[:16]),
        "LSTM of 128 units, batch 32": (lstm, tokens, tokens),
    }


def activations(trace: Trace) -> int:
    """The bytes of all outputs, and of what layers keep for backward."""
    recording = trace._recording
    arrays = [passes.Y for passes in recording.passes.values()]
    for _, layer in recording.model.walk():
        arrays += _arrays(layer.cache)
    owners = {id(owner): owner.nbytes for owner in map(_owner, arrays)}
    return sum(owners.values())


def _owner(A: np.ndarray) -> np.ndarray:
    while isinstance(A.base, np.ndarray):
        A = A.base
    return A


def _arrays(value: Any) -> Iterator[np.ndarray]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _arrays(part)


def main() -> None:
    print(
        "| network | trace | print | memory | activations | ratio |\n|---|---:|---:|---:|---:|---:|"
    )
    for name, (builder, X, y) in cases().items():
        model = builder.loss("softmax_cross_entropy").seed(0).build()
        model.trace(X[:2], y[:2])  # compiles the kernels
        times: list[tuple[float, float]] = []
        for _ in range(5):
            start = time.perf_counter()
            trace = model.trace(X, y)
            traced = time.perf_counter()
            str(trace)
            times.append((traced - start, time.perf_counter() - traced))
        size = activations(trace)
        del trace
        tracemalloc.start()
        model.trace(X, y)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        seconds = [f"{1e3 * statistics.median(t):.0f} ms" for t in zip(*times, strict=True)]
        memory = f"{peak / 1e6:.0f} MB | {size / 1e6:.0f} MB | {peak / size:.1f}"
        print(f"| {name} | {' | '.join(seconds)} | {memory} |")


if __name__ == "__main__":
    main()
