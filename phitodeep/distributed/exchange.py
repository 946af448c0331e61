"""Sums the gradients of all ranks, during the backward pass or in shards.

A layer's gradients are complete when its `backward` returns. The flat vector g holds parameters in
the order of the backward pass, so its slices, the buckets, are complete one after another, and the
sum of a bucket travels while the layers before it are still computing.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from phitodeep.core.types import Array
from phitodeep.distributed.job import Job
from phitodeep.errors import OrderError
from phitodeep.layers.base import Layer
from phitodeep.optimization.divergence import length
from phitodeep.optimization.gradient_sync import GradientSync
from phitodeep.optimization.packing import Group, Packing, Slot, Tie

BUCKET = 3 << 19  # bytes: a bucket has at least as many, except the one at the end of the vector


class Bucket(NamedTuple):
    """A slice of the gradient vector that is summed by one message."""

    piece: slice
    slots: list[tuple[Slot, tuple[Array, Array]]]  # its parameters, and their views
    ties: list[Tie]  # uses of them in other layers
    layers: set[Layer]  # those whose backward passes write into it


def buckets(packing: Packing) -> list[Bucket]:
    """Return the slices of the vector g, in the order in which backward completes them."""
    by_start = sorted(
        zip(packing.slots, packing.views, strict=True), key=lambda s: packing.pieces[s[0][0]].start
    )
    order = {id(layer): i for i, (_, layer) in enumerate(packing.walk)}
    found: list[list[tuple[Slot, tuple[Array, Array]]]] = [[]]
    for slot in by_start:
        if sum(g.nbytes for _, (_, g) in found[-1]) >= BUCKET:
            found.append([])
        found[-1].append(slot)
    made = []
    for slots in filter(None, found):
        owners = {(id(layer), name) for (_, layer, name), _ in slots}
        ties = [tie for tie in packing.ties if (id(tie[3][0]), tie[3][1]) in owners]
        layers = {layer for (_, layer, _), _ in slots} | {user for _, user, *_ in ties}
        edges = [packing.pieces[path] for (path, _, _), _ in slots]
        made.append(Bucket(slice(edges[0].start, edges[-1].stop), slots, ties, layers))
    return sorted(made, key=lambda b: -min(order[id(layer)] for layer in b.layers))


class Summation(GradientSync):
    """The sums of gradients; every rank has all of the optimizer's vectors."""

    shards = False

    def __init__(self, job: Job, overlap: bool) -> None:
        self.job, self.overlap, self.comm = job, overlap, job.gradients
        self.packing: Packing | None = None
        self.requests: list[MPI.Request] = []
        self.inside: dict[int, tuple[Layer, list[Layer]]] = {}  # the layers below each layer

    def begin(self, packing: Packing, held: Array | None) -> Callable[[Any], None] | None:
        """Prepare for a backward pass; return what to call with each layer that is done."""
        if packing is not self.packing:
            self.packing, self.buckets, self.inside = packing, buckets(packing), {}
        self.held, self.started, self.requests, self.armed = held, 0, [], True
        self.left = [set(bucket.layers) for bucket in self.buckets]
        return self.ended if self.overlap and len(self.buckets) > 1 else None

    def ended(self, layer: Layer) -> None:
        """Start the sums of the buckets that are complete now that this layer's backward is."""
        layer = layer._original
        if id(layer) not in self.inside:  # a joined pair, say, contains the layers that it runs
            self.inside[id(layer)] = layer, [inner for _, inner in layer.walk()]
        for inner in self.inside[id(layer)][1]:
            for left in self.left[self.started :]:
                left.discard(inner)
        before = self.started
        while self.started < len(self.buckets) and not self.left[self.started]:
            self.start()
        if before == self.started:
            for request in self.requests:
                request.Test()  # messages move on only inside calls of MPI

    def start(self) -> None:
        """Gather the gradients of the next bucket, and start their sum."""
        bucket, packing = self.buckets[self.started], self.packing
        assert packing is not None
        packing.gather_slots(bucket.slots)
        packing.gather_ties(bucket.ties)
        if self.held is not None:
            packing.g[bucket.piece] += self.held[bucket.piece]
        self.started += 1
        self.send(packing.g[bucket.piece])

    def send(self, g: Array) -> None:
        self.requests.append(self.comm.Iallreduce(MPI.IN_PLACE, g))

    def finish(self, packing: Packing, held: Array | None) -> None:
        """Sum what is left, and wait for all sums."""
        self.job.together()
        if packing is not self.packing or not self.armed:
            self.begin(packing, held)
        while self.started < len(self.buckets):
            self.start()
        for request in self.requests:
            self.job.wait(request, "the sum of gradients")
        self.armed = False


class Shards(Summation):
    """The exchange in which each rank steps its part of the vectors, and keeps no other part.

    Source: Rajbhandari, Rasley, Ruwase and He 2020, "ZeRO", arXiv:1910.02054, stage 1.
    """

    shards = True

    def edges(self, n: int) -> list[int]:
        """Return where the parts of all ranks begin and end."""
        return [n * i // self.job.size for i in range(self.job.size + 1)]

    def share(self, group: Group, packing: Packing) -> Group:
        mine = self.mine(packing)
        return group._replace(
            piece=in_both(group.piece, mine), decayed=in_both(group.decayed, mine)
        )

    def mine(self, packing: Packing) -> slice:
        edges = self.edges(packing.theta.size)
        return slice(edges[self.job.rank], edges[self.job.rank + 1])

    def send(self, g: Array) -> None:
        """Wait with every bucket: all are sent at once."""

    def finish(self, packing: Packing, held: Array | None) -> None:
        super().finish(packing, held)
        counts = np.diff(self.edges(packing.g.size))
        part = np.empty(counts[self.job.rank], packing.g.dtype)
        request = self.comm.Ireduce_scatter(packing.g, part, counts.tolist())
        self.job.wait(request, "the sum of gradients")
        packing.g[self.mine(packing)] = part

    def length(self, g: Array) -> float:
        assert self.packing is not None
        parts = self.job.table(np.array([length(g[self.mine(self.packing)])]), "the norm")[:, 0]
        if not np.isfinite(parts).all():
            return math.inf
        return min(math.hypot(*parts.tolist()), sys.float_info.max)

    def whole(self, g: Array) -> Array:
        """Return the vector with the parts of all ranks, on each rank."""
        full = g.copy()
        self.spread(full)
        return full

    def spread(self, theta: Array) -> None:
        self.job.together()
        edges = self.edges(theta.size)
        counts = np.diff(edges).tolist()
        request = self.comm.Iallgatherv(
            MPI.IN_PLACE, [theta, counts, edges[:-1], MPI.Datatype.fromcode(theta.dtype.char)]
        )
        self.job.wait(request, "the parts of a vector")

    def collected(self, slots: dict[str, Array]) -> dict[str, Array]:
        return {name: self.whole(slots[name]) for name in sorted(slots)}

    def refuse_new_packing(self) -> None:
        raise OrderError(
            "layers were frozen, added or cast during training with shard_optimizer=True: end this "
            "training, change the model, and call train again."
        )


def in_both(one: slice, other: slice) -> slice:
    """Return the elements in both slices, possibly none."""
    start = max(one.start, other.start)
    return slice(start, max(start, min(one.stop, other.stop)))
