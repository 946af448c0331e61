"""The pages of optimizers: their rules are those of the code, and their paths were really run."""

import re

import numpy as np
import pytest

from phitodeep.optimization.optimizers import LBFGS, OPTIMIZERS, Muon
from tests.rows import long
from website import optimizer_pages
from website.optimizer_facts import FACTS, run_rule
from website.valleys import VALLEYS, best, layers_at, paths, walk

pytestmark = pytest.mark.xdist_group("optimizer pages")  # which are made once
RUN = [(facts, rule) for facts in FACTS for rule in facts.rules if facts.cls is not LBFGS]
every = pytest.mark.parametrize("facts", FACTS, ids=lambda facts: facts.cls.__name__)


def test_each_public_optimizer_has_one_page_its_memory_and_its_path():
    assert {facts.cls for facts in FACTS} == set(OPTIMIZERS.values())
    for name, count in {"sgd": 0, "adam": 2, "adagrad": 1, "lion": 1}.items():
        assert optimizer_pages.remembered(OPTIMIZERS[name]) == count
    valley = VALLEYS[0]
    path = walk(FACTS[0].cls(0.01), valley, steps=3)
    x, y = valley.start
    by_hand = [(x, y)]
    for _ in range(3):
        dx, dy = valley.slope(x, y)
        x, y = x - 0.01 * dx, y - 0.01 * dy
        by_hand.append((x, y))
    np.testing.assert_allclose(path, by_hand, rtol=1e-12)


@pytest.mark.parametrize(
    ("facts", "rule"),
    RUN,
    ids=lambda x: getattr(x, "title", "") or getattr(x, "cls", type).__name__,
)
def test_a_rule_takes_the_steps_of_its_optimizer(facts, rule):
    rng = np.random.default_rng(5)
    optimizer = facts.cls(0.1, **rule.options)
    layers, W = layers_at((1.0, -2.0), facts.cls is Muon)
    W[...] = start = rng.standard_normal(W.shape)
    gradients = rng.standard_normal((5, *W.shape))
    expected = list(run_rule(rule, facts, optimizer, start, gradients))
    for g, theta in zip(gradients, expected, strict=True):
        layers[0].grad_array("W")[...] = g
        optimizer.step(layers)
        np.testing.assert_allclose(layers[0].params["W"], theta, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("alpha", [1.0, 0.3])
def test_lbfgs_steps_towards_what_scipy_finds(alpha):
    minimize = pytest.importorskip("scipy.optimize").minimize
    valley = VALLEYS[1]
    layers, W = layers_at(valley.start, matrix=False)
    start = W.copy()

    def closure():
        x, y = layers[0].params["W"]
        layers[0].grad_array("W")[...] = valley.slope(x, y)
        return float(valley.f(x, y))

    LBFGS(alpha).run(layers, closure)
    options = {"maxiter": 20, "maxcor": 10, "gtol": 1e-7, "ftol": 1e-9}
    found = minimize(
        lambda p: (valley.f(*p), np.array(valley.slope(*p))), start, jac=True,
        method="L-BFGS-B", options=options,
    ).x  # fmt: skip
    (facts,) = (facts for facts in FACTS if facts.cls is LBFGS)
    line = facts.rules[0].lines[-1]
    theta = eval(line.code, {"theta": start, "alpha": alpha, "theta_best": found})
    np.testing.assert_allclose(layers[0].params["W"], theta, rtol=1e-12)


@pytest.mark.parametrize("valley", VALLEYS, ids=lambda valley: valley.name)
def test_the_slope_of_a_valley_is_its_derivative(valley):
    x, y, h = 0.3, -0.4, 1e-6
    moved = [valley.f(x + a, y + b) for a, b in ((h, 0), (-h, 0), (0, h), (0, -h))]
    numeric = -np.diff(moved)[::2] / (2 * h)
    np.testing.assert_allclose(valley.slope(x, y), numeric, rtol=1e-6)
    assert valley.slope(*valley.bottom) == (0, 0)
    assert valley.f(*valley.bottom) == 0
    for level in valley.levels:
        values = [valley.f(*point) for point in valley.contour(level)]
        np.testing.assert_allclose(values, level, rtol=1e-6)


@long  # `make docs` makes them, too
def test_each_optimizer_has_a_page():
    (section,) = optimizer_pages.sections()
    names = ["index", *OPTIMIZERS]
    assert {page.path for page in section.pages} == {f"optimizers/{name}.md" for name in names}


@long
@every
def test_a_page_has_all_its_parts(facts):
    text = str(optimizer_pages.page(facts).content)
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
        "The rule and its code", "Memory", "When to use it", "Arguments", "See also",
    ]  # fmt: skip
    for rule in facts.rules:
        for line in rule.lines:
            assert optimizer_pages.formula(line) in text
    assert text.count("<svg") == 2
    assert "`alpha`" in text
    name = facts.cls.__name__
    for index, valley in enumerate(VALLEYS):  # its best path descends
        path = paths(index)[name][best(index, name)][1]
        assert valley.f(*path[-1]) < 0.25 * valley.f(*valley.start)
