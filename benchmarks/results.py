"""Produce the reference results and write them into the docs: `make results DATA=folder`.

    python benchmarks/results.py --data FOLDER      # holds the four IDX files of MNIST
    python benchmarks/results.py                    # downloads MNIST: needs phitodeep[data]
    python benchmarks/results.py --only char_gpt names_mlp     # only these rows

Each row states a model, how it was trained, the result it must reach, and the result it reached.
Rows are kept in docs/results.json. The tables go to docs/_results.md, which docs/results.md and
docs/networks.md include, and the pictures that the examples draw go to docs/pictures.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe

from phitodeep.data import load_mnist
from phitodeep.layers import Dense
from phitodeep.layers.initialization import InitType, Xavier
from phitodeep.loss import CategoricalCrossEntropy
from phitodeep.model import Sequential, SequentialBuilder
from phitodeep.model.callbacks import LambdaCallback, StopTraining
from phitodeep.optimization.optimizers import SGD, Adam

Row = tuple[str, str, str, bool]  # what, required result, reached result, whether it was met
DOCS = Path(__file__).parent.parent / "docs"


@dataclass
class Result:
    what: str
    wanted: str
    got: str
    met: bool
    seconds: float
    machine: str = "not recorded"


def digits(*hidden: int, alpha: float, batch: int, epochs: int, seed: int) -> Sequential:
    """784 - hidden - 10 with ReLU between the layers and softmax at the end."""
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


def five_epochs(data: tuple[np.ndarray, ...], *_: Any) -> Row:
    model = digits(128, 64, alpha=0.001, batch=64, epochs=5, seed=0)
    model.train(*data)
    got = model.evaluate(*data[2:])["accuracy"]
    return "784-128-64-10, Adam 0.001, batch 64, 5 epochs", ">= 0.97", f"{got:.4f}", got >= 0.97


def quickstart_at_the_original_rate(data: tuple[np.ndarray, ...], *_: Any) -> Row:
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


def first_8000(data: tuple[np.ndarray, ...], *_: Any) -> Row:
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


def within_20_epochs(data: tuple[np.ndarray, ...], *_: Any) -> Row:
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


def descent(*_: Any) -> Row:
    """Minimize (w - 5)^2, where w is the weight of a Dense layer with input 1."""
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


EXAMPLES = Path(__file__).parent.parent / "examples"


def run_example(name: str, **options: Any) -> Any:
    """Run an example's `main` and return its result."""
    return importlib.import_module(name).main(**options)


def picture(name: str) -> str:
    return str(DOCS / "pictures" / f"{name}.png")


def mnist_cnn(data: tuple[np.ndarray, ...], folder: str | None) -> Row:
    got = run_example("mnist_cnn", data=folder)
    what = "MNIST: conv 32, pool, conv 64, pool, dropout, dense; 6 epochs"
    return what, ">= 99.2 %", f"{got:.2%}", got >= 0.992


def char_gpt(*_: Any) -> Row:
    got = run_example("char_gpt")
    what = "tinyshakespeare: GPT of 4 layers, 128 wide, context 64; 2,000 steps of 12"
    return what, "<= 1.91", f"{got:.4f}", got <= 1.91


def char_lstm(*_: Any) -> Row:
    got = run_example("char_lstm")
    return "tinyshakespeare: an LSTM", "<= 1.75", f"{got:.4f}", got <= 1.75


def names_bigram(*_: Any) -> Row:
    counted, learnt = run_example("names_bigram")
    shown = f"{counted:.4f}; {learnt:.4f}"
    met = round(counted, 4) == 2.4546 and abs(learnt - counted) < 0.002
    return "names: bigrams by counting, plus one; the same as a net", "2.4546; the same", shown, met


def names_mlp(*_: Any) -> Row:
    got = run_example("names_mlp")
    return "names: MLP of 12,297 parameters with BatchNorm", "<= 2.12", f"{got:.4f}", got <= 2.12


def names_transformer(*_: Any) -> Row:
    got = run_example("names_transformer")
    return "names: transformer of 4 layers, 64 wide", "<= 2.0", f"{got:.4f}", got <= 2.0


def spirals(*_: Any) -> Row:
    got = run_example("spirals", picture=picture("spirals"))
    return "three spirals: 3,000 new points", ">= 99 %", f"{got:.2%}", got >= 0.99


def vae_mnist(data: tuple[np.ndarray, ...], folder: str | None) -> Row:
    loss, mmd = run_example("vae_mnist", data=folder, picture=picture("vae"))
    shown = f"{loss:.2f}; {mmd['samples']:.4f} of {mmd['digits with shuffled pixels']:.4f}"
    met = loss <= 107 and mmd["samples"] < mmd["digits with shuffled pixels"] / 5
    what = "MNIST: variational autoencoder 784-400-20; MMD of samples, of shuffled pixels"
    return what, "<= 107 nats; a fifth", shown, met


def diffusion_moons(*_: Any) -> Row:
    mmd = run_example("diffusion_moons", picture=picture("diffusion"))
    got, most = mmd["held-out points and samples"], mmd["19 of 20 random splits, at most"]
    what = "moons: diffusion model; MMD of its samples and held-out points"
    return what, "<= 19 of 20 random splits", f"{got:.6f} of {most:.6f}", got <= most


def moons(*_: Any) -> Row:
    got = run_example("moons", picture=picture("moons"))
    return "moons, 2-16-16-1 tanh, 337 parameters", "100 %", f"{got:.0%}", got == 1


def two_heads(*_: Any) -> Row:
    digit, answer = run_example("two_heads")
    what = "two inputs, two outputs: digits named, and questions about them answered"
    return what, ">= 0.92; >= 0.94", f"{digit:.3f}; {answer:.3f}", digit >= 0.92 and answer >= 0.94


def translation(*_: Any) -> Row:
    got = run_example("translation")
    what = "a toy language: encoder and decoder; translated without a mistake"
    return what, ">= 0.95", f"{got:.3f}", got >= 0.95


def unet_shapes(*_: Any) -> Row:
    got = run_example("unet_shapes")
    return (
        "U-Net: shapes in noise; mean intersection over union",
        ">= 0.9",
        f"{got:.3f}",
        got >= 0.9,
    )


def dense_and_gated(*_: Any) -> Row:
    got = run_example("dense_and_gated")
    what = "dense connections or gates: digits named"
    return what, ">= 0.93 for both", "{:.3f}; {:.3f}".format(*got), min(got) >= 0.93


def siamese_digits(*_: Any) -> Row:
    got = run_example("siamese_digits")
    what = "siamese network: digits named, by the nearest mean of ten examples"
    return what, ">= 0.8", f"{got:.3f}", got >= 0.8


def gan_moons(*_: Any) -> Row:
    apart, usual = run_example("gan_moons")
    what = "GAN: MMD of drawn moons and data, and of two samples of the data"
    return what, "at most twice", f"{apart:.3f}; {usual:.3f}", apart <= 2 * usual


def actor_critic(*_: Any) -> Row:
    costs = run_example("actor_critic")
    shown, shortest = "; ".join(f"{cost:.1f}" for cost in costs), 0.7
    what = "actor and critic: the cost of a walk around a cliff, for 3 seeds"
    return what, f"{shortest}, the shortest", shown, max(costs) < shortest + 0.05


def two_head_autoencoder(*_: Any) -> Row:
    left, named = run_example("two_head_autoencoder")
    what = "autoencoder of digits, 16 numbers: variance that is left; digits named"
    return what, "<= 55 %; >= 0.9", f"{left:.0%}; {named:.3f}", left <= 0.55 and named >= 0.9


def multitask_table(*_: Any) -> Row:
    alone, others = run_example("multitask_table")
    what = "a target with few rows: accuracy alone, and with two other targets"
    return what, "better by 0.1", f"{alone:.3f}; {others:.3f}", others >= alone + 0.1


TABLES: dict[str, tuple[Callable[..., Row], ...]] = {
    "digits": (
        *(five_epochs, quickstart_at_the_original_rate, first_8000, within_20_epochs),
        descent,
    ),
    "scripts": (
        *(mnist_cnn, char_gpt, char_lstm, names_bigram, names_mlp, names_transformer),
        *(spirals, moons, vae_mnist, diffusion_moons),
    ),
    "networks": (
        *(two_heads, translation, unet_shapes, dense_and_gated, siamese_digits, gan_moons),
        *(actor_critic, two_head_autoencoder, multitask_table),
    ),
}
TASKS = {task.__name__: task for tasks in TABLES.values() for task in tasks}


def table(rows: list[Result]) -> str:
    head = "| what | must reach | reached | met | seconds |\n|---|---|---|---|---:|\n"
    return head + "".join(
        f"| {r.what} | {r.wanted} | {r.got} | {'yes' if r.met else '**no**'} | {r.seconds:.1f} |\n"
        for r in rows
    )


def write(results: dict[str, Result], folder: Path) -> None:
    """Update the stored rows and write the tables of all of them."""
    file = folder / "results.json"
    kept = json.loads(file.read_text()) if file.exists() else {}
    kept |= {name: asdict(result) for name, result in results.items()}
    file.write_text(json.dumps({name: kept[name] for name in TASKS if name in kept}, indent=1))
    parts = []
    for name, tasks in TABLES.items():
        rows = [Result(**kept[task.__name__]) for task in tasks if task.__name__ in kept]
        machines = " And on: ".join(dict.fromkeys(row.machine for row in rows))
        text = f"Created by `make results` on: {machines}.\n\n{table(rows)}"
        parts.append(f"<!-- --8<-- [start:{name}] -->\n\n{text}\n<!-- --8<-- [end:{name}] -->\n")
    (folder / "_results.md").write_text("\n".join(parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder with the four IDX files of MNIST")
    parser.add_argument("--only", nargs="+", choices=TASKS, metavar="ROW", default=list(TASKS))
    parser.add_argument("--out", type=Path, default=DOCS, help="where the tables go")
    options = parser.parse_args()
    sys.path.insert(0, str(EXAMPLES))
    digits = {task.__name__ for task in TABLES["digits"][:4]} & set(options.only)
    data = load_mnist("full", folder=options.data) if digits else None
    met = True
    for name in options.only:
        began = time.perf_counter()
        row = TASKS[name](data, options.data)
        result = Result(*row, time.perf_counter() - began, describe())
        print(result, flush=True)
        write({name: result}, options.out)
        met &= result.met
    if not met:
        sys.exit("some required results were not reached")


if __name__ == "__main__":
    main()
