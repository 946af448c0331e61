"""LoRA for whole models: what learns, what stays, and that everything comes back.

Long because every tool that knows a model is tried on one with updates.
"""

import copy
import functools
import json
import pickle
import runpy

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import phitodeep
from phitodeep import Adam, Dense, Embedding, Layer, LowRank, Residual, Tanh, TiedDense
from phitodeep import layers as L
from phitodeep.errors import ArgumentError, ArgumentTypeError, DataError, OrderError, PhitodeepError
from phitodeep.layers.lora import AdaptedDense
from phitodeep.model import Sequential, SequentialBuilder
from phitodeep.model.architectures import gpt
from phitodeep.model.callbacks import LambdaCallback, ModelCheckpoint
from tests.conftest import assert_same

T, VOCABULARY = 6, 11
RNG = np.random.default_rng(0)
X, Y = RNG.integers(0, VOCABULARY, (2, 12, T))
WQKV = ["2.layers.0.layers.1.Wqkv", "3.layers.0.layers.1.Wqkv"]
WO = ["2.layers.0.layers.1.Wo", "3.layers.0.layers.1.Wo"]
DENSE = [f"{i}.layers.1.layers.1.layers.{j}.W" for i in (2, 3) for j in (0, 2)]


def model(**options):
    return first(**options).copy()


@functools.cache
def first(trained=True, dtype="float64", **options):
    builder = gpt(VOCABULARY, T, layers=2, heads=2, dim=8, **options).dtype(dtype).seed(1)
    made = builder.loss("softmax_cross_entropy").batch(4).epochs(2).alpha(0.01).build()
    if trained:
        made.train(X, Y, verbose=0)
    return made


def tuned(pattern="*", rank=2, **options):
    return first_tuned(pattern, rank, **options).copy()


@functools.cache
def first_tuned(pattern, rank, **options):
    made = model(**options)
    made.add_lora(pattern, rank, 3)
    made.train(X, Y, verbose=0)
    return made


def built(*layers, shape=(4,), **options):
    made = Sequential(*layers, seed=0, **options)
    made.build(shape)
    return made


# --- what learns ---------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", [None, "*", "*.Wo", "3.*"])
def test_the_model_is_the_same_function_until_it_learns(pattern):
    made = model()
    before, weights = made.predict(X), made.get_weights()
    made.add_lora(pattern, 2)
    np.testing.assert_allclose(made.predict(X), before, rtol=1e-13, atol=1e-14)
    made.train(X, Y, verbose=0)
    assert abs(made.predict(X) - before).max() > 1e-4
    made.remove_lora()
    assert_same(made.get_weights(), weights)
    np.testing.assert_array_equal(made.predict(X), before)


def test_only_the_updates_learn_and_the_loss_falls():
    made = model(trained=False)
    share = made.add_lora(rank=2)
    before = made.get_weights()
    first, *_, last = made.train(X, Y, epochs=30, verbose=0)
    assert last[0] < first[0] - 0.02
    after = made.get_weights()
    changed = {path for path in before if not np.array_equal(before[path], after[path])}
    assert changed == {path for path in before if path.endswith((".A", ".B"))}
    assert len(changed) == 2 * len(share.weights)
    made.layers[4].trainable = True  # which then learns too
    made.train(X, Y, epochs=1, verbose=0)
    assert (made.get_weights()["4.gamma"] != before["4.gamma"]).all()


def test_the_share_counts_what_learns():
    made = model(trained=False)
    total = made.count_params()
    share = made.add_lora("*.Wqkv", 2)
    assert share.weights == tuple(WQKV)
    assert share.learning == 2 * 2 * (8 + 24)
    assert share.parameters == made.count_params() == total + share.learning
    assert str(share).startswith(f"128 of {total + 128:,} parameters learn (")
    assert (made._summary().trainable, made._summary().frozen) == (128, total)
    share = gpt(65, 32, layers=6, heads=6, dim=384).build().add_lora()  # a usual model
    assert share.learning / share.parameters == pytest.approx(0.0102, abs=1e-4)


def test_patterns():
    for pattern, found in (
        (None, [*WQKV, *WO]),
        ("*.Wqkv", WQKV),
        ("*.Wo", WO),
        (["*.Wqkv", "*.Wo"], [*WQKV, *WO]),
        ("*.W", DENSE),
        ("3.*", [p for p in [*WQKV, *WO, *DENSE] if p.startswith("3.")]),
        ("*", [*WQKV, *WO, *DENSE]),
        (WO[0], WO[:1]),
    ):
        share = model(trained=False).add_lora(pattern, 1)
        assert sorted(share.weights) == sorted(found), pattern


@pytest.mark.parametrize("checkpoint", [False, True])
def test_no_frozen_gradient_even_where_a_checkpoint_computes_again(checkpoint, monkeypatch):
    block = L.TransformerBlock(2, checkpoint=checkpoint)
    made = built(block, Dense(3), shape=(T, 8), batch_size=4, epochs=2)
    made.add_lora("0.layers.0*", 2)
    asked = set()
    grad_array = Layer.grad_array

    def noted(self, name):
        asked.add(f"{type(self).__name__}.{name}")
        return grad_array(self, name)

    monkeypatch.setattr(Layer, "grad_array", noted)
    made.train(RNG.standard_normal((8, T, 8)), RNG.standard_normal((8, T, 3)), verbose=0)
    assert {"LowRank.A", "LowRank.B"} <= asked
    assert not any(name.startswith("Dense") for name in asked)


def test_a_watched_step_a_trace_and_a_plain_backward_have_all_gradients():
    made = model(trained=False)
    made.add_lora("*.Wo", 2)
    place = "2.layers.0.layers.1.layers.2"  # backward stops at the first update
    products = {path for path in made.get_weights() if path.endswith((".W", ".b")) and path > place}
    seen = []
    note = LambdaCallback(on_batch_end=lambda m, step, loss: seen.append(set(m.gradients())))
    with phitodeep.watching(lambda event: None):
        made.train(X, Y, epochs=1, verbose=0, callbacks=[note])
    assert all(products <= found for found in seen)
    P = made.forward(X)
    made.backward(np.ones_like(P))
    assert products <= set(made.gradients())


def test_a_tied_weight_that_learns_gets_the_gradient_of_its_frozen_use():
    def net():
        table = Embedding(VOCABULARY, 4)
        made = Sequential(table, Dense(4), TiedDense(table), seed=1, epochs=1)
        made.setloss("softmax_cross_entropy")
        made.build((T,), dtype="float64")
        return made

    one, other = net(), net()
    other.layers[2].trainable = False  # which owns nothing
    for made in (one, other):
        made.train(X, Y, verbose=0)
    assert_same(one.get_weights(), other.get_weights())


# --- merged and removed --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_merged_predictions_are_those_of_the_updates(dtype):
    made = model(dtype=dtype)
    before, config = made.get_weights(), made.get_config()
    made.add_lora("*", 2, 3)
    made.train(X, Y, epochs=10, verbose=0)
    wanted = made.predict(X)
    updates = {path: low.product() for path, low in made._updates().items()}
    made.merge_lora()
    tolerance = 1e-5 if dtype == "float32" else 1e-13
    np.testing.assert_allclose(made.predict(X), wanted, rtol=tolerance, atol=tolerance)
    assert made.get_config() == config
    after = made.get_weights()
    assert list(after) == list(before)
    for path, a in after.items():
        np.testing.assert_array_equal(a, before[path] + updates.get(path, 0), err_msg=path)


@pytest.mark.parametrize("method", ["merge_lora", "remove_lora"])
def test_layers_that_were_frozen_are_frozen_again_and_no_others(method):
    made = model(trained=False)
    made.layers[0].trainable = False
    attention = dict(made.walk())["3.layers.0.layers.1"]
    attention.trainable = False
    frozen = made.get_config()["frozen"]
    made.add_lora("*", 2)
    made.layers[-2].trainable = True  # a choice for the time of tuning
    getattr(made, method)()
    assert made.get_config()["frozen"] == frozen == ["0", "3.layers.0.layers.1"]
    assert dict(made.walk())["3.layers.0.layers.1"] is attention


def test_the_optimizer_starts_afresh_each_time():
    made = model()
    assert made.optimizer.t == 6
    for change in 2 * (lambda: made.add_lora("*.Wo", 1), made.merge_lora):
        made.train(X, Y, epochs=1, verbose=0)
        assert made.optimizer.t
        change()
        assert (made.optimizer.t, made.optimizer.memory()) == (0, {})
        frames = [layer._frame for _, layer in made.walk()]
        assert not any(frame.grad_arrays or frame.grads or frame.cache for frame in frames)
    assert "lora" not in made.get_config()
    made.train(X, Y, epochs=1, verbose=0)  # it still belongs to this model
    with pytest.raises(ArgumentError, match="another model"):
        model(trained=False).setoptimizer(made.optimizer)


def test_predictions_forget_the_plan_of_other_layers():
    made = built(Residual(Dense(4), L.ReLU()), Dense(3))
    rows = RNG.standard_normal((5, 4)).astype(np.float32)
    before, flops = made.predict(rows), made._planned()[0]
    made.add_lora("0.*", 2)
    assert made._planned()[0] > flops
    low = made._updates()["0.layers.0.W"]
    low.B = np.ones_like(low.B)
    assert abs(made.predict(rows) - before).max() > 0.1
    made.remove_lora()
    np.testing.assert_array_equal(made.predict(rows), before)
    assert made._planned()[0] == flops


def test_layers_are_restored_as_the_model_has_become(tmp_path):
    plain = model(dropout=0.3)
    plain.cast("float32")
    plain._set_seed(77)
    made = model(dropout=0.3)
    made.add_lora("*", 2)
    made.cast("float32")
    made._set_seed(77)
    made.save(tmp_path / "m")
    for found in (made, phitodeep.load(tmp_path / "m")):
        found.remove_lora()
        for (path, layer), (_, other) in zip(found.walk(), plain.walk(), strict=True):
            assert layer.dtype == np.float32
            assert not layer._shapes_only
            assert layer._seed_sequence.spawn_key == other._seed_sequence.spawn_key, path
            if found is made:
                assert layer._seed_sequence.entropy == other._seed_sequence.entropy == 77


def test_a_part_that_is_moved_takes_its_updates_along():
    other, made = built(Residual(Dense(4))), built(Dense(4))
    other.add_lora(rank=1)
    made.add_lora(rank=1)
    made.remove_lora()
    made.layers[0].trainable = False
    made.add(other.layers[0])
    made.remove_lora()
    assert not made.layers[0].trainable  # as nothing was frozen for these updates


def test_a_loss_that_does_not_match_is_still_refused():
    made = Sequential(Dense(4, 3), loss_class="categorical_cross_entropy", seed=0)
    made.add_lora(rank=1)
    with pytest.raises(ArgumentError, match="expects probabilities"):
        made.train(np.ones((2, 4)), np.zeros(2, int), verbose=0)


# --- files, configs, copies ----------------------------------------------------------------------


def same(one, other):
    """Both have the same layers and weights, and go on in the same way."""
    assert [path for path, _ in one.walk()] == [path for path, _ in other.walk()]
    assert_same(one.get_weights(), other.get_weights())
    assert one.get_config() == other.get_config()
    np.testing.assert_array_equal(one.predict(X), other.predict(X))
    one, other = one.copy(), other.copy()
    for made in (one, other):
        made.train(X, Y, verbose=0)
    assert_same(one.get_weights(), other.get_weights())
    for made in (one, other):
        made.remove_lora()
    assert_same(one.get_weights(), other.get_weights())
    assert one.get_config() == other.get_config()


@pytest.mark.parametrize("pattern", ["*", "*.Wo", None])
def test_a_saved_model_comes_back_with_its_updates_and_continues(pattern, tmp_path):
    made = tuned(pattern)
    made.layers[4].trainable = True
    made.save(tmp_path / "m", optimizer=True)
    found = phitodeep.load(tmp_path / "m")
    same(made, found)
    for again in (found, Sequential.from_config(made.get_config())):
        assert again.layers[4].trainable
        assert not again.layers[0].trainable


def test_copies_and_pickles():
    made = tuned()
    for found in (made.copy(), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        same(made, found)
        found.merge_lora()
        assert made._updates()


def test_a_config_describes_the_updates_and_their_first_values():
    first = model(trained=False)
    first.layers[0].trainable = False
    first.add_lora("*", 2, 3)
    again = Sequential.from_config(json.loads(json.dumps(first.get_config())))
    assert_same(again.get_weights(), first.get_weights())
    again.remove_lora()
    first.remove_lora()
    assert again.get_config() == first.get_config()
    assert not again.layers[0].trainable


def test_top_level_layers_and_models_inside_models_are_described_too(tmp_path):
    inner = Sequential(Dense(5), Tanh(), seed=3)
    table = Embedding(VOCABULARY, 4)
    layers = (table, Residual(Dense(4)), inner, L.TimeDistributed(Dense(4)), TiedDense(table))
    made = built(*layers, shape=(T,), loss_class="softmax_cross_entropy")
    before, config = made.get_weights(), made.get_config()
    share = made.add_lora("*", 2)
    assert share.weights == ("1.layers.0.W", "2.layers.0.W", "3.layer.W")
    made.train(X, Y, epochs=2, verbose=0)
    made.save(tmp_path / "m")
    found = phitodeep.load(tmp_path / "m")
    np.testing.assert_array_equal(found.predict(X), made.predict(X))
    found.remove_lora()
    assert_same(found.get_weights(), before)
    assert found.get_config() == config


def test_a_part_with_updates_is_described_only_by_a_model():
    made = built(Residual(Dense(4)))
    made.add_lora(rank=1)
    with pytest.raises(ArgumentError, match="only the config of a whole model"):
        made.layers[0].get_config()
    moved = built(made.layers[0])
    assert moved.get_config()["lora"]["weights"] == {"0.layers.0.W": [1, 16.0]}


WRONG = [
    *(3, [], {}, {"weights": {WO[0]: [2, 3.0]}}, {"weights": {WO[0]: [2, 3.0]}, "frozen": 3}),
    *({"weights": weights, "frozen": []} for weights in ({}, [], {"0.W": [2, 3.0]})),
    *({"weights": {WO[0]: given}, "frozen": []} for given in ([2], 2, [2, 0.0], [2, "x"])),
    *({"weights": {WO[0]: [rank, 3.0]}, "frozen": []} for rank in (0, 10**9)),
]


def test_wrong_configs_are_refused():
    config = model(trained=False).get_config()
    for wrong in WRONG:
        with pytest.raises(PhitodeepError):
            Sequential.from_config({**config, "lora": wrong})


def test_training_resumes_bit_for_bit(tmp_path):
    def fresh():
        made = model(dropout=0.3)
        made.add_lora("*", 2, 3)
        return made

    def keeper(folder):
        return ModelCheckpoint(tmp_path / folder / "ck", every=None, every_steps=1, keep=99)

    whole = fresh()
    whole.train(X, Y, epochs=3, verbose=0, callbacks=[keeper("a")])
    stopped, at = fresh(), tmp_path / "a" / "ck-step4"
    stopped.train(X, Y, epochs=3, verbose=0, resume=at, callbacks=[keeper("b")])
    assert_same(stopped.get_weights(), whole.get_weights())
    plain, scaled = model(dropout=0.3), model(dropout=0.3)
    scaled.add_lora("*", 2, 4)
    for made, wrong in ((plain, "does not fit"), (scaled, "resume with the same model")):
        with pytest.raises(PhitodeepError, match=wrong):
            made.train(X, Y, epochs=3, verbose=0, resume=at, callbacks=[keeper("c")])


# --- the updates alone ---------------------------------------------------------------------------


def test_updates_alone_are_saved_and_loaded(tmp_path):
    made = tuned("*", rank=3)
    wanted = made.predict(X)
    made.save_lora(tmp_path / "a")
    made.save(tmp_path / "m")
    assert (tmp_path / "a").stat().st_size < (tmp_path / "m").stat().st_size
    assert {name.rpartition(".")[2] for name in load_file(tmp_path / "a")} == {"A", "B", "alpha"}
    other = model()
    share = other.load_lora(tmp_path / "a")
    assert set(share.weights) == {*WQKV, *WO, *DENSE}
    np.testing.assert_array_equal(other.predict(X), wanted)
    assert {low.alpha for low in other._updates().values()} == {3.0}


def test_several_updates_take_turns_on_the_same_weights(tmp_path):
    base, found = model(), {}
    plain = base.predict(X)
    for name, targets in (("one", Y), ("two", Y[:, ::-1])):
        base.add_lora("*.Wo", 2, 3 if name == "one" else 5)
        base.train(X, targets, verbose=0)
        found[name] = base.predict(X)
        base.save_lora(tmp_path / name)
        base.remove_lora()
    for name in ("two", "one", "two"):
        base.load_lora(tmp_path / name)  # replaces the updates that are there
        np.testing.assert_array_equal(base.predict(X), found[name])
    base.remove_lora()
    np.testing.assert_array_equal(base.predict(X), plain)


A, B, ALPHA = (f"{WO[0]}.{name}" for name in ("A", "B", "alpha"))
EDITS = [
    ({A: None}, {}, "does not fit"),
    ({B: None}, {}, f"lacks {B}"),
    ({ALPHA: None}, {}, f"lacks {ALPHA}"),
    ({"0.W.A": np.ones((2, 2))}, {}, "has the unknown 0.W.A"),
    ({"9.W.A": np.ones((2, 2))}, {}, "has the unknown 9.W.A"),
    ({A: np.ones((7, 2))}, {}, f"differs in {A}"),
    ({A: np.ones(8)}, {}, f"differs in {A}"),
    ({A: np.array(1.0)}, {}, f"differs in {A}"),
    ({A: np.ones((8, 3))}, {}, f"differs in {B}"),
    ({A: np.ones((8, 2), "f4")}, {}, "float32"),
    ({ALPHA: np.array(0.0)}, {}, "alpha must be > 0"),
    ({ALPHA: np.array(np.nan)}, {}, "alpha"),
    ({ALPHA: np.ones(2)}, {}, "alpha"),
    (dict.fromkeys(f"{weight}.{name}" for weight in WO for name in ("A", "B", "alpha")), {},
     "does not fit"),
    ({}, {"format": ""}, "not written by save_lora"),
    ({}, {"version": "2"}, "format version '2'"),
    ({A: np.ones((8, 9)), B: np.ones((9, 8))}, {}, "rank is at most 8"),
    ({A: np.ones((8, 0)), B: np.ones((0, 8))}, {}, "rank must be"),
]  # fmt: skip


def test_a_file_that_does_not_fit_changes_nothing(tmp_path):
    base, other = model(), tuned("*.Wo")
    before, t, walk = base.get_weights(), base.optimizer.t, list(base.walk())
    weights = other.get_weights()
    other.save_lora(tmp_path / "a")
    for changed, texts, message in EDITS:
        arrays = load_file(tmp_path / "a") | changed
        metadata = {"format": "phitodeep-lora", "version": "1", **texts}
        arrays = {name: a for name, a in arrays.items() if a is not None}
        save_file(arrays, path := tmp_path / "b", {k: v for k, v in metadata.items() if v})
        with pytest.raises(PhitodeepError, match=message):
            base.load_lora(path)
        assert list(base.walk()) == walk
        assert base.optimizer.t == t > 0
        assert "frozen" not in base.get_config()
        assert_same(base.get_weights(), before)
        with pytest.raises(PhitodeepError):
            other.load_lora(path)
        assert_same(other.get_weights(), weights)


def test_a_file_of_other_updates_is_refused_and_named(tmp_path):
    tuned("*.Wo").save_lora(tmp_path / "a")
    plain = model()
    plain.save(tmp_path / "m")
    for other, file, message in (
        (tuned("*.Wqkv"), "a", r"does not fit.*Wo.*Call remove_lora first"),
        (tuned("*.Wo", rank=3), "a", r"does not fit.*Wo.*Call remove_lora first"),
        (plain, "m", "not written by save_lora"),
        (plain, "nothing", "no such file"),
        (model(dtype="float32"), "a", "differs"),
    ):
        with pytest.raises(DataError, match=message):
            other.load_lora(tmp_path / file)


# --- refused -------------------------------------------------------------------------------------


def test_what_cannot_be_updated_is_named():
    made = model(trained=False)
    for pattern, message in (
        ("0.W", r"'0.W' matches only 0.W, and only the W of Dense"),
        ("*.gamma", r"'\*.gamma' matches only 2.layers"),
        ("5.W", r"'5.W' matches no parameter\. Similar ones"),  # a TiedDense
        (["*.Wo", "*.wqkv"], r"'\*.wqkv' matches no parameter.*Wqkv"),
    ):
        with pytest.raises(ArgumentError, match=message):
            made.add_lora(pattern)
    for pattern in (3, [], {"*": 2}, [3]):
        with pytest.raises(ArgumentTypeError, match="pattern must be text"):
            made.add_lora(pattern)
    assert not made._updates()
    assert made.layers[0].trainable


def test_recurrent_and_convolutional_layers_have_no_updates():
    made = built(L.Conv1D(4, 3), L.LSTM(3), shape=(T, 2))
    with pytest.raises(ArgumentError, match="no weight for an update"):
        made.add_lora()
    made.add(Dense(2))
    for pattern, named in (("0.W", "0.W"), ("*.Wx", "1.Wx"), ("1.*", "1.Wx, 1.Wh, 1.b")):
        with pytest.raises(ArgumentError, match=rf"matches only {named}, .* has 2\.W"):
            made.add_lora(pattern)
    assert made.add_lora("*", 1).weights == ("2.W",)


def test_calls_in_the_wrong_order():
    made = model()
    for method, *args in ((made.merge_lora,), (made.remove_lora,), (made.save_lora, "nowhere")):
        with pytest.raises(OrderError, match=f"{method.__name__}: the model has no updates"):
            method(*args)
    made.add_lora(rank=2)
    with pytest.raises(OrderError, match="earlier add_lora"):
        made.add_lora(rank=2)
    unbuilt = SequentialBuilder().dense(3).dense(2).build()
    with pytest.raises(phitodeep.errors.NotBuiltError, match="add_lora: layer 0, Dense"):
        unbuilt.add_lora()


def test_a_refused_update_changes_nothing():
    made = model()
    before, walk = made.get_weights(), list(made.walk())
    for rank, alpha, message in (
        (9, 16.0, r"layer 2\.layers\.0\.layers\.1: LowRank\(24, 9\) .*at most 8"),
        *((0, 16.0, "add_lora rank"), (2, 0, "add_lora alpha"), (2, -1, "add_lora alpha")),
    ):
        with pytest.raises(ArgumentError, match=message):
            made.add_lora("*", rank, alpha)
        assert list(made.walk()) == walk
        assert made.layers[0].trainable
        assert made.optimizer.t
        assert_same(made.get_weights(), before)
    made.train(X, Y, verbose=0)


def test_groups_that_name_a_path_that_vanishes_are_refused_before_anything_changes():
    made = model(trained=False)
    made.setoptimizer(Adam(groups={WO[0]: {"alpha": 0.1}}))
    made.train(X, Y, verbose=0)
    walk = list(made.walk())
    with pytest.raises(ArgumentError, match=rf"groups: '{WO[0]}' matches no parameter"):
        made.add_lora()
    assert list(made.walk()) == walk
    made.train(X, Y, verbose=0)
    made.setoptimizer(Adam(groups={"*.W": {"weight_decay": 0.1}}))
    made.add_lora("*.Wo", 2)
    made.setoptimizer(Adam(groups={"*.A": {"alpha": 0.1}}))
    made.train(X, Y, verbose=0)


def test_averages_must_be_put_back_first():
    made = model(trained=False)
    made.setoptimizer(Adam(ema=0.9))
    made.train(X, Y, verbose=0)
    with made.averaged(), pytest.raises(OrderError, match="call add_lora outside it"):
        made.add_lora(rank=2)
    made.add_lora(rank=2)
    made.train(X, Y, verbose=0)
    with made.averaged(), pytest.raises(OrderError, match="call merge_lora outside it"):
        made.merge_lora()
    made.merge_lora()


# --- with everything else ------------------------------------------------------------------------


def test_generation_remembers_keys_and_values():
    made = tuned()
    wanted = made.generate(X[:2, :2], 9, seed=0, cache=False)
    for cache in (True, None):
        np.testing.assert_array_equal(made.generate(X[:2, :2], 9, seed=0, cache=cache), wanted)
    made.merge_lora()
    np.testing.assert_array_equal(made.generate(X[:2, :2], 9, seed=0), wanted)


def test_lengths_have_the_meaning_that_they_had():
    made = tuned()
    lengths = RNG.integers(1, T + 1, len(X))
    found = made.predict(X, lengths=lengths)
    made.train(X, Y, lengths=lengths, epochs=1, verbose=0)
    made = tuned()
    made.merge_lora()
    np.testing.assert_allclose(found, made.predict(X, lengths=lengths), rtol=1e-12, atol=1e-13)


def test_the_random_values_of_dropout_do_not_change():
    def step(made):
        with phitodeep.core.call.calling(step=5):
            return made.forward(X)

    for dropout in (0.0, 0.4):
        made = model(dropout=dropout)
        before = step(made)
        made.add_lora("*", 2)
        np.testing.assert_allclose(step(made), before, rtol=1e-12, atol=1e-13)


def test_tools_need_no_special_case(tmp_path):
    made = tuned()
    path = f"{WO[0].removesuffix('.Wo')}.layers.2.branches.1"
    trace = made.trace(X, Y)
    assert f"{path}.backward.dB" in trace
    np.testing.assert_allclose(trace[f"{path}.backward.dB"].array, gradient(made, path))
    samples = made.sample_gradients(X, Y)
    np.testing.assert_allclose(samples[f"{path}.B"].sum(axis=0), gradient(made, path))
    maps = made.attention_maps(X)
    assert list(maps) == [f"{w.removesuffix('.Wo')}.layers.1" for w in WO]
    merged = made.copy()
    merged.merge_lora()
    for a, b in zip(maps.values(), merged.attention_maps(X).values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)
    made.diagnose(X, Y, overfit=0, verbose=0)
    made.export_numpy(tmp_path / "net.py")
    plain = runpy.run_path(str(tmp_path / "net.py"))["predict"]
    np.testing.assert_allclose(plain(X), made.predict(X), rtol=1e-11, atol=1e-12)
    trace.save(tmp_path / "page.html")
    assert "LowRank" in (tmp_path / "page.html").read_text(encoding="utf-8")


def gradient(made, path):
    """Return the gradient of the B of an update, by a hand-written step."""
    P = made.forward(X)
    made.backward(made.loss.loss_gradient(P, Y))
    return made.gradients()[f"{path}.B"]


def test_without_attention_every_dense_layer_gets_an_update():
    made = Sequential(Dense(4, 8), L.ReLU(), Dense(8, 3), seed=0)
    assert made.add_lora(rank=1).weights == ("0.W", "2.W")
    made = Sequential(Dense(4, 3), seed=0)
    made.add_lora(rank=2)
    assert repr(made) == "Sequential(LoRA(Dense(4, 3), W=LowRank(3, 2)))"
    assert isinstance(made.layers[0], AdaptedDense)
    assert isinstance(made.layers[0].branches[1], LowRank)
    assert not hasattr(L.MultiHeadAttention(2), "updates")


@pytest.mark.parametrize("saved", [False, True])
def test_updates_of_a_model_inside_another(saved, tmp_path):
    inner = Sequential(Dense(4), Tanh(), Dense(4))
    made = built(inner, Dense(2), dtype="float64")
    inner.layers[2].trainable = made.layers[1].trainable = False
    before = [path for path, layer in made.walk() if not layer.trainable]
    inner.add_lora("0.W", rank=1)
    if saved:
        made.save(tmp_path / "a.safetensors")
        made = phitodeep.load(tmp_path / "a.safetensors")
    made.merge_lora()
    assert [path for path, layer in made.walk() if not layer.trainable] == before
