"""Steps as compiled Python: one expression a line, with the symbols of a scope as variables.

Let, Arrange, Join    their code; numbers that are the same in every pass are computed once
Sum                   a matrix product if there is one
Loop                  a loop; sums that read none of its states come before it. What its rounds
                      compute is a dictionary by t, and an array once it is read after the loop
others                the step's own `value`
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any

import numpy as np

from phitodeep.derivations.language.run import Scope
from phitodeep.derivations.language.step import (
    FUNCTIONS,
    Arrange,
    Carry,
    Join,
    Let,
    Loop,
    Step,
    Sum,
    evaluate,
    flat,
    is_round,
    names_in,
)


def compiled(steps: Sequence[Step], rounds: frozenset[str]) -> CodeType:
    """Return the code of some steps; `rounds` are the symbols of all loops."""
    return compile("\n".join(_lines(steps, rounds)) or "pass", "<steps>", "exec")


def execute(code: CodeType, steps: Sequence[Step], scope: Scope) -> None:
    """Run the code of these steps on the symbols of a scope."""
    own = {step.symbol: step for step in flat(steps)}
    tools = {"_whole": _whole, "_rounds": _rounds, "_cast": scope.cast, "_steps": own}
    tools |= {"_scope": scope, "_real": scope.cast(np.float64(0)).dtype.type}
    exec(code, FUNCTIONS | tools, scope.values)


def _lines(steps: Sequence[Step], rounds: frozenset[str], inside: bool = False) -> Iterator[str]:
    for step in steps:
        if not inside:
            yield from (f"{n} = _whole({n})" for n in step.operands if n in rounds)
        match step:
            case Loop():
                yield from _loop(step, rounds)
            case Carry():
                yield f"{step.symbol} = {step.of}"
            case Let():
                code = ast.unparse(_Faster().visit(ast.parse(step.code, mode="eval")))
                yield f"{step.symbol} = {code}" if inside else f"{step.symbol} = _cast({code})"
            case Sum() if not {*".1"} & {*step.code}:
                yield f"{step.symbol} = {_sum(step)}"
            case Arrange() | Join():
                yield f"{step.symbol} = {step.code}"
            case _:
                yield f"{step.symbol} = _cast(_steps[{step.symbol!r}].value(_scope))"


def _sum(step: Sum) -> str:
    """A sum of products; rows times a matrix stay rows in memory, which np.einsum may change."""
    (*parts, out), names = re.split(",|->", step.code.replace(" ", "")), step.operands
    rows = [*map(len, parts)] == [len(out), 2] and parts[0][:-1] == out[:-1]
    if rows and {parts[0][-1], out[-1]} == {*parts[1]}:
        A, W = names[0], names[1] + ".T" * (parts[1][1] != out[-1])
        flat = f"({A}.reshape(-1, {A}.shape[-1]) @ {W}).reshape(*{A}.shape[:-1], -1)"
        return flat if len(out) > 2 else f"{A} @ {W}"
    return f"np.einsum({step.code!r}, {', '.join(names)}, optimize=True)"


def _loop(loop: Loop, rounds: frozenset[str]) -> Iterator[str]:
    early = [*_all_rounds(loop.body, rounds)]
    yield from _lines(early, rounds)
    body = [step for step in loop.body if step.symbol not in {s.symbol for s in early}]
    own = [step.symbol for step in body]
    reads = [n for step in body for n in step.operands if n in rounds and n not in own]
    read = [*dict.fromkeys(reads)]
    yield from (f"{c.of} = {c.start}" for c in body if isinstance(c, Carry))
    yield from (f"_{n} = _rounds({n})" for n in read)
    yield from (f"_{n} = {{}}" for n in own)
    times = f"range(_whole({loop.along}).shape[1])"
    yield f"for t in {f'reversed({times})' if loop.reverse else times}:"
    lines = [*(f"{n} = _{n}[t]" for n in read), *_lines(body, rounds, inside=True)]
    yield from (f"    {line}" for line in [*lines, *(f"_{n}[t] = {n}" for n in own)])
    yield from (f"{n} = _{n}" for n in (*read, *own))


def _all_rounds(body: Sequence[Step], rounds: frozenset[str]) -> Iterator[Sum]:
    """The sums that read nothing of this loop: one product for all rounds is faster than many."""
    slices = {step.symbol: step.of for step in body if is_round(step)}
    own = {step.symbol for step in body} - {*slices}
    for step in body:
        if isinstance(step, Sum) and own.isdisjoint(step.operands):
            *parts, out = re.split(",|->", step.code.replace(" ", ""))
            every = [
                part[0] + "t" + part[1:] if n in rounds or n in slices else part
                for n, part in zip(step.operands, parts, strict=True)
            ]
            code = f"{','.join(every)}->{out[0]}t{out[1:]}"
            yield Sum(step.symbol, code, *(slices.get(n, n) for n in step.operands))


def _whole(A: Any) -> Any:
    """All rounds of a symbol as one array."""
    return np.stack([A[t] for t in sorted(A)], axis=1) if isinstance(A, dict) else A


def _rounds(A: Any) -> Any:
    return A if isinstance(A, dict) else dict(enumerate(np.moveaxis(A, 1, 0)))


class _Faster(ast.NodeTransformer):
    """Computes np.sqrt(2) once, X ** 3 as products, and np.where(X > 0, 1.0, 0.0) in the dtype."""

    def visit(self, node: ast.AST) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call() | ast.BinOp() if not names_in(ast.unparse(node)):
                return ast.Constant(float(evaluate(ast.unparse(node), {})))
            case ast.BinOp(ast.Name() as X, ast.Pow(), ast.Constant(3)):
                return ast.BinOp(X, ast.Mult(), ast.BinOp(X, ast.Pow(), ast.Constant(2)))
            case ast.Call(ast.Attribute(attr="where"), [_, *values]):
                for k, value in enumerate(values, 1):
                    if isinstance(value, ast.Constant):
                        node.args[k] = ast.Call(ast.Name("_real"), [value], [])
        return node
