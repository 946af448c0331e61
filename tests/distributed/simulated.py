"""A simulated MPI job: each rank is a thread of this process, and one thread runs at a time.

So every order of events is the same in each run, seconds pass only on the clock of the job, and a
test sees what each rank returned or raised. `jobs.py` starts real jobs.
"""

import pickle
import sys
import threading
from collections import defaultdict
from itertools import accumulate, count
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("mpi4py")

from phitodeep import distributed
from phitodeep.distributed import exchange, group, job

TICK, END = 0.01, 1000.0  # seconds in which each rank runs once, and when a job must be over
ME = threading.local()  # `comm`: the communicator of the rank that runs in this thread


class Aborted(BaseException):
    """The job was ended, by `Abort` or because it waits forever."""


class World:
    """What the ranks of a job share; `run` starts them."""

    def __init__(self, size):
        self.size, self.now, self.aborted = size, 100.0, False
        self.given = defaultdict(dict)  # by communicator and number of the call, then by rank
        self.letters = defaultdict(list)  # by communicator and rank: (source, tag, text)
        self.turns = [threading.Semaphore(0) for _ in range(size)]
        self.alive = list(range(size))

    def sleep(self, seconds):
        """Let the other ranks run for so long, and at least once."""
        rank, until = ME.comm.rank, self.now + seconds
        while True:
            self.now += TICK / len(self.alive)
            self.aborted |= self.now > END
            self.turns[self.alive[(self.alive.index(rank) + 1) % len(self.alive)]].release()
            self.turns[rank].acquire()
            if self.aborted:
                raise Aborted
            if self.now >= until:
                return

    def run(self, program):
        """Return what `program(comm)` returned on each rank, or its exception."""
        ended = [None] * self.size

        def start(rank):
            self.turns[rank].acquire()
            ME.comm, ME.at_exit = Comm(self, rank), []
            try:
                ended[rank] = program(ME.comm)
                [leave() for leave in ME.at_exit]
            except BaseException as error:
                ended[rank] = error
            i = self.alive.index(rank)
            self.alive.remove(rank)
            if self.alive:
                self.turns[self.alive[i % len(self.alive)]].release()

        threads = [threading.Thread(target=start, args=(i,)) for i in range(self.size)]
        [thread.start() for thread in threads]
        self.turns[0].release()
        [thread.join() for thread in threads]
        return ended


class Comm:
    """A communicator: all ranks must call its methods in the same order."""

    def __init__(self, world, rank, name=()):
        self.world, self.rank, self.size, self.name = world, rank, world.size, name
        self.calls, self.copies, self.tests = count(), count(), 0

    def Dup(self):
        assert not job.Job.alone
        return Comm(self.world, self.rank, (*self.name, next(self.copies)))

    def _request(self, given, take, *same):
        """A request that is done when all ranks have given an array: `take` gets all of them."""
        found = self.world.given[self.name, next(self.calls)]
        found[self.rank] = np.array(given), same
        waiting = [take]

        def Test():
            self.tests += 1
            if waiting and len(found) == self.size:
                assert all(other == same for _, other in found.values())
                waiting.pop()([found[i][0] for i in range(self.size)])
            return not waiting

        return SimpleNamespace(Test=Test)

    def Iallreduce(self, where, a):
        assert where is MPI.IN_PLACE
        assert a.flags.c_contiguous
        return self._request(a, lambda all: np.copyto(a, sum(all)), "sum", a.shape, a.dtype)

    def Iallgather(self, row, rows):
        return self._request(row, lambda all: np.copyto(rows, all), "gather", row.shape, row.dtype)

    def Ibcast(self, a, root):
        assert a.flags.c_contiguous
        return self._request(a, lambda all: np.copyto(a, all[root]), "broadcast", root, a.shape)

    def Ireduce_scatter(self, g, part, counts):
        mine = slice(sum(counts[: self.rank]), sum(counts[: self.rank + 1]))
        assert (sum(counts), part.size) == (g.size, mine.stop - mine.start)
        return self._request(g, lambda all: np.copyto(part, sum(all)[mine]), "scatter", *counts)

    def Iallgatherv(self, where, receive):
        a, counts, starts, dtype = receive
        assert (where, dtype) == (MPI.IN_PLACE, a.dtype)
        assert starts == [0, *accumulate(counts[:-1])]
        edges = list(zip(starts, counts, strict=True))
        mine = slice(edges[self.rank][0], sum(edges[self.rank]))
        return self._request(a[mine], lambda all: np.concatenate(all, out=a), "spread", *counts)

    def isend(self, message, to, tag):
        self.world.letters[self.name, to].append((self.rank, tag, pickle.dumps(message)))

    def Iprobe(self, status):
        for status.source, status.tag, _ in self.world.letters[self.name, self.rank]:
            return True
        return False

    def recv(self, source, tag):
        letter = self.world.letters[self.name, self.rank].pop(0)
        assert letter[:2] == (source, tag)
        return pickle.loads(letter[2])

    def Abort(self, code):
        assert code == 1
        self.world.aborted = True
        raise Aborted


MPI = SimpleNamespace(
    IN_PLACE="in place", Status=SimpleNamespace, pickle=pickle, Is_finalized=lambda: False,
    Get_processor_name=lambda: "here", Datatype=SimpleNamespace(fromcode=np.dtype),
    _handleof=lambda comm: (id(comm.world), comm.rank, comm.name),
)  # fmt: skip


def start(monkeypatch):
    """Let all of this process take part in simulated jobs; return `World.run` of any size."""
    for module in (exchange, group, job):
        monkeypatch.setattr(module, "MPI", MPI)
    clock = SimpleNamespace(sleep=lambda s: ME.comm.world.sleep(s), perf_counter=now)
    monkeypatch.setattr(job, "time", clock)
    monkeypatch.setattr(job, "atexit", SimpleNamespace(register=lambda f: ME.at_exit.append(f)))
    monkeypatch.setattr(job.Job, "known", {})
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(distributed, "_world", lambda: ME.comm)
    return lambda size, program: World(size).run(program)


def now():
    return ME.comm.world.now
