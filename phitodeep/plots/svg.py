"""Drawings in SVG: a text that notebooks show, and blocks that are put together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from phitodeep.core.files import atomic_write, check_path
from phitodeep.core.table import escaped
from phitodeep.errors import ArgumentError
from phitodeep.plots.canvas import NEGATIVE, POSITIVE

WIDE = 0.61  # the width of a character of a monospaced font, as a share of its size
FONT = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
GAP = 22  # between two blocks, with an arrow
DARK, GREY, PALE = "#1b1b1b", "#5f5f5f", "#9a9a9a"


class Drawing(str):
    """The text of a picture in SVG; notebooks show the picture, and `save` writes it to a file."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self):,} characters of SVG; .save(path) writes it>"

    def _repr_svg_(self) -> str:
        return str(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to a file, such as "model.svg"; ArgumentError for another suffix."""
        path = check_path(path)
        if path.suffix.lower() != ".svg":
            raise ArgumentError(f"this picture is written to .svg files, got {str(path)!r}.")
        with atomic_write(path) as file:
            file.write(self.encode())


class Block(NamedTuple):
    """A part of a drawing. Lines enter it in the middle of the top and leave it at the bottom.

    arrow    whether a line that enters ends there; otherwise it goes on inside
    """

    width: float
    height: float
    elements: tuple[str, ...] = ()
    arrow: bool = True

    def at(self, x: float, y: float) -> str:
        """The elements, with the upper left corner at this place."""
        return f'<g transform="translate({x:.5g} {y:.5g})">{"".join(self.elements)}</g>'


def drawing(block: Block, label: str, margin: float = 16) -> Drawing:
    """The whole picture, on a light ground, so that it reads the same on dark pages."""
    width, height = block.width + 2 * margin, block.height + 2 * margin
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.5g} {height:.5g}" '
        f'width="{width:.5g}" height="{height:.5g}" role="img" aria-label="{escaped(label)}" '
        f'style="max-width:100%;height:auto" font-family="{FONT}">'
    )
    ground = f'<rect width="{width:.5g}" height="{height:.5g}" rx="10" fill="#ffffff"/>'
    marker = (
        '<defs><marker id="phitodeep-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8Z" fill="{GREY}"/></marker></defs>'
    )
    return Drawing("".join([head, marker, ground, block.at(margin, margin), "</svg>"]))


def text(
    x: float, y: float, words: str, size: float, colour: str = DARK, anchor: str = "middle"
) -> str:
    return (
        f'<text x="{x:.5g}" y="{y:.5g}" font-size="{size}" fill="{colour}" '
        f'text-anchor="{anchor}" xml:space="preserve">{escaped(words)}</text>'
    )


def width_of(words: str, size: float) -> float:
    return WIDE * size * len(words)


def line(points: Sequence[tuple[float, float]], *, arrow: bool = True, colour: str = GREY) -> str:
    """A line through these points, with rounded corners."""
    path = " ".join(f"{x:.5g},{y:.5g}" for x, y in points)
    end = ' marker-end="url(#phitodeep-arrow)"' if arrow else ""
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.4" '
        f'stroke-linejoin="round"{end}/>'
    )


def box(first: str, second: str, path: str, hover: str, *, filled: bool, dashed: bool) -> Block:
    """A layer: its path and name, and a line below them."""
    head = f"{path}  " if path else ""
    wide = width_of(head, 10.5) + width_of(first, 12.5)
    width, height = max(190.0, wide + 24, width_of(second, 11) + 24), 44.0
    fill, stroke = ("#e6f0f9", NEGATIVE) if filled else ("#f5f5f5", PALE)
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    words = (
        f'<text x="{width / 2:.5g}" y="18" text-anchor="middle" xml:space="preserve">'
        f'<tspan font-size="10.5" fill="{GREY}">{escaped(head)}</tspan>'
        f'<tspan font-size="12.5" fill="{DARK}" font-weight="600">{escaped(first)}</tspan></text>'
    )
    return Block(
        width,
        height,
        (
            f"<g><title>{escaped(hover)}</title>",
            f'<rect width="{width:.5g}" height="{height}" rx="6" fill="{fill}" '
            f'stroke="{stroke}"{dashes}/>',
            words,
            text(width / 2, 35, second, 11, GREY),
            "</g>",
        ),
    )


def pill(words: str) -> Block:
    """Where a drawing begins or ends."""
    width = width_of(words, 11.5) + 28
    shape = f'<rect width="{width:.5g}" height="26" rx="13" fill="#ffffff" stroke="{PALE}"/>'
    return Block(width, 26, (shape, text(width / 2, 17, words, 11.5)))


def stack(blocks: Sequence[Block], *, arrows: bool = True) -> Block:
    """Blocks from the top down, with arrows between them."""
    if not blocks:
        return Block(0, 0)
    width, y, parts = max(block.width for block in blocks), 0.0, []
    for i, block in enumerate(blocks):
        if i:
            if arrows:
                parts.append(line([(width / 2, y), (width / 2, y + GAP)], arrow=block.arrow))
            y += GAP
        parts.append(block.at((width - block.width) / 2, y))
        y += block.height
    return Block(width, y, tuple(parts), blocks[0].arrow)


def merged(blocks: Sequence[Block], sign: str) -> Block:
    """Branches side by side, from one line at the top to a sign at the bottom where they meet.

    An empty block is a connection that skips the layers: it runs around the others.
    """
    full = [block for block in blocks if block.height]
    skips = len(blocks) - len(full)
    between = 18.0
    inner = sum(block.width for block in full) + between * (len(full) - 1)
    side = 26.0 * skips + 6 if skips else 0.0
    width, deep = inner + 2 * side, max((block.height for block in full), default=0)
    middle, top, parts = width / 2, 14.0, []
    radius = 11 if len(sign) == 1 else width_of(sign, 11) / 2 + 9
    meet = top + GAP + deep + GAP + 11  # the height of the sign
    x = side
    alone = len(full) == 1
    for block in full:
        at = x + block.width / 2
        start = [(middle, 0), (middle, top), (at, top), (at, top + GAP)]
        start = [(middle, 0), (middle, top + GAP)] if alone else start
        parts.append(line(start, arrow=block.arrow))
        parts.append(block.at(x, top + GAP))
        end = top + GAP + block.height
        if alone:
            parts.append(line([(middle, end), (middle, meet - 11)]))
        else:
            low = meet - 11 - 12
            parts.append(line([(at, end), (at, low), (middle, low)], arrow=False))
        x += block.width + between
    if not alone and full:
        parts.append(line([(middle, meet - 23), (middle, meet - 11)]))
    for i in range(skips):
        edge = width - 8 - 26.0 * i
        round_it = [(middle, top - 4), (edge, top - 4), (edge, meet), (middle + radius, meet)]
        parts.append(line(round_it, colour=POSITIVE))
    parts.append(
        f'<rect x="{middle - radius:.5g}" y="{meet - 11:.5g}" width="{2 * radius:.5g}" height="22" '
        f'rx="11" fill="#ffffff" stroke="{POSITIVE}" stroke-width="1.4"/>'
    )
    parts.append(text(middle, meet + 4.5, sign, 14 if len(sign) == 1 else 11))
    return Block(width, meet + 11, tuple(parts), arrow=False)


def frame(inner: Block, title: str, *, through: bool = True) -> Block:
    """A border around a block, with a title; lines go through the border to the block inside."""
    width = max(inner.width + 24, width_of(title, 11) + 24)
    border = (
        f'<rect width="{width:.5g}" height="{inner.height + 44:.5g}" rx="8" fill="none" '
        f'stroke="{PALE}" stroke-dasharray="3 3"/>'
    )
    middle, height = width / 2, inner.height + 44
    lines = (
        line([(middle, 0), (middle, 32)], arrow=inner.arrow),
        line([(middle, height - 12), (middle, height)], arrow=False),
    )
    behind = (
        f'<rect x="10" y="6" width="{width_of(title, 11) + 4:.5g}" height="16" fill="#ffffff"/>'
    )
    words = (behind, text(12, 17, title, 11, GREY, "start"))
    shown = (border, *(lines if through else ()), *words, inner.at((width - inner.width) / 2, 32))
    return Block(width, height, shown, arrow=not through)
