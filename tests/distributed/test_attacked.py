"""What once went wrong in training on several ranks, found by attacking it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.jobs import job, passed


@pytest.fixture(scope="module")
def results() -> list[Any]:
    found = passed(job(3, "attacked.py"))
    return sorted(found, key=lambda result: result["rank"])


def test_averages_are_those_of_one_process(results: list[Any]) -> None:
    assert all(result["averages"] < 1e-12 for result in results)


def test_rank_0_alone_cannot_do_what_all_must_do(results: list[Any]) -> None:
    assert set(results[0]["asked"]) == {"memory", "copy", "train", "pickle"}
    for error in results[0]["asked"].values():
        assert error.startswith("OrderError: a callback that rank 0 alone calls")


def test_a_training_inside_a_training_is_refused(results: list[Any]) -> None:
    assert all("inside a training" in result["nested"] for result in results)


def test_batches_may_have_fewer_samples_than_ranks(results: list[Any]) -> None:
    assert all(result["tiny"] < 1e-12 for result in results)


def test_after_an_error_on_all_ranks_training_may_begin_again(results: list[Any]) -> None:
    assert all(result["caught"] == "ArgumentError: on every rank" for result in results)
    assert all(result["steps after"] == 7 for result in results)


def test_all_ranks_hear_which_sample_is_bad(results: list[Any]) -> None:
    assert all("sample 5" in result["anomaly"] for result in results)


def test_own_parts_may_end_early(results: list[Any]) -> None:
    assert all(result["own"] == 8 for result in results)


def test_buckets_start_during_the_backward_pass(results: list[Any]) -> None:
    for result in results:
        early, buckets = result["early"]
        assert early == buckets > 1


def test_a_rank_keeps_only_its_part_of_the_memory(results: list[Any]) -> None:
    assert all(len(result["own memory"]) == 7 and all(result["own memory"]) for result in results)
