"""Recurrent layers: reused buffers and the shapes of their weights.

Masks are tested by their derivations: see tests/derivations/test_sequences.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phitodeep.layers import GRU, LSTM, RNN, Bidirectional, Layer
from phitodeep.testing.examples import made, passes
from tests.conftest import assert_same

KINDS = {"rnn": RNN, "lstm": LSTM, "gru": GRU}
each = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def recurrent(make: Any, whole: bool = True, H: int = 3, D: int = 2, T: int = 4) -> Layer:
    return made(lambda: make(H, return_sequences=whole), (1, T, D))


@each
def test_reuse_holds_for_other_lengths_and_batches(kind: Any, rng: Any) -> None:
    fresh, reusing = recurrent(kind), recurrent(kind)
    for N, T in ((3, 4), (2, 4), (3, 2), (4, 5), (1, 1), (3, 4)):
        X, dY, mask = *rng.standard_normal((2, N, T, 3)), rng.random((N, T)) < 0.7
        for there in (None, mask):
            wanted = passes(fresh, X[..., :2], dY, mask=there)
            found = passes(reusing, X[..., :2], dY, mask=there, reuse=True)
            assert_same(found, wanted, rtol=1e-13)


@each
def test_weights_have_the_shapes_of_the_docstring(kind: Any) -> None:
    gates = {RNN: 1, LSTM: 4, GRU: 3}[kind]
    layer = kind(5)
    layer.build((7, 3), seed=1, dtype=np.float64)
    wanted = {"Wx": (3, 5 * gates), "Wh": (5, 5 * gates), "b": (5 * gates,)}
    wanted |= {"bh": (15,)} if kind is GRU else {}
    assert {n: a.shape for n, a in layer.params.items()} == wanted
    for g in range(gates):  # each gate has an orthogonal matrix of its own
        W = layer.Wh[:, 5 * g : 5 * g + 5]
        np.testing.assert_allclose(W.T @ W, np.eye(5), atol=1e-12)
    assert not any(layer.params[n].any() for n in wanted if n.startswith("b"))
    decayed = {n for n, p in layer._declared.items() if p.decay}
    assert decayed == {"Wx", "Wh"}
    assert layer.flops() == 7 * (2 * (3 + 5) * 5 * gates + 8 * 5 * gates)


def test_both_ways_begin_with_weights_of_their_own(rng: Any) -> None:
    for built in (False, True):
        layer = GRU(3)
        if built:
            layer.build((4, 2), seed=1)
        both = Bidirectional(layer)
        both.build((4, 2), seed=2)
        assert (both.layer.Wx != both.reverse.Wx).any()
        assert both.reverse.initializer is layer.initializer
