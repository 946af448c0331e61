"""The steps of a layer that has none: its forward pass as its source says, derived."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np

from phitodeep.core.call import calling
from phitodeep.core.types import numbered, settings
from phitodeep.derivations.derive.read import Reader, replaced, statements
from phitodeep.derivations.derive.reverse import reverse
from phitodeep.derivations.language import run
from phitodeep.derivations.language.run import Scope
from phitodeep.derivations.language.step import Derivation, Step

MOST = 100  # numbers of an example, if a sample has fewer


def steps_of(layer: Any, function: Callable[..., Any]) -> Derivation | None:
    """The steps of a layer whose forward pass is `function`, or None.

    None means that the source cannot be read, or that a pass by its steps has other values than
    the layer's own.
    """
    if "_is_read" in vars(layer):  # its own passes ask for its steps
        return None
    try:
        twin = layer.copy()
        vars(twin)["_is_read"] = True
        return _derived(forward_of(layer, function), twin)
    except Exception:  # whatever a layer of someone else raises, it has no steps
        return None


def forward_of(layer: Any, function: Callable[..., Any]) -> str:
    """The source of a forward pass from X to Y, in which parameters and settings have names."""
    body, outside = statements(function), inspect.getclosurevars(inspect.unwrap(function))
    numbers = _numbers({**outside.globals, **outside.nonlocals})
    names: dict[str, ast.expr] = {n: ast.Constant(k) for n, k in numbers.items()}
    given = inspect.signature(function).parameters
    names |= zip(given, map(ast.Name, run.symbols_of(layer, "X")), strict=True)
    for n in _values(layer):
        names[f"self.{n}"] = names[f"self.params['{n}']"] = ast.Name(n)
    if isinstance(end := getattr(body[-1], "value", None), ast.Name):
        names.setdefault(end.id, ast.Name("Y"))
    read = [s for s in body if not ast.unparse(s).startswith("self.save_for_backward(")]
    return "\n".join(ast.unparse(replaced(s, names)) for s in read)


@np.errstate(all="ignore")
def _derived(text: str, twin: Any) -> Derivation | None:
    """The steps of the text, if their values are those of a layer, which is changed."""
    rng = np.random.default_rng(1)
    twin.cast(np.float64)
    for W in twin.params.values():
        W += rng.uniform(0.1, 0.6, W.shape)  # no factor is 1, and no bias 0
    shapes = (twin.input_shape,) if twin.inputs == 1 else twin.input_shape
    few = max(2, MOST // math.prod(shapes[0]))  # samples, with slopes on both sides of kinks
    n = next(n for n in count(few) if all(n not in shape for shape in shapes))
    X = [rng.standard_normal((n, *shape)) for shape in shapes]
    values = _values(twin) | dict(zip(run.symbols_of(twin, "X"), X, strict=True))
    scope = scope_of(Reader(**values).read(text), **values)  # what it refuses is not run
    with calling(needs_dX=True, caching=True, reuse=False, step=0, watch=None):
        Y = twin.forward(*X)
        dY = 1e3 * rng.standard_normal(Y.shape)  # which a pass that clips gradients changes
        own = {"Y": Y, **numbered("dX", twin.backward(dY))}
    own |= {f"d{name}": dW for name, dW in twin.grads.items()}
    run.run(run.forward(scope))
    back = reverse(scope.derivation.forward, scope, [n[1:] for n in own if n != "Y"])
    scope["dY"] = dY
    run.run(run.perform(back, scope, "backward"))
    same = [np.allclose(scope[n], A, 1e-9, 1e-12, equal_nan=True) for n, A in own.items()]
    return scope.derivation._replace(backward=back) if all(same) and np.isfinite(Y).any() else None


def scope_of(forward: Sequence[Step], **values: Any) -> Scope:
    """The symbols of forward steps, which have not run."""
    return Scope(SimpleNamespace(steps=lambda: Derivation(forward, [])), **values)


def _values(layer: Any) -> dict[str, Any]:
    """The parameters, the states and the numbers among the settings of a layer, by name."""
    return _numbers(settings(layer)) | layer.state | layer.params


def _numbers(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if type(value) in (int, float)}
