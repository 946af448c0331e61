"""Derivations of recurrent layers, attention and containers in modes that the table lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phitodeep import Sequential, layers
from phitodeep.core.call import calling
from phitodeep.core.types import Array, Shape
from phitodeep.derivations.language import run as stepwise
from phitodeep.derivations.language.run import Scope
from phitodeep.derivations.language.step import Join
from phitodeep.derivations.language.terms import why
from phitodeep.layers import Layer, dot_product
from phitodeep.testing.examples import Make, data, made
from tests.derivations.test_contract import by_steps, check_terms, same_passes, scopes
from tests.rows import LONG, few

HOLES = np.array([[1, 0, 1, 1, 0], [0, 1, 1, 0, 0], [0, 0, 0, 0, 0]], bool)
LENGTHS = np.arange(5) < np.array([[5], [3], [1]])
RECURRENT = (layers.RNN, layers.LSTM, layers.GRU)


def check_same(make: Make, shape: Shape, tokens: int = 0, **call: Any) -> Scope:
    layer = made(make, shape)
    X, dY = data(layer, shape, tokens)
    return check_arrays(layer, X, dY, **call)


def check_arrays(layer: Layer, X: Array, dY: Array, **call: Any) -> Scope:
    """Both passes and all terms, in this mode."""
    scope = same_passes(layer, X, dY, **call)
    for inner in scopes(scope):
        check_terms(inner)
    return scope


@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_layers(kind: Any) -> None:
    modes: list[tuple[Array | None, bool]]
    modes = [(None, False), (HOLES, True), (LENGTHS, False), (HOLES, False)]
    for mask, sequences in modes[1::2] if kind is layers.RNN and not LONG else modes:
        check_same(lambda s=sequences: kind(3, return_sequences=s), (3, 4, 2), mask=part(mask))


def part(mask: Array | None) -> Array | None:
    return None if mask is None else mask[:, :4]


@pytest.mark.parametrize(
    ("kind", "merge", "mask", "sequences"),
    few(
        [
            (layers.LSTM, "concat", LENGTHS[1:, :3], True),
            (layers.GRU, "add", HOLES[:2, :3], True),
            (layers.RNN, "add", LENGTHS[1:, :3], False),
            (layers.GRU, "concat", HOLES[:2, :3], False),
            (layers.LSTM, "add", HOLES[:2, :3], True),
            (layers.RNN, "concat", LENGTHS[1:, :3], True),
        ],
        3,
    ),
)
def test_bidirectional(kind: Any, merge: Any, mask: Array, sequences: bool) -> None:
    def make() -> Layer:
        return layers.Bidirectional(kind(2, return_sequences=sequences), merge)

    check_same(make, (2, 3, 2), mask=mask)


@pytest.mark.parametrize("kind", RECURRENT)
def test_gates_may_be_saturated(kind: Any) -> None:
    layer = made(lambda: kind(3), (3, 5, 2))
    X, dY = data(layer, (3, 5, 2))
    check_arrays(layer, 1e4 * X, dY)  # exp overflows


def test_scores_may_be_large() -> None:
    for causal in (True, False):
        layer = made(lambda c=causal: layers.MultiHeadAttention(2, causal=c), (3, 5, 4))
        X, dY = data(layer, (3, 5, 4))
        check_arrays(layer, 1e3 * X, dY)


@pytest.mark.parametrize("causal", [True, False])
def test_dropout_of_probabilities_in_blocks(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dot_product, "SCORES", 10)

    def make() -> Layer:
        return layers.MultiHeadAttention(4, causal=causal, kv_heads=2, dropout=0.4)

    scope = check_same(make, (3, 5, 8), mask=HOLES, first=4)
    assert "A" in scope
    assert "A" not in check_same(make, (3, 5, 8), training=False)


def test_each_step_of_time_distributed_is_a_sample() -> None:
    def inner() -> Layer:
        return layers.TimeDistributed(layers.MultiHeadAttention(2, dropout=0.5))

    check_same(inner, (2, 3, 4, 6), first=5)
    check_same(lambda: layers.TimeDistributed(inner()), (2, 2, 3, 4, 2), first=3)
    check_same(lambda: layers.TimeDistributed(layers.Dense(2)), (3, 5, 4), mask=HOLES)
    check_same(lambda: layers.TimeDistributed(layers.LSTM(2)), (3, 5, 4, 2), mask=HOLES)


def test_tokens_have_no_gradient() -> None:
    embedding = layers.Embedding
    makes: list[Make] = [
        lambda: layers.TimeDistributed(embedding(5, 2)),
        lambda: layers.Parallel(embedding(5, 2), layers.Chain(embedding(5, 3), layers.Tanh())),
        lambda: layers.Parallel(embedding(5, 2), embedding(5, 2), merge="add"),
        lambda: layers.Parallel(embedding(5, 2), embedding(5, 2), merge="multiply"),
        lambda: Sequential(Sequential(embedding(5, 4)), layers.LSTM(3)),
    ]
    for make in makes:
        assert check_same(make, (3, 4), tokens=5).find("dX") is None


@pytest.mark.parametrize(("checkpoint", "mask"), few([(True, HOLES[:2, :3]), (False, None)], 1))
def test_nested_chains(checkpoint: bool, mask: Array | None) -> None:
    def make() -> Layer:
        inside = layers.Chain(layers.RNN(4), layers.Dense(4), checkpoint=checkpoint)
        return Sequential(
            layers.Residual(inside, layers.Dropout(0.3), checkpoint=checkpoint),
            Sequential(layers.SkipConcat(layers.GRU(2)), layers.BatchNorm()),
            layers.Parallel(layers.LSTM(3), layers.MultiHeadAttention(2), layers.Dense(1)),
            layers.TransformerBlock(2, checkpoint=checkpoint, dropout=0.2),
            layers.LSTM(2, return_sequences=False),
            layers.Dense(2),
        )

    check_same(make, (2, 3, 4), mask=mask)


def test_empty_containers() -> None:
    for make in (layers.Chain, layers.Residual, layers.SkipConcat, Sequential):
        check_same(make, (2, 3))


def test_the_scopes_of_layers_inside_have_their_paths() -> None:
    layer = made(lambda: layers.Chain(layers.Parallel(layers.Chain(layers.Dense(2)))), (2, 3))
    X, dY = data(layer, (2, 3))
    assert [s.path for s in scopes(by_steps(layer, X, dY))] == [path for path, _ in layer.walk()]


def test_a_cell_of_joined_arrays_is_a_cell_of_one_of_them() -> None:
    A, B, C = np.arange(6.0).reshape(2, 3), np.zeros((2, 0)), 10 + np.arange(4.0).reshape(2, 2)
    step, symbols = Join("J", "A", "B", "C"), {"A": A, "B": B, "C": C}
    symbols["J"] = step.value(symbols)
    np.testing.assert_array_equal(symbols["J"], np.hstack([A, B, C]))
    assert why(step, symbols, 1, 2)[0].factors == {"A[1, 2]": 5}
    assert why(step, symbols, 1, 3)[0].factors == {"C[1, 0]": 12}
    assert why(step, symbols, -1, -1)[0].factors == {"C[1, 1]": 13}


def test_a_step_without_a_gradient_to_read_has_none() -> None:
    layer = made(lambda: layers.Parallel(layers.Embedding(5, 2)), (2, 3))
    X, dY = data(layer, (2, 3), 5)
    seen = []
    with calling(step=0):
        scope = Scope(layer, X=X)
        stepwise.run(stepwise.forward(scope))
        stepwise.run(stepwise.backward(scope, dY), lambda at, value: seen.append(at.key) or value)
    assert "backward.dX" not in seen
