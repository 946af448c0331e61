"""Compare exported files with phitodeep: time from a cold start, time of a prediction, sizes.

    python benchmarks/export.py

Prints a Markdown table. Each time is the fastest of several runs, with one BLAS thread and NumPy
kernels. "Start" is a whole process that reads one sample, predicts it and prints the result.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from phitodeep import models
from phitodeep.model import SequentialBuilder

ENVIRONMENT = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PHITODEEP_KERNELS": "numpy"}
READ = "import numpy as np; X = np.load('x.npy'); "
FILE = READ + "from net import predict; "
MODEL = READ + "import pickle; predict = pickle.load(open('model.pickle', 'rb')).predict; "
WARM = (
    "import timeit; predict(X); "
    "print(1e3 * min(timeit.repeat(lambda: predict(X), number=20, repeat=50)) / 20)"
)


def networks() -> dict[str, tuple[SequentialBuilder, np.ndarray]]:
    """The networks by name, each with one sample."""
    cnn = SequentialBuilder(28, 28, 1).conv2d(8, 3, padding="same").relu().max_pool2d(2)
    cnn = cnn.conv2d(16, 3, stride=2).batch_norm().relu().global_avg_pool().dense(10)
    gpt = models.gpt(65, 64, layers=4, heads=4, dim=128)
    return {
        "MLP 784-128-64-10": (models.mlp(784, 128, 64, 10), np.ones((1, 784))),
        "CNN, two convolutions": (cnn, np.ones((1, 28, 28, 1))),
        "GPT, 4 blocks of 128, 64 tokens": (gpt, np.ones((1, 64), int)),
    }


def run(*arguments: str) -> float:
    """Return what a Python process prints, or the milliseconds that it takes."""
    start = time.perf_counter()
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, text=True)
    taken = (time.perf_counter() - start) * 1e3
    return float(done.stdout) if arguments[-1].endswith(WARM) else taken


def main() -> None:
    print(f"Importing NumPy alone: {min(run('-c', 'import numpy') for _ in range(20)):.0f} ms\n")
    print(
        "| network | start, file | start, phitodeep | sample, file | sample, phitodeep | net.py | ",
        end="",
    )
    print("net.npz |\n|---|---:|---:|---:|---:|---:|---:|")
    for name, (builder, X) in networks().items():
        model = builder.build()
        model.build(X.shape[1:])
        model.export_numpy("net.py")
        Path("model.pickle").write_bytes(pickle.dumps(model))
        np.save("x.npy", X)
        start_file = min(run("net.py", "x.npy") for _ in range(20))
        start_model = min(run("-c", MODEL + "print(predict(X))") for _ in range(20))
        sample_file, sample_model = (run("-c", load + WARM) for load in (FILE, MODEL))
        sizes = " | ".join(f"{os.path.getsize(f) / 1e3:,.0f} kB" for f in ("net.py", "net.npz"))
        print(f"| {name} | {start_file:.0f} ms | {start_model:.0f} ms ", end="")
        print(f"| {sample_file:.3g} ms | {sample_model:.3g} ms | {sizes} |", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        main()
