"""The statements of a network's forward pass, as lines of Python."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.types import Array, Shape
from phitodeep.errors import ArgumentError
from phitodeep.exchange.numpy.forms import REMEDY, Form, Literal, arguments, find, form_of, literal
from phitodeep.layers.base import Layer
from phitodeep.layers.containers import (
    Chain,
    Container,
    Parallel,
    Residual,
    SkipConcat,
    TimeDistributed,
)
from phitodeep.layers.recurrent import Bidirectional

WIDTH = 99  # of a line of source
MOST_TERMS = 100  # of a sum or product: Python does not compile thousands
SAVED = 4  # lines that a loop must save
NUMBERS = re.compile(r"\w+=\([-\d.e, ]+\)").fullmatch  # it may be broken into lines
LOOPS = "ijklmnopqrstuvw"  # names of loop variables


Arguments = tuple[str, ...]  # such as 'W["3.layers.0.gamma"]' and "axis=-1"


class Line(NamedTuple):
    """A statement `code(arguments)`, or `code` alone if there is no call, and a comment."""

    code: str
    arguments: Arguments | None = None
    comment: str = ""
    depth: int = 1

    @property
    def is_loop(self) -> bool:
        return self.code.startswith("for ")

    def __str__(self) -> str:
        start, comment = "    " * self.depth, f"  # {self.comment}" if self.comment else ""
        if self.arguments is None:
            short = f"{start}{self.code}{comment}" if self.code else f"{start}# {self.comment}"
            return short if len(short) <= WIDTH else f"{start}{self.code}".rstrip()
        line = f"{start}{self.code}({', '.join(self.arguments)})"
        if len(line + comment) <= WIDTH:
            return line + comment
        if len(line) <= WIDTH:
            return line
        rows = [f"{start}   "]
        pieces = (part.split(", ") if NUMBERS(part) else [part] for part in self.arguments)
        for part in itertools.chain.from_iterable(pieces):
            if len(rows[-1]) + len(part) + 2 > WIDTH:
                rows.append(f"{start}   ")
            rows[-1] += f" {part},"
        rows[-1] = rows[-1].removesuffix(",") if len(rows) == 1 else rows[-1]
        return "\n".join([f"{start}{self.code}(", *rows, f"{start}){comment}"])


class Network:
    """The lines that compute Y from X, and the weights and functions that they use."""

    def __init__(self, model: Layer) -> None:
        self.paths = {id(layer): path for path, layer in model.walk()}
        self.weights: dict[str, Array] = {}
        self.functions: dict[str, Form] = {}
        self.lines: list[Line] = []
        self.taken: set[str] = set()  # names of variables in use
        self.variables = {"X", *LOOPS}  # all names of variables
        self.samples = "N"  # what the first axis counts
        refused = list(self._refused(model))
        if refused:
            raise ArgumentError(
                f"export_numpy cannot export {', '.join(refused)}: there is no NumPy function for "
                f"{'it' if len(refused) == 1 else 'them'}. Use another layer, or {REMEDY}."
            )
        self.result = self.add(model, "X", "X")

    def _refused(self, layer: Layer) -> Iterator[str]:
        """Yield a description of each layer that has no plain form, in this layer or below."""
        try:
            find(type(layer), CONTAINERS) if isinstance(layer, Container) else form_of(layer)
        except KeyError:
            path = self.paths[id(layer)]
            yield f"layer {path}, {one_line(layer)}" if path else one_line(layer)
        else:
            for child in layer.children().values():
                yield from self._refused(child)

    def add(self, layer: Layer, x: str, y: str) -> str:
        """Add the lines that compute `layer` from the variable x, and return the one with Y.

        That is `y`, or x itself if the layer does nothing.
        """
        if isinstance(layer, Container):
            if type(layer) not in QUIET and self.paths[id(layer)]:
                self.lines.append(Line("", comment=one_line(layer)))
            return find(type(layer), CONTAINERS)(self, layer, x, y)
        form = form_of(layer)
        if form is None:
            self.lines.append(Line("", comment=f"{one_line(layer)} does nothing in prediction"))
            return x
        given = [x]
        for name, by_name, value in arguments(form, layer):
            part = value if isinstance(value, Literal) else self._weight(layer, *value)
            given.append(f"{name}={part}" if by_name else part)
        if isinstance(form, np.ufunc):
            name = f"np.{form.__name__}"
        else:
            name = form.__name__
            if self.functions.setdefault(name, form) is not form:
                raise ArgumentError(
                    f"export_numpy: two functions have the name {name!r}: rename one of them."
                )
        shape = "" if layer.output_shape == layer.input_shape else self._shape(layer.output_shape)
        self.lines.append(Line(f"{y} = {name}", tuple(given), shape))
        return y

    def _weight(self, layer: Layer, owner: Layer, name: str) -> str:
        path = self.paths.get(id(owner), self.paths[id(layer)])
        full = f"{path}.{name}" if path else name
        a = (owner.params if name in owner.params else owner.state)[name]
        self.weights[full] = a.astype(layer.dtype, copy=False)
        return f"W[{literal(full, 'a path')}]"

    def _shape(self, shape: Shape | None) -> str:
        return f"({', '.join(map(str, (self.samples, *(shape or ()))))})"

    def statement(self, code: str, shape: Shape | None = None) -> None:
        """Add a line that is not a call."""
        self.lines.append(Line(code, comment="" if shape is None else self._shape(shape)))

    @contextmanager
    def variable(self, name: str) -> Iterator[str]:
        """Give the name of a variable that is not in use, until the block ends."""
        tries = (name, *(f"{name}_{i}" for i in range(2, 1000)))
        free = next(n for n in tries if n not in self.taken)
        self.taken.add(free)
        self.variables.add(free)
        yield free
        self.taken.remove(free)

    def sequence(self, layers: Sequence[Layer], x: str, y: str) -> str:
        """Add layers one after another; consecutive ones with equal lines become a loop."""
        before, blocks = self.lines, list[tuple[Layer, list[Line]]]()
        for layer in layers:
            self.lines = []
            x = self.add(layer, x, y)
            blocks.append((layer, self.lines))
        self.lines = before
        inner = {line.code.split()[1] for _, lines in blocks for line in lines if line.is_loop}
        variable = next(name for name in LOOPS if name not in inner)
        while blocks:
            self.lines += self._repeated(blocks, variable)
        return x

    def _repeated(self, blocks: list[tuple[Layer, list[Line]]], variable: str) -> list[Line]:
        """Take the first block off the list, or the first blocks that are repeated as a loop."""
        path = self.paths[id(blocks[0][0])]
        outside, _, last = path.rpartition(".")
        for period in (1, 2, 3):
            body = self._renamed(blocks[:period], variable)
            count = 1
            while body and self._renamed(blocks[count * period :][:period], variable) == body:
                count += 1
            if (count - 1) * len(body) >= SAVED and re.fullmatch(r"[\w.]*", outside):
                first, step = int(last), f", {period}" * (period > 1)
                del blocks[: count * period]
                head = Line(f"for {variable} in range({first}, {first + count * period}{step}):")
                return [head, *(line._replace(depth=line.depth + 1) for line in body)]
        return blocks.pop(0)[1]

    def _renamed(self, blocks: list[tuple[Layer, list[Line]]], variable: str) -> list[Line]:
        """Return the lines of the blocks, with a loop variable as the last part of their paths."""
        return [
            line._replace(arguments=_renamed(line.arguments, self.paths[id(layer)], variable, i))
            for i, (layer, lines) in enumerate(blocks)
            for line in lines
        ]


def _renamed(arguments: Arguments | None, path: str, variable: str, i: int) -> Arguments | None:
    """Return the arguments, where the loop variable plus i replaces the last part of the path.

    The rest of a path that is not yet in an f-string must be plain: it could be code in one.
    """
    outside, dot, _ = path.rpartition(".")
    start = f"{outside}{dot}{{{variable} + {i}}}" if i else f"{outside}{dot}{{{variable}}}"
    weight = re.compile(
        rf"""((?:\w+=)?W\[)(?:f"{re.escape(path)}(\..*)|"{re.escape(path)}(\.[\w.]+"\]))"""
    )

    def renamed(text: str) -> str:
        found = weight.fullmatch(text)
        return f'{found[1]}f"{start}{found[2] or found[3]}' if found else text

    return arguments and tuple(map(renamed, arguments))


# --- containers -----------------------------------------------------------------------------------


def chain(network: Network, layer: Any, x: str, y: str) -> str:
    return network.sequence(layer.layers, x, y)


def residual(network: Network, layer: Any, x: str, y: str) -> str:
    with network.variable("F") as name:
        f = network.sequence(layer.layers, x, name)
        network.statement(f"{y} = {x} + {f}")
    return y


def skip_concat(network: Network, layer: Any, x: str, y: str) -> str:
    with network.variable("F") as name:
        f = network.sequence(layer.layers, x, name)
        network.statement(f"{y} = np.concatenate([{x}, {f}], axis=-1)", layer.output_shape)
    return y


def parallel(network: Network, layer: Any, x: str, y: str) -> str:
    outs: list[str] = []
    with ExitStack() as stack:
        for i, branch in enumerate(layer.branches):
            name = stack.enter_context(network.variable(f"Y{i}"))
            outs.append(network.add(branch, x, name))
        listed = f"[{', '.join(outs)}]"
        if layer.merge == "concat":
            merged = f"np.concatenate({listed}, axis=-1)"
        elif len(outs) > MOST_TERMS:
            merged = f"np.{layer.merge}.reduce({listed})"
        else:
            merged = {"add": " + ", "multiply": " * "}[layer.merge].join(outs)
        network.statement(f"{y} = {merged}", layer.output_shape)
    return y


def time_distributed(network: Network, layer: Any, x: str, y: str) -> str:
    before, network.samples = network.samples, f"{network.samples} T"
    with network.variable("F") as name:
        network.statement(f"{name} = {x}.reshape(-1, *{x}.shape[2:])", layer.layer.input_shape)
        f = network.add(layer.layer, name, name)
        network.samples = before
        network.statement(f"{y} = {f}.reshape(*{x}.shape[:2], *{f}.shape[1:])", layer.output_shape)
    return y


def bidirectional(network: Network, layer: Any, x: str, y: str) -> str:
    with network.variable("F") as forward, network.variable("B") as backward:
        network.add(layer.layer, x, forward)
        network.add(layer.reverse, f"{x}[:, ::-1]", backward)
        if layer.layer.return_sequences:
            network.statement(f"{backward} = {backward}[:, ::-1]")
        both = f"np.concatenate([{forward}, {backward}], axis=-1)"
        total = f"{forward} + {backward}" if layer.merge == "add" else both
        network.statement(f"{y} = {total}", layer.output_shape)
    return y


CONTAINERS: dict[type[Layer], Callable[[Network, Any, str, str], str]] = {
    Chain: chain,
    Residual: residual,
    SkipConcat: skip_concat,
    Parallel: parallel,
    TimeDistributed: time_distributed,
    Bidirectional: bidirectional,
}
QUIET = {Chain}  # containers whose lines need no heading


def one_line(layer: Layer, longest: int = 70) -> str:
    """Return the layer's repr as printable text without line breaks; a long one as its class."""
    text = repr(layer)
    text = text if len(text) <= longest else type(layer).__name__
    return "".join(c if c.isprintable() else " " for c in text)
