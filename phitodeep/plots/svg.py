"""Drawings in SVG: a text that notebooks show, and blocks that are put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from phitodeep.core.files import atomic_write, check_path
from phitodeep.core.table import escaped
from phitodeep.core.types import PathLike
from phitodeep.errors import ArgumentError
from phitodeep.inspect.svg import element, width_of
from phitodeep.plots.canvas import NEGATIVE

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

    def save(self, path: PathLike) -> None:
        """Write the picture to a file, such as "model.svg"; ArgumentError for another suffix."""
        path = check_path(path)
        if path.suffix.lower() != ".svg":
            raise ArgumentError(f"this picture is written to .svg files, got {str(path)!r}.")
        with atomic_write(path) as file:
            file.write(self.encode())


class Block(NamedTuple):
    """A part of a drawing, on both sides of the line that enters at its top and leaves below.

    arrow      whether a line that enters ends there; otherwise it goes on inside
    through    whether the lines inside begin and end at the middle of the line
    """

    left: float
    right: float
    height: float
    elements: tuple[str, ...] = ()
    arrow: bool = True
    through: bool = True

    def at(self, x: float, y: float) -> str:
        """The elements, with this place as the middle of the top."""
        move = f"translate({x - self.left:.5g} {y:.5g})"
        return element("g", "".join(self.elements), transform=move)


def drawing(block: Block, label: str, margin: float = 16) -> Drawing:
    """The whole picture, on a light ground, so that it reads the same on dark pages."""
    width, height = block.left + block.right + 2 * margin, block.height + 2 * margin
    tip = element("path", d="M0 0L8 4L0 8Z", fill=GREY)
    marker = element(
        "marker", tip, id="phitodeep-arrow", viewBox="0 0 8 8", refX=7, refY=4, markerWidth=7,
        markerHeight=7, orient="auto",
    )  # fmt: skip
    ground = element("rect", width=width, height=height, rx=10, fill="#ffffff")
    inside = [element("defs", marker), ground, block.at(margin + block.left, margin)]
    return Drawing(
        element(
            "svg", "".join(inside),
            xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width:.5g} {height:.5g}",
            width=width, height=height, role="img", aria_label=label,
            style="max-width:100%;height:auto", font_family=FONT,
        )
    )  # fmt: skip


def text(
    x: float, y: float, words: str, size: float, colour: str = DARK, anchor: str = "middle"
) -> str:
    keep = {"xml:space": "preserve"}
    return element(
        "text", escaped(words), x=x, y=y, font_size=size, fill=colour, text_anchor=anchor, **keep
    )


def line(points: Sequence[tuple[float, float]], *, arrow: bool = True, colour: str = GREY) -> str:
    """A line through these points, with rounded corners."""
    places = " ".join(f"{x:.5g},{y:.5g}" for x, y in points)
    return element(
        "polyline", points=places, fill="none", stroke=colour, stroke_width=1.4,
        stroke_linejoin="round", marker_end="url(#phitodeep-arrow)" if arrow else None,
    )  # fmt: skip


def box(first: str, second: str, path: str, hover: str, *, filled: bool, dashed: bool) -> Block:
    """A layer: its path and name, and a line below them."""
    head = f"{path}  " if path else ""
    wide = width_of(head, 10.5) + width_of(first, 12.5)
    width = max(190.0, wide + 24, width_of(second, 11) + 24)
    fill, stroke = ("#e6f0f9", NEGATIVE) if filled else ("#f5f5f5", PALE)
    name = element("tspan", escaped(head), font_size=10.5, fill=GREY)
    name += element("tspan", escaped(first), font_size=12.5, fill=DARK, font_weight=600)
    keep = {"xml:space": "preserve"}
    parts = [
        element("title", escaped(hover)),
        element(
            "rect", width=width, height=44, rx=6, fill=fill, stroke=stroke,
            stroke_dasharray="4 3" if dashed else None,
        ),
        element("text", name, x=width / 2, y=18, text_anchor="middle", **keep),
        text(width / 2, 35, second, 11, GREY),
    ]  # fmt: skip
    return Block(width / 2, width / 2, 44, (element("g", "".join(parts)),))


def pill(words: str, colour: str = PALE) -> Block:
    """Where a drawing begins or ends, or how values meet."""
    width = max(48, width_of(words, 11.5) + 28)
    shape = element("rect", width=width, height=26, rx=13, fill="#ffffff", stroke=colour)
    return Block(width / 2, width / 2, 26, (shape, text(width / 2, 17, words, 11.5)))


def frame(inner: Block, title: str) -> Block:
    """A border around a block, with a title; lines go through the border to the block inside."""
    ground = width_of(title, 11) + 4
    left, right, height = inner.left + 12, inner.right + 12, inner.height + 44
    right = max(right, ground + 20 - left)
    border = element(
        "rect", width=left + right, height=height, rx=8, fill="none", stroke=PALE,
        stroke_dasharray="3 3",
    )  # fmt: skip
    lines = (
        line([(left, 0), (left, 32)], arrow=inner.arrow),
        line([(left, height - 12), (left, height)], arrow=False),
    )
    behind = element("rect", x=10, y=6, width=ground, height=16, fill="#ffffff")
    words = (behind, text(12, 17, title, 11, GREY, "start"))
    shown = (border, *(lines if inner.through else ()), *words, inner.at(left, 32))
    return Block(left, right, height, shown, arrow=not inner.through)
