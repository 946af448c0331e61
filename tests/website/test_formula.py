"""The page of formulas: what its Python answers, for the examples and for what is refused."""

import ast
import json
import re

import numpy as np
import pytest

from phitodeep.layers import Layer
from website.playground.build import formulas
from website.playground.session import formula
from website.playground.session.worker import Worker

EXAMPLES = formulas()


def ask(text, given="X=(4, 5)", name="Swish"):
    return json.loads(
        Worker().call("derive", json.dumps({"text": text, "given": given, "name": name}))
    )


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_derived_checked_and_drawn(name):
    result = EXAMPLES[name]["result"]
    assert result["name"] == name
    assert f"class {name}(Layer):" in result["source"]
    ast.parse(result["source"])
    assert result["check"].startswith(f"{name}(): worst errors of each gradient")
    assert result["forward"][-1].startswith("<math")
    assert 'data-sym="dX"' in "".join(result["backward"])
    assert result["plot"].count("<path") >= 2
    assert result["caption"].startswith("Y[0, 0] (solid) and its slope (dashed), as X[0, 0] moves")


class Cubes(Layer):
    """Y[0, 1] = X[0, 0]^3, and Y[0, 0] = 0."""

    def forward(self, X):
        self.save_for_backward(X=X)
        return np.stack([0 * X[:, 0], X[:, 0] ** 3], axis=1)

    def backward(self, dY):
        X = self.saved("X")
        return np.stack([dY[:, 1] * 3 * X[:, 0] ** 2, 0 * X[:, 1]], axis=1)


def test_the_plot_has_the_values_and_the_slopes_of_what_moves():
    plot, caption = formula._plot(Cubes(), np.ones((3, 2)))
    assert caption.startswith("Y[0, 1] (solid)")
    values, slopes = (
        np.array([list(map(float, pair.split(","))) for pair in d.split("L")])
        for d in re.findall(r'class="pd-(?:L|slope wb-slope)" d="M([^"]+)"', plot)
    )
    x = np.linspace(-4, 4, 161)
    for found, wanted in ((values, x**3), (slopes, 3 * x**2)):
        assert len(found) == 161
        low, high = -64 - 0.08 * 128, 64 + 0.08 * 128
        np.testing.assert_allclose(found[:, 0], 48 + (x + 4) / 8 * (formula.WIDTH - 64), atol=0.06)
        height = 12 + (high - wanted) / (high - low) * (formula.HEIGHT - 52)
        np.testing.assert_allclose(found[:, 1], height, atol=0.06)


def test_what_is_not_finite_is_left_out_of_the_plot():
    for text in ("Y = 1 / X", "Y = np.maximum(X, 9) - 9"):  # infinite at 0, and always 0
        plot = ask(text)["result"]["plot"]
        assert "nan" not in plot
        assert "inf" not in plot


@pytest.mark.parametrize(
    ("text", "given", "words"),
    [
        ("A = X\nY = np.sinc(A)", "X=(4, 5)", "line 2, 'Y = np.sinc(A)': no derivative is known"),
        ("Y = X * beta", "X=(4, 5)", "line 1, 'Y = X * beta': beta has no value here"),
        ("import os\nY = X", "X=(4, 5)", "line 1, 'import os'"),
        ("Y = X", "X=(5, 5)", "give each axis a size of its own"),
        ("Y = X +", "X=(4, 5)", "cannot read this as Python"),
        ("Y = X", "(4, 5)", formula.SHAPES),
        ("Y = X", "X=(4,", formula.SHAPES),
        ("Y = X", "X=open('x')", formula.SHAPES),
        ("Y = X", "X=(4, 5)).b(c=1", formula.SHAPES),
        ("Y = X", "X=(4, 5), **a", formula.SHAPES),
        ("Y = X", "X=(4, 5), eps='a'", "eps is a shape, such as"),
        ("Y = X", "", "derive needs the shape of X"),
    ],
)
def test_an_error_says_what_phitodeep_says(text, given, words):
    assert words in ask(text, given)["error"]


def test_a_layer_without_a_name_is_called_derived():
    assert ask("Y = 2 * X", name="")["result"]["name"] == "Derived"
    assert "must be that of a class" in ask("Y = 2 * X", name="a b")["error"]
