"""The page of formulas: what its Python answers, for the examples and for what is refused."""

import ast
import json
import re

import numpy as np
import pytest

from website.playground.build import formulas
from website.playground.session import formula
from website.playground.session.worker import Worker

EXAMPLES = formulas()


def ask(text, given="X=(4, 5)", name=""):
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
    assert 'data-sym="dX"' in "".join(result["backward"])
    assert result["plot"].count("<path") >= 2
    assert result["caption"].startswith("Y[0, 0] (solid) and its slope (dashed), as X[0, 0] moves")


def test_the_plot_has_the_values_and_the_slopes_of_what_moves():
    result = ask("Y = np.flip(X ** 3, axis=-1)", "X=(3, 2)")["result"]
    assert result["caption"].startswith("Y[0, 1] (solid)")
    paths = re.findall(r'class="pd-(?:L|slope wb-slope)" d="M([^"]+)"', result["plot"])
    values, slopes = (np.array([pair.split(",") for pair in d.split("L")], float) for d in paths)
    x, (low, high) = np.linspace(-4, 4, 161), (-64 - 0.08 * 128, 64 + 0.08 * 128)
    for found, wanted in ((values, x**3), (slopes, 3 * x**2)):
        height = 12 + (high - wanted) / (high - low) * (formula.HEIGHT - 52)
        np.testing.assert_allclose(found[:, 0], 48 + (x + 4) / 8 * (formula.WIDTH - 64), atol=0.06)
        np.testing.assert_allclose(found[:, 1], height, atol=0.06)


def test_what_is_not_finite_is_left_out_of_the_plot():
    assert ask("Y = 1 / X")["result"]["name"] == "Derived"  # without a name
    for text in ("Y = 1 / X", "Y = np.maximum(X, 9) - 9"):  # infinite at 0, and always 0
        assert not re.search("nan|inf", ask(text)["result"]["plot"])


REFUSED = [
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
    ("Y = X", "X=(4, 5), b=(5,)", "Y does not depend on b"),
]


@pytest.mark.parametrize(("text", "given", "words"), REFUSED)
def test_an_error_says_what_phitodeep_says(text, given, words):
    assert words in ask(text, given)["error"]
