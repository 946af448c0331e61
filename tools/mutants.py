"""Break every gradient in every small way: does a test notice? A mutation test.

    python tools/mutants.py                                  all; writes docs/mutants.json and .md
    python tools/mutants.py --module layers/activation.py    one file
    python tools/mutants.py --sample 20 --seed 3             some of all
    python tools/mutants.py --list                           only show what would be broken

Mutants are made from the syntax tree, by `rewrites`, in the functions that GRADIENTS names. Each
is written into a temporary copy of the package, where the tests of its file run (TESTS): first
those that name the mutated class, and if they pass, all. A mutant is killed when a test fails,
crashes or does not end. What no test can kill is in EQUIVALENT, with its reason; any other
survivor is a hole in the tests, and makes the exit status 1.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import track

ROOT = Path(__file__).parents[1]
COMMAND = "python tools/mutants.py"
SOURCES = shutil.ignore_patterns("__pycache__")
GRADIENTS = (  # the functions that are broken: gradients, steps, and the helpers they are made of
    r"_?back(ward)?|\w+_back|_back_through|go_back|slope|\w*gradients?\w*|_rows|_inverse|_unit|gaussian|sum_rows"
    r"|_share|sum_by_token|cross_entropy_of_labels|_aimed|_weighed|sgd|n?adam|rmsprop|adagrad|adadelta|lion|update"
    r"|step|accumulate|_momentum|_clipped|_penalised"
    r"|run|advance|averaged|_average|_gathered|_settings|_adjusted|orthogonal|matrices|hidden"
)
FORWARD = (  # with --forward, these too
    r"forward|value|each|divisor|target_weight|_aim|_variance|_scale_and_shift|_sum|_product|nll"
    r"|(log_)?(softmax|sigmoid|probabilities)|softplus|logsumexp|erf|_polynomial|exp_minus_line|one_hot"
)
TWIN = "kernels/compiled.py"  # all of whose functions are broken: each is compared with its formula
TESTS = {  # file -> in tests/, what runs first, cut down to the class, and what runs besides
    "layers/*.py": ("layers/test_contract.py", ["test_kills.py", "layers"]),
    "loss.py": ("test_loss.py", ["test_kills.py", "test_fusion.py"]),
    "functional.py": ("test_functional.py", ["test_kills.py", "test_loss.py", "layers"]),
    "optimization/base.py": (
        "optimization/test_optimizers.py",
        ["optimization/test_groups.py", "optimization/test_lbfgs.py", "test_kills.py"],
    ),
    "optimization/rules.py": ("optimization/test_optimizers.py", ["test_kills.py"]),
    "optimization/muon.py": ("optimization/test_muon.py", []),
    "optimization/lbfgs.py": ("optimization/test_lbfgs.py", []),
    "optimization/packing.py": (
        "optimization/test_optimizers.py",
        ["layers/test_tying.py", "optimization/test_groups.py"],
    ),
    "optimization/matrices.py": ("optimization/test_muon.py", []),
    TWIN: ("kernels/test_kernels.py", []),
}
EQUIVALENT = {  # (file, function, what it became) -> why no test can tell it apart
    (
        "layers/pooling.py",
        "GlobalAvgPool.backward",
        "dX = self.buffer('dX', (len(dY), math.prod(shape[1:-1]), dY.shape[1]), dY.dtype)",
    ): "dY is (N, C): its last axis is its second",
    (
        "layers/pooling.py",
        "GlobalMaxPool.backward",
        "dX = np.zeros((len(dY), math.prod(shape[1:-1]), dY.shape[1]), dY.dtype)",
    ): "dY is (N, C): its last axis is its second",
    (
        "layers/pooling.py",
        "max_pool_back",
        "not apart or dX.size != dY.size",
    ): "it fills with 0 what is written whole anyway",
    (
        "functional.py",
        "cross_entropy_of_labels",
        "np.subtract(Z, Z.max(axis=1, keepdims=True), out=dZ)",
    ): "Z is (n, K): its last axis is its second",
    (TWIN, "_erf_of", "size = min(abs(x), f4(7))"): "erf is 1 from 4 on in float32",
    (TWIN, "_erf_of", "size = min(abs(x), f4(5))"): "erf is 1 from 4 on in float32",
    (TWIN, "_erf_of", "return double"): "the library's erf is as exact for float32, and slower",
    (TWIN, "_exp_of", "return double"): "the library's exp is as exact for float32, and slower",
    (TWIN, "_tanh_of", "return double"): "the library's tanh is as exact for float32, and slower",
    ("loss.py", "SquaredHinge.slope", "return -2 / T * super().each(P, T)"): "T is -1 or +1",
    (
        "loss.py",
        "_CrossEntropy._rows",
        "rows = F.one_hot(q, P.shape[-1], P.dtype) if q.ndim < P.ndim else q",
    ): "rows q come from a product in _aim: nobody else holds them",
    (
        "optimization/muon.py",
        "Muon.update",
        "zip(layer.matrices(name, theta), layer.matrices(name, B), strict=False)",
    ): "one parameter has the same matrices in both",
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
UNARY += " gaussian reversed sigmoid softplus _inverse"


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
    if name == "sum_rows":  # to a mean
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


def mutants(source: bytes, file: str, names: str = GRADIENTS) -> list[Mutant]:
    """All mutants of a file: those of its functions, then those of its methods."""
    if file == TWIN:
        names = r"(?!_Notice|on_|compiled)\w+"
    made: list[Mutant] = []
    keys: Counter[str] = Counter()
    lines, tree = source.splitlines(keepends=True), ast.parse(source)
    classes = [c for c in tree.body if isinstance(c, ast.ClassDef)]
    methods = [(c.name, f) for c in classes for f in c.body]
    for owner, function in [("", f) for f in tree.body] + methods:
        name = getattr(function, "name", "")
        where = f"{owner}.{name}" if owner else name
        heirs = [c.name for c in classes if owner in map(ast.unparse, c.bases)]
        family = " or ".join([owner or name.strip("_"), *heirs])
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


class Suite:
    """Copies of the checkout, one for each job, in which files are broken and tests run."""

    def __init__(self, root: Path, folder: Path, jobs: int) -> None:
        self.free: SimpleQueue[Path] = SimpleQueue()
        self.passing: set[tuple[str, ...]] = set()  # the tests that pass where nothing is broken
        self.writes = count(1)
        for place in (folder / str(i) for i in range(jobs)):
            for name in ("phitodeep", "tests"):
                shutil.copytree(root / name, place / name, ignore=SOURCES)
            shutil.copy(root / "pyproject.toml", place)
            self.free.put(place)

    def judge(self, mutant: Mutant) -> str:
        """How the mutant ends: one of ENDS."""
        if mutant[:3] in EQUIVALENT:
            return "equivalent"
        first, rest = next(tests for p, tests in TESTS.items() if fnmatch(mutant.file, p))
        place = self.free.get()
        file = place / "phitodeep" / mutant.file
        whole = file.read_bytes()
        try:
            for tests in ((mutant.family, first), ("", first, *rest)):
                if tests not in self.passing and fails(place, *tests):
                    sys.exit(f"These tests fail before anything is broken: {tests}")
                self.passing.add(tests)
                self.write(file, mutant.source)
                killed = fails(place, *tests)
                self.write(file, whole)
                if killed:
                    return "killed"
            return "survived"
        finally:
            self.free.put(place)

    def write(self, file: Path, source: bytes) -> None:
        """Write the file with a time of its own, so that no stale .pyc passes for it."""
        file.write_bytes(source)
        os.utime(file, (n := next(self.writes), n))


def fails(place: Path, name: str, *tests: str, limit: float = 300) -> bool:
    """Whether tests that name this fail in a copy of the checkout, or do not end."""
    command = [sys.executable, "-m", "pytest", "-xq", "--import-mode=importlib", "-o", "addopts="]
    command += [f"tests/{t}" for t in tests if (place / "tests" / t).exists()]
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONHASHSEED": "0", "PYTHONPATH": ""}
    alone |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    alone |= {"PHITODEEP_KERNELS": "numpy"}  # what is broken is the form in NumPy
    kept: Any = {"cwd": place, "env": os.environ | alone, "stdout": subprocess.DEVNULL}
    try:
        run = subprocess.run(
            [*command, "-p", "no:cacheprovider", "-k", name], timeout=limit, **kept
        )
    except subprocess.TimeoutExpired:
        return True
    return run.returncode not in (0, 5)  # 5: no test has that name


# --- telling -----------------------------------------------------------------------------------

ENDS = ("killed", "survived", "equivalent")
Ends = list[tuple[Mutant, str]]


def scores(ends: Ends) -> dict[str, dict[str, int]]:
    """For each file and for all: how many mutants, and how many met which end."""
    counts: dict[str, Counter[str]] = {}
    for file, end in [(m.file, end) for m, end in ends] + [("all", end) for _, end in ends]:
        counts.setdefault(file, Counter())[end] += 1
    return {f: {"mutants": c.total(), **{end: c[end] for end in ENDS}} for f, c in counts.items()}


def markdown(ends: Ends) -> str:
    """The table that the documentation includes, and the equivalent mutants with their reasons."""
    rows = [[file, *map(str, score.values())] for file, score in scores(ends).items()]
    table = [["file", "mutants", *ENDS], ["---", *["---:"] * (1 + len(ENDS))], *rows]
    lines = [f"Made by `{COMMAND}`:", "", *(f"| {' | '.join(row)} |" for row in table)]
    same = [m for m, end in ends if end == "equivalent"]
    lines += ["", "These compute the same, so no test can tell them apart:", ""] if same else []
    lines += [f"- `{m.function}`, `{m.before}` as `{m.after}`: {EQUIVALENT[m[:3]]}" for m in same]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    package = root / "phitodeep"
    files = sorted(f.relative_to(package).as_posix() for f in package.rglob("*.py"))
    files = [f for f in files if any(fnmatch(f, p) for p in TESTS)]
    parser = argparse.ArgumentParser(description="Break every gradient: does a test notice?")
    parser.add_argument("--module", action="append", choices=files, metavar="layers/dense.py")
    parser.add_argument("--sample", type=int, help="only so many, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--forward", action="store_true", help="break forward functions too")
    parser.add_argument("--list", action="store_true", help="show the mutants and run nothing")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    names = f"{GRADIENTS}|{FORWARD}" if options.forward else GRADIENTS
    read = {f: (package / f).read_bytes() for f in options.module or files}
    chosen = [m for f, source in read.items() for m in mutants(source, f, names)]
    stale = {key for key in EQUIVALENT if key[0] in read} - {m[:3] for m in chosen}
    if options.sample:
        drawn = random.Random(options.seed).sample(range(len(chosen)), options.sample)
        chosen = [chosen[i] for i in sorted(drawn)]
    if options.list:
        print(*chosen, sep="\n")
        return 0
    console = Console(soft_wrap=True, highlight=False, markup=False)
    still = not console.is_terminal
    ends: Ends = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        found = pool.map(Suite(root, Path(folder), options.jobs).judge, chosen)
        for end in track(found, "mutants", len(chosen), console=console, disable=still):
            ends.append((chosen[len(ends)], end))
            if still and len(ends) % 25 == 0:
                console.print(f"{len(ends)} of {len(chosen)}, {dict(Counter(e for _, e in ends))}")
    console.print(markdown(ends), *(f"survived: {m}" for m, e in ends if e == "survived"), sep="\n")
    for key in stale:
        console.print("declared as equivalent, but not made:", *key)
    if not (options.module or options.sample or options.forward):
        lines = {end: [str(m).split("\n    ") for m, e in ends if e == end] for end in ENDS[1:]}
        stored = {"command": COMMAND, "files": scores(ends), **lines}
        (root / "docs" / "mutants.json").write_text(json.dumps(stored, indent=1) + "\n")
        (root / "docs" / "_mutants.md").write_text(markdown(ends))
    return 1 if stale or any(end == "survived" for _, end in ends) else 0


if __name__ == "__main__":
    sys.exit(main())
