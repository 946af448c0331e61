"""What an optimizer asks of the processes (ranks) that train one model; here: of one alone."""

from __future__ import annotations

from phitodeep.core.types import Array
from phitodeep.optimization.divergence import length
from phitodeep.optimization.packing import Group, Packing


class GradientSync:
    """The sums of gradients over all ranks, and their shares of the vectors: this process alone.

    `phitodeep.distributed` answers for several.
    """

    def share(self, group: Group, packing: Packing) -> Group:
        """Return the group with the part of its elements that this rank steps."""
        return group

    def mine(self, packing: Packing) -> slice:
        """Return the part of the flat vectors that this rank steps."""
        return slice(0, packing.theta.size)

    def finish(self, packing: Packing, held: Array | None) -> None:
        """Add the gradients `held` (P,), and sum the gradients of all ranks in packing.g (P,)."""
        packing.gather()
        if held is not None:
            packing.g += held

    def length(self, g: Array) -> float:
        """Return the length of g (P,), of which each rank has its part; see `divergence.length`."""
        return length(g)

    def whole(self, g: Array) -> Array:
        """Return g (P,) with the parts of all ranks."""
        return g

    def refuse_new_packing(self) -> None:
        """Raise an OrderError if this rank lacks parts of the vectors, which would be lost."""

    def collected(self, slots: dict[str, Array]) -> dict[str, Array]:
        """Return the optimizer's slots, vectors (P,), with the parts of all ranks, on rank 0."""
        return slots

    def spread(self, theta: Array) -> None:
        """Give all ranks the part of theta (P,) that this rank has stepped."""


ALONE = GradientSync()
