"""Muon: which parameters are matrices, what a step does to them, and what goes to Adam."""

import itertools
import math

import numpy as np
import pytest

from phitodeep import Adam, AdamW, Muon, Param, Sequential
from phitodeep import layers as nn
from phitodeep.errors import ArgumentError, PhitodeepError
from phitodeep.optimization.muon import hidden, orthogonal
from phitodeep.optimization.schedules import CosineDecay
from tests.optimization.test_optimizers import GRADIENTS, START, advance, referenced, values


def built(shape, *layers, dtype="float64"):
    """The layers of a chain, made for samples of this shape."""
    chain = nn.Chain(*layers)
    chain.build(shape, seed=0, dtype=dtype)
    return chain.layers


def random_gradients(layers, seed=1):
    """Gradients for all, by path."""
    rng, made = np.random.default_rng(seed), {}
    for i, top in enumerate(layers):
        for path, layer in top.walk(str(i)):
            layer.grads = {
                name: rng.standard_normal(a.shape).astype(a.dtype)
                for name, a in layer.params.items()
            }
            made |= {f"{path}.{name}": g for name, g in layer.grads.items()}
    return made


def named(layers):
    """The paths of the hidden matrices."""
    found = hidden(layers)
    slots = [(i, *pair) for i, top in enumerate(layers) for pair in top.walk(str(i))]
    return {
        f"{p}.{name}" for _, p, layer in slots for name in layer.params if (layer, name) in found
    }


@pytest.mark.parametrize("shape", [(32, 64), (64, 32), (784, 128), (3, 4), (2, 7), (40, 60)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_singular_values_become_about_1_and_directions_stay(shape, dtype, rng):
    G = (1e3 * rng.standard_normal(shape)).astype(dtype)
    kept = G.copy()
    X = orthogonal(G)
    np.testing.assert_array_equal(G, kept)
    assert X.dtype == dtype
    U, _, Vt = np.linalg.svd(G.astype(float), full_matrices=False)
    inside = U.T @ X @ Vt.T
    assert 0.68 < np.diag(inside).min()
    assert np.diag(inside).max() < 1.21
    np.testing.assert_allclose(inside - np.diag(np.diag(inside)), 0, atol=1e-4)
    np.testing.assert_allclose(U @ inside @ Vt, X, atol=1e-4)


def test_the_polynomial_on_singular_values_of_stacks_and_of_zeros(rng):
    S = np.array([0.8, 0.5, 0.3, 0.14, 0.02, 0.01])
    S[0] = math.sqrt(1 - (S[1:] ** 2).sum())  # of length 1
    s = S.copy()
    for _ in range(3):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    np.testing.assert_allclose(orthogonal(np.diag(S), 3), np.diag(s), atol=1e-12)
    stack = rng.standard_normal((3, 5, 4)) * np.array([1.0, 100.0, 1e-3])[:, None, None]
    for X, G in zip(orthogonal(stack), stack, strict=True):
        np.testing.assert_allclose(X, orthogonal(G), rtol=1e-12)
    np.testing.assert_array_equal(orthogonal(np.zeros((3, 4))), 0)
    G = rng.standard_normal((3, 4))
    np.testing.assert_allclose(orthogonal(1e-6 * G), orthogonal(G), rtol=1e-9)
    tiny = 1e-9 * G / np.linalg.norm(G)  # divided by 1e-7 instead
    np.testing.assert_allclose(orthogonal(tiny, 1), 3.4445 * tiny / 1e-7, atol=1e-5)


@pytest.mark.parametrize("shape", [(9, 40), (40, 9), (3, 20, 5), (3, 5, 20)])
def test_the_smaller_of_the_two_products_is_taken(shape, rng):
    G = rng.standard_normal(shape)
    wide = G if G.shape[-1] > G.shape[-2] else G.swapaxes(-1, -2)
    X = wide / np.linalg.norm(wide, axis=(-2, -1), keepdims=True)
    A = X @ X.swapaxes(-2, -1)
    X = 3.4445 * X + (-4.7750 * A + 2.0315 * A @ A) @ X
    expected = X if wide is G else X.swapaxes(-1, -2)
    np.testing.assert_array_equal(orthogonal(G, 1), expected)  # the larger rounds otherwise


def test_vectors_embeddings_and_the_last_matrix_go_to_adam():
    token = nn.Embedding(11, 6)
    layers = built(
        (5,), token, nn.PositionalEmbedding(5), nn.TransformerBlock(2), nn.Dense(7), nn.LayerNorm()
    )
    assert named(layers) == {
        *(f"2.layers.0.layers.1.{name}" for name in ("Wqkv", "Wo")),
        *(f"2.layers.1.layers.1.layers.{i}.W" for i in (0, 2)),
    }
    tied = built((5,), token.copy(), nn.PositionalEmbedding(5), nn.TransformerBlock(2))
    head = nn.TiedDense(tied[0])
    head.build((5, 6), dtype="float64")
    assert named([*tied, head]) == named(layers)  # the last matrix is the embedding's
    assert len(named(tied)) == 3


@pytest.mark.parametrize(
    ("shape", "layers", "hidden"),
    [
        ((3,), [nn.Dense(4), nn.Residual(nn.Dense(4), nn.Tanh()), nn.Dense(2, bias=False),
                nn.Softmax()], {"0.W", "1.layers.0.W"}),
        ((3,), [nn.Dense(4)], set()),
        ((3,), [nn.Tanh()], set()),
        ((3,), [nn.Dense(4), nn.Dense(4), nn.Dense(1)], {"0.W", "1.W"}),  # a column may be last
        ((1,), [nn.Dense(4), nn.Dense(1), nn.Dense(3), nn.Dense(3), nn.Dense(2)], {"3.W"}),
        ((8, 8, 2), [nn.Conv2D(4, 3), nn.DepthwiseConv2D(3), nn.DepthwiseConv2D(2, multiplier=2),
                     nn.GlobalAvgPool(), nn.Dense(2)], {"0.W", "2.W"}),  # kernels of one channel
    ],
)  # fmt: skip
def test_vectors_and_the_last_matrix_are_not_hidden_matrices(shape, layers, hidden):
    assert named(built(shape, *(layer.copy() for layer in layers))) == hidden


def test_a_single_number_is_a_vector_and_a_name_means_nothing():
    class Scale(nn.Layer):
        s = Param()

        def create(self, shape):
            self.s = np.ones(())
            return shape

    assert named(built((3,), nn.Dense(4), Scale(), nn.Dense(2))) == {"0.W"}

    class Mine(nn.Layer):  # a name alone makes no queries
        Wqkv = Param(decay=True)

        def create(self, shape):
            self.Wqkv = np.ones((6, 7))
            return shape

    (layer,) = built((3,), Mine())
    assert [part.shape for part in parts(layer, "Wqkv")] == [(6, 7)]
    layers = built((3,), nn.Dense(4), nn.Dense(4), nn.Dense(2))
    layers[2].trainable = False
    assert named(layers) == {"0.W", "1.W"}  # a frozen head is still the head


def parts(layer, name):
    return [part for stack in layer.matrices(name, layer.params[name]) for part in stack]


def test_fused_matrices_and_kernels_are_taken_apart_as_views():
    (attention,) = built((5, 12), nn.MultiHeadAttention(4))
    Q, K, V = np.split(attention.params["Wqkv"], 3, axis=1)
    for found, part in zip(parts(attention, "Wqkv"), (Q, K, V), strict=True):
        np.testing.assert_array_equal(found, part)
    assert [part.shape for part in parts(attention, "Wo")] == [(12, 12)]
    (grouped,) = built((5, 12), nn.MultiHeadAttention(4, kv_heads=2))
    assert [part.shape for part in parts(grouped, "Wqkv")] == [(12, 12), (12, 6), (12, 6)]
    np.testing.assert_array_equal(parts(grouped, "Wqkv")[1], grouped.params["Wqkv"][:, 12:18])
    for kind, gates in ((nn.RNN, 1), (nn.GRU, 3), (nn.LSTM, 4)):
        (layer,) = built((5, 3), kind(6))
        for name, rows in (("Wx", 3), ("Wh", 6)):
            W = layer.params[name]
            assert [part.shape for part in parts(layer, name)] == [(rows, 6)] * gates
            np.testing.assert_array_equal(parts(layer, name)[-1], W[:, -6:])
    (conv,) = built((8, 8, 2), nn.Conv2D(5, 3))
    np.testing.assert_array_equal(parts(conv, "W"), [conv.params["W"].reshape(18, 5)])
    (conv,) = built((8, 8, 4), nn.Conv2D(6, 3, groups=2))
    for g, part in enumerate(parts(conv, "W")):
        expected = conv.params["W"][..., 3 * g : 3 * g + 3].reshape(18, 3)
        np.testing.assert_array_equal(part, expected)
    (conv,) = built((8, 4), nn.Conv1D(6, 3, groups=2))
    np.testing.assert_array_equal(parts(conv, "W")[1], conv.params["W"][..., 3:].reshape(6, 3))
    (conv,) = built((8, 8, 2), nn.ConvTranspose2D(5, 3))
    assert [part.shape for part in parts(conv, "W")] == [(18, 5)]
    cross = nn.CrossAttention(4)
    cross.build(((5, 12), (7, 8)))
    assert [part.shape for part in parts(cross, "Wq")] == [(12, 12)]
    for part, expected in zip(parts(cross, "Wkv"), np.split(cross.Wkv, 2, axis=1), strict=True):
        np.testing.assert_array_equal(part, expected)
    bilinear = nn.Bilinear(2)
    bilinear.build(((3,), (4,)))
    for k, part in enumerate(parts(bilinear, "W")):
        np.testing.assert_array_equal(part, bilinear.W[..., k])
    (layer,) = built((5, 12), nn.MultiHeadAttention(4, kv_heads=2))
    flat = np.zeros(layer.params["Wqkv"].size)
    for i, stack in enumerate(layer.matrices("Wqkv", flat), 1):
        stack += i
    np.testing.assert_array_equal(flat.reshape(12, 24)[5], [1.0] * 12 + [2.0] * 6 + [3.0] * 6)


def test_a_step_is_orthogonal_and_fits_the_shape():
    for adjust, wide, narrow in [
        ("original", math.sqrt(8 / 3), 1.0),
        ("match_rms_adamw", 0.2 * math.sqrt(8), 0.2 * 8**0.5),
    ]:
        layers = built((3,), nn.Dense(8), nn.Dense(4), nn.Dense(2))
        before, g = values(layers), random_gradients(layers)
        Muon(0.1, momentum=0.5, adjust_lr_fn=adjust, weight_decay=0.3).step(layers)
        for path, c in (("0.W", wide), ("1.W", narrow)):
            expected = before[path] * (1 - 0.1 * 0.3) - 0.1 * c * orthogonal(g[path])
            np.testing.assert_allclose(values(layers)[path], expected, rtol=1e-12)


def test_momentum_and_its_look_ahead():
    for nesterov in (True, False):
        layers = built((3,), nn.Dense(4), nn.Dense(2))
        optimizer = Muon(0.1, momentum=0.6, nesterov=nesterov)
        first = random_gradients(layers, 1)["0.W"]
        optimizer.step(layers)
        before, second = values(layers)["0.W"], random_gradients(layers, 2)["0.W"]
        optimizer.step(layers)
        M = 0.6 * first + second
        B = second + 0.6 * M if nesterov else M
        expected = before - 0.1 * math.sqrt(4 / 3) * orthogonal(B)
        np.testing.assert_allclose(values(layers)["0.W"], expected, rtol=1e-12)


def test_each_gate_and_each_of_q_k_v_is_turned_for_itself():
    layers = built((5, 6), nn.MultiHeadAttention(2, kv_heads=1), nn.LSTM(4), nn.Dense(3))
    before, g = values(layers), random_gradients(layers)
    g["1.Wx"][:, :4] *= 1000  # one gate's gradient does not drown the others'
    Muon(0.1).step(layers)
    edges = {"1.Wx": (0, 4, 8, 12, 16), "1.Wh": (0, 4, 8, 12, 16), "0.Wqkv": (0, 6, 9, 12)}
    for path, ends in edges.items():
        step = before[path] - values(layers)[path]
        for columns in itertools.starmap(slice, itertools.pairwise(ends)):
            wanted = 0.1 * orthogonal(g[path][:, columns])
            np.testing.assert_allclose(step[:, columns], wanted, rtol=1e-9, atol=1e-12)


def test_the_rest_moves_as_by_adam_at_a_share_of_the_rate_and_groups_hold_for_both():
    rate = CosineDecay(0.4, 10)
    layers, others = referenced(), referenced()
    advance(Muon(rate, adam_ratio=0.1, weight_decay=0.2, beta1=0.8), layers, range(5))
    advance(AdamW(CosineDecay(0.04, 10), weight_decay=0.2, beta1=0.8), others, range(5))
    for path, a in values(others).items():
        if path != "0.W":
            np.testing.assert_allclose(values(layers)[path], a, rtol=1e-13, err_msg=path)
    assert not np.allclose(layers[0].W, others[0].W)
    layers, others = referenced(), referenced()
    optimizer = Muon(0.5, groups={"0.*": {"alpha": 0.2}, "2.W": {"weight_decay": 0.3}})
    advance(optimizer, layers, [0])
    expected = START["0.W"] - 0.2 * orthogonal(GRADIENTS["0.W"][0])
    np.testing.assert_allclose(layers[0].W, expected, rtol=1e-12)
    groups = {"0.*": {"alpha": 0.2}, "2.W": {"weight_decay": 0.3}}
    advance(Adam(0.5 * 0.015, groups=groups), others, [0])
    for path in ("0.b", "1.gamma", "2.W", "2.b"):
        np.testing.assert_allclose(values(layers)[path], values(others)[path], rtol=1e-13)


@pytest.mark.parametrize("bad", ["rms", None, 1])
def test_an_unknown_adjustment_is_refused(bad):
    with pytest.raises(ArgumentError, match='adjust_lr_fn must be "original" or'):
        Muon(adjust_lr_fn=bad)


def test_matrices_that_would_not_be_stepped_are_refused():
    for split, says in (
        (lambda W: [W.copy()[None]], "views of W, not copies"),
        (lambda W: [W], "stacks .n, rows, columns."),
        (lambda W: W[None], "must return a list"),
        (lambda W: None, "must return a list"),
        (lambda W: [W[None, :, :3]], "each element of W once"),
    ):

        class Own(nn.Dense):
            def matrices(self, name, W, split=split):
                return split(W.reshape(6, 6))

        model = Sequential(nn.Dense(4, 6), Own(6, 6), nn.Dense(6, 2), seed=0, optimizer=Muon())
        before = model.get_weights()
        with pytest.raises(PhitodeepError, match=says):
            model.train(np.ones((4, 4)), np.ones((4, 2)), epochs=1, verbose=0)
        assert all((before[path] == a).all() for path, a in model.get_weights().items())


@pytest.mark.parametrize("filters", [2, 4])
def test_the_groups_of_a_transposed_convolution_are_separate_matrices(filters):
    """W is (3, 3, C, filters / G), and group g uses the rows C g / G to C (g + 1) / G."""
    layer = nn.ConvTranspose2D(filters, 3, groups=2)
    layer.build((4, 4, 6), seed=0)
    W = np.arange(layer.W.size, dtype=np.float32).reshape(layer.W.shape)
    (found,) = layer.matrices("W", W.ravel())
    assert np.shares_memory(found, W)
    wanted = [W[i, j, 3 * g : 3 * g + 3] for i in range(3) for j in range(3) for g in range(2)]
    np.testing.assert_array_equal(found, wanted)
    line = nn.ConvTranspose1D(filters, 3, groups=2)
    line.build((4, 6))
    (of_line,) = line.matrices("W", W[0].ravel())
    np.testing.assert_array_equal(of_line, found[:6])
    model = Sequential(nn.Dense(6), layer, nn.Flatten(), nn.Dense(1), optimizer="muon", seed=0)
    before = layer.W.copy()
    model.train(np.ones((4, 4, 4, 2)), np.ones(4), epochs=1, verbose=0)
    assert not np.array_equal(before, layer.W)
