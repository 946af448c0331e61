"""How outputs and gradients move along a direction: products with the Jacobian and the Hessian.

Both come from the derivations of the layers, whose steps have tangents: nothing is recorded, and no
second derivation is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from phitodeep.core.call import Call, current
from phitodeep.core.checks import as_float, check_finite
from phitodeep.core.types import Array, each, numbered, one
from phitodeep.derivations.derive.passes import Passes
from phitodeep.derivations.derive.tangents import Directions, owned, perform, seed
from phitodeep.derivations.language import run
from phitodeep.derivations.language.run import Scope
from phitodeep.derivations.losses import givens
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError
from phitodeep.inspect.recording import prepared
from phitodeep.training.inputs import Data
from phitodeep.training.objective import Trainable

Weights = Mapping[str, Any]  # a direction by path, such as "0.W"; 0 for all others


def jvp(model: Trainable, X: Any, weights: Weights, tX: Any = None) -> tuple[Any, Any]:
    """See `Sequential.jvp`."""
    data, _ = model._inputs(X, None)
    moves = None if tX is None else model._inputs(tX, None)[0]
    twin = model.copy()
    scope = Passes(twin, call=current()._replace(training=False), **numbered("X", data))
    run.run(run.forward(scope))
    if moves is not None:
        for name, A, X_k in zip(numbered("tX", moves), each(moves), each(data), strict=True):
            if np.shape(A) != np.shape(X_k):
                raise ShapeError(f"tX has shape {np.shape(A)}, and X has shape {np.shape(X_k)}.")
            scope[name] = A
    seed(scope, directions(twin, weights))
    perform(scope, "forward")
    return model._named(run.all_of(scope, "Y")), model._named(_tangent(scope, "Y"))


def hvp(model: Trainable, X: Any, y: Any, weights: Weights, **options: Any) -> dict[str, Array]:
    """See `Sequential.hvp`."""
    data, twin, call = prepared(model, X, y, **options)
    return Point(twin, data, call).hessian(directions(twin, weights))


class Point:
    """A batch at the weights of a model, and products with the matrices of its loss there.

    Both passes run once, whatever the number of products.

    total      the divisor of the loss, by default that of the batch
    targets    a function of (loss, P, T) that returns other targets than T
    """

    def __init__(
        self, model: Trainable, data: Data, call: Call, total: Any = None, targets: Any = None
    ) -> None:
        self.scope = Passes(model, call=call, **numbered("X", data.X))
        run.run(run.forward(self.scope))
        loss, P = model.loss.present(data.T), run.all_of(self.scope, "Y")
        T = data.T if targets is None else targets(loss, P, data.T)
        given = givens(loss, P, T, data.w, total)
        self.costs = Passes(loss, "loss", call=call, **given)
        run.run(run.forward(self.costs, "P"))
        run.run(run.backward(self.costs))
        self.passed = False  # whether the backward pass has run

    def hessian(self, V: Directions) -> dict[str, Array]:
        """How all gradients move along V."""
        moved = self._moved(V)
        if not self.passed:
            run.run(run.backward(self.scope, run.all_of(self.costs, "dP")))
            self.passed = True
        self.scope.values |= numbered("tdY", moved)
        perform(self.scope, "backward")
        return _gathered(self.scope, "td")

    def ggn(self, V: Directions) -> dict[str, Array]:
        """The gradients for the dP by which that of the loss moves along V."""
        run.run(run.backward(self.scope, self._moved(V)))
        self.passed = False
        return _gathered(self.scope, "d")

    def _moved(self, V: Directions) -> Any:
        """How dP moves along V."""
        seed(self.scope, V)
        perform(self.scope, "forward")
        self.costs.values |= numbered("tP", _tangent(self.scope, "Y"))
        perform(self.costs, "forward")
        perform(self.costs, "backward")
        return _tangent(self.costs, "dP")


def places(model: Trainable) -> dict[str, tuple[Any, str]]:
    """The layer and the name of each parameter, by path."""
    return {
        f"{path}.{name}".removeprefix("."): (layer, name)
        for path, layer in model.walk()
        for name in layer.params
    }


def directions(model: Trainable, weights: Weights) -> Directions:
    """The direction of each parameter, by layer and name."""
    owners = places(model)
    if not isinstance(weights, Mapping):
        raise ArgumentTypeError(
            f'a direction is a dictionary by path, as in {{"0.W": array}}, got {weights!r}.'
        )
    found = {}
    for path, given in weights.items():
        if path not in owners:
            raise ArgumentError(f"no parameter is called {path!r}: they are {', '.join(owners)}.")
        layer, name = owners[path]
        moved = as_float(given, layer.dtype, f"the direction of {path}")
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


def _gathered(scope: Scope, prefix: str) -> dict[str, Array]:
    """Gradients, or their tangents, by path; uses of one parameter are added up."""
    found: dict[tuple[Any, str], Array] = {}

    def gather(scope: Scope) -> None:
        for name, key in owned(scope.layer).items():
            if (dW := scope.find(prefix + name)) is not None:
                found[key] = found[key] + dW if key in found else dW
        for inner in scope.inside.values():
            gather(inner)

    gather(scope)
    return {
        path: found[layer, name] if (layer, name) in found else np.zeros_like(layer.params[name])
        for path, (layer, name) in places(scope.layer).items()
    }
