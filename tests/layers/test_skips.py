"""SkipConcat and TimeDistributed: what goes by which road, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np

from phitodeep.core.call import calling
from phitodeep.layers import (
    GRU,
    Chain,
    Conv1D,
    Conv2D,
    Embedding,
    Flatten,
    MaxPool2D,
    ReLU,
    SkipConcat,
    TimeDistributed,
    Upsample2D,
)
from phitodeep.testing import check_gradients
from phitodeep.testing.examples import made


def u_net() -> Chain:
    deep = SkipConcat(MaxPool2D(2), Conv2D(3, 3, padding="same"), ReLU(), Upsample2D(2))
    return Chain(SkipConcat(MaxPool2D(2), deep, Upsample2D(2, "bilinear")), Conv2D(1, 1))


def test_a_small_u_net(rng: np.random.Generator) -> None:
    layer = made(u_net, (2, 8, 4, 2))
    assert layer.output_shape == (8, 4, 1)
    check_gradients(layer, rng.standard_normal((2, 8, 4, 2)))


def test_time_distributed_is_the_layer_at_each_step(rng: np.random.Generator) -> None:
    X = rng.standard_normal((2, 3, 5, 4, 2))
    layer = made(lambda: TimeDistributed(Chain(Conv2D(3, 2), Flatten())), X.shape)
    assert layer.output_shape == (3, 4 * 3 * 3)
    inner, Y = layer.layer.copy(), layer.forward(X)
    for t in range(3):
        np.testing.assert_allclose(Y[:, t], inner.forward(X[:, t]), rtol=1e-12)
    check_gradients(layer, X)
    dY = rng.standard_normal(Y.shape)
    layer.forward(X)
    layer.backward(dY)
    dW = np.zeros_like(inner.layers[0].W)
    for t in range(3):
        inner.forward(X[:, t])
        inner.backward(dY[:, t])
        dW += inner.layers[0].grads["W"]
    np.testing.assert_allclose(dict(layer.walk())["layer.layers.0"].grads["W"], dW, rtol=1e-11)
    assert layer.flops() == 3 * inner.flops()
    assert set(layer.get_weights()) == {"layer.layers.0.W", "layer.layers.0.b"}


def test_other_lengths_and_sizes_may_come(rng: np.random.Generator) -> None:
    layer = made(lambda: TimeDistributed(Conv1D(2, 3, padding="same")), (2, 3, 4, 2))
    for shape in ((1, 5, 4, 2), (3, 1, 6, 2)):
        check_gradients(layer, rng.standard_normal(shape), max_probes=10)


def test_time_distributed_does_not_hand_its_mask_down(rng: Any) -> None:
    X = rng.standard_normal((2, 3, 4, 2))
    layer = made(lambda: TimeDistributed(GRU(2)), X.shape)
    with calling(mask=np.ones((2, 3), bool)):
        layer.forward(X)


def test_time_distributed_tokens() -> None:
    layer = TimeDistributed(Embedding(5, 2))
    layer.build((3, 4))
    assert layer.forward(np.ones((2, 3, 4), int)).shape == (2, 3, 4, 2)
