"""Break every gradient in every small way: does a test notice? A mutation test.

    python tools/mutants.py                                  all that is not known yet
    python tools/mutants.py --module layers/activation.py    one file
    python tools/mutants.py --changed main                   the functions that differ from main
    python tools/mutants.py --sample 20 --seed 3             some of all
    python tools/mutants.py --list                           only show what would be broken

Mutants are made from the syntax tree, by `rewrites`, in the functions that GRADIENTS names. Each
is judged by the tests of its file (TESTS): first those that name the mutated class, and if they
pass, all that call the broken function. `tools/mutant_runner.py` does so in memory; a function that
cannot be broken there is broken in its file, for a fresh process. A mutant is killed when a test
fails, crashes or does not end. What no test can kill is in `equivalent_mutants.toml`, with its
reason; any other survivor is a hole in the tests, and makes the exit status 1.

Each verdict is noted in `.mutants`, and the score of each finished file goes into docs/mutants.json
and docs/_mutants.md. So an interrupted run continues where it stopped: as long as the code of a
file is the same (comments and docstrings do not count), mutants killed before are skipped, and
survivors are tried again. `--fresh` tries everything again, and so do `--sample` and `--changed`.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatch
from itertools import count, groupby
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from phitodeep.core.files import atomic_write

ROOT = Path(__file__).parents[1]
COMMAND = "python tools/mutants.py"
READ = ("docs", "examples", "references")  # by tests of files and commands
SOURCES = shutil.ignore_patterns("__pycache__")
GRADIENTS = (  # the functions that are broken: gradients, steps, and the helpers they are made of
    r"_?back(ward)?|\w+_back|_back_through|_?slope|\w*gradients?\w*|_rows|_unit|gaussian|sum_rows"
    r"|_summed_to|_learning|_runs|_planned_runs|_with_stretches|_masks|_bound|tied|trained"
    r"|_share|sum_by_token|cross_entropy_of_labels|_target_score|_weighted|sgd|n?adam|rmsprop|adagrad|adadelta|lion|update"
    r"|step|accumulate|_momentum|_clipped|_penalised"
    r"|rotate|_flip(ped)?|_?inside|at|pad|extent|places|_cuts?|_lay|_grouped|_taps|_to_rows|_from_rows"
    r"|_split|_heads|_factors|_attend|_apply|_wide|_norm|receive|gather"
    r"|gather_\w+|add_product|_chunks|im2col|col2im|by_group|_each_tap|output_size|_probabilities|_dropout_factors"
    r"|run|advance|averaged|_average|_gathered|_settings|_adjusted|orthogonal|matrices|hidden|length"
    r"|recall|keep|drop|assign|with_packed|by_path|joined|named|written|read"
    r"|reciprocal|_as_tokens|_holds_matrices|parameter_path|_transposed_product"
)
COMPILED = "kernels/compiled/*.py"
RULES = "derivations/derive/[akmt]*.py", "derivations/derive/reverse.py", "inspect/curvature.py"
ALL = (COMPILED, "io/*.py", "cli/*.py", "training/*.py", "distributed/*.py", *RULES)
ALSO_IN_FILES = ("cli/*.py",)  # some tests start processes: what survives in memory is tried there
ANOMALY = "inspect/test_anomaly.py"  # what training finds after a step that failed
SHOWN = ("test_bad_input.py", "test_messages.py", "test_shown.py")  # what a user is told
TESTS = {  # file -> in tests/, what runs first, cut down to the class, and what runs besides
    "layers/pde.py": ("layers/test_pde.py", []),
    "layers/*.py": (
        "layers/test_contract.py",
        ["layers", "derivations", "optimization/test_muon.py", "model/test_network.py"],
    ),
    "loss/*.py": ("loss/test_loss.py", ["training/test_shortcuts.py", "model/test_network.py"]),
    "derivations/language/*.py": ("derivations/test_contract.py", ["derivations"]),
    "derivations/derive/tangents.py": (
        "derivations/test_tangents.py",
        [
            "testing/test_derived_loops.py",
            "testing/test_derived_random.py",
            "inspect/test_curvature.py",
        ],
    ),
    "derivations/derive/passes.py": ("derivations/test_passes.py", ["inspect/test_curvature.py"]),
    "derivations/derive/[akm]*.py": ("derivations/test_rules.py", ["testing/test_derived.py"]),
    "derivations/derive/*.py": (
        "testing/test_derived.py",
        [
            *("testing/test_derived_loops.py", "testing/test_derived_random.py"),
            *("derivations/test_derive.py", "derivations/test_reverse.py"),
            "testing/test_derived_losses.py",
        ],
    ),
    "inspect/explorer/document.py": ("inspect/explorer/test_engine_edges.py", []),
    "teach/*.py": ("teach/test_mistakes.py", ["teach/test_grading.py"]),
    "inspect/curvature.py": ("inspect/test_curvature.py", ["inspect/test_operators.py"]),
    "inspect/attributions.py": ("inspect/test_attributions.py", []),
    "inspect/recording.py": ("inspect/test_trace.py", ["inspect/test_hooks.py"]),
    "functional/__init__.py": ("functional/test_functional.py", ["loss", "layers"]),
    "optimization/base.py": ("optimization/test_optimizers.py", ["optimization"]),
    "optimization/memory.py": ("optimization/test_memory.py", ["core/test_state.py"]),
    "optimization/rules.py": (
        "optimization/test_optimizers.py",
        ["optimization/test_memory.py", "kernels/test_kernels.py"],
    ),
    "optimization/lbfgs.py": ("optimization/test_lbfgs.py", ["optimization/test_divergence.py"]),
    "optimization/packing.py": (
        *("optimization/test_optimizers.py", ["layers/test_embedding.py", "optimization"]),
    ),
    "optimization/muon.py": ("optimization/test_muon.py", []),
    "kernels/compiled/recurrent.py": ("kernels/test_kernels.py", ["layers/test_recurrent.py"]),
    "kernels/compiled/winograd.py": ("kernels/test_kernels.py", ["layers/test_winograd.py"]),
    COMPILED: ("kernels/test_kernels.py", ["kernels/test_blas.py"]),
    "io/*.py": ("io/test_tensors.py", ["io", "exchange/hub/test_mapping.py"]),
    "cli/*.py": ("cli/test_cli.py", []),
    "training/*.py": (
        "training/test_loop.py",
        ["training", "model", "core", "plots", ANOMALY, *SHOWN],
    ),
    "distributed/*.py": ("distributed/test_behaviour.py", []),
}
EQUIVALENT = {  # (file, function, what it became) -> why no test can tell it apart
    (file, function, after): why
    for file, functions in tomllib.loads(
        Path(__file__).with_name("equivalent_mutants.toml").read_text("utf-8")
    ).items()
    for function, kept in functions.items()
    for after, why in kept.items()
}

# --- making mutants ----------------------------------------------------------------------------


class Mutant(NamedTuple):
    """A statement, or the condition of one, that became another: `source` is all of the file."""

    file: str
    function: str
    after: str
    before: str
    line: int
    family: str  # the names of the class and those derived from it, or of the function, for -k
    source: bytes

    def __str__(self) -> str:
        where = f"phitodeep/{self.file}:{self.line} {self.function}"
        return f"{where}\n    - {self.before}\n    + {self.after}"


def both_ways(pairs: str) -> dict[str, str]:
    words = [pair.split() for pair in pairs.split(", ")]
    return {a: b for pair in words for a, b in (pair, pair[::-1])}


OPERATORS = both_ways("Add Sub, Mult Div, Gt Lt, GtE LtE, Eq NotEq, Is IsNot, And Or, BitAnd BitOr")
OPERATORS["Pow"] = "Mult"
TWINS = both_ways("add subtract, multiply divide, sum mean, minimum maximum, greater less")
NEUTRAL = {"add": 0, "subtract": 0, "multiply": 1, "divide": 1}
UNARY = "abs clip cos cosh exp expm1 log log1p negative sign sqrt square tanh"
UNARY += " gaussian reversed sigmoid softplus reciprocal"


def altered(node: Any, **fields: Any) -> Any:
    """A copy of the node in which these fields are others."""
    return type(node)(**dict(ast.iter_fields(node)) | fields)


def swapped(tree: Any, old: ast.AST, new: ast.AST) -> Any:
    """A copy of the tree with `new` in the place of `old`."""
    if tree is old:
        return new
    if isinstance(tree, list):
        return [swapped(t, old, new) for t in tree]
    if isinstance(tree, ast.AST):
        return altered(tree, **{k: swapped(v, old, new) for k, v in ast.iter_fields(tree)})
    return tree


def rewrites(node: ast.AST) -> Iterator[ast.AST]:
    """What else could stand in the place of this expression or statement, and would be wrong."""
    if op := OPERATORS.get(type(getattr(node, "op", None)).__name__):
        yield altered(node, op=getattr(ast, op)())
    match node:
        case ast.BinOp(left, ast.Sub(), right):
            yield from (left, ast.UnaryOp(ast.USub(), right))
        case ast.BinOp(left, ast.Div(), right):
            yield from (left, altered(node, left=ast.Constant(1)))
        case ast.BinOp(left, _, right) | ast.IfExp(_, left, right):
            yield from (left, right)
        case ast.AugAssign() | ast.Expr(ast.Call()):
            yield ast.Pass()
        case ast.Assign([ast.Subscript() | ast.Attribute()]):
            yield ast.Pass()
        case ast.UnaryOp(_, value) | ast.Attribute(value, "T"):
            yield value
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value) | float(value)):
            yield from (ast.Constant(value + i) for i in (1, -1) if value + i >= 1)
        case ast.Compare(_, [sign], _) if op := OPERATORS.get(type(sign).__name__):
            yield altered(node, ops=[getattr(ast, op)()])
        case ast.BoolOp(_, values):
            yield from values
        case ast.Subscript(value, ast.Tuple([*_, ast.Constant(None)]), ast.Load()):
            yield value
        case ast.Call(function, args):
            name = getattr(function, "attr", getattr(function, "id", ""))
            yield from _calls(node, function, name, args)


def _calls(call: ast.Call, function: Any, name: str, args: list[ast.expr]) -> Iterator[ast.AST]:
    """The same for a call: the function or an argument is another, or left out."""
    if name in TWINS and isinstance(function, ast.Attribute):
        yield altered(call, func=altered(function, attr=TWINS[name]))
    if name in NEUTRAL and len(args) == 2:
        neutral = ast.Constant(NEUTRAL[name])
        yield from (swapped(call, arg, neutral) for arg in args)
    if name in ("minimum", "maximum", "einsum"):
        yield from (altered(call, args=[*args[:-2], arg, arg]) for arg in args[-2:])
    if name in UNARY.split() and call.keywords:  # with out=
        yield altered(call, func=altered(function, attr="positive"), args=args[:1])
    elif name in UNARY.split():
        yield args[0]
    if name == "copy":
        yield function.value
    if name == "where":
        yield from (args[1], args[2], altered(call, args=[args[0], args[2], args[1]]))
    if name == "sum_rows" and not any(k.arg == "out" for k in call.keywords):  # to a mean
        yield ast.BinOp(call, ast.Div(), ast.Call(ast.Name("len"), args[:1], []))
    for k in (k for k in call.keywords if k.arg == "axis"):
        yield swapped(call, k.value, ast.Constant(0))


def parts(unit: ast.AST) -> list[ast.AST]:
    """All nodes, but not the arguments of `reshape` and `astype`: those compute nothing."""
    calls = [call for call in ast.walk(unit) if isinstance(call, ast.Call)]
    still = [c for c in calls if getattr(c.func, "attr", "") in ("reshape", "astype")]
    hidden = {id(n) for c in still for a in (*c.args, *c.keywords) for n in ast.walk(a)}
    return [node for node in ast.walk(unit) if id(node) not in hidden]


def units(function: ast.AST) -> list[Any]:
    """What is replaced as one piece of text: simple statements and conditions, in their order."""
    found: list[Any] = []
    for node in ast.walk(function):
        match node:
            case ast.Assign() | ast.AugAssign() | ast.Return() | ast.Expr():
                found.append(node)
            case ast.If(x) | ast.For(_, x) | ast.withitem(x) | ast.AnnAssign(_, _, ast.AST() as x):
                found.append(x)
    return sorted(found, key=lambda unit: (unit.lineno, unit.col_offset))


def mutants(source: bytes, file: str) -> list[Mutant]:
    """All mutants of a file: those of its functions, then those of its methods."""
    names = GRADIENTS
    if any(fnmatch(file, each) for each in ALL):  # but not what shows or compiles
        names = r"(?!_Notice|on_|(__repr__|jit|_stamp|in_float32)$)\w+"
    made: list[Mutant] = []
    keys: Counter[str] = Counter()
    lines, tree = source.splitlines(keepends=True), ast.parse(source)
    classes = [c for c in tree.body if isinstance(c, ast.ClassDef)]
    methods = [(c.name, f) for c in classes for f in c.body]
    alone = [("", f) for f in tree.body if not isinstance(f, ast.ClassDef)]
    for owner, function in alone + methods:
        name = getattr(function, "name", "")
        where = f"{owner}.{name}" if owner else name
        heirs = [c.name for c in classes if owner in map(ast.unparse, c.bases)]
        family = " or ".join([owner or name.strip("_").removesuffix("_of"), *heirs])
        for unit in units(function) if re.fullmatch(names, name) else ():
            start = len(b"".join(lines[: unit.lineno - 1])) + unit.col_offset
            end = len(b"".join(lines[: unit.end_lineno - 1])) + unit.end_col_offset
            before = ast.unparse(unit)
            seen = {before}
            for node, new in ((n, new) for n in parts(unit) for new in rewrites(n)):
                after = ast.unparse(ast.fix_missing_locations(swapped(unit, node, new)))
                after += f"  # {before}" if after == "pass" else ""
                if after not in seen:
                    seen.add(after)
                    text = source[:start] + after.encode() + source[end:]
                    keys[where + after] += 1
                    after += f"  # time {n}" if (n := keys[where + after]) > 1 else ""
                    made.append(Mutant(file, where, after, before, unit.lineno, family, text))
    return made


# --- killing them ------------------------------------------------------------------------------

ENDS = ("killed", "survived", "equivalent")
LIMIT = 60  # seconds that one test may compute


def tests_of(file: str) -> tuple[str, list[str]]:
    return next(tests for pattern, tests in TESTS.items() if fnmatch(file, pattern))


class Suite:
    """Two copies of the checkout: one where mutants run in memory, one where files are broken."""

    def __init__(self, root: Path, folder: Path, jobs: int) -> None:
        self.memory, self.place, self.jobs = folder / "memory", folder / "files", jobs
        self.passing: set[tuple[str, ...]] = set()  # the tests that pass where nothing is broken
        self.writes = count(1)
        for place in (self.memory, self.place):
            for name in ("phitodeep", "tests", *(n for n in READ if (root / n).exists())):
                shutil.copytree(root / name, place / name, ignore=SOURCES)
            shutil.copy(root / "pyproject.toml", place)

    def judge(self, mutants: list[Mutant], kills: Counter[str]) -> Iterator[tuple[int, str, str]]:
        """Which mutants are killed and which survive, as they end, and the test that killed."""
        left = [*range(len(mutants))]
        if fnmatch(mutants[0].file, COMPILED):  # most are killed without compiling them
            left = []
            for i, end, test in self.in_memory(mutants, kills, NUMBA_DISABLE_JIT="1"):
                if end == "killed":
                    yield i, end, test
                else:
                    left.append(i)
        also_in_files = any(fnmatch(mutants[0].file, each) for each in ALSO_IN_FILES)
        for n, end, test in self.in_memory([mutants[i] for i in left], kills):
            if end == "unbroken" or (end == "survived" and also_in_files):
                end = "killed" if self.dies(mutants[left[n]]) else "survived"
            yield left[n], end, test

    def in_memory(
        self, mutants: list[Mutant], kills: Counter[str], **settings: str
    ) -> Iterator[tuple[int, str, str]]:
        """What the runner answers about mutants, in an environment with these settings."""
        if not mutants:
            return
        first, rest = tests_of(mutants[0].file)
        path = self.memory / "orders.json"
        path.write_text(json.dumps({"mutants": [*map(order, mutants)], "kills": kills}))
        command = [sys.executable, str(Path(__file__).with_name("mutant_runner.py")), str(path)]
        tests = [f"tests/{t}" for t in (first, *rest) if (self.memory / "tests" / t).exists()]
        command += [str(self.jobs), str(LIMIT), *tests]
        where: Any = {"cwd": self.memory, "start_new_session": True}
        where["env"] = alone(self.memory) | settings
        done = 0
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **where) as run:
            try:
                for line in run.stdout or ():
                    i, end, test = json.loads(line)
                    if end == "failing":
                        sys.exit(f"This test fails before anything is broken: {test}")
                    yield i, end, test
                    done += 1
            finally:
                if run.poll() is None or done < len(mutants):
                    stop(run)
        if done < len(mutants):
            sys.exit(f"These tests fail before anything is broken: {tests}")

    def dies(self, mutant: Mutant) -> bool:
        """Whether a fresh process whose file is the mutant's notices."""
        first, rest = tests_of(mutant.file)
        file = self.place / "phitodeep" / mutant.file
        whole = file.read_bytes()
        tests = (first, *rest)
        self.write(file, mutant.source)
        killed = fails(self.place, *tests)
        self.write(file, whole)
        if killed and tests not in self.passing:
            if fails(self.place, *tests):
                sys.exit(f"These tests fail before anything is broken: {tests}")
            self.passing.add(tests)
        return killed

    def write(self, file: Path, source: bytes) -> None:
        """Write the file with a time of its own, so that no stale .pyc passes for it."""
        file.write_bytes(source)
        os.utime(file, (n := next(self.writes), n))


def order(mutant: Mutant) -> dict[str, Any]:
    """What the runner has to know about a mutant."""
    path = Path("phitodeep", mutant.file)
    return {
        "module": ".".join(path.with_suffix("").parts).removesuffix(".__init__"),
        "function": mutant.function,
        "source": mutant.source.decode(),
        "first": tests_of(mutant.file)[0],
        "names": mutant.family.lower().split(" or "),
        "mirror": f"/test_{path.name}",
    }


def alone(place: Path) -> dict[str, str]:
    """The environment of the tests: the NumPy form is broken; COMPILED's tests run both."""
    settings = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONHASHSEED": "0", "PYTHONPATH": ""}
    settings |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    settings |= {"PHITODEEP_KERNELS": "numpy", "PYTEST_DEBUG_TEMPROOT": str(place)}
    return os.environ | settings


def stop(run: subprocess.Popen[str]) -> None:
    """End the runner with the forks that it started."""
    with suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)


def fails(place: Path, *tests: str, limit: float = 600) -> bool:
    """Whether tests fail in a copy of the checkout, or do not end."""
    command = [sys.executable, "-m", "pytest", "-xq", "--import-mode=importlib", "-o", "addopts="]
    command += [f"tests/{t}" for t in tests if (place / "tests" / t).exists()]
    command += ["-p", "no:cacheprovider"]
    kept: Any = {"cwd": place, "env": alone(place), "stdout": subprocess.DEVNULL}
    try:
        run = subprocess.run(command, timeout=limit, **kept)
    except subprocess.TimeoutExpired:
        return True
    return run.returncode != 0


# --- what is known -----------------------------------------------------------------------------


def digest(source: bytes, made: list[Mutant]) -> str:
    """What the verdicts on a file depend on: its code, without comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        match node:
            case (
                ast.Module([first, *rest])
                | ast.ClassDef(body=[first, *rest])
                | ast.FunctionDef(body=[first, *rest])
            ):
                if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                    node.body = rest or [ast.Pass()]
    text = json.dumps([ast.unparse(tree), [m[:3] for m in made]])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


Task = tuple[str, int]  # a file, and which of its mutants


class Record:
    """How the mutants of a file end: one line each in a file that its code gives the name."""

    def __init__(self, root: Path, file: str) -> None:
        source = (root / "phitodeep" / file).read_bytes()
        self.made = mutants(source, file)
        self.digest = digest(source, self.made)
        self.path = root / ".mutants" / f"{file.replace('/', '.')}-{self.digest}"
        self.ends = {i: "equivalent" for i, m in enumerate(self.made) if m[:3] in EQUIVALENT}

    def resume(self, row: dict[str, Any]) -> int:
        """Take over what was killed before, by the notes and by the stored row; how many."""
        lines = self.path.read_text().splitlines(keepends=True) if self.path.exists() else []
        whole = [line for line in lines if line.endswith("\n")]  # the last may be half written
        if whole != lines:
            self.path.write_text("".join(whole))
        last = {int(i): end for i, end in (line.split()[:2] for line in whole)}
        if self.current(row):
            alive = [tuple(names) for names in row["survivors"] + row["equivalents"]]
            for i, m in enumerate(self.made):
                if (m.function, m.before, m.after) not in alive:
                    last.setdefault(i, "killed")
        killed = {i: end for i, end in last.items() if end == "killed"}
        self.ends = killed | self.ends
        return len(killed)

    def note(self, i: int, end: str, test: str) -> None:
        self.ends[i] = end
        self.path.parent.mkdir(exist_ok=True)
        with self.path.open("a") as file:
            file.write(f"{i} {end} {test}\n")

    def current(self, row: dict[str, Any]) -> bool:
        return row.get("digest") == self.digest

    def told(self, end: str) -> list[Mutant]:
        return [self.made[i] for i in sorted(self.ends) if self.ends[i] == end]

    def row(self) -> dict[str, Any]:
        """What is stored: how many mutants met which end, and which were not killed."""
        alive = {e: [[m.function, m.before, m.after] for m in self.told(e)] for e in ENDS[1:]}
        return {
            "digest": self.digest,
            "mutants": len(self.ends),
            **{end: len(self.told(end)) for end in ENDS},
            "survivors": alive["survived"],
            "equivalents": alive["equivalent"],
        }


def killers(folder: Path) -> Counter[str]:
    """How many mutants each test has killed, by all notes."""
    notes = [line.split() for path in folder.glob("*-*") for line in path.read_text().splitlines()]
    return Counter(note[2].split("[")[0] for note in notes if len(note) > 2)


def functions(source: bytes) -> Iterator[tuple[str, str]]:
    """The name and the code of each function and method."""
    tree = ast.parse(source)
    owners: list[ast.Module | ast.ClassDef] = [tree]
    owners += [c for c in tree.body if isinstance(c, ast.ClassDef)]
    for owner in owners:
        for f in owner.body:
            if isinstance(f, ast.FunctionDef):
                name = f"{owner.name}.{f.name}" if isinstance(owner, ast.ClassDef) else f.name
                yield name, ast.unparse(f)


def at_revision(root: Path, revision: str) -> set[tuple[str, str]]:
    """All functions of the package as they were, whichever file they were in."""
    command = ["git", "archive", revision, "phitodeep"]
    archive = subprocess.run(command, cwd=root, capture_output=True, check=False)
    if archive.returncode:
        sys.exit(f"git does not know {revision}: {archive.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        read = [tar.extractfile(m) for m in tar if m.name.endswith(".py")]
        return {function for file in read if file for function in functions(file.read())}


# --- telling -----------------------------------------------------------------------------------


def markdown(rows: dict[str, dict[str, Any]], records: dict[str, Record]) -> str:
    """The table that the documentation includes, and the equivalent mutants with their reasons."""
    current = [f for f, record in records.items() if record.current(rows.get(f, {}))]
    counted = ("mutants", *ENDS)
    table = [["file", *counted, "code"], ["---", *["---:"] * len(counted), "---"]]
    for file, row in rows.items():
        state = "current" if file in current else "changed since"
        table.append([file, *(str(row[c]) for c in counted), state])
    sums = [str(sum(rows[f][c] for f in current)) for c in counted]
    table.append(["all that are current", *sums, ""])
    lines = [f"Made by `{COMMAND}`:", "", *(f"| {' | '.join(row)} |" for row in table)]
    if missing := [f"`{f}`" for f in records if f not in rows]:
        lines += ["", f"Not run yet: {', '.join(missing)}."]
    for title, key in (
        ("These survive:", "survivors"),
        ("These compute the same, so no test can tell them apart:", "equivalents"),
    ):
        told = [(file, *names) for file, row in rows.items() for names in row.get(key, ())]
        lines += ["", title, ""] if told else []
        for file, function, before, after in told:
            why = EQUIVALENT.get((file, function, after))
            lines.append(f"- `{function}`, `{before}` as `{after}`{f': {why}' if why else ''}")
    return "\n".join(lines) + "\n"


def stored(docs: Path) -> dict[str, dict[str, Any]]:
    path = docs / "mutants.json"
    rows: dict[str, dict[str, Any]] = json.loads(path.read_text())["files"] if path.exists() else {}
    return rows


def store(docs: Path, done: dict[str, dict[str, Any]], records: dict[str, Record]) -> None:
    """Write the rows of these files into the documentation; drop rows of files that are gone."""
    rows = {f: row for f, row in sorted((stored(docs) | done).items()) if f in records}
    with atomic_write(docs / "mutants.json") as file:
        file.write((json.dumps({"command": COMMAND, "files": rows}, indent=1) + "\n").encode())
    with atomic_write(docs / "_mutants.md") as file:
        file.write(markdown(rows, records).encode())


def parsed(arguments: list[str] | None, files: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Break every gradient: does a test notice?")
    parser.add_argument("--module", action="append", choices=files, metavar="layers/dense.py")
    parser.add_argument(
        "--changed", nargs="?", const="HEAD", metavar="REV", help="only functions that differ"
    )
    parser.add_argument("--sample", type=int, help="only so many, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--fresh", action="store_true", help="try what was killed before, too")
    parser.add_argument("--list", action="store_true", help="show the mutants and run nothing")
    parser.add_argument("--table", action="store_true", help="write the table and run nothing")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    return parser.parse_args(arguments)


def drawn(options: argparse.Namespace, records: dict[str, Record], root: Path) -> list[Task]:
    """The mutants that the options ask for."""
    tasks = [(f, i) for f, record in records.items() for i in range(len(record.made))]
    if options.changed:
        old = at_revision(root, options.changed)
        read = {f: (root / "phitodeep" / f).read_bytes() for f in records}
        same = {(f, named[0]) for f in read for named in functions(read[f]) if named in old}
        tasks = [(f, i) for f, i in tasks if (f, records[f].made[i].function) not in same]
    if options.sample:
        places = random.Random(options.seed).sample(range(len(tasks)), options.sample)
        tasks = [tasks[i] for i in sorted(places)]
    return tasks


def judged(suite: Suite, records: dict[str, Record], tasks: list[Task]) -> Iterator[str]:
    """Try these mutants, and note how they end; each file's name when it is done."""
    for _, group in groupby(tasks, lambda task: tests_of(task[0])):
        own = list(group)
        left = Counter(f for f, _ in own)
        made = [records[f].made[i] for f, i in own]
        for n, end, test in suite.judge(made, killers(next(iter(records.values())).path.parent)):
            f, i = own[n]
            records[f].note(i, end, test)
            left[f] -= 1
            if not left[f]:
                yield f


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    package, docs = root / "phitodeep", root / "docs"
    files = sorted(f.relative_to(package).as_posix() for f in package.rglob("*.py"))
    files = [f for f in files if any(fnmatch(f, p) for p in TESTS)]
    options = parsed(arguments, files)
    records = {f: Record(root, f) for f in files}
    records = {f: record for f, record in records.items() if record.made}
    if options.table:
        store(docs, {}, records)
        return 0
    wanted = {f: record for f, record in records.items() if f in (options.module or files)}
    stale = {key for key in EQUIVALENT if key[0] in (options.module or files)}
    stale -= {m[:3] for record in wanted.values() for m in record.made}
    tasks = drawn(options, wanted, root)
    if options.list:
        print(*(wanted[f].made[i] for f, i in tasks), sep="\n")
        return 0
    console = Console(soft_wrap=True, highlight=False, markup=False)
    partial = bool(options.changed or options.sample)
    for f, record in wanted.items():
        if options.fresh and not partial:
            record.path.unlink(missing_ok=True)
        elif not partial and (n := record.resume(stored(docs).get(f, {}))):
            console.print(f"{f}: {n} of {len(record.made)} were killed before; not tried again")
    kept = {} if partial else wanted  # what goes into the documentation
    waiting = [(f, i) for f, i in tasks if i not in wanted[f].ends]
    busy = {f for f, _ in waiting}
    if kept:
        store(docs, {f: record.row() for f, record in kept.items() if f not in busy}, records)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for f in judged(Suite(root, Path(folder), options.jobs), wanted, waiting):
            tried = [wanted[f].ends[i] for g, i in waiting if g == f]
            counts = ", ".join(f"{tried.count(end)} {end}" for end in ENDS if end in tried)
            now = time.monotonic()
            console.print(f"{f}: {counts}, {1000 * (now - start) / len(tried):.0f} ms each")
            start = now
            if kept:
                store(docs, {f: wanted[f].row()}, records)
    ends = [(wanted[f].made[i], wanted[f].ends[i]) for f, i in tasks]
    console.print("all:", ", ".join(f"{n} {end}" for end, n in Counter(e for _, e in ends).items()))
    for mutant in [m for m, end in ends if end == "survived"]:
        console.print(f"survived: {mutant}")
    for key in stale:
        console.print("declared as equivalent, but not made:", *key)
    return 1 if stale or any(end == "survived" for _, end in ends) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted; the same command continues from here")
