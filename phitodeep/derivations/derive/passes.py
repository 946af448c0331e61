"""Fast tangents: each layer runs its own passes twice, or its steps as compiled code.

If Y is linear in X and in the parameters, as in Dense, convolutions and pools, then the layer's own
passes compute the tangents too:

    tY = f(tX, W) + f(X, tW)     tdX = dX(tdY, W) + dX(dY, tW)     tdW = dW(X, tdY) + dW(tX, dY)

A bias is 0 where X is tX, and dW(tX, dY) has no part for it. A layer without parameters may have
kinks: at a gate, such as ReLU, what moves goes through as gradients do. Others say how, as a
maximum does by its winners: `tangent(tX)` of a layer returns tY, if its slopes do not move.

The steps of all other layers and the tangents of these steps are compiled, once for all layers with
the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import CodeType
from typing import Any

import numpy as np

from phitodeep.core.call import calling
from phitodeep.core.types import Array, numbered
from phitodeep.derivations.derive.compiled import compiled, execute
from phitodeep.derivations.derive.linear import Names, biases, is_gate
from phitodeep.derivations.derive.tangents import owned, received, tangents
from phitodeep.derivations.language import run
from phitodeep.derivations.language.run import Scope
from phitodeep.derivations.language.step import Derivation, Given, Loop, Through


class Passes(Scope):
    """The symbols of a pass in which layers run fast; containers run their steps."""

    def __init__(self, layer: Any, path: str = "", **given: Any) -> None:
        super().__init__(layer, path, **given)
        whole = self.derivation
        if any(isinstance(step, Through) for step in whole.every()):
            return
        text = tuple((type(s), s.symbol, s.code, *s.operands) for s in whole.every())
        found = _own(self, text) if hasattr(layer, "params") else None
        runs = _Compiled(whole, text) if found is None else found
        Y, dX = (steps[-1].symbol if steps else "dX" for steps in whole)
        passes = {Y: runs.forward, dX: runs.backward}
        moves = {f"t{Y}": runs.forward_tangents, f"t{dX}": runs.backward_tangents}
        self.derivation, self.tangents = (
            Derivation(*([Given(n, "the pass", partial(_result, n, f))] for n, f in each.items()))
            for each in (passes, moves)
        )


def _result(name: str, perform: Callable[[Any], None], s: Scope) -> Any:
    perform(s)
    return s.values.get(name)


# --- own passes ----------------------------------------------------------------------------------


class _Own:
    """The passes of a linear layer.

    biases      the parameters that X does not multiply
    straight    computes tY from tX, if the layer has kinks
    other       the layer again, which remembers tX instead of X
    still       whether X does not move, so that nobody reads dX
    """

    other: Any = None
    still = False

    def __init__(self, X: list[str], names: Names, straight: Callable[..., Any] | None) -> None:
        self.X, self.biases, self.straight = X, names, straight

    def forward(self, s: Passes) -> None:
        s.values |= numbered("Y", s.layer.forward(*(s[n] for n in self.X)))

    def backward(self, s: Passes) -> None:
        s.values |= self._gradients(s, s.layer, "dY")

    def forward_tangents(self, s: Passes) -> None:
        found, moves = list[Any](), [s.find(f"t{n}") for n in self.X]
        self.still = all(A is None for A in moves)
        tX = [np.zeros_like(s[n]) if A is None else A for n, A in zip(self.X, moves, strict=True)]
        if params := owned(s.layer):
            with _with(s.layer, {n: s[f"t{n}"] for n in params}), calling(caching=False):
                found.append(s.layer.forward(*(s[n] for n in self.X)))
        if self.straight is not None and not self.still:
            found.append(self.straight(*tX))
        elif not self.still:
            self.other = s.layer._replica()
            with _with(s.layer, {n: np.zeros_like(s[n]) for n in self.biases}):
                found.append(self.other.forward(*tX))
        if found:
            s.values |= numbered("tY", sum(found[1:], found[0]))

    def backward_tangents(self, s: Passes) -> None:
        found, params = self._gradients(s, s.layer, "tdY"), owned(s.layer)
        if params and not self.still:
            with _with(s.layer, {n: s[f"t{n}"] for n in params}):
                more = self._gradients(s, self.other, "dY")
            for name in more.keys() - {f"d{n}" for n in self.biases}:
                found[name] = None if more[name] is None else found[name] + more[name]
        s.values |= {f"t{name}": A for name, A in found.items()}

    def _gradients(self, s: Passes, layer: Any, dY: str) -> dict[str, Any]:
        with calling(needs_dX=not self.still):
            dX = layer.backward(*(s[n] for n in run.names_of(s, dY)))
        return numbered("dX", dX) | {f"d{name}": A for name, A in layer.grads.items()}


@contextmanager
def _with(layer: Any, values: Mapping[str, Array]) -> Iterator[None]:
    """Run the body with these parameters instead of the layer's."""
    stores = {n: (at.params, own) for n, (at, own) in owned(layer).items() if n in values}
    before = {n: store[own] for n, (store, own) in stores.items()}
    try:
        for n, (store, own) in stores.items():
            store[own] = values[n]
        yield
    finally:
        for n, (store, own) in stores.items():
            store[own] = before[n]


def _own(s: Passes, text: Any) -> _Own | None:
    """The passes of a layer of phitodeep, if they are linear around X and the parameters.

    Layers of others may keep parameters for their backward pass, or read X for their other values.
    """
    layer, params, whole = s.layer, Names(owned(s.layer)), s.derivation
    X = Names(n for n in received(s, "X") if np.asarray(s[n]).dtype.kind == "f")
    found, kind = None, type(getattr(layer, "layer", layer))
    if kind.__module__.startswith("phitodeep."):
        found = _known((text, X, params), lambda: biases(whole.forward, X, params))
    straight = None
    if found is None and not params:
        gate = _known((text, is_gate), lambda: is_gate(whole))
        straight = layer.backward if gate else getattr(layer, "tangent", None)
    return (
        None
        if found is None and straight is None
        else _Own(received(s, "X"), found or Names(), straight)
    )


# --- compiled steps ------------------------------------------------------------------------------


class _Compiled:
    """The steps of a layer or a loss.

    text     what they say, to find the code
    loops    the symbols of loops
    """

    tangents: tuple[Derivation, list[CodeType]]  # the steps of the tangents, and their code

    def __init__(self, whole: Derivation, text: Any) -> None:
        self.whole, self.text, self.loops = whole, text, _in_loops(whole)

    def forward(self, s: Passes, k: int = 0) -> None:
        steps = self.whole[k]
        execute(_known((self.text, k), lambda: compiled(steps, self.loops)), steps, s)

    def backward(self, s: Passes) -> None:
        self.forward(s, 1)

    def forward_tangents(self, s: Passes) -> None:
        params = owned(s.layer) if hasattr(s.layer, "params") else ()
        names = *received(s, "X"), *params
        moving = Names(n for n in names if s.find(f"t{n}") is not None)
        self.tangents = _known((self.text, moving), lambda: self._moved(s, moving))
        execute(self.tangents[1][0], self.tangents[0].forward, s)

    def backward_tangents(self, s: Passes) -> None:
        execute(self.tangents[1][1], self.tangents[0].backward, s)

    def _moved(self, s: Passes, moving: Names) -> tuple[Derivation, list[CodeType]]:
        found = tangents(self.whole, {*moving, *received(s, "dY")}, repr(s.layer))
        loops = self.loops | _in_loops(found)
        return found, [compiled(steps, loops) for steps in found]


def _in_loops(derivation: Derivation) -> Names:
    loops = [step for step in derivation.every() if isinstance(step, Loop)]
    return Names(step.symbol for loop in loops for step in loop.body)


KNOWN: dict[Any, Any] = {}


def _known(key: Any, make: Callable[[], Any]) -> Any:
    """What was made for the same key before."""
    if key not in KNOWN:
        if len(KNOWN) > 4096:
            KNOWN.clear()
        KNOWN[key] = make()
    return KNOWN[key]
