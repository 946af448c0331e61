"""Blocks in rows and columns, joined by lines: how the layers of a network are drawn.

A block stands one row below the lowest of those that it reads. It goes on in the column of one of
them if nothing stands in between, and otherwise begins a column on the right. A line runs down in
the column where it begins, or in the one where it ends. Only if both are taken, it runs around, in
orange: on the left of the column where both ends are, or between their two columns, and outside the
lines that are shorter, so lines that can be nested never cross.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from phitodeep.plots.canvas import POSITIVE
from phitodeep.plots.svg import GAP, GREY, Block, line

SIDE = 16.0  # from the middle of a block to where a line from the side enters or leaves
TRACK = 10.0  # between parallel lines


# from one block to another: "down" in the column where a line begins, "over" to the one where it
# ends, or "around"
Ways = dict[tuple[int, int], str]


def stack(blocks: Sequence[Block]) -> Block:
    """Blocks below each other, each of which reads the one above."""
    return graph(blocks, [[], *([k] for k in range(len(blocks) - 1))])


def graph(
    blocks: Sequence[Block], reads: Sequence[Sequence[int]], rows: Sequence[int] = ()
) -> Block:
    """Each block below those that it reads, which come before it: `reads` has their numbers.

    rows    the rows of the blocks, if they are not as high up as possible
    """
    found = [*rows]
    for own in reads[len(found) :]:
        found.append(1 + max((found[s] for s in own), default=-1))
    return _drawn(blocks, found, *_placed(found, reads))


def _placed(rows: list[int], reads: Sequence[Sequence[int]]) -> tuple[list[int], Ways]:
    """The column of each block, and which way each line goes."""
    columns, ways = [0] * len(rows), Ways()
    # the block that stands, or whose line runs, in a row and a column
    used: dict[tuple[int, int], int] = {}

    def free(first: int, last: int, column: int, own: int) -> bool:
        return all(used.get((r, column), own) == own for r in range(first, last + 1))

    for v in sorted(range(len(rows)), key=lambda v: (rows[v], v)):
        below = [s for s in reads[v] if free(rows[s] + 1, rows[v], columns[s], s)]
        right = 1 + min((columns[s] for s in reads[v]), default=-1)
        top = min((rows[s] + 1 for s in reads[v]), default=rows[v])
        found = (c for c in count(right) if free(top, rows[v], c, -1))
        columns[v] = min(columns[s] for s in below) if below else next(found)
        used[rows[v], columns[v]] = v
        for s in dict.fromkeys(reads[v]):
            down, over = (free(rows[s] + 1, rows[v] - 1, columns[of], of) for of in (s, v))
            if over and not below:
                down = False  # into the middle of the block that begins a column
            ways[s, v] = "down" if down else "over" if over else "around"
            for r in range(rows[s] + 1, rows[v]) if down or over else ():
                used[r, columns[s if down else v]] = s if down else v
    return columns, ways


def _levels(ways: Ways, rows: list[int]) -> dict[tuple[int, int], int]:
    """Different levels for lines that run around at the same height, short ones inside."""
    found: dict[tuple[int, int], int] = {}
    around = [pair for pair, way in ways.items() if way == "around"]
    for s, v in sorted(around, key=lambda pair: rows[pair[1]] - rows[pair[0]]):
        inside = (k for (a, b), k in found.items() if rows[a] < rows[v] and rows[b] > rows[s])
        found[s, v] = 1 + max(inside, default=0)
    return found


def _drawn(blocks: Sequence[Block], rows: list[int], columns: list[int], ways: Ways) -> Block:
    """The blocks and lines at their places."""
    every, levels = range(len(blocks)), _levels(ways, rows)
    room, start = TRACK * max(levels.values(), default=0), 0.0
    edges, middles = list[float](), list[float]()
    for c in range(max(columns) + 1):
        own = [blocks[v] for v in every if columns[v] == c]
        edges.append(start + room)
        middles.append(edges[-1] + max((block.left for block in own), default=0))
        start = middles[-1] + max((block.right for block in own), default=0) + GAP
    x = [middles[column] for column in columns]

    def along(s: int, v: int) -> float:
        """Where a line runs down."""
        if ways[s, v] != "around":
            return x[s if ways[s, v] == "down" else v]
        right = columns[v] + (columns[s] > columns[v])  # the column on the right of it
        return edges[right] - TRACK * (levels[s, v] + 0.2)

    def aside(v: int, far: float) -> float:
        """Where a line enters or leaves a block from or to the side."""
        return x[v] - min(SIDE, blocks[v].left) if far < x[v] else x[v] + min(SIDE, blocks[v].right)

    # between two rows, a height for the lines that leave a block sideways, or enter it
    leave = {(rows[s], 0, s) for s, v in ways if along(s, v) != x[s]}
    enter = {(rows[v] - 1, 1, v) for s, v in ways if along(s, v) != x[v]}
    y, top, turns = 0.0, list[float](), dict[tuple[int, int, int], float]()
    for r in range(max(rows) + 1):
        top.append(y)
        y += max(blocks[v].height for v in every if rows[v] == r)
        for key in sorted(key for key in leave | enter if key[0] == r):
            y += TRACK
            turns[key] = y - 2
        y += GAP

    def route(s: int, v: int) -> list[tuple[float, float]]:
        far = along(s, v)
        a = aside(s, far) if ways[s, v] == "around" else x[s]
        b = aside(v, far) if far != x[v] else x[v]
        points = [(a, top[rows[s]] + blocks[s].height)]
        if far != x[s]:
            low = turns[rows[s], 0, s]
            points += [(a, low), (far, low)]
        if far != x[v]:
            low = turns[rows[v] - 1, 1, v]
            points += [(far, low), (b, low)]
        return [*points, (b, top[rows[v]])]

    drawn = [
        line(route(s, v), arrow=blocks[v].arrow, colour=POSITIVE if (s, v) in levels else GREY)
        for s, v in sorted(ways, key=lambda pair: ways[pair])  # those that run around come first
    ]
    boxes = [blocks[v].at(x[v], top[rows[v]]) for v in every]
    shown, right = (*drawn, *boxes), start - GAP - x[0]
    return Block(x[0], right, y - GAP, shown, blocks[0].arrow, through=x[-1] == x[0])
