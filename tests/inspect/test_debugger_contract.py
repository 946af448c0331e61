"""The debugger runs every layer to the same gradients as training, and edits every symbol."""

from __future__ import annotations

import numpy as np
import pytest

from phitodeep import layers
from phitodeep.core.types import Shape
from phitodeep.errors import OrderError, UnknownNameError
from phitodeep.layers.chain import Chain
from phitodeep.model import Sequential
from phitodeep.testing.examples import EXAMPLES, TOKENS, Make, data, made

ALL = [*[(make, shape, 0) for make, shape in EXAMPLES], *TOKENS]
ROWS = {repr(make()): (make, shape, tokens) for make, shape, tokens in reversed(ALL)}
ROWS = {name: row for name, row in ROWS.items() if not name.startswith("TiedDense")}  # in a chain
every = pytest.mark.parametrize(("make", "shape", "tokens"), list(ROWS.values()), ids=list(ROWS))


def model_of(make: Make, shape: Shape) -> Sequential:
    layer = made(make, shape)
    layers = [layer] if type(layer) is not Chain else layer.layers
    model = Sequential(*layers, dtype="float64", seed=1)
    model.build(shape[1:])
    return model


@every
def test_every_symbol_can_be_edited(make: Make, shape: Shape, tokens: int) -> None:
    model = model_of(make, shape)
    X, y = data(model, shape, tokens)
    trace = model.trace(X, y)
    db = model.debug(X, y)
    db.cont()
    assert db.loss == pytest.approx(trace.loss, rel=1e-9)
    for path, passes in trace._passes.items():
        for name, gradient in passes.grads.items():
            np.testing.assert_allclose(db._scopes[path][f"d{name}"], gradient, atol=1e-9)
    assert not any(row.Y or row.dY or row.dW for row in db.diff().rows)
    places = dict.fromkeys((p.scope.path, p.direction, p.step.symbol) for p in db._log)
    rng = np.random.default_rng(0)
    editable = [place for place in places if place[0]]
    for k in rng.permutation(len(editable))[:12]:
        path, direction, symbol = editable[k]
        where = [p for p in db._log if (p.scope.path, p.step.symbol) == (path, symbol)][-1]
        value = db._values[db._log.index(where)]
        if np.asarray(value).dtype.kind != "f" or where.direction != direction:
            continue
        db.edit(f"{path}.{symbol}", value + 0.25)
        db.cont()
        found = db.diff()
        if direction == "backward":
            assert found.loss == found.before
        db.restart()
        db.cont()


nested = [(name, row) for name, row in ROWS.items() if made(*row[:2]).children()]


@pytest.mark.parametrize(
    ("make", "shape", "tokens"), [row for _, row in nested], ids=[name for name, _ in nested]
)
def test_a_symbol_of_a_container_is_not_that_of_a_layer_inside(
    make: Make, shape: Shape, tokens: int
) -> None:
    model = Sequential(made(make, shape), dtype="float64", seed=1)
    model.build(shape[1:])
    X, y = data(model, shape, tokens)
    trace, db = model.trace(X, y), model.debug(X, y)
    db.cont()
    for at in [at for at in db._log[1:] if getattr(at.scope.layer, "children", dict)()]:
        symbol = at.step.symbol
        for when in (None, "True"):
            db.restart()
            db.set_break(at.key, when)
            db.cont()
            found = db.last if when else db.position
            assert found is not None
            assert found.key == at.key
            db.clear_break()
        db.restart()
        db.until(at.key)
        assert db._log[-1].key == at.key
        if db.value is None:  # a gradient of tokens
            continue
        value = np.asarray(db.value)
        np.testing.assert_allclose(db.p(symbol), trace[at.key].array, atol=1e-9)
        cell = (0,) * value.ndim
        assert db.why(symbol, *cell).total == pytest.approx(value[cell], abs=1e-9)
        if value.dtype.kind == "f":
            db.edit(symbol, value + 0.25)
            assert db._log[-1].key == at.key
            np.testing.assert_array_equal(db.p(symbol), value + 0.25)


def test_a_condition_on_a_symbol_knows_no_symbols_of_layers_inside() -> None:
    model = Sequential(layers.Residual(layers.LayerNorm()), seed=0)
    db = model.debug(np.ones((4, 2)), np.ones((4, 2)))
    with pytest.raises(UnknownNameError, match="'X_hat' is not one of the symbols there"):
        db.set_break("0.forward.Y", when="abs(X_hat).max() > 1")
    db.set_break("0.forward", when="abs(X_hat).max() >= 0")
    assert "X_hat" in str(db.cont())


def small() -> Sequential:
    model = Sequential(layers.Dense(2, 3), layers.Tanh(), layers.Dense(3, 1), seed=0)
    model.build((2,))
    return model


@pytest.mark.parametrize(
    ("key", "whole"),
    [("2.dW", "2.backward.dW"), ("1.slope", "1.backward.slope"), ("loss.dP", "loss.backward.dP")],
)
def test_a_key_may_leave_out_the_direction(key: str, whole: str) -> None:
    here, there = (small().debug(np.ones((4, 2)), np.ones((4, 1))) for _ in range(2))
    assert here.until(key) == there.until(whole)
    assert here.count == there.count > 0


def test_until_a_place_that_has_passed_leaves_the_debugger_where_it_is() -> None:
    db = small().debug(np.ones((4, 2)), np.ones((4, 1)))
    db.until("2.dW")
    count, arrow = db.count, db.where().splitlines()[-1]
    with pytest.raises(OrderError, match=r"'2\.XW' is not computed after this place"):
        db.until("2.XW")
    assert (db.count, db.where().splitlines()[-1]) == (count, arrow)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("9", "there is no place '9': a place is one of '0', '1', '2', 'loss'"),
        ("9.dW", "there is no place '9.dW'"),
        ("2.dV", "'dV' is not one of the symbols of Dense.*'dW'"),
    ],
)
def test_a_place_that_there_is_not_is_refused(key: str, message: str) -> None:
    db = small().debug(np.ones((4, 2)), np.ones((4, 1)))
    with pytest.raises(UnknownNameError, match=message):
        db.set_break(key)
