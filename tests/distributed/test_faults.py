"""A rank that fails brings the job down, with its name, and the job resumes from its checkpoint."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from phitodeep.io.tensors import open_tensors
from tests.distributed.jobs import job, passed
from tests.rows import few

FAULTS = {
    "raises": r"rank 1 \(PID \d+ on [^)]+\) failed:\nTraceback[\s\S]*disk of this rank is on fire",
    "exits": r"rank 1 \(PID \d+ on [^)]+\) has ended its program, while rank [02] waits",
    "leaves": r"rank 1 \(PID \d+ on [^)]+\) has ended its program, while rank [02] waits",
    "hangs": r"rank [02] has waited 2 s \([^)]*\). Missing: rank 1 \(PID \d+ on",
    "killed": r"PID (\d+) RUNNING AT[\s\S]*EXIT CODE: 9",
}


@pytest.mark.parametrize(("fault", "says"), few(FAULTS.items(), 3))
def test_a_fault_ends_the_job_and_names_its_rank(fault: str, says: str) -> None:
    ended = job(3, "fault.py", fault, limit=60)
    assert ended.returncode != 0
    assert ended.seconds < 30
    assert ended.left == []
    found = re.search(says, ended.stdout + ended.stderr)
    assert found, ended.stdout + ended.stderr
    if fault == "killed":  # mpiexec names the killed process, or one that it then killed itself
        assert re.search(rf"\d: PID {found[1]} on", ended.stdout)


def test_a_killed_job_resumes_to_the_bit(tmp_path: Path) -> None:
    weights = []
    for name, runs in (("whole", ["whole"]), ("broken", ["killed", "resumes"])):
        folder = tmp_path / name
        folder.mkdir()
        for i, run in enumerate(runs):
            ended = job(2, "fault.py", run, str(folder), limit=60)
            assert (ended.returncode == 0) == (i == len(runs) - 1), ended.stderr
            assert ended.left == []
        with open_tensors(folder / f"{runs[-1]}.safetensors") as file:
            weights.append({key: file.read(key).tobytes() for key in ("0.W", "0.b", "3.W", "3.b")})
    assert weights[0] == weights[1]


def test_code_that_differs_is_refused(tmp_path: Path) -> None:
    """Each rank runs a script of its own."""
    script = """
import sys, numpy as np
sys.path.insert(0, {folder!r})
from networks import mlp
from phitodeep.distributed import DataParallel, rank
import __main__
__main__.__file__ = {own!r} if rank() else __file__
model, X, y, _ = mlp(np.random.default_rng(5), seed=1)
DataParallel(model, timeout=30).train(X, y, epochs=1, verbose=0)
"""
    own = tmp_path / "other.py"
    own.write_text("pass")
    file = tmp_path / "script.py"
    folder = str(Path(__file__).parent / "programs")
    file.write_text(script.format(folder=folder, own=str(own)))
    ended = job(2, file, limit=60)
    assert ended.returncode != 0
    assert "do not agree on the code of the script" in ended.stderr


def test_a_job_that_works_ends_well() -> None:
    ended = job(2, "fault.py", "nothing", limit=60)
    passed(ended)
    assert "epoch 4/4" in ended.stdout
