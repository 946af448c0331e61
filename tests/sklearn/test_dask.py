"""Grid searches of the estimators in the processes of Dask: same results, one thread each."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("distributed")

import psutil  # distributed requires it
from dask.distributed import Client, LocalCluster
from joblib import parallel_config
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from threadpoolctl import threadpool_info

import phitodeep
from phitodeep import AdamW, SequentialBuilder
from phitodeep.core.threads import TWO_PARTS
from phitodeep.model.callbacks import LambdaCallback
from phitodeep.optimization.schedules import Constant
from phitodeep.sklearn import PhitoClassifier
from tests.rows import few, long
from tests.test_examples import load

# What Dask and joblib warn of on their own: not about phitodeep.
pytestmark = pytest.mark.filterwarnings(
    "ignore:::(dask|distributed|joblib|tornado)",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)
LIMIT = 300  # seconds, of which a test takes a few
LIBRARIES = ("OPENBLAS", "MKL", "OMP")
X, y = load_digits(return_X_y=True)
X, y = X[:300], y[:300]


@pytest.fixture(autouse=True)
def _limit() -> Iterator[None]:
    """A test that waits for too long shows where each thread is, and ends the process."""
    faulthandler.dump_traceback_later(LIMIT, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def environ() -> Iterator[dict[str, str]]:
    """No limit of threads; and none after the test, though Dask sets one in this process too."""
    phitodeep.get_threads()  # which reads the variables once
    with mock.patch.dict(os.environ):
        for library in LIBRARIES:
            os.environ.pop(f"{library}_NUM_THREADS", None)
        yield os.environ


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """No process that a test starts is left when it ends."""
    if os.name == "posix":
        resource_tracker.ensure_running()  # a process of Python's own, which stays
    before = processes()
    yield
    assert processes() <= before


def processes() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


@contextmanager
def workers(count: int = 2) -> Iterator[Client]:
    """Start a local cluster of processes with one thread each, and end it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cluster = LocalCluster(
            n_workers=count, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
        )
    with cluster, Client(cluster) as client:
        yield client


def in_dask(search: Any) -> Any:
    with parallel_config(backend="dask"):
        return search.fit(X, y)


# --- results -----------------------------------------------------------------------------------


def assert_same_search(one: Any, other: Any) -> None:
    """Both found the same, bit for bit."""
    assert one.best_params_ == other.best_params_
    assert one.best_score_ == other.best_score_
    scores = [name for name in one.cv_results_ if "_test_score" in name]
    assert len(scores) > 4
    for name in scores:
        np.testing.assert_array_equal(one.cv_results_[name], other.cv_results_[name], name)
    ours, theirs = (s.best_estimator_.model_.get_weights() for s in (one, other))
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], name)


def test_a_search_in_two_workers_finds_what_one_process_finds() -> None:
    plain = PhitoClassifier(random_state=0, epochs=4)
    grids: list[tuple[PhitoClassifier, dict[str, list[Any]]]] = [
        (plain, {"hidden": [(16,), (32, 16)], "dropout": [0.0, 0.2]}),
        (plain, {"optimizer": [None, AdamW(0.01, weight_decay=0.1), "rmsprop"]}),
        (plain, {"learning_rate": [0.01, Constant(0.01)], "early_stopping": [True, False]}),
        (
            PhitoClassifier(random_state=0, epochs=2),
            {"model": [SequentialBuilder(8, 8, 1).conv2d(4, 3).relu().flatten()]},
        ),
    ]
    with workers() as client:
        pids = set(client.run(os.getpid).values())
        assert len(pids) == 2
        assert os.getpid() not in pids
        for est, grid in few(grids, 2):
            alone = GridSearchCV(est, grid, cv=3, n_jobs=1).fit(X, y)
            assert_same_search(alone, in_dask(GridSearchCV(est, grid, cv=3)))
        lists = {"hidden": [(8,), (16,), (32,)], "epochs": [1, 2, 3]}
        draws = {"n_iter": 4, "cv": 3, "random_state": 0}
        alone = RandomizedSearchCV(plain, lists, n_jobs=1, **draws).fit(X, y)
        assert_same_search(alone, in_dask(RandomizedSearchCV(plain, lists, **draws)))


# --- threads -----------------------------------------------------------------------------------


def blas_threads() -> set[int]:
    return {lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"}


def record(folder: Path, *_: Any) -> None:
    """Write down this process, what phitodeep and BLAS may use, and phitodeep's own threads."""
    helpers = sum(thread.name == "phitodeep" for thread in threading.enumerate())
    seen = f"{os.getpid()} {phitodeep.get_threads()} {max(blas_threads())} {helpers}\n"
    with (folder / str(os.getpid())).open("a") as file:
        file.write(seen)


def threads_during_fit(folder: Path) -> set[tuple[int, ...]]:
    """Search in Dask, with steps that two threads would share; return what `record` saw."""
    units, batch = 600, 128
    assert 6 * batch * units**2 > TWO_PARTS
    watched = SequentialBuilder().dense(units).relu().dense(units).relu()
    watched.callbacks(LambdaCallback(on_epoch_end=partial(record, folder)))
    est = PhitoClassifier(model=watched, batch_size=batch, dtype="float32", random_state=0)
    grid = {"epochs": [1, 2], "learning_rate": [0.001, 0.01]}
    in_dask(GridSearchCV(est, grid, cv=3, refit=False))
    lines = [line for file in folder.iterdir() for line in file.read_text().splitlines()]
    assert len(lines) == 3 * 2 * (1 + 2)
    return {tuple(map(int, line.split())) for line in lines}


def test_each_worker_of_dask_has_one_thread(tmp_path: Path) -> None:
    """Dask sets OPENBLAS_NUM_THREADS and the like to 1 in its workers: nothing is left to do."""
    with workers() as client:
        pids = set(client.run(os.getpid).values())
        assert set(client.run(phitodeep.get_threads).values()) == {1}
        assert all(found == {1} for found in client.run(blas_threads).values())
        assert threads_during_fit(tmp_path) == {(pid, 1, 1, 0) for pid in pids}


@long
def test_set_threads_limits_workers_that_may_use_more(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """Dask keeps the variables that are set already."""
    environ["OPENBLAS_NUM_THREADS"] = "2"
    with workers() as client:
        pids = set(client.run(os.getpid).values())
        assert set(client.run(os.getenv, "OPENBLAS_NUM_THREADS").values()) == {"2"}
        client.run(phitodeep.set_threads, 1)
        assert threads_during_fit(tmp_path) == {(pid, 1, 1, 0) for pid in pids}


# --- the example -------------------------------------------------------------------------------


@long
def test_the_example_sweeps_in_two_workers(capsys: pytest.CaptureFixture[str]) -> None:
    example = load("sweep_dask")
    before = phitodeep.get_threads()
    search = example.main(epochs=4)
    assert phitodeep.get_threads() == before
    assert search.best_score_ > 0.9
    out = capsys.readouterr().out
    assert "2 workers started" in out
    shown = [float(line.split()[1]) for line in out.splitlines() if " ± " in line]
    assert len(shown) == 8
    assert shown == sorted(shown, reverse=True)
    assert "this process" not in out


def test_the_example_runs_in_a_cluster_that_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    example = load("sweep_dask")
    with workers(1) as client:
        address = client.scheduler.address
        search = example.main(workers=1, epochs=1, scheduler=address, compare=True)
        assert set(client.run(phitodeep.get_threads).values()) == {1}
    assert len(search.cv_results_["params"]) == 8
    out = capsys.readouterr().out
    assert "workers started" not in out
    assert "this process: " in out
    assert "joblib, 1 processes: " in out
