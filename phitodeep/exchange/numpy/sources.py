"""The source of functions together with everything that it refers to, for a file of its own."""

from __future__ import annotations

import ast
import builtins
import collections.abc
import dis
import inspect
import pathlib
import sys
import textwrap
import typing
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType
from typing import Any

from phitodeep.core.types import same
from phitodeep.errors import ArgumentError, ArgumentTypeError
from phitodeep.exchange.numpy.forms import literal

WIDTH = 99  # of a line of source
IMPORTED = {"collections.abc": collections.abc, "pathlib": pathlib, "typing": typing}


class Sources:
    """The sources of functions and of all that they use.

    The constants that a function uses are defined right before it. The functions that it uses wait
    until `finish` adds them, so that they are after all functions that the caller adds.

    names      everything that the file defines or imports, by name
    modules    the lines that import modules
    imports    the names imported from a module, by its name
    blocks     the sources of functions and constants, in order
    waiting    functions that others use: (name, function, who uses it)
    """

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names
        self.modules: set[str] = set()
        self.imports: dict[str, set[str]] = {}
        self.blocks: list[str] = []
        self.waiting: list[tuple[str, FunctionType, str]] = []

    def finish(self) -> None:
        """Add the functions that are waiting, and those that they use."""
        while self.waiting:
            self.add(*self.waiting.pop(0))

    def add(self, name: str, value: Any, who: str, helpers_first: bool = False) -> None:
        """Define `name` as this function, module or constant, which `who` uses.

        If `helpers_first`, the functions that it uses do not wait: they are defined before it.
        """
        if name in self.names:
            if not same(self.names[name], value):
                raise ArgumentError(
                    f"export_numpy: the name {name!r}, which {who} uses, means something else in "
                    "the exported file: rename it."
                )
            return
        if hasattr(builtins, name):
            raise ArgumentError(
                f"export_numpy: {name!r}, which {who} uses, would hide Python's own {name!r} in "
                "the exported file: rename it."
            )
        self.names[name] = value
        home = _home(name, value)
        if home is not None:
            self.imports.setdefault(home, set()).add(name)
        elif isinstance(value, ModuleType):
            full = _allowed(value.__name__, who)
            self.modules.add(f"import {full}" if full == name else f"import {full} as {name}")
        elif isinstance(value, FunctionType):
            self._add_function(name, value, who, helpers_first)
        else:
            self.blocks.append(assignment(name, value, f"the constant {name} of {who}"))

    def _add_function(
        self, name: str, function: FunctionType, who: str, helpers_first: bool
    ) -> None:
        source, tree = _source(function)
        if function.__name__ != name:
            raise ArgumentError(
                f"export_numpy: {who} uses {function.__name__} under the name {name!r}: use its "
                "own name."
            )
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    _allowed(alias.name, name)
            elif isinstance(node, ast.ImportFrom):
                _allowed(node.module or ".", name)
        known, before = function.__globals__, [*_names_before(tree)]
        used = [*before, *_globals(function.__code__)]
        missing = next((n for n in used if n not in known and not hasattr(builtins, n)), None)
        if missing is not None:
            raise ArgumentError(f"export_numpy: {name} uses {missing!r}, which is not defined.")
        # nothing evaluates annotations, but editors look up their names
        used += [n for n in _annotations(tree) if n in known and _home(n, known[n])]
        for n in sorted(used, key=lambda n: isinstance(known.get(n), FunctionType)):
            value = known.get(n)
            if isinstance(value, FunctionType) and not helpers_first and n not in before:
                self.waiting.append((n, value, name))
            elif n in known:
                self.add(n, value, name, helpers_first=True)
        self.blocks.append(source)

    def header(self) -> list[str]:
        """Return the lines that import what the sources use, except NumPy."""
        named = [f"from {home} import {', '.join(sorted(n))}" for home, n in self.imports.items()]
        return [*sorted(self.modules), *sorted(named)]


def _home(name: str, value: Any) -> str | None:
    """Return the module of IMPORTED that exports this value under this name, if one does."""
    homes = (h for h, m in IMPORTED.items() if name in m.__all__ and getattr(m, name) is value)
    return next(homes, None)


def assignment(name: str, value: Any, who: str) -> str:
    """Return the source `name = value`, in lines that are not too long."""
    text: str = literal(value, who)
    if len(name) + len(text) + 3 > WIDTH and isinstance(value, dict):
        items = (f"{literal(k, who)}: {_wrapped(v, who, 4)},\n" for k, v in value.items())
        text = f"{{\n    {'    '.join(items)}}}"
    elif len(name) + len(text) + 3 > WIDTH:
        text = _wrapped(value, who, 0)
    return f"{name} = {text}"


def _wrapped(value: Any, who: str, indent: int) -> str:
    """Return a constant as source; the numbers of a long tuple are in lines of their own."""
    text = literal(value, who)
    if len(text) + indent < 80 or not isinstance(value, tuple):
        return text
    start, parts = "\n" + " " * (indent + 4), [literal(v, who) for v in value]
    rows = [parts[i : i + 3] for i in range(0, len(parts), 3)]
    return f"({''.join(start + ', '.join(row) + ',' for row in rows)}\n{' ' * indent})"


def _allowed(module: str, who: str) -> str:
    """Return the name of a module, which must be NumPy's or Python's own."""
    if module.partition(".")[0] not in {"numpy", *sys.stdlib_module_names}:
        raise ArgumentError(
            f"export_numpy: {who} uses {module}, but exported files use NumPy and Python's own "
            "modules only."
        )
    return module


def _source(function: FunctionType) -> tuple[str, ast.FunctionDef]:
    """Return the source of a function and its tree, without the decorator `exports`."""
    name, defined_as = function.__qualname__, inspect.unwrap(function).__code__.co_name
    tree = None
    # Within `python -c`, Python 3.13 takes other text for the source of what `exec` has defined.
    with suppress(OSError, SyntaxError, ValueError):
        lines = textwrap.dedent(inspect.getsource(function)).splitlines()
        (tree,) = ast.parse("\n".join(lines)).body
    if tree is None or (isinstance(tree, ast.FunctionDef) and tree.name != defined_as):
        raise ArgumentTypeError(
            f"export_numpy needs the source of {name}, but it is not there: define the function "
            "in a file, with def."
        )
    if not isinstance(tree, ast.FunctionDef) or function.__closure__:
        raise ArgumentTypeError(
            f"export_numpy cannot copy {name}: define it with def, at module level, without "
            "decorators."
        )
    for decorator in reversed(tree.decorator_list):
        named = decorator.func if isinstance(decorator, ast.Call) else decorator
        if ast.unparse(named).rpartition(".")[2] == "exports":
            del lines[decorator.lineno - 1 : decorator.end_lineno]
            tree.decorator_list.remove(decorator)
    return "\n".join(lines), tree


def _names_before(tree: ast.FunctionDef) -> Iterator[str]:
    """Yield the names in a function's decorators and defaults."""
    defaults = [d for d in (*tree.args.defaults, *tree.args.kw_defaults) if d is not None]
    for part in (*tree.decorator_list, *defaults):
        yield from (node.id for node in ast.walk(part) if isinstance(node, ast.Name))


def _annotations(tree: ast.FunctionDef) -> Iterator[str]:
    """Yield the names in the annotations of a function."""
    for node in ast.walk(tree):
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if part is not None:
                yield from (n.id for n in ast.walk(part) if isinstance(n, ast.Name))


def _globals(code: CodeType) -> Iterator[str]:
    """Yield the global names that a function reads, in the order of its code."""
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_GLOBAL":
            yield step.argval
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals(inner)
