"""The rounding errors of a float32 step: each framework against its own float64 step."""

from __future__ import annotations

import importlib
import json
import subprocess

import numpy as np
from entries import installed, ours
from measuring import Entry
from processes import fresh
from workloads import BATCH, data

WORKLOADS = ("W1", "W2", "W3", "W4", "W5")  # W6's exact gradients of biases before BatchNorm are 0


def errors(workload: str) -> dict[str, tuple[float, float]]:
    """By label: the relative errors of the loss, and of the gradients of a float32 step."""
    asked = ours()
    for module, variant in (("pytorch", "eager"), ("jaxed", "jit")):
        if installed(module):
            asked.append(Entry(module, variant, {"pytorch": "PyTorch", "jaxed": "JAX"}[module]))
    found = {}
    for entry in asked:
        code = "import json, sys, precision\nprint(json.dumps(precision.errors_of(*sys.argv[1:])))"
        arguments = (entry.module, entry.variant, workload)
        try:
            answer = fresh(code, dict(entry.environment), arguments).splitlines()[-1]
        except subprocess.CalledProcessError as error:
            print(f"  {entry.label} cannot run {workload}: {error.stderr.splitlines()[-1:]}")
            continue
        found[entry.label] = json.loads(answer)
        print("  {:24} loss {:.1e}, gradients {:.1e}".format(entry.label, *found[entry.label]))
    return found


def errors_of(module: str, variant: str, workload: str) -> tuple[float, float]:
    """|loss - exact| / |exact|, and the largest max|dW - exact| / max|exact| of all parameters."""
    Side = importlib.import_module(f"frameworks.{module}").Side
    X, y = data(workload, BATCH[workload])
    single = Side(workload, variant, dtype="float32").gradients(X, y)
    X = X.astype(np.float64) if X.dtype == np.float32 else X
    exact = Side(workload, variant, dtype="float64").gradients(X, y)
    assert single[1].keys() == exact[1].keys()
    return (
        abs(single[0] - exact[0]) / abs(exact[0]),
        max(_relative(dW, exact[1][name]) for name, dW in single[1].items()),
    )


def _relative(dW: np.ndarray, exact: np.ndarray) -> float:
    assert dW.dtype == np.float32
    assert exact.dtype == np.float64
    return float(np.abs(dW - exact).max() / np.abs(exact).max())
