"""The kinds of steps in a derivation: what a layer or a loss computes, written as data.

    Given      a value from outside the mathematics: a size, a drawn mask, one-hot labels
    Let        an elementwise NumPy expression of earlier symbols, which broadcast
    Arrange    the same numbers in other places: windows, slices, transposes, zeros around a border
    Join       several arrays side by side
    Sum        a sum of products, written as einsum does: it names the indices that it sums over
    Max        the largest element along some indices
    Loop       steps that run once for each t; Carry reads what the previous t computed
    Through    the pass of a layer inside a container

A sum is always a `Sum`, never hidden in an expression. The origin of every number can therefore be
found without knowing the layer: see `terms.py`. `run.py` runs the steps, and `notation.py` says how
their formulas look.

A derivation is a list of steps for each direction. The forward steps start from X and the
parameters, and end with Y. The backward steps start from dY and all of these, and compute dX and
the gradient of each parameter W under the name dW. A loss computes L from P, and then dP. So one
list of all steps is enough: see `Derivation.of`.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any, ClassVar, NamedTuple, TypeGuard

import numpy as np

from phitodeep.derivations.language.mathml import MATHML
from phitodeep.derivations.language.notation import LATEX, PLAIN, Plain
from phitodeep.errors import ArgumentError
from phitodeep.functional import erf, sigmoid, softplus

OUTPUT = re.compile(r"Y\d*")
RECEIVED = re.compile(r"(X|dY|P)\d*")  # what a pass receives; P is that of a loss
PASSED_ON = re.compile(r"(Y|dX)\d*")  # what a layer computes for its neighbours
LETTERS = "nthwuvzyabcdefgijklmopqrsx"  # names for the axes that "..." stands for


class Step:
    """One step: it computes a symbol from earlier ones.

    symbol      what it computes, such as "dW"
    code        how: a NumPy expression, or the indices of a sum such as "ni,nj->ij"
    operands    the earlier symbols that it reads
    words       what the symbol means, where a formula does not say it
    formula     how it follows from the operands, as plain text; `latex` and `mathml` are the same
                for typesetting
    """

    def __init__(self, symbol: str, code: str, operands: Sequence[str], words: str = "") -> None:
        self.symbol, self.code, self.operands, self.words = symbol, code, tuple(operands), words

    def value(self, symbols: Any) -> Any:
        """Compute the symbol from earlier ones, by default with `code`: see `Scope`."""
        return evaluate(self.code, symbols)

    def __repr__(self) -> str:
        return f"{self.symbol} = {self.code or self.words}"

    @property
    def formula(self) -> str:
        return self.written(PLAIN)

    @property
    def latex(self) -> str:
        return self.written(LATEX)

    @property
    def mathml(self) -> str:
        return self.written(MATHML)

    def written(self, style: Plain, symbols: Any = None) -> str:
        """The formula in a style; with the symbols' values, it has an index for every axis."""
        return style.whole(self._formula(style, symbols))

    def _formula(self, style: Plain, symbols: Any) -> str:
        return style.infix(style.symbol(self.symbol), "=", self._right(style))

    def _right(self, style: Plain) -> str:
        """What stands to the right of the equals sign."""
        return style.words(self.words or self.code)


class Derivation(NamedTuple):
    """The steps of a layer or a loss, in the order in which they run."""

    forward: Sequence[Step]
    backward: Sequence[Step]

    @classmethod
    def of(cls, *steps: Step) -> Derivation:
        """Return these steps: those up to Y or, in a loss, up to L are the forward pass.

        Several outputs are Y1, Y2, ...
        """
        ends = [step.symbol for step in steps if OUTPUT.fullmatch(step.symbol)]
        return cls(*split(steps, ends[-1] if ends else "L"))

    def every(self) -> Iterator[Step]:
        """Yield all steps, those inside loops included."""
        for steps in self:
            yield from flat(steps)

    def __str__(self) -> str:
        """A list of all formulas."""
        forward, backward = map(listed, self)
        return "\n".join(["forward", *forward, "backward", *backward])


def split(steps: Sequence[Step], symbol: str) -> tuple[Sequence[Step], Sequence[Step]]:
    """Return the steps up to the one that computes this symbol, and those after it."""
    found = [step.symbol for step in steps]
    if symbol not in found:
        raise ArgumentError(f"no step computes {symbol}; there are steps for {', '.join(found)}.")
    end = found.index(symbol) + 1
    return steps[:end], steps[end:]


def flat(steps: Sequence[Step]) -> Iterator[Step]:
    """Yield the steps, and after each loop the steps of its body."""
    for step in steps:
        yield step
        if isinstance(step, Loop):
            yield from flat(step.body)


def is_round(step: Step) -> TypeGuard[Arrange]:
    """Whether a step of a loop takes round t of an array."""
    return isinstance(step, Arrange) and step.code == f"{step.of}[:, t]"


def listed(steps: Sequence[Step], space: str = "  ") -> Iterator[str]:
    """Yield the formulas, each with the words that it does not contain."""
    for step in steps:
        said = f"  ({step.words})" if step.words and step.words not in step.formula else ""
        yield space + step.formula + said
        if isinstance(step, Loop):
            yield from listed(step.body, space + "  ")


class Given(Step):
    """A value from outside the mathematics; `find` computes it from the symbols so far."""

    def __init__(self, symbol: str, words: str, find: Callable[[Any], Any]) -> None:
        super().__init__(symbol, "", (), words)
        self.find = find

    def value(self, symbols: Any) -> Any:
        return self.find(symbols)


class Size(Given):
    """The length of an axis."""

    def __init__(self, symbol: str, of: str, axis: int, words: str) -> None:
        super().__init__(symbol, words, lambda symbols: symbols[of].shape[axis])
        self.of, self.axis = of, axis


class Let(Step):
    """An elementwise expression: each element reads the elements in the same place."""

    def __init__(self, symbol: str, code: str, words: str = "") -> None:
        super().__init__(symbol, code, names_in(code), words)

    def _right(self, style: Plain) -> str:
        return style.expression(self.code)


class Arrange(Step):
    """The elements of one operand in other places; places that hold none of them are 0.

    `of` is the operand whose elements move. The other symbols in the expression say where to.
    """

    def __init__(self, symbol: str, code: str, of: str, words: str) -> None:
        others = [name for name in names_in(code) if name != of]
        super().__init__(symbol, code, (of, *others), words)
        self.of = of


class Join(Step):
    """The elements of all operands, side by side along the last axis."""

    def __init__(self, symbol: str, *operands: str, words: str = "side by side") -> None:
        code = f"np.concatenate([{', '.join(operands)}], axis=-1)"
        super().__init__(symbol, code, operands, words)

    def _right(self, style: Plain) -> str:
        return style.joined.format(style.comma.join(map(style.symbol, self.operands)))


class _Indexed(Step):
    """A step that names the indices of its operands and of its result.

    "..." stands for all axes that have no letter, and "1" in the result for an axis of length 1.
    """

    operator: ClassVar[str]  # along the indices that the result does not have

    def __init__(self, symbol: str, code: str, *operands: str, words: str = "") -> None:
        super().__init__(symbol, code, operands, words)

    def indices(self, ranks: Sequence[int]) -> tuple[list[str], str]:
        """Return the letters of each operand and of the result (with "1"), given the ranks."""
        given, _, out = self.code.replace(" ", "").partition("->")
        parts = given.split(",")
        more = max(
            (r - len(p) + 3 for p, r in zip(parts, ranks, strict=True) if "..." in p), default=0
        )
        images = more + ("n" in self.code) > 2  # n h w instead of n t
        letters = LETTERS.replace("t", "") if images else LETTERS
        free = [letter for letter in letters if letter not in self.code]
        stands = "".join(free[:more])
        return [p.replace("...", stands) for p in parts], out.replace("...", stands)

    def letters(self, symbols: Any) -> tuple[list[str], str]:
        return self.indices([np.ndim(symbols[name]) for name in self.operands])

    def _formula(self, style: Plain, symbols: Any) -> str:
        if symbols is None:  # "..." stands for the samples
            given = self.code.replace(" ", "").partition("->")[0].split(",")
            parts, out = self.indices([len(p) - 2 * ("..." in p) for p in given])
        else:
            parts, out = self.letters(symbols)
        out = out.replace("1", "")
        along = "".join(dict.fromkeys(i for part in parts for i in part if i not in out))
        factors = [style.symbol(n, part) for n, part in zip(self.operands, parts, strict=True)]
        body = style.beside.join(factors)
        whole = style.along(self.operator, along, body) if along else body
        return style.infix(style.symbol(self.symbol, out), "=", whole)


class Sum(_Indexed):
    """The sum of the products of all operands over the indices that the result does not have."""

    operator = "sum"

    def value(self, symbols: Any) -> Any:
        parts, out = self.letters(symbols)
        # in one order, since the last bits of a sum depend on the order of memory
        arrays = [np.asarray(symbols[name], order="C") for name in self.operands]
        kept = out.replace("1", "")
        total = np.einsum(f"{','.join(parts)}->{kept}", *arrays, optimize=len(arrays) > 1)
        total = np.asarray(total, order="C")  # the layout affects how later sums round
        return total if "1" not in out else np.expand_dims(total, ones_in(out))


class Max(_Indexed):
    """The largest element of the operand along the indices that the result does not have."""

    operator = "max"

    def value(self, symbols: Any) -> Any:
        largest = self.rows(symbols, symbols[self.operands[0]]).max(axis=-1)
        ones = ones_in(self.letters(symbols)[1])
        return np.expand_dims(largest, ones) if ones else largest

    def rows(self, symbols: Any, A: Any) -> Any:
        """An array of the operand's shape, with what each maximum is taken of as its last axis."""
        (part,), out = self.letters(symbols)
        kept = out.replace("1", "")
        along = "".join(i for i in part if i not in kept)
        moved = np.einsum(f"{part}->{kept}{along}", A)
        return moved.reshape(*moved.shape[: len(kept)], -1)


def ones_in(out: str) -> tuple[int, ...]:
    """The axes of length 1 in the indices of a result."""
    return tuple(k for k, i in enumerate(out) if i == "1")


class Carry(Step):
    """What the previous round of the loop computed as `of`, or `start` in the first round."""

    def __init__(self, symbol: str, of: str, start: str, words: str = "") -> None:
        code = f"the previous {of}, at first {start}"
        super().__init__(symbol, code, (of, start), words)
        self.of, self.start = of, start

    def value(self, symbols: Any) -> Any:
        return symbols.carried(self.of, self.start)

    def _right(self, style: Plain) -> str:
        of, start = style.symbol(self.of), style.symbol(self.start)
        return style.words("the previous ") + of + style.words(", at first ") + start


class Loop(Step):
    """Steps that run once for each t along the time axis of `along` (N, T, ...).

    After the loop, a symbol of the body stands for all its values (N, T, ...). In the body of this
    loop and of later ones, it stands for the value at the current t.
    """

    def __init__(self, along: str, body: Sequence[Step], *, reverse: bool = False) -> None:
        times = "reversed(range(T))" if reverse else "range(T)"
        super().__init__("t", f"for t in {times}", ())
        self.along, self.body, self.reverse = along, body, reverse

    def times(self, symbols: Any) -> list[int]:
        """The rounds, in order."""
        T = symbols[self.along].shape[1]
        return list(reversed(range(T))) if self.reverse else list(range(T))

    def _formula(self, style: Plain, symbols: Any) -> str:
        return style.words(f"for t from {'T - 1 to 0' if self.reverse else '0 to T - 1'}:")


class Through(Step):
    """The forward or backward pass of a layer inside: Y from X, or dX from dY.

    of       what the pass receives; of several inputs or outputs, a tuple
    child    its key in `children()`, such as "layers.0"
    mask     the mask of its input; "same" is the mask of the call
    each     how many samples of its input a sample of X is: a symbol, or "" for one
    result   which of its arrays this is, such as "Y2"; by default its only one
    runs     False for the second array of a pass that has run
    """

    def __init__(
        self,
        symbol: str,
        of: str | tuple[str, ...],
        child: str,
        *,
        back: bool = False,
        mask: Any = "same",
        each: str = "",
        result: str = "",
        runs: bool = True,
    ) -> None:
        operands = (of,) if isinstance(of, str) else of
        code = f"{child}.{'backward' if back else 'forward'}({', '.join(operands)})"
        super().__init__(symbol, code, operands)
        self.of, self.child, self.back = of, child, back
        self.mask, self.each, self.runs = mask, each, runs
        self.result = result or ("dX" if back else "Y")

    def value(self, symbols: Any) -> Any:
        return symbols.result_of(self.child, self.result)

    def _right(self, style: Plain) -> str:
        way = "backward" if self.back else "forward"
        given = style.comma.join(map(style.symbol, self.operands))
        which = style.words(f", {self.result}") if self.result not in ("Y", "dX") else ""
        return style.words(f"{self.child}.{way}") + style.brackets.format(given) + which


# --- expressions -------------------------------------------------------------------------------


# What an expression may use. NumPy has no erf, and no sigmoid and softplus that do not overflow.
FUNCTIONS = {"np": np, "erf": erf, "sigmoid": sigmoid, "softplus": softplus}


@functools.lru_cache(maxsize=4096)
def _compiled(code: str) -> CodeType:
    return compile(code, f"<{code}>", "eval")


@functools.lru_cache(maxsize=4096)
def names_in(code: str) -> tuple[str, ...]:
    """The symbols that an expression reads, in order."""
    nodes = sorted(
        (n for n in ast.walk(ast.parse(code, mode="eval")) if isinstance(n, ast.Name)),
        key=lambda n: (n.lineno, n.col_offset),
    )
    return tuple(dict.fromkeys(n.id for n in nodes if n.id not in FUNCTIONS))


def evaluate(code: str, symbols: Any) -> Any:
    """The value of an expression of `np`, `erf` and the symbols; what overflows is infinity.

    The text is part of a derivation or typed by the user. That of an equation in a model file was
    written from steps which `Reader` has read: arithmetic of known names.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return eval(_compiled(code), FUNCTIONS, symbols)
