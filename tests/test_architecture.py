"""The tree of docs/design.md: which module may import which, read from the sources."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import phitodeep

ROOT = Path(phitodeep.__file__).parent
FLOORS = {
    **dict.fromkeys(["errors", "types", "version"], 0),
    **dict.fromkeys(["checks", "config", "files", "functional", "hints", "kernels", "state"], 1),
    **dict.fromkeys(["activations", "elementwise"], 1),
    **dict.fromkeys(["initialization", "rotary", "table", "threads"], 1),
    **dict.fromkeys(
        [f"layers.{n}" for n in ("call", "frame", "param", "random", "weights", "base")], 2
    ),
    **dict.fromkeys(["steps", "derivations"], 2),
    **dict.fromkeys(["layers", "loss", "metrics"], 3),
    **dict.fromkeys(["optimization", "testing"], 4),
    **dict.fromkeys(["data", "io", "teach", "text"], 5),
    **dict.fromkeys(["training", "inspect", "explorer", "plots"], 6),
    **dict.fromkeys(["exchange", "exchange.torch", "lora"], 6),
    "exchange.onnx.from_onnx": 8,  # it returns a Sequential
    "exchange.hub.pretrained": 8,
    "exchange.torch.reading": 8,  # it returns a Sequential
    **dict.fromkeys(["sequential", "distributed", "builder", "model"], 7),
    **dict.fromkeys(["models", "sklearn", "demo", "cli", "__main__"], 8),
}
FACES = {  # old paths of what has moved: they only import it, and nothing here imports them
    "fusion": {"training.shortcuts"},
    "generation": {"text.generation"},
    "optimization.callbacks": {"training.callbacks"},
    "optimization.feeding": {"training.inputs", "training.sources"},
    "optimization.initialization": {"initialization"},
    "optimization.rate_finder": {"training.rate_finder"},
    "optimization.training": {"training.history", "training.objective"},
}
FORWARDING = {"io"}  # imports names of higher floors when they are first used, as phitodeep does
REQUIRED = {"numpy"}  # with Python's own, all that may be imported at the top of a file
PYTHONS_OWN = {
    "lzma",  # may be missing from a Python built without it
    *("concurrent", "html"),  # take milliseconds that few programs have a use for
}
WHOLE = {  # modules that are themselves imported where used, and the command line
    **{f"cli.{path.stem}": {"click", "rich"} for path in (ROOT / "cli").glob("[!_]*.py")},
    **{
        f"sklearn.{path.stem}": {"sklearn", "scipy"} for path in (ROOT / "sklearn").glob("[!_]*.py")
    },
    **{f"distributed.{name}": {"mpi4py"} for name in ("exchange", "group", "job")},
    "kernels.compiled.blas": {"numba", "llvmlite"},
    "kernels.compiled.jit": {"numba"},
    "kernels.compiled.scalar": {"numba"},
    **{f"exchange.torch.{name}": {"torch"} for name in ("modules", "tracing")},
}
LATE = {  # import tools where they are first used
    **dict.fromkeys(["inspect.methods", "training.loop"], "inspect."),
    "distributed": "distributed.",  # which need mpi4py
    "sequential": "exchange.",
    **dict.fromkeys([f"training.{n}" for n in ("history", "histograms", "rate_finder")], "plots."),
}
OPTIONAL = {
    "threadpoolctl",
    "rich",
    "safetensors",
    "matplotlib",
    "datasets",
    "fcntl",  # which Windows lacks
    "IPython",
    "mpi4py",
    "google",  # protobuf, which onnx brings
    "numba",
    "huggingface_hub",
    "onnx",
    "PIL",
    "scipy",
    "tensorboardX",
    "tokenizers",
    "torch",
}


def modules() -> dict[str, Path]:
    """Every module below phitodeep, by its name there; phitodeep itself is exempt."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if parts:
            found[".".join(parts)] = path
    return found


MODULES = modules()
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}
each = pytest.mark.parametrize("name", MODULES)


def imports(name: str) -> Iterator[tuple[str, int, bool]]:
    """(absolute name, line, whether inside a function) of everything that a module imports."""
    inside = {
        id(node)
        for function in ast.walk(TREES[name])
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
    }
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, id(node) in inside
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno} imports relatively"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                is_module = full.removeprefix("phitodeep.") in MODULES
                target = full if is_module else str(node.module)
                yield target, node.lineno, id(node) in inside


def ours(name: str) -> Iterator[tuple[str, int, bool]]:
    """What a module imports of phitodeep, by its name there."""
    if name in FORWARDING:
        return
    for target, line, inside in imports(name):
        if target.split(".")[0] == "phitodeep":
            yield target.removeprefix("phitodeep").removeprefix("."), line, inside


def floor(name: str) -> int:
    """The floor of a module: its own, or that of the folder that it is in."""
    if name in FACES:
        return max(map(floor, FACES[name]))
    while name not in FLOORS and "." in name:
        name = name.rpartition(".")[0]
    assert name in FLOORS, f"{name} has no place in the tree of docs/design.md"
    return FLOORS[name]


@each
def test_every_module_has_a_floor(name: str) -> None:
    assert 0 <= floor(name) <= 8


@each
def test_a_module_imports_its_own_floor_or_a_lower_one(name: str) -> None:
    for target, line, _ in ours(name):
        assert target, f"{name}:{line} imports the package itself, which is above all"
        assert target in MODULES, f"{name}:{line} imports {target}, which is no module"
        assert floor(target) <= floor(name), f"{name}:{line} imports {target}, which is above it"


def test_there_are_no_circles() -> None:
    # a package's own file runs before its modules, but only those of layers are needed by others
    graph = {name: {target for target, *_ in ours(name)} - {name} for name in MODULES}
    order = list(TopologicalSorter(graph).static_order())
    assert set(order) == set(MODULES)
    assert sum(map(len, graph.values())) > 60  # it did see the imports


@each
def test_ours_is_never_imported_inside_a_function(name: str) -> None:
    found = [(target, line) for target, line, inside in ours(name) if inside]
    if name in LATE:  # so that a program that only trains does not load them
        found = [(target, line) for target, line in found if not target.startswith(LATE[name])]
    assert found == []


@each
def test_optional_libraries_are_imported_where_they_are_used(name: str) -> None:
    for target, line, inside in imports(name):
        library = target.split(".")[0]
        if library == "phitodeep":
            continue
        if inside:
            assert library in OPTIONAL | PYTHONS_OWN, f"{name}:{line} hides {library}"
        else:
            allowed = REQUIRED | set(sys.stdlib_module_names) - PYTHONS_OWN
            allowed |= WHOLE.get(name, set())
            assert library in allowed, f"{name}:{line} needs {library} for all it does"


@pytest.mark.parametrize("name", FORWARDING)
def test_what_is_forwarded_is_imported_for_type_checkers_alone(name: str) -> None:
    (block,) = [node for node in TREES[name].body if isinstance(node, ast.If)]
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    told = {
        alias.name: str(node.module).removeprefix("phitodeep.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert told == importlib.import_module(f"phitodeep.{name}")._HOME
    rest = [node for node in ast.walk(TREES[name]) if isinstance(node, ast.ImportFrom)]
    assert {node.module for node in rest if node not in block.body} == {"__future__", "typing"}


@pytest.mark.parametrize("name", FACES)
def test_an_old_path_only_imports_what_has_moved(name: str) -> None:
    doc, *body = TREES[name].body
    assert isinstance(doc, ast.Expr)
    *moved, exported = [node for node in body if not isinstance(node, ast.FunctionDef)]
    assert all(isinstance(node, ast.ImportFrom) for node in moved)
    assert isinstance(exported, ast.Assign)
    assert {target for target, *_ in ours(name)} == FACES[name]
    assert not [user for user in MODULES if name in {target for target, *_ in ours(user)}]


def test_data_and_inspect_do_not_know_sequential() -> None:
    for name in MODULES:
        if name.split(".")[0] in ("data", "inspect", "io"):
            assert {"model", "sequential", "builder"}.isdisjoint(
                target for target, *_ in ours(name)
            ), name
            assert "Sequential(" not in ast.unparse(TREES[name]), name


@each
def test_no_module_uses_global_randomness(name: str) -> None:
    allowed = {"default_rng", "Generator", "SeedSequence", "Philox", "BitGenerator"}
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "np.random":
            assert node.attr in allowed, f"{name}:{node.lineno} uses np.random.{node.attr}"


OTHER = {Path(), Path("browser"), Path("site")}  # folders of tests without one in the package


def test_tests_mirror_the_package() -> None:
    tests = Path(__file__).parent
    for path in tests.rglob("test_*.py"):
        folder = path.parent.relative_to(tests)
        assert folder in OTHER or (ROOT / folder).is_dir(), path


LONGEST = 400  # lines, without a reason


def is_long_without_a_reason(source: str) -> bool:
    """A longer file says why, in a sentence of its docstring that begins with "Long because"."""
    doc = ast.get_docstring(ast.parse(source)) or ""
    return source.count("\n") > LONGEST and "Long because " not in doc


@each
def test_a_long_file_says_why(name: str) -> None:
    long = is_long_without_a_reason(MODULES[name].read_text(encoding="utf-8"))
    assert not long, (
        f"{name} has more than {LONGEST} lines: split it, or let a sentence of its docstring say "
        'why not, beginning with "Long because"'
    )


def test_a_reason_is_a_sentence_of_the_docstring() -> None:
    body = "x = 1\n" * LONGEST
    assert not is_long_without_a_reason(body)
    assert is_long_without_a_reason('"""Doc."""\n' + body)
    assert is_long_without_a_reason("# Long because I say so.\n" + body)
    assert not is_long_without_a_reason('"""Doc.\n\nLong because of a table.\n"""\n' + body)
