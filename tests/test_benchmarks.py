"""The reference results, on the digits that come with the package."""

import importlib.util
import sys
from pathlib import Path

import pytest

from phitodeep.data import load_mnist

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def results():
    spec = importlib.util.spec_from_file_location("results", ROOT / "benchmarks" / "results.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["results"] = module
    spec.loader.exec_module(module)
    return module


def test_descent_is_exact_to_the_last_digit(results):
    _, wanted, got, met = results.descent(None)
    assert met
    assert got == wanted == "1, 1.8, 2.44, 2.952"


def test_moons_do_not_stall(results):
    assert results.moons(None)[3]


def test_five_epochs_on_the_small_digits(results, capsys):
    X, y, X_test, y_test = load_mnist()
    _, _, got, met = results.five_epochs((X, y, X_test, y_test))
    assert float(got) > 0.92
    assert met is (float(got) >= 0.97)


def test_a_table_is_written_with_what_was_missed(results, tmp_path):
    missed = results.Result("a net", ">= 1", "0.5", False, 1.25)
    results.write({"moons": missed}, tmp_path)
    results.write({"spirals": results.Result("a spiral", "1", "1", True, 0)}, tmp_path)
    written = (tmp_path / "_results.md").read_text()
    assert "| a net | >= 1 | 0.5 | **no** | 1.2 |" in written
    assert "| a spiral | 1 | 1 | yes | 0.0 |" in written


def test_every_example_with_a_result_is_a_row(results):
    without = {"mnist", "mnist_datasets", "manual_loop", "custom_layer"}  # they show how
    scripts = {path.stem for path in (ROOT / "examples").glob("*.py")} - without
    rows = {task.__name__.removesuffix("_picture") for task in results.SCRIPTS}
    assert scripts == rows
