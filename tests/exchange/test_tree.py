"""Graphs of operations become trees of layers that compute the same values."""

import numpy as np
import pytest

from phitodeep.errors import ArgumentError
from phitodeep.exchange.tree import DEEPEST, Operation, as_layers
from phitodeep.layers import Dense, Tanh
from tests.time_limit import within


def op(output, does, *inputs):
    return Operation(f"make_{output}", inputs, output, does)


def test_a_chain():
    first, second = Dense(3), Tanh()
    assert as_layers([op("a", first, "x"), op("y", second, "a")], "x", "y") == [first, second]
    assert as_layers([], "x", "x") == []
    unused = [op("dead", Tanh(), "x"), op("y", Dense(3), "x"), op("later", "add", "y", "dead")]
    assert repr(as_layers(unused, "x", "y")) == "[Dense(3)]"


def test_containers():
    for merge, inputs, found in (
        ("add", "xa", "Residual(Dense(3))"),
        ("add", "ax", "Residual(Dense(3))"),
        ("concat", "xa", "SkipConcat(Dense(3))"),
        ("concat", "ax", "Parallel(Dense(3), Chain())"),
        ("multiply", "ax", "Parallel(Dense(3), Chain(), merge='multiply')"),
        ("add", "bc", "Parallel(Chain(Dense(3), Tanh()), Dense(3), merge='add')"),
    ):
        made = [op("a", Dense(3), "x"), op("b", Tanh(), "a"), op("c", Dense(3), "x")]
        assert repr(as_layers([*made, op("y", merge, *inputs)], "x", "y")) == f"[{found}]"


A, B = op("a", Tanh(), "x"), op("b", "add", "a", "x")
WRONG = [
    (
        [A, op("b", Tanh(), "a"), op("y", "add", "b", "a", "x")],
        "'make_y' reads 'a', which is inside a branch that ends at 'make_y'",
    ),
    (
        [A, B, op("c", Tanh(), "a"), op("y", "add", "b", "c")],
        "'make_c' reads 'a', which is inside a branch that ends at 'make_b'",
    ),
    ([op("a", Tanh()), op("y", "add", "x", "a")], "'make_a' does not depend on the input"),
    ([op("y", "add", "x", "lost")], "'make_y' reads 'lost', which no operation computes"),
]


def test_graphs_that_are_no_trees_are_refused():
    for operations, message in WRONG:
        with pytest.raises(ArgumentError, match=message):
            as_layers(operations, "x", "y")


def nested(levels):
    """Residual(Residual(...)): all sums at the end."""
    down = [op(f"a{i + 1}", Tanh(), f"a{i}" if i else "x") for i in range(levels)]
    up = [
        op(f"s{i}", "add", f"s{i + 1}" if i + 1 < levels else f"a{levels}", f"a{i}" if i else "x")
        for i in reversed(range(levels))
    ]
    return [*down, *up]


def test_depth():
    assert repr(as_layers(nested(DEEPEST), "x", "s0")).count("Residual") == DEEPEST
    with pytest.raises(ArgumentError, match=r"inside 100 other branches"):
        as_layers(nested(DEEPEST + 1), "x", "s0")


def test_long_and_wide_graphs_take_little_time():
    """Each value is stepped over once: 4,000 operations do not take 16 million steps."""
    wide = [op(f"a{i}", "add", f"a{i - 1}" if i else "x", "x") for i in range(4000)]
    long = [op(f"a{i}", Tanh(), f"a{i - 1}" if i else "x") for i in range(4000)]
    with within(1):
        with pytest.raises(ArgumentError, match="inside 100 other branches"):
            as_layers(wide, "x", "a3999")
        assert len(as_layers(long, "x", "a3999")) == 4000


def test_a_value_may_be_added_to_itself():
    X = np.ones((2, 3))
    (layer,) = as_layers([op("y", "add", "x", "x")], "x", "y")
    assert (layer.forward(X) == 2 * X).all()
