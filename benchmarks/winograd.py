"""Times Conv2D in Winograd's tiles and by windows, and prints the error of the tiles in float32.

    OPENBLAS_NUM_THREADS=1 python benchmarks/winograd.py

Each line is one size, N x height x width x C -> filters: milliseconds of a forward pass and of a
backward pass, by windows and in tiles, and the largest error of Y, dX and dW of the tiles, divided
by the largest value. The last column says which form the layer takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from phitodeep.core.call import calling
from phitodeep.core.types import Array
from phitodeep.layers import Conv2D, winograd

SIZES = [  # N, height and width, C, filters
    (64, 28, 3, 32),
    (64, 28, 8, 8),
    (64, 14, 16, 16),
    (64, 14, 32, 64),
    (32, 28, 32, 32),
    (64, 8, 128, 128),
    (16, 14, 256, 256),
    (1, 14, 32, 64),
    (1, 14, 128, 128),
    (1, 28, 128, 128),
]
SECONDS = 1.0  # per size
PAYS = winograd.pays


def forward(layer: Conv2D, X: Array, tiled: bool) -> Array:
    winograd.pays = lambda *_: tiled
    with calling(reuse=True):
        return layer.forward(X)


def backward(layer: Conv2D, dY: Array) -> Array | None:
    with calling(reuse=True):
        return layer.backward(dY)


def built(C: int, filters: int, size: int, dtype: type) -> Conv2D:
    layer = Conv2D(filters, 3, padding="same")
    layer.build((size, size, C), seed=0, dtype=dtype)
    return layer


def medians(passes: list[Callable[[], object]]) -> list[float]:
    """Milliseconds of each pass; the passes alternate."""
    took: list[list[float]] = [[] for _ in passes]
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(took[0]) < 5:
        for run, times in zip(passes, took, strict=True):
            start = time.perf_counter()
            run()
            times.append(1e3 * (time.perf_counter() - start))
    return [float(np.median(times)) for times in took]


def main() -> None:
    rng = np.random.default_rng(0)
    print(
        "| size | forward: windows | tiles | backward: windows | tiles | error | the layer takes |"
    )
    print("|---|---:|---:|---:|---:|---:|---|")
    for N, size, C, filters in SIZES:
        X = rng.standard_normal((N, size, size, C), dtype=np.float32)
        dY = rng.standard_normal((N, size, size, filters), dtype=np.float32)
        passes, found = [], []
        for tiled, dtype in ((False, np.float64), (True, np.float32)):
            layer = built(C, filters, size, dtype)
            layer.W = built(C, filters, size, np.float32).W
            Y, dX = forward(layer, X, tiled), backward(layer, dY)
            found.append([Y, dX, layer.grads["W"]])
        for tiled in (False, True):
            layer = built(C, filters, size, np.float32)
            passes += [partial(forward, layer, X, tiled), partial(backward, layer, dY)]
        errors = [abs(a - b).max() / abs(a).max() for a, b in zip(*found, strict=True)]
        times = medians(passes)
        taken = "tiles" if PAYS(N, (size, size), C, filters) else "windows"
        row = [f"{times[i]:.2f}" for i in (0, 2, 1, 3)]
        name = f"{N} x {size} x {size} x {C} -> {filters}"
        print(f"| {name} | {' | '.join(row)} | {max(errors):.1e} | {taken} |", flush=True)


if __name__ == "__main__":
    main()
