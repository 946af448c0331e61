"""The sources of functions, and of all that they use, as an exported file needs them."""

from __future__ import annotations

import ast
import builtins
import collections.abc
import functools
import inspect
import pathlib
import re
import symtable
import sys
import textwrap
import typing
from collections.abc import Iterable
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.types import same
from phitodeep.errors import ArgumentError, ArgumentTypeError

WIDTH = 99  # of a line of source
TEXTS = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""")
IMPORTED = {"collections.abc": collections.abc, "pathlib": pathlib, "typing": typing}


class Sources:
    """The sources of functions and of all that they use.

    The constants that a function uses are defined right before it. The functions that it uses wait
    until `finish` adds them, so that they are after all functions that the caller adds.

    names      everything that the file defines or imports, and what Python does, by name
    modules    the lines that import modules
    imports    the names imported from a module, by its name
    blocks     the sources of functions and constants, in order
    waiting    functions that others use: (name, function, who uses it)
    """

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = {**vars(builtins), **names}
        self.modules: set[str] = set()
        self.imports: dict[str, set[str]] = {}
        self.blocks: list[str] = []
        self.waiting: list[tuple[str, FunctionType, str]] = []

    def of(self, functions: Iterable[Any]) -> list[str]:
        """Add functions that the file calls; return their sources."""
        start = len(self.blocks)
        for function in functions:
            self.add(function.__name__, function, function.__name__)
        return self.blocks[start:]

    def finish(self) -> list[str]:
        """Add the functions that are waiting, and those that they use; return their sources."""
        start = len(self.blocks)
        while self.waiting:
            self.add(*self.waiting.pop(0))
        return self.blocks[start:]

    def add(self, name: str, value: Any, who: str) -> None:
        """Define `name` as this function, module or constant, which `who` uses."""
        if name in self.names:
            if not same(self.names[name], value):
                raise ArgumentError(
                    f"export_numpy: the name {name!r}, which {who} uses, means something else in "
                    "the exported file: rename it."
                )
            return
        self.names[name] = value
        home = _home(name, value)
        if home is not None:
            self.imports.setdefault(home, set()).add(name)
        elif isinstance(value, ModuleType):
            full = _allowed(value.__name__, who)
            self.modules.add(f"import {full}" if full == name else f"import {full} as {name}")
        elif isinstance(value, FunctionType):
            self._add_function(name, value, who)
        else:
            text = f"{name} = {literal(value, f'the constant {name} of {who}')}"
            self.blocks.append(text if len(text) <= WIDTH else wrapped(text, "", "    "))

    def _add_function(self, name: str, function: FunctionType, who: str) -> None:
        source, known = source_of(function), function.__globals__
        if function.__name__ != name:
            raise ArgumentError(
                f"export_numpy: {who} uses {function.__name__} under the name {name!r}: use its "
                "own name."
            )
        for module in source.imports:
            _allowed(module, name)
        for n in sorted(source.first | source.later):
            if n not in known and not hasattr(builtins, n):
                raise ArgumentError(f"export_numpy: {name} uses {n!r}, which is not defined.")
            if isinstance(known.get(n), FunctionType) and n not in source.first:
                self.waiting.append((n, known[n], name))
            elif n in known:
                self.add(n, known[n], name)
        for n in source.names:  # editors look up the names in annotations
            if _home(n, known.get(n)):
                self.add(n, known[n], name)
        self.blocks.append(source.text)

    def header(self) -> list[str]:
        """Return the lines that import what the sources use, except NumPy."""
        named = [f"from {home} import {', '.join(sorted(n))}" for home, n in self.imports.items()]
        return [*sorted(self.modules), *sorted(named)]


def _home(name: str, value: Any) -> str | None:
    """Return the module of IMPORTED that exports this value under this name, if one does."""
    homes = (h for h, m in IMPORTED.items() if name in m.__all__ and getattr(m, name) is value)
    return next(homes, None)


def _allowed(module: str, who: str) -> str:
    """Return the name of a module, which must be NumPy's or Python's own."""
    if module.partition(".")[0] not in {"numpy", *sys.stdlib_module_names}:
        raise ArgumentError(
            f"export_numpy: {who} uses {module}, but exported files use NumPy and Python's own "
            "modules only."
        )
    return module


class Source(NamedTuple):
    """The source of a function, without the decorator `exports`, and the names in it.

    imports    the modules that it imports inside
    first      the names outside of it that are read when it is defined
    later      those that it reads when it is called
    names      all names in it, with those in annotations
    """

    text: str
    imports: list[str]
    first: set[str]
    later: set[str]
    names: list[str]


@functools.lru_cache(1 << 9)  # most models use the same functions
def source_of(function: FunctionType) -> Source:
    """Return the source of a function; refuse what is not a plain function of a file."""
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
    text, nodes = "\n".join(lines), [*ast.walk(tree)]
    imports = [a.name for node in nodes if isinstance(node, ast.Import) for a in node.names]
    imports += [node.module or "." for node in nodes if isinstance(node, ast.ImportFrom)]
    future = "from __future__ import annotations\n"  # annotations are not evaluated
    module = symtable.symtable(future + text, "<source>", "exec")
    tables = [table for table in module.get_children() if table.get_type() != "annotation"]
    for table in tables:
        tables += table.get_children()
    first = {symbol.get_name() for symbol in module.get_symbols() if symbol.is_referenced()}
    later = {s.get_name() for table in tables for s in table.get_symbols() if s.is_global()}
    return Source(text, imports, first, later, [n.id for n in nodes if isinstance(n, ast.Name)])


def literal(value: Any, who: str) -> str:
    """Return a number, a text, None, or a list, tuple or dict of such as Python source."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return f"float('{value}')"
    if value is None or isinstance(value, bool | int | float | str):
        text = repr(value)
        simple = isinstance(value, str) and not set(text[1:-1]) & {"'", '"'}
        return f'"{text[1:-1]}"' if simple else text
    if isinstance(value, dict):
        pairs = (f"{literal(k, who)}: {literal(v, who)}" for k, v in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        inside = ", ".join(literal(v, who) for v in value)
        comma = "," * (isinstance(value, tuple) and len(value) == 1)
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{comma})"
    raise ArgumentTypeError(
        f"export_numpy: {who} is a {type(value).__name__}, which cannot be written as source: use "
        "numbers, texts, lists, tuples and dicts of them, or make it a Param or State."
    )


def wrapped(source: str, first: str, others: str) -> str:
    """Return source inside brackets in lines that are not too long, with these indents."""
    whole = TEXTS.sub(lambda text: text[0].replace(" ", "\0"), source)  # texts are not broken
    wrapper = textwrap.TextWrapper(
        WIDTH, first, others, break_long_words=False, break_on_hyphens=False
    )
    return wrapper.fill(whole).replace("\0", " ")
