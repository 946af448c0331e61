"""Every optimizer against PyTorch's trajectories, and what they all promise."""

import copy
import inspect
import pickle
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from phitodeep import BatchNorm, Chain, Dense, Layer, LayerNorm, PReLU, Residual, Sequential, Tanh
from phitodeep.errors import ArgumentError, ArgumentTypeError, OrderError, PhitodeepError
from phitodeep.loss import MeanSquaredError
from phitodeep.optimization import base, optimizers
from phitodeep.optimization.gradient_sync import GradientSync
from phitodeep.optimization.optimizers import OPTIMIZERS, SGD, Adam, AdamW, Muon, Optimizer
from phitodeep.testing import examples
from phitodeep.testing.references import (
    compare,
    construct,
    give,
    optimizer_cases,
    referenced,
    trajectories,
)
from tests.conftest import assert_same, check_refused, refusals

CASES, START, GRADIENTS = optimizer_cases(), trajectories()["start"], trajectories()["gradients"]
STEPS = 12


OWN = {"0.W": {"alpha": 0.3}, "*.W": {"weight_decay": 0.4}, "1.*": {"alpha": 0.0}}  # groups

RULES = {  # LBFGS takes a loss instead: see test_lbfgs.py
    name: partial(getattr(optimizers, name), **settings)
    for name, settings in examples.OPTIMIZERS.items()
    if not getattr(optimizers, name).evaluates_often
}
every = pytest.mark.parametrize("make", RULES.values(), ids=RULES)


def values(layers):
    """Copies of all parameters, by path."""
    return {
        f"{path}.{name}": a.copy()
        for i, top in enumerate(layers)
        for path, layer in top.walk(str(i))
        for name, a in layer.params.items()
    }


def advance(optimizer, layers, steps):
    for step in steps:
        give(layers, step)
        optimizer.step(layers)


class Spread(GradientSync):
    """Remembers what each step gives to the other ranks."""

    def spread(self, theta):
        self.theta = theta.copy()


@every
def test_a_step_ends_by_giving_the_new_parameters_to_all_ranks(make):
    optimizer, layers = make(ema=0.9), referenced()
    optimizer._sync = Spread()
    advance(optimizer, layers, range(2))
    np.testing.assert_array_equal(optimizer._sync.theta, optimizer._pack(layers).theta)


def test_every_public_optimizer_is_tested():
    public = {
        name
        for name, kind in vars(optimizers).items()
        if inspect.isclass(kind) and issubclass(kind, Optimizer) and kind is not Optimizer
    }
    assert public - {"LBFGS"} == set(RULES) == {case.partition("(")[0] for case in CASES}
    assert OPTIMIZERS == {name.lower(): getattr(optimizers, name) for name in public}
    unchecked = set[str]().union(*map(settings_of, OPTIMIZERS.values())) - set(BAD)
    assert unchecked == {"self", "nesterov", "groups", "adjust_lr_fn", "common", "options"}


@pytest.mark.parametrize("case", CASES)
def test_trajectory_equals_pytorch_and_memory_keeps_float32(case):
    for dtype in ("float64", "float32"):
        assert compare("optimizer", case, dtype)[1] == []
    assert {len(a) for a in CASES[case].values()} == {STEPS}
    optimizer = construct(case, optimizers)
    layers = referenced(np.float32)
    for step in range(STEPS):
        advance(optimizer, layers, [step])
        assert optimizer.t == step + 1
    for path, slots in optimizer.memory().items():
        for name, a in slots.items():
            assert a.dtype == np.float32, (path, name)


def quadratic(optimizer, start, steps, bottom=5.0):
    """The way of w on (w - bottom)^2."""
    layer = Dense(1, 1, bias=False)
    layer.cast("float64")
    layer.W = [[start]]
    way = [start]
    for _ in range(steps):
        layer.grads = {"W": 2 * (layer.W - bottom)}
        optimizer.step([layer])
        way.append(float(layer.W[0, 0]))
    return way


@every
def test_every_rule_comes_to_the_bottom(make):
    optimizer = make()
    assert abs(quadratic(optimizer, 4.0, 500, bottom=3.0)[-1] - 3.0) < 0.05
    assert optimizer.t == 500


def nested():
    """Layers of which only the weight matrices decay."""
    net = [Dense(3, 3), PReLU(), Residual(Dense(3, 3), BatchNorm()), Chain(LayerNorm(), Dense(3))]
    layers = [*net]
    rng = np.random.default_rng(3)
    for i, layer in enumerate(layers):
        layer.build((3,), seed=i, dtype="float64")
        layer.set_weights({k: rng.uniform(1, 2, a.shape) for k, a in layer.get_weights().items()})
    return layers


def zero_gradients(layers):
    for top in layers:
        for _, layer in top.walk():
            layer.grads = {name: np.zeros_like(a) for name, a in layer.params.items()}


@pytest.mark.parametrize("option", ["weight_decay", "l1", "l2"])
@every
def test_decay_and_penalties_spare_biases_and_norms(make, option):
    layers, optimizer = nested(), make()
    optimizer.weight_decay = 0.0
    setattr(optimizer, option, 0.3)
    before = values(layers)
    zero_gradients(layers)
    optimizer.step(layers)
    moved = {p for p, a in values(layers).items() if not np.array_equal(a, before[p])}
    assert moved == {"0.W", "2.layers.0.W", "3.layers.1.W"}
    if isinstance(optimizer, Muon) and option != "weight_decay":  # it turns what pulls
        assert all(np.linalg.norm(values(layers)[p]) < np.linalg.norm(before[p]) for p in moved)
    else:
        assert all((values(layers)[path] < before[path]).all() for path in moved)


def test_the_values_of_decay_and_penalties():
    for options, expected in (
        ({"weight_decay": 0.5}, lambda w: w * (1 - 0.1 * 0.5)),
        ({"l2": 0.5}, lambda w: w - 0.1 * 0.5 * w),
        ({"l1": 0.5}, lambda w: w - 0.1 * 0.5 * np.sign(w)),
        ({"l1": 0.5, "l2": 0.2}, lambda w: w - 0.1 * (0.5 * np.sign(w) + 0.2 * w)),
    ):
        layers = referenced()
        wanted = {p: expected(w) if p.endswith("W") else w for p, w in values(layers).items()}
        zero_gradients(layers)
        SGD(0.1, **options).step(layers)
        assert_same(values(layers), wanted, rtol=1e-14)
    decays = [rule.weight_decay for rule in (Adam(), AdamW(), AdamW(0.1, weight_decay=0.3))]
    assert decays == [0, 0.01, 0.3]


@pytest.mark.parametrize(
    "options",
    [{"clip_norm": 0.1}, {"clip_value": 0.1}, {"l1": 1.0, "l2": 1.0, "weight_decay": 0.5}],
    ids=str,
)
@every
def test_the_layers_gradients_stay_as_they_are(make, options):
    layers, optimizer = referenced(), make()
    vars(optimizer).update(options)
    give(layers, 0)
    arrays = [a for layer in layers for a in layer.grads.values()]
    copies = [a.copy() for a in arrays]
    optimizer.step(layers)
    left = {f"{i}.{k}": a for i, layer in enumerate(layers) for k, a in layer.grads.items()}
    assert_same(left, {path: GRADIENTS[path][0] for path in values(layers)})
    for a, b in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_frozen_layer_has_no_share_in_the_clip_norm_and_needs_no_gradient():
    alone, layers = referenced()[:2], referenced()
    layers[2].trainable = False
    for these in (alone, layers):
        give(these, 0)
    layers[2].grads = {}
    SGD(0.1, clip_norm=1.0).step(alone)
    SGD(0.1, clip_norm=1.0).step(layers)
    after = values(layers)
    assert_same(values(alone) | {p: START[p] for p in ("2.W", "2.b")}, after)
    for layer in layers:
        layer.trainable = False
    Adam().step([*layers, Tanh()])  # nothing learns
    assert_same(values(layers), after)


@every
def test_writing_a_parameter_is_seen_by_the_next_step(make):
    by_write, by_dict = (referenced() for _ in range(2))
    one, other = make(), make()
    new = np.arange(12.0).reshape(4, 3) / 7
    for optimizer, layers in ((one, by_write), (other, by_dict)):
        advance(optimizer, layers, range(3))
    kept = by_write[0].params["W"]
    by_write[0].W = new
    assert by_write[0].params["W"] is kept
    by_dict[0].params["W"] = new.copy()  # no longer a view: the next step packs again
    for optimizer, layers in ((one, by_write), (other, by_dict)):
        advance(optimizer, layers, range(3, 6))
    assert_same(values(by_write), values(by_dict))
    assert not np.array_equal(by_write[0].W, new)
    assert by_dict[0].params["W"].base is by_dict[1].params["gamma"].base


Interrupt = Callable[[Optimizer, list[Layer]], tuple[Optimizer, list[Layer]]]


def _frozen_and_back(optimizer, layers):
    layers[0].trainable = False
    packed = optimizer._pack(layers)
    assert not any(path.startswith("0.") for path in packed.pieces)
    layers[0].trainable = True
    return optimizer, layers


def _cast_and_back(optimizer, layers):
    exact = values(layers)  # nothing is lost: these arrays are replaced by equal ones
    for i, layer in enumerate(layers):
        layer.cast("float32")
        layer.cast("float64")
        for name in layer.params:
            setattr(layer, name, exact[f"{i}.{name}"])
    return optimizer, layers


def _replace(optimizer, layers):
    for layer in layers:
        for name, a in layer.params.items():
            layer.params[name] = a.copy()
    return optimizer, layers


INTERRUPTS = {
    "frozen": _frozen_and_back,
    "cast": _cast_and_back,
    "replaced": _replace,
    "deepcopy": lambda *both: copy.deepcopy(both),
    "copies": lambda optimizer, layers: (optimizer.copy(), [layer.copy() for layer in layers]),
    "pickled": lambda *both: pickle.loads(pickle.dumps(both)),
    "pickled twice": lambda *both: pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(both)))),
}


@pytest.mark.parametrize("groups", [None, OWN], ids=["", "groups"])
@every
def test_an_interruption_leaves_no_trace(make, groups):
    straight, layers = make(), referenced()
    straight.groups = copy.deepcopy(groups)
    advance(straight, layers, range(STEPS))
    for name, interrupted in INTERRUPTS.items():
        optimizer, others = make(), referenced()
        optimizer.groups = copy.deepcopy(groups)
        advance(optimizer, others, range(5))
        was = values(others)
        optimizer, others = interrupted(optimizer, others)
        assert_same(values(others), was)
        advance(optimizer, others, range(5, STEPS))
        rounding = 1e-12 if name == "cast" else 0
        assert_same(values(others), values(layers), rtol=rounding)
        assert optimizer.t == STEPS
        assert optimizer.groups == groups


def test_casting_to_float32_keeps_the_moments():
    optimizer, layers = Adam(0.05), referenced()
    advance(optimizer, layers, range(5))
    memory = optimizer.memory()
    for layer in layers:
        layer.cast("float32")
    optimizer._pack(layers)
    for path, slots in optimizer.memory().items():
        assert slots.keys() == {"M", "V"}
        for name, a in slots.items():
            assert a.dtype == np.float32
            np.testing.assert_array_equal(a, memory[path][name].astype(np.float32))


def test_a_rule_remembers_what_it_needs_by_these_names():
    slots_of = {"SGD()": "", "SGD(momentum=0.9)": "v", "Adam()": "M V", "Nadam()": "m v"}
    slots_of |= {"RMSProp()": "v", "RMSProp(momentum=0.9)": "v b", "Adagrad()": "v", "Lion()": "m"}
    for call, slots in {**slots_of, "Adadelta()": "v d"}.items():
        optimizer = construct(call, optimizers)
        advance(optimizer, referenced(), [0])
        for remembered in optimizer.memory().values():
            assert set(remembered) == set(slots.split())


@every
def test_accumulated_gradients_add_up_to_one_big_batch(make):
    rng = np.random.default_rng(1)
    X, T = rng.standard_normal((10, 3)), rng.standard_normal((10, 2))
    big, loss = Chain(Dense(3, 4), Tanh(), Dense(4, 2)), MeanSquaredError()
    big.build((3,), seed=0, dtype="float64")
    small = big.copy()
    one, other = make(), make()

    def backward(model, rows):
        P = model.forward(X[rows])
        model.backward(loss.loss_gradient(P, T[rows], total=20))

    for _ in range(3):
        backward(big, slice(None))
        one.step(big.layers)
        for rows in (slice(4), slice(4, 8)):
            backward(small, rows)
            other.accumulate(small.layers)
        backward(small, slice(8, None))
        other.step(small.layers)
    assert one.t == other.t == 3
    assert_same(small.get_weights(), big.get_weights(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, -0.1, np.inf, "fast"])
def test_a_bad_rate_from_a_schedule_is_refused_before_anything_changes(bad):
    layers, optimizer = referenced(), Adam(lambda step: 0.1 if step < 2 else bad)
    advance(optimizer, layers, range(2))
    before, memory = values(layers), optimizer.memory()
    give(layers, 2)
    with pytest.raises(PhitodeepError, match="at step 2") as caught:
        optimizer.step(layers)
    assert isinstance(caught.value, ValueError | TypeError)
    assert optimizer.t == 2
    assert_same(values(layers), before)
    assert_same(optimizer.memory(), memory)


BAD_NUMBERS = [-0.1, np.nan, np.inf, "1", None, True, [1]]
NO_NONE = [bad for bad in BAD_NUMBERS if bad is not None]
REFUSED = {  # values that these settings refuse in every rule
    "alpha weight_decay l1 l2 psi adam_ratio tolerance_grad tolerance_change": BAD_NUMBERS,
    "beta1 beta2 rho momentum": [1, 1.0, 1.5, *BAD_NUMBERS],
    "clip_norm clip_value": [0, *NO_NONE],
    "ns_steps max_iter history_size": [0, -1, 2.5, *BAD_NUMBERS[3:]],
    "eps": [0, *BAD_NUMBERS],
    "ema": [1, *NO_NONE],
}
BAD = {option: bad for options, bad in REFUSED.items() for option in options.split()}


def settings_of(kind):
    makers = [each.__init__ for each in kind.__mro__ if issubclass(each, Optimizer)]
    return {name for make in makers for name in inspect.signature(make).parameters}


@pytest.mark.parametrize("kind", OPTIMIZERS.values())
def test_bad_settings_are_refused(kind):
    with pytest.raises(ArgumentError, match="nesterov needs momentum"):
        SGD(nesterov=True)
    for option, bad in [(name, bad) for name in settings_of(kind) for bad in BAD.get(name, ())]:
        with pytest.raises(PhitodeepError, match=rf"\b{option}\b") as caught:
            kind(**{option: bad})
        wrong_type = isinstance(bad, bool | str | list) or bad is None or bad == 2.5
        assert type(caught.value) is (ArgumentTypeError if wrong_type else ArgumentError)


def test_one_optimizer_for_two_models_is_refused():
    optimizer = Adam()
    model = Sequential(Dense(2, 3), optimizer=optimizer)
    with pytest.raises(ArgumentError, match=r"Adam\(\).*another model"):
        Sequential(Dense(2, 3), optimizer=optimizer)
    other = Sequential(Dense(2, 3))
    theirs = other.optimizer
    with pytest.raises(ArgumentError, match="another model"):
        other.setoptimizer(optimizer)
    assert other.optimizer is theirs
    assert model.optimizer is optimizer
    Sequential(Dense(2, 3), optimizer=optimizer.copy())
    model.setoptimizer(optimizer)  # its own again
    model.setoptimizer("sgd")  # which frees the first one
    assert Sequential(Dense(2, 3), optimizer=optimizer).optimizer is optimizer


def test_an_optimizer_is_free_after_a_model_that_was_refused():
    for wrong in (
        *({"alpha": -1.0}, {"metrics": ["none"]}, {"dtype": "int8"}, {"seed": -1}),
        *({"batch_size": 0}, {}),
    ):
        optimizer = Adam()
        last = [] if wrong else [Dense(4, 1)]  # a size that does not fit
        with pytest.raises(PhitodeepError) as caught:
            Sequential(Dense(2, 3), *last, optimizer=optimizer, **wrong)
        assert caught.tb is not None  # as in a shell, whose last traceback keeps the model
        assert Sequential(Dense(2, 3), Dense(3, 1), optimizer=optimizer).optimizer is optimizer


def test_a_replicas_gradients_are_its_own():
    layers, optimizer = referenced(), SGD(0.1)
    advance(optimizer, layers, [0])
    twins = [layer._replica() for layer in layers]
    before = values(layers)
    give(twins, 1)
    optimizer.step(twins)
    expected = {path: a - 0.1 * GRADIENTS[path][1] for path, a in before.items()}
    assert_same(values(twins), expected, rtol=1e-13, atol=1e-15)


def stepped(model):
    model.backward(np.ones_like(model.forward(np.ones((2, 2)))))
    model.optimizer.step(model.layers)


@pytest.mark.parametrize("steps", [1, 0], ids=["after steps of its own", "before any step"])
def test_step_on_another_models_layers_is_refused(steps):
    model, other = Sequential(Dense(2, 3)), Sequential(Dense(2, 3))
    for _ in range(steps):
        stepped(model)
    stepped(other)
    before = values(other.layers)
    with pytest.raises(ArgumentError, match="another model"):
        model.optimizer.step(other.layers)
    assert_same(values(other.layers), before)
    stepped(model)
    stepped(other)
    assert not np.array_equal(values(other.layers)["0.W"], before["0.W"])


def spoiled(i, name, gradient):
    """Layers of which one lacks a gradient, or has another one."""
    layers = referenced()
    give(layers, 0)
    layers[i].grads[name] = gradient
    layers[i].grads = {k: g for k, g in layers[i].grads.items() if g is not None}
    return layers


REFUSED_STEPS = refusals(r"""
spoiled(1, "beta", None) -> BackwardError: no gradient for 1\.beta: LayerNorm\(\)
spoiled(2, "b", np.zeros((2, 1))) -> ShapeError: gradient of 2\.b has shape \(2, 1\).* \(2,\)
[Dense(2, 3)] -> BackwardError: no gradient for 0\.W
[Dense(3)] -> NotBuiltError: Dense\(3\)
[referenced()[0], Dense(3, 2)] -> ArgumentTypeError: several dtypes
""")


@pytest.mark.parametrize(("layers", "error"), REFUSED_STEPS)
def test_a_refused_step_changes_nothing(layers, error):
    given, optimizer = eval(layers, globals()), Adam()
    before = values(given)
    check_refused("step(given)", error, {"step": optimizer.step, "given": given})
    after = values(given)
    assert_same({path: after[path] for path in before}, before)  # others may be made now
    assert optimizer.t == 0


def test_a_rule_of_ones_own_is_one_method():
    class Signs(Optimizer):
        def update(self, theta, g, lr):
            theta -= lr * np.sign(g)

    layers = referenced()
    advance(Signs(0.5), layers, [0])
    assert_same(values(layers), {p: a - 0.5 * np.sign(GRADIENTS[p][0]) for p, a in START.items()})


def averages(optimizer, layers):
    with optimizer.averaged(layers):
        return values(layers)


@every
def test_averages_are_a_running_mean_that_begins_as_the_parameters(make):
    layers, optimizer, plain, others = referenced(), make(), make(), referenced()
    optimizer.ema = 0.8
    expected = values(layers)
    for step in range(STEPS):
        advance(optimizer, layers, [step])
        advance(plain, others, [step])
        assert_same(values(layers), values(others))  # the averages change nothing
        for path, a in values(layers).items():
            expected[path] = 0.8 * expected[path] + 0.2 * a
        assert_same(averages(optimizer, layers), expected, rtol=1e-12)


def test_parameters_come_back_to_the_bit_also_after_an_error():
    layers, optimizer = referenced(np.float32), Adam(0.05, ema=0.5)
    advance(optimizer, layers, range(3))
    before, memory = values(layers), optimizer.memory()
    lent = averages(optimizer, layers)
    assert lent["0.W"].dtype == np.float32
    assert not np.array_equal(lent["0.W"], before["0.W"])
    with pytest.raises(ZeroDivisionError), optimizer.averaged(layers):
        raise ZeroDivisionError
    assert_same(values(layers), before)
    assert {slots["ema"].dtype for slots in memory.values()} == {np.dtype(np.float32)}
    assert_same(optimizer.memory(), memory)
    advance(optimizer, layers, [3])
    assert optimizer.t == 4


def test_within_averages_nothing_is_trained():
    layers, optimizer = referenced(), SGD(0.1, ema=0.9)
    advance(optimizer, layers, range(2))
    before = values(layers)
    give(layers, 2)
    with optimizer.averaged(layers):
        for refused in (optimizer.step, optimizer.accumulate, optimizer._pack):
            with pytest.raises(OrderError, match="train outside"):
                refused(layers)
        with pytest.raises(OrderError, match="parameters are averages"), optimizer.averaged(layers):
            pass
        twin, twins = copy.deepcopy((optimizer, layers))  # a model of its own, of averages
    assert_same(values(layers), before)
    assert not np.array_equal(values(twins)["0.W"], before["0.W"])
    advance(twin, twins, [2])
    advance(optimizer, layers, [2])


def test_averages_that_are_not_there_are_an_error():
    layers, stepped = referenced(), SGD(0.1)
    advance(stepped, layers, [0])
    for optimizer, message in (
        (stepped, "create it with ema"),
        (SGD(0.1), r"SGD\(0.1\) has no averages yet: create it with ema"),
        (SGD(0.1, ema=0.9), "has no averages yet: train first"),
    ):
        with pytest.raises(OrderError, match=message), optimizer.averaged(layers):
            pass


def test_averages_may_be_asked_for_later():
    layers, optimizer = referenced(), SGD(0.1)
    advance(optimizer, layers, range(2))
    before, optimizer.ema = values(layers), 0.5
    advance(optimizer, layers, [2])
    wanted = {path: (before[path] + a) / 2 for path, a in values(layers).items()}
    assert_same(averages(optimizer, layers), wanted, rtol=1e-13)


def test_a_model_lends_its_averages():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 3))
    y = X @ rng.standard_normal((3, 1))
    model = Sequential(Dense(3, 4), Tanh(), Dense(4, 1), optimizer=Adam(0.05, ema=0.9), seed=0)
    with pytest.raises(OrderError, match="train first"), model.averaged():
        pass
    model.train(X, y, epochs=20, batch_size=8, verbose=0)
    plain = model.evaluate(X, y)
    with model.averaged() as same:
        assert same is model
        mean = model.evaluate(X, y)
        with pytest.raises(OrderError, match="train outside"):
            model.train(X, y, epochs=1, verbose=0)
    assert mean != plain
    assert model.evaluate(X, y) == plain
    for other in (model.copy(), pickle.loads(pickle.dumps(model))):
        assert other.evaluate(X, y) == plain
        with other.averaged():
            assert other.evaluate(X, y) == mean
        other.train(X, y, epochs=1, batch_size=8, verbose=0)


def test_adam_computes_in_blocks(monkeypatch):
    monkeypatch.setattr(base, "BLOCK", 5)
    model = Sequential(Dense(3, 4), optimizer=Adam(), seed=1)
    model.train(np.ones((2, 3)), np.ones((2, 4)), epochs=1, verbose=0)
    assert [a.shape for a in model.optimizer._scratch.values()] == [(5,)]


@pytest.mark.parametrize("make", [Adam, partial(SGD, momentum=0.9), partial(AdamW, ema=0.5)])
def test_memory_that_fades_becomes_0_before_it_is_slow(make):
    layer, optimizer = Dense(2), make(alpha=1e-30)
    layer.build((1,), dtype=np.float32)
    layer.W[...] = 0
    slow = []  # whether any number was too small, after each step
    for step in range(1, 1025):
        layer.grads = {"W": np.float32([[step < 3, 1e-3]]), "b": np.zeros(2, np.float32)}
        optimizer.step([layer])
        tiny = np.finfo(np.float32).tiny
        slow.append(any(A[np.abs(A) < tiny].any() for A in optimizer._slots.values()))
    assert slow[-2:] == [True, False]
    assert all(A.any() for A in optimizer._slots.values())


def test_a_rule_of_ones_own_may_have_other_defaults_and_hints():
    class Local:
        pass

    class Mine(SGD):
        alpha: float = 0.5
        hint: Local | None = None

    assert (repr(Mine()), Mine().alpha) == ("Mine()", 0.5)
    assert Mine(0.25, momentum=0.5).alpha == 0.25
    with pytest.raises(ArgumentError, match="Mine momentum"):
        Mine(momentum=2)


def test_a_derived_class_keeps_the_checks():
    class Slower(Adam):
        beta1: float = 0.8

    assert (Slower().beta1, repr(Slower(0.1, beta1=0.5))) == (0.8, "Slower(0.1, beta1=0.5)")
    with pytest.raises(ArgumentTypeError, match="Slower beta1 must be a number"):
        Slower(beta1="x")
    with pytest.raises(ArgumentTypeError, match="Slower takes alpha by position"):
        Slower(0.1, 0.9)


def test_a_derived_class_takes_what_a_constructor_by_hand_takes():
    class Old(SGD):
        def __init__(self, alpha, beta=0.9, **common):
            super().__init__(alpha, **common)
            self.beta = beta

    class More(Old):
        gamma: float = 0.5

    class Other(Old):
        beta: float = 0.4

    assert repr(More(0.1, 0.7, gamma=0.2, l1=1.0)) == "More(0.1, 0.7, gamma=0.2, l1=1.0)"
    assert More.from_config(More(0.1, 0.7).get_config()).beta == 0.7
    assert (Other(0.1).beta, Other(0.1, 0.7).beta, Other(0.1, beta=0.6).beta) == (0.4, 0.7, 0.6)

    class Strict(Old):
        def __init__(self, alpha, beta):
            super().__init__(alpha, beta)

    class First(Strict):
        alpha: float = 0.4

    assert (First(beta=1).alpha, repr(First(0.2, 1))) == (0.4, "First(0.2, 1)")

    class Short(SGD):
        def __init__(self, lr0=0.1):
            super().__init__(lr0)
            self.lr0 = lr0

    class Long(Short):
        gamma: float = 0.5

    assert (repr(Long(0.3, gamma=1.0)), Long(lr0=4).alpha) == ("Long(0.3, gamma=1.0)", 4)


def test_settings_have_their_defaults_before_they_are_set_and_with_two_bases():
    class Both(Adam, SGD):
        z: float = 0.1

    class Apart(SGD):
        def __init__(self):
            Optimizer.__init__(self, 0.1)

    assert (repr(Both()), Both(momentum=0.5).momentum, Apart().momentum) == ("Both()", 0.5, 0.0)
    with pytest.raises(ArgumentTypeError, match="Both momentum"):
        Both(momentum="x")


ELSEWHERE = """
from __future__ import annotations
class Mine(SGD):
    h: np.foo = 3
    i: "no expression" = 4
    j: int = 5
"""


def test_a_rule_may_be_made_outside_modules_and_have_hints_that_are_none():
    names = {"__name__": "nowhere", "np": np, "SGD": SGD}
    for names["__name__"] in ("nowhere", __name__):
        exec(ELSEWHERE, names)
        assert repr(names["Mine"](0.5, h=1)) == "Mine(0.5, h=1)"
