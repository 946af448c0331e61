"""Asking a class that students wrote: whatever it does, arrays and sentences come back.

The class runs in a fork of this process, which is killed when its time is over. It sends lines of
JSON with arrays as raw bytes, never objects. The right answers, the comparison and the points stay
in this process.

Where Python cannot fork, as on Windows and in a browser, the class runs in this process instead:
only Ctrl-C ends an endless loop, and code that replaces functions can replace the grader's.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import socket
import sys
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from phitodeep import kernels
from phitodeep.core.call import calling
from phitodeep.core.threads import one_blas_thread
from phitodeep.core.types import Array, DType
from phitodeep.layers import Layer
from phitodeep.teach.exercises import Case

FORKS = hasattr(os, "fork") and sys.platform != "emscripten"
LIMIT = 10.0  # seconds for one batch
ROOM = 2**26  # the most characters that an answer may have
LONGEST = 300  # characters of an error message
UNREADABLE = re.compile(r"^matmul: Input operand.*\(size (\d+) is different from (\d+)\)")
PLAINER = r"in a matrix product, \2 columns meet \1 rows (is a .T or a reshape missing?)"

GetClass = Callable[[], type[Any]]  # returns the student's class
Send = Callable[..., None]  # takes a message: see `Answer.add`


@dataclass
class Question:
    """What a student's class is asked: the data of one hidden batch, in float64.

    given    X and dY of a layer; P and y of a loss
    params   the values of the parameters
    dtype    what the class computes in
    before   another batch for the same object, whose results do not count
    """

    case: Case
    given: dict[str, Array]
    params: dict[str, Array]
    dtype: DType = np.float64
    before: Question | None = None


@dataclass
class Answer:
    """What came back.

    arrays    results by symbol: Y, dX and dW of a layer; L and dP of a loss
    faults    why a symbol has no array, in words; "" stands for all other symbols
    written   the arguments that were overwritten, such as "dY, in backward"
    doing     what the class did last
    """

    arrays: dict[str, Array] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)
    doing: str = "the class"

    def add(self, what: str, name: str, *more: Any) -> None:
        """Add one message; raise some error if it makes no sense."""
        name = "".join(c if c.isprintable() else " " for c in name[: 3 * LONGEST])
        if what == "array":
            dtype, shape, data = more
            if np.dtype(dtype).kind not in "fiub":
                raise ValueError(more)
            self.arrays[name] = np.frombuffer(bytes.fromhex(data), dtype).reshape(shape)
        elif what == "fault":
            symbol, *_ = more
            self.faults[symbol] = name
        elif what == "written":
            self.written.append(name)
        else:
            self.doing = name

    def missing(self, symbol: str) -> str:
        """Why there is no array, or "" if there is one."""
        if symbol in self.arrays:
            return ""
        return self.faults.get(symbol) or self.faults.get("") or f"{self.doing} gave no {symbol}."


def ask(get_class: GetClass, questions: Sequence[Question], seconds: float) -> list[Answer]:
    """Put each question to a new object of the class, in one process as long as that lives."""
    answers = [Answer() for _ in questions]
    left, limit = deque(zip(questions, answers, strict=True)), seconds
    while left:
        if FORKS:
            limit = limit if _fork(get_class, left, limit) else seconds / 10
        else:
            question, answer = left.popleft()
            with suppress(Exception, SystemExit, GeneratorExit):
                _attempt(get_class, question, answer.add)
    return answers


def _fork(get_class: GetClass, left: deque[tuple[Question, Answer]], limit: float) -> bool:
    """Ask a child, until all is answered or it fails; return whether it was in time."""
    ours, theirs = socket.socketpair()
    with ours, theirs, one_blas_thread, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork of several threads
        pid = os.fork()
        if not pid:
            ours.close()
            _child(get_class, [question for question, _ in left], theirs)
        theirs.close()
        try:
            received = bytearray()
            while left:
                _, answer = left.popleft()
                _receive(ours, received, answer, limit)
            return True
        except TimeoutError:
            words = f"took more than {limit:g} seconds: does a loop run forever?"
            answer.faults[""] = f"{answer.doing} {words}"
            return False
        except Exception:  # no process is left, or what came makes no sense
            answer.faults[""] = f"{answer.doing} ended its process: does it exit or crash?"
            return True
        finally:
            for kill in (os.killpg, os.kill):
                with suppress(OSError):
                    kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _receive(line: socket.socket, received: bytearray, answer: Answer, limit: float) -> None:
    """Receive the messages about one question; its time begins with the first one."""
    room, end = ROOM, (latest := time.monotonic() + LIMIT)
    while True:
        while b"\n" not in received:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            line.settimeout(left)
            more = line.recv(2**16)
            room -= len(more)
            if not more or room < 0:
                raise EOFError
            received += more
        message, _, received[:] = received.partition(b"\n")
        what, *rest = json.loads(message)
        if what == "end":
            return
        if what == "begin":
            end = min(time.monotonic(), latest) + limit
        else:
            answer.add(what, *rest)


def _child(get_class: GetClass, questions: Sequence[Question], line: socket.socket) -> NoReturn:
    """Answer the questions, and end this process."""

    def send(*message: Any) -> None:
        line.sendall(json.dumps(message).encode() + b"\n")

    leave = os._exit
    try:
        os.setsid()  # so that its own children die with it
        with suppress(OSError):  # a notebook's own streams need its other threads
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            sys.stdin, sys.stdout, sys.stderr = (
                os.fdopen(n, "w" if n else "r", 1, errors="backslashreplace", closefd=False)
                for n in range(3)
            )
        kernels.use("numpy")
        for question in questions:
            send("begin")
            _attempt(get_class, question, send)
            send("end")
    finally:
        leave(0)


# --- what runs the student's code ----------------------------------------------------------------


def load(path: str, name: str, kind: type[Any]) -> type[Any]:
    """Run a file, and return its class of this name."""
    found = runpy.run_path(path).get(name)
    if not isinstance(found, type) or not issubclass(found, kind):
        raise TypeError(f"the file should define a class {name}, a subclass of {kind.__name__}")
    return found


def _attempt(get_class: GetClass, question: Question, send: Send) -> None:
    """Run both passes, and send what they return, or why they do not."""
    doing, module = ["the class"], ""

    def start(what: str) -> None:
        doing.append(what)
        send("doing", what)

    try:
        with (
            calling(training=True, caching=True, needs_dX=True, reuse=True, step=0),
            warnings.catch_warnings(),
            np.errstate(all="ignore"),
        ):
            warnings.simplefilter("ignore")
            kind = get_class()
            module = kind.__module__
            options = ", ".join(f"{k}={v!r}" for k, v in question.case.options.items())
            start(f"{kind.__name__}({options})")
            subject = kind(**question.case.options)
            if "X" in question.given:
                start("create")
                _build(subject, question)
            if question.before is not None:
                _passes(subject, question.before, lambda *_: None, start)
            _passes(subject, question, send, start)
    except KeyboardInterrupt:
        raise
    except NotImplementedError:
        send("fault", f"{doing[-1]} is not written yet: it raised NotImplementedError.", "")
    except BaseException as error:  # whatever a student's code may raise
        text = traceback.format_exception_only(error)[0].partition(": ")[2]
        text = UNREADABLE.sub(PLAINER, text.strip().partition("\n")[0][:LONGEST])
        text = f"{doing[-1]} raised {type(error).__name__}: {text}".rstrip(": ").rstrip(".")
        send("fault", f"{text}{_place(error, module)}.", "")


def _place(error: BaseException, module: str) -> str:
    """The last line of the student's code that the error passed through."""
    frames = traceback.walk_tb(error.__traceback__)
    own = [(frame, n) for frame, n in frames if frame.f_globals.get("__name__") == module]
    line = traceback.StackSummary.extract(iter(own[-1:]))[0].line if own else ""
    return f", at the line `{line}`" if line else ""


def _build(layer: Layer, question: Question) -> None:
    layer.build(question.case.shape[1:], seed=0, dtype=question.dtype)
    wanted = {name: A.shape for name, A in question.params.items()}
    found = {name: A.shape for name, A in layer.params.items()}
    if found != wanted:
        raise ValueError(f"the parameters should have the shapes {wanted}, but have {found}")
    for name, A in question.params.items():
        layer.params[name][...] = A


def _passes(subject: Any, question: Question, send: Send, start: Callable[[str], None]) -> None:
    """Run forward and backward, and send the results and which arguments were overwritten."""
    given = {
        k: A.astype(question.dtype if A.dtype.kind == "f" else A.dtype)
        for k, A in question.given.items()
    }
    calls: tuple[tuple[str, str, str, tuple[str, ...]], ...]  # results, methods and arguments
    if "X" in given:
        subject._frame.grad_arrays = {  # NaN, since they may hold anything: see `Layer.grad_array`
            name: np.full(A.shape, np.nan, question.dtype) for name, A in question.params.items()
        }
        given |= subject.params
        calls = ("Y", "forward", "forward", ("X",)), ("dX", "backward", "backward", ("dY",))
    else:
        both = "P", "y"
        calls = ("L", "value", "loss_func", both), ("dP", "gradient", "loss_gradient", both)
    for symbol, who, method, names in calls:
        start(who)
        before = {name: A.copy() for name, A in given.items()}
        result = getattr(subject, method)(*(given[name].view() for name in names))
        send(*_message(symbol, who, result))
        for name, A in given.items():
            if not np.array_equal(A, before[name], equal_nan=True):
                send("written", f"{name}, in {who}")
                A[...] = before[name]
    for name in question.params:
        gradient = dict(subject.grads).get(name)
        words = f'd{name} is missing: write it into self.grad_array("{name}") in backward.'
        missing = ("fault", words, f"d{name}")
        send(*(missing if gradient is None else _message(f"d{name}", who, gradient)))


def _message(symbol: str, who: str, result: Any) -> tuple[Any, ...]:
    """What to send about a result: the array, or why it is none."""
    result = np.asarray(result) if isinstance(result, int | float) else result
    if result is None:
        words = f"{who} returned None: it must end with `return {symbol}`."
    elif not isinstance(result, np.ndarray | np.generic) or result.dtype.kind not in "fiub":
        words = f"{symbol} should be an array of numbers, but is of type {type(result).__name__}"
        words += f" of dtype {result.dtype}." if hasattr(result, "dtype") else "."
    else:
        A = np.array(result)
        return "array", symbol, A.dtype.str, A.shape, A.tobytes().hex()
    return "fault", words, symbol
