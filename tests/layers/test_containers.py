"""Chain, Residual and Parallel: sums by hand, the paths of errors, refusals, and checkpoints."""

from __future__ import annotations

import tracemalloc
from typing import NamedTuple

import numpy as np
import pytest

from phitodeep import Sequential, SequentialBuilder, check_gradients
from phitodeep import layers as nn
from phitodeep.core.call import calling, current
from phitodeep.errors import ArgumentError, ArgumentTypeError, NotBuiltError, OrderError, ShapeError
from phitodeep.layers.containers import Container
from phitodeep.testing.examples import made, passes
from tests.conftest import assert_same, in_parts
from tests.rows import LONG


def built(layer, *shape):
    layer.build(shape, seed=1, dtype=np.float64)
    return layer


class Watched(nn.Tanh):
    """Counts its backward passes."""

    def __init__(self):
        self.count = 0

    def backward(self, dY):
        self.count += 1
        return super().backward(dY)


def test_backward_ends_at_the_first_layer_that_learns(rng):
    below, above = Watched(), Watched()
    first, second = nn.Dense(3), nn.Dense(3)
    chain = built(nn.Chain(below, first, above, second), 3)
    X, dY = rng.standard_normal((2, 5, 3))
    chain.forward(X)
    assert chain.backward(dY) is not None
    wanted, first.grads = {name: g.copy() for name, g in first.grads.items()}, {}
    with calling(needs_dX=False):
        assert chain.backward(dY) is None
    assert (below.count, above.count) == (1, 2)
    assert_same(first.grads, wanted)
    first.trainable = False
    first.grads = {}
    with calling(needs_dX=False):
        assert chain.backward(dY) is None
    assert (below.count, above.count) == (1, 2)
    assert not first.grads
    assert second.grads.keys() == {"W", "b"}
    prelu = built(nn.Chain(nn.PReLU()), 3)  # always returns dX
    prelu.forward(X)
    with calling(needs_dX=False):
        assert prelu.backward(dY) is None
    chain.trainable = False
    second.grads = {}
    with calling(needs_dX=False):
        assert chain.backward(dY) is None
    assert not second.grads


def test_shapes_run_through_a_chain_known_sizes_build_themselves_and_flops_add_up():
    chain = nn.Chain(
        nn.Flatten(),
        nn.Dense(5),
        nn.Residual(nn.Dense(2), nn.Dense(5)),
        nn.Parallel(nn.Dense(2), nn.ReLU()),
    )
    assert chain.build((2, 3)) == (7,)
    assert [layer.output_shape for layer in chain.layers] == [(6,), (5,), (5,), (7,)]
    assert chain.layers[1].params["W"].shape == (6, 5)
    end, residual = nn.Dense(2), nn.Residual(nn.Tanh())
    assert nn.Chain(nn.Tanh(), end)._last is end
    assert nn.Chain(nn.Tanh(), nn.Chain(nn.ReLU(), nn.Chain(end)))._last is end
    assert nn.Chain(end, residual)._last is residual  # which adds to the output of its last layer
    assert nn.Chain()._last is None
    assert nn.Chain(end, nn.Chain())._last is None
    assert nn.Chain(nn.Dense(3, 4), nn.Dense(2)).known_input() == (3,)
    assert nn.Chain(nn.ReLU(), nn.Dense(3, 4)).known_input() is None
    assert nn.Chain().known_input() is None
    assert nn.Parallel(nn.ReLU(), nn.Dense(3, 4)).known_input() == (3,)
    chain = nn.Chain(nn.Dense(3, 4), nn.ReLU(), nn.Dense(2))
    assert chain.count_params() == 16 + 10
    with pytest.raises(NotBuiltError, match="does not know its input shape"):
        nn.Chain(nn.ReLU(), nn.Dense(4)).count_params()
    partly = nn.Chain(nn.Dense(3, 4), nn.Dense(2))
    partly.layers[0].build((3,))
    assert partly.count_params() == 16 + 10
    chain = nn.Chain(nn.ReLU(), nn.Dense(3, 4), nn.ReLU(), nn.Dense(2))
    chain._build_known()
    assert chain.layers[0].output_shape is None
    assert chain.layers[3].output_shape == (2,)
    assert chain.layers[3].params["W"].shape == (4, 2)
    with pytest.raises(ShapeError, match=r"in layer 1 of Chain: Dense\(5, 2\) takes 5 features"):
        nn.Chain(nn.Dense(3, 4), nn.Dense(5, 2))._build_known()
    one, other = (
        built(nn.Chain(nn.Dense(3, 4), nn.Dense(4, 4)), 3),
        built(nn.Chain(nn.Dense(3, 4), nn.Tanh()), 3),
    )
    np.testing.assert_array_equal(one.get_weights()["0.W"], other.get_weights()["0.W"])
    assert not np.allclose(one.get_weights()["0.W"][:3], one.get_weights()["1.W"][:3])
    dense = built(nn.Dense(4, 3), 4).flops()
    assert dense == 2 * 12 + 3
    assert built(nn.Dense(4, 3, bias=False), 2, 4).flops() == 2 * 2 * 12
    assert built(nn.Chain(nn.Dense(4, 3), nn.Tanh()), 4).flops() == dense + 3
    assert built(nn.Residual(nn.Dense(4, 4)), 4).flops() == built(nn.Dense(4, 4), 4).flops() + 4
    assert built(nn.Parallel(nn.Dense(4, 3), nn.Dense(4, 3)), 4).flops() == 2 * dense
    three = [nn.Dense(4, 3) for _ in range(3)]
    assert built(nn.Parallel(*three, merge="add"), 4).flops() == 3 * dense + 2 * 3


@pytest.mark.parametrize("nested", [False, True])
def test_without_last_has_the_same_layers(nested, rng):
    first, second, end = nn.Dense(3, 4), nn.Tanh(), nn.Dense(4, 2)
    many = (first, nn.Chain(second, end)) if nested else (first, second, end)
    chain = built(nn.Chain(*many), 3)
    shorter, count = chain._without_last(), len(chain.layers)
    leaves = [layer for _, layer in shorter.walk() if not layer.children()]
    assert [id(layer) for layer in leaves] == [id(first), id(second)]
    assert len(chain.layers) == count
    X = rng.standard_normal((5, 3))
    np.testing.assert_array_equal(chain.forward(X), end.forward(shorter.forward(X)))


class Wrong(nn.Tanh):
    """Returns too little of dX."""

    def backward(self, dY):
        return super().backward(dY)[:, :1]


class Broken(nn.Tanh):
    def forward(self, X):
        raise KeyError("lost")


def test_errors_gain_their_path_and_those_of_others_a_note():
    layer = nn.Chain(
        nn.ReLU(), nn.Residual(nn.Tanh(), nn.Parallel(nn.Dense(3, 3), nn.Dense(5, 3), merge="add"))
    )
    path = "in branch 1 of Parallel, layer 1 of Residual, layer 1 of Chain: "
    for call in (lambda: layer.build((3,)), lambda: layer.forward(np.ones((2, 3)))):
        with pytest.raises(ShapeError) as caught:
            call()
        assert str(caught.value).startswith(f"{path}Dense(5, 3) takes 5 features on the last axis")
    back = nn.Parallel(nn.Tanh(), nn.Chain(nn.Tanh(), Wrong(), nn.Tanh()))
    back.forward(np.ones((2, 3)))
    with pytest.raises(ShapeError) as caught:
        back.backward(np.ones((2, 6)))
    said = "Tanh() returned Y of shape (2, 3), got dY of shape (2, 1)."
    assert str(caught.value) == f"in layer 0 of Chain, branch 1 of Parallel: {said}"
    with pytest.raises(KeyError, match="lost") as other:
        nn.Chain(nn.Tanh(), nn.Chain(Broken())).forward(np.ones((2, 3)))
    assert other.value.__notes__ == ["in layer 0 of Chain", "in layer 1 of Chain"]
    adds = nn.Parallel(nn.Dense(4, 3), nn.Dense(4, 1), merge="add")
    multiplies = nn.Parallel(nn.Dense(4, 1), nn.Dense(4, 3), merge="multiply")
    for layer in (
        nn.Residual(nn.Dense(4, 1)),
        nn.Residual(nn.Flatten(), nn.Dense(4, 2)),
        adds,
        multiplies,
    ):
        with pytest.raises(ShapeError, match=type(layer).__name__):
            layer.forward(np.ones((3, 4)))


@pytest.mark.parametrize("make", [nn.Chain, nn.Residual, nn.Parallel, nn.SkipConcat])
def test_one_layer_in_two_places_is_refused(make):
    layer = nn.Tanh()
    for many in (
        (layer, layer),
        (layer, nn.Chain(nn.ReLU(), layer)),
        (nn.Chain(layer), nn.Residual(layer)),
    ):
        with pytest.raises(ArgumentError, match=rf"{make.__name__}.*twice.*layer.copy\(\)"):
            make(*many)
    make(layer, layer.copy())


class Own(Container):
    """A container whose author thought of dX alone; its layers are in a list, tuple or dict."""

    def __init__(self, inside):
        self.inside = inside

    def parts(self):
        """The layers, whatever they lie in."""
        found, held = [], [self.inside]
        while held:
            first = held.pop(0)
            if isinstance(first, nn.Layer):
                found.append(first)
            else:
                held[:0] = first.values() if isinstance(first, dict) else first
        return found

    def create(self, shape):
        for layer in self.parts():
            shape = layer.build(shape)
        return shape

    def forward(self, X):
        for layer in self.parts():
            X = layer.forward(X)
        return X

    def backward(self, dY):
        for layer in reversed(self.parts()):
            dX = layer.backward(dY)
            dY = dX * 1.0  # fails for None
        return dY


class Two(NamedTuple):
    first: nn.Layer
    second: nn.Layer


HELD = [
    lambda a, b: [a, b],
    lambda a, b: (a, b),
    lambda a, b: {"a": a, "b": b},
    Two,
    lambda a, b: [[a], (b,)],
    lambda a, b: {"encoder": [a], "decoder": [nn.Chain(b)]},
    lambda a, b: ({"all": Two(a, b)},),
]


@pytest.mark.parametrize("held", HELD)
def test_a_container_of_ones_own_trains_as_the_first_layer(held, rng):
    X, Y = rng.standard_normal((12, 3)), rng.standard_normal((12, 2))
    own = Own(held(nn.Dense(3, 4), nn.Dense(4, 2)))
    check_gradients(own, X, max_probes=6)
    own.build((3,))
    assert own.count_params() == 26
    around = [  # one place for each way to hold the layers, and all in a long run
        lambda: [own.copy()],
        lambda: [nn.Residual(nn.Chain(own.copy(), nn.Dense(2, 3))), nn.Dense(3, 2)],
        lambda: [nn.Parallel(own.copy(), nn.Dense(3, 2)), nn.Dense(4, 2)],
    ]
    for layers in around if LONG else [around[HELD.index(held) % 3]]:
        model = Sequential(*layers(), optimizer="sgd", seed=0)
        before = model.get_weights()
        twin = model.copy()
        model.train(X, Y, epochs=2, verbose=0)
        assert all((a != before[path]).any() for path, a in model.get_weights().items())
        for _ in range(2):  # the same by hand, where dX is asked for
            P = twin.forward(X)
            twin.backward(twin.loss.loss_gradient(P, Y))
            twin.optimizer.step(twin.layers)
        assert_same(twin.get_weights(), model.get_weights(), rtol=1e-4, atol=1e-6)
        with in_parts(2):
            model.train(X, Y, epochs=1, verbose=0)  # replicas find the layers too


def test_a_container_may_cope_with_none_and_replicas_keep_their_frames(rng):
    asked = []

    class Copes(Own):
        skips_dX = True

        def backward(self, dY):
            asked.append(current().needs_dX)
            for layer in reversed(self.parts()):
                dY = layer.backward(dY)
            return dY

    class Asks(Copes):
        def backward(self, dY):
            return super().backward(dY)

    for kind, wanted in ((Copes, False), (Asks, True)):
        model = Sequential(kind([nn.Dense(3, 2)]), seed=0)
        model.train(rng.standard_normal((4, 3)), rng.standard_normal((4, 2)), epochs=1, verbose=0)
        assert asked.pop() is wanted
    chain = nn.Chain(nn.Dense(3, 4), Own((nn.Dense(4, 4), nn.Tanh())), nn.Parallel(nn.Dense(4, 2)))
    chain.build((3,))
    frames = {}
    first, second = chain._replica(frames), chain._replica(frames)
    for (path, a), (_, b), (_, c) in zip(chain.walk(), first.walk(), second.walk(), strict=True):
        assert b is not a, path
        assert b.params is a.params
        assert b._frame is c._frame is not a._frame
        assert b._original is c._original is a
    assert chain._original is chain
    assert type(Own(Two(nn.Tanh(), nn.Tanh()))._replica().inside) is Two


class Grows(Container):
    """Two dense layers of sizes that `create` learns, adopted or not."""

    def __init__(self, *, adopts=True):
        self.adopts, self.first, self.second = adopts, [], []

    def create(self, shape):
        if not self.first:
            take = self.adopt if self.adopts else list
            self.first = take([nn.Dense(shape[-1])])
            self.second = take([nn.Dense(shape[-1])])
        for layer in (*self.first, *self.second):
            shape = layer.build(shape)
        return shape


def test_layers_that_create_makes_have_the_seed_and_the_dtype():
    one, two = Grows(), Grows()
    for layer in (one, two):
        layer.build((3,), seed=5, dtype="float64")
    weights = one.get_weights()
    assert {a.dtype for a in weights.values()} == {np.dtype(np.float64)}
    assert all((a == weights[path]).all() for path, a in two.get_weights().items())
    assert not np.array_equal(weights["first.0.W"], weights["second.0.W"])
    one.build((3,))
    assert (one.get_weights()["first.0.W"] == weights["first.0.W"]).all()
    with pytest.raises(OrderError, match=r"added the layer first.0.*self.first = self.adopt"):
        Grows(adopts=False).build((3,), seed=5)
    with pytest.raises(ArgumentTypeError, match="the set 'inside', which has no order"):
        Own({nn.Dense(3, 3), nn.Tanh()}).build((3,))


def test_time_distributed_is_the_layer_at_each_step_of_any_length_without_a_mask(rng):
    X = rng.standard_normal((2, 3, 5, 4, 2))
    layer = made(lambda: nn.TimeDistributed(nn.Chain(nn.Conv2D(3, 2), nn.Flatten())), X.shape)
    assert layer.output_shape == (3, 4 * 3 * 3)
    inner, Y = layer.layer.copy(), layer.forward(X)
    for t in range(3):
        np.testing.assert_allclose(Y[:, t], inner.forward(X[:, t]), rtol=1e-12)
    assert layer.flops() == 3 * inner.flops()
    assert set(layer.get_weights()) == {"layer.layers.0.W", "layer.layers.0.b"}
    layer = made(lambda: nn.TimeDistributed(nn.GRU(2)), (2, 3, 4, 2))
    for shape in ((1, 5, 4, 2), (3, 1, 6, 2)):
        check_gradients(layer, rng.standard_normal(shape), max_probes=10)
        with calling(mask=np.ones(shape[:2], bool)):
            layer.forward(np.ones(shape))
    embedding = made(lambda: nn.TimeDistributed(nn.Embedding(5, 2)), (2, 3, 4))
    assert embedding.forward(np.ones((2, 3, 4), int)).shape == (2, 3, 4, 2)


def test_branches_of_sequences_and_of_tokens_are_put_side_by_side(rng):
    assert check_gradients(nn.Parallel(nn.Dense(2), nn.Tanh()), rng.standard_normal((2, 4, 3)))
    words = nn.Parallel(nn.Embedding(5, 2), nn.Embedding(5, 3))
    assert words.backward(words.forward(np.array([[0, 4]]))) is None
    first = made(lambda: nn.SkipConcat(nn.Dense(2)), (2, 4, 3))
    with calling(needs_dX=False):
        assert first.backward(first.forward(rng.standard_normal((2, 4, 3)))) is None


def test_signatures_are_read_once(monkeypatch):
    expected = repr(nn.Chain(nn.Chain(nn.Dense(2))))
    monkeypatch.setattr("phitodeep.core.types.inspect.signature", None)
    assert repr(nn.Chain(nn.Chain(nn.Dense(2)))) == expected


def test_a_checkpoint_notes_statistics_once_and_repeats_its_draws(rng):
    def chain(on):
        layers = nn.Dense(6), nn.BatchNorm(), nn.Dropout(0.4), nn.Dense(4)
        return made(lambda: nn.Chain(*layers, checkpoint=on), (3, 4))

    plain, lean, (X, dY) = chain(False), chain(True), rng.standard_normal((2, 3, 4))
    for _ in range(2):
        assert_same(passes(lean, X, dY, step=None), passes(plain, X, dY, step=None))
    assert_same(lean.get_weights(), plain.get_weights())


def deep(checkpoint):
    builder = SequentialBuilder(64, seed=0)
    for _ in range(6):
        inner = [layer for _ in range(5) for layer in (nn.Dense(64), nn.Tanh(), nn.Dropout(0.1))]
        builder = builder.chain(*inner, checkpoint=checkpoint)
    return builder.dense(4).loss("softmax_cross_entropy").build()


def test_training_takes_less_memory_and_ends_alike(rng):
    X, y = rng.standard_normal((256, 64)).astype(np.float32), rng.integers(0, 4, 256)
    peaks, models = [], []
    for checkpoint in (False, True):
        model = deep(checkpoint)
        tracemalloc.start()
        model.train(X, y, epochs=2, batch_size=128, verbose=0)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        models.append(model.get_weights())
    assert peaks[1] < 0.55 * peaks[0]
    assert_same(models[1], models[0])
