"""Two kinds of steps that only a derived backward pass needs: they send a gradient back.

Returned    each number of a gradient to the place from which an Arrange took its element
ToLargest   the gradient of a maximum to the largest element
"""

from __future__ import annotations

import ast
import re
from typing import Any

import numpy as np

from phitodeep.derivations.language.step import Arrange, Max, Step, evaluate
from phitodeep.derivations.language.terms import Replaced


class Returned(Step):
    """The gradient of what an Arrange moved: each number returns to where its element came from."""

    def __init__(self, symbol: str, gradient: str, step: Arrange) -> None:
        words = f"{gradient}, each number back where {step.of} had it, added up"
        super().__init__(symbol, f"{gradient} of {step.code}", (gradient, *step.operands), words)
        self.step, self.gradient = step, gradient

    def value(self, symbols: Any) -> Any:
        A, g = np.asarray(symbols[self.step.of]), np.asarray(symbols[self.gradient])
        numbered = np.arange(1, A.size + 1).reshape(A.shape)  # 0 is nobody's
        places = evaluate(self.step.code, Replaced(symbols, self.step.of, numbered))
        found = np.bincount(places.ravel(), g.ravel(), A.size + 1)[1:]
        return found.reshape(A.shape).astype(g.dtype)


class ToLargest(Step):
    """The gradient of a maximum, at the place of the largest element; of equal ones, the first."""

    def __init__(self, symbol: str, gradient: str, step: Max) -> None:
        (of,) = step.operands
        code = f"{gradient} where {of} is largest, else 0"
        super().__init__(symbol, code, (gradient, of))
        self.step, self.gradient, self.of = step, gradient, of

    def value(self, symbols: Any) -> Any:
        (part,), out = self.step.letters(symbols)
        A, kept = symbols[self.of], out.replace("1", "")
        order = kept + "".join(i for i in part if i not in kept)
        moved = np.einsum(f"{part}->{order}", A)
        rows = moved.reshape(*moved.shape[: len(kept)], -1)
        first = rows.argmax(-1)[..., None]
        found = np.zeros_like(rows)
        np.put_along_axis(found, first, symbols[self.gradient].reshape(first.shape), -1)
        return np.einsum(f"{order}->{part}", found.reshape(moved.shape))


def undone(step: Arrange, g: str) -> str:
    """The code that moves back what a step has moved; "" if elements were left out or repeated."""
    node: Any = ast.parse(step.code, mode="eval").body
    while not (isinstance(node, ast.Name) and node.id == step.of):
        func = getattr(node, "func", None)
        of_numpy = isinstance(func, ast.Attribute) and ast.unparse(func.value) == "np"
        if of_numpy:
            inner, args = node.args[0], node.args[1:]
        elif isinstance(func, ast.Attribute):
            inner, args = func.value, node.args
        elif isinstance(node, ast.Attribute | ast.Subscript):
            inner, args = node.value, []
        else:
            return ""
        options = [f"{k.arg}={ast.unparse(k.value)}" for k in getattr(node, "keywords", ())]
        name = func.attr if isinstance(func, ast.Attribute) else ast.unparse(node)[-4:]
        texts = [ast.unparse(a) for a in args]
        g = _back(name, g, ast.unparse(inner), ast.unparse(node), [*texts, *options])
        if not g:
            return ""
        node = inner
    return g


def _back(name: str, g: str, before: str, code: str, args: list[str]) -> str:
    """The code that undoes one move of `before`, which became `code`."""
    if name in ("reshape", "squeeze", "expand_dims"):
        return f"{g}.reshape({before}.shape)"
    if name in ("swapaxes", "flip"):
        return f"np.{name}({', '.join([g, *args])})"
    if name == "transpose" and all(arg.lstrip("-").isdigit() for arg in args):
        order = np.argsort([int(arg) % len(args) for arg in args])
        return f"{g}.transpose({', '.join(map(str, order))})"
    if name == "roll" and args[0].lstrip("-").isdigit():
        return f"np.roll({', '.join([g, str(-int(args[0])), *args[1:]])})"
    if name == "pad" and len(args) == 1:
        widths = ast.literal_eval(args[0])
        if isinstance(widths, tuple) and all(isinstance(w, tuple) for w in widths):
            ends = [f"{a or ''}:{f'-{b}' if b else ''}" for a, b in widths]
            return f"{g}[{', '.join(ends)}]"
    if code == f"{before}.T":
        return f"{g}.T"
    if re.fullmatch(r"(:, |\.\.\., )*::-1(, :)*", code.removeprefix(f"{before}[")[:-1]):
        return f"{g}{code.removeprefix(before)}"
    return ""
