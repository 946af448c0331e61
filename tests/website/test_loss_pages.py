"""The pages of losses: one for each, with numbers that the library computes."""

import re
from html import escape

import numpy as np
import pytest

from phitodeep.loss import LOSSES
from website import loss_pages, parts
from website.loss_facts import FACTS

pytestmark = pytest.mark.xdist_group("loss pages")  # which are made once
every = pytest.mark.parametrize("facts", FACTS, ids=lambda facts: type(facts.loss).__name__)


def test_each_public_loss_has_one_page_and_a_wrong_check_stops_the_build():
    shown = [type(facts.loss) for facts in FACTS]
    assert len(shown) == len(set(shown))
    assert set(shown) == set(LOSSES.values())
    (section,) = loss_pages.sections()
    paths = [page.path for page in section.pages]
    assert paths[0] == "losses/index.md"
    assert paths[1:] == [f"losses/{parts.link_of(cls.__name__)}.md" for cls in shown]
    facts = FACTS[0]._replace(checks=(("Nothing.", "np.allclose(dP, 3 * (P - T))"),))
    with pytest.raises(AssertionError, match="Nothing"):
        loss_pages.checks(facts)
    pages = {page.path: str(page.content) for page in section.pages}
    assert "[SoftmaxCrossEntropy]" in pages["losses/categorical-cross-entropy.md"]
    assert "It also takes the place of Softmax" in pages["losses/softmax-cross-entropy.md"]
    assert "It also takes the place of LogSoftmax" in pages["losses/softmax-cross-entropy.md"]
    joint = pages["losses/binary-cross-entropy-with-logits.md"]
    assert "takes the place of Sigmoid" in joint


@every
def test_the_slope_of_the_picture_is_the_derivative_of_its_curve(facts):
    values = loss_pages.table(facts)
    x = np.array(values["x"])
    if type(facts.loss).__name__ in ("CategoricalCrossEntropy", "NegativeLogLikelihood"):
        assert values["targets"][0]["label"] == "class 0"  # the others move as well
    for target in values["targets"]:
        L, slope = np.array(target["L"]), np.array(target["slope"])
        assert np.isfinite(L).all()
        if target["label"] == "class 1" and facts.loss.wants != "logits":
            assert not slope.any()  # the picture moves another class's prediction
            continue
        numeric = np.gradient(L, x)[1:-1]
        wrong = np.abs(numeric - slope[1:-1]) > 0.02 * np.abs(slope).max() + 0.06 * np.abs(numeric)
        assert wrong.sum() <= 4, target["label"]  # kinks


@every
def test_a_page_has_all_its_parts_and_no_blank_lines_in_its_html(facts):
    text = str(loss_pages.page(facts).content)
    assert re.findall(r"^##+ (.*)$", text, re.MULTILINE) == [
        "Where it is used", "Derivation and code", "Forward", "Backward", "Check it by eye",
        "The gradient checker's verdict", "Arguments", "See also",
    ]  # fmt: skip
    symbols = loss_pages.scope(facts)
    for step in symbols.derivation.every():
        for part in parts.typeset(step):
            assert part in text or escape(part) in text
    assert text.count("# True") == len(facts.checks) >= 2
    assert "worst errors of each gradient" in text
    assert "loss.js" in text
    assert "- Literature: " in text or facts.loss.__class__.__name__ in _AS_FOR
    for name in facts.siblings:
        assert any(name == cls.__name__ for cls in LOSSES.values())
        assert name != type(facts.loss).__name__
    # A blank line would end a block of HTML in Markdown.
    for block in text.split("\n\n"):
        opened, closed = (len(re.findall(pattern, block)) for pattern in (r"<div\b", r"</div>"))
        assert opened == closed, block[:200]


_AS_FOR = {"BinaryCrossEntropyWithLogits", "SoftmaxCrossEntropy"}  # "source: as for ..."
