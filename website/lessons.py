"""The lessons as pages: each cell runs in the build, and its output and pictures are shown.

The pages are made from the files in course/lessons/, like the notebooks (course/make_notebooks.py).
A cell that raises, or a solution that does not get full points, fails the build.
"""

from __future__ import annotations

import ast
import contextlib
import io
import linecache
import re
from functools import cache
from html import escape
from textwrap import dedent
from typing import Any, NamedTuple

from course import make_notebooks as course
from course.make_notebooks import BLANK, LESSONS, Cell
from phitodeep.plots.svg import Drawing
from website.pages import Page, Section
from website.parts import coded

FOLDER = "lessons"
AHA = re.compile(r"^> \*\*Aha\.\*\* (.*(?:\n> .*)*)", re.M)


class Lesson(NamedTuple):
    """A lesson that ran.

    number      from 1
    name        of its exercise, such as "two_paths"
    cells       its text and code, and what each cell gave: text, or a picture as SVG
    """

    number: int
    name: str
    cells: list[tuple[Cell, str, str]]

    @property
    def title(self) -> str:
        """Such as "3. Two paths: slopes add"."""
        return self.cells[0][0].source.partition("\n")[0].removeprefix("# ")

    @property
    def aha(self) -> str:
        """The one sentence to remember, as Markdown in one line."""
        text = "\n".join(cell.source for cell, *_ in self.cells if cell.kind == "markdown")
        (found,) = AHA.findall(text)
        return found.replace("\n> ", " ")

    @property
    def file(self) -> str:
        return f"{LESSONS[self.name].stem}"

    @property
    def pictures(self) -> list[Page]:
        drawn = [picture for *_, picture in self.cells if picture]
        return [
            Page(f"{FOLDER}/pictures/{self.file}_{k}.svg", picture)
            for k, picture in enumerate(drawn, 1)
        ]


@cache
def lessons() -> list[Lesson]:
    """Run all lessons."""
    return [Lesson(k, name, ran(name)) for k, name in enumerate(LESSONS, 1)]


def sections() -> list[Section]:
    every = lessons()
    return [Section("", [Page(f"{FOLDER}/index.md", index(every)), *map(page, every)])]


def assets() -> list[Page]:
    """The pictures, and the notebooks to download."""
    found = [picture for lesson in lessons() for picture in lesson.pictures]
    for path, text in course.course().items():
        found.append(Page(f"{FOLDER}/{path.relative_to(course.COURSE).as_posix()}", text))
    return found


# --- running ------------------------------------------------------------------------------------


def ran(name: str) -> list[tuple[Cell, str, str]]:
    """Run the cells of a lesson with its solution."""
    scope: dict[str, Any] = {"__name__": "lesson"}
    found = []
    for number, cell in enumerate(course.lesson(name, course.PAGES)):
        printed, value = io.StringIO(), None
        if cell.kind != "markdown":
            path = f"<lesson {name}, cell {number}>"
            with contextlib.redirect_stdout(printed):
                value = evaluated(cell.source, scope, path)
        text, picture = printed.getvalue().rstrip(), ""
        if cell.kind == "grade":
            if not value.passed:
                raise ValueError(f"the solution of the lesson {name!r} is not right:\n{value}")
            text = str(value)
        elif cell.kind == "picture":
            picture = svg(value)
        found.append((cell, text, picture))
    return found


def evaluated(source: str, scope: dict[str, Any], path: str) -> Any:
    """Run a cell as a notebook does; return the value of its last line, if it is an expression."""
    linecache.cache[path] = len(source), None, source.splitlines(keepends=True), path
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), path, "exec"), scope)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), path, "eval"), scope)
    return None


def svg(picture: Any) -> str:
    """A picture as SVG, the same in every build.

    A figure has a light ground, so it is readable on any page.
    """
    if isinstance(picture, Drawing):
        return str(picture)
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({"svg.hashsalt": "phitodeep"}):  # by default, the ids in it are random
        picture.savefig(text, format="svg", facecolor="#ffffff", metadata={"Date": None})
    return text.getvalue()


# --- pages --------------------------------------------------------------------------------------


def page(lesson: Lesson) -> Page:
    pictures = iter(lesson.pictures)
    parts = []
    for cell, printed, picture in lesson.cells:
        if cell.kind == "markdown":
            parts.append(AHA.sub(callout, cell.source))
        elif cell.kind == "solution":
            parts.append(exercise(lesson, cell.source))
        else:
            parts.append(f"```python\n{cell.source}\n```")
        if printed:
            parts.append(f"```text\n{printed}\n```")
        if picture:
            parts.append(figure(next(pictures), cell.caption))
    title, _, rest = parts[0].partition("\n")
    text = "\n\n".join([title, strip(lesson.number), rest, *parts[1:], end(lesson)])
    return Page(f"{FOLDER}/{lesson.file}.md", text)


def callout(found: re.Match[str]) -> str:
    words = found[1].replace("\n> ", "\n")
    return f'<div class="pd-aha" markdown="1">\n\n**Aha.** {words}\n\n</div>'


def exercise(lesson: Lesson, source: str) -> str:
    """The class with its blank, and the solution, folded."""
    blank = course.blank(source)
    (solution,) = (dedent(found[2]).rstrip() for found in course.SOLUTION.finditer(source + "\n"))
    assert BLANK.splitlines()[0] in blank
    return (
        f"```python\n{blank}\n```\n\n"
        f"Write your code into [the notebook]({lesson.file}.ipynb), which grades it.\n\n"
        '<details class="pd-answer" markdown="1">'
        f"<summary>The solution</summary>\n\n```python\n{solution}\n```\n\n</details>\n\n"
        "With the solution, the grader says:"
    )


def figure(picture: Page, caption: str) -> str:
    source = f"../{picture.path.removeprefix(f'{FOLDER}/')}"
    said = escape(caption)
    kind = "pd-wide" if 'width="1100"' in str(picture.content)[:200] else "pd-plot"
    return (
        f'<figure class="pd-picture {kind}"><a href="{source}" title="Full size">'
        f'<img src="{source}" alt="{said}" loading="lazy"></a>'
        f"<figcaption>{said}</figcaption></figure>"
    )


def strip(current: int) -> str:
    """The way through all lessons, with the current one marked."""
    steps = []
    for lesson in lessons():
        here = ' aria-current="step"' if lesson.number == current else ""
        steps.append(
            f'<li><a href="../{lesson.file}/" title="{escape(lesson.title)}"{here}>'
            f"{lesson.number}</a></li>"
        )
    return f'<nav class="pd-path" aria-label="Lessons"><ol>{"".join(steps)}</ol></nav>'


def end(lesson: Lesson) -> str:
    """Where to go from here."""
    kind = course.class_name([cell for cell, *_ in lesson.cells])
    rows = [
        f"Write it yourself: [the notebook]({lesson.file}.ipynb) has the blank, and `grade({kind}, "
        f'"{lesson.name}")` says what is right, what is wrong, and probably why. '
        f"[With its solution](solutions/{lesson.file}.ipynb)."
    ]
    around = {other.number: other for other in lessons()}
    before, after = around.get(lesson.number - 1), around.get(lesson.number + 1)
    ways = []
    if before:
        ways.append(f"Before: [{before.title}]({before.file}.md)")
    ways.append(f"Next: [{after.title}]({after.file}.md)" if after else "[All lessons](index.md)")
    return "\n\n".join(["---", *rows, " · ".join(ways), LICENCE])


LICENCE = (
    '<p class="pd-licence">Every output and picture on this page was made by its code when the '
    "site was built. Text: CC BY 4.0. Code: Apache-2.0.</p>"
)


def index(every: list[Lesson]) -> str:
    rows = [
        f'<li><a href="{lesson.file}/"><b>{escape(lesson.title.partition(". ")[2])}</b>'
        f"<span>{coded(lesson.aha)}</span></a></li>"
        for lesson in every
    ]
    return INDEX.format("".join(rows))


INDEX = """# Lessons

Thirteen lessons lead from one neuron to a GPT. You need calculus and Python, but no deep learning.
Each lesson asks a question, lets you predict the answer, and leaves one backward pass blank. You
write it, and `phitodeep.teach.grade` says what is right, what is wrong, and probably why. Start
with the first: each one builds on those before.

You can read a lesson as a page, on which all code has already run. To write its exercise, download
the notebook that the page links, and open it in Jupyter:

```bash
pip install "phitodeep[plot]>=0.3" jupyterlab
jupyter lab
```

<ol class="pd-lessons">{}</ol>

After the last lesson, look for the mistakes that real libraries made, in the
[gallery of bugs](../bugs/index.md). If you teach, read
[how to grade, and a plan for two hours](../course.md).
"""
