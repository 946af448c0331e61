"""What is derived, next to the derivation by hand: each step is shown once, and differences are."""

import numpy as np
import pytest

from phitodeep.derivations.language.step import Let, Loop, Sum
from phitodeep.derivations.normalization import layer_norm
from phitodeep.layers import LayerNorm
from website import derived
from website.derived import Comparison, section
from website.layer_facts import FACTS, example

NONE = ("Lambda", "GradientReversal")  # nothing by hand, and against the slope


def both(name):
    return Comparison(*example(FACTS[name])[:2])


def shown(name):
    return section(*example(FACTS[name])[:2])


@pytest.mark.parametrize("name", [name for name in FACTS if name not in NONE])
def test_each_step_is_shown_once_and_what_has_one_name_has_one_value(name):
    found = both(name)

    def check(derived_steps, by_hand):
        rows = found.rows(derived_steps, by_hand)
        assert sorted(map(id, derived_steps)) == sorted(id(s) for row in rows for s in row.derived)
        seen = {id(s) for row in rows for s in row.hand}
        assert seen <= {*map(id, by_hand)}
        for step in by_hand:  # only places, which are no numbers, are left out
            assert id(step) in seen or np.asarray(found.hand[step.symbol]).dtype.kind != "f", step
        for row in rows:
            assert row.derived or row.hand
            if row.derived and isinstance(row.derived[-1], Loop):
                check(row.derived[-1].body, row.hand[-1].body)
            elif row.same:
                assert row.derived[0].symbol == row.hand[0].symbol

    check(found.steps, found.by_hand)
    text = "".join(shown(name))
    assert text.startswith(derived.TITLE)
    assert (derived.EQUAL in text) != ('<div class="wb-compared">' in text)
    assert "\n\n" not in text.partition("<div")[2]  # which would end the HTML


def test_where_both_agree_the_page_says_so_in_one_line_whatever_the_order_and_the_letters():
    for name in ("Dense", "Bilinear", "TransformerBlock", "Residual", "Flatten", "Permute"):
        assert shown(name) == [derived.TITLE, derived.EQUAL]
    for name in NONE:
        assert shown(name) == []


def test_differences_are_aligned_at_what_both_compute():
    found = both("LayerNorm")
    rows = found.rows(found.steps, found.by_hand)
    assert [tuple([s.formula for s in way] for way in row[:2]) for row in rows if not row.same] == [
        ([], ["sum_g_n = Σ_d g_nd", "through_mu = sum_g / D"]),
        (
            ["dC = r · (g - s · X̂ / D)", "s_2,n = Σ_d dC_nd", "dX = dC - s_2 / D"],
            ["through_r = X̂ · s / D", "dX = r · (g - through_mu - through_r)"],
        ),
    ]
    assert [row.hand[0].symbol for row in rows if row.same] == ["dbeta", "dgamma", "g", "s"]
    for name in ("LSTM", "PReLU"):  # dh_end, which has no formula by hand, and another order
        found = both(name)
        assert found.rows(found.steps, found.by_hand)[0].same
    assert derived.renamed(Sum("s", "dh->h", "dh"), {"dh": "g"}).code == "dh->h"
    text = shown("LSTM")[-1]
    assert text.count('<li class="wb-loop">') == 1
    assert text.count('aria-label="derived"') > 5 < text.count('aria-label="by hand"')


def test_a_derivation_by_hand_that_is_wrong_stops_the_build(monkeypatch):
    def wrong(layer):
        found = layer_norm(layer)
        return found._replace(backward=[*found.backward[:-1], Let("dX", "r * (g - through_mu)")])

    monkeypatch.setattr(LayerNorm, "steps", wrong)
    with pytest.raises(AssertionError, match=r"'dX'. by hand and as derived differ"):
        both("LayerNorm")
