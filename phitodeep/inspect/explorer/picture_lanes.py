"""The lanes of a picture: each layer with its name, its arrays, its weights and all gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from phitodeep.derivations.language import run
from phitodeep.inspect.explorer.picture_page import (
    BACK,
    DONE,
    EDGE,
    END,
    TURN,
    UPDATE,
    WIDTH,
    Page,
    fit,
    rounded,
    wide,
    wrapped,
)
from phitodeep.inspect.explorer.picture_ring import Ring, ring
from phitodeep.inspect.explorer.picture_tiles import Cell, Plane, found, plane, tile

LOSS = 176  # the width of the column of the loss
HIGH, MIDDLE, CELL = 140, 96, 20  # the largest tiles of the lanes and between them, and cells


class Column(NamedTuple):
    """An array and its gradient, which may be missing, with their keys."""

    key: str
    up: Plane
    gradient: str
    down: Plane | None


class Lanes(Page):
    """The upper part of the picture of a trace.

    ring     the cell whose sum is explained, or None
    after    the loss after the update, or None if there is none
    """

    def __init__(self, trace: Any) -> None:
        self.trace, self.ring = trace, ring(trace)
        self.sample = self.ring.sample if self.ring else trace.sample or 0
        self.after = trace.loss_after
        self.slots = slots(trace, self.ring)
        super().__init__(len(self.slots))
        self.cells: dict[str, tuple[Plane, float, float, Cell]] = {}  # where each array is
        self.paths, self.named = (0.0, 0.0), 0.0
        self._columns()

    # --- where things are ------------------------------------------------------------------

    def _columns(self) -> None:
        """Place the arrays: parameters between two of them need more room than a formula."""
        self.pairs = [pair(self.trace, s, self.ring) if s.path else None for s in self.slots]
        room = [
            0.95 if not slot.path else 1.5 if shown else 1.05
            for slot, shown in zip(self.slots, self.pairs, strict=True)
        ]
        whole = WIDTH - 2 * EDGE - LOSS
        unit = min(whole / (sum(room) + 0.9), 190)
        self.x = [EDGE + 0.45 * unit]
        for size in room:
            self.x.append(self.x[-1] + size * unit)
        spread = (whole - (self.x[-1] + 0.45 * unit - EDGE)) / 2
        self.x = [x + spread for x in self.x]
        self.loss_x = self.x[-1] + 0.45 * unit + LOSS / 2 + 6

    def _near(self, k: int) -> float:
        """The widest that the tile of array k may be."""
        around = [b - a for a, b in zip(self.x, self.x[1:], strict=False)][max(0, k - 1) : k + 1]
        edge = [2 * (self.x[0] - EDGE) + 30] if k == 0 else []
        return min(min([*around, *edge]) - 30, HIGH)

    # --- the lanes -------------------------------------------------------------------------

    def lanes(self, top: float) -> float:
        columns = [
            Column(key, plane(A, self.sample), dkey, None if dA is None else plane(dA, self.sample))
            for key, A, dkey, dA in arrays(self.trace, self.slots)
        ]
        ups, downs = [column.up for column in columns], [column.down for column in columns]
        sizes = [self._cell(up, self._near(k), HIGH) for k, up in enumerate(ups)]
        high = max(40, *(up.values.shape[0] * size.h for up, size in zip(ups, sizes, strict=True)))
        notes = 14 * max(up.note.count("\n") + bool(up.note) for up in ups)
        y = top + 38 + notes  # the tops of the tiles
        middle = y + high + 22
        tall = self._between(middle)
        low = middle + tall + 26
        self.paths = y + high + 10, low - 10  # where lines may run
        for k, (key, up, gradient, down) in enumerate(columns):
            self._array(k, key, up, sizes[k], y, high, self.forward(k), above=True)
            if down is not None:
                self._array(k, gradient, down, sizes[k], low, high, self.backward(k), above=False)
            else:
                self.lines(self.x[k], low + high / 2, ["tokens have", "no gradient"], "s x", 11)
        for k, slot in enumerate(self.slots):
            for shown, level, at in ((ups, y, k + 0.7), (downs, low, k + 0.3)):
                a, b = (self._half(shown[j], sizes[j]) + 6 for j in (k, k + 1))
                ends = [(self.x[k] + a, level + high / 2), (self.x[k + 1] - b, level + high / 2)]
                if shown is ups:
                    self.arrow(ends, self.forward(at), not slot.path)
                elif shown[k] is not None:
                    self.arrow(ends[::-1], self.backward(at), not slot.path)
        half = self._half(ups[-1], sizes[-1]) + 6
        self._loss(self.x[-1] + half, y + high / 2, low + high / 2, middle + tall / 2)
        self._threads(columns)
        return low + high + 32 + notes

    def _cell(self, shown: Plane, wide: float, high: float) -> Cell:
        rows, columns = shown.values.shape
        w = min(CELL, wide / max(1, columns), high / max(1, rows))
        thin = w <= 6 and not shown.blank.any()  # would be a hairline
        return Cell(w, max(w, min(12, 30 / max(1, rows))) if thin else w)

    def _half(self, shown: Plane | None, cell: Cell) -> float:
        return 34 if shown is None else shown.values.shape[1] * cell.w / 2

    def _array(
        self,
        k: int,
        name: str,
        shown: Plane,
        cell: Cell,
        y: float,
        high: float,
        at: float,
        above: bool,
    ) -> None:
        """One array of a lane, with its name and shape above it, or below it."""
        rows, columns = shown.values.shape
        x, middle = self.x[k] - columns * cell.w / 2, y + (high - rows * cell.h) / 2
        most = _largest(shown)
        self.add(tile(shown, x, middle, cell, name, most, f' class="{self.since(at)}"'))
        self._remember(name, shown, x, middle, cell)
        size = "\u00d7".join(map(str, shown.shape))
        notes = shown.note.split("\n") if shown.note else []
        head = y - 22 - 14 * len(notes) if above else y + high + 15
        room = self._near(k) + 26
        self.text(self.x[k], head, fit(name, room, 12), "m x")
        self.lines(self.x[k], head + 14, [fit(size, room, 11), *notes], "s x", 11)

    def _remember(self, name: str, shown: Plane, x: float, y: float, cell: Cell) -> None:
        self.cells[name] = (shown, x, y, cell)

    def _between(self, y: float) -> float:
        """The layers: weights with their gradients, or formulas; return how high they are."""
        drawn, tall = {}, 52.0
        for k, shown in enumerate(self.pairs):
            if shown is None:
                continue
            _, _, A, dA, heads = shown
            sample = self.sample if heads else None
            planes = [plane(a, sample, heads=heads) for a in (A, dA)]
            room = (self.x[k + 1] - self.x[k] - 22) / 2
            cell = self._cell(planes[0], room, MIDDLE)
            drawn[k] = planes, cell
            notes = planes[0].note.count("\n") + bool(planes[0].note)
            tall = max(tall, planes[0].values.shape[0] * cell.h + 41 + 14 * notes)
        for k, slot in enumerate(self.slots):
            x = (self.x[k] + self.x[k + 1]) / 2
            room = self.x[k + 1] - self.x[k] - 8
            if not slot.path:
                more = [
                    "\u2026",
                    f"{slot.hidden} more",
                    "layer" + "s" * (slot.hidden > 1),
                    "\u2026",
                ]
                self.lines(x, y + tall / 2 - 18, more, "s x", 11)
            elif k in drawn:
                self._weights(k, slot, *drawn[k], x, y, tall, room)
            else:
                self._formulas(slot, x, y, tall, room)
        return tall

    def _weights(
        self, k: int, slot: Slot, planes: list[Plane], cell: Cell,
        x: float, y: float, tall: float, room: float,
    ) -> None:  # fmt: skip
        path, name, A, _, heads = self.pairs[k] or ("", "", None, None, False)
        rows, columns = planes[0].values.shape
        notes = planes[0].note.split("\n") if planes[0].note else []
        top = y + (tall - 41 - 14 * len(notes) - rows * cell.h) / 2
        left, right = x - 7 - columns * cell.w, x + 7
        most, key = _largest(planes[0]), f"{path}.{name}"
        first = tile(planes[0], left, top, cell, key, most)
        update = None if heads else self.trace._updates.get(path, {}).get(name)
        if update is not None:  # W fades into W + update, while the update flies from dW to W
            old = self.animated(
                "wo", f"0%,{UPDATE + 5}%{{opacity:1}}{DONE}%,98%{{opacity:0}}to{{opacity:1}}"
            )
            new = self.animated(
                "wn", f"0%,{UPDATE + 5}%{{opacity:0}}{DONE}%,98%{{opacity:1}}to{{opacity:0}}"
            )
            self.add(f'<g class="{old}">{first}</g>')
            moved = plane(np.asarray(A, np.float64) + update)
            self.add(tile(moved, left, top, cell, "", most, f' class="g {new}"'))
            way = f"transform:translateX({left - right:.1f}px)"
            fly = self.animated(
                f"y{k}",
                f"0%,{UPDATE}%{{opacity:0;transform:none}}"
                f"{UPDATE + 2}%{{opacity:.9;transform:none}}"
                f"{DONE - 2}%{{opacity:.9;{way}}}{DONE + 2}%,to{{opacity:0;{way}}}",
            )
            step = plane(update)
            self.add(f'<g class="g {fly}">{tile(step, right, top, cell, "", _largest(step))}</g>')
        else:
            self.add(first)
        at = self.backward(k + 0.2)
        self.add(
            tile(
                planes[1],
                right,
                top,
                cell,
                f"{path}.d{name}",
                _largest(planes[1]),
                f' class="{self.since(at)}"',
            )
        )
        self._remember(f"{path}.{name}", planes[0], left, top, cell)
        self._remember(f"{path}.d{name}", planes[1], right, top, cell)
        under = top + rows * cell.h + 19
        for side, label in ((-1, name), (1, f"d{name}")):
            self.text(x + side * (7 + columns * cell.w / 2), under, label, "m x")
        inside = path.removeprefix(slot.path).strip(".")
        title = called(slot) + (f": {inside}" if inside else "")
        size = 12 if wide(title, 12) <= room else 11
        self.text(x, under + 16, fit(title, room, size), "b x", size)
        if self.ring and self.ring.path == path:
            self.named = x + 0.55 * wide(fit(title, room, size), size)
        self.lines(x, under + 31, notes, "s x", 11)

    def _formulas(self, slot: Slot, x: float, y: float, tall: float, room: float) -> None:
        """A layer without parameters: its name, and the formulas of Y and dX."""
        passes = self.trace._passes[slot.path]
        shown: list[str] = []
        if run.has_steps(passes.layer):
            derivation = self.trace.scope(slot.path).derivation
            made = [{step.symbol: step for step in steps} for steps in derivation]
            main = [by[n] for by, n in zip(made, ("Y", "dX"), strict=True) if n in by]
            parts = [
                by[n]
                for by, step in zip(made, main, strict=False)
                for n in step.operands
                if n in by
            ]
            for step in [*main, *parts]:
                broken = wrapped(step.formula, room, 11)
                fits = len(broken) <= (2 if step in main else 1) and len(shown) + len(broken) <= 4
                shown += broken if fits else []
        top = y + (tall - 15 * (1 + len(shown))) / 2 + 12
        self.text(x, top, fit(called(slot), room, 12), "b x")
        self.lines(x, top + 16, shown, "s x", 11, formulas=True)

    # --- the loss --------------------------------------------------------------------------

    def _loss(self, right: float, upper: float, lower: float, y: float) -> None:
        x, high = self.loss_x, 104
        top = y - high / 2
        self.arrow([(right, upper), (x, upper), (x, top - 6)], TURN)
        self.arrow([(x, top + high + 6), (x, lower), (right, lower)], BACK)
        self.add(
            f'<rect x="{x - LOSS / 2:.1f}" y="{top:.1f}" width="{LOSS}" height="{high}" rx="10" '
            'style="fill:none;stroke:var(--line);stroke-width:1.5"/>'
        )
        name = type(self.trace._recording.loss).__name__
        self.text(x, top + 22, fit(name, LOSS - 12, 11), "b x", 11)
        before, after = apart(self.trace.loss, self.after)
        self.text(x, top + 56, before, f"x b {self.since(TURN + 2)}", 26)
        if self.after is not None:
            self.text(x, top + 84, f"becomes {after}", f"x b {self.since(DONE)}", 16)
        else:
            self.text(x, top + 84, "no update", "x s")

    # --- the ring --------------------------------------------------------------------------

    def _threads(self, columns: list[Column]) -> None:
        """Ring the cell, and join it to the two numbers of its largest term, if they are shown."""
        if not self.ring:
            return
        ring, at = self.ring, self.since(END + 2)
        shown, x, y, cell = self.cells[f"{ring.path}.d{ring.name}"]
        k, j = found(shown.shape, None, ring.cell) or (0, 0)
        w, h = max(cell.w, 7), max(cell.h, 7)
        cx, cy = x + (j + 0.48) * cell.w, y + (k + 0.48) * cell.h
        self.add(f'<g class="{at}">')
        for name, place in ring.factors() if "." not in ring.path else ():
            slot = next(i for i, s in enumerate(self.slots) if s.path == ring.path)
            key = columns[slot].key if name == "X" else columns[slot + 1].gradient
            if key not in self.cells:
                continue
            other, ox, oy, size = self.cells[key]
            spot = found(other.shape, self.sample, place)
            if spot is None:
                continue
            px, py = ox + (spot[1] + 0.48) * size.w, oy + (spot[0] + 0.48) * size.h
            if other.whole and len(other.shape) < 4:  # the whole column of the sum
                rows = other.values.shape[0] * size.h
                self.add(
                    f'<rect class="h" x="{ox + spot[1] * size.w - 1:.1f}" y="{oy - 1:.1f}" '
                    f'width="{size.w + 1:.1f}" height="{rows + 1:.1f}" rx="2"/>'
                )
            if name == "X":
                points = [(px, py), (px, self.paths[0]), (cx, self.paths[0]), (cx, cy)]
            else:
                side = max(x + shown.values.shape[1] * cell.w, self.named) + 4
                points = [
                    (px, py),
                    (px, self.paths[1]),
                    (side, self.paths[1]),
                    (side, cy),
                    (cx, cy),
                ]
            self.add(
                f'<path class="th" d="{rounded(points)}"/>'
                f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" style="fill:var(--ink)"/>'
            )
        self.add(
            f'<rect class="r" x="{cx - w / 2 - 1.5:.1f}" y="{cy - h / 2 - 1.5:.1f}" '
            f'width="{w + 3:.1f}" height="{h + 3:.1f}" rx="3"/></g>'
        )


def _largest(shown: Plane) -> float:
    finite = np.abs(shown.values[np.isfinite(shown.values)])
    return float(finite.max(initial=0))


def apart(before: float, after: float | None) -> tuple[str, str]:
    """Two numbers with as many digits as it takes to tell them apart."""
    other = before if after is None else after
    pairs = [(f"{before:#.{k}g}", f"{other:#.{k}g}") for k in range(3, 9)]
    pair = next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])
    return pair[0].rstrip("."), pair[1].rstrip(".")


MOST = 6  # layers that are shown


class Slot(NamedTuple):
    """A layer of the picture, or a gap for layers that are left out (no path)."""

    path: str
    layer: Any = None
    hidden: int = 0


def slots(trace: Any, ring: Ring | None) -> list[Slot]:
    """The layers of the chain that fit: the first, the last, and those around the ringed one."""
    layers = [
        Slot(str(k), layer)
        for k, layer in enumerate(trace._recording.model.layers)
        if str(k) in trace._passes
    ]
    if len(layers) <= MOST:
        return layers
    paths = [slot.path for slot in layers]
    at = paths.index(ring.path.split(".")[0]) if ring else len(layers) // 2
    at = min(max(at, 2), len(layers) - 3)
    shown = sorted({0, at - 1, at, at + 1, len(layers) - 1})
    found: list[Slot] = []
    for before, k in zip([-1, *shown], shown, strict=False):
        if k - before > 1:
            found.append(Slot("", hidden=k - before - 1))
        found.append(layers[k])
    return found


def arrays(trace: Any, shown: list[Slot]) -> Iterator[tuple[str, Any, str, Any]]:
    """Yield the key and value of each array, and the key and value of its gradient."""
    passes = trace._passes
    first = passes[shown[0].path]
    yield "X", first.X, f"{shown[0].path}.dX", first.dX
    for k, slot in enumerate(shown):
        if not slot.path:  # what the next layer receives
            after = passes[shown[k + 1].path]
            yield f"{shown[k + 1].path}.X", after.X, f"{shown[k + 1].path}.dX", after.dX
        else:
            own = passes[slot.path]
            yield f"{slot.path}.Y", own.Y, f"{slot.path}.dY", own.dY


def pair(trace: Any, slot: Slot, ring: Ring | None) -> tuple[str, str, Any, Any, bool] | None:
    """What is shown of a layer: path, symbol, value and gradient; if attention."""
    if ring and (ring.path + ".").startswith(slot.path + "."):
        path, name = ring.path, ring.name
        layer = trace._passes[path].layer
        owner, own = layer.tied.get(name, (layer, name))
        return path, name, owner.params[own], trace._passes[path].grads[name], False
    inside = [p for p in trace._passes if p == slot.path or p.startswith(slot.path + ".")]
    for path in inside:
        if f"{path}.forward.P" in trace and f"{path}.backward.dP" in trace:
            P = trace[f"{path}.forward.P"].array
            if np.ndim(P) == 4:
                return path, "P", P, trace[f"{path}.backward.dP"].array, True
    for least in (2, 1):
        for path in inside:
            passes = trace._passes[path]
            for name, grad in passes.grads.items():
                owner, own = passes.layer.tied.get(name, (passes.layer, name))
                if grad.ndim >= least:
                    return path, name, owner.params[own], grad, False
    return None


def called(slot: Slot) -> str:
    whole = repr(slot.layer)
    return f"{slot.path} {whole if len(whole) <= 30 else type(slot.layer).__name__}"
