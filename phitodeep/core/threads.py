"""The threads of the process: how many run, who runs what, and the threads of BLAS.

The threads of a BLAS library wait for each other in a loop. If another process needs a core, every
matrix product waits for the thread that lost its core, and a step may take a hundred times as long.
`train`, `predict` and `evaluate` therefore run BLAS on one thread (`one_blas_thread`). They cut
large work into parts (`parts_of`), which `run` spreads over threads that wait only once, at the
end. See docs/decisions/0013-threads.md.

The number of parts depends on sizes alone, so the number of threads changes no result.
"""

from __future__ import annotations

import functools
import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from phitodeep.core.checks import check_count
from phitodeep.errors import ArgumentError, OrderError

T = TypeVar("T")

SMALL = 500_000  # FLOPs of a prediction whose products BLAS runs on one thread anyway
TWO_PARTS = 150_000_000  # FLOPs of a step from which two threads gain more than parts cost
FOUR_PARTS = 10_000_000_000

_limit: int | None = None  # see `set_threads`


# --- how many --------------------------------------------------------------------------------


def parts_of(flops: float) -> int:
    """Return the number of parts for a training step of so many FLOPs: 1, 2 or 4."""
    return 1 if flops < TWO_PARTS else 2 if flops < FOUR_PARTS else 4


def set_threads(n: int | None) -> None:
    """Let each call of `train`, `predict` and `evaluate` use at most n threads; None: no limit.

    The limit holds for the whole process and changes no result. With n = 1, BLAS has one thread.
    """
    global _limit
    _limit = None if n is None else check_count(n, "threads")


def get_threads() -> int:
    """Return the number of threads that `threads="auto"` uses: see `cores` and `set_threads`."""
    return check_threads("auto")


def check_threads(threads: int | str) -> int:
    """Return how many threads a call may use, given its option `threads`: "auto" or a count."""
    if isinstance(threads, str):
        if threads != "auto":
            raise ArgumentError(f'threads must be "auto" or a count, got {threads!r}.')
        threads = cores()
    return min(check_count(threads, "threads"), _limit or sys.maxsize)


def cores() -> int:
    """Return the number of cores that this process may use.

    It is the minimum of the CPU affinity, the quota of the control group (Linux containers), and
    OPENBLAS_NUM_THREADS, MKL_NUM_THREADS or OMP_NUM_THREADS: the first of them that is set.
    """
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    found = len(affinity) if affinity else os.cpu_count() or 1
    return max(1, int(min(found, _quota(), _environment())))


@functools.cache
def _environment() -> float:
    """Return the number of threads that environment variables allow BLAS, or infinity."""
    for library in ("OPENBLAS", "MKL", "OMP"):
        wanted = os.environ.get(f"{library}_NUM_THREADS", "").partition(",")[0].strip()
        if wanted.isdecimal() and int(wanted):
            return int(wanted)
    return math.inf


@functools.cache
def _quota(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float:
    """Return the number of cores that the control group of this process may keep busy."""
    quotas = [math.inf]
    with suppress(OSError, ValueError):  # version 1
        quota, period = (
            float((root / "cpu" / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period")
        )
        quotas += [quota / period] if quota > 0 else []
    with suppress(OSError):  # version 2: the group and those that contain it
        groups = [line[3:] for line in own.read_text().splitlines() if line.startswith("0::/")]
        for group in groups:
            folder = root / group.lstrip("/")
            for place in (folder, *folder.parents):
                with suppress(OSError, ValueError):  # no such file, or "max"
                    quota, period = map(float, (place / "cpu.max").read_text().split())
                    quotas.append(quota / period)
    return min(quotas)


# --- BLAS ------------------------------------------------------------------------------------


@functools.cache
def _blas() -> list[Any]:
    """Return the BLAS libraries of the process, as threadpoolctl controls them."""
    if sys.platform == "emscripten":
        return []  # it has one thread
    from threadpoolctl import ThreadpoolController  # takes milliseconds to import

    return ThreadpoolController().select(user_api="blas").lib_controllers


def _set(library: Any, threads: int) -> None:
    """Set the threads of a library, whichever thread has set them before."""
    release = getattr(library, "clear_controlling_thread", None)
    if release is not None:  # threadpoolctl 3.7 and later obey only the first thread that asks
        release(force=True)
    library.set_num_threads(threads)
    if release is not None:
        release(force=True)


def _is_per_thread(library: Any) -> bool:
    """Whether each thread sets a number of its own, as in an OpenBLAS built with OpenMP."""
    return getattr(library, "threading_layer", "") == "openmp"


class _OneBlasThread:
    """In the body of a `with` statement, BLAS runs each product in the thread that calls it.

    This holds for the whole process until the last such body has ended, in whichever thread. It
    may be entered again inside the body.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.depth: dict[int, int] = {}  # bodies that a thread is in, by thread
        self.before: list[tuple[Any, int]] = []

    def __enter__(self) -> None:
        me = threading.get_ident()
        try:
            with self.lock:
                first = not self.depth
                if first and not self.before:
                    self.before = [(lib, n) for lib in _blas() if (n := lib.num_threads or 1) > 1]
                self.depth[me] = self.depth.get(me, 0) + 1
                if self.depth[me] == 1:
                    for library, _ in self.before:
                        if first or _is_per_thread(library):
                            _set(library, 1)
        except BaseException:  # such as Ctrl-C
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        me = threading.get_ident()
        with self.lock:
            self.depth[me] = self.depth.get(me, 1) - 1
            if self.depth[me]:
                return
            del self.depth[me]
            for library, n in self.before:
                if not self.depth or _is_per_thread(library):
                    _set(library, n)
            if not self.depth:
                self.before = []

    def forked(self) -> None:
        """In a forked process, only the thread that called fork goes on.

        If others were inside, BLAS has one thread until the next body ends.
        """
        me = threading.get_ident()
        self.lock = threading.RLock()
        self.depth = {me: self.depth[me]} if me in self.depth else {}


one_blas_thread = _OneBlasThread()


# --- running ---------------------------------------------------------------------------------


class _Help:
    """A request that a thread run `work`, which can be withdrawn until a thread has begun."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.job: Callable[[], None] | None = partial(copy_context().run, work)
        self.taken, self.done = threading.Lock(), threading.Lock()
        self.done.acquire()
        self.process = os.getpid()

    def give(self) -> None:
        """Run the work, unless it was withdrawn."""
        job = self.job
        if job is not None and self.taken.acquire(blocking=False):
            try:
                with one_blas_thread:
                    job()
            finally:
                self.done.release()

    def withdraw(self) -> bool:
        """Return True if no thread has begun, and keep nothing alive."""
        self.job = None
        return self.taken.acquire(blocking=False)

    def wait(self) -> None:
        """Wait until the work is done; a forked process does not have the thread that does it."""
        if self.process == os.getpid():
            self.done.acquire()


class _Pool:
    """Threads that help whoever asks. They are daemons, so they keep no process alive."""

    def __init__(self) -> None:
        self.requests: SimpleQueue[_Help] = SimpleQueue()
        self.count = 0

    def ask(self, requests: Sequence[_Help]) -> None:
        """Hand out the requests; if no thread can start, nobody takes them."""
        with suppress(RuntimeError):  # such as "can't start new thread"
            while self.count < len(requests):
                threading.Thread(target=self._serve, name="phitodeep", daemon=True).start()
                self.count += 1
        for request in requests if self.count else ():
            self.requests.put(request)

    def _serve(self) -> None:
        while True:
            with suppress(Exception):  # whoever asked does the work itself
                self.requests.get().give()


_pool = _Pool()


def run(tasks: Sequence[Callable[[], T]], threads: int) -> list[T]:
    """Call the tasks in up to `threads` threads, this one included; return the results in order.

    This thread waits only for tasks that others have begun, and runs the remaining ones itself. If
    a task fails, no further task begins, and the error of the first one that failed is raised.
    """
    if threads == 1 or len(tasks) == 1:
        return [task() for task in tasks]
    waiting, errors = deque(enumerate(tasks)), dict[int, BaseException]()
    results: list[Any] = [None] * len(tasks)

    def work() -> None:
        while waiting:
            try:
                i, task = waiting.popleft()
            except IndexError:  # another thread took the last one
                return
            try:
                results[i] = task()
            except BaseException as error:
                errors[i] = error
                waiting.clear()

    helpers = [_Help(work) for _ in range(min(threads, len(tasks)) - 1)]
    try:
        _pool.ask(helpers)
        work()
    finally:
        waiting.clear()
        _finish([helper for helper in helpers if not helper.withdraw()])
    if errors:
        raise errors[min(errors)]
    return results


class Part:
    """What a part of a batch shares with the other parts, which run at once; here, it is alone.

    index     its place among them
    joins     whether there are others
    """

    index, joins = 0, False

    def gather(self, shared: Any) -> list[Any]:
        """Return what all parts share, in their order: each of them must ask as often."""
        return [shared]


class Joined(Part):
    """One of several tasks that `together` runs."""

    END = object()
    joins = True

    def __init__(self, index: int = 0, group: _Group | None = None) -> None:
        self.index, self.group, self.odd = index, group or _Group(1, 1), False

    def gather(self, shared: Any) -> list[Any]:
        slots = self.group.slots[self.odd]  # a part is never two calls ahead of another
        slots[self.index], self.odd = shared, not self.odd
        self.group.meet()
        if any((other is Joined.END) != (shared is Joined.END) for other in slots):
            raise OrderError(
                "the parts of a batch do not take sums over the batch equally often: a layer that "
                "runs BatchNorm for some samples only must not declare independent_samples."
            )
        return [*slots]


class _Group:
    """What parts share: they wait for each other, and few of them compute at a time."""

    def __init__(self, parts: int, threads: int) -> None:
        self.slots: list[list[Any]] = [[None] * parts, [None] * parts]
        self.barrier, self.turns = threading.Barrier(parts), threading.Semaphore(threads)

    def meet(self) -> None:
        self.turns.release()
        try:
            self.barrier.wait()
        finally:
            self.turns.acquire()


def together(tasks: Sequence[Callable[[Part], T]], threads: int) -> list[T] | None:
    """Call all tasks at once, each in a thread of its own; return the results in order.

    At most `threads` of them compute at a time. If one fails, the others end when they next wait
    for it, and its error is raised. If the system gives no thread, nothing is called, and None is
    returned.
    """
    group, errors = _Group(len(tasks), threads), dict[int, BaseException]()
    results: list[Any] = [None] * len(tasks)

    def work(i: int) -> None:
        part = Joined(i, group)
        with group.turns:
            try:
                group.meet()  # nothing begins until all threads are there
                results[i] = tasks[i](part)
                part.gather(Joined.END)
            except BaseException as error:
                errors[i] = error
                group.barrier.abort()

    begun: list[_Help] = []
    try:
        for i in range(1, len(tasks)):
            helper = _Help(partial(work, i))
            threading.Thread(target=helper.give, name="phitodeep", daemon=True).start()
            begun.append(helper)
        work(0)
    except BaseException as error:  # such as "can't start new thread", or Ctrl-C
        group.barrier.abort()  # those that have begun wait for all others
        if isinstance(error, RuntimeError):
            return None
        raise
    finally:
        _finish(begun)
    if errors:
        own = [i for i in errors if not isinstance(errors[i], threading.BrokenBarrierError)]
        raise errors[min(own or errors)]
    return results


def _finish(helpers: Sequence[_Help]) -> None:
    """Wait for all helpers, even if Ctrl-C is pressed meanwhile."""
    for k, helper in enumerate(helpers):
        try:
            helper.wait()
        except BaseException:
            _finish(helpers[k:])
            raise


def _forked() -> None:
    global _pool
    _pool = _Pool()
    one_blas_thread.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
