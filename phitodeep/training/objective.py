"""What training minimises: the loss of a model, with its metrics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from phitodeep.errors import (
    OrderError,
)
from phitodeep.layers.call import calling, current, inference
from phitodeep.layers.containers import Chain
from phitodeep.loss import Loss
from phitodeep.metrics import MetricLike, as_metrics
from phitodeep.training.inputs import Data
from phitodeep.training.shortcuts import fused, swapped
from phitodeep.types import Array

Sums = dict[str, Array]  # of metrics, by name


class Objective:
    """What training makes small: the loss of a model, with its shortcuts."""

    def __init__(self, model: Chain, loss: Loss, metrics: Sequence[MetricLike]) -> None:
        last = model._last
        short = fused(last, loss)
        self.body = swapped(model if short is None else model._without_last())
        self._last = None if short is None else last
        self.loss = loss if short is None else short
        self.metrics = as_metrics(metrics, loss.threshold, loss.labels is not None)
        self.ignored: int | None = getattr(loss, "ignore_index", None)
        self._made_from = loss, list(model.layers)
        watch = current().watch
        self.watch = None if watch is None else watch.of(model)

    def check(self, model: Any) -> None:
        """Refuse a model whose loss or layers are no longer those of this training."""
        loss, layers = self._made_from
        if model.loss is not loss or model.layers != layers:
            what = "loss" if model.loss is not loss else "list of layers"
            raise OrderError(
                f"the model's {what} changed while it trains: end this training (raise "
                "StopTraining in a callback), change it, and call train again."
            )

    def predictions(self, P: Array) -> Array:
        """The model's output, from that of the body."""
        if self._last is None:
            return P
        with inference():
            if self.watch is None:
                return self._last.forward(P)
            with calling(watch=self.watch):
                return self._last.forward(P)

    def evaluate(self, batches: Iterable[Data]) -> dict[str, Any]:
        """Loss and metrics of all the data, in batches that do not show in the result."""
        value = total = 0.0
        sums = Sums()
        for batch in batches:
            with inference(), calling(mask=batch.mask):
                P = self.body.forward(batch.X)
            with inference():
                value += self.loss._watched_value(P, batch.T, batch.w, 1.0)
            total += self.divisor(batch)
            self.add_metrics(sums, P, batch)
        return {"loss": value / total if total else 0.0, **self.results(sums)}

    def divisor(self, batch: Data) -> float:
        """What the loss of this batch alone is divided by."""
        return self.loss.divisor(batch.T, batch.w, batch.outputs)

    def add_metrics(self, sums: Sums, P: Array, batch: Data) -> None:
        """Add one batch, whose body gave P, to the metrics' sums."""
        if self.metrics:
            Y, T = self.predictions(P), batch.T
            if batch.output_mask is not None:
                Y, T = Y[batch.output_mask], T[batch.output_mask]
            if self.ignored is not None and T.dtype.kind == "i":
                T = np.where(self.ignored == T, -1, T)  # which metrics leave out
            for metric in self.metrics:
                # a copy: a view of the predictions would change with the next batch
                new, old = np.array(metric.sums(Y, T)), sums.get(metric.name)
                sums[metric.name] = new if old is None else metric.merge(old, new)

    def results(self, sums: Sums) -> dict[str, Any]:
        """The metrics' values from their sums."""
        return {m.name: m.result(sums[m.name]) for m in self.metrics}
