"""The pages of layers: one for each public layer, with true numbers and verdicts."""

import json
import re

import numpy as np
import pytest

from phitodeep import layers
from phitodeep.core.call import calling
from phitodeep.core.types import each
from phitodeep.derivations.language.step import Let
from website import arrays, layer_pages
from website.bench import Bench
from website.layer_facts import ALIASES, FACTS, KINDS, Check, example
from website.layer_pages import LayerPage, checked
from website.mistakes import broken, verdict

pytestmark = pytest.mark.xdist_group("layer pages")  # which are made once
NOT_LAYERS = {"Layer", "Param", "State"}
KEPT = {"Embedding": {"X"}}  # symbols that other stored values follow from


def test_every_public_layer_has_a_page_and_an_alias_says_so():
    public = set(layers.__all__) - NOT_LAYERS
    missing = sorted(public - set(FACTS) - set(ALIASES))
    assert not missing, f"website/facts/layers.toml has no facts about {missing}"
    assert public == set(FACTS) | set(ALIASES)
    assert not set(FACTS) & set(ALIASES)
    for alias, name in ALIASES.items():
        assert getattr(layers, alias) is getattr(layers, name)
        assert f"{alias}</strong><span>Another name of {name}." in layer_pages.index()
        assert f"`{alias}` is another name of" in str(layer_pages.page(name).content)
    assert sum(map(len, KINDS.values())) == len(FACTS)


@pytest.mark.parametrize("name", FACTS)
def test_a_page_computes_what_the_fast_passes_compute(name):
    page = LayerPage(name)
    layer, dY, bench = page.layer, page.dY, page.bench
    assert type(layer).__name__ == name
    wanted = {*bench.given, *layer.params} - KEPT.get(name, set())
    assert set(bench.movable()) == wanted  # all but some numbers can be dragged
    assert page.eye().count("True here") == len(page.facts.checks) > 0
    assert page.facts.question.endswith("?")
    assert page.facts.exercise[-1] in "?."
    symbol, k = page.facts.blank
    assert k < np.size(bench[symbol])
    own = {step.symbol for step in Bench(layer, page.Xs, dY).derivation.every()}
    added = {step.symbol for step in (*page.facts.extra, *page.checks)}
    assert not own & added  # no check reads a symbol that it hides
    with calling(step=0, first=0, training=True, caching=True, needs_dX=True):
        found = {"Y": layer.forward(*page.Xs)}
        gradients = dict(zip(page.inputs, each(layer.backward(dY)), strict=True)) | layer.grads
    for symbol, array in (found | {f"d{n}": g for n, g in gradients.items()}).items():
        if array is not None:
            np.testing.assert_allclose(bench[symbol], array, rtol=1e-12, atol=1e-12)


def test_checks_become_steps_and_false_ones_stop_the_build():
    page = LayerPage("LayerNorm")
    wrong = Check("dX is dY", "dX - dY")
    page.facts = page.facts._replace(checks=(wrong,))
    page.bench = Bench(page.layer, page.Xs, page.dY, checked((wrong,)))
    with pytest.raises(AssertionError, match="not true: dX is dY"):
        page.eye()
    steps = checked((Check("a", "dX"), Check("b", "dY")))
    wanted = [(Let, "check_0", "dX"), (Let, "check_1", "dY")]
    assert [(type(s), s.symbol, s.code) for s in steps] == wanted


def test_chance_broken_layers_and_cells_are_shown():
    for name in ("Dropout", "SpatialDropout"):
        assert set(np.sign(Bench(*example(FACTS[name]))["m"].ravel())) == {0, 1}
    for name in ("RandomFlip", "RandomShift", "GaussianNoise"):
        bench = Bench(*example(FACTS[name]))
        assert not np.array_equal(bench["X"], bench["Y"])
    assert LayerPage("Multiply").cost().count("float32 | 32 |") == 2  # X1 and X2, which are kept
    text = LayerPage("LayerNorm").broken()
    assert "without the term <code>- through_mu</code>" in text
    assert "LayerNorm() has wrong gradients" in text
    layer, Xs, _ = example(FACTS["LayerNorm"])
    right = broken(layer, "dX", lambda symbols: symbols["r"] * (
        symbols["g"] - symbols["through_mu"] - symbols["through_r"]))  # fmt: skip
    assert "wrong" not in verdict(right, Xs)
    text = arrays.array("X", np.array([[1.0, -2.0], [0.5, -0.004]]))
    shown = re.findall(r'data-k="(\d)" style="--v:([-.\d]+)">([^<]+)<', text)
    assert shown[:2] == [("0", "0.5", "1"), ("1", "-1", "\u22122")]
    assert shown[2:] == [("2", "0.25", "0.5"), ("3", "-0.002", "0")]
    assert "wb-bars" not in text
    assert "wb-bars" in arrays.array("X", np.ones((1, 3)))


@pytest.mark.parametrize("name", ["LayerNorm", "Dense", "LSTM", "Bilinear"])
def test_a_page_has_all_its_parts(name):
    text = str(layer_pages.page(name).content)
    for part in (
        *(FACTS[name].question, FACTS[name].exercise, '<math display="block"'),
        *('nf">forward<', 'nf">backward<', "has wrong gradients"),
        *("worst errors of each gradient", "bytes kept for the backward pass"),
        f"../api/layers.md#{type(example(FACTS[name])[0]).__module__}.{name}",
        "Literature" if name != "Dense" else "API",
    ):
        assert part in text, part
    found = re.search(r"<script type=.application/json.>(.*?)</script>", text)
    assert found
    data = json.loads(found[1])
    assert len(json.dumps(data)) < 40_000
    assert data["document"]["live"]
