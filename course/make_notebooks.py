"""Make the notebooks of the course from course/lessons/ and from the layers' own derivations.

python course/make_notebooks.py                       write examples/course/ and its solutions/
python course/make_notebooks.py --check               only say which of them are out of date
python course/make_notebooks.py --nbgrader DIR --seed 7    sources for nbgrader, one per lesson
python course/make_notebooks.py --otter DIR --seed 7       sources for otter assign

A lesson is a Python file in cells: `# %% [markdown]`, `# %%`, `# %% solution` (the class, whose
solution stands between BEGIN SOLUTION and END SOLUTION), `# %% grade`, and `# %% picture: caption`,
whose last line is a picture. In its text, {{forward}}, {{shapes}} and {{path}} stand for formulas,
shapes and the guided derivation, which come from `steps()` of the reference, so they cannot go out
of date. `{{path dS dQ}}` picks some symbols. {{question ...}} and {{end}} enclose an answer, which
is folded. website/lessons.py makes the pages of the site from the same files.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from phitodeep.derivations.language.mathml import MathML
from phitodeep.derivations.language.run import Scope
from phitodeep.derivations.language.step import Given, Loop, Step
from phitodeep.teach import EXERCISES, Exercise
from phitodeep.teach.truth import ask, solve, symbols_of

ROOT = Path(__file__).parent.parent
LESSONS = {path.stem[3:]: path for path in sorted((ROOT / "course" / "lessons").glob("*.py"))}
COURSE = ROOT / "examples" / "course"
BLANK = "# YOUR CODE HERE\nraise NotImplementedError"
QUESTION = re.compile(r"\{\{question (.*?)\}\}\n(.*?)\{\{end\}\}", re.S)
SOLUTION = re.compile(r"^( *)# BEGIN SOLUTION\n(.*?)^ *# END SOLUTION\n?", re.M | re.S)
FOOT = (
    "---\n*Made by `course/make_notebooks.py` from `course/lessons/{0}` and the derivation of the "
    "layer. Text: CC BY 4.0. Code: Apache-2.0.*"
)
STUCK = (
    "Is anything wrong? Fix the first problem, and run the cell again. If you are stuck, "
    '`print(grade({0}, "{1}", hints=2))` adds the formula, and `hints=3` the line of code. '
    "Another `seed` draws other batches."
)
TEST_CONFIG = '""" # BEGIN TEST CONFIG\nhidden: true\npoints: {}\n""" # END TEST CONFIG'
NOTEBOOK = {
    "metadata": {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    },
    "nbformat": 4,
    "nbformat_minor": 5,
}


class Cell(NamedTuple):
    """One cell: its kind ("markdown", "raw", "", "solution", "grade" or "picture") and its source.

    caption    says what a picture shows
    """

    kind: str
    source: str
    metadata: Mapping[str, Any] = MappingProxyType({})
    caption: str = ""


class Style(NamedTuple):
    """How the text of a lesson is written: for notebooks or for pages.

    listed    a list of steps, each with its words
    folded    the step of a number, behind its question
    answer    what begins an answer that is folded
    """

    listed: Callable[[list[tuple[Step, str]]], str]
    folded: Callable[[int, Step, str], str]
    answer: str


def _listed(steps: list[tuple[Step, str]]) -> str:
    return "\n".join(f"- ${step.latex}${f'  ({words})' if words else ''}" for step, words in steps)


def _listed_on_page(steps: list[tuple[Step, str]]) -> str:
    rows = "".join(
        f"<li>{step.mathml}{f' <span>{escape(words)}</span>' if words else ''}</li>"
        for step, words in steps
    )
    return f'<ul class="pd-formulas">{rows}</ul>'


def _folded(number: int, step: Step, words: str) -> str:
    said = f": {words}" if words else ""
    return (
        f"<details><summary>{number}. <code>{step.symbol}</code>{said}</summary>\n\n"
        f"$${step.latex}$$\n\n</details>"
    )


def _folded_on_page(number: int, step: Step, words: str) -> str:
    said = f": {escape(words)}" if words else ""
    formula = step.written(MathML("block"))
    return (
        f"<details><summary>{number}. <code>{step.symbol}</code>{said}</summary>{formula}</details>"
    )


NOTEBOOKS = Style(_listed, _folded, "<details>")
PAGES = Style(_listed_on_page, _folded_on_page, '<details class="pd-answer" markdown="1">')


# --- lessons -----------------------------------------------------------------------------------


def lesson(name: str, style: Style = NOTEBOOKS) -> list[Cell]:
    """Read the cells of a lesson, with its formulas in place."""
    text = LESSONS[name].read_text(encoding="utf-8")
    cells = []
    for part in re.split(r"^# %%", text, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        kind, _, caption = head.strip().strip("[]").partition(": ")
        if kind == "markdown":
            lines = [line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines()]
            body = filled("\n".join(lines), EXERCISES[name], style)
        cells.append(Cell(kind, body.strip(), caption=caption))
    return cells


def class_name(cells: list[Cell]) -> str:
    """The name of the class that the student writes: the last one in the solution's cell."""
    source = next(cell.source for cell in cells if cell.kind == "solution")
    return re.findall(r"^class (\w+)", source, re.MULTILINE)[-1]


def coded(text: str) -> str:
    """A line of Markdown as HTML, where Markdown is not read: `code` is marked."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", " ".join(text.split()))


def filled(text: str, exercise: Exercise, style: Style) -> str:
    """Replace {{forward}}, {{shapes}}, {{path}} and the questions."""
    text = QUESTION.sub(
        lambda found: (
            f"{style.answer}<summary>{coded(found[1])}</summary>\n\n"
            f"{found[2].strip()}\n\n</details>"
        ),
        text,
    )
    if "{{" not in text:
        return text
    rng = np.random.default_rng(0)
    case = exercise.cases(rng)[0]
    question, reference = ask(exercise, case, rng)
    scope = solve(reference, question)

    def insert(found: re.Match[str]) -> str:
        what, *symbols = found[1].split()
        steps = [step for step in _steps(scope, what, symbols) if not isinstance(step, Given)]
        said = [(s, s.words if s.words not in s.formula else "") for s in steps]
        if what == "forward":
            return style.listed(said)
        if what == "path":
            return "\n".join(style.folded(k, *row) for k, row in enumerate(said, 1))
        return shapes(scope, question, symbols_of(reference)[1])

    return re.sub(r"\{\{(.*?)\}\}", insert, text)


def shapes(scope: Scope, question: Any, gradients: list[str]) -> str:
    """A table of what arrives and what is returned, for the first batch of the exercise."""
    given = [name for name in question.given if name != "y"]
    options = "".join(f", {k} = {v}" for k, v in question.case.options.items())
    rows = [f"For a batch of shape {question.case.shape}{options}:", ""]
    rows += ["| symbol | shape | what it is |", "|---|---|---|"]
    names = [*given, *question.params, *gradients]
    for name in sorted(names, key=lambda n: (n.startswith("d"), n != "dY")):
        words = KNOWN.get(name, f"the gradient of {name[1:]}" if name[0] == "d" else "a parameter")
        rows.append(f"| `{name}` | {np.shape(scope[name])} | {words} |")
    return "\n".join(rows)


KNOWN = {
    "X": "the input",
    "P": "the predictions, here logits",
    "dY": "what arrives",
    "dX": "what you return",
    "dP": "what you return",
}


def _steps(scope: Scope, what: str, symbols: list[str]) -> list[Step]:
    """The steps of a pass, or those of some symbols."""
    found = [*_flat(getattr(scope.derivation, "backward" if what == "path" else "forward"))]
    return [step for step in found if step.symbol in symbols] if symbols else found


def _flat(steps: Any) -> Iterator[Step]:
    for step in steps:
        if isinstance(step, Loop):
            yield from _flat(step.body)
        else:
            yield step


# --- notebooks ---------------------------------------------------------------------------------


def blank(source: str) -> str:
    """The source with every solution replaced by a place to write one."""

    def empty(found: re.Match[str]) -> str:
        return "".join(f"{found[1]}{line}\n" for line in BLANK.splitlines())

    return SOLUTION.sub(empty, source + "\n").strip()


def student(name: str) -> list[Cell]:
    """The notebook that students receive."""
    cells = solution(name)
    return [cell._replace(source=blank(cell.source)) for cell in cells]


def solution(name: str) -> list[Cell]:
    """The notebook with its solution."""
    cells = [*lesson(name), Cell("markdown", FOOT.format(LESSONS[name].name))]
    stuck = Cell("markdown", STUCK.format(class_name(cells), name))
    return [c for cell in cells for c in ((cell, stuck) if cell.kind == "grade" else (cell,))]


def for_nbgrader(name: str, seed: int) -> list[Cell]:
    """The source from which nbgrader makes the students' version, with 10 points per notebook."""
    cells, made = solution(name), []
    for cell in cells:
        made.append(cell)
        if cell.kind == "solution":
            made[-1] = cell._replace(metadata=_nbgrader(f"{name}-class", solution=True))
        if cell.kind == "grade":
            test = (
                "# 10 points: the share of the hidden checks that are right\n"
                "### BEGIN HIDDEN TESTS\n"
                f'round(10 * grade({class_name(cells)}, "{name}", seed={seed}).score, 2)\n'
                "### END HIDDEN TESTS"
            )
            made.append(Cell("", test, _nbgrader(f"{name}-points", grade=True)))
    return made


def _nbgrader(grade_id: str, grade: bool = False, solution: bool = False) -> dict[str, Any]:
    points = {"points": 10} if grade else {}
    flags = {"grade": grade, "locked": grade, "solution": solution, "task": False}
    return {"nbgrader": {"grade_id": grade_id, "schema_version": 3, **flags, **points}}


def for_otter(name: str, seed: int) -> list[Cell]:
    """The source from which otter assign makes the students' version and the autograder."""
    cells = solution(name)
    exercise, kind = EXERCISES[name], class_name(cells)
    rng = np.random.default_rng(0)
    cases = exercise.cases(rng)
    gradients = symbols_of(ask(exercise, cases[0], rng)[1])[1]
    parts = [(d, 2) for d in gradients] + [(c.part, 1) for c in cases if c.part]
    made = [Cell("raw", "# ASSIGNMENT CONFIG\nexport_cell: false\nsolutions_pdf: false")]
    for cell in cells:
        if cell.kind == "solution":
            made.append(Cell("raw", f"# BEGIN QUESTION\nname: {name}"))
            made += [Cell("raw", "# BEGIN SOLUTION"), cell, Cell("raw", "# END SOLUTION")]
            made.append(Cell("raw", "# BEGIN TESTS"))
            for part, points in [("forward", 1), *parts, ("float32", 1), ("side effects", 1)]:
                test = f'assert grade({kind}, "{name}", seed={seed})["{part}"].passed'
                made.append(Cell("", f"{TEST_CONFIG.format(points)}\n{test}"))
            made += [Cell("raw", "# END TESTS"), Cell("raw", "# END QUESTION")]
        else:
            made.append(cell)
    return made


def notebook(cells: list[Cell]) -> str:
    """The text of an .ipynb file, without outputs."""
    made = []
    for number, cell in enumerate(cells):
        kind = cell.kind if cell.kind in ("markdown", "raw") else "code"
        lines = cell.source.splitlines(keepends=True)
        found = {"cell_type": kind, "id": f"cell-{number}", "metadata": dict(cell.metadata)}
        if kind == "code":
            found |= {"execution_count": None, "outputs": []}
        made.append({**found, "source": lines})
    text = json.dumps({"cells": made, **NOTEBOOK}, indent=1, ensure_ascii=False, sort_keys=True)
    return f"{text}\n"


def course() -> dict[Path, str]:
    """The text of every notebook in examples/course."""
    return {
        folder / f"{path.stem}.ipynb": notebook(make(name))
        for folder, make in ((COURSE, student), (COURSE / "solutions", solution))
        for name, path in LESSONS.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if stale")
    parser.add_argument("--nbgrader", type=Path, metavar="DIR", help="write sources for nbgrader")
    parser.add_argument("--otter", type=Path, metavar="DIR", help="write sources for otter assign")
    parser.add_argument("--seed", type=int, default=2026, help="the seed of the hidden checks")
    options = parser.parse_args()
    made = course()
    if options.nbgrader or options.otter:
        made = {}
        for folder, make in ((options.nbgrader, for_nbgrader), (options.otter, for_otter)):
            if folder:
                made |= {
                    folder / name / f"{name}.ipynb": notebook(make(name, options.seed))
                    for name in LESSONS
                }
    stale = [
        path
        for path, text in made.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale:
        print(f"{'out of date' if options.check else 'written'}: {path}")
        if not options.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made[path], encoding="utf-8")
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
