"""The rooms of docs/design.md: which module may import which, read from the sources."""

import ast
import re
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import phitodeep
from phitodeep.core.aliases import ALIASES

ROOT = Path(phitodeep.__file__).parent
ROOMS = [  # a module imports from its own room and from those before it
    *("errors", "core", "kernels", "functional", "derivations", "layers", "loss", "optimization"),
    *("testing", "text", "data", "io", "training", "inspect", "plots", "teach", "distributed"),
    *("exchange", "model", "sklearn", "cli", "__main__"),
]
UPWARD = {  # (module, room): why it imports from a later room, in a function or for type checkers
    ("io", "model"): "phitodeep.io.from_torch and its relatives are public names",
    ("training.history", "plots"): "History.plot() draws",
    ("training.rate_finder", "plots"): "RateRange.plot() draws",
}
REQUIRED = {"numpy"}  # with Python's own, all that may be imported at the top of a file
PYTHONS_OWN = {
    *("fcntl", "resource"),  # not on Windows
    "lzma",  # may be missing from a Python built without it
    *("concurrent", "html"),  # take milliseconds that few programs have a use for
}
WHOLE = {  # modules that are themselves imported where used, and the command line
    **{f"cli.{path.stem}": {"click", "rich"} for path in (ROOT / "cli").glob("[!_]*.py")},
    **{
        f"sklearn.{path.stem}": {"sklearn", "scipy"} for path in (ROOT / "sklearn").glob("[!_]*.py")
    },
    **{f"distributed.{name}": {"mpi4py"} for name in ("exchange", "group", "job")},
    "inspect.operators": {"scipy"},
    "kernels.compiled.blas": {"numba", "llvmlite"},
    "kernels.compiled.jit": {"numba"},
    "kernels.compiled.scalar": {"numba"},
    **{f"exchange.torch.{name}": {"torch"} for name in ("modules", "read.tracing")},
}
LATE = {  # import tools where they are first used, so that a program that only trains does not
    "inspect.methods": "inspect.",
    "layers.pde": "derivations.derive.",
    "distributed": "distributed.",  # which need mpi4py
    "model.model": "exchange.",
    **dict.fromkeys(["layers.base", "layers.tying"], "derivations.derive."),
    **dict.fromkeys(["training.history", "training.rate_finder", "plots.recorder"], "plots."),
}
OPTIONAL = {
    *("threadpoolctl", "rich", "safetensors", "matplotlib", "datasets", "IPython", "mpi4py"),
    "google",  # protobuf, which onnx brings
    *("numba", "huggingface_hub", "onnx", "PIL", "scipy", "tensorboardX", "tokenizers", "torch"),
}


def modules():
    """Every module below phitodeep, by its name there; phitodeep itself is exempt."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if parts:
            found[".".join(parts)] = path
    return found


MODULES = modules()


@cache
def text(name):
    return MODULES[name].read_text(encoding="utf-8")


def statements(node, inside=False):
    """All statements below a node, and whether each is inside a function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child, inside
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from statements(child, inside or is_function)


@cache
def imports(name):
    """(absolute name, line, whether inside a function) of everything that a module imports."""
    found = []
    for node, inside in statements(ast.parse(text(name))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno, inside) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno} imports relatively"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                is_module = full.removeprefix("phitodeep.") in MODULES
                target = full if is_module else str(node.module)
                found.append((target, node.lineno, inside))
    return found


def ours(name):
    """What a module imports of phitodeep, by its name there, type checkers' imports included."""
    for target, line, inside in imports(name):
        if target.split(".")[0] == "phitodeep":
            yield target.removeprefix("phitodeep").removeprefix("."), line, inside


def room(name):
    return name.partition(".")[0]


def test_there_are_at_most_24_rooms_and_aliases_hide_none():
    assert {room(name) for name in MODULES} == set(ROOMS)
    entries = [path for path in ROOT.iterdir() if path.name != "__pycache__"]
    assert len(entries) <= 24
    assert set(ALIASES.values()) <= set(MODULES)
    assert not set(ALIASES) & set(MODULES)
    assert not [name for name in MODULES if set(ALIASES) & {target for target, *_ in ours(name)}]


def test_a_module_imports_from_its_own_room_and_those_before_it():
    upward = set()
    for name in MODULES:
        for target, line, _ in ours(name):
            assert target in MODULES, f"{name}:{line} imports {target}, which is no module"
            if ROOMS.index(room(target)) > ROOMS.index(room(name)):
                upward.add((name, room(target)))
    assert upward == set(UPWARD)


def test_what_is_imported_by_its_name_is_not_in_a_later_room():
    """Nobody gets around the rule with `importlib`, except for names that UPWARD allows."""
    for name in MODULES:
        for target in re.findall(r"""["'](?:phitodeep\.)?(\w+\.[\w.]+)["']""", text(name)):
            if target in MODULES and (name, room(target)) not in UPWARD:
                later = ROOMS.index(room(target)) > ROOMS.index(room(name))
                assert not later or name == "core.aliases", f"{name} names {target}"


def test_there_are_no_circles():
    # a package's own file runs before its modules, but only those of layers are needed by others
    graph = {
        name: {target for target, *_ in ours(name)} - {name} for name in MODULES if name != "io"
    }
    order = list(TopologicalSorter(graph).static_order())
    assert set(order) <= set(MODULES)
    assert sum(map(len, graph.values())) > 60  # it did see the imports


def test_ours_is_never_imported_inside_a_function():
    for name in MODULES:
        late = LATE.get(name, "none.")
        for target, line, inside in ours(name):
            assert not inside or target.startswith(late), f"{name}:{line} hides {target}"


def test_optional_libraries_are_imported_where_they_are_used():
    for name in MODULES:
        allowed = REQUIRED | set(sys.stdlib_module_names) - PYTHONS_OWN | WHOLE.get(name, set())
        for target, line, inside in imports(name):
            library = target.split(".")[0]
            if inside:
                known = {"phitodeep", *OPTIONAL, *PYTHONS_OWN}
                assert library in known, f"{name}:{line} hides {library}"
            else:
                known = {"phitodeep", *allowed}
                assert library in known, f"{name}:{line} needs {library} for all it does"


def test_no_module_uses_global_randomness():
    allowed = {"default_rng", "Generator", "SeedSequence", "Philox", "BitGenerator"}
    for name in MODULES:
        used = {*re.findall(r"(?:np|numpy)\.random\.(\w+)", text(name))}
        assert used <= allowed, name


OTHER = {Path(), Path("browser"), Path("website")}  # tests of what is not in the package


def test_tests_mirror_the_package():
    tests = Path(__file__).parent
    for path in tests.rglob("test_*.py"):
        folder = path.parent.relative_to(tests)
        assert folder in OTHER or (ROOT / folder).is_dir(), path


LONGEST = 500  # lines, without a reason


def is_long_without_a_reason(source):
    """A longer file says why, in a sentence of its docstring that begins with "Long because"."""
    if source.count("\n") <= LONGEST:
        return False
    return "Long because " not in (ast.get_docstring(ast.parse(source)) or "")


def test_a_long_file_says_why_in_its_docstring():
    long = [n for n in MODULES if is_long_without_a_reason(text(n))]
    assert not long, (
        f"{long} have more than {LONGEST} lines: split them, or let a sentence of the docstring "
        'say why not, beginning with "Long because"'
    )
    body = "x = 1\n" * LONGEST
    assert not is_long_without_a_reason(body)
    assert is_long_without_a_reason('"""Doc."""\n' + body)
    assert is_long_without_a_reason("# Long because I say so.\n" + body)
    assert not is_long_without_a_reason('"""Doc.\n\nLong because of a table.\n"""\n' + body)
