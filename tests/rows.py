"""Which cases a test runs. `make test-all` sets PHITODEEP_TESTS=all, and runs every case.

PHITODEEP_TESTS=kernels leaves out the layers that call no kernel: `make test` runs the others also
with NumPy's kernels.

What a layer computes is tested for every row of `phitodeep.testing.examples`, and what the base
class does for all layers with one row for each kind of layer, `KINDS`. Between the two are tests
of tools that go through a model, such as traces and exports: they take `ONE_EACH`, or all rows in
a long run.
"""

import os
from unittest import mock

import numpy as np
import pytest

from phitodeep import layers
from phitodeep.kernels import Kernel
from phitodeep.layers.activation import Elementwise
from phitodeep.testing.examples import ELEMENTWISE, EXAMPLES, TOKENS, data, made, passes

CHOSEN = os.environ.get("PHITODEEP_TESTS")
LONG = CHOSEN == "all"
# How many elements of an array a gradient check probes: one direction moves all of them as well.
PROBES = 128 if LONG else 8
long = pytest.mark.skipif(not LONG, reason="long: make test-all runs it")


class _Called(Exception):
    pass


def _calls_a_kernel(make, shape, tokens):
    layer = made(make, shape)
    try:
        with mock.patch.object(Kernel, "__call__", side_effect=_Called):
            passes(layer, *data(layer, shape, tokens))
    except _Called:
        return True
    return False


_SHAPES = [(4, 5), (2, 3, 7)]  # elementwise, one of them is enough
_ONCE = {make: _SHAPES[i % 2] for i, make in enumerate(ELEMENTWISE) if not LONG}
_ONCE = {make: shape for make, shape in _ONCE.items() if isinstance(make(), Elementwise)}
ALL = [*((make, shape, 0) for make, shape in EXAMPLES if _ONCE.get(make, shape) == shape), *TOKENS]
ALL = [row for row in ALL if _calls_a_kernel(*row)] if CHOSEN == "kernels" else ALL
ONE_EACH = [*{type(row[0]()): row for row in reversed(ALL)}.values()][::-1]
_KINDS = (
    *("Dense", "ReLU", "Softmax", "BatchNorm", "Dropout", "Conv2D", "MaxPool2D", "LSTM"),
    *("MultiHeadAttention", "Residual", "Parallel", "Embedding"),
)
KINDS = [row for row in ONE_EACH if type(row[0]()).__name__ in _KINDS]
TOOLS = ALL if LONG else ONE_EACH


def over(rows):
    """Run a test with `make`, `shape` and `tokens` of each row."""
    rows = list(rows)
    names = [f"{make()} {shape}" for make, shape, _ in rows]
    return pytest.mark.parametrize(("make", "shape", "tokens"), rows, ids=names)


def few(cases, count=12):
    """All cases in a long run, else `count` of them, evenly spread."""
    cases = list(cases)
    return (
        cases
        if LONG or len(cases) <= count
        else [cases[i * len(cases) // count] for i in range(count)]
    )


def times(count):
    """How many random cases to draw: 20 times `count` in a long run."""
    return 20 * count if LONG else count


LOOKS_AT_MASK = (layers.RNN, layers.LSTM, layers.GRU, layers.Bidirectional)
LOOKS_AT_MASK += (layers.MultiHeadAttention, layers.TransformerBlock)
TAKES_LENGTHS = (layers.Conv1D, layers.ConvTranspose1D, layers.GlobalAvgPool, layers.GlobalMaxPool)


def masks(layer, shape):
    """None, and for layers that look at it a mask with holes, or of lengths, and of nothing."""
    if isinstance(layer, TAKES_LENGTHS) and len(shape) == 3:
        return [None, np.arange(shape[1]) < np.arange(shape[0])[:, None] * 2]
    if not isinstance(layer, LOOKS_AT_MASK):
        return [None]
    mask = np.random.default_rng(3).random(shape[:2]) < 0.6
    mask[0] = False
    mask[-1] = 2 * np.arange(shape[1]) % 5 < 3  # in reverse it is another one
    return [None, mask]
