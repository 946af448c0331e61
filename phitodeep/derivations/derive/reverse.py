"""The backward steps of a layer, from its forward steps alone.

Each step passes what arrives at its result on to its operands:

    Let        times the slope of its expression; over broadcast axes, the sum
    Sum        the same indices, with the gradient instead of the operand
    Arrange    each element's gradient returns to where the element came from
    Join       the columns of each operand
    Through    the backward pass of the layer inside
    Max        to the largest; nothing if the result does not depend on it, as in a softmax
    Loop       a loop in reverse; a Carry hands the gradient of the state to the round before.
               What reads no state, such as x_t, and W have their gradients after the loop.

The names of the forward steps are kept: dA is the gradient of A. A gradient that is read once is
not named, but written where it is read. Then the rules of `Known` shorten what the forward pass has
computed already.

Long because the rules of all kinds of steps share what has arrived, and in which loop.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from phitodeep.core.types import Array, Shape
from phitodeep.derivations.derive.algebra import (
    ONE,
    Poly,
    add,
    atom,
    common,
    divided,
    parse,
    quotient,
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
    is_round,
    names_in,
    ones_in,
)
from phitodeep.derivations.language.terms import Replaced
from phitodeep.errors import DerivationError

NOISE = 1e-6  # what is left of a sum that is 0, in float64 beside float32, is about 1e-9
LONG = 60  # characters of an expression that is not repeated inside another
AXES = "nthwuvzcd"


def reverse(forward: Sequence[Step], scope: Scope, wanted: Iterable[str]) -> list[Step]:
    """Return the backward steps, from dY to the gradient of each wanted symbol.

    The forward steps must have run in `scope`, on arrays whose sizes differ from each other and
    from 1: from them follow the shapes, and which axes are broadcast. Of a loss, L takes the place
    of Y, and dL is 1.
    """
    wanted = [*wanted]
    shifts: set[str] = set()
    if any(isinstance(step, Max) for step in flat(forward)):
        shifts = _shifts(_Reverse(forward, scope, wanted).steps(), scope)
    return _Reverse(forward, scope, wanted, shifts).steps()


def _shifts(back: Sequence[Step], scope: Scope) -> set[str]:
    """The maxima on which nothing depends, as the shift of a softmax, from all backward steps.

    What arrives at them is 0: in numbers, what rounding leaves, which is far more in float32. A
    gradient that is small because a function is flat there is the same in both.
    """
    made = {step.symbol for step in scope.derivation.every()}
    given = {name: v for name, v in scope.values.items() if name not in made}
    sizes: dict[str, list[float]] = {}
    for dtype in (np.float64, np.float32):
        rng, again = (
            np.random.default_rng(0),
            Scope(scope.layer, call=scope.call, dtype=dtype, **given),
        )
        run.run(run.perform(again.derivation.forward, again, "forward"))
        for Y in filter(OUTPUT.fullmatch, made):
            again[f"d{Y}"] = again.cast(rng.standard_normal(again[Y].shape))
        run.run(run.perform(back, again, "backward"))
        for step in flat(back):
            if isinstance(step, ToLargest):
                sizes.setdefault(step.step.symbol, []).append(np.abs(again[step.gradient]).max())
    return {name for name, (double, single) in sizes.items() if double < NOISE * single}


class _Reverse:
    """Walks through the forward steps from the last to the first.

    arriving    what has arrived at each symbol so far
    parts       the same for symbols that are read column by column: the gradients of the columns
    shapes      of each symbol of the backward pass, and whether a loop computes it
    lets        the symbols of the backward pass by their expression
    active      the symbols that the wanted ones move
    reads       how often an active step reads a symbol
    timed       the symbols of loops
    inside      those of the loop that is walked through which read its states
    whole       what stands for all rounds of a symbol: X for x_t = X[:, t]
    """

    def __init__(
        self,
        forward: Sequence[Step],
        scope: Scope,
        wanted: Sequence[str],
        shifts: Collection[str] = (),
    ) -> None:
        self.forward, self.scope, self.wanted = forward, scope, wanted
        self.known, self.inside, self.looping = Known(forward), set[str](), False
        self.whole = {step.symbol: step.of for step in flat(forward) if is_round(step)}
        self.out: list[Step] = []
        self.lets: dict[str, str] = {}
        loops = [step for step in forward if isinstance(step, Loop)]
        self.along = [loop.along for loop in loops]
        self.timed = {"t"} | {step.symbol for loop in loops for step in loop.body}
        self.parts: dict[str, dict[str, str]] = {}
        self.after: list[Callable[[], None]] = []  # what waits for the end of a loop
        ends = [step.symbol for step in forward if OUTPUT.fullmatch(step.symbol)]
        self.arriving = {Y: atom(f"d{Y}") for Y in ends} or {"L": ONE}
        self.shapes: dict[str, tuple[Shape, bool]] = {
            f"d{Y}": (np.shape(scope[Y]), False) for Y in ends
        }
        self.active, self.reads = {*self.wanted}, Counter([*self.arriving])
        for step in flat(forward):
            if isinstance(step, Carry) or (self.moves(step) and step.symbol not in shifts):
                self.active.add(step.symbol)
                self.reads.update(_moved(step))

    def moves(self, step: Step) -> bool:
        """Whether the result of a step depends on what is wanted."""
        if isinstance(step, Arrange) and step in self.forward and not self.places(step).any():
            return False
        value = self.scope.find(step.symbol)
        return not self.active.isdisjoint(_moved(step)) and np.asarray(value).dtype.kind == "f"

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

    def pass_back(self, step: Step, g: Poly, looped: bool = False) -> None:
        """Pass what arrives at the result of a step on to its operands."""
        operands = [name for name in dict.fromkeys(_moved(step)) if name in self.active]
        outside = [name for name in operands if self.inside and name not in self.inside]
        merged = looped and step.symbol in self.whole
        many = (len(operands) > 1 or outside) and g.keys() != {()}  # 1 needs no name
        if not merged and (many or not _scales(step) or len(show(g)) > LONG):
            g = atom(self.named(step.symbol, g))
        parts = dict.fromkeys(operands, g)
        if isinstance(step, Let):
            parts = self.parts_of(step, g, operands, outside)
        for name in operands:
            if name in outside:  # after the loop, all rounds at once
                self.after.append(partial(self.pass_on, step, name, parts[name], looped=True))
            else:
                self.pass_on(step, name, parts[name], looped)

    def parts_of(
        self, step: Let, g: Poly, operands: Sequence[str], outside: Sequence[str]
    ) -> dict[str, Poly]:
        """What arrives times each slope; a factor that several have is named after an operand."""
        slopes = {name: self.slope(step, name) for name in operands}
        parts = {name: times(g, p) for name, p in slopes.items()}
        for name, shared in slopes.items():
            alike = {n: m for n, p in slopes.items() if (m := quotient(p, shared))}
            here = name not in outside or name in self.timed
            alone = self.reads[name] == 1 and here and {*shared} != {()}
            if alone and len(alike) > 1 and self.shape(name) == self.shape(step.symbol):
                d = atom(self.named(name, parts[name]))
                return parts | {n: times(d, m) for n, m in alike.items()}
        return parts

    def pass_on(self, step: Step, name: str, g: Poly, looped: bool = False) -> None:
        """Add what an operand receives through a step; of a Let, g includes its slope.

        `looped` says that this happens after the loop around the step, for all its rounds.
        """
        still = [n for n in step.operands if n not in self.timed and len(self.shape(n)) > 1]
        if looped and not isinstance(step, Sum) and still and step.symbol not in self.whole:
            raise DerivationError(
                f"{step!r}: a loop reads {still[0]} as {still[0]}[:, t] or in a Sum: take parts of "
                "it, reverse it or repeat it for each t before the loop."
            )
        match step:
            case Let():
                part = self.reduced(g, step.symbol, name)
            case Sum():
                part = self.through_sum(step, name, g, looped)
            case Arrange() if step.symbol in self.whole:
                part = g  # after the loop, it stands for all t
            case Arrange():
                part = self.returned(step, name, show(g))
            case Join():
                part = {}
                for k in [k for k, operand in enumerate(step.operands) if operand == name]:
                    start = " + ".join(f"{n}.shape[-1]" for n in step.operands[:k])
                    last = k == len(step.operands) - 1
                    parts = f"{start}:" * (k > 0), f":{name}.shape[-1]" * (not last)
                    code = show(g) + "".join(f"[..., {part}]" for part in parts if part)
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
        if self.active.isdisjoint((*step.operands, step.symbol)):
            return
        dYs = [self.named(name, g) for name, g in arrived.items()]
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
        if step.code.startswith(f"np.broadcast_to({name}, "):
            return self.reduced(atom(g), step.symbol, name)
        symbol, code = self.free(name, step), undone(step, g)
        if code:
            return self.emit(Arrange(symbol, code, g, f"{g} as in {name}"), name)
        return self.emit(Returned(symbol, g, step), name)

    def columns_of(self, name: str) -> list[str]:
        """The symbols that are all columns of `name`, side by side; none if others read it too."""
        readers = [s for s in flat(self.forward) if name in _moved(s)]
        if not all(isinstance(s, Arrange) for s in readers):
            return []
        whole = self.numbered(name)
        places = {s.symbol: np.atleast_1d(self.places(s)) for s in readers}
        order = sorted(places, key=lambda symbol: places[symbol].flat[0])
        if len(order) < 2 or {A.shape[:-1] for A in places.values()} != {whole.shape[:-1]}:
            return []
        joined = np.concatenate([places[symbol] for symbol in order], axis=-1)
        return order if np.array_equal(joined, whole) else []

    def places(self, step: Any) -> Array:
        """Where each element comes from, counted from 1; 0 is nobody's."""
        return evaluate(step.code, Replaced(self.scope.at(0), step.of, self.numbered(step.of)))

    def numbered(self, name: str) -> Array:
        shape = self.shape(name)
        return np.arange(1, math.prod(shape) + 1).reshape(shape)

    # --- sums ----------------------------------------------------------------------------------

    def reduced(self, p: Poly, big: str, name: str) -> Poly:
        """The sum over the axes along which `name` was broadcast; constant factors stay outside."""
        p, full, small = self.shorten(p), self.shape(big), self.shape(name)
        rank, small = len(small), (0,) * (len(full) - len(small)) + small
        axes = [a for a, n in enumerate(full) if n != small[a]]
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
            whole = whole if len(whole) == 1 else ()
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
        return any(rank - a <= len(shape) and shape[a - rank] > 1 for a in axes)

    def code(self, factors: Sequence[str], full: Shape, small: Shape) -> str:
        """The indices of a sum from `full` to `small`: "..." stands for leading axes of all."""
        n = len(full)
        letters = AXES[: n - 1] + "d"
        shapes = [self.shape(f) for f in factors]
        lead = next(
            k
            for k in reversed(range(n))
            if (full[:k] == small[:k] or not any(small[:k]))
            and all(len(s) == n or len(s) <= n - k for s in shapes)
        )
        given = ["..." * (len(s) > n - lead) + letters[max(lead, n - len(s)) :] for s in shapes]
        kept = [
            "1" if small[a] == 1 < full[a] else letters[a] if small[a] == full[a] else ""
            for a in range(lead, n)
        ]
        samples = "..." * (lead > 0 and full[:lead] == small[:lead])
        return f"{','.join(given)}->{samples}{''.join(kept)}"

    def through_sum(self, step: Sum, name: str, g: Poly, looped: bool) -> Poly:
        """What an operand of a sum of products receives, from each place where it stands."""
        parts, _, out = step.code.replace(" ", "").partition("->")
        given = parts.split(",")
        if looped and "..." not in parts:  # its symbols have an axis t behind the samples
            t = next(letter for letter in AXES if letter not in parts)
            given = [
                part[:1] + t + part[1:] if step.operands[k] in self.timed else part
                for k, part in enumerate(given)
            ]
            out = out[:1] + t + out[1:]
        total: Poly = {}
        places = {given[i]: i for i, operand in enumerate(step.operands) if operand == name}
        for i in places.values():  # equal ones are counted
            others = [n for k, n in enumerate(step.operands) if k != i]
            same = [k for k, n in enumerate(step.operands) if (n, given[k]) == (name, given[i])]
            count: Poly = {(): Fraction(len(same))}
            alike = all(part == given[i] for part in given)
            if alike and _broadcasts(out, given[i]):
                part = g
                for other in others:
                    part = times(part, atom(other))
                total = add(total, times(part, count))
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
            total = add(total, times(part, count))
        return total

    # --- loops ---------------------------------------------------------------------------------

    def loop(self, loop: Loop) -> None:
        carries = [step for step in loop.body if isinstance(step, Carry)]
        free = self.stateless(loop)
        before, inner, wholes = self.out, list[Step](), dict[Shape, str]()
        for step in loop.body:  # what arrives at all rounds from outside
            if step not in free and (g := self.arriving.pop(step.symbol, None)) is not None:
                whole, at = self.round_of(step.symbol, g, inner)
                self.arriving[step.symbol], wholes[self.shapes[at][0]] = atom(at), whole
        ends = dict[str, str]()
        for c in carries:
            state, words = c.of.removesuffix("_t"), "nothing follows the last round"
            ends[c.symbol] = self.unique(f"d{state}_end")
            if whole := wholes.get(self.shape(c.start), ""):
                self.emit(Arrange(ends[c.symbol], f"np.zeros_like({whole}[:, 0])", whole, words))
            else:
                self.emit(Let(ends[c.symbol], f"0 * {c.start}", words))
        self.out, self.looping = inner, True
        self.inside = {step.symbol for step in loop.body if step not in free}
        for c in carries:
            state, words = c.of.removesuffix("_t"), "what arrives from the round after"
            later = Carry(self.unique(f"d{state}_later"), f"d{c.symbol}", ends[c.symbol], words)
            self.arriving[c.of] = add(self.arriving.get(c.of, {}), self.emit(later, c.of))
        self.back([step for step in loop.body if step not in (*carries, *free)])
        for c in carries:
            self.named(c.symbol, self.arriving.pop(c.symbol, {}), always=True)
        if self.out:
            before.append(Loop(loop.along, self.out, reverse=not loop.reverse))
        self.out, self.inside, self.looping = before, set(), False
        for task in self.after:
            task()
        self.after = []
        for step in reversed(free):
            if g := self.arrived(step.symbol):
                self.pass_back(step, g, looped=True)
        for c in carries:
            if c.start in self.active:
                first = f"d{c.symbol}[:, {'-1' if loop.reverse else '0'}]"
                words = "before the first round"
                start = Arrange(self.free(c.start, c), first, f"d{c.symbol}", words)
                self.receive(c.start, self.emit(start, c.start))

    def stateless(self, loop: Loop) -> list[Step]:
        """The steps of a loop that all rounds could make at once: they read no state."""
        found: list[Step] = []
        for step in loop.body:
            read = {s.symbol for s in loop.body if s not in found}.intersection(step.operands)
            whole = all(isinstance(s, Let | Sum) for s in loop.body if step.symbol in s.operands)
            if whole and not read and (isinstance(step, Let | Sum) or is_round(step)):
                found.append(step)
        return found

    def round_of(self, symbol: str, whole: Poly, inner: list[Step]) -> tuple[str, str]:
        """What arrives at a symbol of a loop from outside, and one round of it, in the loop."""
        label = self.unique(f"d{symbol.removesuffix('_t').upper()}")
        name = self.named(symbol, whole, label=label)
        for step in inner:
            if name in step.operands:
                return name, step.symbol
        at = f"{name.lower()}_t"
        at = self.unique("dy_t" if at[1:] in self.timed else at)
        inner.append(Arrange(at, f"{name}[:, t]", name, f"step t of {name}"))
        self.shapes[at] = np.shape(self.scope.at(0)[symbol]), True
        return name, at

    # --- names and shapes ----------------------------------------------------------------------

    def named(self, name: str, g: Poly, always: bool = False, label: str = "") -> str:
        """The symbol that holds the gradient of `name`; a new step unless it is one already."""
        label = label or f"d{name}"
        g = self.shorten(g) or {((name, Fraction(1)), ("0.0", Fraction(1))): Fraction(1)}
        text, full = show(g), self.shape_of(g) == self.shape(name)
        if text.isidentifier() and full and (not always or text == label):
            return text
        if full:
            return show(self.emit(Let(label, text), name))
        one = show(self.emit(Let(self.unique(f"{label}_one"), text), shape=self.shape_of(g)))
        wide = f"np.broadcast_to({one}, {name}.shape)"
        return show(self.emit(Arrange(label, wide, one, "the same for each"), name))

    def shorten(self, p: Poly) -> Poly:
        """The same value, in terms of what either pass has computed."""
        p = self.known.shorten(p)
        return atom(self.lets[show(p)]) if show(p) in self.lets else p

    def emit(self, step: Step, like: str = "", shape: Shape = ()) -> Poly:
        """Append a step and return its symbol; `like` names a symbol with the same shape."""
        self.out.append(step)
        if isinstance(step, Let):
            self.lets.setdefault(step.code, step.symbol)
        self.shapes[step.symbol] = self.shape(like) if like else shape, self.looping
        return atom(step.symbol)

    def free(self, name: str, step: Step) -> str:
        """The name dA if A is read once, else dA_B, for what A receives through B."""
        alone = self.reads[name] == 1
        if not self.looping and name in self.timed:  # all rounds
            whole = self.whole.get(name, "")
            if not whole:
                name = name.removesuffix("_t").upper()
                return self.unique(f"d{name}" if alone else f"d{name}_{step.symbol}")
            name, alone = whole, alone and self.reads[whole] < 2
        return f"d{name}" if alone else self.unique(f"d{name}_{step.symbol}")

    def unique(self, name: str) -> str:
        """The name, or with a number; never one that is taken, or the gradient of a symbol."""
        forward = {n for step in flat(self.forward) for n in (step.symbol, *step.operands)}
        taken = {*forward, *(f"d{n}" for n in forward), *self.shapes}
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
            T = np.shape(self.scope[self.along[0]])[1:2]
            return shape[:1] + T + shape[1:]
        return shape

    def shape_of(self, p: Poly) -> Shape:
        names = {name for powers in p for text, _ in powers for name in names_in(text)}
        return np.broadcast_shapes(*map(self.shape, names))


def _moved(step: Step) -> Sequence[str]:
    """The operands whose elements a step takes: those of an Arrange that say where do not move."""
    return (step.of,) if isinstance(step, Arrange) else step.operands


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
    return len(out) <= len(part) and all(o in (p, "1") for o, p in pairs)


def _squeezed(shape: Shape, axes: Sequence[int]) -> Shape:
    return tuple(n for k, n in enumerate(shape) if k - len(shape) not in axes)
