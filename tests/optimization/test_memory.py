"""What a rule remembers belongs to a layer object: slots, counts, averages, held gradients."""

import copy
import gc
import weakref
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phitodeep import Chain, Dense, Embedding, ReLU, Sequential, Tanh, TiedDense
from phitodeep.core.call import calling
from phitodeep.errors import ArgumentError, ArgumentTypeError, BackwardError, OrderError
from phitodeep.model.callbacks import LambdaCallback
from phitodeep.optimization.memory import named
from phitodeep.optimization.optimizers import SGD, Adam, Nadam, Optimizer
from tests.conftest import assert_same
from tests.optimization.test_optimizers import RULES, values, zero_gradients
from tests.rows import LONG

EVERY = range(12)


def built(*layers):
    """These layers in float64, with random parameters that differ from layer to layer."""
    rng = np.random.default_rng(len(layers))
    for layer in layers:
        layer.cast("float64")
        for _, part in layer.walk():
            part._make_parameters()
        layer.set_weights({k: rng.standard_normal(a.shape) for k, a in layer.get_weights().items()})
    return list(layers)


def three():
    return built(Dense(3, 4), Dense(4, 2), Dense(2, 3))


class Gradients:
    """Random gradients of a layer object at a step: the same in every run, wherever it stands."""

    def __init__(self, layers):
        self.numbers = {id(layer): i for i, layer in enumerate(layers)}

    def of(self, layer, name, step):
        rng = np.random.default_rng([self.numbers[id(layer)], len(name), ord(name[0]), step])
        return rng.standard_normal(layer.params[name].shape)

    def give(self, layers, step):
        for top in layers:
            for _, layer in top.walk():
                layer.grads = {name: self.of(layer, name, step) for name in layer.params}

    def steps(self, optimizer, layers, *steps):
        for step in steps:
            self.give(layers, step)
            optimizer.step(layers)


@pytest.mark.parametrize(
    "make",
    [*RULES.values(), lambda: Adam(0.05, groups={"0.*": {}, "2.b": {}})],
    ids=[*RULES, "groups"],
)
def test_each_layer_moves_as_if_it_were_alone(make):
    """Each is frozen for some steps of its own; by itself, it takes the others only."""
    layers = three()
    alone, gradients = copy.deepcopy(layers), Gradients(layers)
    rests = {0: {3, 4}, 1: {0, 1, 2, 7}, 2: {5}}
    optimizer = make()
    for step in EVERY:
        for i, layer in enumerate(layers):
            layer.trainable = step not in rests[i]
        gradients.give(layers, step)
        optimizer.step(layers)
    for i, layer in enumerate(alone):
        other = make()
        for neighbour in alone:
            neighbour.trainable = neighbour is layer
        for step in [step for step in EVERY if step not in rests[i]]:
            layer.grads = {name: gradients.of(layers[i], name, step) for name in layer.params}
            other.step(alone)
        for name, a in layer.params.items():
            np.testing.assert_allclose(layers[i].params[name], a, rtol=1e-12, err_msg=f"{i}.{name}")


def test_parameters_with_the_same_count_are_one_group_also_for_an_own_rule():
    layers, optimizer = three(), Adam()
    gradients = Gradients(layers)
    gradients.steps(optimizer, layers, *range(3))
    assert len(optimizer._pack(layers).groups) == 1
    layers[1].trainable = False
    optimizer.step(layers)
    layers[1].trainable = True
    groups = optimizer._pack(layers).groups
    assert [(group.own, len(group.slots)) for group in groups] == [({"t": 4}, 4), ({"t": 3}, 2)]
    other = SGD(momentum=0.9)  # which does not count
    layers[1].trainable = False
    other.step(layers)
    layers[1].trainable = True
    assert len(other._pack(layers).groups) == 1

    class Slowing(Optimizer):
        own_start: ClassVar[dict[str, int]] = {"t": 0}

        def update(self, theta, g, lr):
            self.own["t"] += 1
            theta -= lr / self.own["t"] * g

    layers, optimizer = built(Dense(1, 1, bias=False), Dense(1, 1, bias=False)), Slowing(1.0)
    start = [layer.W.copy() for layer in layers]
    for step in range(3):
        layers[1].trainable = step == 2
        for layer in layers:
            layer.grads = {"W": np.ones((1, 1))}
        optimizer.step(layers)
    np.testing.assert_allclose(layers[0].W, start[0] - (1 + 1 / 2 + 1 / 3), rtol=1e-14)
    np.testing.assert_allclose(layers[1].W, start[1] - 1, rtol=1e-14)


def alike():
    """Layers of one shape, so that the slots of any would fit all."""
    return built(Dense(4, 4), Dense(4, 4), Dense(4, 4))


def dense(layers):
    return (part for top in layers for _, part in top.walk() if isinstance(part, Dense))


def test_sublists_of_a_models_layers_keep_their_own_memory():
    model, plain = (Sequential(*alike(), optimizer=Nadam(0.05), dtype="float64") for _ in range(2))
    both = Gradients(model.layers)
    both.numbers |= {id(layer): i for i, layer in enumerate(plain.layers)}
    for k in range(4):
        both.give(model.layers, k)
        both.give(plain.layers, k)
        model.optimizer.step(model.layers[:1])
        model.optimizer.step(model.layers[1:])
        plain.optimizer.step(plain.layers)
    assert (model.optimizer.t, plain.optimizer.t) == (8, 4)
    assert_same(model.get_weights(), plain.get_weights())
    assert_same(*(m.optimizer.state_dict()["parameters"] for m in (model, plain)))


def test_copies_have_their_own_memory_and_removed_layers_have_none():
    model = Sequential(Dense(4, 4), Dense(4, 3), optimizer=Adam(0.05), dtype="float64")
    Gradients(model.layers).steps(model.optimizer, model.layers, 0)
    wide = Sequential(Dense(4, 4), Dense(4, 5), optimizer=model.optimizer.copy(), dtype="float64")
    Gradients(wide.layers).steps(wide.optimizer, wide.layers, 1)
    parameters = wide.optimizer.state_dict()["parameters"]
    steps = {path: entry["own"]["t"] for path, entry in parameters.items()}
    assert steps == {"0.W": 2, "0.b": 2, "1.W": 1, "1.b": 1}
    layers, optimizer = three(), Adam(0.05)
    gradients = Gradients(layers)
    gradients.steps(optimizer, layers, 0)
    twin, before = copy.copy(optimizer), optimizer.memory()
    gradients.steps(optimizer, layers, 1)
    assert_same(twin.memory(), before)
    model = Sequential(*alike(), optimizer=Adam(0.05), dtype="float64")
    Gradients(model.layers).steps(model.optimizer, model.layers, 0)
    gone = weakref.ref(model.layers.pop(0))
    model.optimizer.step(model.layers)
    gc.collect()
    assert gone() is None
    optimizer.accumulate(layers)
    twin = copy.deepcopy(optimizer)  # which belongs to no layers yet
    assert all("held" in slots for slots in twin.memory().values())
    twin.drop_held()
    assert not any("held" in slots for slots in twin.memory().values())
    assert all("held" in slots for slots in optimizer.memory().values())
    layer = built(Dense(3, 2))[0]
    assert named(layer.walk()) == {"W": (layer, "W"), "b": (layer, "b")}


def test_a_groups_pattern_is_of_the_paths_as_they_are_now():
    layers, optimizer = three(), SGD(0.0, groups={"0.*": {"alpha": 1.0}})
    Gradients(layers).steps(optimizer, layers, 0)
    before = values(layers)
    tree = [ReLU(), *layers]
    with pytest.raises(ArgumentError, match=r"'0\.\*' matches no parameter"):
        optimizer.step(tree)
    optimizer.groups = {"1.*": {"alpha": 1.0}}
    optimizer.step(tree)
    after = values(layers)
    moved = {path for path in after if not np.array_equal(after[path], before[path])}
    assert moved == {"0.W", "0.b"}


EVENTS = st.tuples(
    st.sampled_from(["step", "step", "freeze", *("insert", "duplicate", "remove", "return")])
    | st.sampled_from(["rotate", "wrap", "copy", "state"]),
    st.integers(0, 7),
)


@settings(max_examples=100 if LONG else 40, deadline=None)
@given(st.sampled_from(sorted({*RULES} - {"Muon"})), st.lists(EVENTS, max_size=25))
def test_after_any_history_each_layer_is_where_it_would_be_alone(rule, history):
    """Each layer has a shadow: a copy with an optimizer of its own, which steps when it does."""
    make, draws = RULES[rule], np.random.default_rng(0)
    model = Sequential(*alike(), optimizer=make(), dtype="float64", seed=0)
    model.optimizer.ema = 0.6
    away = []
    shadows = {}

    def shadow(layer):
        if id(layer) not in shadows:
            shadows[id(layer)] = layer, make(), layer.copy()
            shadows[id(layer)][1].ema = 0.6
            shadows[id(layer)][2].trainable = True
        return shadows[id(layer)]

    for what, n in [*history, ("step", 0)]:
        layers = model.layers
        i = n % len(layers)
        if what == "step":
            for layer in dense(layers):
                _, optimizer, twin = shadow(layer)
                twin.grads = {k: draws.standard_normal(a.shape) for k, a in twin.params.items()}
                layer.grads = dict(twin.grads)
                if layer.trainable:
                    optimizer.step([twin])
            model.optimizer.step(layers)
        elif what == "freeze":
            for layer in dense([layers[i]]):
                layer.trainable = not layer.trainable
        elif what == "insert":
            layers.insert(i, built(*(Dense(4, 4) for _ in range(n + 1)))[-1])
        elif what == "duplicate":
            layers.insert(i, layers[i].copy())
        elif what == "remove" and len(layers) > 1:
            away.append(layers.pop(i))
        elif what == "return" and away:
            layers.insert(i, away.pop())
        elif what == "rotate":
            layers.append(layers.pop(0))
        elif what == "wrap":
            layers[i] = Chain(layers[i])
        elif what in ("copy", "state"):
            before = list(dense(layers))
            twin_model = copy.deepcopy(model)
            if what == "state":
                twin_model.optimizer.reset()
                twin_model.optimizer._claim(twin_model)
                twin_model.load_state_dict(model.state_dict())
            model, away = twin_model, []
            for old, new in zip(before, dense(model.layers), strict=True):
                _, optimizer, twin = shadow(old)
                shadows[id(new)] = new, optimizer, twin
    for layer in dense(model.layers):
        for name, a in layer.params.items():
            np.testing.assert_allclose(a, shadow(layer)[2].params[name], rtol=1e-11)
    now = {id(layer): layer.W.copy() for layer in dense(model.layers)}
    with model.optimizer.averaged(model.layers):
        for layer in dense(model.layers):
            _, optimizer, twin = shadow(layer)
            if not layer.trainable:
                np.testing.assert_array_equal(layer.W, now[id(layer)])
                continue
            with optimizer.averaged([twin]):
                np.testing.assert_allclose(layer.W, twin.W, rtol=1e-11)


def held(optimizer, layers):
    """How far plain SGD moves by gradients of 0: what was held."""
    before = values(layers)
    for top in layers:
        for _, layer in top.walk():
            layer.grads = {name: np.zeros_like(a) for name, a in layer.params.items()}
    optimizer.step(layers)
    return max(float(abs(a - before[path]).max()) for path, a in values(layers).items())


def test_what_is_held_belongs_to_the_layer():
    layers, optimizer = alike(), SGD(1.0)
    start = [layer.W.copy() for layer in layers]
    gradients = Gradients(layers)
    gradients.give(layers, 0)
    optimizer.accumulate(layers)
    layers.insert(0, built(Dense(4, 4))[0])
    new = layers[0].W.copy()
    layers[2].trainable = False
    held(optimizer, layers)
    np.testing.assert_array_equal(layers[0].W, new)
    for i in (0, 2):
        wanted = start[i] - gradients.of(layers[i + 1], "W", 0)
        np.testing.assert_allclose(layers[i + 1].W, wanted, rtol=1e-13)
    layers[2].trainable = True
    zero_gradients(layers)
    optimizer.accumulate(layers)
    assert held(optimizer, layers) == 0  # what was held of a frozen layer went with the step


@pytest.mark.parametrize("spoil", ["missing", "shape", "nan"])
@pytest.mark.parametrize("late", [False, True])
def test_a_step_that_raises_drops_what_was_held(spoil, late):
    layers, optimizer = alike(), SGD(1.0)
    Gradients(layers).give(layers, 0)
    optimizer.accumulate(layers)
    before = values(layers)

    if spoil == "missing":
        layers[1].grads = {}
    elif spoil == "shape":
        layers[1].grads["b"] = np.ones(3)
    elif spoil == "nan":
        layers[1].grads["b"] = np.full(4, np.nan)
    kinds = (BackwardError, ValueError, FloatingPointError, ZeroDivisionError)
    call = optimizer.step
    if late and spoil != "nan":
        call = optimizer.accumulate
    with pytest.raises(kinds):
        call(layers)
    assert optimizer.t == 0
    assert_same(values(layers), before)
    assert held(optimizer, layers) == 0


def _frozen(model):
    model.layers[0].trainable = False
    return model


IN_AVERAGES = {
    "cast": lambda model: model.cast("float64"),
    "cast twice": lambda model: (model.cast("float64"), model.cast("float32")),
    "freeze and remove": lambda model: _frozen(model).layers.pop(1),
    "other arrays": lambda model: [
        layer.params.update({name: a + 1 for name, a in layer.params.items()})
        for layer in model.layers
    ],
    "insert": lambda model: model.layers.insert(0, built(Dense(4, 4))[0]),
    "copy": lambda model: model.copy(),
}


@pytest.mark.parametrize("name", IN_AVERAGES)
def test_after_averages_the_parameters_are_what_they_were(name):
    layers = [Dense(4, 4) for _ in range(3)]
    model = Sequential(*layers, optimizer=Adam(0.05, ema=0.5), seed=0)
    X = np.random.default_rng(0).standard_normal((8, 4))
    model.train(X, X, epochs=3, verbose=0)
    before = values(layers)
    with model.averaged():
        assert not np.array_equal(layers[0].W, before["0.W"])
        IN_AVERAGES[name](model)
    after = values(layers)
    for path, a in after.items():
        assert a.dtype == (np.float64 if name == "cast" else np.float32)
        np.testing.assert_array_equal(a, before[path])
    if name != "cast":
        model.cast("float32")
    model.train(X, X, epochs=1, verbose=0)
    with model.averaged():
        pass


@pytest.mark.parametrize("when", [1, 2])
def test_after_packing_again_in_a_training_gradients_are_written_in_place(when):
    model = Sequential(Dense(4, 4), Tanh(), Dense(4, 4), Dense(4, 4), seed=0, batch_size=4)
    model.layers[0].trainable = False
    in_place = []

    def thaw(model, step, loss):
        g = model.optimizer._pack(model.layers).g
        arrays = [a for layer in model.layers for a in layer.grads.values()]
        in_place.append(sum(a.base is g for a in arrays))
        if step == when:
            model.layers[0].trainable = True
        if step == when + 2:
            model.layers[2].trainable = False

    X = np.random.default_rng(0).standard_normal((24, 4))
    model.train(X, X, epochs=1, verbose=0, callbacks=[LambdaCallback(on_batch_end=thaw)])
    assert in_place[:when] == [4] * when
    assert in_place[when + 1] == 6
    assert in_place[-1] == 4  # the frozen layer's own gradients have arrays of their own
    assert not model.layers[2]._frame.grad_arrays


def test_gradients_under_a_wrong_name_are_said():
    layers, optimizer = three(), Adam()
    Gradients(layers).give(layers, 0)
    left = layers[1].grads
    layers[1].grads = {"w": left["W"], "b": left["b"]}
    with pytest.raises(BackwardError) as caught:
        optimizer.step(layers)
    assert str(caught.value) == (
        "no gradient for 1.W: Dense(4, 2) left gradients of w, b, but its parameters are W, b "
        "(write 'W', not 'w')."
    )
    layers[1].grads = {"b": left["b"]}
    with pytest.raises(BackwardError, match=r"left gradients of b, but its parameters are W, b\.$"):
        optimizer.step(layers)
    layers[1].grads = {}
    with pytest.raises(BackwardError, match=r"for 1\.W: Dense\(4, 2\) has not run its back"):
        optimizer.step(layers)


def test_gradients_that_are_no_real_numbers_are_refused():
    for gradient, came in (
        (np.ones((4, 2), complex), "left dtype complex128"),
        (np.full((4, 2), None), "left dtype object"),
        ([[1.0, 1.0]] * 4, "left list"),
    ):
        layers = three()
        Gradients(layers).give(layers, 0)
        layers[1].grads["W"] = gradient
        with pytest.raises(
            ArgumentTypeError, match=rf"gradient of 1\.W .*real.*: Dense\(4, 2\) {came}"
        ):
            SGD().step(layers)


def test_a_tied_use_without_a_gradient_is_named():
    embedding = Embedding(5, 3)
    model = Sequential(embedding, Chain(TiedDense(embedding)), optimizer=SGD(), dtype="float64")
    model.build((2,))
    embedding.grads = {"W": np.ones((5, 3))}
    with pytest.raises(BackwardError, match=r"no gradient for 1\.layers\.0\.W: TiedDense"):
        model.optimizer.step(model.layers)
    with calling(), pytest.raises(OrderError):
        model.optimizer.step(model.layers)
