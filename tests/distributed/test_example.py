"""examples/distributed_mnist.py, in one process and in two."""

from __future__ import annotations

import re

import pytest

from tests.distributed.jobs import ROOT, job, passed
from tests.test_examples import load


def test_the_example_learns_the_same_on_two_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    accuracy = load("distributed_mnist").main(epochs=2)
    assert accuracy > 0.9
    assert "ranks: 1, test accuracy" in capsys.readouterr().out
    ended = job(2, ROOT / "examples" / "distributed_mnist.py", "--epochs", "2", "--shard")
    passed(ended)
    found = re.search(r"ranks: 2, test accuracy (\S+)\n", ended.stdout)
    assert found, ended.stdout
    assert abs(float(found[1]) - accuracy) < 0.003
