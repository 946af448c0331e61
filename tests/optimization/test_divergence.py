"""A step looks at its gradients before it changes anything, and says which one is not finite."""

import math
import pickle

import numpy as np
import pytest

from phitodeep import LBFGS, SGD, Adam, Chain, Dense, Residual, Sequential, Tanh, watching
from phitodeep.errors import DivergenceError, PhitodeepError
from phitodeep.optimization.base import length
from tests.conftest import assert_same
from tests.optimization.test_memory import Gradients, built
from tests.optimization.test_optimizers import every, values


def net(dtype="float64"):
    layers = built(Dense(3, 4), Residual(Dense(4, 4), Tanh()), Chain(Dense(4, 4), Dense(4, 2)))
    for layer in layers:
        layer.cast(dtype)
    return layers


def given(layers, step=0):
    Gradients([part for top in layers for _, part in top.walk()]).give(layers, step)


def remembered(optimizer):
    entries = optimizer.state_dict()["parameters"]
    slots = {f"{path} {slot}": a for path, e in entries.items() for slot, a in e["slots"].items()}
    return slots | {f"{path} own": np.array(list(e["own"].values())) for path, e in entries.items()}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@every
def test_a_bad_gradient_changes_nothing_and_is_named(make, value):
    layers, optimizer = net(), make()
    optimizer.ema, optimizer.weight_decay, optimizer.clip_value = 0.9, 0.1, 1.0
    for step in range(2):
        given(layers, step)
        optimizer.step(layers)
    before, memory = values(layers), remembered(optimizer)
    given(layers, 2)
    bad = layers[2].layers[0]
    bad.grads["W"][1, 3] = bad.grads["W"][2, 0] = layers[0].grads["b"][0] = value
    with pytest.raises(DivergenceError) as caught:
        optimizer.step(layers)
    error = caught.value
    assert isinstance(error, PhitodeepError)
    assert isinstance(error, FloatingPointError)
    assert (error.path, error.name) == ("2.layers.0", "W")
    start = f"the gradient of 2.layers.0.W is {value} at [1, 3], in Dense(4, 4), at step 3: "
    assert str(error).startswith(f"{start}the step was not taken. Try a rate below ")
    assert "clip_norm=1" in str(error)
    assert (optimizer.t, optimizer.last_rate) == (2, optimizer.rate)
    assert_same(values(layers), before)
    assert_same(remembered(optimizer), memory)
    given(layers, 2)
    optimizer.step(layers)
    twins, straight = net(), make()
    straight.ema, straight.weight_decay, straight.clip_value = 0.9, 0.1, 1.0
    for step in range(3):
        given(twins, step)
        straight.step(twins)
    assert_same(values(layers), values(twins))


def test_a_clip_norm_that_is_set_is_not_advised_and_frozen_layers_do_not_count():
    layers = net()
    given(layers)
    layers[0].grads["b"][:] = np.nan
    with pytest.raises(DivergenceError, match=r"Try a rate below 0\.25\.") as caught:
        SGD(0.25, clip_norm=1).step(layers)
    assert "clip_norm" not in str(caught.value)
    assert (caught.value.path, caught.value.name) == ("0", "b")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.path) == (str(caught.value), "0")
    layers = net()
    given(layers)
    layers[0].grads["b"][:] = np.nan
    layers[0].trainable = False
    SGD().step(layers)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("clip_norm", [None, 2.0])
def test_large_gradients_that_are_finite_are_taken(dtype, clip_norm):
    """Their squares overflow; warnings are errors in these tests."""
    layers, most = net(dtype), np.finfo(dtype).max / 8
    before = values(layers)
    for top in layers:
        for _, layer in top.walk():
            layer.grads = {k: np.full_like(a, most / 2) for k, a in layer.params.items()}
    SGD(1.0 if clip_norm else 0.5 / float(most), clip_norm=clip_norm).step(layers)
    moved = np.concatenate([(before[p] - a).ravel() for p, a in values(layers).items()])
    wanted = 2.0 / math.sqrt(moved.size) if clip_norm else 0.25
    np.testing.assert_allclose(moved, wanted, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_length_is_infinite_only_for_what_is_not_finite(dtype):
    info = np.finfo(dtype)
    assert length(np.zeros(0, dtype)) == 0
    for n in (1, 7, 1000):
        for size in (info.max, info.max / 4, 1.0, 1e-3):
            g = np.full(n, size, dtype)
            wanted = min(math.sqrt(n) * float(g[0]), np.finfo(float).max)
            assert length(g) == pytest.approx(wanted, rel=1e-5)
            for bad in (np.nan, np.inf, -np.inf):
                g[n // 2] = bad
                assert length(g) == math.inf


def test_lbfgs_turns_back_from_a_gradient_that_is_not_finite():
    """sum w^1.5 / 1.5, whose gradient is NaN below 0 although |w|^1.5 is not."""
    pytest.importorskip("scipy")
    layer = built(Dense(1, 3, bias=False))[0]
    layer.W = [[1.0, 0.5, 0.01]]
    seen = []

    def evaluate():
        W = layer.W
        layer.grads = {"W": np.where(W >= 0, np.sqrt(abs(W)), np.nan)}
        seen.append(bool(np.isfinite(layer.grads["W"]).all()))
        return float((abs(W) ** 1.5).sum() / 1.5)

    optimizer = LBFGS()
    first = optimizer.run([layer], evaluate)
    assert not all(seen)
    assert np.isfinite(layer.W).all()
    assert evaluate() < first
    layer.W = [[1.0, -0.5, 0.01]]
    before = layer.W.copy()
    with pytest.raises(DivergenceError, match=r"gradient of 0\.W is nan at \[0, 1\].*step 2"):
        optimizer.run([layer], evaluate)
    np.testing.assert_array_equal(layer.W, before)
    assert optimizer.t == 1


@every
def test_a_watcher_hears_of_a_step_and_may_replace_its_gradient(make):
    layers, twins, one, other = net(), net(), make(), make()
    one.clip_norm = other.clip_norm = 0.5
    seen = []

    def watcher(event):
        seen.append(event)
        return 2 * event.array if event.when == "before" else None

    for step in range(3):
        given(layers, step)
        with watching(watcher):
            one.step(layers)
        given(twins, step)
        for top in twins:
            for _, layer in top.walk():
                layer.grads = {name: 2 * g for name, g in layer.grads.items()}
        other.step(twins)
    assert_same(values(layers), values(twins))
    assert [(e.what, e.when, e.path, e.value) for e in seen] == 3 * [
        ("step", "before", "", one.rate),
        ("step", "after", "", one.rate),
    ]
    assert all(event.source is one for event in seen)
    assert np.linalg.norm(seen[0].array) > 0.5
    np.testing.assert_allclose(np.linalg.norm(seen[1].array), 0.5, rtol=1e-12)


def test_a_watchers_gradient_is_checked_and_lbfgs_reports_each_step_once():
    layers, optimizer = net(), Adam()
    given(layers)
    before = values(layers)

    def watcher(event):
        return None if event.array is None else np.full_like(event.array, np.nan)

    with watching(watcher), pytest.raises(DivergenceError, match=r"gradient of 2\.layers\.1\.b"):
        optimizer.step(layers)
    assert_same(values(layers), before)
    pytest.importorskip("scipy")
    seen = []
    X = np.random.default_rng(0).standard_normal((20, 3))
    model = Sequential(Dense(3, 2), optimizer=LBFGS(max_iter=5), seed=0)
    with watching(lambda e: seen.append((e.what, e.when)) if e.what == "step" else None):
        model.train(X, X[:, :2], epochs=2, verbose=0)
    assert seen == 2 * [("step", "before"), ("step", "after")]
