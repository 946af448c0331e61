"""Grid searches of the estimators in the processes of Dask: same results, one thread each."""

import faulthandler
import os
import sys
import threading
import warnings
from contextlib import contextmanager, nullcontext
from functools import partial
from multiprocessing import resource_tracker
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
from tests.conftest import assert_weights, numpy_kernels
from tests.rows import LONG, few, long
from tests.test_examples import load

pytestmark = [
    # What Dask and joblib warn of on their own: not about phitodeep.
    pytest.mark.filterwarnings("ignore:::(dask|distributed|joblib|tornado)"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
LIMIT = 300  # seconds, of which a test takes a few
X, y = load_digits(return_X_y=True)
X, y = X[:160], y[:160]


@pytest.fixture(autouse=True)
def _limit():
    """A test that waits for too long shows where each thread is, and ends the process."""
    faulthandler.dump_traceback_later(LIMIT, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@contextmanager
def workers(**environ):
    """Start a cluster of two processes with one thread each, and end it: no process is left.

    No variable limits their threads, apart from those given; Dask sets some in this process too.
    """
    phitodeep.get_threads()  # which reads the variables once
    if os.name == "posix":
        resource_tracker.ensure_running()  # a process of Python's own, which stays
    before = processes()
    with mock.patch.dict(os.environ):
        for library in ("OPENBLAS", "MKL", "OMP"):
            os.environ.pop(f"{library}_NUM_THREADS", None)
        os.environ.update(environ)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cluster = LocalCluster(
                n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
            )
        with cluster, Client(cluster) as client:
            yield client
    assert processes() <= before


def processes():
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.fixture(scope="module")
def client():
    with nullcontext() if LONG else numpy_kernels(), workers() as client:
        yield client


def in_dask(search):
    with parallel_config(backend="dask"):
        return search.fit(X, y)


def assert_same_search(one, other):
    assert one.best_params_ == other.best_params_
    assert one.best_score_ == other.best_score_
    scores = [name for name in one.cv_results_ if "_test_score" in name]
    assert len(scores) > 4
    for name in scores:
        np.testing.assert_array_equal(one.cv_results_[name], other.cv_results_[name], name)
    assert_weights(*(s.best_estimator_.model_ for s in (one, other)))


def test_a_search_in_two_workers_finds_what_one_process_finds(client):
    pids = set(client.run(os.getpid).values())
    assert len(pids) == 2
    assert os.getpid() not in pids
    plain = PhitoClassifier(random_state=0, epochs=2)
    images = SequentialBuilder(8, 8, 1).conv2d(4, 3).relu().flatten()
    for grid in few(
        [
            {"dropout": [0.2], "optimizer": [None, AdamW(0.01, weight_decay=0.1)]},
            {"hidden": [(16,), (32, 16)], "optimizer": ["rmsprop"]},
            {"learning_rate": [0.01, Constant(0.01)], "early_stopping": [True, False]},
            {"model": [images]},
        ],
        1,
    ):
        alone = GridSearchCV(plain, grid, cv=2, n_jobs=1).fit(X, y)
        assert_same_search(alone, in_dask(GridSearchCV(plain, grid, cv=2)))
    if not LONG:
        return
    lists = {"hidden": [(8,), (16,), (32,)], "epochs": [1, 2, 3]}
    draws = {"n_iter": 3, "cv": 3, "random_state": 0}
    alone = RandomizedSearchCV(plain, lists, n_jobs=1, **draws).fit(X, y)
    assert_same_search(alone, in_dask(RandomizedSearchCV(plain, lists, **draws)))


def blas_threads():
    return {lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"}


def record(folder, *_):
    """Write down this process, what phitodeep and BLAS may use, and phitodeep's own threads."""
    helpers = sum(thread.name == "phitodeep" for thread in threading.enumerate())
    seen = f"{os.getpid()} {phitodeep.get_threads()} {max(blas_threads())} {helpers}\n"
    with (folder / str(os.getpid())).open("a") as file:
        file.write(seen)


def assert_one_thread(client, folder):
    """A search whose steps two threads would share uses one thread in each worker."""
    units, batch = 600, 128
    assert 6 * batch * units**2 > TWO_PARTS
    watched = SequentialBuilder().dense(units).relu().dense(units).relu()
    watched.callbacks(LambdaCallback(on_epoch_end=partial(record, folder)))
    est = PhitoClassifier(model=watched, batch_size=batch, dtype="float32", random_state=0)
    in_dask(GridSearchCV(est, {"epochs": [1, 2]}, cv=2, refit=False))
    lines = [line for file in folder.iterdir() for line in file.read_text().splitlines()]
    assert len(lines) == 2 * (1 + 2)
    pids = client.run(os.getpid).values()
    assert {tuple(map(int, line.split())) for line in lines} <= {(pid, 1, 1, 0) for pid in pids}


def test_each_worker_of_dask_has_one_thread(client, tmp_path):
    """Dask sets OPENBLAS_NUM_THREADS and the like to 1 in its workers: nothing is left to do."""
    assert set(client.run(phitodeep.get_threads).values()) == {1}
    assert all(found == {1} for found in client.run(blas_threads).values())
    assert_one_thread(client, tmp_path)


@long
def test_set_threads_limits_workers_that_may_use_more(tmp_path):
    """Dask keeps the variables that are set already."""
    with workers(OPENBLAS_NUM_THREADS="2") as client:
        assert set(client.run(os.getenv, "OPENBLAS_NUM_THREADS").values()) == {"2"}
        client.run(phitodeep.set_threads, 1)
        assert_one_thread(client, tmp_path)


@long
def test_the_example_sweeps_in_two_workers(capsys):
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


def test_the_example_runs_in_a_cluster_that_is_there(client, capsys):
    example = load("sweep_dask")
    if not LONG:
        example.load_digits = lambda **_: (X, y)
    search = example.main(workers=1, epochs=1, scheduler=client.scheduler.address, compare=LONG)
    assert set(client.run(phitodeep.get_threads).values()) == {1}
    assert len(search.cv_results_["params"]) == 8
    out = capsys.readouterr().out
    assert "workers started" not in out
    for line in ("this process: ", "joblib, 1 processes: "):
        assert (line in out) == LONG
