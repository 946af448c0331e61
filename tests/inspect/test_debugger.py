"""The debugger against patches, traces and hooks, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phitodeep import Sequential
from phitodeep import layers as L
from phitodeep.core.types import Array
from phitodeep.errors import ArgumentError, UnknownNameError
from phitodeep.layers import Layer

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((6, 4)), RNG.standard_normal((6, 2))
S, YS = RNG.standard_normal((6, 5, 4)), RNG.standard_normal((6, 5, 2))
LENGTHS = [5, 1, 2, 3, 4, 5]


def dense(*between: Layer, **options: Any) -> Sequential:
    options = {"seed": 1, "dtype": "float64"} | options
    model = Sequential(L.Dense(4, 5), *(between or (L.Tanh(),)), L.Dense(5, 2), **options)
    model.build((4,))
    return model


def lstm() -> Sequential:
    model = Sequential(L.LSTM(3), L.Dropout(0.4), L.Dense(2), seed=0, dtype="float64")
    model.build((5, 4))
    return model


def assert_gradients(db: Any, trace: Any) -> None:
    """The gradients of a debugger at the end are those of a trace."""
    for path, passes in trace._passes.items():
        for name, gradient in passes.grads.items():
            np.testing.assert_allclose(db._scopes[path][f"d{name}"], gradient, atol=1e-12)


def test_an_edit_of_an_activation_is_a_patch() -> None:
    model = dense(L.LayerNorm(), L.Tanh())
    db = model.debug(X, Y)
    db.until("1.forward.Y")
    db.edit("1.Y[0, 1]", 5.0)
    db.cont()
    A = model.trace(X, Y)["1.Y"].array.copy()
    A[0, 1] = 5
    patched = model.patch({"1.Y": A}).trace(X, Y)
    assert db.loss == pytest.approx(patched.loss, rel=1e-12)
    assert_gradients(db, patched)


def test_an_edit_of_a_gradient_is_a_patch_and_leaves_the_loss() -> None:
    model = dense(optimizer="sgd")
    db, G = model.debug(X, Y), RNG.standard_normal((6, 5))
    db.until("2.backward.dX")
    db.edit("2.dX", G)
    db.cont()
    assert_gradients(db, model.patch({"2.dX": G}).trace(X, Y))
    moved = db.diff()
    assert moved.loss == moved.before
    first, _, last = moved.rows
    assert last.dW == last.update == 0
    assert (first.dW or 0) > 0
    np.testing.assert_allclose(db._scopes["0"]["dW"], X.T @ (G * (1 - db._scopes["1"]["Y"] ** 2)))


@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_a_step_inside_a_loop_is_edited_in_its_round(lengths: Any) -> None:
    model = lstm()
    db = model.debug(S, YS, lengths=lengths)
    db.cont()
    trace = model.trace(S, YS, lengths=lengths)
    assert db.loss == pytest.approx(trace.loss, rel=1e-12)
    assert_gradients(db, trace)
    db.restart()
    for _ in range(3):
        db.until("0.forward.c_t")
    db.edit("c_t[0, 0]", 9.0)
    db.cont()
    C = db._scopes["0"]["c_t"]
    assert C[0, 2, 0] == 9
    wanted = trace["0.c_t"].array
    np.testing.assert_array_equal(C[:, :2], wanted[:, :2])
    np.testing.assert_array_equal(C[1:], wanted[1:])
    patched = model.patch({"0.c_t": C}).trace(S, YS, lengths=lengths)
    assert db.loss == pytest.approx(patched.loss, rel=1e-12)
    assert_gradients(db, patched)


def test_hooks_run_once_and_stay_when_the_debugger_goes_back() -> None:
    model, rng, calls = dense(), np.random.default_rng(1), list[str]()

    def noise(A: Array, at: Any) -> Array:
        calls.append(at.key)
        return A + rng.standard_normal(A.shape)

    with model.hooks(fwd={"1.Y": noise}):
        db = model.debug(X, Y)
    db.cont()
    loss = db.loss
    db.back(6)
    db.cont()
    assert db.loss == loss
    assert calls == ["1.forward.Y"]


def test_the_data_and_the_model_may_change_meanwhile() -> None:
    model, mine = dense(L.Dropout(0.3)), X.copy()
    wanted = model.trace(X, Y)
    db = model.debug(mine, Y)
    mine[:] = 0
    model.train(X, Y, epochs=2, verbose=0)
    db.cont()
    assert db.loss == pytest.approx(wanted.loss, rel=1e-12)
    assert_gradients(db, wanted)


def test_nan_weights_run_to_the_end() -> None:
    model = dense()
    model.layers[2].params["W"][0, 0] = np.nan
    db = model.debug(X, Y)
    assert str(db.cont()) == "the end: loss nan"
    db.diff()


@pytest.mark.parametrize(
    ("place", "value", "error", "says"),
    [
        ("Y[0, 99]", 1.0, ArgumentError, r"Y has shape \(6, 5\)\): index 99 is out of bounds"),
        ("0.Y[0, 0]", "x", ArgumentError, "could not convert"),
        ("0.Y[0, 0]", 1j, ArgumentError, "complex"),
        ("0.Y", np.ones(3), ArgumentError, "could not broadcast"),
        ("0.Y[0, 0]=3", 1.0, ArgumentError, "cannot be set"),
        ("9.Y", 1.0, UnknownNameError, "cannot be edited"),
        ("0.W[0, 0]", 1.0, UnknownNameError, "0 has so far X, XW, Y"),
        ("", 1.0, UnknownNameError, "cannot be edited"),
    ],
)
def test_edits_that_are_refused_change_nothing(
    place: str, value: Any, error: type[Exception], says: str
) -> None:
    db = dense().debug(X, Y)
    db.until("0.forward.Y")
    with pytest.raises(error, match=says):
        db.edit(place, value)
    db.cont()
    assert db.loss == pytest.approx(dense().trace(X, Y).loss, rel=1e-12)


@pytest.mark.parametrize("key", ["9", "0.foo", "0.forward.Zz", "2.update.W", 3])
def test_places_that_there_are_not(key: Any) -> None:
    db = dense().debug(X, Y)
    with pytest.raises(UnknownNameError):
        db.set_break(key)
    assert db.breaks == []


# --- hooks ------------------------------------------------------------------------------------


def test_hooks_of_another_model_do_not_apply() -> None:
    model, other = dense(), dense()
    with other.hooks(fwd={"1.Y": lambda A, at: 0 * A}):
        db = model.debug(X, Y)
    db.cont()
    assert db.loss == pytest.approx(model.trace(X, Y).loss)


def test_a_hook_of_Y_is_outside_the_layer() -> None:
    """As in training, where it is a layer of its own: here the tanh' of Tanh is that of its Y."""
    model = dense()
    with model.hooks(fwd={"1.Y": lambda A, at: 2 * A}):
        trace, db = model.trace(X, Y), model.debug(X, Y)
    db.cont()
    assert_gradients(db, trace)
