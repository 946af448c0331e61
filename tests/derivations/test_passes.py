"""Fast tangents equal those that the steps compute one by one, for every layer of the table."""

from itertools import product

import numpy as np

from phitodeep.core.call import calling
from phitodeep.core.types import each, numbered, one
from phitodeep.derivations.derive.passes import Passes
from phitodeep.derivations.derive.tangents import perform, seed
from phitodeep.derivations.language import run
from phitodeep.derivations.language.run import Scope
from phitodeep.testing.examples import data, made
from tests.rows import ALL, masks, over

RNG = np.random.default_rng(3)


def tangents(kind, layer, given, moves):
    """All results of both passes and their tangents, by the path and name of each."""
    X, tX, dY, tdY = given
    scope = kind(layer, **numbered("X", X))
    run.run(run.forward(scope))
    seed(scope, moves)
    if tX is not None:
        scope.values |= numbered("tX", tX)
    perform(scope, "forward")
    run.run(run.backward(scope, dY))
    scope.values |= numbered("tdY", tdY)
    perform(scope, "backward")
    return dict(results(scope, needs_dX=tX is not None))


def results(scope, needs_dX, path=""):
    layer = scope.layer
    names = [*run.symbols_of(layer, "Y"), *(f"d{n}" for n in (*layer.params, *layer.tied))]
    for name in [*names, *(run.symbols_of(layer, "dX") if needs_dX else ())]:
        value, moved = scope.find(name), scope.find(f"t{name}")
        if value is not None:
            yield f"{path} {name}", value
            yield f"{path} t{name}", np.zeros_like(value) if moved is None else moved
    for key, inner in scope.inside.items():
        yield from results(inner, needs_dX, f"{path}.{key}")


@over(ALL)
def test_fast_tangents_are_those_of_the_steps(make, shape, tokens):
    layer = made(make, shape)
    if any(part.surrogate or part.steps() is None for _, part in layer.walk()):
        return
    X, dY = data(layer, shape, tokens)
    moves = {
        (part, name): RNG.standard_normal(W.shape)
        for _, part in layer.walk()
        for name, W in part.params.items()
    }
    tX, tdY = ([RNG.standard_normal(A.shape) for A in each(B)] for B in (X, dY))
    tX = None if tokens else one(tX, len(tX) == 1)
    given = X, tX, dY, one(tdY, len(tdY) == 1)
    for training, mask in product((True, False), masks(layer, shape)):
        with calling(step=0, mask=mask, training=training):
            slow, fast = (tangents(kind, layer, given, moves) for kind in (Scope, Passes))
        assert slow.keys() == fast.keys()
        for name, A in slow.items():
            scale = max(1.0, float(np.abs(A).max(initial=0)))
            np.testing.assert_allclose(fast[name], A, rtol=0, atol=1e-12 * scale, err_msg=name)
