"""SVG as text: elements, and texts that fit."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from phitodeep.core.table import escaped

WIDE = 0.61  # the width of a character of a monospaced font, as a share of its size


def element(tag: str, inside: str = "", /, **attributes: object) -> str:
    """An element with this content; `fill_opacity` is written fill-opacity, and `class_` class.

    Attributes that are None are left out.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return f"<{tag}{written}>{inside}</{tag}>" if inside else f"<{tag}{written}/>"


def _value(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else escaped(str(value))


def points_of(points: Sequence[tuple[float, float]]) -> str:
    """The path through these points."""
    return "M" + "L".join(f"{x:.5g} {y:.5g}" for x, y in points)


def width_of(words: str, size: float) -> float:
    """The width of a text in a monospaced font; in most others, it is narrower."""
    return WIDE * size * len(words)


def fit(words: str, room: float, size: float) -> str:
    """The text, cut if it needs more room."""
    most = int(room / (WIDE * size))
    return words if len(words) <= most else words[: max(most - 1, 0)].rstrip() + "\u2026"


def wrapped(words: str, room: float, size: float) -> list[str]:
    """The text in lines that fit."""
    return textwrap.wrap(words, max(1, int(room / (WIDE * size))))
