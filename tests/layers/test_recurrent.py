"""Recurrent layers: masks, gradients, reused buffers, and the shapes of their weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phitodeep.core.call import calling
from phitodeep.core.types import Array
from phitodeep.layers import GRU, LSTM, RNN, Bidirectional, Layer
from phitodeep.testing import check_gradients
from phitodeep.testing.examples import made, passes
from tests.conftest import assert_same
from tests.rows import few

KINDS = {"rnn": RNN, "lstm": LSTM, "gru": GRU}
each = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
BOTH: dict[str, Any] = {
    **{f"{name}": kind for name, kind in KINDS.items()},
    **{
        f"{name} both ways": lambda *a, k=kind, **o: Bidirectional(k(*a, **o))
        for name, kind in KINDS.items()
    },
    "gru added": lambda *a, **o: Bidirectional(GRU(*a, **o), "add"),
}
directions = pytest.mark.parametrize("make", BOTH.values(), ids=BOTH)


def recurrent(make: Any, whole: bool = True, H: int = 3, D: int = 2, T: int = 4) -> Layer:
    return made(lambda: make(H, return_sequences=whole), (1, T, D))


def lengths(*counts: int, T: int) -> Array:
    return np.arange(T) < np.array(counts)[:, None]


MASKS: dict[str, Any] = {
    "none": None,
    "lengths": lengths(4, 1, 3, T=4),
    "before": lengths(4, 1, 3, T=4)[:, ::-1],
    "holes": np.array([[1, 0, 1, 0], [0, 1, 1, 1], [0, 0, 1, 0]], bool),
    "nothing": np.array([[0, 0, 0, 0], [1, 1, 0, 1], [0, 0, 0, 0]], bool),
}


@each
def test_steps_that_the_mask_leaves_out_are_skipped(kind: Any, rng: Any) -> None:
    """What the cells compute is compared with PyTorch: see test_references.py."""
    layer, last = recurrent(kind), recurrent(kind, whole=False)
    for name, mask in list(MASKS.items())[1:]:
        X = rng.standard_normal((3, 4, 2))
        with calling(mask=mask):
            Y, final = layer.forward(X), last.forward(X)
        assert not Y[~mask].any()
        for n, kept in enumerate(mask):
            wanted = layer.forward(X[n : n + 1, kept])[0] if kept.any() else np.zeros((1, 3))
            np.testing.assert_allclose(Y[n, kept], wanted[: kept.sum()], 1e-12, err_msg=name)
            np.testing.assert_allclose(final[n], wanted[-1], 1e-12, err_msg=name)


@directions
def test_recurrent_gradients(make: Any, rng: Any) -> None:
    """Each way to return the states, under two of the masks; all of them in a long run."""
    for whole, first in ((True, 1), (False, 2)):
        layer = recurrent(make, whole)
        for name in few(list(MASKS)[first:], 2):
            with calling(mask=MASKS[name]):
                check_gradients(layer, rng.standard_normal((3, 4, 2)), max_probes=8)
        check_gradients(layer, rng.standard_normal((1, 3, 2)), max_probes=4)


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
