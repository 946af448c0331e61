"""The interpreter of derivations: it runs the steps of a layer, a model or a loss, one by one.

A program is a generator. It yields a `Position` before each step and receives the step's value, so
whoever runs it may compute the value, replace it, or stop. `run` simply computes all of them.

    scope = Scope(Dense(3, 2), X=np.ones((4, 3)))
    run(forward(scope))
    run(backward(scope, np.ones((4, 2))))
    print(scope["Y"], scope["dX"], scope["dW"])
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from itertools import count, takewhile
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.call import Call, calling, current, within
from phitodeep.core.types import Array, DType, numbered, on_each, settings
from phitodeep.derivations.language.step import Carry, Derivation, Given, Loop, Step, Through


class Position(NamedTuple):
    """A place in a program: the step that comes next, and the symbols that it may read."""

    scope: Scope
    direction: str  # "forward" or "backward"
    step: Step
    t: int | None = None  # inside a loop over time

    @property
    def key(self) -> str:
        """Path, direction and symbol, such as "1.backward.dW"."""
        return ".".join(part for part in (self.scope.path, self.direction, self.name) if part)

    @property
    def name(self) -> str:
        return self.step.symbol if self.t is None else f"{self.step.symbol}[{self.t}]"

    @property
    def seen(self) -> Scope:
        """The symbols as they are in this round of a loop, which may have gone on since."""
        return self.scope.at(self.t)

    def value(self) -> Any:
        """Compute the step, in the mode of its pass; what overflows is infinity."""
        with within(self.scope.call), np.errstate(over="ignore", invalid="ignore"):
            return self.scope.cast(self.step.value(self.scope))


Program = Generator[Position, Any, None]


class Scope:
    """The symbols of one pass of a layer or a loss, by name.

    layer     the layer or the loss
    path      its path, or "loss"
    call      the mode of the pass
    dtype     what arrays are converted to; by default the widest dtype of X and the parameters
    inside    the scopes of the layers inside, by key
    result    a function of (key, name) that replaces running the steps of a layer inside
    """

    def __init__(
        self,
        layer: Any,
        path: str = "",
        *,
        call: Call | None = None,
        dtype: DType = None,
        result: Callable[[str, str], Any] | None = None,
        **symbols: Any,
    ) -> None:
        self.layer, self.path, self.dtype, self.result = layer, path, dtype, result
        self.call = (current() if call is None else call)._replace(watch=None, reuse=False)
        self.inside: dict[str, Scope] = {}
        self.tangents: Derivation | None = None  # the steps of its tangents, if they run
        self.t: int | None = None
        self._before: int | None = None  # the previous t of the loop
        self._series: dict[str, dict[int, Any]] = {}  # the symbols of loops
        if hasattr(layer, "params"):
            layer._make_parameters()
        with within(self.call):
            self.derivation = derivation_of(layer)
        read = {name for step in self.derivation.every() for name in step.operands}
        given = settings(_owner(layer)).items()
        symbols = {k: v for k, v in given if k in read and type(v) in (int, float)} | symbols
        if hasattr(layer, "params"):
            lent = {name: owner.params[own] for name, (owner, own) in layer.tied.items()}
            symbols |= {**_owner(layer).state, **lent, **layer.params}
        floats = [v.dtype for v in symbols.values() if _is_float(v)]
        self._dtype = np.result_type(*floats) if dtype is None and floats else dtype
        self.values: dict[str, Any] = {name: self.cast(v) for name, v in symbols.items()}

    def cast(self, value: Any) -> Any:
        """Convert an array of floating-point numbers to the scope's dtype."""
        keep = self._dtype is None or not _is_float(value)
        return value if keep else value.astype(self._dtype, copy=False)

    def __getitem__(self, symbol: str) -> Any:
        if symbol == "t" and self.t is not None:
            return self.t
        series = self._series.get(symbol)
        if series is None:
            return self.values[symbol]
        if self.t is not None:
            return series[self.t]
        return np.stack([series[t] for t in sorted(series)], axis=1)

    def __setitem__(self, symbol: str, value: Any) -> None:
        if self.t is None:
            self.values[symbol] = value
        else:
            self._series.setdefault(symbol, {})[self.t] = value

    def __contains__(self, symbol: str) -> bool:
        series = self._series.get(symbol)
        return symbol in self.values if series is None else self.t is None or self.t in series

    def find(self, symbol: str) -> Any:
        """The value of a symbol, or None, as for the dX of a layer that takes tokens."""
        try:
            return self[symbol]
        except KeyError:
            return None

    def at(self, t: int | None) -> Scope:
        """The same symbols as seen in round t of a loop."""
        other = object.__new__(Scope)
        vars(other).update(vars(self), t=t)
        return other

    def carried(self, of: str, start: str) -> Any:
        """What the previous round of the loop computed as `of`, or `start` in the first round."""
        return self.values[start] if self._before is None else self._series[of][self._before]

    def before(self, carry: Carry) -> int | None:
        """The round of the loop that a Carry reads in this round; None in the first one."""
        loops = (step for step in self.derivation.every() if isinstance(step, Loop))
        times = next(loop.times(self) for loop in loops if carry in loop.body)
        k = times.index(self.t) if self.t is not None else 0
        return times[k - 1] if k else None

    def result_of(self, child: str, name: str) -> Any:
        """The Y or dX of a layer inside."""
        return self.inside[child].find(name) if self.result is None else self.result(child, name)

    def rounds(self, loop: Loop) -> Iterator[int]:
        """Yield each t of a loop, in order, and set it here meanwhile."""
        self._before = None
        for t in loop.times(self):
            self.t = t
            yield t
            self._before = t
        self.t = self._before = None


def _is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic) and value.dtype.kind == "f"


class Input(Given):
    """What a pass receives: X, dY, or the P of a loss."""


def has_steps(layer: Any) -> bool:
    """Whether a layer or a loss has a derivation."""
    return layer.steps() is not None


def derivation_of(layer: Any) -> Derivation:
    """The derivation of a layer or a loss; without one, its two passes are one step each."""
    found = layer.steps()
    return _boundaries(layer) if found is None else found


def symbols_of(layer: Any, symbol: str) -> list[str]:
    """The symbols of what a pass receives or returns: X or, of several inputs, X1, X2, ..."""
    number = layer.outputs if symbol.endswith("Y") else layer.inputs
    if number == 1:
        return [symbol]
    return [*numbered(symbol, (None,) * (number or len(layer.input_shape)))]


def received(subject: Any) -> dict[str, list[str]]:
    """The symbols of what each pass of a layer or a loss receives."""
    if hasattr(subject, "params"):
        return {"forward": symbols_of(subject, "X"), "backward": symbols_of(subject, "dY")}
    return {"forward": [*numbered("P", getattr(subject, "outputs", None))], "backward": []}


def _owner(layer: Any) -> Any:
    """The layer whose settings and state a layer has: of one at a second place, the first."""
    return layer.layer if getattr(layer, "is_shared", False) else layer


def _boundaries(layer: Any) -> Derivation:
    """The passes of a layer or a loss without a derivation, as single steps."""
    words = f"computed by {type(layer).__name__}, which has no steps()"
    if not hasattr(layer, "params"):
        return Derivation(
            [Given("L", words, lambda s: np.float64(layer.value(*_of_loss(s))))],
            [Given("dP", words, lambda s: np.array(layer.gradient(*_of_loss(s))))],
        )

    def forward(symbols: Any) -> dict[str, Any]:
        states = [A for _, part in layer.walk() for A in _owner(part).state.values()]
        before = [A.copy() for A in states]
        Y = layer.forward(*[symbols[name] for name in names_of(symbols, "X")])
        found = numbered("Y", on_each(np.array, Y))
        for state, old in zip(states, before, strict=True):  # steps record nothing
            state[...] = old
        return found

    def backward(symbols: Any) -> dict[str, Any]:
        with calling(again=True):  # so that nothing else has run between the two passes
            forward(symbols)
        dX = layer.backward(*[symbols[name] for name in names_of(symbols, "dY")])
        own = {f"d{name}": dW.copy() for name, dW in layer.grads.items()}
        return {**numbered("dX", dX), **own}

    def each_of(names: list[str], run_pass: Callable[[Any], dict[str, Any]]) -> list[Step]:
        """The arrays of a pass: the first step runs it, and the others remember."""
        kept: dict[str, Any] = {}

        def find(name: str, symbols: Any) -> Any:
            if name == names[0] or name not in kept:  # the first was replayed or edited
                kept.update(run_pass(symbols))
            return kept[name]

        return [Given(name, words, partial(find, name)) for name in names]

    gradients = [f"d{name}" for name in (*layer.params, *layer.tied)]
    back = [*symbols_of(layer, "dX"), *gradients]
    return Derivation(each_of(symbols_of(layer, "Y"), forward), each_of(back, backward))


def _of_loss(symbols: Any) -> tuple[Any, ...]:
    """The arguments of a loss."""
    return tuple(symbols[name] for name in ("P", "T", "w", "total"))


# --- programs ----------------------------------------------------------------------------------


def forward(scope: Scope, given: str = "X") -> Program:
    """The forward pass of a layer; of a loss, `given` is "P"."""
    for name in names_of(scope, given):
        yield from _given(scope, "forward", name, scope[name])
    yield from perform(scope.derivation.forward, scope, "forward")


def backward(scope: Scope, dY: Any = None) -> Program:
    """The backward pass of a layer for dY, after `forward`; a loss takes no dY."""
    if dY is not None:
        for name, value in numbered("dY", dY).items():
            yield from _given(scope, "backward", name, scope.cast(value))
    yield from perform(scope.derivation.backward, scope, "backward")


def names_of(scope: Scope, symbol: str) -> list[str]:
    """The symbols of what a pass receives: X or, of several inputs, X1, X2, ..."""
    if symbol in scope.values:
        return [symbol]
    return [*takewhile(scope.values.__contains__, (f"{symbol}{k}" for k in count(1)))]


def all_of(scope: Scope, symbol: str) -> Any:
    """What a pass receives or returns: X or, of several inputs, the tuple of X1, X2, ..."""
    names = names_of(scope, symbol)
    return scope[symbol] if names == [symbol] else tuple([scope[name] for name in names])


def _given(scope: Scope, direction: str, symbol: str, value: Any) -> Program:
    """What a pass receives is a position too, so that it can be replaced."""
    scope[symbol] = yield Position(scope, direction, Input(symbol, "given", lambda _: value))


def perform(steps: Sequence[Step], scope: Scope, direction: str) -> Program:
    """The program of some steps, which read and write the symbols of a scope."""
    for step in steps:
        if isinstance(step, Loop):
            for _ in scope.rounds(step):
                yield from perform(step.body, scope, direction)
            continue
        if any(scope.values.get(name, 0) is None for name in step.operands):
            scope[step.symbol] = None  # a gradient of tokens, which have none
            continue
        if isinstance(step, Through) and step.runs and scope.result is None:
            yield from _inside(step, scope)
        scope[step.symbol] = yield Position(scope, direction, step, scope.t)


def _inside(step: Through, scope: Scope) -> Program:
    """The pass of a layer inside."""
    given = scope[step.of] if isinstance(step.of, str) else tuple([scope[s] for s in step.of])
    if step.back:
        inner = scope.inside[step.child]
        yield from backward(inner, given if hasattr(inner.layer, "params") else None)
        return
    if not hasattr(scope.layer, "params"):  # one of several losses, which has its own targets
        loss, path = scope.layer.children()[step.child], path_inside(scope.path, step.child)
        own = scope.values[step.child] | {"P": given}
        inner = type(scope)(loss, path, call=scope.call, dtype=scope.dtype, **own)
        scope.inside[step.child] = inner
        yield from forward(inner, "P")
        return
    mask = scope.call.mask if isinstance(step.mask, str) else step.mask
    layer = scope.layer.children()[step.child]
    first = scope.call.first * (scope[step.each] if step.each else 1)
    path, call = path_inside(scope.path, step.child), scope.call._replace(mask=mask, first=first)
    inner = type(scope)(layer, path, call=call, dtype=scope.dtype, **numbered("X", given))
    scope.inside[step.child] = inner
    yield from forward(inner)


def path_inside(path: str, key: str) -> str:
    """The path of a layer inside, given its key in `children()`."""
    return f"{path}.{key}" if path else key.removeprefix("layers.")


Edit = Callable[[Position, Any], Any]


def run(program: Program, edit: Edit | None = None) -> None:
    """Run a program to its end; `edit` may replace each value as it is computed."""
    try:
        position = next(program)
        while True:
            value = position.value()
            position = program.send(value if edit is None else edit(position, value))
    except StopIteration:
        return


def passes(layer: Any, X: Array, dY: Array | None = None, **options: Any) -> Scope:
    """Run both passes of a layer by its steps, or only the forward pass; return its symbols."""
    scope = Scope(layer, **numbered("X", X), **options)
    run(forward(scope))
    if dY is not None:
        run(backward(scope, dY))
    return scope


def gradients(scope: Scope) -> dict[str, Any]:
    """The gradients of all parameters of a layer and the layers inside, by path."""
    names = [*scope.layer.params, *scope.layer.tied]
    own = {name: scope.find(f"d{name}") for name in names}
    found = {
        f"{scope.path}.{name}".removeprefix("."): gradient
        for name, gradient in own.items()
        if gradient is not None
    }
    for inner in scope.inside.values():
        found |= gradients(inner)
    for path, layer in below(scope):
        found |= {f"{path}.{name}": gradient for name, gradient in layer.grads.items()}
    return found


def below(scope: Scope) -> list[tuple[str, Any]]:
    """The layers, and their paths, that the fast passes of a layer without steps run inside it.

    The passes run once more, because the layers may have run for other arrays since.
    """
    layers = [] if has_steps(scope.layer) else [*scope.layer.walk(scope.path)][1:]
    if layers and names_of(scope, "dY"):
        with within(scope.call):
            scope.derivation.backward[0].value(scope)
    return layers
