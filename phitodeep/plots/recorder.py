"""The callback that keeps histograms of weights, gradients and activations."""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from phitodeep.core.call import Event, watching
from phitodeep.core.checks import as_real, check_count, check_flag
from phitodeep.core.state import StateDict, check_array, check_entries
from phitodeep.core.types import Array, PathLike, numbered
from phitodeep.errors import ShapeError, UnknownNameError
from phitodeep.training.callback import Logs, _Resumable, check_intervals

TINY = 1e-300  # between smaller values, there may be too few numbers for the bins
HUGE = 1e300  # values beyond it, whose differences may overflow, count as not finite


@dataclass
class Series:
    """Histograms of one array in the course of training.

    steps     the optimizer steps after which the histograms were made, (k,) integers
    counts    how many values are in each bin, (k, bins) integers
    edges     the borders of the bins, (k, bins + 1); each histogram has its own range
    """

    steps: Array
    counts: Array
    edges: Array


class Histograms(_Resumable):
    """Keep histograms of weights, gradients and activations while a model trains.

        watch = Histograms(activations=X[:100])
        model.train(X, y, callbacks=[watch])
        watch["0.dW"].counts                    # (histograms, bins)

    Keys are as in a trace: "0.W" is a parameter, "0.dW" its gradient, as the
    optimizer received it, and "1.Y" the output of a layer. `plots.histograms(watch, "0.dW")` draws
    them. Nothing in training changes. Values that are not finite are left out.

    every          epochs from one histogram to the next; None: only `every_steps` counts
    every_steps    optimizer steps from one histogram to the next; None: only `every` counts
    bins           the number of bins
    gradients      whether to keep gradients too
    activations    samples X (n, ...), or a dict of them by input, for which to keep the outputs of
                   all layers, in prediction mode; None: no outputs

    LBFGS evaluates several gradients per step; the last one is kept.
    """

    remembered: ClassVar[dict[str, Any]] = {
        "steps": dict[str, list[int]],
        **dict.fromkeys(("counts", "edges"), dict[str, Array]),
    }

    def __init__(
        self,
        every: int | None = 1,
        every_steps: int | None = None,
        *,
        bins: int = 40,
        gradients: bool = True,
        activations: Any = None,
    ) -> None:
        check_intervals("Histograms", every, every_steps)
        self.every, self.every_steps = every, every_steps
        self.bins = check_count(bins, "Histograms bins", minimum=2)
        self.gradients = check_flag(gradients, "Histograms gradients")
        self.activations = activations
        if activations is not None:
            given = activations if isinstance(activations, Mapping) else {"X": activations}
            given = {n: as_real(A, "Histograms activations") for n, A in given.items()}
            self.activations = given if isinstance(activations, Mapping) else given["X"]
            if shapes := [A.shape for A in given.values() if not A.size]:
                raise ShapeError(f"Histograms activations needs samples, got shape {shapes[0]}.")
            self.samples = max(map(len, given.values()))
        self.forget()

    def forget(self) -> None:
        self.steps: dict[str, list[int]] = {}
        self.counts: dict[str, Array] = {}
        self.edges: dict[str, Array] = {}

    def __repr__(self) -> str:
        # without the samples, which may be many
        when = f"every={self.every}, every_steps={self.every_steps}, bins={self.bins}"
        return f"{type(self).__name__}({when})"

    # --- what was kept ---------------------------------------------------------------------

    def __getitem__(self, key: str) -> Series:
        if key not in self.steps:
            raise UnknownNameError.of(key, self.steps, "one of the recorded arrays")
        return Series(np.array(self.steps[key]), self.counts[key], self.edges[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self.steps)

    def keys(self) -> KeysView[str]:
        """Return the keys of all recorded arrays."""
        return self.steps.keys()

    def plot(self, key: str | None = None, path: PathLike | None = None, *, ax: Any = None) -> Any:
        """Draw the histograms of one array: see `phitodeep.plots.histograms`."""
        from phitodeep.plots.histograms import histograms

        return histograms(self, key, ax=ax, path=path)

    # --- during training -------------------------------------------------------------------

    def on_batch_end(self, model: Any, step: int, loss: float) -> None:
        if self.every_steps is not None and step % self.every_steps == 0:
            self.look(model)

    def on_epoch_end(self, model: Any, epoch: int, logs: Logs) -> None:
        if self.every is not None and epoch % self.every == 0:
            self.look(model)

    def look(self, model: Any) -> None:
        """Add a histogram of each array as it is now."""
        step, packing = model.optimizer.t, model.optimizer._packing
        for path, layer in model.walk():
            for name, W in layer.params.items():
                self._add(f"{path}.{name}", step, W)
        if self.gradients and packing is not None:
            for (path, _, name), (_, g) in zip(packing.slots, packing.views, strict=True):
                self._add(f"{path.removesuffix(name)}d{name}", step, g)
        if self.activations is not None:

            def outputs(event: Event) -> None:
                if event.what == "forward" and event.when == "after" and event.path:
                    for name, Y in numbered("Y", event.array).items():
                        self._add(f"{event.path}.{name}", step, Y)

            with watching(outputs, root=model):
                model.predict(self.activations, batch_size=self.samples, threads=1)

    def _add(self, key: str, step: int, A: Any) -> None:
        if self.steps.get(key, [-1])[-1] == step:  # a step that also ends an epoch
            return
        counts, edges = histogram(A, self.bins)
        self.steps.setdefault(key, []).append(step)
        for kept, row in ((self.counts, counts), (self.edges, edges)):
            before = kept.get(key, np.empty((0, len(row)), row.dtype))
            kept[key] = np.concatenate([before, row[None]])

    # --- saving and resuming ---------------------------------------------------------------

    def check_state(self, state: StateDict, who: str) -> None:
        """Refuse a state with invalid values."""
        for name, width in (("counts", self.bins), ("edges", self.bins + 1)):
            arrays = check_entries(state[name], state["steps"], f"{who}: {name}")
            for key, steps in state["steps"].items():
                check_array(arrays[key], (len(steps), width), f"{who}: {name} of {key}")


def histogram(A: Array, bins: int) -> tuple[Array, Array]:
    """Return how many values of A are in each of `bins` bins, and their borders.

    Values that are (almost) equal get a range around them, in which the bins differ.
    """
    values = A[np.abs(A) < HUGE].astype(np.float64)  # without NaN, too
    if not len(values):
        return np.zeros(bins, np.int64), np.linspace(0, 1, bins + 1)
    low, high = float(values.min()), float(values.max())
    size = max(abs(low), abs(high))
    alike = high - low <= max(1e-9 * size, TINY)
    around = (size / 2 if size > TINY else 0.5) if alike else 0.0
    return np.histogram(values, bins, (low - around, high + around))
