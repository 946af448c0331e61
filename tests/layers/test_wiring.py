"""Networks of named values, and layers at several places: names, masks, random numbers."""

import numpy as np
import pytest

from phitodeep import check_gradients
from phitodeep import layers as L
from phitodeep.core.call import Call, calling, watching, within
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError
from phitodeep.training.shortcuts import logits, rearranged
from tests.conftest import check_refused
from tests.derivations.test_contract import same_passes
from tests.inspect.shared import rows


def test_gradients_that_nobody_needs_are_not_computed():
    uses = [(L.Tanh(), ["a"], ["h"]), (L.Dense(3), ["b"], ["k"])]
    uses += [(L.Bilinear(3), ["h", "k"], ["s"])]
    uses += [(L.Dense(2), ["s"], ["y"]), (L.Tanh(), ["h"], ["z"])]
    net = L.Wired(["a", "b"], uses, ["y", "z"])
    net.build(((3,), (4,)), seed=0)
    rng = np.random.default_rng(0)
    ran = []

    def watcher(event):
        if (event.what, event.when) == ("backward", "before") and event.path:
            ran.append(repr(event.source))

    every = ["Dense(3, 2)", "Bilinear(3)", "Dense(4, 3)"]  # no Tanh: nothing learns before it
    for learns, wanted in ((True, every), (False, every[:2]), (True, every)):
        net.layers[1].trainable = learns
        ran.clear()
        with within(Call(step=0, needs_dX=False)), watching(watcher):
            Ys = net.forward(rng.standard_normal((5, 3)), rng.standard_normal((5, 4)))
            assert net.backward(*Ys) is None
        assert ran == wanted


def test_a_value_is_read_three_times_and_layers_of_several_values_are_in_no_stretch():
    uses = [
        (L.Dense(3), ["x"], ["a"]),
        (L.GRU(3, return_state=True), ["a"], ["b", "h"]),
        (L.Bilinear(2), ["b", "x"], ["c"]),
        *((L.Tanh(), [value], [to]) for value, to in ("cd", "be", "bf")),
    ]
    net = L.Wired(["x"], uses, [*"defh"])
    assert check_gradients(net, np.random.default_rng(0).standard_normal((2, 4, 3)))


def test_a_layer_may_give_no_gradient_of_a_value():
    one, two = (L.Lambda(np.add, lambda dY, A, B, Y: (dY, None), inputs=2) for _ in range(2))
    uses = [(L.Tanh(), ["x"], ["a"]), (L.Sigmoid(), ["x"], ["b"])]
    uses += [(one, ["a", "b"], ["c"]), (two, ["c", "x"], ["y"])]
    net, X = L.Wired(["x"], uses, ["y"]), np.random.default_rng(0).standard_normal((2, 3))
    net.forward(X)
    np.testing.assert_allclose(net.backward(np.ones((2, 3))), 1 - np.tanh(X) ** 2, rtol=1e-6)


def test_an_error_of_a_backward_pass_names_its_layer():
    fails = L.Lambda(np.copy, lambda dY, X, Y: dY / 0)
    net = L.Wired(["x"], [(L.Tanh(), ["x"], ["a"]), (fails, ["a"], ["y"])], ["a", "y"])
    Ys = net.forward(np.ones((2, 3)))
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError) as error:
        net.backward(*Ys)
    assert error.value.__notes__ == ["in layer 1 of Wired, which reads 'a' and gives 'y'"]


def test_masks_of_values_that_merge_must_be_equal():
    shapes, uses = ((4, 3), (4, 3)), [(L.Add(), ["a", "b"], ["s"]), (L.LSTM(3), ["s"], ["h"])]
    net = L.Wired(["a", "b"], uses, ["h"])
    net.build(shapes, seed=1)
    mask = np.array([[True, True, True, False], [True, False, False, False]])
    Xs = np.ones((2, 2, 4, 3))
    with calling(mask=(mask, mask)):
        net.forward(*Xs)
    for other in (None, ~mask):
        with (
            calling(mask=(mask, other)),
            pytest.raises(ArgumentError, match=r"layer 0 .*'s'.*all inputs must have the same st"),
        ):
            net.forward(*Xs)


def test_each_of_several_values_has_a_mask_or_none():
    uses = [
        (L.LSTM(3, return_state=True), ["a"], ["all", "h", "c"]),
        (L.GRU(3, return_state=True), ["b"], ["d", "e"]),
    ]
    net, mask = L.Wired(["a", "b"], uses, ["all", "h", "d", "e"]), np.ones((2, 4), bool)
    assert net.compute_mask(None, mask) == (None, None, mask, None)
    net.layers[1].compute_mask = None  # without a mask, it is not asked
    assert net.compute_mask(mask, None) == (mask, None, None, None)
    with pytest.raises(ValueError, match="shorter"):
        net.compute_mask(mask)


def test_a_network_of_one_stretch_is_a_chain_and_a_softmax_alone_is_left_out():
    for count, checkpoint, kind in ((2, False, L.Chain), (1, False, L.Wired), (2, True, L.Wired)):
        uses = [(L.Tanh(), [f"v{k}"], [f"v{k + 1}"]) for k in range(count)]
        net = L.Wired(["v0"], uses, [f"v{count}"], checkpoint=checkpoint)
        net.build((3,))
        assert isinstance(rearranged(net), kind)
    net = L.Wired(["x"], [(L.Tanh(), ["x"], ["h"]), (L.Softmax(), ["h"], ["p"])], ["h", "p"])
    net.build((3,))
    np.testing.assert_array_equal(*logits(net, 2, output=1).forward(np.ones((2, 3))))


def test_a_layer_with_several_inputs_and_outputs_is_shared():
    cell = L.LSTM(3, initial_state=True, return_state=True)
    uses = [
        (cell, ["a", "b", "c"], ["h", "i", "j"]),
        (L.Shared(cell), ["a", "i", "j"], ["k", "l", "m"]),
    ]
    net = L.Wired(["a", "b", "c"], uses, [*"hklm"])
    rng = np.random.default_rng(0)
    assert check_gradients(net, tuple(rng.standard_normal((2, *s)) for s in ((4, 5), (3,), (3,))))


def test_scores_that_are_shared_add_to_the_gradient_of_the_embedding():
    words = L.Embedding(5, 5)
    scores = L.TiedDense(words)
    net = L.Chain(words, L.Tanh(), scores, L.Tanh(), L.Shared(scores))
    assert check_gradients(net, np.array([[0, 4, 2], [1, 1, 3]]))


def test_each_place_of_a_layer_draws_random_numbers_of_its_own():
    layer = L.Dropout(0.5)
    net = L.Wired(["x"], [(layer, ["x"], ["y"]), (L.Shared(layer), ["x"], ["z"])], ["y", "z"])
    net.build((40,), seed=0)
    with within(Call(step=0)):
        first, *others = net.forward(np.ones((2, 40)))
        net._set_seed(1)
        others += net.forward(np.ones((2, 40)))
    assert all((first != other).any() for other in others)
    assert (others[0] != others[2]).any()


def test_a_model_that_is_not_built_counts_shared_layers_that_make_their_parts():
    block = L.SwiGLU(3)
    assert L.Chain(L.Dense(4, 4), block, L.Shared(block)).count_params() == 4 * 4 + 4 + 3 * 3 * 4


def test_values_that_nobody_reads_have_no_gradient():
    uses = [
        (L.LSTM(3, return_state=True), ["x"], ["all", "h", "c"]),
        (L.Dense(2), ["c"], ["y"]),
    ]
    net, X = L.Wired(["x"], uses, ["y"]), np.random.default_rng(0).standard_normal((4, 5, 2))
    assert check_gradients(net, X)
    net.build((5, 2), dtype=np.float64)
    same_passes(net, X, np.ones((4, 2)))


def tanh(takes, reads, gives, returns, layer="Tanh"):
    return L.Wired(takes, [(getattr(L, layer)(), reads, gives)], returns)


REFUSED = r"""
tanh(['X'], ['X'], ['y'], ['y']) -> ArgumentError: input 'X': derivations use
tanh(['a'], ['a'], ['np'], ['np']) -> ArgumentError: 'np': derivations use
tanh(['a b'], ['a b'], ['y'], ['y']) -> ArgumentError: input 'a b': .* must be a Python name
tanh(['a/b'], ['a/b'], ['y'], ['y']) -> ArgumentError: input 'a/b': .* must be a Python name
tanh(['ﬁ'], ['ﬁ'], ['y'], ['y']) -> ArgumentError: must be a Python name
tanh(['a'], ['a'], ['if'], ['if']) -> ArgumentError: layer 0, Tanh.* gives 'if': .* no keyword
tanh(['a'], ['a'], ['a'], ['a']) -> ArgumentError: 'a': another value has this name
tanh(['a', 'a'], ['a'], ['y'], ['y']) -> ArgumentError: 'a': another value has this name
tanh([1], [1], ['y'], ['y']) -> ArgumentTypeError: the name of a value is text
tanh(['a'], ['b'], ['y'], ['y']) -> ArgumentError: reads 'b', which is not one of 'a'
tanh(['a'], ['a'], ['y'], ['z']) -> ArgumentError: output 'z' is not one of 'a', 'y'
tanh(['a'], ['a'], ['y'], ['y', 'y']) -> ArgumentError: 'y' is an output twice
tanh(['a', 'b'], ['a'], ['y'], ['y']) -> ArgumentError: nobody reads 'b', an input: .*\.at\('b'\)
tanh(['a'], ['a'], ['da'], ['da']) -> ArgumentError: 'da' is the name of a gradient, that of 'a'
tanh(['a'], ['a'], ['da_0'], ['da_0']) -> ArgumentError: 'da_0' is the name .*: give one of the two
tanh([], ['a'], ['y'], ['y']) -> ArgumentError: at least one input and one output
tanh(['a'], ['a'], ['y'], []) -> ArgumentError: at least one input and one output
tanh(['seen'], 'seen', ['y'], ['y']) -> ArgumentTypeError: Tanh\(\) reads and gives .* got 'seen'
tanh(['a'], ['a'], ['y'], 'y') -> ArgumentTypeError: the outputs must be in lists, .* got 'y'
L.Wired(['a'], [(L.Tanh(), ['a'])], ['y']) -> ArgumentTypeError: a use is a layer, the names
tanh(['a'], ['a'], ['y', 'z'], ['y', 'z']).build((3,))
    ArgumentError: 'y', 'z' gives 1 values, and 2 have names
tanh(['a', 'b'], ['a', 'b'], ['y'], ['y'], 'Add').build(((3,), (4,)))
    ShapeError: layer 0 of Wired, which reads 'a', 'b' and gives 'y'.*\(3,\) and \(4,\)
tanh(['a', 'b'], ['a', 'b', 'a'], ['y'], ['y'], 'Subtract').build(((3,), (3,)))
    ArgumentTypeError: Subtract\(\) takes 2 inputs, got 3
tanh(['a', 'b'], ['a', 'b'], ['y'], ['y'], 'Add').build((3,)) -> ArgumentTypeError: takes 2 .* got 1
"""


@rows(REFUSED)
def test_wrong_wirings_are_refused(call, error):
    check_refused(call, error, globals())


def test_shapes_and_numbers_of_values_are_checked():
    layer = L.Dense(2)
    with pytest.raises(ArgumentError, match=r"same layer object twice.* Shared\(layer\)"):
        L.Wired(["a", "b"], [(layer, ["a"], ["c"]), (layer, ["b"], ["d"])], ["c", "d"])
    net = tanh(["a", "b"], ["a", "b"], ["y"], ["y"], "Add")
    net.build(((3,), (3,)))
    with pytest.raises(ArgumentTypeError, match="takes 2 inputs, got 1"):
        net.forward(np.ones((2, 3)))
    net.forward(np.ones((2, 3)), np.ones((2, 3)))
    with pytest.raises(ShapeError, match=r"returned Y of shape \(2, 3\), got dY of shape \(2, 4\)"):
        net.backward(np.ones((2, 4)))
    net.layers[0].backward = lambda dY: dY
    with pytest.raises(ValueError, match="shorter"):  # one gradient for two inputs
        net.backward(np.ones((2, 3)))
    net.layers[0] = L.Subtract()
    assert not net.forward(np.ones((2, 3)), np.ones((2, 3))).any()
