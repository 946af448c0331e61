"""Threads that share a training step: each takes a part of the batch through its own replica."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, Self

from phitodeep.errors import ArgumentError, MissingExtraError
from phitodeep.layers.base import Frame
from phitodeep.layers.containers import Chain
from phitodeep.loss import Loss
from phitodeep.optimization.feeding import Data

Pass = Callable[[Chain, Loss, Data, int], Any]


class Team:
    """`count` replicas of a body and its loss; the first is the body itself.

    Replicas share the parameters and have frames of their own. What a layer does may not depend
    on the rest of the batch: one with state that it writes in training, as BatchNorm has, is
    refused. Gradients are added in the order of the parts, so a run repeats to the bit.
    """

    def __init__(self, body: Chain, loss: Loss, count: int) -> None:
        for path, layer in body.walk():
            if layer.state and layer.trainable:
                raise ArgumentError(
                    f"threads={count}: {layer!r} at {path} depends on the whole batch, which "
                    "threads would split. Train with threads=1, or freeze it."
                )
        self.members = [(body, loss)]
        for _ in range(count - 1):
            own = copy.copy(loss)
            own.frame = Frame()
            self.members.append((body.replica(), own))
        from concurrent.futures import ThreadPoolExecutor  # which few trainings need

        self.pool = ThreadPoolExecutor(count - 1, thread_name_prefix="phitodeep")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown()

    def work(self, batch: Data, task: Pass) -> list[tuple[Data, Any]]:
        """The parts of the batch, and what `task(body, loss, part, first)` gave for each.

        Afterwards the body's gradients are those of all parts together.
        """
        n, k = len(batch.X), min(len(self.members), len(batch.X))
        edges = [n * i // k for i in range(k + 1)]
        parts = [batch.part(slice(a, b)) for a, b in itertools.pairwise(edges)]
        jobs = [
            self.pool.submit(copy_context().run, task, body, loss, part, first)
            for (body, loss), part, first in zip(
                self.members[1:], parts[1:], edges[1:], strict=False
            )
        ]
        try:
            results = [task(*self.members[0], parts[0], 0)]
        finally:
            results_of_others = [job.result() for job in jobs]
        results += results_of_others
        for member, _ in self.members[1:k]:
            self._add_gradients(member)
        return list(zip(parts, results, strict=True))

    def _add_gradients(self, member: Chain) -> None:
        body, _ = self.members[0]
        for (_, ours), (_, theirs) in zip(body.walk(), member.walk(), strict=True):
            for name, gradient in theirs.grads.items():
                ours.grads[name] += gradient


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Within the body, matrix products run in the thread that asks for them."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        raise MissingExtraError.of("threadpoolctl", "fast", "threads above 1") from None
    with threadpool_limits(1, user_api="blas"):
        yield
