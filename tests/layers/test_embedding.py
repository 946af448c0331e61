"""Embeddings and places: look-ups, sums over tokens, waves and rotations, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phitodeep.core.call import calling
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError
from phitodeep.layers import Dense, Embedding, PositionalEmbedding, RotaryEmbedding, embedding
from phitodeep.layers.embedding import sum_by_token
from phitodeep.model import Sequential
from phitodeep.testing.examples import made, passes
from tests.conftest import assert_same


@pytest.mark.parametrize("one_hot", [512, 0])  # both ways to sum the gradient
@pytest.mark.parametrize("shape", [(2, 5), (4,), (1, 1), (2, 3, 2), (3, 0)])
def test_each_token_gets_its_row(shape: Any, one_hot: int, rng: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(embedding, "ONE_HOT", one_hot)
    layer = made(lambda: Embedding(6, 3), (1, 1))
    X, dY = rng.integers(0, 6, shape), rng.standard_normal((*shape, 3))
    Y = layer.forward(X)
    np.testing.assert_array_equal(Y, layer.params["W"][X])
    assert layer.backward(dY) is None
    dW = np.zeros((6, 3))
    for at in np.ndindex(shape):
        dW[X[at]] += dY[at]
    np.testing.assert_allclose(layer.grads["W"], dW, rtol=1e-12, atol=1e-14)
    for least in (1, 2):  # not every token is there
        tokens, rows = least + np.array([2, 0, 0, 1, 2, 0]), rng.standard_normal((6, 3))
        sum_by_token(tokens, rows, dW := np.empty((6, 3)))
        np.add.at(wanted := np.zeros((6, 3)), tokens, rows)
        np.testing.assert_allclose(dW, wanted, rtol=1e-12)


@pytest.mark.parametrize("token", [-1, 6, 2**40, -(2**40)])
def test_tokens_out_of_range_are_refused_with_their_place(token: int) -> None:
    X = np.array([[0, 1, 2], [3, token, 5]])
    says = rf"Embedding\(6, 3\) takes tokens from 0 to 5, got {token} at X\[1, 1\]"
    with pytest.raises(ArgumentError, match=says):
        made(lambda: Embedding(6, 3), (3,)).forward(X)
    model = Sequential(Embedding(6, 3), Dense(2))
    with pytest.raises(ArgumentError, match=f"layer 0 of Sequential: {says}"):
        model.predict(X)
    with pytest.raises(ArgumentError, match=r"layer 0 of Sequential.*takes tokens from 0 to 5"):
        model.train(X, np.zeros((2, 3, 2)), epochs=1, verbose=0)


def test_tokens_are_any_integers_and_nothing_else() -> None:
    layer = made(lambda: Embedding(6, 3), (2,), np.float32)
    for kind in (np.int8, np.uint8, np.int32, np.int64, np.uint64, list):
        X = [[0, 5]] if kind is list else np.array([[0, 5]], kind)
        np.testing.assert_array_equal(layer.forward(X), layer.params["W"][[[0, 5]]])
    model = Sequential(Embedding(6, 3), Dense(2))
    for bad in ([[0.0, 1.0]], [[True, False]], [["a", "b"]], [[None, 1]], [[1j, 0]]):
        with pytest.raises(ArgumentTypeError, match=r"Embedding\(6, 3\) takes integer tokens"):
            layer.forward(np.array(bad))
        with pytest.raises(ArgumentTypeError, match="integer tokens"):
            model.predict(np.array(bad))


def test_learnt_places(rng: Any) -> None:
    layer = made(lambda: PositionalEmbedding(6), (2, 4, 3))
    X, dY = rng.standard_normal((2, 2, 4, 3))
    found = passes(layer, X, dY)
    np.testing.assert_array_equal(found["Y"], X + layer.params["W"][:4])
    np.testing.assert_array_equal(found["dX"], dY)
    np.testing.assert_allclose(found["W"][:4], dY.sum(0))
    assert not found["W"][4:].any()
    wanted = passes(layer, X[:, :2], dY[:, :2])
    with calling(reuse=True):  # what a longer batch wrote does not stay
        passes(layer, X, dY)
        assert_same(passes(layer, X[:, :2], dY[:, :2], reuse=True), wanted)
    assert layer.count_params() == 18


def test_turning_keeps_lengths_and_tells_distances(rng: Any) -> None:
    layer = RotaryEmbedding(50.0)
    q, k = rng.standard_normal((2, 6))
    Q, K = (layer.forward(np.tile(v, (1, 9, 1)))[0] for v in (q, k))
    np.testing.assert_allclose(np.linalg.norm(Q, axis=-1), np.linalg.norm(q), rtol=1e-13)
    np.testing.assert_array_equal(Q[0], q)
    products = Q @ K.T
    for distance in range(-8, 9):
        np.testing.assert_allclose(np.ptp(np.diagonal(products, distance)), 0, atol=1e-12)
    assert np.ptp(products) > 0.1
    for i in range(3):  # pair i is (i, i + 3), and turns by t 50^(-2i / 6)
        z, angle = q[i] + 1j * q[i + 3], 4 * 50 ** (-2 * i / 6)
        turned = z * np.exp(1j * angle)
        assert Q[4, i] == pytest.approx(turned.real)
        assert Q[4, i + 3] == pytest.approx(turned.imag)


def test_embedding_needs_no_length_and_a_refused_step_changes_nothing() -> None:
    layer = Embedding(5, 2)
    assert layer.W.shape == (5, 2)
    assert layer.forward(np.zeros((2, 7), int)).shape == (2, 7, 2)
    assert {n for n, p in Embedding._declared.items() if p.decay} == {"W"}
    wide = Embedding(400, 50)
    wide.build((), seed=1)
    assert wide.W.std() == pytest.approx(1, rel=0.02)
    small = PositionalEmbedding(400)
    small.build((3, 50), seed=1)
    assert small.W.std() == pytest.approx(0.02, rel=0.02)
    layer = made(lambda: PositionalEmbedding(3), (1, 2, 4))
    memory: dict[Any, Any] = {}
    with calling(memory=memory):
        layer.forward(np.ones((1, 2, 4)))
        kept = dict(memory)
        with pytest.raises(ShapeError, match="3 positions, got a sequence of 4"):
            layer.forward(np.ones((1, 2, 4)))
    assert memory == kept
