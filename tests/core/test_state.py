"""State comes out as plain values and goes in again: training continues to the bit."""

import copy
import json
import math
from typing import ClassVar

import numpy as np
import pytest

from phitodeep import Sequential
from phitodeep import layers as nn
from phitodeep.errors import ArgumentError, ArgumentTypeError, OrderError, PhitodeepError
from phitodeep.model.callbacks import Callback, CSVLogger, EarlyStopping, LambdaCallback
from phitodeep.optimization import optimizers
from phitodeep.optimization.schedules import CosineDecay, OneCycle, ReduceOnPlateau, WarmUp
from tests.rows import LONG, few
from tests.test_bad_input import assert_same

rng = np.random.default_rng(7)
X = rng.standard_normal((24, 4)).astype(np.float32)
Y = np.tanh(X[:, :2] + 0.5 * X[:, 2:]) + 0.1 * rng.standard_normal((24, 2)).astype(np.float32)

OPTIONS = {
    **{name: kind for name, kind in optimizers.OPTIMIZERS.items() if kind is not optimizers.LBFGS},
    "lbfgs": lambda: optimizers.LBFGS(max_iter=3, ema=0.5),
    "sgd with momentum": lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "rmsprop with momentum": lambda: optimizers.RMSProp(0.01, momentum=0.9),
    "averages": lambda: optimizers.Adam(0.01, ema=0.8),
    "clipping and penalties": lambda: optimizers.AdamW(
        0.01, clip_norm=0.1, clip_value=0.1, l1=1e-3, l2=1e-3
    ),
    "a schedule": lambda: optimizers.Nadam(OneCycle(0.05, steps=24)),
    "plateau": lambda: optimizers.Adam(ReduceOnPlateau(0.5, factor=0.5, patience=2)),
    "plateau after a warm-up": lambda: optimizers.Adam(WarmUp(ReduceOnPlateau(0.3, patience=1), 6)),
    "groups": lambda: optimizers.Muon(
        0.01,
        ema=0.7,
        groups={
            "0.*": {"alpha": ReduceOnPlateau(0.5, factor=0.5, patience=1)},
            "*.W": {"weight_decay": 0.1},
            "3.*": {"alpha": CosineDecay(0.1, steps=20)},
        },
    ),
}


def net(optimizer="adam", **options):
    """A model with all that a state may hold, built; model files and resumed training use it."""
    inner = nn.Residual(nn.Dense(8, 8), nn.BatchNorm(), nn.Tanh(), nn.Dropout(0.3))
    layers = nn.Dense(4, 8), nn.LayerNorm(), nn.Tanh(), inner, nn.Dropout(0.2), nn.Dense(8, 2)
    options = {"seed": 3, "batch_size": 5, "metrics": ["mae"], **options}
    model = Sequential(*layers, optimizer=optimizer, **options)
    model.build((4,))
    return model


def stored(state):
    """A state through JSON, with copies of its arrays, as a file would keep it."""
    kept = []

    def out(value):  # is called with what JSON does not have
        assert isinstance(value, np.ndarray), (type(value), value)
        assert value.dtype.kind in "fiub"
        kept.append(value.copy())
        return {"array": len(kept) - 1}

    def back(value):
        return kept[value["array"]] if value.keys() == {"array"} else value

    return json.loads(json.dumps(state, default=out), object_hook=back)


def train(model, epochs, **options):
    return list(model.train(X, Y, X, Y, epochs=epochs, verbose=0, **options))


def resumed(make, where, epochs=6, at=3):
    """Train without interruption, and in two parts with a state between: both end alike."""
    states = []

    def keep(model, epoch, logs):
        if epoch == at:
            states.append(stored(model.state_dict()))

    whole = make()
    keeper = LambdaCallback(on_epoch_end=keep)
    if where == "in a callback":
        history = train(whole, epochs, callbacks=[keeper])
    else:
        history = train(whole, at)
        states.append(stored(whole.state_dict()))
        history += train(whole, epochs - at)
    other = make()
    other._set_seed(99)
    other.load_state_dict(states[0])
    assert_same(other.state_dict() | {"callbacks": 0}, states[0] | {"callbacks": 0})
    rest = train(other, epochs - at)
    assert rest == history[at:]
    assert_same(other.state_dict(), whole.state_dict())
    assert_same(other.get_weights(), whole.get_weights())
    if whole.optimizer.ema is not None:
        with whole.averaged(), other.averaged():
            assert_same(other.get_weights(), whole.get_weights())


WHERE = ("in a callback", "between two trainings")
CASES = [
    (name, where, dtype)
    for i, name in enumerate(OPTIONS)
    for j, where in enumerate(WHERE)
    for dtype in few(["float32", "float64"], 1)
    if LONG or i % 2 == j
]


@pytest.mark.parametrize(("name", "where", "dtype"), CASES)
def test_training_continues_to_the_bit(name, where, dtype):
    """Parts, callbacks, frozen layers and more: tests/training/test_resume.py."""
    if name == "lbfgs":
        pytest.importorskip("scipy")
    resumed(lambda: net(OPTIONS[name](), dtype=dtype), where)


def test_a_second_training_begins_early_stopping_afresh_also_after_a_failed_load():
    stop = EarlyStopping(patience=2)
    model = net(optimizers.Adam(0.02), callbacks=[stop])
    train(model, 3)
    state = copy.deepcopy(stop.state_dict())
    assert state["training"] is False
    state["waited"] = -1
    with pytest.raises(ArgumentError, match=r"EarlyStopping\(2\): waited must be >= 0"):
        stop.load_state_dict(state)
    stop.best, stop.waited = -1e9, 1
    train(model, 1)
    assert stop.best > 0
    assert stop.best_epoch == 4


def test_a_state_that_was_loaded_resumes_once():
    states = []
    stop = EarlyStopping(patience=9)
    take = LambdaCallback(on_epoch_end=lambda *_: states.append(stop.state_dict()))
    train(net(optimizers.Adam(0.02)), 3, callbacks=[stop, take])
    other = EarlyStopping(patience=9)
    other.load_state_dict(stored(states[1]))
    assert other.weights is not None
    other.best, other.waited = -1.0, 3
    model = net(optimizers.Adam(0.02))
    train(model, 1, callbacks=[other])
    assert (other.best, other.waited) == (-1.0, 4)
    train(model, 1, callbacks=[other])
    assert (other.best > 0, other.waited) == (True, 0)


def test_a_state_that_a_callback_loads_does_not_reach_the_next_training():
    def back(model, epoch, logs):
        if epoch == 3:
            model.load_state_dict(states[2])
        states[epoch] = model.state_dict()

    states = {}
    stop = EarlyStopping(patience=9)
    model = net(optimizers.Adam(0.02), callbacks=[stop])
    train(model, 3, callbacks=[LambdaCallback(on_epoch_end=back)])
    stop.best, stop.waited = -1.0, 3
    train(model, 1)
    assert (stop.best > 0, stop.waited) == (True, 0)


def test_a_state_is_a_copy():
    model = net(optimizers.Adam(0.02, ema=0.9), callbacks=[EarlyStopping(3)])
    train(model, 2)
    state = model.state_dict()
    kept = copy.deepcopy(state)
    train(model, 1)
    assert_same(state, kept)
    other = net(optimizers.Adam(0.02, ema=0.9), callbacks=[EarlyStopping(3)])
    other.load_state_dict(state)
    train(other, 2)
    assert_same(state, kept)


def test_a_state_says_what_it_is():
    model = net(optimizers.Nadam(0.01, ema=0.5, groups={"0.*": {"alpha": ReduceOnPlateau(0.1)}}))
    model.layers[0].trainable = False
    train(model, 1)
    state = model.state_dict()
    assert state.keys() == {"weights", "optimizer", "callbacks", "epoch", "seed", "frozen"}
    assert (state["epoch"], state["frozen"]) == (1, ["0"])
    assert state["seed"] == {"entropy": 3, "spawn_key": []}
    optimizer = state["optimizer"]
    assert (optimizer["class"], optimizer["t"], optimizer["last_rate"]) == ("Nadam", 5, 0.01)
    assert optimizer["schedules"].keys() == {"groups.0.*.alpha"}
    assert optimizer["parameters"].keys() == {
        path for path in state["weights"] if "running" not in path
    }
    first, last = (optimizer["parameters"][path] for path in ("0.W", "5.W"))
    assert first == {"own": {"t": 0, "product": 1.0}, "slots": {}}
    assert last["own"]["t"] == 5
    assert last["slots"].keys() == {"m", "v", "ema"}
    assert all(a.shape == (8, 2) for a in last["slots"].values())
    other = model.copy()
    other.trainable = True
    other.layers[1].trainable = False
    other.load_state_dict(stored(state))
    assert [layer.trainable for layer in other.layers[:3]] == [False, True, True]


def test_a_bare_optimizer_keeps_and_takes_a_state():
    def layers():
        made = [nn.Dense(3, 4), nn.Tanh(), nn.Dense(4, 2)]
        for i, layer in enumerate(made):
            layer.build((3 if i == 0 else 4,), seed=i, dtype="float64")
        return made

    def step(optimizer, these, k):
        for i, layer in enumerate(these):
            draws = np.random.default_rng([i, k])
            layer.grads = {n: draws.standard_normal(a.shape) for n, a in layer.params.items()}
        optimizer.step(these)

    whole, ours = optimizers.Adam(0.1), layers()
    for k in range(3):
        step(whole, ours, k)
    state, weights = stored(whole.state_dict()), [layer.get_weights() for layer in ours]
    other, theirs = optimizers.Adam(0.1), layers()
    with pytest.raises(OrderError, match=r"needs its layers: call load_state_dict\(state, lay"):
        other.load_state_dict(state)
    other.load_state_dict(state, theirs)
    for layer, w in zip(theirs, weights, strict=True):
        layer.set_weights(w)
    for copied in (other, other.copy()):
        assert_same(copied.state_dict(), state)
    for k in range(3, 6):
        step(whole, ours, k)
        step(other, theirs, k)
    for a, b in zip(ours, theirs, strict=True):
        assert_same(a.get_weights(), b.get_weights())
    whole.load_state_dict(state)  # back, to those that it steps
    assert_same(whole.state_dict(), state)


@pytest.mark.parametrize(
    ("optimizer", "setting", "slots"),
    [
        (optimizers.RMSProp(0.01), "momentum", {"v", "b"}),  # which begins as 0
        (optimizers.Adam(0.01), "ema", {"M", "V"}),  # an average, which begins as its parameter
    ],
    ids=["momentum", "average"],
)
def test_a_slot_that_a_frozen_layer_never_had_begins_as_in_a_first_step(optimizer, setting, slots):
    def make():
        layers = nn.Dense(4, 4), nn.Dense(4, 2)
        return Sequential(*layers, optimizer=optimizer.copy(), seed=0)

    model, other = make(), make()
    train(model, 1)
    model.layers[0].trainable = False
    for each in (model, other):
        setattr(each.optimizer, setting, 0.5)
    train(model, 1)
    state = stored(model.state_dict())
    frozen_slots = state["optimizer"]["parameters"]["0.W"]["slots"]
    assert frozen_slots.keys() == slots
    assert not frozen_slots.get("b", np.zeros(1)).any()
    assert all(frozen_slots[name].any() for name in slots - {"b"})
    other.load_state_dict(state)
    for each in (model, other):
        each.layers[0].trainable = True
        train(each, 2)
    assert_same(other.state_dict(), model.state_dict())


def test_counts_without_slots_are_part_of_a_state():
    class Slowing(optimizers.Optimizer):
        own_start: ClassVar = {"t": 0}

        def update(self, theta, g, lr):
            self.own["t"] += 1
            theta -= lr / self.own["t"] * g

    def make():
        return Sequential(nn.Dense(4, 4), nn.Dense(4, 2), optimizer=Slowing(0.1), seed=0)

    model, other = make(), make()
    train(model, 1)
    state = stored(model.state_dict())
    assert state["optimizer"]["parameters"]["0.W"] == {"own": {"t": 1}, "slots": {}}
    other.load_state_dict(state)
    assert_same(other.state_dict(), state)
    for each in (model, other):
        train(each, 1)
    assert_same(other.get_weights(), model.get_weights())


def test_a_number_that_a_parameter_remembers_is_checked():
    model = net(optimizers.Nadam(0.01))
    train(model, 1)
    state = model.state_dict()
    for product in ("x", None, True, 10**400, -0.5, math.nan):
        state["optimizer"]["parameters"]["5.W"]["own"]["product"] = product
        with pytest.raises(PhitodeepError, match=r"of 5\.W: (own: )?product must be"):
            model.load_state_dict(state)


def _set(*path, to):
    def change(state):
        for key in path[:-1]:
            state = state[key]
        if to is None:
            del state[path[-1]]
        else:
            state[path[-1]] = to

    return change


SPOILED = [
    (_set("epoch", to=None), "the state lacks 'epoch'"),
    (_set("epochs", to=3), "has the unknown 'epochs'. Did you mean 'epoch'"),
    (_set("epoch", to=-1), "epoch must be >= 0"),
    (_set("epoch", to="3"), "epoch must be an integer"),
    (_set("weights", "0.W", to=None), r"of weights lacks '0\.W'"),
    (_set("weights", "0.w", to=0), r"unknown '0\.w'. Did you mean '0\.[bW]'"),
    (_set("weights", "0.W", to=np.ones((8, 4))), r"0\.W must have shape \(4, 8\), got \(8, 4\)"),
    (_set("weights", "0.W", to="no"), r"0\.W takes real numbers"),
    (_set("weights", to=[1]), "weights must be a dict, got list"),
    (_set("seed", to={"entropy": 3}), "of seed lacks 'spawn_key'"),
    (_set("seed", "entropy", to="three"), "seed .* is not valid"),
    (_set("seed", "entropy", to=-3), "seed .* is not valid"),
    (_set("frozen", to=["9"]), "frozen layers has the unknown '9'"),
    (_set("frozen", to="0"), "frozen must be a list"),
    (
        _set("callbacks", 0, "class", to="Other"),
        "the state of a callback 'Other', but the callbacks",
    ),
    (_set("callbacks", 0, "stat", to={}), "has the unknown 'stat'"),
    (_set("callbacks", 0, "state", "best", to="x"), "best must be a number or None, got 'x'"),
    (_set("callbacks", 0, "state", "training", to=1), "training must be a bool"),
    (_set("callbacks", 0, "state", "weights", to=3), "weights must be a dict or None, got 3"),
    (_set("callbacks", 1, "state", "start", to="x"), "start must be an integer, got 'x'"),
    (_set("callbacks", 1, "state", "star", to=3), "unknown 'star'. Did you mean 'start'"),
    (_set("optimizer", to={}), r"lacks 'class', 't', 'last_rate', 'parameters', 'schedules'\.$"),
    (_set("optimizer", "class", to="SGD"), "belongs to class SGD"),
    (_set("optimizer", "t", to=1.5), "t must be an integer"),
    (_set("optimizer", "last_rate", to=-1.0), "last_rate must be >= 0"),
    (_set("optimizer", "parameters", "5.W", to=None), r"the state lacks '5\.W'"),
    (_set("optimizer", "parameters", "6.W", to={}), r"unknown '6\.W'. Did you mean '5\.W'"),
    (_set("optimizer", "parameters", "5.W", "own", to=None), r"of 5\.W lacks 'own'"),
    (_set("optimizer", "parameters", "5.W", "own", to={}), r"of 5\.W lacks 't'"),
    (_set("optimizer", "parameters", "5.W", "own", "t", to=-1), r"of 5\.W: t must be >= 0"),
    (_set("optimizer", "parameters", "5.W", "slots", to=3), r"of 5\.W: slots must be a dict"),
    (_set("optimizer", "parameters", "5.W", "slots", "M", to=None), r"of 5\.W lacks 'M'"),
    (_set("optimizer", "parameters", "5.W", "slots", "V", to=np.ones(3)), r"5\.W: V must have sha"),
    (_set("optimizer", "schedules", "alpha", to=None), "of the schedules lacks 'alpha'"),
    (_set("optimizer", "schedules", "alpha", "after", "rate", to="x"), "rate must be a number"),
    (_set("optimizer", "schedules", "alpha", "after", "best", to="x"), "best must be a number"),
    (_set("optimizer", "schedules", "alpha", to={}), "the state of WarmUp lacks 'after'"),
    (lambda state: state["seed"].update(entropy=None), "seed .* is not valid: it has no entropy"),
    (_set("frozen", to=[[1]]), "frozen layers has the unknown"),
    (_set("optimizer", "class", to=np.zeros(3)), "load it into"),
    (_set("optimizer", "last_rate", to=10**400), "last_rate must be"),
    (_set("callbacks", 0, "state", "best", to=10**400), "best must be a number or None"),
]


def test_a_spoiled_state_is_refused_and_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def make():
        rate = WarmUp(ReduceOnPlateau(0.1, patience=2), 3)
        log = CSVLogger("log.csv")
        return net(optimizers.Adam(rate, ema=0.5), callbacks=[EarlyStopping(5), log])

    model, other, straight = make(), make(), make()
    train(model, 3)
    whole = model.state_dict()
    train(other, 1)
    train(straight, 1)
    before = other.state_dict()
    for spoil, message in SPOILED:
        state = copy.deepcopy(whole)
        spoil(state)
        with pytest.raises(PhitodeepError, match=message):
            other.load_state_dict(state)
        assert_same(other.state_dict(), before)
    assert train(other, 2) == train(straight, 2)
    assert_same(other.state_dict(), straight.state_dict())


def test_states_are_neither_taken_nor_loaded_within_averages():
    model = net(optimizers.Adam(0.02, ema=0.5))
    train(model, 1)
    state = model.state_dict()
    with model.averaged():
        with pytest.raises(OrderError, match="call state_dict outside it"):
            model.state_dict()
        with pytest.raises(OrderError, match="parameters are averages"):
            model.load_state_dict(state)


def test_a_schedule_that_observes_has_a_state():
    class Mine:
        def __call__(self, step):
            return 0.1

        def observe(self, loss):
            pass

    for rate in (Mine(), WarmUp(Mine(), 3)):
        with pytest.raises(ArgumentTypeError, match=r"Mine.* observes losses.*give it state_dict"):
            optimizers.SGD(rate).state_dict()

    class Kept(Mine):
        seen = 0

        def observe(self, loss):
            self.seen += 1

        def state_dict(self):
            return {"seen": self.seen}

        def load_state_dict(self, state):
            self.seen = state["seen"]

    model, kept = net(optimizers.SGD(WarmUp(Kept(), 3))), Kept()
    train(model, 2)
    other = net(optimizers.SGD(WarmUp(kept, 3)))
    other.load_state_dict(stored(model.state_dict()))
    assert kept.seen == 2


def test_a_callback_of_ones_own_has_a_state():
    class Counter(Callback):
        def __init__(self):
            self.n = 0

        def on_epoch_end(self, model, epoch, logs):
            self.n += 1

        def state_dict(self):
            return {"n": self.n}

        def load_state_dict(self, state):
            self.n = state["n"]

    model, counter = net(optimizers.Adam(), callbacks=[Counter(), LambdaCallback()]), Counter()
    train(model, 2)
    other = net(optimizers.Adam(), callbacks=[counter, LambdaCallback()])
    state = stored(model.state_dict())
    assert state["callbacks"] == [{"class": "Counter", "state": {"n": 2}}]
    other.load_state_dict(state)
    assert counter.n == 2
    state["callbacks"] = [
        {"class": "Counter", "state": {"n": 7}},
        {"class": "LambdaCallback", "state": {"m": 1}},
    ]
    with pytest.raises(ArgumentError, match=r"LambdaCallback\(\) has the unknown 'm'"):
        other.load_state_dict(state)
    assert counter.n == 2
