"""`phitodeep check`."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
import numpy as np

from phitodeep.cli.app import in_shell, model_file, number
from phitodeep.cli.inputs import sample_shapes
from phitodeep.core.call import Event, watching
from phitodeep.core.table import Table
from phitodeep.core.types import Array, Shape, each
from phitodeep.errors import DataError, PhitodeepError
from phitodeep.layers import Embedding, Select
from phitodeep.model.model import Model
from phitodeep.model.sequential import load
from phitodeep.testing import GradientReport, check_gradients

SAMPLES = 3
LARGEST = float(np.sqrt(np.finfo(np.float32).max))  # above it, a square overflows in float32
SUSPECT = 1e10  # above it, differences of outputs may be lost to rounding
MEMORY, SECONDS = 1 << 30, 30  # bytes and time that a check may take, whatever its file
BYTES = 96  # that a check takes per number that a layer returns for a sample
FLOPS = 1e8  # per second, of any machine and layer
HEAD = ("array", "shape", "min", "max", "gradient", "verdict")


@click.command()
@model_file
@number(
    "--probes", least=1, default=8, help="Number of elements per array whose gradients are checked."
)
@number("--seed", default=0, help="Seed of the random input.")
@click.pass_context
def check(context: click.Context, file: Path, probes: int, seed: int) -> None:
    """Check that a model is intact and that its gradients are right.

    All of FILE is read, and names, shapes and types are compared with the model that it describes.
    No weight may be infinite, nan or far too large. Gradients are compared with central
    differences, on random input, in float64. The exit code is 1 if a check fails.

    \b
    Example:
      phitodeep check digits.safetensors
    """
    model = load(file)
    weights = model.get_weights()
    faults = _unusable(weights, LARGEST)
    report = None
    if not faults and sample_shapes(model):
        try:
            with _limited(file, model):
                report = check_gradients(model, _inputs(model, seed), max_probes=probes, seed=seed)
        except PhitodeepError as error:
            faults = {**_unusable(weights, SUSPECT), "gradients": in_shell(error)}
    with suppress(BrokenPipeError):  # the exit code counts, even if nobody reads the table
        _table(file, model, report, faults).show()
    context.exit(bool(faults))


@contextmanager
def _limited(file: Path, model: Model) -> Iterator[None]:
    """Refuse a check that takes far more memory or time than the size of its file warrants."""
    size = file.stat().st_size
    memory, seconds = MEMORY + 32 * size, SECONDS * (1 + size / 1e5)
    if hasattr(os, "sysconf"):
        memory = min(memory, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)

    def refusal(what: str) -> DataError:
        return DataError(
            f"checking the gradients takes more than {what}, which is too much for a file of "
            f"{size:,} bytes. If you trust it, pass fewer --probes, or call "
            "phitodeep.testing.check_gradients in Python."
        )

    too_large = refusal(f"{memory / 1e9:.1f} GB of memory")
    too_slow = refusal(f"{seconds:.0f} s")
    end = time.monotonic() + seconds

    def look(event: Event) -> None:
        if time.monotonic() > end:
            raise too_slow

    built = model._measured()
    shapes = [*built._ins(), *(shape for _, layer in built.walk() for shape in layer._outs())]
    if sum(map(math.prod, shapes)) * BYTES > memory:
        raise too_large
    if built.flops() * SAMPLES > FLOPS * seconds:
        raise too_slow
    try:
        with watching(look), _at_most(memory):
            yield
    except MemoryError:
        raise too_large from None


@contextmanager
def _at_most(memory: int) -> Iterator[None]:
    """Let the process take at most this many more bytes, on systems that can limit it (Linux).

    Layers may need far more memory than their outputs have, such as for padding.
    """
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + memory
    if before[0] == resource.RLIM_INFINITY or most < before[0]:
        resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _table(
    file: Path, model: Model, report: GradientReport | None, faults: dict[str, str]
) -> Table:
    weights = model.get_weights()
    errors = {} if report is None else {entry.name: entry.relative for entry in report.entries}
    rows = [
        (
            *(path, str(a.shape), f"{a.min():.3g}", f"{a.max():.3g}"),
            f"{errors[path]:.1e}" if path in errors else "",
            "FAILED" if path in faults else "ok",
        )
        for path, a in weights.items()
    ]
    shapes, several = sample_shapes(model), model.inputs > 1
    for k, (name, shape) in enumerate(shapes.items(), 1):
        if (dX := f"dX{k}" if several else "dX") in errors:
            title = f"input {name}" if several else "input"
            rows.append((title, str(shape), "", "", f"{errors[dX]:.1e}", "ok"))
    below = "gradient: largest relative error, compared with central differences\n"
    if not shapes:
        below = "The gradients were not checked: the model does not know its input shape.\n"
    verdict = "\n".join(["FAILED", *faults.values()]) if faults else "All checks passed."
    size = sum(a.nbytes for a in weights.values())
    title = f"{file}: {len(weights)} arrays, {size:,} bytes, {model.dtype}"
    return Table(title, HEAD, rows, f"\n{below}{verdict}", styles=VERDICTS)


VERDICTS = {"ok": "green", "FAILED": "bold red"}


def _unusable(weights: dict[str, Array], limit: float) -> dict[str, str]:
    """Return the paths of the arrays whose values are not finite or above a limit, and why."""
    faults = {}
    for path, a in weights.items():
        largest = max(a.min(initial=0), a.max(initial=0), key=abs)
        if count := int(a.size - np.isfinite(a).sum()):
            faults[path] = f"{path}: {count} of {a.size} values are not finite"
        elif abs(largest) > limit:
            faults[path] = (
                f"{path}: {largest:.3g} is so large that gradients cannot be computed: is the file "
                "damaged?"
            )
    return faults


def _inputs(model: Model, seed: int) -> Any:
    """Return a few random samples (N, ...) of each input: tokens, or normal values."""
    rng = np.random.default_rng(seed)
    layers = [layer for _, layer in model.walk()]
    columns = any(isinstance(layer, Select) and layer.tokens for layer in layers)
    sizes = [layer.vocab_size for layer in layers if isinstance(layer, Embedding)]

    def drawn(shape: Shape, tokens: bool) -> Array:
        whole, size = tokens or columns, (SAMPLES, *shape)
        return rng.integers(0, min(sizes, default=1), size) if whole else rng.standard_normal(size)

    pairs = zip(sample_shapes(model).values(), each(model.takes_tokens), strict=True)
    found = tuple([drawn(*pair) for pair in pairs])
    return found[0] if model.inputs == 1 else found
