"""A step of training that stops where you want: `Sequential.debug`.

The debugger runs the derivations of all layers, one step after another, so it can stop before each
of them. Going back runs the program again, with the values that are already known.

Long because each command is a method with its documentation.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, TextIO

import numpy as np

from phitodeep.core.call import Call
from phitodeep.core.checks import check_count
from phitodeep.core.types import Array, numbered
from phitodeep.derivations.language import run
from phitodeep.derivations.language.run import Edit, Position, Program, Scope
from phitodeep.derivations.language.step import Given, Step, evaluate
from phitodeep.derivations.language.terms import Why, why
from phitodeep.derivations.losses import givens
from phitodeep.errors import ArgumentError, OrderError, UnknownNameError
from phitodeep.inspect.debugger import breakpoints as written
from phitodeep.inspect.debugger import display
from phitodeep.inspect.debugger.breakpoints import Breakpoint, breakpoint_at, checked_text
from phitodeep.inspect.debugger.prompt import Prompt
from phitodeep.inspect.entries import Entry, Text
from phitodeep.inspect.hooks import active, edit_of
from phitodeep.inspect.recording import prepared, updates_of
from phitodeep.inspect.trace import Change, Difference, far, kind_of
from phitodeep.training.inputs import Data
from phitodeep.training.objective import Trainable


class Debugger:
    """One step of training on a copy of a model, from X to the gradients, which stops anywhere.

    position    the step that runs next; None at the end
    loss        the loss, once it is known
    breaks      the breakpoints

    The methods are named as in Python's debugger: step, next, cont, set_break, where, p and list.
    Each movement returns the new place.
    """

    def __init__(
        self,
        model: Trainable,
        data: Data,
        call: Call,
        total: float | None = None,
        hooks: Edit | None = None,
    ) -> None:
        """Takes a copy of a model, a checked batch, its mode, the loss's divisor, and hooks."""
        self._model, self._data, self._call, self._total = model, data, call, total
        self._hooks = hooks
        self.breaks: list[Breakpoint] = []
        self._true: set[Breakpoint] = set()  # breakpoints whose condition held at the last step
        self._restart(())

    # --- running ---------------------------------------------------------------------------

    def _program(self) -> Program:
        """The whole step: forward, the loss, and backward."""
        data, model = self._data, self._model
        whole = Scope(model, call=self._call, dtype=model.dtype, **numbered("X", data.X))
        self._scopes = {"": whole}
        yield from run.forward(whole)
        P = run.all_of(whole, "Y")
        symbols = {"P": P, "T": data.T, "w": data.w, "total": self._total}
        computed = model.loss.present(data.T)
        if run.has_steps(computed):
            symbols = givens(computed, *symbols.values())
        loss = Scope(computed, "loss", call=self._call, dtype=model.dtype, **symbols)
        yield from run.forward(loss, "P")
        yield from run.backward(loss)
        yield from run.backward(whole, run.all_of(loss, "dP"))

    def _restart(self, values: Sequence[Any]) -> None:
        """Start again, and give the first steps these values."""
        self._values: list[Any] = []  # of the steps that have run
        self._log: list[Position] = []  # their positions
        self._stopped: tuple[Position, str] | None = None  # just after this step, and why
        self._true.clear()
        self._running = self._program()
        self.position: Position | None = next(self._running)
        for value in values:
            self._next(value)

    def _again(self, values: Sequence[Any]) -> Debugger:
        """Another debugger of this step, after the first steps had these values."""
        other = copy.copy(self)
        other.breaks, other._true = [*self.breaks], set()
        other._restart(values)
        return other

    def _next(self, value: Any) -> None:
        """Give the current step its value, and move to the next one."""
        assert self.position is not None
        self._log.append(self.position)
        self._values.append(value)
        try:
            self.position = self._running.send(value)
        except StopIteration:
            self.position = None
        else:
            self._scopes[self.position.scope.path] = self.position.scope

    def advance(self) -> Position:
        """Run one step, and return its position."""
        position = self.position
        if position is None:
            raise OrderError("the step of training is over: call back() or restart().")
        value, self._stopped = position.value(), None
        self._next(value if self._hooks is None else self._hooks(position, value))
        return position

    # --- moving ----------------------------------------------------------------------------

    def step(self, count: int = 1) -> Text:
        """Run the next step, or several."""
        for _ in range(check_count(count, "step: count")):
            if self.advance() and self.position is None:
                break
        return self.where()

    def next(self) -> Text:
        """Run to the end of this layer's pass."""
        place = self._place()
        while self.advance() and self._place() == place:
            pass
        return self.where()

    def cont(self) -> Text:
        """Run to the next breakpoint, or to the end."""
        while True:
            before = self.advance()
            if self.position is None or self._stops(before):
                return self.where()

    def back(self, count: int = 1) -> Text:
        """Undo the last step, or several; edits made after that place are forgotten."""
        count = check_count(count, "back: count")
        if not self._values:
            raise OrderError("there is nothing to undo: the debugger is at the start.")
        self._restart(self._values[: max(0, len(self._values) - count)])
        return self.where()

    def restart(self) -> Text:
        """Go back to the start, and forget all edits."""
        self._restart(())
        return self.where()

    def until(self, key: str) -> Text:
        """Run until the symbol of this key, such as "1.backward.dW", has its value."""
        found, start = breakpoint_at(self._model, self._call, key, None), self._values[:]
        if not found.symbol:
            raise ArgumentError(
                f"until takes a key with a symbol, such as '1.backward.dW', got {key!r}."
            )
        while not found.covers(before := self.advance()):
            if self.position is None:
                self._restart(start)
                raise OrderError(f"{key!r} is not computed after this place: call restart() first.")
        self._stopped = before, ""
        return self.where()

    def _place(self) -> tuple[str, str] | None:
        position = self.position
        return None if position is None else (position.scope.path, position.direction)

    # --- breakpoints -----------------------------------------------------------------------

    def set_break(self, key: str, when: str | None = None) -> Breakpoint:
        """Stop at a place such as "2", "2.backward" or "2.backward.dW".

        when    a condition on the symbols there, such as "abs(dX).max() > 10": stop right after the
                step that makes it true
        """
        found = breakpoint_at(self._model, self._call, key, when)
        self.breaks.append(found)
        return found

    def clear_break(self, key: str | None = None) -> None:
        """Remove the breakpoints of this key, or all."""
        if key is not None and all(b.key != key for b in self.breaks):
            raise UnknownNameError.of(key, [b.key for b in self.breaks], "one of the breakpoints")
        self.breaks = [b for b in self.breaks if key is not None and b.key != key]

    def _stops(self, before: Position) -> bool:
        """Whether to stop here, after the step at `before`."""
        now, stop = self.position, False
        for found in self.breaks:
            if found.when is None:
                entered = now is not None and found.covers(now)
                stop |= entered and (bool(found.symbol) or not found.covers(before))
            elif found.covers(before):
                holds = self._holds(found, before)
                if holds and found not in self._true:
                    stop, self._stopped = True, (before, f"now {found.when}")
                (self._true.add if holds else self._true.discard)(found)
        return stop

    def _holds(self, found: Breakpoint, before: Position) -> bool:
        try:
            return bool(evaluate(str(found.when), written.with_loss(before.seen, self.loss)))
        except NameError:  # not computed yet
            return False
        except written.FAILURES as error:
            self._stopped = before, "a condition failed"
            raise ArgumentError(
                f"the condition of the breakpoint {found} fails at {before.key}: {error}. It must "
                "be True or False, as abs(dX).max() > 10 is: use .any() or .all() for an array."
            ) from None

    # --- looking ---------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many steps have run."""
        return len(self._values)

    @property
    def last(self) -> Position | None:
        """The step that ran last."""
        return self._log[-1] if self._log else None

    @property
    def value(self) -> Any:
        """The value of the step that ran last."""
        return self._values[-1] if self._values else None

    @property
    def loss(self) -> float | None:
        """The loss, once it is known."""
        scope = self._scopes.get("loss")
        value = None if scope is None else scope.find("L")
        return None if value is None else float(value)

    def p(self, expression: str) -> Any:
        """The value of a symbol or an expression, such as "X_hat", "1.Y" or "abs(dX).max()"."""
        scope, name = self._named(expression)
        if name in scope:
            return scope[name]
        if scope.path != self._scope().path and name.isidentifier():
            raise UnknownNameError(f"there is no {expression!r} yet: {display.so_far(scope)}.")
        return written.value_of(expression, self._scope(), self.loss)

    def why(self, symbol: str, *cell: int) -> Why:
        """The terms of one cell of a symbol, the largest first: `why("dW", 2, 3)`."""
        scope, name = self._named(symbol)
        if name not in scope:
            raise UnknownNameError(f"there is no {symbol!r} yet: {display.so_far(scope)}.")
        ran, given = self._ran(scope.path), Given(name, "a parameter or a setting", lambda _: None)
        step = self._log[ran[name]].step if name in ran else given
        if scope.t is not None:  # the symbols of this round
            return why(step, scope, *cell)
        return Entry(symbol, scope[name], step, scope, scope.layer).why(*cell)

    def _ran(self, path: str) -> dict[str, int]:
        """The symbols of a layer or a loss, each with the number of the step that computed it."""
        return {p.step.symbol: k for k, p in enumerate(self._log) if p.scope.path == path}

    def _named(self, name: str) -> tuple[Scope, str]:
        """The scope and the symbol of a name, which has a path or belongs to the layer here."""
        name = checked_text(name, "a symbol or an expression").strip()
        path, _, symbol = name.rpartition(".")
        scope = self._scopes.get(path) if path else self._scope()
        return (self._scope(), name) if scope is None else (scope, symbol)

    def _scope(self) -> Scope:
        """The symbols of the layer that runs or where a condition stopped, or else the model's."""
        if self._stopped is not None:
            return self._stopped[0].seen
        return self._scopes[""] if self.position is None else self.position.scope

    def where(self) -> Text:
        """The place: layer, pass, and the step that runs next."""
        position, lines, reason = self.position, [], ""
        if self._stopped is not None:
            position, reason = self._stopped
            lines = [f" * {display.formula(position.step)}"]
        if position is None:
            return Text(f"the end: loss {self.loss:.6g}")
        if arrow := self._arrow(position):
            lines.append(f"-> {display.formula(arrow)}")
        heading = display.heading(position) + (f": {reason}" if reason else "")
        return Text("\n".join([heading, *lines]))

    __repr__ = where

    @np.errstate(over="ignore", invalid="ignore")
    def list(self, around: int | None = None) -> Text:
        """All steps of this layer's pass, with the shape and size of what has been computed.

        around    show only so many steps before and after this one
        """
        around = None if around is None else check_count(around, "list: around", minimum=0)
        position = self.position if self._stopped is None else self._stopped[0]
        if position is None:
            return self.where()
        position = position._replace(scope=position.seen)
        star = None if self._stopped is None else position.step
        return Text(display.listing(position, self._arrow(position), star, around))

    def progress(self) -> Text:
        """How far the whole step has come, as a strip: forward, loss, backward."""
        return Text(display.strip(self._scopes[""], self.position))

    def _arrow(self, position: Position) -> Step | None:
        """The step that runs next, if it belongs to the pass that is shown."""
        now = self.position
        return now.step if now and display.heading(now) == display.heading(position) else None

    def symbols(self) -> tuple[str, ...]:
        """The names that `p` knows here."""
        return (*display.known(self._scope()), *(["L"] if self.loss is not None else []))

    def places(self) -> tuple[str, ...]:
        """All places of the model, such as "2", "2.backward" and "2.backward.dW"."""
        return tuple(written.places(self._model, self._call))

    def prompt(self, stdin: TextIO | None = None, stdout: TextIO | None = None) -> None:
        """Read commands such as those of Python's debugger: h lists them, and q leaves.

        Nothing is lost on leaving: the debugger stays where it is. By default, it reads from the
        terminal, with history and completion.
        """
        Prompt(self, stdin, stdout).run()

    # --- editing ---------------------------------------------------------------------------

    def edit(self, place: str, value: Any) -> Text:
        """Replace a symbol, or some of its elements: `edit("dY[0, 3]", 0.0)`.

        The symbol belongs to the layer that runs, unless it has a path, as in "1.Y". The debugger
        goes back to just after it was computed, so that all later steps use the new value.
        """
        place = checked_text(place, "a place").strip()
        name, _, _ = place.partition("[")
        scope, symbol = self._named(name)
        ran = self._ran(scope.path)
        if symbol not in ran:
            raise UnknownNameError(f"{name!r} cannot be edited: {display.so_far(scope, ran)}.")
        new = written.replaced(self._values[ran[symbol]], place, value)
        self._restart([*self._values[: ran[symbol]], new])
        self._stopped = self._log[-1], f"{self._log[-1].name} is edited"
        return self.where()

    # --- what moved ------------------------------------------------------------------------

    @np.errstate(over="ignore", invalid="ignore")
    def diff(self) -> Difference:
        """What the edits have moved so far, compared with a run without them.

        An edited activation moves the loss; an edited gradient moves only what flows on from it,
        and in the end the update.
        """
        base = self._again(())
        while base.count < self.count:
            base.advance()
        here, there = self._updates(), base._updates()
        rows = []
        for path, layer in self._model.walk():
            a, b = self._scopes.get(path), base._scopes.get(path)
            if path and a is not None and b is not None:
                pairs = [(a.find(n), b.find(n)) for n in ("Y", "dY")]
                pairs += [(_gradients(a), _gradients(b)), (here.get(path), there.get(path))]
                rows.append(Change(path, kind_of(layer), *(far(*pair) for pair in pairs)))
        return Difference(self.loss, base.loss, tuple(rows))

    def _updates(self) -> dict[str, dict[str, Array]]:
        """What the optimizer would add to each parameter, once all gradients are known."""
        if self.position is not None:
            return {}
        model, found = self._model.copy(), dict[str, dict[str, Array]]()
        for path, scope in self._scopes.items():
            if not display.is_loss(path):
                found[path] = _gradients(scope)
                found |= {inner: layer.grads for inner, layer in run.below(scope)}
        for path, layer in model.walk():
            layer._frame.grads = found.get(path, {})
        return updates_of(model)[0]


def debug(model: Trainable, X: Any, y: Any, **options: Any) -> Debugger:
    """Return a debugger at the start of the model's next step: see `Sequential.debug`."""
    data, twin, call = prepared(model, X, y, **options)
    return Debugger(twin, data, call, hooks=edit_of(active(model)))


def _gradients(scope: Scope) -> dict[str, Array]:
    """The gradients of a layer's own parameters that are known so far."""
    names = [*scope.layer.params, *scope.layer.tied]
    found = {name: scope.find(f"d{name}") for name in names}
    return {name: gradient for name, gradient in found.items() if gradient is not None}
