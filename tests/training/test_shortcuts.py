"""The shortcuts: equal to the long way, finite where that is not, and pairs that cannot match."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from phitodeep import watching
from phitodeep.core.call import Event, inference
from phitodeep.core.types import Array, Shape
from phitodeep.errors import (
    ArgumentError,
    ArgumentTypeError,
    NotBuiltError,
    PhitodeepWarning,
    ShapeError,
)
from phitodeep.layers import (
    GELU,
    Chain,
    Dense,
    Dropout,
    HardSigmoid,
    Layer,
    LogSoftmax,
    MaxPool1D,
    MaxPool2D,
    PReLU,
    ReLU,
    Sigmoid,
    SkipConcat,
    Softmax,
    Tanh,
)
from phitodeep.layers.dense import DenseReLU
from phitodeep.loss import (
    BinaryCrossEntropy,
    BinaryCrossEntropyWithLogits,
    CategoricalCrossEntropy,
    CosineSimilarityLoss,
    Hinge,
    Huber,
    KLDivergence,
    LogCosh,
    Loss,
    MeanAbsoluteError,
    MeanSquaredError,
    NegativeLogLikelihood,
    PoissonNLL,
    SoftmaxCrossEntropy,
    SquaredHinge,
)
from phitodeep.model import Sequential, SequentialBuilder
from phitodeep.model.callbacks import LambdaCallback
from phitodeep.training import shortcuts as fusion
from phitodeep.training.shortcuts import FUSED, JOINED, check_pair, fused, rearranged
from tests.training.weights import assert_weights

WEIGHTS = [0.5, 2.0, 1.0, 0.25]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"ignore_index": 2},
    {"class_weight": WEIGHTS},
    {"class_weight": {1: 3.0}, "ignore_index": -1},
]
PAIRS: list[tuple[Layer, Loss]] = [
    (Sigmoid(), BinaryCrossEntropy()),
    *[(LogSoftmax(), NegativeLogLikelihood(**s)) for s in SETTINGS],
    *[(Softmax(), CategoricalCrossEntropy(**s)) for s in SETTINGS],
    *[(Softmax(), CategoricalCrossEntropy(label_smoothing=0.2, **s)) for s in SETTINGS],
]
pairs = pytest.mark.parametrize(("last", "loss"), PAIRS, ids=repr)


def targets(loss: Loss, shape: Shape, soft: bool = False) -> Array:
    rng = np.random.default_rng(4)
    if isinstance(loss, BinaryCrossEntropy):
        return rng.random(shape) if soft else rng.integers(0, 2, shape)
    if soft:
        return rng.dirichlet(np.ones(shape[-1]), shape[:-1])
    labels = rng.integers(0, shape[-1], shape[:-1])
    if getattr(loss, "ignore_index", None) == -1:
        labels[0] = -1
    return labels


def test_every_row_of_the_table_is_tested() -> None:
    assert {(type(last), type(loss)) for last, loss in PAIRS} == FUSED.keys()


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(5, 4), (2, 3, 4)])
@pairs
def test_shortcut_equals_the_long_way(
    last: Layer, loss: Loss, shape: Shape, weighted: bool, soft: bool
) -> None:
    Z, y = 2 * np.random.default_rng(3).standard_normal(shape), targets(loss, shape, soft)
    w = np.linspace(0.2, 2, shape[0]) if weighted else None
    short = fused(last, loss)
    assert short is not None
    assert short.wants == "logits"
    Y = last.forward(Z)
    for total in (None, 3.5):
        assert short.loss_func(Z, y, w, total) == pytest.approx(loss.loss_func(Y, y, w, total))
        long_way = last.backward(loss.loss_gradient(Y, y, w, total))
        np.testing.assert_allclose(
            short.loss_gradient(Z, y, w, total), long_way, rtol=1e-10, atol=1e-15
        )


@pytest.mark.parametrize(
    ("last", "loss", "labels", "wide", "slope"),
    [
        (Softmax(), CategoricalCrossEntropy(), [1], 4000, 1),
        (Sigmoid(), BinaryCrossEntropy(), [[0, 1]], 2000, 0.5),
    ],
    ids=repr,
)
def test_shortcut_is_true_where_the_long_way_has_underflown(
    last: Layer, loss: Loss, labels: Any, wide: float, slope: float
) -> None:
    """Logits of 2000 against the label: the long way's logarithm is held and its slope is lost."""
    Z = np.array([[2000.0, -2000.0]])
    long_way = last.forward(Z)
    assert loss.loss_func(long_way, labels) < 1500
    assert not last.backward(loss.loss_gradient(long_way, labels)).any()
    short = fused(last, loss)
    assert short is not None
    assert short.loss_func(Z, labels) == pytest.approx(wide)
    np.testing.assert_allclose(short.loss_gradient(Z, labels), [[slope, -slope]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pairs
def test_shortcut_is_finite(last: Layer, loss: Loss, dtype: type) -> None:
    Z = np.random.default_rng(3).choice([-1e4, 1e4], (6, 4)).astype(dtype)
    short = fused(last, loss)
    assert short is not None
    with np.errstate(all="raise", under="ignore"):
        assert np.isfinite(short.loss_func(Z, targets(loss, Z.shape)))
        assert np.isfinite(short.loss_gradient(Z, targets(loss, Z.shape))).all()


@pytest.mark.parametrize(
    ("last", "loss"),
    [
        (Softmax(axis=1), CategoricalCrossEntropy()),  # the loss sums over the last axis
        (LogSoftmax(axis=-2), NegativeLogLikelihood()),
        (Softmax(), SoftmaxCrossEntropy()),  # a subclass, and another function
        (Softmax(), NegativeLogLikelihood()),
        (Softmax(), MeanSquaredError()),
        (Sigmoid(), BinaryCrossEntropyWithLogits()),
        (Sigmoid(), CategoricalCrossEntropy()),
        (HardSigmoid(), BinaryCrossEntropy()),
        (Dense(3), SoftmaxCrossEntropy()),
        (Chain(Softmax()), CategoricalCrossEntropy()),
        (None, CategoricalCrossEntropy()),
    ],
    ids=repr,
)
def test_other_pairs_have_no_shortcut(last: Layer | None, loss: Loss) -> None:
    assert fused(last, loss) is None


ANY = [MeanSquaredError(), MeanAbsoluteError(), Huber(), LogCosh(), Hinge(), SquaredHinge()]
ANY += [PoissonNLL(), CosineSimilarityLoss()]
BY_WANT: dict[str, list[Loss]] = {
    "probabilities": [CategoricalCrossEntropy(), BinaryCrossEntropy()],
    "log-probabilities": [NegativeLogLikelihood(), KLDivergence()],
    "logits": [SoftmaxCrossEntropy(), BinaryCrossEntropyWithLogits()],
}
NUMBERS: list[Layer | None] = [Dense(4), ReLU(), Tanh(), Chain(Dense(4))]
PROBABILITIES: list[Layer | None] = [Softmax(), Sigmoid(), HardSigmoid()]
UNKNOWN: list[Layer | None] = [Dropout(0.5), None]
FINE = [
    *[(last, loss) for last in NUMBERS + PROBABILITIES + [LogSoftmax()] + UNKNOWN for loss in ANY],
    *[(last, loss) for last in UNKNOWN for many in BY_WANT.values() for loss in many],
    *[(last, loss) for last in PROBABILITIES for loss in BY_WANT["probabilities"]],
    *[(LogSoftmax(), loss) for loss in BY_WANT["log-probabilities"]],
    *[(last, loss) for last in NUMBERS for loss in BY_WANT["logits"]],
]
ACTIVATIONS: list[Layer | None] = [GELU(), PReLU()]
REFUSED = [
    *((last, BY_WANT["probabilities"][0]) for last in ACTIVATIONS),
    *[(last, loss) for last in [*NUMBERS, LogSoftmax()] for loss in BY_WANT["probabilities"]],
    *[(last, loss) for last in NUMBERS + PROBABILITIES for loss in BY_WANT["log-probabilities"]],
]
WARNED = [(last, loss) for last in [*PROBABILITIES, LogSoftmax()] for loss in BY_WANT["logits"]]


@pytest.mark.parametrize(("last", "loss"), FINE, ids=repr)
def test_pairs_that_match(last: Layer | None, loss: Loss) -> None:
    with warnings.catch_warnings(record=True) as caught:
        check_pair(last, loss)
    assert caught == []


@pytest.mark.parametrize(("last", "loss"), REFUSED, ids=repr)
def test_pairs_that_cannot_match_are_refused(last: Layer, loss: Loss) -> None:
    with pytest.raises(
        ArgumentError, match=r"expects (log-)?probabilities, but .* returns "
    ) as caught:
        check_pair(last, loss)
    remedy = ".log_softmax()" if loss.wants == "log-probabilities" else ".softmax() or .sigmoid()"
    for said in (repr(last), repr(loss), remedy):
        assert said in str(caught.value)


@pytest.mark.parametrize(("last", "loss"), WARNED, ids=repr)
def test_a_softmax_taken_twice_is_warned_of(last: Layer, loss: Loss) -> None:
    with pytest.warns(PhitodeepWarning, match=f"expects logits.*leave out {type(last).__name__}"):
        check_pair(last, loss)


@pytest.mark.parametrize(
    ("pool", "shape"), [(MaxPool1D(2), (8, 3)), (MaxPool2D(3, 2, "same"), (7, 6, 2))], ids=repr
)
def test_swapped_layers_give_the_same_to_the_bit(
    pool: Layer, shape: Shape, rng: np.random.Generator
) -> None:
    first = Dense(4)
    plain = Chain(first, ReLU(), pool)
    plain.build(shape, seed=0)
    other, notes = fusion._reordered(plain)
    assert notes == (f"{type(pool).__name__} (2) runs before ReLU (1)",)
    assert [type(layer) for layer in other.layers] == [Dense, type(pool), ReLU]
    assert other.layers[0] is first
    X = rng.integers(-2, 3, (5, *shape)).astype(np.float32)  # with many ties
    first.W = np.round(first.W)
    seen = []
    for chain in (plain, other):
        Y = chain.forward(X)
        dX = chain.backward(np.random.default_rng(1).standard_normal(Y.shape))
        seen.append((Y, dX, first.grads["W"]))
    for one, two in zip(*seen, strict=True):
        np.testing.assert_array_equal(one, two)
    assert np.any(seen[0][0] == 0)  # windows that the ReLU cuts off
    assert np.any(seen[0][1])


def test_only_what_the_table_names_is_swapped() -> None:
    for layers in ((Tanh(), MaxPool1D(2)), (MaxPool1D(2), ReLU()), (ReLU(), Dense(3))):
        chain = Chain(*layers)
        assert rearranged(chain) is chain


def test_training_swaps_and_comes_to_the_same(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    X, y = rng.standard_normal((20, 6, 6, 1)), rng.integers(0, 3, 20)

    def trained(**options: Any) -> tuple[Any, Sequential]:
        model = convolutional()
        return model.train(X, y, X, y, epochs=3, batch_size=8, verbose=0, **options), model

    history, model = trained()
    plain, as_written = trained(shortcuts=False)
    np.testing.assert_allclose(history, plain, rtol=1e-5)
    assert_weights(model, as_written, rtol=1e-4, atol=1e-6)
    monkeypatch.setattr(fusion, "SWAPPED", set())
    straight, other = trained()
    assert history == straight
    assert_weights(model, other)


def test_several_pools_go_before_one_relu() -> None:
    chain, notes = fusion._reordered(Chain(ReLU(), MaxPool1D(2), MaxPool1D(3)))
    assert [repr(layer) for layer in chain.layers] == ["MaxPool1D(2)", "MaxPool1D(3)", "ReLU()"]
    assert notes == ("MaxPool1D (1) runs before ReLU (0)", "MaxPool1D (2) runs before ReLU (0)")


def convolutional() -> Sequential:
    builder = SequentialBuilder(6, 6, 1, seed=0).conv2d(4, 3).relu().max_pool2d(2).flatten()
    return builder.dense(3).softmax().loss("categorical_cross_entropy").alpha(0.01).build()


@pytest.mark.parametrize("shortcuts", [True, False])
def test_training_runs_what_the_plan_says(shortcuts: bool, rng: np.random.Generator) -> None:
    X, y = rng.standard_normal((8, 6, 6, 1)), rng.integers(0, 3, 8)
    model, seen = convolutional(), list[str]()

    def watcher(event: Event) -> None:
        counted = event.path if event.what == "forward" else event.what == "loss"
        if event.when == "before" and counted:
            seen.append(type(event.source).__name__)

    with watching(watcher):
        model.train(X, y, epochs=1, shortcuts=shortcuts, verbose=0)
    if shortcuts:
        assert seen == ["Conv2D", "MaxPool2D", "ReLU", "Flatten", "Dense", "SoftmaxCrossEntropy"]
    else:
        written = [type(layer).__name__ for layer in model.layers]
        assert seen == [*written, "CategoricalCrossEntropy"]


def test_the_summary_shows_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    convolutional().summary()
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "in training: MaxPool2D (2) runs before ReLU (1)",
        "             Softmax() and CategoricalCrossEntropy() run as one, SoftmaxCrossEntropy()",
    ]
    Sequential(Dense(3, 2)).summary()
    assert "in training" not in capsys.readouterr().out
    with pytest.raises(ArgumentTypeError, match=r"shortcuts must be True or False, got 'no'"):
        convolutional().train(np.ones((2, 6, 6, 1)), [0, 1], shortcuts="no")


def test_a_skips_softmax_is_not_fused_with_the_loss() -> None:
    """Chain._last looks into SkipConcat, whose output is more than its last layer's."""
    loss = CategoricalCrossEntropy()
    model = Sequential(Dense(4, 3), SkipConcat(Softmax()), loss_class=loss, seed=0)
    assert model._last is model.layers[1]
    X, y = np.ones((5, 4)), np.array([3, 4, 5, 3, 4])  # classes whose scores are the softmax's
    value = loss.loss_func(model.predict(X), y)
    assert model.evaluate(X, y)["loss"] == pytest.approx(value)


@pytest.mark.parametrize(("last", "loss"), PAIRS, ids=repr)
def test_without_shortcuts_the_plan_is_the_model_itself(last: Layer, loss: Loss) -> None:
    model = Chain(Dense(4, 4), ReLU(), last)
    assert fusion.plan(model, loss, shortcuts=False) == (model, loss, None, ())
    body, short, replaced, notes = fusion.plan(model, loss)
    assert [type(layer) for layer in body.layers] == [DenseReLU]
    assert replaced is last
    assert notes == (
        "Dense (0) and ReLU (1) run as one, DenseReLU",
        f"{last!r} and {loss!r} run as one, {short!r}",
    )


def test_every_pair_that_is_joined_is_tested() -> None:  # in tests/layers/test_dense.py
    assert {(Dense, ReLU): DenseReLU} == JOINED


def test_only_a_dense_with_a_bias_is_joined() -> None:
    class Own(Dense):
        pass

    for first in (Dense(4, 3, bias=False), Own(4, 3), Tanh()):
        chain = Chain(first, ReLU())
        assert fusion._joined(chain) == (chain, ())


def test_training_joins_and_comes_to_the_same(rng: np.random.Generator) -> None:
    X, y = rng.standard_normal((20, 6)), rng.integers(0, 3, 20)
    builder = SequentialBuilder(6, seed=0).dense(5).relu().dense(4).relu().dense(3)
    model, first = builder.loss("softmax_cross_entropy").build(), None
    for options in ({}, {"shortcuts": False}, {"threads": 2}, {"accumulate": 2}):
        other, size = model.copy(), 4 if "accumulate" in options else 8
        other.train(X, y, X, y, epochs=3, batch_size=size, shuffle=False, verbose=0, **options)
        first = first or other
        assert_weights(first, other, rtol=1e-4, atol=1e-5)


def test_a_layer_that_is_unfrozen_in_training_learns(rng: np.random.Generator) -> None:
    model = SequentialBuilder(4, seed=0).dense(3).relu().dense(2).build()
    model.layers[0].trainable = False
    seen = [model.get_weights()["0.W"]]

    def unfreeze(model: Sequential, epoch: int, logs: Any) -> None:
        seen.append(model.get_weights()["0.W"])
        model.layers[0].trainable = True

    X, y = rng.standard_normal((8, 4)), rng.standard_normal((8, 2))
    model.train(X, y, epochs=2, verbose=0, callbacks=[LambdaCallback(on_epoch_end=unfreeze)])
    np.testing.assert_array_equal(seen[0], seen[1])
    assert np.all(seen[2] != seen[1])


def test_errors_name_the_layer_as_written(rng: np.random.Generator) -> None:
    class Broken(Tanh):
        def value(self, X: Array) -> Array:
            raise ShapeError("broken.")

    model = Sequential(Dense(4, 3), ReLU(), Broken(), Dense(3, 1), seed=0)
    X, y = rng.standard_normal((8, 4)), rng.standard_normal((8, 1))
    with pytest.raises(ShapeError, match="in layer 2 of Sequential: broken"):
        model.train(X, y, verbose=0)
    body, _ = fusion._joined(model)
    assert [path for path, layer in body.walk() if layer in model.layers[2:]] == ["2", "3"]


def test_a_watcher_sees_the_layers_that_are_joined_otherwise(rng: np.random.Generator) -> None:
    model, seen = Sequential(Dense(4, 3), ReLU(), Dense(3, 1), seed=0), set[str]()
    with watching(lambda event: seen.add(type(event.source).__name__)):
        model.train(rng.standard_normal((8, 4)), rng.standard_normal((8, 1)), epochs=1, verbose=0)
    assert {"Dense", "ReLU"} <= seen
    assert "DenseReLU" not in seen


class Skipping(Sequential):
    """Adds the outputs of the last two layers."""

    def forward(self, X: Array, **options: Any) -> Array:
        H = self.layers[1].forward(self.layers[0].forward(X))
        return H + self.layers[2].forward(H)

    def backward(self, dY: Array) -> Array | None:
        dH = dY + self.layers[2].backward(dY)
        return self.layers[0].backward(self.layers[1].backward(dH))


def test_a_model_with_passes_of_its_own_runs_as_written(rng: np.random.Generator) -> None:
    X, Y = rng.standard_normal((12, 4)), rng.standard_normal((12, 4))
    models = [Skipping(Dense(4, 4), ReLU(), Dense(4, 4), seed=0) for _ in range(2)]
    for model, shortcuts in zip(models, (True, False), strict=True):
        assert "run as one" not in str(model.summary())
        np.testing.assert_array_equal(model.predict(X), model.forward(X))
        model.train(X, Y, epochs=3, shortcuts=shortcuts, verbose=0)
    assert_weights(models[0], models[1])


def test_a_layer_with_a_pass_of_its_own_is_not_joined(rng: np.random.Generator) -> None:
    X = rng.standard_normal((3, 4)).astype(np.float32)
    model = Sequential(Dense(4, 4), ReLU(), Dense(4, 2), seed=0)
    model.layers[1].forward = lambda Z: 2 * Z
    assert rearranged(model) is model
    np.testing.assert_array_equal(model.predict(X), model.forward(X))


def test_predictions_follow_what_changes_in_the_model(rng: np.random.Generator) -> None:
    X = rng.standard_normal((3, 4))
    model = Sequential(Dense(4, 4), ReLU(), Dense(4, 2), seed=0)
    model.layers[0].b = np.ones(4)
    for change in (
        lambda: None,
        lambda: model.cast("float64"),
        lambda: setattr(model.layers[0], "bias", False),
        lambda: setattr(model.layers[0], "bias", True),
        lambda: model.add(Dense(2, 3)),
        lambda: model.layers.__setitem__(1, Tanh()),
        lambda: vars(model).pop("_plans", None),  # as in a pickle of an earlier version
    ):
        change()
        P = model.predict(X)
        assert P.dtype == model.dtype
        with inference():
            np.testing.assert_allclose(P, model.forward(X), rtol=1e-6)


def test_an_unbuilt_model_says_so() -> None:
    with pytest.raises(NotBuiltError):
        Sequential(Dense(8), ReLU(), Dense(2)).predict(np.ones((3, 4)))


def test_training_that_builds_the_model_knows_all_shapes(rng: np.random.Generator) -> None:
    model, seen = Sequential(Dense(8), ReLU(), Dense(2), seed=0), []
    check = DenseReLU._check_output

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            DenseReLU, "_check_output", lambda *a: seen.append(1) or check(*a), raising=True
        )
        model.train(np.ones((4, 4)), np.ones((4, 2)), epochs=3, verbose=0)
    assert not seen
