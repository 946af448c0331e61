"""What a name in a graph stands for: a constant, a view of a step's output, or an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.types import Array
from phitodeep.errors import DataError
from phitodeep.exchange.onnx.read.axes import PROBES, Group, Groups, Size, expanded, size_of

MOST = 16  # operations of one expression
MOST_FEATURES = 1 << 20  # for which a constant of the file is repeated
TOLERANCE = 5e-7  # relative: a few roundings of float32


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

    def each(self) -> tuple[Array, ...]:
        """Return the array for each probe."""
        return self.arrays * PROBES if self.fixed else self.arrays

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
    if all(identical(first, a) for a in others):
        return Constant((first,))
    return Constant(tuple(arrays), sources)


def identical(a: Array, b: Array) -> bool:
    return a is b or (a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))


class Pair(NamedTuple):
    """A view and a constant that are combined; `swapped` if the constant is the first of them."""

    x: View
    c: Constant
    swapped: bool


@dataclass(eq=False)
class Reader:
    """An operation with its inputs: views, constants, and None for those that are left out."""

    op: str
    name: str  # for error messages
    inputs: Sequence[Value | None]

    def view(self, i: int = 0) -> View:
        """Return an input that must depend on the input of the graph."""
        value = self.inputs[i] if i < len(self.inputs) else None
        if not isinstance(value, View):
            raise DataError(f"its input {i} must depend on the input of the graph")
        return value

    def const(self, i: int) -> Constant | None:
        """Return an input that must be a constant, or None if it is left out."""
        value = self.inputs[i] if i < len(self.inputs) else None
        if isinstance(value, View):
            raise DataError(f"its input {i} must be a constant")
        return value

    def array(self, i: int, rank: int | None = None) -> Array:
        """Return an input that must be a constant array, of this rank."""
        value = self.const(i)
        if value is None:
            raise DataError(f"its input {i} is missing")
        a = value.array(f"its input {i}")
        if rank is not None and a.ndim != rank:
            raise DataError(f"its input {i} has {a.ndim} axes instead of {rank}")
        return a

    def views(self) -> list[View]:
        """Return the inputs if all of them depend on the input of the graph, else none."""
        found = [value for value in self.inputs if isinstance(value, View)]
        return found if len(found) == len(self.inputs) else []

    def pair(self, *ops: str) -> Pair | None:
        """Return the two inputs if they are a view and a constant, and the kind is one of `ops`."""
        if len(self.inputs) == 2 and self.op in ops:
            a, b = self.inputs
            if isinstance(a, View) and isinstance(b, Constant):
                return Pair(a, b, swapped=False)
            if isinstance(b, View) and isinstance(a, Constant):
                return Pair(b, a, swapped=True)
        return None


@dataclass(eq=False)
class Step(Reader):
    """An operation on elements of the input.

    groups      the axes of its output
    index       its place in the graph
    integers    whether its output holds integers
    plan        how it becomes layers, unless a pattern with steps before it is recognised: a
                `building.Plan`, or None
    settings    what patterns need to know of it
    """

    groups: Groups
    index: int
    integers: bool
    plan: Any
    settings: dict[str, Any]

    @property
    def output(self) -> View:
        return View(self, self.groups)


class View(NamedTuple):
    """The output of a step, with its axes rearranged."""

    step: Step
    groups: Groups

    def sizes(self) -> list[Size]:
        return [size_of(group) for group in self.groups]

    def shapes(self) -> list[tuple[int, ...]]:
        """Return its shape in each probe."""
        return [tuple(size[i] for size in self.sizes()) for i in range(PROBES)]

    def is_(self, other: View) -> bool:
        """Return whether both hold the same elements in the same arrangement."""
        return self.step is other.step and expanded(self.groups) == expanded(other.groups)

    def made_by(self, *ops: str) -> Step | None:
        """Return the step of such a kind whose output this is, without rearrangement."""
        return self.step if self.step.op in ops and self.is_(self.step.output) else None


def broadcast(inputs: Sequence[Value | None]) -> list[Group]:
    """Return the axes after NumPy's broadcasting of views and constants."""
    views = [i for i in inputs if isinstance(i, View)]
    arrays = [(p, a) for i in inputs if isinstance(i, Constant) for p, a in enumerate(i.each())]
    rank = max([len(view.groups) for view in views] + [a.ndim for _, a in arrays])
    out: list[Group] = [()] * rank
    for view in views:
        for i, group in enumerate(view.groups, rank - len(view.groups)):
            if not out[i]:
                out[i] = group
            elif group and size_of(group) != size_of(out[i]):
                raise DataError("its inputs have different sizes")
    for probe, a in arrays:
        sizes = [size_of(group)[probe] for group in out]
        if any(n not in (1, s) for n, s in zip(a.shape[::-1], sizes[::-1], strict=False)):
            raise DataError(f"a constant of shape {a.shape} does not fit the sizes {sizes}")
    return out


Value = Constant | View


def near(found: float, value: float) -> bool:
    """Return whether a constant of a graph is this value, rounded to float32."""
    return abs(found - value) <= TOLERANCE * abs(value)


def decimal(eps: float) -> float:
    """Return the shortest decimal of a float32, such as 1e-5 for 0.00000999999975."""
    return float(str(np.float32(eps)))


def scalar(value: object) -> float | None:
    return value.scalar() if isinstance(value, Constant) else None
