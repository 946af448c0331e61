"""Reads a forward pass, written with NumPy, as steps.

    Reader(X=np.ones((4, 5)), gamma=np.ones(5)).read("Y = gamma * X / np.sqrt(1 + X ** 2)")

The text is parsed and never run as Python: it may contain arithmetic, elementwise functions, sums,
means and maxima along axes, matrix products, einsum, slices, reshape, transpose and concatenation.
Each step runs at once on the example arrays, whose shapes say what is broadcast.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
import textwrap
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar, cast

import numpy as np

from phitodeep.derivations.derive.algebra import DIRECTIONAL, SLOPES
from phitodeep.derivations.language.step import (
    FUNCTIONS,
    Arrange,
    Join,
    Let,
    Max,
    Size,
    Step,
    Sum,
    names_in,
)
from phitodeep.errors import DerivationError

FOLDS = ("sum", "mean", "max", "min")
MOVES = {"reshape", "transpose", "swapaxes", "roll", "flip", "repeat", "moveaxis", "squeeze"}
MOVES |= {"expand_dims", "pad", "broadcast_to", "tile"}
OWN = {"sigmoid": "s", "softplus": "v"}  # elementwise functions that NumPy lacks, and their values
VALUES = OWN | {"tanh": "h", "exp": "E"}  # names of values that the slope of a function reads
LONGEST = 20_000  # characters of a forward pass
GREATEST = 1e60  # of numbers in a forward pass: their squares do not overflow
DEEPEST = 160  # parts inside each other
NAMES = 12  # of symbols and functions in a part that has no name
LARGEST = 2**18  # elements of an example
# What has another meaning in the layer that is written.
RESERVED = {"X", "np", "self", "places", "t", "super", "float", "range", *FUNCTIONS}
PASSED = re.compile(r"dY|dX|(X|Y|dX|dY)\d+")
Node = TypeVar("Node", bound=ast.AST)
AXES = "nthwuvzcabefgijklmopqrsxy"
ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.BitAnd, ast.BitOr)


class Reader:
    """Turns statements into steps, one operation on many elements at a time, and runs them."""

    def __init__(self, end: str = "Y", taken: Collection[str] = (), /, **values: Any) -> None:
        self.end, self.taken = end, {*RESERVED, *taken}
        self.values, self.steps = values, list[Step]()
        self.lines: dict[str, str] = {}  # in which each symbol is computed
        self.chosen: set[str] = set()  # names for parts
        self.line = ""  # which is read now, for errors

    def read(self, source: str | Callable[..., Any]) -> list[Step]:
        """Return the steps of a text, or of a function, which ends with Y, or with L."""
        body = statements(source)
        self.chosen |= {n.id for part in body for n in ast.walk(part) if isinstance(n, ast.Name)}
        for node in body:
            self.line = f"line {node.lineno}"
            if _depth(node) > DEEPEST:
                raise self.refused("this is too deep: give parts of it names")
            numbers = [getattr(part, "value", None) for part in ast.walk(node)]
            if any(isinstance(k, int | float) and k > GREATEST for k in numbers):
                raise self.refused(f"numbers are at most {GREATEST:g} here")
            self.line += f", {ast.unparse(node).splitlines()[0]!r}"
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.begin(name, value)
                case ast.Return(value=ast.Name(id=self.end)) | ast.Expr(value=ast.Constant()):
                    pass
                case ast.Return(value=ast.expr() as value):
                    self.begin(self.end, value)
                case _:
                    raise self.refused(
                        "derive reads assignments of new names, and return. Write a choice as "
                        "np.where, and a change in place as a new name; for a loop over time, "
                        "pass steps with Loop and Carry"
                    )
        if self.end not in self.values:
            raise DerivationError(f"the formula computes no {self.end}: assign it, or return it.")
        if clash := [name for name in self.values if f"d{name}" in self.values]:
            raise DerivationError(
                f"d{clash[0]} is the gradient of {clash[0]}: give one of them another name."
            )
        return self.steps

    def begin(self, symbol: str, value: ast.expr) -> None:
        """Read an assignment; a name for a value that exists is refused."""
        if isinstance(value, ast.Name):
            self.add(Let(symbol, f"1 * {self.name(value)}"))
        else:
            self.put(symbol, value)

    def refused(self, reason: str) -> DerivationError:
        return DerivationError(f"{self.line}: {reason.rstrip('. ')}.")

    def add(self, step: Step) -> str:
        """Append a step, and run it."""
        if step.symbol in self.values:
            raise self.refused(f"{step.symbol} has a value already: give the new one another name")
        if step.symbol in self.taken or PASSED.fullmatch(step.symbol):
            raise self.refused(f"{step.symbol} has another meaning here: choose another name")
        try:
            large = self.size_of(step) > LARGEST
            value: Any = None if large else step.value(self.values)
        except NameError as error:
            raise self.refused(
                f"{error.name} has no value here: assign it before, or give its shape"
            ) from None
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            given = ", ".join(f"{n} {np.shape(self.values.get(n, 0))}" for n in step.operands)
            raise self.refused(f"{step!r} does not fit its shapes ({given}): {error}") from None
        if large:
            raise self.refused(f"{step!r} is too large for an example: give X smaller sizes")
        if isinstance(value, int) and abs(value) > GREATEST:
            raise self.refused(f"numbers are at most {GREATEST:g} here")
        if not np.size(value):
            raise self.refused(f"{step.symbol} has no elements")
        self.steps.append(step)
        self.values[step.symbol], self.lines[step.symbol] = value, self.line
        return step.symbol

    def size_of(self, step: Step) -> int:
        """How many numbers a step computes, or adds up."""
        shapes = [np.shape(self.values.get(name, 0)) for name in step.operands]
        if isinstance(step, Sum):
            parts = step.code.replace(" ", "").replace("...", "").partition("->")[0].split(",")
            pairs = [*zip(parts, shapes, strict=True)]
            letters = {i: n for p, s in pairs for i, n in zip(p[::-1], s[::-1], strict=False)}
            lead = max(math.prod(s[: max(len(s) - len(p), 0)]) for p, s in pairs)
            return lead * math.prod(letters.values())
        return math.prod(np.broadcast_shapes(*shapes)) if isinstance(step, Let) else 1

    def put(self, symbol: str, node: ast.expr) -> str:
        """Append what computes `symbol` as the expression says."""
        kind = called(node)
        match node:
            case ast.BinOp(left=left, op=ast.MatMult(), right=right):
                return self.product(symbol, self.name(left), self.name(right))
            case ast.Call() if kind in FOLDS:
                return self.fold(symbol, node, kind)
            case ast.Call() if kind in ("einsum", "concatenate"):
                return self.add(self.combined(symbol, node, kind))
            case ast.Subscript(value=ast.Attribute(value=of, attr="shape"), slice=axis):
                return self.size(self.name(of), self.literal(axis), symbol)
            case ast.Call() | ast.Subscript() | ast.Attribute() if moves(node):
                return self.moved(symbol, node)
        return self.add(Let(symbol, ast.unparse(self.elementwise(node))))

    # --- elementwise expressions ---------------------------------------------------------------

    def elementwise(self, node: ast.expr, inside: bool = False) -> ast.expr:
        """The expression, with a name for each part that is not elementwise, or is long."""
        found = self.elementary(node, inside)
        if inside and sum(isinstance(n, ast.Name) for n in ast.walk(found)) > NAMES:
            return ast.Name(self.add(Let(self.free("u"), ast.unparse(found))))
        return found

    def elementary(self, node: ast.expr, inside: bool) -> ast.expr:
        part = self.elementwise
        match node:
            case ast.Constant(value=int() | float()) | ast.Name():
                return node
            case ast.BinOp(left, ast.Pow(), k) if all(map(self.is_whole, ast.walk(node))):
                if not isinstance(left, ast.Name) or ast.unparse(k) not in [*"0123456789"]:
                    raise self.refused(f"{ast.unparse(node)!r}: write the number")
                return node
            case ast.Attribute(value=ast.Name(id="np"), attr="pi" | "e" | "inf"):
                return node
            case ast.UnaryOp(op=ast.USub() | ast.Invert(), operand=operand):
                return ast.UnaryOp(node.op, part(operand, True))
            case ast.BinOp(left=left, op=op, right=right) if isinstance(op, ARITHMETIC):
                return ast.BinOp(part(left, True), op, part(right, True))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return ast.Compare(part(left, True), [op], [part(right, True)])
            case ast.Call(func=func, args=args, keywords=[]) if (known := called(node)) in (
                SLOPES.keys() | DIRECTIONAL.keys()
            ):
                needed = 1 if known in SLOPES else 2 + ("tc" in DIRECTIONAL[known])
                if len(args) != needed:
                    raise self.refused(f"{known} takes {needed} argument(s) here, got {len(args)}")
                again = ast.Call(func, [part(a, True) for a in args], [])
                if known not in VALUES:
                    return again
                if self.broadcasts(again.args[0]):
                    again.args[0] = ast.Name(
                        self.add(Let(self.free("u"), ast.unparse(again.args[0])))
                    )
                if not inside:
                    return again
                return ast.Name(self.add(Let(self.free(VALUES[known]), ast.unparse(again))))
            case ast.Subscript(value=ast.Attribute(value=of, attr="shape"), slice=axis):
                return ast.Name(self.size(self.name(of), self.literal(axis)))
            case ast.BinOp(op=ast.MatMult()) | ast.Subscript() | ast.Attribute() | ast.Call():
                if isinstance(node, ast.BinOp) or moves(node) or called(node) in KINDS:
                    return ast.Name(self.name(node))
        raise self.refused(self.reason(node))

    def is_whole(self, node: ast.AST) -> bool:
        """Whether a part is no name, or that of an integer, whose powers may be huge."""
        return not isinstance(node, ast.Name) or isinstance(self.values.get(node.id), int)

    def reason(self, node: ast.expr) -> str:
        """Why a part cannot be read, and what to do."""
        text = ast.unparse(node)
        if isinstance(node, ast.Call) and called(node) in {*SLOPES, *DIRECTIONAL}:
            return f"{text!r}: {called(node)} takes no options here"
        if isinstance(node, ast.Call):
            return (
                f"no derivative is known for {ast.unparse(node.func)}: write it with functions of "
                f"np that are ({', '.join(sorted({*SLOPES, *DIRECTIONAL} - {*OWN}))}), or add its "
                "slope to SLOPES in phitodeep.derivations.derive.algebra"
            )
        if isinstance(node, ast.IfExp | ast.BoolOp):
            return f"{text!r}: write choices as np.where(condition, a, b), with & and |"
        return (
            f"{text!r} is not arithmetic of np and the names so far, which is + - * / ** @, "
            "comparisons of two, & and |, numbers, slices and functions of np"
        )

    def broadcasts(self, node: ast.expr) -> bool:
        """Whether a symbol of an expression has fewer elements than another."""
        names = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in self.values]
        return len({np.shape(self.values[n]) for n in names if np.ndim(self.values[n])}) > 1

    def free(self, base: str) -> str:
        names = (base, *(f"{base}_{k}" for k in range(2, 1000)))
        found = next(
            name for name in names if name not in {*self.values, *self.chosen, *self.taken}
        )
        self.chosen.add(found)
        return found

    def name(self, node: ast.expr) -> str:
        """The symbol of a part; a new one if it has no name yet."""
        if isinstance(node, ast.Name):
            if node.id not in self.values:
                raise self.refused(
                    f"{node.id} has no value here: assign it before, or give its shape"
                )
            return node.id
        kind = "" if isinstance(node, ast.BinOp) else called(node)
        names = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in self.values]
        prefix = f"{kind}_" if kind in (*FOLDS, *SLOPES) else "moved_" if moves(node) else ""
        prefix = "product_" if kind == "einsum" else prefix
        return self.put(self.free(prefix + "".join(dict.fromkeys(names))), node)

    # --- sums, products and moves --------------------------------------------------------------

    def product(self, symbol: str, A: str, B: str) -> str:
        ranks = [np.ndim(self.values[n]) for n in (A, B)]
        if min(ranks) < 2:
            raise self.refused("@ needs matrices on both sides: write (A * b).sum(axis=-1)")
        if ranks[1] == 2:
            return self.add(Sum(symbol, "...i,ij->...j", A, B))
        if ranks[0] != ranks[1]:
            raise self.refused("@ of arrays with different numbers of axes: write np.einsum")
        lead = "nhqa"[: ranks[0] - 2]
        return self.add(Sum(symbol, f"{lead}ti,{lead}ij->{lead}tj", A, B))

    def combined(self, symbol: str, node: ast.Call, kind: str) -> Step:
        """An einsum or a concatenation."""
        options = {str(k.arg): self.literal(k.value) for k in node.keywords}
        match kind, node.args, options:
            case "einsum", [ast.Constant(value=str(code)), *arrays], {}:
                letters = re.sub(r"(^|,|->)\.\.\.", r"\1", code.replace(" ", ""))
                given = letters.partition("->")[0].split(",")
                if re.fullmatch(r"[a-z,]*->[a-z]*", letters) and not any(map(_repeats, given)):
                    return self.agreeing(Sum(symbol, code, *map(self.name, arrays)))
            case "concatenate", [ast.List(elts=arrays) | ast.Tuple(elts=arrays)], {"axis": -1}:
                return Join(symbol, *map(self.name, arrays))
        raise self.refused('write np.einsum("ni,ij->nj", A, B) or np.concatenate([A, B], axis=-1)')

    def agreeing(self, step: Sum) -> Sum:
        """The sum, if each letter stands for one size."""
        sizes: dict[str, int] = {}
        for name, part in zip(step.operands, step.code.replace(" ", "").split(","), strict=False):
            letters = part.partition("->")[0].replace("...", "")
            shape = np.shape(self.values[name])
            for letter, size in zip(letters[::-1], shape[::-1], strict=False):
                if sizes.setdefault(letter, size) != size:
                    raise self.refused(
                        f"{letter!r} has the sizes {sizes[letter]} and {size}: write a letter for "
                        "each, or broadcast with *"
                    )
        return step

    def fold(self, symbol: str, node: ast.Call, kind: str) -> str:
        """A sum, mean, maximum or minimum along axes."""
        of, options = self.folded(node)
        if kind == "min":  # -max(-A)
            minus = self.add(Let(self.free(f"minus_{symbol}"), f"-{self.name(of)}"))
            top = self.along(self.free(f"max_{minus}"), [minus], "max", **options)
            return self.add(Let(symbol, f"-{top}"))
        factors = _factors(of, kind)
        known = all(names_in(ast.unparse(part)) for part in factors)
        first, *others = factors if known else [of]
        one = self.name(first)
        names = [one, *(one if other is first else self.name(other) for other in others)]
        if len({np.shape(self.values[n]) for n in names}) > 1:
            names = [self.name(of)]
        return self.along(symbol, names, kind, **options)

    def along(
        self, symbol: str, names: list[str], kind: str, axis: Any = None, keepdims: bool = False
    ) -> str:
        """A sum, mean or maximum of a product along axes; all by default."""
        shape = np.shape(self.values[names[0]])
        rank = len(shape)
        given = range(rank) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        if not given or not all(type(a) is int and -rank <= a < rank for a in given):
            raise self.refused(f"{names[0]} has {rank} axes, and no axis {axis}")
        axes = sorted({a % rank for a in given})
        if len(axes) < len(given) or keepdims not in (True, False):
            raise self.refused("name each axis once, and write keepdims=True or nothing")
        letters = AXES[: rank - 1] + "d"
        lead = axes[0]  # axes before it are samples
        one = "1" if keepdims else ""
        kept = [one if a in axes else letters[a] for a in range(lead, rank)]
        samples = "..." * (lead > 0)
        code = f"{','.join([samples + letters[lead:]] * len(names))}->{samples}{''.join(kept)}"
        if kind == "max" and len(axes) > 1:  # of the maxima along the last axis
            inner = self.along(
                self.free(f"{symbol}_{letters[axes[-1]]}"), names, kind, axes[-1], keepdims
            )
            return self.along(symbol, [inner], kind, (*axes[:-1],), keepdims)
        if kind == "max":
            return self.add(Max(symbol, code, *names))
        if kind == "sum":
            return self.add(Sum(symbol, code, *names))
        counts = [self.size(names[0], a - rank) for a in axes]
        total = self.add(Sum(self.free(f"total_{symbol}"), code, *names))
        return self.add(Let(symbol, " / ".join([total, *counts])))

    def size(self, of: str, axis: Any, symbol: str = "") -> str:
        """The length of an axis: a symbol that has it already, or a new one."""
        shape = np.shape(self.values[of])
        rank = len(shape)
        if type(axis) is not int or not -rank <= axis < rank:
            raise self.refused(f"{of} has {rank} axes, and no axis {axis}: write one of its own")
        a, sizes = axis % rank - rank, [step for step in self.steps if isinstance(step, Size)]
        same = [s.symbol for s in sizes if (s.axis, self.values[s.symbol]) == (a, shape[a])]
        if same and not symbol:
            return same[0]
        symbol = symbol or self.free("D" if a == -1 else f"size_{AXES[a + rank]}")
        return self.add(Size(symbol, of, a, f"the length of axis {a}"))

    def folded(self, node: Any) -> tuple[ast.expr, dict[str, Any]]:
        """What is summed, and the options."""
        given = node.args if of_numpy(node) else [node.func.value, *node.args]
        if not given:
            raise self.refused(f"{called(node)} of what?")
        of, *given = given
        options = {k.arg: k.value for k in node.keywords} | ({"axis": given[0]} if given else {})
        if not options.keys() <= {"axis", "keepdims"} or len(given) > 1:
            raise self.refused(f"{called(node)} takes axis= and keepdims= here")
        return of, {name: self.literal(value) for name, value in options.items()}

    def literal(self, node: ast.expr) -> Any:
        try:
            return ast.literal_eval(node)
        except ValueError:
            raise self.refused(f"{ast.unparse(node)!r} must be a number here") from None

    def moved(self, symbol: str, node: ast.expr) -> str:
        """An Arrange: the elements of one array in other places."""
        of: Any = node
        while moves(of):
            inside: Any = of.func if isinstance(of, ast.Call) else of
            of = of.args[0] if of_numpy(of) else inside.value
        name = self.name(of)
        code = ast.unparse(replaced(node, {ast.unparse(of): ast.Name(name)}))
        for inner in ast.walk(ast.parse(code, mode="eval").body):
            if not self.may_move(inner):
                raise self.refused(f"{code!r}: say where elements go with numbers and shapes alone")
        found = [getattr(part, "value", None) for part in ast.walk(node)]
        sizes = [abs(size) for size in found if isinstance(size, int)]
        if math.prod(filter(None, sizes)) * np.size(self.values[name]) > LARGEST:
            raise self.refused(f"{code!r} is too large for an example: give X smaller sizes")
        return self.add(Arrange(symbol, code, name, code))

    def may_move(self, node: ast.AST) -> bool:
        """Whether a part may stand in an expression that moves elements."""
        match node:
            case ast.Constant(value=int()):
                return True
            case ast.Name(id=name):
                return name == "np" or name in self.values
            case ast.Attribute(attr=name):
                return name in ("T", "shape", *MOVES)
            case ast.Call():
                return called(node) in MOVES
        return isinstance(node, MOVING)


KINDS = (*FOLDS, "einsum", "concatenate")
MOVING: tuple[type, ...] = (
    ast.Subscript,
    ast.Slice,
    ast.Constant,
    ast.Tuple,
    ast.List,
    ast.keyword,
    ast.Load,
)
MOVING += (ast.UnaryOp, ast.USub, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv)


def statements(source: str | Callable[..., Any]) -> list[ast.stmt]:
    """The statements of a text, or of a function's body."""
    try:
        if getattr(source, "__name__", "") == "<lambda>":
            return _returned(source)
        text = source if isinstance(source, str) else inspect.getsource(source)
        if len(text) > LONGEST:
            raise DerivationError(f"a forward pass has at most {LONGEST:,} characters.")
        body = ast.parse(textwrap.dedent(text)).body
    except (SyntaxError, OSError, TypeError, ValueError, MemoryError, RecursionError) as error:
        raise DerivationError(f"derive cannot read this as Python: {error}.") from None
    first = body[0] if body else None
    return first.body if isinstance(first, ast.FunctionDef) else body


def _depth(node: ast.AST) -> int:
    deep, level = 0, [node]
    while level:
        deep, level = deep + 1, [n for part in level for n in ast.iter_child_nodes(part)]
    return deep


def _repeats(letters: str) -> bool:
    return len({*letters}) < len(letters)


def called(node: ast.AST) -> str:
    """The name of the function or method that a part calls, if it may be called."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="np"), attr=name)):
            return name
        case ast.Call(func=ast.Attribute(attr=name)) if name in (*FOLDS, *MOVES):
            return name
        case ast.Call(func=ast.Name(id=name)) if name in (*OWN, "erf"):
            return name
    return ""


def of_numpy(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="np"))):
            return True
    return False


def moves(node: ast.AST) -> bool:
    """Whether a part moves the elements of an array to other places."""
    if isinstance(node, ast.Attribute):
        return node.attr == "T"
    return isinstance(node, ast.Subscript) or called(node) in MOVES


def _factors(node: ast.expr, kind: str) -> list[ast.expr]:
    """The factors of a product that is summed."""
    if kind in ("sum", "mean"):
        match node:
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return [left, right]
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=2)):
                return [left, left]
    return [node]


def replaced(node: Node, by: Mapping[str, ast.expr]) -> Node:
    """The same, with other expressions in the places of these; of itself, only parts."""

    class Replace(ast.NodeTransformer):
        def visit(self, inner: ast.AST) -> ast.AST:
            new = by.get(ast.unparse(inner)) if isinstance(inner, ast.expr) else None
            return new or self.generic_visit(inner)

    return cast(Node, Replace().visit(node))


def _returned(function: Any) -> list[ast.stmt]:
    """What a lambda returns: the positions of its code say where it stands."""
    lines = [line.encode() for line in inspect.findsource(function)[0]]
    spots = [p for p in function.__code__.co_positions() if p[3]]  # its begin has no column
    (top, left), (end, right) = min((p[0], p[2]) for p in spots), max((p[1], p[3]) for p in spots)
    text = b"".join([*lines[top - 1 : end - 1], lines[end - 1][:right]])[left:]
    return ast.parse(b"return (" + text + b")").body
