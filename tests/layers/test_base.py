"""Param, Layer and Call: what an author of a layer relies on."""

from __future__ import annotations

import itertools
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass

import numpy as np
import pytest

from phitodeep import Layer, Param, State, check_gradients, errors
from phitodeep.core.call import Call, calling, current, inference, saliency
from phitodeep.layers import GELU, BatchNorm, Chain, Dense, Dropout, LayerNorm, PReLU, ReLU, Tanh
from phitodeep.layers.containers import Container
from phitodeep.layers.initialization import Constant, LeCun
from tests.conftest import assert_same, check_refused


class Scale(Layer):
    """A layer as a reader would write it: y = s x, and it counts its passes."""

    s = Param(decay=True)
    seen = State()

    def __init__(self, start=2.0):
        super().__init__()
        self.start = start

    def create(self, shape):
        self.s = self.draw(Constant(self.start), shape[-1:])
        self.seen = np.zeros(1)
        return shape

    def forward(self, X):
        if current().training:
            self.seen += 1
        self.save_for_backward(X=X)
        return X * self.s

    def backward(self, dY):
        X = self.saved("X")
        self.grads = {"s": (dY * X).sum(axis=tuple(range(X.ndim - 1)))}
        return dY * self.s


class Both(Container):
    """A container as a reader would write it: y = twice(x) + f_1(x) + f_2(x) + ..."""

    def __init__(self, *many):
        self.twice, self.many = Scale(), list(many)

    def create(self, shape):
        for layer in self.children().values():
            layer.build(shape)
        return shape

    def forward(self, X):
        return sum((layer.forward(X) for layer in self.many), self.twice.forward(X))

    def backward(self, dY):
        dX = self.twice.backward(dY)
        for layer in self.many:
            dX = dX + layer.backward(dY)
        return dX


# --- the call ----------------------------------------------------------------------------------


def test_calls_are_values_that_nest_and_are_left_even_by_errors():
    with calling(step=3, reuse=True):
        assert current() == Call(reuse=True, step=3)
        with inference():
            assert current() == Call(training=False, caching=False, step=3)
            with saliency():
                assert current() == Call(training=False, caching=True, step=3)
        with saliency():
            assert current() == Call(training=False, caching=True, step=3)
        assert current() == Call(reuse=True, step=3)
    with pytest.raises(ZeroDivisionError), inference():
        _ = 1 / 0
    assert current() == Call()
    error = TypeError if sys.version_info >= (3, 13) else ValueError  # of a named tuple
    with pytest.raises(error, match="unexpected"), calling(no_such_field=1):
        pass
    assert current() == Call(True, True, True, True, False, None, 0)
    with pytest.raises(AttributeError):
        current().training = False
    with inference(), ThreadPoolExecutor(1) as pool:
        assert pool.submit(current).result() == Call()
        assert pool.submit(copy_context().run, current).result() == current()


# --- parameters --------------------------------------------------------------------------------


def test_param_reads_and_writes_the_dict_but_no_bad_values():
    layer = Dense(3, 2)
    assert isinstance(Dense.W, Param)
    W = layer.W
    assert layer.params["W"] is W
    layer.W = np.arange(6).reshape(3, 2)
    assert layer.W is W  # written into: an optimizer's view stays one
    assert W.dtype == np.float32
    np.testing.assert_array_equal(W, [[0, 1], [2, 3], [4, 5]])
    layer.W += 1
    assert layer.W is W
    assert W[0, 0] == 1
    layer.b = [5.0, 6.0]
    np.testing.assert_array_equal(layer.forward(np.zeros((1, 3))), [[5, 6]])
    layer = Dense(3, 2)
    layer.W = np.ones((3, 2))
    assert layer.output_shape == (2,)
    assert layer.b.shape == (2,)
    for value, error in BAD_VALUES:
        check_refused("setattr(layer, 'W', value)", error, {"layer": layer, "value": value})
        np.testing.assert_array_equal(layer.W, np.ones((3, 2)))


BAD_VALUES = [
    (np.ones((2, 3)), r"ShapeError: Dense\(3, 2\): parameter 'W' has shape \(3, 2\), got \(2, 3\)"),
    (1.0, r"ShapeError: .*got \(\)"),
    (np.ones(2), r"ShapeError: .*got \(2,\)"),  # which NumPy would broadcast
    (np.full((3, 2), 1j), "ArgumentTypeError: .*real numbers, got .*complex128"),
    (np.full((3, 2), "a"), "ArgumentTypeError: .*real numbers"),
    (None, "ArgumentTypeError: .*real numbers, got .*object"),
    ([[1.0], [1.0, 2.0]], "ShapeError: .*unequal length"),
]


def test_reading_too_early_says_what_to_do_and_decay_is_declared():
    for layer in (Dense(3), LayerNorm(), PReLU(), BatchNorm()):
        name = next(iter(layer._declared))
        with pytest.raises(errors.NotBuiltError, match="not know its input shape yet: call build"):
            getattr(layer, name)
        assert not hasattr(layer, name)  # NotBuiltError is an AttributeError
        with pytest.raises(errors.NotBuiltError, match=type(layer).__name__):
            layer.forward(np.ones((2, 3)))
        with pytest.raises(errors.NotBuiltError):
            layer.get_weights()
    for layer in (Dense(3, 2, bias=False), Dense(3, 2, bias=False)):
        with pytest.raises(errors.NotBuiltError, match="no parameter 'b'"):
            _ = layer.b
        with pytest.raises(errors.NotBuiltError, match="no parameter 'b'"):
            layer.b = np.zeros(2)
        assert layer.params.keys() == {"W"}
    assert issubclass(errors.NotBuiltError, errors.OrderError)
    assert issubclass(errors.OrderError, RuntimeError)
    decays = {(c.__name__, n): p.decay for c in (Dense, LayerNorm, PReLU, BatchNorm, Scale)
              for n, p in c._declared.items()}  # fmt: skip
    assert {key for key, decay in decays.items() if decay} == {("Dense", "W"), ("Scale", "s")}
    assert decays.keys() >= {("Dense", "b"), ("BatchNorm", "gamma"), ("PReLU", "alpha")}
    assert isinstance(BatchNorm.running_var, State)
    assert list(Scale._declared) == ["s", "seen"]


# --- an author's layer -------------------------------------------------------------------------


def test_an_author_may_pass_on_all_arguments():
    class Passing(PReLU):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)

    assert repr(Passing(0.5)) == "Passing(0.5)"


@pytest.mark.parametrize("shape", [(4, 3), (2, 2, 3)])
def test_an_authors_layer_does_what_every_layer_does(shape):
    layer, X = Scale(3.0), np.random.default_rng(0).standard_normal(shape)
    assert layer.build(shape[1:], dtype=np.float64) == shape[1:]
    np.testing.assert_array_equal(layer.forward(X), 3 * X)
    check_gradients(layer, X)
    assert repr(layer) == "Scale(3.0)"
    assert layer.count_params() == 3  # state does not count
    assert layer.get_weights().keys() == {"s", "seen"}
    np.testing.assert_array_equal(layer.seen, [1])
    with inference():
        layer.forward(X)
    np.testing.assert_array_equal(layer.seen, [1])
    assert layer.copy().state["seen"] is not layer.state["seen"]
    assert layer._replica().state is layer.state
    assert layer.flops() == np.prod(shape[1:])


def test_saved_values_and_gradients_have_names_and_what_an_author_forgot_too():
    layer = Layer()
    layer.save_for_backward(a=1, b=2)
    assert layer.saved("a") == 1
    assert layer.saved("b", "a") == (2, 1)
    with inference():
        layer.save_for_backward(a=5)
    assert layer.cache == {"a": 1, "b": 2}
    layer.save_for_backward(c=3)
    assert layer.cache == {"c": 3}

    class Wrong(Scale):
        def backward(self, dY):
            self.grad_array("S")[...] = 0
            return super().backward(dY)

    chain = Chain(Tanh(), Wrong())
    chain.build((3,))
    chain.forward(np.ones((2, 3)))
    with pytest.raises(errors.ArgumentError, match=r"in layer 1 .* no parameter 'S': it has s"):
        chain.backward(np.ones((2, 3)))

    class Half(Layer):
        pass

    with pytest.raises(NotImplementedError, match=r"Half must implement forward\(X\)"):
        Half().forward(np.ones((1, 1)))
    with pytest.raises(NotImplementedError, match=r"Half must implement backward\(dY\)"):
        Half().backward(np.ones((1, 1)))

    class Holder(Layer):
        def __init__(self):
            self.inner = [Dense(2, 2)]

    for given, inputs, outputs, message in (
        (None, 1, 1, r"create must return the shape of each output, such as \(3,\), got None"),
        ([3], 1, 1, r"got \[3\]"),
        (None, 1, 2, "got None"),
        ((3,), 1, 2, r"got \(3,\)"),
        ("", 2, 1, r"takes several inputs: write create\(self, \*shapes\)"),
    ):
        own = {"inputs": inputs, "outputs": outputs}
        if given != "":
            own["create"] = lambda self, *shapes, given=given: given
        with pytest.raises(errors.ArgumentTypeError, match=message):
            type("Own", (Layer,), own)().build(((3,),) * inputs if inputs > 1 else (3,))
    with pytest.raises(errors.ArgumentTypeError, match="contains layers: derive it from Container"):
        Holder().build((2,))


def test_a_dataclass_may_be_a_layer_if_it_is_not_compared_by_value():
    class Power(Layer):
        n: int = 2

        def forward(self, X):
            return X**self.n

    with pytest.raises(errors.ArgumentTypeError, match=r"Power .*: write @dataclass\(eq=False\)"):
        dataclass(type("Power", (Power,), {"__annotations__": {"n": int}}))()
    made = dataclass(eq=False)(Power)(3)
    assert made.forward(np.full((1, 1), 2.0)) == 8
    assert made.get_config() == {"n": 3}


def test_an_authors_container_is_a_tree_and_freezes_as_one():
    layer = Both(Dense(3), Chain(Tanh(), Dense(3)))
    layer.build((3,), seed=1, dtype=np.float64)
    assert [path for path, _ in layer.walk()] == [
        *("", "twice", "many.0", "many.1", "many.1.layers.0", "many.1.layers.1")
    ]
    assert set(layer.get_weights()) == {
        *("twice.s", "twice.seen", "many.0.W", "many.0.b"),
        *("many.1.layers.1.W", "many.1.layers.1.b"),
    }
    assert layer.count_params() == 3 + 12 + 12
    first, second = layer.many[0].params["W"], layer.many[1].children()["layers.1"].params["W"]
    assert not np.allclose(first, second)  # a random stream for each path
    check_gradients(layer, np.random.default_rng(0).standard_normal((4, 3)))
    twin = layer._replica()
    assert twin.twice is not layer.twice
    assert twin.many[0] is not layer.many[0]
    assert twin.many[0].params is layer.many[0].params
    layer.many.append("a remark")  # is no layer
    assert list(layer.children()) == ["twice", "many.0", "many.1"]
    assert layer._replica().many[2] == "a remark"
    chain = Chain(Dense(4), Chain(ReLU(), Dense(2)))
    assert [p for p, _ in chain.walk()] == ["", "0", "1", "1.layers.0", "1.layers.1"]
    nested = [p for p, _ in Chain(chain).walk("2")]
    assert nested[1:] == [f"2.layers.0{p}" for p in ("", ".layers.0", ".layers.1")] + [
        f"2.layers.0.layers.1.layers.{i}" for i in (0, 1)
    ]
    layer = Both(Chain(Dense(3)))
    layer.build((3,))
    assert layer._learns()
    layer.trainable = False
    assert not any(part.trainable for _, part in layer.walk())
    assert not layer._learns()
    layer.many[0].trainable = True
    assert layer._learns()
    assert not layer.twice.trainable
    assert not Tanh()._learns()


# --- building ----------------------------------------------------------------------------------


def test_build_remembers_both_shapes_and_refuses_others():
    dense, layer = Dense(4), Tanh()
    assert dense.build((2, 3)) == dense.output_shape == (2, 4)
    assert (dense.input_shape, dense.dtype) == ((2, 3), np.float32)
    assert layer.build(()) == ()
    assert layer.flops() == 1
    np.testing.assert_allclose(layer.forward(np.ones(3)), np.tanh(np.ones(3)), rtol=1e-6)
    assert GELU()._measured((5,)).flops() == 8 * 5
    for layer in (Dense(4), LayerNorm(), PReLU(), BatchNorm(), Chain(Dense(4), LayerNorm())):
        layer.build((3,), seed=1)
        weights = layer.get_weights()
        with pytest.raises(errors.ShapeError, match="5"):
            layer.build((5,))
        assert layer.input_shape == (3,)
        assert_same(layer.get_weights(), weights)
        assert layer.forward(np.ones((2, 3))).shape[0] == 2
    layer = Chain(Dense(2, 2))
    weights = layer.get_weights()
    weights["1.W"] = weights.pop("0.W")
    with pytest.raises(errors.ArgumentError, match=r"lacks '0.W' and has the unknown '1.W'"):
        layer.set_weights(weights)
    for dtype in (np.float16, np.int32, complex, str, "no such dtype"):
        with pytest.raises(errors.ArgumentTypeError, match="dtype must be float32 or float64"):
            Dense(4, 3).build((4,), dtype=dtype)
    bad = [(), 5, (-5,), (2.5,), "ab", None, (0,)]
    for kind, shape in itertools.product((Dense, LayerNorm, PReLU, BatchNorm), bad):
        with pytest.raises(errors.PhitodeepError, match=kind.__name__):
            (Dense(3) if kind is Dense else kind()).build(shape)
    layer = Scale()
    layer.build((2,))
    layer.forward(np.ones((1, 2)))
    for bad in ([["a", "b"]], [[1j, 2.0]], [[1.0], [1.0, 2.0]], None):
        with pytest.raises(errors.PhitodeepError, match="Scale"):
            layer.backward(bad)


def test_cast_keeps_values_and_seeds_are_integers_or_sequences():
    layer = Chain(Dense(3, 2), BatchNorm())
    layer.build((3,), seed=1)
    layer.forward(np.ones((4, 3)))
    before = layer.get_weights()
    layer.cast(np.float64)
    assert {a.dtype for a in layer.get_weights().values()} == {np.dtype(np.float64)}
    assert_same(layer.get_weights(), before)
    with pytest.raises(errors.BackwardError):  # the cache was of the other dtype
        layer.backward(np.ones((4, 2)))
    assert layer.forward(np.ones((4, 3))).dtype == np.float64
    sequence = np.random.SeedSequence(5)
    first, second = Chain(Dense(3, 2), Dense(2, 2)), Chain(Dense(3, 2), Dense(2, 2))
    first.build((3,), seed=5)
    second.build((3,), seed=sequence)
    assert_same(first.get_weights(), second.get_weights())
    alone, again = Dense(3, 2), Dense(3, 2)
    assert not np.allclose(alone.W, again.W)  # without a seed, none is the same
    keys = [layer._seed_sequence.spawn_key for _, layer in first.walk()]
    assert keys == [(), (0,), (1,)]


def test_measured_makes_no_array():
    ghost = Dense(1_000_000, 1_000_000, LeCun())._measured()
    assert ghost.count_params() == 10**12 + 10**6
    assert ghost.output_shape == (10**6,)
    with pytest.raises(errors.NotBuiltError):
        Dense(3).count_params()
    assert Dense(3)._measured((7,)).count_params() == 24
    for layer, shape in ((LayerNorm(), (7,)), (ReLU(), (2, 3)), (ReLU(), ())):
        layer.build(shape)
        assert layer._measured().output_shape == shape
    chain = Chain(Dense(4, 4), Dense(4, 4))
    chain.build((4,))
    chain.layers[1].params["W"] = chain.layers[0].params["W"]
    assert chain.count_params() == 16 + 4 + 4  # what is shared counts once


# --- frames ------------------------------------------------------------------------------------


def test_buffers_are_reused_in_the_training_loop_and_left_out_of_copies():
    layer = Layer()
    one = layer.buffer("Y", (4, 3), np.float32)
    assert layer.buffer("Y", (4, 3), np.float32) is not one
    assert not layer._frame.buffers
    with calling(reuse=True):
        one = layer.buffer("Y", (4, 3), np.float32)
        assert layer.buffer("Y", (4, 3), np.float32) is one
        head = layer.buffer("Y", (2, 3), np.float32)
        assert head.shape == (2, 3)
        assert head.base is one
        assert layer.buffer("Y", (4, 3), np.float32) is one  # the long one is still there
        assert layer.buffer("dX", (4, 3), np.float32) is not one
        assert layer.buffer("Y", (4, 3), np.float64).dtype == np.float64
        for shape in ((6, 3), (6, 2), (6, 2, 1), ()):
            assert layer.buffer("Y", shape, np.float64).shape == shape
    dense, X = Dense(3, 2), np.ones((4, 3), np.float32)
    with calling(reuse=True):
        Y = dense.forward(X)
        dX = dense.backward(Y)
        assert np.shares_memory(dense.forward(X), Y)
        assert np.shares_memory(dense.backward(Y), dX)
    layer = Dense(3, 2)
    with calling(reuse=True):
        layer.backward(layer.forward(np.ones((4, 3))))
    for twin in (layer.copy(), pickle.loads(pickle.dumps(layer))):
        assert not any([twin._frame.buffers, twin.grads, twin.cache, twin._frame.output])
    assert layer.grads


# --- random numbers ----------------------------------------------------------------------------


def drawn(layer, shape=(6, 5), **call):
    with calling(**call):
        return layer.uniform(shape).copy()


def planted(seed=1):
    layer = Layer()
    layer._set_seed(seed)
    return layer


@pytest.mark.parametrize("shape", [(6, 5), (6, 8), (6, 9), (6,), (3, 2, 11)])
def test_uniform_is_a_pure_function_of_seed_step_and_place(shape):
    layer = planted()
    first = drawn(layer, shape, step=4)
    assert first.shape == shape
    assert first.dtype == np.float32
    np.testing.assert_array_equal(first, drawn(layer, shape, step=4))
    np.testing.assert_array_equal(first, drawn(planted(), shape, step=4))
    for n in range(1, shape[0]):
        rest = (shape[0] - n, *shape[1:])
        np.testing.assert_array_equal(first[n:], drawn(layer, rest, step=4, first=n))
    for other in (drawn(layer, shape, step=5), drawn(planted(2), shape, step=4)):
        assert not np.isin(first, other).any()
    drawn(layer, shape, step=0, reuse=True)  # no more than it must
    ticks = -(-int(np.prod(shape[1:])) // 8)
    assert layer._frame.buffers["uniform"].shape == (shape[0], 8 * ticks)


def test_uniform_is_uniform_and_passes_and_layers_draw_differently():
    layer = planted()
    many = np.stack([drawn(layer, (64, 50), step=step) for step in range(20)])
    assert many.min() >= 0
    assert many.max() < 1
    counts, _ = np.histogram(many, bins=20, range=(0, 1))
    assert ((counts - 3200) ** 2 / 3200).sum() < 45  # chi-squared, 19 degrees: p = 0.0007
    rows = many.reshape(-1, 50)
    correlation = np.corrcoef(rows[:-1].ravel(), rows[1:].ravel())[0, 1]
    assert abs(correlation) < 0.02
    assert np.unique(rows[:, 0]).size > 0.99 * len(rows)
    layer, again = planted(), planted()
    first, second = drawn(layer), drawn(layer)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, drawn(again))
    np.testing.assert_array_equal(second, drawn(again))
    assert not np.array_equal(first, drawn(layer, step=0))  # a stream of their own
    chain = Chain(Dropout(0.5), Dropout(0.5), Chain(Dropout(0.5)))
    chain.build((50,), seed=1)
    drops = [layer for _, layer in chain.walk() if isinstance(layer, Dropout)]
    masks = [drawn(layer, (4, 50), step=0) for layer in drops]
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert not np.isin(masks[i], masks[j]).any()
