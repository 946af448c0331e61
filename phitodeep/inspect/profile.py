"""Profile a training step: the measured time of each layer, and the time its formula predicts."""

from __future__ import annotations

import time
import timeit
from dataclasses import dataclass
from typing import Any

import numpy as np

from phitodeep.core.call import Event, watching
from phitodeep.core.checks import check_count
from phitodeep.core.table import Table, total
from phitodeep.core.types import Array, DType, cut, each, on_each
from phitodeep.errors import ArgumentError, DivergenceError
from phitodeep.training.callback import LambdaCallback
from phitodeep.training.objective import Trainable

SHORT = 1e-6  # seconds; less than that is mostly the time of calling the watcher
FEW = 5000  # FLOPs, which are shown as 0.01 MFLOP
HEAD = ("path", "layer", "forward", "backward", "share", "MFLOP", "GFLOP/s", "kept", "predicted")


@dataclass(frozen=True)
class Row:
    """One layer without child layers, over one training step."""

    path: str
    layer: str
    forward: float  # seconds
    backward: float  # seconds
    share: float  # the fraction of the whole step's time
    flops: int  # FLOPs of forward and backward, by the layer's formula
    kept: int  # bytes that forward cached for backward, except those an earlier layer cached
    predicted: float  # seconds that the FLOPs would take at the peak

    @property
    def speed(self) -> float | None:
        """FLOP per second; None if the FLOPs are too few or the time is too short to tell."""
        seconds = self.forward + self.backward
        return self.flops / seconds if self.flops >= FEW and seconds > SHORT else None

    def cells(self) -> tuple[str, ...]:
        counts = self.flops >= FEW
        return (
            self.path,
            self.layer,
            f"{1e6 * self.forward:,.0f} us",
            f"{1e6 * self.backward:,.0f} us",
            f"{self.share:.1%}",
            f"{self.flops / 1e6:,.2f}" if counts else "",
            "" if self.speed is None else f"{self.speed / 1e9:,.1f}",
            f"{self.kept / 1e3:,.0f} kB",
            f"{1e6 * self.predicted:,.0f} us" if counts else "",
        )


@dataclass(frozen=True, repr=False)
class Profile:
    """A training step, layer by layer."""

    rows: tuple[Row, ...]
    batch: int
    step: float  # seconds of a whole step
    rest: float  # seconds of a step outside the layers: loss, optimizer, loop
    loss: float  # seconds of the loss and its gradient
    update: float  # seconds of the optimizer, once it has the gradients
    peak: float  # FLOP per second of a large matrix product, measured in this run

    flops, kept = total("flops"), total("kept")

    def table(self) -> Table:
        title = (
            f"a step of {self.batch} samples: {1e6 * self.step:,.0f} us; matrix products reach "
            f"{self.peak / 1e9:,.0f} GFLOP/s here"
        )
        totals = (
            f"outside the layers {1e6 * self.rest:,.0f} us ({self.rest / self.step:.1%}), with "
            f"loss {1e6 * self.loss:,.0f} us and optimizer {1e6 * self.update:,.0f} us; "
            f"{self.flops / 1e6:,.1f} MFLOP, {self.flops / self.step / 1e9:,.1f} GFLOP/s over the "
            f"step; {self.kept / 1e6:,.1f} MB kept"
        )
        return Table(title, HEAD, [row.cells() for row in self.rows], totals)

    def __str__(self) -> str:
        return str(self.table())

    def __repr__(self) -> str:  # no table, because `model.profile` has printed it
        time = f"{1e6 * self.step:,.0f} us"
        return f"<Profile: {time} for a step of {self.batch} samples, {len(self.rows)} layers>"

    def show(self) -> None:
        """Print a table, drawn by rich in a terminal and in Jupyter, plain elsewhere."""
        self.table().show()


class _Clock:
    """A watcher that records the seconds of each pass by path and kind of event."""

    def __init__(self) -> None:
        self.began: dict[tuple[str, str], float] = {}
        self.seconds: dict[tuple[str, str], list[float]] = {}

    def __call__(self, event: Event) -> None:
        key = event.path, event.what
        if event.when == "before":
            self.began[key] = time.perf_counter()
        else:
            self.seconds.setdefault(key, []).append(event.time - self.began[key])

    def median(self, path: str, what: str) -> float:
        return float(np.median(self.seconds.get((path, what), [0.0])))


def profile(model: Trainable, X: Any, y: Any, *, batch_size: int, steps: int = 20) -> Profile:
    """Train a copy of `model` on (X, y) and watch its layers: see `Sequential.profile`."""
    steps, batch = check_count(steps, "steps", minimum=2), check_count(batch_size, "batch_size")
    X, y = on_each(np.asarray, model._in_order(X, y))
    n = len(each(X)[0])
    if not n:
        raise ArgumentError("profile needs at least one sample.")
    rows = np.arange(batch) % n
    batches = [(cut(X, rows), cut(y, rows))] * steps
    twin = model.copy()
    twin.callbacks, twin.metrics, twin.batch_size = [], [], None
    twin.train(batches[:3], epochs=1, verbose=0)  # warm-up: compiles the kernels
    leaves = [(path, layer) for path, layer in twin.walk() if not layer.children()]
    ends: list[float] = []
    ticks = LambdaCallback(on_batch_end=lambda *_: ends.append(time.perf_counter()))
    clock = _Clock()
    with watching(clock):
        history = twin.train(batches, epochs=1, callbacks=[ticks], verbose=0)
    if len(ends) < 2:
        if history.interrupted:
            raise KeyboardInterrupt
        raise DivergenceError(
            "profile: training stopped before its second step, so there is no time to measure. "
            "The warning says what diverged; a lower learning rate may help."
        )
    peak, seen, found = gemm_peak(twin.dtype), set[int](), []
    both = "forward", "backward"
    inside = sum(clock.median(path, what) for path, _ in leaves for what in both)
    step = float(np.median(np.diff(ends)))
    for i, (path, layer) in enumerate(leaves):
        forward, backward = (clock.median(path, what) for what in both)
        # Forward counts once, dX once (the first layer does not compute it), and parameters once.
        flops = layer.flops() * batch * (1 + (i > 0) + bool(layer.params))
        share = (forward + backward) / step
        kept = sum(_new_bytes(value, seen) for value in layer.cache.values())
        row = Row(path, repr(layer), forward, backward, share, flops, kept, flops / peak)
        found.append(row)
    loss, update = clock.median("", "loss"), clock.median("", "step")
    return Profile(tuple(found), batch, step, max(step - inside, 0.0), loss, update, peak)


def _new_bytes(value: Any, seen: set[int]) -> int:
    """Return the bytes of the arrays in a cache, without those seen before."""
    if isinstance(value, np.ndarray):
        while isinstance(value.base, np.ndarray):
            value = value.base
        if id(value) in seen:
            return 0
        seen.add(id(value))
        return value.nbytes
    if isinstance(value, list | tuple):
        return sum(_new_bytes(part, seen) for part in value)
    return 0


def gemm_peak(dtype: DType, size: int = 768, times: int = 7) -> float:
    """Return the FLOP per second of a (size, size) matrix product, the best of several runs."""
    A: Array = np.ones((size, size), dtype)
    out = np.empty_like(A)
    best = min(timeit.repeat(lambda: np.matmul(A, A, out=out), number=1, repeat=times))
    return 2 * size**3 / best
