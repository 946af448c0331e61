"""Rates and decays of their own, for the parameters that a pattern names."""

import itertools

import numpy as np
import pytest

from phitodeep import SGD, Adam, AdamW, Chain, Dense, Nadam, Residual, Sequential, Tanh
from phitodeep.errors import ArgumentError, ArgumentTypeError, PhitodeepError
from phitodeep.optimization.schedules import ReduceOnPlateau, WarmUp
from tests.conftest import assert_same
from tests.optimization.test_optimizers import (
    GRADIENTS,
    OWN,
    START,
    STEPS,
    advance,
    every,
    give,
    referenced,
    values,
    zero_gradients,
)


def stepped(optimizer, steps=range(3)):
    layers = referenced()
    advance(optimizer, layers, steps)
    return values(layers)


@pytest.mark.parametrize(
    "groups",
    [{}, {"*": {}}, {"2.*": {}}, {"*.b": {}, "1.*": {}, "0.?": {}}, {p: {} for p in sorted(START)}],
    ids=str,
)
@every
def test_groups_without_options_change_nothing(make, groups):
    one, other = make(), make()
    for optimizer in (one, other):
        optimizer.weight_decay, optimizer.l1, optimizer.clip_value = 0.1, 0.05, 0.7
    other.groups = groups
    assert_same(stepped(other, range(STEPS)), stepped(one, range(STEPS)))
    assert one.last_rate == other.last_rate


def test_a_step_of_sgd_in_groups_by_hand():
    optimizer = SGD(0.1, weight_decay=0.2, groups=OWN)
    after = stepped(optimizer, [0])
    rates = {"0.W": (0.3, 0.2), "2.W": (0.1, 0.4), "0.b": (0.1, 0.0), "2.b": (0.1, 0.0)}
    rates |= {"1.gamma": (0.0, 0.0), "1.beta": (0.0, 0.0)}
    for path, (rate, decay) in rates.items():
        expected = (1 - rate * decay) * START[path] - rate * GRADIENTS[path][0]
        np.testing.assert_allclose(after[path], expected, rtol=1e-13, err_msg=path)
    assert optimizer.last_rate == optimizer.rate == 0.1


@pytest.mark.parametrize("own", [0.2, 0.0])
def test_a_groups_decay_pulls_on_all_that_it_names(own):
    layers = referenced()
    zero_gradients(layers)
    AdamW(0.1, weight_decay=0.5, groups={"0.*": {"weight_decay": own}}).step(layers)
    for path, a in values(layers).items():
        decay = {"0.W": own, "0.b": own, "2.W": 0.5}.get(path, 0.0)
        np.testing.assert_allclose(a, (1 - 0.1 * decay) * START[path], rtol=1e-14, err_msg=path)


def test_penalties_and_the_clip_norm_are_those_of_all_and_a_rate_may_be_a_schedule():
    groups = {"0.*": {"alpha": 1.0}, "2.b": {"alpha": 1.0}}
    after = stepped(SGD(1.0, clip_norm=0.25, l2=0.3, groups=groups), [0])
    g = {path: GRADIENTS[path][0] for path in START}
    norm = np.sqrt(sum((a**2).sum() for a in g.values()))
    for path, a in after.items():
        pull = 0.3 * START[path] if path.endswith("W") else 0
        expected = START[path] - 0.25 / norm * g[path] - pull
        np.testing.assert_allclose(a, expected, rtol=1e-12, err_msg=path)
    asked = []

    def schedule(step):
        asked.append(step)
        return 1 / (1 + step)

    after = stepped(SGD(0.1, groups={"2.W": {"alpha": schedule}}))
    assert asked == [0, 1, 2]
    expected = START["2.W"] - sum(GRADIENTS["2.W"][k] / (1 + k) for k in range(3))
    np.testing.assert_allclose(after["2.W"], expected, rtol=1e-13)
    expected = START["0.W"] - 0.1 * sum(GRADIENTS["0.W"][k] for k in range(3))
    np.testing.assert_allclose(after["0.W"], expected, rtol=1e-13)


def test_a_bad_rate_of_a_group_is_refused_before_anything_changes():
    layers = referenced()
    groups = {"2.*": {"alpha": lambda step: 0.1 if step < 1 else -1.0}}
    optimizer = Adam(0.1, weight_decay=0.1, groups=groups)
    advance(optimizer, layers, [0])
    before = values(layers)
    give(layers, 1)
    optimizer.accumulate(layers)
    with pytest.raises(ArgumentError, match="at step 1"):
        optimizer.step(layers)
    assert optimizer.t == 1
    assert_same(values(layers), before)
    groups = {"2.*": {"alpha": 0.1}}
    optimizer.groups = groups
    optimizer.step(layers)  # with what was held
    assert not np.array_equal(layers[0].W, before["0.W"])


def test_every_schedule_that_depends_on_losses_gets_each_once():
    shared, own = ReduceOnPlateau(0.1, patience=1), ReduceOnPlateau(0.2, patience=1)
    groups = {"0.*": {"alpha": shared}, "1.*": {"alpha": own}, "2.W": {"weight_decay": 0.1}}
    optimizer = SGD(shared, groups=groups)
    for _ in range(2):
        optimizer.observe(1.0)
    assert shared.rate == 0.1 * 0.1
    assert own.rate == 0.2 * 0.1
    SGD(0.1).observe(1.0)
    inner = ReduceOnPlateau(0.1, patience=1)
    SGD(0.1, groups={"0.*": {"alpha": WarmUp(inner, 2)}}).observe(1.0)
    assert inner.best == 1.0
    X = np.random.default_rng(0).standard_normal((8, 3))
    listens = ReduceOnPlateau(0.0, patience=2)
    optimizer = SGD(0.0, groups={"0.W": {"alpha": listens}})
    model = Sequential(Dense(3, 2), optimizer=optimizer, seed=0)
    model.train(X, X[:, :2], epochs=2, verbose=0)
    assert listens.waited == 1


def test_patterns_that_match_nothing_or_nothing_new_are_refused():
    layers, optimizer = referenced(), SGD(0.1, groups={"0.*": {}, "3.*": {"alpha": 0.2}})
    give(layers, 0)
    with pytest.raises(ArgumentError, match=r"'3\.\*' matches no parameter\. .*2\.W"):
        optimizer.step(layers)
    assert optimizer.t == 0
    assert_same(values(layers), {path: START[path] for path in values(layers)})
    with pytest.raises(ArgumentError, match=r"'0\.w' matches no parameter"):  # case counts
        SGD(0.1, groups={"0.w": {}}).step(layers)
    layers, optimizer = referenced(), SGD(0.1, groups={"*": {"alpha": 1.0}, "0.W": {}})
    give(layers, 0)
    with pytest.raises(
        ArgumentError, match=r"all parameters that '0\.W' matches belong to earlier patterns"
    ):
        optimizer.step(layers)


def test_bad_groups_are_refused():
    for groups, message in (
        ([("0.*", {})], "must be a dict such as"),
        ("0.*", "must be a dict such as"),
        ({0: {}}, "map each pattern to a dict of options, got 0"),
        ({"": {}}, "map each pattern to a dict of options, got ''"),
        ({"0.*": 0.1}, r"got '0\.\*': 0\.1"),
        ({"0.*": {"alpha": "fast"}}, r"alpha of '0\.\*' must be a number"),
        ({"0.*": {"alpha": -1.0}}, r"alpha of '0\.\*' must be >= 0"),
        ({"0.*": {"alpha": None}}, "alpha of"),
        ({"0.*": {"alpha": WarmUp}}, "class WarmUp"),
        ({"0.*": {"weight_decay": np.nan}}, r"weight_decay of '0\.\*' must be >= 0"),
        ({"0.*": {"weight_decay": True}}, "weight_decay of"),
        ({"1.*": {}, "0.*": {"lr": 0.1}}, r"unknown option 'lr'.*alpha, weight_decay"),
    ):
        with pytest.raises(PhitodeepError, match=rf"Adam groups.*{message}") as caught:
            Adam(groups=groups)
        assert isinstance(caught.value, ArgumentError | ArgumentTypeError)


def test_groups_are_a_copy_and_fit_nested_paths():
    given = {"0.*": {"alpha": 0.1}}
    optimizer = SGD(0.2, groups=given)
    given["0.*"]["alpha"] = 0.3
    given["1.*"] = {}
    assert optimizer.groups == {"0.*": {"alpha": 0.1}}
    assert repr(optimizer) == "SGD(0.2, groups={'0.*': {'alpha': 0.1}})"
    assert eval(repr(optimizer)).groups == optimizer.groups
    layers = [Dense(3, 3), Residual(Dense(3, 3), Chain(Tanh(), Dense(3, 3)))]
    for i, layer in enumerate(layers):
        layer.build((3,), seed=i, dtype="float64")
    before = values(layers)
    for top in layers:
        for _, layer in top.walk():
            layer.grads = {name: np.ones_like(a) for name, a in layer.params.items()}
    SGD(1.0, groups={"1.layers.1.*": {"alpha": 3.0}, "*.W": {"alpha": 2.0}}).step(layers)
    moved = {path: float((before[path] - a).flat[0]) for path, a in values(layers).items()}
    assert {path: round(step) for path, step in moved.items()} == {
        "0.W": 2,
        "0.b": 1,
        "1.layers.0.W": 2,
        "1.layers.0.b": 1,
        "1.layers.1.layers.1.W": 3,
        "1.layers.1.layers.1.b": 3,
    }


@every
def test_groups_may_change_between_steps(make):
    straight, optimizer, layers, others = make(), make(), referenced(), referenced()
    straight.groups = {"2.*": {}}
    advance(straight, layers, range(STEPS))
    for first, groups in ((0, None), (3, {"2.*": {}}), (6, {"*.b": {}, "2.*": {}}), (9, None)):
        optimizer.groups = groups
        advance(optimizer, others, range(first, first + 3))
    assert_same(values(others), values(layers))


def test_options_may_change_between_steps_and_name_frozen_parameters():
    layers, optimizer = referenced(), SGD(0.1, groups={"0.W": {"alpha": 0.5}})
    advance(optimizer, layers, [0])
    optimizer.groups["0.W"]["alpha"] = 0.2
    advance(optimizer, layers, [1])
    expected = START["0.W"] - 0.5 * GRADIENTS["0.W"][0] - 0.2 * GRADIENTS["0.W"][1]
    np.testing.assert_allclose(layers[0].W, expected, rtol=1e-13)
    layers, optimizer = referenced(), SGD(0.1, groups={"0.*": {"alpha": 0.2}})
    layers[0].trainable = False
    advance(optimizer, layers, [0])
    layers[0].trainable = True
    advance(optimizer, layers, [1])
    np.testing.assert_allclose(layers[0].W, START["0.W"] - 0.2 * GRADIENTS["0.W"][1], rtol=1e-14)


def test_a_groups_parameters_are_one_piece_of_the_vector():
    layers, optimizer = referenced(), Nadam(0.1, groups=OWN)
    packing = optimizer._pack(layers)
    held = {g.key[0]: [path for path, _, _ in g.slots] for g in packing.groups}
    assert held["0.W"] == ["0.W"]
    assert sorted(held["1.*"]) == ["1.beta", "1.gamma"]
    ends = [0]
    for group in packing.groups:
        pieces = sorted(
            (packing.pieces[path].start, packing.pieces[path].stop) for path, _, _ in group.slots
        )
        assert group.piece == slice(pieces[0][0], pieces[-1][1])
        assert group.piece.start == ends[-1]
        assert all(a[1] == b[0] for a, b in itertools.pairwise(pieces))
        ends.append(group.piece.stop)
        assert group.decayed.start == group.piece.start
        size = sum(START[path].size for path, _, _ in group.slots if path.endswith("W"))
        assert group.decayed.stop - group.decayed.start == size
    assert ends[-1] == packing.theta.size
