"""Networks that train: the builder that wires them, several inputs, outputs and losses."""

from itertools import pairwise

import numpy as np
import pytest

import phitodeep
from phitodeep import LBFGS, SGD, Adam, AdamW, Huber, MeanSquaredError, Network, SoftmaxCrossEntropy
from phitodeep import SequentialBuilder as B
from phitodeep import layers as L
from phitodeep.errors import ArgumentError, ArgumentTypeError, OrderError
from phitodeep.io.tensors import open_tensors, write_tensors
from phitodeep.loss.heads import Heads
from phitodeep.training.sources import as_source
from tests.conftest import assert_weights, check_refused
from tests.inspect.shared import rows

RNG = np.random.default_rng(0)
X = {"image": RNG.standard_normal((24, 6, 6, 1)), "words": RNG.integers(0, 9, (24, 5))}
Y = {"digit": RNG.integers(0, 3, 24), "box": RNG.standard_normal((24, 2))}


def two_by_two(seed=1, dtype="float64"):
    b = B(image=(6, 6, 1), words=(5,), seed=seed).dtype(dtype)
    b = b.at("image").conv2d(3, 3).relu().flatten().dense(8).name("seen")
    b = b.at("words").embedding(9, 4).lstm(8, return_sequences=False).add("seen").dense(8).relu()
    b = b.dropout(0.2).name("both").dense(3)
    b = b.output("digit", loss="softmax_cross_entropy", metrics=["accuracy"])
    return b.at("both").dense(2).output("box", loss="huber", weight=0.5)


def weights(model):
    return [*model.get_weights().values()]


def test_a_builder_is_shown_as_the_calls_that_made_it():
    builder = two_by_two()
    text = repr(builder)
    assert ".at('words').embedding(9, 4).lstm(8, return_sequences=False).add('seen')" in text
    assert ".output('box', loss='huber', weight=0.5)" in text
    again = eval(text, {"SequentialBuilder": B})
    assert repr(again) == text
    assert again == builder
    assert_weights(again.build(), builder.build())


def test_names_may_come_to_stand_for_other_values():
    b = B(3, seed=0).dense(4).name("x").tanh().add("x").name("x").dense(4).add("x").name("x")
    net = b.at("input").dense(4).concat("x", axis=-1).build()
    assert [gives[0] for _, _, gives in net.uses] == [
        *("x", "tanh", "x_2", "dense", "x_3", "dense_2", "concat")
    ]
    assert net.wires[-1] == (("dense_2", "x_3"), ("concat",))
    assert net.predict(np.ones((2, 3))).shape == (2, 8)


def test_a_block_is_a_function_of_the_builder():
    def gate(b, C):
        return b.name("maps").global_avg_pool().dense(C).sigmoid().reshape(1, 1, C).multiply("maps")

    net = B(4, 4, 2, seed=0).then(gate, C=2).then(gate, 2).build()
    assert [type(layer).__name__ for layer in net.layers][4::5] == ["Multiply", "Multiply"]

    def forgetful(b):
        b.dense(2)

    with pytest.raises(ArgumentTypeError, match="forgetful must return the builder"):
        B(3).then(forgetful)


def test_without_names_a_builder_makes_a_sequential():
    assert type(B(3).dense(2).build()) is phitodeep.Sequential
    assert type(B(3).dense(2).name("y").build()) is Network
    assert type(B(x=(3,)).dense(2).build()) is Network


def test_shared_towers_have_one_set_of_weights():
    tower = L.Chain(L.Dense(4), L.Tanh(), L.Dense(2))
    net = (
        B(a=(3,), b=(3,), seed=0).at("a").add(tower).name("left").at("b").shared(tower)
        .subtract("left").build()
    )  # fmt: skip
    A = RNG.standard_normal((5, 3)).astype(np.float32)
    np.testing.assert_array_equal(net.predict((A, A)), 0)
    assert sum(a.size for a in weights(net)) == 4 * 4 + 5 * 2
    net.train((A, A[::-1]), np.ones((5, 2)), epochs=30, verbose=0)
    np.testing.assert_array_equal(net.predict((A, A)), 0)


WRONG = r"""
B(a=(3,)).dense(2).concat('b') -> UnknownNameError: 'b' is not one .* with names .* are 'a'
B(a=(3,)).at('c') -> UnknownNameError: 'c' is not one of the values with names
B(a=(3,)).dense(2).name('a b') -> ArgumentError: must be a Python name
B(a=(3,)).dense(2).name('Y') -> ArgumentError: 'Y': derivations use
B(a=(3,)).dense(2).name('u', 'v') -> ArgumentError: a name for each of 1 values
B(seed=(3,)) -> ArgumentTypeError: give the input another name
B(3, a=(2,)) -> ArgumentError: input expects
B((28, 28)) -> ArgumentError: input expects the sizes .* such as \.input\(28, 28\)
B(0) -> ArgumentError: the input: each size of shape \(0,\) must be >= 1
B(3).dense(2).input(a=(2,)) -> ArgumentError: before the first layer
B(3).dense(2).name('a').dense(2).add(['a', 'b']) -> ArgumentTypeError: one by one: \.add\(\*\['a'
B(a=(3,), b=(3,)).at('a').add(L.Tanh(), L.Dot(), 'b') -> ArgumentTypeError: for one layer, got 2
B(a=(3,), b=(3,)).at('a').add(L.Tanh(), 'b').build() -> ArgumentTypeError: takes 1 input, got 2
B(a=(3,), b=(3,)).at('a').add(L.Dot(), 'c') -> ArgumentError: names of values, .* a, b, got 'c'
B(3).then(L.Dense(2)) -> ArgumentTypeError: function of the builder, got Dense.* with \.add\(\)
B(3).shared(L.Dense(2)) -> ArgumentError: append it first
B(3).dense(2).output('y', loss='mse').loss('mse').build() -> ArgumentError: \.loss\(.* for a single
B(3).dense(2).output('y').metrics('mae').build() -> ArgumentError: \.metrics\(.* is for a single
B(3).dense(2).output('y').output('z') -> ArgumentError: 'z' has the value of the output 'y'
B(3).dense(2).output('y').tanh().output('y') -> ArgumentError: 'y': another value has this name
B(a=(3,), b=(3,)).at('a').dense(2).build() -> ArgumentError: nobody reads 'b'
B(3).dense(2).output('y').dense(4).build()
    ArgumentError: nobody reads 'dense', from layer 1, Dense\(4\): .* make it an output
B(a=(3,), b=(4,)).at('a').add('b').build()
    ShapeError: layer 0 of Network, which reads 'a', 'b' and gives 'add'.*\(3,\) and \(4,\)
B(3).dense(2).output('y', loss='nothing').build() -> ArgumentError: loss
B(image=28) -> ArgumentTypeError: the input image takes a shape such as \(28, 28\), got 28
B(a=(3,)).dense(2).concat(['a']) -> ArgumentTypeError: names of values come first: \.concat
B(a=(3, 2), h=(5,), c=(5,)).lstm(5, 'h', 'c', initial_state=True)
    ArgumentTypeError: names of values come first: \.lstm\('a', 'b'\)
B(a=(3, 2), h=(5,), c=(5,)).lstm('h', 'c', units=5).build()
    ArgumentTypeError: which reads 'a', 'h', 'c' .* LSTM\(5\) takes 1 input, got 3
B(3, 2).lstm(5, return_state=True).dense(1).build()
    ArgumentTypeError: layer 1 of Sequential: Dense\(1\) takes 1 input, got 3
B(3).branch() -> AttributeError: has no 'branch': name the value .*\.at\('a'\)
B(a=(3,)).dense(2).output('y', loss='mse', weight=2).build()
    ArgumentError: a network with one output has one loss: leave out loss_weights
"""


@rows(WRONG)
def test_wrong_calls_are_refused(call, error):
    check_refused(call, error, globals())


def test_losses_are_weighted_sums_and_have_names_in_the_history():
    net = two_by_two().build()
    before = net.evaluate(X, Y)
    P = net.predict(X)
    digit = SoftmaxCrossEntropy().loss_func(P["digit"], Y["digit"])
    box = Huber().loss_func(P["box"], Y["box"])
    assert before == pytest.approx(
        {
            "loss": digit + 0.5 * box,
            "digit_loss": digit,
            "box_loss": box,
            "digit_accuracy": (P["digit"].argmax(1) == Y["digit"]).mean(),
        }
    )
    history = net.train(X, Y, X, Y, epochs=30, batch_size=8, verbose=0)
    assert [*history.metrics] == [
        *("train_digit_loss", "train_box_loss", "train_digit_accuracy"),
        *("test_digit_loss", "test_box_loss", "test_digit_accuracy"),
    ]
    after = net.evaluate(X, Y)
    assert after["loss"] == pytest.approx(history[-1][1])
    assert after["box_loss"] == pytest.approx(history.metrics["test_box_loss"][-1])
    assert after["loss"] < 0.5 * before["loss"]
    net.setloss({"box": "huber"})
    found = net.evaluate(X, Y, metrics={})
    assert found == net.evaluate(X, {"box": Y["box"]}, metrics={})
    assert found["loss"] == found["box_loss"] / 2  # the only one, of this weight


def test_gradients_of_losses_have_their_weights_and_outputs_without_a_loss_have_0():
    losses = {"a": MeanSquaredError(), "b": Huber()}
    P, T = RNG.standard_normal((2, 3, 4, 2))
    whole = Heads(losses, {"a": 2.0, "b": 0.5}, ("a", "b", "c"))
    _, (da, db, dc) = whole.value_and_gradient(tuple(P), (*T[:2], None), (None, None, None))
    np.testing.assert_array_equal(da, 2 * losses["a"].loss_gradient(P[0], T[0]))
    np.testing.assert_array_equal(db, losses["b"].loss_gradient(P[1], T[1]) / 2)
    assert not dc.any()


@pytest.mark.parametrize(
    "batches",
    [
        [(X, Y)] * 2,
        [((X["image"], X["words"]), (Y["digit"], Y["box"]))] * 2,
        [{**X, **Y}] * 2,
        lambda: iter([(X, Y)] * 2),
    ],
)
def test_batches_train_as_arrays_do(batches):
    one, other = two_by_two().build(), two_by_two().build()
    one.train(batches, epochs=2, verbose=0)
    for _ in range(2):
        other.train(X, Y, epochs=2, verbose=0, shuffle=False)
    assert_weights(one, other)


class Frame(dict):
    """A table as pandas has it."""

    iloc = None


def test_columns_by_name_are_inputs_and_outputs():
    A, C, y = RNG.standard_normal((6, 3, 2)), RNG.standard_normal((6, 2)), RNG.integers(0, 3, 6)
    table = {"p": A[..., 0], "q": A[..., 1], "b": C, "label": y}

    def trained(*data, **options):
        uses = [(L.Flatten(), ["a"], ["f"]), (L.Dense(3), ["f"], ["u"]), (L.Dense(3), ["b"], ["v"])]
        uses.append((L.Add(), ["u", "v"], ["y"]))
        net = Network(["a", "b"], uses, ["y"], loss_class="softmax_cross_entropy", seed=0)
        net.train(*data, epochs=1, verbose=0, **options)
        return net

    wanted = trained({"a": A, "b": C}, y)
    assert_weights(trained(Frame({"a": A, "b": C}), y), wanted)
    columns = {"a": ["p", "q"], "y": "label"}
    source = as_source(wanted, wanted.loss, [table], None, batch_size=None, columns=columns)
    assert source.batch_size(None) == 6
    for data in (Frame(table), [table], lambda: iter([table])):
        for side_by_side in (["p", "q"], ("p", "q")):
            assert_weights(trained(data, columns={"a": side_by_side, "y": "label"}), wanted)


@pytest.mark.parametrize("pair", [True, False])
def test_an_output_without_targets_is_not_trained_by_the_batch(pair):
    one, other, absent = two_by_two().build(), two_by_two().build(), {**Y, "box": None}
    start = one.get_weights()
    one.train([(X, absent) if pair else X | absent], epochs=1, verbose=0)
    other.setloss({"digit": "softmax_cross_entropy"})
    other.layers[-1].trainable = False
    other.train(X, Y["digit"] if other.outputs == 1 else {"digit": Y["digit"]}, epochs=1, verbose=0)
    np.testing.assert_array_equal(one.get_weights()["11.W"], start["11.W"])
    assert_weights(one, other)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(
    "rule",
    [AdamW(0.01, l2=0.1, clip_norm=1, weight_decay=0.1, ema=0.9), LBFGS(l2=1, ema=0.9)],
    ids=["AdamW", "LBFGS"],
)
def test_only_outputs_with_targets_change_weights_and_memory(rule, accumulate):
    net = two_by_two().build()
    net.setoptimizer(rule.copy())
    absent = (X, {"digit": Y["digit"], "box": None})
    net.train([(X, Y)] * accumulate, epochs=1, verbose=0, accumulate=accumulate)
    weights, memory = net.get_weights(), net.optimizer.state_dict()["parameters"]
    net.train([absent] * accumulate, epochs=2, verbose=0, accumulate=accumulate)
    still = {path for path, W in net.get_weights().items() if np.array_equal(W, weights[path])}
    assert still == {"11.W", "11.b"}
    now = net.optimizer.state_dict()["parameters"]
    np.testing.assert_equal({p: now[p] for p in still}, {p: memory[p] for p in still})
    net.train([absent, (X, Y)], epochs=3, verbose=0, accumulate=2)  # one of two has targets
    assert not np.array_equal(net.get_weights()["11.W"], weights["11.W"])


def test_a_branch_in_a_block_keeps_all_if_its_output_has_no_targets():
    inside = [(L.Dense(3), ["p"], ["u"]), (L.Dense(3), ["q"], ["v"])]
    block, losses = L.Wired(["p", "q"], inside, ["u", "v"]), dict.fromkeys("ab", "mse")
    uses = [(L.Dense(3), ["x"], ["h"]), (L.Dense(3), ["x"], ["k"]), (block, ["h", "k"], ["p", "q"])]
    uses.append((L.Shared(block), ["p", "q"], ["a", "b"]))
    net = Network(["x"], uses, ["a", "b"], loss_class=losses, seed=0)
    T = RNG.standard_normal((6, 3))
    net.build((3,))
    net.backward(*net.forward(T))
    with pytest.raises(OrderError, match=r"only b depends on: .*setoptimizer"):
        Adam().step(net.layers, without=frozenset("b"))
    (rule := Adam()).step(net.layers)  # before it knows the network
    net.setoptimizer(rule)
    start = net.get_weights()
    net.train(T, {"a": T, "b": None}, epochs=2, verbose=0)
    changed = {path for path, W in net.get_weights().items() if not np.array_equal(W, start[path])}
    assert changed == {f"{path}.{name}" for path in ("0", "2.layers.0") for name in "Wb"}


class Counts(SGD):
    """A rule of a user's own, whose step takes layers only."""

    def step(self, layers):
        self.steps = getattr(self, "steps", 0) + 1
        super().step(layers)


def test_a_step_of_ones_own_need_not_know_of_absent_targets():
    net = two_by_two().build()
    net.setoptimizer(Counts(0.1))
    net.train(X, Y, epochs=2, verbose=0)
    assert net.optimizer.steps == net.optimizer.t > 0


def test_threads_change_no_bit(cut):
    """Two outputs are given one loss object, and parts of a batch run side by side."""
    cut(3)
    A = RNG.standard_normal((384, 32))
    T = {"a": RNG.integers(0, 32, 384), "b": RNG.integers(0, 32, 384), "c": A}

    def trained(threads, one, other):
        uses = [(L.Dense(64), ["x"], ["h"]), *[(L.Dense(32), ["h"], [name]) for name in "abc"]]
        losses = {"a": one, "b": other, "c": "huber"}
        net = Network(["x"], uses, [*"abc"], loss_class=losses, seed=0, batch_size=192)
        net.train(A, T, epochs=4, verbose=0, threads=threads)
        return net

    loss = SoftmaxCrossEntropy()
    wanted = trained(1, SoftmaxCrossEntropy(), SoftmaxCrossEntropy())
    for threads in (1, 2, 3):
        assert_weights(trained(threads, loss, loss), wanted)


@pytest.mark.parametrize("reads", ["h", "p"])
def test_a_loss_takes_over_a_softmax_that_no_layer_reads(reads, cut):
    A, y, T = RNG.standard_normal((6, 4)), RNG.integers(0, 3, 6), RNG.standard_normal((6, 3))

    def trained(parts, **options):
        cut(parts)
        uses = [
            (L.Dense(3), ["x"], ["h"]),
            (L.Tanh(), ["h"], ["z"]),
            (L.Softmax(), ["z"], ["p"]),
            (L.Dense(3), [reads], ["y"]),
        ]
        losses = {"p": "categorical_cross_entropy", "y": "mse"}
        net = Network(["x"], uses, ["p", "y"], loss_class=losses, seed=0, dtype="float64")
        net.train(A, (y, T), epochs=2, verbose=0, **options)
        return weights(net)

    for one, other in zip(trained(1, shortcuts=False), trained(2), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("returns", [["x", "p"], ["p", "x"]])
def test_an_input_may_be_an_output_beside_what_one_chain_gives(returns):
    A, y, found = RNG.standard_normal((6, 4)), RNG.integers(0, 3, 6), []
    for shortcuts in (True, False):
        uses = [(L.Dense(3), ["x"], ["h"]), (L.Softmax(), ["h"], ["p"])]
        losses = {"p": "categorical_cross_entropy", "x": "mse"}
        net = Network(["x"], uses, returns, loss_class=losses, seed=0, dtype="float64")
        net.train(A, {"p": y, "x": A}, epochs=2, verbose=0, shortcuts=shortcuts)
        found.append(net.predict(A)["p"])
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_lora_in_a_nested_chain_is_trained():
    inner = L.Chain(L.Dense(8), L.Tanh(), L.Dense(4))
    uses = [(inner, ["x"], ["h"]), (L.Dense(4), ["x"], ["k"]), (L.Add(), ["h", "k"], ["y"])]
    net = Network(["x"], uses, ["y"], loss_class="mse", seed=0)
    A, y = RNG.standard_normal((2, 16, 4))
    net.train(A, y, epochs=1, verbose=0)  # its order is planned before
    net.layers[0].trainable = net.layers[1].trainable = False
    net.add_lora("0*", rank=2)
    start = net.get_weights()
    net.train(A, y, epochs=2, verbose=0)
    changed = {name for name, W in net.get_weights().items() if not np.array_equal(W, start[name])}
    assert changed == {f"0.layers.{k}.branches.1.{name}" for k in (0, 2) for name in "AB"}


def test_the_losses_of_outputs_are_means_over_the_samples_that_have_targets():
    uses = [(L.Dense(1), ["x"], ["a"]), (L.Dense(1), ["x"], ["b"])]
    net = Network(
        ["x"], uses, ["a", "b"], loss_class={"a": "mse", "b": "mse"}, seed=0,
        optimizer=SGD(1e-30), metrics={"b": "mae"}, dtype="float64",
    )  # fmt: skip
    net.build((3,))
    A, (a, b) = RNG.standard_normal((24, 3)), RNG.standard_normal((2, 24, 1))
    batches = [(A[:9], {"a": a[:9], "b": b[:9]}), (A[9:], {"a": a[9:], "b": None})]
    some, all_a = net.evaluate(*batches[0]), net.evaluate(A, {"a": a, "b": b})["a_loss"]
    for accumulate in (1, 2):
        found = net.train(batches, epochs=1, verbose=0, accumulate=accumulate).metrics
        assert found["train_a_loss"][-1] == pytest.approx(all_a, rel=1e-12)
        assert found["train_b_loss"][-1] == pytest.approx(some["b_loss"], rel=1e-12)
        assert found["train_b_mae"][-1] == pytest.approx(some["b_mae"], rel=1e-12)


def test_padding_of_one_output_counts_in_no_loss_or_metric():
    uses = [(L.LSTM(4), ["x"], ["h"]), *[(L.Dense(3), ["h"], [name]) for name in "ab"]]
    losses = dict.fromkeys("ab", "softmax_cross_entropy")
    net = Network(["x"], uses, ["a", "b"], loss_class=losses, seed=0, dtype="float64")
    net.build((5, 2))
    A, lengths = RNG.standard_normal((6, 5, 2)), RNG.integers(1, 6, 6)
    T = {name: RNG.integers(0, 3, (6, 5)) for name in "ab"}
    inside = np.arange(5) < lengths[:, None]
    P = net.predict(A, lengths=lengths)
    found = net.evaluate(A, T, lengths=lengths, metrics={key: ["accuracy"] for key in "ab"})
    for name, scores in P.items():
        right = (scores.argmax(-1) == T[name])[inside]
        assert found[f"{name}_accuracy"] == pytest.approx(right.mean())
        picked = np.take_along_axis(scores, T[name][..., None], -1)[..., 0]
        terms = np.log(np.exp(scores).sum(-1)) - picked
        assert found[f"{name}_loss"] == pytest.approx(terms[inside].mean(), rel=1e-12)


@pytest.mark.parametrize("padded", ["a", "ab"])
def test_padding_of_several_inputs_changes_nothing(padded):
    b = B(a=(5, 2), b=(5, 2), seed=0).at("a").lstm(4, return_sequences=False).name("u")
    net = b.at("b").lstm(4, return_sequences=False).add("u").dense(2).build()
    lengths = {name: RNG.integers(1, 5, 6) for name in padded}
    A, T = {name: RNG.standard_normal((6, 5, 2)) for name in "ab"}, np.ones((6, 2))
    there = {name: np.arange(5) < n[:, None] for name, n in lengths.items()}
    other = A | {name: np.where(m[..., None], A[name], np.nan) for name, m in there.items()}
    assert net.evaluate(A, T, lengths=lengths) == net.evaluate(other, T, lengths=lengths)
    zeros = A | {name: np.where(m[..., None], A[name], 0) for name, m in there.items()}
    assert net.evaluate(A, T, lengths=lengths) != net.evaluate(zeros, T)


def test_a_network_wired_as_a_chain_has_the_bits_of_a_sequential():
    def layers():
        return [L.Dense(6), L.BatchNorm(), L.ReLU(), L.Dense(6), L.ReLU(), L.Dense(3), L.Softmax()]

    options = {"loss_class": "categorical_cross_entropy", "seed": 2, "batch_size": 8}
    values = ["x", *"abcdefg"]
    uses = [([v], [w]) for v, w in pairwise(values)]
    net = Network(
        ["x"], [(layer, *use) for layer, use in zip(layers(), uses, strict=True)], ["g"], **options
    )
    net.build((4,))
    chain = phitodeep.Sequential(*layers(), **options)
    A, y = RNG.standard_normal((24, 4)), RNG.integers(0, 3, 24)
    for model in (net, chain):
        model.train(A, y, epochs=3, verbose=0, metrics=["accuracy"])
    assert_weights(net, chain)
    np.testing.assert_array_equal(net.predict({"x": A}), chain.predict(A))
    assert net.evaluate({"x": A}, {"g": y}) == chain.evaluate(A, y)


def test_errors_in_a_stretch_name_the_network_and_the_value():
    fails = L.Lambda(lambda X: X[:, ::-1] / 0 if len(X) == 3 else X, lambda dY: dY)
    uses = [(L.Dense(4), ["x"], ["a"]), (fails, ["a"], ["b"]), (L.Dense(4), ["b"], ["y"])]
    for returns in (["y"], ["y", "a"]):  # all of it is one chain, or part of it
        net = Network(["x"], uses, returns, loss_class={"y": "mse"}, seed=0)
        net.build((4,))
        A = np.ones((3, 4), np.float32)
        for call in (
            net.forward,
            net.predict,
            lambda X, net=net: net.train([(X, {"y": X})], verbose=0),
        ):
            with np.errstate(divide="raise"), pytest.raises(FloatingPointError) as error:
                call(A)
            assert error.value.__notes__ == ["in layer 1 of Network, which reads 'a' and gives 'b'"]


REFUSED = r"""
net.train({'image': X['image']}, Y) -> ArgumentError: X must hold image, words; it lacks 'words'\.
net.train({**X, 'z': 1}, Y) -> ArgumentError: X must hold .*; it has the unknown 'z'
net.train([X['image'], X['words']], Y) -> ArgumentTypeError: give a dict with image
net.train({**X, 'image': X['image'] * np.nan}, Y) -> ArgumentError: X\['image'\]\[.* is nan: fill it
net.train({**X, 'words': X['words'][:3]}, Y) -> ShapeError: 'words'.* has 3 samples
net.predict({'image': X['image'][0], 'words': X['words'][0]})
    ShapeError: has 5 samples.*X\['image'\] has the .* one .*\(N, 6, 6, 1\).*'words'\]\[None
net.predict({**X, 'image': X['image'][0]}) -> ShapeError: 24 samples, .* X\['image'\]\[None\]\.$
net.predict({**X, 'image': X['image'][..., 0]}) -> ShapeError: reads 'image' .*\.reshape\(6, 6, 1\)
net.train((X['image'],), Y) -> ArgumentTypeError: X: give a dict .*, got a tuple of 1
net.train(X['image'], Y) -> ArgumentTypeError: X: give a dict .*, got ndarray
net.predict(X['image'], X['words']) -> ArgumentTypeError: X: give a dict with image, words
net.train({**X, 'words': X['words'] / 2}, Y) -> ArgumentTypeError: X\['words'\]
net.train(X) -> ArgumentTypeError: X was given without y
net.train((X['image'], X['words'])) -> ArgumentTypeError: X was given without y
net.train(X, {'digit': Y['digit']}) -> ArgumentError: y must hold .* lacks 'box'
net.train(X, {**Y, 'box': Y['box'][:2]}) -> ShapeError: y\['box'\] has 2 samples
net.train(X, {**Y, 'box': Y['box'][:, :1]}) -> ShapeError: y\['box'\]
net.train(X, Y, metrics=['accuracy']) -> ArgumentTypeError: must be a dict by name
net.train(X, Y, metrics={'z': []}) -> UnknownNameError: 'z' is not one of .* take metrics
net.train(X, Y, sample_weight=3) -> ArgumentTypeError: a dict by name .*'digit': .* got 3
net.train(X, Y, sample_weight={'digit': [1, 2]})
    ShapeError: sample_weight\['digit'\] must have shape \(24,\), got \(2,\)
net.train(X, Y, sample_weight={'z': 1}) -> UnknownNameError: 'z' is not one .* take sample_weight
net.train(X, Y, lengths={'z': 3}) -> UnknownNameError: 'z' is not one .* take lengths, .* 'image'
net.train(X, Y, lengths={'words': [9] * 24}) -> ArgumentError: lengths\['words'\]\[0\] is 9
net.setloss('mse') -> ArgumentTypeError: losses of a network must be a dict by name
net.setloss({'z': 'mse'}) -> UnknownNameError: 'z' is not one of the names that take losses
net.setloss({'box': 3}) -> ArgumentTypeError: in the output 'box': loss must be a Loss or its name
net.setloss({}) or net.train(X, Y) -> ArgumentError: no output of this network has a
net.setloss({'digit': 'softmax_cross_entropy'}) or net.train(X, Y)
    ArgumentError: layer 11 of Network, which reads 'both.*' and gives 'box', Dense.* is not trained
net.setloss({'digit': 'softmax_cross_entropy'}) or net.evaluate(X, Y, metrics={'box': ['mae']})
    UnknownNameError: 'box' is not one of the names that take metrics, which are 'digit'
net.forward(X['image']) -> ArgumentTypeError: Network\(image, words -> .* takes 2 inputs, got 1
net.forward(X['image'], X['words'][:2]) -> ShapeError: got 24 of image, 2 of words
net.attributions(X, 'integrated', output='box', baseline={'z': 1})
    UnknownNameError: 'z' is not one of the names .* which are 'image', 'words'
net.build({'image': (6, 6, 1)}) -> ArgumentError: input_shape must hold .* lacks 'words'
net.train([{'image': X['image'], **Y}], epochs=1) -> ArgumentError: none of them is 'words'
net.train([X | Y], columns=['image'], epochs=1) -> ArgumentTypeError: network are a dict
net.train([X | Y], columns={'z': 'box'}, epochs=1) -> UnknownNameError: 'z' is not an input or an
net.generate(X['words'], 3) -> ArgumentError: given=
"""


@rows(REFUSED)
def test_wrong_data_are_refused_and_change_nothing(call, error):
    net = two_by_two().build()
    before = weights(net)
    check_refused(call, error, {**globals(), "net": net})
    assert all(np.array_equal(a, b) for a, b in zip(before, weights(net), strict=True))
    assert net.predict(X).keys() == Y.keys()


def test_layers_are_not_added_to_a_network_that_is_wired():
    net = two_by_two().build()
    net.layers.append(L.Tanh())
    for call in (net.predict, net.forward, lambda *Xs: net.train(X, Y, verbose=0)):
        with pytest.raises(ArgumentError, match="wired with 12 layers, and now holds 13: make an"):
            call(*(X.values() if call == net.forward else [X]))


HOSTILE = r"""
reread('"both"', '"a/b"') -> ArgumentError: Network: layer 9.* gives 'a/b': .* Python name
reread('"both"', '"class"') -> ArgumentError: gives 'class': .* Python name and no keyword
reread('"both"', '"dseen"') -> ArgumentError: 'dseen' is the name of a gradient, that of 'seen'
reread('{"tuple":["both"]}', '"both"') -> ArgumentTypeError: reads and gives must be in lists
reread('["digit","box"]', '["digit","q"]') -> UnknownNameError: 'box' is not one of the names
reread('"loss_weights":{"box"', '"loss_weights":{"q"') -> UnknownNameError: 'q' .* 'digit', 'box'
reread('"loss_class":{"digit"', '"loss_class":{"q"') -> UnknownNameError: 'q' is not .* take losses
reread('[[6,6,1],[5]]', '7') -> ArgumentTypeError: input_shape must be a list, got 7
reread('"output_size":2', '"output_size":1000000000000') -> DataError: weights do not fit
"""


@rows(HOSTILE)
def test_files_with_hostile_names_are_refused(call, error, tmp_path):
    net, path = two_by_two().build(), tmp_path / "net.safetensors"
    net.save(path)

    def reread(old, new):
        with open_tensors(path) as file:
            arrays, texts = {name: file.read(name) for name in file.entries}, dict(file.metadata)
        assert old in texts["model"]
        texts["model"] = texts["model"].replace(old, new)
        write_tensors(path, arrays, texts)
        return phitodeep.load(path)

    check_refused(call, error, {"reread": reread})
