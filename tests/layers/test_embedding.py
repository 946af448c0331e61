"""Embeddings and places, weights used twice, and functions of ones own."""

import copy
import pickle

import numpy as np
import pytest

from phitodeep import SGD, Adam, Sequential, SequentialBuilder, SoftmaxCrossEntropy
from phitodeep import layers as nn
from phitodeep.core.call import calling, inference
from phitodeep.errors import ArgumentError, ArgumentTypeError, PhitodeepError, ShapeError
from phitodeep.layers import Dense, Embedding, PositionalEmbedding, RotaryEmbedding, embedding
from phitodeep.layers.embedding import sum_by_token
from phitodeep.model.callbacks import Callback
from phitodeep.optimization import packing
from phitodeep.testing import numeric_gradient
from phitodeep.testing.examples import cube, cube_gradient, made, passes
from tests.conftest import assert_same


@pytest.mark.parametrize("one_hot", [512, 0])  # both ways to sum the gradient
@pytest.mark.parametrize("shape", [(2, 5), (4,), (1, 1), (2, 3, 2), (3, 0)])
def test_each_token_gets_its_row(shape, one_hot, rng, monkeypatch):
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
def test_tokens_out_of_range_are_refused_with_their_place(token):
    X = np.array([[0, 1, 2], [3, token, 5]])
    says = rf"Embedding\(6, 3\) takes tokens from 0 to 5, got {token} at X\[1, 1\]"
    with pytest.raises(ArgumentError, match=says):
        made(lambda: Embedding(6, 3), (3,)).forward(X)
    model = Sequential(Embedding(6, 3), Dense(2))
    with pytest.raises(ArgumentError, match=f"layer 0 of Sequential: {says}"):
        model.predict(X)
    with pytest.raises(ArgumentError, match=r"layer 0 of Sequential.*takes tokens from 0 to 5"):
        model.train(X, np.zeros((2, 3, 2)), epochs=1, verbose=0)


def test_embedding_takes_any_integers_of_any_length_and_nothing_else():
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
    memory = {}
    with calling(memory=memory):
        layer.forward(np.ones((1, 2, 4)))
        kept = dict(memory)
        with pytest.raises(ShapeError, match="3 positions, got a sequence of 4"):
            layer.forward(np.ones((1, 2, 4)))
    assert memory == kept


def test_learnt_places(rng):
    layer = made(lambda: PositionalEmbedding(6), (2, 4, 3))
    X, dY = rng.standard_normal((2, 2, 4, 3))
    assert not passes(layer, X, dY)["W"][4:].any()
    wanted = passes(layer, X[:, :2], dY[:, :2])
    with calling(reuse=True):  # what a longer batch wrote does not stay
        passes(layer, X, dY)
        assert_same(passes(layer, X[:, :2], dY[:, :2], reuse=True), wanted)
    assert layer.count_params() == 18


def test_turning_keeps_lengths_and_tells_distances(rng):
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


RATE = 0.5


def tied_model(dtype="float64", **options):
    """A small GPT whose head is its embedding."""
    embedding = nn.Embedding(7, 4)
    model = Sequential(
        embedding,
        nn.PositionalEmbedding(5),
        nn.TransformerBlock(2, mlp_ratio=1, causal=True),
        nn.LayerNorm(),
        nn.TiedDense(embedding),
        loss_class=SoftmaxCrossEntropy(),
        **{"seed": 0, "dtype": dtype, "optimizer": SGD(), "alpha": RATE, **options},
    )
    model.build((5,))
    return model


def batch(rng):
    return rng.integers(0, 7, (3, 5)), rng.integers(0, 7, (3, 5))


def uses(model):
    return model.layers[0], model.layers[-1]


def is_tied(model):
    embedding, head = uses(model)
    return head.embedding is embedding


@pytest.mark.parametrize("shape", [(4, 3), (2, 5, 3), (1, 1, 3)])
def test_the_head_has_no_matrix_of_its_own(shape, rng):
    embedding = made(lambda: nn.Embedding(7, 3), (1, 2))
    head, X = nn.TiedDense(embedding), rng.standard_normal(shape)
    assert head.build(shape[1:], dtype=np.float64) == (*shape[1:-1], 7)
    np.testing.assert_allclose(head.forward(X), X @ embedding.W.T, rtol=1e-13)
    assert not head.params
    assert head.count_params() == 0
    assert head.flops() == 2 * int(np.prod(shape[1:-1])) * 7 * 3
    with calling(needs_dX=False):
        assert head.backward(rng.standard_normal((*shape[:-1], 7))) is None
    assert head.grads.keys() == {"W"}


def loss_of(model, X, y):
    with inference():
        return model.loss.loss_func(model.forward(X), y)


def test_the_summed_gradient_is_the_slope_of_the_whole_loss(rng):
    model, (X, y) = tied_model(), batch(rng)
    embedding, head = uses(model)
    model.backward(model.loss.loss_gradient(model.forward(X), y))
    parts = [embedding.grads["W"].copy(), head.grads["W"].copy()]
    assert all(np.abs(part).max() > 1e-3 for part in parts)
    packed = model.optimizer._pack(model.layers)
    packed.gather()
    found = packed.g[packed.pieces["0.W"]].reshape(7, 4)
    np.testing.assert_allclose(found, sum(parts), rtol=1e-13)

    numeric = numeric_gradient(lambda W: loss_of(model, X, y), embedding.W)
    np.testing.assert_allclose(found, numeric, rtol=1e-7, atol=1e-10)
    W = embedding.W - RATE * found  # training steps by it, once for a whole accumulated batch
    model.train(X, y, epochs=1, batch_size=1, accumulate=3, shuffle=False, verbose=0)
    np.testing.assert_allclose(uses(model)[0].W, W, rtol=1e-10, atol=1e-12)

    embedding = nn.Embedding(4, 4)  # with two heads
    model = Sequential(
        embedding, nn.Residual(nn.TiedDense(embedding)), nn.Tanh(), nn.TiedDense(embedding),
        loss_class=SoftmaxCrossEntropy(), seed=0, dtype="float64",
    )  # fmt: skip
    model.build((3,))
    X, y = rng.integers(0, 4, (2, 3)), rng.integers(0, 4, (2, 3))
    model.backward(model.loss.loss_gradient(model.forward(X), y))
    packed = model.optimizer._pack(model.layers)
    packed.gather()
    numeric = numeric_gradient(lambda W: loss_of(model, X, y), embedding.W)
    np.testing.assert_allclose(packed.g.reshape(4, 4), numeric, rtol=1e-7, atol=1e-10)


class Looks(Callback):
    """Look at the gradients after each step."""

    def __init__(self):
        self.gradients = []

    def on_batch_end(self, model, step, loss):
        embedding, head = uses(model)
        assert np.shares_memory(embedding.grads["W"], model.optimizer._packing.g)
        for layer in (embedding, head):
            assert "gradient of W" not in layer._frame.buffers
        assert not head.grads
        assert not head._frame.products
        self.gradients.append(model.gradients())


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_step_has_one_array_for_the_gradient(checkpoint, parts, rng, cut):
    model, (X, y) = tied_model(), batch(rng)
    cut(parts)
    model.checkpoint = checkpoint
    twin, looks = model.copy(), Looks()
    twin.backward(twin.loss.loss_gradient(twin.forward(X), y))
    model.train(X, y, epochs=1, verbose=0, callbacks=[looks])
    assert_same(looks.gradients[0], twin.gradients(), rtol=1e-12, atol=1e-15)
    model.backward(model.loss.loss_gradient(model.forward(X), y))  # by hand, both are arrays again
    assert all("W" in layer.grads for layer in uses(model))
    before, total = uses(model)[0].W.copy(), model.gradients()["0.W"]
    model.optimizer.step(model.layers)
    np.testing.assert_allclose(uses(model)[0].W, before - RATE * total, rtol=1e-12)


def test_a_product_that_no_step_used_does_not_count(rng):
    model, (X, y) = tied_model(), batch(rng)
    twin = model.copy()
    model.train(X, y, epochs=0, verbose=0)
    head = uses(model)[1]
    with calling(reuse=True, step=0):
        model.backward(model.loss.loss_gradient(model.forward(X), (y + 1) % 7))
    assert "W" in head._frame.products
    for each in (model, twin):
        each.backward(each.loss.loss_gradient(each.forward(X), y))
        each.optimizer.step(each.layers)
    assert_same(model.get_weights(), twin.get_weights(), rtol=1e-12)
    embedding, before = uses(model)[0], uses(model)[0].W.copy()
    model.train(X, y, epochs=1, verbose=0)
    assert (embedding.W != before).any()
    embedding.trainable = False  # a frozen one leaves no product
    before = embedding.W.copy()
    model.train(X, y, epochs=1, verbose=0)
    assert not head._frame.products
    np.testing.assert_array_equal(embedding.W, before)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("size", [1, 8, 12, 1000])
def test_the_gradient_is_added_in_blocks(size, parts, rng, cut, monkeypatch):
    model, (X, y) = tied_model(optimizer=Adam(), alpha=0.01), batch(rng)
    twin = model.copy()
    for _ in range(3):
        twin.backward(twin.loss.loss_gradient(twin.forward(X), y))
        twin.optimizer.step(twin.layers)
    monkeypatch.setattr(packing, "PRODUCT", size)
    cut(parts)
    model.train(X, y, epochs=3, verbose=0, shuffle=False)
    assert_same(model.get_weights(), twin.get_weights(), rtol=1e-9, atol=1e-11)


def test_who_watches_training_sees_the_gradient_of_each_use(rng):
    model, (X, y) = tied_model(), batch(rng)
    twin, seen = model.copy(), {}
    twin.backward(twin.loss.loss_gradient(twin.forward(X), y))

    class Gradients:
        def of(self, model):
            return self

        def run(self, when, layer, method, A, more):
            result = method(layer, A, **more)
            if when == "backward" and "W" in layer.grads:
                seen[type(layer).__name__] = layer.grads["W"].copy()
            return result

        def notify(self, what, when, source, A, *more):
            return A

    with calling(watch=Gradients()):
        model.train(X, y, epochs=1, verbose=0)
    for layer in uses(twin):
        np.testing.assert_allclose(seen[type(layer).__name__], layer.grads["W"], rtol=1e-12)


def test_tied_weights_count_once_and_replicas_and_builders_tie(capsys, rng):
    model = tied_model()
    embedding, _ = uses(model)
    untied = sum(a.size for p in (part.params for _, part in model.walk()) for a in p.values())
    assert model.count_params() == untied
    assert "4.W" not in model.get_weights()
    model.summary()
    assert f"{model.count_params()} trainable" in capsys.readouterr().out
    packing = model.optimizer._pack(model.layers)
    assert packing.theta.size == model.count_params()
    assert uses(model)[1].tied == {"W": (embedding, "W")}
    model, (X, y) = tied_model(), batch(rng)
    model.optimizer._pack(model.layers)
    twin = model._replica()
    np.testing.assert_array_equal(twin.predict(X), model.predict(X))
    uses(model)[0].W += 1
    np.testing.assert_array_equal(twin.predict(X), model.predict(X))
    model.forward(X)
    kept = model.layers[-1].cache["rows"].copy()
    twin.forward(X + 1 - 2 * (X > 3))
    np.testing.assert_array_equal(model.layers[-1].cache["rows"], kept)
    dY = model.loss.loss_gradient(model.predict(X), y)
    twin.backward(dY)
    assert not model.layers[-1].grads
    embedding = nn.Embedding(7, 4)
    builder = SequentialBuilder(5).add(embedding).layer_norm().tied_dense(embedding).seed(0)
    first, second = builder.build(), builder.build()
    assert is_tied(first)
    assert is_tied(second)
    assert uses(first)[0] is not uses(second)[0]
    assert first.count_params() == 7 * 4 + 8
    X, _ = batch(rng)
    np.testing.assert_array_equal(first.predict(X), second.predict(X))
    model = Sequential(
        nn.Dense(4, 4), nn.TiedDense(nn.Embedding(5, 4)), loss_class=SoftmaxCrossEntropy()
    )
    with pytest.raises(PhitodeepError):
        model.train(np.ones((3, 4)), np.zeros(3, int), epochs=1, verbose=0)


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("twinned", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_keep_their_own_tie(twinned, trained, rng):
    model, (X, y) = tied_model(), batch(rng)
    if trained:
        model.train(X, y, epochs=1, verbose=0)
    twin = twinned(model)
    assert is_tied(twin)
    assert uses(twin)[0] is not uses(model)[0]
    np.testing.assert_array_equal(twin.predict(X), model.predict(X))
    kept = uses(model)[0].W.copy()
    twin.train(X, y, epochs=1, verbose=0)
    np.testing.assert_array_equal(uses(model)[0].W, kept)
    model.train(X, y, epochs=1, verbose=0)
    np.testing.assert_allclose(uses(twin)[0].W, uses(model)[0].W, rtol=1e-10)
    assert is_tied(model)


def test_lambda_gives_backward_what_it_promises(rng):
    seen = []

    def back(dY, X, Y):
        seen.extend([dY, X, Y])
        return 2 * dY

    X, dY = rng.standard_normal((2, 3, 4))
    layer = nn.Lambda(lambda X: 2 * X, back)
    layer.forward(X)
    np.testing.assert_array_equal(layer.backward(dY), 2 * dY)
    for a, wanted in zip(seen, (dY, X, 2 * X), strict=True):
        np.testing.assert_array_equal(a, wanted)
    assert pickle.loads(pickle.dumps(nn.Lambda(cube, cube_gradient))).forward(X).shape == X.shape
    nn.Lambda(np.log, lambda dY, X, Y: dY / X).build((3,))  # without a warning
    wide = nn.Lambda(lambda X: X * np.float64(2), lambda dY, X, Y: dY.astype(np.float64))
    Y = made(lambda: wide, (2, 3), np.float32).forward(X[..., :3])
    assert Y.dtype == wide.backward(Y).dtype == np.float32
