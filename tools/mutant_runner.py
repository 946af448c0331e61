"""Run tests against mutants in memory: one pytest collects them, and forks once per mutant.

    python mutant_runner.py ORDERS JOBS LIMIT TESTS...

`tools/mutants.py` starts it in a copy of the checkout. ORDERS is a JSON file with the mutants and
the tests that killed most so far. A fork gives one function its mutated code and runs the tests
until one fails, so that no mutant pays for an interpreter, imports and collection. Tests that never
call a function cannot tell that it is broken: which ones do is found once, before the first mutant.
Where Numba is told not to compile, tests that need compiled functions are left out.
The answers are lines of JSON on stdout, [number, end, test], where the end is one of

    killed      this test failed, crashed, computed for LIMIT seconds or took ten times that
    survived    all tests passed
    unbroken    no function in memory could take the mutated code, or no test calls it there
    failing     this test fails also where nothing is broken; the run stops
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import select
import signal
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple, TextIO

import pytest

COMPILED = "kernels/compiled/"  # the folder of functions that do not run in Python, unless
INTERPRETED = bool(os.environ.get("NUMBA_DISABLE_JIT"))  # Numba is told to leave them to it
UNBROKEN = 77  # the exit status of a fork that could not break the function
Order = dict[str, Any]


class Fork(NamedTuple):
    """A process that runs tests; it writes the name of each test that it starts into a pipe."""

    number: int
    pid: int
    items: list[pytest.Item]
    started: list[bytes]

    def last(self) -> int:
        """How many tests it started."""
        return b"".join(self.started).count(b"\n")

    def end(self) -> str:
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return {0: "survived", UNBROKEN: "unbroken"}.get(status, "killed")


class Runner:
    """A pytest plugin that takes the place of the loop over all tests."""

    def __init__(self, orders: list[Order], kills: Counter[str], jobs: int, limit: int) -> None:
        self.orders, self.kills, self.jobs, self.limit = orders, kills, jobs, limit
        self.functions: dict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)
        self.passing: set[str] = set()  # tests that pass where nothing is broken
        self.called: dict[str, set[str]] = {}  # by test: the functions that it calls
        self.tracing = self.failed = False
        self.pipe = -1

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        signal.alarm(0)
        if session.testsfailed:  # in collection
            return True
        for order in self.orders:
            importlib.import_module(order["module"])
        package = sys.modules["phitodeep"]  # or each fork imports what is asked for late
        [getattr(package, name) for name in getattr(package, "__all__", ())]
        gc.unfreeze()  # the tests' conftest freezes what it imports
        for f in [f for f in gc.get_objects() if isinstance(f, FunctionType)]:
            self.functions[place(f.__code__)].append(f)
        gc.freeze()
        failing = self.trace(session.items)
        self.serve(tuple(i for i in session.items if not (INTERPRETED and i.nodeid in failing)))
        return True

    def trace(self, tests: list[pytest.Item]) -> set[str]:
        """Find which functions each test calls, in forks that share the tests, and which fail."""
        failing: set[str] = set()
        files = {str(sys.modules[order["module"]].__file__) for order in self.orders}
        with tempfile.TemporaryDirectory() as folder:
            pids = []
            for job in range(self.jobs):
                if pid := os.fork():
                    pids.append(pid)
                    continue
                try:
                    with open(f"{folder}/{job}", "w") as out:
                        self.write_calls(tests[job :: self.jobs], files, out)
                finally:
                    os._exit(0)
            for job, pid in enumerate(pids):
                os.waitpid(pid, 0)
                with open(f"{folder}/{job}") as lines:
                    for test, names, failed in map(json.loads, lines):
                        self.called[test] = set(names)
                        failing |= {test} if failed else set()
        return failing

    def write_calls(self, tests: list[pytest.Item], files: set[str], out: TextIO) -> None:
        seen: set[CodeType] = set()

        def note(frame: FrameType, *_: object) -> None:
            seen.add(frame.f_code)

        self.tracing = True
        threading.settrace(note)
        for item, after in zip(tests, [*tests[1:], None], strict=True):
            seen.clear()
            self.failed = False
            sys.settrace(note)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            sys.settrace(None)
            names = [called(c.co_filename, c.co_qualname) for c in seen if c.co_filename in files]
            out.write(json.dumps([item.nodeid, names, self.failed]) + "\n")
            out.flush()

    def serve(self, tests: tuple[pytest.Item, ...]) -> None:
        forks: dict[int, Fork] = {}
        todo = iter(enumerate(self.orders))
        while True:
            while len(forks) < self.jobs and (task := next(todo, None)):
                fd, fork = self.fork(task[0], self.ordered(tests, task[1]), task[1])
                forks[fd] = fork
            if not forks:
                return
            if os.getppid() != PARENT:  # it was killed
                os.killpg(0, signal.SIGKILL)
            for fd in select.select(list(forks), [], [], 5)[0]:
                if said := os.read(fd, 1 << 16):
                    forks[fd].started.append(said)
                    continue
                os.close(fd)
                if not self.tell(forks.pop(fd)):
                    return

    def tell(self, fork: Fork) -> bool:
        """Answer for the mutant; whether to go on."""
        end, test = fork.end(), ""
        if end == "killed" and fork.last():
            before = fork.items[: fork.last()]
            test = before[-1].nodeid
            if test not in self.passing:  # does it pass after the same tests, with nothing broken?
                fd, check = self.fork(fork.number, before)
                while said := os.read(fd, 1 << 16):
                    check.started.append(said)
                os.close(fd)
                if check.end() != "survived":
                    end, test = "failing", before[check.last() - 1].nodeid
                self.passing.add(test)
            self.kills[test.split("[")[0]] += 1
        print(json.dumps([fork.number, end, test]), file=ANSWERS, flush=True)
        return end != "failing"

    def ordered(self, tests: tuple[pytest.Item, ...], order: Order) -> list[pytest.Item]:
        """Tests that name the class, then those of the file, then all; each by kills so far."""

        def key(item: pytest.Item) -> tuple[int, int]:
            file, _, test = item.nodeid.partition("::")
            test = test.lower()
            named = file == f"tests/{order['first']}" and any(n in test for n in order["names"])
            rank = 0 if named else 1 if file.endswith(order["mirror"]) else 2
            return rank, -self.kills[item.nodeid.split("[")[0]]

        return sorted(self.callers(tests, order["module"], order["function"]), key=key)

    @functools.cache  # noqa: B019 (there is one runner)
    def callers(
        self, tests: tuple[pytest.Item, ...], module: str, function: str
    ) -> list[pytest.Item]:
        """The tests that call a function, or of which that is not known."""
        file = str(sys.modules[module].__file__)
        name = called(file, function)
        return [
            item
            for item in tests
            if (COMPILED in file and not INTERPRETED)
            or item.nodeid not in self.called  # it ended the fork that ran it
            or any(f"{each}.".startswith(f"{name}.") for each in self.called[item.nodeid])
        ]

    def fork(
        self, number: int, items: list[pytest.Item], order: Order | None = None
    ) -> tuple[int, Fork]:
        """Run these tests in a fork, with one function broken if there is an order."""
        read, self.pipe = os.pipe()
        if pid := os.fork():
            os.close(self.pipe)
            return read, Fork(number, pid, items, [])
        try:
            if order and not (items and self.breaks(order)):
                os._exit(UNBROKEN)
            for item, after in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            os._exit(0)
        except BaseException:
            os._exit(1)
        raise AssertionError("a fork has ended before")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if not self.tracing:
            signal.setitimer(signal.ITIMER_PROF, self.limit)
            signal.alarm(10 * self.limit)  # for a test that waits
            os.write(self.pipe, nodeid.encode() + b"\n")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed
        if report.failed and not self.tracing:
            os._exit(1)

    def breaks(self, order: Order) -> bool:
        """Give the function, and functions that it made, the mutant's code; whether one took it."""
        module = sys.modules[order["module"]]
        whole = compile(order["source"], str(module.__file__), "exec", dont_inherit=True)
        broken = []
        for code in codes(whole):
            if f"{code.co_qualname}.".startswith(f"{order['function']}."):
                for function in self.functions[place(code)]:
                    if function.__code__.co_freevars == code.co_freevars:
                        function.__code__ = code
                        broken.append(function)
        forget_compiled(module, broken)
        return bool(broken)


def called(file: str, name: str) -> str:
    """A function, by its file and qualified name, without what stands for inner ones."""
    return f"{file}:{name.replace('.<locals>', '')}"


def codes(code: CodeType) -> list[CodeType]:
    inner = [c for c in code.co_consts if isinstance(c, CodeType)]
    return inner + [c for i in inner for c in codes(i)]


def place(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def forget_compiled(module: ModuleType, broken: list[FunctionType]) -> None:
    """Make Numba compile what may hold the mutant: its cache does not look at constants."""
    if COMPILED in str(module.__file__):
        rooms = module.__name__.rpartition(".")[0], "tests."
        modules = [m for name, m in sys.modules.items() if name.startswith(rooms)]
        kernels = [k for m in modules for k in vars(m).values() if hasattr(k, "py_func")]
        from numba.core.caching import NullCache

        names, count = {f.__name__ for f in broken}, 0
        while count < len(names):  # what calls them holds them
            count = len(names)
            calling = [k for k in kernels if names.intersection(k.py_func.__code__.co_names)]
            names |= {k.py_func.__name__ for k in calling}
        for kernel in [k for k in kernels if k.py_func.__name__ in names]:
            kernel._cache = NullCache()


if __name__ == "__main__":
    PARENT = os.getppid()
    ANSWERS: TextIO = os.fdopen(os.dup(1), "w")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    path, jobs, limit, *tests = sys.argv[1:]
    with open(path) as file:
        orders = json.load(file)
    sys.path[0] = os.getcwd()  # not the folder of this file
    options = ["-qs", "--import-mode=importlib", "-o", "addopts=", "--tb=no", "--assert=plain"]
    signal.alarm(int(limit))
    runner = Runner(orders["mutants"], Counter(orders["kills"]), int(jobs), int(limit))
    sys.exit(pytest.main([*options, "-p", "no:cacheprovider", *tests], plugins=[runner]))
