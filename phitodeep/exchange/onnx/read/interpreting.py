"""From the nodes of a graph to steps: rearrangements disappear, constants are computed.

`Interpreter` runs through the nodes once. A node with constant inputs becomes a constant. A node
that only rearranges elements becomes a view. Any other node becomes a `Step`, whose output axes
are known. What cannot be understood becomes `Refused`, and is an error only if the output of the
graph depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from phitodeep.errors import DataError
from phitodeep.exchange.onnx.read import folding
from phitodeep.exchange.onnx.read.axes import PROBES, Axis, Group, Size, new, same
from phitodeep.exchange.onnx.read.folding import Budget, folded, ints
from phitodeep.exchange.onnx.read.reading import FLOATS, INTEGERS, File, Node
from phitodeep.exchange.onnx.read.values import (
    Constant,
    LabelError,
    Refused,
    Step,
    Value,
    View,
    constant,
)

CONTROL = {"If", "Loop", "Scan", "SequenceMap"}
LABELS = {
    *("ArgMax", "ArgMin", "ArrayFeatureExtractor", "Binarizer", "LabelEncoder", "TopK"),
}
Inputs = list[Any]  # constants, views, and None for those that are left out
Handler = Callable[["Interpreter", Node, Inputs], Value | list[Value | Refused]]
HANDLERS: dict[str, Handler] = {}


def handles(*ops: str) -> Callable[[Handler], Handler]:
    """Declare the function that turns nodes of these operators into values."""

    def declare(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(ops, handler))
        return handler

    return declare


class Interpreter:
    """The values of a graph.

    unknown    for each axis of unknown size of the input, its size in each probe
    batch      the axis of the samples; `batch_at` is its place in the input
    """

    def __init__(self, file: File, unknown: Sequence[Size], batch_at: int = 0) -> None:
        self.file, self.opset = file, file.opset
        self.budget = Budget(file.size)
        self.steps: list[Step] = []
        self.values: dict[str, Value | Refused] = {}
        for name, array in file.constants.items():
            if isinstance(array, DataError):
                self.values[name] = Refused(array)
            else:
                self.values[name] = Constant((array,))
        self.input = self._input(unknown, batch_at)
        for node in file.nodes:
            self._run(node)

    def _input(self, unknown: Sequence[Size], batch_at: int) -> Step:
        """Return the step that stands for the only input."""
        if len(self.file.inputs) != 1:
            names = ", ".join(repr(i.name) for i in self.file.inputs[:9]) or "none"
            raise DataError(
                f"{self.file.path} has the inputs {names}: a model takes exactly one. Export the "
                "network with a single input."
            )
        given = self.file.inputs[0]
        if given.type not in FLOATS | INTEGERS:
            raise DataError(
                f"the input {given.name!r} of {self.file.path} holds elements of type "
                f"{given.type}: float32, float64, int32 and int64 are supported."
            )
        if len(given.sizes) < 1 + (given.type in FLOATS):
            raise DataError(
                f"the input {given.name!r} of {self.file.path} must have the batch as its first "
                f"axis, followed by features, got {len(given.sizes)} axes."
            )
        rest = iter(unknown)
        sizes = [next(rest) if n is None else same(n) for n in given.sizes]
        groups: list[Group] = [new(size) for size in sizes]
        if batch_at < len(sizes):
            groups[batch_at] = (Axis(sizes[batch_at]),)
        integers = given.type in INTEGERS
        step = Step(0, f"the input {given.name!r}", "Input", (), {}, tuple(groups), integers)
        self.batch = groups[min(batch_at, len(groups) - 1)][0]
        self.steps.append(step)
        self.values[given.name] = step.output
        return step

    def _run(self, node: Node) -> None:
        """Add the outputs of a node."""
        inputs: Inputs = []
        for name in node.inputs:
            if name and name not in self.values:
                raise DataError(f"{node.name} reads {name!r}, which nothing before it computes.")
            inputs.append(self.values[name] if name else None)
        while inputs and inputs[-1] is None:
            inputs.pop()
        refused = next((i for i in inputs if isinstance(i, Refused)), None)
        found: Value | Refused | list[Value | Refused]
        if refused is not None:
            found = refused
        else:
            try:
                found = self._outputs(node, inputs)
            except DataError as error:
                found = Refused(type(error)(f"{node.name}: {error}."))
        for i, name in enumerate(node.outputs):
            if isinstance(found, list):
                missing = Refused(DataError(f"{node.name}: its output {name!r} is not supported."))
                self.values[name] = found[i] if i < len(found) else missing
            else:
                self.values[name] = found

    def _outputs(self, node: Node, inputs: Inputs) -> Value | list[Value | Refused]:
        if node.op in CONTROL or any(value is None for value in node.attributes.values()):
            raise DataError("control flow is not supported: export the network without it")
        if node.op in LABELS:
            raise LabelError("labels are not supported: a model returns numbers")
        if not inputs and node.op != "Constant":
            raise DataError("it has no inputs")
        if node.op == "Shape" and isinstance(inputs[0], View):
            return self._shape(node, inputs[0])
        if all(i is None or isinstance(i, Constant) for i in inputs):
            return folded(node, inputs, self.budget, self.opset)
        handler = HANDLERS.get(node.op)
        if handler is None:
            raise DataError("no layer computes this operator")
        return handler(self, node, inputs)

    def _shape(self, node: Node, x: View) -> Constant:
        sizes = folding.cut(node, x.sizes())
        return constant([np.array([s[i] for s in sizes], np.int64) for i in range(PROBES)])

    # --- what handlers use -----------------------------------------------------------------

    def step(
        self,
        node: Node,
        op: str,
        inputs: Sequence[Value | None],
        groups: Sequence[Group],
        integers: bool = False,
        **settings: Any,
    ) -> View:
        """Add a step, and return its output."""
        step = Step(
            len(self.steps), node.name, op, tuple(inputs), settings, tuple(groups), integers
        )
        self.steps.append(step)
        return step.output


def data(inputs: Inputs, i: int = 0) -> View:
    """Return an input that depends on the input of the graph."""
    if i >= len(inputs) or not isinstance(inputs[i], View):
        raise DataError(f"its input {i} must depend on the input of the graph")
    view: View = inputs[i]
    return view


def parameter(inputs: Inputs, i: int) -> Constant | None:
    """Return a constant input, or None if it is left out."""
    if i >= len(inputs) or inputs[i] is None:
        return None
    if not isinstance(inputs[i], Constant):
        raise DataError(f"its input {i} must be a constant")
    found: Constant = inputs[i]
    return found


def array(inputs: Inputs, i: int, rank: int | None = None) -> np.ndarray:
    """Return a constant input that is an array of this rank."""
    found = parameter(inputs, i)
    if found is None:
        raise DataError(f"its input {i} is missing")
    a = found.array(f"its input {i}")
    if rank is not None and a.ndim != rank:
        raise DataError(f"its input {i} has {a.ndim} axes instead of {rank}")
    return a


def fixed_ints(node: Node, name: str, inputs: Inputs, i: int) -> list[int] | None:
    """Return integers, from an input or an attribute, that do not depend on the input's shape."""
    given = parameter(inputs, i)
    arrays = [None] * i + ([] if given is None else [given.array(f"its {name}")])
    return ints(node, name, arrays, i)
