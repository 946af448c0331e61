"""Random nested networks, exported: the files predict what the models predict."""

from __future__ import annotations

import random
import runpy
from pathlib import Path

import numpy as np
import pytest

from phitodeep import inference
from phitodeep.core.types import Array
from phitodeep.exchange import correspondence
from phitodeep.exchange.numpy.export import export_numpy
from phitodeep.exchange.numpy.forms import exports
from phitodeep.layers import GaussianNoise, Lambda
from tests.random_networks import KINDS, Centred, Gate, Ladder, Maker, Network, Scale, drawn
from tests.rows import LONG

WITHOUT = (Lambda, Centred, Gate, Ladder)  # what has no NumPy function
NETWORKS = 60


@pytest.fixture(autouse=True)
def _own_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correspondence, "TABLE", {**correspondence.TABLE})
    exports(Scale)(scale)


def scale(X: Array, gain: Array, shift: Array) -> Array:
    return X * gain + shift


def network(seed: int) -> Network:
    rng = random.Random(seed)
    size, depth = rng.choice((1, 2, 3, 4)), rng.choice((0, 1, 2))
    return drawn(Maker(rng, WITHOUT, masked=False), KINDS, (1, 2, 5), size, depth, seed)


def test_random_networks_predict_the_same(tmp_path: Path) -> None:
    kinds = set()
    dtypes = ("float64", 1e-12), ("float32", 3e-5)
    cases = [(seed, each) for seed in range(NETWORKS) for each in dtypes]
    for seed, (dtype, tolerance) in cases if LONG else cases[::3]:
        made = network(seed)
        made.chain.cast(dtype)
        X = made.X if made.X.dtype.kind == "i" else made.X.astype(dtype)
        X.flags.writeable = False
        with inference():
            Y = made.chain.forward(X)
        export_numpy(made.chain, tmp_path / "net.py", samples=2)
        predict = runpy.run_path(str(tmp_path / "net.py"))["predict"]
        limit = tolerance * max(1, np.abs(Y).max())
        for found in (predict(X), predict(np.asfortranarray(X), batch_size=1)):
            assert found.dtype == Y.dtype, made
            assert not np.shares_memory(found, X), made
            np.testing.assert_allclose(found, Y, rtol=0, atol=limit, err_msg=repr(made))
        kinds |= {type(part) for _, part in made.chain.walk()}
    assert len(kinds) > 40  # otherwise the networks say little
    assert GaussianNoise in kinds
