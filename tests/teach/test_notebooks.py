"""The notebooks: up to date, blank for students, and the solutions run and pass."""

import json

import pytest

from phitodeep.teach import EXERCISES, Grade, attempt
from tests.rows import few
from tests.teach.lessons import cell, tool

each = pytest.mark.parametrize("name", few(EXERCISES, 3))


def sources(text, kind="code"):
    return ["".join(c["source"]) for c in json.loads(text)["cells"] if c["cell_type"] == kind]


def test_the_notebooks_are_what_the_tool_makes_one_for_each_exercise():
    made = tool.course()
    found = {path: path.read_text(encoding="utf-8") for path in tool.COURSE.rglob("*.ipynb")}
    stale = "out of date: run python course/make_notebooks.py"
    assert found.keys() == made.keys(), stale
    for path, text in made.items():
        assert found[path] == text, f"{path.name} is {stale}"
    assert [*tool.LESSONS] == [*EXERCISES]
    assert [path.stem[:2] for path in tool.LESSONS.values()] == [f"{k:02}" for k in range(1, 14)]


@each
def test_each_lesson_has_its_parts_and_students_do_not_see_the_solution(name, monkeypatch):
    monkeypatch.setattr(attempt, "FORKS", False)  # each check of otter grades
    text = tool.notebook(tool.student(name))
    solution = tool.SOLUTION.search(cell(name, "solution") + "\n")
    assert solution is not None
    given, shown = tool.blank(cell(name, "solution")), "".join(sources(text))
    own = [line.strip() for line in solution[2].splitlines() if line.strip() not in given]
    assert own
    assert not [line for line in own if line in shown]
    assert text.count("YOUR CODE HERE") == 1
    assert "SOLUTION" not in text
    cells = tool.solution(name)
    text = "\n".join(c.source for c in cells if c.kind == "markdown")
    for part in (
        *("# ", "## The forward pass, with numbers", "**Predict first.**", "## The path"),
        *("## Your turn", "## The aha", "## Train with your", "## Questions", "<details>"),
        "CC BY 4.0",
    ):
        assert part in text, part
    assert "{{" not in text
    kinds = [c.kind for c in cells]
    assert kinds.count("solution") == kinds.count("grade") == 1
    assert kinds.count("picture") >= 1
    assert text.count("**Aha.**") == 1
    assert text.partition("## Questions")[2].count("<details>") in (2, 3)
    nbgrader = json.loads(tool.notebook(tool.for_nbgrader(name, 7)))
    marked = [c for c in nbgrader["cells"] if "nbgrader" in c["metadata"]]
    assert [c["metadata"]["nbgrader"]["solution"] for c in marked] == [True, False]
    hidden = "".join(marked[1]["source"])
    assert "### BEGIN HIDDEN TESTS\nround(10 * grade(" in hidden
    assert "seed=7" in hidden
    otter = tool.notebook(tool.for_otter(name, 7))
    assert [r.splitlines()[0] for r in sources(otter, "raw")][:2] == [
        "# ASSIGNMENT CONFIG",
        "# BEGIN QUESTION",
    ]
    tests = [source for source in sources(otter) if "BEGIN TEST CONFIG" in source]
    total = sum(int(source.partition("points: ")[2].split()[0]) for source in tests)
    scope = {}
    exec(f"{cell(name, '')}\n{cell(name, 'solution')}", scope)
    for source in tests:
        exec(source, scope)
    kind = scope[tool.class_name(tool.solution(name))]
    assert scope["grade"](kind, name, 7).possible == total


@each
def test_a_solution_runs_from_top_to_bottom_and_passes(name, capsys):
    scope = {"__name__": "notebook"}
    grades = []
    for number, source in enumerate(sources(tool.notebook(tool.solution(name)))):
        path = f"<{name} cell {number}>"
        if source.startswith("grade("):
            grades.append(eval(compile(source, path, "eval"), scope))
        else:
            exec(compile(source, path, "exec"), scope)
    assert [type(found) for found in grades] == [Grade]
    assert grades[0].passed
    shown = capsys.readouterr().out
    if name == "attention":
        losses = shown.partition("loss by epoch: [")[2].partition("]")[0].split(",")
        assert float(losses[-1]) < 2.2, losses  # of log 27 = 3.3 at the start
    else:
        last = shown.strip().splitlines()[-1]
        assert int(last.partition("%")[0]) > 80, last


def test_a_stale_notebook_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "COURSE", tmp_path)
    monkeypatch.setattr(tool, "LESSONS", {"relu": tool.LESSONS["relu"]})
    for options, stale in ((["--check"], 1), ([], 0), (["--check"], 0)):
        monkeypatch.setattr("sys.argv", ["make_notebooks.py", *options])
        assert tool.main() == stale
