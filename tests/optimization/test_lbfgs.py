"""LBFGS: it reaches the optimum of convex problems, and keeps what training promises."""

import builtins
import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from phitodeep import LBFGS, Adam, Dense, Dropout, MeanSquaredError, Sequential, Tanh
from phitodeep.data import make_moons
from phitodeep.errors import ArgumentError, DivergenceError, MissingExtraError, OrderError
from phitodeep.optimization import lbfgs
from tests.conftest import assert_weights

pytest.importorskip("scipy")
EXACT = {"max_iter": 200, "tolerance_grad": 1e-11, "tolerance_change": 0.0}


def problem(n=60, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 4)) * [1.0, 5.0, 0.3, 2.0]
    return X, X @ rng.standard_normal((4, 2)) + 0.3 * rng.standard_normal((n, 2)) + 1


def linear(optimizer, **options):
    settings = {"dtype": "float64", "seed": 0, **options}
    return Sequential(Dense(4, 2), optimizer=optimizer, **settings)


def least_squares(X, Y, pull=None):
    """(W, b) of least mean squared error plus pull / 2 sum w^2, from the normal equations."""
    A = np.column_stack([X, np.ones(len(X))])
    scale = 2 / Y.size
    H = scale * A.T @ A + (0 if pull is None else np.diag(pull))
    return np.linalg.solve(H, scale * A.T @ Y)


def test_linear_and_logistic_regression_reach_the_optimum():
    X, Y = problem()
    model = linear(LBFGS(**EXACT))
    history = model.train(X, Y, epochs=2, verbose=0)
    best = least_squares(X, Y)
    np.testing.assert_allclose(model.layers[0].W, best[:4], rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(model.layers[0].b, best[4], rtol=1e-8, atol=1e-8)
    assert history[0][0] > history[1][0]
    assert model.optimizer.t == 2
    X, Y = problem()
    y = Y.argmax(axis=1)
    model = linear(LBFGS(**EXACT, l2=0.01), loss_class="softmax_cross_entropy")
    model.train(X, y, epochs=2, verbose=0)
    W, b = model.layers[0].W.copy(), model.layers[0].b
    P = np.exp(X @ W + b)
    P /= P.sum(axis=1, keepdims=True)
    R = (P - np.eye(2)[y]) / len(X)
    np.testing.assert_allclose(X.T @ R + 0.01 * W, 0, atol=1e-9)  # so W, b are the optimum
    np.testing.assert_allclose(R.sum(axis=0), 0, atol=1e-9)
    errors = []
    for n in (1, 10):
        model = linear(LBFGS(history_size=n, max_iter=25))
        evaluate, _ = counting(model)
        model.optimizer.run(model.layers, evaluate)
        errors.append(abs(model.layers[0].W - least_squares(*problem())[:4]).max())
    assert errors[1] < 0.01 * errors[0]


def test_penalties_are_part_of_the_loss():
    for options, pull in (
        ({"l2": 0.3}, [0.3, 0.3, 0.3, 0.3, 0.0]),
        ({"weight_decay": 0.3}, [0.3, 0.3, 0.3, 0.3, 0.0]),
        ({"l2": 0.1, "weight_decay": 0.2}, [0.3, 0.3, 0.3, 0.3, 0.0]),
        ({"l2": 0.1, "groups": {"*.b": {"weight_decay": 0.5}}}, [0.1, 0.1, 0.1, 0.1, 0.5]),
        ({"l2": 0.1, "groups": {"*": {"weight_decay": 0.5}}}, [0.6, 0.6, 0.6, 0.6, 0.5]),
    ):
        X, Y = problem()
        X /= X.std(axis=0)  # columns of one size, so that rounding of the loss ends it later
        model = linear(LBFGS(**EXACT, **options))
        model.train(X, Y, epochs=4, verbose=0)
        best = least_squares(X, Y, np.array(pull))
        np.testing.assert_allclose(model.layers[0].W, best[:4], rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(model.layers[0].b, best[4], rtol=1e-8, atol=1e-8)


def moons(optimizer, **options):
    layers = [Dense(2, 16), Tanh(), Dense(16, 2)]
    settings = {"loss_class": "softmax_cross_entropy", "seed": 0, **options}
    return Sequential(*layers, optimizer=optimizer, **settings)


def test_it_comes_lower_than_adam_on_moons_and_repeats_to_the_bit():
    X, y = make_moons(n=200, seed=0)
    models = [moons(LBFGS()), moons(LBFGS()), moons(Adam(0.02))]
    losses = [
        model.train(X, y, epochs=epochs, verbose=0)
        for model, epochs in zip(models, (15, 15, 400), strict=True)
    ]
    assert losses[0] == losses[1]
    for path, a in models[0].get_weights().items():
        assert a.dtype == np.float32
        np.testing.assert_array_equal(a, models[1].get_weights()[path])
    assert losses[0][-1][0] < 0.5 * losses[2][-1][0]
    falls = [loss for loss, _ in losses[0]]
    assert falls == sorted(falls, reverse=True)


def test_the_rate_is_a_share_of_the_way():
    X, Y = problem()
    full, half = linear(LBFGS(**EXACT)), linear(LBFGS(0.5, **EXACT))
    start = half.get_weights()
    for model in (full, half):
        model.train(X, Y, epochs=1, verbose=0)
    for path, a in full.get_weights().items():
        np.testing.assert_allclose(half.get_weights()[path], (start[path] + a) / 2, rtol=1e-12)
    assert half.optimizer.last_rate == 0.5
    still = linear(LBFGS(groups={"0.b": {"alpha": 0.0}}, **EXACT))
    still.train(X, Y, epochs=1, verbose=0)
    np.testing.assert_array_equal(still.layers[0].b, 0)
    np.testing.assert_array_equal(still.layers[0].W, full.layers[0].W)


def counting(model, limit=np.inf, parts=1):
    """A loss, in equal parts, whose values are listed; it is infinite where W is over the limit."""
    X, Y = problem()
    loss, seen = MeanSquaredError(), []

    def evaluate():
        seen.append(0.0)
        for i, (x, y) in enumerate(zip(np.split(X, parts), np.split(Y, parts), strict=True), 1):
            P = model.forward(x)
            model.backward(loss.loss_gradient(P, y, total=Y.size))
            seen[-1] += loss.loss_func(P, y) / parts
            if i < parts:
                model.optimizer.accumulate(model.layers)
            if abs(model.layers[0].W).max() > limit:
                seen[-1] = np.inf
                break
        return seen[-1]

    return evaluate, seen


def test_a_step_by_hand_ends_at_the_lowest_loss_that_is_finite():
    model = linear(LBFGS(max_iter=5))
    evaluate, seen = counting(model)
    first = model.optimizer.run(model.layers, evaluate)
    assert first == seen[0] == max(seen)
    assert len(seen) >= 6
    assert evaluate() <= min(seen)
    assert model.optimizer.t == 1
    model = linear(LBFGS(max_iter=50))
    evaluate, seen = counting(model, limit=1.5)
    model.optimizer.run(model.layers, evaluate)
    assert np.inf in seen
    assert abs(model.layers[0].W).max() <= 1.5
    assert evaluate() < 0.5 * seen[0]


@pytest.mark.parametrize(
    ("option", "loose", "strict"),
    [("max_iter", 9, 1), ("tolerance_grad", 1e-9, 1e-1), ("tolerance_change", 1e-9, 1e-1)],
)
def test_a_step_ends_early(option, loose, strict):
    counts = []
    for value in (loose, strict):
        model = linear(LBFGS(**{**EXACT, option: value}))
        evaluate, seen = counting(model)
        model.optimizer.run(model.layers, evaluate)
        counts.append(len(seen))
    assert counts[0] > counts[1]


def test_what_was_held_at_infinity_or_at_an_error_is_dropped():
    ways = []
    for parts in (1, 2):
        model = linear(LBFGS(max_iter=6))
        evaluate, seen = counting(model, limit=1.5, parts=parts)
        model.forward(np.ones((1, 4)))
        model.backward(np.ones((1, 2)))

        def fails(model=model):
            model.optimizer.accumulate(model.layers)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            model.optimizer.run(model.layers, fails)
        model.optimizer.run(model.layers, evaluate)
        assert np.inf in seen
        ways.append(seen)
    np.testing.assert_allclose(ways[1], ways[0], rtol=1e-8)
    model = linear(LBFGS(max_iter=6))  # which never failed
    evaluate, seen = counting(model, limit=1.5)
    model.optimizer.run(model.layers, evaluate)
    np.testing.assert_allclose(ways[0], seen, rtol=1e-12)


def test_in_the_place_of_infinity_the_search_is_told_a_loss_above_all(monkeypatch):
    told = []

    def search(objective, x, **options):
        told.extend(objective(x + i) for i in range(4))
        return SimpleNamespace(x=x)

    model = linear(LBFGS())
    values = iter([-0.25, 0.125, np.inf, np.nan])
    model.forward(np.ones((1, 4)))
    model.backward(np.ones((1, 2)))
    monkeypatch.setattr(lbfgs, "_minimize", lambda: search)
    assert model.optimizer.run(model.layers, lambda: next(values)) == -0.25
    assert [value for value, _ in told] == [-0.25, 0.125, 1.5, 1.5]
    assert [bool(g.any()) for _, g in told] == [True, True, False, False]


@pytest.mark.parametrize("value", [np.nan, np.inf, ZeroDivisionError()])
def test_an_error_leaves_all_as_it_was(value):
    """A loss that is never finite, or an error in the fourth evaluation."""
    model = linear(LBFGS())
    before = model.get_weights()
    evaluate, seen = counting(model)

    def fails():
        if isinstance(value, float):
            return value
        if len(seen) == 3:
            raise value
        return evaluate()

    with pytest.raises((ZeroDivisionError, DivergenceError)) as caught:
        model.optimizer.run(model.layers, fails)
    if isinstance(value, float):
        assert f"the loss is {value} at step 1: the step was not" in str(caught.value)
        assert (caught.value.path, caught.value.name) == (None, None)
    assert_weights(model, before)
    assert model.optimizer.t == 0


def test_steps_that_change_nothing():
    X, Y = problem()
    model = linear(LBFGS())
    model.layers[0].trainable = False
    before = model.get_weights()
    model.train(X, Y, epochs=1, verbose=0)
    assert_weights(model, before)
    X, Y = problem()
    model = linear(LBFGS())
    model.layers[0].W = np.full((4, 2), 1e200)
    with pytest.warns(match="the loss is inf at step 1"):
        model.train(X, Y, epochs=3, verbose=0)
    assert model.optimizer.t == 0
    assert (model.layers[0].W == 1e200).all()


def test_metrics_accumulated_batches_and_dropout_in_a_step():
    X, y = make_moons(n=120, seed=0)
    model = moons(LBFGS(), metrics=["accuracy"])
    expected = model.evaluate(X, y)
    history = model.train(X, y, epochs=1, verbose=0)
    assert history.metrics["train_accuracy"][0] == expected["accuracy"]
    np.testing.assert_allclose(history[0][0], expected["loss"], rtol=1e-6)
    X, Y = problem(40)
    whole, parts = linear(LBFGS(max_iter=6)), linear(LBFGS(max_iter=6))
    whole.train(X, Y, epochs=2, verbose=0)
    parts.train(X, Y, epochs=2, batch_size=10, accumulate=4, shuffle=False, verbose=0)
    assert parts.optimizer.t == 2
    assert_weights(whole, parts, rtol=1e-5, atol=0)
    X, Y = problem()
    layers, options = (Dense(4, 8), Tanh(), Dropout(0.5), Dense(8, 2)), {"dtype": "float64"}
    model = Sequential(*layers, optimizer=LBFGS(max_iter=40), seed=0, **options)
    losses = [loss for loss, _ in model.train(X, Y, epochs=3, verbose=0)]
    assert len(set(losses)) == 3
    assert model.evaluate(X, Y)["loss"] < losses[0]


def test_averages_follow_its_steps_and_a_bare_step_is_refused():
    X, Y = problem()
    model = linear(LBFGS(max_iter=2, ema=0.25))
    start = model.get_weights()
    model.train(X, Y, epochs=1, verbose=0)
    now = model.get_weights()
    with model.averaged():
        wanted = {path: 0.25 * start[path] + 0.75 * a for path, a in now.items()}
        assert_weights(model, wanted, rtol=1e-12)
    model = linear(LBFGS())
    model.backward(np.ones_like(model.forward(problem()[0])))
    before = model.get_weights()
    with pytest.raises(OrderError, match=r"train with model\.train, or call run\("):
        model.optimizer.step(model.layers)
    assert_weights(model, before)


@pytest.mark.parametrize("option", ["l1", "clip_norm", "clip_value"])
def test_what_bends_the_gradient_is_refused(option):
    with pytest.raises(ArgumentError, match=f"LBFGS does not support {option}"):
        LBFGS(**{option: 0.1})


def test_without_scipy_the_extra_is_named(monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith("scipy"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingExtraError, match=r'LBFGS needs scipy: .*"phitodeep\[lbfgs\]"'):
        LBFGS()


def test_a_pickled_model_goes_on():
    (X, Y), model = problem(), linear(LBFGS(max_iter=2, ema=0.25))
    model.train(X, Y, epochs=2, verbose=0)
    other = pickle.loads(pickle.dumps(model))
    for each in (model, other):
        each.train(X, Y, epochs=2, verbose=0)
    np.testing.assert_array_equal(model.layers[0].W, other.layers[0].W)
    with model.averaged(), other.averaged():
        np.testing.assert_array_equal(model.layers[0].W, other.layers[0].W)
