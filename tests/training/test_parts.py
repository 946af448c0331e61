"""Batches in parts: the gradients of a whole batch, in any number of threads."""

import itertools
import threading
from contextlib import nullcontext

import numpy as np
import pytest

from phitodeep import (
    BatchNorm,
    Dense,
    Lambda,
    Layer,
    MeanSquaredError,
    Parallel,
    Param,
    Residual,
    State,
    watching,
)
from phitodeep.core.call import calling, current
from phitodeep.core.threads import together
from phitodeep.errors import ArgumentError, ArgumentTypeError, BackwardError, OrderError
from phitodeep.model import Sequential, SequentialBuilder
from phitodeep.model.architectures import gpt, lenet
from phitodeep.model.callbacks import LambdaCallback
from phitodeep.training import parts as module
from phitodeep.training.parts import BatchSplitter
from tests.conftest import assert_weights


def net(dtype="float64", dropout=0.2):
    inner = SequentialBuilder().layer_norm().dense(16).layers
    builder = SequentialBuilder(6, seed=0).dense(16).relu().dropout(dropout).residual(*inner)
    builder = builder.dense(3).softmax().loss("categorical_cross_entropy").metrics("accuracy")
    return builder.optimizer("adamw").dtype(dtype).build()


@pytest.fixture
def data(rng):
    return rng.standard_normal((67, 6)), rng.integers(0, 3, 67)


def agree(cut, make, *data, parts=2, **options):
    """Train on whole batches and on batches in parts; return both models, of the same weights."""
    models = []
    for count in (1, parts):
        cut(count)
        models.append(make())
        models[-1].train(*data, **{"verbose": 0, **options})
    assert_weights(*models, rtol=1e-9)
    return models


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_parts_take_the_step_of_the_whole(parts, accumulate, data, cut):
    one, several = net(), net()
    options = {"epochs": 3, "batch_size": 16, "accumulate": accumulate, "verbose": 0}
    wanted = one.train(*data, *data, **options)
    cut(parts)
    found = several.train(*data, *data, **options)
    np.testing.assert_allclose(found, wanted, rtol=1e-9)
    for name, values in wanted.metrics.items():
        np.testing.assert_allclose(found.metrics[name], values, rtol=1e-12)
    assert_weights(one, several, rtol=1e-9)
    assert several.optimizer.t == one.optimizer.t


def test_weights_lengths_and_tied_parameters(rng, cut):
    tokens, lengths = rng.integers(0, 9, (12, 6)), rng.integers(1, 7, 12)
    options = {"sample_weight": np.repeat(rng.random((12, 1)), 6, axis=1), "lengths": lengths}

    def make():  # Adam would enlarge the keys' bias, whose gradient is rounding alone
        builder = gpt(9, 6, layers=1, heads=2, dim=8, dropout=0.1).loss("softmax_cross_entropy")
        return builder.optimizer("sgd").dtype("float64").seed(1).build()

    agree(cut, make, tokens, tokens[:, ::-1], epochs=3, batch_size=5, **options)


def test_few_samples_images_and_sizes_that_wait_for_the_data(data, cut, rng):
    agree(cut, net, data[0][:5], data[1][:5], parts=4, epochs=2, batch_size=3)
    builder = lenet(12, 12, 1, classes=4).loss("softmax_cross_entropy").dtype("float64").seed(0)
    X, y = rng.random((20, 12, 12, 1)), rng.integers(0, 4, 20)
    agree(cut, builder.build().copy, X, y, epochs=2, batch_size=8)

    def make():
        builder = SequentialBuilder(seed=0).embedding(5, 3).lstm(4).dense(5)
        return builder.loss("softmax_cross_entropy").dtype("float64").build()

    tokens = rng.integers(0, 5, (9, 4))
    agree(cut, make, tokens, tokens, epochs=2, batch_size=4)


class Counting(Layer):  # its passes in training
    independent_samples, count = True, State()

    def create(self, shape):
        self.count = self.full(1, 0)
        return shape

    def forward(self, X):
        self.count += self.trainable and current().training
        return X

    def backward(self, dY):
        return dY


def counted():
    builder = SequentialBuilder(6, seed=0).dense(4).add(Counting()).dense(3)
    return builder.loss("softmax_cross_entropy").dtype("float64").build()


def part_sizes(model, X, **options):
    """The number of samples in each forward pass of the first layer during one epoch."""
    sizes = []

    def note(event):
        if (event.what, event.when, event.path) == ("forward", "before", "0"):
            sizes.append(len(event.array))

    with watching(note):
        model.train(X, np.zeros(len(X), int), epochs=1, verbose=0, **options)
    return sizes


def test_layers_that_need_the_whole_batch_get_it(data, cut):
    _, several = agree(cut, counted, *data, *data, epochs=2, batch_size=16)
    X = data[0][:16]
    assert part_sizes(several, X) == [16]
    several.layers[1].trainable = False
    assert part_sizes(several, X) == [8, 8]


def test_a_callback_may_end_the_splitting_but_not_begin_it(data, cut):
    cut(2)
    for frozen, wanted in ((True, [8, 8, 16, 16]), (False, [16, 16, 16])):
        model = counted()
        model.layers[1].trainable = not frozen

        def turn(model, step, loss):
            model.layers[1].trainable = step > 1 or not model.layers[1].trainable

        callback = LambdaCallback(on_batch_end=turn)
        sizes = part_sizes(model, data[0][:48], batch_size=16, callbacks=callback)
        assert sizes == wanted


def test_an_error_in_a_thread_comes_out(data, cut):
    cut(2)

    def fail(dY, X, Y):
        if len(dY) == 7:  # the second thread's part of 14
            raise ValueError("from a thread")
        return dY

    builder = SequentialBuilder(6, seed=0).dense(4)
    model = builder.lambda_(np.copy, fail, independent_samples=True).dense(1).build()
    with pytest.raises(ValueError, match="from a thread"):
        model.train(data[0][:13], data[1][:13], epochs=1, threads=2, verbose=0)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_part_that_diverges_ends_training_before_the_step(part, rng, cut):
    cut(3)
    X, Y = rng.standard_normal((12, 6)), rng.standard_normal((12, 1))
    X[4 * part] = 1e300  # whose loss is infinite, so that this part goes no way back
    model = Sequential(Dense(6, 4), Dense(4, 1), seed=0, dtype="float64")
    before = model.get_weights()
    with pytest.warns(UserWarning, match="the loss is inf"):
        assert not model.train(X, Y, epochs=1, threads=3, shuffle=False, verbose=0)
    assert_weights(model, before)


def test_wrong_counts_are_refused(data):
    for threads, error in [
        (0, ArgumentError),
        (1.5, ArgumentTypeError),
        (None, ArgumentTypeError),
        ("2", ArgumentError),
    ]:
        model, X = net(), data[0]
        for call, given in ((model.train, data), (model.predict, (X,)), (model.evaluate, data)):
            with pytest.raises(error, match="threads must be"):
                call(*given, threads=threads)


def test_settings_that_a_callback_or_a_stream_changes_hold_in_every_part(data, cut):
    def change(model, step, loss):
        model.layers[2].rate = 0.1 * step

    callback = LambdaCallback(on_batch_end=change)
    agree(cut, lambda: net(dropout=0.5), *data, epochs=2, batch_size=16, callbacks=callback)
    models = []

    def make():
        models.append(net(dropout=0.5))
        return models[-1]

    def batches():
        for i in range(4):
            models[-1].layers[2].rate = 0.1 * i
            models[-1].layers[0].trainable = i != 2
            yield data[0][16 * i : 16 * i + 16], data[1][16 * i : 16 * i + 16]

    agree(cut, make, batches, epochs=2)


def centred(A):
    return A - A.mean(axis=0)


class Centred(Layer):
    """Takes the mean of the batch away, and does not say so."""

    def forward(self, X):
        return centred(X)

    def backward(self, dY):
        return centred(dY)


class CentredDense(Dense):
    """A layer of the package whose own declaration no longer holds."""

    def forward(self, X):
        return centred(super().forward(X))

    def backward(self, dY):
        return super().backward(centred(dY))


class Centring:
    """A mixin that is no layer."""

    def forward(self, X):
        return super().forward(centred(X))

    def backward(self, dY):
        return centred(super().backward(dY))


class MixedDense(Centring, Dense):
    pass


class CentredBackward(Dense):
    def backward(self, dY):
        return super().backward(centred(dY))


class Spread(MeanSquaredError):
    """A loss of the whole batch: the squared mean error."""

    def value(self, P, T, w, total):
        return float(np.square((P - T).mean(axis=0)).sum())

    def gradient(self, P, T, w, total):
        return np.broadcast_to(2 * (P - T).mean(axis=0) / len(P), P.shape).copy()


@pytest.mark.parametrize("parts", [2, 5])
@pytest.mark.parametrize(
    "mixing",
    [
        lambda: [Dense(6, 4), Centred(), Dense(4, 2)],
        lambda: [CentredDense(6, 4), Dense(4, 2)],
        lambda: [CentredBackward(6, 4), Dense(4, 2)],
        lambda: [Dense(6, 6), MixedDense(6, 4), Dense(4, 2)],
        lambda: [Dense(6, 4), Lambda(centred, lambda dY, X, Y: centred(dY)), Dense(2)],
        lambda: [Dense(6, 4), Residual(Parallel(Centred(), merge="add")), Dense(4, 2)],
        lambda: [Dense(6, 2)],  # with a loss of the whole batch
    ],
)
def test_what_looks_across_samples_is_not_split(mixing, parts, rng, cut):
    X, Y = rng.standard_normal((40, 6)), rng.standard_normal((40, 2))
    layers = mixing()
    loss = Spread() if len(layers) == 1 else "mse"
    model = Sequential(*layers, loss_class=loss, alpha=0.05, dtype="float64")
    options = {"epochs": 3, "batch_size": 16, "shuffle": False}
    one, several = agree(cut, model.copy, X, Y, parts=parts, **options)
    cut(1)
    wanted = one.predict(X)
    cut(parts)
    np.testing.assert_allclose(several.predict(X), wanted, rtol=1e-12)


def test_layers_and_mixins_that_declare_it_are_split(rng, cut):
    class Doubling:
        independent_samples = True

        def forward(self, X):
            return 2 * super().forward(X)

    class Doubled(Doubling, Dense):
        pass

    class Below(Doubled):
        pass

    for kind in (Doubled, Below):
        assert (kind(3).independent_samples, kind(3).time_steps) == (True, "joined")
    cut(2)
    sizes = []

    class Twice(Layer):
        independent_samples = True

        def forward(self, X):
            sizes.append(len(X))
            return 2 * X

        def backward(self, dY):
            return 2 * dY

    model = Sequential(Dense(6, 4), Twice(), Dense(4, 2), seed=0)
    X, Y = rng.standard_normal((16, 6)), rng.standard_normal((16, 2))
    model.train(X, Y, epochs=1, verbose=0)
    assert sizes == [8, 8]
    sizes.clear()
    model.predict(rng.standard_normal((41, 6)), 16, threads=1)
    assert sizes == [11, 11, 11, 8]  # as many for each part, of at most 16


class Locked(Dense):
    keeps_lock = True


def test_predictions_use_threads_where_samples_are_independent(data, cut, monkeypatch):
    cut(2)
    seen = []
    monkeypatch.setattr(
        module, "run", lambda jobs, threads: seen.append(threads) or [job() for job in jobs]
    )
    for layer, context in (
        (Dense(6, 4), nullcontext()),
        (Dense(6, 4), watching(lambda event: None)),
        (CentredDense(6, 4), nullcontext()),
        (Locked(6, 4), nullcontext()),
    ):
        with context:
            Sequential(layer).predict(data[0], 16, threads=3)
    assert seen == [3, 1, 1, 1]


def test_a_metric_of_ones_own_sees_the_whole_batch(rng, cut):
    def rmse(P, T):
        return float(np.sqrt(np.square(P - T).mean()))

    X, Y = rng.standard_normal((40, 6)), rng.standard_normal((40, 2))
    one = Sequential(Dense(6, 2), metrics=[rmse], seed=0, dtype="float64")
    several = one.copy()
    wanted = one.train(X, Y, epochs=2, batch_size=16, verbose=0).metrics["train_rmse"]
    cut(3)
    found = several.train(X, Y, epochs=2, batch_size=16, verbose=0)
    np.testing.assert_allclose(found.metrics["train_rmse"], wanted, rtol=1e-12)


def test_no_buffer_of_a_users_own_is_taken_for_a_gradient(rng, cut):
    class Scratched(Layer):
        independent_samples = True
        s = Param()

        def create(self, shape):
            self.s = np.ones(shape[-1])
            return shape

        def forward(self, X):
            self.save_for_backward(X=X)
            return self.s * X

        def backward(self, dY):
            np.sum(dY * self.saved("X"), axis=0, out=self.grad_array("s"))
            self.buffer("ds", self.s.shape, dY.dtype).fill(9)
            return self.s * dY

    model = Sequential(Dense(6, 4), Scratched(), Dense(4, 2), seed=0, dtype="float64")
    X, Y = rng.standard_normal((16, 6)), rng.standard_normal((16, 2))
    agree(cut, model.copy, X, Y, epochs=2)


class Routed(Parallel):
    """Runs an expert only for the samples that belong to it: those whose first value is its index.

    Its samples are independent.
    """

    independent_samples = True

    def forward(self, X):
        Y, rows = np.zeros((len(X), 2), X.dtype), []
        for i, expert in enumerate(self.branches):
            rows.append(X[:, 0] == i)
            if rows[-1].any():
                Y[rows[-1]] = expert.forward(X[rows[-1]])
        self.save_for_backward(rows=rows, shape=X.shape)
        return Y

    def backward(self, dY):
        rows, shape = self.saved("rows", "shape")
        dX = np.zeros(shape, dY.dtype)
        for expert, mine in zip(self.branches, rows, strict=True):
            if mine.any():
                dX[mine] = expert.backward(dY[mine])
        return dX


def routed(kind=Routed):
    layer = kind(Dense(3, 2), Dense(3, 2), merge="add")
    return Sequential(layer, optimizer="sgd", seed=0, dtype="float64")


def test_a_part_that_reaches_no_expert_adds_no_old_gradient(rng, cut):
    X, Y = rng.standard_normal((8, 3)), rng.standard_normal((8, 2))
    X[:, 0] = 0, 1, 0, 1, 0, 0, 1, 1  # in the second batch, each part reaches one expert
    agree(cut, routed, X, Y, epochs=3, batch_size=4, shuffle=False)


class Covered(Routed):
    """Leaves zero gradients for an expert that no sample reaches, as docs/own-layer.md asks."""

    independent_samples = True

    def backward(self, dY):
        dX = super().backward(dY)
        for expert, mine in zip(self.branches, self.saved("rows"), strict=True):
            if not mine.any():
                for name in expert.params:
                    expert.grad_array(name)[...] = 0
        return dX


def test_zero_gradients_for_what_no_sample_reaches(rng, cut):
    X, Y = rng.standard_normal((8, 3)), rng.standard_normal((8, 2))
    X[:, 0] = 0, 1, 0, 1, 0, 0, 0, 0  # the second batch has nothing for expert 1
    options = {"epochs": 1, "batch_size": 4, "shuffle": False, "verbose": 0}
    _, several = agree(cut, lambda: routed(Covered), X, Y, **options)
    gradients = {path: g for path, g in several.gradients().items() if "branches.1" in path}
    assert gradients
    assert not any(g.any() for g in gradients.values())
    for parts in (1, 2):
        cut(parts)
        with pytest.raises(BackwardError, match=r"no gradient for 0.branches.1.W"):
            routed().train(X, Y, **options)


def test_read_only_gradients_are_added(rng, cut):
    class Shifted(Layer):
        independent_samples = True
        b = Param()

        def create(self, shape):
            self.b = np.zeros(shape[-1])
            return shape

        def forward(self, X):
            return X + self.b

        def backward(self, dY):
            self.grads["b"] = np.broadcast_to(dY.sum(), self.b.shape)
            return dY

    model = Sequential(Dense(6, 2), Shifted(), seed=0, dtype="float64", optimizer="sgd")
    X, Y = rng.standard_normal((16, 6)), rng.standard_normal((16, 2))
    agree(cut, model.copy, X, Y, epochs=2)


def test_what_is_large_follows_from_the_first_batch(monkeypatch):
    model, X = normed(), np.zeros((64, 6))
    seen = []
    monkeypatch.setattr(BatchSplitter, "blas", lambda team, n: seen.append(n) or nullcontext())
    y = np.zeros(64, int)
    for given in ((X, y), (lambda: iter([(X, y)]),), ([(X[:3], y[:3])],)):
        for size in (None, 16, 2000):
            model.train(*given, epochs=1, batch_size=size, verbose=0)
    assert seen == [64, 16, 64, 64, 64, 64, 3, 3, 3]


def test_flops_decide_in_how_many_parts_a_batch_runs(data, monkeypatch):
    """Those of a step, which has three times as many as a forward pass, for predictions too."""
    seen = []
    monkeypatch.setattr(module, "parts_of", lambda flops: seen.append(flops) or 1)
    monkeypatch.setattr(module, "SMALL", 0)
    for frozen, asked in ((True, 5), (False, 1)):  # an epoch, each of two steps twice; or BLAS
        model = counted()
        model.layers[1].trainable = not frozen
        model.predict(data[0][:16])
        step = 3 * 16 * model.flops()
        assert (seen.pop(), seen.pop()) == (step, step)
        model.train(data[0][:32], data[1][:32], epochs=1, batch_size=16, verbose=0)
        assert seen == [step] * asked
        seen.clear()


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_a_watcher_changes_no_bit_of_a_tied_gradient(parts, rng, cut):
    tokens = rng.integers(0, 50, (12, 5))
    cut(parts)
    weights = []
    for context in (nullcontext(), watching(lambda event: None)):
        made = gpt(50, 5, layers=1, heads=2, dim=8).loss("softmax_cross_entropy")
        model = made.seed(0).dtype("float64").build()
        with context:
            model.train(tokens, tokens, epochs=3, verbose=0)
        weights.append(model.get_weights())
    assert_weights(*weights)


# --- batch statistics ----------------------------------------------------------------------------


def normed(dtype="float64"):
    block = SequentialBuilder().dense(16, bias=False).batch_norm().relu().layers
    builder = SequentialBuilder(6, seed=0).dense(16, bias=False).batch_norm(momentum=0.3).gelu()
    builder = builder.residual(*block).dropout(0.2).dense(3).softmax()
    return builder.loss("categorical_cross_entropy").optimizer("adamw").dtype(dtype).build()


def states(model):
    return {f"{path}.{n}": A for path, layer in model.walk() for n, A in layer.state.items()}


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("parts", [2, 3])
def test_parts_take_the_batch_statistics_of_the_whole(parts, accumulate, data, cut):
    options = {"epochs": 3, "batch_size": 16, "accumulate": accumulate}
    one, several = agree(cut, normed, *data, parts=parts, **options)
    assert_weights(states(several), states(one), rtol=1e-10)
    assert sorted(part_sizes(several, data[0][:15])) == ([7, 8] if parts == 2 else [5, 5, 5])


def test_padding_counts_for_no_statistics_of_any_part(rng, cut):
    def make():
        builder = SequentialBuilder(seed=0).embedding(9, 4).batch_norm().lstm(4).batch_norm()
        return builder.dense(9).loss("softmax_cross_entropy").dtype("float64").build()

    tokens, lengths = rng.integers(0, 9, (12, 6)), np.array([0, 0, 1, 2, 6, 6, 5, 4, 3, 2, 6, 1])
    one, several = agree(cut, make, tokens, tokens, parts=3, lengths=lengths, batch_size=6)
    assert_weights(states(several), states(one), rtol=1e-10)


@pytest.mark.parametrize("parts", [2, 4])
def test_batch_statistics_are_the_same_bits_in_any_number_of_threads(parts, data, cut):
    cut(parts)
    models = [normed("float32") for _ in range(3)]
    for threads, model in enumerate(models, 1):
        model.train(*data, epochs=2, batch_size=16, threads=threads, verbose=0)
        assert_weights(model, models[0])
        assert_weights(states(model), states(models[0]))


def test_columns_whose_squares_overflow_are_those_of_the_whole(data, cut):
    X = data[0].copy()
    X[:, 2] *= 1e160

    def make():
        builder = SequentialBuilder(6, seed=0).batch_norm().dense(3).optimizer("sgd")
        return builder.loss("softmax_cross_entropy").dtype("float64").build()

    one, several = agree(cut, make, X, data[1], parts=3, batch_size=16)
    assert_weights(states(several), states(one), rtol=1e-10)
    assert np.abs(several.get_weights()["1.W"][2]).max() < 2


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("part", [0, 1])
def test_an_error_in_a_part_ends_those_that_wait_for_it(part, error, data, cut):
    cut(2)

    def fail(X):
        if len(X) == 6 + part:
            raise error("in a part")
        return X

    builder = SequentialBuilder(6, seed=0).dense(4).lambda_(fail, np.copy, independent_samples=True)
    model = builder.batch_norm().dense(1).build()
    with pytest.raises(error, match="in a part"):
        model.train(data[0][:13], data[1][:13], epochs=1, threads=2, verbose=0)


class Sometimes(Layer):  # normalises batches of 7 samples, and no others
    independent_samples = True

    def children(self):
        return {"norm": self.norm}

    def __init__(self):
        self.norm = BatchNorm()

    def create(self, shape):
        return self.norm.build(shape)

    def forward(self, X):
        return self.norm.forward(X) if len(X) == 7 else X

    def backward(self, dY):
        return self.norm.backward(dY) if len(dY) == 7 else dY


@pytest.mark.parametrize("part", [0, 1, 2])
def test_an_infinite_loss_of_one_part_ends_training_though_others_wait_for_it(part, rng, cut):
    cut(3)
    X, Y = rng.standard_normal((12, 6)), rng.standard_normal((12, 3))
    Y[4 * part] = 1e200
    layers = Dense(6, 4), BatchNorm(momentum=0), Dense(4, 3)
    model = Sequential(*layers, seed=0, dtype="float64")
    before = model.get_weights()
    with pytest.warns(UserWarning, match="the loss is inf"):
        assert not model.train(X, Y, epochs=1, threads=3, shuffle=False, verbose=0)
    assert_weights(model, before)


@pytest.mark.parametrize("width", [4, 5])
def test_the_computations_of_a_watcher_are_no_part_of_the_batch(width, data, cut):
    one, several, other = normed(), normed(), BatchNorm()
    other.build((width,), dtype=np.float64)

    def watch(event):
        if event.what == "loss" and event.when == "before" and len(event.array) == 6:
            other.forward(data[0][:9, :1].repeat(width, axis=1))

    one.train(*data, epochs=1, batch_size=13, verbose=0)
    cut(2)
    with watching(watch):
        several.train(*data, epochs=1, batch_size=13, threads=2, verbose=0)
    assert_weights(several, one, rtol=1e-9)
    assert other.running_mean.any()


def test_parts_that_wait_for_different_sums_are_an_error(data, cut):
    cut(2)
    model = SequentialBuilder(6, seed=0).add(Sometimes()).dense(1).build()
    with pytest.raises(OrderError, match="equally often"):
        model.train(data[0][:13], data[1][:13], epochs=1, threads=2, verbose=0)


def test_without_a_thread_the_batch_stays_whole(data, cut, monkeypatch):
    one, other = normed(), normed()
    one.train(*data, epochs=1, batch_size=16, verbose=0)
    cut(3)
    start, count = threading.Thread.start, itertools.count()

    def refuse(thread):
        if next(count) % 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    other.train(*data, epochs=1, batch_size=16, verbose=0)
    assert next(count) > 2
    assert_weights(other, one)
    assert_weights(states(other), states(one))


def test_sums_over_processes_are_asked_for_once():
    layer, asked = BatchNorm(sync=True), []
    layer.build((3,), dtype=np.float64)

    class Ranks:
        counts = True

        def sum(self, a):
            asked.append(a.copy())
            return 2 * a

    X = np.random.default_rng(0).standard_normal((8, 3))

    def task(part):
        with calling(part=part, ranks=Ranks(), training=True):
            return layer._replica().forward(X[4 * part.index :][:4])

    found = np.concatenate(together([task, task], 2))
    np.testing.assert_allclose(found, (X - X.mean(0)) / np.sqrt(X.var(0) + 1e-5), rtol=1e-10)
    assert len(asked) == 2
