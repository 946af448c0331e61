"""Compare phitodeep with its peers in speed, memory and size: `make bench`.

    python benchmarks/bench.py [--only busy W1 W3 ...] [--data FOLDER] [--rounds 9]

The parts, all of which run by default:

    step, epoch, predict    six networks (workloads.py) on an idle machine
    busy                    steps next to one other busy process, and idle for comparison
    threads                 steps with 1 to all cores
    cold                    a new process learns MNIST: only with --data, a folder of its IDX files
    error                   rounding errors of a float32 step
    memory, import, size    what a process and an installation take
    growth                  how time and memory of phitodeep's step grow
    sklearn                 tables, learnt by phitodeep's and scikit-learn's estimators

--only names parts, workloads, or both: `busy W3` measures only W3 next to a busy process, and W3
measures everything about W3. `--only tables` only writes the tables and pictures again.

Each setting of each framework runs in its own process; blocks are interleaved in random order.
Before anything is timed, all frameworks must compute the same loss. The values go to
docs/benchmarks.json, tables to docs/_benchmarks.md and pictures to docs/pictures. Peers that are
not installed are skipped: pip install "phitodeep[bench]" torch==2.13.0.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from cold import cold, runs
from entries import busy_entries, entries, thread_entries
from footprint import growth, imports, memory, sizes
from machine import describe
from measuring import HERE, Entry, Timing, Work, compare
from pictures import draw
from precision import WORKLOADS, errors
from report import tables
from workloads import WHAT

DOCS = HERE.parent / "docs"
SAMPLES = {"W1": 6400, "W2": 3200, "W3": 1280, "W4": 160, "W5": 640, "W6": 1280}
STEPS = [("W1", 32), ("W1", 64), ("W1", 512), ("W2", 32), ("W3", 64), ("W4", 16), ("W5", 32)]
STEPS += [("W6", 64)]
EPOCHS = [("W1", 64, 12_800), ("W3", 64, 2560)]
PREDICTIONS = [("W1", 1), ("W1", 1000), ("W3", 1), ("W3", 100)]
THREADED = [("W1", 512), ("W3", 64), ("W4", 16), ("W5", 32)]
PARTS = ("step", "epoch", "predict", "busy", "threads", "cold", "error", "memory", "import")
PARTS += ("size", "growth", "sklearn")
START, BLOCK, BUSY_ROUND = 4.0, 0.6, 3.0  # rough seconds, for the estimate of the time left


@dataclass
class Task:
    """A table to measure: its key in benchmarks.json, and roughly how long it takes."""

    key: str
    run: Callable[[], Any]
    seconds: float

    @property
    def part(self) -> str:
        return self.key.split()[0]

    def wanted(self, only: list[str]) -> bool:
        """Whether `only` names its part or no part, and its workload or no workload."""
        words, parts = self.key.split(), [name for name in only if name in PARTS]
        workloads = [name for name in only if name in WHAT]
        return (not parts or self.part in parts) and (
            not workloads or bool({*words} & {*workloads}) or (len(words) == 1 and bool(parts))
        )


def steps_of(workload: str, batch: int) -> Work:
    return Work(workload, "step", batch, max(SAMPLES[workload], 8 * batch))


def tasks(rounds: int, data: str | None) -> list[Task]:
    """All tables, in the order of the page."""
    found = []

    def add(part: str, of: Work, run: Callable[..., Any], asked: list[Entry], each: float) -> None:
        count = rounds // 2 + 1 if part == "busy" else rounds  # each has several blocks
        seconds = len(asked) * (START + count * each)
        key = f"{part} {of.workload} {of.batch}"
        found.append(Task(key, partial(run, asked, of, count), seconds))

    works = [steps_of(*step) for step in STEPS]
    works += [Work(workload, "epoch", *sizes) for workload, *sizes in EPOCHS]
    works += [Work(workload, "predict", n, n) for workload, n in PREDICTIONS]
    for of in works:
        add(of.kind, of, timed, entries(of.workload, of.kind), BLOCK)
    for step in STEPS:
        add("busy", steps_of(*step), next_to_a_busy_process, busy_entries(step[0]), BUSY_ROUND)
    for step in THREADED:
        add("threads", steps_of(*step), timed, thread_entries(step[0]), BLOCK)
    if data is not None:
        found.append(Task("cold", partial(cold, data, 3), 4 * 5.0 * len(runs())))
    found += [Task(f"error {workload}", partial(errors, workload), 25) for workload in WORKLOADS]
    found += [Task(f"memory {workload}", partial(memory, workload), 15) for workload in WHAT]
    found.append(Task("import", partial(imports, rounds), 8.0 * rounds))
    found.append(Task("size", sizes, 10))
    found.append(Task("growth", growth, 150))
    found.append(Task("sklearn", estimators, 120))
    return found


def estimators() -> dict[str, Any]:
    """The results of sklearn_tables.py, or nothing without scikit-learn and pandas."""
    try:
        from sklearn_tables import tables
    except ModuleNotFoundError as missing:
        print(f"  skipped, because {missing.name} is not installed")
        return {}
    return tables()


def timed(asked: list[Entry], of: Work, rounds: int) -> dict[str, Any]:
    """The rows of one table: seconds per step, epoch or prediction, by label."""
    timings, noisy = compare(asked, of, rounds)
    rows = rows_of(timings)
    for label, row in rows.items():
        print(f"  {label:36} {1e6 * row['seconds']:12.1f} us   {row['ratio'] or 0:.2f}", flush=True)
    return {"rows": rows, "noisy": noisy, "rounds": rounds, "samples": of.samples}


def next_to_a_busy_process(asked: list[Entry], of: Work, rounds: int) -> dict[str, Any]:
    """The rows of one table: seconds per step, idle and next to a busy process."""
    timings, noisy = compare(asked, of, rounds, busy=True)
    rows = rows_of(timings)
    best = min((median(t.busy) for t in timings if is_peer(t)), default=None)
    for t in timings:
        row, busy = rows[t.entry.label], median(t.busy)
        row |= {"busy": busy, "worst": max(t.busy), "slower": busy / row["seconds"]}
        row["busy ratio"] = None if best is None else best / busy
        print(
            f"  {t.entry.label:44} idle {1e6 * row['seconds']:10.1f} us   "
            f"busy {1e6 * busy:10.1f} us   worst {1e6 * row['worst']:10.1f} us   "
            f"{row['slower']:6.1f} times slower",
            flush=True,
        )
    return {"rows": rows, "noisy": noisy, "rounds": rounds, "samples": of.samples}


def rows_of(timings: list[Timing]) -> dict[str, dict[str, Any]]:
    """By label: median and quartiles, whether it is a peer, and the speed against the best peer."""
    best = min((t.median for t in timings if is_peer(t)), default=None)
    return {
        t.entry.label: {
            "seconds": t.median,
            "quartiles": t.quartiles,
            "peer": is_peer(t),
            "ratio": None if best is None else best / t.median,
        }
        for t in timings
    }


def is_peer(timing: Timing) -> bool:
    return timing.entry.module not in ("ours", "bare")


def keep(found: dict[str, Any], key: str, value: Any, machine: str) -> None:
    """Store a result, and which machine it comes from."""
    found[key] = value
    machines = {m: [k for k in keys if k != key] for m, keys in found.get("machines", {}).items()}
    machines.setdefault(machine, []).append(key)
    found["machines"] = {m: keys for m, keys in machines.items() if keys}


def clock(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def measure(chosen: list[Task], found: dict[str, Any], file: Path) -> None:
    """Run the tasks; say which one runs and how much is left, and store each result at once."""
    machine, began, done = describe(), time.perf_counter(), 0.0
    every = sum(task.seconds for task in chosen)
    print(machine, flush=True)
    for i, task in enumerate(chosen, 1):
        pace = (time.perf_counter() - began) / done if done else 1.0
        left = clock(pace * (every - done))
        print(f"[{i} of {len(chosen)}, about {left} left] {task.key}", flush=True)
        keep(found, task.key, task.run(), machine)
        file.write_text(json.dumps(found, indent=1) + "\n")
        done += task.seconds
    print(f"{len(chosen)} tables in {clock(time.perf_counter() - began)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9, help="blocks of each setting")
    names = [*PARTS, *WHAT, "tables"]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", default=[])
    parser.add_argument("--data", help="folder with the four IDX files of MNIST, for `cold`")
    parser.add_argument("--out", type=Path, default=DOCS, help="where the results go")
    options = parser.parse_args()
    file = options.out / "benchmarks.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if options.only != ["tables"]:
        every = tasks(options.rounds, options.data)
        measure([task for task in every if task.wanted(options.only)], found, file)
        if options.data is None and (not options.only or "cold" in options.only):
            print("cold: skipped, because --data names no folder with MNIST's four IDX files")
    (options.out / "pictures").mkdir(exist_ok=True)
    draw(found, options.out / "pictures")
    (options.out / "_benchmarks.md").write_text(tables(found))


if __name__ == "__main__":
    main()
