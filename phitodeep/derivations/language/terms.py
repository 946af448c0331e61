"""Where a number comes from: the terms of the sum that one cell of an array is.

    found = why(step, symbols, 2, 3)     about the cell [2, 3]
    found.total                          the cell
    found[0]                             the largest term: its `at`, `factors` and `value`

No code here knows any layer: the kinds of steps say where their numbers come from.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast, overload

import numpy as np

from phitodeep.core.table import Shown
from phitodeep.derivations.language import run
from phitodeep.derivations.language.notation import PLAIN
from phitodeep.derivations.language.step import (
    Arrange,
    Carry,
    Join,
    Let,
    Max,
    Step,
    Sum,
    Through,
    evaluate,
    names_in,
)
from phitodeep.errors import ShapeError

SHOWN = 5  # terms that are printed


@dataclass(frozen=True)
class Term:
    """One term of a sum.

    at         the values of the summed indices, such as {"n": 7}
    factors    the numbers that it consists of, by symbol
    value      the term itself
    formula    how it follows from them; "" if it is their product
    """

    at: dict[str, int]
    factors: dict[str, float]
    value: float
    formula: str = ""

    def __str__(self) -> str:
        numbers = [f"{name} {number + 0:.4g}" for name, number in self.factors.items()]  # 0, not -0
        place = ", ".join(f"{index} = {k}" for index, k in self.at.items())
        product = " x ".join(numbers)
        made = f"{self.formula}, with {', '.join(numbers)}" if self.formula else product
        return (
            f"{self.value + 0:+.4g}" + f"  = {made}" * bool(numbers) + f"  ({place})" * bool(place)
        )


class Why(Shown, Sequence[Term]):
    """The terms of one cell, largest first, and their sum.

    name     what the cell is called, such as "dW[2, 3]"
    total    the sum of all terms, which is the cell
    """

    def __init__(
        self, name: str, values: Any, at: dict[str, Any], factors: dict[str, Any], words: str = "",
        texts: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.name, self.words, self._texts = name, words, texts
        self._values = np.asarray(values, np.float64).reshape(-1)
        self._at, self._factors = at, factors
        self._order = np.argsort(-np.abs(self._values), kind="stable")
        self.total = (
            math.fsum(self._values)
            if np.isfinite(self._values).all()
            else float(self._values.sum())
        )

    def renamed(self, name: str) -> Why:
        """The same terms of a cell that is called otherwise outside its loop."""
        self.name = name
        return self

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def __getitem__(self, k: int) -> Term: ...
    @overload
    def __getitem__(self, k: slice) -> list[Term]: ...
    def __getitem__(self, k: Any) -> Any:
        if isinstance(k, slice):
            return [self._term(i) for i in self._order[k]]
        return self._term(self._order[k])

    def __iter__(self) -> Iterator[Term]:
        return map(self._term, self._order)

    def _term(self, i: Any) -> Term:
        if self._texts:  # an addend of an elementwise expression, whose factors are numbers
            text = self._texts[i]
            factors = {name: float(self._factors[name]) for name in names_in(text)}
            return Term({}, factors, float(self._values[i]), PLAIN.expression(text))
        factors = {name: float(np.reshape(f, -1)[i]) for name, f in self._factors.items()}
        return Term({k: int(a[i]) for k, a in self._at.items()}, factors, float(self._values[i]))

    def __str__(self) -> str:
        lines = [f"{self.name} = {self.total + 0:.6g}" + f"  {self.words}" * bool(self.words)]
        terms = self[:SHOWN]
        if len(self) > SHOWN:  # zeros are among the others
            terms = [term for term in terms if term.value] or terms[:1]
        if len(self) > 1 or (terms and (terms[0].at or terms[0].factors)):  # more than the total
            lines += [f"  {term}" for term in terms]
        rest = self._order[len(terms) :]
        if len(rest):
            lines.append(f"  {self._values[rest].sum():+.4g}  ({len(rest):,} others)")
        return "\n".join(lines)


def why(step: Step, symbols: Any, *cell: int) -> Why:
    """The terms of one cell of what `step` computes from the symbols."""
    shape = np.shape(symbols[step.symbol])
    place = _checked(cell, shape, step.symbol)
    name = f"{step.symbol}[{', '.join(map(str, place))}]" if place else step.symbol
    if type(step) in EXPLAINED:
        found: Why = EXPLAINED[type(step)](step, symbols, place, name)
        return found
    if isinstance(step, Join):
        return _moved(name, symbols, *joined_from(step, symbols, place))
    if isinstance(step, Carry):
        before = symbols.before(step)
        of = step.start if before is None else step.of
        return _moved(name, symbols if before is None else symbols.at(before), of, place)
    value = float(np.asarray(symbols[step.symbol])[place])
    words = step.words or step.code
    scope = symbols.symbols if isinstance(symbols, Replaced) else symbols
    if isinstance(step, Through) and isinstance(scope, run.Scope):  # where to ask next
        key = run.path_inside(scope.path, step.child), step.result
        words = f"{'.'.join(key)}[{', '.join(map(str, place))}]"
    return Why(name, [value], {}, {}, f"({words})")


def _checked(cell: Sequence[int], shape: tuple[int, ...], name: str) -> tuple[int, ...]:
    """The cell without negative indices; refuse one outside the array."""
    wrong = len(cell) != len(shape) or any(
        isinstance(i, bool) or not isinstance(i, int | np.integer) or not -n <= i < n
        for i, n in zip(cell, shape, strict=False)
    )
    if wrong:
        raise ShapeError(
            f"{name} has shape {shape}, so why takes {len(shape)} indices within it, got {cell}: "
            f"for example, why({', '.join('0' * len(shape))})."
        )
    return tuple(int(i) % n for i, n in zip(cell, shape, strict=True))


def _why_sum(step: Sum, symbols: Any, cell: tuple[int, ...], name: str) -> Why:
    parts, out = step.letters(symbols)
    arrays = [np.asarray(symbols[n]) for n in step.operands]
    sizes = {
        i: n
        for part, A in zip(parts, arrays, strict=True)
        for i, n in zip(part, A.shape, strict=True)
    }
    fixed = {i: k for i, k in zip(out, cell, strict=True) if i != "1"}
    summed = [i for i in sizes if i not in fixed]
    count = math.prod(sizes[i] for i in summed)
    grids = np.indices([sizes[i] for i in summed]).reshape(len(summed), count)
    where = {i: np.full(count, fixed[i]) if i in fixed else grids[summed.index(i)] for i in sizes}
    factors: dict[str, Any] = {}
    for operand, part, A in zip(step.operands, parts, arrays, strict=True):
        key = operand if operand not in factors else f"{operand} again"
        factors[key] = np.asarray(A[tuple(where[i] for i in part)], np.float64)
    values = np.ones(count)
    for factor in factors.values():
        values = values * factor
    return Why(name, values, {i: where[i] for i in summed}, factors)


def _why_max(step: Max, symbols: Any, cell: tuple[int, ...], name: str) -> Why:
    (part,), out = step.letters(symbols)
    A = np.asarray(symbols[step.operands[0]])
    fixed = {i: k for i, k in zip(out, cell, strict=True) if i != "1"}
    row = A[tuple(fixed.get(i, slice(None)) for i in part)]
    found = np.unravel_index(int(row.argmax()), row.shape)
    along = [i for i in part if i not in fixed]
    at = {i: np.array([k]) for i, k in zip(along, found, strict=True)}
    value = [float(row[found])]
    return Why(name, value, at, {step.operands[0]: value}, f"(the largest of {row.size})")


def _why_let(step: Let, symbols: Any, cell: tuple[int, ...], name: str) -> Why:
    scalars = {n: _aligned(symbols[n], cell) for n in names_in(step.code)}
    if isinstance(symbols[step.symbol], np.ndarray):
        kept = np.asarray(symbols[step.symbol]).dtype
        if kept.kind == "f":  # not for "a == b"
            scalars = {n: kept.type(v) if v.dtype.kind == "f" else v for n, v in scalars.items()}
    taken = _Taken(scalars)
    addends = list(_addends(taken.visit(ast.parse(step.code, mode="eval").body), 1))
    values = [sign * float(evaluate(text, scalars)) for sign, text in addends]
    texts = [ast.unparse(ast.parse("-" * (sign < 0) + text)) for sign, text in addends]
    shown = [f"= {PLAIN.expression(step.code)}"] * (len(texts) > 1) + taken.reasons
    return Why(name, values, {}, scalars, "  ".join(shown), texts)


class _Taken(ast.NodeTransformer):
    """Replaces each choice in an expression by the branch that these numbers take."""

    def __init__(self, scalars: dict[str, Any]) -> None:
        self.scalars = scalars
        self.reasons: list[str] = []

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not (isinstance(node.func, ast.Attribute) and node.func.attr == "where"):
            return self.generic_visit(node)
        condition = ast.unparse(node.args[0])
        holds = bool(evaluate(condition, self.scalars))
        place = len(self.reasons)  # before those of choices inside
        branch = self.visit(node.args[1 if holds else 2])
        others = [name for name in names_in(condition) if name not in names_in(ast.unparse(branch))]
        numbers = ", ".join(f"{name} {float(self.scalars[name]):.4g}" for name in others)
        reason = f"{'since' if holds else 'since not'} {PLAIN.expression(condition)}"
        self.reasons.insert(place, f"({reason}{f', with {numbers}' if others else ''})")
        return cast(ast.AST, branch)


def _addends(node: ast.expr, sign: int) -> Iterator[tuple[int, str]]:
    """The terms of an expression with their signs; a product with a sum is multiplied out."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        yield from _addends(node.left, sign)
        yield from _addends(node.right, sign if isinstance(node.op, ast.Add) else -sign)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield from _addends(node.operand, -sign)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        tops, right = list(_addends(node.left, sign)), ast.unparse(node.right)
        rights = [(1, right)] if isinstance(node.op, ast.Div) else list(_addends(node.right, 1))
        op = "/" if isinstance(node.op, ast.Div) else "*"
        for (s, one), (r, other) in itertools.product(tops, rights):
            yield s * r, f"({one}) {op} ({other})"
    else:
        yield sign, ast.unparse(node)


def _aligned(value: Any, cell: tuple[int, ...]) -> Any:
    """The element of an operand that broadcasting puts in this cell."""
    A = np.asarray(value)
    place = cell[len(cell) - A.ndim :] if A.ndim else ()
    return A[tuple(k if n > 1 else 0 for k, n in zip(place, A.shape, strict=True))]


def origin(step: Arrange, symbols: Any, cell: tuple[int, ...]) -> tuple[int, ...] | None:
    """The cell of `step.of` whose number is in this cell, or None for a 0 that is nobody's."""
    A = np.asarray(symbols[step.of])
    numbered = np.arange(1, A.size + 1).reshape(A.shape)
    number = int(evaluate(step.code, Replaced(symbols, step.of, numbered))[cell])
    return tuple(int(k) for k in np.unravel_index(number - 1, A.shape)) if number else None


class Replaced:
    """Symbols with one of them replaced."""

    def __init__(self, symbols: Any, name: str, value: Any) -> None:
        self.symbols, self.name, self.other = symbols, name, value

    def __getitem__(self, symbol: str) -> Any:
        return self.other if symbol == self.name else self.symbols[symbol]


def _why_arranged(step: Arrange, symbols: Any, cell: tuple[int, ...], name: str) -> Why:
    place = origin(step, symbols, cell)
    if place is None:
        return Why(name, [0.0], {}, {}, f"(0: outside {step.of})")
    return _moved(name, symbols, step.of, place)


def joined_from(step: Join, symbols: Any, cell: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """The operand whose number is in this cell, and its cell there."""
    *row, k = cell
    ends = np.cumsum([np.shape(symbols[name])[-1] for name in step.operands])
    i = int(np.searchsorted(ends, k, side="right"))
    return step.operands[i], (*row, k - int(ends[i - 1]) if i else k)


def _moved(name: str, symbols: Any, of: str, place: tuple[int, ...]) -> Why:
    """A cell that is a cell of `of`, unchanged; in a loop, of the round t."""
    value = [float(np.asarray(symbols[of])[place])]
    t = symbols.t if of in getattr(symbols, "_series", ()) else None
    at = {} if t is None else {"t": np.array([t])}
    return Why(name, value, at, {f"{of}[{', '.join(map(str, place))}]": value}, "")


EXPLAINED: dict[Any, Any] = {Sum: _why_sum, Max: _why_max, Let: _why_let, Arrange: _why_arranged}
