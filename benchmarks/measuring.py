"""Time frameworks side by side: one process each, interleaved blocks, an idle machine."""

from __future__ import annotations

import importlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BLOCK, MIN_CALLS = 0.3, 3  # seconds per block, and its minimum number of predictions


@dataclass(frozen=True)
class Entry:
    """A framework with one of its settings, which runs in its own process."""

    module: str  # in benchmarks/frameworks
    variant: str
    label: str
    environment: tuple[tuple[str, str], ...] = ()


@dataclass
class Timing:
    """The measurements of an entry."""

    entry: Entry
    loss: float | None
    seconds: list[float] = field(default_factory=list)  # of one call, block by block

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return low, high


def wait_until_idle(limit: float = 0.15, most: float = 20.0) -> bool:
    """Wait until the processors are nearly idle; False if that takes more than `most` seconds."""

    def busy() -> tuple[int, int]:
        fields = [int(v) for v in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]

    if not Path("/proc/stat").exists():
        time.sleep(0.2)
        return True
    end = time.perf_counter() + most
    while time.perf_counter() < end:
        (all0, idle0), _, (all1, idle1) = busy(), time.sleep(0.1), busy()
        if 1 - (idle1 - idle0) / max(1, all1 - all0) < limit:
            return True
    return False


def work(module: str, variant: str, workload: str, kind: str, batch: int, samples: int) -> None:
    """Run in a process of its own: for each input line, time a block of calls."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keep what a framework prints out of the answers
    import workloads

    side = importlib.import_module(f"frameworks.{module}").Side(workload, variant)
    X, y = workloads.data(workload, samples)
    call: Callable[[], Any]
    if kind == "predict":
        loss, call = None, partial(side.predict, X[:batch].copy())
    else:
        loss = side.loss(X, y)
        call = partial(side.train if kind == "step" else side.epoch, X, y, batch)
    call()
    call()
    began = time.perf_counter()
    call()
    each = time.perf_counter() - began
    calls = max(MIN_CALLS if kind == "predict" else 1, round(BLOCK / each))
    print(json.dumps(loss), file=out, flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        for _ in range(calls):
            call()
        print(json.dumps((time.perf_counter() - began) / calls), file=out, flush=True)


def compare(
    entries: list[Entry], workload: str, kind: str, batch: int, samples: int, rounds: int
) -> tuple[list[Timing], int]:
    """The timing of each entry, and the number of blocks before which the machine was busy."""
    timings: list[Timing] = []
    processes: list[subprocess.Popen[str]] = []
    for entry in entries:
        arguments = (entry.module, entry.variant, workload, kind, str(batch), str(samples))
        process = subprocess.Popen(
            [sys.executable, __file__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "ignore", **dict(entry.environment)},
        )
        line = process.stdout.readline() if process.stdout else ""
        if not line:
            error = process.communicate()[1].strip().splitlines()[-1:]
            print(f"  {entry.label} cannot run {workload}: {' '.join(error)}", flush=True)
            continue
        timings.append(Timing(entry, json.loads(line)))
        processes.append(process)
    losses = [t.loss for t in timings if t.loss is not None]
    if losses and max(losses) - min(losses) > 1e-3 * max(losses):
        found = {t.entry.label: t.loss for t in timings}
        raise SystemExit(f"{workload}: the frameworks do not compute the same loss: {found}")
    noisy = 0
    pairs = list(zip(timings, processes, strict=True))
    for _ in range(rounds):
        for timing, process in random.sample(pairs, len(pairs)):
            assert process.stdin is not None
            assert process.stdout is not None
            noisy += not wait_until_idle()
            print(file=process.stdin, flush=True)
            timing.seconds.append(json.loads(process.stdout.readline()))
    for process in processes:
        process.communicate()
    return timings, noisy


if __name__ == "__main__":
    work(*sys.argv[1:5], *map(int, sys.argv[5:]))
