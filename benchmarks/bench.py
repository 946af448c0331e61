"""Compare phitodeep with its peers in speed, memory and size: `make bench`.

    python benchmarks/bench.py [--only W1 W3 epoch predict memory import size growth] [--rounds 9]

It times steps, whole epochs and predictions of the five networks in `workloads.py`. Each setting of
each framework runs in its own process; blocks are interleaved in random order on an idle machine.
Then it measures memory, import time, installed size, and how phitodeep's cost grows. Before
anything is timed, all frameworks must compute the same loss. The values go to docs/benchmarks.json,
tables to docs/_benchmarks.md and pictures to docs/pictures. Peers that are not installed are
skipped: pip install "phitodeep[bench]" torch==2.13.0.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from measuring import HERE, Entry, compare
from report import draw, tables
from workloads import BATCH, WHAT

DOCS = HERE.parent / "docs"
PEERS = {"pytorch": "torch", "jaxed": "jax", "keras3": "keras"}
PEERS |= {"sklearns": "sklearn", "thincs": "thinc"}
NAMES = {"pytorch": "PyTorch", "jaxed": "JAX", "keras3": "Keras", "sklearns": "scikit-learn"}
NAMES |= {"thincs": "Thinc"}
FAST = Entry("ours", "fast", "phitodeep[fast]", (("PHITODEEP_KERNELS", "numba"),))
PLAIN = Entry("ours", "NumPy only", "phitodeep", (("PHITODEEP_KERNELS", "numpy"),))
THREADS = Entry("ours", "fast, 2 threads", "phitodeep[fast], threads=2", FAST.environment)
SAMPLES = {"W1": 6400, "W2": 3200, "W3": 1280, "W4": 160, "W5": 640}
STEPS = [("W1", 32), ("W1", 64), ("W1", 512), ("W2", 32), ("W3", 64), ("W4", 16), ("W5", 32)]
EPOCHS = [("W1", 64, 12_800), ("W3", 64, 2560)]
PREDICTIONS = [("W1", 1), ("W1", 1000), ("W3", 1), ("W3", 100)]


def entries(workload: str, kind: str) -> list[Entry]:
    """The installed frameworks and their settings that support this measurement."""
    found = [FAST, PLAIN] if importlib.util.find_spec("numba") else [PLAIN]
    if workload in ("W3", "W4", "W5") and kind in ("step", "epoch") and FAST in found:
        found.append(THREADS)
    for module, library in PEERS.items():
        if importlib.util.find_spec(library) is None:
            continue
        for variant, workloads in variants(module).items():
            if workload in workloads and not (kind != "epoch" and "DataLoader" in variant):
                found.append(Entry(module, variant, f"{NAMES[module]}, {variant}"))
    return found


def variants(module: str) -> dict[str, tuple[str, ...]]:
    """Read VARIANTS from a framework's file without importing the framework."""
    text = (HERE / "frameworks" / f"{module}.py").read_text()
    every = ("W1", "W2", "W3", "W4", "W5")
    block = re.search(r"^VARIANTS = (\{.*?^\}|\{.*?\})$", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    return dict(eval(block[1], {"ALL": every}))  # the file is our own


def timed(workload: str, kind: str, batch: int, samples: int, rounds: int) -> dict[str, Any]:
    """The rows of one table: seconds per step, epoch or prediction, by label."""
    timings, noisy = compare(entries(workload, kind), workload, kind, batch, samples, rounds)
    steps = -(-samples // batch) if kind == "step" else 1
    rows = {
        t.entry.label: {
            "seconds": t.median / steps,
            "quartiles": [q / steps for q in t.quartiles],
            "peer": t.entry.module != "ours",
        }
        for t in timings
    }
    best = min((r["seconds"] for r in rows.values() if r["peer"]), default=None)
    for label, row in rows.items():
        row["ratio"] = None if best is None else best / row["seconds"]
        print(f"  {label:36} {1e6 * row['seconds']:12.1f} us   {row['ratio'] or 0:.2f}", flush=True)
    return {"rows": rows, "noisy": noisy, "rounds": rounds, "samples": samples}


def memory(workload: str) -> dict[str, float]:
    """The peak resident memory of a training process, in MB."""
    found = {}
    for entry in entries(workload, "memory"):
        if entry.module in ("ours", "pytorch") and "compiled" not in entry.variant:
            code = (
                f"import sys; sys.path.insert(0, {str(HERE)!r}); import importlib, workloads\n"
                f"side = importlib.import_module('frameworks.{entry.module}')"
                f".Side({workload!r}, {entry.variant!r})\n"
                f"X, y = workloads.data({workload!r}, {4 * BATCH[workload]})\n"
                f"for _ in range(3): side.train(X, y, {BATCH[workload]})\n"
                "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
            )
            found[entry.label] = float(fresh(code, dict(entry.environment)).split()[-1])
    return found


def fresh(code: str, environment: dict[str, str] | None = None) -> str:
    """Run `code` in a new Python process and return its output."""
    import os

    env = {**os.environ, "PYTHONWARNINGS": "ignore", **(environment or {})}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # as installed, with compiled bytecode
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout


def imports(rounds: int) -> dict[str, float]:
    """Median seconds of an import, without the start of Python."""
    lines = {"nothing": "pass", "numpy": "import numpy", "phitodeep": "import phitodeep"}
    lines["phitodeep and all layers"] = "import phitodeep.model"
    for library in PEERS.values():
        if importlib.util.find_spec(library) is not None:
            lines[library] = f"import {library}"
    seconds: dict[str, list[float]] = {name: [] for name in lines}
    for i in range(rounds + 1):
        for name, code in lines.items():
            began = time.perf_counter()
            fresh(code, {"KERAS_BACKEND": "jax"})
            if i:  # the first round may compile modules
                seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(s) for name, s in seconds.items()}
    return {name: s - medians["nothing"] for name, s in medians.items() if name != "nothing"}


def sizes() -> dict[str, float]:
    """MB of each installed library, including its dependencies."""

    def needs(name: str, seen: set[str]) -> set[str]:
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in seen:
            return seen
        try:
            required = importlib.metadata.requires(key) or []
        except importlib.metadata.PackageNotFoundError:
            return seen
        seen.add(key)
        for line in required:
            if "extra ==" not in line:
                needs(re.split(r"[\s<>=!~;\[(]", line)[0], seen)
        return seen

    def installed(name: str) -> float:
        files = importlib.metadata.files(name) or []
        if name == "phitodeep":  # may be installed as a link
            files = [
                p for p in (HERE.parent / "phitodeep").rglob("*") if "__pycache__" not in p.parts
            ]
            return sum(p.stat().st_size for p in files if p.is_file()) / 1e6
        paths = (Path(str(f.locate())) for f in files)
        return sum(p.stat().st_size for p in paths if p.is_file()) / 1e6

    wanted = {
        "phitodeep": ["phitodeep"],
        "phitodeep[fast]": ["phitodeep", "numba", "threadpoolctl"],
    }
    wanted |= {"PyTorch, CPU only": ["torch"], "JAX": ["jax"], "Keras on JAX": ["keras", "jax"]}
    wanted |= {"scikit-learn": ["scikit-learn"], "Thinc": ["thinc"]}
    found = {}
    for label, roots in wanted.items():
        every: set[str] = set()
        for root in roots:
            needs(root, every)
        if all(importlib.util.find_spec(r.replace("scikit-learn", "sklearn")) for r in roots):
            found[label] = sum(installed(name) for name in every)
    return found


GROWTH = {
    "batch of W1": [8, 16, 32, 64, 128, 256, 512, 1024],
    "width of two dense layers": [64, 128, 256, 512, 1024],
    "depth in layers of 128": [1, 2, 4, 8, 16, 32],
    "context of a GPT block": [32, 64, 128, 256, 512, 1024],
}


def growth() -> dict[str, Any]:
    """Seconds and MB of a training step by size; exponents over the larger half of the sizes."""
    found = {}
    for name, values in GROWTH.items():
        code = (
            f"import sys; sys.path.insert(0, {str(HERE)!r}); from bench import grown; import json\n"
            f"print(json.dumps(grown({name!r})))"
        )
        seconds, megabytes = zip(*json.loads(fresh(code).splitlines()[-1]), strict=True)
        half = len(values) // 2
        exponent = [
            float(np.polyfit(np.log(values[half:]), np.log(y[half:]), 1)[0])
            for y in (seconds, megabytes)
        ]
        found[name] = {"values": values, "seconds": seconds, "MB": megabytes, "exponent": exponent}
        print(f"  {name}: time ~ n^{exponent[0]:.2f}, memory ~ n^{exponent[1]:.2f}", flush=True)
    return found


def grown(name: str) -> list[tuple[float, float]]:
    """Measure (seconds, MB of buffers and caches) of a step for each size."""
    import tracemalloc

    from phitodeep.model import SequentialBuilder
    from phitodeep.models import gpt, mlp

    rng, found = np.random.default_rng(0), []
    for n in GROWTH[name]:
        batch, shape = 64, (784,)
        if name.startswith("batch"):
            batch, builder = n, mlp(784, 128, 64, 10)
        elif name.startswith("width"):
            builder = mlp(784, n, n, 10)
        elif name.startswith("depth"):
            builder = mlp(784, *[128] * n, 10)
        else:
            batch, builder = 4, gpt(65, n, layers=1, heads=4, dim=128, tied=False)
        model = builder.loss("softmax_cross_entropy").seed(0).build()
        if isinstance(builder, SequentialBuilder) and name.startswith("context"):
            X = rng.integers(0, 65, (batch, n))
            y = X
        else:
            X, y = rng.random((batch, *shape), np.float32), rng.integers(0, 10, batch)
        options: dict[str, Any] = {"epochs": 3, "verbose": 0}
        model.copy().train(X, y, **options)  # warm-up: imports and compiles
        tracemalloc.start()
        model.train(X, y, **options)
        peak = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
        took = []
        for _ in range(7):
            began = time.perf_counter()
            model.train(X, y, **(options | {"epochs": 20}))
            took.append((time.perf_counter() - began) / 20)
        found.append((statistics.median(took), peak))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--out", type=Path, default=DOCS)
    options = parser.parse_args()

    def wanted(*names: str) -> bool:
        return not options.only or any(name in options.only for name in names)

    file = options.out / "benchmarks.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}

    def keep(key: str, value: Any) -> None:
        found[key] = value
        file.write_text(json.dumps(found, indent=1) + "\n")

    for workload, batch in STEPS:
        if wanted("step", workload):
            print(f"step {workload} batch {batch}", flush=True)
            samples = max(SAMPLES[workload], 8 * batch)
            keep(
                f"step {workload} {batch}", timed(workload, "step", batch, samples, options.rounds)
            )
    for workload, batch, samples in EPOCHS:
        if wanted("epoch"):
            print(f"epoch {workload}", flush=True)
            block = timed(workload, "epoch", batch, samples, options.rounds)
            keep(f"epoch {workload} {batch}", block)
    for workload, batch in PREDICTIONS:
        if wanted("predict"):
            print(f"predict {workload} batch {batch}", flush=True)
            block = timed(workload, "predict", batch, batch, options.rounds)
            keep(f"predict {workload} {batch}", block)
    if wanted("memory"):
        keep("memory", {workload: memory(workload) for workload in WHAT})
    if wanted("import"):
        keep("import", imports(options.rounds))
    if wanted("size"):
        keep("size", sizes())
    if wanted("growth"):
        keep("growth", growth())
    (options.out / "_benchmarks.md").write_text(tables(found))
    (options.out / "pictures").mkdir(exist_ok=True)
    draw(found, options.out / "pictures")


if __name__ == "__main__":
    main()
