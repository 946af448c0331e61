"""Products with the Jacobian and the Hessian of random networks are slopes of both passes."""

import numpy as np
from hypothesis import given, reject

from phitodeep import Network
from phitodeep import layers as L
from phitodeep.core.types import each
from phitodeep.errors import DerivationError
from phitodeep.inspect.curvature import places
from phitodeep.inspect.recording import record
from tests.random_networks import networks, one


def gradients(model, X, y):
    """Of all parameters, by path; uses of one parameter are added up."""
    twin, found = record(model, X, y).model, {}
    paths = {id(layer): path for path, layer in twin.walk()}
    for path, layer in twin.walk():
        for name, dW in layer.grads.items():
            owner, own = layer.tied.get(name, (layer, name))
            key = f"{paths.get(id(owner), path)}.{own}"
            found[key] = found.get(key, 0) + dW
    return found


def slopes(function, model, V, h):
    """How the arrays of a function of a model move along V, by central differences."""
    ends = []
    for by in (h, -h):
        other, weights = model.copy(), model.get_weights()
        other.set_weights({path: W + by * V.get(path, 0) for path, W in weights.items()})
        ends.append(function(other))
    return {name: (A - ends[1][name]) / (2 * h) for name, A in ends[0].items()}


def assert_slopes(found, function, model, V):
    """Compare, unless there is a kink between the two ends."""
    wide, near = (slopes(function, model, V, h) for h in (1e-5, 2.5e-6))
    scale = max([1e-6, *(np.abs(A).max(initial=0) for A in wide.values())])
    if any(np.abs(A - near[name]).max(initial=0) > 1e-5 * scale for name, A in wide.items()):
        reject()
    for name, A in wide.items():
        np.testing.assert_allclose(found[name], A, rtol=0, atol=1e-4 * scale, err_msg=name)


@given(networks(without=(L.GradientReversal,)))
def test_products_of_random_networks_are_slopes(network):
    Xs, outs = each(network.X), network.layer._outs()
    names, ends = ([f"{kind}{k}" for k in range(len(A))] for kind, A in (("in", Xs), ("out", outs)))
    losses = dict.fromkeys(ends, "mse") if len(ends) > 1 else "mse"
    model = Network(names, [(network.layer, names, ends)], ends, loss_class=losses, dtype="float64")
    model.build(one([X.shape[1:] for X in Xs]))
    X = dict(zip(names, Xs, strict=True)) if len(Xs) > 1 else Xs[0]
    rng, n = np.random.default_rng(network.seed), len(Xs[0])
    y = {end: rng.standard_normal((n, *shape)) for end, shape in zip(ends, outs, strict=True)}
    y = y if len(ends) > 1 else y[ends[0]]
    V = {
        path: rng.standard_normal(layer.params[name].shape)
        for path, (layer, name) in places(model).items()
    }
    before = model.get_weights()
    try:
        HV, (_, tY) = model.hvp(X, y, V), model.jvp(X, V)
    except DerivationError:  # a layer of a user's own, whose source cannot be read
        reject()
    for path, W in model.get_weights().items():
        np.testing.assert_array_equal(W, before[path])
    assert_slopes(HV, lambda other: gradients(other, X, y), model, V)

    def predict(other):
        P = other.predict(X)
        return P if isinstance(P, dict) else {ends[0]: P}

    assert_slopes(tY if isinstance(tY, dict) else {ends[0]: tY}, predict, model, V)
