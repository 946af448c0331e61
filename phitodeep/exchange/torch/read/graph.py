"""The graph of a traced module, read step by step into operations on layers.

A value in the graph may have its axes in another order than our value: `Value.axes` says which of
ours each of them is. Steps that only move axes change nothing but this. A layer that needs another
order gets a Permute before it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from phitodeep import layers as L
from phitodeep.core.types import Array, Shape
from phitodeep.errors import ArgumentError
from phitodeep.exchange.torch.read.functions import ALIASES, CHANNELS_FIRST, FUNCTIONS
from phitodeep.exchange.torch.read.leaves import Leaves, described
from phitodeep.exchange.tree import Operation, as_layers
from phitodeep.layers.base import Layer

Axes = tuple[int, ...]


class Value(NamedTuple):
    """A value of the graph that depends on the input.

    name     of our value
    axes     for each axis after the batch: which of our axes it is, counted from 1, or 0 for an
             axis of size 1 that ours does not have
    order    for the features behind a Flatten: feature j is our feature order[j]
    """

    name: str
    axes: Axes
    order: Array | None = None


class Unknown(NamedTuple):
    """An output that no layer computes, and why; perhaps its last step is known."""

    why: str
    last: Value | None = None


def plain(count: int) -> Axes:
    """Return the axes of a value that has ours, in our order."""
    return tuple(range(1, count + 1))


def canonical(axes: int, channel: int) -> Axes:
    """Return the axes of a value whose channels are at this axis, from 1, and last in ours."""
    others = iter(range(1, axes))
    return tuple(axes if j == channel else next(others) for j in range(1, axes + 1))


class Graph:
    """Reads a traced graph; `TensorFunctions` and `Reader` derive from it, and know the steps.

    leaves        makes the layers
    operations    the operations so far, with a name for each value
    values        by node of the graph: a Value, or what stands for several
    shapes        of a sample, by the name of our value
    """

    _module: Callable[..., Any]  # returns what stands for the output of a module
    _as_module: Callable[..., Any]  # the same of a function that is a module too

    def __init__(self, torch: Any, own: Any, tracing: Any, leaves: Leaves) -> None:
        self.torch, self.own, self.tracing, self.leaves = torch, own, tracing, leaves
        self.functions: dict[Any, str] = {
            operator.getitem: "getitem",
            operator.iadd: "add",
            operator.imul: "mul",
        }
        own_readers = [n.removeprefix("do_") for n in dir(self) if n.startswith("do_")]
        for name in (*FUNCTIONS, *own_readers, *ALIASES):
            for home in (operator, torch, torch.nn.functional, torch.Tensor):
                for written in (name, f"{name}_"):
                    if hasattr(home, written):
                        self.functions[getattr(home, written)] = ALIASES.get(name, name)
        self.modules: dict[type, Callable[..., Any]] = {}  # what is read in a way of its own
        self.embeddings: dict[Any, Any] = {}  # by their weights
        self.used: dict[Any, str] = {}  # parameters that have become those of a layer
        self.prefix = ""  # of paths
        self.operations: list[Operation] = []
        self.values: dict[Any, Any] = {}
        self.shapes: dict[str, Shape] = {}

    def is_leaf(self, module: Any) -> bool:
        return self.leaves.is_leaf(module) or type(module) in self.modules

    def trace(self, module: Any, example: Any) -> None:
        """Trace the module in training, and in evaluation with one sample more.

        The two traces may differ only in dropout and in the number of samples.
        """
        self.example, more = example, self.torch.cat([example, example[:1]])
        self.graph, self.root = self.tracing.graph_of(module, example, self.is_leaf, True)
        nodes = list(self.graph.nodes)
        evaluated = list(self.tracing.graph_of(module, more, self.is_leaf, False)[0].nodes)
        self.place = {node: i for i, node in enumerate(nodes)}
        self.dropped: dict[Any, bool] = {}  # functional dropouts: whether they drop in training
        same, counts = len(nodes) == len(evaluated), (len(example), len(more))
        for node, other in zip(nodes, evaluated, strict=False):
            if (self.function(node) or "").startswith("dropout"):
                self.dropped[node] = _training(node)
                if self.dropped[node] and _training(other):
                    self.fail(node, "drops values in evaluation too: pass training=self.training")
            same &= self._alike(node, other, counts)
        if not same:
            raise ArgumentError(
                "from_torch: the module's forward does other steps in training than in evaluation, "
                f"apart from dropout, or other steps for {len(more)} samples than for "
                f"{len(example)}: no layer does that."
            )

    def _alike(self, node: Any, other: Any, counts: tuple[int, int]) -> bool:
        """Return whether a step is the same in traces with so many samples.

        The arguments of a reshape may hold that number, and those of dropout the mode.
        """
        described = [[n.op, str(n.target), str(n.args), str(n.kwargs)] for n in (node, other)]
        if (self.function(node) or "").startswith(("view", "reshape", "dropout")):
            described = [texts[:2] for texts in described]
        if described[0] != described[1]:
            return False
        values = [n.meta.get("value") for n in (node, other)]
        shapes = [v.shape if isinstance(v, self.torch.Tensor) else () for v in values]
        if len(shapes[0]) != len(shapes[1]):
            return False
        first, *others = list(zip(*shapes, strict=False)) or [counts]
        merged = first[0] * counts[1] == first[1] * counts[0]
        return (merged or first[0] == first[1]) and all(
            pair == counts or pair[0] == pair[1] for pair in others
        )

    def begins_channels_first(self) -> bool:
        """Return whether the first module that looks at positions takes (N, C, T)."""
        todo = [node for node in self.graph.nodes if node.op == "placeholder"]
        for node in todo:
            for user in node.users:
                module = self._module_of(user)
                row = self.leaves.rows.get(type(module))
                if type(module).__name__.startswith(CHANNELS_FIRST):
                    return True
                if row is not None and row.layout == "any":
                    todo.append(user)
        return False

    def read(self, start: Axes, end: Callable[[int], Axes] | None) -> list[Layer]:
        """Return the layers of the traced graph.

        `start` holds the axes of the input; `end` returns those that the output must have.
        """
        result = None
        for node in self.graph.nodes:
            if node.op == "placeholder":
                sizes = self.example.shape[1:]
                ours = sorted(range(len(start)), key=lambda j: start[j])
                self.shapes["input"] = tuple(sizes[j] for j in ours)
                self.values[node] = Value("input", start)
            elif node.op == "output":
                found = self.values.get(node.args[0]) if is_node(node.args[0]) else None
                if not isinstance(found, Value | Unknown):
                    self.fail(node, "must be a single value that depends on the input")
                found = self.value(node, node.args[0])
                count = len(found.axes)
                if end is None:  # the channels, which are last in ours, may be anywhere
                    channel = found.axes.index(max(found.axes)) + 1
                    result = self.ordered(node, found, canonical(count, channel))
                else:
                    result = self.ordered(node, found, end(count))
            elif node.op != "get_attr" and any(n in self.values for n in node.all_input_nodes):
                self.values[node] = self._step(node)
        assert result is not None
        return as_layers(self.operations, "input", result.name)

    def _step(self, node: Any) -> Any:
        if node.op == "call_module":
            module = self.root.get_submodule(node.target)
            if not isinstance(module, self.own.TimeDistributed):  # whose own reader checks them
                self._check_parameters(node, module)
            if not node.args:
                self.fail(node, "is given its input by name: give it without a name")
            return self._module(node, module, *node.args, **node.kwargs)
        name = self.function(node)
        called = str(getattr(node.target, "__name__", node.target))
        if called.endswith("_") or node.target in (operator.iadd, operator.imul):
            self.check_in_place(node, node.args[0])
        if name in FUNCTIONS:
            return self._as_module(node, name, *node.args, **node.kwargs)
        if name is None:
            self.fail(node, "has no counterpart in phitodeep")
        try:
            return getattr(self, f"do_{name}")(node, *node.args, **node.kwargs)
        except TypeError as wrong:
            if f"do_{name}()" not in str(wrong):
                raise
            what = str(wrong).partition("() ")[2]
            return self.fail(node, f"has arguments that are not supported: {what}")

    def check_in_place(self, node: Any, X: Any) -> None:
        """Refuse a step that overwrites a value which is read again, perhaps as a part of another.

        Views are found by their storage, which holds for the example as well.
        """
        storages = self._storages(X)
        for other, at in self.place.items():
            before = at < self.place[node] and storages & self._storages(other)
            if before and any(self.place[user] > self.place[node] for user in other.users):
                self.fail(node, "overwrites a value in place that is used again")

    def _storages(self, node: Any) -> set[int]:
        """Return where the tensors of a step's value are in memory."""
        value = node.meta.get("value")
        tensors = value if isinstance(value, tuple | list) else [value]
        return {t.untyped_storage().data_ptr() for t in tensors if isinstance(t, self.torch.Tensor)}

    def function(self, node: Any) -> str | None:
        """Return the name of a node's function or method in the tables, or None."""
        if node.op == "call_method":
            name = ALIASES.get(node.target, node.target).removesuffix("_")
            return name if name in FUNCTIONS or hasattr(self, f"do_{name}") else None
        return self.functions.get(node.target) if node.op == "call_function" else None

    def path(self, node: Any) -> str:
        """Return where a step is, for messages: the module's path, or the step and its module."""
        if node.op == "call_module":
            return self.prefix + str(node.target).removeprefix("module").removeprefix(".")
        stack = [key for key in node.meta.get("nn_module_stack", {}) if key]
        inside = stack[-1].removeprefix("module").removeprefix(".") if stack else ""
        return f"{self.prefix}{inside}" + (f": {node.name}" if inside else node.name)

    def fail(self, node: Any, why: str) -> NoReturn:
        module = self.root.get_submodule(node.target) if node.op == "call_module" else None
        kind = "" if module is None else f"{described(module)} "
        raise ArgumentError(f"from_torch: {kind}(path {self.path(node)!r}) {why}.")

    def _check_parameters(self, node: Any, module: Any) -> None:
        """Refuse parameters that another layer has already."""
        for name, parameter in module.named_parameters():
            tied = parameter in self.embeddings and isinstance(module, self.torch.nn.Linear)
            if parameter in self.used and not tied:
                self.fail(
                    node,
                    f"shares its {name} with {self.used[parameter]!r}: only a Linear may share "
                    "its weight, and only with an Embedding",
                )
            self.used.setdefault(parameter, self.path(node))

    def _module_of(self, node: Any) -> Any:
        """Return the module of a step, or one like the function that it calls."""
        if node.op == "call_module":
            return self.root.get_submodule(node.target)
        name = self.function(node)
        if name not in FUNCTIONS:
            return None
        kind = getattr(self.torch.nn, FUNCTIONS[str(name)][0])
        row = self.leaves.rows.get(kind)
        return kind() if row is not None and row.layout == "any" else None

    # --- values ------------------------------------------------------------------------------

    def value(self, node: Any, of: Any) -> Value:
        """Return the value of an argument, which must depend on the input."""
        found = self.values.get(of) if is_node(of) else None
        if isinstance(found, Unknown):
            self.fail(node, found.why)
        if not isinstance(found, Value):
            self.fail(node, f"takes {of}, which is not a value that a layer computes")
        return found

    def emit(self, node: Any, does: Layer | str, inputs: Sequence[str], shape: Shape) -> str:
        """Add an operation and return the name of its value, whose samples have our `shape`."""
        name = f"{node.name}.{len(self.operations)}"
        self.operations.append(Operation(self.path(node), tuple(inputs), name, does))
        self.shapes[name] = shape
        return name

    def ordered(self, node: Any, value: Value, axes: Axes) -> Value:
        """Return the value with its axes in this order, by a Permute and a Reshape if needed."""
        if value.axes == axes:
            return value
        name, shape = value.name, self.shapes[value.name]
        real = [j for j, a in enumerate(value.axes) if a]
        dims = [value.axes[j] for j in sorted(real, key=lambda j: axes[j])]
        if dims != sorted(dims):
            shape = tuple(shape[d - 1] for d in dims)
            name = self.emit(node, L.Permute(*dims), [name], shape)
        if len(real) < len(axes):
            sizes = {axes[j]: self.shapes[value.name][value.axes[j] - 1] for j in real}
            shape = tuple(sizes.get(a, 1) for a in range(1, len(axes) + 1))
            name = self.emit(node, L.Reshape(*shape), [name], shape)
        return Value(name, axes)

    def channels_at(self, node: Any, value: Value, axis: int) -> Value:
        """Return the value with the axis (from 1) as the last one of ours."""
        axes = len(self.shapes[value.name])
        if value.axes[axis - 1] == axes and axes:
            return value
        return self.ordered(node, value, canonical(len(value.axes), axis))

    def chain(self, node: Any, value: Value, layers: Sequence[Layer], axes: Axes) -> Value:
        """Add layers after a value; the result has the sizes of the node, with these axes."""
        return self.chained(node, value, layers, axes, node.meta["value"].shape[1:])

    def chained(
        self, node: Any, value: Value, layers: Sequence[Layer], axes: Axes, sizes: Sequence[int]
    ) -> Value:
        """`chain`, for a result of these sizes."""
        order = value.order if axes == (1,) else None
        found = {a: n for a, n in zip(axes, sizes, strict=True) if a}
        shape = tuple(found[a] for a in sorted(found))
        name = value.name
        for layer in layers:
            name = self.emit(node, layer, [name], shape)
        return Value(name, axes, order)

    def _sizes(self, value: Value) -> Shape:
        return tuple(self.shapes[value.name][a - 1] if a else 1 for a in value.axes)


def is_node(value: Any) -> bool:
    """Return whether an argument is the output of another step."""
    return hasattr(value, "all_input_nodes")


def _training(node: Any) -> bool:
    """Return whether a functional dropout drops values."""
    if "training" in node.kwargs:
        return bool(node.kwargs["training"])
    return bool(node.args[2]) if len(node.args) > 2 else True
