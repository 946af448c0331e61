"""From a graph of operations to a tree of layers.

Other libraries describe a network as a graph: each operation names the values that it reads and the
value that it computes. A chain of operations becomes layers one after another. Where several values
are merged, the paths to them begin at the last value that all of them pass through (the immediate
dominator of the merge). They become the branches of a container: Residual, SkipConcat or Parallel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from phitodeep.core.types import Shape, each
from phitodeep.errors import ArgumentError
from phitodeep.layers.base import Layer
from phitodeep.layers.containers import Chain, Parallel, Residual, SkipConcat
from phitodeep.layers.merging import Add, Average, Concat, Maximum, Multiply, Subtract
from phitodeep.layers.tying import Shared
from phitodeep.layers.wiring import Wired, check_name

Sizes = tuple[int | None, ...]  # of one sample; None: any
DEEPEST = 100  # containers inside each other
MERGES: dict[str, type[Layer]] = {
    "add": Add,
    "subtract": Subtract,
    "multiply": Multiply,
    "concat": Concat,
    "average": Average,
    "maximum": Maximum,
}


class NoTreeError(ArgumentError):
    """The graph is not a tree of containers, but it may be a network: see `as_model`."""


class Operation(NamedTuple):
    """One step of a graph.

    name      for error messages
    inputs    the names of the values that it reads, without constants
    output    the name of the value that it computes, or a tuple of several
    does      a layer, or the way to merge several values, as in Parallel: "add", "multiply" or
              "concat" (on the last axis)
    """

    name: str
    inputs: tuple[str, ...]
    output: str | tuple[str, ...]
    does: Layer | str


def as_layers(operations: Iterable[Operation], start: str, end: str) -> list[Layer]:
    """Return layers that compute the value `end` from the value `start`.

    The operations are in an order in which they can run. Those that `end` does not depend on are
    left out. A graph that is not a tree of containers is refused with the name of an operation.
    """
    return _Tree(_needed(operations, [start], [end]), start).layers(start, end)


def _needed(
    operations: Iterable[Operation], starts: Sequence[str], ends: Sequence[str]
) -> list[Operation]:
    """Return the operations that `ends` depend on."""
    made = {value: operation for operation in operations for value in each(operation.output)}
    needed, todo = {*starts}, [(end, "the output") for end in ends]
    while todo:
        value, reader = todo.pop()
        if value in needed:
            continue
        if value not in made:
            raise ArgumentError(f"{reader} reads {value!r}, which no operation computes.")
        needed.update(each(made[value].output))
        todo += [(v, f"the operation {made[value].name!r}") for v in made[value].inputs]
    return [made[v] for v in made if v in needed and v == each(made[v].output)[0]]


def as_model(
    operations: Sequence[Operation], starts: dict[str, str], ends: Sequence[tuple[str, str]],
    sequential: Callable[..., Any], network: Callable[..., Any], **options: Any,
) -> Any:  # fmt: skip
    """Return a `sequential` of layers if the graph is a tree of them, and else a `network`.

    `starts` are the inputs with their names, and `ends` the same of the outputs. The only input is
    called "input", and the only output "output".
    """
    if len(starts) == len(ends) == 1:
        with suppress(NoTreeError):
            (start,), ((end, _),) = starts, ends
            return sequential(*as_layers(operations, start, end), **options)
    found = _needed(operations, [*starts], [value for value, _ in ends])
    values = [value for operation in found for value in each(operation.output)]
    takes, returns = _named(starts.values(), "input"), _named([n for _, n in ends], "output")
    names = {value: f"value_{n}" for n, value in enumerate(values, 1)}
    names |= {v: r for (v, _), r in zip(ends, returns, strict=True)}
    names |= dict(zip(starts, takes, strict=True))
    uses = [
        (
            does if isinstance(does, Layer) else MERGES[does](),
            [names[read] for read in inputs],
            [names[value] for value in each(output)],
        )
        for _, inputs, output, does in found
    ]
    for (value, _), name in zip(ends, returns, strict=True):  # an input, or an output again
        if names[value] != name:
            uses.append((Chain(), [names[value]], [name]))
    return network(takes, uses, returns, **options)


def _named(given: Iterable[str], kind: str) -> list[str]:
    """Return the names in a file if values can have them, or else "input_1" and so on."""
    names = [re.sub(r"\W", "_", name) for name in given]
    if len(names) == 1:
        return [kind]
    try:
        known: list[str] = []
        for name in names:
            check_name(name, known, kind)
    except ArgumentError:
        return [f"{kind}_{n}" for n in range(1, len(names) + 1)]
    return names


class _Tree:
    """The layers between any two values of a graph.

    made      the operation that computes each value
    forks     for each value, the last other value that all paths to it pass through
    depths    how many such values lie before each value
    """

    def __init__(self, operations: list[Operation], start: str) -> None:
        self.made: dict[Any, Operation] = {op.output: op for op in operations}
        self.forks: dict[str, str] = {}
        self.depths = {start: 0}
        taken: dict[str, str] = {}  # values inside branches, and the merge of those branches
        for operation in operations:
            if not operation.inputs:
                raise ArgumentError(
                    f"the operation {operation.name!r} does not depend on the input."
                )
            if isinstance(operation.output, tuple) or (
                isinstance(operation.does, Layer) and operation.does.inputs != 1
            ):
                raise NoTreeError(f"{operation.name!r} reads or gives several values.")
            paths = [self._check(value, operation, taken) for value in operation.inputs]
            while len(set(paths)) > 1:  # step back from the deepest until the paths meet
                i = max(range(len(paths)), key=lambda i: self.depths[paths[i]])
                taken[self._check(paths[i], operation, taken)] = operation.name
                paths[i] = self.forks[paths[i]]
            self.forks[operation.output] = paths[0]
            self.depths[operation.output] = self.depths[paths[0]] + 1

    def _check(self, value: str, reader: Operation, taken: dict[str, str]) -> str:
        """Return the value; refuse it if it lies in a branch of an earlier merge."""
        if value in taken:
            raise NoTreeError(
                f"the operation {reader.name!r} reads {value!r}, which is inside a branch that "
                f"ends at {taken[value]!r}: branches of a tree of layers share no values."
            )
        return value

    def layers(self, start: str, end: str, depth: int = 0) -> list[Layer]:
        """Return the layers from one value to another."""
        found: list[Layer] = []
        while end != start:
            operation, fork = self.made[end], self.forks[end]
            if isinstance(operation.does, Layer):
                found.append(operation.does)
            elif depth == DEEPEST:
                raise NoTreeError(
                    f"the operation {operation.name!r} is inside {DEEPEST} other branches: "
                    "fewer are supported."
                )
            else:
                branches = [self.layers(fork, value, depth + 1) for value in operation.inputs]
                found.append(merged(branches, operation.does))
            end = fork
        return found[::-1]


def merged(branches: list[list[Layer]], merge: str) -> Layer:
    """Return the container that merges branches; a branch without layers is its input itself."""
    if len(branches) == 2:
        first, second = branches
        if merge == "add" and not (first and second):
            return Residual(*first, *second)
        if merge == "concat" and not first:
            return SkipConcat(*second)
    return Parallel(
        *(layers[0] if len(layers) == 1 else Chain(*layers) for layers in branches), merge=merge
    )


def branches_of(container: Any) -> tuple[list[list[Layer]], str]:
    """Return the branches and the merge of a container: the inverse of `merged`."""
    if isinstance(container, Parallel):
        return [[branch] for branch in container.branches], container.merge
    return [[], [*container.layers]], "add" if isinstance(container, Residual) else "concat"


def outer_names(model: Layer) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the inputs and of the outputs: those of a network, or X and Y."""
    return (model.takes, model.returns) if isinstance(model, Wired) else (("X",), ("Y",))


def common(builds: Iterable[Iterable[Shape]]) -> list[Sizes]:
    """Return the shapes that several builds of a layer have, with None for sizes that differ."""
    return [
        tuple([sizes[0] if len({*sizes}) == 1 else None for sizes in zip(*shapes, strict=True)])
        for shapes in zip(*builds, strict=True)
    ]


def bound(layer: Layer) -> Any:
    """Return what computes a layer: of one at a second place, the replica that runs there."""
    return layer._bound() if isinstance(layer, Shared) else layer


def paths_of(model: Layer) -> dict[int, str]:
    """Return the path of each layer by its id.

    What computes a shared layer has the path of the layer, where its weights are.
    """
    found = {id(layer): path for path, layer in model.walk()}
    for path, layer in model.walk():
        if isinstance(layer, Shared):
            found[id(layer._bound())] = found.get(id(layer.layer), path)
    return found
