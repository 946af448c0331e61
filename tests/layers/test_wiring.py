"""Networks of named values, and layers at several places: names, masks, random numbers."""

import numpy as np
import pytest

from phitodeep import layers as L
from phitodeep.core.call import Call, calling, watching, within
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError
from phitodeep.testing import check_gradients


def test_gradients_that_nobody_needs_are_not_computed():
    net = L.Wired(
        ["a", "b"],
        [
            (L.Tanh(), ["a"], ["h"]),
            (L.Dense(3), ["b"], ["k"]),
            (L.Add(), ["h", "k"], ["s"]),
            (L.Dense(2), ["s"], ["y"]),
            (L.Tanh(), ["h"], ["z"]),
        ],
        ["y", "z"],
    )
    net.build(((3,), (4,)), seed=0)
    rng = np.random.default_rng(0)
    ran = []

    def watcher(event):
        if (event.what, event.when) == ("backward", "before") and event.path:
            ran.append(repr(event.source))

    with within(Call(step=0, needs_dX=False)), watching(watcher):
        Ys = net.forward(rng.standard_normal((5, 3)), rng.standard_normal((5, 4)))
        assert net.backward(*Ys) is None
    assert ran == ["Dense(3, 2)", "Add()", "Dense(4, 3)"]  # no Tanh: nothing learns before it


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


REFUSED = [
    (["X"], [(L.Tanh(), ["X"], ["y"])], ["y"], "input 'X', which derivations use"),
    (["a b"], [(L.Tanh(), ["a b"], ["y"])], ["y"], "input 'a b': .* must be a Python name"),
    (["a"], [(L.Tanh(), ["a"], ["if"])], ["if"], "layer 0, Tanh.* gives 'if'"),
    (["a"], [(L.Tanh(), ["a"], ["a"])], ["a"], "'a', which is the name of another value"),
    (["a", "a"], [(L.Tanh(), ["a"], ["y"])], ["y"], "'a', which is the name of another value"),
    (["a"], [(L.Tanh(), ["b"], ["y"])], ["y"], "reads 'b', which is not one of 'a'"),
    (["a"], [(L.Tanh(), ["a"], ["y"])], ["z"], "output 'z' is not one of 'a', 'y'"),
    (["a"], [(L.Tanh(), ["a"], ["y"])], ["y", "y"], "'y' is an output twice"),
    (["a", "b"], [(L.Tanh(), ["a"], ["y"])], ["y"], "nobody reads 'b'"),
    (["a"], [(L.Tanh(), ["a"], ["da"])], ["da"], "'da' is the name of a gradient, that of 'a'"),
    (["a"], [(L.Tanh(), ["a"], ["np"])], ["np"], "'np', which derivations use"),
    ([], [(L.Tanh(), ["a"], ["y"])], ["y"], "at least one input and one output"),
    (["a"], [(L.Tanh(), ["a"], ["y"])], [], "at least one input and one output"),
]


@pytest.mark.parametrize(("takes", "uses", "returns", "message"), REFUSED)
def test_wrong_wirings_are_refused(takes, uses, returns, message):
    with pytest.raises(ArgumentError, match=message):
        L.Wired(takes, uses, returns)


def test_shapes_and_numbers_of_values_are_checked():
    def made(*uses, takes=("a", "b"), returns=("y",)):
        return L.Wired(takes, uses, returns)

    with pytest.raises(ShapeError, match=r"layer 0 of Wired, which gives 'y'.*\(3,\) and \(4,\)"):
        made((L.Add(), ["a", "b"], ["y"])).build(((3,), (4,)))
    with pytest.raises(ArgumentError, match="'y', 'z' gives 1 values, and 2 have names"):
        made((L.Add(), ["a", "b"], ["y", "z"]), returns=("y", "z")).build(((3,), (3,)))
    with pytest.raises(ArgumentTypeError, match=r"Subtract\(\) takes 2 inputs, got 3"):
        made((L.Subtract(), ["a", "b", "a"], ["y"])).build(((3,), (3,)))
    with pytest.raises(ArgumentTypeError, match=r"takes 2 inputs, got 1"):
        made((L.Add(), ["a", "b"], ["y"])).build((3,))
    with pytest.raises(ArgumentTypeError, match="the name of a value is text"):
        L.Wired([1], [(L.Tanh(), [1], ["y"])], ["y"])
    layer = L.Dense(2)
    with pytest.raises(ArgumentError, match="same layer object twice"):
        made((layer, ["a"], ["c"]), (layer, ["b"], ["d"]), (L.Add(), ["c", "d"], ["y"]))
    net = made((L.Add(), ["a", "b"], ["y"]))
    net.build(((3,), (3,)))
    with pytest.raises(ArgumentTypeError, match="takes 2 inputs, got 1"):
        net.forward(np.ones((2, 3)))
    net.forward(np.ones((2, 3)), np.ones((2, 3)))
    with pytest.raises(ShapeError, match=r"returned Y of shape \(2, 3\), got dY of shape \(2, 4\)"):
        net.backward(np.ones((2, 4)))
