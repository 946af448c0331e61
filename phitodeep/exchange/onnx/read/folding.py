"""Operators on constants, as exporters use them: mostly arithmetic with shapes.

Every result counts towards a budget that depends on the size of the file, so that neither the
memory nor the time that a hostile file takes is more than a small multiple of its size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from phitodeep.core.types import Array
from phitodeep.errors import DataError
from phitodeep.exchange.onnx.read.axes import PROBES
from phitodeep.exchange.onnx.read.reading import MOST_AXES, Node
from phitodeep.exchange.onnx.read.values import Constant, constant

DTYPES = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_, 11: np.float64}
WRONG = (ValueError, TypeError, IndexError, KeyError, OverflowError, ZeroDivisionError)


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


def folded(node: Node, inputs: list[Constant | None], budget: Budget) -> Constant:
    """Return the output of an operator whose inputs are constants."""
    fold = FOLDS.get(node.op)
    if fold is None:
        raise DataError("this operator is not supported on constants")
    given = [i for i in inputs if i is not None]
    if len(given) < len(inputs) and (node.op not in OPTIONAL or inputs[0] is None):
        raise DataError("one of its inputs is missing")
    fixed = all(i.fixed for i in given)
    outs = []
    for probe in range(1 if fixed else PROBES):
        arrays = [None if i is None else i.at(probe) for i in inputs]
        try:
            outs.append(fold(node, arrays, budget))
        except WRONG as error:
            raise DataError(f"it cannot be computed: {error}") from None
    return Constant((outs[0],)) if fixed else constant(outs, _sources(given))


def _sources(inputs: list[Constant]) -> tuple[Array, ...]:
    """Return the arrays that a constant of an unknown shape is computed from: see `Constant`."""
    found: list[Array] = []
    for given in inputs:
        own = given.arrays if given.fixed else given.sources
        found += [a for a in own if a.dtype.kind == "f" and a.size > 1]
    return tuple({id(a): a for a in found}.values())[:MOST_SOURCES]


MOST_SOURCES = 8


Arrays = list[Any]
Fold = Callable[[Node, Arrays, Budget], Array]


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


def elementwise(f: Callable[..., Array], inputs: int = 2) -> Fold:
    def fold(node: Node, arrays: Arrays, budget: Budget) -> Array:
        if len(arrays) != inputs:
            raise DataError(f"{inputs} inputs are supported, got {len(arrays)}")
        shape = np.broadcast_shapes(*[a.shape for a in arrays])
        budget.take(shape, max(a.itemsize for a in arrays))
        return f(*arrays)

    return fold


def divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.divide(a, b)
    quotient = np.floor_divide(np.abs(a), np.abs(b)) * np.sign(a) * np.sign(b)
    return quotient.astype(a.dtype)


def mod(node: Node, arrays: Arrays, budget: Budget) -> Array:
    f = np.fmod if node.attributes.get("fmod") else np.mod
    return elementwise(f)(node, arrays, budget)


OPTIONAL = {
    "Dropout",
    "Slice",
    "Squeeze",
    "Trilu",
    "ReduceSum",
    "ReduceProd",
    "ReduceMax",
    "ReduceMin",
}


def cast(node: Node, arrays: Arrays, budget: Budget) -> Array:
    dtype = DTYPES.get(node.attributes.get("to", 0))
    if dtype is None:
        raise DataError(f"a cast to the type {node.attributes.get('to')} is not supported")
    budget.take(arrays[0].shape)
    return arrays[0].astype(dtype)


def value(node: Node, arrays: Arrays, budget: Budget) -> Array:
    """Constant: one attribute holds the value."""
    a = node.attributes
    if isinstance(a.get("value"), DataError):
        raise a["value"]
    for name, dtype in (("value_float", np.float32), ("value_int", np.int64)):
        if name in a:
            return np.array(a[name], dtype)
        if f"{name}s" in a:
            return np.array(a[f"{name}s"], dtype)
    if not isinstance(a.get("value"), np.ndarray):
        raise DataError("it holds no array of numbers")
    return a["value"]


def shape(node: Node, arrays: Arrays, budget: Budget) -> Array:
    return np.array(cut(node, arrays[0].shape), np.int64)


def cut(node: Node, sizes: Any) -> Any:
    """Return the part of a shape that the attributes of Shape select."""
    return sizes[slice(node.attributes.get("start", 0), node.attributes.get("end"))]


def reshape(node: Node, arrays: Arrays, budget: Budget) -> Array:
    target = sizes_after(node, arrays[0].shape, ints(node, "shape", arrays, 1))
    budget.take(target, 0)
    return arrays[0].reshape(target)


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


def squeeze(node: Node, arrays: Arrays, budget: Budget) -> Array:
    axes = ints(node, "axes", arrays, 1)
    return np.squeeze(arrays[0], None if axes is None else tuple(axes))


def unsqueeze(node: Node, arrays: Arrays, budget: Budget) -> Array:
    axes = ints(node, "axes", arrays, 1) or []
    if len(axes) + arrays[0].ndim > MOST_AXES:
        raise DataError("it makes too many axes")
    return np.expand_dims(arrays[0], tuple(axes))


def transpose(node: Node, arrays: Arrays, budget: Budget) -> Array:
    return np.transpose(arrays[0], ints(node, "perm", [], 0))


def concat(node: Node, arrays: Arrays, budget: Budget) -> Array:
    for a in arrays:
        budget.take(a.shape, a.itemsize)
    return np.concatenate(arrays, axis_of(node.attributes.get("axis"), arrays[0].ndim))


def gather(node: Node, arrays: Arrays, budget: Budget) -> Array:
    data, indices = arrays
    axis = axis_of(node.attributes.get("axis", 0), data.ndim)
    budget.take((*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]), data.itemsize)
    return np.take(data, indices, axis)


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
    return [(i, _range(sizes[i], start, end, step)) for i, start, end, step in cuts]


def _range(n: int, start: int, end: int, step: int) -> range:
    """Return the positions that ONNX's Slice takes of n; a slice of Python clamps them alike."""
    if step < 0 and end < -n:
        return range(n)[start::step]
    return range(n)[start:end:step]


def slices(node: Node, arrays: Arrays) -> tuple[Any, Any, Any, Any]:
    """Return starts, ends, axes and steps of a Slice."""
    starts, ends, axes, steps = (
        ints(node, name, arrays, i) for i, name in enumerate(("starts", "ends", "axes", "steps"), 1)
    )
    if starts is None or ends is None:
        raise DataError("its starts or ends are missing")
    return starts, ends, axes, steps


def slice_(node: Node, arrays: Arrays, budget: Budget) -> Array:
    found = arrays[0]
    where: list[slice] = [slice(None)] * found.ndim
    for axis, r in ranges(node, found.shape, *slices(node, arrays)):
        stop = None if r.step < 0 and r.stop < 0 else r.stop
        where[axis] = slice(r.start, stop, r.step) if len(r) else slice(0, 0)
    return found[tuple(where)]


def expand(node: Node, arrays: Arrays, budget: Budget) -> Array:
    target = ints(node, "shape", arrays, 1) or []
    out = np.broadcast_shapes(arrays[0].shape, tuple(target))
    budget.take(out, arrays[0].itemsize)
    return np.broadcast_to(arrays[0], out).copy()


def constant_of_shape(node: Node, arrays: Arrays, budget: Budget) -> Array:
    target = ints(node, "shape", arrays, 0) or []
    budget.take(target)
    fill = node.attributes.get("value", np.zeros(1, np.float32))
    if not isinstance(fill, np.ndarray):
        raise DataError("its value must be a number")
    return np.full(target, fill.reshape(()), fill.dtype)


def range_(node: Node, arrays: Arrays, budget: Budget) -> Array:
    start, limit, delta = (a.reshape(()).item() for a in arrays)
    budget.take([max(0, math.ceil((limit - start) / delta))])
    found: Array = np.arange(start, limit, delta).astype(arrays[0].dtype)
    return found


def trilu(node: Node, arrays: Arrays, budget: Budget) -> Array:
    k = 0 if len(arrays) < 2 or arrays[1] is None else int(arrays[1].reshape(()))
    budget.take(arrays[0].shape, arrays[0].itemsize)
    k = max(-(1 << 31), min(k, 1 << 31))
    return np.triu(arrays[0], k) if node.attributes.get("upper", 1) else np.tril(arrays[0], k)


def reduced(f: Callable[..., Array]) -> Fold:
    def fold(node: Node, arrays: Arrays, budget: Budget) -> Array:
        axes = tuple(ints(node, "axes", arrays, 1) or ())
        if not axes and node.attributes.get("noop_with_empty_axes"):
            return np.asarray(arrays[0])
        keep = bool(node.attributes.get("keepdims", 1))
        return np.asarray(f(arrays[0], axis=axes or None, keepdims=keep))

    return fold


UFUNCS: Mapping[int, Mapping[str, Callable[..., Array]]] = {  # by their number of inputs
    1: {
        "Neg": np.negative,
        "Abs": np.abs,
        "Sqrt": np.sqrt,
        "Reciprocal": np.reciprocal,
        "Exp": np.exp,
        "Log": np.log,
        "Sin": np.sin,
        "Cos": np.cos,
        "Floor": np.floor,
        "Ceil": np.ceil,
        "Not": np.logical_not,
    },
    2: {
        "Add": np.add,
        "Sub": np.subtract,
        "Mul": np.multiply,
        "Div": divide,
        "Pow": np.power,
        "Min": np.minimum,
        "Max": np.maximum,
        "Equal": np.equal,
        "Less": np.less,
        "LessOrEqual": np.less_equal,
        "Greater": np.greater,
        "GreaterOrEqual": np.greater_equal,
        "And": np.logical_and,
        "Or": np.logical_or,
    },
    3: {"Where": np.where},
}
FOLDS: dict[str, Fold] = {
    **{op: elementwise(f, n) for n, table in UFUNCS.items() for op, f in table.items()},
    "Mod": mod,
    **dict.fromkeys(["Identity", "Dropout"], lambda node, arrays, budget: arrays[0]),
    "Cast": cast,
    "Constant": value,
    "Shape": shape,
    "Reshape": reshape,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Transpose": transpose,
    "Concat": concat,
    "Gather": gather,
    "Slice": slice_,
    "Expand": expand,
    "ConstantOfShape": constant_of_shape,
    "Range": range_,
    "Trilu": trilu,
    "ReduceSum": reduced(np.sum),
    "ReduceProd": reduced(np.prod),
    "ReduceMax": reduced(np.max),
    "ReduceMin": reduced(np.min),
}
