"""examples/distributed_mnist.py, in one process and in two."""

import re

from tests.distributed.jobs import ROOT, job, passed
from tests.test_examples import load


def test_the_example_learns_the_same_on_two_ranks(capsys):
    accuracy = load("distributed_mnist").main(epochs=1)
    assert accuracy > 0.85
    assert "ranks: 1, test accuracy" in capsys.readouterr().out
    ended = job(2, ROOT / "examples" / "distributed_mnist.py", "--epochs", "1", "--shard")
    passed(ended)
    found = re.search(r"ranks: 2, test accuracy (\S+)\n", ended.stdout)
    assert found, ended.stdout
    assert abs(float(found[1]) - accuracy) < 0.003
