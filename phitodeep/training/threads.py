"""Multithreaded training: each thread runs a part of the batch through its own replica."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, Self

from phitodeep.errors import ArgumentError, MissingExtraError
from phitodeep.layers.base import Layer
from phitodeep.layers.containers import Chain
from phitodeep.layers.frame import Frame
from phitodeep.loss import Loss
from phitodeep.training.inputs import Data

Pass = Callable[[Chain, Loss, Data, int], Any]


class Team:
    """A team of `count` threads that run the body and its loss, each on a part of the batch.

    The first thread uses the body itself, the others replicas that share its parameters and have
    their own frames. A layer that updates its state in training, such as BatchNorm, depends on the
    whole batch and is refused. If a layer or the loss does not declare its samples independent, the
    batch is not split. Gradients are added in the order of the parts, so results are reproducible
    bit for bit.
    """

    def __init__(self, body: Chain, loss: Loss, count: int) -> None:
        self.body, self.loss, self.count = body, loss, count
        self.frames: list[dict[Layer, Frame]] = [{} for _ in range(count - 1)]
        self.loss_frames = [Frame() for _ in range(count - 1)]
        self._check()
        from concurrent.futures import ThreadPoolExecutor  # slow to import, rarely needed

        self.pool = ThreadPoolExecutor(count - 1, thread_name_prefix="phitodeep")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown()

    def _check(self) -> None:
        for path, layer in self.body.walk():
            if layer.state and layer.trainable:
                raise ArgumentError(
                    f"threads={self.count}: {layer!r} at {path} depends on the whole batch, which "
                    "threads would split. Train with threads=1, or freeze the layer."
                )

    def _members(self, n: int) -> list[tuple[Chain, Loss]]:
        """Return the body and the loss for each part of n samples, with their current settings."""
        self._check()
        members = [(self.body, self.loss)]
        if self.body.independent_samples and self.loss.independent_samples:
            for frames, frame in zip(self.frames[: n - 1], self.loss_frames, strict=False):
                loss = copy.copy(self.loss)
                loss._frame = frame
                members.append((self.body._replica(frames), loss))
                for old in frames.values():
                    old.grads = {}  # clear those of layers that this batch may not reach
        return members

    def work(self, batch: Data, task: Pass) -> list[Any]:
        """Run `task(body, loss, part, first)` on each part of the batch; return all results.

        `first` is the index of the part's first sample. The gradients of all parts are added into
        the body's gradients.
        """
        n = len(batch.X)
        members = self._members(n)
        k = len(members)
        edges = [n * i // k for i in range(k + 1)]
        parts = [batch.part(slice(a, b)) for a, b in itertools.pairwise(edges)]
        jobs = [
            self.pool.submit(copy_context().run, task, body, loss, part, first)
            for (body, loss), part, first in zip(members[1:], parts[1:], edges[1:-1], strict=True)
        ]
        try:
            results = [task(*members[0], parts[0], 0)]
        finally:
            other_results = [job.result() for job in jobs]
        results += other_results
        for member, _ in members[1:]:
            self._add_gradients(member)
        return results

    def _add_gradients(self, member: Chain) -> None:
        for (_, ours), (_, theirs) in zip(self.body.walk(), member.walk(), strict=True):
            for name, gradient in theirs.grads.items():
                if name in ours.grads:
                    ours.grads[name] += gradient
                else:  # the first part ran no backward, or none through this parameter
                    ours.grads[name] = gradient


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread, so each matrix product runs in the thread that calls it."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        raise MissingExtraError.of("threadpoolctl", "fast", "threads above 1") from None
    with threadpool_limits(1, user_api="blas"):
        yield
