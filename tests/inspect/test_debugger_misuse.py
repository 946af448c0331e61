"""What users of the debugger may write wrong, and places inside loops and under masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phitodeep import layers as L
from phitodeep.core.types import Array
from phitodeep.errors import ArgumentError, ArgumentTypeError, UnknownNameError
from phitodeep.loss import Loss
from phitodeep.model import Sequential

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((6, 4)), RNG.standard_normal((6, 2))
S, YS = RNG.standard_normal((6, 5, 4)), RNG.standard_normal((6, 5, 2))
LENGTHS = [5, 1, 2, 3, 4, 5]


def model_of(*layers: L.Layer, **options: Any) -> Sequential:
    return Sequential(*layers, **({"seed": 1, "dtype": "float64"} | options))


def dense(**options: Any) -> Sequential:
    return model_of(L.Dense(5), L.Tanh(), L.Dense(2), **options)


# --- loops -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", [L.RNN, L.LSTM, L.GRU])
def test_the_last_step_of_a_round_is_seen_in_its_round(cell: Any) -> None:
    db = model_of(cell(3), L.Dense(2)).debug(S, YS)
    shown = db.until("0.forward.h_t")
    assert "t = 0" in str(shown)
    first = db.p("h_t")
    assert first.shape == db.p("h_prev").shape == (6, 3)
    assert db.why("h_t", 1, 2).total == pytest.approx(first[1, 2], abs=1e-15)
    assert " *   h_t" in str(db.list())
    db.until("0.forward.h_t")
    np.testing.assert_array_equal(db.p("h_prev"), first)


def test_a_condition_on_the_last_step_of_a_round_holds_in_its_round() -> None:
    model = model_of(L.RNN(3), L.Dense(2))
    largest = abs(model.trace(S, YS)["0.h_t"].array).max(axis=(0, 2))
    bound = float(np.sort(largest)[-2])
    db = model.debug(S, YS)
    db.set_break("0.forward.h_t", when=f"abs(h_t).max() >= {bound!r}")
    assert f"t = {int(np.argmax(largest >= bound))}" in str(db.cont())


# --- places ------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["0.forwrd.Y", "3.forward.Y", "", None])
def test_places_that_there_are_not_to_run_to(key: Any) -> None:
    says = "there is no place '" if key != "" else "until takes a key with a symbol"
    with pytest.raises((UnknownNameError, ArgumentError), match=says) as caught:
        dense().debug(X, Y).until(key)
    assert ("Did you mean '0.forward.Y'" in str(caught.value)) == (key == "0.forwrd.Y")


@pytest.mark.parametrize("around", [-1, "x", 1.5, True])
def test_lists_around_a_count(around: Any) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match="list: around must be"):
        dense().debug(X, Y).list(around)


def test_places_after_a_layer_that_ends_the_mask() -> None:
    """Softmax over axis 1 refuses a mask, but none reaches it."""
    model = model_of(L.GRU(3, return_sequences=False), L.Chain(L.Reshape(3, 1), L.Softmax(1)))
    db = model.debug(S, RNG.standard_normal((6, 3, 1)), lengths=LENGTHS)
    assert "1.layers.1.backward.dX" in db.places()
    db.set_break("1.layers.1.backward")
    assert "backward of Softmax" in str(db.cont())
    assert db.until("1.layers.1.backward.dX")


# --- edits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["0.Y[foo]", "0.Y[", "0.Y[]", "0.Y[1/0]", "0.Y[0][1]", "0.Y[9]"])
def test_edits_of_no_place_change_nothing(place: str) -> None:
    db = dense().debug(X, Y)
    db.until("0.forward.Y")
    before = db.p("0.Y").copy()
    with pytest.raises(ArgumentError, match="cannot be set to"):
        db.edit(place, 1.0)
    np.testing.assert_array_equal(db.p("0.Y"), before)


def test_tokens_stay_whole_numbers() -> None:
    model = model_of(L.Embedding(4, 2), L.Flatten(), L.Dense(2))
    db = model.debug(np.ones((6, 3), int), Y)
    db.until("0.forward.X")
    with pytest.raises(ArgumentError, match="its elements are int"):
        db.edit("0.X[0, 0]", 1.5)
    db.edit("0.X[0, 0]", 2.0)
    db.cont()
    assert db.p("0.X")[0, 0] == 2


def test_an_edited_number_keeps_the_dtype_of_what_it_meets() -> None:
    model = dense(dtype="float32")
    model.layers[1] = L.SELU()
    model.build((4,))
    db = model.debug(X, Y)
    db.cont()
    wanted = db.p("1.Y")
    scale = db.p("1.scale")
    assert isinstance(scale, float)
    db.edit("1.scale", scale)
    db.cont()
    np.testing.assert_array_equal(db.p("1.Y"), wanted)


@pytest.mark.parametrize("wrong", [3, None, ("0", "Y")])
def test_what_is_no_text(wrong: Any) -> None:
    db = dense().debug(X, Y)
    for call in (db.p, db.why, lambda place: db.edit(place, 1.0)):
        with pytest.raises(ArgumentTypeError, match=r"the debugger takes a .* as a text, got"):
            call(wrong)
    with pytest.raises(ArgumentTypeError, match="takes a condition as a text"):
        db.set_break("0", when=wrong or True)


def test_gradients_of_tokens_have_no_elements() -> None:
    model = model_of(L.Parallel(L.Embedding(4, 2), L.Embedding(4, 2)), L.Flatten(), L.Dense(2))
    db = model.debug(np.ones((6, 3), int), Y)
    db.cont()
    known = zip(db._log, db._values, strict=True)
    none = next(p.step.symbol for p, value in known if p.scope.path == "0" and value is None)
    with pytest.raises(ArgumentError, match="it has no elements"):
        db.edit(f"0.{none}", 1.0)


def test_nothing_is_no_value() -> None:
    db = dense().debug(X, Y)
    db.cont()
    with pytest.raises(ArgumentError, match=r"cannot be set to None .*: None is not a number"):
        db.edit("0.Y", None)


@pytest.mark.parametrize("value", [1e200, np.inf, np.nan])
@pytest.mark.parametrize("key", ["0.XW[0, 0]", "loss.P[0, 0]", "0.dW[0, 0]"])
def test_extreme_values_warn_of_nothing(key: str, value: float) -> None:
    db = dense().debug(X, Y)
    db.cont()
    db.edit(key, value)
    while db.position is not None:
        assert db.step()
        assert db.list()
    assert "1" in str(db.diff())


# --- conditions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "says"),
    [
        ("dX > 0", r"The truth value of an array .* use \.any\(\)"),
        ("dX.foo", "has no attribute 'foo'"),
        ("1 / 0", "division by zero"),
        ("dX + 'a'", "fails at 2.backward"),
        ("dX[99, 99]", "out of bounds"),
    ],
)
def test_conditions_that_fail_say_where(when: str, says: str) -> None:
    db = dense().debug(X, Y)
    db.set_break("2.backward", when=when)
    with pytest.raises(ArgumentError, match=f"the condition of the breakpoint 2.backward .*{says}"):
        db.cont()
    assert "backward of Dense(5, 2): a condition failed" in str(db.where())
    db.clear_break()
    db.cont()
    assert db.position is None


@pytest.mark.parametrize("when", ["no_such > 1", "bias", "abs(X_hat).max() > 1", "[dX, z]"])
def test_names_that_no_layer_there_has(when: str) -> None:
    db = dense().debug(X, Y)
    with pytest.raises(UnknownNameError, match="is not one of the symbols there"):
        db.set_break("2.backward", when=when)
    assert db.breaks == []


@pytest.mark.parametrize("when", ["L > 0", "W.any()", "np.isfinite(dX).all()", "len(X) > 1"])
def test_names_that_a_condition_may_have(when: str) -> None:
    db = dense().debug(X, Y)
    db.set_break("2", when=when)
    assert db.cont()
    assert db.position is not None


@pytest.mark.parametrize("when", ["dX >", "a = 1", "\0"])
def test_conditions_that_are_no_expression(when: str) -> None:
    with pytest.raises(ArgumentError, match="is not a Python expression"):
        dense().debug(X, Y).set_break("2", when=when)


# --- losses ------------------------------------------------------------------------------------


class Unweighted(Loss):
    """A loss without steps() that leaves weights alone."""

    independent_samples = True

    def value(self, P: Array, T: Array, w: Any, total: Any) -> float:
        assert w is None
        return float(((P - T) ** 2).sum())

    def gradient(self, P: Array, T: Array, w: Any, total: Any) -> Array:
        found: Array = 2 * (P - T)
        return found


def test_a_loss_without_steps_receives_what_training_passes() -> None:
    model = dense(loss_class=Unweighted())
    db = model.debug(X, Y)
    db.cont()
    assert db.loss == pytest.approx(((model.predict(X) - Y) ** 2).sum(), rel=1e-12)
