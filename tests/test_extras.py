"""The extras of pyproject.toml, and what tools/check_extras.py does with them.

`make check-extras` installs each of them alone; here, all are installed.
"""

import subprocess
import sys
import tomllib

import pytest

from tests import test_docs
from tests.rows import long
from tools import check_extras as tool
from tools.check_extras import FEATURES, HEAVY, OURS, features, pins, problems, refused, works

LIBRARIES = {  # the library without which a feature is refused
    "data": "datasets",
    "plot": "matplotlib",
    "lbfgs": "scipy",
    "fast": "numba",
    "tensorboard": "tensorboardX",
    "torch": "torch",
    "onnx": "onnx",
    "sklearn": "sklearn",
    "hub": "tokenizers",
    "mpi": "mpi4py",
}


def test_every_extra_has_a_check(capsys):
    assert problems(features()) == []
    assert LIBRARIES.keys() == FEATURES.keys()
    assert problems([*features(), "new"]) == ["the extra new has no check"]
    assert problems(features()[1:]) == [f"{features()[0]} is not an extra"]
    assert tool.main(["new"]) == 1
    assert capsys.readouterr().out.startswith("no such extra: new; there are data, plot")


def test_tests_install_every_feature_but_pinned_heavy_ones():
    extras = tomllib.loads((tool.ROOT / "pyproject.toml").read_text())["project"]
    extras = extras["optional-dependencies"]
    assert OURS <= extras.keys()
    light = [extra for extra in features() if extra not in HEAVY]
    assert f"phitodeep[{','.join(light)}]" in extras["test"]
    assert set(features()) > HEAVY
    files = tool.skipped_by_make_test()
    for name in ("torch/test_to_torch", "onnx/test_export_runtime", "hub/test_parity"):
        assert f"tests/exchange/{name}.py" in files
    assert [pin.split("==")[0] for pin in pins()] == ["torch"]
    assert tool.wanted_by_tests()[0].startswith("dask")


def test_pages_of_features_have_blocks_that_tests_run():
    file, test = (
        test_docs.__name__.replace(".", "/"),
        test_docs.test_blocks_run_and_print_what_the_page_shows,
    )
    for page in [feature.page for feature in FEATURES.values() if feature.page]:
        assert test_docs.BLOCK.search((tool.ROOT / page).read_text(encoding="utf-8"))
        assert tool.blocks_of(page) == f"{file}.py::{test.__name__}[{page}]"


@long  # and `.ci/run` runs them without any of the libraries, and with all
@pytest.mark.parametrize("extra", FEATURES)
def test_the_code_of_each_check_runs(extra, tmp_path):
    """It works with the library, and is refused with an error that names the extra without it."""
    if extra in {*HEAVY, "fast"}:  # the other tests also run without Numba
        pytest.importorskip(LIBRARIES[extra])
    missing = f"import sys; sys.modules[{LIBRARIES[extra]!r}] = None\n"
    for code in (works(extra), missing + refused(extra)):
        command = [sys.executable, "-W", "error", "-c", code]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    code = missing + works(extra)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert f"phitodeep[{extra}]" in done.stderr.splitlines()[-1]


def test_a_feature_that_works_without_its_extra_fails_the_check(monkeypatch):
    monkeypatch.setitem(FEATURES, "plot", tool.Feature("pass"))
    command = [sys.executable, "-c", refused("plot")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "it works without the extra" in done.stderr
