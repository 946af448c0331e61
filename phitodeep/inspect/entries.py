"""The arrays of a recorded step, by key, each with its formula and the origin of its cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from phitodeep.core.call import within
from phitodeep.core.types import Array, DType, describe, each, numbered
from phitodeep.derivations.language import run
from phitodeep.derivations.language.mathml import MATHML
from phitodeep.derivations.language.notation import LATEX, PLAIN, Plain
from phitodeep.derivations.language.run import Edit, Scope
from phitodeep.derivations.language.step import PASSED_ON, RECEIVED, Given, Step, flat
from phitodeep.derivations.language.terms import Replaced, Why, why
from phitodeep.errors import ShapeError, UnknownNameError
from phitodeep.inspect.hooks import Key, Keys, joined, symbols_by_pass
from phitodeep.inspect.recording import Passes

KEPT = 8  # layers whose symbols stay in memory
SMALL = 8  # numbers that `explain` prints in full


class Text(str):
    """Text that an interactive session shows as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _written(notation: Plain) -> Any:
    """Return a property: the formula of `step` in this notation."""
    return property(lambda self: self.step.written(notation, self._scope))


class Entry:
    """One array of a step: what a layer computed under one symbol.

    key        path, direction and symbol, such as "1.backward.dW"
    array      its values
    formula    how it follows from other symbols, as plain text; `latex` and `mathml` are the same
               for typesetting
    code       the NumPy expression, or the indices of a sum
    """

    def __init__(self, key: str, array: Any, step: Step, scope: Scope, layer: Any) -> None:
        self.key, self.array, self.step = key, array, step
        self._scope, self._layer = scope, layer

    formula, latex, mathml = map(_written, (PLAIN, LATEX, MATHML))

    @property
    def code(self) -> str:
        return self.step.code

    @property
    def shape(self) -> tuple[int, ...]:
        return np.shape(self.array)

    def why(self, *cell: int) -> Why:
        """The terms of one cell's sum, the largest first; their `total` is the cell."""
        if self.array is None:
            raise ShapeError(f"{self.key} has no values: tokens have no gradient.")
        step, symbols = self.step, self._scope
        if step.symbol not in symbols._series:  # an update has the name of its parameter
            return why(step, Replaced(symbols, step.symbol, self.array), *cell)
        whole = why(Given(step.symbol, step.words, lambda _: None), symbols, *cell)  # checks it
        place = tuple(int(k) % n for k, n in zip(cell, self.shape, strict=True))
        t, inside = place[1], (place[0], *place[2:])
        return why(step, symbols.at(t), *inside).renamed(whole.name)

    def explain(self) -> Text:
        """The formula, with the shape and the numbers of each symbol in it."""
        lines = [self.formula, f"  {self.key} of {self._layer!r}"]
        if self.step.words and self.step.words not in lines[0]:
            lines.append(f"  {self.step.words}")
        if self.code:
            lines.append(
                f"  in code: {self.code}"
                + f"  of {', '.join(self.step.operands)}" * ("->" in self.code)
            )
        names = [*dict.fromkeys(n for n in self.step.operands if n != "t"), self.step.symbol]
        width = max(map(len, names))
        for name in names:
            value = self.array if name == self.step.symbol else self._scope.find(name)
            lines.append(f"  {name:{width}}  {_numbers(value)}")
        return Text("\n".join(lines))

    def __repr__(self) -> str:
        return f"{self.key} {self.shape}: {self.formula}"


def _numbers(value: Any) -> str:
    """The shape of an array and its numbers, or their range if there are many."""
    if value is None:
        return "no values"
    A = np.asarray(value)
    if A.size <= SMALL:
        digits: Any = {"float_kind": lambda x: f"{x + 0:.4g}"}  # 0, not -0
        shown = np.array2string(A, formatter=digits, separator=", ")
        return f"{A.shape}  {' '.join(shown.split())}" if A.ndim else f"{A:.6g}"
    if A.dtype.kind != "f":
        return f"{A.shape}  from {A.min()} to {A.max()}"
    return f"{A.shape}  from {A.min() + 0:.4g} to {A.max() + 0:.4g}, root mean square {rms(A):.4g}"


def rms(A: Any) -> float:
    """The root mean square of all elements, of one array or several."""
    A = np.concatenate([np.ravel(a) for a in each(A)], dtype=np.float64)
    return float(np.sqrt(np.mean(A * A))) if A.size else 0.0


E = TypeVar("E")  # what a mapping shows of an entry


class Entries(Mapping[str, E]):
    """All arrays of a recorded step.

    A key is a path, a direction and a symbol, such as "1.backward.dW"; "loss.backward.dP" belongs
    to the loss. The direction may be left out if only one direction has the symbol: "1.dW". What a
    layer receives and returns was recorded; what happens inside it is computed by its steps when
    it is asked for.
    """

    def __init__(
        self,
        passes: Mapping[str, Passes],
        *,
        loss: Scope | None = None,
        updates: Mapping[str, Mapping[str, Array]] | None = None,
        dtype: DType = None,
        edit: Edit | None = None,
    ) -> None:
        self._passes, self.updates = passes, updates or {}
        inside = [] if loss is None else [loss, *loss.inside.values()]
        self._losses = {scope.path: scope for scope in inside}  # with those of several outputs
        self._dtype, self._edit = dtype, edit
        self._scopes: dict[str, Scope] = {}  # the last few, the latest last
        self.replaced: dict[tuple[str, str, str], Any] = {}  # by hooks, in the scopes so far

    # --- keys ------------------------------------------------------------------------------

    @cached_property
    def _keys(self) -> Keys:
        keys = Keys({path: self._symbols(path) for path in self._passes})
        for path, scope in self._losses.items():
            keys[path] = symbols_by_pass(scope.layer, scope.call)
        return keys

    def _symbols(self, path: str) -> dict[str, list[str]]:
        passes = self._passes[path]
        found = symbols_by_pass(passes.layer, passes.call)
        found["forward"][1:1] = [*passes.layer.params, *passes.layer.tied]
        absent = {name for name, A in numbered("dX", passes.dX).items() if A is None}
        found["backward"] = [name for name in found["backward"] if name not in absent]
        if passes.dY is None:
            del found["backward"]
        if path in self.updates:
            found["update"] = list(self.updates[path])
        return found

    def __iter__(self) -> Iterator[str]:
        return self._keys.every()

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def find(self, key: object) -> Key:
        """The path, direction and symbol of a key."""
        return self._keys.find(key)

    def __contains__(self, key: object) -> bool:
        try:
            self.find(key)
        except UnknownNameError:
            return False
        return True

    # --- values ----------------------------------------------------------------------------

    def __getitem__(self, key: str) -> E:
        found: Any = self._entry(*self.find(key))
        return found

    def _entry(self, path: str, direction: str, name: str) -> Entry:
        scope = self.scope(path)
        key = joined(path, direction, name)
        if direction == "update":
            array = self.updates[path][name]
            step: Step = Given(name, "what the optimizer adds to it", lambda _: array)
            return Entry(key, array, step, scope, scope.layer)
        steps = {s.symbol: s for s in flat(getattr(scope.derivation, direction))}
        owner = f"parameter of {describe(scope.layer)}"
        received = "what the layer receives" if RECEIVED.fullmatch(name) else owner
        step = steps.get(name) or Given(name, received, lambda _: None)
        if (path, direction, name) not in self.replaced:
            return Entry(key, scope[name], step, scope, scope.layer)
        new = self.replaced[path, direction, name] if PASSED_ON.fullmatch(name) else scope[name]
        step = Given(name, "what a hook returned", lambda _: new)
        return Entry(key, new, step, scope, scope.layer)

    def scope(self, path: str) -> Scope:
        """All symbols of a layer, or of the loss."""
        if path in self._losses:
            return self._losses[path]
        scope = self._scopes.pop(path, None) or self._made(path)
        self._scopes[path] = scope
        while len(self._scopes) > KEPT:
            del self._scopes[next(iter(self._scopes))]
        return scope

    def _made(self, path: str) -> Scope:
        passes = self._passes[path]

        def result(child: str, name: str) -> Any:
            inner = self._passes.get(run.path_inside(path, child))
            return None if inner is None else scope.cast(inner.array(name))

        X, call = numbered("X", passes.X), passes.call
        scope = Scope(passes.layer, path, call=call, dtype=self._dtype, result=result, **X)
        with within(passes.call):  # inside TimeDistributed there is no mask
            known = run.has_steps(passes.layer)
        if not known:
            recorded = numbered("Y", passes.Y) | numbered("dY", passes.dY)
            recorded |= numbered("dX", passes.dX)
            recorded |= {f"d{name}": grad for name, grad in passes.grads.items()}
            scope.values |= {name: scope.cast(a) for name, a in recorded.items() if a is not None}
            return scope
        run.run(run.forward(scope), self._edited)
        if passes.dY is not None:
            run.run(run.backward(scope, passes.dY), self._edited)
        return scope

    def _edited(self, position: run.Position, value: Any) -> Any:
        """Apply the hooks that were active, except to X and dY, which were recorded after them.

        A hook replaces Y and dX outside the layer, whose own steps go on with what they computed.
        """
        if self._edit is None or isinstance(position.step, run.Input):
            return value
        new, symbol = self._edit(position, value), position.step.symbol
        if new is not value:
            self.replaced[position.scope.path, position.direction, symbol] = new
        return value if PASSED_ON.fullmatch(symbol) else new
