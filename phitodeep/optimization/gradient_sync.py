"""What an optimizer needs when several processes train one model: sums, and shares of vectors."""

from __future__ import annotations

from typing import Protocol

from phitodeep.core.types import Array
from phitodeep.optimization.packing import Group, Packing


class Exchange(Protocol):
    """The exchange of gradients and parameters with the other processes (ranks)."""

    def mine(self, packing: Packing) -> slice | None:
        """Return the part of the flat vectors that this rank steps, or None for all of them."""

    def finish(self, packing: Packing, held: Array | None) -> None:
        """Add the gradients `held` (P,), and sum those of all ranks in packing.g (P,)."""

    def length(self, g: Array) -> float:
        """Return the length of g (P,), of which each rank has its part; see `divergence.length`."""

    def whole(self, g: Array) -> Array:
        """Return g (P,) with the parts of all ranks."""

    def refuse_new_packing(self) -> None:
        """Raise an OrderError if this rank lacks parts of the vectors, which would be lost."""

    def collected(self, slots: dict[str, Array]) -> dict[str, Array]:
        """Return the optimizer's slots, vectors (P,), with the parts of all ranks, on rank 0."""

    def spread(self, theta: Array) -> None:
        """Give all ranks the part of theta (P,) that this rank has stepped."""


def within_share(group: Group, exchange: Exchange | None, packing: Packing) -> Group:
    """Return the group with the part of its elements that this rank steps."""
    if exchange is None:
        return group
    mine = part_of(exchange, packing)
    return group._replace(piece=common(group.piece, mine), decayed=common(group.decayed, mine))


def part_of(exchange: Exchange | None, packing: Packing) -> slice:
    """Return the part of the flat vectors that this rank steps."""
    mine = None if exchange is None else exchange.mine(packing)
    return slice(0, packing.theta.size) if mine is None else mine


def common(one: slice, other: slice) -> slice:
    """Return the elements in both slices, possibly none."""
    start = max(one.start, other.start)
    return slice(start, max(start, min(one.stop, other.stop)))
