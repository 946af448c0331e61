"""The reference results on the whole of MNIST, written into the docs: `make results DATA=folder`.

    python benchmarks/results.py --data FOLDER      # holds the four IDX files of MNIST
    python benchmarks/results.py                    # gets MNIST through phitodeep[data]

Every row is a model, how it was trained, what it must reach, and what it reached here. The
table goes to docs/_results.md, which docs/results.md shows.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from phitodeep.data import load_mnist, make_moons
from phitodeep.layers import Dense
from phitodeep.loss import CategoricalCrossEntropy
from phitodeep.model import Sequential, SequentialBuilder
from phitodeep.optimization.callbacks import LambdaCallback, StopTraining
from phitodeep.optimization.initialization import InitType, Xavier
from phitodeep.optimization.optimizers import SGD, Adam

DOCS = Path(__file__).parent.parent / "docs"


@dataclass
class Result:
    what: str
    wanted: str
    got: str
    met: bool
    seconds: float


def digits(*hidden: int, alpha: float, batch: int, epochs: int, seed: int) -> Sequential:
    """784 - hidden - 10 with ReLU between and softmax at the end."""
    builder = SequentialBuilder(28, 28, seed=seed).flatten()
    for size in hidden:
        builder = builder.dense(size).relu()
    return (
        builder.dense(10)
        .softmax()
        .optimizer(Adam(alpha))
        .loss(CategoricalCrossEntropy())
        .metrics("accuracy")
        .batch(batch)
        .epochs(epochs)
        .build()
    )


def five_epochs(data: tuple[np.ndarray, ...]) -> tuple[str, str, str, bool]:
    model = digits(128, 64, alpha=0.001, batch=64, epochs=5, seed=0)
    model.train(*data)
    got = model.evaluate(*data[2:])["accuracy"]
    return "784-128-64-10, Adam 0.001, batch 64, 5 epochs", ">= 0.97", f"{got:.4f}", got >= 0.97


def quickstart_at_the_original_rate(data: tuple[np.ndarray, ...]) -> tuple[str, str, str, bool]:
    model = (
        SequentialBuilder()
        .flatten()
        .dense(784, 128)
        .relu()
        .dense(128, 64, Xavier(InitType.NORMAL))
        .relu()
        .dense(64, 10, Xavier(InitType.NORMAL))
        .softmax()
        .optimizer(Adam())
        .loss(CategoricalCrossEntropy())
        .metrics("accuracy")
        .alpha(0.05)
        .epochs(5)
        .batch(64)
        .seed(0)
        .build()
    )
    model.train(*data)
    got = model.evaluate(*data[2:])["accuracy"]
    return "the original's quickstart, alpha(0.05), 5 epochs", ">= 0.85", f"{got:.4f}", got >= 0.85


def first_8000(data: tuple[np.ndarray, ...]) -> tuple[str, str, str, bool]:
    X, y, X_test, y_test = data
    accuracies = []
    for seed in range(5):
        model = digits(128, 64, alpha=0.001, batch=32, epochs=10, seed=seed)
        model.train(X[:8000], y[:8000], verbose=0)
        accuracies.append(model.evaluate(X_test[:1000], y_test[:1000])["accuracy"])
    got = statistics.median(accuracies)
    shown = f"{got:.3f} (of {', '.join(f'{a:.3f}' for a in sorted(accuracies))})"
    what = "784-128-64-10 on the first 8,000, batch 32, 10 epochs, first 1,000 tested, 5 seeds"
    return what, "median >= 0.94", shown, got >= 0.94


def within_20_epochs(data: tuple[np.ndarray, ...]) -> tuple[str, str, str, bool]:
    best = [0.0, 0]

    def stop(_: object, epoch: int, logs: dict[str, float]) -> None:
        if logs["test_accuracy"] > best[0]:
            best[:] = logs["test_accuracy"], epoch
        if best[0] >= 0.9786:
            raise StopTraining

    model = digits(256, 128, 10, alpha=0.001, batch=32, epochs=20, seed=0)
    model.train(*data, callbacks=[LambdaCallback(on_epoch_end=stop)])
    what = "784-256-128-10-10, Adam 0.001, batch 32"
    shown = f"{best[0]:.4f} after epoch {best[1]}"
    return what, ">= 0.9786 within 20 epochs", shown, best[0] >= 0.9786


def moons(_: object) -> tuple[str, str, str, bool]:
    X, y = make_moons(n=100, noise=0.1, seed=0)
    model = (
        SequentialBuilder(2, seed=0)
        .dense(16)
        .tanh()
        .dense(16)
        .tanh()
        .dense(1)
        .sigmoid()
        .loss("binary_cross_entropy")
        .optimizer(Adam(0.02))
        .metrics("accuracy")
        .batch(10)
        .epochs(100)
        .build()
    )
    history = model.train(X, y, verbose=0)
    got = model.evaluate(X, y)["accuracy"]
    losses = [train for train, _ in history]
    shown = f"{got:.0%}, loss {losses[0]:.3f} -> {losses[49]:.5f} -> {losses[-1]:.5f}"
    met = got == 1 and losses[-1] < losses[49] < losses[0] and model.count_params() == 337
    return f"moons, 2-16-16-1 tanh, {model.count_params()} parameters", "100 %", shown, met


def descent(_: object) -> tuple[str, str, str, bool]:
    """w of (w - 5)^2 as the weight of a Dense layer fed with 1."""
    layer = Dense(1, 1, bias=False)
    layer.build((1,), dtype="float64")
    layer.W = [[0.0]]
    optimizer, steps = SGD(0.1), []
    for _step in range(4):
        w = layer.forward(np.ones((1, 1)))
        layer.backward(2 * (w - 5))
        optimizer.step([layer])
        steps.append(f"{layer.W[0, 0]:.15g}")
    wanted = "1, 1.8, 2.44, 2.952"
    got = ", ".join(steps)
    return "SGD at rate 0.1 on (w - 5)^2 from w = 0", wanted, got, got == wanted


TASKS: tuple[Callable[..., tuple[str, str, str, bool]], ...] = (
    five_epochs,
    quickstart_at_the_original_rate,
    first_8000,
    within_20_epochs,
    moons,
    descent,
)


def write(results: list[Result], folder: Path) -> None:
    rows = "\n".join(
        f"| {r.what} | {r.wanted} | {r.got} | {'yes' if r.met else '**no**'} | {r.seconds:.1f} |"
        for r in results
    )
    head = (
        f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}; "
        "made by `make results`.\n\n"
        "| what | must reach | reached | met | seconds |\n|---|---|---|---|---:|\n"
    )
    (folder / "_results.md").write_text(head + rows + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder with the four IDX files of MNIST")
    parser.add_argument("--out", type=Path, default=DOCS, help="where _results.md goes")
    options = parser.parse_args()
    data = load_mnist("full", folder=options.data)
    results = []
    for task in TASKS:
        began = time.perf_counter()
        results.append(Result(*task(data), time.perf_counter() - began))
        print(results[-1])
    write(results, options.out)
    if not all(r.met for r in results):
        sys.exit("some results were not reached")


if __name__ == "__main__":
    main()
