"""What `why` says about choices and about what a loop carries on, and how formulas are written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phitodeep import layers
from phitodeep.derivations.language.notation import PLAIN
from phitodeep.derivations.language.step import Carry, Let
from phitodeep.derivations.language.terms import why
from phitodeep.layers import Layer
from tests.derivations.test_contract import by_steps


def built(layer: Layer, shape: tuple[int, ...]) -> tuple[Layer, Any, Any]:
    layer.build(shape[1:], seed=0, dtype="float64")
    rng = np.random.default_rng(0)
    X = rng.standard_normal(shape)
    return layer, X, rng.standard_normal(layer.forward(X).shape)


def test_a_choice_is_shown_as_the_branch_that_was_taken() -> None:
    step = Let("y", "scale * np.where(x > 0, x, alpha * (x + np.where(x < -1, 2, z)))")
    symbols = {"x": np.array([3.0, -2.0]), "z": np.zeros(2), "alpha": 0.5, "scale": 10.0}
    symbols["y"] = step.value(symbols)
    first, second = why(step, symbols, 0), why(step, symbols, 1)
    assert first.total == 30
    assert str(first) == ("y[0] = 30  (since x > 0)\n  +30  = scale · x, with scale 10, x 3")
    assert second.total == 0
    assert second.words.endswith("(since not x > 0)  (since x < -1, with x -2)")
    assert sorted(term.value for term in second) == [-10, 10]


@pytest.mark.parametrize("cell", [(1, 0, 2), (1, 3, 2), (0, 4, 1)])
@pytest.mark.parametrize("layer", [layers.RNN(3), layers.LSTM(3), layers.GRU(3)], ids=repr)
def test_a_carried_number_comes_from_the_round_before(layer: Layer, cell: Any) -> None:
    layer, X, dY = built(layer, (2, 5, 2))
    scope = by_steps(layer, X, dY)
    carries = [s for s in scope.derivation.every() if isinstance(s, Carry)]
    assert len(carries) >= 2
    n, t, j = cell
    for step in carries:
        back = step in scope.derivation.backward or step.symbol.endswith("later")
        (term,) = why(step, scope.at(t), n, j)
        before = t + 1 if back else t - 1
        if 0 <= before < 5:
            assert term.at == {"t": before}
            assert term.factors == {f"{step.of}[{n}, {j}]": scope[step.of][n, before, j]}
        else:
            assert term.at == {}
            assert list(term.factors) == [f"{step.start}[{n}, {j}]"]
        assert term.value == scope[step.symbol][cell]


@pytest.mark.parametrize(
    ("code", "written"),
    [
        ("Y * (1 - Y)", "Y · (1 - Y)"),
        ("-2 * T * lack", "-2 · T · lack"),
        ("a - -b * c", "a - (-b · c)"),
        ("a * -b", "a · (-b)"),
        ("(-a) ** 2", "(-a)²"),
        ("-a ** 2 / 2", "-a² / 2"),
        ("-(a + b) * c", "-(a + b) · c"),
        ("np.logaddexp(0, X)", "log(1 + exp(X))"),
        ("X * Phi", "X · Φ"),
    ],
)
def test_signs_and_factors(code: str, written: str) -> None:
    assert PLAIN.expression(code) == written


def test_a_layer_inside_is_written_as_its_call() -> None:
    steps = layers.Residual(layers.Dense(2, 2)).steps()
    assert steps.forward[0].formula == "F = layers.0.forward(X)"
    assert steps.backward[0].formula == "dF = layers.0.backward(dY)"


def test_a_derivation_is_listed_with_its_loops_and_words() -> None:
    layer, X, _ = built(layers.RNN(3), (2, 5, 2))
    layer.forward(X)
    lines = str(layer.steps()).splitlines()
    assert lines[0] == "forward"
    assert lines[2:4] == ["  for t from 0 to T - 1:", "    x_t = step t of X"]
    assert (
        "    dh_later = the previous dh_prev, at first dh_end  (what arrives from step t + 1)"
        in lines
    )
    assert lines[-1] == "  dX_ntd = Σ_g da_t,ntg Wx_dg"
    assert len(lines) == 2 + len([*layer.steps().every()])
