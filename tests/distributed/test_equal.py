"""Several ranks that split a batch give the weights of one process with that batch."""

import re

import pytest

from tests.distributed.jobs import ROOT, job, passed
from tests.rows import LONG, long
from tests.test_examples import load


@pytest.mark.parametrize(("ranks", "bucket"), [(2, "256"), pytest.param(4, "1572864", marks=long)])
def test_ranks_give_the_weights_of_one_process(ranks, bucket):
    """MLP, CNN, GPT, LSTM, several heads: dropout, ignored labels, lengths, weights, accumulation,
    uneven shares, clipping, groups, averages and shards; 256 bytes make a bucket of a layer."""
    results = passed(job(ranks, "equal.py", bucket, limit=240))
    cases = {result["case"] for result in results}
    assert len(cases) == (37 if LONG else 14)
    assert len(results) == ranks * len(cases)
    for result in results:
        for what in ("weights", "losses", "metrics"):
            assert result[what] <= result["limit"], result
        assert result["memory"] <= 10 * result["limit"], result


def test_the_example_learns_the_same_on_two_ranks(capsys):
    accuracy = load("distributed_mnist").main(epochs=1)
    assert accuracy > 0.85
    assert "ranks: 1, test accuracy" in capsys.readouterr().out
    ended = job(2, ROOT / "examples" / "distributed_mnist.py", "--epochs", "1", "--shard")
    passed(ended)
    found = re.search(r"ranks: 2, test accuracy (\S+)\n", ended.stdout)
    assert found, ended.stdout
    assert abs(float(found[1]) - accuracy) < 0.003
