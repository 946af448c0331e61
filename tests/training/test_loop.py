"""The training loop: what is visited, what is computed, what is returned, and how it ends."""

import copy
import math
import pickle
import signal
import threading
import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest

from phitodeep import SGD, Adam, CategoricalCrossEntropy, Sequential, SequentialBuilder
from phitodeep import errors as errors_
from phitodeep import layers as L
from phitodeep.core.call import current
from phitodeep.model.callbacks import EarlyStopping, LambdaCallback, ModelCheckpoint
from phitodeep.optimization.schedules import ReduceOnPlateau
from tests.conftest import assert_weights, press

rng = np.random.default_rng(1)
N = 50
X = rng.standard_normal((N, 4)).astype(np.float32)
LABELS = (X[:, 0] + 0.3 * rng.standard_normal(N) > 0).astype(int) + (X[:, 1] > 0.5)
Y = (X @ rng.standard_normal((4, 2))).astype(np.float32)


def classifier(**given):
    options = {"loss_class": CategoricalCrossEntropy(), "seed": 0, "alpha": 0.02}
    layers = (L.Dense(4, 8), L.BatchNorm(), L.ReLU(), L.Dropout(0.2), L.Dense(8, 3), L.Softmax())
    return Sequential(*layers, **{**options, "batch_size": 16, "epochs": 3, **given})


def plain(**given):
    """Without anything that looks at the whole batch, or at chance."""
    options = {"optimizer": "sgd", "seed": 0, "alpha": 0.05, "dtype": "float64"}
    layers = (L.Dense(4, 6), L.Tanh(), L.Dense(6, 2))
    return Sequential(*layers, **{**options, "batch_size": 16, "epochs": 3, **given})


def train(model, *data, **given):
    return model.train(*data, **{"verbose": 0, **given})


class Spy(L.Layer):
    """Notes the samples that go by in training, and every call."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def forward(self, X):
        if current().training:
            self.batches.append(X.copy())
        return X.copy()

    def backward(self, dY):
        assert not current().needs_dX  # nobody reads the gradient of the data
        return dY.copy()


def numbered(n):
    """Samples that tell their number."""
    return np.arange(n, dtype=np.float32)[:, None]


def visits(n, **given):
    """For each epoch, the numbers of the samples of each batch."""
    model = Sequential(Spy(), L.Dense(1, 1), alpha=0.0, seed=3)
    spy = model.layers[0]
    epochs = []

    def collect(*_):
        epochs.append([batch[:, 0].astype(int).tolist() for batch in spy.batches])
        spy.batches.clear()

    watch = LambdaCallback(on_epoch_end=collect)
    train(model, numbered(n), np.zeros(n), callbacks=[watch], **given)
    return epochs


def test_every_sample_comes_once_an_epoch_and_the_last_short_batch_counts():
    for n, size, sizes in (
        *[(10, 4, [4, 4, 2]), (9, 3, [3, 3, 3]), (5, 1, [1] * 5)],
        *[(7, size, [7]) for size in (7, 100, None)],
    ):
        epochs = visits(n, batch_size=size, epochs=4)
        assert len(epochs) == 4
        for batches in epochs:
            assert [len(batch) for batch in batches] == sizes
            order = [i for batch in batches for i in batch]
            assert sorted(order) == list(range(n))
            assert len(sizes) > 1 or order == list(range(n))  # nobody can see another order


def test_each_epoch_has_a_new_order_in_which_targets_and_weights_stay_with_their_samples():
    orders = [np.concatenate(batches).tolist() for batches in visits(30, batch_size=7, epochs=5)]
    assert len({tuple(order) for order in orders}) == 5
    assert list(range(30)) not in orders
    straight = visits(30, batch_size=7, epochs=2, shuffle=False)
    assert [np.concatenate(batches).tolist() for batches in straight] == [list(range(30))] * 2
    seen = []

    def together(P, T):
        seen.extend(zip(P[:, 0].tolist(), T[:, 0].tolist(), strict=True))
        return 0.0

    model = Sequential(L.Dense(1, 1, bias=False), alpha=0.0, seed=0)
    model.layers[0].W = [[1.0]]
    train(model, numbered(20), numbered(20) * 2, epochs=2, batch_size=6, metrics=[together])
    assert len(seen) == 40
    assert all(t == 2 * p for p, t in seen)
    # a weight of 0 for all but one sample leaves that one alone
    weights = np.zeros(20)
    weights[13] = 1.0
    history = train(model, numbered(20), [0] * 20, sample_weight=weights, epochs=1, batch_size=20)
    assert history[0][0] == 13.0**2


def test_a_seed_repeats_everything_and_decides_order_and_masks():
    models = [classifier(), classifier(), classifier(seed=1), classifier(seed=None)]
    first, second = models[:2]
    one, two, *different = [train(m, X, LABELS, X, LABELS, metrics=["accuracy"]) for m in models]
    assert one == two
    assert one.metrics == two.metrics
    assert_weights(first, second)
    assert one != different[0] != different[1]
    starts = [classifier(seed=seed).layers[0].W for seed in (0, 1, None, None)]
    assert len({W.tobytes() for W in starts}) == 4

    def built(seed, *layers):
        made = [Sequential(*layers, seed=s, alpha=0.1, batch_size=8) for s in (0, seed)]
        made[1].set_weights(made[0].get_weights())
        return made[1]

    order = L.Dense(4, 2).copy
    assert train(built(0, order()), X, Y, epochs=2) != train(built(1, order()), X, Y, epochs=2)
    full = {"batch_size": None, "epochs": 1, "shuffle": False}
    masks = [train(built(seed, L.Dropout(0.2), L.Dense(4, 2)), X, Y, **full) for seed in (0, 0, 1)]
    assert masks[0] == masks[1] != masks[2]
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    model = classifier()
    model.layers.insert(3, L.GaussianNoise(0.1))
    train(model, X, LABELS, X, LABELS, validation_split=0.0)
    model.predict(X)
    model.find_alpha(X, LABELS, steps=10)
    after = np.random.get_state()[1]  # noqa: NPY002
    np.testing.assert_array_equal(after, state)


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "nadam", "rmsprop", "lion"])
def test_a_second_training_goes_on_where_the_first_ended(optimizer):
    at_once = classifier(optimizer=optimizer, alpha=lambda step: 0.02 / (1 + step))
    in_two = classifier(optimizer=optimizer, alpha=lambda step: 0.02 / (1 + step))
    whole = train(at_once, X, LABELS, X, LABELS, epochs=5, metrics=["accuracy"])
    first = train(in_two, X, LABELS, X, LABELS, epochs=2, metrics=["accuracy"])
    second = train(in_two, X, LABELS, X, LABELS, epochs=3, metrics=["accuracy"])
    assert [*first, *second] == whole
    assert len(second) == 3
    assert first.rates + second.rates == whole.rates
    assert_weights(at_once, in_two)
    assert at_once.epoch == in_two.epoch == 5


def test_predictions_and_evaluations_between_leave_no_trace():
    quiet, busy = classifier(), classifier()

    def look(model, *_):
        model.predict(X)
        model.evaluate(X, LABELS, metrics=["accuracy"])
        model.summary()

    watch = LambdaCallback(on_batch_end=look, on_epoch_end=look, on_epoch_begin=look)
    assert train(quiet, X, LABELS) == train(busy, X, LABELS, callbacks=[watch])
    assert_weights(quiet, busy)


def test_losses_and_metrics_of_an_epoch_are_those_before_its_steps_and_after_it():
    model, losses = plain(batch_size=20), []
    note = LambdaCallback(on_batch_end=lambda model, step, loss: losses.append(loss))
    history = train(model, X, Y, epochs=1, callbacks=[note])
    assert history[0][0] == pytest.approx(np.average(losses, weights=[20, 20, 10]), rel=1e-12)
    resting = plain(alpha=0.0, batch_size=20)
    expected = resting.evaluate(X, Y)["loss"]
    assert train(resting, X, Y, epochs=1)[0][0] == pytest.approx(expected, rel=1e-6)
    heavy = plain(optimizer=SGD(l1=0.5, l2=0.5, weight_decay=0.5), alpha=0.0)
    assert train(heavy, X, Y, X, Y, epochs=1) == train(plain(alpha=0.0), X, Y, X, Y, epochs=1)
    model, seen = classifier(metrics=["accuracy"]), []
    look = LambdaCallback(on_epoch_end=lambda m, e, logs: seen.append(m.evaluate(X, LABELS)))
    history = train(model, X[:30], LABELS[:30], X, LABELS, callbacks=[look])
    assert [test for _, test in history] == pytest.approx([s["loss"] for s in seen], rel=1e-12)
    assert history.metrics["test_accuracy"] == [s["accuracy"] for s in seen]
    sizes, many = [], [np.tile(A, (23, 1)) for A in (X, Y)]  # more than `samples_at_once`
    noting = {"metrics": [lambda P, T: sizes.append(len(P)) or 0.0]}
    train(plain(batch_size=1100, epochs=1), X, Y, *many, **noting)
    assert sizes == [50, 1100, 50]
    resting = plain_classifier(alpha=0.0, batch_size=16)
    history = train(resting, X, LABELS, epochs=1, metrics=["accuracy", "f1", "top_k_accuracy"])
    expected = resting.evaluate(X, LABELS, metrics=["accuracy", "f1", "top_k_accuracy"])
    for name in ("accuracy", "f1", "top_k_accuracy"):
        assert history.metrics[f"train_{name}"] == [expected[name]]


@pytest.mark.parametrize("weighted", [False, True])
def test_accumulated_batches_are_one_big_batch(weighted):
    weights = rng.uniform(0, 2, N) if weighted else None
    for make in (plain, plain_classifier):
        big, small = make(batch_size=16), make(batch_size=4)
        T = Y if make is plain else LABELS
        whole = train(big, X, T, sample_weight=weights)
        parts = train(small, X, T, sample_weight=weights, accumulate=4)
        np.testing.assert_allclose(parts, whole, rtol=1e-7)
        assert small.optimizer.t == big.optimizer.t == 12
        assert_weights(big, small, rtol=1e-6)


def plain_classifier(**given):
    options = {"loss_class": "categorical_cross_entropy", "seed": 0, "alpha": 0.1}
    options |= {"optimizer": "sgd", "dtype": "float64", "epochs": 3}
    return Sequential(L.Dense(4, 6), L.Tanh(), L.Dense(6, 3), L.Softmax(), **{**options, **given})


def test_masks_are_fresh_at_every_step():
    model = Sequential(L.Dropout(0.5), L.Dense(4, 2), seed=0, alpha=0.0)
    losses = [loss for loss, _ in train(model, X, Y, epochs=5, shuffle=False)]
    assert len(set(losses)) == 5


REPEATS = rng.integers(0, 4, N)


@pytest.mark.parametrize("shape", [(), (5,)])
def test_class_weights_are_weights_of_the_labels(shape):
    """At every position, in each form, for labels and one-hot rows, and as those of a loss."""
    data, labels = rng.standard_normal((12, *shape, 4)), rng.integers(0, 3, (12, *shape))
    wanted = train(plain_classifier(), data, labels, sample_weight=np.array([2, 1, 3])[labels])
    for weights in [{0: 2, 1: 1, 2: 3}, [2, 1, 3], np.array([2.0, 1.0, 3.0]), {0: 2, 2: 3}]:
        in_loss = plain_classifier(loss_class=CategoricalCrossEntropy(class_weight=weights))
        for T in (labels, np.eye(3)[labels]):
            found = train(plain_classifier(), data, T, class_weight=weights)
            np.testing.assert_allclose(found, wanted, rtol=1e-9)
        np.testing.assert_allclose(train(in_loss, data, labels), wanted, rtol=1e-9)


def test_class_and_sample_weights_multiply_and_metrics_do_not_use_them():
    class_weight, factors = {0: 2, 1: 1, 2: 3}, np.array([2, 1, 3])[LABELS]
    both, one = plain_classifier(batch_size=None), plain_classifier(batch_size=None)
    a = train(both, X, LABELS, class_weight=class_weight, sample_weight=REPEATS)
    b = train(one, X, LABELS, sample_weight=REPEATS * factors)
    np.testing.assert_allclose(a, b, rtol=1e-12)
    y = (LABELS > 0).astype(int)
    for labels in (y, y[:, None]):  # of one output
        both, one = (
            Sequential(
                L.Dense(4, 1), L.Sigmoid(), loss_class="binary_cross_entropy", seed=0, epochs=2
            )
            for _ in range(2)
        )
        a = train(both, X, labels, class_weight={1: 3}, sample_weight=REPEATS)
        b = train(one, X, labels, sample_weight=REPEATS * np.where(y, 3, 1))
        np.testing.assert_allclose(a, b, rtol=1e-6)
    model, names = plain_classifier(), ["accuracy", "f1"]
    whole = model.evaluate(X, LABELS, metrics=names)
    found = model.evaluate(X, LABELS, metrics=names, sample_weight=REPEATS)
    assert found.pop("loss") != whole.pop("loss")
    assert found == whole


def test_a_history_is_a_pair_an_epoch():
    history = train(classifier(), X, LABELS, X[:9], LABELS[:9], metrics=["accuracy"])
    assert isinstance(history, list)
    assert len(history) == len(history.seconds) == 3
    assert all(type(pair) is tuple and len(pair) == 2 for pair in history)
    assert all(type(number) is float and math.isfinite(number) for p in history for number in p)
    assert set(history.metrics) == {"train_accuracy", "test_accuracy"}
    assert all(len(values) == 3 for values in history.metrics.values())
    assert all(type(v) is float and 0 <= v <= 1 for vs in history.metrics.values() for v in vs)
    assert all(seconds > 0 for seconds in history.seconds)
    assert history.rates == [0.02] * 3
    assert history.interrupted is False
    again = pickle.loads(pickle.dumps(history))
    assert (again, again.metrics) == (history, history.metrics)
    without_test = train(classifier(metrics=["accuracy"]), X, LABELS)
    assert all(math.isnan(test) for _, test in without_test)
    assert set(without_test.metrics) == {"train_accuracy"}


def constant_loss(P, T):
    return 7.0


def test_metrics_with_awkward_names_are_kept_apart():
    model = plain(epochs=2)
    expected = train(plain(epochs=2), X, Y, X, Y)
    history = train(model, X, Y, X, Y, metrics=[constant_loss])
    assert history == expected
    assert history.metrics == {"train_constant_loss": [7, 7], "test_constant_loss": [7, 7]}

    def loss(P, T):
        return 7.0

    for refused in ([loss], [lambda P, T: 1.0, lambda P, T: 2.0]):
        with pytest.raises(ValueError, match=refused[0].__name__):
            train(plain(), X, Y, metrics=refused)


def test_test_data_are_held_out_and_not_learnt_from():
    split, given_ = plain(), plain()
    a = train(split, X, Y, validation_split=0.3)
    b = train(given_, X[:35], Y[:35], X[35:], Y[35:])
    assert a == b
    assert_weights(split, given_)
    weights = np.arange(N)
    assert len(train(plain(), X[:2], Y[:2], validation_split=0.5)) == 3  # one sample each
    a = train(plain(), X, Y, validation_split=0.3, sample_weight=weights)
    b = train(plain(), X[:35], Y[:35], sample_weight=weights[:35])
    assert [loss for loss, _ in a] == [loss for loss, _ in b]
    a, b = plain(), plain()
    train(a, X, Y, X * 100, Y * -100)
    train(b, X, Y)
    assert_weights(a, b)


def test_ctrl_c_ends_training_after_the_batch_and_twice_at_once(keyboard):
    before = signal.getsignal(signal.SIGINT)
    model, twin = classifier(metrics=["accuracy"]), classifier()
    history = train(model, X, LABELS, X, LABELS, callbacks=[press(6)])
    assert signal.getsignal(signal.SIGINT) is before
    assert history.interrupted is True
    lists = [history.seconds, history.rates, *history.metrics.values()]
    assert [len(each) for each in lists] == [2] * 4 == [len(history)] * 4
    assert model.optimizer.t == 6
    assert history[0] == train(twin, X, LABELS, X, LABELS, epochs=1)[0]
    assert math.isfinite(history[1][0])
    assert math.isnan(history[1][1])
    assert len(train(model, X, LABELS)) == 3  # and on

    def on_batch_end(*_):
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    model = classifier()
    with pytest.raises(KeyboardInterrupt):
        train(model, X, LABELS, callbacks=[LambdaCallback(on_batch_end=on_batch_end)])
    assert signal.getsignal(signal.SIGINT) is before
    assert len(train(model, X, LABELS)) == 3


@pytest.mark.parametrize(("moment", "epochs"), [("on_epoch_end", 2), ("on_train_end", 3)])
def test_ctrl_c_after_an_epoch_keeps_its_history(keyboard, moment, epochs):
    def on_end(model, *_):
        if model.epoch >= 2:
            signal.raise_signal(signal.SIGINT)

    both = [LambdaCallback(**{moment: on_end}), EarlyStopping(1, min_delta=9)]
    assert not train(classifier(), X, LABELS, callbacks=both).interrupted  # it has ended anyway
    history = train(classifier(), X, LABELS, callbacks=[LambdaCallback(**{moment: on_end})])
    assert history.interrupted == (epochs == 2)
    assert len(history) == epochs
    assert not np.isnan(history[1][0])


@pytest.mark.parametrize("monitor", ["test_accuracy", "test_loss", None])
@pytest.mark.parametrize("kind", [EarlyStopping, ModelCheckpoint])
def test_ctrl_c_in_the_middle_of_an_epoch_gives_no_best_value(keyboard, kind, monitor, tmp_path):
    """The epoch that was cut short has no test loss, for callbacks and for schedules."""
    arguments = [str(tmp_path / "a")] if kind is ModelCheckpoint else []
    monitor = monitor or ("test_loss" if arguments else None)  # a checkpoint has no default
    watch, schedule = kind(*arguments, monitor=monitor), ReduceOnPlateau(0.02)
    data = (X, LABELS, X, (LABELS + 1) % 3)  # the test loss grows while the training loss falls
    model = classifier(metrics=["accuracy"], alpha=schedule)
    history = train(model, *data, callbacks=[press(6), watch])
    assert history.interrupted
    assert len(history) == 2
    assert schedule.best == history[0][1]
    accuracy = history.metrics["test_accuracy"][0]
    assert watch.best == (accuracy if monitor == "test_accuracy" else history[0][1])


@pytest.mark.parametrize("handler", [signal.SIG_IGN, None])
def test_a_sigint_that_is_not_pythons_stays(handler, monkeypatch):
    """One that is ignored, or a handler set outside Python, which could not be put back."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        if handler is None:
            monkeypatch.setattr(signal, "getsignal", lambda number: None)
        monkeypatch.setattr(signal, "signal", lambda *_: pytest.fail("the handler was replaced"))
        history = train(classifier(), X, LABELS, callbacks=[press(2)])
    finally:
        monkeypatch.undo()
        assert signal.signal(signal.SIGINT, before) is signal.SIG_IGN
    assert not history.interrupted
    assert len(history) == 3


@pytest.mark.parametrize("moment", ["on_train_begin", "on_batch_end", "on_epoch_end"])
def test_a_model_that_a_callback_rebuilds_is_refused(moment):
    for change, what in (
        (lambda model, *_: model.setloss("mse"), "loss"),
        (lambda model, *_: model.layers.insert(0, L.Dense(4, 4)), "list of layers"),
        (lambda model, *_: model.add(L.Dense(3, 3)), "list of layers"),
        (lambda model, *_: model.layers.pop(), "list of layers"),
    ):
        with pytest.raises(errors_.OrderError, match=f"the model's {what} changed during training"):
            train(classifier(), X, LABELS, callbacks=[LambdaCallback(**{moment: change})])


def test_an_optimizer_that_a_callback_sets_takes_the_next_step():
    model = classifier()

    def on_epoch_end(model, epoch, logs):
        if epoch == 1:
            model.setoptimizer("sgd")

    train(model, X, LABELS, callbacks=[LambdaCallback(on_epoch_end=on_epoch_end)])
    assert type(model.optimizer) is SGD
    assert model.optimizer.t == 2 * -(-len(X) // 16)


def test_training_outside_the_main_thread_needs_no_signals():
    found = []
    thread = threading.Thread(target=lambda: found.append(train(classifier(), X, LABELS)))
    thread.start()
    thread.join()
    assert found == [train(classifier(), X, LABELS)]


@pytest.mark.parametrize("rate", [1e3, 1e6, 1e12, 1e30])
@pytest.mark.parametrize("optimizer", ["sgd", SGD(momentum=0.9), "adam"], ids=str)
def test_divergence_ends_training_with_a_warning_and_finite_parameters(optimizer, rate):
    model = Sequential(
        L.Dense(4, 2), optimizer=copy.deepcopy(optimizer), alpha=rate, seed=0, batch_size=16
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = train(model, X, Y, epochs=60)
    assert all(w.category is errors_.PhitodeepWarning for w in caught)  # none of NumPy's
    assert all(np.isfinite(a).all() for a in model.get_weights().values())
    if len(history) < 60:
        assert len(caught) == 1
        assert "the loss is" in str(caught[0].message)
        assert f"{model.optimizer.rate:g}" in str(caught[0].message)
        assert not history.interrupted
    else:  # Adam's steps are bounded
        assert optimizer == "adam"


def test_only_parts_of_a_step_get_its_divisor(cut, monkeypatch):
    model, seen = plain(epochs=1, batch_size=10), []
    value = (kind := type(model.loss)).value
    monkeypatch.setattr(kind, "value", lambda *given: seen.append(given[-1]) or value(*given))
    each = {(1, 1): [None] * 5, (1, 2): [40.0] * 4 + [None], (2, 1): [20.0] * 10}
    for (parts, accumulate), wanted in each.items():
        cut(parts)
        train(model, X, Y, accumulate=accumulate, threads=1)
        assert seen == wanted
        seen.clear()


def test_divergence_leaves_nothing_for_the_next_training():
    bad = X.copy()
    bad[7] = 1e25  # its square is not finite in float32

    def net():
        return Sequential(L.Dense(4, 2), optimizer="sgd", alpha=0.01, seed=0, batch_size=5)

    model, fresh = net(), net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(model, bad, Y, epochs=1, accumulate=4, shuffle=False)
    assert model.optimizer.t == 0
    assert_weights(model, fresh)
    for one in (model, fresh):  # gradients that a loop of one's own holds, or that would be held
        one.backward(one.forward(X[:5]))
        one.optimizer.step(one.layers)
    assert_weights(model, fresh)
    model.optimizer.accumulate(model.layers)
    fresh.epoch = model.epoch
    assert train(model, X, Y, epochs=1) == train(fresh, X, Y, epochs=1)
    assert_weights(model, fresh)


def peak_of_a_step(size):
    """The most bytes that a step of the second epoch or later adds to what was there."""
    data = rng.standard_normal((4 * size, 784), np.float32)
    labels = rng.integers(0, 10, len(data))
    builder = SequentialBuilder(784, seed=0).dense(128).relu().dense(64).relu().dense(10).softmax()
    model = builder.loss("categorical_cross_entropy").alpha(0.001).batch(size).build()
    peaks = []
    before = 0

    def measure(model, step, loss):
        nonlocal before
        if step > 5 and step % 4 != 1:  # an epoch's first batch is after its order was drawn
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        train(model, data, labels, epochs=3, callbacks=[LambdaCallback(on_batch_end=measure)])
    finally:
        tracemalloc.stop()
    assert len(peaks) == 6
    return max(peaks)


def test_a_step_allocates_nothing_of_the_batchs_size():
    small, large = peak_of_a_step(256), peak_of_a_step(1024)
    # less than one column of float32 more for each of the 10 of the smallest matrix; what does
    # not grow is the buffer of 8192 numbers in which NumPy's ufuncs cast
    assert large - small < (1024 - 256) * 10 * 4, f"{small} and {large} bytes"
    assert small < 48 * 1024, f"{small} bytes"


def test_buffers_serve_all_batches_and_are_given_back():
    model = classifier()
    train(model, X, LABELS)
    assert all(not layer._frame.buffers for _, layer in model.walk())
    model, seen = plain(batch_size=16), []

    def look(model, *_):
        seen.append([id(a) for layer in model.layers for a in layer._frame.buffers.values()])

    train(model, X, Y, epochs=3, callbacks=[LambdaCallback(on_epoch_end=look)])  # 16, 16, 16, 2
    assert len(seen[0]) > 5
    assert seen[0] == seen[1] == seen[2]


def test_frozen_layers_compute_no_gradients_of_their_own():
    model, seen = plain(epochs=1), []
    model.layers[2].trainable = False
    look = LambdaCallback(on_batch_end=lambda model, *_: seen.append(model.layers[2].grads))
    train(model, X, Y, callbacks=[look])
    assert seen == [{}] * 4


@pytest.mark.parametrize(
    ("dtype", "given_dtype"), [("f4", "f4"), ("f4", "f8"), ("f4", "u1"), ("f8", "f4"), ("f8", "f2")]
)
def test_one_dtype_from_end_to_end(dtype, given_dtype):
    """Of all layers and of what they cache, in tests/test_random_networks.py."""
    data, seen = (10 * np.abs(X)).astype(given_dtype), set[Any]()
    rule = Adam(weight_decay=0.01, l1=0.01, clip_norm=1.0, clip_value=1.0)

    def note(model, *_):
        for _, layer in model.walk():
            stores = layer.params, layer.state, layer.grads
            seen.update(a.dtype for store in stores for a in store.values())
        seen.update(a.dtype for slots in model.optimizer.memory().values() for a in slots.values())

    for model, T in (
        (classifier(optimizer=rule, dtype=dtype), LABELS),
        (plain(optimizer=rule.copy(), dtype=dtype), Y.astype(np.float64)),
    ):
        watch = LambdaCallback(on_batch_end=note)
        train(model, data, T, data, T, callbacks=[watch], sample_weight=np.linspace(0.5, 2, N))
        assert seen == {np.dtype(dtype)}
        assert model.predict(data).dtype == model(data).dtype == dtype


@pytest.mark.parametrize(
    "options",
    [{"l1": 0.5, "l2": 0.5}, {"clip_norm": 0.01}, {"clip_value": 0.01}, {"weight_decay": 0.5}],
    ids=str,
)
def test_callbacks_see_the_gradients_of_the_loss_alone(options):
    def gradients(optimizer):
        seen = []

        def look(model, *_):
            seen.extend(a.copy() for layer in model.layers for a in layer.grads.values())

        model = plain(optimizer=optimizer, alpha=0.0)
        train(model, X, Y, epochs=1, callbacks=[LambdaCallback(on_batch_end=look)])
        return seen

    changed, alone = gradients(SGD(**options)), gradients(SGD())
    assert len(alone) == 4 * 4
    for a, b in zip(changed, alone, strict=True):
        np.testing.assert_array_equal(a, b)


def test_options_that_are_refused():
    for options, message in (
        ({"validation_split": 0.5}, "either X_test and y_test or validation_split"),
        *(({"anomaly": bad}, f'None or "raise", got {bad!r}') for bad in ("warn", True, "")),
    ):
        with pytest.raises(errors_.ArgumentError, match=message):
            train(classifier(), X, LABELS, X, LABELS, **options)


def test_a_pending_backward_survives_predictions_and_evaluations():
    model, quiet = classifier(), classifier()
    T = np.eye(3, dtype=np.float32)[LABELS]
    for each in (model, quiet):
        each.forward(X)
    model.predict(X[:5])
    model.evaluate(X[:7], LABELS[:7], metrics=["accuracy"])
    model(X[:3])
    np.testing.assert_array_equal(model.backward(T), quiet.backward(T))
    assert_weights(model.gradients(), quiet.gradients())
