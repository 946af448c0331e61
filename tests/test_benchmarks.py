"""The reference results, on the digits that come with the package."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
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


@pytest.fixture
def suite(monkeypatch):
    """The benchmark's files, which import each other by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib
    for name in ("bench", "measuring", "report", "workloads", "frameworks", "frameworks.ours"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("workload", ["W1", "W2", "W3", "W4", "W5"])
def test_every_workload_trains_and_predicts_here(suite, workload):
    workloads, ours = (suite.import_module(m) for m in ("workloads", "frameworks.ours"))
    side = ours.Side(workload, "NumPy only")
    made = side.model.get_weights()
    for key, a in workloads.weights(workload).items():
        np.testing.assert_array_equal(made.pop(ours.path_of(key, workload)), a)
    assert not made
    X, y = workloads.data(workload, 8)
    before = side.loss(X, y)
    side.train(X, y, 4)
    side.epoch(X, y, 4)
    assert side.loss(X, y) < before
    assert len(side.predict(X)) == 8
    assert workloads.gemm_flops(workload, 2) == 2 * workloads.gemm_flops(workload, 1) > 0


def test_tables_and_pictures_of_a_benchmark(suite, tmp_path):
    bench = suite.import_module("bench")
    assert bench.variants("pytorch")["channels last, fused Adam"] == ("W3",)
    assert {e.module for e in bench.entries("W4", "step")} >= {"ours"}
    row = {"seconds": 0.001, "quartiles": [0.0009, 0.0012], "ratio": 2.0, "peer": False}
    peer = {**row, "seconds": 0.002, "ratio": 1.0, "peer": True}
    block = {"rows": {"phitodeep": row, "PyTorch, eager": peer}, "noisy": 1, "rounds": 3}
    grown = {"values": [1, 2, 4], "seconds": [1e-3, 2e-3, 4e-3], "MB": [1.0, 2.0, 4.0]}
    found = {
        "step W1 64": block,
        "predict W1 1": {**block, "noisy": 0},
        "memory": {"W1": {"phitodeep": 60.0, "PyTorch, fused Adam": 300.0}},
        "import": {"numpy": 0.1, "phitodeep": 0.11},
        "size": {"phitodeep": 50.0},
        "growth": {"batch": {**grown, "exponent": [1.0, 1.0]}},
    }
    text = bench.tables(found)
    assert "| **phitodeep** | 1,000 us | 900 us to 1,200 us | 2.00 |" in text
    assert "| PyTorch, eager | 2.00 ms" in text
    assert "busy before 1 blocks" in text
    assert "| batch | 1, 4 | n^1.00 | n^1.00 |" in text
    bench.draw(found, tmp_path)
    for name in ("benchmarks", "growth"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_worker_answers_with_its_loss_and_its_seconds(suite):
    measuring = suite.import_module("measuring")
    plain = measuring.Entry("ours", "NumPy only", "phitodeep", (("PHITODEEP_KERNELS", "numpy"),))
    missing = measuring.Entry("nothing", "", "nothing")
    timings, noisy = measuring.compare([plain, missing], "W1", "step", 8, 16, 2)
    (timing,) = timings
    assert timing.entry is plain
    assert 2 < timing.loss < 3
    assert len(timing.seconds) == 2
    assert timing.quartiles[0] <= timing.median <= timing.quartiles[1]
    assert 0 <= noisy <= 2
