"""Compare exported files with phitodeep: time from a cold start, time of a prediction, sizes.

    python benchmarks/export.py

Prints a Markdown table. Each time is the fastest of several runs, with one BLAS thread and NumPy
kernels. "Start" is a whole process that reads one sample, predicts it and prints the result. The
column after each time of the file is the time of phitodeep itself.
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
LOADS = (FILE, MODEL)
WARM = (
    "import timeit; X = np.repeat(X, {}, axis=0); predict(X); "
    "print(1e3 * min(timeit.repeat(lambda: predict(X), number=5, repeat=50)) / 5)"
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
    return float(done.stdout) if "timeit" in arguments[-1] else taken


def main() -> None:
    print(f"Importing NumPy alone: {min(run('-c', 'import numpy') for _ in range(20)):.0f} ms\n")
    head = "network", "start", "phitodeep", "1 sample", "phitodeep", "64 samples", "phitodeep"
    print("|", " | ".join([*head, "net.py", "net.npz"]), "|\n|---" + "|---:" * 8 + "|")
    for name, (builder, X) in networks().items():
        model = builder.build()
        model.build(X.shape[1:])
        model.export_numpy("net.py")
        Path("model.pickle").write_bytes(pickle.dumps(model))
        np.save("x.npy", X)
        start_file = min(run("net.py", "x.npy") for _ in range(20))
        start_model = min(run("-c", MODEL + "print(predict(X))") for _ in range(20))
        cells = [f"{start_file:.0f} ms", f"{start_model:.0f} ms"]
        cells += [f"{run('-c', load + WARM.format(n)):.3g} ms" for n in (1, 64) for load in LOADS]
        cells += [f"{os.path.getsize(file) / 1e3:,.0f} kB" for file in ("net.py", "net.npz")]
        print("|", " | ".join([name, *cells]), "|", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        main()
