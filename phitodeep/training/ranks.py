"""What training asks of the processes (ranks) that train a model together; here: of one alone.

`phitodeep.distributed` answers for several. Everything that ranks must do together is a method
here, so the training loop is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.call import Summing
from phitodeep.core.types import Array
from phitodeep.layers.base import Layer
from phitodeep.loss.metrics import Metric
from phitodeep.optimization.optimizers import Optimizer
from phitodeep.training.inputs import Data, Share
from phitodeep.training.run import Totals


class Work(NamedTuple):
    """The batches of one optimizer step, as far as they belong to this rank."""

    batches: Sequence[Data]
    firsts: Sequence[int]  # the place of each one's first sample among all samples of the step
    samples: int  # of the step, on all ranks
    total: Any  # the loss's divisor for the whole step, or each head's; None: not computed yet
    pressed: bool  # whether Ctrl-C was pressed on any rank


class Ranks:
    """The ranks that train a model together: this process alone."""

    rank, size, counts = 0, 1, True
    share = Share(0, 1)
    summing: Summing | None = None  # for layers whose statistics span all ranks

    def begin(self, training: Any) -> None:
        """Start a call of `train`: ranks that differ are refused; all get rank 0's weights."""

    def failed(self) -> None:
        """An error ends training on this rank: from now on it meets no other one."""

    def end(self, training: Any) -> None:
        """End a call of `train`; from now on, the model is this process's own."""

    def meet(
        self, batches: Sequence[Data], accumulate: int, divisor: Callable[[Data], Any], step: int,
        pressed: bool,
    ) -> Work | None:  # fmt: skip
        """Return the work of the next step, given this rank's batches; None: there is none."""
        if not batches:
            return None
        counts = [batch.n for batch in batches]
        firsts = [sum(counts[:i]) for i in range(len(counts))]
        return Work(batches, firsts, sum(counts), None, pressed)

    def backward_begins(
        self, optimizer: Optimizer, layers: Sequence[Layer]
    ) -> Callable[[Any], None] | None:
        """Return what to call with each layer whose gradients are complete, or None."""
        return None

    def add(self, value: float) -> float:
        """Return the sum of a number over all ranks."""
        return value

    def agree(self, reason: str | None) -> str | None:
        """Return why rank 0 or, if it has no reason, the first other rank stops training."""
        return reason

    def call(self, callback: Any, method: str, *args: Any) -> None:
        """Call a callback's method: on rank 0 alone, unless it says `every_rank = True`."""
        getattr(callback, method)(*args)

    def merged(self, totals: Totals, metrics: Sequence[Metric]) -> Totals:
        """Return the sums over all ranks."""
        return totals

    def handed_over(self, totals: Totals) -> Totals:
        """Give the running sums of all ranks to rank 0: the others start again at 0."""
        return totals

    def settle(self, training: Any, epoch: int) -> None:
        """End an epoch: average running statistics, and refuse ranks whose weights differ."""


class Muted:
    """Lets a rank without samples take part in sums, to which it adds 0."""

    counts = False

    def __init__(self, summing: Summing) -> None:
        self.summing = summing

    def sum(self, a: Array) -> Array:
        a.fill(0)
        return self.summing.sum(a)


def merge_sums(one: dict[str, Array], other: dict[str, Array], metrics: Sequence[Metric]) -> None:
    """Add the sums of metrics, by name, to those in `one`."""
    for metric in metrics:
        old, new = one.get(metric.name), other.get(metric.name)
        if new is not None:  # a copy: a view of the predictions would change with the next batch
            one[metric.name] = np.array(new) if old is None else metric.merge(old, np.array(new))
