"""What can be imported from where, and what an import costs."""

import ast
import importlib
import importlib.util
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import phitodeep
from phitodeep.core.aliases import ALIASES

SOURCE = ast.parse(Path(phitodeep.__file__).read_text(encoding="utf-8"))


def test_every_public_name_is_that_of_its_home_and_rooms_are_attributes():
    names = {*phitodeep._HOME, *phitodeep._MODULES, *phitodeep._catalogue()}
    assert set(phitodeep.__all__) == names
    for name in phitodeep.__all__:
        value = getattr(phitodeep, name)
        assert name in dir(phitodeep)
        if name in phitodeep._MODULES:
            assert value is importlib.import_module(f"phitodeep.{name}")
        elif name in phitodeep._HOME:
            home = importlib.import_module(f"phitodeep.{phitodeep._HOME[name]}")
            assert value is getattr(home, name)
    folder = Path(phitodeep.__file__).parent
    found = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    found |= {path.parent.name for path in folder.glob("*/__init__.py")}
    helpers = {"__main__", "cli", "core", "derivations"}
    assert found - helpers == set(phitodeep._MODULES) - set(ALIASES)


def test_type_checkers_are_told_the_same():
    (block,) = [node for node in SOURCE.body if isinstance(node, ast.If)]
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    told = set()
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        names = [alias.asname or alias.name for alias in node.names]
        told |= set(importlib.import_module(str(node.module)).__all__ if names == ["*"] else names)
    authors = {"Elementwise", "Common", "OPTIMIZERS"}  # of these rooms, not of users
    assert told - authors == set(phitodeep.__all__) - set(phitodeep._MODULES)


def test_unknown_names_and_aliases():
    with pytest.raises(AttributeError, match="module 'phitodeep' has no attribute 'nonsense'"):
        _ = phitodeep.nonsense
    assert not hasattr(phitodeep, "__wrapped__")
    from phitodeep import layers
    from phitodeep.layers import activation, base, dense, reshape

    assert base.Dense is dense.Dense is layers.Dense
    assert base.Flatten is reshape.Flatten is layers.Flatten
    with pytest.warns(DeprecationWarning, match="write ReLU"):
        assert activation.ReLu is activation.ReLU
    assert issubclass(activation.Swish, activation.SiLU)


def fresh(code):
    """What `code` prints in a new Python."""
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_imports_bring_in_nothing_else():
    loaded, libraries = fresh("""
import sys, phitodeep
print(*(m for m in sys.modules if m.startswith("phitodeep")))
import phitodeep.model, phitodeep.data, phitodeep.testing
others = {"rich", "matplotlib", "datasets", "IPython", "scipy", "torch", "pytest", "PIL"}
print(others & {m.split(".")[0] for m in sys.modules})
""").splitlines()
    core = {"phitodeep.core", "phitodeep.core.aliases", "phitodeep.core.version"}
    assert {*loaded.split()} == {"phitodeep"} | core
    assert libraries == "set()"


def test_anything_may_be_imported_first():
    """A package's own file runs before its modules, so it decides what is imported first."""
    folder = Path(phitodeep.__file__).parent
    packages = [
        ".".join(path.relative_to(folder.parent).parent.parts)
        for path in folder.rglob("__init__.py")
        if "compiled" not in path.parts
    ]
    assert len(packages) > 25
    assert fresh(f"""
import importlib, sys
from phitodeep import *
print(Sequential.__name__)
for first in {[*packages, "phitodeep.layers.base"]}:
    for name in [name for name in sys.modules if name.partition(".")[0] == "phitodeep"]:
        del sys.modules[name]
    importlib.import_module(first)
print(sys.modules["phitodeep.layers.base"].Flatten.__name__)
""").split() == ["Sequential", "Flatten"]


def test_a_module_that_moved_runs_by_its_old_path():
    run = [sys.executable, "-m", "phitodeep.demo"]
    assert subprocess.run(run, capture_output=True, check=False).stderr == b""


DOCUMENTED = (Path(__file__).parent / "reference/documented_names.txt").read_text().splitlines()
DOCUMENTED = [line for line in DOCUMENTED if not line.startswith("#")]
DOCUMENTED += [f"phitodeep.{path}" for path in ALIASES]
DOCUMENTED += [  # what the pages of docs/api showed of modules that have moved since
    *("phitodeep.exchange.onnx.from_onnx.from_onnx", "phitodeep.exchange.torch.reading.from_torch"),
    *("phitodeep.exchange.torch.writing.to_torch", "phitodeep.inspect.symptoms.diagnose"),
    *("phitodeep.inspect.thresholds.LIMITS", "phitodeep.layers.frame.Frame"),
    *("phitodeep.training.diagnose.Diagnose", "phitodeep.training.histograms.Histograms"),
    "phitodeep.text.hub_tokenizer.HubTokenizer",
]
DOCUMENTED += ["phitodeep.layers.base.Dense", "phitodeep.layers.base.Flatten"]
DOCUMENTED += [f"phitodeep.optimization.optimizers.{name}" for name in ("SGD", "Adam", "Optimizer")]
RENAMED = {  # helpers that the reference showed, but that nobody was meant to call
    "phitodeep.layers.activation.in_parts": "phitodeep.kernels.activation.in_blocks",
    "phitodeep.layers.embedding.place_angles": "phitodeep.layers.embedding.position_angles",
    "phitodeep.layers.embedding.turning": "phitodeep.layers.embedding.Rope",
    "phitodeep.layers.normalization.go_back": "phitodeep.layers.normalization.normalise_back",
    "phitodeep.layers.pooling.spreading": "phitodeep.layers.resizing._interpolation_matrix",
    "phitodeep.layers.windows.places": "phitodeep.layers.windows.output_size",
    "phitodeep.layers.windows.sample_shape": "phitodeep.layers.windows.Windowed",
    "phitodeep.layers.windows.steps_there": "phitodeep.layers.windows.Windowed",
    "phitodeep.optimization.memory.Memories": "phitodeep.optimization.memory.ParameterStates",
    "phitodeep.optimization.memory.joined": "phitodeep.optimization.memory.parameter_path",
}


def can_be_imported(path):
    """Whether it is a module, or an attribute of one; old spellings may warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return bool(importlib.import_module(path))
        except ModuleNotFoundError:
            module, _, attribute = path.rpartition(".")
            return hasattr(importlib.import_module(module), attribute)


def test_what_was_documented_can_still_be_imported():
    for name in [RENAMED.get(name, name) for name in DOCUMENTED]:
        assert can_be_imported(name), name
