"""Derivations with one mistake: each term, factor, sign and sum of a step is broken in turn.

`mutations(step, derivation)` yields a sentence that says what is missing or different, and a
function of the symbols that computes the step that way. Which mistakes there are follows from the
kinds of steps, so no code here knows any layer.
"""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from phitodeep.core.types import Array
from phitodeep.derivations.language.notation import PLAIN
from phitodeep.derivations.language.step import (
    Carry,
    Derivation,
    Join,
    Let,
    Step,
    Sum,
    evaluate,
    flat,
)

Wrong = Callable[[Any], Any]  # computes a step from the symbols, wrongly
Mutation = tuple[str, Wrong]
SUMS, PRODUCTS = (ast.Add, ast.Sub), (ast.Mult, ast.Div)


def mutations(step: Step, derivation: Derivation) -> Iterator[Mutation]:
    """Yield the ways to get one step wrong, the likeliest first."""
    if isinstance(step, Let):
        for sentence, code in _expressions(step.code, derivation, _known(derivation)):
            yield sentence, partial(evaluate, code)
    elif isinstance(step, Sum):
        yield from _sums(step, derivation)
    elif isinstance(step, Join):
        for a, b in itertools.combinations(step.operands, 2):
            swapped = [{a: b, b: a}.get(name, name) for name in step.operands]
            other = Join(step.symbol, *swapped)
            yield f"with `{PLAIN.symbol(a)}` and `{PLAIN.symbol(b)}` swapped", other.value
    elif isinstance(step, Carry):
        yield (
            f"starting from 0 in every round, without {_said(step.symbol, derivation)}",
            lambda symbols: np.zeros_like(symbols[step.start]),
        )


def chain(symbol: str, derivation: Derivation) -> list[Step]:
    """The steps of the same direction that a symbol follows from, in order; it is the last."""
    for steps in (derivation.backward, derivation.forward):
        every = [step for step in flat(steps) if step.symbol != "t"]
        if any(step.symbol == symbol for step in every):
            needed = {symbol}
            while more := {n for s in every if s.symbol in needed for n in s.operands} - needed:
                needed |= more
            return [step for step in every if step.symbol in needed]
    return []


# --- expressions -------------------------------------------------------------------------------


def _expressions(code: str, of: Derivation, known: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the expression with one part lost or changed, and what that part is."""
    tree = ast.parse(code, mode="eval").body
    for node in ast.walk(tree):
        for sentence, other in _parts(node, of, known):
            # a copy, for which `other` counts as the copy of the node
            yield sentence, ast.unparse(copy.deepcopy(tree, {id(node): other}))
    names = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id[:1] == "d"]
    if not isinstance(tree, ast.Name):
        for name in dict.fromkeys(names):
            yield f"as {_said(name, of)} alone, without the rest of `{_shown(tree)}`", name


def _parts(node: ast.AST, of: Derivation, known: list[str]) -> Iterator[tuple[str, ast.expr]]:
    """Yield what can be wrong with one node of an expression."""
    if isinstance(node, ast.BinOp):
        left, right, op = node.left, node.right, type(node.op)
        if op in SUMS:
            sign, other = ("+", "-") if op is ast.Add else ("-", "+")
            yield f"without the term `{sign} {_shown(right)}`{_why(right, of)}", left
            alone = right if op is ast.Add else ast.UnaryOp(ast.USub(), right)
            yield f"without the term `{_shown(left)}`{_why(left, of)}", alone
            flipped = ast.BinOp(left, ast.Sub() if op is ast.Add else ast.Add(), right)
            yield f"with `{other} {_shown(right)}` instead of `{sign} {_shown(right)}`", flipped
            first = left
            while isinstance(first, ast.BinOp) and type(first.op) in SUMS:
                first = first.left
            if first is not left:
                yield f"as `{_shown(first)}` alone, without the terms after it", first
        elif op is ast.Mult:
            yield f"without the factor `{_shown(right)}`{_why(right, of)}", left
            yield f"without the factor `{_shown(left)}`{_why(left, of)}", right
            divided = ast.BinOp(left, ast.Div(), right)
            yield f"divided by `{_shown(right)}` instead of multiplied by it", divided
        elif op is ast.Div:
            yield f"without the division by `{_shown(right)}`{_why(right, of)}", left
            times = ast.BinOp(left, ast.Mult(), right)
            yield f"multiplied by `{_shown(right)}` instead of divided by it", times
        elif op is ast.Pow:
            yield f"with `{_shown(left)}` instead of `{_shown(node)}`", left
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield f"with `{_shown(node.operand)}` instead of `{_shown(node)}`", node.operand
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        args = node.args
        if node.func.attr == "where":
            yield f"without the condition `{_shown(args[0])}`", args[1]
            swapped = ast.Call(node.func, [args[0], args[2], args[1]], [])
            yield f"with the condition `{_shown(args[0])}` the wrong way round", swapped
        elif node.func.attr in ("sqrt", "exp", "log", "tanh"):
            yield f"with `{_shown(args[0])}` instead of `{_shown(node)}`", args[0]
    elif isinstance(node, ast.Name):
        for other in _siblings(node.id, known):
            yield (
                f"with `{PLAIN.symbol(other)}` instead of `{PLAIN.symbol(node.id)}`",
                ast.Name(other),
            )


def _known(of: Derivation) -> list[str]:
    """All symbols: what the steps compute, and what they read."""
    return list(dict.fromkeys(n for step in of.every() for n in (step.symbol, *step.operands)))


def _siblings(name: str, known: list[str]) -> list[str]:
    """Symbols that are easily mixed up with this one, such as c_t with c_prev, or Q with K."""
    return [
        other
        for other in known
        if other != name and not other.endswith(("_start", "_end"))
        if any(alike(name, other) for alike in CONFUSED)
    ]


CONFUSED: tuple[Callable[[str, str], bool], ...] = (
    lambda a, b: "_" in a and "_" in b and a.partition("_")[0] == b.partition("_")[0],
    lambda a, b: b.lower() == a,
    lambda a, b: len(a) == len(b) == 1 and a.isupper() and b.isupper(),
    lambda a, b: a[0] == b[0] == "d" and len(a) > 1 and len(b) > 1,  # two gradients
)


# --- sums --------------------------------------------------------------------------------------


def _sums(step: Sum, of: Derivation) -> Iterator[Mutation]:
    known = _known(of)
    for k, name in enumerate(step.operands):
        shown = PLAIN.symbol(name)
        if len(step.operands) > 1:
            without = f"without the factor `{shown}`{_why(ast.Name(name), of)}"
            yield without, partial(_changed, step, k, np.ones_like)
        yield f"with `{shown}` transposed", partial(_changed, step, k, np.matrix_transpose)
        for other in _siblings(name, known):
            sentence = f"with `{PLAIN.symbol(other)}` instead of `{shown}`"
            yield sentence, _with(step, k, other).value
    yield "as a mean instead of a sum", partial(_mean, step)
    if "1" in step.code:
        yield (
            "as one mean of the whole batch, instead of one for each row",
            lambda symbols: np.full_like(v := step.value(symbols), v.mean()),
        )
    inputs, _, out = step.code.partition("->")
    if "ij" in inputs and "ij" not in out:
        yield (
            "with = instead of +=, so that only the last term of the sum over i and j is left",
            partial(_last, step),
        )
    for k, name in reversed([*enumerate(step.operands)]):
        part = inputs.split(",")[k]
        for letters in ("ij", "i", "j", "t", "q", "k"):
            if set(letters) <= set(part):
                sentence = f"with `{PLAIN.symbol(name)}` reversed along {' and '.join(letters)}"
                axes = tuple(part.index(letter) - len(part) for letter in letters)
                yield sentence, partial(_changed, step, k, partial(np.flip, axis=axes))


def _changed(step: Sum, k: int, change: Callable[[Array], Array], symbols: Any) -> Any:
    """The sum with operand k changed."""
    values = {name: symbols[name] for name in step.operands}
    values["_changed"] = change(symbols[step.operands[k]])
    return _with(step, k, "_changed").value(values)


def _with(step: Sum, k: int, name: str) -> Sum:
    """The sum with this symbol as operand k."""
    return Sum(step.symbol, step.code, *step.operands[:k], name, *step.operands[k + 1 :])


def _mean(step: Sum, symbols: Any) -> Any:
    """The mean instead of the sum: a sum of ones is the number of its terms."""
    ones = {name: np.ones_like(symbols[name]) for name in step.operands}
    return step.value(symbols) / Sum.value(step, ones)


def _last(step: Sum, symbols: Any) -> Any:
    """The last term along i and j that is not 0, where results overwrite each other."""
    parts, out = step.letters(symbols)
    terms = np.einsum(f"{','.join(parts)}->{out}ij", *(symbols[name] for name in step.operands))
    terms = terms.reshape(*terms.shape[:-2], -1)
    last = terms.shape[-1] - 1 - (terms[..., ::-1] != 0).argmax(axis=-1)
    return np.take_along_axis(terms, last[..., None], axis=-1)[..., 0]


# --- words -------------------------------------------------------------------------------------


def _shown(node: ast.AST) -> str:
    return PLAIN.expression(ast.unparse(node))


def _said(name: str, of: Derivation) -> str:
    """A symbol, and what it means."""
    return f"`{PLAIN.symbol(name)}`{_why(ast.Name(name), of)}"


def _why(node: ast.AST, of: Derivation) -> str:
    """What a symbol means, in brackets, if the derivation says so."""
    if not isinstance(node, ast.Name):
        return ""
    said = [step.words for step in of.every() if step.symbol == node.id and step.words]
    return f" ({said[0]})" if said else ""
