"""Formulas as MathML: well-formed, made of MathML Core, and the same formulas as in plain text."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from phitodeep import SequentialBuilder
from phitodeep.derivations.language.mathml import MATHML, MathML
from phitodeep.derivations.language.notation import Plain
from phitodeep.derivations.language.step import Arrange, Given, Let, Loop

CORE = {"math", "mrow", "mi", "mo", "mn", "mtext", "msub", "msup", "mover", "munder", "mfrac"}
CORE |= {"msqrt", "mtable", "mtr", "mtd"}
CHILDREN = {"msub": 2, "msup": 2, "mover": 2, "munder": 2, "mfrac": 2}


class Linear(Plain):
    """Plain text whose fractions, powers and choices are marked, since MathML shows them by place.

    Their brackets then depend on nothing else, so both styles must give the same text.
    """

    over = 0, 0
    fraction = "\u27e8{}/{}\u27e9"
    choice = "{{{1}if {0}{2}otherwise"

    def power(self, base, exponent):
        return f"\u27e8{base}^{exponent}\u27e9"


def read(node):
    """The formula of a MathML tree as a line of text, without spaces."""
    parts = [read(child) for child in node]
    text = "".join(parts) or node.text or ""
    return {
        "msub": lambda: "_".join(parts),
        "munder": lambda: "_".join(parts),
        "mover": lambda: parts[0] + "\u0302",
        "mfrac": lambda: "\u27e8{}/{}\u27e9".format(*parts),
        "msup": lambda: "\u27e8{}^{}\u27e9".format(*parts),
        "msqrt": lambda: f"√({text})",
    }.get(node.tag, lambda: text)()


def bare(text):
    """Without spaces and invisible operators, and with one kind of minus and of sum."""
    return re.sub(r"[\s\u2061\u2062]", "", text).replace("\u2212", "-").replace("∑", "Σ")


def check_mathml(step, symbols=None):
    """The contract of layers and losses calls this for each of their steps."""
    tree = ET.fromstring(step.written(MATHML, symbols))
    assert tree.tag == "math"
    for node in tree.iter():
        assert node.tag in CORE, step
        assert len(node) == CHILDREN.get(node.tag, len(node)), step
        assert not (node.text and len(node)), step  # text is in the leaves
    assert bare(read(tree)) == bare(step.written(Linear(), symbols)), step
    told = [node.get("data-sym") for node in tree.iter() if node.get("data-sym") is not None]
    words = isinstance(step, Arrange | Given)  # their formulas are words
    wanted = set() if isinstance(step, Loop) else {step.symbol, *step.operands[words * 99 :]}
    assert set(told) == wanted, step


@pytest.mark.parametrize(
    ("step", "shown"),
    [
        (
            Let("dW", "2.5 * mu_prev"),
            '<mrow data-sym="dW"><mrow><mi>d</mi><mi>W</mi></mrow></mrow><mo>=</mo><mn>2.5</mn>'
            '<mo>·</mo><msub data-sym="mu_prev"><mi>μ</mi><mrow><mtext>prev</mtext></mrow></msub>',
        ),
        (
            Let("X_hat", "-X"),
            '<mrow data-sym="X_hat"><mover><mi>X</mi><mo stretchy="false">^</mo></mover></mrow>'
            '<mo>=</mo><mo form="prefix">\u2212</mo><mrow data-sym="X"><mi>X</mi></mrow>',
        ),
        (
            Given("share", 'a < b & "c"', lambda _: 0),
            '<mrow data-sym="share"><mi>share</mi></mrow><mo>=</mo>'
            "<mtext>a\u00a0&lt;\u00a0b\u00a0&amp;\u00a0&quot;c&quot;</mtext>",
        ),
        (
            Given('"><b>', "x", lambda _: 0),
            '<mrow data-sym="&quot;&gt;&lt;b&gt;"><mi>&quot;&gt;&lt;b&gt;</mi></mrow><mo>=</mo>'
            "<mtext>x</mtext>",
        ),
        (
            Given('a_"><b>', "x", lambda _: 0),
            '<msub data-sym="a_&quot;&gt;&lt;b&gt;"><mi>a</mi>'
            "<mrow><mtext>&quot;&gt;&lt;b&gt;</mtext></mrow></msub><mo>=</mo><mtext>x</mtext>",
        ),
    ],
    ids=str,
)
def test_how_symbols_and_words_are_written(step, shown):
    head = '<math display="inline" displaystyle="true">'
    assert step.mathml == f"{head}{shown}</math>"
    assert step.written(MathML("block")) == step.mathml.replace("inline", "block")


def test_an_entry_of_a_trace_has_an_index_for_every_axis():
    rng = np.random.default_rng(0)
    model = SequentialBuilder().dense(1).seed(0).build()
    entry = model.trace(rng.standard_normal((4, 3, 2)), rng.standard_normal((4, 3, 1)))["0.dW"]
    assert bare(read(ET.fromstring(entry.mathml))) == bare(entry.formula) == "dW_ij=Σ_ntX_ntidY_ntj"
