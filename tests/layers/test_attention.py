"""Attention: who sees whom, query blocks, refusals, and generation in several calls."""

import itertools
import tracemalloc

import numpy as np
import pytest

from phitodeep import layers
from phitodeep import layers as nn
from phitodeep.core.call import calling, inference, saliency
from phitodeep.layers import attention
from phitodeep.testing.examples import made, passes
from tests.conftest import assert_same
from tests.derivations.test_contract import same_passes

HOLES = np.array([[1, 0, 1, 1, 0], [0, 1, 1, 0, 1], [1, 1, 1, 1, 1]], bool)
MASKS = {
    "none": None,
    "lengths": np.arange(5) < np.array([[5], [2], [4]]),
    "holes": HOLES,
    "nothing": HOLES & np.array([[True], [False], [True]]),
}
masked = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
OPTIONS = {
    "plain": {"heads": 2},
    "one head": {"heads": 1, "bias": False},
    "causal": {"heads": 2, "causal": True},
    "shared keys": {"heads": 4, "kv_heads": 2},
    "one key": {"heads": 4, "kv_heads": 1, "causal": True, "bias": False},
    "own keys": {"heads": 4, "kv_heads": 4, "rope": True},
    "turned": {"heads": 2, "rope": True},
    "all": {"heads": 4, "kv_heads": 2, "rope": True, "causal": True},
    "dropping": {"heads": 2, "dropout": 0.4},
    "all, dropping": {"heads": 4, "kv_heads": 2, "rope": True, "causal": True, "dropout": 0.3},
}
options = pytest.mark.parametrize("given", OPTIONS.values(), ids=OPTIONS)
BLOCKS = (2**18, 1, 10, 19)  # scores: all five queries at once, one, two or three


def heads(given, shape=(3, 5, 8), dtype=np.float64):
    return made(lambda: nn.MultiHeadAttention(**given), shape, dtype)


@masked
@options
def test_queries_see_what_they_may(given, mask, rng, monkeypatch):
    """As by the derivation, which computes all scores at once."""
    layer, X, dY = heads(given), *rng.standard_normal((2, 3, 5, 8))
    steps = same_passes(layer, X, dY, mask=mask, training=False)
    P, (N, T) = steps["P"], X.shape[:2]
    visible = np.ones((N, T), bool) if mask is None else mask
    visible = visible[:, None, None, :] & (np.tri(T, dtype=bool) | (not layer.causal))
    assert not P[~np.broadcast_to(visible, P.shape)].any()
    np.testing.assert_allclose(P.sum(-1), np.broadcast_to(visible.any(-1), P.shape[:3]), rtol=1e-12)
    wanted = passes(layer, X, dY, mask=mask, training=False)
    for size in BLOCKS:
        monkeypatch.setattr(attention, "SCORES", size)
        found = passes(layer, X, dY, mask=mask, training=False)
        assert_same(found, wanted, rtol=1e-10, atol=1e-12)
        assert (layer.cache["P"] is None) == (size < 25)


def test_dropout_drops_its_share_of_the_weights(monkeypatch):
    """With values of 1 and no key better than another, Y is the sum of what stayed."""
    for size in (2**18, 64 * 8):
        monkeypatch.setattr(attention, "SCORES", size)
        layer = nn.MultiHeadAttention(2, dropout=0.3, bias=True)
        layer.build((64, 4), seed=1, dtype=np.float64)
        layer.Wqkv = np.zeros((4, 12))
        layer.bqkv = np.repeat([0.0, 1.0], [8, 4])
        layer.Wo = np.eye(4)
        X = np.ones((6, 64, 4))
        with calling(step=0):
            Y = layer.forward(X)
        stayed = Y * 0.7 * 64
        np.testing.assert_allclose(stayed, np.round(stayed), atol=1e-9)
        assert Y.mean() == pytest.approx(1, abs=0.02)
        counts = np.round(stayed[..., ::2])  # (N, T, heads)
        assert counts.std() == pytest.approx(np.sqrt(64 * 0.3 * 0.7), rel=0.1)
        for axis in range(3):  # neither samples, nor queries (or their blocks), nor heads agree
            assert np.abs(np.diff(counts, axis=axis)).mean() > 1
        blocks = counts.reshape(6, -1, 8, 2)
        assert np.abs(np.diff(blocks, axis=1)).mean() > 1
        with calling(step=1):
            assert np.abs(layer.forward(X) - Y).max() > 0
        with calling(step=0):
            np.testing.assert_array_equal(layer.forward(X), Y)
        with saliency():
            np.testing.assert_allclose(layer.forward(X), 1)


@pytest.mark.parametrize("block", BLOCKS)
def test_parts_of_a_batch_drop_what_the_whole_would(block, rng, monkeypatch):
    monkeypatch.setattr(attention, "SCORES", block)
    layer, X, dY = heads(OPTIONS["all, dropping"]), *rng.standard_normal((2, 6, 5, 8))
    whole = passes(layer, X, dY, step=3)
    head = passes(layer, X[:2], dY[:2], step=3)
    tail = passes(layer, X[2:], dY[2:], step=3, first=2)
    for name in whole:
        both = (head[name], tail[name])
        together = np.concatenate(both) if name in ("Y", "dX") else sum(both)
        np.testing.assert_allclose(together, whole[name], rtol=1e-9, atol=1e-12, err_msg=name)

    with calling(step=0, first=4):  # `first` is of the pass that drew: backward may run outside
        layer.forward(X)
        dX = np.array(layer.backward(dY))
    np.testing.assert_array_equal(layer.backward(dY), dX)
    first = layer.forward(X)  # without a step, passes draw again, and go back alike
    assert np.abs(layer.forward(X) - first).max() > 0
    dX = np.array(layer.backward(dY))
    np.testing.assert_array_equal(layer.backward(dY), dX)


@pytest.mark.parametrize("causal", [True, False])
def test_long_sequences_never_hold_all_scores(causal):
    """T = 2,048: all scores of one head would be 16.8 MB, and backward needs two such arrays."""
    layer = nn.MultiHeadAttention(1, causal=causal)
    layer.build((2048, 4), seed=1)
    X = np.random.default_rng(1).standard_normal((1, 2048, 4)).astype(np.float32)
    tracemalloc.start()
    try:
        layer.backward(layer.forward(X))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16e6


def test_weights_and_blocks_are_what_the_docstrings_and_settings_say(rng):
    layer = nn.MultiHeadAttention(6, kv_heads=2)
    layer.build((5, 12), seed=1)
    shapes = {n: a.shape for n, a in layer.params.items()}
    assert shapes == {"Wqkv": (12, 20), "bqkv": (20,), "Wo": (12, 12), "bo": (12,)}
    assert {n for n, p in layer._declared.items() if p.decay} == {"Wqkv", "Wo"}
    assert not layer.bqkv.any()
    assert nn.MultiHeadAttention(2, bias=False)._measured((5, 12)).count_params() == 4 * 12 * 12
    assert layer.flops() == 5 * (2 * (12 * 20 + 12 * 12) + 4 * 5 * 12)
    for norm, kind in (("layer", nn.LayerNorm), ("rms", nn.RMSNorm)):
        first, second = nn.TransformerBlock(2, norm=norm)._measured((5, 8)).layers
        assert [type(a) for a in first.layers] == [kind, nn.MultiHeadAttention]
        assert [type(a) for a in second.layers] == [kind, nn.FeedForward]
        assert [type(a) for a in second.layers[1].layers] == [nn.Dense, nn.GELU, nn.Dense]
        assert second.layers[1].hidden == 32
    block = nn.TransformerBlock(
        4, mlp_ratio=1.5, activation="relu", causal=True, rope=True, dropout=0.25
    )
    block.build((3, 8))
    look = block.layers[0].layers[1]
    assert (look.heads, look.causal, look.rope, look.dropout) == (4, True, True, 0.25)
    assert [repr(part.layers[-1]) for part in block.layers] == ["Dropout(0.25)"] * 2
    net = block.layers[1].layers[1]
    assert (net.hidden, net.activation) == (12, "relu")
    assert block.count_params() == 4 * 64 + 4 * 8 + 2 * (8 * 12) + 12 + 8 + 4 * 8
    frozen = nn.TransformerBlock(2)
    frozen.trainable = False  # before it is built
    frozen.build((3, 4))
    assert not any(part.trainable for _, part in frozen.walk())
    kinds = {"gelu": "GELU()", "gelu_tanh": "GELU('tanh')", "relu": "ReLU()"}
    for activation, shown in kinds.items():
        net = nn.FeedForward(6, activation)
        block = nn.TransformerBlock(2, activation=activation)
        for layer in (net, block):
            layer.build((3, 4), seed=1)
        inner = block.layers[1].layers[1]
        assert [repr(chain.layers[1]) for chain in (net, inner)] == [shown, shown]


RECURRENT = [f"{kind}({a})" for kind in ("RNN", "LSTM", "GRU")
             for a in ("3", "3, return_sequences=False")]  # fmt: skip
PLACES = ("PositionalEmbedding(6)", "SinusoidalEncoding()", "RotaryEmbedding(20.0)")
ATTENTION = (
    "MultiHeadAttention(2, causal=True)",
    "MultiHeadAttention(4, causal=True, kv_heads=2, rope=True, dropout=0.5)",
    "TransformerBlock(2, causal=True, rope=True)",
    "TransformerBlock(2, causal=True, norm='rms', pre_norm=False)",
)
STEPS = [(1, 1, 1, 1, 1), (3, 1, 1), (2, 3), (5,)]
GAPS = np.array([[1, 0, 1, 1, 0], [1, 1, 0, 1, 1]], bool)


@pytest.mark.parametrize("call", [*RECURRENT, *PLACES, *ATTENTION])
def test_steps_of_generation_equal_the_whole(call, rng, monkeypatch):
    layer = made(lambda: eval(call, dict(vars(layers))), (2, 5, 8))
    scores = (2**18, 1, 10, 19)[: 4 if call in ATTENTION else 1]  # queries at once: all, 1, 2, 3
    masks = (None, GAPS) if call in RECURRENT else (None,)
    for steps, block, mask in itertools.product(STEPS, scores, masks):
        monkeypatch.setattr(attention, "SCORES", block)
        X = rng.standard_normal((2, 5, 8))
        with inference(), calling(mask=mask):
            wanted = layer.forward(X)
        memory = {}
        parts, t = [], 0
        for n in steps:
            now = None if mask is None else mask[:, t : t + n]
            with inference(), calling(memory=memory, mask=now):
                parts.append(layer.forward(X[:, t : t + n]))
            t += n
        found = parts[-1] if wanted.ndim == 2 else np.concatenate(parts, axis=1)
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)
        if call in RECURRENT:
            assert set(memory) == {layer}
    with inference():  # outside, from the first step again
        np.testing.assert_array_equal(layer.forward(X), layer.copy().forward(X))


def test_layers_that_look_ahead_cannot_generate():
    both = made(lambda: layers.Bidirectional(layers.LSTM(3)), (1, 4, 2))
    with pytest.raises(ValueError, match=r"Bidirectional.*cannot generate"), calling(memory={}):
        both.forward(np.ones((2, 4, 2)))
