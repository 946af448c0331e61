"""The classes of the lessons: their solutions, blank ones, and ones with a mistake."""

from __future__ import annotations

import importlib.util
import itertools
import linecache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
NUMBER = itertools.count()


def _tool():
    spec = importlib.util.spec_from_file_location(
        "make_notebooks", ROOT / "course/make_notebooks.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = _tool()
LESSONS = {name: tool.solution(name) for name in tool.EXERCISES}


def cell(name, kind):
    """The source of the first cell of a kind."""
    return next(cell.source for cell in LESSONS[name] if cell.kind == kind)


def made(name, source):
    """Run the imports of a lesson and the source of its class; return the class."""
    path = f"<{name} {next(NUMBER)}>"
    text = f"{cell(name, '')}\n\n\n{source}\n"
    linecache.cache[path] = len(text), None, text.splitlines(keepends=True), path
    scope: dict[str, Any] = {"__name__": "lesson"}
    exec(compile(text, path, "exec"), scope)
    return scope[tool.class_name(LESSONS[name])]


def solved(name):
    """The class with its solution."""
    return made(name, cell(name, "solution"))


def changed(name, old, new):
    """The class with one piece of its source replaced."""
    source = cell(name, "solution")
    assert source.count(old) == 1, f"{old!r} occurs {source.count(old)} times in {name}"
    return made(name, source.replace(old, new))


def blank(name, body="raise NotImplementedError"):
    """The class as students receive it."""
    return made(name, tool.blank(cell(name, "solution")).replace("raise NotImplementedError", body))
