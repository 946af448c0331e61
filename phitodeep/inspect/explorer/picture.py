"""One training step as a picture that moves: `trace.save("step.svg")`.

The upper lane holds what each layer computed, from left to right; the lower lane holds the
gradient of each of these arrays, from right to left. Between them are the weights and their
gradients. One cell is ringed, and its sum is written out, together with the code that computes it.

The file has no script and needs no network. Its five seconds are CSS animations, so it also runs
inside <img>. Without animation, or if the reader prefers less motion, it shows everything at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.table import escaped
from phitodeep.inspect.explorer.page import asset
from phitodeep.inspect.explorer.ringed_cell import Ring, ring
from phitodeep.inspect.explorer.source import method_with
from phitodeep.inspect.explorer.tiles import Plane, found, number, plane, tile
from phitodeep.inspect.svg import element, fit, points_of, width_of, wrapped
from phitodeep.layers.wiring import Wired
from phitodeep.loss.heads import Heads

WIDTH, EDGE = 1100, 28  # of the page and of its border
LOSS = 184  # the width of the column of the loss
HIGH, MIDDLE, CELL = 140, 96, 20  # the largest tiles of the lanes and between them, and cells
MOST, LINES, TERMS = 6, 15, 5  # layers, lines of code, and terms of the sum that are shown
SECONDS = 5.5
START, TURN, BACK, END, UPDATE, DONE = 2, 32, 40, 68, 74, 84  # percent of the loop
PHASES = [
    *(("1 forward", 0, TURN - 2), ("2 loss", TURN, BACK)),
    *(("3 backward", BACK, END), ("4 update", UPDATE, 96)),
]
ARROW = (
    '<defs><marker id="k" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="7" markerHeight="7" '
    'orient="auto" markerUnits="userSpaceOnUse"><path d="M0 0L10 5L0 10z" '
    'style="fill:var(--soft)"/></marker></defs>'
)


class Slot(NamedTuple):
    """A layer of the picture, or a gap for layers that are left out (no path).

    X, Y    which of the arrays that it receives and returns are in the lanes
    more    what else it reads, in a network
    """

    path: str
    hidden: int = 0
    X: str = "X"
    Y: str = "Y"
    more: str = ""


class Placed(NamedTuple):
    """An array, and where its cells are: the corner of the first one, and the size of all."""

    shown: Plane
    x: float
    y: float
    w: float
    h: float

    def middle(self, k: int, j: int) -> tuple[float, float]:
        return self.x + (j + 0.48) * self.w, self.y + (k + 0.48) * self.h


def picture(trace: Any, *, moving: bool = True) -> str:
    """The step as the text of an SVG file; `trace` is a `Trace`.

    moving    False for a still picture. A moving one stands still for readers who prefer less
              motion, but not all browsers heed that inside <img>.
    """
    return _Picture(trace).file(moving)


class _Picture:
    """The parts of a picture; places are in units of the page, which is 1,100 wide."""

    def __init__(self, trace: Any) -> None:
        self.trace, self.ring, self.after = trace, ring(trace), trace.loss_after
        self.sample = self.ring.sample if self.ring else trace.sample or 0
        self.slots = slots(trace, self.ring)
        self.parts: list[str] = []
        self.times: dict[str, str] = {}  # the classes of the animation
        self.placed: dict[str, Placed] = {}
        whole, count = WIDTH - 2 * EDGE - LOSS, len(self.slots) + 1
        self.unit = min(whole / count, 190)
        left = EDGE + (whole - count * self.unit) / 2
        self.x = [left + (k + 0.5) * self.unit for k in range(count)]  # of the arrays
        self.head()
        bottom = self.lanes(114)
        self.height = self.below(bottom) + 16

    def file(self, moving: bool) -> str:
        title = f"One step of training, there and back: loss {number(self.trace.loss)}"
        said = self.ring.sentence() if self.ring else "No gradient is a sum over samples."
        times = "".join(self.times.values()) if moving else ""
        inside = [
            element("title", title, id="t"),
            element("desc", escaped(f"{said} {self.moved()}".strip()), id="d"),
            element("style", f"{' '.join(asset('step.css').split())}\n{times}"),
            element("rect", width="100%", height="100%", rx=10, style="fill:var(--bg)"),
            *(ARROW, *self.parts),
        ]
        return element(
            "svg", "".join(inside), xmlns="http://www.w3.org/2000/svg", role="img",
            viewBox=f"0 0 {WIDTH} {self.height:.0f}", width=WIDTH, height=f"{self.height:.0f}",
            aria_labelledby="t d",
        )  # fmt: skip

    # --- the animation ---------------------------------------------------------------------

    def fade(self, name: str, *stops: tuple[float, float]) -> str:
        """The class of an animation of the opacity, given as (percent, opacity).

        An animation of the same name is written once.
        """
        frames = "".join(f"{at:.0f}%{{opacity:{value:g}}}" for at, value in stops)
        self.times[name] = (
            f"@keyframes {name}{{{frames}}}.{name}{{animation:{name} {SECONDS}s linear infinite}}\n"
        )
        return name

    def since(self, at: float) -> str:
        """Faint until `at` percent of the loop, then clear."""
        return self.fade(f"v{at:.0f}", (0, 0.1), (at, 0.1), (at + 3, 1), (97, 1), (100, 0.1))

    def phase(self, start: int, end: int) -> str:
        """Clear from `start` to `end` percent of the loop."""
        rise, fall = ((start, 0.35), (start + 2, 1)), ((end, 1), (end + 2, 0.35))
        return self.fade(f"q{start}", (0, 0.35), *rise, *fall, (100, 0.35))

    def there(self, k: float) -> float:
        """When the wave reaches array k on its way forward."""
        return START + (TURN - START) * k / max(1, len(self.slots))

    def back(self, k: float) -> float:
        return BACK + (END - BACK) * (1 - k / max(1, len(self.slots)))

    # --- small parts -----------------------------------------------------------------------

    def add(self, tag: str, **attributes: object) -> None:
        self.parts.append(element(tag, **attributes))

    def rect(
        self, class_: str, x: float, y: float, width: float, height: float, rx: int = 2
    ) -> None:
        self.add("rect", class_=class_, x=x, y=y, width=width, height=height, rx=rx)

    def text(
        self, x: float, y: float, words: str, class_: str | None = None, size: int = 12,
        room: float = WIDTH, formula: bool = False,
    ) -> float:  # fmt: skip
        """Write a line; return where the next one goes. In a formula, a_i has a low index."""
        lowered = r'<tspan dy="3" style="font-size:11px">\1</tspan><tspan dy="-3">&#8203;</tspan>'
        inside = escaped(fit(words, room, size))
        inside = re.sub(r"_([\w,]+)", lowered, inside) if formula else inside
        style = None if size == 12 else f"font-size:{size}px"
        self.parts.append(element("text", inside, x=x, y=y, class_=class_, style=style))
        return y + size + 4

    def small(self, x: float, y: float, lines: Iterable[str]) -> None:
        """Write small lines below each other, centred."""
        for k, words in enumerate(lines):
            self.text(x, y + 14 * k, words, "s x", 11, formula=True)

    def arrow(self, *points: tuple[float, float], at: float) -> None:
        self.add("path", class_=f"a {self.since(at)}", d=points_of(points), marker_end="url(#k)")

    def place(self, shown: Plane, x: float, y: float, wide: float, high: float) -> Placed:
        """Where the cells go that have this much room around (x, y)."""
        rows, columns = shown.values.shape
        w = min(CELL, wide / max(1, columns), high / max(1, rows))
        thin = w <= 6 and not shown.blank.any()  # would be a hairline
        h = max(w, min(12, 30 / max(1, rows))) if thin else w
        return Placed(shown, x - columns * w / 2, y - rows * h / 2, w, h)

    def draw(self, key: str, placed: Placed, class_: str | None = None) -> None:
        self.placed[key] = placed
        self.parts.append(tile(*placed, key, class_))

    # --- the parts of the page -------------------------------------------------------------

    def head(self) -> None:
        recording, sample = self.trace._recording, self.trace.sample
        self.text(EDGE, 40, "One step, there and back", "b", 22)
        n = recording.data.n
        count = f"{n:,} sample{'s' * (n != 1)}" if sample is None else f"sample {sample}"
        beside = len(recording.model.layers) - len(way(self.trace, self.ring))
        legend = f"{count}, {recording.loss!r}, {recording.model.optimizer!r}"
        if beside:
            layers = "layer" + "s" * (beside > 1)
            legend = f"one way through the network, {beside} {layers} beside it; {legend}"
        self.text(EDGE, 60, legend, "s", room=640)
        x: float = WIDTH - EDGE
        for name, start, end in PHASES[::-1]:
            self.text(x, 36, name, f"b e {self.phase(start, end)}", 13)
            x -= width_of(name, 13) + 18
        key = "each array has its own scale:"
        for x, words, kind in ((1072, "positive", "tp"), (982, "negative", "tn"), (892, key, "")):
            self.text(x, 60, words, "s e")
            if kind:
                self.rect(kind, x - 70, 50, 11, 11)

    def lanes(self, top: float) -> float:
        """Both lanes, what is between them, and the loss; return where they end."""
        columns = arrays(self.trace, self.slots)
        ups = [plane(A, self.sample) for _, A, _, _ in columns]
        downs = [None if dA is None else plane(dA, self.sample) for *_, dA in columns]
        notes = max(len(shown.notes) for shown in ups)
        room = self.unit - 30
        sizes = [self.place(shown, 0, 0, room, HIGH) for shown in ups]
        high = max(40, *(-2 * size.y for size in sizes))
        upper = top + 14 * notes + high / 2
        pairs = [self.pair(k, slot) if slot.path else None for k, slot in enumerate(self.slots)]
        tall = max([100.0, *(54 + 14 * len(p[2].shown.notes) - 2 * p[2].y for p in pairs if p)])
        middle = upper + high / 2 + 20 + tall / 2
        lower = middle + tall / 2 + 26 + high / 2
        for k, (key, _, gradient, _) in enumerate(columns):
            x, size, down = self.x[k], sizes[k], downs[k]
            self.named(x, upper - high / 2 - 22 - 14 * len(ups[k].notes), key, ups[k])
            moved = size._replace(x=x + size.x, y=upper + size.y)
            self.draw(key, moved, self.since(self.there(k)))
            if down is None:
                self.small(x, lower, ("tokens have", "no gradient"))
                continue
            self.named(x, lower + high / 2 + 16, gradient, down)
            moved = moved._replace(shown=down, y=lower + size.y)
            self.draw(gradient, moved, self.since(self.back(k)))
        for k, slot in enumerate(self.slots):
            a, b = self.x[k] - sizes[k].x + 6, self.x[k + 1] + sizes[k + 1].x - 6
            self.arrow((a, upper), (b, upper), at=self.there(k + 0.7))
            if downs[k] is not None:
                self.arrow((b, lower), (a, lower), at=self.back(k + 0.3))
            self.layer(k, slot, pairs[k], middle)
        self.loss(self.x[-1] - sizes[-1].x + 6, upper, lower, middle)
        self.threads(columns, upper + high / 2 + 10, lower - high / 2 - 10)
        return lower + high / 2 + 46 + 14 * notes

    def named(self, x: float, y: float, key: str, shown: Plane) -> None:
        """The name and the shape of an array, and what is not shown of it."""
        y = self.text(x, y, key, "m x", room=self.unit)
        self.small(x, y - 1, ("\u00d7".join(map(str, shown.shape)), *shown.notes))

    # --- between the lanes -----------------------------------------------------------------

    def pair(self, k: int, slot: Slot) -> tuple[str, str, Placed, Placed] | None:
        """What is shown of a layer: a path and a symbol, and where it and its gradient go."""
        chosen = shown_of(self.trace, slot, self.ring)
        if chosen is None:
            return None
        path, name = chosen
        keys = (f"{path}.forward.{name}", f"{path}.backward.d{name}")
        planes = (plane(self.trace[key].array) for key in keys)
        x, room = (self.x[k] + self.x[k + 1]) / 2, (self.unit - 22) / 2
        first, second = (self.place(shown, x, 0, room, MIDDLE) for shown in planes)
        apart = x - first.x + 7
        return path, name, first._replace(x=first.x - apart), second._replace(x=second.x + apart)

    def layer(self, k: int, slot: Slot, pair: Any, y: float) -> None:
        """A layer: its weights with their gradients, or its formulas; or how many are hidden."""
        x, room = (self.x[k] + self.x[k + 1]) / 2, self.unit - 4
        if not slot.path:
            layers = "layer" + "s" * (slot.hidden > 1)
            self.small(x, y - 18, ("\u2026", f"{slot.hidden} more", layers, "\u2026"))
            return
        title = f"{slot.path} {self.trace.name_of(slot.path)}"
        if pair is None:
            shown = [*([f"reads {slot.more} too"] * bool(slot.more)), *self.formulas(slot, room)]
            y = self.text(x, y + 12 - 8 * (1 + len(shown)), title, "b x", room=room)
            self.small(x, y, shown)
            return
        path, name, first, second = pair
        notes = first.shown.notes
        up = y - 27 - 7 * len(notes)
        self.weights(f"{path}.{name}", first._replace(y=up + first.y))
        moved, at = second._replace(y=up + second.y), self.back(k + 0.2)
        self.draw(f"{path}.d{name}", moved, self.since(at))
        under = up - first.y + 18
        for placed, label in ((first, name), (second, f"d{name}")):
            wide = placed.shown.values.shape[1] * placed.w
            self.text(placed.x + wide / 2, under, label, "m x")
        inside = path.removeprefix(slot.path).strip(".")
        y = self.text(x, under + 17, title + f": {inside}" * bool(inside), "b x", room=room)
        self.small(x, y - 1, notes)

    def weights(self, key: str, placed: Placed) -> None:
        """A parameter, which becomes the one after the update."""
        path, _, name = key.rpartition(".")
        update = self.trace.updates.get(path, {}).get(name)
        if update is None:
            self.draw(key, placed)
            return
        for kind, a, b in (("wo", 1, 0), ("wn", 0, 1)):
            self.fade(kind, (0, a), (UPDATE + 5, a), (DONE, b), (98, b), (100, a))
        self.draw(key, placed, "wo")
        after = plane(np.asarray(self.trace[f"{path}.forward.{name}"].array) + update)
        self.parts.append(tile(*placed._replace(shown=after), f"{key} after the update", "wn"))

    def formulas(self, slot: Slot, room: float) -> list[str]:
        """The formulas of its Y and dX."""
        steps = self.trace.scope(slot.path).derivation.every()
        shown = (wrapped(s.formula, room, 10) for s in steps if s.symbol in (slot.Y, f"d{slot.X}"))
        return [line for lines in shown for line in lines]

    def loss(self, right: float, upper: float, lower: float, y: float) -> None:
        """The column of the loss, with the arrows to it and back."""
        x, high = WIDTH - EDGE - LOSS / 2, 104
        self.arrow((right, upper), (x, upper), (x, y - high / 2 - 6), at=TURN)
        self.arrow((x, y + high / 2 + 6), (x, lower), (right, lower), at=BACK)
        self.rect("a", x - LOSS / 2, y - 52, LOSS, high, 10)
        loss = self.trace._recording.loss
        parts = loss.losses.values() if isinstance(loss, Heads) else [loss]
        name = " + ".join(type(part).__name__ for part in parts)
        self.text(x, y - 30, name, "b x", 11, LOSS - 10)
        before, after = apart(self.trace.loss, self.after)
        self.text(x, y + 4, before, f"x b {self.since(TURN + 2)}", 26)
        if self.after is None:
            self.text(x, y + 32, "no update", "x s")
        else:
            self.text(x, y + 32, f"becomes {after}", f"x b {self.since(DONE)}", 16)

    def threads(self, columns: list[Any], high: float, low: float) -> None:
        """Ring the cell, and join it to the two numbers of its largest term, if they are shown.

        high, low    where lines may run
        """
        if not self.ring:
            return
        ringed, at = self.ring, self.since(END + 2)
        own = self.placed[f"{ringed.path}.d{ringed.name}"]
        x, y = own.middle(*(found(own.shown.shape, None, ringed.cell) or (0, 0)))
        w, h = (max(size, 7) + 3 for size in (own.w, own.h))
        self.rect(f"r {at}", x - w / 2, y - h / 2, w, h, 3)
        for name, place in ringed.factors() if "." not in ringed.path else ():
            k = next(k for k, slot in enumerate(self.slots) if slot.path == ringed.path)
            other = self.placed.get(columns[k][0] if name == "X" else columns[k + 1][2])
            spot = other and found(other.shown.shape, self.sample, place)
            if other is None or spot is None:
                continue
            there = other.middle(*spot)
            side = own.x + own.shown.values.shape[1] * own.w + 7 if name == "dY" else x
            turn = low if name == "dY" else high
            points = [there, (there[0], turn), (side, turn), (side, y), (x, y)]
            self.add("path", class_=f"h {at}", d=points_of(points))
            if other.shown.whole and len(other.shown.shape) < 4:  # the whole column of the sum
                left, tall = other.x + spot[1] * other.w, other.shown.values.shape[0] * other.h
                self.rect(f"h {at}", left - 1, other.y - 1, other.w + 1, tall + 1)

    # --- below the lanes -------------------------------------------------------------------

    def below(self, y: float) -> float:
        self.add("path", class_="a", d=points_of([(EDGE, y), (WIDTH - EDGE, y)]))
        if not self.ring:
            words = f"No gradient here is a sum over samples. {self.moved()}"
            return self.text(EDGE, y + 28, words, size=14)
        return max(self.sum(self.ring, y + 30), self.code(self.ring, y + 30))

    def moved(self) -> str:
        if self.after is None:
            return ""
        before, after = apart(self.trace.loss, self.after)
        return f"After this update, the loss goes from {before} to {after}."

    def sum(self, ringed: Ring, y: float) -> float:
        """The sentence, the formula, and the largest terms as bars."""
        said, name = ringed.sentence(), ringed.name
        update = self.trace.updates.get(ringed.path, {}).get(name)
        if update is not None:
            W = float(self.trace[f"{ringed.path}.forward.{name}"].array[ringed.cell])
            old, new = (f"{w:.5g}".replace("-", "\u2212") for w in (W, W + update[ringed.cell]))
            said += f" The optimizer moves {name}{ringed.place} from {old} to {new}."
        for words in wrapped(said, 430, 13):
            y = self.text(EDGE, y, words, size=14)
        y = self.text(EDGE, y + 10, ringed.entry.formula, "s", 15, formula=True) + 6
        terms = ringed.why[:TERMS]
        most = max(abs(term.value) for term in terms) or 1
        for term in terms:
            place = ", ".join(f"{i} {k}" for i, k in term.at.items())
            product = " \u00d7 ".join(number(v) for v in term.factors.values())
            kind = "tn" if term.value < 0 else "tp"
            self.text(EDGE, y, place.replace("n ", "sample ", 1), "s", 11, 135)
            self.text(EDGE + 262, y, product, "m e", 11, 130)
            width = max(70 * abs(term.value) / most, 1)
            self.rect(kind, EDGE + 272, y - 9, width, 10)
            self.text(EDGE + 405, y, number(term.value), f"m e {kind}", 11)
            y += 17
        if others := len(ringed.why) - len(terms):
            rest = ringed.why.total - sum(term.value for term in terms)
            self.text(EDGE, y, f"{others:,} other" + "s" * (others > 1), "s", 11)
            self.text(EDGE + 405, y, number(rest), "m s e", 11)
        return y + 17

    def code(self, ringed: Ring, y: float) -> float:
        """The method that computes the ringed gradient; its line is lit."""
        layer = self.trace._passes[ringed.path].layer
        title, lines, lit = method_with(type(layer), f"d{ringed.name}")
        x, right = 470, WIDTH - EDGE
        if lines and not title.endswith(".backward"):
            title += ", called by its backward"
        y = self.text(x, y, title, "b") + 4
        start = max(0, min((lit or 0) - LINES // 2, len(lines) - LINES))
        for k, words in enumerate(lines[start : start + LINES], start):
            if k == lit:
                self.rect(f"lit {self.since(END + 2)}", x - 6, y - 12, right - x + 6, 16, 3)
            y = self.text(x, y, words, "m", 11, right - x) + 1
        return y


def apart(before: float, after: float | None) -> tuple[str, str]:
    """Two numbers with as many digits as it takes to tell them apart."""
    other = before if after is None else after
    pairs = [(f"{before:#.{k}g}", f"{other:#.{k}g}") for k in range(3, 9)]
    pair = next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])
    return pair[0].rstrip("."), pair[1].rstrip(".")


# --- what is shown -------------------------------------------------------------------------------


def slots(trace: Any, ringed: Ring | None) -> list[Slot]:
    """The layers of the chain that fit: the first, the last, and those around the ringed one."""
    paths = way(trace, ringed)
    last = len(paths) - 1
    shown = [*range(len(paths))]
    if len(paths) > MOST:
        own = [slot.path for slot in paths]
        at = own.index(ringed.path.split(".")[0]) if ringed else len(paths) // 2
        at = min(max(at, 2), last - 2)
        shown = [0, at - 1, at, at + 1, last]
    chosen: list[Slot] = []
    for before, k in zip([-1, *shown], shown, strict=False):
        if k - before > 1:
            chosen.append(Slot("", hidden=k - before - 1))
        chosen.append(paths[k])
    return chosen


def way(trace: Any, ringed: Ring | None) -> list[Slot]:
    """All layers of a chain; of a network, those on one way from an input to a loss."""
    model = trace.model
    if not isinstance(model, Wired):
        return [Slot(path) for path in trace._passes if path.isdecimal()]
    wires = model.wires
    givers = {name: k for k, (_, gives) in enumerate(wires) for name in gives}
    found = [int(ringed.path.split(".")[0]) if ringed else len(wires) // 2]
    while before := [givers[name] for name in wires[found[0]][0] if name in givers]:
        found.insert(0, max(before))
    while after := [k for k, (reads, _) in enumerate(wires) if {*reads} & {*wires[found[-1]][1]}]:
        found.append(after[0])
    values = [next(n for n in wires[b][0] if n in wires[a][1]) for a, b in pairwise(found)]
    values = [wires[found[0]][0][0], *values, wires[found[-1]][1][0]]
    return [
        Slot(
            str(k), 0, _symbol("X", wires[k][0], X), _symbol("Y", wires[k][1], Y),
            ", ".join(name for name in wires[k][0] if name != X),
        )
        for k, (X, Y) in zip(found, pairwise(values), strict=True)
    ]  # fmt: skip


def _symbol(symbol: str, names: Sequence[str], name: str) -> str:
    """The symbol of one of the values that a layer reads or gives."""
    return symbol if len(names) == 1 else f"{symbol}{names.index(name) + 1}"


def arrays(trace: Any, shown: list[Slot]) -> list[tuple[str, Any, str, Any]]:
    """The key and value of each array of the lanes, and the key and value of its gradient."""
    found = [(shown[0].path, shown[0].X)]
    for k, slot in enumerate(shown):  # in a gap: what the next layer receives
        found.append((slot.path, slot.Y) if slot.path else (shown[k + 1].path, shown[k + 1].X))
    every = [
        (f"{path}.{name}", own.array(name), f"{path}.d{name}", own.array(f"d{name}"))
        for path, name in found
        for own in [trace._passes[path]]
    ]
    return [(shown[0].X, *every[0][1:]), *every[1:]]


def shown_of(trace: Any, slot: Slot, ringed: Ring | None) -> tuple[str, str] | None:
    """The path and name of the parameter that is shown of a layer: the ringed one, or a matrix."""
    inside = [p for p in trace._passes if f"{p}.".startswith(f"{slot.path}.")]
    if ringed and ringed.path in inside:
        return ringed.path, ringed.name
    grads = [(-min(g.ndim, 2), p, n) for p in inside for n, g in trace._passes[p].grads.items()]
    return min(grads, key=lambda found: found[0])[1:] if grads else None
