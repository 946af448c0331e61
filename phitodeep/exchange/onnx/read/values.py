"""What a name in a graph stands for: a constant, a view of a step's output, or an error."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.types import Array
from phitodeep.errors import DataError
from phitodeep.exchange.onnx.read.axes import PROBES, Groups, Size, expanded, size_of


class LabelError(DataError):
    """An output holds labels of classes, which a model does not return."""


class Constant(NamedTuple):
    """A value that does not depend on the elements of the input, but possibly on its shape.

    arrays    one, or if it depends on the shape, one for each probe
    sources   if it depends on the shape: arrays that it was computed from, such as all vectors of
              a positional embedding, or the frequencies of an encoding
    """

    arrays: tuple[Array, ...]
    sources: tuple[Array, ...] = ()

    @property
    def fixed(self) -> bool:
        return len(self.arrays) == 1

    def at(self, probe: int) -> Array:
        return self.arrays[0] if self.fixed else self.arrays[probe]

    def each(self) -> list[Array]:
        """Return the array for each probe."""
        return [self.at(i) for i in range(PROBES)]

    def array(self, what: str) -> Array:
        """Return the array, which must not depend on the shape of the input."""
        if not self.fixed:
            raise DataError(f"{what} depends on the size of the input")
        return self.arrays[0]

    def scalar(self) -> float | None:
        """Return the only element, or None if there are several, or it depends on the shape."""
        if not self.fixed or self.arrays[0].size != 1 or self.arrays[0].dtype == bool:
            return None
        return float(self.arrays[0].reshape(()))


def constant(arrays: list[Array], sources: tuple[Array, ...] = ()) -> Constant:
    """Return a constant, given its value for each probe."""
    first, *others = arrays
    if all(_identical(first, a) for a in others):
        return Constant((first,))
    return Constant(tuple(arrays), sources)


def _identical(a: Array, b: Array) -> bool:
    return a is b or (
        a.dtype == b.dtype
        and a.shape == b.shape
        and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    )


class Step:
    """An operation on elements of the input.

    index       its place in the graph
    name        for error messages
    op          its kind
    inputs      views, and constants or None for those that are left out
    settings    whatever else its kind needs
    groups      the axes of its output
    integers    whether its output holds integers
    """

    def __init__(
        self,
        index: int,
        name: str,
        op: str,
        inputs: tuple[Value | None, ...],
        settings: dict[str, Any],
        groups: Groups,
        integers: bool = False,
    ) -> None:
        self.index, self.name, self.op, self.inputs = index, name, op, inputs
        self.settings, self.groups, self.integers = settings, groups, integers

    def view(self, i: int = 0) -> View:
        """Return an input that must be a view."""
        value = self.inputs[i]
        if not isinstance(value, View):
            raise DataError("its data must depend on the input of the graph")
        return value

    def const(self, i: int) -> Constant | None:
        """Return an input that must be a constant, or None if it is left out."""
        value = self.inputs[i] if i < len(self.inputs) else None
        if isinstance(value, View):
            raise DataError(f"its input {i} must be a constant")
        return value

    def array(self, i: int) -> Array:
        """Return an input that must be a constant array."""
        value = self.const(i)
        if value is None:
            raise DataError(f"its input {i} is missing")
        return value.array(f"its input {i}")

    @property
    def output(self) -> View:
        return View(self, self.groups)


class View(NamedTuple):
    """The output of a step, with its axes rearranged."""

    step: Step
    groups: Groups

    def sizes(self) -> list[Size]:
        return [size_of(group) for group in self.groups]

    def is_(self, other: View) -> bool:
        """Return whether both hold the same elements in the same arrangement."""
        return self.step is other.step and expanded(self.groups) == expanded(other.groups)


class Refused(NamedTuple):
    """A value that cannot be understood, which matters only if the output depends on it."""

    error: DataError


Value = Constant | View
