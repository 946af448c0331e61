"""An epoch of 784-128-64-10 through `model.train`, beside PyTorch: `make bench`.

Each framework runs in a process of its own; rounds visit them in random order, and each round
waits until the machine is idle. PyTorch runs eagerly with its fused Adam, once with batches
indexed by hand and once through a DataLoader. First, all must compute the same loss from the same
weights and data. Prints medians of samples a second and their ratio to the best peer, and
writes docs/_epoch.md. PyTorch is not installed by the project: pip install torch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

SIZES, BATCH, N = (784, 128, 64, 10), 64, 12_800
DOCS = Path(__file__).parent.parent / "docs"
Epoch = Callable[[], float]  # trains once through the data, and returns the mean loss


def problem() -> tuple[np.ndarray, np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
    """Data as sparse as digits are, and He weights."""
    rng = np.random.default_rng(0)
    X = rng.random((N, SIZES[0]), dtype=np.float32) * (rng.random((N, SIZES[0])) < 0.2)
    weights = [
        (rng.standard_normal((i, o)) * np.sqrt(2 / i), np.zeros(o))
        for i, o in itertools.pairwise(SIZES)
    ]
    return X.astype(np.float32), rng.integers(0, 10, N), weights


def phitodeep_epoch() -> tuple[Epoch, float]:
    from phitodeep.loss import CategoricalCrossEntropy
    from phitodeep.model import SequentialBuilder
    from phitodeep.optimization.optimizers import Adam

    X, y, weights = problem()
    builder = SequentialBuilder(SIZES[0], seed=0)
    for k, size in enumerate(SIZES[1:]):
        builder = builder.dense(size)
        builder = builder.relu() if k < len(weights) - 1 else builder.softmax()
    builder = builder.optimizer(Adam(0.001)).loss(CategoricalCrossEntropy()).batch(BATCH)
    model = builder.build()
    for layer, (W, b) in zip(model.layers[::2], weights, strict=True):
        layer.W, layer.b = W, b
    first = model.evaluate(X, y)["loss"]
    return lambda: model.train(X, y, epochs=1, verbose=0)[0][0], first


def torch_epoch(loader: bool) -> tuple[Epoch, float]:
    import torch
    import torch.nn.functional as F
    from torch.utils.data import DataLoader, TensorDataset

    X, y, weights = problem()
    layers: list[torch.nn.Module] = []
    for W, _ in weights:
        linear = torch.nn.Linear(*W.shape)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(W.T))
            linear.bias.zero_()
        layers += [linear, torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    X_t, y_t = torch.from_numpy(X), torch.from_numpy(y)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001, fused=True)
    batches = DataLoader(TensorDataset(X_t, y_t), batch_size=BATCH, shuffle=True)
    with torch.inference_mode():
        first = float(F.cross_entropy(model(X_t), y_t))

    def by_hand():
        for rows in torch.randperm(N).split(BATCH):
            yield X_t[rows], y_t[rows]

    def epoch() -> float:
        total = 0.0
        for Xb, yb in batches if loader else by_hand():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(Xb), yb)
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(Xb)
        return total / N

    return epoch, first


PEERS: dict[str, Callable[[], tuple[Epoch, float]]] = {
    "phitodeep": phitodeep_epoch,
    "PyTorch, fused Adam, indexing by hand": lambda: torch_epoch(loader=False),
    "PyTorch, fused Adam, DataLoader": lambda: torch_epoch(loader=True),
}


def work(name: str) -> None:
    """In a process of its own: an epoch for each line that comes in."""
    epoch, first = PEERS[name]()
    epoch()
    print(json.dumps(first), flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        epoch()
        print(json.dumps(time.perf_counter() - began), flush=True)


def wait_until_idle(limit: float = 0.15, most: float = 20.0) -> bool:
    """Whether, within `most` seconds, the processors had little else to do for a moment."""

    def busy() -> tuple[int, int]:
        fields = [int(v) for v in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]

    if not Path("/proc/stat").exists():
        time.sleep(0.2)
        return True
    end = time.perf_counter() + most
    while time.perf_counter() < end:
        (all0, idle0), _, (all1, idle1) = busy(), time.sleep(0.2), busy()
        if 1 - (idle1 - idle0) / max(1, all1 - all0) < limit:
            return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if options.worker:
        work(options.worker)
        return
    processes = {
        name: subprocess.Popen(
            [sys.executable, __file__, "--worker", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in PEERS
    }
    firsts = {name: json.loads(p.stdout.readline()) for name, p in processes.items()}
    print({name: round(value, 6) for name, value in firsts.items()}, "first losses")
    if max(firsts.values()) - min(firsts.values()) > 1e-4:
        sys.exit("the frameworks do not compute the same loss")
    seconds: dict[str, list[float]] = {name: [] for name in PEERS}
    noisy = 0
    for _ in range(options.rounds):
        for name in random.sample(list(PEERS), len(PEERS)):
            noisy += not wait_until_idle()
            print(file=processes[name].stdin, flush=True)
            seconds[name].append(json.loads(processes[name].stdout.readline()))
    for process in processes.values():
        process.communicate()
    speeds = {name: N / statistics.median(s) for name, s in seconds.items()}
    best_peer = max(speed for name, speed in speeds.items() if name != "phitodeep")
    rows = []
    for name, s in seconds.items():
        low, _, high = statistics.quantiles(s, n=4)
        row = f"| {name} | {speeds[name]:,.0f} | {N / high:,.0f} to {N / low:,.0f} | "
        rows.append(row + f"{speeds[name] / best_peer:.2f} |")
    noise = f" The machine was busy before {noisy} of the blocks." if noisy else ""
    table = (
        f"Medians of {options.rounds} interleaved epochs of {N:,} samples, batch {BATCH}, made by "
        f"`make bench`.{noise}\n\n"
        "| | samples/s | middle half | to the best peer |\n|---|---:|---:|---:|\n"
    ) + "\n".join(rows)
    print(table)
    (DOCS / "_epoch.md").write_text(table + "\n")


if __name__ == "__main__":
    main()
