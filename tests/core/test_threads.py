"""The threads of the process: how many run, what BLAS does meanwhile, and the same bits in all."""

import math
import os
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

import phitodeep
from phitodeep import LBFGS, Dense, Layer, Sequential, SequentialBuilder, threads
from phitodeep.errors import ArgumentError, ArgumentTypeError
from phitodeep.model.architectures import gpt, lenet
from phitodeep.model.callbacks import LambdaCallback
from tests.rows import LONG, few

ENVIRONMENT = threads._environment.__wrapped__  # without its memory


class Calling(Layer):
    """Calls a function in each pass, and changes nothing."""

    independent_samples = True

    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, X):
        self.call()
        return X.copy()

    def backward(self, dY):
        return dY.copy()


class Library:
    """A BLAS library, as threadpoolctl shows it."""

    internal_api = "openblas"

    def __init__(self, threading_layer="pthreads"):
        self.threading_layer, self.num_threads = threading_layer, 3
        self.seen = []

    def set_num_threads(self, n):
        self.num_threads = n
        self.seen.append(n)


@pytest.fixture
def blas(monkeypatch):
    library = Library()
    monkeypatch.setattr(threads, "_blas", lambda: [library])
    return library


@pytest.fixture
def free(monkeypatch):
    """No variable limits the threads, and four cores may be used."""
    for name in ("OPENBLAS", "MKL", "OMP"):
        monkeypatch.delenv(f"{name}_NUM_THREADS", raising=False)
    if hasattr(os, "sched_getaffinity"):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(threads, "_quota", lambda: math.inf)
    monkeypatch.setattr(threads, "_environment", lambda: math.inf)
    yield monkeypatch
    phitodeep.set_threads(None)


def mlp():
    builder = SequentialBuilder(6, seed=0).dense(16).relu().dropout(0.3).dense(3).softmax()
    return builder.loss("categorical_cross_entropy").metrics("accuracy").build()


def points(n=64):
    rng = np.random.default_rng(1)
    return rng.standard_normal((n, 6)).astype(np.float32), rng.integers(0, 3, n), {}


# --- how many ----------------------------------------------------------------------------------


def test_the_rule_knows_only_sizes():
    sizes = 0, 149e6, 150e6, 9.99e9, 10e9, 1e15
    assert [threads.parts_of(flops) for flops in sizes] == [1, 1, 2, 2, 4, 4]


@pytest.mark.parametrize(
    ("variables", "quota", "cores"),
    [
        ({}, math.inf, 4),
        ({"OMP": "3,2"}, math.inf, 3),
        ({"OMP": "3", "OPENBLAS": "2"}, math.inf, 2),
        ({"OMP": "3", "OPENBLAS": "many"}, math.inf, 3),
        ({"OMP": "3", "OPENBLAS": "0"}, math.inf, 3),
        ({"MKL": "64"}, math.inf, 4),
        ({}, 2.5, 2),
        ({}, 0.5, 1),
        ({}, 9.0, 4),
        ({"OMP": "3"}, 2.0, 2),
    ],
)
def test_all_cores_unless_something_says_less(variables, quota, cores, free):
    for library, value in variables.items():
        free.setenv(f"{library}_NUM_THREADS", value)
    free.setattr(threads, "_environment", ENVIRONMENT)
    free.setattr(threads, "_quota", lambda: quota)
    assert threads.cores() == phitodeep.get_threads() == threads.check_threads("auto") == cores


def test_the_affinity_counts_and_nothing_is_imported_before_it_is_needed():
    code = (
        "import os, sys, phitodeep.model\n"
        "assert not {'threadpoolctl', 'concurrent.futures'} & set(sys.modules)\n"
        "import phitodeep.exchange.correspondence\n"
        "assert not {'torch', 'onnx'} & set(sys.modules)\n"
        "if hasattr(os, 'sched_setaffinity'):\n"
        "    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "    assert phitodeep.get_threads() == 1"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_set_threads_bounds_everything(free):
    phitodeep.set_threads(3)
    assert phitodeep.get_threads() == threads.check_threads("auto") == 3
    assert [threads.check_threads(n) for n in (1, 2, 8)] == [1, 2, 3]
    phitodeep.set_threads(None)
    assert threads.check_threads(8) == 8
    for wrong, error in ((0, ArgumentError), (1.5, ArgumentTypeError), ("2", ArgumentTypeError)):
        with pytest.raises(error, match="threads must be"):
            phitodeep.set_threads(wrong)


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("0::/a/b\n", {"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, 1.5),
        ("0::/a/b\n", {"a/cpu.max": "400000 100000", "a/b/cpu.max": "200000 100000"}, 2),
        ("0::/gone\n", {"cpu.max": "300000 100000"}, 3),
        ("", {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 0.5),
        ("", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, math.inf),
        ("0::/\n", {}, math.inf),
        ("nonsense", {"cpu.max": "nonsense"}, math.inf),
    ],
)
def test_the_quota_of_the_control_group(own, files, cores, tmp_path):
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert threads._quota(tmp_path / "groups", tmp_path / "own") == cores
    assert threads._quota(tmp_path, tmp_path / "nothing") == math.inf


# --- the same bits -----------------------------------------------------------------------------


def lenet_of_dropout():
    return lenet(12, 12, 1, classes=4).loss("softmax_cross_entropy").seed(0).build()


def images():
    rng = np.random.default_rng(2)
    return rng.random((22, 12, 12, 1)).astype(np.float32), rng.integers(0, 4, 22), {}


def tied():
    model = gpt(9, 6, layers=2, heads=2, dim=8, dropout=0.2).loss("softmax_cross_entropy")
    return model.seed(1).build()


def checkpointed():
    model = tied()
    for layer in model.layers:
        if hasattr(layer, "checkpoint"):
            layer.checkpoint = True
    return model


def texts():
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, 9, (13, 6))
    return tokens, tokens[:, ::-1].copy(), {"lengths": rng.integers(1, 7, 13)}


def searching():
    pytest.importorskip("scipy")
    model = mlp()
    model.setoptimizer(LBFGS(max_iter=4))
    return model


CASES = {
    "mlp": (mlp, points, {"batch_size": 16}),
    "accumulate": (mlp, points, {"batch_size": 10, "accumulate": 3}),
    "lenet": (lenet_of_dropout, images, {"batch_size": 8}),
    "tied weights and lengths": (tied, texts, {"batch_size": 5}),
    "checkpoints": (checkpointed, texts, {"batch_size": 5}),
    "lbfgs": (searching, points, {"epochs": 2}),
}


@pytest.mark.parametrize("parts", few([4, 2], 1))
@pytest.mark.parametrize("case", CASES)
def test_results_are_the_same_to_the_bit_for_every_number_of_threads(case, parts, cut):
    cut(parts)
    make, draw, options = CASES[case]
    X, y, more = draw()
    tests = {f"{name}_test": a for name, a in more.items()}
    found = []
    for count in (1, 2, 3, 4, 1) if LONG else (1, 3):
        model = make()
        history = model.train(
            X, y, X, y, threads=count, verbose=0, **{"epochs": 2, **options, **more, **tests}
        )
        seen = {"weights": model.get_weights(), "losses": {"all": np.array(history)}}
        seen["predictions"] = {
            str(size): model.predict(X, size, threads=count, **more) for size in (None, 3, 1000)
        }
        seen["scores"] = {
            f"{size} {name}": np.array(score)
            for size in (None, 3)
            for name, score in model.evaluate(X, y, batch_size=size, threads=count, **more).items()
        }
        found.append(seen)
    for other in found[1:]:
        for what, arrays in found[0].items():
            for name, a in arrays.items():
                np.testing.assert_array_equal(other[what][name], a, err_msg=f"{what} {name}")


def test_draws_of_predictions_depend_on_no_thread(cut):
    class Noisy(Layer):
        independent_samples = True

        def forward(self, X):
            return X + self.uniform(X.shape)

    cut(2)
    X, found = points(40)[0], []
    for count in (1, 2, 3, 4):
        model = Sequential(Noisy(), seed=0)
        model.build((6,))
        found.append([model.predict(X, 8, threads=count) for _ in range(2)])
    assert (found[0][0] != found[0][1]).any()
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_threads_do_run(cut):
    cut(2)
    together = threading.Barrier(2, timeout=20)
    model = Sequential(Dense(6, 4), Calling(together.wait), seed=0)  # two parts at once
    X = points(8)[0]
    model.predict(X, threads=2)
    model.train(X, X[:, :4], epochs=1, threads=2, verbose=0)
    model.evaluate(X, X[:, :4], threads=2)


# --- the pool ----------------------------------------------------------------------------------


def test_results_come_in_order_and_the_first_error_counts():
    def late(i):
        time.sleep(0.002 * (5 - i))
        return i

    jobs = [lambda i=i: late(i) for i in range(5)]
    assert threads.run(jobs, 3) == threads.run(jobs, 1) == list(range(5))
    ended = []

    def fail(i):
        time.sleep(0.02 * (2 - i))
        ended.append(i)
        raise ValueError(f"task {i}")

    with pytest.raises(ValueError, match="task 0"):
        threads.run([lambda i=i: fail(i) for i in range(2)], 2)
    assert sorted(ended) == [0, 1]  # nothing runs on behind the error


def test_tasks_may_run_tasks_and_many_callers_share_the_pool():
    def nested(depth):
        if not depth:
            return 1
        return sum(threads.run([lambda: nested(depth - 1)] * 3, 3))

    with ThreadPoolExecutor(8) as callers:
        assert list(callers.map(nested, [3] * 16)) == [27] * 16


def test_without_threads_the_caller_does_it_all(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "_pool", threads._Pool())
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert threads.run([lambda i=i: i for i in range(4)], 3) == [0, 1, 2, 3]


def test_nobody_waits_for_a_thread_that_has_not_begun(monkeypatch):
    pool = threads._Pool()
    pool.count = 9  # as if all threads were busy: nobody serves the requests
    monkeypatch.setattr(threads, "_pool", pool)
    assert threads.run([lambda i=i: i for i in range(4)], 4) == [0, 1, 2, 3]
    late = pool.requests.get()
    late.give()  # a thread that comes too late does nothing
    assert not late.done.acquire(blocking=False)


def test_ctrl_c_waits_for_the_other_threads():
    begun, ended, slow = slowly()

    def press():
        begun.wait(20)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        threads.run([press, slow], 2)
    assert ended.is_set()


def slowly():
    """Events of the beginning and of the end of a task that takes a while, and the task."""
    begun, ended = threading.Event(), threading.Event()

    def slow():
        begun.set()
        time.sleep(0.1)
        ended.set()

    return begun, ended, slow


def test_ctrl_c_while_waiting_waits_on(monkeypatch):
    (begun, ended, slow), presses, wait = slowly(), [1, 1], threads._Help.wait

    def interrupted(helper):
        if presses:
            presses.pop()
            raise KeyboardInterrupt
        wait(helper)

    monkeypatch.setattr(threads._Help, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        threads.run([lambda: begun.wait(20), slow], 2)
    assert ended.is_set()
    assert not presses


def test_what_was_withdrawn_keeps_nothing_alive(monkeypatch):
    pool = threads._Pool()
    pool.count = 1  # a thread that is busy elsewhere
    monkeypatch.setattr(threads, "_pool", pool)
    result = np.ones(3)
    alive = weakref.ref(result)
    assert len(threads.run([lambda: 1, lambda kept=result: len(kept)], 2)) == 2
    del result
    assert alive() is None
    assert pool.requests.qsize() == 1


def test_a_helper_survives_an_error():
    pool = threads._Pool()
    broken = threads._Help(lambda: None)
    broken.job = lambda: 1 / 0
    done = threads._Help(lambda: None)
    pool.ask([broken, done])
    broken.wait()
    done.wait()
    assert pool.count == 2


# --- BLAS --------------------------------------------------------------------------------------


def test_blas_gets_its_threads_back(blas, cut):
    cut(2)
    X, y, _ = points()
    model = mlp()
    seen = []

    def look(*_):
        seen.append(blas.num_threads)
        model.copy().train(X, y, epochs=1, verbose=0)
        model.predict(X)
        model.evaluate(X, y)
        seen.append(blas.num_threads)

    watch = LambdaCallback(on_batch_end=look, on_epoch_end=look)
    model.train(X, y, epochs=2, batch_size=32, callbacks=[watch], verbose=0)
    assert set(seen) == {1}
    assert blas.seen == [1, 3]  # set once, restored once
    model.predict(X)
    model.evaluate(X, y)
    assert blas.seen == [1, 3] * 3


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_blas_gets_its_threads_back_after_an_error(error, blas, cut):
    cut(2)

    def fail(*_):
        assert blas.num_threads == 1
        raise error("on purpose")

    X, y, _ = points()
    with pytest.raises(error):
        mlp().train(X, y, callbacks=[LambdaCallback(on_batch_end=fail)], epochs=1, verbose=0)
    assert blas.seen == [1, 3]
    model = Sequential(Calling(fail))
    for call in (lambda: model.predict(X), lambda: model.evaluate(X, X)):
        with pytest.raises(error):
            call()
        assert blas.num_threads == 3
    assert blas.seen == [1, 3] * 3


@contextmanager
def held(limit):
    """Another thread is inside `limit` until the block ends."""
    inside, leave = threading.Event(), threading.Event()

    def stay():
        with limit:
            inside.set()
            leave.wait(20)

    other = threading.Thread(target=stay)
    other.start()
    inside.wait(20)
    yield
    leave.set()
    other.join()


def test_the_last_of_several_threads_restores_blas(blas):
    with ExitStack() as stack:
        with threads.one_blas_thread:
            stack.enter_context(held(threads.one_blas_thread))
        assert blas.num_threads == 1
    assert blas.seen == [1, 3]


def test_real_blas_is_set_and_restored_from_any_thread():
    code = """
import threading, numpy
from threadpoolctl import threadpool_info, threadpool_limits
from phitodeep.threads import one_blas_thread
count = lambda: [lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"]
before = count()
first, second = threading.Event(), threading.Event()
def stay():
    with one_blas_thread:
        first.set()
        second.wait(20)
other = threading.Thread(target=stay)
other.start()
first.wait(20)
with one_blas_thread:  # the other thread set the number, this one restores it
    second.set()
    other.join()
    assert all(n == 1 for n in count()), count()
assert count() == before, (count(), before)
with threadpool_limits(2):
    inner = count()
    with one_blas_thread:
        assert all(n == 1 for n in count())
    assert count() == inner
assert count() == before
def limit():
    with threadpool_limits(2):  # now this thread controls OpenBLAS
        first.set()
        second.wait(20)
first.clear(), second.clear()
other = threading.Thread(target=limit)
other.start()
first.wait(20)
with one_blas_thread:
    assert all(n == 1 for n in count())
second.set()
other.join()
assert count() == before
"""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "3"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=60)


def test_each_thread_of_openmp_has_its_own_number(blas):
    blas.threading_layer = "openmp"

    def work():
        assert blas.num_threads == 1
        blas.num_threads = 3  # as in another thread

    with threads.one_blas_thread:
        assert blas.seen == [1]
        blas.num_threads = 3
        helper = threads._Help(work)
        other = threading.Thread(target=helper.give)
        other.start()
        other.join()
        assert blas.seen == [1, 1, 3]
    assert blas.seen == [1, 1, 3, 3]


def test_small_work_and_work_that_is_not_split_leave_blas_alone(blas, cut):
    X, y, _ = points()
    model = mlp()
    model.predict(X)
    model.predict(X[:1])
    model.evaluate(X, y)
    assert blas.seen == []
    model.train(X, y, epochs=1, verbose=0)  # small, but a step is many calls
    assert blas.seen == [1, 3]
    normed = SequentialBuilder(6, seed=0).dense(16).batch_norm().dense(1).build()
    normed.train(X, y, epochs=1, verbose=0)
    assert blas.seen == [1, 3] * 2
    cut(2)
    normed.train(X, y, epochs=1, threads=2, verbose=0)  # large
    assert blas.seen == [1, 3] * 2
    normed.train(X, y, epochs=1, threads=1, verbose=0)
    assert blas.seen == [1, 3] * 3


# --- fork --------------------------------------------------------------------------------------


def test_a_process_forked_while_others_are_inside_restores_blas(blas):
    limit = threads._OneBlasThread()
    with held(limit):
        limit.forked()  # as if in the child, where the other thread is gone
        assert (limit.depth, blas.num_threads) == ({}, 1)
        with limit:
            pass
        assert blas.num_threads == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_trains():
    code = """
import os, sys, threading, warnings, numpy as np
warnings.simplefilter("ignore")  # newer Pythons warn of fork in a process with threads
from phitodeep import threads
from phitodeep.model import SequentialBuilder
threads.TWO_PARTS = 0
X = np.ones((64, 6), np.float32)
model = SequentialBuilder(6, seed=0).dense(4).build()
model.train(X, X[:, :4], epochs=1, threads=2, verbose=0)
wanted = model.predict(X, threads=2)
def stay():
    with threads.one_blas_thread:
        first.set()
        last.wait(20)
first, last = threading.Event(), threading.Event()
other = threading.Thread(target=stay)
other.start()
first.wait(20)
with threads.one_blas_thread:
    child = os.fork()
    if not child:
        assert not threads._pool.count  # its threads did not come along
        same = (model.predict(X, threads=2) == wanted).all()
        model.train(X, X[:, :4], epochs=1, threads=2, verbose=0)
if not child:
    os._exit(0 if same and not threads.one_blas_thread.depth else 1)
last.set()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    environment = {**os.environ, "PHITODEEP_KERNELS": "numpy"}  # Numba has threads of its own
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=environment)


def test_ctrl_c_leaves_blas_as_it_was():
    """An exception at any line of entering or leaving: BLAS has its threads afterwards."""
    library, limit = Library(), threads._OneBlasThread()
    lines = 0

    def body(stop):
        count = 0

        def trace(frame, event, _):
            nonlocal count, lines
            if frame.f_code.co_name != "__enter__" or "threads.py" not in frame.f_code.co_filename:
                return None
            if event == "line":
                count += 1
                lines = max(lines, count)
                if count == stop:
                    raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            with limit:
                pass
        finally:
            sys.settrace(None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "_blas", lambda: [library])
        body(None)
        assert lines > 5
        for stop in range(1, lines + 1):
            with pytest.raises(KeyboardInterrupt):
                body(stop)
            assert library.num_threads == 3, stop
            assert not limit.depth, stop
