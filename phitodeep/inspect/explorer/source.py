"""The Python source of a layer's passes, and the line that computes each symbol."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from typing import Any

PASSES = {"forward": ("forward", "value"), "backward": ("backward", "gradient")}


def source_of(kind: type) -> dict[str, Any]:
    """The source of both passes, by direction, with the methods of the class that a pass calls.

    A line is its number in the file and its text; a pass of a class that was typed in a console has
    no source.
    """
    found = {}
    for direction, names in PASSES.items():
        name = next((name for name in names if hasattr(kind, name)), names[0])
        if lines := _lines(kind, name):
            called = dict.fromkeys(re.findall(r"\bself\.(\w+)\(", "\n".join(t for _, t in lines)))
            for other in (method for method in called if method in vars(kind) and method != name):
                lines += [(None, ""), *_lines(kind, other)]
            found[direction] = {"name": name, "lines": lines}
    return found


def method_with(kind: type, symbol: str) -> tuple[str, list[str], int | None]:
    """The method of a backward pass that computes a symbol: its name, lines, and that line's index.

    It is `backward`, or a method of the same class that it calls.
    """
    lines = source_of(kind).get("backward", {"lines": []})["lines"]
    lit = line_of(symbol, [text for _, text in lines])
    ends = [k for k, (number, _) in enumerate(lines) if number is None]
    start = max((k + 1 for k in ends if k < (lit or 0)), default=0)
    end = min((k for k in ends if k >= start), default=len(lines))
    texts = [text for _, text in lines[start:end]]
    name = texts[0].removeprefix("def ").partition("(")[0] if texts else "backward"
    return f"{kind.__name__}.{name}", texts, None if lit is None else lit - start


def _lines(kind: type, name: str) -> list[tuple[int | None, str]]:
    """The numbered lines of a method, without its docstring."""
    try:
        lines, first = inspect.getsourcelines(getattr(kind, name))
    except (OSError, TypeError, AttributeError):
        return []
    text = textwrap.dedent("".join(lines)).rstrip()
    doc = _docstring(text)
    return [(first + k, line) for k, line in enumerate(text.split("\n")) if k not in doc]


def _docstring(method: str) -> range:
    """The indices of the lines of a method's docstring."""
    function = ast.parse(method).body[0]
    if not isinstance(function, ast.FunctionDef) or ast.get_docstring(function) is None:
        return range(0)
    first = function.body[0]
    return range(first.lineno - 1, first.end_lineno or 0)


def line_of(symbol: str, lines: list[str]) -> int | None:
    """The index of the line that computes a symbol, if the source shows it."""
    whole = symbol in ("Y", "dX", "L", "dP")
    name = re.escape(symbol.removeprefix("d"))
    patterns = [
        rf'(grad_array|_gradients)\(.*"{name}"' if symbol.startswith("d") else None,
        rf"^\s*{re.escape(symbol)}\b[^=]*(?<![=<>!])=(?!=)",
        r"^\s*return\b" if whole else None,
    ]
    for pattern in filter(None, patterns):
        if hits := [i for i, line in enumerate(lines) if re.search(pattern, line)]:
            return hits[-1] if whole else hits[0]
    return None
