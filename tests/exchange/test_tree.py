"""Graphs of operations become trees of layers that compute the same values."""

import numpy as np
import pytest

from phitodeep.errors import ArgumentError
from phitodeep.exchange.tree import DEEPEST, Operation, as_layers
from phitodeep.layers import Chain, Dense, Layer, Parallel, Residual, SkipConcat, Tanh
from tests.rows import few
from tests.time_limit import within

MERGES = {
    "add": lambda values: sum(values[1:], values[0]),
    "multiply": lambda values: np.prod(values, axis=0),
    "concat": lambda values: np.concatenate(values, axis=-1),
}


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


@pytest.mark.parametrize("seed", few(range(25)))
def test_random_graphs_compute_what_their_layers_compute(seed):
    rng = np.random.default_rng(seed)
    operations = []
    values = {"x": rng.standard_normal((3, 4))}

    def grown(start, depth):
        """Add operations after a value, and return the last one's."""
        value = start
        for _ in range(rng.integers(1, 4)):
            name = f"v{len(operations)}"
            if depth and rng.random() < 0.5:
                merge = str(rng.choice([*MERGES]))
                ends = [
                    value if rng.random() < 0.3 else grown(value, depth - 1)
                    for _ in range(rng.integers(2, 4))
                ]
                name = f"v{len(operations)}"
                width = {values[e].shape[-1] for e in ends}
                merge = "concat" if len(width) > 1 else merge
                operations.append(op(name, merge, *ends))
                values[name] = MERGES[merge]([values[e] for e in ends])
            else:
                width = values[value].shape[-1]
                layer = Tanh() if rng.random() < 0.4 else Dense(width, width)
                layer.build((width,), seed=len(operations), dtype=np.float64)
                operations.append(op(name, layer, value))
                values[name] = layer.forward(values[value])
            value = name
        return value

    end = grown("x", 3)
    model = Chain(*as_layers(operations, "x", end))
    model.build((4,), dtype=np.float64)
    np.testing.assert_allclose(model.forward(values["x"]), values[end], rtol=1e-12, atol=1e-12)
    leaves = sum(isinstance(o.does, Layer) for o in operations)
    containers = Chain, Residual, SkipConcat, Parallel
    assert leaves == sum(not isinstance(layer, containers) for _, layer in model.walk())


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
