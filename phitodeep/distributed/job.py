"""The processes of an MPI job: how they wait for each other, and what happens if one is missing.

No call here blocks: each wait is a loop that asks MPI whether a request is done, so that a rank
which hangs or has left is noticed and named.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import time
import traceback
from types import TracebackType
from typing import Any, ClassVar

import numpy as np
from mpi4py import MPI

from phitodeep.core.types import Array
from phitodeep.errors import OrderError, first_few

# Messages: are you waiting? I am; my program has ended; an error has ended my training number n.
ASK, HERE, LEFT, FAILED = 1, 2, 3, 4
GRACE = 3.0  # seconds in which a rank that waits must answer
TRIES = 200  # of a request, before other processes get the core


class Job:
    """The ranks of a communicator, which all models share.

    timeout     seconds to wait for a rank
    training    the number of the current call of `train`
    """

    known: ClassVar[dict[int, Job]] = {}  # by the handle of the communicator
    alone = False  # True while something runs on this rank that the others do not run

    def __init__(self, comm: MPI.Comm) -> None:
        self.comm, self.gradients, self.signals = comm.Dup(), comm.Dup(), comm.Dup()
        self.rank, self.size, self.timeout = comm.rank, comm.size, math.inf
        self.training = 0
        self.others = {*range(self.size)} - {self.rank}
        self.failures = [0] * self.size  # by rank: the last training that failed
        self.waiting: set[int] = set()  # ranks that said they are
        # By rank: until when its last messages are waited for; the training that it left, or None.
        self.left: dict[int, tuple[float, int | None, str, str]] = {}
        self.sent: list[MPI.Request] = []
        self.places = self.gather(f"PID {os.getpid()} on {MPI.Get_processor_name()}")
        sys.excepthook = self.report
        atexit.register(self.leave)

    @classmethod
    def of(cls, comm: MPI.Comm) -> Job:
        """Return the job of this communicator; all ranks must call this together."""
        cls.together()
        handle = MPI._handleof(comm)
        if handle not in cls.known:
            cls.known[handle] = cls(comm)
        return cls.known[handle]

    @classmethod
    def together(cls) -> None:
        """Refuse what all ranks must do together, in a callback that rank 0 alone calls."""
        if Job.alone:
            raise OrderError(
                "a callback that rank 0 alone calls asked for something that all ranks must do "
                "together: its class must say every_rank = True."
            )

    def wait(self, request: MPI.Request, what: str) -> None:
        """Return when this request is done; end the job if that takes longer than `timeout`."""
        begun = looked = time.perf_counter()
        while True:
            for _ in range(TRIES):
                if request.Test():
                    return
            time.sleep(0)
            now = time.perf_counter()
            if now - looked > 0.1:
                looked = now
                self.listen(what)
                if now - begun > self.timeout:
                    self.name_missing(what)

    def sum(self, a: Array) -> Array:
        """Return the sum of this array over all ranks, in place."""
        self.together()
        self.wait(self.comm.Iallreduce(MPI.IN_PLACE, a), "the sum of an array")
        return a

    def table(self, row: Array, what: str) -> Array:
        """Return the rows (k,) of all ranks, (ranks, k)."""
        self.together()
        rows = np.empty((self.size, len(row)), row.dtype)
        self.wait(self.comm.Iallgather(row, rows), what)
        return rows

    def gather(self, value: Any) -> list[Any]:
        """Return a small Python object of each rank: not for hot paths."""
        text = np.frombuffer(MPI.pickle.dumps(value), np.uint8)
        sizes = self.table(np.array([text.size]), "the size of a message")[:, 0]
        padded = np.zeros(sizes.max(), np.uint8)
        padded[: text.size] = text
        rows = self.table(padded, "a message")
        return [MPI.pickle.loads(row[:n].tobytes()) for row, n in zip(rows, sizes, strict=True)]

    def broadcast(self, a: Array) -> None:
        """Overwrite this array with rank 0's."""
        self.wait(self.comm.Ibcast(a, 0), "rank 0's weights")

    # --- when something goes wrong ---------------------------------------------------------

    def listen(self, what: str) -> None:
        """Answer ranks that ask whether this one is waiting; end the job if one has left.

        Not at once: it may have sent before it left what this rank waits for.
        """
        status = MPI.Status()
        while self.signals.Iprobe(status=status):
            source, tag, until = status.source, status.tag, time.perf_counter() + GRACE
            message = self.signals.recv(source=source, tag=tag)
            if tag == ASK:
                self.sent.append(self.signals.isend(None, source, HERE))
            elif tag == HERE:
                self.waiting.add(source)
            elif tag == FAILED:
                number, error = message
                self.failures[source] = number
                has = "left the training, by an error that its script caught, while rank {} waits"
                self.left[source] = until, number, has, f": {error}"
            else:
                has = "ended its program, while rank {} waits for it"
                self.left[source] = until, None, has, "."
        for source, (until, number, has, end) in self.left.items():
            concerned = number is None or number == self.training > self.failures[self.rank]
            if concerned and time.perf_counter() > until:
                who, has = f"rank {source} ({self.places[source]})", has.format(self.rank)
                self.end(f"{who} has {has} ({what}){end}")

    def fail(self, error: Exception) -> None:
        """Tell the other ranks that an error has ended this rank's training."""
        self.failures[self.rank] = self.training
        text = f"{type(error).__name__}: {error}"
        for other in self.others:
            self.sent.append(self.signals.isend((self.training, text), other, FAILED))

    def begin(self) -> None:
        """Begin a training; after one that failed, wait until all other ranks have left it, too."""
        until = time.perf_counter() + self.timeout
        while self.failures[self.rank] == self.training > min(self.failures):
            self.listen("the next training")
            time.sleep(0.001)
            if time.perf_counter() > until:
                self.name_missing("the next training")
        self.training += 1

    def name_missing(self, what: str) -> None:
        """End the job with the names of the ranks that do not wait as this one does."""
        self.sent += [self.signals.isend(None, other, ASK) for other in self.others]
        until = time.perf_counter() + GRACE
        while time.perf_counter() < until and self.waiting != self.others:
            self.listen(what)
            time.sleep(0.01)
        missing = sorted(self.others - self.waiting)
        names = first_few([f"rank {r} ({self.places[r]})" for r in missing], 8)
        if not missing:
            names = "no rank; all of them wait, but not for the same message"
        self.end(
            f"rank {self.rank} has waited {self.timeout:g} s ({what}). Missing: {names}. A rank "
            "hangs, or is slower than timeout= of DataParallel allows."
        )

    def end(self, message: str) -> None:
        """Print a message and end all processes of the job."""
        print(f"phitodeep: {message}", file=sys.stderr, flush=True)
        self.comm.Abort(1)

    def report(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Print an error that ends this rank's program, and end the job."""
        text = "".join(traceback.format_exception(kind, error, trace))
        print(
            f"rank {self.rank} ({self.places[self.rank]}) failed:\n{text}", end="", file=sys.stderr
        )
        sys.stderr.flush()
        sys.stdout.flush()
        self.comm.Abort(1)

    def leave(self) -> None:
        """Tell ranks that may still be waiting that this program has ended."""
        if not MPI.Is_finalized():
            for other in range(1, self.size) if self.rank == 0 else [0]:
                self.sent.append(self.signals.isend(None, other, LEFT))
