"""The callback Histograms: what it keeps, when, and that training does not notice."""

import numpy as np
import pytest

from phitodeep import plots
from phitodeep.errors import PhitodeepError
from phitodeep.layers import Dense, Dropout, Residual, Tanh
from phitodeep.model import Sequential
from phitodeep.model.callbacks import Histograms, LambdaCallback, ModelCheckpoint
from phitodeep.plots.recorder import histogram
from tests.conftest import assert_weights, check_refused
from tests.inspect.shared import rows

rng = np.random.default_rng(1)
X = rng.standard_normal((40, 3)).astype(np.float32)
Y = rng.standard_normal((40, 2)).astype(np.float32)


def net():
    layers = Dense(3, 8), Tanh(), Residual(Dense(8, 8), Dropout(0.3)), Dense(8, 2)
    return Sequential(*layers, seed=0, batch_size=10, optimizer="sgd", alpha=0.1)


def test_counts_are_those_of_arrays_after_each_step_and_of_predictions():
    seen = []

    def look(model, *_):
        seen.append((model.layers[0].W.copy(), model.layers[0].grads["W"].copy()))

    copy = LambdaCallback(on_batch_end=look)
    watch = Histograms(None, 1, bins=7)
    net().train(X, Y, epochs=2, callbacks=[copy, watch], verbose=0)
    np.testing.assert_array_equal(watch["0.W"].steps, range(1, 9))
    for i, arrays in enumerate(seen):
        for key, A in zip(("0.W", "0.dW"), arrays, strict=True):
            counts, edges = np.histogram(A.astype(np.float64), 7)
            np.testing.assert_array_equal(watch[key].counts[i], counts)
            np.testing.assert_array_equal(watch[key].edges[i], edges)
    assert watch["0.dW"].counts.dtype == np.int64
    assert watch["0.dW"].edges.dtype == np.float64
    model, watch = net(), Histograms(activations=X[:5])
    model.train(X, Y, epochs=1, callbacks=[watch], verbose=0)
    _, cache = model.run_with_cache(X[:5])
    for path in ("0", "1", "2", "2.layers.0", "2.layers.1", "3"):
        counts, _ = np.histogram(cache[f"{path}.Y"].astype(np.float64), watch.bins)
        np.testing.assert_array_equal(watch[f"{path}.Y"].counts, [counts])
    parameters = {"0.W", "0.b", "2.layers.0.W", "2.layers.0.b", "3.W", "3.b"}
    gradients = {f"{key[:-1]}d{key[-1]}" for key in parameters}
    outputs = {f"{path}.Y" for path in ("0", "1", "2", "2.layers.0", "2.layers.1", "3")}
    assert set(watch.keys()) == parameters | gradients | outputs


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ({}, [4, 8, 12]),
        ({"every": 2}, [8]),
        ({"every": None, "every_steps": 3}, [3, 6, 9, 12]),
        ({"every": 1, "every_steps": 2}, [2, 4, 6, 8, 10, 12]),
    ],
)
def test_when_it_looks(given, steps):
    watch = Histograms(**given)
    net().train(X, Y, epochs=3, callbacks=[watch], verbose=0)
    assert watch["3.b"].steps.tolist() == steps
    assert watch["3.b"].counts.sum(axis=1).tolist() == [2] * len(steps)


def test_training_does_not_notice_and_what_is_left_out():
    alone, watched = net(), net()
    watch = Histograms(None, 1, activations=X)
    history = watched.train(X, Y, epochs=3, verbose=0, callbacks=[watch])
    assert alone.train(X, Y, epochs=3, verbose=0) == history
    assert_weights(alone, watched)
    assert "0.dW" not in recorded(gradients=False)
    model = net()
    model.layers[0].trainable = False
    watch = Histograms()
    model.train(X, Y, epochs=1, callbacks=[watch], verbose=0)
    assert "0.W" in watch
    assert "0.dW" not in watch
    model, watch = net(), Histograms(activations=np.full((2, 3), 1e38))
    model.layers[0].W = np.full((3, 8), 1e38)
    with np.errstate(over="ignore"):
        watch.look(model)
    assert watch["0.Y"].counts.sum() == 0
    assert watch["0.W"].counts.sum() == 24


def test_values_that_are_almost_equal_or_tiny_have_bins_too():
    for values, low, high in [
        ([0.0, 0.0], -0.5, 0.5),
        ([1.0, 1.0 + 2e-16], 0.5, 1.5),
        ([-3e37, -3e37], -4.5e37, -1.5e37),
        ([1e-40, 3e-40], 1e-40, 3e-40),
        ([np.nan, 2.0, 4.0, -np.inf, 1.7e308], 2.0, 4.0),
    ]:
        counts, edges = histogram(np.array(values), 8)
        assert counts.sum() == sum(abs(v) < 1e300 for v in values)
        np.testing.assert_allclose(edges, np.linspace(low, high, 9))
        assert (np.diff(edges) > 0).all()
    for smallest in ([0, 5e-324], [1e-322, 1e-322], [-1e-310, 1e-310]):
        counts, edges = histogram(np.array(smallest), 10)
        assert counts.sum() == 2
        assert len(np.unique(edges)) == 11


def test_each_training_starts_afresh_and_a_resumed_one_goes_on(tmp_path):
    whole = Histograms(None, 1)
    net().train(X, Y, epochs=3, callbacks=[whole], verbose=0)
    model, first = net(), Histograms(None, 1)
    file = tmp_path / "ck.safetensors"

    def stop(model, epoch, logs):
        if epoch == 2:
            raise KeyboardInterrupt

    checkpoint = ModelCheckpoint(file)
    every = [first, checkpoint, LambdaCallback(on_epoch_end=stop)]
    with pytest.raises(KeyboardInterrupt):
        model.train(X, Y, epochs=3, callbacks=every, verbose=0)
    second = Histograms(None, 1)
    callbacks = [second, ModelCheckpoint(file), LambdaCallback()]
    net().train(X, Y, epochs=3, callbacks=callbacks, verbose=0, resume=file)
    assert second.keys() == whole.keys()
    for key in whole:
        np.testing.assert_equal(vars(second[key]), vars(whole[key]), err_msg=key)
    net().train(X, Y, epochs=1, callbacks=[second], verbose=0)
    assert second["0.W"].steps.tolist() == [1, 2, 3, 4]


def test_states_settings_and_repr():
    watch = recorded()
    state = watch.state_dict()
    fresh = Histograms()
    for name, key, value, message in (
        ("counts", "0.W", np.ones((1, 3)), "must have shape"),
        ("edges", "0.W", [1.0], "array"),
        ("steps", "0.W", [1.5], "must be an integer"),
        ("steps", "0.W", 3, "steps: 0.W must be a list, got 3"),
    ):
        broken = {**state, name: {**state[name], key: value}}
        with pytest.raises(PhitodeepError, match=message):
            fresh.load_state_dict(broken)
    assert not fresh.keys()
    fresh.load_state_dict(state)
    np.testing.assert_array_equal(fresh["0.W"].counts, watch["0.W"].counts)
    watch = Histograms(activations=np.ones((1000, 3)))
    assert repr(watch) == "Histograms(every=1, every_steps=None, bins=40)"


def recorded(**options):
    """A callback that watched a training."""
    watch = Histograms(**options)
    net().train(X, Y, epochs=1, callbacks=[watch], verbose=0)
    return watch


REFUSED = r"""
Histograms(every=None) -> ArgumentError: every= \(epochs\) or every_steps=
Histograms(every=0) -> ArgumentError: every must be >= 1
Histograms(every_steps=1.5) -> ArgumentTypeError: every_steps must be an integer
Histograms(bins=1) -> ArgumentError: bins must be >= 2
Histograms(gradients=1) -> ArgumentTypeError: gradients must be True or False
Histograms(activations=["a"]) -> ArgumentTypeError: activations takes real numbers
Histograms(activations=X[:0]) -> ShapeError: needs samples, got shape \(0, 3\)
plots.histograms(Histograms(), "0.W") -> ArgumentError: nothing was recorded yet: first train
recorded().plot("0.w") -> UnknownNameError: '0\.w' is not one of.*Did you mean.*'0\.W'
recorded(gradients=False).plot() -> ArgumentError: the key of an array: name one of '0\.W', '0\.b'
"""


@rows(REFUSED)
def test_what_is_refused(call, error):
    check_refused(call, error, globals())


def test_ridges_are_the_densities(tmp_path):
    watch = Histograms(bins=6)
    net().train(X, Y, epochs=3, callbacks=[watch], verbose=0)
    axes = watch.plot("0.W", str(tmp_path / "w.png")).axes[0]
    assert (tmp_path / "w.png").read_bytes().startswith(b"\x89PNG")
    series = watch["0.W"]
    for place, line in enumerate(axes.lines[:3]):
        x, height = line.get_data()
        counts, edges = series.counts[place], series.edges[place]
        np.testing.assert_allclose(x[1:-1], (edges[1:] + edges[:-1]) / 2)
        above = height - (2 - place)  # the last look is at the bottom
        np.testing.assert_allclose(above[[0, -1]], 0)
        np.testing.assert_allclose(above[1:-1] / above.max(), counts / counts.max())
    labels = [t.get_text() for t in axes.get_yticklabels()]
    assert labels == ["4", "8", "12"]
    assert axes.get_title() == "0.W: 3 histograms"
    assert axes.get_xlim()[0] <= series.edges.min()
    from matplotlib.figure import Figure

    watch, ax = Histograms(None, 1), Figure().subplots()
    net().train(X, Y, epochs=6, callbacks=[watch], verbose=0)
    assert plots.histograms(watch, "0.b", ax=ax) is ax
    assert ax.get_title() == "0.b: 20 of 24 histograms"
    assert len(ax.lines) == 21  # and the line at 0
