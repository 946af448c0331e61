"""What a watcher is told: every pass once, under its path in the model."""

import numpy as np
import pytest

from phitodeep import CategoricalCrossEntropy, MeanSquaredError, Sequential
from phitodeep import layers as nn
from phitodeep.core.call import calling, current, inference, watching
from phitodeep.errors import ArgumentTypeError
from tests.conftest import assert_same
from tests.layers.test_containers import Own


class Notes:
    """A watcher that remembers."""

    def __init__(self):
        self.events = []

    def __call__(self, event):
        self.events.append(event)

    def told(self, what="", when=""):
        return [
            f"{e.when} {e.what} {e.path}".strip()
            for e in self.events
            if what in e.what and when in e.when
        ]


def images(n=12):
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, 6, 6, 2)).astype(np.float32), rng.integers(0, 3, n)


def cnn():
    """A model that training runs in another order, without its last layer."""
    return Sequential(
        *(nn.Conv2D(4, 3, padding="same"), nn.ReLU(), nn.MaxPool2D(2), nn.Flatten()),
        *(nn.Residual(nn.Dense(36), nn.Tanh()), nn.Dense(3), nn.Softmax()),
        loss_class=CategoricalCrossEntropy(),
        batch_size=6,
        epochs=1,
        seed=1,
    )


def test_each_pass_and_loss_is_told_once_in_order(rng):
    chain = nn.Chain(nn.Dense(3, 4), nn.Residual(nn.Tanh()))
    X, notes = rng.standard_normal((5, 3)).astype(np.float32), Notes()
    with watching(notes):
        Y = chain.forward(X)
        dX = chain.backward(Y)
    assert notes.told() == [
        *("before forward", "before forward 0", "after forward 0", "before forward 1"),
        *("before forward 1.layers.0", "after forward 1.layers.0", "after forward 1"),
        *("after forward", "before backward", "before backward 1", "before backward 1.layers.0"),
        *("after backward 1.layers.0", "after backward 1", "before backward 0"),
        *("after backward 0", "after backward"),
    ]
    arrays = [e.array for e in notes.events]
    assert arrays[0] is X
    assert arrays[7] is Y
    assert arrays[8] is Y
    assert arrays[-1] is dX
    assert [e.time for e in notes.events] == sorted(e.time for e in notes.events)
    assert notes.events[1].source is chain.layers[0]
    assert {e.value for e in notes.events} == {None}
    P, T, notes = rng.standard_normal((4, 2)), rng.standard_normal((4, 2)), Notes()
    loss = MeanSquaredError()
    with watching(notes):
        value = loss.loss_func(P, T)
        dP = loss.loss_gradient(P, T)
    assert notes.told() == ["before loss", "after loss"] * 2
    assert notes.events[1].value == value
    assert notes.events[1].array is None
    assert notes.events[3].value == value
    assert notes.events[3].array is dP
    assert {e.source for e in notes.events} == {loss}


def test_a_watched_training_is_the_same_to_the_bit_and_paths_are_those_of_the_model():
    X, y = images()
    plain, watched, notes = cnn(), cnn(), Notes()
    plain.train(X, y, X, y, verbose=0)
    with watching(notes):
        watched.train(X, y, X, y, verbose=0)
    assert_same(watched.get_weights(), plain.get_weights())
    assert plain.optimizer.t == watched.optimizer.t == 2
    assert notes.events
    assert current().watch is None
    notes = Notes()
    with watching(notes):
        cnn().train(*images(6), verbose=0)
    forward = notes.told("forward", "before")
    seen = [told.removeprefix("before forward").strip() for told in forward]
    assert seen == ["", "0", "2", "1", "3", "4", "4.layers.0", "4.layers.1", "5"]
    assert notes.told("loss") == ["before loss", "after loss"]
    backward = [told.split()[-1] for told in notes.told("backward", "after")]
    assert backward == ["5", "4.layers.1", "4.layers.0", "4", "3", "1", "2", "0", "backward"]


@pytest.mark.parametrize("threads", [2, 3])
def test_paths_are_right_in_threads(threads, cut):
    cut(threads)
    notes = Notes()
    with watching(notes):
        cnn().train(*images(6), threads=threads, verbose=0)
    assert "?" not in {e.path for e in notes.events}
    dense = [e for e in notes.events if (e.path, e.what, e.when) == ("5", "forward", "after")]
    assert sorted(len(e.array) for e in dense if e.array is not None) == [6 // threads] * threads
    assert len({id(e.source) for e in dense}) == threads  # replicas, with frames of their own
    assert len(notes.told("step", "before")) <= 1


class Scaled(nn.Dense):
    """Passes that call those of the class above."""

    def forward(self, X):
        return 2 * super().forward(X)

    def backward(self, dY):
        return super().backward(2 * dY)


@pytest.mark.parametrize("recomputed", [False, True])
def test_a_checkpoint_tells_of_its_second_forward_if_asked(recomputed, rng):
    chain, notes = nn.Chain(nn.Dense(3, 3), nn.Tanh(), checkpoint=True), Notes()
    X = rng.standard_normal((4, 3))
    with watching(notes, recomputed=recomputed):
        chain.backward(chain.forward(X))
    assert notes.told("forward", "after").count("after forward 0") == 1 + recomputed
    assert notes.told("backward", "after").count("after backward 0") == 1


def test_what_a_watcher_returns_replaces(rng):
    first, second, X = (
        nn.Dense(3, 4),
        nn.Dense(4, 2),
        rng.standard_normal((5, 3)).astype(np.float32),
    )
    chain = nn.Chain(first, second)
    silenced = np.zeros((5, 4))

    def watcher(event):
        if (event.what, event.when, event.path) == ("forward", "after", "0"):
            return silenced  # float64: it is cast
        if (event.what, event.when, event.path) == ("backward", "after", "1"):
            return 3 * event.array
        return None

    plain = nn.Chain(first, second)
    plain.backward(np.ones_like(plain.forward(X)))
    dW = first.grads["W"].copy()
    with watching(watcher):
        Y = chain.forward(X)
        np.testing.assert_array_equal(Y, np.broadcast_to(second.b, Y.shape))
        assert Y.dtype == np.float32
        chain.backward(np.ones_like(Y))
    np.testing.assert_allclose(first.grads["W"], 3 * dW, rtol=1e-6)
    np.testing.assert_array_equal(second.grads["W"], np.zeros((4, 2)))  # it saw the zeros
    for wrong in (np.zeros((5, 3)), 1.0, "Y"):
        says = r"after the forward of Dense\(3, 4\).*\(5, 4\)"
        replaces = watching(lambda e, wrong=wrong: wrong if e.when == "after" else None)
        with replaces, pytest.raises(ArgumentTypeError, match=says):
            first.forward(X)
        with pytest.raises(ArgumentTypeError, match="expects a function"):
            watching(wrong)


def test_a_replaced_gradient_of_the_loss_reaches_the_layers(rng):
    X, y = rng.standard_normal((4, 3)), rng.standard_normal((4, 2))
    model = Sequential(nn.Dense(3, 2), optimizer="sgd", seed=0)
    before = model.layers[0].W.copy()

    def no_gradient(event):
        if (event.what, event.when) == ("loss", "after"):
            assert event.value > 0
            return 0 * event.array
        return None

    with watching(no_gradient):
        model.train(X, y, epochs=1, verbose=0)
    np.testing.assert_array_equal(model.layers[0].W, before)
    loss, wanted = MeanSquaredError(), MeanSquaredError().loss_func(2 * y, X[:, :2])
    with watching(lambda e: 2 * y if (e.what, e.when) == ("loss", "before") else None):
        assert loss.loss_func(y, X[:, :2]) == wanted


def test_paths_from_a_root_of_branches_and_of_containers_of_ones_own(rng):
    layer, notes = Scaled(3, 2), Notes()
    with watching(notes):
        layer.backward(layer.forward(np.ones((4, 3))))
    assert notes.told() == ["before forward", "after forward", "before backward", "after backward"]
    notes = Notes()
    with watching(notes):
        nn.Chain(Own({"a": (nn.Dense(3, 3), nn.Tanh()), "out": nn.Dense(3, 2)})).forward(
            np.ones((5, 3))
        )
    paths = ("", ".inside.a.0", ".inside.a.1", ".inside.out")
    assert notes.told("forward", "before")[1:] == [f"before forward 0{path}" for path in paths]
    model, notes = Sequential(nn.Dense(3, 4), nn.Tanh(), seed=0), Notes()
    X = rng.standard_normal((5, 3))
    with watching(notes, root=model):
        for layer in model.layers:
            X = layer.forward(X)
        nn.Dense(4, 2).forward(X)
    assert [e.path for e in notes.events] == ["0", "0", "1", "1", "?", "?"]
    both, notes = nn.Chain(nn.Dense(2, 3), model), Notes()
    with watching(notes, root=both):
        model.train(rng.standard_normal((4, 3)), rng.standard_normal((4, 4)), epochs=1, verbose=0)
    paths = ("1", "1.layers.0", "1.layers.1")
    assert notes.told("forward", "before") == [f"before forward {path}" for path in paths]
    branches, notes = nn.Parallel(nn.Dense(2), nn.Chain(nn.Dropout(0.5))), Notes()
    branches.build((3,))
    with watching(notes), calling(training=False):
        branches.forward(rng.standard_normal((4, 3)))
    ends = " branches.0", " branches.1.layers.0", " branches.1", ""
    assert notes.told("forward", "after") == [f"after forward{path}" for path in ends]


def test_a_watcher_may_run_layers_and_sees_the_softmax_that_metrics_ask_for():
    X, y = images(6)
    model, training = cnn(), []

    def watcher(event):
        training.append(current().training)
        with inference():
            model.forward(X)

    with watching(watcher):
        model.train(X, y, X, y, verbose=0)
    assert training[0] is True
    assert training[-1] is False
    X, y = images()
    model = cnn()
    notes = Notes()
    with watching(notes):
        model.train(X, y, X, y, epochs=1, metrics=["accuracy"], verbose=0)
        model.evaluate(X, y, metrics=["accuracy"])
    last = str(len(model.layers) - 1)
    softmax = [e.path for e in notes.events if e.source is model.layers[-1]]
    assert softmax == [last, last] * 4  # two batches, the test data, and evaluate
    assert {e.path for e in notes.events if isinstance(e.source, Sequential)} == {""}
