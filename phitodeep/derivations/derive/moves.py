"""The code that undoes a move, such as a transpose: each element goes back to its one place."""

from __future__ import annotations

import ast
import re
from typing import Any

import numpy as np

from phitodeep.derivations.language.step import Arrange


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
        name = func.attr if isinstance(func, ast.Attribute) else ""
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
    if re.fullmatch(r"(:|None|\.\.\.)(, (:|None|\.\.\.))*", code.removeprefix(f"{before}[")[:-1]):
        return f"{g}.reshape({before}.shape)"
    if code == f"{before}.T":
        return f"{g}.T"
    if re.fullmatch(r"(:, |\.\.\., )*::-1(, :)*", code.removeprefix(f"{before}[")[:-1]):
        return f"{g}{code.removeprefix(before)}"
    return ""
