"""A pair of axes in SVG: for the site's pages, and for those that draw in the browser."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape


def short(value: float) -> str:
    """A number in the fewest digits that a label needs."""
    return f"{value:.3g}".replace("-", "\u2212")


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers from low to high."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = min((m * power for m in (1, 2, 5, 10)), key=lambda s: abs(s - rough))
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) + 0.0 for i in range(first, math.floor(high / step + 1e-9) + 1)]


class Panel:
    """A pair of axes in an SVG: it maps numbers to pixels."""

    def __init__(
        self,
        box: tuple[float, float, float, float],
        x: tuple[float, float],
        y: tuple[float, float],
    ) -> None:
        self.left, self.top, self.width, self.height = box
        self.x, self.y = x, y

    def at(self, x: float, y: float) -> tuple[float, float]:
        (x0, x1), (y0, y1) = self.x, self.y
        return (
            self.left + (x - x0) / (x1 - x0) * self.width,
            self.top + (y1 - y) / (y1 - y0) * self.height,
        )

    def path(self, points: Iterable[Sequence[float]]) -> str:
        """The `d` of a path through points."""
        pixels = (self.at(*point) for point in points)
        return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in pixels)

    def axes(self, x_label: str, y_label: str, numbers: bool = True) -> str:
        """A frame, the lines at 0, numbers and labels."""
        left, top = self.left, self.top
        right, bottom = left + self.width, top + self.height
        frame = f'x="{left}" y="{top}" width="{self.width}" height="{self.height}"'
        parts = [f'<rect class="pd-frame" {frame}/>']
        (x0, x1), (y0, y1) = self.x, self.y
        zero = ((x0 < 0 < x1, (0, y0), (0, y1)), (y0 < 0 < y1, (x0, 0), (x1, 0)))
        zeros = (self.path(ends) for inside, *ends in zero if inside)
        parts += [f'<path class="pd-zero" d="{path}"/>' for path in zeros]
        for value in ticks(*self.x) if numbers else []:
            x, _ = self.at(value, y0)
            parts.append(text(x, bottom + 14, "pd-mid", short(value)))
        for value in ticks(*self.y, 4):
            _, y = self.at(x0, value)
            parts.append(text(left - 5, y + 4, "pd-end", short(value)))
        if x_label:
            parts.append(text(right, bottom + 29, "pd-end pd-label", x_label))
        return "".join([*parts, text(left + 6, top + 15, "pd-label", y_label)])


def text(x: float, y: float, look: str, said: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{look}">{said}</text>'


def svg(width: float, height: float, title: str, *parts: str) -> str:
    """A picture with a title, which a screen reader reads."""
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )
