"""Masks go through a chain with its steps, and what they leave out changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.layers import (
    GRU,
    LSTM,
    RNN,
    AvgPool1D,
    Bidirectional,
    Chain,
    Conv1D,
    Conv2D,
    ConvTranspose1D,
    Dense,
    Flatten,
    GlobalAvgPool,
    GlobalMaxPool,
    LayerNorm,
    MaxPool1D,
    MultiHeadAttention,
    Parallel,
    Permute,
    ReLU,
    Reshape,
    Residual,
    SkipConcat,
    TransformerBlock,
)
from phitodeep.layers.base import Layer, calling
from phitodeep.model import Sequential, SequentialBuilder
from phitodeep.testing import check_gradients
from tests.layers.catalogue_examples import made, passes

T, D = 9, 4
LENGTHS = np.array([9, 5, 7, 1])
MASK = np.arange(T) < LENGTHS[:, None]

# each shortens or keeps the steps; the samples alone, without padding, must give the same
CONVS: dict[str, Callable[[], Layer]] = {
    "valid": lambda: Conv1D(3, 3),
    "strided": lambda: Conv1D(3, 2, stride=2),
    "dilated": lambda: Conv1D(3, 2, dilation=3),
    "same": lambda: Conv1D(3, 3, padding="same"),
    "even kernel, same": lambda: Conv1D(3, 4, padding="same"),
    "integer": lambda: Conv1D(3, 3, padding=2, stride=2),
    "groups": lambda: Conv1D(4, 3, padding="same", groups=2),
    "transposed": lambda: ConvTranspose1D(3, 3, stride=2, output_padding=1),
    "transposed, padded": lambda: ConvTranspose1D(3, 4, stride=2, padding=1),
    "pool": lambda: MaxPool1D(2),
    "overlapping pool": lambda: AvgPool1D(3, stride=1),
}
CHAINS: dict[str, Callable[[], Layer]] = {
    "to a GRU": lambda: Chain(Conv1D(4, 2, stride=2), ReLU(), GRU(3)),
    "to attention": lambda: Chain(Conv1D(4, 3), MultiHeadAttention(2), Conv1D(3, 3, padding=1)),
    "up again": lambda: Chain(MaxPool1D(2), ConvTranspose1D(3, 2, stride=2), LSTM(2)),
    "nested": lambda: Chain(Chain(MaxPool1D(2), Dense(3)), Chain(Conv1D(3, 2), RNN(2))),
    "branches": lambda: Chain(Parallel(Conv1D(2, 3), Conv1D(3, 3)), Bidirectional(GRU(2))),
    "skip": lambda: Chain(SkipConcat(Conv1D(2, 3, padding=1)), Residual(GRU(6)), LayerNorm()),
    "block": lambda: Chain(Conv1D(4, 2), TransformerBlock(2), MaxPool1D(2), Dense(2)),
}


def data(rng: Any) -> np.ndarray:
    return rng.standard_normal((len(LENGTHS), T, D))


@pytest.mark.parametrize("make", [*CONVS.values(), *CHAINS.values()], ids=[*CONVS, *CHAINS])
def test_each_sample_is_as_it_would_be_alone(make: Callable[[], Layer], rng: Any) -> None:
    X, layer = data(rng), made(make, (1, T, D))
    noisy = np.where(MASK[..., None], X, 50 * rng.standard_normal(X.shape))
    after = layer.compute_mask(MASK)
    assert after is not None
    with calling(mask=MASK):
        Y = layer.forward(noisy)
    assert Y.shape[:2] == after.shape
    dY = rng.standard_normal(Y.shape) * after[..., None]
    with calling(mask=MASK):
        layer.forward(noisy)
        dX = layer.backward(dY)
    grads = {path: g.copy() for path, g in layer.gradients().items()}
    assert dX is not None
    np.testing.assert_allclose(dX[~MASK], 0, atol=1e-13)
    summed: dict[str, Any] = dict.fromkeys(grads, 0)
    for i, n in enumerate(LENGTHS):
        steps = int(after[i].sum())
        if not steps:
            continue
        alone = layer.forward(X[i : i + 1, :n])
        np.testing.assert_allclose(Y[i, :steps], alone[0, :steps], rtol=1e-9, atol=1e-12)
        assert alone.shape[1] == steps
        dX_alone = layer.backward(dY[i : i + 1, :steps])
        np.testing.assert_allclose(dX[i : i + 1, :n], dX_alone, rtol=1e-9, atol=1e-12)
        for path, g in layer.gradients().items():
            summed[path] = summed[path] + g
    for path, g in grads.items():
        np.testing.assert_allclose(g, summed[path], rtol=1e-9, atol=1e-11, err_msg=path)


@pytest.mark.parametrize("make", [*CONVS.values(), *CHAINS.values()], ids=[*CONVS, *CHAINS])
def test_gradients_under_a_mask(make: Callable[[], Layer], rng: Any) -> None:
    with calling(mask=MASK):
        check_gradients(made(make, (1, T, D)), data(rng))


@pytest.mark.parametrize("kind", [GlobalAvgPool, GlobalMaxPool])
def test_global_pools_see_the_steps_that_are_there(kind: Any, rng: Any) -> None:
    X, layer = data(rng) - 5, kind()  # below 0, which an empty place must not win with
    lengths = np.array([9, 5, 0, 1])
    mask = np.arange(T) < lengths[:, None]
    dY = rng.standard_normal((4, D))
    found = passes(layer, X, dY, mask=mask)
    for i, n in enumerate(lengths):
        if n:
            alone = passes(layer, X[i : i + 1, :n], dY[i : i + 1])
            np.testing.assert_allclose(found["Y"][i : i + 1], alone["Y"], rtol=1e-12)
            np.testing.assert_allclose(found["dX"][i : i + 1, :n], alone["dX"], rtol=1e-12)
        else:
            assert not found["Y"][i].any()
        assert not found["dX"][i, n:].any()
    assert layer.compute_mask(mask) is None


def test_layers_that_end_the_steps_end_the_mask() -> None:
    for layer in (Flatten(), Reshape(-1), Permute(2, 1), GRU(2, return_sequences=False),
                  Conv2D(2, 2), Bidirectional(LSTM(2, return_sequences=False))):  # fmt: skip
        assert layer.compute_mask(MASK) is None, layer
    chain = Chain(GRU(2, return_sequences=False), Dense(3))
    assert chain.compute_mask(MASK) is None
    for layer in (Dense(2), LayerNorm(), MultiHeadAttention(2), Residual(Dense(4))):
        assert layer.compute_mask(MASK) is MASK


def test_a_mask_that_ends_does_not_come_back(rng: Any) -> None:
    layer = made(lambda: Chain(GRU(12, return_sequences=False), Reshape(3, 4), GRU(2)), (1, T, D))
    with calling(mask=MASK):
        assert layer.forward(data(rng)).shape == (4, 3, 2)


def test_gaps_pass_where_the_steps_stay_and_are_refused_where_they_change(rng: Any) -> None:
    gaps = MASK.copy()
    gaps[0, 2] = False
    X = data(rng)
    same, halved = made(CONVS["same"], (1, T, D)), made(CONVS["strided"], (1, T, D))
    assert same.compute_mask(gaps) is gaps
    with calling(mask=gaps):
        Y = same.forward(X)
    X[0, 2] = 0
    np.testing.assert_array_equal(same.forward(X)[0], Y[0])
    with pytest.raises(ShapeError, match="makes 4 steps of 9, so it takes lengths"):
        halved.compute_mask(gaps)
    with pytest.raises(ShapeError, match=r"layer 0 of Chain.*takes lengths"), calling(mask=gaps):
        made(lambda: Chain(Conv1D(3, 2), GRU(2)), (1, T, D)).forward(X)


def test_padded_pools_refuse_a_mask(rng: Any) -> None:
    for kind in (MaxPool1D, AvgPool1D):
        layer = made(lambda kind=kind: kind(3, padding="same"), (1, T, D))
        with pytest.raises(ArgumentError, match='padding="valid"'), calling(mask=MASK):
            layer.forward(data(rng))


# --- through the model -------------------------------------------------------------------------


def tagger(dtype: str = "float64") -> Sequential:
    return (
        SequentialBuilder(T, D, seed=1)
        .conv1d(5, 3, padding="same")
        .tanh()
        .bidirectional(GRU(3))
        .dense(2)
        .loss("softmax_cross_entropy")
        .metrics("accuracy")
        .dtype(dtype)
        .alpha(0.02)
        .build()
    )


def test_lengths_make_padding_change_nothing(rng: Any) -> None:
    X, y = data(rng), rng.integers(0, 2, (4, T))
    noisy = np.where(MASK[..., None], X, 9.0)
    one, other = tagger(), tagger()
    options = {"lengths": LENGTHS, "epochs": 3, "batch_size": 2, "verbose": 0}
    wanted = one.train(X, y, X, y, lengths_test=MASK, **options)
    found = other.train(noisy, 1 - (1 - y) * MASK, noisy, y, lengths_test=LENGTHS, **options)
    assert found == wanted
    assert found.metrics == wanted.metrics
    for name, a in one.get_weights().items():
        np.testing.assert_array_equal(other.get_weights()[name], a)
    np.testing.assert_array_equal(
        one.predict(X, lengths=LENGTHS)[MASK], one.predict(noisy, 3, lengths=MASK)[MASK]
    )
    assert one.evaluate(X, y, lengths=LENGTHS) == one.evaluate(noisy, y, lengths=LENGTHS)


def test_the_loss_is_the_mean_over_the_steps_that_are_there(rng: Any) -> None:
    X, y, model = data(rng), rng.integers(0, 2, (4, T)), tagger()
    scores = model.evaluate(X, y, lengths=LENGTHS, batch_size=3)
    P = model.predict(X, lengths=LENGTHS)[MASK]
    flat = np.log(np.exp(P).sum(axis=1)) - P[np.arange(len(P)), y[MASK]]
    assert scores["loss"] == pytest.approx(flat.mean(), rel=1e-12)
    assert scores["accuracy"] == pytest.approx((P.argmax(axis=1) == y[MASK]).mean())
    weighted = model.evaluate(X, y, lengths=LENGTHS, sample_weight=[1, 0, 2, 0.5])["loss"]
    w = np.repeat([1, 0, 2, 0.5], LENGTHS)
    assert weighted == pytest.approx((flat * w).sum() / w.sum(), rel=1e-12)


def test_lengths_in_regression_and_with_one_output_a_sample(rng: Any) -> None:
    X, Y = data(rng), rng.standard_normal((4, T, 2))
    each = SequentialBuilder(T, D, seed=0).gru(2).metrics("mae").dtype("float64").build()
    P = each.predict(X, lengths=LENGTHS)
    scores = each.evaluate(X, Y, lengths=LENGTHS)
    assert scores["loss"] == pytest.approx(((P - Y)[MASK] ** 2).mean())
    assert scores["mae"] == pytest.approx(np.abs((P - Y)[MASK]).mean())
    one = SequentialBuilder(T, D, seed=0).gru(2, return_sequences=False).dtype("float64").build()
    P = one.predict(X, lengths=LENGTHS)
    for i, n in enumerate(LENGTHS):
        np.testing.assert_allclose(one.predict(X[i : i + 1, :n])[0], P[i], rtol=1e-12)
    assert one.evaluate(X, Y[:, 0], lengths=LENGTHS)["loss"] == pytest.approx(
        ((P - Y[:, 0]) ** 2).mean()
    )


def test_forward_takes_lengths_and_backward_goes_with_it(rng: Any) -> None:
    X, model = data(rng), tagger()
    Y = model.forward(X, lengths=LENGTHS)
    np.testing.assert_array_equal(Y, model.predict(X, lengths=LENGTHS))
    dX = model.backward(np.where(MASK[..., None], 1.0, 0.0) * Y)
    assert dX is not None
    assert not dX[~MASK].any()
    assert dX[MASK].any()


def test_a_sample_of_no_steps_is_defined(rng: Any) -> None:
    X, y, model = data(rng), rng.integers(0, 2, (4, T)), tagger()
    history = model.train(X, y, lengths=[0, 0, 3, 0], epochs=2, batch_size=2, verbose=0)
    assert np.isfinite([train for train, _ in history]).all()
    assert all(np.isfinite(a).all() for a in model.get_weights().values())
    assert model.evaluate(X, y, lengths=np.zeros(4, int))["loss"] == 0


@pytest.mark.parametrize(
    ("lengths", "says"),
    [
        ([9, 10, 1, 1], r"lengths\[1\] is 10, but the samples have 9 steps"),
        ([9, -1, 1, 1], r"lengths\[1\] is -1"),
        ([9, 1, 1], r"integers of shape \(4,\)"),
        ([9.0, 1.0, 1.0, 1.0], "got float64"),
        (np.ones((4, 8), bool), r"True and False of shape \(4, 9\)"),
        (np.ones((4, 9)), "True and False"),
        (9, "got int64 of shape"),
        (["a"] * 4, "real numbers"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(lengths: Any, says: str, rng: Any) -> None:
    X, y, model = data(rng), rng.integers(0, 2, (4, T)), tagger()
    before = model.get_weights()
    for call in (
        lambda: model.train(X, y, lengths=lengths, verbose=0),
        lambda: model.train(X, y, X, y, lengths_test=lengths, verbose=0),
        lambda: model.predict(X, lengths=lengths),
        lambda: model.evaluate(X, y, lengths=lengths),
        lambda: model.forward(X, lengths=lengths),
    ):
        with pytest.raises((ShapeError, ArgumentError, TypeError), match=says):
            call()
    for name, a in before.items():
        np.testing.assert_array_equal(model.get_weights()[name], a)
