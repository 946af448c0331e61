"""Which kernels run, and what their compilation says."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from phitodeep import functional, kernels
from phitodeep.errors import ArgumentError, MissingExtraError, PhitodeepWarning
from phitodeep.kernels import KERNELS, TWINS, Kernel, kernel
from tests.rows import long

pytestmark = pytest.mark.usefixtures("same_kernels")
CODE = """
import sys
import numpy as np
from phitodeep import functional, kernels
from phitodeep.layers.recurrent import rnn_step
from phitodeep.models import mlp
mlp(4, 3, 2).loss("softmax_cross_entropy").build()
print("numba" in sys.modules)
functional.softmax(np.ones(2))
rnn_step(np.full((1, 1), 20, np.float32), h := np.empty((1, 1), np.float32))
print(h[0, 0], kernels.chosen(), "numba" in sys.modules)
"""
RELOADED = """
for which in ("numpy", "numba"):
    kernels.use(which)
    first = functional.softmax_rows
    importlib.reload(functional)
    if which == "numba":
        importlib.reload(importlib.import_module("phitodeep.kernels.compiled.softmax"))
        kernels.use("numba")
    assert kernels.KERNELS["softmax_rows"] is functional.softmax_rows is not first
    form = kernels.TWINS["softmax_rows"] if which == "numba" else functional.softmax_rows.plain
    functional.softmax(np.ones(2))
    assert functional.softmax_rows.run is form
"""


def run(code=CODE, **environment):
    env = {k: v for k, v in os.environ.items() if k != "PHITODEEP_KERNELS"} | environment
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env
    )


BITS = """
import numpy as np
from phitodeep import kernels, layers
from phitodeep.testing.examples import made, passes
kernels.use("numba")
rng = np.random.default_rng(0)
X, dY = rng.standard_normal((2, 5, 7, 16)).astype(np.float32)
for kind in (layers.RNN, layers.LSTM, layers.GRU):
    layer = made(lambda: kind(16), X.shape, np.float32)
    print({name: array.tobytes() for name, array in passes(layer, X, dY).items()})
"""
# A package that is imported three times, each time as if nothing of it had been imported before.
THRICE = f"""
import atexit, importlib, os, pathlib, sys
def forget():
    atexit._run_exitfuncs()
    kernels.hide_compilation()  # of the modules that are forgotten
    print("-", flush=True)
    print("-", file=sys.stderr, flush=True)
    for name in [name for name in sys.modules if name.partition(".")[0] == "phitodeep"]:
        del sys.modules[name]
{CODE}
scalar = pathlib.Path(kernels.__file__).parent / "compiled" / "scalar.py"
forget()
for path in scalar.parents[1].rglob("*.py"):
    os.utime(path, (0, 0))
{CODE}
{RELOADED}
forget()
whole = scalar.read_text()
assert "end = f4(1) if x > 0" in whole
scalar.write_text(whole.replace("end = f4(1) if x > 0", "end = f4(0) if x > 0"))
{CODE}
"""


def test_the_first_run_compiles_and_later_ones_load_until_a_source_changes(tmp_path):
    """Numba itself looks only at the file of the kernel, and not at those that it calls."""
    pytest.importorskip("numba")
    source, compiled = Path(kernels.__file__).parents[1], shutil.ignore_patterns("*.nb[ci]")
    shutil.copytree(source, tmp_path / "phitodeep", ignore=compiled)
    ran = run(THRICE, PYTHONPATH=str(tmp_path), PYTHONSAFEPATH="1")
    first, second, changed = (each.split() for each in ran.stdout.split("-\n"))
    assert first == ["False", "1.0", "numba", "True"]
    assert second[1:] == first[1:]  # also of modules with kernels that were reloaded
    assert changed[1] == "0.0"
    says = r"phitodeep: compiling kernels \(only once, for a few seconds\)\n"
    took = r"phitodeep: compiled \d+ kernels in \d+\.\d s; later runs load them\n"
    assert re.fullmatch(f"{says}{took}-\n-\n{says}{took}", ran.stderr)


@long
def test_the_time_of_compilation_is_reported_during_training_or_at_the_end(tmp_path):
    pytest.importorskip("numba")
    model = CODE.replace("mlp(", "model = mlp(")
    trains = model + "model.train(np.ones((8, 4)), np.zeros(8, int), epochs=1, verbose=0)"
    predicts = model + "model.predict(np.ones((8, 4)))"
    for code, last in ((trains, "end of training"), (predicts, "kernels in")):
        marked = code + '\nprint("end of training", file=sys.stderr)'
        shown = run(marked, NUMBA_CACHE_DIR=str(tmp_path / last[0])).stderr.splitlines()
        assert len(shown) == 3
        assert last in shown[-1]


@long
def test_the_process_that_compiles_computes_the_same_bits_as_later_ones(tmp_path):
    pytest.importorskip("numba")
    first, later = (run(BITS, NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2))
    assert "compiled" in first.stderr
    assert later.stderr == ""
    assert first.stdout == later.stdout != ""


def test_a_cache_that_cannot_be_written_only_warns(monkeypatch):
    caching = pytest.importorskip("numba.core.caching")
    from phitodeep.kernels.compiled.jit import NOTICE, jit

    monkeypatch.setattr(NOTICE, "cached", True)
    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])

    def double(X):
        for i in range(X.size):
            X[i] *= 2

    with pytest.warns(PhitodeepWarning, match="each run compiles them again.*NUMBA_CACHE_DIR"):
        made = jit(double)
    made = jit(double)  # warns only once
    X = np.ones(3)
    made(X)
    np.testing.assert_array_equal(X, 2)


def test_the_environment_chooses_and_a_kernel_runs_as_what_was_chosen(monkeypatch):
    softmax_rows = functional.softmax_rows
    assert softmax_rows is KERNELS["softmax_rows"]
    assert isinstance(softmax_rows, Kernel)
    for which in ("numpy", "auto"):
        chosen = kernels.use(which)
        functional.softmax(np.ones(2))
        forms = {"numpy": softmax_rows.plain, "numba": TWINS.get("softmax_rows")}
        assert softmax_rows.run is forms[chosen]
    assert softmax_rows.__doc__ == softmax_rows.plain.__doc__
    assert run(PHITODEEP_KERNELS="numpy").stdout.split() == ["False", "1.0", "numpy", "False"]
    monkeypatch.setattr(kernels, "_chosen", None)
    monkeypatch.setenv("PHITODEEP_KERNELS", "fortran")
    with pytest.raises(ArgumentError, match="KERNELS must be one of numpy, numba, auto, got 'fort"):
        kernels.chosen()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert kernels.use("auto") == "numpy"
    with pytest.raises(MissingExtraError, match=r"phitodeep\[fast\]"):
        kernels.use("numba")
    with pytest.raises(ArgumentError, match="got 'cuda'"):
        kernels.use("cuda")
    assert kernels.chosen() == "numpy"


def test_a_kernel_without_a_twin_runs_in_numpy_alone(monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setattr(kernels, "KERNELS", dict(KERNELS))
    kernels.use("numpy")

    @kernel
    def bump(X):
        X += 1

    X = np.zeros(2)
    bump(X)
    np.testing.assert_array_equal(X, 1)
    kernels.use("numba")
    with pytest.raises(ArgumentError, match="kernel 'bump' has no compiled twin"):
        bump(X)
    np.testing.assert_array_equal(X, 1)
