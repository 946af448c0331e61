"""Everything writes itself down as plain values, and is made again from them: one table of all."""

import inspect
import json
import math
import re
from enum import Enum
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import phitodeep
from phitodeep import Loss, SoftmaxCrossEntropy, metrics
from phitodeep import layers as L
from phitodeep import layers as catalogue
from phitodeep import loss as losses
from phitodeep.core.call import calling
from phitodeep.core.config import Configurable, alike, restored
from phitodeep.core.types import parameters, same
from phitodeep.errors import ArgumentError, ArgumentTypeError, PhitodeepError
from phitodeep.layers.containers import Container
from phitodeep.layers.initialization import He, Initializer, InitType, Normal, Xavier
from phitodeep.loss.metrics import Custom, Metric
from phitodeep.model import Sequential, SequentialBuilder, callbacks
from phitodeep.model import architectures as models
from phitodeep.model.callbacks import Callback, EarlyStopping, LambdaCallback
from phitodeep.optimization import schedules
from phitodeep.optimization.optimizers import OPTIMIZERS, SGD, Adam
from phitodeep.optimization.schedules import CosineDecay, ReduceOnPlateau, StepDecay, WarmUp
from phitodeep.testing import examples
from phitodeep.testing.examples import cube, cube_gradient
from tests.conftest import assert_weights, check_refused, noted, refusals
from tests.model.test_architectures import MODELS
from tests.rows import ALL, TOOLS, times

phitodeep.register(cube)
phitodeep.register(cube_gradient)
phitodeep.register(examples.outer)
phitodeep.register("gradient of outer")(examples.outer_gradient)


@phitodeep.register
def note(*args):
    """A function for callbacks."""


@phitodeep.register
def largest_error(P, T):
    return float(abs(P.sum() - T.sum()))


@phitodeep.register
def square_root_decay(step):
    return 0.1 / math.sqrt(step + 1)


@phitodeep.register
def total(X1, X2):
    return X1 + X2


@phitodeep.register
def twice(dY, *_):
    return dY, dY


def through_json(config):
    """The config, after a way through strict JSON."""
    return json.loads(json.dumps(config, allow_nan=False))


def again(made):
    """The object that its config makes; the config's own config is the same."""
    config = made.get_config()
    assert through_json(config) == config
    copy = type(made).from_config(through_json(config))
    assert type(copy) is type(made)
    assert copy is not made
    assert copy.get_config() == config
    assert repr(copy) == repr(made)
    assert alike(copy, made)
    return copy


def label(made):
    """A test's name, which is the same in every process."""
    return re.sub(r" at 0x\w+", "", repr(made))[:60]


# --- the table ----------------------------------------------------------------------------------

MORE = [  # shape of X, and how many tokens there are
    (L.Select([1, 0], tokens=True), (2, 3), 5),
    (L.Residual(L.Dense(3), checkpoint=True), (2, 3), 0),
    (L.Chain(L.Dense(3), checkpoint=True), (2, 3), 0),
    (L.SkipConcat(L.Dense(3), checkpoint=True), (2, 3), 0),
    (L.Wired(["x"], [(L.Dense(3), ["x"], ["y"])], ["y"], checkpoint=True), (2, 3), 0),
    (L.GradientReversal(0.5), (2, 3), 0),
    (examples.merged(L.Lambda(total, twice, inputs=2), L.Tanh(), L.Dense(3)), (2, 3), 0),
    *((examples.handed_on(kind, 2), (2, 3, 2), 0) for kind in (L.RNN, L.LSTM, L.GRU)),
    (L.Conv1D(2, 3, initializer=L.initialization.Orthogonal(0.5)), (2, 4, 3), 0),
    (L.Conv2D(2, [1, 2], initializer=He(InitType.UNIFORM)), (2, 3, 3, 1), 0),
    (L.ConvTranspose1D(2, 3, dilation=2, bias=False, initializer=Normal(1.0)), (2, 3, 2), 0),
    (L.ConvTranspose2D(2, 2, dilation=(1, 2), initializer=Normal(0.2)), (1, 2, 2, 2), 0),
    (L.DepthwiseConv2D(2, dilation=2, initializer=Xavier()), (2, 3, 3, 2), 0),
    (L.Embedding(5, 2, initializer=Normal(0.1)), (2, 3), 5),
    (L.PositionalEmbedding(4, initializer=L.initialization.Zeros()), (2, 3, 2), 0),
    (L.MultiHeadAttention(2, initializer=He()), (2, 3, 4), 0),
    (L.FeedForward(3, activation="gelu_tanh"), (2, 4), 0),
    (L.TransformerBlock(2, mlp_ratio=2, activation="relu", causal=True), (2, 3, 4), 0),
    (L.TransformerBlock(2, rope=True, checkpoint=True), (2, 3, 4), 0),
    *(
        (kind(2, initializer=He(), recurrent_initializer=Xavier()), (2, 3, 2), 0)
        for kind in (L.GRU, L.LSTM, L.RNN)
    ),
    (L.Bidirectional(L.GRU(2, initializer=Normal(0.3)), merge="add"), (2, 3, 2), 0),
    (L.InstanceNorm(eps=0.2), (2, 3, 4), 0),
    (L.Lambda(cube, cube_gradient, independent_samples=True), (2, 3), 0),
    (L.Lambda(cube, cube_gradient, steps="independent"), (2, 3), 0),
    (L.SinusoidalEncoding(), (2, 3, 4), 0),
    (Sequential(L.Dense(2), L.PReLU(), alpha=0.3, seed=3), (2, 3), 0),
]
MORE = [(layer.copy, shape, tokens) for layer, shape, tokens in MORE]
BUILT = [*TOOLS, *MORE]
SCHEDULES = [
    schedules.Constant(0.3),
    schedules.StepDecay(0.3, 5, factor=0.4),
    schedules.ExponentialDecay(0.3, 4, 0.7),
    schedules.InverseTimeDecay(0.2, rate=0.5),
    schedules.PolynomialDecay(0.2, 6, alpha_min=0.01, power=2.0),
    schedules.CosineDecay(0.2, 6, 0.05),
    schedules.WarmUp(0.2, 5),
    schedules.WarmUp(WarmUp(CosineDecay(0.2, 4), 3), 2),
    schedules.WarmUp(square_root_decay, 2),
    schedules.OneCycle(0.2, 9, up=0.5, divide=10.0, divide_last=100.0),
    schedules.ReduceOnPlateau(0.3, factor=0.5, patience=2, min_delta=0.1, alpha_min=0.01),
    schedules.WarmUp(ReduceOnPlateau(0.3, patience=1), 2),
]
COMMON = {
    "weight_decay": 0.02,
    "l2": 0.03,
    "groups": {"0.*": {"alpha": StepDecay(0.1, 2)}, "*.b": {"weight_decay": 0.5}},
    "ema": 0.9,
}
CLIPPED = {"l1": 0.01, "clip_norm": 1.5, "clip_value": 0.7}


def optimizers():
    made = []
    for kind in OPTIMIZERS.values():
        clipped = {} if kind.__name__ == "LBFGS" else CLIPPED
        rate = WarmUp(CosineDecay(0.02, 5), 2)
        own = {**examples.OPTIMIZERS[kind.__name__], "alpha": rate}
        made += [kind(), kind(**own, **COMMON, **clipped)]
    return made


LOSS_TABLE = [
    *[loss for loss, _ in examples.LOSSES],
    losses.SoftmaxCrossEntropy(0.2, -1, (1, 2, 1, 2)),
    losses.SoftmaxCrossEntropy(0.1, 2, np.array(examples.WEIGHTS, np.float32)),
]
INITIALIZERS = [
    *[kind(way) for kind in (He, Xavier, L.initialization.LeCun) for way in InitType],
    Normal(0.3),
    L.initialization.Orthogonal(1.5),
    L.initialization.Constant(0.25),
    L.initialization.Zeros(),
]
METRICS = [
    *metrics.METRICS.values(),
    *[
        getattr(metrics, name)(0.2, multilabel=True)
        for name in ("Accuracy", "Precision", "Recall", "F1", "ConfusionMatrix")
    ],
    metrics.TopKAccuracy(2),
    metrics.R2("uniform_average"),
    Custom(largest_error),
]
CALLBACKS = [
    Callback(),
    LambdaCallback(on_epoch_end=note, on_train_begin=note),
    EarlyStopping(3, monitor="test_mae", mode="min", min_delta=0.1, restore_best=False),
    callbacks.ModelCheckpoint("net.safetensors"),
    callbacks.ModelCheckpoint(Path("a") / "b.x", None, 10, 5, "r2", mode="max"),
    callbacks.CSVLogger("log.csv", append=True),
    callbacks.JSONLogger("log.jsonl", append=True),
    callbacks.TensorBoard("runs", histograms=10),
    callbacks.Diagnose(5, verbose=0),
    callbacks.Histograms(2, 5, bins=9, gradients=False, activations=np.ones((2, 3))),
]
EVERYTHING = [
    *(make() for make, *_ in (*ALL, *MORE)),
    *(SCHEDULES + optimizers() + LOSS_TABLE + INITIALIZERS + METRICS + CALLBACKS),
]


def public(module, base, *abstract):
    return {
        kind
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, base) and not name.startswith("_")
    } - {base, *abstract}


def test_the_tables_are_the_public_classes():
    inside = [examples.subject(x) for x in EVERYTHING if isinstance(x, L.Layer)]
    made = {type(x) for x in (*EVERYTHING, *inside)}
    wanted = {
        *public(catalogue, L.Layer),
        Sequential,
        *public(losses, Loss, losses.Elementwise),
        *OPTIMIZERS.values(),
        *public(L.initialization, Initializer, L.initialization.VarianceScaling),
        *public(metrics, Metric),
        *public(callbacks, Callback),
        Callback,
        *public(schedules, Configurable),
    }
    assert made == wanted
    plain = {type(x) for x in (*EVERYTHING, *inside) if x.config_kind != "object"}
    assert wanted - {Sequential} <= plain


def test_each_argument_of_each_class_is_in_the_table_with_another_value_than_its_default():
    layers = [x for x in EVERYTHING if isinstance(x, L.Layer)]
    parts = [*EVERYTHING, *(part for layer in layers for _, part in layer.walk())]
    left = {
        (kind, p.name): p.default
        for kind in {type(x) for x in EVERYTHING}
        for p in parameters(kind)
    }
    for x in parts:
        for p in parameters(type(x)):
            value = getattr(x, x.kept_as.get(p.name, p.name))
            if not same(value, p.default):
                left.pop((type(x), p.name), None)
    settings_of_models = {name for kind, name in left if kind is Sequential}
    refused = {(OPTIMIZERS["lbfgs"], name) for name in CLIPPED}
    assert {key for key in left if key[0] is not Sequential} == refused
    assert settings_of_models <= set(SETTINGS)


def test_from_config_makes_the_same_again():
    for made in EVERYTHING:
        again(made)
    assert again(CALLBACKS[1]).on_epoch_end is note
    assert repr(LambdaCallback(on_epoch_end=note)) == f"LambdaCallback(on_epoch_end={note!r})"


def test_a_layer_has_the_same_weights_and_output():
    for make, shape, tokens in BUILT:
        made = make()
        copy, before = again(made), made.get_config()
        X, _ = examples.data(made, shape, tokens)
        outputs = []
        for layer in (made, copy):
            layer.build(shape[1:], seed=3)
            if isinstance(layer, L.TiedDense):  # whose weights are another's
                layer.embedding.build((), seed=1, dtype=np.float32)
                layer.embedding.W = made.embedding.W
            with calling(step=2):
                outputs.append(layer.forward(X))
        with noted(made):
            assert_weights(made, copy)
            np.testing.assert_array_equal(*outputs)
            config = copy.get_config()
            config.pop("input_shape", None)
            assert config == before  # building adds nothing to the constructor's arguments
            assert repr(copy) == repr(made)


@pytest.mark.parametrize("made", optimizers(), ids=label)
def test_an_optimizer_takes_the_same_steps(made):
    X = np.random.default_rng(0).standard_normal((6, 3))
    trained = []
    for optimizer in (again(made), made.copy()):
        model = Sequential(L.Dense(3, 4), L.Tanh(), L.Dense(2), optimizer=optimizer, seed=0)
        model.train(X, X[:, :2], epochs=4, verbose=0)
        trained.append(model)
    assert_weights(*trained)


# --- models -------------------------------------------------------------------------------------

SETTINGS = {
    "alpha": lambda: CosineDecay(0.1, 20),
    "optimizer": lambda: Adam(0.5, groups={"*.W": {"alpha": ReduceOnPlateau(0.2)}}, clip_norm=1),
    "batch_size": lambda: 4,
    "epochs": lambda: 7,
    "loss_class": lambda: SoftmaxCrossEntropy(class_weight={0: 2.0}),
    "metrics": lambda: ("accuracy", metrics.TopKAccuracy(2), largest_error),
    "callbacks": lambda: [EarlyStopping(3), callbacks.CSVLogger("log.csv")],
    "seed": lambda: 5,
    "dtype": lambda: np.float64,
}


def all_settings():
    return {name: make() for name, make in SETTINGS.items()}


def test_a_model_keeps_all_its_settings():
    assert set(SETTINGS) == {p.name for p in parameters(Sequential)} - {"layers"}
    model = Sequential(
        L.Flatten(), L.Dense(4), L.BatchNorm(), L.Dropout(0.5), L.Dense(3), **all_settings()
    )
    model.build((2, 3))
    copy = again(model)
    assert_weights(model, copy)
    assert (copy.input_shape, copy.output_shape) == ((2, 3), (3,))
    assert copy.alpha == copy.optimizer.alpha == CosineDecay(0.1, 20)
    assert copy.metrics[2] is largest_error
    assert (copy.dtype, copy.seed, copy.epochs, copy.batch_size) == (np.float64, 5, 7, 4)
    for name in ("loss", "optimizer", "metrics", "callbacks"):
        assert repr(getattr(copy, name)) == repr(getattr(model, name))


def test_each_setting_of_a_model_reaches_its_copy():
    for name, value in all_settings().items():
        model = Sequential(L.Dense(3, 2), **{name: value})
        plain = Sequential(L.Dense(3, 2))
        changed = {k for k, v in again(model).get_config().items() if plain.get_config()[k] != v}
        assert changed == {name} | ({"optimizer"} if name == "alpha" else set())


def test_what_was_set_later_is_what_is_written():
    model = Sequential(L.Dense(3, 2), alpha=0.5, seed=1)
    model.alpha = 0.25
    assert again(model).alpha == 0.25
    model.optimizer.alpha = 0.125
    assert again(model).alpha == 0.125
    model.setoptimizer(SGD(0.75, momentum=0.5))
    model.setloss("mae")
    model.setbatchsize(3)
    model.add(L.Tanh())
    copy = again(model)
    assert isinstance(copy.loss, losses.MeanAbsoluteError)
    assert (copy.batch_size, copy.optimizer.momentum) == (3, 0.5)
    assert_weights(model, copy)
    model = Sequential(L.Flatten(), L.Dense(4))
    model.optimizer.alpha = 0.5
    assert again(model).alpha == 0.5
    assert again(model)._alpha is None
    assert again(model).seed is None
    model.build((2, 3), seed=9)
    assert_weights(model, again(model))
    for metric in ("mae", metrics.mae, largest_error):  # which need not be in a list
        assert again(Sequential(L.Dense(3, 2), metrics=metric)).get_config()["metrics"]
    with pytest.raises(ArgumentTypeError, match="a metric is a name or a function"):
        Sequential(L.Dense(3, 2), metrics=3)


def test_frozen_layers_stay_frozen():
    inner = Sequential(L.Dense(4), L.FeedForward(3))
    model = Sequential(L.Dense(4), L.TransformerBlock(2), inner, L.Dense(2), seed=0)
    model.build((3, 4))
    model.layers[0].trainable = False
    model.layers[1].children()["layers.0"].trainable = False
    model.layers[2].layers[0].trainable = False
    model.layers[2].layers[1].layers[2].trainable = False  # made late
    copy = again(model)
    frozen = [[path for path, x in m.walk() if not x.trainable] for m in (model, copy)]
    assert frozen[0] == frozen[1]
    assert len(frozen[0]) >= 3
    model.trainable = False
    assert not any(x.trainable for _, x in again(model).walk())
    config = model.get_config() | {"frozen": ["7"]}
    with pytest.raises(ArgumentError, match="no layer '7'"):
        Sequential.from_config(config)


@pytest.mark.parametrize(("known", "seed"), [(True, 3), (False, 3), (False, None)])
def test_models_in_models(known, seed):
    """The inner model has the weights that the outer one's seed gives, or its own."""
    first = L.Dense(4, 3) if known else L.Dense(3)
    inner = Sequential(first, L.ELU(0.5), seed=seed, loss_class="mae", epochs=3)
    model = Sequential(L.Dense(4), L.Residual(inner, L.Dense(4)), seed=0)
    model.build((2, 4))
    copy = again(model)
    assert_weights(model, copy)
    (found,) = [x for _, x in copy.walk() if isinstance(x, Sequential) and x is not copy]
    assert (found.epochs, repr(found.loss)) == (3, "MeanAbsoluteError()")
    waiting = Sequential(L.Flatten(), Sequential(L.Dense(3)), seed=0)
    copy = again(waiting)
    for m in (waiting, copy):
        m.build((2, 2))
    assert_weights(waiting, copy)
    built = Sequential(L.Flatten(), L.Dense(3), seed=1)  # alone
    built.build((2, 3))
    copy = again(Sequential(built))
    assert copy.layers[0].input_shape == (2, 3)
    assert_weights(built, copy.layers[0])


def test_subclasses_of_sequential_write_their_own_arguments():
    @phitodeep.register
    class Net(Sequential):
        def __init__(self, hidden, *, seed=None):
            super().__init__(L.Dense(hidden), L.Tanh(), seed=seed)
            self.hidden = hidden

    net = Net(5, seed=3)
    net.build((4,))
    assert net.get_config() == {"hidden": 5, "seed": 3, "input_shape": [4]}
    assert_weights(net, again(net))


def test_a_layer_that_found_its_size_takes_other_layers_behind_it():
    """`Dense(4, 4)` alone would say that samples are rows of 4."""
    model = Sequential(L.Dense(4), L.TransformerBlock(2), L.LSTM(3), seed=0)
    model.build((3, 4))
    assert model.get_config()["layers"][0]["config"]["input_size"] is None
    assert_weights(model, again(model))


def test_each_ready_made_model_is_made_again():
    made = {n for n, f in vars(models).items() if inspect.isfunction(f) and n[0] != "_"}
    made = {n for n in made if getattr(models, n).__module__ == models.__name__}
    assert made == {"from_pretrained", *(name.partition(",")[0] for name in MODELS)}
    for make, *_ in MODELS.values():
        model = make().seed(3).build()
        assert_weights(model, again(model))


# --- layers that are shared ---------------------------------------------------------------------


def tied(seed=0):
    table = L.Embedding(7, 4)
    model = Sequential(table, L.Residual(L.Dense(4)), L.TiedDense(table), seed=seed)
    model.build((3,))
    return model


def test_tied_weights_are_tied_again():
    model = tied()
    config = model.get_config()
    assert config == tied().get_config()  # and what each config shares is its own
    assert config["layers"][0]["id"] == 1
    assert config["layers"][2]["config"] == {"embedding": {"ref": 1}}
    assert "id" not in config["layers"][1]
    copy = again(model)
    assert_weights(model, copy)
    assert copy.layers[2].embedding is copy.layers[0]
    X = np.array([[1, 2, 3]])
    np.testing.assert_array_equal(copy.predict(X), model.predict(X))
    table = L.Embedding(5, 4)
    heads = [L.TiedDense(table) for _ in range(2)]
    config = Sequential(table, heads[0], L.Select(0), heads[1]).get_config()["layers"]
    assert config[0]["id"] == 1
    assert config[1]["config"] == config[3]["config"] == {"embedding": {"ref": 1}}
    alone = heads[0].get_config()
    assert alone["embedding"] == {"layer": "Embedding", "config": table.get_config()}


def test_two_tables_are_told_apart_wherever_they_are():
    first, second = L.Embedding(7, 4), L.Embedding(7, 4)
    model = Sequential(
        L.Parallel(L.Chain(first, L.TiedDense(second)), L.Chain(L.TiedDense(first), second)), seed=0
    )
    copy = again(model)
    (a, tied_to_b), (tied_to_a, b) = (branch.layers for branch in copy.layers[0].branches)
    assert tied_to_b.embedding is b
    assert tied_to_a.embedding is a
    assert a is not b


def test_initializers_and_schedules_that_are_shared_stay_plain():
    model = Sequential(L.Dense(4, 4), L.Dense(4, 4))
    assert "ref" not in json.dumps(model.get_config())
    rate = ReduceOnPlateau(0.1, patience=1)
    optimizer = Adam(rate, groups={"*.b": {"alpha": rate}})
    copy = again(optimizer)
    for _ in range(3):
        optimizer.observe(1.0)
        copy.observe(1.0)
        assert copy.rate == optimizer.rate
        assert copy.groups["*.b"]["alpha"](0) == rate(0)


def test_a_layer_that_holds_itself_is_refused():
    @phitodeep.register
    class Holding(L.Layer):
        refers_to = ("other",)

        def __init__(self, other=None):
            super().__init__()
            self.other = other

        def __repr__(self):
            return "Holding()"

    layer = Holding()
    layer.other = layer
    with pytest.raises(ArgumentTypeError, match="it contains itself"):
        layer.get_config()
    with pytest.raises(ArgumentTypeError, match=r"other of Holding\(\), layers\[0\] of Sequential"):
        Sequential(layer).get_config()


def test_a_reference_to_nothing_is_refused():
    config = tied().get_config()
    for ref in (2, "1", None, [1]):
        config["layers"][2]["config"]["embedding"] = {"ref": ref}
        with pytest.raises(ArgumentError, match=r"embedding of TiedDense"):
            Sequential.from_config(config)


# --- what is registered -------------------------------------------------------------------------


@phitodeep.register
class Mood(Enum):
    GOOD = 1
    BAD = "x"


@phitodeep.register
class Widget(Configurable):
    """A helper of no family, with values of every kind."""

    def __init__(self, value, *more, other=None):
        self.value, self.more, self.other = value, more, other

    def __repr__(self):
        return f"Widget({self.value!r}, {self.more!r}, {self.other!r})"


@phitodeep.register("scaled twice")
class Own(L.Layer):
    """A layer whose arguments are attributes."""

    def __init__(self, widget, *, init=He()):
        super().__init__()
        self.widget, self.init = widget, init

    def forward(self, X):
        return X * self.widget.value

    def backward(self, dY):
        return dY * self.widget.value


@phitodeep.register
class Gated(Container):
    def __init__(self, value, gates):
        super().__init__()
        self.value, self.gates = value, gates

    def create(self, shape):
        self.gates["a"].build(shape)
        return self.value.build(shape)

    def forward(self, X):
        return self.value.forward(X) * self.gates["a"].forward(X)


class Odd(L.Layer):
    """Not registered."""

    def __init__(self, power=2):
        super().__init__()
        self.power = power


plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from([Mood.GOOD, Mood.BAD, InitType.UNIFORM, cube])
    | st.builds(lambda v: np.array(v, np.float32), st.lists(st.floats(width=32), max_size=3)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(
            st.sampled_from(["a", "ref", "layer", "tuple", "", "id", "config"]), inner, max_size=3
        )
        | st.dictionaries(st.integers() | st.tuples(st.booleans()), inner, max_size=3)
        | st.builds(Widget, inner)
        | st.builds(lambda v, w, x: Widget(v, *w, other=x), inner, st.lists(inner), inner)
    ),
    max_leaves=8,
)


@settings(max_examples=times(20))
@given(plain_values)
def test_values_of_every_kind_come_back_as_they_were(value):
    copy = again(Widget(value, value, other=[value]))
    kinds = [type(v) for v in (copy.value, *copy.more, copy.other[0])]
    assert kinds == [type(value)] * 3


def test_dtypes_paths_and_mappings_come_back_as_what_they_say():
    for value, wanted in (
        (np.dtype("float32"), "float32"),
        (np.float64, "float64"),
        (np.int8(3), 3),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.bool_(True), True),
        ({np.int64(2): np.str_("a")}, {2: "a"}),
        (Path("a") / "b", str(Path("a") / "b")),
        (np.array([[1, 2]], np.int16), [[1, 2]]),
    ):
        copy = Widget.from_config(through_json(Widget(value).get_config())).value
        assert np.array_equal(copy, wanted)
        assert isinstance(copy, type(wanted) if type(wanted) is not list else np.ndarray)
    assert again(Widget(np.array(2.5))).value.shape == ()


def test_a_users_layer_needs_no_code_inside_containers():
    model = Sequential(
        L.Dense(3),
        L.Chain(L.Parallel(Own(Widget(2.0)), L.TimeDistributed(Own(Widget(3, init := (1, 2)))))),
        Gated(L.Dense(6), {"a": Own(Widget(4.0), init=Normal(0.5))}),
        seed=0,
    )
    model.build((2, 3))
    copy = again(model)
    assert_weights(model, copy)
    X = np.ones((2, 2, 3))
    np.testing.assert_array_equal(copy.predict(X), model.predict(X))
    assert copy.layers[2].gates["a"].init == Normal(0.5)
    assert copy.layers[1].layers[0].branches[1].layer.widget.more == (init,)
    assert model.get_config()["layers"][1]["config"]["layers"][0]["config"]["branches"][0] == {
        "layer": "scaled twice",
        "config": {
            "widget": {"object": "Widget", "config": Widget(2.0).get_config()},
            "init": {"initializer": "He", "config": He().get_config()},
        },
    }


def test_get_config_may_be_overridden_with_values_of_any_kind():
    @phitodeep.register
    class Wrapped(L.Layer):
        def __init__(self, inner, sizes, /, scale=1.0):
            super().__init__()
            self._inner, self._sizes, self.scale = inner, sizes, scale

        kept_as: ClassVar[dict[str, str]] = {"inner": "_inner"}

        def get_config(self):
            self.sizes = self._sizes
            return {**super().get_config(), "scale": np.float64(self.scale) * 2}

        @classmethod
        def from_config(cls, config):
            values = restored(config)
            return cls(values["inner"], values["sizes"], values["scale"] / 2)

        def __repr__(self):
            return f"Wrapped({self._inner!r}, {self._sizes!r}, {self.scale!r})"

    again(Wrapped(Own(Widget(1)), (2, 3), 0.5))
    copy = again(Sequential(Wrapped(L.Dense(3), (2, 3), 0.5)))
    assert copy.layers[0]._sizes == (2, 3)

    class Wrong(L.Layer):
        def get_config(self):
            return ["a"]

    with pytest.raises(ArgumentTypeError, match=r"Wrong\.get_config must return"):
        Wrong().get_config()

    @phitodeep.register
    class Failing(L.Layer):
        def get_config(self):
            raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        Sequential(Failing()).get_config()
    assert caught.value.__notes__ == ["in layers[0] of Sequential(Failing())"]


def test_arguments_that_are_given_by_place_come_back_by_place():
    class Placed(Configurable):
        def __init__(self, a, b=2, /, *c, d=4, e):
            self.a, self.b, self.c, self.d, self.e = a, b, c, d, e

    class Only(Configurable):
        def __init__(self, a, /, b):
            self.a, self.b = a, b

    made = Placed(1, 5, 6, 7, e=8)
    assert vars(Placed.from_config(made.get_config())) == vars(made)
    assert vars(Placed.from_config({"a": 1, "e": 3})) == vars(Placed(1, e=3))
    assert vars(Only.from_config({"b": 1, "a": 3})) == {"a": 3, "b": 1}


def test_keywords_that_are_passed_on_are_those_of_the_class_below():
    class Named(L.Chain):
        def __init__(self, label, **options):
            super().__init__(**options)
            self.label = label

    class Bare(Named):
        def __init__(self, **options):
            super().__init__(**options)

    for made in (Named("a", checkpoint=True), Bare(label="a", checkpoint=True)):
        assert made.get_config() == {"label": "a", "checkpoint": True}
        again(made)


def test_a_name_that_is_taken_is_refused_unless_a_cell_runs_again():
    def make(power):
        @phitodeep.register
        class Rerun(L.Layer):
            def __init__(self, n=1):
                super().__init__()
                self.power = power
                self.n = n

        return Rerun

    old, new = make(1), make(2)
    copy = Sequential.from_config(Sequential(old(7)).get_config())
    assert type(copy.layers[0]) is new
    with pytest.raises(ArgumentError, match=r"the layer 'Dense' is already registered, by phito"):
        phitodeep.register("Dense")(Odd)
    with pytest.raises(ArgumentError, match=r"the function 'cube' is already registered"):
        phitodeep.register("cube")(note)
    phitodeep.register("Dense")(Widget)  # of another family
    phitodeep.register(Widget)
    assert again(Widget(1)).value == 1


def closure(power):
    def to_power(X):
        return X**power

    return to_power


def test_what_cannot_be_registered_is_refused():
    wrong = [
        (lambda X: X, "a lambda"),
        (partial(note, 1), "it has no name"),
        (Widget(1).get_config, "a method"),
        (3, "it has no name"),
        (closure(3), "a closure"),
        (dict, "class dict has no get_config"),
        (type("Bad", (Configurable,), {"config_kind": "toy"}), "config_kind must be one of"),
    ]
    for known, says in wrong:
        with pytest.raises(PhitodeepError, match=says):
            phitodeep.register(known)


# --- what is refused ----------------------------------------------------------------------------


def not_registered(X):
    return X


class Silent(L.Layer):
    def __init__(self, power):
        super().__init__()
        self._power = power


class Swallowing(L.Layer):
    def __init__(self, **options):
        super().__init__()
        self.options = options


@phitodeep.register
class Clashing(L.Layer):
    def __init__(self, forward=None):
        super().__init__()

    def forward(self, X):
        return X


def unnamed(*_):
    """Return a lambda, which cannot be written down."""
    return lambda *_: 0.1


REFUSED = refusals(r"""
L.Lambda(unnamed(), cube_gradient)
    ArgumentTypeError: in forward of Lambda\(<lambda>, cube_gradient\).*<lambda> cannot be written
    down: it is a lambda.*@phitodeep.register above a function at module level
L.Lambda(cube, Widget(1).get_config) -> ArgumentTypeError: backward of Lambda.*method of an object
L.Lambda(cube, not_registered) -> ArgumentTypeError: not_registered cannot.*not registered
L.Lambda(partial(cube), cube_gradient) -> ArgumentTypeError: functools.partial.*no name
Adam(unnamed()) -> ArgumentTypeError: alpha of Adam.*lambda
Adam(groups={"*.W": {"alpha": unnamed()}})
    ArgumentTypeError: groups\['\*.W'\]\['alpha'\] of Adam.*lambda
WarmUp(WarmUp(not_registered, 2), 2) -> ArgumentTypeError: after of WarmUp.*after of WarmUp.*not_reg
L.Chain(L.Dense(2), L.Chain(Odd()))
    ArgumentTypeError: layers\[0\] of Chain.*layers\[1\] of Chain.*Odd
L.Chain(Odd())
    ArgumentTypeError: a class that is not registered: write @phitodeep.register above it
Sequential(L.Dense(2), L.Dense(2), L.Dense(2), L.Lambda(cube, not_registered))
    ArgumentTypeError: in backward of Lambda\(cube, not_registered\), layers\[3\] of Sequential
Sequential(L.Dense(2), metrics=[unnamed()]) -> ArgumentTypeError: metrics\[0\] of Sequential
Silent(3) -> ArgumentError: Silent does not keep its argument 'power': write self.power = power
Swallowing(power=3) -> ArgumentError: Swallowing takes \*\*options.*override get_config
Clashing() -> ArgumentError: Clashing does not keep its argument 'forward'
Widget({1, 2}) -> ArgumentTypeError: \{1, 2\} cannot.*a set is not a plain value
Widget(1j) -> ArgumentTypeError: a complex is not
Widget(b"x") -> ArgumentTypeError: a bytes is not
Widget(np.complex64(1)) -> ArgumentTypeError: a complex is not
Widget(Odd) -> ArgumentTypeError: a type is not
Widget(np.array(["x"])) -> ArgumentTypeError: array of 1 str
Widget(np.zeros(5000)) -> ArgumentTypeError: array of 5000 float64.*at most 4096
Widget([1, (2, {"a": object()})]) -> ArgumentTypeError: value\[1\]\[1\]\['a'\] of Widget
LambdaCallback(on_epoch_end=unnamed()) -> ArgumentTypeError: on_epoch_end of LambdaCallback
Custom(not_registered) -> ArgumentTypeError: function of Custom
""")


def test_what_cannot_be_written_is_refused_with_its_place_and_the_remedy():
    for call, error in REFUSED:
        check_refused(f"{call}.get_config()", error, globals())
        again(Sequential(L.Dense(3, 2)))  # nothing is left of the refusal


def entry(kind, name, **config):
    return {kind: name, "config": config}


def of(layer):
    return {"layers": [layer]}


MISREAD = [
    (L.Dense, {"input_size": 3, "unit": 2}, "config of Dense has the unknown key 'unit'.*Known"),
    (L.Dense, {"input_size": 3, "output_sizes": 2}, "Did you mean 'output_size'"),
    (L.Dense, {}, "config of Dense lacks the key 'input_size'"),
    (L.ReLU, {"a": 1}, "Known: none"),
    (L.Chain, of(entry("layer", "Dens")), r"layers\[0\] of Chain: unknown layer 'Dens'.*Di"),
    (L.Chain, of(entry("layer", "Mine")), "import the module that has @phitodeep.register"),
    (L.Chain, of(entry("layer", "Dense", a=1)), r"layers\[0\] of Chain: the config of Dense"),
    (L.Chain, of(entry("loss", "Dense")), "unknown loss 'Dense'"),
    (L.Chain, {"layers": [{"layer": ["Dense"]}]}, "unknown layer"),
    (L.Chain, {"layers": [{"layer": "ReLU", "config": 3}]}, "ReLU.from_config takes a dict, got 3"),
    (WarmUp, {"after": {"function": "os.system"}, "steps": 2}, "unknown function 'os.system'"),
    (He, {"init_type": {"enum": "InitType.NORM"}}, "InitType has NORMAL, UNIFORM, got 'NORM'"),
    (He, {"init_type": {"enum": "Init.NORMAL"}}, "unknown enum 'Init'"),
    (Widget, {"value": {"float": "x"}}, "is not what get_config writes"),
    (Widget, {"value": {"pairs": [1]}}, "is not what get_config writes"),
    (Widget, {"value": {"tuple": 1}}, "is not what get_config writes"),
    (Widget, {"value": {"array": [1, [2]], "dtype": "float32"}}, "is not what get_config writes"),
    (L.Dropout, {"rate": 1.5}, "Dropout rate must be"),
    (Sequential, {"layer": []}, "unknown key 'layer'"),
    (LambdaCallback, {"on_lunch": {"function": "note"}}, "LambdaCallback takes"),
    (L.Chain, {"layers": 3}, "Chain: layers must be a list, got 3"),
    (
        L.Chain,
        {"layers": [entry("layer", "Chain", layers="ab")]},
        "layers must be a list, got 'ab'",
    ),
    (L.Chain, {"layers": [{"layer": "ReLU", "id": [1]}]}, "is not what get_config writes"),
    (
        L.Chain,
        {"layers": [entry("layer", "GELU", approximate={"array": [1, 2]})]},
        "layers.0. of Ch",
    ),
    (Sequential, {"layers": [], "input_shape": 3}, "input_shape takes a shape"),
    (Sequential, {"layers": [], "frozen": None}, "frozen must be a list"),
    (Sequential, {"layers": [], "frozen": [[0]]}, "the model has no layer"),
    (L.Dropout, {"rate": 10**400}, "Dropout rate must be"),
    (Widget, {"value": {"float": 10**400}}, "is not what get_config writes"),
    (Widget, {"value": {"array": [300], "dtype": "int8"}}, "is not what get_config writes"),
    (Widget, {"value": {"array": [1], "dtype": "(1,"}}, "is not what get_config writes"),
    (Widget, {"value": {"array": [None], "dtype": "O"}}, "dtype of an array is one of bool, int8"),
    (Widget, {"value": {"array": ["x"], "dtype": "float32"}}, "an array holds real numbers"),
    *(
        (kind, wrong, "takes a dict")
        for kind in (L.Dense, Sequential, LambdaCallback)
        for wrong in (None, 3, "x", [1])
    ),
]


def test_what_cannot_be_read_is_refused():
    for kind, config, says in MISREAD:
        with pytest.raises(PhitodeepError, match=says):
            kind.from_config(config)
        again(Sequential(L.Dense(3, 2)))


def test_what_is_in_itself_or_too_deep_is_refused_both_ways():
    loop = []
    loop.append(loop)
    deep = entry("layer", "ReLU")
    for _ in range(2000):
        deep = entry("layer", "Chain", layers=[deep])
    for value in (loop, deep):
        with pytest.raises(PhitodeepError, match="config of Widget is nested too deeply"):
            Widget.from_config({"value": value})
    with pytest.raises(PhitodeepError, match="Widget holds values that are nested too deeply"):
        Widget(loop).get_config()
    with pytest.raises(PhitodeepError, match="Widget holds values that are nested too deeply"):
        Widget(Widget(loop)).get_config()  # the inner one is refused by the outer one
    assert Widget.from_config(Widget([1]).get_config()).value == [1]


def test_keys_may_be_sorted_where_their_order_means_nothing():
    @phitodeep.register
    class Two(Container):
        def __init__(self, table, head):
            super().__init__()
            self.table, self.head = table, head

    table = L.Embedding(4, 3)
    made = Two(table, L.TiedDense(table))
    copy = Two.from_config(json.loads(json.dumps(made.get_config(), sort_keys=True)))
    assert copy.head.embedding is copy.table
    assert repr(copy) == repr(made)


def test_defaults_may_be_left_out_of_a_config_which_is_not_changed():
    config = of({"layer": "ReLU"}) | {"checkpoint": True}
    config["layers"].append(entry("layer", "Dense", input_size=3))
    before = json.dumps(config)
    assert repr(L.Chain.from_config(config)) == "Chain(ReLU(), Dense(3), checkpoint=True)"
    assert json.dumps(config) == before


# --- builders -----------------------------------------------------------------------------------


def build_all():
    builder = SequentialBuilder(4, 3, seed=2).lstm(5).flatten().dense(4, bias=False).elu()
    builder.lambda_(cube, cube_gradient).add(Own(Widget(2))).optimizer(Adam()).loss("mse")
    builder.alpha(0.5).epochs(3).batch(2).metrics("mae", largest_error).dtype("float64")
    return builder.callbacks(EarlyStopping(2))


def test_a_builder_shows_the_calls_that_make_it():
    assert repr(SequentialBuilder()) == "SequentialBuilder()"
    assert repr(build_all()) == (
        "SequentialBuilder(4, 3, seed=2).lstm(5).flatten().dense(4, bias=False).elu()"
        ".lambda_(cube, cube_gradient).add(Own(Widget(2, (), None))).optimizer(Adam()).loss('mse')"
        f".alpha(0.5).epochs(3).batch(2).metrics('mae', {largest_error!r}).dtype('float64')"
        ".callbacks(EarlyStopping(2))"
    )


def test_builders_are_equal_if_their_layers_and_settings_are():
    assert build_all() == build_all()
    one, other = build_all(), build_all()
    for changed in (one.tanh(), other.input(3, 4), build_all().seed(3), build_all().alpha(0.25)):
        assert changed != build_all()
    assert build_all().metrics("mae") != build_all()
    assert build_all() != "SequentialBuilder()"
    assert SequentialBuilder().seed(1).input(3) == SequentialBuilder(3, seed=1)
    with pytest.raises(TypeError, match="unhashable"):
        hash(build_all())
    first, *others = (  # tied to the first of two tables, and to the second
        SequentialBuilder(3).add(tables[0]).tied_dense(tables[i])
        for i in (0, 0, 1)
        for tables in [[L.Embedding(4, 4), L.Embedding(4, 4)]]
    )
    assert [first == other for other in others] == [True, False]


def test_functions_and_objects_that_cannot_be_written_are_equal_to_themselves_alone():
    def with_lambda(f):
        return SequentialBuilder(3, seed=0).lambda_(f, cube_gradient).alpha(lambda_rate).build()

    def lambda_rate(step):
        return step * power

    power = 0.1
    one, other = (lambda X: X), (lambda X: X)
    assert alike(with_lambda(one), with_lambda(one))
    assert not alike(with_lambda(one), with_lambda(other))
    assert alike(L.Chain(Odd(2)), L.Chain(Odd(2)))
    assert not alike(L.Chain(Odd(2)), L.Chain(Odd(3)))
    silent = Silent(3)
    assert alike(L.Chain(silent), L.Chain(silent))
    assert not alike(L.Chain(silent), L.Chain(Silent(3)))
    large = np.zeros(5000)
    assert alike(Widget(large), Widget(large.copy()))
    assert not alike(Widget(large), Widget(large + 1))
