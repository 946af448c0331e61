"""How outputs and gradients move along a direction: products with the Jacobian and the Hessian.

Both come from the derivations of the layers, whose steps have tangents: nothing is recorded, and no
second derivation is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from phitodeep.core.call import current, within
from phitodeep.core.checks import as_float, check_finite
from phitodeep.core.types import Array, each, numbered, one
from phitodeep.derivations.derive.tangents import perform, seed
from phitodeep.derivations.language import run
from phitodeep.derivations.language.run import Scope
from phitodeep.derivations.losses import givens
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError
from phitodeep.inspect.recording import prepared
from phitodeep.training.objective import Trainable

Weights = Mapping[str, Any]  # a direction by path, such as "0.W"; 0 for all others


def jvp(model: Trainable, X: Any, weights: Weights, tX: Any = None) -> tuple[Any, Any]:
    """See `Sequential.jvp`."""
    data, _ = model._inputs(X, None)
    moves = None if tX is None else model._inputs(tX, None)[0]
    twin = model.copy()
    with within(current()._replace(training=False)):
        scope = _moved(twin, data, weights, moves)
    return model._named(run.all_of(scope, "Y")), model._named(_tangent(scope, "Y"))


def hvp(model: Trainable, X: Any, y: Any, weights: Weights, **options: Any) -> dict[str, Array]:
    """See `Sequential.hvp`."""
    data, twin, call = prepared(model, X, y, **options)
    with within(call):
        scope = _moved(twin, data.X, weights, None)
        loss, P = twin.loss.present(data.T), run.all_of(scope, "Y")
        symbols = givens(loss, P, data.T, data.w, None)
        costs = Scope(loss, "loss", dtype=np.float64, **symbols)
        run.run(run.forward(costs, "P"))
        run.run(run.backward(costs))
        costs.values |= numbered("tP", _tangent(scope, "Y"))
        perform(costs, "forward")
        perform(costs, "backward")
        run.run(run.backward(scope, run.all_of(costs, "dP")))
        scope.values |= numbered("tdY", _tangent(costs, "dP"))
        perform(scope, "backward")
    return _gathered(twin, scope)


def _moved(model: Trainable, X: Any, weights: Weights, tX: Any) -> Scope:
    """The forward pass and its tangents, for parameters that move along `weights`."""
    scope = Scope(model, dtype=np.float64, **numbered("X", X))
    run.run(run.forward(scope))
    seed(scope, _directions(model, weights))
    if tX is not None:
        for name, A, X_k in zip(numbered("tX", tX), each(tX), each(X), strict=True):
            if np.shape(A) != np.shape(X_k):
                raise ShapeError(f"tX has shape {np.shape(A)}, and X has shape {np.shape(X_k)}.")
            scope[name] = np.asarray(A, np.float64)
    perform(scope, "forward")
    return scope


def _directions(model: Trainable, weights: Weights) -> dict[tuple[Any, str], Array]:
    """The direction of each parameter, by layer and name."""
    owners = {
        f"{path}.{name}".removeprefix("."): (layer, name)
        for path, layer in model.walk()
        for name in layer.params
    }
    if not isinstance(weights, Mapping):
        raise ArgumentTypeError(
            f'a direction is a dictionary by path, as in {{"0.W": array}}, got {weights!r}.'
        )
    found = {}
    for path, given in weights.items():
        if path not in owners:
            raise ArgumentError(f"no parameter is called {path!r}: they are {', '.join(owners)}.")
        layer, name = owners[path]
        moved = as_float(given, np.float64, f"the direction of {path}")
        check_finite(moved, f"the direction of {path}")
        if moved.shape != layer.params[name].shape:
            raise ShapeError(
                f"the direction of {path} has shape {moved.shape}, and the parameter has shape "
                f"{layer.params[name].shape}."
            )
        found[layer, name] = moved
    return found


def _tangent(scope: Scope, symbol: str) -> Any:
    """How what a pass returns moves; 0 if it does not."""
    values = {name: scope[name] for name in run.names_of(scope, symbol)}
    moved = [
        np.zeros_like(value) if scope.find(f"t{name}") is None else scope[f"t{name}"]
        for name, value in values.items()
    ]
    return one(moved, len(moved) == 1)


def _gathered(model: Trainable, scope: Scope) -> dict[str, Array]:
    """The tangents of all gradients by path; uses of one parameter are added up."""
    paths = {
        (layer, name): f"{path}.{name}".removeprefix(".")
        for path, layer in model.walk()
        for name in layer.params
    }
    found = {path: np.zeros(layer.params[name].shape) for (layer, name), path in paths.items()}

    def gather(scope: Scope) -> None:
        layer = scope.layer
        owned = {name: (layer, name) for name in layer.params} | layer.tied
        for name, key in owned.items():
            if (moved := scope.find(f"td{name}")) is not None:
                found[paths[key]] += moved
        for inner in scope.inside.values():
            gather(inner)

    gather(scope)
    return found
