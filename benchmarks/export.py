"""Compare exported files with phitodeep: time from a cold start, time of a prediction, sizes.

    python benchmarks/export.py

Prints two Markdown tables, of the sizes and the times from a cold start, and of the times of
predictions. Each time is the fastest of several runs, with one BLAS thread and NumPy kernels.
"Start" is a whole process that reads one sample, predicts it and prints the result. phitodeep loads
the model from the file that `model.save` wrote.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

import numpy as np

from phitodeep.model import SequentialBuilder
from phitodeep.model import architectures as models

ENVIRONMENT = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PHITODEEP_KERNELS": "numpy"}
READ = "import numpy as np; X = np.load('x.npy'); "
FILE = READ + "from net import predict; "
MODEL = READ + "import phitodeep; predict = phitodeep.load('model.safetensors').predict; "
KINDS = {"file": FILE, "phitodeep": MODEL}
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
    sizes = table("network", "net.py", "net.npz", "start, file", "start, phitodeep")
    columns = [f"{n}, {which}" for n in ("1 sample", "64 samples") for which in KINDS]
    times = table("network", *columns)
    for name, (builder, X) in networks().items():
        model = builder.build()
        model.build(X.shape[1:])
        model.export_numpy("net.py")
        model.save("model.safetensors")
        np.save("x.npy", X)
        row = [f"{os.path.getsize(file) / 1e3:,.0f} kB" for file in ("net.py", "net.npz")]
        starts = ["net.py", "x.npy"], ["-c", MODEL + "print(predict(X))"]
        row += [f"{min(run(*start) for _ in range(20)):.0f} ms" for start in starts]
        sizes.append([name, *row])
        loads = [load + WARM.format(n) for n in (1, 64) for load in KINDS.values()]
        times.append([name, *(f"{run('-c', load):.3g} ms" for load in loads)])
    for rows in (sizes, times):
        print(*(f"| {' | '.join(row)} |" for row in rows), sep="\n", end="\n\n")


def table(*columns: str) -> list[list[str]]:
    """Return the rows of a table that has its head only."""
    return [list(columns), ["---", *["---:"] * (len(columns) - 1)]]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        main()
