"""Time frameworks side by side: one process each, interleaved blocks, idle or busy machine."""

from __future__ import annotations

import importlib
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BLOCK = 0.3  # seconds per block on an idle machine
LIMIT = 2.0  # seconds after which a block ends early
MIN_CALLS = 3  # predictions per block
PROBE = 10  # a block's first call runs 1 / PROBE of the steps
BUSY_BLOCKS = 3  # blocks in a row next to a busy process: a collapse may come and go


@dataclass(frozen=True)
class Entry:
    """A framework with one of its settings, which runs in its own process."""

    module: str  # in benchmarks/frameworks
    variant: str
    label: str
    environment: tuple[tuple[str, str], ...] = ()
    threads: int | None = None  # None: the framework's default


@dataclass
class Timing:
    """The measurements of an entry."""

    entry: Entry
    loss: float | None
    seconds: list[float] = field(default_factory=list)  # of one call, block by block
    busy: list[float] = field(default_factory=list)  # the same, next to a busy process

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return low, high


@dataclass(frozen=True)
class Work:
    """What to time: steps, epochs or predictions of a workload."""

    workload: str
    kind: str  # step, epoch or predict
    batch: int
    samples: int


def wait_until_idle(limit: float = 0.15, most: float = 5.0) -> bool:
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


# It ends with its parent, even if the parent is killed.
SPIN = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    for _ in range(10**6): pass"


@contextmanager
def busy_process() -> Iterator[subprocess.Popen[bytes]]:
    """Keep one core busy with a Python process that computes in a loop."""
    process = subprocess.Popen([sys.executable, "-S", "-c", SPIN, str(os.getpid())])
    try:
        time.sleep(0.2)  # until it runs
        yield process
    finally:
        process.kill()
        process.wait()


def work(entry: Entry, of: Work) -> None:
    """Run in a process of its own: for each input line, time a block of calls."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keep what a framework prints out of the answers
    import workloads

    options = {} if entry.threads is None else {"threads": entry.threads}
    framework = importlib.import_module(f"frameworks.{entry.module}")
    side = framework.Side(of.workload, entry.variant, **options)
    X, y = workloads.data(of.workload, of.samples)
    steps = -(-of.samples // of.batch)
    few = steps if of.kind == "predict" else max(1, steps // PROBE)
    first = slice(few * of.batch)
    call: Callable[[], Any]
    probe: Callable[[], Any]
    if of.kind == "predict":
        loss = None
        call = probe = partial(side.predict, X[: of.batch].copy())
    else:
        loss = side.loss(X, y)
        run = side.train if of.kind == "step" else side.epoch
        call, probe = partial(run, X, y, of.batch), partial(run, X[first], y[first], of.batch)
    call()
    call()
    calls = max(MIN_CALLS if of.kind == "predict" else 1, round(BLOCK / seconds_of(call)))
    print(json.dumps(loss), file=out, flush=True)
    for _ in sys.stdin:
        seconds = block(call, probe, calls, steps / few)
        print(json.dumps(seconds / steps if of.kind == "step" else seconds), file=out, flush=True)


def seconds_of(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def block(
    call: Callable[[], Any],
    probe: Callable[[], Any],
    calls: int,
    ratio: float,
    limit: float = LIMIT,
) -> float:
    """Mean seconds of a call, over `calls` calls or until `limit`.

    If the probe, a call of 1 / ratio of the work, shows that one call would take too long, its own
    time counts instead: a framework may become hundreds of times slower on a busy machine.
    """
    estimate = ratio * seconds_of(probe)
    if estimate > limit:
        return estimate
    spent = [seconds_of(call)]
    while len(spent) < calls and sum(spent) < limit:
        spent.append(seconds_of(call))
    return sum(spent) / len(spent)


class Worker:
    """A process that times blocks of an entry's calls; `answer` is its first line, its loss."""

    def __init__(self, entry: Entry, of: Work) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, json.dumps([asdict(entry), asdict(of)])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "ignore", **dict(entry.environment)},
        )
        self.answer = self.line()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def block(self) -> float:
        print(file=self.process.stdin, flush=True)
        return json.loads(self.line())

    def close(self) -> str:
        """End the process; return the last line of what it wrote to stderr."""
        return "".join(self.process.communicate()[1].strip().splitlines()[-1:])


def compare(
    entries: list[Entry], of: Work, rounds: int, *, busy: bool = False
) -> tuple[list[Timing], int]:
    """The timing of each entry, and the number of idle blocks before which the machine was busy.

    With `busy`, each block is followed by BUSY_BLOCKS next to a busy process.
    """
    pairs: list[tuple[Timing, Worker]] = []
    noisy = 0
    with ExitStack() as stack:
        for entry in entries:
            worker = Worker(entry, of)
            if worker.answer:
                stack.callback(worker.close)
                pairs.append((Timing(entry, json.loads(worker.answer)), worker))
            else:
                print(f"  {entry.label} cannot run {of.workload}: {worker.close()}", flush=True)
        _check_same_loss([timing for timing, _ in pairs], of.workload)
        for _ in range(rounds):
            for timing, worker in random.sample(pairs, len(pairs)):
                noisy += not wait_until_idle()
                timing.seconds.append(worker.block())
                if busy:
                    with busy_process():
                        timing.busy += [worker.block() for _ in range(BUSY_BLOCKS)]
    return [timing for timing, _ in pairs], noisy


def _check_same_loss(timings: list[Timing], workload: str) -> None:
    losses = {t.entry.label: t.loss for t in timings if t.loss is not None}
    if losses and not math.isclose(max(losses.values()), min(losses.values()), rel_tol=1e-3):
        raise SystemExit(f"{workload}: the frameworks do not compute the same loss: {losses}")


if __name__ == "__main__":
    entry, of = json.loads(sys.argv[1])
    work(Entry(**entry), Work(**of))
