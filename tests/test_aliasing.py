"""What a call returned is the caller's: training, which reuses its buffers, never writes there.

The exceptions are documented: `layer.params` and `layer.state` are the parameters themselves, and
the dicts `grads` and `cache` are those of the last pass.
"""

import copy
import dataclasses
import itertools
from typing import NamedTuple

import numpy as np
import pytest

from phitodeep import SGD, Adam, Lion, Sequential, SequentialBuilder, data, inference, saliency
from phitodeep import layers as L
from phitodeep.core.types import Array
from phitodeep.loss import CategoricalCrossEntropy, Loss, SoftmaxCrossEntropy, metrics
from phitodeep.loss.metrics import Metric
from phitodeep.model import architectures as models
from phitodeep.model.callbacks import LambdaCallback
from phitodeep.testing.examples import pair
from phitodeep.training.sources import Epoch, as_source
from tests.conftest import in_parts
from tests.loss.test_loss import EXAMPLES as LOSSES
from tests.rows import LONG, few

VOCABULARY, STEPS = 7, 6


class Samples(NamedTuple):
    X: Array
    y: Array
    lengths: Array | None = None

    @property
    def how(self):
        return {} if self.lengths is None else {"lengths": self.lengths}


def points(n, seed):
    rng = np.random.default_rng(seed)
    return Samples(rng.standard_normal((n, 4), np.float32), rng.integers(0, 3, n))


def images(n, seed):
    rng = np.random.default_rng(seed)
    return Samples(rng.standard_normal((n, 6, 6, 2), np.float32), rng.integers(0, 3, n))


def texts(n, seed):
    rng = np.random.default_rng(seed)
    return Samples(*data.windows(rng.integers(0, VOCABULARY, n + STEPS), STEPS))


def sentences(n, seed):
    rng = np.random.default_rng(seed)
    return texts(n, seed)._replace(lengths=rng.integers(1, STEPS + 1, n))


def mlp():
    builder = SequentialBuilder(4, seed=0).flatten().dense(8).residual(L.Tanh(), L.Dense(8)).relu()
    builder.dropout(0.2).dense(3).softmax().loss(CategoricalCrossEntropy())
    return builder.optimizer(Adam(ema=0.9)).build()


def cnn():
    builder = SequentialBuilder(6, 6, 2, seed=0).conv2d(3, 3, padding="same").batch_norm().relu()
    builder.max_pool2d(2).conv2d(4, 1).avg_pool2d(2).flatten().dense(3).loss(SoftmaxCrossEntropy())
    return builder.optimizer(SGD(0.01, momentum=0.9)).build()


def gpt():
    builder = models.gpt(VOCABULARY, STEPS, layers=1, heads=2, dim=8, dropout=0.1)
    return builder.loss(SoftmaxCrossEntropy()).alpha(0.01).seed(0).build()


def lstm():
    builder = models.char_lstm(VOCABULARY, dim=4, units=5)
    return builder.loss(SoftmaxCrossEntropy()).optimizer(Lion(0.001)).seed(0).build()


CASES = {"mlp": (mlp, points), "cnn": (cnn, images), "gpt": (gpt, texts), "lstm": (lstm, sentences)}
WAYS = {
    "plain": {},
    "accumulate": {"accumulate": 2},
    "threads": {"threads": 2},  # and each batch in two parts
}


class Kept:
    """What calls returned, each with a copy of what it was then."""

    def __init__(self):
        self.values = []

    def __call__(self, name, value):
        self.values.append((name, value, copy.deepcopy(value)))
        return value

    def check(self):
        for name, value, then in self.values:
            for now, before in zip(leaves(value), leaves(then), strict=True):
                np.testing.assert_array_equal(now, before, err_msg=name)


def leaves(value):
    """All arrays and numbers in a value."""
    if dataclasses.is_dataclass(value):
        value = vars(value)
    if isinstance(value, dict):
        for inner in value.values():
            yield from leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in (*value, *getattr(value, "__dict__", {}).values()):
            yield from leaves(inner)
    elif not isinstance(value, str):
        yield value


def harvest(keep, model, given):
    """Call all that returns arrays or numbers, and keep those."""
    look(keep, model, given)
    X, y, _ = given
    P = keep("forward", model.forward(X, **given.how))
    dP = keep("loss_gradient", model.loss.loss_gradient(P, y))
    keep("backward", model.backward(dP))
    keep("the grads of a bare backward", [dict(layer.grads) for _, layer in model.walk()])
    keep("gradients", model.gradients())
    with saliency():
        P = keep("forward in saliency", model.forward(X))
        keep("backward in saliency", model.backward(P))
    dY = through_bare_layers(keep, model, X)
    for layer in reversed(model.layers):
        dY = keep(f"backward of {layer!r}", layer.backward(dY))


def look(keep, model, given):
    """Call what a callback may at any time: all but backward."""
    X, y, lengths = given
    part = {} if lengths is None else {"lengths": lengths[:1]}
    keep("gradients", model.gradients())
    keep("predict", model.predict(X, **given.how))
    keep("predict one", model.predict(X[:1], **part))
    keep("predict in parts", model.predict(X, batch_size=7, **given.how))
    keep("model(X)", model(X))
    keep("evaluate", model.evaluate(X, y, metrics=["accuracy"], **given.how))
    P = keep("forward", model.forward(X, **given.how))
    keep("loss_gradient", model.loss.loss_gradient(P, y))
    with inference():
        through_bare_layers(keep, model, X)
    keep("get_weights", model.get_weights())
    keep("get_weights of a layer", model.layers[1].get_weights())
    keep("memory", model.optimizer.memory())
    keep("memory of a copy", model.optimizer.copy().memory())
    if model.optimizer.ema is not None and model.optimizer.t:
        with model.averaged():
            keep("predict, averaged", model.predict(X))
            keep("get_weights, averaged", model.get_weights())
    if model.takes_tokens:
        for cache in (True, False):
            keep("generate", model.generate(X[:2], 3, seed=0, cache=cache))
            keep("generate the best", model.generate(X[0], 3, temperature=0, cache=cache))
    source = as_source(model, model.loss, X, y, batch_size=8)
    for rng in (None, np.random.default_rng(0)):
        keep("batches", [batch[:2] for batch in source.batches(Epoch(8, rng))])
    keep("sums of a metric", metrics.accuracy.sums(P, y))


def through_bare_layers(keep, model, X):
    for layer in model.layers:
        X = keep(f"forward of {layer!r}", layer.forward(X))
    return X


def train(model, given, **options):
    with in_parts(options.get("threads", 1)):
        return model.train(given.X, given.y, **{"verbose": 0, **given.how, **options})


PAIRS = [("mlp", "plain"), ("mlp", "threads"), ("cnn", "accumulate"), ("gpt", "threads")]
PAIRS += [("lstm", "plain")]


@pytest.mark.parametrize(("case", "way"), [*itertools.product(CASES, WAYS)] if LONG else PAIRS)
def test_what_calls_returned_never_changes_later(case, way):
    make, draw = CASES[case]
    model, keep, how = make(), Kept(), WAYS[way]
    first, second, test = draw(20, 1), draw(13, 2), draw(5, 3)

    def watch(*_):
        harvest(keep, model, second)

    def measure(P, T):
        keep("what a metric is given", (P, T))
        look(keep, model, second)
        return 0.0

    moments = ("on_train_begin", "on_epoch_begin", "on_batch_end", "on_epoch_end", "on_train_end")
    tested = {"X_test": test.X, "y_test": test.y}
    if test.lengths is not None:
        tested["lengths_test"] = test.lengths
    keep("data", (first, second, test))
    train(model, first, epochs=1, batch_size=8, **how)
    harvest(keep, model, first)
    if way == "plain":
        keep("find_alpha", model.find_alpha(first.X, first.y, batch_size=8, steps=10))
        keep("profile", model.profile(first.X, first.y, batch_size=8, steps=2))
    callback = LambdaCallback(**dict.fromkeys(moments, watch))
    watched = {"metrics": [measure], "callbacks": [callback], **tested}
    keep("history", train(model, first, epochs=1, batch_size=8, **watched, **how))
    keep("history", train(model, second, epochs=2, batch_size=5, **how))
    harvest(keep, model, second)
    train(model, first, epochs=2, batch_size=6, **how)
    train(model, first, epochs=1, batch_size=None, **how)
    harvest(keep, model, test)
    assert len(keep.values) > 400
    keep.check()


def test_gradients_of_losses_never_change_later():
    keep = Kept()
    for loss in LOSSES:
        for shape in ((5, 4), (3, 4), (2, 3, 4)):
            for seed in (1, 2):
                P, y = keep("data", pair(loss, shape, seed))
                keep(repr(loss), loss.loss_gradient(P.astype(np.float32), y))
                keep(repr(loss), loss.loss_gradient(P, y, sample_weight=np.ones(len(P))))
    keep.check()


@pytest.mark.parametrize("way", few(["threads", "plain", "accumulate"], 1))
def test_what_a_stream_computes_never_changes_later(way):
    """The batches of a stream are made while training runs, maybe by layers."""
    given, keep = points(20, 1), Kept()
    extractor = mlp()

    def batches():
        for start in range(0, 20, 8):
            rows = slice(start, start + 8)
            harvest(keep, extractor, Samples(given.X[rows], given.y[rows]))
            yield keep("forward", extractor.forward(given.X[rows])), given.y[rows]

    model = Sequential(L.Dense(3, 3), loss_class=SoftmaxCrossEntropy(), seed=0)
    with in_parts(2 if way == "threads" else 1):
        model.train(batches, X_test=batches, epochs=3, verbose=0, **WAYS[way])
    keep.check()


def test_a_metric_that_keeps_what_it_is_given_sees_all_of_it():
    class Median(Metric):
        def sums(self, P, T):
            return P.reshape(-1)

        def merge(self, one, other):
            return np.concatenate([one, other])

        def result(self, sums):
            return float(np.median(sums))

    given = points(20, 1)
    options = {"loss_class": SoftmaxCrossEntropy(), "optimizer": SGD(0.0)}
    model = Sequential(L.Dense(4, 3), metrics=[Median()], seed=0, **options)
    history = train(model, given, epochs=2, batch_size=8)
    expected = model.evaluate(given.X, given.y)["median"]
    assert history.metrics["train_median"] == pytest.approx([expected] * 2, rel=1e-5)


def test_a_loss_may_run_layers_of_its_own():
    """Twice in a step, and back: the training loop's buffers are for the model's layers."""

    class FeatureLoss(Loss):
        def __init__(self):
            super().__init__()
            self.features = L.Dense(2, 5)
            self.features.build((2,), seed=1)

        def value(self, P, T, w, total):
            return float(np.square(self.features.forward(P) - self.features.forward(T)).mean())

        def gradient(self, P, T, w, total):
            wanted, found = self.features.forward(T), self.features.forward(P)
            return self.features.backward(2 / found.size * (found - wanted))

    X = points(20, 1).X
    T = X[:, 2:]
    trained, by_hand = (
        Sequential(L.Dense(4, 2), loss_class=FeatureLoss(), optimizer=SGD(0.1), seed=0)
        for _ in range(2)
    )
    trained.train(X, T, epochs=3, batch_size=8, shuffle=False, verbose=0)
    for start in (0, 8, 16) * 3:
        P = by_hand.forward(X[start : start + 8])
        by_hand.backward(by_hand.loss.loss_gradient(P, T[start : start + 8]))
        by_hand.optimizer.step(by_hand.layers)
    np.testing.assert_allclose(trained.layers[0].W, by_hand.layers[0].W, rtol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_writing_into_what_calls_returned_changes_nothing(case):
    make, draw = CASES[case]
    model, untouched, given = make(), make(), draw(20, 1)
    for trained in (model, untouched):
        train(trained, given, epochs=2, batch_size=8)
    copied = model.optimizer.copy()
    P = model.predict(given.X)
    returned = [
        *(model.get_weights(), model.gradients(), model.optimizer.memory(), copied.memory()),
        *(model(given.X), model.loss.loss_gradient(P, given.y), P),
    ]
    for array in leaves(returned):
        array.fill(7)
    for trained in (model, untouched):
        train(trained, given, epochs=1, batch_size=8)
    for a, b in zip(leaves(model.get_weights()), leaves(untouched.get_weights()), strict=True):
        np.testing.assert_array_equal(a, b)
    for array in leaves(copied.memory()):
        assert not (array == 7).all()
