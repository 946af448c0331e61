"""What is derived from the forward steps of a layer or a loss equals what a person has derived."""

from itertools import product

import numpy as np
import pytest

from phitodeep.core.call import calling
from phitodeep.core.types import each, numbered
from phitodeep.derivations.derive.reverse import reverse
from phitodeep.derivations.language import run
from phitodeep.derivations.language.run import Scope
from phitodeep.derivations.losses import givens
from phitodeep.testing.examples import LOSSES, data, made, pair
from tests.derivations.test_contract import assert_close
from tests.rows import ALL, masks, over


@over(ALL)
def test_a_derived_backward_pass_equals_the_one_by_hand(make, shape, tokens):
    layer = made(make, shape)
    Xs, dY = map(each, data(layer, shape, tokens))
    if any(part.surrogate for _, part in layer.walk()) or any(1 in X.shape[1:] for X in Xs):
        return
    for training, mask in product((True, False), masks(layer, shape)):
        if layer.steps() is None or (mask is not None and len(Xs[0]) == 1):
            continue
        with calling(step=0, mask=mask, training=training):
            hand = run.passes(layer, Xs if len(Xs) > 1 else Xs[0], dY if len(dY) > 1 else dY[0])
            names = [*run.symbols_of(layer, "X"), *layer.params, *layer.tied]
            wanted = [name for name in names if hand.find(f"d{name}") is not None]
            more = 1 if mask is not None else 5  # derived for another batch, and run for this one
            scope = Scope(layer, **numbered("X", larger(Xs, more)))
            run.run(run.forward(scope))
            back = reverse(scope.derivation.forward, scope, wanted)
            scope = Scope(layer, **numbered("X", Xs if len(Xs) > 1 else Xs[0]))
            run.run(run.forward(scope))
            scope.values |= numbered("dY", dY if len(dY) > 1 else dY[0])
            run.run(run.perform(back, scope, "backward"))
        for name in wanted:
            assert scope[f"d{name}"].shape == scope[name].shape
            assert_close(scope[f"d{name}"], hand[f"d{name}"], f"{layer!r} d{name}", 1e-9)


def larger(Xs, times):
    """More samples, with other values, so that the batch has a size of its own."""
    rng = np.random.default_rng(0)
    found = []
    for X in Xs:
        A = np.concatenate([X] * times)
        found.append(A if A.dtype.kind == "i" else A + (times > 1) * rng.standard_normal(A.shape))
    return tuple(found) if len(found) > 1 else found[0]


@pytest.mark.parametrize("loss", [loss for loss, _ in LOSSES], ids=repr)
@pytest.mark.parametrize("shape", [(5, 4), (3, 5, 4)])
def test_a_derived_gradient_of_a_loss_equals_the_one_by_hand(loss, shape):
    P, y = pair(loss, shape)
    T = loss.targets(y, P.shape)
    w = loss.weights(np.linspace(0.5, 2, len(P)), T, P.shape)
    scope = Scope(loss, "loss", **givens(loss, P, T, w, None))
    run.run(run.forward(scope, "P"))
    run.run(run.backward(scope))
    hand = scope["dP"].copy()
    back = reverse(scope.derivation.forward, scope, ["P"])
    run.run(run.perform(back, scope, "backward"))
    assert_close(scope["dP"], hand, repr(loss), 1e-9)
