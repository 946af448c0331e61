"""Sequential and its builder: the facade."""

import inspect
import math
import pickle
import pydoc
from pathlib import Path

import numpy as np
import pytest

from phitodeep import CategoricalCrossEntropy, Huber, Loss, MeanSquaredError, inference
from phitodeep import layers as L
from phitodeep import loss as losses
from phitodeep import model as model_room
from phitodeep.errors import ArgumentError, PhitodeepWarning, ShapeError
from phitodeep.model import Sequential, SequentialBuilder
from phitodeep.model.builder import method_name
from phitodeep.model.callbacks import EarlyStopping, LambdaCallback
from phitodeep.model.model import LOSSES
from phitodeep.optimization.optimizers import OPTIMIZERS, SGD, Adam, RMSProp
from phitodeep.optimization.schedules import Constant, CosineDecay
from phitodeep.testing import examples
from tests.conftest import assert_weights
from tests.rows import ONE_EACH

rng = np.random.default_rng(5)
X = rng.standard_normal((40, 4)).astype(np.float32)
LABELS = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)
Y = (X @ rng.standard_normal((4, 2))).astype(np.float32)


def digits(n, seed=0):
    """Images (n, 28, 28) of ten kinds that can be told apart, and their kinds."""
    prototypes = np.random.default_rng(99).random((10, 28, 28))
    maker = np.random.default_rng(seed)
    labels = maker.integers(0, 10, n)
    images = 0.7 * prototypes[labels] + 0.3 * maker.random((n, 28, 28))
    return images.astype(np.float32), labels


def test_the_main_job_as_written(capsys):
    X_train, y_train = digits(600)
    X_test, y_test = digits(100, seed=1)
    # --- the code of the issue ---
    from phitodeep.layers.initialization import InitType, Xavier
    from phitodeep.loss import CategoricalCrossEntropy
    from phitodeep.model import SequentialBuilder
    from phitodeep.optimization.optimizers import Adam

    model = (
        SequentialBuilder()
        .flatten()
        .dense(784, 128)
        .relu()
        .dense(128, 64, Xavier(InitType.NORMAL))
        .relu()
        .dense(64, 10, Xavier(InitType.NORMAL))
        .softmax()
        .optimizer(Adam())
        .loss(CategoricalCrossEntropy())
        .alpha(0.05)
        .epochs(5)
        .batch(64)
        .build()
    )
    model.summary()
    history = model.train(X_train, y_train, X_test, y_test)
    # --- and what it says and does ---
    out = capsys.readouterr().out
    assert "109,386" in out  # 784 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10
    assert len([line for line in out.splitlines() if line.startswith("epoch ")]) == 5
    assert len(history) == 5
    assert model.optimizer.t == 5 * math.ceil(600 / 64)
    assert (model.alpha, model.optimizer.alpha) == (0.05, 0.05)
    assert (model.batch_size, model.epochs) == (64, 5)
    assert history[-1][0] < history[0][0]
    P = model.predict(X_test)
    assert P.shape == (100, 10)
    np.testing.assert_allclose(P.sum(axis=1), 1, rtol=1e-5)


def test_sizes_are_inferred_from_the_input():
    by_call = SequentialBuilder(28, 28, seed=0).flatten().dense(128).relu().dense(10).build()
    by_input = SequentialBuilder().input(28, 28).flatten().dense(128).relu().dense(10).seed(0)
    by_hand = SequentialBuilder(seed=0).flatten().dense(784, 128).relu().dense(128, 10).build()
    assert by_call.output_shape == (10,)
    assert by_call.count_params() == 784 * 128 + 128 + 128 * 10 + 10
    assert by_call.layers[1].W.shape == (784, 128)
    assert_weights(by_call, by_input.build())
    assert_weights(by_call, by_hand)
    direct = Sequential(L.Flatten(), L.Dense(128), L.ReLU(), L.Dense(10), seed=0)
    direct.build((28, 28))
    assert_weights(by_call, direct)
    model = SequentialBuilder().dense(5, 4).batch_norm().relu().dense(3).build()
    assert model.layers[3].W.shape == (4, 3)  # sizes carry through layers that keep them
    assert model.layers[1].gamma.shape == (4,)


def test_the_first_training_gives_the_input_shape():
    model = Sequential(L.Flatten(), L.Dense(3), L.Tanh(), L.Dense(2), seed=0)
    assert model.input_shape is None
    model.train(X.reshape(40, 2, 2), Y, epochs=1, verbose=0)
    assert (model.input_shape, model.output_shape) == ((2, 2), (2,))
    assert model.layers[1].W.shape == (4, 3)


def test_sizes_that_do_not_fit_are_refused_where_they_are_known():
    dense = L.Dense(4, 4)
    with pytest.raises(ArgumentError, match="the same layer object twice"):
        Sequential(dense, L.Residual(dense))
    builder = SequentialBuilder().dense(4, 3).relu().dense(5, 2)
    with pytest.raises(ShapeError, match=r"layer 2 of Sequential: Dense\(5, 2\)"):
        builder.build()
    with pytest.raises(ShapeError, match=r"layer 1 of Sequential: Dense\(700, 2\).*784"):
        SequentialBuilder(28, 28).flatten().dense(700, 2).build()


def test_a_builder_can_be_built_twice_and_the_models_are_independent():
    dense = L.Dense(4)
    builder = SequentialBuilder(4, seed=0).residual(dense, L.Tanh()).dense(3).softmax()
    builder.optimizer(Adam(0.01)).loss(CategoricalCrossEntropy()).callbacks(EarlyStopping(7))
    builder.metrics("accuracy")
    first, second = builder.build(), builder.build()
    assert_weights(first, second)
    assert not dense.params  # the caller's own
    for part in ("optimizer", "loss"):
        assert getattr(first, part) is not getattr(second, part)
    assert first.callbacks[0] is not second.callbacks[0]
    assert {id(layer) for _, layer in first.walk()}.isdisjoint(id(x) for _, x in second.walk())
    start = second.get_weights()
    first.train(X, LABELS, epochs=2, verbose=0)
    assert all(np.array_equal(a, start[path]) for path, a in second.get_weights().items())
    assert (second.epoch, second.optimizer.t, second.optimizer.memory()) == (0, 0, {})
    assert second.train(X, LABELS, epochs=2, verbose=0) is not None
    assert_weights(first, second)
    third = builder.dense(2).softmax().build()  # and the builder goes on
    assert len(third.layers) == 5
    assert len(first.layers) == 3


def public_layers():
    kinds = {name: getattr(L, name) for name in L.__all__}
    return {
        name: kind
        for name, kind in kinds.items()
        if isinstance(kind, type) and issubclass(kind, L.Layer) and kind is not L.Layer
    }


def test_the_builder_has_a_method_for_every_public_layer():
    settings = {
        *("input", "add", "optimizer", "loss", "alpha", "epochs", "batch", "metrics"),
        *("callbacks", "seed", "dtype", "build", "layers", "distributed"),
        *("name", "at", "then", "shared", "output"),
        *("is_network", "input_shape"),
    }
    methods = {name for name in vars(SequentialBuilder) if not name.startswith("_")}
    without = {"add", "shared", "wired"}  # which do more, or that is built by names
    assert methods - settings == {method_name(name) for name in public_layers()} - without
    assert settings <= methods
    assert {"batch_norm", "layer_norm", "leaky_relu", "log_softmax", "hard_tanh"} <= methods
    assert {"relu", "prelu", "elu", "gelu", "silu", "swish", "selu", "celu"} <= methods


def test_a_builder_method_has_the_layers_signature():
    for name, kind in public_layers().items():
        if name in ("Add", "Shared", "Wired"):
            continue
        method = getattr(SequentialBuilder, method_name(name))
        _, *parameters = inspect.signature(method).parameters.values()
        own = list(inspect.signature(kind).parameters.values())
        if kind.inputs in (None, 2):  # the names of the other values come first
            assert parameters.pop(0).kind is inspect.Parameter.VAR_POSITIONAL
            own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        assert parameters == own, name
        assert kind.__name__ in (method.__doc__ or ""), name


def test_a_builder_is_shown_as_the_calls_that_make_it():
    names = {**vars(L), **vars(L.initialization), **vars(examples), **vars(model_room)}
    for make, _, _ in ONE_EACH:
        layer = make()
        shown = repr(SequentialBuilder().add(layer))
        method = method_name(type(layer).__name__)
        method = "add" if method == "wired" else method
        assert shown.startswith(f"SequentialBuilder().{method}("), shown
        (again,) = eval(shown, names).layers
        assert (type(again), repr(again)) == (type(layer), repr(layer))
    inner = SequentialBuilder().add(Sequential(L.ReLU()))
    assert repr(inner) == "SequentialBuilder().add(Sequential(ReLU()))"


def test_every_setting_returns_the_builder_and_reaches_the_model():
    builder = SequentialBuilder()
    watch = LambdaCallback()
    for name, *values in (
        *(("input", 4), ("optimizer", SGD(0.5)), ("loss", Huber(2.0)), ("alpha", 0.25)),
        *(("epochs", 7), ("batch", 3), ("metrics", "mae", "r2"), ("callbacks", watch)),
        *(("seed", 5), ("dtype", "float64")),
    ):
        assert getattr(builder, name)(*values) is builder
    model = builder.dense(2).build()
    assert type(model.optimizer) is SGD
    assert (repr(model.loss), model.alpha) == ("Huber(2.0)", 0.25)
    assert (model.epochs, model.batch_size) == (7, 3)
    assert list(model.metrics) == ["mae", "r2"]
    assert len(model.callbacks) == 1
    assert model.dtype == model.layers[0].W.dtype == np.float64
    same = SequentialBuilder(4, seed=5).dtype("float64").dense(2).build()
    assert_weights(model, same)


def test_the_defaults_are_the_originals():
    for model in (SequentialBuilder().dense(4, 2).build(), Sequential(L.Dense(4, 2))):
        assert (type(model.optimizer), type(model.loss)) == (Adam, MeanSquaredError)
        assert (model.alpha, model.epochs, model.batch_size) == (0.01, 1000, None)
        assert model.dtype == np.float32


def test_alpha_holds_in_whichever_order_it_is_set():
    first = SequentialBuilder().dense(4, 2).alpha(0.3).optimizer(SGD(0.1)).build()
    last = SequentialBuilder().dense(4, 2).optimizer(SGD(0.1)).alpha(0.3).build()
    assert first.optimizer.alpha == last.optimizer.alpha == first.alpha == 0.3
    by_name = SequentialBuilder().alpha(0.3).optimizer("sgd").dense(4, 2).build()
    assert by_name.optimizer.rate == 0.3
    left_out = SequentialBuilder().optimizer(RMSProp(0.7)).dense(4, 2).build()
    assert left_out.alpha == 0.7
    model = Sequential(L.Dense(4, 2), alpha=0.3)
    assert model.optimizer.alpha == 0.3
    model.setoptimizer(SGD(0.1))
    assert model.alpha == model.optimizer.alpha == 0.3
    model.alpha = 0.2
    assert model.optimizer.alpha == 0.2
    model.setoptimizer("rmsprop")
    assert model.optimizer.alpha == 0.2
    free = Sequential(L.Dense(4, 2))
    free.setoptimizer(SGD(0.1))
    assert free.alpha == 0.1
    schedule = CosineDecay(0.5, 10)
    free.alpha = schedule
    assert free.optimizer.alpha is schedule
    assert free.optimizer.rate == 0.5


def test_optimizers_and_losses_by_name():
    for name, kind in OPTIMIZERS.items():
        for written in (name, name.upper()):
            assert type(Sequential(L.Dense(4, 2), optimizer=written).optimizer) is kind
    public = {
        kind
        for name, kind in vars(losses).items()
        if inspect.isclass(kind) and issubclass(kind, Loss) and not name.startswith("_")
    } - {Loss, losses.Elementwise}
    assert set(LOSSES.values()) == public
    for name, kind in LOSSES.items():
        model = Sequential(L.Dense(4, 2))
        model.setloss(name)
        assert type(model.loss) is kind
    for name in ("mse", "mean_squared_error", "MeanSquaredError"):
        assert type(Sequential(loss_class=name).loss) is MeanSquaredError
    assert type(Sequential(loss_class="categorical_crossentropy").loss) is CategoricalCrossEntropy


def net(**given):
    options = {"loss_class": "categorical_cross_entropy", "seed": 0, "batch_size": 8, "epochs": 2}
    layers = (L.Dense(4, 8), L.BatchNorm(), L.Tanh(), L.Dropout(0.3), L.Dense(8, 3), L.Softmax())
    return Sequential(*layers, **{**options, **given})


def test_wide_layers_predict_few_samples_at_once():
    narrow, wide = net(), SequentialBuilder(3, seed=0).dense(1 << 18).dense(2).build()
    assert narrow.samples_at_once() == 1024
    assert wide.samples_at_once() == 5
    assert SequentialBuilder(3).dense(1 << 21).build().samples_at_once() == 1
    sizes = []

    class Noting(L.Dense):
        def forward(self, X):
            sizes.append(len(X))
            return super().forward(X)

    wide.layers[1:] = [Noting(2)]
    wide.build((3,))
    wide.predict(np.ones((9, 3)))
    wide.evaluate(np.ones((9, 3)), np.ones((9, 2)))
    assert sizes == [5, 4] * 2


def test_predict_is_the_same_in_any_batches_and_by_any_name():
    model = net()
    model.train(X, LABELS, verbose=0)
    P = model.predict(X)
    for size in (1, 7, 40, 1000):
        np.testing.assert_allclose(model.predict(X, batch_size=size), P, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(model(X), P)
    np.testing.assert_array_equal(model.predict(X.tolist()), P)
    np.testing.assert_array_equal(model.predict(X[::-1])[::-1], P)
    with inference():
        np.testing.assert_array_equal(model.forward(X), P)
    assert not np.array_equal(model.forward(X), P)  # trains: batch statistics, dropout


@pytest.mark.parametrize("size", [1, 7, 1024])
def test_evaluate_is_the_direct_computation(size):
    model = net(dtype="float64")
    model.train(X, LABELS, verbose=0)
    weights = rng.uniform(0.2, 3, 40)
    P = model.predict(X)
    found = model.evaluate(X, LABELS, batch_size=size, metrics=["accuracy", "f1"])
    assert list(found) == ["loss", "accuracy", "f1"]
    expected = CategoricalCrossEntropy().loss_func(P, LABELS)
    assert found["loss"] == pytest.approx(expected, rel=1e-12)
    assert found["accuracy"] == np.mean(P.argmax(axis=1) == LABELS)
    weighted = model.evaluate(X, LABELS, batch_size=size, sample_weight=weights)
    expected = CategoricalCrossEntropy().loss_func(P, LABELS, sample_weight=weights)
    assert weighted == {"loss": pytest.approx(expected, rel=1e-12)}


@pytest.mark.parametrize("loss", ["mse", "huber", "kl_divergence", "cosine_similarity_loss"])
def test_evaluate_of_regressions(loss):
    last = [L.LogSoftmax()] if loss == "kl_divergence" else []
    model = Sequential(L.Dense(4, 2), *last, loss_class=loss, dtype="float64", metrics=["mae"])
    T = np.abs(Y) / np.abs(Y).sum(axis=1, keepdims=True)
    P = model.predict(X)
    wanted = {"loss": LOSSES[loss]().loss_func(P, T), "mae": np.abs(P - T).mean()}
    for size in (7, 40):
        assert model.evaluate(X, T, batch_size=size) == pytest.approx(wanted, rel=1e-10)


def test_binary_models_take_every_form_of_labels():
    y = (LABELS > 0).astype(int)
    model = Sequential(L.Dense(4, 1), L.Sigmoid(), loss_class=losses.BinaryCrossEntropy(), seed=0)
    scores = [
        model.evaluate(X, T, metrics=["accuracy", "f1"])
        for T in (y, y[:, None], y.astype(float), y.astype(bool))
    ]
    assert all(score == scores[0] for score in scores)
    logits = Sequential(L.Dense(4, 1), loss_class="binary_cross_entropy_with_logits", seed=0)
    logits.set_weights(model.get_weights())
    assert logits.evaluate(X, y, metrics=["accuracy", "f1"]) == pytest.approx(scores[0], rel=1e-5)


def test_add_appends():
    model = Sequential(L.Dense(4, 3), seed=0)
    model.add(L.Tanh())
    model.add(L.Dense(2))
    assert repr(model) == "Sequential(Dense(4, 3), Tanh(), Dense(3, 2))"
    assert_weights(model, Sequential(L.Dense(4, 3), L.Tanh(), L.Dense(2), seed=0))
    model.train(X, Y, epochs=1, verbose=0)
    kept = model.get_weights()
    model.add(L.Dense(2, 2))
    assert model.output_shape == (2,)
    assert all(np.array_equal(model.get_weights()[path], a) for path, a in kept.items())
    model.train(X, Y, epochs=1, verbose=0)
    assert model.layers[3].W.dtype == np.float32
    assert not np.array_equal(model.get_weights()["0.W"], kept["0.W"])


@pytest.mark.parametrize("bad", [L.Dense(9, 2), "relu", L.ReLU, None], ids=str)
@pytest.mark.parametrize("trained", [True, False])
def test_a_layer_that_does_not_fit_leaves_the_model_as_it_was(bad, trained):
    model = Sequential(L.Dense(4, 2), seed=0)
    if trained:
        model.train(X, Y, epochs=1, verbose=0)
    kept, before = model.get_weights(), repr(model)
    with pytest.raises((ValueError, TypeError)):
        model.add(bad)
    assert repr(model) == before
    assert all(np.array_equal(model.get_weights()[path], a) for path, a in kept.items())
    assert len(model.train(X, Y, epochs=1, verbose=0)) == 1


def test_setters_change_what_the_next_training_uses():
    model = Sequential(L.Dense(4, 2), seed=0)
    model.setbatchsize(10)
    model.setloss(Huber())
    model.setoptimizer("sgd")
    model.train(X, Y, epochs=1, verbose=0)
    assert model.optimizer.t == 4
    assert model.evaluate(X, Y)["loss"] == pytest.approx(
        Huber().loss_func(model.predict(X), Y), rel=1e-5
    )
    model.setbatchsize(None)
    model.train(X, Y, epochs=1, verbose=0)
    assert model.optimizer.t == 5


def test_arguments_of_train_hold_for_that_call():
    model = net(metrics=["accuracy"])
    history = model.train(X, LABELS, epochs=3, batch_size=20, metrics=["f1"], verbose=0)
    assert len(history) == 3
    assert model.optimizer.t == 6
    assert set(history.metrics) == {"train_f1"}
    assert (model.epochs, model.batch_size, model.metrics) == (2, 8, ["accuracy"])


def test_a_double_softmax_is_warned_of_once():
    builder = SequentialBuilder().dense(4, 3).softmax().loss("softmax_cross_entropy")
    says = r"SoftmaxCrossEntropy\(\).*leave out Softmax"
    with pytest.warns(PhitodeepWarning, match=says) as caught:
        model = builder.build()
    assert len(caught) == 1
    model.train(X, LABELS, epochs=1, verbose=0)  # a warning here would be an error
    direct = Sequential(L.Dense(4, 3), L.Softmax(), loss_class="softmax_cross_entropy")
    with pytest.warns(PhitodeepWarning, match="Softmax"):
        direct.train(X, LABELS, epochs=1, verbose=0)
    binary = SequentialBuilder().dense(4, 1).sigmoid().loss("binary_cross_entropy_with_logits")
    with pytest.warns(PhitodeepWarning, match="leave out Sigmoid"):
        binary.build()


def test_a_schedule_as_alpha():
    model = SequentialBuilder().dense(4, 2).alpha(CosineDecay(0.1, 4)).batch(20).epochs(2).build()
    history = model.train(X, Y, verbose=0)
    assert history.rates == [CosineDecay(0.1, 4)(1), CosineDecay(0.1, 4)(3)]
    assert Sequential(L.Dense(1, 1), alpha=Constant(0.5)).optimizer.rate == 0.5
    table = [0.1, 0.05, 0.02, 0.01]  # asked for the steps that are taken, and for no other
    model = Sequential(L.Dense(4, 2), alpha=lambda step: table[step], batch_size=20)
    assert len(model.train(X, Y, epochs=2, verbose=0)) == 2
    assert model.optimizer.t == 4


def test_zero_epochs_change_nothing():
    model = net()
    before = model.get_weights()
    assert model.train(X, LABELS, epochs=0, verbose=0) == []
    assert all(np.array_equal(a, before[path]) for path, a in model.get_weights().items())
    assert net(epochs=0).train(X, LABELS, verbose=0) == []


def test_labels_that_the_loss_ignores_do_not_count_in_metrics():
    loss, names = CategoricalCrossEntropy(ignore_index=255), ["accuracy", "f1", "top_k_accuracy"]
    model = net(loss_class=loss)
    some = np.concatenate([np.full(10, 255), LABELS[10:]])
    expected = net().evaluate(X[10:], LABELS[10:], metrics=names)
    assert model.evaluate(X, some, metrics=names) == pytest.approx(expected, rel=1e-6)
    history = model.train(X, some, epochs=1, metrics=names, verbose=0)
    assert all(np.isfinite(values).all() for values in history.metrics.values())
    one_hot, model = np.eye(3)[LABELS], net(loss_class=CategoricalCrossEntropy(ignore_index=1))
    assert model.evaluate(X, one_hot, metrics=names) == net().evaluate(X, one_hot, metrics=names)


def test_completion_offers_what_users_of_a_model_call():
    model = Sequential(L.Dense(2, 2))
    offered = {name for name in dir(model) if not name.startswith("_")}
    assert {"train", "predict", "layers", "optimizer", "generate", "save", "load"} <= offered
    assert not offered & {"buffer", "draw", "grad_array", "create", "params"}
    assert len(offered) < 70
    assert all(hasattr(model, name) for name in dir(model))


def test_help_shows_the_signature_of_the_layer():
    shown = pydoc.render_doc(SequentialBuilder.lstm, renderer=pydoc.plaintext)
    shown = "".join(shown.split())  # Python 3.13 writes long signatures on several lines
    assert "lstm(self,units:'Count',*,return_sequences:'Flag'=True" in shown
    assert "->'SequentialBuilder'" in shown
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'units'"):
        SequentialBuilder(3).rnn()


# Models of 0.3 by name: (pickle, Y, Y after more training).
PICKLES = Path(__file__).parents[1] / "reference/pickles_v0.3.pkl"


@pytest.mark.filterwarnings("ignore:Trying to unpickle")  # by another version of scikit-learn
@pytest.mark.parametrize("name", pickle.loads(PICKLES.read_bytes()))
def test_pickles_of_0_3_predict_and_train_on(name):
    if name.startswith("Phito"):
        pytest.importorskip("sklearn")
    stored, before, after = pickle.loads(PICKLES.read_bytes())[name]
    model, X = pickle.loads(stored), np.random.default_rng(0).standard_normal((12, 4, 2))
    y, within = X.sum((1, 2)), {"rtol": 1e-3, "atol": 1e-5}
    if name.startswith("Phito"):
        X, y = X[:, 0], y > 0 if name == "PhitoClassifier" else y
        np.testing.assert_allclose(model.predict(X), before, **within)
        model.partial_fit(X, y)
        Y = model.predict_proba(X) if name == "PhitoClassifier" else model.predict(X)
    else:
        np.testing.assert_allclose(model.predict(X), before, **within)
        model.train(X, y[:, None], verbose=0)
        Y = model.predict(X)
    np.testing.assert_allclose(Y, after, **within)
