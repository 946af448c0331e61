"""One training step as a picture that moves: `trace.save("step.svg")`.

The upper lane holds what each layer computed, from left to right; the lower lane holds the
gradient of each of these arrays, from right to left. Between them are the weights and their
gradients. One cell is ringed, and its sum is written out, together with the code that computes it.

The file has no script and needs no network. Its five seconds are CSS animations, so it also runs
inside <img>. Without animation, or if the reader prefers less motion, it shows everything at once.
"""

from __future__ import annotations

from typing import Any

from phitodeep.inspect.explorer.picture_lanes import Lanes, apart
from phitodeep.inspect.explorer.picture_page import (
    BACK,
    EDGE,
    END,
    TSPANS,
    TURN,
    UPDATE,
    WIDTH,
    fit,
    wide,
    wrapped,
)
from phitodeep.inspect.explorer.picture_ring import Ring
from phitodeep.inspect.explorer.picture_tiles import number
from phitodeep.inspect.explorer.source import method_with

LINES, TERMS = 15, 5  # of code, and of the sum


def picture(trace: Any, *, moving: bool = True) -> str:
    """The step as the text of an SVG file; `trace` is a `Trace`.

    moving    False for a still picture. A moving one stands still for readers who prefer less
              motion, but not all browsers heed that inside <img>.
    """
    drawn = _Picture(trace)
    if not moving:
        drawn.times.clear()
    return str(drawn)


class _Picture(Lanes):
    """Puts the parts together."""

    def __init__(self, trace: Any) -> None:
        super().__init__(trace)
        self.height = self._below(self.lanes(self._head()) + 12) + 16

    def __str__(self) -> str:
        said = self.ring.sentence() if self.ring else "No gradient is a sum over samples."
        title = f"One step of training, there and back: loss {number(self.trace.loss)}"
        return self.file(title, f"{said} {self._moved()}".strip())

    # --- the head --------------------------------------------------------------------------

    def _head(self) -> float:
        recording = self.trace._recording
        self.text(EDGE, 40, "One step, there and back", "b", 22)
        one = self.trace.sample is not None or len(recording.data.X) == 1
        what = "sample" if one else "samples"
        n = f"{len(recording.data.X):,}" if self.trace.sample is None else self.trace.sample
        count = f"{n} {what}" if self.trace.sample is None else f"{what} {n}"
        legend = f"{count}, {recording.loss!r}, {recording.model.optimizer!r}"
        self.text(EDGE, 60, fit(legend, 560, 12), "s")
        x: float = WIDTH - EDGE
        phases = [("4 update", UPDATE, 96), ("3 backward", BACK, END), ("2 loss", TURN, BACK)]
        for shown, start, end in [*phases, ("1 forward", 0, TURN - 2)]:
            self.text(x, 36, shown, f"b e {self.phase(start, end)}", 13)
            x -= wide(shown, 13) + 22
        keys = (("tp", "positive"), ("tn", "negative"))
        x = WIDTH - EDGE
        for kind, shown in keys:
            self.text(x, 60, shown, "s e")
            x -= wide(shown, 12) + 6
            self.add(
                f'<rect x="{x - 11:.1f}" y="50" width="11" height="11" rx="2" class="{kind}"/>'
            )
            x -= 26
        self.text(x + 4, 60, "each array has its own scale:", "s e")
        return 76

    # --- below the lanes -------------------------------------------------------------------

    def _below(self, y: float) -> float:
        self.add(f'<path class="a" d="M{EDGE} {y:.1f}H{WIDTH - EDGE}"/>')
        if not self.ring:
            self.text(
                EDGE, y + 28, f"No gradient here is a sum over samples. {self._moved()}", "", 14
            )
            return y + 40
        left = self._sum(y + 30)
        return max(left, self._code(y + 30))

    def _moved(self) -> str:
        if self.after is None:
            return ""
        before, after = apart(self.trace.loss, self.after)
        return f"After this update, the loss goes from {before} to {after}."

    def _sum(self, y: float) -> float:
        """The sentence, the formula, and the largest terms as bars."""
        assert self.ring is not None
        ring, room = self.ring, 400
        said = ring.sentence()
        update = self.trace._updates.get(ring.path, {}).get(ring.name)
        if update is not None:
            W = _parameter(self.trace, ring)
            said += (
                f" The optimizer moves {ring.name}{ring.place} from {_fine(W)} to "
                f"{_fine(W + float(update[ring.cell]))}."
            )
        y = self.lines(EDGE, y, wrapped(said, room, 14), "", 14) + 10
        formula = ring.entry.step.written(TSPANS, ring.entry._scope)
        self.add(f'<text x="{EDGE}" y="{y:.1f}" class="s" style="font-size:15px">{formula}</text>')
        y += 26
        terms = ring.why[:TERMS]
        most = max(abs(term.value) for term in terms) or 1
        rest = ring.why.total - sum(term.value for term in terms)
        for term in terms:
            place = ", ".join(f"{i} {k}" for i, k in term.at.items())
            self.text(EDGE, y, fit(place.replace("n ", "sample ", 1), 135, 11), "s", 11)
            product = " \u00d7 ".join(number(v) for v in term.factors.values())
            self.text(EDGE + 262, y, fit(product, 130, 11), "m e", 11)
            kind = "tn" if term.value < 0 else "tp"
            length = 70 * abs(term.value) / most
            self.add(
                f'<rect x="{EDGE + 272}" y="{y - 9:.1f}" width="{max(length, 1):.1f}" height="10" '
                f'rx="2" class="{kind}"/>'
            )
            self.text(EDGE + 405, y, number(term.value), f"m e {kind}", 11)
            y += 17
        if others := len(ring.why) - len(terms):
            self.text(EDGE, y, f"{others:,} other" + "s" * (others > 1), "s", 11)
            self.text(EDGE + 405, y, number(rest), "m s e", 11)
            y += 17
        return y

    def _code(self, y: float) -> float:
        """The method that computes the ringed gradient; its line is lit."""
        assert self.ring is not None
        layer = self.trace._passes[self.ring.path].layer
        title, lines, lit = method_with(type(layer), f"d{self.ring.name}")
        x, right = 462, WIDTH - EDGE
        self.text(x, y, title, "b")
        if lines and not title.endswith(".backward"):
            self.text(x + wide(title, 12) + 8, y, "called by its backward", "s")
        y += 20
        start, end = 0, len(lines)
        if end > LINES:
            middle = lit or 0
            start = max(0, min(middle - LINES // 2, end - LINES))
            end = start + LINES
        for k in range(start, end):
            cut = (k == start > 0) or (k == end - 1 < len(lines) - 1)
            if k == lit:
                self.add(
                    f'<rect x="{x - 6}" y="{y - 12:.1f}" width="{right - x + 6}" height="16" '
                    f'rx="3" style="fill:var(--lit)" class="{self.since(END + 2)}"/>'
                )
            shown = (
                lines[k] if not cut else " " * (len(lines[k]) - len(lines[k].lstrip())) + "\u2026"
            )
            self.text(x, y, shown if len(shown) < 92 else shown[:90] + "\u2026", "m", 11)
            y += 16
        return y


def _parameter(trace: Any, ring: Ring) -> float:
    layer = trace._passes[ring.path].layer
    owner, own = layer.tied.get(ring.name, (layer, ring.name))
    return float(owner.params[own][ring.cell])


def _fine(value: float) -> str:
    """A number with enough digits to see a small change."""
    return f"{value:.5g}".replace("-", "\u2212")
