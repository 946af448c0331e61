"""The classes of the lessons: their solutions, blank ones, and ones with a mistake."""

import itertools
import linecache
from dataclasses import replace

import pytest

from course import make_notebooks as tool
from phitodeep.teach import EXERCISES, attempt

needs_forks = pytest.mark.skipif(not attempt.FORKS, reason="Python cannot fork here")
NUMBER = itertools.count()
LESSONS = {name: tool.solution(name) for name in tool.EXERCISES}


def brief(name, part=""):
    """The exercise with two ordinary batches and those of one special part: it is graded sooner."""
    whole = EXERCISES[name]

    def cases(rng):
        drawn = whole.cases(rng)
        special = [case for case in drawn if case.part and case.part == part]
        return [case for case in drawn if not case.part][:2] + special

    return replace(whole, cases=cases)


DENSE = brief("dense")


def cell(name, kind):
    """The source of the first cell of a kind."""
    return next(cell.source for cell in LESSONS[name] if cell.kind == kind)


def made(name, source):
    """Run the imports of a lesson and the source of its class; return the class."""
    path = f"<{name} {next(NUMBER)}>"
    text = f"{cell(name, '')}\n\n\n{source}\n"
    linecache.cache[path] = len(text), None, text.splitlines(keepends=True), path
    scope = {"__name__": "lesson"}
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
