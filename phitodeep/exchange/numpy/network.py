"""The statements of a network's forward pass, as lines of Python."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.types import Array, Shape, each, one, same
from phitodeep.errors import ArgumentError
from phitodeep.exchange.numpy import plain
from phitodeep.exchange.numpy.sources import WIDTH, literal, wrapped
from phitodeep.exchange.tree import bound, branches_of, outer_names, paths_of
from phitodeep.layers.base import Layer
from phitodeep.layers.containers import Chain, Container

MOST_TERMS = 100  # of a sum or product: Python does not compile thousands
SIGNS = {"add": " + ", "subtract": " - ", "multiply": " * "}
SAVED = 4  # lines that a loop must save
LOOPS = "ijklmnopqrstuvw"  # names of loop variables
MARK = "\0"  # no literal holds it
WEIGHT = re.compile(f"{MARK}(.*?){MARK}")
Form = Callable[..., Any]
Names = Any  # of a variable, or a tuple of them: one for each input or output


class Lines(NamedTuple):
    """A layer that is more, or less, than the call of one function.

    write(network, layer, x, y) adds its lines, which read the variable x, and returns the variable
    that holds Y: y, or another one. Of several inputs or outputs, x or y is a tuple.
    """

    write: Callable[[Network, Any, Names, Names], Names]


class Line(NamedTuple):
    """A statement `code(arguments)`, or `code` alone if there is no call, and a comment.

    In the arguments, a path between two marks stands for the array of W that has it. In a loop, it
    is such as "{i}.layers.0.gamma".
    """

    code: str
    arguments: str | None = None
    comment: str = ""
    depth: int = 1

    def __str__(self) -> str:
        start, comment = "    " * self.depth, f"  # {self.comment}" if self.comment else ""
        comment = comment if self.code else comment.strip()
        inside = WEIGHT.sub(
            lambda path: f'W[{"f" * ("{" in path[1])}"{path[1]}"]', self.arguments or ""
        )
        line = f"{start}{self.code}" + ("" if self.arguments is None else f"({inside})")
        if len(line + comment) <= WIDTH:
            return line + comment
        if self.arguments is None or len(line) <= WIDTH:
            return line.rstrip()
        rows = wrapped(inside, f"{start}    ", f"{start}    ")
        rows += "," * (len(rows.splitlines()) > 1)
        return f"{start}{self.code}(\n{rows}\n{start}){comment}"


class Network:
    """The lines that compute Y from X, and the weights and functions that they use.

    form_of    returns the function of a layer, or its `Lines`
    inputs     the variables that hold the inputs
    result     the variable with Y, or a tuple of them
    """

    def __init__(self, model: Layer, form_of: Callable[[Layer], Any]) -> None:
        self.form_of = form_of
        self.paths = paths_of(model)
        self.weights: dict[str, Array] = {}
        self.functions: dict[Form, None] = {}  # in order, each once
        self.lines: list[Line] = []
        takes, returns = outer_names(model)
        self.inputs = [f"X_{name}" for name in takes] if len(takes) > 1 else ["X"]
        outs = [f"Y_{name}" for name in returns] if len(returns) > 1 else ["X"]
        self.taken = {*self.inputs, *outs}  # names of variables in use
        self.variables = {*self.taken, *LOOPS}  # all names of variables
        self.samples = "N"  # what the first axis counts
        self.result = self.add(
            model, one(self.inputs, len(takes) == 1), one(outs, len(returns) == 1)
        )

    def add(self, layer: Layer, x: Names, y: Names) -> Names:
        """Add the lines that compute `layer` from the variable x, and return the one with Y.

        That is `y`, or x itself if the layer does nothing.
        """
        layer = bound(layer)
        form = self.form_of(layer)
        if isinstance(form, Lines):
            if isinstance(layer, Container) and type(layer) is not Chain and self.paths[id(layer)]:
                self.lines.append(Line("", comment=one_line(layer)))
            return form.write(self, layer, x, y)
        return self.call(form, layer, x, y, comment=self._changed(layer))

    def call(
        self, form: Form, layer: Layer, x: Names, y: Names, comment: str = "", **named: str
    ) -> Names:
        """Add the line y = form(x, ...) with the arguments that the layer has, and return y.

        `named` maps a parameter of the function to the layer's name for it, if that is another.
        """
        builtin = isinstance(form, np.ufunc)
        if not builtin:
            self.functions[form] = None
        given = () if builtin else self.arguments(form, layer, named, len(each(x)))
        code = f"{', '.join(each(y))} = {'np.' * builtin}{form.__name__}"
        self.lines.append(Line(code, ", ".join([*each(x), *given]), comment))
        return y

    def arguments(
        self, form: Form, layer: Layer, named: Mapping[str, str], inputs: int = 1
    ) -> Iterator[str]:
        """Yield the function's arguments after X; those that are its defaults are left out."""
        by_name = False  # settings are passed by name, and so is what follows them
        known = list(inspect.signature(form).parameters.values())
        later = [p for p in known if p.kind is p.KEYWORD_ONLY]  # as in f(X, *states, W)
        for p in later if any(p.kind is p.VAR_POSITIONAL for p in known) else known[inputs:]:
            ours = named.get(p.name, p.name)
            owner, name = layer.tied.get(ours, (layer, ours))
            if name in owner.params or name in owner.state:
                start = f"{p.name}=" if by_name or p.kind is p.KEYWORD_ONLY else ""
                yield self._weight(start, layer, owner, name)
                continue
            value, by_name = getattr(layer, ours, p.default), p.kind is not p.POSITIONAL_ONLY
            if value is p.empty:
                raise ArgumentError(
                    f"{form.__name__} takes {p.name!r}, but {layer!r} has no such parameter, state "
                    "or setting."
                )
            if not by_name or not same(value, p.default):
                yield f"{p.name}=" * by_name + literal(value, f"{p.name} of {layer!r}")

    def _weight(self, start: str, layer: Layer, owner: Layer, name: str) -> str:
        path = self.paths.get(id(owner), self.paths[id(layer)])
        full = f"{path}.{name}" if path else name
        a = (owner.params if name in owner.params else owner.state)[name]
        self.weights[full] = a.astype(layer.dtype, copy=False)
        simple = re.fullmatch(r"[\w.]*", full)  # other names could be code in an f-string
        return start + (f"{MARK}{full}{MARK}" if simple else f"W[{literal(full, 'a path')}]")

    def _shape(self, shape: Shape | None) -> str:
        return f"({', '.join(map(str, (self.samples, *(shape or ()))))})"

    def _changed(self, layer: Layer) -> str:
        """Return the shape of a layer's output if its input has another."""
        return self._shape(layer.output_shape) * (layer.output_shape not in layer._ins())

    def statement(self, code: str, shape: Shape | None = None) -> None:
        """Add a line that is not a call."""
        self.lines.append(Line(code, comment="" if shape is None else self._shape(shape)))

    @contextmanager
    def variable(self, name: str) -> Iterator[str]:
        """Give the name of a variable that is not in use, until the block ends."""
        names = itertools.chain([name], (f"{name}_{i}" for i in itertools.count(2)))
        free = next(n for n in names if n not in self.taken)
        self.taken.add(free)
        self.variables.add(free)
        yield free
        self.taken.remove(free)

    def sequence(self, layers: Sequence[Layer], x: Names, y: Names) -> Names:
        """Add layers one after another; consecutive ones with equal lines become a loop."""
        before, blocks = self.lines, list[tuple[str, list[Line]]]()
        for layer in layers:
            self.lines = []
            x = self.add(layer, x, y)
            blocks.append((self.paths[id(layer)], self.lines))
        self.lines = before
        depth = max((line.depth for _, lines in blocks for line in lines), default=1)
        variable = LOOPS[depth - 1]  # loops inside this one have the names before it
        while blocks:
            self.lines += _first_lines(blocks, variable)
        return x


def _first_lines(blocks: list[tuple[str, list[Line]]], variable: str) -> list[Line]:
    """Take the first block off the list, or the first blocks that are repeated as a loop.

    A block is the lines of one layer, with its path.
    """
    for period in (1, 2, 3):
        body, count = _counted(blocks[:period], variable), 1
        while body and _counted(blocks[count * period :][:period], variable) == body:
            count += 1
        if (count - 1) * len(body) >= SAVED:
            first, step = int(blocks[0][0].rpartition(".")[2]), f", {period}" * (period > 1)
            del blocks[: count * period]
            head = Line(f"for {variable} in range({first}, {first + count * period}{step}):")
            return [head, *(line._replace(depth=line.depth + 1) for line in body)]
    return blocks.pop(0)[1]


def _counted(blocks: list[tuple[str, list[Line]]], variable: str) -> list[Line]:
    """Return the lines of the blocks, with a loop variable as the last part of their paths."""
    counted: list[Line] = []
    for i, (path, lines) in enumerate(blocks):
        outside, index = path[: path.rfind(".") + 1], f"{variable} + {i}" if i else variable
        start, other = f"{MARK}{path}.", f"{MARK}{outside}{{{index}}}."
        counted += [
            line._replace(arguments=line.arguments and line.arguments.replace(start, other))
            for line in lines
        ]
    return counted


# --- layers that are lines of their own -----------------------------------------------------------


def nothing(network: Network, layer: Layer, x: str, y: str) -> str:
    network.lines.append(Line("", comment=f"{one_line(layer)} does nothing in prediction"))
    return x


def chain(network: Network, layer: Any, x: str, y: str) -> str:
    return network.sequence(layer.layers, x, y)


def merged(network: Network, layer: Any, x: str, y: str) -> str:
    """Residual, SkipConcat and Parallel."""
    branches, how = branches_of(layer)
    alone = sum(map(bool, branches)) == 1
    outs: list[str] = []
    with ExitStack() as stack:
        for i, branch in enumerate(branches):
            name = stack.enter_context(network.variable("F" if alone else f"Y{i}"))
            outs.append(network.sequence(branch, x, name))
    return merge(how, network, layer, tuple(outs), y)


def merge(how: str, network: Network, layer: Any, x: Names, y: str) -> str:
    """Add the line that merges several variables: "concat", or a function of NumPy."""
    terms = ", ".join(each(x))
    if how == "concat":
        axis = getattr(layer, "axis", -1)
        code = f"np.concatenate([{terms}], axis={axis + (axis >= 0)})"
    elif how in SIGNS and len(each(x)) <= MOST_TERMS:
        code = SIGNS[how].join(each(x))
    else:
        code = f"np.{how}.reduce(np.broadcast_arrays({terms}))"
    network.lines.append(Line(f"{y} = {code}", comment=network._changed(layer)))
    return y


def average(network: Network, layer: Any, x: Names, y: str) -> str:
    merge("add", network, layer, x, y)
    network.statement(f"{y} = {y} / {len(each(x))}")
    return y


def wired(network: Network, layer: Any, x: Names, y: Names) -> Names:
    """Add the lines of layers between named values; one after another, they use one variable."""
    outs = dict(zip(layer.returns, each(y), strict=True))
    found = dict(zip(layer.takes, each(x), strict=True))
    runs = layer._runs()
    with ExitStack() as stack:
        for run in runs:
            layers = run.part.layers if run.whole else [run.part]
            given = [found[name] for name in run.reads]
            made = [
                outs[name]
                if run is runs[-1] and name in outs
                else stack.enter_context(network.variable(f"X_{name}"))
                for name in run.gives
            ]
            done = network.sequence(layers, one(given, len(given) == 1), one(made, len(made) == 1))
            found.update(zip(run.gives, each(done), strict=True))
        for name, out in outs.items():
            if found[name] != out:
                network.statement(f"{out} = {found[name]}")
    return y


def attention(network: Network, layer: Any, x: str, y: str) -> str:
    weigh = plain.rotary_dot_product_attention if layer.rope else plain.dot_product_attention
    x = network.call(plain.dense, layer, x, y, W="Wqkv", b="bqkv")
    x = network.call(weigh, layer, x, y)
    return network.call(plain.dense, layer, x, y, W="Wo", b="bo")


def time_distributed(network: Network, layer: Any, x: str, y: str) -> str:
    before, network.samples = network.samples, f"{network.samples} T"
    Xs, Ys = each(x), each(y)
    with ExitStack() as stack:
        rows = [stack.enter_context(network.variable("F")) for _ in {*Xs, *Ys}]
        for F, X, shape in zip(rows, Xs, layer.layer._ins(), strict=False):
            network.statement(f"{F} = {X}.reshape(-1, *{X}.shape[2:])", shape)
        ins, outs = (one(rows[: len(some)], len(some) == 1) for some in (Xs, Ys))
        outs = network.add(layer.layer, ins, outs)
        network.samples = before
        for Y, F, shape in zip(Ys, each(outs), layer._outs(), strict=True):
            network.statement(f"{Y} = {F}.reshape(*{Xs[0]}.shape[:2], *{F}.shape[1:])", shape)
    return y


def recurrent(network: Network, layer: Any, x: Names, y: Names) -> Names:
    """The function returns h of all steps, and then the states after the last one."""
    Y, *ends = each(y)
    names = [Y, *(ends or ["*_"])] if layer.return_sequences else ["_", *(ends or [Y, "*_"])]
    network.call(getattr(plain, layer.cell), layer, x, tuple(names), network._changed(layer))
    if ends and not layer.return_sequences:
        network.statement(f"{Y} = {ends[0]}")
    return y


def bidirectional(network: Network, layer: Any, x: str, y: str) -> str:
    with network.variable("F") as forward, network.variable("B") as backward:
        network.add(layer.layer, x, forward)
        network.add(layer.reverse, f"{x}[:, ::-1]", backward)
        if len(layer.output_shape) == 2:
            network.statement(f"{backward} = {backward}[:, ::-1]")
        both = f"np.concatenate([{forward}, {backward}], axis=-1)"
        total = f"{forward} + {backward}" if layer.merge == "add" else both
        network.statement(f"{y} = {total}", layer.output_shape)
    return y


def one_line(layer: Layer, longest: int = 70) -> str:
    """Return the layer's repr as printable text without line breaks; a long one as its class."""
    text = repr(layer)
    text = text if len(text) <= longest else type(layer).__name__
    return "".join(c if c.isprintable() else " " for c in text)
