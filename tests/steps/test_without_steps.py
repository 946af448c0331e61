"""Layers without steps(): their fast passes are single steps, which record nothing."""

from __future__ import annotations

import numpy as np

from phitodeep import layers as L
from phitodeep.layers.call import calling
from phitodeep.model import Sequential
from phitodeep.steps import run as stepwise
from phitodeep.testing.examples import passes
from phitodeep.types import Array
from tests.random_networks import Gate, Scale


def model_of(*layers: L.Layer) -> tuple[Sequential, Array, Array]:
    model = Sequential(*layers, dtype="float64", seed=1)
    model.build((3,))
    rng = np.random.default_rng(0)
    return model, rng.standard_normal((5, 3)), rng.standard_normal((5, *(model.output_shape or ())))


def gate() -> Gate:
    return Gate(L.Chain(L.BatchNorm(), L.Dense(2)), L.Dense(2))


def test_steps_record_no_state() -> None:
    model, X, dY = model_of(gate())
    before = model.get_weights()
    fast = passes(model, X, dY)
    assert not np.array_equal(
        model.get_weights()["0.inside.value.layers.0.running_mean"],
        before["0.inside.value.layers.0.running_mean"],
    )
    model.set_weights(before)
    with calling(step=0):
        slow = stepwise.passes(model, X, dY)
    for path, A in model.get_weights().items():
        np.testing.assert_array_equal(A, before[path], err_msg=path)
    for path, gradient in stepwise.gradients(slow).items():
        np.testing.assert_array_equal(gradient, fast[path], err_msg=path)


def test_outside_training_both_passes_drop_the_same() -> None:
    model, X, dY = model_of(Gate(L.Chain(L.Dropout(0.5), L.Dense(2)), L.Dense(2)))
    slow = stepwise.passes(model, np.ones_like(X), dY)
    dX = slow["dX"] - (dY * slow["Y"] / 1) @ np.zeros((2, 3))
    value, gates = model.layers[0].children().values()
    G = gates.forward(np.ones_like(X))
    V = slow["Y"] / G
    kept = np.linalg.lstsq(value.layers[1].W.T, (V - value.layers[1].b).T, rcond=None)[0]
    assert dX.shape == X.shape
    assert kept.shape == (3, 5)


def test_gradients_of_layers_inside_are_those_of_the_arrays_of_the_scope() -> None:
    model, X, dY = model_of(gate(), L.Dense(1))
    with calling(step=0):
        scope = stepwise.passes(model, X, dY)
        wanted = stepwise.gradients(scope)
        stepwise.passes(model, X + 1, 2 * dY)
        found = stepwise.gradients(scope)
    for path, gradient in wanted.items():
        np.testing.assert_array_equal(found[path], gradient, err_msg=path)
