"""A rank that fails brings the job down, with its name, and the job resumes from its checkpoint."""

import re

import pytest

from tests.distributed.jobs import job, passed

FAULTS = {
    "raises": r"rank 1 \(PID \d+ on [^)]+\) failed:\nTraceback[\s\S]*disk of this rank is on fire",
    "exits": r"rank 1 \(PID \d+ on [^)]+\) has ended its program, while rank 0 waits",
    "hangs": r"rank 0 has waited 1 s \([^)]*\). Missing: rank 1 \(PID \d+ on",
}


def fails(says, *arguments):
    """Run a job that must end soon with this error, and leave nothing; return what it printed."""
    ended = job(2, "fault.py", *arguments, limit=60)
    assert ended.returncode != 0
    assert ended.seconds < 30
    assert ended.left == []
    printed = ended.stdout + ended.stderr
    assert re.search(says, printed), printed
    return printed


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_ends_the_job_and_names_its_rank(fault):
    fails(FAULTS[fault], fault)


def test_a_killed_job_resumes_to_the_bit(tmp_path):
    printed = fails(r"PID \d+ RUNNING AT[\s\S]*EXIT CODE: 9", "killed", str(tmp_path))
    pid = re.findall(r"PID (\d+) RUNNING AT", printed)[0]
    # the killed process, or one that mpiexec then killed
    assert re.search(rf"\d: PID {pid} on", printed)
    results = passed(job(2, "fault.py", "resumes", str(tmp_path), limit=60))
    assert results == [{"steps": 32, "same": True}] * 2
