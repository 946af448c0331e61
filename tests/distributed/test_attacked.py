"""What once went wrong in training on several ranks, found by attacking it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.distributed.jobs import job, passed

pytestmark = pytest.mark.xdist_group("attacked")  # the job runs once


@pytest.fixture(scope="module")
def results() -> list[Any]:
    found = passed(job(3, "attacked.py"))
    return sorted(found, key=lambda result: result["rank"])


CHECKS: dict[str, Callable[[Any], bool]] = {
    "averages": lambda difference: difference < 1e-12,  # from those of one process
    "tiny": lambda difference: difference < 1e-12,  # fewer samples than ranks
    "nested": lambda error: "inside a training" in error,
    "caught": lambda error: error == "ArgumentError: on every rank",  # training may begin again
    "steps after": lambda steps: steps == 7,
    "anomaly": lambda error: "sample 5" in error,
    "own": lambda steps: steps == 8,  # parts of ranks that end early
    "early": lambda early: early[0] == early[1] > 1,  # buckets sent during the backward pass
    "own memory": lambda kept: len(kept) == 7 and all(kept),  # a rank keeps only its part
}


@pytest.mark.parametrize("name", CHECKS)
def test_each_rank_reports_what_it_should(results: list[Any], name: str) -> None:
    for result in results:
        assert CHECKS[name](result[name]), result[name]


def test_rank_0_alone_cannot_do_what_all_must_do(results: list[Any]) -> None:
    assert set(results[0]["asked"]) == {"memory", "copy", "train", "pickle"}
    for error in results[0]["asked"].values():
        assert error.startswith("OrderError: a callback that rank 0 alone calls")
