"""Starts MPI jobs for the tests, within a time limit, and sees that no process stays behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

pytest.importorskip("mpi4py")

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
LIMIT = 120.0  # seconds
MARK = "PHITODEEP_TEST_JOB"


class Ended(subprocess.CompletedProcess[str]):
    """A job that has ended, how long it took in seconds, and what it left."""

    seconds: float
    left: list[int]  # PIDs of its processes that are still alive

    def results(self):
        """Return what the ranks printed as lines of JSON."""
        return [json.loads(line) for line in self.stdout.splitlines() if line.startswith("{")]


def mpiexec():
    """Return the path of mpiexec, which the mpich wheel puts next to Python."""
    found = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which(
        "mpiexec"
    )
    if found is None:
        pytest.skip("mpiexec is not installed")
    return found


def job(ranks, program, *arguments, limit=LIMIT):
    """Run a program of `programs/` (or at a path) on so many ranks, for at most `limit` seconds."""
    token = uuid.uuid4().hex
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, MARK: token, "PYTHONPATH": path, "PYTHONWARNINGS": "error"}
    env.setdefault("OPENBLAS_NUM_THREADS", "1")
    env.setdefault("PHITODEEP_KERNELS", "numpy")  # Numba takes a second to import
    file = PROGRAMS / program if not Path(program).is_absolute() else Path(program)
    command = [mpiexec(), "-n", str(ranks), sys.executable, str(file), *arguments]
    began = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=ROOT,
        start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        _kill(token)
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"the job was not over after {limit} s:\n{out}\n{err}")
    finally:
        seconds = time.monotonic() - began
        for _ in range(100):  # processes that were killed take a moment
            left = processes(token)
            if not left:
                break
            time.sleep(0.1)
        _kill(token)
    ended = Ended(command, process.returncode, out, err)
    ended.seconds, ended.left = seconds, left
    return ended


def processes(token):
    """Return the PIDs of a job's processes, known by a variable in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if token.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:  # it has just ended, or is not ours
            continue
    return found


def _kill(token):
    for pid in processes(token):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def passed(ended):
    """Return what the ranks printed, after checking that the job succeeded and left nothing."""
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    assert ended.left == []
    return ended.results()
