"""Measure how a training step scales over processes, and hold a model against it: `make scaling`.

    python benchmarks/scaling.py [--only W1 W4 ...] [--rounds 5] [--out FOLDER]

The workloads are those of `make bench` (workloads.py). Two jobs run for each of them, one under
`mpiexec -n 1` and one under `mpiexec -n 2`, and their blocks take turns. BLAS and phitodeep use one
thread per process. The settings:

    whole, half     one rank: the batch of workloads.py, and half of it
    eighth          an eighth of it, to see how far the model may be trusted with small shares
    apart           two processes at the same time, each with half a batch, which exchange nothing
    overlap         two ranks with the batch between them; buckets leave during the backward pass
    after           the same, but buckets leave after the backward pass
    weak            two ranks with a whole batch each
    exchange        two ranks: only the exchange of the gradients, and an Allreduce of their bytes

Then comes the network: Allreduces of several sizes. Of all that, scaling_model.py takes two steps
(whole, half) and two messages, predicts the others, and simulates up to 1,000 ranks. Values go to
docs/scaling.json, tables to docs/_scaling.md and the picture to docs/pictures/scaling.png.
`--report` writes tables and picture again, from stored measurements.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scaling_model as sm
import scaling_report
from entries import BLAS_THREADS, ours
from machine import describe
from measuring import HERE
from workloads import BATCH, WHAT, data, gemm_flops

DOCS = HERE.parent / "docs"
BLOCK = 0.4  # seconds per block of steps
STEPS = {"W1": 100, "W2": 100, "W3": 12, "W4": 8, "W5": 12, "W6": 12}  # per epoch
EXCHANGES = 15  # per block, of each kind
OWN_CORE = 0.92  # the share of a block's time in which each rank must have had a core
TRIES = 4  # of a block, until that is so; then the best of them counts
JOBS = {
    1: ("whole", "half", "eighth"),
    2: ("apart", "overlap", "after", "weak", "exchange"),
}
PLAIN = ("whole", "half", "eighth", "apart")  # settings without DataParallel
SIZES = [1 << i for i in range(6, 25, 2)]  # bytes: 64 to 16 MiB
ATTEMPTS = 3  # a disturbed measurement may show a large message as faster than a small one


def batch_of(setting: str, workload: str) -> int:
    """Return the batch that a setting passes to `train`."""
    whole = BATCH[workload]
    shares = {"half": whole // 2, "eighth": whole // 8, "apart": whole // 2, "weak": 2 * whole}
    return shares.get(setting, whole)


def layers_of(model: Any) -> list[sm.Layer]:
    """Return the layers that compute or have parameters, with the numbers that the model needs."""
    found = []
    for path, layer in model.walk():
        if layer.children():
            continue
        sizes: dict[bool, list[int]] = {True: [], False: []}
        for name, a in layer.params.items():
            sizes[layer._declared[name].decay].append(a.size)
        if layer.flops() or layer.params:
            name, parts = f"{path} {type(layer).__name__}", (tuple(s) for s in sizes.values())
            found.append(sm.Layer(name, layer.flops(), *parts))
    return found


# --- in the processes of a job -------------------------------------------------------------------


def serve(workload: str) -> None:
    """Run in each process of a job: answer each line of rank 0's input with seconds, as JSON."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keep what phitodeep prints out of the answers
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    blocks: dict[str, Callable[[], Any]] = {}
    for setting in asked(comm):
        if setting not in blocks:
            blocks[setting] = prepared(setting, workload, comm)
        comm.Barrier()
        began, had = time.perf_counter(), time.process_time()
        answer = blocks[setting]()
        share = (time.process_time() - had) / (time.perf_counter() - began)
        share = min(comm.allgather(share))  # a rank that waits keeps its core busy, too
        if comm.rank == 0:
            print(json.dumps([answer, share]), file=out, flush=True)


def asked(comm: Any) -> Iterator[str]:
    """Yield the lines of rank 0's input in all ranks, which sleep until the next one comes."""
    while True:
        line = sys.stdin.readline().strip() if comm.rank == 0 else ""
        request = comm.Ibarrier()
        while not request.Test():
            time.sleep(1e-3)  # a rank that waits inside MPI would keep a core busy
        line = comm.bcast(line)
        if not line:
            return
        yield line


def prepared(setting: str, workload: str, comm: Any) -> Callable[[], Any]:
    """Return a function that times a block of this setting; all ranks call it together."""
    if setting == "network":
        return lambda: {str(size): seconds_of_allreduce(comm, size) for size in SIZES}
    from frameworks.ours import Side

    side = Side(workload, "", threads=1)
    if setting not in PLAIN:
        from phitodeep.distributed import DataParallel

        side.model = DataParallel(side.model, overlap=setting != "after", timeout=60.0)
    batch = batch_of(setting, workload)
    X, y = data(workload, STEPS[workload] * batch)

    def steps(epochs: int) -> float:
        comm.Barrier()
        began = time.perf_counter()
        options = {"epochs": epochs, "batch_size": batch, "shuffle": False, "verbose": 0}
        side.model.train(X, y, **options, **side.options)
        return (time.perf_counter() - began) / (epochs * STEPS[workload])

    steps(1)
    if setting == "exchange":
        return lambda: exchanges(side.model, comm)
    epochs = comm.bcast(max(1, round(BLOCK / steps(1) / STEPS[workload])))
    return lambda: max(comm.allgather(steps(epochs)))


def seconds_of_allreduce(comm: Any, size: int, times: int = EXCHANGES) -> float:
    """Return the median seconds of an Allreduce in place, in the slowest rank."""
    from mpi4py import MPI

    g = np.zeros(size // sm.ITEM, np.float32)
    return statistics.median(timed(comm, lambda: comm.Allreduce(MPI.IN_PLACE, g), times))


def timed(comm: Any, call: Callable[[], Any], times: int) -> list[float]:
    found = []
    for _ in range(times):
        comm.Barrier()
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return [max(every) for every in zip(*comm.allgather(found), strict=True)]


def exchange_of(model: Any) -> tuple[Callable[[], None], np.ndarray]:
    """Return what a step calls to sum all gradients, and the vector that holds them."""
    packing = model.optimizer._pack(model.layers)
    return partial(model._ranks.exchange.finish, packing, None), packing.g


def exchanges(model: Any, comm: Any) -> dict[str, float]:
    """Return the median seconds of the exchange of all gradients, and of one bare Allreduce.

    They take turns. Both start with a Barrier, so neither waits for a rank that comes late.
    """
    from mpi4py import MPI

    ours, g = exchange_of(model)
    bare = np.zeros_like(g)
    found: dict[str, list[float]] = {"ours": [], "bare": []}
    for _ in range(EXCHANGES):
        g[...] = 0
        found["ours"] += timed(comm, ours, 1)
        found["bare"] += timed(comm, lambda: comm.Allreduce(MPI.IN_PLACE, bare), 1)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


# --- in the process that measures ----------------------------------------------------------------


def mpiexec() -> str:
    """Return the command that starts jobs: the one installed next to this Python, or any."""
    beside = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
    if (found := beside or shutil.which("mpiexec")) is None:
        raise SystemExit('mpiexec is not installed: pip install "phitodeep[mpi]".')
    return found


class Job:
    """Processes under mpiexec that wait for the name of a setting, and answer with its seconds."""

    def __init__(self, ranks: int, workload: str) -> None:
        one = dict.fromkeys(BLAS_THREADS, "1") | dict(ours()[0].environment)
        self.process = subprocess.Popen(
            [mpiexec(), "-n", str(ranks), sys.executable, __file__, "--serve", workload],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "ignore", **one},
        )

    def block(self, setting: str) -> tuple[Any, bool]:
        """Time a block of a setting, again if another process disturbed it; tell if all were."""
        best: tuple[float, Any] = (-1.0, None)
        for _ in range(TRIES):
            answer, share = self.ask(setting)
            best = max(best, (share, answer), key=lambda each: each[0])
            if share >= OWN_CORE:
                break
        return best[1], best[0] < OWN_CORE

    def ask(self, setting: str) -> tuple[Any, float]:
        """Time one block; return the answer, and the share of its time that the ranks computed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(setting, file=self.process.stdin, flush=True)
        if not (answer := self.process.stdout.readline()):
            raise SystemExit(f"{setting} failed:\n{self.process.communicate()[1][-2000:]}")
        value, share = json.loads(answer)
        return value, share

    def close(self) -> None:
        self.process.communicate(timeout=60)


def measured(workload: str, rounds: int) -> dict[str, Any]:
    """Return what the settings of a workload take, interleaved, in seconds."""
    found: dict[str, list[Any]] = {}
    noisy = 0
    with ExitStack() as stack:
        jobs = {ranks: Job(ranks, workload) for ranks in JOBS}
        for job in jobs.values():
            stack.callback(job.close)
        every = [(job, setting) for ranks, job in jobs.items() for setting in JOBS[ranks]]
        for _ in range(rounds):
            for job, setting in random.sample(every, len(every)):
                answer, disturbed = job.block(setting)
                found.setdefault(setting, []).append(answer)
                noisy += disturbed
    exchange = found.pop("exchange")
    result = {name: spread(seconds) for name, seconds in found.items()}
    for kind in ("ours", "bare"):
        result[f"exchange, {kind}"] = spread([each[kind] for each in exchange])
    return {"seconds": result, "noisy": noisy, "blocks": rounds * len(every), "rounds": rounds}


def spread(seconds: list[float]) -> dict[str, float]:
    """Return the median, the smallest and the largest."""
    middle = statistics.median(seconds)
    return {"median": middle, "least": min(seconds), "most": max(seconds)}


def network(rounds: int) -> dict[str, Any]:
    """Return the seconds of Allreduces of two ranks, by bytes."""
    for _ in range(ATTEMPTS):
        job = Job(2, "W1")
        try:
            answers = [job.block("network")[0] for _ in range(rounds)]
        finally:
            job.close()
        found = {n: statistics.median(each[str(n)] for each in answers) for n in SIZES}
        if found[sm.SMALL] < found[sm.LARGE]:
            break
    return {"seconds": {str(size): seconds for size, seconds in found.items()}}


def described(workload: str) -> dict[str, Any]:
    """Return what the model needs to know of a workload: batch, FLOPs and layers."""
    from frameworks.ours import Side

    layers = layers_of(Side(workload, "").model)
    return {
        "batch": BATCH[workload],
        "flops": gemm_flops(workload, 1),
        "layers": [[each.name, each.flops, each.decayed, each.plain] for each in layers],
    }


def measure(only: list[str], rounds: int, found: dict[str, Any], file: Path) -> None:
    """Measure the network and these workloads, and store each result at once."""
    began = time.perf_counter()
    print(describe(), flush=True)
    found |= {"machine": describe(), "load": os.getloadavg()[0], "network": network(rounds)}
    for workload in only:
        print(f"[{time.perf_counter() - began:.0f} s] {workload} {WHAT[workload]}", flush=True)
        load = os.getloadavg()[0]
        result = described(workload) | measured(workload, rounds) | {"load": load}
        found.setdefault("workloads", {})[workload] = result
        file.write_text(json.dumps(found, indent=1) + "\n")
        for setting, seconds in result["seconds"].items():
            print(f"  {setting:16} {1e3 * seconds['median']:9.3f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="blocks of each setting")
    parser.add_argument("--only", nargs="+", choices=WHAT, metavar="NAME", default=[*WHAT])
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--out", type=Path, default=DOCS, help="where the results go")
    parser.add_argument("--serve", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    file = options.out / "scaling.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if not options.report:
        measure(options.only, options.rounds, found, file)
    found["model"] = scaling_report.model(found)
    file.write_text(json.dumps(found, indent=1) + "\n")
    (options.out / "pictures").mkdir(exist_ok=True)
    scaling_report.draw(found, options.out / "pictures" / "scaling.png")
    (options.out / "_scaling.md").write_text(scaling_report.tables(found))


if __name__ == "__main__":
    main()
