"""The loss and the metrics of a model in training, computed with its shortcuts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.call import calling, current, inference
from phitodeep.core.types import Array, each
from phitodeep.errors import DivergenceError, OrderError
from phitodeep.layers.base import Layer
from phitodeep.layers.containers import Container
from phitodeep.loss import Loss
from phitodeep.loss.heads import Heads, by_name
from phitodeep.loss.metrics import Metric, MetricLike, as_metrics
from phitodeep.optimization.optimizers import Optimizer
from phitodeep.training.callback import Callback
from phitodeep.training.history import History
from phitodeep.training.inputs import Data
from phitodeep.training.parts import predictions
from phitodeep.training.ranks import Ranks, Work, merge_sums
from phitodeep.training.run import Sums, Totals
from phitodeep.training.shortcuts import plan

ALONE = Ranks()


class Trainable(Container, registered=False):
    """What training requires of a model; `Model` implements it."""

    layers: list[Layer]
    takes: tuple[str, ...]  # the names of the inputs and outputs
    returns: tuple[str, ...]
    loss: Loss
    optimizer: Optimizer
    callbacks: list[Callback]
    metrics: list[MetricLike]
    batch_size: int | None
    epochs: int  # per call of `train`
    epoch: int  # epochs trained so far
    _ranks: Ranks = ALONE  # the processes that train it

    train: Callable[..., History]
    predict: Callable[..., Array]
    evaluate: Callable[..., dict[str, Any]]
    samples_at_once: Callable[[], int]  # to evaluate at a time
    _inputs: Callable[..., tuple[Any, Any]]  # what `predict` gets, checked, and its masks
    _in_order: Callable[[Any, Any], tuple[Any, Any]]  # inputs and targets by name, as tuples
    _named: Callable[[Any], Any]  # its outputs as users get them
    _check: Callable[[], None]  # refuses a loss that does not match the layer before it
    _find_anomaly: Callable[..., DivergenceError]  # for a step: see `phitodeep.inspect.anomaly`


class Head(NamedTuple):
    """An output of the model: its loss, its metrics, and the layer that its shortcut leaves out."""

    name: str  # "" if it is the only one
    loss: Loss | None
    last: Layer | None  # which the loss replaces; it runs for metrics only
    metrics: list[Metric]


class Named:
    """A metric of one output, under the name of both."""

    def __init__(self, prefix: str, metric: Metric) -> None:
        self.name, self.metric = prefix + metric.name, metric

    def __getattr__(self, name: str) -> Any:
        return getattr(self.metric, name)

    def __repr__(self) -> str:
        return repr(self.metric)


class LossOf(Metric, registered=False):
    """The mean loss of one output, whose sums training adds up."""

    def __init__(self, output: str) -> None:
        self.output = output

    @property
    def name(self) -> str:
        return f"{self.output}_loss"


class Objective:
    """The loss and the metrics of a model.

    body       the layers that training runs: see `plan`
    loss       the loss of the body's outputs
    heads      the outputs, with their metrics, which are summed up batch by batch
    """

    def __init__(self, model: Trainable, metrics: Any, *, shortcuts: bool = True) -> None:
        loss = model.loss
        watch = current().watch
        self.watch = None if watch is None else watch.of(model)
        found = plan(model, loss, shortcuts=shortcuts, watched=watch is not None)
        self.body, self.loss = found.body, found.loss
        if isinstance(loss, Heads):
            own = by_name(metrics, tuple(loss.losses), "metrics")
            self.heads = [
                Head(name, part, last, _metrics(own.get(name, ()), part, f"{name}_"))
                for name, part, last in zip(loss.outputs, loss.parts, found.lasts, strict=True)
            ]
            self.losses: list[Metric] = [LossOf(head.name) for head in self.heads if head.loss]
        else:
            self.heads = [Head("", loss, found.lasts[0], _metrics(metrics, loss))]
            self.losses = []
        self.metrics = [*self.losses]
        for head in self.heads:
            self.metrics += head.metrics
        self._original = loss, list(model.layers)

    def check(self, model: Trainable) -> None:
        """Refuse a model whose loss or list of layers changed since training began."""
        loss, layers = self._original
        if model.loss is not loss or model.layers != layers:
            what = "loss" if model.loss is not loss else "list of layers"
            raise OrderError(
                f"the model's {what} changed during training: end this training (raise "
                "StopTraining in a callback), change it, and call train again."
            )

    def evaluate(
        self, batches: Iterable[Data], threads: int, ranks: Ranks = ALONE
    ) -> dict[str, Any]:
        """Return the loss and the metrics of all batches together, by name.

        The batches are this rank's part of them.
        """
        totals, total, flops = Totals(), 0.0, self.body.flops()
        for batch in batches:
            if not batch.counts:
                continue

            def forward(rows: slice, batch: Data = batch) -> Array:
                part = batch.part(rows)
                with calling(mask=part.mask):
                    return self.body.forward(*each(part.X))

            P = predictions(self.body, forward, batch.n, batch.n, flops, threads)
            divisor = self.divisor(batch)
            with inference():
                one = np.ones_like(divisor) if self.losses else 1.0
                value: Any = self.loss._watched(P, batch.T, batch.w, one, whole=False)[0]
            totals.loss += value
            total += float(np.sum(divisor))
            if self.losses:
                self._add_each(totals.sums, value.each, divisor)
            self.add_metrics(totals.sums, P, batch)
        totals, total = ranks.merged(totals, self.metrics), ranks.add(total)
        results = self.results(totals.sums)
        if isinstance(self.loss, Heads):
            values = [results.get(f"{name}_loss", 0.0) for name in self.loss.outputs]
            whole = float(np.nan_to_num(values) @ self.loss.scales)
        else:
            whole = totals.loss / total if total else 0.0
        return {"loss": whole, **results}

    def divisor(self, batch: Data) -> Any:
        """Return the divisor of the loss when this batch is not part of a larger one.

        With several outputs, it is an array with the divisor of each.
        """
        if not batch.counts:
            return 0.0
        return self.loss.divisor(batch.T, batch.w, batch.outputs)

    def untrained(self, work: Work) -> dict[str, frozenset[str]]:
        """Return `without=` of the optimizer's step, if any of several outputs has no targets."""
        if not self.losses or np.all(work.total):
            return {}
        counts = zip(self.heads, work.total, strict=True)
        return {"without": frozenset(head.name for head, count in counts if not count)}

    def add_losses(self, sums: Sums, values: Sequence[Any], work: Work, batch: Data) -> None:
        """Add each output's part of a step's loss, for the parts of one batch, to its sums.

        It counts for the samples of the step's batches that have targets of the output.
        """
        if not self.losses or not batch.counts:
            return
        every = [(other.n, other.T) for other in work.batches if other.counts]
        have = np.array([[t is not None for t in T] for _, T in every])  # (batches, heads)
        n = np.array([n for n, _ in every])
        samples = n @ have * (work.samples / n.sum())  # on all ranks
        own = [batch.n * (t is not None) for t in batch.T]
        self._add_each(sums, samples * sum(value.each for value in values), own)

    def _add_each(self, sums: Sums, losses: Any, counts: Any) -> None:
        """Add losses (heads,), and what they are to be divided by, to the sums of each output."""
        new = {
            f"{head.name}_loss": np.array([losses[k], counts[k]], np.float64)
            for k, head in enumerate(self.heads)
        }
        merge_sums(sums, new, self.losses)

    def add_metrics(self, sums: Sums, P: Any, batch: Data) -> None:
        """Add a batch to the sums of the metrics; P is the output of the body."""
        if not batch.counts:
            return
        masks = each(batch.output_mask)
        for head, Y, T, mask in zip(self.heads, each(P), each(batch.T), masks, strict=True):
            if not head.metrics or T is None:
                continue
            if head.last is not None:
                with inference(), calling(watch=self.watch):
                    Y = head.last.forward(Y)
            if mask is not None:
                Y, T = Y[mask], T[mask]
            ignored = getattr(head.loss, "ignore_index", None)
            if ignored is not None and T.dtype.kind == "i":
                T = np.where(ignored == T, -1, T)  # metrics leave out -1
            merge_sums(sums, {m.name: m.sums(Y, T) for m in head.metrics}, head.metrics)

    def results(self, sums: Sums) -> dict[str, Any]:
        """Return the values of the metrics from their sums."""
        return {m.name: m.result(sums[m.name]) for m in self.metrics if m.name in sums}


def _metrics(metrics: Any, loss: Loss | None, prefix: str = "") -> list[Any]:
    """Return the metrics of one output, under names with its prefix; without a loss, none."""
    if loss is None:
        return []
    found = as_metrics(metrics, loss.threshold, loss.labels is not None)
    return [Named(prefix, metric) for metric in found]
