"""The page of a moving picture: its style, its animation, and text that fits."""

from __future__ import annotations

import math
import re

from phitodeep.derivations.language.mathml import escaped
from phitodeep.derivations.language.notation import Plain, parts_of

WIDTH, EDGE = 1100, 28  # of the page and of its border
SECONDS = 5.5
START, TURN, BACK, END, UPDATE, DONE = 2, 32, 40, 68, 74, 84  # percent of the loop
STYLE = """
svg{--bg:#fbfcfd;--ink:#1d2733;--soft:#5c6874;--line:#ccd3da;--n:#1f6fb4;--p:#d9680f;--lit:#fbe3d0}
@media (prefers-color-scheme:dark){svg{--bg:#12171d;--ink:#e8edf2;--soft:#a0acb8;--line:#3a4550;\
--n:#4b9be0;--p:#f0883a;--lit:#4a2c14}}
text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--ink);white-space:pre}
.m{font-family:ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace}.s{fill:var(--soft)}
.b{font-weight:600}.x{text-anchor:middle}.e{text-anchor:end}
.n{fill:#1f6fb4}.p{fill:#d9680f}.i{fill:#808892}.w{fill:#963296}
.tn{fill:var(--n)}.tp{fill:var(--p)}image{image-rendering:pixelated}
.gl,.gd{fill:none;stroke-width:.09;stroke:#fff}.gd{stroke:var(--ink);stroke-opacity:.6}
.a{fill:none;stroke:var(--line);stroke-width:1.5}.f{fill:none;stroke:var(--p);stroke-width:2.5;opacity:0}
.r{fill:none;stroke:var(--ink);stroke-width:2.5}.h{fill:none;stroke:var(--ink);stroke-width:1.2}
.th{fill:none;stroke:var(--ink);stroke-width:1.4;stroke-opacity:.6}.g{opacity:0}
""".strip()


class Page:
    """The parts of an SVG file; places are in units of the page, which is 1,100 wide.

    count    how many layers the wave passes
    """

    def __init__(self, count: int) -> None:
        self.count, self.height = count, 0.0
        self.parts: list[str] = []
        self.times: dict[str, str] = {}  # the classes of the animation

    def file(self, title: str, description: str) -> str:
        """The text of the file."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height:.0f}" '
            f'width="{WIDTH}" height="{self.height:.0f}" role="img" aria-labelledby="t d">'
            f'<title id="t">{escaped(title)}</title><desc id="d">{escaped(description)}</desc>'
            f"<style>{STYLE}\n{''.join(self.times.values())}"
            "@media (prefers-reduced-motion:reduce){*{animation:none!important}}</style>"
            '<rect width="100%" height="100%" rx="10" style="fill:var(--bg)"/>'
            '<defs><marker id="k" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="7" '
            'markerHeight="7" orient="auto" markerUnits="userSpaceOnUse"><path '
            'd="M0 0L10 5L0 10z" style="fill:var(--soft)"/></marker></defs>'
            f"{''.join(self.parts)}</svg>\n"
        )

    # --- the animation ---------------------------------------------------------------------

    def animated(self, name: str, frames: str) -> str:
        """The class of an animation with these keyframes; equal ones are written once."""
        self.times[name] = (
            f"@keyframes {name}{{{frames}}}.{name}{{animation:{name} {SECONDS}s linear infinite}}\n"
        )
        return name

    def since(self, at: float) -> str:
        """Faint until `at` percent of the loop, then clear."""
        frames = f"0%,{at:.0f}%{{opacity:.1}}{at + 3:.0f}%,97%{{opacity:1}}to{{opacity:.1}}"
        return self.animated(f"v{at:.0f}", frames)

    def flash(self, at: float) -> str:
        frames = (
            f"0%,{at - 2:.0f}%{{opacity:0}}{at + 1:.0f}%{{opacity:1}}{at + 6:.0f}%,to{{opacity:0}}"
        )
        return self.animated(f"f{at:.0f}", frames)

    def phase(self, start: float, end: float) -> str:
        frames = f"0%,{start:.0f}%{{opacity:.35}}{start + 2:.0f}%,{end:.0f}%{{opacity:1}}"
        return self.animated(f"q{start:.0f}", f"{frames}{end + 2:.0f}%,to{{opacity:.35}}")

    def forward(self, k: float) -> float:
        """When the wave reaches array k on its way forward."""
        return START + (TURN - START) * k / max(1, self.count)

    def backward(self, k: float) -> float:
        return BACK + (END - BACK) * (1 - k / max(1, self.count))

    # --- small parts -----------------------------------------------------------------------

    def add(self, part: str) -> None:
        self.parts.append(part)

    def text(
        self,
        x: float,
        y: float,
        shown: str,
        kind: str = "",
        size: float = 12,
        formula: bool = False,
    ) -> None:
        style = f' style="font-size:{size:g}px"' if size != 12 else ""
        kind = f' class="{kind}"' if kind else ""
        inside = escaped(shown)
        if formula:
            inside = re.sub(r"_([\w,]+)", lambda below: _lowered(below[1]), inside)
        self.add(f'<text x="{x:.1f}" y="{y:.1f}"{kind}{style}>{inside}</text>')

    def lines(
        self, x: float, y: float, shown: list[str], kind: str = "", size: float = 12,
        formulas: bool = False,
    ) -> float:  # fmt: skip
        """Write lines below each other; return where the next one goes."""
        high = size + (5 if formulas else 3)
        for k, line in enumerate(shown):
            self.text(x, y + k * high, line, kind, size, formulas)
        return y + len(shown) * high

    def arrow(self, points: list[tuple[float, float]], at: float, gap: bool = False) -> None:
        d = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        dashed = ' stroke-dasharray="2 5"' * gap
        self.add(f'<path class="a" d="{d}" marker-end="url(#k)"{dashed}/>')
        self.add(f'<path class="f {self.flash(at)}" d="{d}"/>')


# --- text ----------------------------------------------------------------------------------------


class Tspans(Plain):
    """Formulas in SVG: plain text with real subscripts."""

    def symbol(self, name: str, indices: str = "") -> str:
        bare = Plain.symbol(self, name)
        base = bare.partition("_")[0] if parts_of(name).under else bare
        below = ",".join(part for part in (parts_of(name).under, indices) if part)
        return escaped(base) + _lowered(below)

    def sum(self, indices: str, body: str) -> str:
        return f"Σ{_lowered(indices)} {body}"

    def words(self, words: str) -> str:
        return escaped(words)

    def infix(self, left: str, sign: str, right: str) -> str:
        return f"{left} {escaped(sign)} {right}"


def _lowered(below: str) -> str:
    if not below:
        return ""
    lowered = f'<tspan dy="3" style="font-size:11px">{escaped(below)}</tspan>'
    return f'{lowered}<tspan dy="-3">\u200b</tspan>'  # back up


TSPANS = Tspans()
NARROW, BROAD = set("ilj.,:;'|!()[]ftIr1 -"), set("mwMW@%ΣΩ—…\u00d7")


def wide(shown: str, size: float) -> float:
    """At least the width of a text, whatever the reader's font."""
    ems = (
        0.45 if c in NARROW else 0.98 if c in BROAD else 0.72 if c.isupper() else 0.64
        for c in shown
    )
    return size * math.fsum(ems)


def fit(shown: str, room: float, size: float) -> str:
    """The text, cut if it needs more room."""
    if wide(shown, size) <= room:
        return shown
    while shown and wide(shown + "\u2026", size) > room:
        shown = shown[:-1]
    return shown.rstrip() + "\u2026"


def wrapped(shown: str, room: float, size: float) -> list[str]:
    """The text in lines that fit."""
    lines = [""]
    for word in shown.split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and wide(longer, size) > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return [fit(line, room, size) for line in lines]


def rounded(points: list[tuple[float, float]], radius: float = 8) -> str:
    """A path along points, with round corners."""
    d = "M{:.1f} {:.1f}".format(*points[0])
    for a, b, c in zip(points, points[1:], points[2:], strict=False):
        near = [_towards(b, other, radius) for other in (a, c)]
        d += "L{:.1f} {:.1f}Q{:.1f} {:.1f} {:.1f} {:.1f}".format(*near[0], *b, *near[1])
    return d + "L{:.1f} {:.1f}".format(*points[-1])


def _towards(a: tuple[float, float], b: tuple[float, float], far: float) -> tuple[float, float]:
    """The point that is this far from a, or half way, towards b."""
    apart = math.dist(a, b) or 1.0
    share = min(far / apart, 0.5)
    return a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share
