"""Layers without steps(): their fast passes are single steps, which record nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phitodeep import layers as L
from phitodeep.core.call import calling
from phitodeep.derivations.language import run as stepwise
from phitodeep.errors import ArgumentError
from phitodeep.model import Sequential
from phitodeep.testing.examples import passes
from tests.random_networks import Gate, Scale

RNG = np.random.default_rng(0)
X, DY = RNG.standard_normal((5, 3)), RNG.standard_normal((5, 2))


def model_of(*layers: L.Layer) -> Sequential:
    model = Sequential(*layers, dtype="float64", seed=1)
    model.build((3,))
    return model


def gate(*before: L.Layer) -> Gate:
    return Gate(L.Chain(*before, L.Dense(2)), L.Dense(2))


def test_steps_record_no_state_and_both_passes_drop_the_same() -> None:
    """Outside training too, where each forward pass draws anew."""
    model = model_of(gate(L.BatchNorm()))
    state = model.layers[0].inside["value"].layers[0].state["running_mean"]
    before = state.copy()
    fast = passes(model, X, DY)
    assert (state != before).all()
    state[...] = before
    with calling(step=0):
        slow = stepwise.passes(model, X, DY)
    np.testing.assert_array_equal(state, before)
    for path, gradient in stepwise.gradients(slow).items():
        np.testing.assert_array_equal(gradient, fast[path], err_msg=path)
    np.testing.assert_array_equal(state, before)
    model = model_of(Gate(L.Dropout(0.5), L.Lambda(np.ones_like, lambda dY, X, Y: 0 * dY)))
    scope = stepwise.passes(model, np.ones((5, 3)), np.ones((5, 3)))
    assert {*scope["Y"].flat} == {0, 2}
    np.testing.assert_array_equal(scope["dX"], scope["Y"])


def test_gradients_of_layers_inside_belong_to_the_scope() -> None:
    model = model_of(gate(L.BatchNorm()), L.Dense(1))
    with calling(step=0):
        scope = stepwise.passes(model, X, DY[:, :1])
        wanted = stepwise.gradients(scope)
        stepwise.passes(model, X + 1, 2 * DY[:, :1])
        found = stepwise.gradients(scope)
    assert "0.inside.value.layers.0.gamma" in wanted
    for path, gradient in wanted.items():
        np.testing.assert_array_equal(found[path], gradient, err_msg=path)


# --- the debugger ------------------------------------------------------------------------------


def test_the_debugger_knows_the_updates_of_layers_inside_and_changes_no_step() -> None:
    """The gradient of a parameter is read from the pass that ran for these arrays."""
    model = model_of(L.Dense(3), gate(), L.Tanh())
    db = model.debug(X, DY)
    db.cont()
    assert not any(row.dW or row.update for row in db.diff().rows)
    updates, trace = db._updates(), model.trace(X, DY)
    for path in ("0", "1.inside.gate"):
        np.testing.assert_allclose(updates[path]["W"], trace[f"{path}.update.W"].array, atol=1e-12)
    db.edit("2.dX", 0.0)
    db.cont()
    assert not db._updates()["1.inside.gate"]["W"].any()
    model = model_of(L.Dense(3), Scale(), L.Dense(2))
    db = model.debug(X, DY)
    db.until("2.backward.dX")
    db.edit("2.dX", 0.0)
    db.until("1.backward.dX")
    db.diff()
    db.step(2)
    assert not db.p("1.dgain").any()
    assert str(db.diff().rows[1].dW) == "1.0"


@pytest.mark.parametrize("key", ["1.inside.gate", "1.inside.gate.forward.Y"])
def test_the_debugger_does_not_stop_inside(key: str) -> None:
    db = model_of(L.Dense(3), gate()).debug(X, DY)
    assert not any("inside" in place for place in db.places())
    stop: Any
    for stop in (db.set_break, db.until):
        with pytest.raises(ArgumentError, match="a layer around it has no steps"):
            stop(key)
    assert db.count == 0
