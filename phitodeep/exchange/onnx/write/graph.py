"""The graph of an ONNX file while it is being written: nodes, constants, and the order of axes.

A tensor of the graph may hold our axes in another order, which `Value.order` gives: a tensor of the
order (0, 3, 1, 2) holds our axes N, C, height and width one after another. Convolutions work in
that order and recurrent layers in (1, 0, 2), with the steps first. Layers after them keep the order
if they can, so a Transpose is written only where a layer requires another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.types import Array, Shape, each
from phitodeep.exchange.tree import Sizes, common, outer_names, paths_of
from phitodeep.layers.base import Layer
from phitodeep.layers.tying import Shared

Order = tuple[int, ...]


class Value(NamedTuple):
    """A tensor of the graph.

    name      in the graph; "" stands for an optional input that is left out
    order     for each of its axes, which of ours it is; None: they are in our order
    tokens    whether it holds integers
    """

    name: str
    order: Order | None = None
    tokens: bool = False

    def axis(self, ours: int) -> int:
        """Return the axis of the tensor that holds our axis."""
        return ours if self.order is None else self.order.index(ours)


class UnknownSizeError(Exception):
    """A layer can be written only for a fixed number of steps."""


Input = Value | Array | float | Sequence[int]
Form = Callable[..., Any]  # form(graph, layer, *values) writes a layer that reads values
Builds = Sequence[tuple[Sequence[Shape], Sequence[Shape]]]


class Graph:
    """The nodes and constants that compute the outputs from the inputs.

    form_of   returns the function that writes a layer
    opset     the version of the operators
    shapes    for each layer, by its id, the shapes of a sample of each input and output in several
              builds of the model; a size that differs between them may be anything
    takes     the names of the inputs, and `returns` those of the outputs
    """

    def __init__(
        self,
        model: Layer,
        form_of: Callable[[Layer], Form],
        opset: int,
        shapes: Mapping[int, Builds],
    ) -> None:
        self.form_of, self.opset, self.shapes = form_of, opset, dict(shapes)
        self.dtype = np.dtype(model.dtype)
        self.nodes: list[Any] = []  # as ONNX has them
        self.arrays: dict[str, Array] = {}  # parameters and constants, by name
        self.takes, self.returns = outer_names(model)
        self.gives_tokens: list[bool] = []  # which outputs hold integers
        self._paths = paths_of(model)
        self._path = ""  # of the layer that is being written
        self._taken = {*self.takes, *self.returns}
        self._shared: dict[tuple[Any, ...], Value] = {}

    def write(self, model: Layer) -> None:
        """Write the whole model, from the inputs to the outputs."""
        tokens = zip(self.takes, each(model.takes_tokens), strict=True)
        found = self.add(model, *[Value(name, tokens=given) for name, given in tokens])
        new: dict[str, str] = {}  # the names of values that are outputs
        for name, y in zip(self.returns, several(found), strict=True):
            y = self.ordered(y)
            self.gives_tokens.append(y.tokens)
            if y.name == name:  # an input
                continue
            if y.name in new or not any(y.name in node.output for node in self.nodes):
                y = self.node("Identity", y)
            new[y.name] = name
        used, kept = {*new}, list[Any]()
        for node in reversed(self.nodes):
            if used.isdisjoint(node.output):  # nobody reads it
                continue
            used.update(node.input)
            node.input[:] = [new.get(name, name) for name in node.input]
            node.output[:] = [new.get(name, name) if name in used else "" for name in node.output]
            while not node.output[-1]:
                node.output.pop()
            kept.append(node)
        self.nodes[:] = kept[::-1]

    # --- nodes -----------------------------------------------------------------------------

    def add(self, layer: Layer, *xs: Value) -> Any:
        """Write a layer that reads these values; return its output, or a list of several."""
        if isinstance(layer, Shared):
            self.shapes[id(layer._bound())] = self.shapes[id(layer)]
            layer = layer._bound()
        before, self._path = self._path, self._paths[id(layer)]
        if not layer.takes_tokens and not layer.children():
            cast = {"to": type_of(self.dtype)}
            xs = tuple([self.node("Cast", x, **cast) if x.tokens else x for x in xs])
        y = self.form_of(layer)(self, layer, *xs)
        self._path = before
        return y

    def node(self, op: str, *inputs: Input, **attributes: Any) -> Value:
        """Add an operation, and return its output, whose axes are ordered as in the first input.

        Inputs are values of the graph, or constants as `constant` takes them.
        """
        return self.several(op, *inputs, outputs=1, **attributes)[0]

    def several(self, op: str, *inputs: Input, outputs: int, **attributes: Any) -> list[Value]:
        """Add an operation with several outputs, and return them."""
        from onnx import helper

        given = [i if isinstance(i, Value) else self.constant(i) for i in inputs]
        name = self._free(f"{self._path}/{op}" if self._path else op)
        names = [name] if outputs == 1 else [f"{name}:{i}" for i in range(outputs)]
        node = helper.make_node(op, [i.name for i in given], names, name, **attributes)
        self.nodes.append(node)
        return [Value(name, given[0].order) for name in names]

    def alike(self, xs: Sequence[Value]) -> list[Value]:
        """Return values in the same order of axes: the most common one, or the later of them."""
        ((order, _),) = Counter(x.order for x in reversed(xs)).most_common(1)
        return [self.ordered(x, order) for x in xs]

    def ordered(self, x: Value, order: Order | None = None) -> Value:
        """Return x with its axes in this order; None is our order."""
        if order is not None and list(order) == sorted(order):
            order = None
        if x.order == order:
            return x
        rank = len(order or x.order or ())
        perm = [x.axis(ours) for ours in order or range(rank)]

        def transposed() -> Value:
            y = self.node("Transpose", x, perm=perm)
            return y._replace(order=order, tokens=x.tokens)

        return self.shared(("order", x.name, order), transposed)

    def channels_first(self, layer: Layer, x: Value) -> Value:
        """Return the layer's x with the order N, C, and then the axes between them."""
        last = rank(layer) - 1
        return self.ordered(x, (0, last, *range(1, last)))

    def shared(self, key: tuple[Any, ...], write: Callable[[], Value]) -> Value:
        """Return what `write` adds, or for a key that was used before, what was added then."""
        if key not in self._shared:
            self._shared[key] = write()
        return self._shared[key]

    # --- constants -------------------------------------------------------------------------

    def param(
        self, layer: Layer, name: str, change: Callable[[Array], Array] | None = None
    ) -> Value:
        """Return a parameter or state of a layer, which is named by its path, as in `3.gamma`.

        `change` arranges its elements as an operator expects them.
        """
        owner, own_name = layer.tied.get(name, (layer, name))
        a = (owner.params if own_name in owner.params else owner.state)[own_name]
        if id(owner) not in self._paths:  # tied to a layer outside the model
            owner = layer
        return self.array(owner, own_name, a if change is None else change(a))

    def params(self, layer: Layer, *names: str) -> list[Value]:
        return [self.param(layer, name) for name in names]

    def array(self, layer: Layer, name: str, a: Array) -> Value:
        """Return an array of the model's dtype that is named like a parameter of a layer."""
        path = self._paths[id(layer)]
        full = f"{path}.{name}" if path else name
        if full not in self.arrays:
            self.arrays[full] = a.astype(self.dtype, copy=False)
        return Value(full)

    def constant(self, value: Array | float | Sequence[int], name: str = "") -> Value:
        """Return a constant: an array, a number (in the model's dtype) or a list of integers.

        Equal constants are written once. Without a name, their values are their name.
        """
        if isinstance(value, np.ndarray):
            a = value
        else:
            a = np.array(value, np.int64 if isinstance(value, Sequence) else self.dtype)

        def added() -> Value:
            free = self._free(name or np.array2string(a, separator=",").replace(" ", ""))
            self.arrays[free] = a
            return Value(free)

        return self.shared(("constant", str(a.dtype), a.shape, a.tobytes()), added)

    def _free(self, name: str) -> str:
        """Return the name, with a number after it if it is taken."""
        tries = (name, *(f"{name}_{i}" for i in range(1, len(self._taken) + 2)))
        free = next(n for n in tries if n not in self._taken)
        self._taken.add(free)
        return free

    # --- sizes -----------------------------------------------------------------------------

    def sizes(self, layer: Layer) -> tuple[Sizes, Sizes]:
        """Return the shapes of a sample of X and of Y, with None for a size that may differ."""
        (X, *_), (Y, *_) = self.all_sizes(layer)
        return X, Y

    def all_sizes(self, layer: Layer) -> list[list[Sizes]]:
        """Return the same for each input and each output."""
        return [common(side) for side in zip(*self.shapes[id(layer)], strict=True)]

    def length(self, layer: Layer, x: Value) -> Value:
        """Return T as one integer (1,), for x (N, T, ...): `Shape(x, start=1, end=2)`.

        All layers whose sequences have the same number of steps read the same node.
        """
        axis = x.axis(1)
        return self.shared(
            ("length", *(X[0] for (X, *_), _ in self.shapes[id(layer)])),
            lambda: self.node("Shape", x, start=axis, end=axis + 1)._replace(order=None),
        )

    def positions(self, layer: Layer, x: Value) -> Value:
        """Return the positions 0 to T - 1, (T,): `Range(0, Gather(T, 0), 1)`."""
        length = self.length(layer, x)

        def counted() -> Value:
            zero, one = (self.constant(np.array(i)) for i in (0, 1))
            return self.node("Range", zero, self.node("Gather", length, zero), one)

        return self.shared(("positions", length.name), counted)

    def column(self, layer: Layer, x: Value) -> Value:
        """Return the positions as a column (T, 1): `Unsqueeze(positions, [1])`."""
        row = self.positions(layer, x)
        return self.shared(("column", row.name), lambda: self.node("Unsqueeze", row, [1]))


def several(values: Value | list[Value]) -> list[Value]:
    """Return the outputs of a layer as a list."""
    return values if isinstance(values, list) else [values]


def type_of(dtype: Any) -> int:
    """Return ONNX's number of a dtype."""
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def rank(layer: Layer) -> int:
    """Return the number of axes of a layer's X."""
    return len(layer.input_shape or ()) + 1
