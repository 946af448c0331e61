"""Describe the machine and the software that a benchmark runs on."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
from pathlib import Path

import numpy as np
from entries import cores

LIBRARIES = ("numba", "torch", "jax", "keras", "scikit-learn", "thinc")
SETTINGS = re.compile(r"(OPENBLAS|GOTO|OMP|KMP|MKL|BLIS|VECLIB|NUMBA|PHITODEEP|XLA|KERAS)_")


def describe(environment: dict[str, str] | None = None) -> str:
    """Processor, system, versions, BLAS, kernels, and the variables that change how they run."""
    variables = os.environ if environment is None else environment
    settings = [f"{name}={variables[name]}" for name in sorted(variables) if SETTINGS.match(name)]
    parts = [
        f"{processor()}, {cores()} of {os.cpu_count()} cores",
        f"{platform.system()} {platform.release()} ({platform.machine()})",
        f"Python {platform.python_version()}",
        f"NumPy {np.__version__} with {blas()}",
        *(f"{name} {version}" for name in LIBRARIES if (version := version_of(name))),
        "kernels of [fast] compiled by Numba" if version_of("numba") else "NumPy kernels only",
        f"environment: {', '.join(settings)}" if settings else "no BLAS or thread variables set",
    ]
    return "; ".join(parts)


def processor() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    if info.exists() and (found := re.search(r"^model name\s*: (.*)$", info.read_text(), re.M)):
        return found[1].strip()
    return platform.processor() or "unknown processor"


def blas() -> str:
    """NumPy's BLAS: name, version, kernels for which processor, and number of threads."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return "a BLAS that cannot be described without threadpoolctl"
    found = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    bundled = [pool for pool in found if "numpy" in pool["filepath"]]  # SciPy has its own
    return " and ".join(map(_pool, bundled or found)) or "a BLAS unknown to threadpoolctl"


def _pool(pool: dict[str, object]) -> str:
    kernels = f", {pool['architecture']} kernels" if pool.get("architecture") else ""
    return f"{pool['internal_api']} {pool['version']}{kernels}, threads: {pool['num_threads']}"


def version_of(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
