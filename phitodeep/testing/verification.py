"""Verify phitodeep on this machine: gradient checks, and comparisons with PyTorch's numbers."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np

from phitodeep import kernels, loss
from phitodeep.core.table import Table, Tabled, facts
from phitodeep.core.types import Shape
from phitodeep.core.version import __version__
from phitodeep.errors import PhitodeepError
from phitodeep.testing.check import check_gradients
from phitodeep.testing.examples import EXAMPLES, TOKENS, Make, data, made, passes, subject
from phitodeep.testing.references import KINDS, Pair, compare, construct, loss_cases

T = TypeVar("T")

HEAD = ("", "class", "gradient", "float64", "float32", "verdict")
LEGEND = """\
gradient  largest relative error of a gradient, against central differences
float64   largest difference from what PyTorch computed, relative to numbers
          above 1; phitodeep computes in float64
float32   the same, but phitodeep computes in float32"""


@dataclass
class Row:
    """What was found out about one class; None means that there was nothing to compare."""

    kind: str  # "layer", "loss" or "optimizer"
    name: str
    checks: int = 0
    gradient: float | None = None  # the largest relative error of a gradient
    differences: dict[str, float] = field(default_factory=dict)  # by dtype
    faults: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        return "FAILED" if self.faults else "ok"

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the row, in the order of HEAD."""
        numbers = (self.gradient, *map(self.differences.get, ("float64", "float32")))
        shown = ("" if x is None else f"{x:.1e}" for x in numbers)
        return (self.kind, self.name, *shown, self.verdict)


@dataclass(frozen=True, repr=False)
class Verification(Tabled):
    """The report of `verify`: this machine's facts, one row per class, and the time taken."""

    machine: dict[str, str]
    rows: tuple[Row, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        return not self.faults

    @property
    def faults(self) -> list[str]:
        """What failed, in one line each."""
        return [fault for row in self.rows for fault in row.faults]

    def table(self) -> Table:
        checks = sum(row.checks for row in self.rows)
        failed = [row.name for row in self.rows if row.faults]
        verdict = (
            f"FAILED: {', '.join(failed)}. Please report this, with the table above."
            if failed
            else f"All {checks} checks of {len(self.rows)} classes passed in {self.seconds:.0f} s."
        )
        return Table(
            f"{facts(self.machine)}\n",
            HEAD,
            [row.cells() for row in self.rows],
            "\n".join(["", LEGEND, "", *self.faults, verdict]),
            styles={"ok": "green", "FAILED": "bold red"},
        )


def verify(verbose: bool = True) -> Verification:
    """Check every layer, loss and optimizer on this machine, with its NumPy, BLAS and kernels.

    The gradients of each layer in several settings, and of each loss, are compared with central
    differences, and everything that PyTorch also has is compared with numbers that PyTorch
    computed, in float64 and in float32. Layers must also keep float32. `verbose` shows a progress
    bar and prints the report. It takes a few seconds; the first time, kernels may have to be
    compiled.

    Returns a `Verification`: `passed` is True if every check passed, `faults` lists in one line
    each what failed, and `rows` holds the numbers of each class.
    """
    began = time.perf_counter()
    rows: dict[tuple[str, str], Row] = {}
    for kind, name, check in _tracked(list(_checks()), verbose):
        row = rows.setdefault((kind, name), Row(kind, name))
        row.checks += 1
        try:
            Context().run(check, row)  # whatever context the caller is in, such as inference()
        except PhitodeepError as error:
            row.faults.append(str(error))
    found = sorted(rows.values(), key=lambda row: ([*KINDS].index(row.kind), row.name))
    report = Verification(_machine(), tuple(found), time.perf_counter() - began)
    if verbose:
        report.show()
    return report


Check = tuple[str, str, Callable[[Row], None]]  # kind, class and what to do


def _checks() -> Iterator[Check]:
    for make, shape, tokens in [*((*row, 0) for row in EXAMPLES), *TOKENS]:
        yield "layer", type(subject(make())).__name__, partial(_example, make, shape, tokens)
    for case in loss_cases():
        yield "loss", case.partition("(")[0], partial(_slope, case)
    for kind, (cases, *_) in KINDS.items():
        for case in cases():
            yield kind, case.partition("(")[0], partial(_reference, kind, case)


def _example(make: Make, shape: Shape, tokens: int, row: Row) -> None:
    """Check the gradients of a layer in float64, and that float32 gives the same numbers."""
    single, layer = made(make, shape, np.float32), made(make, shape)
    found, expected = (passes(each, *data(each, shape, tokens)) for each in (single, layer))
    for name, a in found.items():
        pair = Pair(f"{name} in float32", a, expected[name])
        if fault := pair.fault(np.float32, *KINDS["layer"].tolerances["float32"]):
            row.faults.append(f"{layer}: {fault}")
    if any(part.surrogate for _, part in layer.walk()):
        return
    error = check_gradients(layer, data(layer, shape, tokens)[0]).worst
    row.gradient = max(row.gradient or 0.0, error)


def _slope(case: str, row: Row) -> None:
    """Check the gradient of a loss at the stored predictions."""
    stored = loss_cases()[case]
    P, y, w = (stored.get(name) for name in ("y_pred", "y_true", "sample_weight"))
    error = check_gradients(construct(case, loss), P, y, sample_weight=w).worst
    row.gradient = max(row.gradient or 0.0, error)


def _reference(kind: str, case: str, row: Row) -> None:
    """Compare with the stored numbers, in both dtypes."""
    for dtype in ("float64", "float32"):
        difference, faults = compare(kind, case, dtype)
        worst = np.maximum(row.differences.get(dtype, 0.0), difference)  # keeps nan
        row.differences[dtype] = float(worst)
        row.faults += faults


def _tracked(items: Sequence[T], verbose: bool) -> Iterable[T]:
    """Return the items, with a progress bar if this is a terminal."""
    if not verbose or sys.platform == "emscripten":
        return items
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    hidden = not console.is_terminal
    return track(items, "Verifying", console=console, transient=True, disable=hidden)


def _machine() -> dict[str, str]:
    """Return what the results depend on: versions, BLAS and kernels."""
    return {
        "phitodeep": __version__,
        "Python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "NumPy": np.__version__,
        "BLAS": "\n".join(_blas()) or "unknown",
        "kernels": {"numpy": "NumPy", "numba": "compiled by Numba"}[kernels.chosen()],
    }


def _blas() -> list[str]:
    """Return, for example, ["openblas 0.3.29 (Haswell), threads: 2"]."""
    if sys.platform == "emscripten":
        return []
    from threadpoolctl import threadpool_info

    return [
        f"{info['internal_api']} {info['version']}"
        f"{' (' + info['architecture'] + ')' if info.get('architecture') else ''}"
        f", threads: {info['num_threads']}"
        for info in threadpool_info()
        if info["user_api"] == "blas"
    ]
