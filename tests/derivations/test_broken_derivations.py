"""Broken derivations are noticed: each sign, factor and sum of each layer and loss matters.

Every step of every example is broken in turn: the sign of a sum in an expression is turned round, a
product becomes a quotient, and a `Sum` loses a term. Then Y, dX or a gradient must differ from that
of the fast pass, which is what the contract test compares.
"""

import ast
from functools import partial
from typing import Any

import numpy as np
import pytest

from phitodeep.core.call import calling
from phitodeep.derivations.language import run as stepwise
from phitodeep.derivations.language.run import Scope
from phitodeep.derivations.language.step import Let, Step, Sum, evaluate
from phitodeep.derivations.losses import givens
from phitodeep.testing.examples import data, made, pair
from tests.loss.test_loss import EXAMPLES as LOSSES
from tests.rows import ALL

KINDS = {}
for row in ALL:
    if not row[0]().children():  # the layers inside have rows of their own
        KINDS.setdefault(type(row[0]()), []).append(row)
SHIFTS = ("Z", "z", "E")  # softmax gives the same whatever is subtracted from its input
EQUIVALENT = {  # what was broken -> why it makes no difference
    "CosineSimilarityLoss: T_scaled = T / top_T, break 0": "the scale cancels",
    "MeanAbsoluteError: dP = np.where(d_each > 0, d_each * slope, 0), break 0": "it is -1 or 1",
    "SquaredHinge: slope = -2 * T * lack, break 1": "the labels of a hinge are -1 and 1",
}
Break = tuple[Step, Any]  # a step, and what computes it wrongly


class _Other(ast.NodeTransformer):
    """Changes the operator number `target` of an expression."""

    def __init__(self, target):
        self.target, self.seen = target, 0

    def visit_BinOp(self, node):
        other = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
        if type(node.op) in other:
            self.seen += 1
            if self.seen - 1 == self.target:
                return ast.BinOp(node.left, other[type(node.op)](), node.right)
        return self.generic_visit(node)


def broken(step):
    """Functions of the symbols that compute a step wrongly, each in another way."""
    if isinstance(step, Let):
        tree = ast.parse(step.code, mode="eval")
        count = sum(isinstance(n, ast.BinOp) for n in ast.walk(tree))
        for target in range(count):
            code = ast.unparse(_Other(target).visit(ast.parse(step.code, mode="eval")))
            if code != ast.unparse(tree):
                yield lambda symbols, code=code: evaluate(code, symbols)
    elif isinstance(step, Sum):
        yield lambda symbols: 0.5 * step.value(symbols)


def edited(wrong):
    """An edit that computes one step wrongly."""

    def edit(position, value):
        if wrong is None or position.step is not wrong[0]:
            return value
        return position.scope.cast(wrong[1](position.scope))

    return edit


def of_layer(layer, X, dY, derivation, wrong):
    with calling(step=0), np.errstate(all="ignore"):
        scope = Scope(layer, X=X)
        scope.derivation = derivation
        stepwise.run(stepwise.forward(scope), edited(wrong))
        stepwise.run(stepwise.backward(scope, dY), edited(wrong))
    found = {"Y": scope.find("Y"), "dX": scope.find("dX"), **stepwise.gradients(scope)}
    return [np.array(A) for A in found.values() if A is not None]


def of_loss(loss, given, derivation, wrong):
    with np.errstate(all="ignore"):
        scope = Scope(loss, "loss", **given)
        scope.derivation = derivation
        stepwise.run(stepwise.forward(scope, "P"), edited(wrong))
        stepwise.run(stepwise.backward(scope), edited(wrong))
    return [scope["L"], scope["dP"]]


def check(cases, kind):
    """Each break must be noticed in one of the examples in which the step occurs."""
    unnoticed = {}
    for results, derivation in cases:
        wanted = results(derivation, None)
        for step in derivation.every():
            for k, wrongly in enumerate(broken(step)):
                name = f"{kind.__name__}: {step}, break {k}"
                if step.symbol in SHIFTS or not unnoticed.get(name, True):
                    continue
                pairs = zip(results(derivation, (step, wrongly)), wanted, strict=True)
                unnoticed[name] = all(np.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in pairs)
    assert {name for name, missed in unnoticed.items() if missed} <= EQUIVALENT.keys()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_sign_factor_and_sum_of_a_layer_matters(kind):
    cases = []
    for make, shape, tokens in KINDS[kind]:
        layer = made(make, shape)
        X, dY = data(layer, shape, tokens)
        with calling(step=0):
            derivation = layer.steps()
        if derivation is not None:
            cases.append((partial(of_layer, layer, X, dY), derivation))
    check(cases, kind)


@pytest.mark.parametrize("kind", sorted({type(loss) for loss in LOSSES}, key=lambda k: k.__name__))
def test_each_sign_factor_and_sum_of_a_loss_matters(kind):
    cases = []
    for loss in LOSSES:
        if type(loss) is kind:
            P, y = pair(loss, (5, 4))
            T = loss.targets(y, P.shape)
            w = loss.weights(np.array([0.5, 2.0, 1.0, 0.25, 3.0]), T, P.shape)
            given = givens(loss, P, T, w, None)
            cases.append((partial(of_loss, loss, given), loss.steps()))
    check(cases, kind)
