"""Layers with several inputs or outputs, called directly: gradients, shapes, masks and states."""

from itertools import product

import numpy as np
import pytest

from phitodeep import MeanSquaredError, layers
from phitodeep import layers as nn
from phitodeep.core.call import calling, inference
from phitodeep.core.types import each
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError
from phitodeep.layers import attention
from phitodeep.layers.containers import Container
from phitodeep.testing import GradientError, check_gradients
from phitodeep.testing.examples import data, made, passes
from tests.conftest import assert_same
from tests.derivations.test_contract import by_steps, check_terms, same_passes


def gated(X1, X2):
    return X1 * np.tanh(X2)


def gated_back(dY, X1, X2, Y):
    return dY * np.tanh(X2), dY * X1 * (1 - np.tanh(X2) ** 2)


def cell(kind, **options):
    return lambda: kind(3, **options)


ALIKE = ((3, 4, 2), (3, 4, 2))
STRETCHED = ((3, 4, 1, 5), (3, 1, 2, 5), (3, 4, 2, 1))
STEPS = ((3, 4, 5), (3, 3), (3, 3))
TABLE = [
    *((kind, STRETCHED) for kind in (nn.Add, nn.Multiply, nn.Average, nn.Maximum)),
    *((kind, STRETCHED[:2]) for kind in (nn.Add, nn.Subtract, nn.Multiply)),
    *((kind, ((3,), (3,))) for kind in (nn.Add, nn.Multiply)),
    (nn.Concat, ((3, 4, 2), (3, 4, 1), (3, 4, 5))),
    (lambda: nn.Concat(0), ((3, 4, 2), (3, 1, 2))),
    (lambda: nn.Concat(-2), ((3, 2, 4, 2), (3, 2, 1, 2))),
    (nn.Dot, ALIKE),
    (lambda: nn.Bilinear(6), ((3, 5), (3, 4))),
    (lambda: nn.Bilinear(1, bias=False), ((3, 2, 5), (3, 2, 7))),
    (lambda: nn.CrossAttention(2), ((3, 4, 6), (3, 5, 7))),
    (lambda: nn.CrossAttention(4, kv_heads=2, dropout=0.4), ((3, 5, 8), (3, 1, 3))),
    (lambda: nn.CrossAttention(2, head_dim=5, bias=False), ((3, 1, 3), (3, 4, 3))),
    (lambda: nn.Lambda(gated, gated_back, inputs=2, steps="independent"), ALIKE),
    *(
        (cell(kind, return_sequences=whole, return_state=ends, initial_state=begins), shapes)
        for kind, n in ((nn.RNN, 1), (nn.GRU, 1), (nn.LSTM, 2))
        for whole, ends, begins in product((True, False), repeat=3)
        if ends or begins
        for shapes in [STEPS[: 1 + n] if begins else STEPS[0]]
    ),
    (lambda: nn.TimeDistributed(nn.Bilinear(2)), ((3, 4, 5), (3, 4, 2))),
    (lambda: nn.TimeDistributed(nn.Concat(0)), ((3, 2, 4, 1), (3, 2, 1, 1), (3, 2, 2, 1))),
    (lambda: nn.TimeDistributed(nn.GRU(2, return_state=True)), (2, 3, 4, 5)),
    (
        lambda: nn.Wired(
            ["a", "b"],
            [(nn.Multiply(), ["a", "b"], ["c"]), (nn.Dense(3), ["c"], ["d"])],
            ["d", "c"],
        ),
        ((3, 4, 5), (3, 1, 5)),
    ),
]
each_row = pytest.mark.parametrize(
    ("make", "shapes"), TABLE, ids=[f"{make()} {shapes}" for make, shapes in TABLE]
)


def build(make, shapes, dtype=np.float64):
    layer = made(make, shapes, dtype)
    return layer, *data(layer, shapes)


def masked(layer, shapes):
    """No mask, and one with padding for each input that has steps, if the layer looks at them."""
    if not isinstance(layer, nn.CrossAttention | nn.RNN | nn.GRU | nn.LSTM):
        return [None]
    every = shapes if layer.inputs != 1 else [shapes]
    lengths = np.array([[9], [2], [0]])
    found = [np.arange(s[1]) < lengths if len(s) == 3 else None for s in every]
    return [None, tuple(found) if layer.inputs != 1 else found[0]]


def test_the_table_has_every_layer_with_several_inputs():
    rows = {type(make()) for make, _ in TABLE}
    public = [v for n in layers.__all__ if isinstance(v := getattr(layers, n), type)]
    several = {c for c in public if issubclass(c, nn.Layer) and c.inputs != 1}
    assert {c for c in several if not issubclass(c, Container)} <= rows


@each_row
def test_gradients_are_slopes(make, shapes):
    layer, X, _ = build(make, shapes)
    report = check_gradients(layer, X)
    inputs = ["dX"] if layer.inputs == 1 else [f"dX{k + 1}" for k in range(len(shapes))]
    assert [entry.name for entry in report.entries][: len(inputs)] == inputs
    check_gradients(layer, X, training=False, max_probes=4)


@each_row
def test_steps_equal_the_fast_passes(make, shapes):
    layer, X, dY = build(make, shapes)
    for mask in masked(layer, shapes):
        same_passes(layer, X, dY, mask=mask)
        check_terms(by_steps(layer, X, dY, mask=mask))


@each_row
def test_float32_stays_and_each_input_gets_a_gradient_of_its_shape(make, shapes):
    layer, X, dY = build(make, shapes, np.float32)
    found, Xs, dYs = passes(layer, X, dY), each(X), each(dY)
    assert {a.dtype for a in found.values()} == {np.dtype(np.float32)}
    with calling(step=0):
        Y = each(layer.forward(*Xs))
        assert not any(np.shares_memory(A, B) for A in Y for B in Xs)
        dX = each(layer.backward(*dYs))
    assert [A.shape for A in (*Y, *dX)] == [A.shape for A in (*dYs, *Xs)]


# --- shapes and masks --------------------------------------------------------------------------


BAD = [
    (nn.Add, ((4, 2), (3, 2)), "do not fit"),
    (nn.Multiply, ((4, 2), (2,)), r"do not fit.* \.reshape\(1, 2\) gives \(2,\) as many"),
    (nn.Multiply, ((6, 6, 2), (2,)), r"\.reshape\(1, 1, 2\) gives \(2,\) as many"),
    (nn.Multiply, ((4, 2), (4,)), r"of equal size or 1\.$"),
    (nn.Subtract, ((4, 1), (4, 2, 1)), "do not fit"),
    (nn.Concat, ((4, 2), (3, 2)), "must be equal"),
    (nn.Dot, ((4, 2), (4, 1)), "equal shape"),
    (lambda: nn.Bilinear(2), ((4, 2), (3, 2)), "equal shapes"),
    (lambda: nn.Bilinear(2), ((4,), ()), "equal shapes"),
    (lambda: nn.CrossAttention(2), ((3,), (4, 2)), r"\(T, D\) and \(S, E\)"),
    (lambda: nn.GRU(3, initial_state=True), ((4, 2), (2,)), "states"),
    (lambda: nn.TimeDistributed(nn.Add()), ((4, 2), (3, 2)), r"\(T, ...\)"),
    (lambda: nn.LSTM(3, initial_state=True), ((4, 2), (3,), (3, 1)), "states"),
]


@pytest.mark.parametrize(("make", "shapes", "message"), BAD)
def test_shapes_that_do_not_fit_are_refused_with_all_of_them(make, shapes, message):
    with pytest.raises(ShapeError, match=message) as caught:
        make().build(shapes)
    assert all(str(shape) in str(caught.value) for shape in shapes)


def test_arrays_that_do_not_fit_are_refused_too(rng):
    for make, shapes, others in (
        (lambda: nn.Bilinear(2), ((3, 5), (3, 4)), ((2, 3, 5), (2, 2, 4))),
        (lambda: nn.CrossAttention(2), ((3, 4), (5, 6)), ((2, 3, 4), (3, 5, 6))),
        (lambda: nn.CrossAttention(2), ((3, 4), (5, 6)), ((2, 3, 4), (2, 5, 4))),
        (lambda: nn.RNN(3, initial_state=True), ((4, 2), (3,)), ((2, 4, 2), (1, 3))),
    ):
        layer = make()
        layer.build(shapes)
        with pytest.raises(ShapeError) as caught:
            layer.forward(*[rng.standard_normal(s) for s in others])
        assert all(str(shape) in str(caught.value) for shape in others)
    with pytest.raises(ArgumentTypeError, match="takes 2 inputs, got 3"):
        nn.Dot().forward(*rng.standard_normal((3, 2, 4)))
    with pytest.raises(ArgumentTypeError, match="two or more inputs, got 1"):
        nn.Add().forward(rng.standard_normal((2, 4)))


def test_masks_are_passed_on_or_must_be_equal():
    some, other = np.arange(4) < np.array([[4], [2]]), np.arange(4) < np.array([[4], [3]])
    for layer in (nn.Add(), nn.Dot(), nn.Bilinear(2), nn.Concat()):
        assert layer.compute_mask(some, some.copy()) is some
        for wrong in (other, None):
            with pytest.raises(ArgumentError, match="same steps"):
                layer.compute_mask(some, wrong)
    assert nn.CrossAttention(2).compute_mask(some, other) is some
    assert nn.CrossAttention(2).compute_mask(None, other) is None
    assert nn.GRU(2, initial_state=True).compute_mask(some, None) is some
    assert nn.LSTM(2, return_state=True).compute_mask(some) == (some, None, None)
    joined = nn.Concat(0)
    joined.build(((4, 2), (4, 2)))
    with pytest.raises(ArgumentError, match="lengths"):
        joined.compute_mask(some, some)


# --- attention to another sequence -------------------------------------------------------------


def test_padding_of_the_memory_changes_nothing(monkeypatch):
    """Also with blocks of queries; a query whose memory is all padding gets the bias alone."""
    layer, (X1, X2), dY = build(lambda: nn.CrossAttention(2), ((3, 4, 6), (3, 5, 7)))
    mask = np.arange(5) < np.array([[5], [2], [0]])
    wild = np.where(mask[..., None], X2, 1e3)
    whole = passes(layer, (X1, wild), dY, mask=(None, mask))
    for scores in (1, 10):
        monkeypatch.setattr(attention, "SCORES", scores)
        assert_same(passes(layer, (X1, wild), dY, mask=(None, mask)), whole, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(whole["Y"][2], np.broadcast_to(layer.bo, (4, 6)))
    assert not whole["dX1"][2].any()
    assert not whole["dX2"][~mask].any()
    alone = passes(layer, (X1[1:2], X2[1:2, :2]), dY[1:2])
    for name in ("Y", "dX1"):
        np.testing.assert_allclose(alone[name], whole[name][1:2], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(alone["dX2"], whole["dX2"][1:2, :2], rtol=1e-10, atol=1e-12)


def test_keys_of_the_memory_are_computed_once():
    layer, (X1, X2), _ = build(lambda: nn.CrossAttention(4, kv_heads=2), ((2, 4, 8), (2, 5, 3)))
    with inference():
        whole = layer.forward(X1, X2)
        with calling(memory={}):
            steps = [layer.forward(X1[:, :1], X2)]
            steps += [layer.forward(X1[:, t : t + 1], 0 * X2) for t in range(1, 4)]
    np.testing.assert_allclose(np.concatenate(steps, axis=1), whole, rtol=1e-12, atol=1e-12)


# --- states ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_two_halves_that_hand_on_their_states_are_the_whole(kind):
    whole, X, dY = build(cell(kind), (3, 5, 2))
    first, second = (
        made(cell(kind, **{way: True}), shapes)
        for way, shapes in (
            ("return_state", (3, 2, 2)),
            ("initial_state", ((3, 3, 2), *[(3, 3)] * whole.states)),
        )
    )
    first.set_weights(whole.get_weights())
    second.set_weights(whole.get_weights())
    expected = passes(whole, X, dY)
    Y1, *states = first.forward(X[:, :2])
    Y2 = second.forward(X[:, 2:], *states)
    dX2, *dstates = second.backward(dY[:, 2:])
    dX1 = first.backward(dY[:, :2], *dstates)
    found = {"Y": np.concatenate([Y1, Y2], 1), "dX": np.concatenate([dX1, dX2], 1)}
    found |= {name: first.grads[name] + second.grads[name] for name in whole.params}
    assert_same(found, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(states[0], Y1[:, -1])


def test_states_in_generation_and_around_both_directions():
    layer, (X, h), _ = build(cell(nn.GRU, initial_state=True), ((2, 4, 5), (2, 3)))
    with inference():
        whole = layer.forward(X, h)
        with calling(memory={}):  # the state that is given is that before the first call
            steps = [layer.forward(X[:, t : t + 1], h) for t in range(4)]
    np.testing.assert_allclose(np.concatenate(steps, axis=1), whole, rtol=1e-12)
    for option in ("return_state", "initial_state"):
        with pytest.raises(ArgumentError, match="without states"):
            nn.Bidirectional(nn.LSTM(3, **{option: True}))


# --- functions, and gradients that are not slopes ----------------------------------------------


def test_functions_of_several_inputs(rng):
    layer = nn.Lambda(gated, lambda dY, X1, X2, Y: dY * np.tanh(X2), inputs=2)
    X = rng.standard_normal((2, 3, 4))
    with pytest.raises(ArgumentTypeError, match="2 gradients, one for each input, got 1"):
        layer.backward(layer.forward(*X))
    layer = nn.Lambda(gated, lambda dY, X1, X2, Y: (dY * np.tanh(X2), None), inputs=2)
    assert layer.backward(layer.forward(*X))[1] is None
    assert layer.copy().inputs == 2


def test_reversed_gradient(rng):
    layer, X = nn.GradientReversal(0.25), rng.standard_normal((3, 4))
    np.testing.assert_array_equal(layer.forward(X), X)
    np.testing.assert_array_equal(layer.backward(X), -0.25 * X)
    with pytest.raises(ArgumentError, match=r"GradientReversal\(0.25\) has, on purpose"):
        check_gradients(nn.Chain(nn.Dense(2), layer.copy()), X)


# --- the check itself --------------------------------------------------------------------------


class Doubled(nn.Multiply):
    """A product whose second gradient is twice what it should be."""

    def backward(self, dY):
        dX1, dX2 = super().backward(dY)
        return dX1, 2 * dX2


def test_the_check_names_the_gradient_that_is_wrong(rng):
    X = tuple(rng.standard_normal((2, 3, 4)))
    with pytest.raises(GradientError, match=r"dX2\[.*2 times what it should be") as caught:
        check_gradients(Doubled(), X)
    assert "dX1" not in str(caught.value)
    net = nn.Wired(["a", "b"], [(Doubled(), ["a", "b"], ["c"])], ["c"])
    with pytest.raises(GradientError, match="On its own, layer 0 is wrong too"):
        check_gradients(net, X)
    with pytest.raises(ArgumentTypeError, match="takes 2 inputs, got 1"):
        check_gradients(nn.Dot(), X[0])
    states = nn.RNN(3, return_state=True)
    with pytest.raises(ArgumentError, match="has 2 outputs: check it without y"):
        check_gradients(states, rng.standard_normal((2, 3, 4)), 1.0, loss=MeanSquaredError())
