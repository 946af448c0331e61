"""The shortcuts: equal to the long way, finite where that is not, and pairs that cannot match."""

import itertools

import numpy as np
import pytest

from phitodeep import Network, Sequential, SequentialBuilder, inference, watching
from phitodeep import layers as nn
from phitodeep import loss as losses
from phitodeep.errors import ArgumentError, ArgumentTypeError, PhitodeepWarning, ShapeError
from phitodeep.layers.dense import DenseReLU
from phitodeep.model.callbacks import LambdaCallback
from phitodeep.training import shortcuts as fusion
from phitodeep.training.shortcuts import FUSED, JOINED, check_pair, fused, rearranged
from tests.conftest import assert_weights

WEIGHTS = [0.5, 2.0, 1.0, 0.25]
SETTINGS = [
    {},
    {"ignore_index": 2},
    {"class_weight": WEIGHTS},
    {"class_weight": {1: 3.0}, "ignore_index": -1},
]
PAIRS = [
    (nn.Sigmoid(), losses.BinaryCrossEntropy()),
    *[(nn.LogSoftmax(), losses.NegativeLogLikelihood(**s)) for s in SETTINGS],
    *[(nn.Softmax(), losses.CategoricalCrossEntropy(**s)) for s in SETTINGS],
    *[(nn.Softmax(), losses.CategoricalCrossEntropy(label_smoothing=0.2, **s)) for s in SETTINGS],
]
pairs = pytest.mark.parametrize(("last", "loss"), PAIRS, ids=repr)


def targets(loss, shape, soft=False):
    rng = np.random.default_rng(4)
    if isinstance(loss, losses.BinaryCrossEntropy):
        return rng.random(shape) if soft else rng.integers(0, 2, shape)
    if soft:
        return rng.dirichlet(np.ones(shape[-1]), shape[:-1])
    labels = rng.integers(0, shape[-1], shape[:-1])
    if getattr(loss, "ignore_index", None) == -1:
        labels[0] = -1
    return labels


def test_every_row_of_the_tables_is_tested():
    assert {(type(last), type(loss)) for last, loss in PAIRS} == FUSED.keys()
    assert {(nn.Dense, nn.ReLU): DenseReLU} == JOINED  # in tests/layers/test_dense.py


@pairs
def test_shortcut_equals_the_long_way(last, loss):
    short = fused(last, loss)
    assert short.wants == "logits"
    cases = itertools.product([(5, 4), (2, 3, 4)], [False, True], [False, True])
    for shape, weighted, soft in cases:
        Z, y = 2 * np.random.default_rng(3).standard_normal(shape), targets(loss, shape, soft)
        w = np.linspace(0.2, 2, shape[0]) if weighted else None
        Y = last.forward(Z)
        for total in (None, 3.5):
            value, gradient = loss.loss_func(Y, y, w, total), loss.loss_gradient(Y, y, w, total)
            assert short.loss_func(Z, y, w, total) == pytest.approx(value)
            found, wanted = short.loss_gradient(Z, y, w, total), last.backward(gradient)
            np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-15)


def test_shortcut_is_true_where_the_long_way_has_underflown():
    """Logits of 2000 against the label: the long way's logarithm is held and its slope is lost."""
    for last, loss, labels, wide, slope in (
        (nn.Softmax(), losses.CategoricalCrossEntropy(), [1], 4000, 1),
        (nn.Sigmoid(), losses.BinaryCrossEntropy(), [[0, 1]], 2000, 0.5),
    ):
        Z = np.array([[2000.0, -2000.0]])
        long_way = last.forward(Z)
        assert loss.loss_func(long_way, labels) < 1500
        assert not last.backward(loss.loss_gradient(long_way, labels)).any()
        short = fused(last, loss)
        assert short.loss_func(Z, labels) == pytest.approx(wide)
        np.testing.assert_allclose(short.loss_gradient(Z, labels), [[slope, -slope]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pairs
def test_shortcut_is_finite(last, loss, dtype):
    Z = np.random.default_rng(3).choice([-1e4, 1e4], (6, 4)).astype(dtype)
    short = fused(last, loss)
    with np.errstate(all="raise", under="ignore"):
        assert np.isfinite(short.loss_func(Z, targets(loss, Z.shape)))
        assert np.isfinite(short.loss_gradient(Z, targets(loss, Z.shape))).all()


def test_the_last_layer_runs_for_metrics_only(monkeypatch):
    model = Sequential(nn.Dense(4, 3), nn.Softmax(), loss_class="categorical_cross_entropy", seed=0)
    monkeypatch.setattr(nn.Softmax, "forward", lambda *_: pytest.fail("nobody reads its output"))
    model.train(*(np.ones((6, 4)), [0, 1, 2] * 2) * 2, epochs=1, verbose=0)


class Own(Sequential):
    def forward(self, X):
        return super().forward(X)


def test_logits_are_what_a_last_layer_of_probabilities_gets():
    for last, rank, left in (
        *((nn.Softmax(), 2, 1), (nn.LogSoftmax(axis=2), 3, 1), (nn.Sigmoid(), 3, 1)),
        *((nn.Softmax(axis=1), 3, 2), (nn.Tanh(), 2, 2)),
    ):
        assert len(fusion.logits(Sequential(nn.Dense(3), last), rank).layers) == left
        for other in (Own(nn.Dense(3), last.copy()), nn.Parallel(nn.Dense(3), last.copy())):
            assert fusion.logits(other, rank) is rearranged(other) is other
    uses = [(nn.Dense(4, 3), ["x"], ["h"]), (nn.Dense(3, 3), ["h"], ["z"])]
    uses += [(nn.Softmax(), ["z"], ["p"]), (nn.Softmax(), ["h"], ["q"]), (nn.Tanh(), ["q"], ["y"])]
    net, A = Network(["x"], uses, ["p", "q", "y"], seed=0), np.eye(4, dtype=np.float32)
    net.build((4,))
    whole, short = net.forward(A), fusion.logits(net, 2).forward(A)
    np.testing.assert_allclose(nn.Softmax().forward(short[0]), whole[0], rtol=1e-6)
    assert not np.allclose(short[0], whole[0])
    np.testing.assert_array_equal(short[1:], whole[1:])
    assert fusion.logits(net, 2, output=1) is net  # another layer reads q


def test_other_pairs_have_no_shortcut():
    for last, loss in (
        (nn.Softmax(axis=1), losses.CategoricalCrossEntropy()),  # the loss sums over the last axis
        (nn.LogSoftmax(axis=-2), losses.NegativeLogLikelihood()),
        (nn.Softmax(), losses.SoftmaxCrossEntropy()),  # a subclass, and another function
        (nn.Softmax(), losses.NegativeLogLikelihood()),
        (nn.Softmax(), losses.MeanSquaredError()),
        (nn.Sigmoid(), losses.BinaryCrossEntropyWithLogits()),
        (nn.Sigmoid(), losses.CategoricalCrossEntropy()),
        (nn.HardSigmoid(), losses.BinaryCrossEntropy()),
        (nn.Dense(3), losses.SoftmaxCrossEntropy()),
        (nn.Chain(nn.Softmax()), losses.CategoricalCrossEntropy()),
        (None, losses.CategoricalCrossEntropy()),
    ):
        assert fused(last, loss) is None


ANY = [losses.MeanSquaredError(), losses.MeanAbsoluteError(), losses.Huber(), losses.LogCosh()]
ANY += [losses.Hinge(), losses.SquaredHinge(), losses.PoissonNLL(), losses.CosineSimilarityLoss()]
BY_WANT = {
    "probabilities": [losses.CategoricalCrossEntropy(), losses.BinaryCrossEntropy()],
    "log-probabilities": [losses.NegativeLogLikelihood(), losses.KLDivergence()],
    "logits": [losses.SoftmaxCrossEntropy(), losses.BinaryCrossEntropyWithLogits()],
}
NUMBERS = [nn.Dense(4), nn.ReLU(), nn.Tanh(), nn.Chain(nn.Dense(4))]
PROBABILITIES = [nn.Softmax(), nn.Sigmoid(), nn.HardSigmoid()]
UNKNOWN = [nn.Dropout(0.5), None]
ALL = NUMBERS + PROBABILITIES + [nn.LogSoftmax()] + UNKNOWN
FINE = [
    *[(last, loss) for last in ALL for loss in ANY],
    *[(last, loss) for last in UNKNOWN for many in BY_WANT.values() for loss in many],
    *[(last, loss) for last in PROBABILITIES for loss in BY_WANT["probabilities"]],
    *[(nn.LogSoftmax(), loss) for loss in BY_WANT["log-probabilities"]],
    *[(last, loss) for last in NUMBERS for loss in BY_WANT["logits"]],
]
ACTIVATIONS = [nn.GELU(), nn.PReLU()]
REFUSED = [
    *((last, BY_WANT["probabilities"][0]) for last in ACTIVATIONS),
    *[(last, loss) for last in [*NUMBERS, nn.LogSoftmax()] for loss in BY_WANT["probabilities"]],
    *[(last, loss) for last in NUMBERS + PROBABILITIES for loss in BY_WANT["log-probabilities"]],
]
WARNED = [(last, loss) for last in [*PROBABILITIES, nn.LogSoftmax()] for loss in BY_WANT["logits"]]


def test_pairs_that_match_that_cannot_and_with_two_softmaxes():
    for last, loss in FINE:
        check_pair(last, loss)  # without a warning, which would be an error
    refused = r"expects (log-)?probabilities, but .* returns "
    for last, loss in REFUSED:
        with pytest.raises(ArgumentError, match=refused) as caught:
            check_pair(last, loss)
        logs = loss.wants == "log-probabilities"
        remedy = ".log_softmax()" if logs else ".softmax() or .sigmoid()"
        assert all(part in str(caught.value) for part in (repr(last), repr(loss), remedy))
    for last, loss in WARNED:
        twice = f"expects logits.*leave out {type(last).__name__}"
        with pytest.warns(PhitodeepWarning, match=twice):
            check_pair(last, loss)


POOLS = [(nn.MaxPool1D(2), (8, 3)), (nn.MaxPool2D(3, 2, "same"), (7, 6, 2))]


@pytest.mark.parametrize(("pool", "shape"), POOLS, ids=repr)
def test_swapped_layers_give_the_same_to_the_bit(pool, shape, rng):
    first = nn.Dense(4)
    plain = nn.Chain(first, nn.ReLU(), pool)
    plain.build(shape, seed=0)
    other, notes = fusion._rearranged(plain)
    assert notes == (f"{type(pool).__name__} (2) runs before ReLU (1)",)
    assert [type(layer) for layer in other.layers] == [nn.Dense, type(pool), nn.ReLU]
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


def test_only_what_the_table_names_is_swapped_and_several_pools_pass_one_relu():
    pool = nn.MaxPool1D(2)
    for layers in ((nn.Tanh(), pool), (pool, nn.ReLU()), (nn.ReLU(), nn.Dense(3))):
        chain = nn.Chain(*layers)
        assert rearranged(chain) is chain
    chain, notes = fusion._rearranged(nn.Chain(nn.ReLU(), nn.MaxPool1D(2), nn.MaxPool1D(3)))
    assert [repr(layer) for layer in chain.layers] == ["MaxPool1D(2)", "MaxPool1D(3)", "ReLU()"]
    assert notes == ("MaxPool1D (1) runs before ReLU (0)", "MaxPool1D (2) runs before ReLU (0)")


def test_training_swaps_and_comes_to_the_same(monkeypatch, rng):
    X, y = rng.standard_normal((20, 6, 6, 1)), rng.integers(0, 3, 20)

    def trained(**options):
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


def convolutional():
    builder = SequentialBuilder(6, 6, 1, seed=0).conv2d(4, 3).relu().max_pool2d(2).flatten()
    return builder.dense(3).softmax().loss("categorical_cross_entropy").alpha(0.01).build()


@pytest.mark.parametrize("shortcuts", [True, False])
def test_training_runs_what_the_plan_says(shortcuts, rng):
    X, y = rng.standard_normal((8, 6, 6, 1)), rng.integers(0, 3, 8)
    model, seen = convolutional(), list[str]()

    def watcher(event):
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


def test_the_summary_shows_the_plan(capsys):
    convolutional().summary()
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "in training: MaxPool2D (2) runs before ReLU (1)",
        "             Softmax() and CategoricalCrossEntropy() run as one, SoftmaxCrossEntropy()",
    ]
    Sequential(nn.Dense(3, 2)).summary()
    assert "in training" not in capsys.readouterr().out
    with pytest.raises(ArgumentTypeError, match=r"shortcuts must be True or False, got 'no'"):
        convolutional().train(np.ones((2, 6, 6, 1)), [0, 1], shortcuts="no")


def test_a_skips_softmax_is_not_fused_with_the_loss():
    """Chain._last looks into SkipConcat, whose output is more than its last layer's."""
    loss = losses.CategoricalCrossEntropy()
    model = Sequential(nn.Dense(4, 3), nn.SkipConcat(nn.Softmax()), loss_class=loss, seed=0)
    assert model._last is model.layers[1]
    X, y = np.ones((5, 4)), np.array([3, 4, 5, 3, 4])  # classes whose scores are the softmax's
    value = loss.loss_func(model.predict(X), y)
    assert model.evaluate(X, y)["loss"] == pytest.approx(value)


@pytest.mark.parametrize(("last", "loss"), PAIRS, ids=repr)
def test_without_shortcuts_the_plan_is_the_model_itself(last, loss):
    model = nn.Chain(nn.Dense(4, 4), nn.ReLU(), last)
    assert fusion.plan(model, loss, shortcuts=False) == (model, loss, (None,), ())
    body, short, (replaced,), notes = fusion.plan(model, loss)
    assert [type(layer) for layer in body.layers] == [DenseReLU]
    assert replaced is last
    assert notes == (
        "Dense (0) and ReLU (1) run as one, DenseReLU",
        f"{last!r} and {loss!r} run as one, {short!r}",
    )


def test_training_joins_and_comes_to_the_same(rng):
    X, y = rng.standard_normal((20, 6)), rng.integers(0, 3, 20)
    builder = SequentialBuilder(6, seed=0).dense(5).relu().dense(4).relu().dense(3)
    model, first = builder.loss("softmax_cross_entropy").build(), None
    for options in ({}, {"shortcuts": False}, {"threads": 2}, {"accumulate": 2}):
        other, size = model.copy(), 4 if "accumulate" in options else 8
        other.train(X, y, X, y, epochs=3, batch_size=size, shuffle=False, verbose=0, **options)
        first = first or other
        assert_weights(first, other, rtol=1e-4, atol=1e-5)


def test_a_layer_that_is_unfrozen_in_training_learns(rng):
    model = SequentialBuilder(4, seed=0).dense(3).relu().dense(2).build()
    model.layers[0].trainable = False
    seen = [model.get_weights()["0.W"]]

    def unfreeze(model, epoch, logs):
        seen.append(model.get_weights()["0.W"])
        model.layers[0].trainable = True

    X, y = rng.standard_normal((8, 4)), rng.standard_normal((8, 2))
    model.train(X, y, epochs=2, verbose=0, callbacks=[LambdaCallback(on_epoch_end=unfreeze)])
    np.testing.assert_array_equal(seen[0], seen[1])
    assert np.all(seen[2] != seen[1])


def test_watchers_and_errors_name_the_layers_as_written(rng):
    model, seen = Sequential(nn.Dense(4, 3), nn.ReLU(), nn.Dense(3, 1), seed=0), set[str]()
    with watching(lambda event: seen.add(type(event.source).__name__)):
        model.train(rng.standard_normal((8, 4)), rng.standard_normal((8, 1)), epochs=1, verbose=0)
    assert {"Dense", "ReLU"} <= seen
    assert "DenseReLU" not in seen

    class Broken(nn.Tanh):
        def value(self, X):
            raise ShapeError("broken.")

    model = Sequential(nn.Dense(4, 3), nn.ReLU(), Broken(), nn.Dense(3, 1), seed=0)
    X, y = rng.standard_normal((8, 4)), rng.standard_normal((8, 1))
    with pytest.raises(ShapeError, match="in layer 2 of Sequential: broken"):
        model.train(X, y, verbose=0)
    body, _ = fusion._rearranged(model)
    assert [path for path, layer in body.walk() if layer in model.layers[2:]] == ["2", "3"]


class Skipping(Sequential):
    """Adds the outputs of the last two layers."""

    def forward(self, X, **options):
        H = self.layers[1].forward(self.layers[0].forward(X))
        return H + self.layers[2].forward(H)

    def backward(self, dY):
        dH = dY + self.layers[2].backward(dY)
        return self.layers[0].backward(self.layers[1].backward(dH))


def test_a_model_with_passes_of_its_own_runs_as_written(rng):
    X, Y = rng.standard_normal((12, 4)), rng.standard_normal((12, 4))
    models = [Skipping(nn.Dense(4, 4), nn.ReLU(), nn.Dense(4, 4), seed=0) for _ in range(2)]
    for model, shortcuts in zip(models, (True, False), strict=True):
        assert "run as one" not in str(model.summary())
        np.testing.assert_array_equal(model.predict(X), model.forward(X))
        model.train(X, Y, epochs=3, shortcuts=shortcuts, verbose=0)
    assert_weights(models[0], models[1])


def test_only_a_dense_with_a_bias_and_its_own_pass_is_joined(rng):
    X = rng.standard_normal((3, 4)).astype(np.float32)
    model = Sequential(nn.Dense(4, 4), nn.ReLU(), nn.Dense(4, 2), seed=0)
    model.layers[1].forward = lambda Z: 2 * Z
    assert rearranged(model) is model
    np.testing.assert_array_equal(model.predict(X), model.forward(X))

    class Own(nn.Dense):
        pass

    for first in (nn.Dense(4, 3, bias=False), Own(4, 3), nn.Tanh()):
        chain = nn.Chain(first, nn.ReLU())
        assert fusion._rearranged(chain) == (chain, ())


def test_predictions_follow_what_changes_in_the_model(rng):
    X = rng.standard_normal((3, 4))
    model = Sequential(nn.Dense(4, 4), nn.ReLU(), nn.Dense(4, 2), seed=0)
    model.layers[0].b = np.ones(4)
    for change in (
        lambda: None,
        lambda: model.cast("float64"),
        lambda: setattr(model.layers[0], "bias", False),
        lambda: setattr(model.layers[0], "bias", True),
        lambda: model.add(nn.Dense(2, 3)),
        lambda: model.layers.__setitem__(1, nn.Tanh()),
        lambda: vars(model).pop("_plans", None),  # as in a pickle of an earlier version
    ):
        change()
        P = model.predict(X)
        assert P.dtype == model.dtype
        with inference():
            np.testing.assert_allclose(P, model.forward(X), rtol=1e-6)


def test_training_that_builds_the_model_knows_all_shapes(rng):
    model, seen = Sequential(nn.Dense(8), nn.ReLU(), nn.Dense(2), seed=0), []
    check = DenseReLU._check_output
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DenseReLU, "_check_output", lambda *a: seen.append(1) or check(*a))
        model.train(np.ones((4, 4)), np.ones((4, 2)), epochs=3, verbose=0)
    assert not seen
