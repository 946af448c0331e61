"""Bad input: a clear error that names the layer or the argument, and nothing is lost."""

import copy
import math
import os
import re
from functools import partial

import numpy as np
import pytest

from phitodeep import Adam, Hinge, PhitodeepError, Sequential, SequentialBuilder, errors
from phitodeep import layers as L
from phitodeep.core.checks import check_number
from phitodeep.errors import (
    ArgumentError,
    ArgumentTypeError,
    BackwardError,
    NotBuiltError,
    ShapeError,
)
from phitodeep.model.callbacks import CSVLogger
from tests.conftest import check_refused, refusals
from tests.rows import few

assert_same = np.testing.assert_equal  # of nests of dicts and arrays
rng = np.random.default_rng(0)
X = rng.standard_normal((12, 4)).astype(np.float32)
Y = rng.standard_normal((12, 2)).astype(np.float32)
LABELS = rng.integers(0, 3, 12)
BINARY = rng.integers(0, 2, 12)


def regression():
    return Sequential(L.Dense(4, 5), L.BatchNorm(), L.Tanh(), L.Dense(5, 2), seed=0, batch_size=5)


def classifier():
    loss = "categorical_cross_entropy"
    layers = (L.Dense(4, 5), L.Tanh(), L.Dense(5, 3), L.Softmax())
    return Sequential(*layers, loss_class=loss, seed=0, batch_size=5)


def binary():
    loss = "binary_cross_entropy"
    return Sequential(L.Dense(4, 1), L.Sigmoid(), loss_class=loss, seed=0, batch_size=5)


def hinge():
    return Sequential(L.Dense(4, 1), loss_class=Hinge(), seed=0, batch_size=5)


def everything(model):
    """All that a refusal must leave as it was."""
    return {
        "weights": model.get_weights() if model.output_shape else None,
        "memory": {path: slots for path, slots in model.optimizer.memory().items() if slots},
        "steps": model.optimizer.t,
        "epoch": model.epoch,
        "alpha": model.alpha,
        "batch": model.batch_size,
        "epochs": model.epochs,
        "layers": repr(model),
        "loss": model.loss,
        "optimizer": model.optimizer,
        "shapes": (model.input_shape, model.output_shape),
    }


def refused(call, kind, names, model=None):
    """`call` is refused with an error of this kind whose text matches; the model stays."""
    before = None if model is None else copy.deepcopy(everything(model))
    keep = None if model is None else (model.loss, model.optimizer)
    with pytest.raises(PhitodeepError, match=names) as caught:
        call()
    assert isinstance(caught.value, kind)
    assert isinstance(caught.value, ValueError | TypeError | RuntimeError)
    if model is not None and before is not None:
        assert keep == (model.loss, model.optimizer)
        after = everything(model)
        for part in ("loss", "optimizer"):
            del before[part], after[part]
        assert_same(after, before)
    return caught.value


def changed(a, index, value):
    a = a.astype(float) if isinstance(value, float) else a.copy()
    a[index] = value
    return a


# a model, X and y, and the error
INPUTS = dict(
    refusals(r"""
regression, X[:, :3], Y -> ShapeError: layer 0 of Sequential: Dense\(4, 5\) takes 4 features.*\(3,\)
regression, X[0], Y[0] -> ShapeError: layer 0 of Sequential: Dense\(4, 5\)
regression, [X[:3], X[:2]], Y[:2] -> PhitodeepError: X(_test)? takes.*(unequal|object)
regression, 3.0, 3.0 -> ShapeError: X(_test)? .*shape \(\)
regression, X[:, None], Y -> ShapeError: \(12, 1, 2\).*\(12, 2\)
regression, X[:0], Y[:0] -> ShapeError: X needs at least one sample.*\(0, 4\)
regression, [], [] -> ShapeError: X needs at least one sample
regression, X[:, :0], Y -> ShapeError: X(_test)? .*\(12, 0\)
regression, X, Y[:11] -> ShapeError: X has 12 samples, y has 11
classifier, X[:5], LABELS -> ShapeError: X has 5 samples, y has 12
regression, X, 1.0 -> ShapeError: y is a single number
regression, X, None -> ArgumentTypeError: X was given without y\.
regression, (X, Y), None -> ArgumentTypeError: X was given without y: pass a pair as two arguments
regression, X, {"y": Y} -> ArgumentTypeError: y(_test)? takes real numbers
regression, X, Y[:, 0] -> ShapeError: \(12, 2\).*y of shape \(12,\)
regression, X, np.zeros((12, 3)) -> ShapeError: \(12, 2\).*\(12, 3\)
binary, X, Y -> ShapeError: \(12, 1\).*\(12, 2\)
classifier, X, np.eye(4)[LABELS] -> ShapeError: \(12, 3\).*got y of shape \(12, 4\)
classifier, X, changed(LABELS, 7, 3) -> ArgumentError: 0 to 2 for 3 classes, got 3 at y\[7\]
classifier, X, changed(LABELS, 4, -1) -> ArgumentError: got -1 at y\[4\]
classifier, X, LABELS.astype(float)
    ArgumentTypeError: class labels must be integers, got dtype float64:
    use y(_test)?\.astype\(int\)
classifier, X, np.full((12, 3), 0.5) -> ArgumentError: one-hot or probability rows
binary, X, changed(BINARY, 3, 2) -> ArgumentError: y from 0 to 1.*2
hinge, X, BINARY -> ArgumentError: Hinge\(\) takes only -1 and \+1 as y
regression, changed(X, (5, 2), np.nan), Y -> ArgumentError: X\[5, 2\] is nan
regression, changed(X, (0, 3), np.inf), Y -> ArgumentError: X\[0, 3\] is inf
regression, changed(X, (9, 0), -np.inf), Y -> ArgumentError: X\[9, 0\] is -inf
regression, changed(changed(X, (2, 1), np.inf), (7, 1), -np.inf), Y
    ArgumentError: X\[2, 1\] is inf
regression, X, changed(Y, (6, 1), np.nan) -> ArgumentError: y\[6, 1\] is nan
binary, X, changed(BINARY, 6, np.nan) -> ArgumentError: y\[6\] is nan
regression, X, changed(Y, (6, 1), np.inf) -> ArgumentError: y\[6, 1\] is inf
classifier, X, changed(LABELS, 6, np.nan) -> PhitodeepError: y|labels
classifier, X, changed(np.eye(3)[LABELS], (2, 0), np.nan) -> ArgumentError: y\[2, 0\] is nan
regression, changed(X.astype(float), (5, 2), 1e300), Y
    ArgumentError: X\[5, 2\] is 1e\+300, which is too large for float32
regression, X, changed(Y.astype(float), (5, 1), 1e300)
    ArgumentError: y\[5, 1\] is 1e\+300, which is too large for float32
regression, X.astype(str), Y -> ArgumentTypeError: X takes real numbers.*<U
classifier, X, ["cat"] * 12 -> ArgumentTypeError: (labels|y|y_test) takes real numbers
regression, X.astype(object), Y -> ArgumentTypeError: X takes real numbers.*object
regression, None, Y -> ArgumentTypeError: X takes real numbers.*object
regression, [[1.0, 2, 3, 4], [1.0]], Y[:2] -> PhitodeepError: X takes.*(unequal|object)
regression, X * 1j, Y -> ArgumentTypeError: X takes real numbers.*complex
regression, X, Y * 1j -> ArgumentTypeError: y takes real numbers.*complex
regression, np.zeros((12, 4), "M8[s]"), Y -> ArgumentTypeError: X takes real numbers
""")
)


def the_case(case):
    kind, _, says = INPUTS[case].partition(": ")
    make, bad_X, bad_y = eval(case)
    return make, bad_X, bad_y, getattr(errors, kind), says


def good(make):
    """Targets that fit."""
    model = make()
    if isinstance(model.loss, Hinge):
        return 2 * BINARY - 1
    return {1: BINARY, 2: Y, 3: LABELS}[model.predict(X).shape[-1]]


@pytest.mark.parametrize("case", INPUTS)
def test_bad_data_is_refused(case):
    """By all that takes data, also to test; a trained model stays as it is, and trains on."""
    make, bad_X, bad_y, kind, says = the_case(case)
    model, targets = make(), good(make)
    refused(lambda: model.train(bad_X, bad_y, verbose=0), kind, says, model)
    refused(lambda: model.evaluate(bad_X, bad_y), kind, says, model)
    if "y" not in says.split(r"\[")[0] and bad_X is not X and "X[:, None]" not in case:
        for call in (model.predict, model):
            refused(lambda call=call: call(bad_X), kind, says, model)
    model.train(X, targets, epochs=2, verbose=0)
    refused(lambda: model.train(bad_X, bad_y, epochs=2, verbose=0), kind, says, model)
    if bad_y is None:
        says = r"X_test was given without y_test"
    elif bad_X is None:
        says = r"y_test was given without X_test"
    else:
        verbs = r"(?= (has|is|needs|takes|of|from)|\\\[)"
        says = re.sub(rf"(?<![(|\w])([Xy]){verbs}", r"\1(_test)?", says)
    error = refused(lambda: model.train(X, targets, bad_X, bad_y, verbose=0), kind, says, model)
    assert "_test" in str(error) or "layer 0 of Sequential" in str(error)
    assert len(model.train(X, targets, epochs=1, verbose=0)) == 1


def test_one_axis_for_layers_of_unknown_size_is_refused():
    for layers in (
        [L.Dense(3)],
        [L.LayerNorm()],
        [L.BatchNorm()],
        [L.PReLU()],
        [L.Residual(L.Dense(4))],
    ):
        model = Sequential(*layers)
        name = re.escape(repr(layers[0]) if not isinstance(layers[0], L.Residual) else "Dense(4)")
        refused(
            lambda m=model: m.train(np.zeros(5), np.zeros(5), verbose=0),
            *(ShapeError, rf"layer 0 of Sequential.*{name}", model),
        )
        assert model.output_shape is None


def test_integer_images_are_cast_and_not_rescaled():
    pixels = rng.integers(0, 256, (12, 4), dtype=np.uint8)
    whole, cast = regression(), regression()
    np.testing.assert_array_equal(whole.predict(pixels), cast.predict(pixels.astype(np.float32)))
    a = whole.train(pixels, Y, epochs=2, verbose=0)
    b = cast.train(pixels.astype(np.float32), Y, epochs=2, verbose=0)
    assert a == b
    assert whole.predict(pixels > 7).dtype == np.float32


def test_weights_too_large_for_float32_are_refused():
    model, says = classifier(), r"weights\[0\] is 1e\+300, which is too large for float32"
    for given in ({"sample_weight": np.full(12, 1e300)}, {"class_weight": [1e300] * 3}):
        refused(lambda g=given: model.train(X, LABELS, epochs=1, **g), ArgumentError, says, model)


def test_a_value_that_only_its_sum_overflows_is_no_bad_value():
    wide = Sequential(L.Dense(4, 2), dtype="float64", seed=0)
    wide.layers[0].W = np.full((4, 2), 1e-200)
    assert np.isfinite(wide.predict(np.full((4, 4), 1e308))).all()


def builder():
    return SequentialBuilder().dense(4, 2)


def trained(**settings):
    model = regression()
    vars(model).update(settings)
    model.train(X, Y, epochs=1, verbose=0)


NOT_COUNTS = [0, -1, 2.5, "3", True]
NOT_RATES = [-0.1, np.nan, np.inf, "0.1", True, None]
SETTINGS = {
    "batch()": (lambda v: builder().batch(v), [*NOT_COUNTS, None], "batch_size"),
    "batch_size=": (lambda v: Sequential(L.Dense(4, 2), batch_size=v), NOT_COUNTS, "batch_size"),
    "predict()": (lambda v: regression().predict(X, batch_size=v), NOT_COUNTS, "batch_size"),
    "evaluate()": (lambda v: regression().evaluate(X, Y, batch_size=v), NOT_COUNTS, "batch_size"),
    "setbatchsize": (lambda v: regression().setbatchsize(v), NOT_COUNTS, "batch_size"),
    "model.batch_size": (lambda v: trained(batch_size=v), NOT_COUNTS, "batch_size"),
    "epochs()": (lambda v: builder().epochs(v), [-1, 2.5, "3", None, True], "epochs"),
    "epochs=": (lambda v: Sequential(epochs=v), [-1, 2.5, "3", True], "epochs"),
    "alpha()": (lambda v: builder().alpha(v), NOT_RATES, "alpha"),
    "alpha=": (lambda v: Sequential(L.Dense(4, 2), alpha=v), NOT_RATES[:-1], "alpha"),
    "model.alpha": (lambda v: setattr(regression(), "alpha", v), NOT_RATES, "alpha"),
    "seed()": (lambda v: builder().seed(v), [-1, 1.5, "0", True], "seed"),
    "seed=": (lambda v: Sequential(seed=v), [-1, 1.5, "0", True], "seed"),
    "dtype=": (lambda v: Sequential(L.Dense(4, 2), dtype=v), ["float16", int, "int64"], "dtype"),
    "dtype= unknown": (lambda v: Sequential(L.Dense(4, 2), dtype=v), ["float99", 3], "dtype"),
    "dtype()": (lambda v: builder().dtype(v).build(), ["float16", "what"], "dtype"),
    "optimizer=": (lambda v: Sequential(optimizer=v), ["adem", Adam, 3, ""], "optimizer"),
    "optimizer()": (lambda v: builder().optimizer(v).build(), ["adem", Adam, 3], "optimizer"),
    "loss=": (lambda v: Sequential(loss_class=v), ["mze", Hinge, 3, ""], "loss"),
    "loss()": (lambda v: builder().loss(v).build(), ["mze", Hinge, 3], "loss"),
    "metrics=": (lambda v: Sequential(metrics=[v]), ["acuracy", 3, None], "metric"),
    "metrics()": (lambda v: builder().metrics(v).build(), ["acuracy", 3], "metric"),
    "metrics= a name": (lambda v: Sequential(metrics=v), [3], "metric"),
    "input()": (lambda v: builder().input(v), NOT_COUNTS, "input"),
    "input() of nothing": (lambda v: builder().input(*v), [()], "input"),
    "layers": (lambda v: Sequential(v), ["relu", None, 3, L.ReLU], "takes layers"),
    "add()": (lambda v: SequentialBuilder().add(v).build(), ["relu", None, L.ReLU], "takes layers"),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_bad_settings_are_refused_and_named(setting):
    call, bads, names = SETTINGS[setting]
    for bad in bads:
        refused(lambda bad=bad: call(bad), PhitodeepError, names)


TRAINING = {
    "epochs": ([-1, 2.5, "3", True], "epochs"),
    "batch_size": (NOT_COUNTS, "batch_size"),
    "accumulate": ([*NOT_COUNTS, None], "accumulate"),
    "metrics": ([["acuracy"], [3], 3], "metric"),
    "callbacks": ([[3], [CSVLogger], ["log.csv"], 3], "callbacks"),
    "validation_split": ([-0.1, 1.0, 1.5, np.nan, "0.2", 0.01, 0.99, None], "validation_split"),
    "sample_weight": (
        [np.ones(11), np.ones((12, 3)), -np.ones(12), np.full(12, np.nan), ["a"] * 12, 1.0],
        "sample_weight",
    ),
}


@pytest.mark.parametrize("name", TRAINING)
def test_bad_arguments_of_train_are_refused_and_named(name):
    model, (bads, names) = regression(), TRAINING[name]
    model.train(X, Y, epochs=1, verbose=0)
    for bad in bads:
        given = {"epochs": 1, "verbose": 0, name: bad}
        refused(lambda g=given: model.train(X, Y, **g), PhitodeepError, names, model)


def test_bad_class_weights_are_refused_and_named():
    bads = [{0: -1}, {0: np.nan}, {0: "x"}, [1, 2], [1, 2, 3, 4], "abc", 3, {7: 2.0}, {"a": 2.0}]
    cases = [(classifier(), LABELS, bad) for bad in bads]
    for model, y, bad in (*cases, (regression(), Y, {0: 2})):
        train = partial(model.train, X, y, class_weight=bad, epochs=1, verbose=0)
        refused(train, PhitodeepError, "class_weight", model)


NAMES = np.array(["cat", "dog", "fox"])[LABELS]


class Category:
    """As pandas's Categorical: its array is one of objects."""

    def __array__(self, dtype=None, copy=None):
        return NAMES.astype(object)

    def __len__(self):
        return len(NAMES)


ENCODE = r"np\.unique\(labels, return_inverse=True\)"


def test_labels_as_text_say_how_to_encode_them():
    model = classifier()
    model.build((4,))
    kinds = [NAMES, NAMES.tolist(), NAMES.astype(object), NAMES.astype(bytes)]
    for y in (*kinds, Category(), NAMES[:, None]):
        for call in (
            partial(model.train, X, y, epochs=1, verbose=0),
            partial(model.train, [(X, y)], epochs=1, verbose=0),
            partial(model.evaluate, X, y),
        ):
            refused(call, ArgumentTypeError, rf"y takes real numbers.*such as .*{ENCODE}", model)
        says = rf"X takes real numbers.*{ENCODE}"
        refused(partial(model.predict, y), ArgumentTypeError, says, model)
    codes = np.unique(NAMES, return_inverse=True)[1]
    assert len(model.train(X, codes, epochs=1, verbose=0)) == 1


def test_what_is_not_a_number_is_named_by_its_place():
    model = classifier()
    for bad, says in (
        ([1.0, None, 2.0], r"with None at \[1\]: remove or fill missing values"),
        ([[1.0, "x"], [2.0, "y"]], r"such as 'x' at \[0, 1\]: encode"),
        ([["1.5"], ["2"]], r"dtype <U3 \(convert with \.astype\(float\)\?\)"),
        (np.array([[1.0, "x"], [2.0, 3.0]], object), r"such as 'x' at \[0, 1\]: encode"),
        (np.array([[1.0], [1.0, 2.0]], object), r"with a list at \[0\]: pad rows"),
        (np.array([1.0, {}], object), r"with a dict at \[1\]\."),
        (np.array([1, 2.5], object), r"\.astype\(float\)"),
        (np.array(["2020-01-01"], "M8[D]"), r"\.astype\(float\)"),
        ([[1.0], [1.0, 2.0]], "nested sequences of unequal length"),
    ):
        refused(partial(model.predict, bad), PhitodeepError, f"^X takes.*{says}", model)
    says = "^y takes real numbers.*with a dict"
    refused(lambda: model.evaluate(X, {"Y": Y}), ArgumentTypeError, says, model)


def test_text_for_a_model_of_tokens_says_to_encode_it():
    model = SequentialBuilder(4, seed=0).embedding(9, 2).flatten().dense(1).build()
    refused(lambda: model.predict(["some text"]), ArgumentTypeError, "encode text first", model)
    refused(lambda: model.predict([[1], [1, 2]]), ShapeError, "unequal length", model)
    refused(lambda: model.predict([[1.5] * 4]), ArgumentTypeError, r"astype\(int\)", model)


@pytest.mark.parametrize(
    ("several", "says"),
    [
        ([X, X[:, :2]], r"X is a list of 2 arrays, the first of shape \(12, 4\)"),
        ((X[:, :1], X[:, 1:3], X[:, 3:]), "a tuple of 3 arrays"),
        ([X[:, :2], X[:, 2:]], "a list of 2 arrays"),  # which make the model's columns
        ({"age": X[:, 0], "rest": X[:, 1:]}, "a dict with the keys 'age', 'rest'"),
    ],
)
def test_several_inputs_say_what_a_model_takes(several, says):
    model = classifier()
    wanted = rf"{says}.*takes one array.*SequentialBuilder\(image="
    for call in (
        lambda: model.train(several, LABELS, epochs=1, verbose=0),
        lambda: model.evaluate(several, LABELS),
        lambda: model.predict(several),
    ):
        refused(call, ArgumentTypeError, wanted, model)
    refused(lambda: model.train([X, X], LABELS, verbose=0), ArgumentTypeError, "of 2 arrays", model)
    reader, A = SequentialBuilder(5, 4, seed=0).gru(3).build(), np.ones((2, 5, 2))
    refused(
        lambda: reader.predict([A, A]), ArgumentTypeError, "of 2 arrays, .* \\(2, 5, 2\\)", reader
    )
    unbuilt = Sequential(L.Dense(3), L.Softmax(), loss_class="categorical_cross_entropy")
    refused(lambda: unbuilt.train(several, LABELS, epochs=1, verbose=0), PhitodeepError, wanted)
    if isinstance(several, dict):
        refused(lambda: model.train(several, epochs=1, verbose=0), ArgumentTypeError, wanted)


def test_a_list_of_samples_is_an_array():
    model = classifier()
    np.testing.assert_array_equal(model.predict(list(X)), model.predict(X))
    np.testing.assert_array_equal(model.predict(list(X[:4])), model.predict(X[:4]))
    np.testing.assert_allclose(model.predict([X])[0], model.predict(X), rtol=1e-6)
    assert model.train([*map(tuple, X)], list(LABELS), epochs=1, verbose=0)
    assert model.train(list(X), list(LABELS), epochs=1, verbose=0)
    refused(lambda: model.predict(X[0]), ShapeError, r"one sample: .*\(N, 4\), such as X\[None\]")
    images = Sequential(L.Flatten(), L.Dense(6, 3), loss_class="softmax_cross_entropy")
    assert images.train([np.ones((2, 3)), np.zeros((2, 3))], [0, 1], epochs=1, verbose=0)
    builder = SequentialBuilder(image=(2, 3), seed=0).flatten().name("flat")
    builder = builder.dense(1).output("a", loss="mse").at("flat").dense(1).output("b")
    targets = {"a": np.zeros((3, 1)), "b": np.zeros((3, 1))}  # as many as rows of an image
    net, ones = builder.build(), np.ones((3, 2, 3))
    assert net.evaluate([*ones], targets) == net.evaluate({"image": ones}, targets)


def test_setters_that_refuse_leave_the_model():
    model = regression()
    model.train(X, Y, epochs=1, verbose=0)
    for call, names in (
        (lambda: model.setoptimizer("adem"), r"unknown optimizer 'adem'\. Did you mean 'adam'"),
        (lambda: model.setoptimizer(3), "optimizer must be an Optimizer"),
        (lambda: model.setloss("mean_squred_error"), r"Did you mean 'mean_squared_error'"),
        (lambda: model.setbatchsize(0), r"batch_size must be >= 1, got 0"),
        (lambda: setattr(model, "alpha", np.nan), r"alpha must be >= 0, got nan"),
        (lambda: setattr(model, "alpha", -1), r"alpha must be >= 0, got -1"),
    ):
        refused(call, PhitodeepError, names, model)


@pytest.mark.parametrize(
    ("call", "error"),
    refusals(r"""
Sequential(Dense(4, 5), Dense(6, 2)) -> ShapeError: layer 1 of Sequential: Dense\(6, 2\)
Sequential(Dense(4, 5), Residual(Dense(5, 4)))
    ShapeError: layer 1 of Sequential: Residual\(Dense\(5, 4\)\).*keep the shape
Sequential(Dense(4, 5), Chain(ReLU(), Dense(4, 2)))
    ShapeError: layer 1 of Chain, layer 1 of Sequential: Dense\(4, 2\) takes 4
Sequential(Dense(4, 5), Parallel(Dense(2), Dense(3), merge="add"))
    ShapeError: layer 1 of Sequential: Parallel.*cannot merge
builder().loss("categorical_cross_entropy").build()
    ArgumentError: probabilities, but Dense\(4, 2\) returns numbers
Sequential(Dense(4, 3), loss_class="categorical_cross_entropy").train(X, LABELS)
    ArgumentError: Dense
Sequential(Dense(4, 1), Softmax(), loss_class="categorical_cross_entropy").train(X, BINARY)
    ShapeError: BinaryCrossEntropy
"""),
)
def test_parts_that_do_not_fit_are_refused(call, error):
    check_refused(call, error, globals())


def test_backward_before_forward():
    model = regression()
    for prepare in (lambda: None, lambda: model.predict(X), lambda: model.evaluate(X, Y)):
        prepare()
        refused(lambda: model.backward(Y), BackwardError, r"Sequential\(.*forward", model)
        refused(lambda: model.layers[0].backward(Y), BackwardError, r"Dense\(4, 5\)")
    model.forward(X)
    refused(lambda: model.backward(Y[:, :1]), ShapeError, r"\(12, 2\).*\(12, 1\)", model)
    refused(lambda: model.backward(Y[:5]), ShapeError, r"\(12, 2\).*\(5, 2\)", model)
    assert model.backward(Y).shape == X.shape


def test_a_step_without_gradients_or_layers():
    model = regression()
    says = r"no gradient for 0\.W: Dense\(4, 5\)"
    for prepare in (lambda: None, lambda: model.forward(X)):
        prepare()
        refused(lambda: model.optimizer.step(model.layers), BackwardError, says, model)
    model.backward(np.ones_like(model.forward(X)))
    refused(lambda: model.optimizer.step(model), PhitodeepError, "layers")


def test_a_model_used_before_it_knows_its_input_shape():
    model = Sequential(L.Flatten(), L.Dense(3), L.Tanh(), L.Dense(2))
    for call in (
        lambda: model.predict(X),
        lambda: model.forward(X),
        lambda: model.evaluate(X, Y),
        lambda: model.layers[1].W,
        lambda: model.get_weights(),
        lambda: model.optimizer.step(model.layers),
    ):
        refused(call, NotBuiltError, r"Dense\(3\).*does not know its input shape")
        assert model.output_shape is None
    assert len(model.train(X, Y, epochs=1, verbose=0)) == 1


@pytest.mark.parametrize("case", few(INPUTS, 3))
def test_bad_data_does_not_touch_the_log_of_before(case, tmp_path):
    make, bad_X, bad_y, kind, names = the_case(case)
    model, path = make(), tmp_path / "log.csv"
    model.train(X, good(make), epochs=2, callbacks=[CSVLogger(path)], verbose=0)
    before = path.read_bytes()
    refused(
        lambda: model.train(bad_X, bad_y, callbacks=[CSVLogger(path)], verbose=0),
        *(kind, names, model),
    )
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["log.csv"]


def test_numbers_of_every_kind_are_read_and_endless_ones_refused():
    for one in (1, 1.0, np.float16(1), np.float32(1), np.longdouble(1), np.int8(1), np.uint64(1)):
        assert type(check_number(one, "one", minimum=0, below=2)) is float
    assert check_number(np.int8(-128), "few") == -128
    for endless in (10**400, -(10**400), np.float32("inf"), math.nan):
        with pytest.raises(ArgumentError, match="it must be finite"):
            check_number(endless, "it")


def test_a_sparse_matrix_is_refused_with_what_to_write():
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(ArgumentTypeError, match=r"write \.toarray\(\)"):
        L.Dense(3, 2).forward(sparse.eye(3, format="csr"))
