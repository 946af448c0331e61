"""Large batches in parts, which several threads run at once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import numpy as np

from phitodeep.layers.base import Layer
from phitodeep.layers.call import calling, current, inference
from phitodeep.layers.containers import Chain
from phitodeep.layers.frame import Frame
from phitodeep.loss import Loss
from phitodeep.threads import SMALL, one_blas_thread, parts_of, run
from phitodeep.training.inputs import Data
from phitodeep.types import Array

Pass = Callable[[Chain, Loss, Data, float | None], tuple[Array, float]]


class Team:
    """The body of a model and its loss, with a replica of both for each part of a batch.

    The first part runs in the body itself, the others in replicas that share its parameters and
    have frames of their own. Gradients are added in the order of the parts. The sizes of the model
    and the batch decide how many parts there are, so results are the same bit for bit, however many
    threads run them.

    A batch stays whole if a layer updates its state in training, such as BatchNorm, if a layer or
    the loss does not declare its samples independent, or if a layer keeps the interpreter's lock.
    """

    def __init__(self, body: Chain, loss: Loss, threads: int) -> None:
        self.body, self.loss, self.threads = body, loss, threads
        self.flops = 3 * body.flops()  # of a step, per sample: backward is twice forward
        self.frames: list[tuple[dict[Layer, Frame], Frame]] = []  # of each replica and its loss
        self.splits = True
        self.check()

    def check(self) -> None:
        """Split no more batches if a layer has changed so that it needs the whole batch."""
        updates = any(layer.state and layer.trainable for _, layer in self.body.walk())
        independent = self.loss.independent_samples and _splits(self.body)
        self.splits = self.splits and independent and not updates

    def parts(self, n: int) -> int:
        """Return the number of parts for a batch of n samples."""
        return min(n, parts_of(n * self.flops)) if self.splits else 1

    def blas(self, n: int) -> AbstractContextManager[None]:
        """Return the context for training with batches of n samples."""
        return _blas(n * self.flops, self.splits)

    def work(self, task: Pass, batch: Data, total: float | None) -> list[tuple[Array, float]]:
        """Return `task(body, loss, part, total)` for each part of the batch.

        The gradients of all parts are added into the body's gradients.
        """
        k, n, call = self.parts(len(batch.X)), len(batch.X), current()
        if k == 1:
            return [task(self.body, self.loss, batch, total)]
        members = self._members(k)
        edges = [n * i // k for i in range(k + 1)]

        def job(i: int) -> tuple[Array, float]:
            part = batch.part(slice(edges[i], edges[i + 1]))
            with calling(first=call.first + edges[i], mask=part.mask):
                return task(*members[i], part, total)

        results = run([partial(job, i) for i in range(k)], self.threads)
        for replica, _ in members[1:]:
            self._add_gradients(replica)
        return results

    def _members(self, k: int) -> list[tuple[Chain, Loss]]:
        """Return the body and the loss for each of k parts, with their current settings."""
        self.frames += [({}, Frame()) for _ in range(k - 1 - len(self.frames))]
        members = [(self.body, self.loss)]
        for frames, of_loss in self.frames[: k - 1]:
            loss = copy.copy(self.loss)
            loss._frame = of_loss
            members.append((self.body._replica(frames), loss))
            for old in frames.values():
                old.grads = {}  # clear those of layers that this batch may not reach
        return members

    def _add_gradients(self, replica: Chain) -> None:
        for (_, ours), (_, theirs) in zip(self.body.walk(), replica.walk(), strict=True):
            for name, gradient in theirs.grads.items():
                if name in ours.grads:
                    ours.grads[name] += gradient
                else:  # the first part ran no backward, or none through this parameter
                    ours.grads[name] = gradient


def predictions(
    body: Chain, forward: Callable[[slice], Array], n: int, size: int, flops: int, threads: int
) -> Array:
    """Return the outputs for n samples, given by `forward(rows)` for at most `size` at a time.

    flops    of the forward pass, per sample
    """
    parts, work = parts_of(3 * n * flops), n * flops
    with inference():
        if splits := parts > 1 and _splits(body):
            chunks = parts * -(-n // (parts * size))
            size = -(-n // chunks)
        jobs = [partial(forward, slice(i, i + size)) for i in range(0, n, size)]
        with nullcontext() if work < SMALL else _blas(3 * work, splits):
            found = run(jobs, threads if splits and current().watch is None else 1)
    return found[0] if len(found) == 1 else np.concatenate(found)


def _splits(body: Chain) -> bool:
    return bool(body.independent_samples) and not body.keeps_lock


def _blas(flops: float, splits: bool) -> AbstractContextManager[None]:
    """Return the context for work of so many FLOPs: one BLAS thread, or BLAS as it is.

    Large work that cannot be split keeps the threads of BLAS.
    """
    return one_blas_thread if splits or parts_of(flops) == 1 else nullcontext()
