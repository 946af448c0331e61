"""The processes of an MPI job: how they wait for each other, and what happens if one is missing.

No call here blocks: each wait is a loop that asks MPI whether a request is done, so that a rank
which hangs or has left is noticed and named.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import traceback
from types import TracebackType
from typing import Any

import numpy as np
from mpi4py import MPI

from phitodeep.types import Array

ASK, HERE, LEFT = 1, 2, 3  # messages: are you waiting? I am; my program has ended
GRACE = 3.0  # seconds in which a rank that waits must answer
TRIES = 200  # of a request, before other processes get the core


class Job:
    """The ranks of a communicator.

    timeout    seconds to wait for a rank
    """

    def __init__(self, comm: MPI.Comm, timeout: float) -> None:
        self.comm, self.signals = comm.Dup(), comm.Dup()
        self.rank, self.size, self.timeout = comm.rank, comm.size, timeout
        self.waiting: set[int] = set()  # ranks that said they are
        self.sent: list[MPI.Request] = []
        self.places: list[str] = self.comm.allgather(f"PID {os.getpid()} on {_host()}")
        sys.excepthook = self.report
        atexit.register(self.leave)

    def wait(self, request: MPI.Request, what: str) -> None:
        """Return when this request is done; end the job if that takes longer than `timeout`."""
        begun = looked = 0.0
        while True:
            for _ in range(TRIES):
                if request.Test():
                    return
            time.sleep(0)
            now = time.perf_counter()
            begun = begun or now
            if now - looked > 0.1:
                looked = now
                self.listen(what)
                if now - begun > self.timeout:
                    self.name_missing(what)

    def sum(self, a: Array) -> Array:
        """Return the sum of this array over all ranks, in place."""
        self.wait(self.comm.Iallreduce(MPI.IN_PLACE, a), "the sum of an array")
        return a

    def table(self, row: Array, what: str) -> Array:
        """Return the rows (k,) of all ranks, (ranks, k)."""
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
        """Answer ranks that ask whether this one is waiting; end the job if one has left."""
        status = MPI.Status()
        while self.signals.Iprobe(status=status):
            source, tag = status.source, status.tag
            self.signals.recv(source=source, tag=tag)
            if tag == ASK:
                self.sent.append(self.signals.isend(None, source, HERE))
            elif tag == HERE:
                self.waiting.add(source)
            else:
                self.end(
                    f"rank {source} ({self.places[source]}) has ended its program, while rank "
                    f"{self.rank} waits for it ({what})."
                )

    def name_missing(self, what: str) -> None:
        """End the job with the names of the ranks that do not wait as this one does."""
        others = set(range(self.size)) - {self.rank}
        self.waiting.clear()
        self.sent += [self.signals.isend(None, other, ASK) for other in others]
        until = time.perf_counter() + GRACE
        while time.perf_counter() < until and self.waiting != others:
            self.listen(what)
            time.sleep(0.01)
        missing = sorted(others - self.waiting)
        names = ", ".join(f"rank {r} ({self.places[r]})" for r in missing[:8])
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


def _host() -> str:
    return MPI.Get_processor_name()
