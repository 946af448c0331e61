"""Large batches in parts, which several threads run at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

from phitodeep.core.call import calling, current, inference
from phitodeep.core.frame import Frame
from phitodeep.core.threads import SMALL, Joined, Part, one_blas_thread, parts_of, run, together
from phitodeep.core.types import Array, joined
from phitodeep.layers.base import Layer
from phitodeep.layers.containers import Container
from phitodeep.layers.normalization import BatchNorm
from phitodeep.loss import Loss
from phitodeep.optimization.packing import add_product
from phitodeep.training.inputs import Data

Pass = Callable[[Container, Loss, Data, float | None], tuple[Array, float]]


class Member(NamedTuple):
    """What runs a part of the batch."""

    body: Container
    loss: Loss
    layers: list[Layer]  # of this body, in the order of the tree
    scratch: dict[Any, Array]  # memory that these layers share


class BatchSplitter:
    """The body of a model and its loss, with a replica of both for each part of a batch.

    The first part runs in the body itself, the others in replicas that share its parameters and
    have frames of their own. Gradients are added in the order of the parts. The sizes of the model
    and the batch decide how many parts there are, so results are the same bit for bit, however many
    threads run them.

    Parts with BatchNorm run at once, and wait for each other where sums over the batch are taken.

    A batch stays whole if another layer updates its state in training, if a layer or the loss does
    not declare its samples independent, or if a layer keeps the interpreter's lock.
    """

    def __init__(self, body: Container, loss: Loss, threads: int) -> None:
        self.body, self.loss, self.threads = body, loss, threads
        self.flops = 3 * body.flops()  # of a step, per sample: backward is twice forward
        # of each replica, by its number, and of its loss
        self.frames = defaultdict[int, tuple[dict[Layer, Frame], Frame]](lambda: ({}, Frame()))
        self.splits = True
        self.refresh()

    def refresh(self) -> None:
        """Make new replicas, since layers may have changed; split no more if one says so now."""
        self.layers = [layer for _, layer in self.body.walk()]
        self.members = [Member(self.body, self.loss, self.layers, {})]
        updates = [layer for layer in self.layers if layer.state and layer.trainable]
        self.joins = bool(updates)  # whether parts take sums over the batch
        with calling(part=Joined() if updates else Part()):
            independent = self.loss.independent_samples and _splits(self.body)
        joined = all(isinstance(layer, BatchNorm) for layer in updates)
        self.splits = self.splits and independent and joined

    def parts(self, n: int) -> int:
        """Return the number of parts for a batch of n samples."""
        return min(n, parts_of(n * self.flops)) if self.splits else 1

    def blas(self, n: int) -> AbstractContextManager[None]:
        """Return the context for training with batches of n samples."""
        return _blas(n * self.flops, self.splits, self.threads)

    def work(self, task: Pass, batch: Data, total: float | None) -> list[tuple[Array, float]]:
        """Return `task(body, loss, part, total)` for each part of the batch.

        The gradients of all parts are added into the body's gradients.
        """
        k, n, call = self.parts(batch.n), batch.n, current()
        members = self._members(k)
        for member in members:
            for layer in member.layers:
                layer._frame.grads = {}  # this batch may not reach the layer
        if k == 1:
            return [task(self.body, self.loss, batch, total)]

        def job(i: int, among: Part = call.part) -> tuple[Array, float]:
            start = n * i // k
            part = batch.part(slice(start, n * (i + 1) // k))
            body, loss, _, scratch = members[i]
            own = {"mask": part.mask, "ended": None, "scratch": scratch, "part": among}
            with calling(first=call.first + start, **own):
                return task(body, loss, part, total)

        jobs = [partial(job, i) for i in range(k)]
        results = together(jobs, self.threads) if self.joins else run(jobs, self.threads)
        if results is None:
            return [task(self.body, self.loss, batch, total)]
        for member in members[1:]:
            for layer, replica in zip(self.layers, member.layers, strict=True):
                if replica.grads:
                    _add(layer, replica.grads)
        return results

    def _members(self, k: int) -> list[Member]:
        """Return the body and k - 1 replicas of it, each with its loss."""
        for i in range(len(self.members), k):
            frames, of_loss = self.frames[i]
            body, loss = self.body._replica(frames), self.loss._replica(of_loss)
            self.members.append(Member(body, loss, [layer for _, layer in body.walk()], {}))
        return self.members[:k]


def _add(layer: Layer, grads: dict[str, Array]) -> None:
    """Add another part's gradients to the layer's own.

    A product of the first part is added to the second part's gradient, which gives the same bits as
    the other way round, and the same as if a watcher had asked for an array.
    """
    ours, products = layer.grads, layer._frame.products
    for name, gradient in grads.items():
        if name not in ours:
            ours[name] = gradient
            if name in products:
                add_product(gradient, *products.pop(name))
        elif ours[name].flags.writeable:
            ours[name] += gradient
        else:  # such as a broadcast array
            ours[name] = ours[name] + gradient


def predictions(
    body: Container, forward: Callable[[slice], Array], n: int, size: int, flops: int, threads: int
) -> Array:
    """Return the outputs for n samples, given by `forward(rows)` for at most `size` at a time.

    flops    of the forward pass, per sample
    """
    parts, work = parts_of(3 * n * flops), n * flops
    with inference():
        if splits := parts > 1 and _splits(body):
            chunks = parts * -(-n // (parts * size))
            size = -(-n // chunks)
        with nullcontext() if work < SMALL else _blas(3 * work, splits, threads):
            if size >= n:
                return forward(slice(n))
            frame = body._original._frame
            frame.passes += 1
            draw = frame.passes

            def job(start: int) -> Array:
                with calling(first=start, draw=draw):
                    return forward(slice(start, start + size))

            jobs = [partial(job, start) for start in range(0, n, size)]
            found = run(jobs, threads if splits and current().watch is None else 1)
    return joined(found)


def _splits(body: Container) -> bool:
    return bool(body.independent_samples) and not body.keeps_lock


def _blas(flops: float, splits: bool, threads: int) -> AbstractContextManager[None]:
    """Return the context for work of so many FLOPs: one BLAS thread, or BLAS as it is.

    Large work that cannot be split keeps the threads of BLAS, unless only one is allowed.
    """
    one = splits or parts_of(flops) == 1 or threads == 1
    return one_blas_thread if one else nullcontext()
