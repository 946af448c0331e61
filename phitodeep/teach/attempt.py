"""Running code that students wrote: whatever it does, the result is arrays and sentences.

The code runs in this process and this thread. A loop that never ends is stopped by a trace function
that looks at the clock at every instruction of the student's module or notebook, so it works in
Jupyter, on Windows and in a browser. It cannot stop a single call that hangs, such as
time.sleep(10**9), nor a loop in which a bare `except:` catches whatever stops it, and it is off
while a debugger traces the same thread. Code that must not be trusted needs a container
around all of Python; otter and nbgrader can run in one.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

import numpy as np

from phitodeep.layers import Layer
from phitodeep.layers.call import calling
from phitodeep.loss import Loss
from phitodeep.teach.exercises import Case
from phitodeep.types import Array, DType

LIMIT = 10.0  # seconds for one pass
LONGEST = 300  # characters of an error message
UNREADABLE = re.compile(r"^matmul: Input operand.*\(size (\d+) is different from (\d+)\)")
PLAINER = r"in a matrix product, \2 columns meet \1 rows (is a .T or a reshape missing?)"


class OutOfTime(BaseException):
    """Stops the student's code; not an Exception, so that `except Exception` does not catch it."""


@dataclass
class Question:
    """What a student's class is asked: the data of one hidden batch, in float64.

    given    X and dY of a layer; P and y of a loss
    params   the values of the parameters
    """

    case: Case
    given: dict[str, Array]
    params: dict[str, Array]

    def cast(self, dtype: DType) -> Question:
        """The same question in another dtype."""
        given, params = (
            {k: A.astype(dtype) if A.dtype.kind == "f" else A for k, A in arrays.items()}
            for arrays in (self.given, self.params)
        )
        return Question(self.case, given, params)


@dataclass
class Answer:
    """What came back.

    arrays    results by symbol: Y, dX and dW of a layer; L and dP of a loss
    faults    why a symbol has no array, in words
    written   the arguments that were overwritten, such as "dY, in backward"
    out_of_time    whether a pass took too long; the next batches then get less time
    """

    arrays: dict[str, Array] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)
    out_of_time: bool = False


def answer(subject: Layer | Loss, question: Question, seconds: float = LIMIT) -> Answer:
    """Run both passes of a built object for one question."""
    runner = Runner(type(subject), seconds)
    if isinstance(subject, Layer):
        found = _run_layer(subject, question, runner)
    else:
        found = _run_loss(subject, question, runner)
    found.out_of_time = runner.out_of_time
    return found


def built(
    kind: type[Any], question: Question, dtype: DType = np.float64, seconds: float = LIMIT
) -> tuple[Any, str]:
    """Return a new object with the question's parameters, or None and what went wrong."""
    runner = Runner(kind, seconds)
    options = ", ".join(f"{k}={v!r}" for k, v in question.case.options.items())
    subject = runner(f"{kind.__name__}({options})", lambda: kind(**question.case.options))
    if isinstance(subject, Layer):
        runner("create", lambda: subject.build(question.case.shape[1:], seed=0, dtype=dtype))
        wanted = {name: A.shape for name, A in question.params.items()}
        found = {name: A.shape for name, A in getattr(subject, "params", {}).items()}
        if not runner.fault and found != wanted:
            runner.fault = f"the parameters should have the shapes {wanted}, but have {found}."
        for name, A in question.params.items() if not runner.fault else ():
            subject.params[name][...] = A
    return (None, runner.fault) if runner.fault else (subject, "")


def _run_layer(layer: Layer, question: Question, runner: Runner) -> Answer:
    found, names = Answer(), [f"d{name}" for name in question.params]
    X, dY = (question.given[name].astype(layer.dtype) for name in ("X", "dY"))
    layer._frame.grad_arrays = {  # NaN, because they may hold anything: see `Layer.grad_array`
        name: np.full(A.shape, np.nan, layer.dtype) for name, A in question.params.items()
    }
    with calling(training=True, caching=True, needs_dX=True, reuse=True, step=0):
        given = {"X": X, **layer.params}
        Y = runner.watched("forward", lambda: layer.forward(X.view()), given, found)
        if runner.fault:
            found.faults = dict.fromkeys(["Y", "dX", *names], runner.fault)
            return found
        _keep(found, "Y", Y, "forward")
        dX = runner.watched(
            "backward", lambda: layer.backward(dY.view()), {"dY": dY, **given}, found
        )
    if runner.fault:
        found.faults |= dict.fromkeys(["dX", *names], runner.fault)
        return found
    _keep(found, "dX", dX, "backward")
    for name in question.params:
        gradient = dict(layer.grads).get(name)
        if gradient is None:
            found.faults[f"d{name}"] = (
                f'd{name} is missing: write it into self.grad_array("{name}") in backward.'
            )
        else:
            _keep(found, f"d{name}", gradient, "backward")
    return found


def _run_loss(loss: Loss, question: Question, runner: Runner) -> Answer:
    found, (P, y) = Answer(), (question.given[name] for name in ("P", "y"))
    P = P.copy()
    given = {"P": P, "y": y}
    calls = (("L", "value", loss.loss_func), ("dP", "gradient", loss.loss_gradient))
    for symbol, who, method in calls:
        result = runner.watched(who, partial(method, P.view(), y.view()), given, found)
        if runner.fault:
            found.faults[symbol] = runner.fault
        else:
            _keep(found, symbol, np.asarray(result) if symbol == "L" else result, who)
    return found


def _keep(found: Answer, symbol: str, result: Any, who: str) -> None:
    """Keep a copy of a result, or say why it is not an array."""
    if result is None:
        found.faults[symbol] = f"{who} returned None: it must end with `return {symbol}`."
    elif not isinstance(result, np.ndarray | np.generic) or result.dtype.kind not in "fiub":
        found.faults[symbol] = (
            f"{symbol} should be an array of numbers, but is of type {type(result).__name__}"
            f"{f' of dtype {result.dtype}' if hasattr(result, 'dtype') else ''}."
        )
    else:
        found.arrays[symbol] = np.array(result)


def _is_ours(scope: dict[str, Any]) -> bool:
    """Whether a function with these globals is not the student's."""
    return not scope or str(scope.get("__name__")).startswith("phitodeep.")


class Runner:
    """Calls the student's code; `fault` says in words why the last call did not return."""

    def __init__(self, kind: type[Any], seconds: float) -> None:
        self.seconds, self.fault, self.out_of_time = seconds, "", False
        methods = (value for part in kind.__mro__ for value in vars(part).values())
        scopes = (getattr(inspect.unwrap(m), "__globals__", {}) for m in methods if callable(m))
        self.scopes = {id(s) for s in scopes if not _is_ours(s)}  # shared by a notebook's cells

    def watched(
        self, who: str, call: Callable[[], Any], given: dict[str, Array], found: Answer
    ) -> Any:
        """Call, and note which of the arrays that are given to it were overwritten."""
        before = {name: A.copy() for name, A in given.items()}
        result = self(who, call)
        result = result.copy() if isinstance(result, np.ndarray) else result
        for name, A in given.items():
            if not np.array_equal(A, before[name], equal_nan=True):
                found.written.append(f"{name}, in {who}")
                A[...] = before[name]
        return result

    def __call__(self, who: str, call: Callable[[], Any]) -> Any:
        if self.fault:
            return None
        try:
            with self._timed(), warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                return call()
        except OutOfTime:
            self.out_of_time = True
            self.fault = f"{who} took more than {self.seconds:g} seconds: does a loop run forever?"
        except NotImplementedError:
            self.fault = f"{who} is not written yet: it raised NotImplementedError."
        except (Exception, SystemExit) as error:  # whatever a student's code may raise
            said = traceback.format_exception_only(error)[0].partition(": ")[2]
            text = UNREADABLE.sub(PLAINER, said.strip().partition("\n")[0][:LONGEST])
            self.fault = f"{who} raised {type(error).__name__}: {text}".rstrip(": ")
            self.fault = f"{self.fault.rstrip('.')}{self._place(error)}."
        return None

    def _place(self, error: BaseException) -> str:
        """The last line of the student's code that the error passed through."""
        frames = traceback.walk_tb(error.__traceback__)
        own = [(frame, n) for frame, n in frames if id(frame.f_globals) in self.scopes]
        line = traceback.StackSummary.extract(iter(own[-1:]))[0].line if own else ""
        return f", at the line `{line}`" if line else ""

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        """Raise OutOfTime in the student's code once the time is over."""
        if sys.gettrace() is not None:
            yield
            return
        end = time.monotonic() + self.seconds

        def inside(frame: FrameType, event: str, _: Any) -> Any:
            if time.monotonic() > end:
                raise OutOfTime
            return inside

        def at_call(frame: FrameType, event: str, _: Any) -> Any:
            if id(frame.f_globals) not in self.scopes:
                return None
            frame.f_trace_opcodes = True  # `while True: pass` has no lines to stop at
            return inside

        sys.settrace(at_call)
        try:
            yield
        finally:
            sys.settrace(None)
