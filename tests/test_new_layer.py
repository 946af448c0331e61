"""CONTRIBUTING.md adds a layer from nothing: done in a copy, and every check finds it."""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"```(?:python|toml)\n# (\S+?)(?:, in (\w+))?\n(.*?)```", re.DOTALL)
BLOCKS = BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text("utf-8"))
COPIED = ("phitodeep", "tests", "tools", "website", "docs", "pyproject.toml")
CONTRACT = [
    *(f"tests/{name}/test_contract.py" for name in ("layers", "derivations")),
    "tests/layers/test_activation.py",
]
FOUND_BY = (  # what fails as long as a place is missing
    "tests/layers/test_contract.py::test_table_covers_exactly_the_public_layers",
    "tests/model/test_sequential.py::test_the_builder_has_a_method_for_every_public_layer",
    "tests/layers/test_references.py::test_every_layer_with_a_counterpart_has_references",
    "tests/website/test_layer_pages.py::test_every_public_layer_has_a_page_and_an_alias_says_so",
)
COMES_BACK = """
import phitodeep as nn
model = nn.Sequential(nn.Arctan())
model.build((5,))
model.export_onnx("a.onnx")
print(nn.io.from_onnx("a.onnx").layers)
"""


@pytest.fixture
def copy(tmp_path):
    unwanted = shutil.ignore_patterns("*.nb?", "*.pyc.*", "browser")  # but for what Python compiled
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=unwanted)
        else:
            shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def write(folder, blocks):
    """Put each block at the end of its file, or first into the table that it names."""
    for file, table, code in blocks:
        path = folder / file
        source = path.read_text(encoding="utf-8")
        if table:
            source, count = re.subn(
                rf"^{table}\b.*[\[{{]\n",
                lambda found, code=code: found[0] + code,
                source,
                flags=re.M,
            )
            assert count == 1, (file, table)
        else:
            source = f"{source}\n\n{code}"
        path.write_text(source, encoding="utf-8")


def run(folder, *command):
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder), "PHITODEEP_KERNELS": "numpy"},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )


def pytest_on(folder, *names):
    return run(folder, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *names).stdout


def test_a_layer_has_five_places():
    assert len({file for file, _, _ in BLOCKS}) == 5


def test_checks_find_what_a_new_layer_lacks_and_pass_when_all_is_there(copy):
    begun = [block for block in BLOCKS if block[0].startswith(("phitodeep/l", "phitodeep/d"))]
    write(copy, begun)
    output = pytest_on(copy, *FOUND_BY)
    for name in FOUND_BY:
        assert f"FAILED {name}" in output, output
    assert "Arctan" in output
    write(copy, [block for block in BLOCKS if block not in begun])
    assert run(copy, "tools/builder_methods.py").returncode == 0
    output = pytest_on(copy, *FOUND_BY, *CONTRACT, "-k", "Arctan or public")
    assert "failed" not in output, output
    for name in CONTRACT:
        assert re.search(rf"PASSED {name}::.*Arctan", output), output
    if find_spec("onnx"):
        assert run(copy, "-c", COMES_BACK).stdout == "[Arctan()]\n"
