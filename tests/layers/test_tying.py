"""Weights used twice, and functions of one's own."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from phitodeep import layers as nn
from phitodeep.core.call import calling, inference
from phitodeep.core.types import Array
from phitodeep.errors import PhitodeepError
from phitodeep.loss import SoftmaxCrossEntropy
from phitodeep.model import Sequential, SequentialBuilder
from phitodeep.model.callbacks import Callback
from phitodeep.optimization import packing
from phitodeep.optimization.optimizers import SGD, Adam
from phitodeep.testing import numeric_gradient
from phitodeep.testing.examples import cube, cube_gradient, made
from tests.conftest import assert_same

RATE = 0.5


def tied_model(dtype: str = "float64", **options: Any) -> Sequential:
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


def batch(rng: Any) -> tuple[Array, Array]:
    return rng.integers(0, 7, (3, 5)), rng.integers(0, 7, (3, 5))


def uses(model: Sequential) -> tuple[nn.Embedding, nn.TiedDense]:
    first, last = model.layers[0], model.layers[-1]
    assert isinstance(first, nn.Embedding)
    assert isinstance(last, nn.TiedDense)
    return first, last


def is_tied(model: Sequential) -> bool:
    embedding, head = uses(model)
    return head.embedding is embedding


@pytest.mark.parametrize("shape", [(4, 3), (2, 5, 3), (1, 1, 3)])
def test_the_head_is_the_embedding_transposed(shape: Any, rng: Any) -> None:
    embedding = made(lambda: nn.Embedding(7, 3), (1, 2))
    assert isinstance(embedding, nn.Embedding)
    head, X, W = nn.TiedDense(embedding), rng.standard_normal(shape), embedding.W.copy()
    assert head.build(shape[1:], dtype=np.float64) == (*shape[1:-1], 7)
    np.testing.assert_allclose(head.forward(X), X @ W.T, rtol=1e-13)
    dY = rng.standard_normal((*shape[:-1], 7))
    np.testing.assert_allclose(head.backward(dY), dY @ W, rtol=1e-12)
    assert head.grads.keys() == {"W"}
    wanted = np.einsum("nv,nd->vd", dY.reshape(-1, 7), X.reshape(-1, 3))
    np.testing.assert_allclose(head.grads["W"], wanted, rtol=1e-12)
    assert not head.params
    assert head.count_params() == 0
    assert head.flops() == 2 * int(np.prod(shape[1:-1])) * 7 * 3
    with calling(needs_dX=False):
        assert head.backward(dY) is None


def loss_of(model: Sequential, X: Array, y: Array) -> float:
    with inference():
        return model.loss.loss_func(model.forward(X), y)


def test_the_summed_gradient_is_the_slope_of_the_whole_loss(rng: Any) -> None:
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

    def __init__(self) -> None:
        self.gradients: list[dict[str, Array]] = []

    def on_batch_end(self, model: Any, step: int, loss: float) -> None:
        embedding, head = uses(model)
        assert np.shares_memory(embedding.grads["W"], model.optimizer._packing.g)
        for layer in (embedding, head):
            assert "gradient of W" not in layer._frame.buffers
        assert not head.grads
        assert not head._frame.products
        self.gradients.append(model.gradients())


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_step_has_one_array_for_the_gradient(
    checkpoint: bool, parts: int, rng: Any, cut: Any
) -> None:
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


def test_a_product_that_no_step_used_does_not_count(rng: Any) -> None:
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
def test_the_gradient_is_added_in_blocks(
    size: Any, parts: Any, rng: Any, cut: Any, monkeypatch: Any
) -> None:
    model, (X, y) = tied_model(optimizer=Adam(), alpha=0.01), batch(rng)
    twin = model.copy()
    for _ in range(3):
        twin.backward(twin.loss.loss_gradient(twin.forward(X), y))
        twin.optimizer.step(twin.layers)
    monkeypatch.setattr(packing, "PRODUCT", size)
    cut(parts)
    model.train(X, y, epochs=3, verbose=0, shuffle=False)
    assert_same(model.get_weights(), twin.get_weights(), rtol=1e-9, atol=1e-11)


def test_who_watches_training_sees_the_gradient_of_each_use(rng: Any) -> None:
    model, (X, y) = tied_model(), batch(rng)
    twin, seen = model.copy(), {}
    twin.backward(twin.loss.loss_gradient(twin.forward(X), y))

    class Gradients:
        def of(self, model: Any) -> Gradients:
            return self

        def run(self, when: str, layer: Any, method: Any, A: Array, more: dict[str, Any]) -> Any:
            result = method(layer, A, **more)
            if when == "backward" and "W" in layer.grads:
                seen[type(layer).__name__] = layer.grads["W"].copy()
            return result

        def notify(self, what: str, when: str, source: Any, A: Any, *more: Any) -> Any:
            return A

    with calling(watch=Gradients()):
        model.train(X, y, epochs=1, verbose=0)
    for layer in uses(twin):
        np.testing.assert_allclose(seen[type(layer).__name__], layer.grads["W"], rtol=1e-12)


def test_tied_weights_are_counted_once(capsys: Any) -> None:
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


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("twinned", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_keep_their_own_tie(twinned: Any, trained: bool, rng: Any) -> None:
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


def test_replicas_share_the_weights_and_builders_tie(rng: Any) -> None:
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


def test_lambda_gives_backward_what_it_promises(rng: Any) -> None:
    seen: list[Array] = []

    def back(dY: Array, X: Array, Y: Array) -> Array:
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
    wide = nn.Lambda(lambda X: X * np.float64(2), lambda dY, X, Y: 2 * dY)
    assert made(lambda: wide, (2, 3), np.float32).forward(X[..., :3]).dtype == np.float32
