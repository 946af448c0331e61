"""Which frameworks run, and with which settings: those that are installed and support the work."""

from __future__ import annotations

import importlib.util
import os
import re

from measuring import HERE, Entry

PEERS = {"pytorch": "torch", "jaxed": "jax", "keras3": "keras"}
PEERS |= {"sklearns": "sklearn", "thincs": "thinc"}
NAMES = {"pytorch": "PyTorch", "jaxed": "JAX", "keras3": "Keras", "sklearns": "scikit-learn"}
NAMES |= {"thincs": "Thinc"}
FAST = Entry("ours", "fast", "phitodeep[fast]", (("PHITODEEP_KERNELS", "numba"),))
PLAIN = Entry("ours", "NumPy only", "phitodeep", (("PHITODEEP_KERNELS", "numpy"),))
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
BARE = Entry("bare", "products", "NumPy, matrix products only")
BARE_1 = Entry(
    "bare", "products", f"{BARE.label}, one thread", tuple((v, "1") for v in BLAS_THREADS)
)


def installed(module: str) -> bool:
    return importlib.util.find_spec(PEERS[module]) is not None


def ours() -> list[Entry]:
    return [FAST, PLAIN] if importlib.util.find_spec("numba") else [PLAIN]


def variants(module: str) -> dict[str, tuple[str, ...]]:
    """Read VARIANTS from a framework's file without importing the framework."""
    text = (HERE / "frameworks" / f"{module}.py").read_text()
    every = ("W1", "W2", "W3", "W4", "W5", "W6")
    block = re.search(r"^VARIANTS = (\{.*?^\}|\{.*?\})$", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    return dict(eval(block[1], {"ALL": every}))  # the file is our own


def entries(workload: str, kind: str) -> list[Entry]:
    """Every setting of every installed framework that supports this measurement."""
    return ours() + [
        Entry(module, variant, f"{NAMES[module]}, {variant}")
        for module in PEERS
        if installed(module)
        for variant, workloads in variants(module).items()
        if workload in workloads and (kind == "epoch" or "DataLoader" not in variant)
    ]


def torch_setting(workload: str) -> str:
    """PyTorch's setting for the comparisons that run only one."""
    return ("channels last, " if workload in ("W3", "W6") else "") + "fused Adam"


def busy_entries(workload: str) -> list[Entry]:
    """The settings that also run next to a busy process."""
    found = ours()
    if installed("pytorch"):
        setting = torch_setting(workload)
        found.append(Entry("pytorch", setting, "PyTorch, as shipped"))
        found.append(Entry("pytorch", setting, "PyTorch, one thread", threads=1))
    if installed("jaxed") and workload in variants("jaxed")["jit"]:
        found.append(Entry("jaxed", "jit", "JAX"))
    return found + ([BARE, BARE_1] if workload in variants("bare")["products"] else [])


def cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def thread_counts() -> list[int]:
    """1, 2, 3, 4, then powers of two, up to all cores."""
    n = cores()
    counts = {*range(1, min(n, 4) + 1), n}
    return sorted(counts | {2**i for i in range(3, n.bit_length()) if 2**i <= n})


def thread_entries(workload: str) -> list[Entry]:
    """phitodeep and PyTorch with every number of threads."""
    found = [(ours()[0].module, ours()[0].variant, ours()[0].label, ours()[0].environment)]
    if installed("pytorch"):
        found.append(("pytorch", torch_setting(workload), "PyTorch", ()))
    return [
        Entry(module, variant, f"{label}, threads {n}", environment, n)
        for module, variant, label, environment in found
        for n in thread_counts()
    ]
