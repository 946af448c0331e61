"""Which forward steps are linear in X and in the parameters, and which parameters are biases."""

import pytest

from phitodeep.derivations.derive.linear import biases
from phitodeep.derivations.language.step import Arrange, Given, Join, Let, Loop, Max, Sum

NOISE = Given("e", "drawn", lambda s: s["X"])
LINEAR = {
    "X @ W + b": [Sum("A", "ni,ij->nj", "X", "W"), Let("Y", "A + b")],
    "gamma X": [Let("Y", "2 * W * X - b")],
    "columns": [Arrange("A", "X[:, k]", "X", ""), Let("B", "A * W"), Join("Y", "B", "b")],
    "drawn": [NOISE, Let("m", "e / np.sqrt(e)"), Let("A", "W * X / m"), Let("Y", "A + b")],
}
OTHER = {
    "a power of X": [Let("Y", "W * X ** 2 + b")],
    "a quotient": [Let("Y", "W / X + b")],
    "X twice": [Sum("A", "ni,ni->n", "X", "X"), Let("Y", "W * A + b")],
    "W twice": [Let("Y", "W ** 2 * X + b")],
    "both parameters": [Let("Y", "W * b * X")],
    "a function": [Let("Y", "np.exp(X) * W + b")],
    "no parameter": [Let("Y", "X + b + 0 * W")],
    "a constant": [NOISE, Let("Y", "W * X + b + e")],
    "a shift of X": [NOISE, Let("C", "X - e"), Let("Y", "W * C + b")],
    "a bias that multiplies": [Let("Y", "W * X + W + b")],
    "a place that moves": [Arrange("A", "W[X]", "W", ""), Let("Y", "A + b")],
    "the largest": [Max("A", "ni->n", "X"), Let("Y", "W * A + b")],
    "a loop": [Loop("X", [Arrange("x_t", "X[:, t]", "X", "")]), Let("Y", "W * x_t + b")],
    "a joined constant": [NOISE, Let("A", "W * X + b"), Join("Y", "A", "e")],
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_layers_and_their_biases(name):
    assert biases(LINEAR[name], frozenset("X"), frozenset("Wb")) == {"b"}


@pytest.mark.parametrize("name", OTHER)
def test_other_layers_are_not_linear(name):
    assert biases(OTHER[name], frozenset("X"), frozenset("Wb")) is None


def test_layers_without_parameters_or_with_tokens():
    X, none = frozenset("X"), frozenset()
    assert biases([NOISE, Let("Y", "X * e")], X, none) == none
    assert biases([NOISE, Let("Y", "X + e")], X, none) is None
    assert biases([NOISE, Let("Y", "2 * e")], X, none) is None
    assert biases([Arrange("Y", "W[X]", "W", "")], none, frozenset("W")) == {"W"}
