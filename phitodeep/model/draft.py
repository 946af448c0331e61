"""The wiring of a network while a builder writes it: values, their names, and who reads them."""

from __future__ import annotations

from collections.abc import Sequence
from keyword import iskeyword
from typing import Any, NamedTuple

from phitodeep.core.checks import snake_case
from phitodeep.errors import ArgumentError, UnknownNameError
from phitodeep.layers.base import Layer
from phitodeep.layers.wiring import check_name

INPUT = "input"  # the value of an input without a name


class Head(NamedTuple):
    """An output: its value, and what it is trained for."""

    value: int  # its number
    loss: Any = None
    metrics: Sequence[Any] = ()
    weight: float = 1.0


class Draft:
    """Layers in their order, each with the numbers of the values that it reads and gives.

    names      what the user calls values: a name may come to stand for another value
    current    the value that the next layer reads
    heads      the outputs by name
    """

    def __init__(self, inputs: Sequence[str] = (INPUT,)) -> None:
        self.inputs = tuple(inputs)
        self.labels: list[str] = []  # the name of each value, or the kind of layer that gave it
        self.names: dict[str, int] = {}
        self.uses: list[tuple[Layer, tuple[int, ...], tuple[int, ...]]] = []
        self.heads: dict[str, Head] = {}
        for name in self.inputs:
            check_name(name, [*self.names], "the input")
            self.names[name] = self._new(name)
        self.current = 0

    def _new(self, label: str) -> int:
        self.labels.append(label)
        return len(self.labels) - 1

    def value(self, name: str) -> int:
        """The value of this name, or refuse it."""
        if name not in self.names:
            raise UnknownNameError.of(name, self.names, "one of the values with names so far")
        return self.names[name]

    def add(self, layer: Layer, *others: str) -> None:
        """Let a layer read the current value, and these others after it."""
        reads = (self.current, *map(self.value, others))
        number = layer.outputs if isinstance(layer, Layer) else 1
        label = snake_case(type(layer).__name__)
        label += "_" * iskeyword(label)
        gives = tuple([self._new(label) for _ in range(number)])
        self.uses.append((layer, reads, gives))
        self.current = gives[0]

    shared = add

    def name(self, *names: str) -> None:
        """Name what the last layer gave; naming again gives a name to another value."""
        last = self.uses[-1][2] if self.uses and self.current in self.uses[-1][2] else ()
        values = last if len(names) > 1 else (self.current,)
        if len(names) != len(values) or not names:
            raise ArgumentError(f"name takes a name for each of {len(values)} values, got {names}.")
        for name, value in zip(names, values, strict=True):
            check_name(name, [], "name")
            self.names[name] = value
            if value >= len(self.inputs):  # an input keeps its own
                self.labels[value] = name

    def at(self, name: str) -> None:
        """Go on from the value of this name."""
        self.current = self.value(name)

    def output(self, name: str, **options: Any) -> None:
        """End a head: the current value is the output of this name."""
        check_name(name, [*self.heads], "the output")
        if taken := [other for other, known in self.heads.items() if known.value == self.current]:
            raise ArgumentError(f"the output {name!r} has the value of the output {taken[0]!r}.")
        self.heads[name] = Head(self.current, **options)

    def wired(self) -> tuple[list[str], list[Any], list[str]]:
        """The inputs, the uses and the outputs, with a different name for each value."""
        outputs = {head.value: name for name, head in self.heads.items()}
        taken = {*self.inputs, *outputs.values()}
        names: list[str] = []
        for k, label in enumerate(self.labels):
            name, n = label, 1
            while name in taken and k >= len(self.inputs):
                n += 1
                name = f"{label}_{n}"
            names.append(outputs.get(k, name))
            taken.add(names[-1])
        uses = [
            (layer, [names[k] for k in reads], [names[k] for k in gives])
            for layer, reads, gives in self.uses
        ]
        return [*self.inputs], uses, [*self.heads] or [names[self.current]]
