"""Models come back from files as they were, to the bit; a write that fails leaves the old file."""

import errno
import json
import os
import pickle
import re
import runpy
from contextlib import nullcontext, suppress
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

import phitodeep
from phitodeep import PhitodeepError, Sequential, SequentialBuilder
from phitodeep import layers as L
from phitodeep.errors import ArgumentError, ArgumentTypeError, DataError, NotBuiltError, OrderError
from phitodeep.io.model_file import VERSION, differences, open_model
from phitodeep.io.model_file import packed as pack
from phitodeep.io.tensors import open_tensors, write_tensors
from phitodeep.layers.initialization import He
from phitodeep.model.callbacks import EarlyStopping, LambdaCallback, ModelCheckpoint
from phitodeep.optimization.optimizers import LBFGS, SGD, Adam, Muon
from phitodeep.testing import examples
from phitodeep.text import CharTokenizer
from tests.conftest import noted
from tests.core.test_config import MORE
from tests.core.test_state import OPTIONS, X, Y, net
from tests.random_networks import Scale
from tests.rows import ALL, KINDS, LONG, ONE_EACH
from tests.test_bad_input import assert_same

REFERENCE = Path(__file__).parents[1] / "reference"
ROOT = Path(phitodeep.__file__).parents[1]


def train(model, epochs=2, **options):
    return model.train(X, Y, X[:7], Y[:7], epochs=epochs, verbose=0, **options)


def without_callbacks(model):
    return {name: v for name, v in model.get_config().items() if name != "callbacks"}


def loaded(model, path, **options):
    """The model after a way through a file; it is the same in every respect."""
    model.save(path, **options)
    other = phitodeep.load(path)
    assert type(other) is type(model)
    assert without_callbacks(other) == without_callbacks(model)
    assert repr(other) == repr(model)
    assert_same(other.get_weights(), model.get_weights())
    for name, a in other.get_weights().items():
        assert a.dtype == model.get_weights()[name].dtype == model.dtype
    for (_, one), (_, same) in zip(model.walk(), other.walk(), strict=True):
        assert (one.trainable, one.input_shape, one.output_shape, one.dtype) == (
            *(same.trainable, same.input_shape, same.output_shape),
            same.dtype,
        )
    return other


# --- every layer, loss, optimizer and schedule ---------------------------------------------------


FORMS = [(*row, "float32") for row in ([*ALL, *MORE] if LONG else ONE_EACH)]
FORMS += [(*row, "float64") for row in ([*ALL, *MORE] if LONG else KINDS)]


def test_each_layer_predicts_the_same(tmp_path):
    for make, shape, tokens, dtype in FORMS:
        layer = make()
        parts = [layer]
        if isinstance(layer, L.TiedDense):  # which needs its embedding in the same model
            parts, shape = [layer.embedding, layer], shape[:-1]
            tokens = layer.embedding.vocab_size
        model = examples.made(partial(Sequential, *parts, dtype=dtype), shape, dtype)
        inputs, _ = examples.data(model, shape, tokens)
        with noted(f"{layer} {dtype}"):
            Y = loaded(model, tmp_path / "a.st").predict(inputs)
            np.testing.assert_array_equal(Y, model.predict(inputs))
            assert Y.dtype == model.predict(inputs).dtype


STATES = ("nadam", "lbfgs", "averages", "plateau after a warm-up", "groups")  # others: test_state
EXACT = {
    **{name: lambda make=OPTIONS[name]: net(make()) for name in (OPTIONS if LONG else STATES)},
    "groups in float64": lambda: net(OPTIONS["groups"](), dtype="float64"),
    "no seed": lambda: net(seed=None),
}


@pytest.mark.parametrize("name", EXACT)
def test_training_goes_on_to_the_bit(name, tmp_path):
    model = EXACT[name]()
    if isinstance(model.optimizer, LBFGS):
        pytest.importorskip("scipy")
    train(model)
    other = loaded(model, tmp_path / "a.st", optimizer=True)
    assert other.epoch == 2
    assert_same(other.state_dict(), model.state_dict())
    goes_on_alike(model, other)


def goes_on_alike(model, other):
    one, two = train(model), train(other)
    assert list(one) == list(two)
    assert (one.rates, one.metrics) == (two.rates, two.metrics)
    assert_same(other.state_dict(), model.state_dict())
    if model.optimizer.ema is not None:
        with model.averaged(), other.averaged():
            assert_same(other.get_weights(), model.get_weights())


def test_gradients_that_are_held_come_back(tmp_path):
    model = Sequential(L.Dense(2, 2), optimizer=SGD(1.0), seed=0)
    model.layers[0].grads = {"W": np.ones((2, 2), np.float32), "b": np.ones(2, np.float32)}
    model.optimizer.accumulate(model.layers)
    other = loaded(model, tmp_path / "a.st", optimizer=True)
    other.layers[0].grads = {"W": np.zeros((2, 2), np.float32), "b": np.zeros(2, np.float32)}
    other.optimizer.step(other.layers)
    np.testing.assert_array_equal(other.layers[0].W, model.layers[0].W - 1)


def test_without_the_optimizer_training_begins_again(tmp_path):
    model = net(Adam(0.1))
    train(model)
    other = loaded(model, tmp_path / "a.st")
    assert (other.epoch, other.optimizer.t) == (0, 0)
    with open_model(tmp_path / "a.st") as file:
        assert file.state() is None
        assert set(file.tensors.entries) == set(file.weights) == set(model.get_weights())


def test_a_checkpoint_is_a_model_file(tmp_path):
    path, model = tmp_path / "ck.st", net(Adam(0.1, ema=0.5))
    train(model, callbacks=[ModelCheckpoint(path), EarlyStopping(9)])
    other = phitodeep.load(path)
    assert other.callbacks == []
    assert_same(other.get_weights(), model.get_weights())
    assert_same(other.optimizer.state_dict(), model.optimizer.state_dict())
    goes_on_alike(model, other)


# --- shapes of models ----------------------------------------------------------------------------


@phitodeep.register
class Scaled(Scale):
    """A layer of somebody's own, with a setting."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = factor

    def forward(self, X):
        return self.factor * super().forward(X)

    def backward(self, dY):
        return super().backward(self.factor * dY)


class Unregistered(Scaled):
    pass


class Mine(Sequential):
    pass


def test_layers_of_ones_own_and_a_builders_come_back_and_go_on(tmp_path):
    own = Sequential(L.Dense(4), L.Chain(Scaled(2.5)), L.Dense(2))
    for model in (own, SequentialBuilder(4).dense(8).batch_norm().relu().dense(2).build()):
        train(model)
        goes_on_alike(model, loaded(model, tmp_path / "a.st", optimizer=True))


def test_tied_weights_stay_tied(tmp_path):
    embedding = L.Embedding(7, 4)
    loss = "softmax_cross_entropy"
    model = Sequential(embedding, L.Dense(4, 4), L.TiedDense(embedding), loss_class=loss, seed=0)
    model.build((3,))
    tokens = np.random.default_rng(0).integers(0, 7, (6, 3))
    model.train(tokens, tokens, epochs=2, verbose=0)
    other = loaded(model, tmp_path / "a.st", optimizer=True)
    with open_tensors(tmp_path / "a.st") as file:
        assert {n for n in file.entries if not n.startswith("state/")} == {"0.W", "1.W", "1.b"}
    assert model.state_dict()["optimizer"]["parameters"].keys() == {"0.W", "1.W", "1.b"}
    assert_same(other.state_dict(), model.state_dict())


def test_a_model_that_is_not_built(tmp_path):
    model = Sequential(L.Dense(3), L.Tanh(), L.Dense(2), seed=5)
    for options in ({}, {"optimizer": True}):
        with pytest.raises(NotBuiltError, match=r"Dense\(3\) does not know its input shape yet"):
            model.save(tmp_path / "a.st", **options)
    assert not os.listdir(tmp_path)
    model.build((4,))
    loaded(model, tmp_path / "a.st", optimizer=True)


def test_a_model_whose_sizes_are_known_and_one_without_parameters(tmp_path):
    for options in ({}, {"optimizer": True}):
        model = Sequential(L.Dense(4, 3), L.Tanh(), L.Dense(3, 2), seed=5, batch_size=5)
        goes_on_alike(model, loaded(model, tmp_path / "a.st", **options))
        empty = loaded(Sequential(L.Tanh()), tmp_path / "b.st", **options)
        np.testing.assert_array_equal(empty.predict(X), np.tanh(X))
    empty.save_weights(tmp_path / "c.st")
    assert empty.load_weights(tmp_path / "c.st") == ([], [], [])


def test_classes_of_ones_own_are_registered_and_load_only_their_own(tmp_path):
    model, mine = Sequential(L.Dense(4, 2), L.Chain(Scaled()), seed=1), Mine(L.Dense(4, 2), seed=1)
    wrong = Sequential(L.Dense(4, 3), L.Chain(Unregistered()), seed=1)
    model.save(tmp_path / "a.st")
    for unknown, says in (
        (mine, r"Mine cannot be written down: .* @phitodeep\.reg"),
        (wrong, r"layers\[1\].*Unregistered cannot be written down"),
    ):
        with pytest.raises(ArgumentTypeError, match=says):
            unknown.save(tmp_path / "a.st")
    phitodeep.register("Mine of these tests")(Mine)
    assert type(loaded(mine, tmp_path / "b.st")) is type(Mine.load(tmp_path / "b.st")) is Mine
    with pytest.raises(DataError, match=r"a\.st holds a Sequential, not a Mine"):
        Mine.load(tmp_path / "a.st")
    arrays, texts = model._packed()
    texts["model"] = texts["model"].replace("Scaled", "Nobodys")
    write_tensors(tmp_path / "c.st", arrays, texts)
    with pytest.raises(PhitodeepError, match="Nobodys"):
        phitodeep.load(tmp_path / "c.st")


def test_a_tokenizer_comes_back(tmp_path):
    model = net()
    assert loaded(model, tmp_path / "a.st").tokenizer is None
    model.tokenizer = CharTokenizer("hello wörld\n🎉")
    other = loaded(model, tmp_path / "a.st")
    assert other.tokenizer.characters == model.tokenizer.characters
    assert other.tokenizer.decode(model.tokenizer.encode("wörld")) == "wörld"
    model.tokenizer = object()
    with pytest.raises(
        ArgumentTypeError, match=r"the tokenizer .*object.* cannot be saved.*Configurable"
    ):
        model.save(tmp_path / "a.st")


def test_callbacks_are_never_in_a_file(tmp_path):
    """Not even inside other models; so they need not be registered."""
    path = tmp_path / "a.st"

    def make():
        mine = LambdaCallback(on_epoch_end=lambda *_: None)
        inner = Sequential(L.Dense(4, 4), callbacks=[EarlyStopping(7), mine])
        return Sequential(inner, L.Dense(4, 2), callbacks=[EarlyStopping(5), mine], seed=0)

    for optimizer in (False, True):
        make().save(path, optimizer=optimizer)
        with open_model(path) as file:
            assert "EarlyStopping" not in file.tensors.metadata["model"]
            assert '"callback"' not in json.dumps(file.tensors.metadata)
        other = phitodeep.load(path)
        assert other.callbacks == other.layers[0].callbacks == []
    arrays, texts = make()._packed()
    config = json.loads(texts["model"])
    bad = {"callback": "CSVLogger", "config": {"path": str(tmp_path / "bad.csv"), "append": False}}
    texts["tokenizer"] = json.dumps(bad)
    write_tensors(path, arrays, texts)
    assert phitodeep.load(path).tokenizer is None
    del texts["tokenizer"]
    for given, found in (([bad], True), (bad, False), ({"tuple": [bad]}, False)):
        config["config"]["callbacks"] = given
        texts["model"] = json.dumps(config)
        write_tensors(path, arrays, texts)  # a file of somebody else
        with nullcontext() if found else suppress(PhitodeepError):
            assert phitodeep.load(path).callbacks == []


def test_a_state_of_any_plain_values_comes_back_and_others_are_refused(tmp_path):
    arrays, texts = net()._packed()
    model = json.loads(texts["model"])
    numbers = [1, 2.5, True, None, "text", np.inf, -np.inf, np.nan]
    inside = {"callback": {"callback": 3}}  # a callback is left out of configs, and not of a state
    state = {"numbers": numbers, "pair": (1, (2,)), "a": np.arange(3), "x": np.float64(7), **inside}
    write_tensors(tmp_path / "a.st", *pack(arrays, state, model=model))
    with open_model(tmp_path / "a.st") as file:
        found = file.state()
    assert found["a"].tolist() == [0, 1, 2]
    assert str(found["numbers"]) == str(numbers)
    assert (found["pair"], found["x"], found["callback"]) == ([1, [2]], 7.0, inside["callback"])
    for key in ("$x", 1):
        with pytest.raises(ArgumentError, match="keys must be text that does not begin with"):
            pack(arrays, {key: 1}, model=model)


def test_saving_changes_nothing(tmp_path):
    model, straight = net(Muon(0.01)), net(Muon(0.01))
    for each in (model, straight):
        train(each)
    model.save(tmp_path / "a.st", optimizer=True)
    model.save_weights(tmp_path / "b.st")
    goes_on_alike(straight, model)


def test_a_save_within_averages(tmp_path):
    model = net(Adam(0.1, ema=0.5))
    train(model)
    with model.averaged():
        averages = model.get_weights()
        model.save(tmp_path / "a.st")
        with pytest.raises(OrderError, match="outside"):
            model.save(tmp_path / "b.st", optimizer=True)
    assert_same(phitodeep.load(tmp_path / "a.st").get_weights(), averages)
    assert os.listdir(tmp_path) == ["a.st"]


# --- weights -------------------------------------------------------------------------------------


def test_weights_are_read_by_path(tmp_path):
    model = net()
    train(model)
    model.save(tmp_path / "whole.st", optimizer=True)
    model.save_weights(tmp_path / "weights.st")
    train(model, 1, callbacks=[ModelCheckpoint(tmp_path / "ck.st")])
    for name, same in (("whole", False), ("weights", False), ("ck", True)):
        other = net(seed=8)
        before = other.optimizer.state_dict()
        assert other.load_weights(tmp_path / f"{name}.st") == ([], [], [])
        assert_same(before, other.optimizer.state_dict())
        found = [*map(np.array_equal, other.get_weights().values(), model.get_weights().values())]
        assert all(found) is same
    with open_tensors(tmp_path / "weights.st") as file:
        assert file.metadata == {}
        assert list(file.entries) == sorted(model.get_weights())


def test_strict_refuses_every_difference_and_changes_nothing(tmp_path):
    path = tmp_path / "a.st"
    Sequential(L.Dense(4, 8), L.Dense(8, 8), L.Dense(8, 3), L.Dense(3, 2), seed=1).save_weights(
        path
    )
    model = Sequential(
        L.Dense(4, 8), L.BatchNorm(), L.Dense(8, 3), L.Dense(3, 2, bias=False), seed=2
    )
    model.build((4,))
    before = model.get_weights()
    message = (
        r"file lacks 1\.beta, 1\.gamma, 1\.running_mean, 1\.running_var; has the unknown 1\.W, 1\.b"
        r", 3\.b\. Pass strict=False"
    )
    with pytest.raises(DataError, match=message):
        model.load_weights(path)
    assert_same(model.get_weights(), before)
    assert str(differences({}, {})) == "no difference"
    assert "'a\\nb'" in str(differences({"a\nb": None}, {}))
    with pytest.raises(NotBuiltError):
        Sequential(L.Dense(2)).load_weights(path)
    found = model.load_weights(path, strict=False)
    assert found.missing == ["1.beta", "1.gamma", "1.running_mean", "1.running_var"]
    assert found.unexpected == ["1.W", "1.b", "3.b"]
    assert found.different == []
    after = model.get_weights()
    with open_tensors(path) as file:
        for name, a in after.items():
            np.testing.assert_array_equal(a, file.read(name) if name[0] != "1" else before[name])


@pytest.mark.parametrize("strict", [True, False])
def test_other_shapes_dtypes_and_nothing_in_common(strict, tmp_path):
    path, model = tmp_path / "a.st", Sequential(L.Dense(4, 2), seed=1)
    before = model.get_weights()

    def refused(message):
        with pytest.raises(DataError, match=message):
            model.load_weights(path, strict=strict)
        assert_same(model.get_weights(), before)

    Sequential(L.Dense(4, 3), seed=1).save_weights(path)
    refused(r"differs in 0\.W \(float32 \(4, 3\) instead of float32 \(4, 2\)\), 0\.b")
    Sequential(L.Dense(4, 2), seed=1, dtype="float64").save_weights(path)
    refused(r"differs in 0\.W \(float64 \(4, 2\) instead of float32 \(4, 2\)\)")
    write_tensors(path, {"x": np.zeros(2)}, {})
    refused(r"lacks 0\.W, 0\.b; has the unknown x\.$")
    path.write_bytes(b"x")
    refused("damaged")
    path.unlink()
    refused("no such file")


def test_weights_keep_their_memory(tmp_path):
    """The optimizer's vector, and views that somebody holds."""
    model = net()
    train(model)
    held = model.layers[0].W
    model.save_weights(tmp_path / "a.st")
    train(model)
    model.load_weights(tmp_path / "a.st")
    assert model.layers[0].W is held or np.shares_memory(model.layers[0].W, held)


# --- files that are not right --------------------------------------------------------------------


@cache
def packed():
    model = net()
    train(model)
    return model._packed({"model": model._progress()})


def replace(key, old, new):
    def change(arrays, texts):
        assert old in texts[key]
        texts[key] = texts[key].replace(old, new)

    return change


WRONG = [
    (lambda arrays, texts: texts.pop("format"), "no description of a model"),
    (lambda arrays, texts: texts.update(format="other"), "no description of a model"),
    (lambda arrays, texts: texts.pop("version"), "format version ''"),
    *[
        (
            lambda arrays, texts, v=v: texts.update(version=v),
            re.escape(f"format version {v!r}, and" if len(v) < 9 else "format version '999"),
        )
        for v in (str(VERSION + 1), "0", "-1", "1.0", " 1", "01", "one", "\u0661", "", "9" * 5000)
    ],
    (lambda arrays, texts: texts.pop("model"), "damaged: it has no config of a model"),
    (lambda arrays, texts: texts.update(model="[]"), "damaged: it has no config of a model"),
    (lambda arrays, texts: texts.update(model='{"loss":"Huber"}'), "no config of a model"),
    (lambda arrays, texts: texts.update(model="{"), "'model' cannot be read"),
    (lambda arrays, texts: texts.update(model="[" * 10**5), "'model' is nested too deeply"),
    (lambda a, texts: texts.update(model='{"a":' * 500 + "1" + "}" * 500), "nested too deeply"),
    (lambda arrays, texts: texts.update(state="NaN"), "NaN in 'state' is not JSON"),
    (lambda arrays, texts: texts.update(state="-Infinity"), "-Infinity in 'state' is not JSON"),
    (lambda arrays, texts: texts.update(state="[]"), "its state is not a dict"),
    (lambda arrays, texts: texts.update(state="{}"), "no state of the model"),
    (lambda arrays, texts: texts.update(state='{"model": 1}'), "no state of the model"),
    (lambda arrays, texts: texts.update(state='{"model": {"$array": "q"}}'), "the array 'q'"),
    (lambda arrays, texts: texts.update(state='{"model": {"$array": [1]}}'), "needs the array"),
    (lambda arrays, texts: texts.update(state='{"model": {"$float": "x"}}'), "is not a number"),
    (lambda arrays, texts: texts.update(state="1" * 5000), "'state' cannot be read"),
    (replace("state", '"epoch":2', f'"epoch":{"[" * 500 + "]" * 500}'), "'state' is nested too"),
    (lambda arrays, texts: arrays.pop("0.W"), "weights do not fit its model: the file lacks 0.W"),
    (lambda arrays, texts: arrays.update(q=X), "weights do not fit .* has the unknown q"),
    (lambda arrays, texts: arrays.update({"0.b": X}), r"differs in 0\.b \(float32 \(24, 4\)"),
    (lambda arrays, texts: arrays.update({"0.b": np.zeros(8)}), r"differs in 0\.b \(float64"),
    (replace("model", '"Tanh"', '"Tan"'), "Tan"),
    (replace("model", '"epochs":1000', '"epochs":-1'), "epochs must be >= 0"),
    (replace("model", '"epochs"', '"epoch"'), "unknown key 'epoch'"),
    (replace("state", '"epoch":2', '"epoch":-2'), "epoch must be >= 0"),
    (replace("state", '"class":"Adam"', '"class":"SGD"'), "class SGD"),
]


def test_files_that_are_not_right_are_refused(tmp_path):
    for change, message in WRONG:
        arrays, texts = map(dict, packed())
        change(arrays, texts)
        write_tensors(tmp_path / "a.st", arrays, texts)
        with pytest.raises(PhitodeepError, match=message):
            phitodeep.load(tmp_path / "a.st")


def test_a_file_holds_no_pickle_and_loading_makes_none(tmp_path, monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("pickled")

    model = net(OPTIONS["groups"]())
    train(model)
    for name in ("load", "loads", "dump", "dumps", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    other = loaded(model, tmp_path / "a.st", optimizer=True)
    goes_on_alike(model, other)
    content = (tmp_path / "a.st").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert set(header["__metadata__"]) == {"format", "version", "library", "model", "state"}
    for key in ("model", "state"):
        json.loads(header["__metadata__"][key], parse_constant=refuse)


# --- writing -------------------------------------------------------------------------------------


STEPS = {
    "serialisation": "safetensors.numpy.save",
    "opening": "os.open",
    "fsync": "os.fsync",
    "link": "os.link",
    "chmod": "pathlib.Path.chmod",
    "rename": "pathlib.Path.replace",
}


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_a_write_that_fails_leaves_the_old_file_whole(step, named, error, tmp_path, monkeypatch):
    path = tmp_path / "a.st"
    model, old = net(), net(seed=9)
    old.save(path)
    content = path.read_bytes()

    def fail(*args, **options):
        raise error

    if named:  # on a system without files that have no name
        if step in ("link", "opening"):
            pytest.skip("no link is made")
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    elif not hasattr(os, "O_TMPFILE"):
        pytest.skip("files have names here")
    monkeypatch.setattr(STEPS[step], fail)
    with pytest.raises((DataError, KeyboardInterrupt, OSError)) as caught:
        model.save(path)
    monkeypatch.undo()
    if isinstance(error, OSError) and step != "serialisation":
        assert isinstance(caught.value, DataError)
        assert "cannot write" in str(caught.value)
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["a.st"]
    model.save(path)
    assert_same(phitodeep.load(path).get_weights(), model.get_weights())


def test_a_link_stays_a_link_and_rights_stay(tmp_path):
    (tmp_path / "inner").mkdir()
    real, link = tmp_path / "inner" / "real.st", tmp_path / "link.st"
    net(seed=1).save(real)
    real.chmod(0o640)
    link.symlink_to(real)
    model = net(seed=2)
    model.save(link)
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert_same(phitodeep.load(real).get_weights(), model.get_weights())
    assert sorted(os.listdir(tmp_path)) == ["inner", "link.st"]
    assert os.listdir(real.parent) == ["real.st"]


# --- files of each version -----------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_files_of_each_version_load_and_their_training_is_resumed(version, tmp_path):
    with np.load(REFERENCE / f"model_v{version}.npz") as stored:
        arrays = dict(stored)
    precision = {"rtol": 1e-4, "atol": 1e-5}
    model = phitodeep.load(REFERENCE / f"model_v{version}.safetensors")
    np.testing.assert_allclose(model.predict(arrays["tokens"]), arrays["predictions"], **precision)
    assert model.tokenizer.decode([0, 1, 2]) == "abc"
    checkpoint = REFERENCE / f"checkpoint_v{version}.safetensors"
    other = phitodeep.load(checkpoint)
    assert other.epoch == 1
    assert [path for path, layer in other.walk() if not layer.trainable] == ["1"]
    np.testing.assert_allclose(other.predict(arrays["X"]), arrays["half way"], **precision)
    assert other.load_weights(checkpoint) == ([], [], [])
    tool = runpy.run_path(str(ROOT / "references" / "make_model_files.py"))
    model, options = tool["regression"](), {"callbacks": tool["callbacks"](tmp_path), "epochs": 3}
    history = model.train(arrays["X"], arrays["Y"], resume=checkpoint, verbose=0, **options)
    np.testing.assert_allclose(np.array(history)[:, 0], arrays["losses"], **precision)
    np.testing.assert_allclose(model.predict(arrays["X"]), arrays["at the end"], **precision)


def test_a_loaded_model_grows_like_any_other(tmp_path):
    path = tmp_path / "a.safetensors"
    Sequential(L.Dense(3, 2), L.Tanh(), seed=1).save(path)
    model = phitodeep.load(path)
    model.add(L.Dense(4))
    model.build((3,))
    assert model.layers[0].draw(He(), (4, 4)).any()
    assert model.predict(np.ones((2, 3))).shape == (2, 4)
    assert model.layers[2].W.flags.writeable
