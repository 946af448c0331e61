"""The reader's program: it is run, checked against the budget, and errors name its line."""

from __future__ import annotations

import ast
import inspect
import re
import traceback
from typing import Any, NamedTuple

import numpy as np

import phitodeep
from phitodeep import layers
from phitodeep.data import make_moons
from phitodeep.derivations.language import step
from phitodeep.layers import Layer
from phitodeep.layers.base import Param
from phitodeep.model import Sequential, SequentialBuilder
from phitodeep.optimization import optimizers

from . import points

UNITS, LAYERS, BATCH, ROWS = 64, 32, 64, 5000
FREE = ("optimizer", "alpha", "batch")  # what may change while training goes on
FILE = "<model>"
HEAD = """\
import numpy as np
from phitodeep.data import make_moons as moons
from phitodeep.layers import *
from phitodeep.layers.base import Layer, Param
from phitodeep.model import SequentialBuilder
from phitodeep.optimization.optimizers import *
from phitodeep.steps.step import Derivation, Let, Sum
"""

FILES = """\
# The data are in session.zip of the playground: put digits.bin and names.txt next to this script.
from pathlib import Path

HERE = Path(__file__).parent
LETTERS, CONTEXT = "{letters}", {context}
"""


class Program(NamedTuple):
    """What a program defines."""

    model: Sequential
    X: Any
    y: Any


class Refused(Exception):
    """A program that cannot be used: what is wrong, and in which line, if that is known."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message, self.line = message, line


def names() -> dict[str, Any]:
    """What a program may use without importing it."""
    found = {name: getattr(layers, name) for name in layers.__all__}
    found |= {name: getattr(optimizers, name) for name in optimizers.__all__}
    found |= {"Derivation": step.Derivation, "Let": step.Let, "Sum": step.Sum}
    found |= {"np": np, "phitodeep": phitodeep, "Layer": Layer, "Param": Param}
    return found | {"SequentialBuilder": SequentialBuilder, **points.SETS}


def run(code: str) -> Program:
    """Run a program; raise Refused with the line if it fails or is larger than the playground."""
    scope = {"__name__": "playground", **names()}
    try:
        exec(compile(code, FILE, "exec"), scope)
        model, X, y = (_found(scope, name) for name in ("model", "X", "y"))
        if isinstance(model, SequentialBuilder):
            model = model.build()
        if not isinstance(model, Sequential):
            raise Refused(
                f"`model` is a {type(model).__name__}, not a model: end it with .build()."
            )
        X, y = np.asarray(X), np.asarray(y)
        if model.input_shape is None:
            model.build(X.shape[1:])
        _check(model, X)
    except Refused:
        raise
    except SyntaxError as error:
        raise Refused(f"{type(error).__name__}: {error.msg}", error.lineno) from None
    except Exception as error:
        raise Refused(f"{type(error).__name__}: {error}", line_of(error)) from None
    return Program(model, X, y)


def line_of(error: BaseException) -> int | None:
    """The last line of the program that an error passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((f.lineno for f in reversed(frames) if f.filename == FILE), None)


def _found(scope: dict[str, Any], name: str) -> Any:
    if name not in scope:
        raise Refused(f"the program defines no `{name}`: it needs `X`, `y` and `model`.")
    return scope[name]


def _check(model: Sequential, X: Any) -> None:
    if len(X) > ROWS:
        raise Refused(f"the playground takes {ROWS} samples at most, and X has {len(X)}.")
    if (model.batch_size or BATCH) > BATCH:
        raise Refused(f"the playground's batches have {BATCH} samples at most: .batch({BATCH})")
    if len(model.layers) > LAYERS:
        raise Refused(f"the playground takes {LAYERS} layers at most: this is {len(model.layers)}.")
    for layer in model.layers:
        size = int(np.prod(layer.output_shape))
        if size > 4 * UNITS or (layer.params and size > UNITS):
            raise Refused(f"the playground draws {UNITS} units at most, and {layer!r} has {size}.")


def fitted(code: str, X: Any, y: Any) -> str:
    """A program with the input and the output that data need, if its lines are the usual ones."""
    if y.dtype.kind == "f":
        last = [".dense(1)", '.loss("mse")']
    elif y.max() > 1:
        last = [f".dense({y.max() + 1})", '.loss("softmax_cross_entropy")']
    else:
        last = [".dense(1)", ".sigmoid()", '.loss("binary_cross_entropy")']
    code = re.sub(r"SequentialBuilder\(\d+", f"SequentialBuilder({X.shape[1]}", code)
    ends = r'( *)\.dense\(\d+\)\n(?: *\.sigmoid\(\)\n)? *\.loss\("\w+"\)'
    return re.sub(ends, lambda found: "\n".join(found[1] + line for line in last), code)


class _Fixed(ast.NodeTransformer):
    """A program without the calls and arguments that leave its layers alone."""

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        function = node.func
        free = isinstance(function, ast.Attribute) and function.attr in FREE
        return function.value if free else node

    def visit_keyword(self, node: ast.keyword) -> Any:
        return None if node.arg == "noise" else self.generic_visit(node)


def fixed(code: str) -> str:
    """The part of a program that training depends on: it restarts if this changes."""
    return ast.dump(_Fixed().visit(ast.parse(code)))


def script(code: str) -> str:
    """The program as a script that runs anywhere: imports, data, training and the result."""
    used = [f for name, f in points.SETS.items() if f"{name}(" in code and f is not make_moons]
    parts = [HEAD]
    if points.mine in used:
        X, y = (np.asarray(A).tolist() for A in points.mine())
        parts.append(f"given = {{'X': np.array({X}), 'y': np.array({y})}}")
    if points.digits in used or points.names in used:
        parts.append(FILES.format(letters=points.LETTERS, context=points.CONTEXT))
    parts += [inspect.getsource(f).rstrip() for f in used]
    parts += [code.rstrip(), "model.train(X, y, epochs=100)\nprint(model.evaluate(X, y))\n"]
    return "\n\n".join(parts)
