"""Axes of the values of a graph, which keep their identity through Reshape and Transpose.

A value of a graph is the output of a step, seen through a `View`: a list of groups of axes. The
step's own output (N, T, D) has the groups (N)(T)(D). A Reshape to (N T, h, d) splits the axis D
into the axes h and d, and merges N and T into one group: (N T)(h)(d). A Transpose reorders groups.
So however an exporter writes such a rearrangement, the same elements have the same groups, and
nothing has to be computed. A size of 1 is an empty group, except that the batch is always an axis.

The batch, and the number of steps, may be unknown. The graph is then read for several `PROBES` at
once: a `Size` holds one number for each probe. The probes are chosen so that a size that depends on
an unknown number differs from every constant.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from phitodeep.errors import DataError

PROBES = 3
Size = tuple[int, ...]  # one for each probe


class Axis:
    """One axis; after a split, it consists of its `parts`, the outer one first."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.parts: tuple[Axis, Axis] | None = None

    def leaves(self) -> list[Axis]:
        """Return the axes that it consists of."""
        if self.parts is None:
            return [self]
        return [leaf for part in self.parts for leaf in part.leaves()]

    def split(self, outer: Size) -> bool:
        """Split into an outer part of this size and an inner part, if possible."""
        if any(a < 1 or n % a for n, a in zip(self.size, outer, strict=True)):
            return False
        inner = tuple(n // a for n, a in zip(self.size, outer, strict=True))
        self.parts = (Axis(outer), Axis(inner))
        return True


Group = tuple[Axis, ...]
Groups = tuple[Group, ...]
ONE: Size = (1,) * PROBES


def same(size: int) -> Size:
    """Return a size that does not depend on anything unknown."""
    return (size,) * PROBES


def new(size: Size) -> Group:
    """Return a group with one new axis, or without any for a size of 1."""
    if min(size) < 1:
        raise DataError(f"an axis would have {min(size)} elements")
    return () if size == ONE else (Axis(size),)


def times(a: Size, b: Size) -> Size:
    return tuple(x * y for x, y in zip(a, b, strict=True))


def size_of(group: Iterable[Axis]) -> Size:
    """Return the number of elements along a group."""
    total = ONE
    for axis in group:
        total = times(total, axis.size)
    return total


def number(group: Group, what: str = "its number of features") -> int:
    """Return the size of a group, which must not depend on anything unknown."""
    first, *others = size_of(group)
    if others != [first] * (PROBES - 1):
        raise DataError(f"{what} must have a fixed size")
    return first


def fixed_sizes(axes: Iterable[Axis]) -> list[int]:
    return [number((axis,), "an axis of features") for axis in axes]


def leaves(group: Group) -> Group:
    """Return the group with its axes replaced by what they consist of."""
    return tuple(leaf for axis in group for leaf in axis.leaves())


def expanded(groups: Groups) -> Groups:
    return tuple(map(leaves, groups))


def flat(groups: Iterable[Group]) -> Group:
    """Return all axes of the groups, one after another."""
    return tuple(leaf for group in groups for leaf in leaves(group))


def regrouped(groups: Groups, sizes: Sequence[Size]) -> Groups | None:
    """Return groups of these sizes with the same axes in the same order, which may be split.

    None means that the sizes cut across the axes.
    """
    rest = list(reversed(flat(groups)))
    found: list[Group] = []
    for size in sizes:
        group: list[Axis] = []
        missing = size
        if size == ONE and rest and rest[-1].size == ONE:  # a batch of 1
            group.append(rest.pop())
        while missing != ONE:
            if not rest:
                return None
            axis = rest.pop()
            if all(m % n == 0 for m, n in zip(missing, axis.size, strict=True)):
                missing = tuple(m // n for m, n in zip(missing, axis.size, strict=True))
                group.append(axis)
            elif axis.split(missing) and axis.parts:
                group.append(axis.parts[0])
                rest.append(axis.parts[1])
                missing = ONE
            else:
                return None
        found.append(tuple(group))
    return None if rest else tuple(found)


def aligned(a: Group, b: Group) -> dict[Axis, Axis] | None:
    """Return the axis of `b` at the place of each axis of `a`; None if they cannot correspond."""
    for mine, other in ((a, b), (b, a)):  # each is split where the other is
        if regrouped((mine,), [axis.size for axis in leaves(other)]) is None:
            return None
    return dict(zip(leaves(a), leaves(b), strict=True))


def positions(axes: Group, inside: Group) -> list[int]:
    """Return, for elements ordered as `axes`, their places in the order of `inside`.

    Both hold the same axes, of fixed sizes.
    """
    places = np.arange(number(inside)).reshape(fixed_sizes(inside))
    found: list[int] = places.transpose([inside.index(axis) for axis in axes]).ravel().tolist()
    return found
