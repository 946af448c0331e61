"""From the nodes of a graph to steps: rearrangements disappear, constants are computed.

`Interpreter` runs through the nodes once. A node with constant inputs becomes a constant. A node
that only rearranges elements becomes a view. Any other node becomes a `Step`, whose output axes
are known. What cannot be understood becomes an error, which is raised only if the output of the
graph depends on it.

ONNX's own reference evaluator computes constants, mostly arithmetic with shapes. It also says what
a Reshape or a Slice does, as it runs on an array of the same sizes. Every result
counts towards a budget that depends on the size of the file, so that neither the memory nor the
time that a hostile file takes is more than a small multiple of its size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from phitodeep.core.types import Array
from phitodeep.errors import DataError, PhitodeepError
from phitodeep.exchange.onnx.read.axes import ONE, PROBES, Axis, Group, Size, new
from phitodeep.exchange.onnx.read.reading import (
    FLOATS,
    INTEGERS,
    MOST_AXES,
    TYPES,
    File,
    Input,
    Node,
)
from phitodeep.exchange.onnx.read.values import (
    Constant,
    LabelError,
    Reader,
    Step,
    Value,
    View,
    constant,
)

MOST_SOURCES = 8
ELEMENTWISE = {
    *("Neg", "Abs", "Sqrt", "Reciprocal", "Exp", "Log", "Sin", "Cos", "Floor", "Ceil", "Not"),
    *("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Min", "Max", "And", "Or", "Where"),
    *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
}
VIEWS = {  # whose output takes no memory of its own
    *("Identity", "Dropout", "Shape", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"),
    "Slice",
}
REDUCED = {"Trilu", "ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin"}
OTHERS = {"Constant", "Cast", "Concat", "Gather", "Expand", "ConstantOfShape", "Range"}
CANNOT = (  # what the evaluator raises on what it does not have, or cannot compute
    *(NotImplementedError, RuntimeError, ValueError, TypeError, KeyError, IndexError),
    *(AttributeError, AssertionError, OverflowError, ZeroDivisionError),
)


# --- constants ------------------------------------------------------------------------------------


class Budget:
    """How many bytes of constants may still be computed."""

    def __init__(self, size: int) -> None:
        self.left = 16 * size + (1 << 24)

    def take(self, shape: Iterable[Any], itemsize: int = 8) -> None:
        """Count an array of this shape."""
        shape = [int(n) for n in shape]
        if len(shape) > MOST_AXES or min(shape, default=0) < 0:
            raise DataError(f"it computes a constant of the shape {shape[:MOST_AXES]}")
        self.left -= math.prod(shape) * itemsize + 64
        if self.left < 0:
            raise DataError("its constants are much larger than the file")


def folded(node: Node, inputs: Sequence[Any], budget: Budget) -> Constant:
    """Return the output of an operator whose inputs are constants."""
    return constant(computed(node, inputs, budget), _sources([i for i in inputs if i is not None]))


def computed(node: Node, inputs: Sequence[Any], budget: Budget) -> list[Array]:
    """Return the output of an operator for constants: an array, or one for each probe."""
    if node.op not in ELEMENTWISE | VIEWS | REDUCED | OTHERS:
        raise DataError("this operator is not supported on constants")
    given: list[Constant] = [i for i in inputs if i is not None]
    if len(given) < len(inputs) and (node.op not in VIEWS | REDUCED or inputs[0] is None):
        raise DataError("one of its inputs is missing")
    outs = []
    for probe in range(1 if all(i.fixed for i in given) else PROBES):
        arrays = [None if i is None else i.each()[probe] for i in inputs]
        try:
            outs.append(_computed(node, arrays, budget))
        except DataError:
            raise
        except CANNOT as error:
            raise DataError(f"it cannot be computed: {error}") from None
    return outs


def _computed(node: Node, arrays: list[Any], budget: Budget) -> Array:
    """Return the output of an operator, in its newest version."""
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    a = node.attributes
    if node.op == "Constant":
        return _value(a)
    if a.get("to", 1) not in TYPES:
        raise DataError(f"a cast to the type {a['to']} is not supported")
    size = max(i.itemsize for i in arrays if i is not None)
    budget.take(_largest(node, arrays), {"Cast": 8}.get(node.op, 0 if node.op in VIEWS else size))
    if node.op in ("Identity", "Dropout"):
        return arrays[0]
    if node.op == "ConstantOfShape":
        fill = _value(a) if a else np.zeros(1, np.float32)
        return np.full(arrays[0], fill.reshape(()), fill.dtype)
    if a.get("noop_with_empty_axes") and [np.size(i) for i in arrays[1:]] == [0]:
        return arrays[0]  # before 1.20, onnx would reduce all axes
    names = ["" if i is None else f"x{n}" for n, i in enumerate(arrays)]
    evaluator = ReferenceEvaluator(helper.make_node(node.op, names, ["y"], **a))
    outputs: Any = evaluator.run(None, dict(zip(names, arrays, strict=True)))
    return np.asarray(outputs[0])


def _largest(node: Node, arrays: list[Any]) -> Iterable[Any]:
    """Return a shape with at least as many elements as the output of an operator."""
    if node.op in ELEMENTWISE:
        return np.broadcast_shapes(*(a.shape for a in arrays))
    if node.op == "Concat":
        return [sum(a.size for a in arrays)]
    if node.op == "Gather":
        axis = axis_of(node.attributes.get("axis", 0), arrays[0].ndim)
        return np.delete(arrays[0].shape, axis).tolist() + list(arrays[1].shape)
    if node.op == "Expand":
        return np.broadcast_shapes(arrays[0].shape, tuple(integers("shape", arrays[1])))
    if node.op == "ConstantOfShape":
        return integers("shape", arrays[0])
    if node.op == "Range":
        start, limit, delta = (a.item() for a in arrays)
        return [max(0, math.ceil((limit - start) / delta))]
    return arrays[0].shape


def _value(attributes: dict[str, Any]) -> Array:
    """Return the array of a Constant or ConstantOfShape: one attribute holds it."""
    ((name, found),) = attributes.items()
    if isinstance(found, DataError):
        raise found
    if isinstance(found, np.ndarray):
        return found
    if not name.startswith(("value_float", "value_int")):
        raise DataError("it holds no array of numbers")
    return np.array(found, np.float32 if name.startswith("value_float") else np.int64)


def _sources(inputs: list[Constant]) -> tuple[Array, ...]:
    """Return the arrays that a constant of an unknown shape is computed from: see `Constant`."""
    found: list[Array] = []
    for given in inputs:
        own = given.arrays if given.fixed else given.sources
        found += [a for a in own if a.dtype.kind == "f" and a.size > 1]
    return tuple({id(a): a for a in found}.values())[:MOST_SOURCES]


def integers(name: str, a: Array) -> list[int]:
    """Return the elements of an array that must be a few integers."""
    if a.dtype.kind not in "iu" or a.size > 1 << 16:
        raise DataError(f"its {name} must be a few integers")
    return [int(n) for n in a.ravel()]


def axis_of(axis: Any, rank: int) -> int:
    """Return an axis counted from 0."""
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise DataError(f"its axis {axis} does not exist in {rank} axes")
    return axis % rank


# --- nodes ----------------------------------------------------------------------------------------

CONTROL = {"If", "Loop", "Scan", "SequenceMap"}
LABELS = {"ArgMax", "ArgMin", "ArrayFeatureExtractor", "Binarizer", "LabelEncoder", "TopK"}


class Call(Reader):
    """A node with its inputs, which a handler turns into values."""

    def __init__(self, it: Interpreter, node: Node, inputs: Sequence[Value | None]) -> None:
        super().__init__(node.op, node.name, inputs)
        self.it, self.node, self.outputs = it, node, node.outputs
        self.attributes = node.attributes

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def axis(self, rank: int, default: Any = None) -> int:
        """Return the attribute `axis`, counted from 0."""
        return axis_of(self.attributes.get("axis", default), rank)

    def ints(self, i: int) -> list[int] | None:
        """Return integers that are an input."""
        given = self.const(i)
        return None if given is None else integers(f"input {i}", given.array(f"its input {i}"))

    def tried(self, shapes: Iterable[Sequence[int]], along: int | None = None) -> list[Array]:
        """Return the output for an array of each shape, which counts places along an axis, or 0."""
        arrays = []
        for shape in shapes:
            places = np.zeros(1, np.int64)
            if along is not None:
                self.it.budget.take([shape[along]])
                places = np.arange(shape[along]).reshape(-1, *[1] * (len(shape) - 1 - along))
            try:
                arrays.append(np.broadcast_to(places, shape))
            except ValueError as error:
                raise DataError(f"its input is too large: {error}") from None
        others = [self.const(i) for i in range(1, len(self.inputs))]
        return computed(self.node, [Constant(tuple(arrays)), *others], self.it.budget)

    def step(
        self,
        op: str,
        inputs: Sequence[Value | None],
        groups: Sequence[Group],
        integers: bool = False,
        plan: Any = None,
        /,
        **settings: Any,
    ) -> View:
        """Add a step, and return its output."""
        steps = self.it.steps
        made = Step(op, self.name, inputs, tuple(groups), len(steps), integers, plan, settings)
        steps.append(made)
        return made.output


Outputs = list[Value | DataError]
Handler = Callable[[Call], Value | Outputs]
HANDLERS: dict[str, Handler] = {}


def handles(*ops: str) -> Callable[[Handler], Handler]:
    """Declare the function that turns nodes of these operators into values.

    A single value is the first output of the node: others are not supported.
    """

    def declare(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(ops, handler))
        return handler

    return declare


class Interpreter:
    """The values of a graph.

    sizes      for each axis of each input, its size in each probe
    inputs     the steps that stand for the inputs
    batch      the axis of the samples; `batch_at` are its places in the inputs
    """

    def __init__(self, file: File, sizes: list[list[Size]], batch_at: Sequence[int]) -> None:
        self.file, self.opset = file, file.opset
        self.budget = Budget(file.size)
        self.steps: list[Step] = []
        self.values: dict[str, Value | DataError] = {
            name: a if isinstance(a, DataError) else Constant((a,))
            for name, a in file.constants.items()
        }
        if not file.inputs:
            raise DataError(f"{file.path} has no inputs.")
        self.batch = Axis(sizes[0][batch_at[0]] if sizes[0] else ONE)
        self.inputs = [*map(self._input, file.inputs, sizes, batch_at)]
        for node in file.nodes:
            self._run(node)

    def _input(self, given: Input, sizes: Sequence[Size], batch_at: int) -> Step:
        """Return the step that stands for an input."""
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
        groups: list[Group] = [new(size) for size in sizes]
        if sizes[batch_at] != self.batch.size:
            raise DataError(f"the inputs of {self.file.path} have different numbers of samples.")
        groups[batch_at] = (self.batch,)
        whole = given.type in INTEGERS
        name = f"the input {given.name!r}"
        step = Step("Input", name, (), tuple(groups), len(self.steps), whole, None, {})
        self.steps.append(step)
        self.values[given.name] = step.output
        return step

    def _run(self, node: Node) -> None:
        """Add the outputs of a node."""
        inputs = [self.values[name] if name else None for name in node.inputs]
        while inputs and inputs[-1] is None:
            inputs.pop()
        refused = next((i for i in inputs if isinstance(i, DataError)), None)
        found: Outputs = []
        try:
            if refused is None:
                found = self._outputs(node, [i for i in inputs if not isinstance(i, DataError)])
        except PhitodeepError as error:  # perhaps of a layer
            kind = type(error) if isinstance(error, DataError) else DataError
            refused = kind(f"{node.name}: {str(error).rstrip('.')}.")
        for i, name in enumerate(node.outputs):
            missing = DataError(f"{node.name}: its output {name!r} is not supported.")
            self.values[name] = found[i] if i < len(found) else refused or missing

    def _outputs(self, node: Node, inputs: list[Value | None]) -> Outputs:
        if node.op in CONTROL or any(value is None for value in node.attributes.values()):
            raise DataError("control flow is not supported: export the network without it")
        if node.op in LABELS:
            raise LabelError("labels are not supported: a model returns numbers")
        if not inputs and node.op != "Constant":
            raise DataError("it has no inputs")
        if not any(isinstance(i, View) for i in inputs):
            return [folded(node, inputs, self.budget)]
        handler = HANDLERS.get(node.op)
        if handler is None:
            raise DataError("no layer computes this operator")
        outputs = handler(Call(self, node, inputs))
        return outputs if isinstance(outputs, list) else [outputs]
