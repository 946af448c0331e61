"""Learning rates: their values by hand, and what every schedule promises."""

import copy
import inspect
import json
import math
import pickle

import numpy as np
import pytest

from phitodeep import Dense, PhitodeepError, Sequential
from phitodeep.optimization import schedules

EXAMPLES = {
    "Constant": lambda: schedules.Constant(0.3),
    "StepDecay": lambda: schedules.StepDecay(0.8, 3, 0.5),
    "ExponentialDecay": lambda: schedules.ExponentialDecay(0.8, 4, 0.25),
    "InverseTimeDecay": lambda: schedules.InverseTimeDecay(0.6, 0.5),
    "PolynomialDecay": lambda: schedules.PolynomialDecay(1.0, 4, 0.2, 2.0),
    "CosineDecay": lambda: schedules.CosineDecay(1.0, 6, 0.2),
    "WarmUp": lambda: schedules.WarmUp(schedules.StepDecay(0.8, 2, 0.5), 4),
    "OneCycle": lambda: schedules.OneCycle(1.0, 10, up=0.4, divide=10.0, divide_last=100.0),
    "ReduceOnPlateau": lambda: schedules.ReduceOnPlateau(0.5, patience=2),
}
every = pytest.mark.parametrize("make", EXAMPLES.values(), ids=EXAMPLES)


def test_every_public_schedule_is_tested():
    public = {
        name
        for name, kind in vars(schedules).items()
        if inspect.isclass(kind) and kind.__module__ == schedules.__name__ and callable(kind)
    }
    helpers = {"Observer", "_Schedule"}
    assert public - helpers == set(EXAMPLES)


VALUES = [
    ("Constant", [0.3, 0.3, 0.3]),
    ("StepDecay", [0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.2]),
    ("ExponentialDecay", [0.8, 0.8 / math.sqrt(2), 0.4, 0.4 / math.sqrt(2), 0.2]),
    ("InverseTimeDecay", [0.6, 0.4, 0.3, 0.24, 0.2]),
    ("PolynomialDecay", [1.0, 0.65, 0.4, 0.25, 0.2, 0.2, 0.2]),
    ("CosineDecay", [1.0, 0.6 + 0.2 * math.sqrt(3), 0.8, 0.6, 0.4, 0.6 - 0.2 * math.sqrt(3)]),
    ("WarmUp", [0.2, 0.4, 0.6, 0.8, 0.8, 0.8, 0.4, 0.4, 0.2]),
    ("ReduceOnPlateau", [0.5, 0.5, 0.5]),
]


@pytest.mark.parametrize(("name", "expected"), VALUES, ids=[name for name, _ in VALUES])
def test_values_by_hand(name, expected):
    schedule = EXAMPLES[name]()
    np.testing.assert_allclose([schedule(i) for i in range(len(expected))], expected, rtol=1e-12)


def test_the_ends_of_decays_stay():
    for schedule in (schedules.PolynomialDecay(1.0, 4, 0.2), schedules.CosineDecay(1.0, 4, 0.2)):
        assert [round(schedule(i), 12) for i in (4, 5, 1000)] == [0.2] * 3
    assert schedules.PolynomialDecay(1.0, 10)(5) == 0.5  # linear, to 0, unless told otherwise
    assert schedules.CosineDecay(2.0, 10)(10) == pytest.approx(0, abs=1e-15)
    assert [schedules.WarmUp(0.4, 4)(i) for i in range(6)] == pytest.approx(
        [0.1, 0.2, 0.3, 0.4, 0.4, 0.4]
    )


@pytest.mark.parametrize(("steps", "up"), [(100, 0.3), (7, 0.33), (10, 0.0), (1000, 0.05)])
def test_one_cycle_goes_up_and_down_along_cosines(steps, up):
    schedule = schedules.OneCycle(0.5, steps, up=up, divide=10.0, divide_last=100.0)
    top, defaults = up * steps, schedules.OneCycle(0.5, steps)
    for i in range(steps):
        if i < top:
            expected = 0.05 + 0.45 * (1 - math.cos(math.pi * i / top)) / 2
        else:
            along = (i - top) / (steps - top)
            expected = 0.005 + 0.495 * (1 + math.cos(math.pi * along)) / 2
        assert schedule(i) == pytest.approx(expected, rel=1e-12), i
    assert schedule(steps + 500) == pytest.approx(0.005, rel=1e-12)
    assert (defaults(0), defaults(steps)) == pytest.approx((0.02, 5e-5), rel=1e-12)


@every
def test_schedules_and_their_copies_are_pure_and_give_python_floats(make):
    schedule = make()
    for step in (0, 1, 5, 10**7):
        assert type(schedule(step)) is float
        assert math.isfinite(schedule(step))
        assert schedule(step) >= 0
        assert schedule(step) == schedule(step)
    for twin in (make(), copy.deepcopy(schedule), pickle.loads(pickle.dumps(schedule))):
        assert [twin(i) for i in range(20)] == [schedule(i) for i in range(20)]
        if not isinstance(schedule, schedules.ReduceOnPlateau):
            assert twin == schedule
            assert repr(twin) == repr(schedule)


def heard(schedule, losses):
    rates = []
    for loss in losses:
        schedule.observe(loss)
        rates.append(schedule(0))
    return rates


def test_reduce_on_plateau_by_hand():
    """It waits for `patience` epochs again after each reduction."""
    schedule = schedules.ReduceOnPlateau(0.8, factor=0.5, patience=2, min_delta=0.1, alpha_min=0.15)
    losses = [1.0, 0.95, 0.85, 0.8, 0.75, 0.5, math.nan, 0.45, 0.45, 0.45, 0.45, 0.45, 0.2]
    rates = [0.8, 0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.2, 0.2, 0.15, 0.15, 0.15, 0.15]
    assert heard(schedule, losses) == pytest.approx(rates)
    rates = [1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01]
    schedule = schedules.ReduceOnPlateau(1.0, factor=0.1, patience=3)
    assert heard(schedule, [1.0] * 8) == pytest.approx(rates)


X = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)


def plateau(alpha):
    """The rates of a training whose loss cannot fall."""
    model = Sequential(Dense(3, 1), optimizer="sgd", alpha=alpha, seed=0, batch_size=10)
    return model.train(X, np.zeros(20), epochs=5, shuffle=False, verbose=0).rates


def test_training_follows_the_schedule_and_passes_it_each_epochs_loss():
    rates = plateau(schedules.ReduceOnPlateau(1e-30, factor=0.5, patience=2))
    assert rates == [1e-30, 1e-30, 1e-30, 5e-31, 5e-31]
    told = []

    class Listening(schedules.ReduceOnPlateau):
        def observe(self, loss):
            told.append(loss)

    model = Sequential(Dense(3, 1), alpha=Listening(0.01), seed=0)
    history = model.train(X, np.zeros(20), epochs=3, verbose=0)
    assert told == [train for train, _ in history]
    told.clear()
    history = model.train(X, np.zeros(20), X[:5], np.ones(5), epochs=3, verbose=0)
    assert told == [test for _, test in history]
    schedule = schedules.WarmUp(schedules.ReduceOnPlateau(1e-30, factor=0.5, patience=1), 1)
    assert plateau(schedule)[-1] < 1e-30
    schedule = schedules.CosineDecay(0.1, 10)
    model = Sequential(Dense(3, 1), alpha=schedule, seed=0, batch_size=10)
    history = model.train(X, np.zeros(20), epochs=3, verbose=0)
    assert history.rates == [schedule(1), schedule(3), schedule(5)]


RATE = [-1.0, math.nan, math.inf, "1", None, True]
COUNT = [0, -1, 2.5, "1", None, True]
POSITIVE = [0.0, *RATE]
ONE = {"alpha": 1.0}
BAD = [
    ("Constant", {}, {"alpha": RATE}),
    ("StepDecay", {**ONE, "every": 2}, {"alpha": RATE, "every": COUNT, "factor": POSITIVE}),
    ("ExponentialDecay", {**ONE, "steps": 2}, {"alpha": RATE, "steps": COUNT, "factor": POSITIVE}),
    ("InverseTimeDecay", ONE, {"rate": RATE}),
    ("PolynomialDecay", {**ONE, "steps": 2}, {"alpha_min": RATE, "power": POSITIVE}),
    ("PolynomialDecay", ONE, {"steps": COUNT}),
    ("CosineDecay", {**ONE, "steps": 2}, {"alpha": RATE, "steps": COUNT, "alpha_min": RATE}),
    ("WarmUp", {"after": 1.0, "steps": 2}, {"steps": COUNT, "after": RATE}),
    ("OneCycle", {**ONE, "steps": 2}, {"divide": POSITIVE, "divide_last": POSITIVE}),
    ("OneCycle", {**ONE, "steps": 2}, {"up": [1.0, *RATE], "steps": COUNT}),
    ("ReduceOnPlateau", ONE, {"alpha": RATE, "factor": [1.0, 1.5, *POSITIVE], "patience": COUNT}),
    ("ReduceOnPlateau", ONE, {"min_delta": RATE, "alpha_min": [2.0, *RATE]}),
]


@pytest.mark.parametrize(("name", "given", "fields"), BAD)
def test_a_wrong_setting_is_refused_where_it_is_made(name, given, fields):
    for field, bad in [(field, bad) for field, values in fields.items() for bad in values]:
        with pytest.raises(PhitodeepError, match=rf"{name} {field}") as caught:
            vars(schedules)[name](**{**given, field: bad})
        assert isinstance(caught.value, ValueError | TypeError)


def test_a_plateau_goes_on_from_its_state():
    def plateau():
        return schedules.ReduceOnPlateau(0.5, factor=0.5, patience=3, min_delta=0.1)

    whole, losses = plateau(), [3.0, 2.0, 2.5, 1.95, 1.9, 1.0, 1.1, math.inf, 0.95, 0.95, 0.95, 0.2]
    for k in range(len(losses)):
        other, rest = plateau(), copy.deepcopy(whole)
        outer = schedules.WarmUp(other, 2)
        outer.load_state_dict(json.loads(json.dumps(schedules.WarmUp(whole, 2).state_dict())))
        assert vars(other) == vars(whole)
        for loss in losses[k:]:
            rest.observe(loss)
            outer.observe(loss)
            assert vars(other) == vars(rest)
        whole.observe(losses[k])
    assert whole.rate < 0.5
    assert schedules.WarmUp(0.1, 3).state_dict() == {}
    schedules.WarmUp(0.1, 3).load_state_dict({})
    with pytest.raises(PhitodeepError, match="the state of WarmUp"):
        schedules.WarmUp(0.1, 3).load_state_dict({"after": {}})
