"""What the tests of `phitodeep.inspect` share: data, a small network, and tables of errors."""

from functools import cache

import numpy as np
import pytest

from phitodeep import Sequential
from phitodeep import layers as L
from phitodeep.loss import MeanSquaredError, SoftmaxCrossEntropy
from tests.conftest import model_for, refusals

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((6, 4)), RNG.standard_normal((6, 2))
S, YS = RNG.standard_normal((6, 5, 4)), RNG.standard_normal((6, 5, 2))
ROWS, LABELS = RNG.integers(0, 7, (6, 5)), RNG.integers(0, 7, (6, 5))
LENGTHS = [5, 1, 2, 3, 4, 5]


class Plain(MeanSquaredError):
    """A loss without steps."""

    def steps(self):
        return None


def dense(*between, **options):
    """Dense(4, 5), what is between, by default Tanh(), and Dense(5, 2); it is built."""
    options = {"seed": 1, "dtype": "float64", "alpha": 0.1} | options
    return model_for((4,), L.Dense(4, 5), *(between or (L.Tanh(),)), L.Dense(5, 2), **options)


@cache
def step():
    """A step of the small network: a test must leave it as it is."""
    return dense().trace(X, Y)


def gpt(**options):
    e = L.Embedding(7, 4)
    block = L.TransformerBlock(2, mlp_ratio=2, causal=True, dropout=0.2)
    layers = (e, L.PositionalEmbedding(6), block, L.LayerNorm(), L.TiedDense(e))
    loss = SoftmaxCrossEntropy(ignore_index=-1, label_smoothing=0.1)
    return Sequential(*layers, loss_class=loss, seed=1, **{"dtype": "float64"} | options)


def rows(table):
    """Run a test for each row of a table for `refusals`."""
    found = refusals(table)
    return pytest.mark.parametrize(("call", "error"), found, ids=[call for call, _ in found])
