"""Operators on constants, as exporters use them: mostly arithmetic with shapes.

ONNX's own reference evaluator computes them. Every result counts towards a budget that depends on
the size of the file, so that neither the memory nor the time that a hostile file takes is more than
a small multiple of its size.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from phitodeep.core.types import Array
from phitodeep.errors import DataError
from phitodeep.exchange.onnx.read.axes import PROBES
from phitodeep.exchange.onnx.read.reading import MOST_AXES, TYPES, Node
from phitodeep.exchange.onnx.read.values import Constant, constant

Arrays = list[Any]
MOST_SOURCES = 8
ELEMENTWISE = {
    *("Neg", "Abs", "Sqrt", "Reciprocal", "Exp", "Log", "Sin", "Cos", "Floor", "Ceil", "Not"),
    *("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Min", "Max", "And", "Or", "Where"),
    *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
}
VIEWS = {  # whose output takes no memory of its own
    *("Identity", "Dropout", "Shape", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Slice"),
}
REDUCED = {"Trilu", "ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin"}
OTHERS = {"Constant", "Cast", "Concat", "Gather", "Expand", "ConstantOfShape", "Range"}
WRONG = (  # what the evaluator raises
    *(ValueError, TypeError, IndexError, KeyError, OverflowError, ZeroDivisionError),
    *(NotImplementedError, RuntimeError, AttributeError, AssertionError),
)


class Budget:
    """How many bytes of constants may still be computed."""

    def __init__(self, size: int) -> None:
        self.left = 16 * size + (1 << 24)

    def take(self, shape: Any, itemsize: int = 8) -> None:
        """Count an array of this shape."""
        shape = [int(n) for n in shape]
        if len(shape) > MOST_AXES or min(shape, default=0) < 0:
            raise DataError(f"it computes a constant of the shape {shape[:MOST_AXES]}")
        self.left -= math.prod(shape) * itemsize + 64
        if self.left < 0:
            raise DataError("its constants are much larger than the file")


def folded(node: Node, inputs: list[Constant | None], budget: Budget, opset: int) -> Constant:
    """Return the output of an operator whose inputs are constants."""
    if node.op not in ELEMENTWISE | VIEWS | REDUCED | OTHERS:
        raise DataError("this operator is not supported on constants")
    given = [i for i in inputs if i is not None]
    if len(given) < len(inputs) and (node.op not in VIEWS | REDUCED or inputs[0] is None):
        raise DataError("one of its inputs is missing")
    fixed = all(i.fixed for i in given)
    outs = []
    for probe in range(1 if fixed else PROBES):
        arrays = [None if i is None else i.at(probe) for i in inputs]
        try:
            outs.append(_computed(node, arrays, budget, opset))
        except DataError:
            raise
        except WRONG as error:
            raise DataError(f"it cannot be computed: {error}") from None
    return Constant((outs[0],)) if fixed else constant(outs, _sources(given))


def _computed(node: Node, arrays: Arrays, budget: Budget, opset: int) -> Array:
    """Return the output of an operator."""
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
    names = ["" if i is None else f"x{n}" for n, i in enumerate(arrays)]
    evaluator = ReferenceEvaluator(helper.make_node(node.op, names, ["y"], **a), {"": opset})
    return np.asarray(evaluator.run(None, dict(zip(names, arrays, strict=True)))[0])


def _largest(node: Node, arrays: Arrays) -> Any:
    """Return a shape with at least as many elements as the output of an operator."""
    if node.op in ELEMENTWISE:
        return np.broadcast_shapes(*(a.shape for a in arrays))
    if node.op == "Concat":
        return [sum(a.size for a in arrays)]
    if node.op == "Gather":
        axis = axis_of(node.attributes.get("axis", 0), arrays[0].ndim)
        return np.delete(arrays[0].shape, axis).tolist() + list(arrays[1].shape)
    if node.op == "Expand":
        return np.broadcast_shapes(arrays[0].shape, tuple(ints(node, "shape", arrays, 1) or ()))
    if node.op == "ConstantOfShape":
        return ints(node, "shape", arrays, 0)
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


def ints(node: Node, name: str, inputs: Arrays, i: int) -> list[int] | None:
    """Return integers that are an input, or in older versions an attribute; None if left out."""
    if i < len(inputs) and inputs[i] is not None:
        if inputs[i].dtype.kind not in "iu" or inputs[i].size > 1 << 16:
            raise DataError(f"its {name} must be a few integers")
        return [int(n) for n in inputs[i].ravel()]
    value = node.attributes.get(name)
    if value is not None and not (
        isinstance(value, list) and all(isinstance(n, int) for n in value)
    ):
        raise DataError(f"its {name} must be integers")
    return value


def axis_of(axis: Any, rank: int) -> int:
    """Return an axis counted from 0."""
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise DataError(f"its axis {axis} does not exist in {rank} axes")
    return axis % rank


def cut(node: Node, sizes: Any) -> Any:
    """Return the part of a shape that the attributes of Shape select."""
    return sizes[slice(node.attributes.get("start", 0), node.attributes.get("end"))]


def sizes_after(node: Node, sizes: Any, target: list[int] | None) -> list[int]:
    """Return the sizes after a Reshape; 0 keeps a size, and -1 is what remains."""
    if target is None or len(target) > MOST_AXES:
        raise DataError("its shape is missing or has too many axes")
    if not node.attributes.get("allowzero"):
        if any(n == 0 and i >= len(sizes) for i, n in enumerate(target)):
            raise DataError(f"its shape {target} keeps an axis that its input does not have")
        target = [sizes[i] if n == 0 else n for i, n in enumerate(target)]
    if target.count(-1) == 1:
        known = math.prod(n for n in target if n != -1)
        total = math.prod(sizes)
        if known < 1 or total % known:
            raise DataError(f"its shape {target} does not fit {total} elements")
        target = [total // known if n == -1 else n for n in target]
    if min(target, default=1) < 0 or math.prod(target) != math.prod(sizes):
        raise DataError(f"its shape {target} does not fit the sizes {list(sizes)}")
    return target


def ranges(
    node: Node, sizes: Any, starts: Any, ends: Any, axes: Any, steps: Any
) -> list[tuple[int, range]]:
    """Return (axis, positions) for each axis that a Slice cuts."""
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise DataError("its starts, ends, axes and steps do not fit together")
    axes = [axis_of(axis, len(sizes)) for axis in axes]
    if len(set(axes)) < len(axes):
        raise DataError("it cuts one axis twice")
    cuts = zip(axes, starts, ends, steps, strict=True)
    return [(i, range(sizes[i])[start:end:step]) for i, start, end, step in cuts]


def slices(node: Node, arrays: Arrays) -> tuple[Any, Any, Any, Any]:
    """Return starts, ends, axes and steps of a Slice."""
    starts, ends, axes, steps = (
        ints(node, name, arrays, i) for i, name in enumerate(("starts", "ends", "axes", "steps"), 1)
    )
    if starts is None or ends is None:
        raise DataError("its starts or ends are missing")
    return starts, ends, axes, steps
