"""The mutation test itself: it breaks what it should, and tells which mutants lived."""

import ast
import json
import re
import shutil
import subprocess
from fnmatch import fnmatch

import pytest

from tests.rows import long
from tools import mutants as tool
from tools.mutants import EQUIVALENT, ROOT, main, mutants

SLOPE = b'''"""A file."""

import numpy as np


class Bend:
    def forward(self, x):
        return x * 3

    def slope(self, x):
        """Its docstring - which is not code."""
        s = 3 - x  # a comment
        s *= 2
        return s
'''


def made(statement):
    """What the statement becomes, as the body of a function that is broken."""
    return {m.after for m in mutants(f"def backward(self):\n    {statement}".encode(), "f.py")}


def test_small_source_gives_exactly_these_mutants():
    assert [(m.function, m.line, m.before, m.after) for m in mutants(SLOPE, "loss/base.py")] == [
        ("Bend.slope", 12, "s = 3 - x", "s = 3 + x"),
        ("Bend.slope", 12, "s = 3 - x", "s = 3"),
        ("Bend.slope", 12, "s = 3 - x", "s = -x"),
        ("Bend.slope", 12, "s = 3 - x", "s = 4 - x"),
        ("Bend.slope", 12, "s = 3 - x", "s = 2 - x"),
        ("Bend.slope", 13, "s *= 2", "s /= 2"),
        ("Bend.slope", 13, "s *= 2", "pass  # s *= 2"),
        ("Bend.slope", 13, "s *= 2", "s *= 3"),
        ("Bend.slope", 13, "s *= 2", "s *= 1"),
    ]


def test_one_statement_changes_and_no_other():
    kept = SLOPE.decode().splitlines()
    for mutant in mutants(SLOPE, "loss/base.py"):
        lines = mutant.source.decode().splitlines()
        ast.parse(mutant.source)
        changed = [i for i, (a, b) in enumerate(zip(lines, kept, strict=True), 1) if a != b]
        assert changed == [mutant.line]
        before = kept[mutant.line - 1]
        assert lines[mutant.line - 1] == before.replace(mutant.before, mutant.after)


BECOMES = """
dX = r * (g - mean - X_hat * m) => dX = r * (g - mean)
dX = r * (g - mean - X_hat * m) => dX = r * (g - X_hat * m)
dX = r * (g - mean - X_hat * m) => dX = r * (g - mean - m)
dX = r * (g - mean - X_hat * m) => dX = g - mean - X_hat * m
dX = r * (g - mean - X_hat * m) => dX = r * (g - mean + X_hat * m)
g = np.multiply(dY, gamma, out=g) => g = np.multiply(dY, 1, out=g)
return np.multiply(dY, mask) => return np.multiply(dY, 1)
g -= mean => pass  # g -= mean
np.subtract(dY, m, out=dX) => pass  # np.subtract(dY, m, out=dX)
m = X.sum(axis=-1) => m = X.mean(axis=-1)
m = X.mean(axis=-1) => m = X.sum(axis=-1)
m = X.mean(axis=-1) => m = X.mean(axis=0)
m = X.mean(axis=-1) => m = X.mean(axis=1)
db = sum_rows(dY) => db = sum_rows(dY) / len(dY)
dX = dY @ self.W.T => dX = dY @ self.W
s = 1 - t ** 2 => s = 1 - t
s = 1 - t ** 2 => s = 1 - t ** 3
x = -y => x = y
s = np.where(x > 0, 1, a) => s = np.where(x < 0, 1, a)
s = np.where(x > 0, 1, a) => s = np.where(x > 0, a, 1)
s = np.where(x > 0, 1, a) => s = 1
s = np.minimum(x, d) => s = np.maximum(x, d)
s = np.minimum(x, d) => s = np.minimum(x, x)
s = np.clip(x, -d, d) => s = x
s = sigmoid(x) - t => s = x - t
np.sqrt(v, out=s) => np.positive(v, out=s)
e = np.einsum('d,d->', a, b) => e = np.einsum('d,d->', a, a)
e = w[..., None] => e = w
e = 1 / n if n else 0.0 => e = 1 / n
e = (x > -3) & (x < 3) => e = x < 3
e = (x > -3) & (x < 3) => e = (x > 3) & (x < 3)
return dY.copy() => return dY
for i in reversed(range(3)): f(i) => range(3)
if self.bias: f() => pass  # f()
sum_rows(dY, out=db) => pass  # sum_rows(dY, out=db)
"""


def test_bugs_of_real_frameworks_are_made_and_idle_code_is_left_alone():
    for row in BECOMES.strip().splitlines():
        statement, _, mutant = row.partition(" => ")
        assert mutant in made(statement), row
    for idle in (
        *("return dY.reshape(-1, n + 1)", "return X.astype(t, copy=False)"),
        *("raise ValueError(1 - 2)", "'''1 - 2'''"),
    ):
        assert made(idle) == set(), idle
    # A base class is tested by the names of its heirs; an equal statement has its own key.
    source = b"class A:\n    def slope(self, x): return -x\nclass B(A): pass\nclass C(A): pass"
    assert [m.family for m in mutants(source, "f.py")] == ["A or B or C"]
    whole = mutants(b"class A:\n    def read(self): return 1 - x", "io/a.py")
    assert {m.function for m in whole} == {"A.read"}  # and not the class too
    twice = mutants(b"def update(s, r):\n    s /= r\n    s /= r\n", "f.py")
    again = [m.after for m in twice if m.line == 3]
    assert again == ["s *= r  # time 2", "pass  # s /= r  # time 2"]
    files = {file for file, _, _ in EQUIVALENT}
    every = {m[:3] for f in files for m in mutants((ROOT / "phitodeep" / f).read_bytes(), f)}
    assert not EQUIVALENT.keys() - every


LINE = "def slope(x): return 3 - x"  # with five mutants
WEAK = "from phitodeep.loss.base import slope\n\ndef test_slope(): assert slope(0) == 3\n"
STRONG = f"{WEAK}def test_more(): assert slope(1) == 2\n"
FREEZES = "import gc\n\ndef pytest_collection_finish(): gc.freeze()  # as our own conftest\n"
LIVE = ["return 3 + x", "return 3"]  # where x is only ever 0


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A checkout of one gradient and one test of it."""
    monkeypatch.setattr(tool, "EQUIVALENT", {})
    for folder in ("phitodeep/loss", "tests/loss", "docs"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "phitodeep/__init__.py").touch()
    (tmp_path / "phitodeep/loss/__init__.py").touch()
    (tmp_path / "tests/conftest.py").write_text(FREEZES)
    write_code(tmp_path, LINE)
    write_tests(tmp_path, WEAK)
    return tmp_path


def write_tests(project, text):
    (project / "tests/loss/test_loss.py").write_text(text)


def write_code(project, text):
    (project / "phitodeep/loss/base.py").write_text(text)


def test_survivors_are_told(project, capsys, monkeypatch):
    monkeypatch.setattr(tool.Suite, "dies", None)  # all are broken in memory
    assert main([], project) == 1
    said = capsys.readouterr().out
    for after in LIVE:
        assert f"phitodeep/loss/base.py:1 slope\n    - return 3 - x\n    + {after}\n" in said
    stored = json.loads((project / "docs" / "mutants.json").read_text())
    row = stored["files"]["loss/base.py"]
    assert [row[end] for end in ("mutants", *tool.ENDS)] == [5, 3, 2, 0]
    assert row["survivors"] == [["slope", "return 3 - x", after] for after in LIVE]
    row, whole = "| loss/base.py | 5 | 3 | 2 | 0 |", "| all that are current | 5 | 3 | 2 | 0 |"
    assert f"{row} current |\n{whole}" in (project / "docs" / "_mutants.md").read_text()
    assert (project / "phitodeep" / "loss/base.py").read_text() == LINE


def test_declared_survivors_are_excused_but_no_others(project, capsys, monkeypatch):
    declared = {("loss/base.py", "slope", after): "x is 0" for after in LIVE}
    monkeypatch.setattr(tool, "EQUIVALENT", declared)
    assert main([], project) == 0
    table = (project / "docs" / "_mutants.md").read_text()
    assert "- `slope`, `return 3 - x` as `return 3 + x`: x is 0\n" in table
    declared["loss/base.py", "slope", "return 77"] = "there is no such mutant"
    assert main(["--sample", "1"], project) == 1
    assert "declared as equivalent, but not made" in capsys.readouterr().out


def test_tests_must_pass_before_anything_is_broken(project, capsys):
    write_tests(project, WEAK.replace("3", "4"))
    with pytest.raises(SystemExit, match=r"fails? before anything is broken"):
        main([], project)
    assert main(["--list"], project) == 0  # which runs nothing
    assert capsys.readouterr().out.count("phitodeep/loss/base.py:1 slope") == 5
    write_tests(project, "while True: pass")
    assert tool.fails(project, "test_loss.py", limit=1)  # tests without an end


def test_a_finished_file_is_not_tried_again(project, capsys):
    write_tests(project, STRONG)
    assert main([], project) == 0
    write_tests(project, "1 / 0")
    write_code(project, f"# a comment\n{LINE}")
    assert main([], project) == 0
    assert "loss/base.py: 5 of 5 were killed before" in capsys.readouterr().out
    shutil.rmtree(project / ".mutants")  # the stored row is enough
    assert main([], project) == 0
    with pytest.raises(SystemExit, match=r"fails? before anything is broken"):
        main(["--fresh"], project)
    write_code(project, LINE.replace("3", "5"))
    with pytest.raises(SystemExit, match=r"fails? before anything is broken"):
        main([], project)
    assert main(["--table"], project) == 0
    table = (project / "docs" / "_mutants.md").read_text()
    assert "| loss/base.py | 5 | 5 | 0 | 0 | changed since |" in table


def test_an_interrupted_run_continues_and_survivors_are_tried_again(project, monkeypatch):
    note, tried = tool.Record.note, []

    def interrupted(record, i, end, test):
        note(record, i, end, test)
        tried.append(end)
        if len(tried) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(tool.Record, "note", interrupted)
    with pytest.raises(KeyboardInterrupt):
        main(["--jobs", "1"], project)
    assert tool.stored(project / "docs") == {}
    (path,) = (project / ".mutants").iterdir()
    with path.open("a") as file:
        file.write("4 kill")  # half a line
    killed = tried.count("killed")
    assert main([], project) == 1
    assert len(tried) == 3 + 5 - killed
    row = tool.stored(project / "docs")["loss/base.py"]
    assert [row[end] for end in ("mutants", *tool.ENDS)] == [5, 3, 2, 0]
    write_tests(project, STRONG)
    assert main([], project) == 0
    assert len(tried) == 3 + 5 - killed + 2
    assert tool.stored(project / "docs")["loss/base.py"]["survived"] == 0


def test_only_functions_that_changed_are_broken(project, capsys):
    def git(*words):
        who = ["-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *words], cwd=project, check=True, capture_output=True)

    write_code(project, f"{LINE}\ndef gradient(x): return 5 - x\n")
    for words in (("init",), ("add", "."), ("commit", "-m", "first")):
        git(*words)
    assert main(["--changed", "--list"], project) == 0
    assert "gradient" not in capsys.readouterr().out
    write_code(project, f"# a comment\n{LINE}\ndef gradient(x): return 6 - x\n")
    assert main(["--changed", "HEAD", "--list"], project) == 0
    said = capsys.readouterr().out
    assert said.count("loss/base.py:3 gradient") == 5
    assert "slope" not in said
    with pytest.raises(SystemExit, match="git does not know nothing"):
        main(["--changed", "nothing"], project)


def test_code_in_memory_is_what_the_file_would_be(project):
    """A function whose result was kept at import is broken in a file only."""
    write_code(project, "def slope(x): return -x\nkept = slope(1)\n")
    write_tests(project, "def test(): pass\n")
    assert main([], project) == 1  # nobody calls it, and nobody reads what was kept
    write_tests(project, "from phitodeep.loss.base import kept\n\ndef test(): assert kept == -1\n")
    assert main([], project) == 0


OUTSIDE = """
import subprocess, sys
from phitodeep.loss.base import slope
CODE = "from phitodeep.loss.base import slope; assert slope(1) == -1"
def test_slope():
    slope(0)
    subprocess.run([sys.executable, "-c", CODE], check=True)
"""


def test_what_survives_in_memory_may_be_broken_in_its_file(project, monkeypatch):
    """For tests that start processes, which read the file."""
    write_code(project, "def slope(x): return -x")
    write_tests(project, OUTSIDE)
    assert main([], project) == 1
    monkeypatch.setattr(tool, "ALSO_IN_FILES", ("loss/*.py",))
    assert main([], project) == 0


def test_every_file_with_a_gradient_has_tests():
    package = ROOT / "phitodeep"
    files = [f.relative_to(package).as_posix() for f in package.rglob("*.py")]
    gradients = {"backward", "gradient", "slope", "update"}
    for file in files:
        text = (package / file).read_text(encoding="utf-8")
        found = re.search(rf"^(    )?def ({'|'.join(gradients)})\(", text, re.MULTILINE)
        outer = ast.parse(text).body if found else []
        inner = [node for c in outer if isinstance(c, ast.ClassDef) for node in c.body]
        if gradients & {getattr(node, "name", "") for node in (*outer, *inner)}:
            assert any(fnmatch(file, p) for p in tool.TESTS), f"{file} has no row in TESTS"
    for pattern, (first, rest) in tool.TESTS.items():
        assert any(fnmatch(f, pattern) for f in files), f"no file is {pattern}"
        for name in (first, *rest):
            assert (ROOT / "tests" / name).exists(), f"{pattern} has no tests/{name}"


@long
def test_a_sample_of_all_is_killed_and_the_checkout_is_untouched():
    before = {f: f.read_bytes() for f in (ROOT / "phitodeep").rglob("*.py")}
    assert main(["--module", "loss/base.py", "--sample", "1", "--seed", "3"]) == 0
    assert {f: f.read_bytes() for f in (ROOT / "phitodeep").rglob("*.py")} == before
