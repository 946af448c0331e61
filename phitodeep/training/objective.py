"""The loss and the metrics of a model in training, computed with its shortcuts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from phitodeep.core.call import calling, current, inference
from phitodeep.core.types import Array
from phitodeep.errors import DivergenceError, OrderError
from phitodeep.layers.containers import Chain
from phitodeep.loss import Loss
from phitodeep.loss.metrics import MetricLike, as_metrics
from phitodeep.optimization.optimizers import Optimizer
from phitodeep.training.callback import Callback
from phitodeep.training.history import History
from phitodeep.training.inputs import Data
from phitodeep.training.parts import predictions
from phitodeep.training.ranks import Ranks, merge_sums
from phitodeep.training.run import Sums, Totals
from phitodeep.training.shortcuts import plan

ALONE = Ranks()


class Trainable(Chain, registered=False):
    """What training requires of a model; `Sequential` implements it."""

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
    _find_anomaly: Callable[..., DivergenceError]  # for a step: see `phitodeep.inspect.anomaly`


class Objective:
    """The loss and the metrics of a model.

    body       the layers that training runs: see `plan`
    loss       the loss of the body's output
    metrics    the metrics of the model's output, summed up batch by batch
    """

    def __init__(
        self, model: Trainable, metrics: Sequence[MetricLike], *, shortcuts: bool = True
    ) -> None:
        loss = model.loss
        watch = current().watch
        self.watch = None if watch is None else watch.of(model)
        self.body, self.loss, self._last, _ = plan(
            model, loss, shortcuts=shortcuts, watched=watch is not None
        )
        self.metrics = as_metrics(metrics, loss.threshold, loss.labels is not None)
        self._ignored: int | None = getattr(loss, "ignore_index", None)
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

    def predictions(self, P: Array) -> Array:
        """Return the model's output, given the output P of the body."""
        if self._last is None:
            return P
        with inference(), calling(watch=self.watch):
            return self._last.forward(P)

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
                    return self.body.forward(part.X)

            n = len(batch.X)
            P = predictions(self.body, forward, n, n, flops, threads)
            with inference():
                totals.loss += self.loss._watched(P, batch.T, batch.w, 1.0, whole=False)[0]
            total += self.divisor(batch)
            self.add_metrics(totals.sums, P, batch)
        totals, total = ranks.merged(totals, self.metrics), ranks.add(total)
        return {"loss": totals.loss / total if total else 0.0, **self.results(totals.sums)}

    def divisor(self, batch: Data) -> float:
        """Return the divisor of the loss when this batch is not part of a larger one."""
        if not batch.counts:
            return 0.0
        return self.loss.divisor(batch.T, batch.w, batch.outputs)

    def add_metrics(self, sums: Sums, P: Array, batch: Data) -> None:
        """Add a batch to the sums of the metrics; P is the output of the body."""
        if self.metrics and batch.counts:
            Y, T = self.predictions(P), batch.T
            if batch.output_mask is not None:
                Y, T = Y[batch.output_mask], T[batch.output_mask]
            if self._ignored is not None and T.dtype.kind == "i":
                T = np.where(self._ignored == T, -1, T)  # metrics leave out -1
            merge_sums(sums, {m.name: m.sums(Y, T) for m in self.metrics}, self.metrics)

    def results(self, sums: Sums) -> dict[str, Any]:
        """Return the values of the metrics from their sums."""
        return {m.name: m.result(sums[m.name]) for m in self.metrics}
