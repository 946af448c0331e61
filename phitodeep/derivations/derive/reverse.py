"""The backward steps of a layer, from its forward steps alone.

Each step passes what arrives at its result on to its operands:

    Let        times the slope of its expression; over broadcast axes, the sum
    Sum        the same indices, with the gradient instead of the operand
    Arrange    each element's gradient returns to where the element came from
    Join       the columns of each operand
    Through    the backward pass of the layer inside
    Max        to the largest; nothing if the result does not depend on it, as in a softmax
    Loop       a loop in reverse; a Carry hands the gradient of the state to the round before.
               What reads no state, such as the gradient of W, is one sum after the loop.

The names of the forward steps are kept: dA is the gradient of A. A gradient that is read once is
not named, but written where it is read. Then the rules of `Known` shorten what the forward pass has
computed already.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from phitodeep.core.types import Shape
from phitodeep.derivations.derive.algebra import (
    ONE,
    Poly,
    add,
    atom,
    common,
    divided,
    parse,
    show,
    slope,
    times,
)
from phitodeep.derivations.derive.known import Known
from phitodeep.derivations.derive.moves import undone
from phitodeep.derivations.language import run
from phitodeep.derivations.language.returning import Returned, ToLargest
from phitodeep.derivations.language.run import Scope
from phitodeep.derivations.language.step import (
    OUTPUT,
    Arrange,
    Carry,
    Join,
    Let,
    Loop,
    Max,
    Step,
    Sum,
    Through,
    evaluate,
    flat,
    names_in,
    ones_in,
)
from phitodeep.derivations.language.terms import Replaced
from phitodeep.errors import DerivationError

SHIFTS = (0.25, 30.0, -30.0)  # small ones could stay on one side of a kink
AXES = "nthwuvzcd"


def reverse(forward: Sequence[Step], scope: Scope, wanted: Iterable[str]) -> list[Step]:
    """Return the backward steps, from dY to the gradient of each wanted symbol.

    The forward steps must have run in `scope`, on arrays whose sizes differ from each other and
    from 1: from them follow the shapes, and which axes are broadcast. Of a loss, L takes the place
    of Y, and dL is 1.
    """
    return _Reverse(forward, scope, wanted).steps()


class _Reverse:
    """Walks through the forward steps from the last to the first.

    arriving    what has arrived at each symbol so far
    parts       the same for symbols that are read column by column: the gradients of the columns
    shapes      of each symbol of the backward pass, and whether a loop computes it
    active      the symbols that the wanted ones move
    reads       how often a symbol is read
    inside      the symbols of the loop that is walked through
    """

    def __init__(self, forward: Sequence[Step], scope: Scope, wanted: Iterable[str]) -> None:
        self.forward, self.scope, self.wanted = forward, scope, [*wanted]
        self.known, self.inside, self.looping = Known(forward), set[str](), False
        self.out: list[Step] = []
        self.parts: dict[str, dict[str, str]] = {}
        self.after: list[Callable[[], None]] = []  # what waits for the end of a loop
        ends = [step.symbol for step in forward if OUTPUT.fullmatch(step.symbol)]
        self.arriving = {Y: atom(f"d{Y}") for Y in ends} or {"L": ONE}
        self.shapes: dict[str, tuple[Shape, bool]] = {
            f"d{Y}": (np.shape(scope[Y]), False) for Y in ends
        }
        self.ends = ends or ["L"]
        self.active, self.reads = {*self.wanted}, Counter(self.ends)
        for step in flat(forward):
            self.reads.update(step.operands)
            if isinstance(step, Carry) or (self.moves(step) and not self.only_shifts(step)):
                self.active.add(step.symbol)

    def moves(self, step: Step) -> bool:
        """Whether the result of a step depends on what is wanted."""
        value = self.scope.find(step.symbol)
        return not self.active.isdisjoint(step.operands) and np.asarray(value).dtype.kind == "f"

    def steps(self) -> list[Step]:
        self.back(self.forward)
        for name in self.wanted:
            if (g := self.arrived(name)) is not None:
                self.named(name, g, always=True)
        return self.out

    def arrived(self, name: str) -> Poly | None:
        """What has arrived at a symbol from all its readers, which is taken away."""
        if parts := self.parts.pop(name, None):
            joined = [
                parts.get(column) or show(self.emit(Let(f"d{column}", f"0 * {column}"), column))
                for column in self.columns_of(name)
            ]
            self.receive(name, self.emit(Join(f"d{name}", *joined), name))
        return self.arriving.pop(name, None)

    def back(self, steps: Sequence[Step]) -> None:
        for step in reversed(steps):
            if isinstance(step, Loop):
                self.loop(step)
            elif isinstance(step, Through):
                if step.runs:  # the first of the arrays that a pass returns
                    self.through(step, [s for s in steps if isinstance(s, Through)])
            elif step.symbol in self.active and (g := self.arrived(step.symbol)):
                self.pass_back(step, g)

    def pass_back(self, step: Step, g: Poly) -> None:
        """Pass what arrives at the result of a step on to its operands."""
        read = (step.of,) if isinstance(step, Arrange) else step.operands
        operands = [name for name in dict.fromkeys(read) if name in self.active]
        outside = [name for name in operands if self.inside and name not in self.inside]
        if len(operands) > 1 or outside or not _scales(step):
            g = atom(self.named(step.symbol, self.known.shorten(g)))
        for name in operands:
            if name in outside:  # after the loop, all rounds at once
                self.after.append(partial(self.pass_on, step, name, g, looped=True))
            else:
                self.pass_on(step, name, g)

    def pass_on(self, step: Step, name: str, g: Poly, looped: bool = False) -> None:
        """Add what an operand receives through a step; `looped`: after the loop around the step."""
        match step:
            case Let():
                part = self.reduced(times(g, self.slope(step, name)), step.symbol, name)
            case Sum():
                part = self.through_sum(step, name, g, looped)
            case Arrange() if looped and re.fullmatch(rf"{name}\[:, t\]", step.code):
                part = g  # after the loop, it stands for all t
            case Arrange():
                part = self.returned(step, name, show(g))
            case Join():
                part = {}
                for k in [k for k, operand in enumerate(step.operands) if operand == name]:
                    start = " + ".join(f"{n}.shape[-1]" for n in step.operands[:k]) or "0"
                    code = f"{show(g)}[..., {start}:][..., :{name}.shape[-1]]"
                    columns = Arrange(
                        self.free(name, step), code, show(g), f"the columns of {name}"
                    )
                    part = add(part, self.emit(columns, name))
            case Max():
                part = self.emit(ToLargest(self.free(name, step), show(g), step), name)
            case _:
                raise DerivationError(
                    f"{step!r}: no derivative of a {type(step).__name__} is known."
                )
        self.receive(name, part)

    def receive(self, name: str, part: Poly) -> None:
        self.arriving[name] = self.known.shorten(add(self.arriving.get(name, {}), part))

    def through(self, step: Through, steps: Sequence[Through]) -> None:
        """The backward pass of a layer inside, from what arrives at each of its arrays."""
        results = [s for s in steps if (s.child, s.operands) == (step.child, step.operands)]
        arrived = {s.symbol: self.arriving.pop(s.symbol, {}) for s in results}
        if not any(arrived.values()) or self.active.isdisjoint((*step.operands, step.symbol)):
            return
        dYs = [
            self.named(name, g) if g else show(self.emit(Let(f"d{name}", f"0 * {name}"), name))
            for name, g in arrived.items()
        ]
        of: Any = dYs[0] if len(dYs) == 1 else tuple(dYs)
        several = len(step.operands) > 1
        for k, name in enumerate(step.operands, 1):
            symbol = self.free(name, step)
            result = f"dX{k}" if several else "dX"
            back = Through(symbol, of, step.child, back=True, result=result, runs=k == 1)
            part = self.emit(back, name)
            if name in self.active:
                self.receive(name, part)

    def slope(self, step: Let, name: str) -> Poly:
        p = parse(step.code)
        shared = self.shape(name) != self.shape(step.symbol) and name not in self.wanted
        if (
            len(p) == 1
            and shared
            and (k := dict(next(iter(p))).get(name))
            and self.divides(name, k)
        ):
            # of A = C r^k, where r is one number for a whole row: A is at hand, so k A / r
            return {((step.symbol, Fraction(1)), (name, Fraction(-1))): k}
        try:
            return self.known.shorten(slope(p, name))
        except DerivationError as error:
            raise DerivationError(f"{step!r}: {error.message}") from None

    def divides(self, name: str, k: Fraction) -> bool:
        """Whether the forward pass divides by `name`, or `name` is a quotient itself."""
        codes = [
            step.code
            for step in flat(self.forward)
            if step.symbol == name and isinstance(step, Let)
        ]
        return k < 0 or any(e < 0 for code in codes for powers in parse(code) for _, e in powers)

    # --- elements that moved -------------------------------------------------------------------

    def returned(self, step: Arrange, name: str, g: str) -> Poly:
        """What an operand receives from the places to which its elements moved."""
        if step.symbol in self.columns_of(name):
            self.parts.setdefault(name, {})[step.symbol] = g
            return {}
        symbol, code = self.free(name, step), undone(step, g)
        if code:
            return self.emit(Arrange(symbol, code, g, f"{g} as in {name}"), name)
        return self.emit(Returned(symbol, g, step), name)

    def columns_of(self, name: str) -> list[str]:
        """The symbols that are all columns of `name`, side by side; none if others read it too."""
        readers = [s for s in flat(self.forward) if name in s.operands and self.reads[s.symbol]]
        if not all(isinstance(s, Arrange) and s.of == name for s in readers):
            return []
        shape, found = self.shape(name), []
        numbered = np.arange(math.prod(shape)).reshape(shape)
        for s in readers:
            places = evaluate(s.code, Replaced(self.at, name, numbered))
            start = int(places.flat[0]) if places.ndim == len(shape) else -1
            end = start + places.shape[-1] if places.ndim else 0
            if start < 0 or not np.array_equal(places, numbered[..., start:end]):
                return []
            found.append((start, end, s.symbol))
        found.sort()
        edges = [0, *(end for _, end, _ in found)]
        whole = [*(start for start, _, _ in found), shape[-1] if shape else 0] == edges
        return [symbol for _, _, symbol in found] if found and whole else []

    # --- sums ----------------------------------------------------------------------------------

    def reduced(self, p: Poly, big: str, name: str) -> Poly:
        """The sum over the axes along which `name` was broadcast; constant factors stay outside."""
        p, full, small = self.known.shorten(p), self.shape(big), self.shape(name)
        rank, small = len(small), (0,) * (len(full) - len(small)) + small
        axes = [a for a, (m, n) in enumerate(zip(full, small, strict=True)) if m != n]
        if not axes or not p:
            return p
        shared = common(p)
        outer = tuple(
            (n, k)
            for n, k in shared
            if len(self.shape_of(atom(n))) <= rank and not self.varies(n, axes, len(full))
        )
        rest = {divided(powers, outer): c for powers, c in p.items()}
        whole = tuple(
            (n, k)
            for n, k in shared
            if (n, k) not in outer and k > 0 and k.denominator == 1 and n.isidentifier()
        )
        if len(rest) > 1 or len(whole) < len(next(iter(rest))):  # more than a product of symbols
            whole = whole[:1] if len(whole) == 1 and whole[0][0].startswith("d") else ()
        inner = {divided(powers, whole): c for powers, c in rest.items()}
        factors = [n for n, k in whole for _ in range(int(k))]
        scale = ONE
        if not self.shape_of(inner):  # one number for all
            scale = inner
        else:
            label = self.unique(f"slope_{name}" if factors else f"d{name}_each")
            factors.append(show(self.emit(Let(label, show(inner)), shape=self.shape_of(inner))))
        for a in axes:  # an axis along which nothing varies counts its elements
            if not any(self.varies(n, [a], len(full)) for n in factors):
                factors.append(show(self.emit(Let(self.unique("one"), f"1 + 0 * {big}"), big)))
        direct = scale == ONE and not outer and self.reads[name] == 1
        label = f"d{name}" if direct else self.unique("s")
        total = self.emit(Sum(label, self.code(factors, full, small), *factors), name)
        return times(times({outer: Fraction(1)}, scale), total)

    def varies(self, text: str, axes: Sequence[int], rank: int) -> bool:
        """Whether an atom has several values along one of these axes."""
        shape = self.shape_of(atom(text))
        return any(0 <= a - rank + len(shape) and shape[a - rank + len(shape)] > 1 for a in axes)

    def code(self, factors: Sequence[str], full: Shape, small: Shape) -> str:
        """The indices of a sum from `full` to `small`: "..." stands for leading axes of all."""
        n = len(full)
        letters = AXES[: n - 1] + "d" if n else ""
        shapes = [self.shape(f) for f in factors]
        lead = next(
            k
            for k in range(max(n - 1, 0), -1, -1)
            if (full[:k] == small[:k] or not any(small[:k]))
            and all(len(s) == n or len(s) <= n - k for s in shapes)
        )
        given = ["..." * (len(s) > n - lead) + letters[max(lead, n - len(s)) :] for s in shapes]
        kept = [
            "1" if m == 1 < f else i if m == f else ""
            for i, f, m in zip(letters[lead:], full[lead:], small[lead:], strict=True)
        ]
        samples = "..." * (lead > 0 and full[:lead] == small[:lead])
        return f"{','.join(given)}->{samples}{''.join(kept)}"

    def through_sum(self, step: Sum, name: str, g: Poly, looped: bool) -> Poly:
        """What an operand of a sum of products receives, from each place where it stands."""
        parts, _, out = step.code.replace(" ", "").partition("->")
        given = parts.split(",")
        if looped:  # after the loop, its symbols have an axis t behind the samples
            given = [
                part[:1] + "t" + part[1:] if operand in self.body else part
                for part, operand in zip(given, step.operands, strict=True)
            ]
            out = out[:1] + "t" + out[1:]
        total: Poly = {}
        for i, operand in enumerate(step.operands):
            if operand != name:
                continue
            others = [n for k, n in enumerate(step.operands) if k != i]
            alike = all(part == given[i] for part in given)
            if alike and _broadcasts(out, given[i]):
                part = g
                for other in others:
                    part = times(part, atom(other))
                total = add(total, part)
                continue
            names, codes = [*step.operands], [*given]
            names[i], codes[i] = show(g), out.replace("1", "")
            if ones := tuple(k - len(out) for k in ones_in(out)):
                flat_g = Arrange(
                    self.unique(f"{names[i]}_flat"), f"np.squeeze({names[i]}, {ones})", names[i],
                    "without axes of length 1",
                )  # fmt: skip
                names[i] = show(self.emit(flat_g, shape=_squeezed(self.shape(names[i]), ones)))
            heard = {*out, *"".join(code for k, code in enumerate(given) if k != i)}
            silent = [k - len(given[i]) for k, letter in enumerate(given[i]) if letter not in heard]
            kept = "".join(letter for letter in given[i] if letter in heard)
            shape = _squeezed(self.shape(name), silent)
            label = self.unique(f"{names[i]}_each") if silent else self.free(name, step)
            part = atom(names[i])
            if others or kept != codes[i]:
                part = self.emit(Sum(label, f"{','.join(codes)}->{kept}", *names), shape=shape)
            if silent:  # the same number for each element along these axes
                axes, one = silent[0] if len(silent) == 1 else tuple(silent), show(part)
                wide = f"np.broadcast_to(np.expand_dims({one}, {axes}), {name}.shape)"
                words = f"{one}, the same along each axis that was summed"
                part = self.emit(Arrange(self.free(name, step), wide, one, words), name)
            total = add(total, part)
        return total

    def only_shifts(self, step: Step) -> bool:
        """Whether Y stays the same if a maximum is replaced, as the shift of a softmax can be."""
        if not isinstance(step, Max):
            return False
        made = {s.symbol for s in self.scope.derivation.every()} | {"dY"}
        given = {name: v for name, v in self.scope.values.items() if name not in made}
        for shift in SHIFTS:

            def moved(at: run.Position, value: Any, by: float = shift) -> Any:
                return value + by if at.step.symbol == step.symbol else value

            again = Scope(self.scope.layer, call=self.scope.call, **given)
            run.run(run.forward(again, "P" if self.ends == ["L"] else "X"), moved)
            same = [np.allclose(again[Y], self.scope[Y], rtol=1e-10, atol=1e-12) for Y in self.ends]
            if not all(same):
                return False
        return True

    # --- loops ---------------------------------------------------------------------------------

    def loop(self, loop: Loop) -> None:
        self.body = {step.symbol for step in loop.body}
        carries = [step for step in loop.body if isinstance(step, Carry)]
        before, inner = self.out, list[Step]()
        for symbol in [
            step.symbol for step in loop.body
        ]:  # what arrives at all rounds from outside
            if (whole := self.arriving.pop(symbol, None)) is not None:
                self.arriving[symbol] = self.round_of(symbol, whole, inner)
        self.out, self.inside, self.looping = inner, self.body, True
        for c in carries:
            state = c.of.removesuffix("_t")
            words = "what arrives from the round after"
            later = self.emit(
                Carry(f"d{state}_later", f"d{c.symbol}", f"d{state}_end", words), c.of
            )
            before.append(Let(f"d{state}_end", f"0 * {c.start}", "nothing follows the last round"))
            self.arriving[c.of] = add(self.arriving.get(c.of, {}), later)
        self.back([step for step in loop.body if not isinstance(step, Carry)])
        for c in carries:
            self.named(c.symbol, self.arriving.pop(c.symbol), always=True)
        before.append(Loop(loop.along, self.out, reverse=not loop.reverse))
        self.out, self.inside, self.looping = before, set(), False
        for task in self.after:
            task()
        self.after = []

    def round_of(self, symbol: str, whole: Poly, inner: list[Step]) -> Poly:
        """One round of what arrives at a symbol of a loop from outside, in the loop's body."""
        name = show(self.known.shorten(whole))
        if not name.isidentifier() or self.shape(name) != self.shape(symbol):
            wide = self.unique(f"d{symbol.removesuffix('_t').upper()}")
            name = show(self.emit(Let(wide, name), symbol))
        at = self.unique(f"{name.lower()}_t")
        inner.append(Arrange(at, f"{name}[:, t]", name, f"step t of {name}"))
        self.shapes[at] = np.shape(self.scope.at(0)[symbol]), True
        return atom(at)

    # --- names and shapes ----------------------------------------------------------------------

    def named(self, name: str, g: Poly, always: bool = False) -> str:
        """The symbol that holds the gradient of `name`; a new step unless it is one already."""
        g = self.known.shorten(g) or {((name, Fraction(1)), ("0.0", Fraction(1))): Fraction(1)}
        text, full = show(g), self.shape_of(g) == self.shape(name)
        if text.isidentifier() and full and (not always or text == f"d{name}"):
            return text
        if full:
            return show(self.emit(Let(f"d{name}", text), name))
        one = show(self.emit(Let(self.unique(f"d{name}_one"), text), shape=self.shape_of(g)))
        wide = f"np.broadcast_to({one}, {name}.shape)"
        return show(self.emit(Arrange(f"d{name}", wide, one, "the same for each"), name))

    def emit(self, step: Step, like: str = "", shape: Shape = ()) -> Poly:
        """Append a step and return its symbol; `like` names a symbol with the same shape."""
        self.out.append(step)
        self.shapes[step.symbol] = self.shape(like) if like else shape, self.looping
        return atom(step.symbol)

    def free(self, name: str, step: Step) -> str:
        """The name dA if A is read once, else dA_B, for what A receives through B."""
        alone = self.reads[name] == 1 and name not in self.arriving
        return f"d{name}" if alone else self.unique(f"d{name}_{step.symbol}")

    def unique(self, name: str) -> str:
        forward = {n for step in flat(self.forward) for n in (step.symbol, *step.operands)}
        taken = forward | {step.symbol for step in flat(self.out)}
        names = itertools.chain([name], (f"{name}_{k}" for k in itertools.count(2)))
        return next(n for n in names if n not in taken)

    @property
    def at(self) -> Scope:
        return self.scope.at(0) if self.looping else self.scope

    def shape(self, name: str) -> Shape:
        if name not in self.shapes:
            return np.shape(self.at[name])
        shape, looped = self.shapes[name]
        if looped and not self.looping:
            T = np.shape(self.scope["X" if "X" in self.scope else "X1"])[1:2]
            return shape[:1] + T + shape[1:]
        return shape

    def shape_of(self, p: Poly) -> Shape:
        names = {name for powers in p for text, _ in powers for name in names_in(text)}
        return np.broadcast_shapes(*map(self.shape, names))


def _scales(step: Step) -> bool:
    """Whether a step only multiplies what arrives, so that it needs no name of its own."""
    if not isinstance(step, Sum):
        return isinstance(step, Let)
    parts, _, out = step.code.replace(" ", "").partition("->")
    first, *others = parts.split(",")
    return all(other == first for other in others) and _broadcasts(out, first)


def _broadcasts(out: str, part: str) -> bool:
    """Whether an array with the indices `out` broadcasts to one with the indices `part`."""
    out, part = out.replace("...", "."), part.replace("...", ".")
    pairs = zip(out[::-1], part[::-1], strict=False)
    return out != part and all(o in (p, "1") for o, p in pairs)


def _squeezed(shape: Shape, axes: Sequence[int]) -> Shape:
    return tuple(n for k, n in enumerate(shape) if k - len(shape) not in axes)
