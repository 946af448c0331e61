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
from typing import NamedTuple

from phitodeep.plots.canvas import POSITIVE
from phitodeep.plots.svg import GAP, GREY, Block, line

SIDE = 16.0  # from the middle of a block to where a line from the side enters or leaves
TRACK = 10.0  # between parallel lines


class _Line(NamedTuple):
    start: int
    end: int
    way: str  # "down" in the column where it begins, "over" to the one where it ends, or "around"


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


def _placed(rows: list[int], reads: Sequence[Sequence[int]]) -> tuple[list[int], list[_Line]]:
    """The column of each block, and which way each line goes."""
    columns, lines = [0] * len(rows), list[_Line]()
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
            lines.append(_Line(s, v, "down" if down else "over" if over else "around"))
            for r in range(rows[s] + 1, rows[v]) if down or over else ():
                used[r, columns[s if down else v]] = s if down else v
    return columns, lines


def _levels(lines: Sequence[_Line], rows: list[int]) -> dict[_Line, int]:
    """Different levels for lines that run around at the same height, short ones inside."""
    found: dict[_Line, int] = {}
    for one in sorted(lines, key=lambda one: rows[one.end] - rows[one.start]):
        first, last = rows[one.start], rows[one.end]
        inside = (k for o, k in found.items() if rows[o.start] < last and rows[o.end] > first)
        found[one] = 1 + max(inside, default=0)
    return found


def _drawn(
    blocks: Sequence[Block], rows: list[int], columns: list[int], lines: list[_Line]
) -> Block:
    """The blocks and lines at their places."""
    every, levels = range(len(blocks)), _levels([o for o in lines if o.way == "around"], rows)
    room, start = TRACK * max(levels.values(), default=0), 0.0
    edges, middles = list[float](), list[float]()
    for c in range(max(columns) + 1):
        own = [blocks[v] for v in every if columns[v] == c]
        edges.append(start + room)
        middles.append(edges[-1] + max((block.left for block in own), default=0))
        start = middles[-1] + max((block.right for block in own), default=0) + GAP
    x = [middles[column] for column in columns]

    def along(one: _Line) -> float:
        """Where a line runs down."""
        s, v, way = one
        if way != "around":
            return x[s if way == "down" else v]
        right = columns[v] + (columns[s] > columns[v])  # the column on the right of it
        return edges[right] - TRACK * (levels[one] + 0.2)

    def aside(v: int, far: float) -> float:
        """Where a line enters or leaves a block from or to the side."""
        return x[v] - min(SIDE, blocks[v].left) if far < x[v] else x[v] + min(SIDE, blocks[v].right)

    # between two rows, a height for the lines that leave a block sideways, or enter it
    leave = {(rows[one.start], 0, one.start) for one in lines if along(one) != x[one.start]}
    enter = {(rows[one.end] - 1, 1, one.end) for one in lines if along(one) != x[one.end]}
    y, top, turns = 0.0, list[float](), dict[tuple[int, int, int], float]()
    for r in range(max(rows) + 1):
        top.append(y)
        y += max(blocks[v].height for v in every if rows[v] == r)
        for key in sorted(key for key in leave | enter if key[0] == r):
            y += TRACK
            turns[key] = y - 2
        y += GAP

    def route(one: _Line) -> list[tuple[float, float]]:
        s, v, way = one
        a, b, far = x[s], x[v], along(one)
        a = aside(s, far) if way == "around" else a
        b = aside(v, far) if far != b else b
        points = [(a, top[rows[s]] + blocks[s].height)]
        if far != x[s]:
            low = turns[rows[s], 0, s]
            points += [(a, low), (far, low)]
        if far != x[v]:
            low = turns[rows[v] - 1, 1, v]
            points += [(far, low), (b, low)]
        return [*points, (b, top[rows[v]])]

    drawn = [
        line(route(o), arrow=blocks[o.end].arrow, colour=POSITIVE if o in levels else GREY)
        for o in sorted(lines, key=lambda o: o.way)  # those that run around below the others
    ]
    boxes = [blocks[v].at(x[v], top[rows[v]]) for v in every]
    shown, right = (*drawn, *boxes), start - GAP - x[0]
    return Block(x[0], right, y - GAP, shown, blocks[0].arrow, through=x[-1] == x[0])
