"""Which kernels run, and what their compilation says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phitodeep import functional, kernels
from phitodeep.errors import ArgumentError, MissingExtraError, PhitodeepWarning
from phitodeep.kernels import KERNELS, Kernel

CODE = """
import sys
from phitodeep import kernels
from phitodeep.models import mlp
import numpy as np
model = mlp(4, 3, 2).loss("softmax_cross_entropy").build()
print("numba" in sys.modules)
model.train(np.ones((8, 4)), np.zeros(8, int), epochs=1, verbose=0)
print(kernels.chosen(), "numba" in sys.modules)
"""


def run(code: str = CODE, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "PHITODEEP_KERNELS"} | environment
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env
    )


@pytest.fixture(autouse=True)
def _restored() -> Any:
    before = kernels.chosen()
    yield
    kernels.use(before)


def test_the_first_compilation_says_so_and_the_next_run_takes_it_from_disk(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    first = run(NUMBA_CACHE_DIR=str(tmp_path))
    assert first.stdout.split() == ["False", "numba", "True"]
    assert first.stderr == "phitodeep: compiling kernels, once; some seconds\n"
    second = run(NUMBA_CACHE_DIR=str(tmp_path))
    assert second.stdout == first.stdout
    assert second.stderr == ""


def test_the_environment_chooses(tmp_path: Path) -> None:
    assert run(PHITODEEP_KERNELS="numpy").stdout.split() == ["False", "numpy", "False"]
    wrong = run(PHITODEEP_KERNELS="fortran")
    assert "PHITODEEP_KERNELS must be one of numpy, numba, auto, got 'fortran'" in wrong.stderr


def test_without_numba_auto_is_numpy_and_numba_names_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert kernels.use("auto") == "numpy"
    with pytest.raises(MissingExtraError, match=r"phitodeep\[fast\]"):
        kernels.use("numba")
    with pytest.raises(ArgumentError, match="got 'cuda'"):
        kernels.use("cuda")
    assert kernels.chosen() == "numpy"


def test_a_cache_that_cannot_be_written_only_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    caching = pytest.importorskip("numba.core.caching")
    from phitodeep.kernels import compiled

    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])

    def double(X: Any) -> None:
        for i in range(X.size):
            X[i] *= 2

    with pytest.warns(PhitodeepWarning, match="each run compiles them anew.*NUMBA_CACHE_DIR"):
        made = compiled.compiled(double)
    X = np.ones(3)
    made(X)
    np.testing.assert_array_equal(X, 2)


def test_a_kernel_runs_as_what_was_chosen() -> None:
    softmax_rows = functional.softmax_rows
    assert softmax_rows is KERNELS["softmax_rows"]
    assert isinstance(softmax_rows, Kernel)
    kernels.use("numpy")
    assert softmax_rows.run is softmax_rows.plain
    if kernels.use("auto") == "numba":
        assert softmax_rows.run is not softmax_rows.plain
    assert softmax_rows.__doc__ == softmax_rows.plain.__doc__
