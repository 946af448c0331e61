"""The rate-range test: what it tries, what it suggests, and that the model stays."""

import math
import warnings

import numpy as np
import pytest

from phitodeep import BatchNorm, Dense, Dropout, PhitodeepError, Sequential, Tanh
from phitodeep.model.callbacks import LambdaCallback
from tests.conftest import assert_same, assert_weights

rng = np.random.default_rng(0)
X = rng.standard_normal((200, 5)).astype(np.float32)
Y = np.tanh(X @ rng.standard_normal((5, 2))).astype(np.float32)


def net(**given):
    layers = (Dense(5, 8), BatchNorm(), Tanh(), Dropout(0.1), Dense(8, 2))
    return Sequential(*layers, **{"seed": 0, "batch_size": 20, "metrics": ["mae"], **given})


def test_the_model_is_not_changed():
    seen = []
    watch = LambdaCallback(on_batch_end=lambda model, step, loss: seen.append(step))
    model, twin = net(alpha=0.01), net(alpha=0.01)
    for one in (model, twin):
        one.train(X, Y, epochs=1, verbose=0)
    model.callbacks.append(watch)
    weights, memory = model.get_weights(), model.optimizer.memory()
    model.find_alpha(X, Y, steps=30)
    assert_weights(model, weights)
    assert_same(model.optimizer.memory(), memory)
    assert (model.epoch, model.optimizer.t, model.alpha) == (1, 10, 0.01)
    assert seen == []  # the model's callbacks heard nothing
    assert model.train(X, Y, epochs=2, verbose=0) == twin.train(X, Y, epochs=2, verbose=0)


@pytest.mark.parametrize("epochs", [0, 3])
def test_rates_grow_from_low_to_high_by_equal_factors(epochs):
    """Also for a model that was trained before."""
    model = net()
    model.train(X, Y, epochs=epochs, verbose=0)
    found = model.find_alpha(X, Y, low=1e-5, high=1e-2, steps=31)
    np.testing.assert_allclose(found.rates, np.geomspace(1e-5, 1e-2, 31), rtol=1e-9)
    assert len(found.losses) == 31
    assert all(map(math.isfinite, found.losses))


def test_the_rates_are_those_that_the_steps_took():
    model = Sequential(Dense(1, 1, bias=False), optimizer="sgd", dtype="float64")
    model.layers[0].W = [[0.0]]
    ones = np.ones((4, 1))
    found = model.find_alpha(ones, 5 * ones, low=1e-3, high=0.1, steps=12)
    w, mean, losses = 0.0, 0.0, []
    for k, rate in enumerate(np.geomspace(1e-3, 0.1, 12)):
        mean = 0.9 * mean + 0.1 * (w - 5) ** 2
        losses.append(mean / (1 - 0.9 ** (k + 1)))
        w -= rate * 2 * (w - 5)
    np.testing.assert_allclose(found.losses, losses, rtol=1e-10)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("seed", range(2))
def test_the_suggestion_trains(optimizer, seed):
    found = net(optimizer=optimizer, seed=seed).find_alpha(X, Y)
    assert found.suggestion in found.rates
    model = net(optimizer=optimizer, seed=seed, alpha=found.suggestion)
    before = model.evaluate(X, Y)["loss"]
    model.train(X, Y, epochs=15, verbose=0)
    assert model.evaluate(X, Y)["loss"] < 0.6 * before


def test_it_ends_early_and_quietly_where_the_loss_explodes():
    model = Sequential(Dense(5, 2), optimizer="sgd", seed=0, batch_size=20)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = model.find_alpha(X, Y, low=1e-3, high=1e9)
    assert caught == []
    assert 3 < len(found.rates) < 100
    assert len(found.losses) == len(found.rates)
    assert all(map(math.isfinite, found.losses))
    assert found.suggestion < 2


def test_where_it_ends_and_what_it_suggests(monkeypatch, capsys):
    """At a smoothed loss far above the lowest one; a tenth of the rate that had the lowest."""
    model, rates = Sequential(Dense(1, 1), optimizer="sgd", seed=0), 1e-9 * 1.05 ** np.arange(100)

    def find(losses):
        values = iter(losses)
        monkeypatch.setattr(type(model.loss), "value", lambda *_: next(values))
        return model.find_alpha([[1.0]], [[1.0]], low=1e-9, high=rates[-1], steps=100)

    for sign in (1, -1):
        given = np.array([2, 3, *np.linspace(2, 1, 60), *range(2, 40)]) + (sign < 0) * -4
        mean = [np.average(given[: k + 1], weights=0.9 ** np.arange(k, -1, -1)) for k in range(100)]
        end = next(k for k in range(100) if mean[k] - min(mean[: k + 1]) > 4 * abs(mean[0]))
        found = find(given)
        np.testing.assert_allclose(found.losses, mean[: end + 1])
        lowest = rates[np.argmin(mean[: end + 1])]
        assert found.suggestion == pytest.approx(rates[rates >= lowest / 10][0])
    assert len(find([1, 2, 3, math.inf]).losses) == 3
    with pytest.raises(PhitodeepError, match="smaller low"):
        find([1, 2, math.inf])
    assert capsys.readouterr().out == ""


def test_negative_losses_and_models_that_are_not_built():
    counts = np.full((200, 2), 5.0)
    model = Sequential(Dense(5, 2), loss_class="poisson_nll", optimizer="sgd", seed=0)
    model.layers[0].b = [1.0, 1.0]
    assert model.evaluate(X, counts)["loss"] < 0
    assert len(model.find_alpha(X, counts, high=1e-3, steps=20).rates) == 20
    model = Sequential(Dense(4), Tanh(), Dense(2), seed=0)
    model.find_alpha(X, Y, steps=10)
    assert model.output_shape is None
    assert not model.layers[0].params


def test_bad_arguments_are_refused():
    for given, name in (
        *(({"low": 0}, "low"), ({"low": math.nan}, "low"), ({"high": -1}, "high")),
        *(({"low": 0.1, "high": 0.1}, "low < high"), ({"steps": 9}, "steps")),
        *(({"steps": 10.5}, "steps"), ({"batch_size": 0}, "batch_size")),
        *(({"batch_size": -1}, "batch_size"), ({"low": 1e12, "high": 1e15}, "smaller low")),
    ):
        with pytest.raises(PhitodeepError, match=name):
            net(optimizer="sgd").find_alpha(X, Y, **given)
