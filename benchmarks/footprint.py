"""Memory, import time and installed size, and how the cost of phitodeep's step grows."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from entries import PEERS, entries
from measuring import HERE
from processes import fresh
from workloads import BATCH


def memory(workload: str) -> dict[str, float]:
    """The peak resident memory of a training process, in MB."""
    found = {}
    for entry in entries(workload, "memory"):
        if entry.module in ("ours", "pytorch") and "compiled" not in entry.variant:
            code = (
                "import importlib, workloads\n"
                f"side = importlib.import_module('frameworks.{entry.module}')"
                f".Side({workload!r}, {entry.variant!r})\n"
                f"X, y = workloads.data({workload!r}, {4 * BATCH[workload]})\n"
                f"for _ in range(3): side.train(X, y, {BATCH[workload]})\n"
                "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
            )
            found[entry.label] = float(fresh(code, dict(entry.environment)).split()[-1])
    return found


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
        code = f"import json; from footprint import grown; print(json.dumps(grown({name!r})))"
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
    from phitodeep.model.architectures import gpt, mlp

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
