"""Several ranks that split a batch give the weights of one process with that batch."""

import pytest

from tests.distributed.jobs import job, passed
from tests.rows import LONG, long


@pytest.mark.parametrize(("ranks", "bucket"), [(2, "256"), pytest.param(4, "1572864", marks=long)])
def test_ranks_give_the_weights_of_one_process(ranks, bucket):
    """MLP, CNN, GPT and LSTM: dropout, ignored labels, lengths, weights, accumulation, uneven
    shares, clipping, groups, averages and shards; 256 bytes make a bucket of almost every layer."""
    results = passed(job(ranks, "equal.py", bucket, limit=240))
    cases = {result["case"] for result in results}
    assert len(cases) == (30 if LONG else 12)
    assert len(results) == ranks * len(cases)
    for result in results:
        for what in ("weights", "losses", "accuracy"):
            assert result[what] <= result["limit"], result
        assert result["memory"] <= 10 * result["limit"], result
