"""SkipConcat and TimeDistributed: what goes by which road, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phitodeep.core.call import calling
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError
from phitodeep.layers import (
    GRU,
    Chain,
    Conv1D,
    Conv2D,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    MaxPool2D,
    ReLU,
    SkipConcat,
    Tanh,
    TimeDistributed,
    Upsample2D,
)
from phitodeep.model import Sequential
from phitodeep.testing import check_gradients
from phitodeep.testing.examples import made, passes


def test_x_and_its_function_side_by_side(rng: np.random.Generator) -> None:
    X, dY = rng.standard_normal((3, 4)), rng.standard_normal((3, 8))
    layer = SkipConcat(Tanh())
    np.testing.assert_array_equal(layer.forward(X), np.concatenate([X, np.tanh(X)], 1))
    wanted = dY[:, :4] + dY[:, 4:] * (1 - np.tanh(X) ** 2)
    np.testing.assert_allclose(layer.backward(dY), wanted, rtol=1e-12)
    np.testing.assert_array_equal(SkipConcat().forward(X), np.concatenate([X, X], 1))
    assert SkipConcat(Dense(5), Tanh())._measured((2, 3)).output_shape == (2, 8)


def u_net() -> Chain:
    deep = SkipConcat(MaxPool2D(2), Conv2D(3, 3, padding="same"), ReLU(), Upsample2D(2))
    return Chain(SkipConcat(MaxPool2D(2), deep, Upsample2D(2, "bilinear")), Conv2D(1, 1))


def test_a_small_u_net(rng: np.random.Generator) -> None:
    layer = made(u_net, (2, 8, 4, 2))
    assert layer.output_shape == (8, 4, 1)
    check_gradients(layer, rng.standard_normal((2, 8, 4, 2)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: SkipConcat(Dense(3), Dropout(0.3)),
        lambda: SkipConcat(SkipConcat(Dense(2)), Dense(1)),
        lambda: TimeDistributed(Dense(3)),
        lambda: TimeDistributed(Chain(Dense(3), Dropout(0.3), Tanh())),
    ],
)
@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 1, 2)])
def test_skip_gradients(make: Any, shape: Any, rng: np.random.Generator) -> None:
    check_gradients(made(make, shape), rng.standard_normal(shape))


def test_nobody_computes_what_nobody_needs(rng: np.random.Generator) -> None:
    for make in (lambda: SkipConcat(Tanh(), Dense(3)), lambda: TimeDistributed(Dense(3))):
        layer = made(make, (2, 3, 4))
        X = rng.standard_normal((2, 3, 4))
        dY = rng.standard_normal((2, *layer.output_shape))
        wanted = passes(layer, X, dY)
        with calling(step=0, needs_dX=False):
            layer.forward(X)
            assert layer.backward(dY) is None
        for path, part in layer.walk():
            for name, a in part.grads.items():
                np.testing.assert_allclose(a, wanted[f"{path}.{name}"], rtol=1e-12)


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


@pytest.mark.parametrize(
    ("make", "shape", "says"),
    [
        (
            lambda: SkipConcat(Conv2D(2, 3)),
            (5, 5, 1),
            "SkipConcat.*must keep all axes.*except the last",
        ),
        (lambda: SkipConcat(Flatten()), (2, 3), "SkipConcat.*must keep all axes"),
        (
            lambda: TimeDistributed(Conv2D(2, 3)),
            (3, 2, 5, 1),
            "TimeDistributed.*does not fit|Conv2D",
        ),
        (lambda: TimeDistributed(Conv2D(2, 3)), (5, 5, 1), "Conv2D.*height, width"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(make: Any, shape: Any, says: str) -> None:
    for layer in (make(), Sequential(ReLU(), make())):
        with pytest.raises(ShapeError, match=says) as caught:
            layer.build(shape)
    assert "layer 1 of Sequential" in str(caught.value)


def test_bad_input_is_refused() -> None:
    layer = SkipConcat(MaxPool2D(2), Upsample2D(2))
    layer.build((4, 4, 1))
    with pytest.raises(ShapeError, match=r"SkipConcat.*must keep all axes"):
        layer.forward(np.ones((1, 5, 5, 1)))
    with pytest.raises(ShapeError, match="TimeDistributed"):
        TimeDistributed(Tanh()).build(())
    with pytest.raises(ShapeError, match="TimeDistributed"):
        TimeDistributed(Tanh()).forward(np.ones(3))
    for kind in (SkipConcat, TimeDistributed):
        with pytest.raises(ArgumentTypeError, match=rf"{kind.__name__} takes layers.*Dense\(\)"):
            kind(Dense)
    one = Tanh()
    with pytest.raises(ArgumentError, match="SkipConcat was given the same layer object twice"):
        SkipConcat(one, one)


def test_time_distributed_drops_in_a_part_what_it_would_in_the_whole(rng: Any) -> None:
    X = rng.standard_normal((6, 3, 4))
    layer = made(lambda: TimeDistributed(Dropout(0.4)), X.shape)
    whole = passes(layer, X, X)["Y"]
    np.testing.assert_array_equal(passes(layer, X[2:], X[2:], first=2)["Y"], whole[2:])


def test_time_distributed_does_not_hand_its_mask_down(rng: Any) -> None:
    X = rng.standard_normal((2, 3, 4, 2))
    layer = made(lambda: TimeDistributed(GRU(2)), X.shape)
    with calling(mask=np.ones((2, 3), bool)):
        layer.forward(X)


def test_time_distributed_tokens() -> None:
    layer = TimeDistributed(Embedding(5, 2))
    layer.build((3, 4))
    assert layer.forward(np.ones((2, 3, 4), int)).shape == (2, 3, 4, 2)
