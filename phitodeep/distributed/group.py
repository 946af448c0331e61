"""The ranks of an MPI job as the training loop sees them."""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from phitodeep.core.types import Array
from phitodeep.distributed.comparison import compare, description
from phitodeep.distributed.exchange import Shards, Summation
from phitodeep.distributed.job import Job
from phitodeep.errors import ArgumentError, OrderError, PhitodeepWarning, first_few, warn
from phitodeep.kernels import hide_compilation
from phitodeep.layers.base import Layer
from phitodeep.loss.metrics import Metric
from phitodeep.optimization.gradient_sync import ALONE
from phitodeep.optimization.optimizers import Optimizer
from phitodeep.training.inputs import Data, Share
from phitodeep.training.ranks import Ranks, Work, merge_sums
from phitodeep.training.run import Totals
from phitodeep.training.sources import Epoch

LISTED = 16  # processes that the first line names


class Group(Ranks):
    """Several ranks that train one model; see `Ranks` for the methods."""

    def __init__(
        self, model: Any, comm: MPI.Comm, *, shards: bool, overlap: bool, timeout: float
    ) -> None:
        self.job = Job.of(comm)
        self.rank, self.size = self.job.rank, self.job.size
        self.share, self.summing = Share(self.rank, self.size), self
        self.options = {"shard_optimizer": shards, "overlap": overlap, "timeout": timeout}
        self.exchange = Shards(self.job, False) if shards else Summation(self.job, overlap)
        self.training: Any = None  # the call of `train` that is running
        self.last: Data | None = None  # a sample of this rank
        seeds = self.job.gather((model.seed, model._seed_sequence.entropy))
        if len({seed for seed, _ in seeds}) > 1:
            raise ArgumentError(
                f"the ranks have models with different seeds: {[seed for seed, _ in seeds]}. Give "
                "all of them the same one; random values differ from sample to sample anyway."
            )
        if model.seed is None:
            model._set_seed(np.random.SeedSequence(seeds[0][1]))
        if self.rank > 0:
            warnings.simplefilter("ignore", PhitodeepWarning)  # rank 0 issues them
            hide_compilation()

    def __deepcopy__(self, memo: Any) -> Group:
        return self

    def __reduce__(self) -> Any:
        return Ranks, ()  # an unpickled model trains alone

    def begin(self, training: Any) -> None:
        optimizer = training.model.optimizer
        if isinstance(optimizer._sync, Summation):
            raise OrderError("train was called inside a training of the same model, by a callback.")
        if self.exchange.shards:
            _check_elementwise(optimizer)
        self.over, self.training, self.last = False, training, None
        self.job.together()
        self.job.timeout = self.options["timeout"]
        self.job.begin()
        compare(self.job.gather(description(training, self.options)))
        for _, layer in training.model.walk():
            for store in (layer.params, layer.state):
                for name in sorted(store):
                    if not store[name].flags.c_contiguous:
                        store[name] = np.ascontiguousarray(store[name])
                    self.job.broadcast(store[name])
        for name in sorted(optimizer._slots):
            self.job.broadcast(optimizer._slots[name])
        self.exchange.packing = None  # its parameters may have moved
        optimizer._sync = self.exchange
        if self.exchange.shards:  # drop the parts of other ranks
            mine = self.exchange.mine(optimizer._packing)
            for name, whole in optimizer._slots.items():
                optimizer._slots[name] = np.zeros(whole.shape, whole.dtype)
                optimizer._slots[name][mine] = whole[mine]
        if self.rank == 0 and training.verbose:
            places = first_few([f"{i}: {p}" for i, p in enumerate(self.job.places)], LISTED)
            print(f"{self.size} ranks ({places})", flush=True)

    def failed(self) -> None:
        self.over, error = True, sys.exception()
        if isinstance(error, Exception):  # others end the program: see `Job.leave`
            self.job.fail(error)

    def end(self, training: Any) -> None:
        optimizer = training.model.optimizer
        optimizer._sync, exchange, self.training = ALONE, self.exchange, None
        if not self.over:
            optimizer._slots = exchange.collected(optimizer._slots)
        elif exchange.shards:  # the other ranks' parts cannot be had any more
            owner = training.model
            optimizer.reset()
            optimizer._claim(owner)
            warn(
                "training failed with shard_optimizer=True: the optimizer's memory was spread over "
                "the ranks and is lost. Resume from a checkpoint to continue exactly."
            )

    def meet(
        self, batches: Sequence[Data], accumulate: int, divisor: Callable[[Data], Any], step: int,
        pressed: bool,
    ) -> Work | None:  # fmt: skip
        heads = len(self.training.objective.heads)
        row = np.zeros((1 + accumulate, 1 + heads))  # samples and divisors of each batch
        row[0, :2] = pressed, step
        for i, batch in enumerate(batches, 1):
            row[i, 0] = batch.n if batch.counts else 0
            row[i, 1:] = divisor(batch)
        rows = self.job.table(row.ravel(), f"step {step + 1} of the epoch")
        rows = rows.reshape(-1, *row.shape)  # (ranks, 1 + batches, 1 + heads)
        if not (rows[:, 0, 1] == step).all():
            raise OrderError(
                "the ranks are at different steps of the epoch: "
                f"{rows[:, 0, 1].astype(int).tolist()}."
            )
        counts = rows[:, 1:, 0].astype(int)  # (ranks, batches)
        used = int(np.count_nonzero(counts.any(0)))
        if not used:
            return None
        batches = list(batches)[:used]
        if batches:
            self.last = batches[-1].part(slice(0, 1))
        elif self.last is None:  # training resumed behind the end of this rank's own data
            first = next(iter(self.training.data.batches(Epoch(self.training.size))))
            self.last = first.part(slice(0, 1))
        while len(batches) < used:  # this rank's own data have ended before the others'
            batches.append(self.last._replace(counts=False))
        starts = np.concatenate([[0], np.cumsum(counts.sum(0))[:-1]])
        firsts = (starts[:used] + counts[: self.rank, :used].sum(0)).tolist()
        totals = rows[:, 1:, 1:].sum(axis=(0, 1))
        total = totals if heads > 1 else float(totals[0])
        return Work(batches, firsts, int(counts.sum()), total, bool(rows[:, 0, 0].any()))

    def backward_begins(
        self, optimizer: Optimizer, layers: Sequence[Layer]
    ) -> Callable[[Any], None] | None:
        return self.exchange.begin(*optimizer._begun(layers))

    def sum(self, a: Array) -> Array:
        """Return the sum of this array over all ranks, in place; for layers."""
        return self.job.sum(a)

    def add(self, value: float) -> float:
        return float(self.job.table(np.array([value], float), "a sum").sum())

    def agree(self, reason: str | None) -> str | None:
        if self.over:
            return reason
        stops = self.job.table(np.array([reason is not None], np.uint8), "the end of callbacks")
        if not stops.any():
            return None
        return next(text for text in self.job.gather(reason) if text is not None)

    def call(self, callback: Any, method: str, *args: Any) -> None:
        if callback.every_rank:
            super().call(callback, method, *args)
        elif self.rank == 0:  # it must not do what all ranks do together
            Job.alone = True
            try:
                super().call(callback, method, *args)
            finally:
                Job.alone = False

    def merged(self, totals: Totals, metrics: Sequence[Metric]) -> Totals:
        whole = Totals()
        for part in self.job.gather(totals):
            whole.loss += part.loss
            whole.samples += part.samples
            merge_sums(whole.sums, part.sums, metrics)
        return whole

    def handed_over(self, totals: Totals) -> Totals:
        whole = self.merged(totals, self.training.objective.metrics)
        return whole if self.rank == 0 else Totals()

    def settle(self, training: Any, epoch: int) -> None:
        for _, layer in training.model.walk():
            if not getattr(layer, "sync", False):
                for name in sorted(layer.state):
                    if layer.state[name].dtype.kind == "f":
                        mean = self.job.sum(layer.state[name].copy())
                        np.divide(mean, self.size, out=layer.state[name])
        optimizer = training.model.optimizer
        theta = optimizer._packing.theta
        mark = hashlib.blake2b(theta.tobytes())
        mark.update(repr((optimizer.t, optimizer.last_rate)).encode())
        marks = self.job.table(np.frombuffer(mark.digest(), np.uint8), f"the end of epoch {epoch}")
        wrong = np.flatnonzero((marks != marks[0]).any(1)).tolist()
        if wrong:
            raise OrderError(
                f"after epoch {epoch}, the weights or the rate of rank {wrong[0]} differ from rank "
                "0's. A callback may have changed them on rank 0 alone: its class must say "
                "every_rank = True. Processors of different kinds round differently, too."
            )


def _check_elementwise(optimizer: Any) -> None:
    """Refuse a rule that needs more than an element's own values for its update."""
    author = next(kind for kind in type(optimizer).__mro__ if "update" in vars(kind))
    if not vars(author).get("elementwise", False):
        raise ArgumentError(
            f"shard_optimizer=True steps a part of the vectors on each rank, but {optimizer!r} "
            "needs whole parameters: leave it out, use another optimizer or, if `update` computes "
            "each element from its own values, write elementwise = True in its class."
        )
