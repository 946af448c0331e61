"""Tangents are the transpose of the backward pass, and the slopes of central differences."""

from itertools import product

import numpy as np
import pytest

from phitodeep.core.call import calling
from phitodeep.core.types import each, numbered
from phitodeep.derivations.derive.tangents import perform, seed, tangents
from phitodeep.derivations.language import run
from phitodeep.derivations.language.step import Derivation, Sum
from phitodeep.layers import Chain, Embedding
from phitodeep.testing.examples import data, made
from tests.rows import TOOLS, masks, over

RNG = np.random.default_rng(3)


SUMS = [  # a sum of products, and the steps of its tangent
    (Sum("Y", "nd,de->ne", "X", "W"), "tY_X tX W, tY_W X tW, tY_X + tY_W"),
    (Sum("Y", "nd,nd->n1", "X", "X"), "tY_X_0 tX X, 2 * tY_X_0"),
    (Sum("Y", "ntd,nsd->nts", "X", "X"), "tY_X_0 tX X, tY_X_1 X tX, tY_X_0 + tY_X_1"),
    (Sum("Y", "nd->n1", "X"), "tY tX"),
]


@pytest.mark.parametrize(("step", "wanted"), SUMS)
def test_a_sum_moves_with_each_factor_and_equal_ones_are_counted(step, wanted):
    found = tangents(Derivation([step], []), {"X", "W"}).forward
    texts = [" ".join([s.symbol, *s.operands]) if isinstance(s, Sum) else s.code for s in found]
    assert ", ".join(texts) == wanted


@over(TOOLS)
def test_tangents_of_both_passes(make, shape, tokens):
    layer = made(make, shape)
    if any(part.surrogate or part.steps() is None for _, part in layer.walk()):
        return
    Xs, dYs = map(each, data(layer, shape, tokens))
    moves = {
        (part, name): RNG.standard_normal(W.shape)
        for _, part in layer.walk()
        for name, W in part.params.items()
    }
    tXs = [np.zeros(0) if tokens else RNG.standard_normal(X.shape) for X in Xs]
    tdYs = [RNG.standard_normal(dY.shape) for dY in dYs]
    for training, mask in product((True, False), masks(layer, shape)):
        with calling(step=0, mask=mask, training=training):
            scope = both(layer, Xs, dYs)
            seed(scope, moves)
            if not tokens:
                scope.values |= numbered("tX", one(tXs))
            perform(scope, "forward")
            scope.values |= numbered("tdY", one(tdYs))
            perform(scope, "backward")
            check_duality(scope, moves, tXs, dYs, tokens)
            check_differences(layer, scope, moves, (Xs, tXs), (dYs, tdYs), tokens)


def test_tokens_have_no_gradient_that_could_move():
    layer = Chain(Embedding(7, 4))
    layer.build((5,))
    scope = both(layer, [np.zeros((3, 5), int)], [np.ones((3, 5, 4))])
    seed(scope, {})
    for direction in ("forward", "backward"):
        perform(scope, direction)
    assert scope.find("tdX") is scope.find("dX") is None


def one(values):
    return values[0] if len(values) == 1 else tuple(values)


def both(layer, Xs, dYs):
    return run.passes(layer, one(Xs), one(dYs))


def scopes(scope):
    yield scope
    for inner in scope.inside.values():
        yield from scopes(inner)


def check_duality(scope, moves, tXs, dYs, tokens):
    """<dY, tY> = <dX, tX> + the sum of <dW, tW>."""
    right = 0.0
    for inner in scopes(scope):
        layer = inner.layer
        for name, key in ({n: (layer, n) for n in layer.params} | layer.tied).items():
            if key in moves and (dW := inner.find(f"d{name}")) is not None:
                right += float((dW * moves[key]).sum())
    if not tokens:
        for name, tX in zip(run.symbols_of(scope.layer, "dX"), tXs, strict=True):
            dX = scope.find(name)
            right += 0 if dX is None else float((dX * tX).sum())
    Ys = run.symbols_of(scope.layer, "Y")
    left = 0.0
    for name, dY in zip(Ys, dYs, strict=True):
        tY = scope.find(f"t{name}")
        left += 0.0 if tY is None else float((dY * tY).sum())
    assert abs(left - right) <= 1e-11 * max(1, abs(left))


def check_differences(layer, scope, moves, X, dY, tokens):
    """Every tangent of Y, dX and dW is the slope of its symbol; a kink may be nearer than h."""
    weights = layer.get_weights()
    paths = {
        (part, name): f"{path}.{name}".removeprefix(".")
        for path, part in layer.walk()
        for name in part.params
    }

    def at(h):
        layer.set_weights(
            {**weights, **{paths[k]: weights[paths[k]] + h * V for k, V in moves.items()}}
        )
        Xs = [A if tokens else A + h * tA for A, tA in zip(*X, strict=True)]
        found = both(layer, Xs, [A + h * tA for A, tA in zip(*dY, strict=True)])
        layer.set_weights(weights)
        return found

    error = 9.0
    for h in (1e-5, 1e-6, 1e-7):
        error = min(error, largest_error(scope, at(h), at(-h), 2 * h))
        if error < 1e-6:
            return
    assert error < 1e-6, layer


def largest_error(scope, up, down, step):
    worst = 0.0
    for inner, a, b in zip(scopes(scope), scopes(up), scopes(down), strict=True):
        layer = inner.layer
        names = [*run.symbols_of(layer, "Y"), *run.symbols_of(layer, "dX")]
        for name in [*names, *(f"d{n}" for n in (*layer.params, *layer.tied))]:
            if a.find(name) is None or np.asarray(a[name]).dtype.kind != "f":
                continue
            wanted, found = (a[name] - b[name]) / step, inner.find(f"t{name}")
            found = np.zeros_like(wanted) if found is None else found
            scale = max(1.0, float(np.abs(wanted).max(initial=0)))
            worst = max(worst, float(np.abs(found - wanted).max(initial=0)) / scale)
    return worst
