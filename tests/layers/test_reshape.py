"""Flatten, Reshape and Select: where the numbers go, and shapes that do not fit."""

import numpy as np
import pytest

from phitodeep import layers as nn
from phitodeep.core.call import calling
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError
from phitodeep.testing.examples import made, passes


@pytest.mark.parametrize(
    ("layer", "shape", "wanted"),
    [
        (nn.Flatten(), (2, 3, 4), (2, 12)),
        (nn.Flatten(), (2, 3), (2, 3)),
        (nn.Flatten(), (2,), (2, 1)),
        (nn.Flatten(), (0, 3, 4), (0, 12)),
        (nn.Reshape(4, 3), (2, 3, 4), (2, 4, 3)),
        (nn.Reshape(2, -1), (5, 3, 4), (5, 2, 6)),
        (nn.Reshape(-1), (5, 3, 4), (5, 12)),
        (nn.Reshape(1), (5,), (5, 1)),
        (nn.Reshape(2, -1, 2), (0, 12), (0, 2, 3, 2)),
    ],
    ids=repr,
)
def test_numbers_keep_their_order(layer, shape, wanted):
    X = np.arange(np.prod(shape), dtype=float).reshape(shape)
    Y = layer.forward(X)
    assert Y.shape == wanted
    np.testing.assert_array_equal(Y.ravel(), X.ravel())
    dX = layer.backward(2 * Y)
    np.testing.assert_array_equal(dX, 2 * X)
    assert dX.shape == shape
    assert layer.copy().build(shape[1:]) == wanted[1:]
    assert layer.flops() == 0


def test_arrays_are_read_in_their_own_order_and_sizes_must_fit(rng):
    X = np.arange(12.0).reshape(3, 2, 2).T
    np.testing.assert_array_equal(nn.Flatten().forward(X), X.reshape(2, 6))
    says = r"Reshape\(.*does not fit samples of shape \(3, 4\) \(12 elements\)"
    for layer in (nn.Reshape(5), nn.Reshape(5, -1), nn.Reshape(12, 2), nn.Reshape(6)):
        with pytest.raises(ShapeError, match=says):
            layer.build((3, 4))
        with pytest.raises(ShapeError, match=says):
            layer.forward(np.ones((2, 3, 4)))
    for dims, shape in (((1, 2), (2, 3, 4)), ((2, 1), (2, 1, 4)), ((2, 1), (2, 4, 1))):
        X, layer = rng.standard_normal(shape), nn.Permute(*dims)
        Y = layer.forward(X)
        assert not np.shares_memory(Y, X)
        assert not np.shares_memory(layer.backward(Y), Y)


COLUMNS = [[0], [3, 1], [-1, 0], [2, 2, -3], range(1, 4), np.array([4, 0]), 3, np.int64(-2)]


@pytest.mark.parametrize("columns", COLUMNS)
def test_select_is_numpys_indexing(columns, rng):
    index = np.atleast_1d(columns)
    for shape in ((4, 5), (2, 3, 5), (0, 5)):
        X, layer = rng.standard_normal(shape), nn.Select(columns)
        Y = layer.forward(X)
        np.testing.assert_array_equal(Y, X[..., index])
        assert not np.shares_memory(Y, X)
        dY = rng.standard_normal(Y.shape)
        wanted = np.zeros(shape)
        np.add.at(wanted, (..., index), dY)
        np.testing.assert_allclose(layer.backward(dY), wanted)
        assert layer.build(shape[1:]) == (*shape[1:-1], len(index))
        assert layer.flops() == 0
    with pytest.raises(ShapeError, match="0 features"):
        layer.forward(np.ones(5))
    assert {type(c) for c in nn.Select(columns).columns} == {int}


def test_select_holds_plain_integers_in_range_and_categories_are_declared():
    for columns in ([1, -1], (1, -1), np.array([1, -1])):
        assert repr(nn.Select(columns)) == "Select([1, -1])"
    assert repr(nn.Select(2, tokens=True)) == "Select([2], tokens=True)"
    for columns, bad in (([0, 3], 3), ([-4, 1], -4)):
        says = rf"Select\(.*cannot select column {bad} of 3 features.*\(4, 3\)"
        with pytest.raises(ShapeError, match=says):
            nn.Select(columns).build((4, 3))
        with pytest.raises(ShapeError, match=says):
            nn.Select(columns).forward(np.ones((2, 4, 3)))
        assert nn.Select(columns).build((4, 5)) == (4, 2)
    layer = nn.Chain(nn.Select([3]), nn.Embedding(3, 2))
    layer.build((4,))
    with pytest.raises(ArgumentTypeError, match=r"Embedding.*Select\(columns, tokens=True\)"):
        layer.forward(np.zeros((2, 4)))
    tokens = nn.Select([1, 0], tokens=True)
    np.testing.assert_array_equal(tokens.forward(np.array([[3.0, 4.0]])), [[4, 3]])
    assert tokens.backward(np.ones((1, 2))) is None


def columns():
    return nn.Parallel(
        nn.Select([0, 2]),
        nn.Chain(nn.Select(1, tokens=True), nn.Embedding(6, 3), nn.Flatten()),
        nn.Chain(nn.Select(3, tokens=True), nn.Embedding(3, 2), nn.Flatten(), checkpoint=True),
    )


def test_gradients_of_a_table(rng):
    """By hand: a token's row has the sum of its dY, a number's column its dY, a token's none."""
    X = np.column_stack([rng.standard_normal(20), rng.integers(0, 6, 20), np.arange(20)])
    X = np.column_stack([X, rng.integers(0, 3, 20)])
    layer = made(columns, X.shape)
    dY = rng.standard_normal((20, 7))
    found = passes(layer, X, dY)
    wanted = np.zeros_like(X)
    wanted[:, [0, 2]] = dY[:, :2]
    np.testing.assert_array_equal(found["dX"], wanted)
    for path, column, size, part in (("1", 1, 6, dY[:, 2:5]), ("2", 3, 3, dY[:, 5:])):
        onehot = np.eye(size)[X[:, column].astype(int)]
        np.testing.assert_allclose(found[f"branches.{path}.layers.1.W"], onehot.T @ part)


WRAPPED = {
    "chain": lambda: nn.Chain(
        nn.Chain(nn.Select([1], tokens=True), nn.Embedding(6, 3)), nn.Flatten()
    ),
    "after a layer that moves": lambda: nn.Chain(
        nn.Reshape(2, 2), nn.Select([1], tokens=True), nn.Embedding(6, 3), nn.Flatten()
    ),
    "skip": lambda: nn.Chain(
        nn.Select([1], tokens=True), nn.Embedding(6, 3), nn.SkipConcat(nn.Dense(2))
    ),
    "residual": lambda: nn.Chain(
        nn.Select([1], tokens=True), nn.Embedding(6, 3), nn.Residual(nn.Dense(3))
    ),
}


@pytest.mark.parametrize("needs_dX", [True, False])
@pytest.mark.parametrize("make", WRAPPED.values(), ids=WRAPPED)
def test_nothing_goes_back_through_tokens(make, needs_dX, rng):
    layer = made(make, (5, 4))
    X = np.column_stack([rng.integers(0, 6, 5) for _ in range(4)]).astype(float)
    with calling(needs_dX=needs_dX):
        Y = layer.forward(X)
        assert layer.backward(np.ones_like(Y)) is None
    assert [n for n in layer.gradients() if n.endswith("W")]


@pytest.mark.parametrize("code", [1.5, np.nan, np.inf, -np.inf, 1e30, -0.001])
def test_tokens_that_are_not_whole_are_refused_with_their_place(code):
    X = np.zeros((3, 4))
    X[2, 3] = code
    layer = made(columns, X.shape)
    says = r"Chain, branch 2 of Parallel.*Select\(\[3\], tokens=True\) takes whole.*X\[2, 3\]"
    with pytest.raises(ArgumentError, match=says):
        layer.forward(X)
    X[2, 3] = 3
    with pytest.raises(ArgumentError, match=r"Embedding\(3, 2\) takes tokens from 0 to 2, got 3"):
        layer.forward(X)


def test_reshape_to_features_refuses_lengths():
    """Y (N, T) has no features at its steps: the next layer would take the steps for features."""
    chain = nn.Chain(nn.Dense(2, 1), nn.Reshape(-1), nn.BatchNorm())
    chain.build((3, 2), seed=1)
    X = np.ones((4, 3, 2), np.float32)
    with (
        calling(mask=np.arange(3) < np.array([1, 2, 3, 3])[:, None]),
        pytest.raises(ArgumentError, match=r"layer 1 of Chain: Reshape\(-1\) does not accept"),
    ):
        chain.forward(X)
    assert chain.forward(X).shape == (4, 3)
    assert made(lambda: nn.Reshape(-1, 1, 2), (2, 3, 2)).time_steps == "independent"
