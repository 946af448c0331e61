"""The graph of a traced module, read step by step into operations on layers.

As in the ONNX reader, a value is a view of a step's output: steps that only move, split or merge
axes add no layers. `Writer` knows where the axes of each step are in the array of our layer, and
adds a Permute, a Reshape or a Flatten where a layer needs them in another order. The ONNX reader's
operators compute softmaxes, means, maxima and merges.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeVar

from phitodeep.errors import ArgumentError, DataError
from phitodeep.exchange.onnx.read import operators as operators
from phitodeep.exchange.onnx.read import windows as windows
from phitodeep.exchange.onnx.read.axes import Axis, Group, Groups, expanded, leaves, new, same
from phitodeep.exchange.onnx.read.building import Placed, Plan, Writer
from phitodeep.exchange.onnx.read.interpreting import HANDLERS, Budget, Call
from phitodeep.exchange.onnx.read.products import merge
from phitodeep.exchange.onnx.read.reading import OPSETS, Node
from phitodeep.exchange.onnx.read.values import Step, Value, View
from phitodeep.exchange.torch.read.functions import ALIASES, CHANNELS_FIRST, FUNCTIONS
from phitodeep.exchange.torch.read.leaves import Leaves, described
from phitodeep.exchange.tree import as_model
from phitodeep.layers.base import Layer

T = TypeVar("T")


class Operator(Call):
    """An operator of ONNX that adds its layers as soon as it is read."""

    def step(self, *args: Any, **settings: Any) -> View:
        made = super().step(*args, **settings)
        it: Any = self.it
        return it.planned(made.step, made.step.plan or merge(made.step))


class Graph:
    """Reads a traced graph; `TensorFunctions` and `Reader` derive from it, and know the steps.

    leaves    makes the layers
    writer    adds them
    values    by node of the graph: a View, a list of several, or why no layer computes it
    slices    steps that select some features of another one: that step, the first and the last
    """

    opset = OPSETS[-1]  # of the ONNX reader's operators

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
        self.used: dict[Any, Any] = {}  # the path and the module of parameters that layers have
        self.prefix = ""  # of paths
        self.values: dict[Any, Any] = {}
        self.slices: dict[Step, tuple[Step, int, int]] = {}
        self.steps: list[Step] = []
        self.budget = Budget(1 << 40)  # the module is in memory already

    def is_leaf(self, module: Any) -> bool:
        return self.leaves.is_leaf(module) or type(module) in self.modules

    def trace(self, module: Any, examples: dict[str, Any]) -> None:
        """Trace the module in training, and in evaluation with one sample more.

        The two traces may differ only in dropout and in the number of samples.
        """
        more = {name: self.torch.cat([A, A[:1]]) for name, A in examples.items()}
        self.graph, self.root = self.tracing.graph_of(module, examples, self.is_leaf, True)
        nodes = list(self.graph.nodes)
        evaluated = list(self.tracing.graph_of(module, more, self.is_leaf, False)[0].nodes)
        self.place = {node: i for i, node in enumerate(nodes)}
        self.dropped: dict[Any, bool] = {}  # functional dropouts: whether they drop in training
        first, *_ = examples
        same, counts = len(nodes) == len(evaluated), (len(examples[first]), len(more[first]))
        for node, other in zip(nodes, evaluated, strict=False):
            if (self.function(node) or "").startswith("dropout"):
                self.dropped[node] = _training(node)
                if self.dropped[node] and _training(other):
                    self.fail(node, "drops values in evaluation too: pass training=self.training")
            same &= self._alike(node, other, counts)
        if not same:
            raise ArgumentError(
                "from_torch: the module's forward does other steps in training than in evaluation, "
                f"apart from dropout, or other steps for {counts[1]} samples than for "
                f"{counts[0]}: no layer does that."
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

    def begins_channels_first(self, name: str) -> bool:
        """Return whether the first module that looks at positions of an input takes (N, C, T)."""
        todo = [node for node in self.graph.nodes if node.op == "placeholder" and node.name == name]
        for node in todo:
            for user in node.users:
                module = self._module_of(user)
                row = self.leaves.rows.get(type(module))
                if type(module).__name__.startswith(CHANNELS_FIRST):
                    return True
                if row is not None and row.layout == "any":
                    todo.append(user)
        return False

    def read(self, starts: Sequence[int], end: Callable[[int], int] | None, **makers: Any) -> Any:
        """Return what `as_model` makes of the traced graph.

        `starts` are the axes of the channels in the inputs, and `end` returns it for an output with
        so many axes. If it is None, the axis that is last in ours has the channels.
        """
        self._begin([node for node in self.graph.nodes if node.op == "placeholder"], starts)
        ends: list[tuple[str, str]] = []
        for node in self.graph.nodes:
            if node.op == "output":
                for name, value in self._outputs(node).items():
                    view = self.value(node, value)
                    last = self.placed(view)
                    channels = self._channels(view) if end is None else end(len(view.groups) - 1)
                    last = self.writer.arranged(last, channels_last(view.groups, channels))
                    ends.append((last.value, name))
            elif node.op != "get_attr" and any(n in self.values for n in node.all_input_nodes):
                self.writer.at = self.new_step(node, (), ())
                self.values[node] = found = self._step(node)
                if isinstance(found, View) and len(found.groups) < 2:
                    self.fail(
                        node, "leaves one number without an axis for each sample: keep an axis"
                    )
        names = {step.name: step.name for step in self.inputs}
        return as_model(self.writer.operations, names, ends, **makers)

    def _outputs(self, node: Any) -> dict[str, Any]:
        """Return the outputs by name, which may be the parts of a value."""
        given = node.args[0]
        if isinstance(given, tuple | list):
            given = {f"output_{k}": value for k, value in enumerate(given, 1)}
        found = given if isinstance(given, dict) else {"output": given}
        for value in found.values():
            if not is_node(value) or not isinstance(self.values.get(value), View | str):
                self.fail(node, "must be values that depend on the input")
        return found

    def _begin(self, nodes: list[Any], starts: Sequence[int]) -> None:
        """Make the values of the inputs."""
        shapes = [[same(n) for n in node.meta["value"].shape] for node in nodes]
        self.batch = Axis(shapes[0][0])
        self.inputs = [
            Step("Input", node.name, (), ((self.batch,), *map(new, sizes)), 0, False, None, {})
            for node, (_, *sizes) in zip(nodes, shapes, strict=True)
        ]
        orders = {
            step.name: channels_last(range(len(step.groups)), start)
            for step, start in zip(self.inputs, starts, strict=True)
        }
        it: Any = self
        self.writer = Writer(it, orders)
        self.values |= {node: s.output for node, s in zip(nodes, self.inputs, strict=True)}

    def _channels(self, view: View) -> int:
        """Return which axis is last in ours, apart from axes of size 1."""
        groups = expanded(view.groups)
        last = next((g for g in expanded(self.placed(view).layout)[:0:-1] if g), ())
        return groups.index(last) if last in groups[1:] else len(groups) - 1

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
        reader = getattr(self, f"do_{name}")
        try:
            return reader(node, *node.args, **node.kwargs)
        except TypeError as wrong:
            if f"{reader.__name__}()" not in str(wrong):
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
        """Refuse parameters that another module has already."""
        for name, parameter in module.named_parameters():
            tied = parameter in self.embeddings and isinstance(module, self.torch.nn.Linear)
            path, owner = self.used.setdefault(parameter, (self.path(node), module))
            if owner is not module and not tied:
                self.fail(
                    node,
                    f"shares its {name} with {path!r}: only a Linear may share its weight, and "
                    "only with an Embedding; or use one module twice",
                )

    def _module_of(self, node: Any) -> Any:
        """Return the module of a step, or one like the function that it calls."""
        if node.op == "call_module":
            return self.root.get_submodule(node.target)
        name = self.function(node)
        if name not in FUNCTIONS:
            return None
        kind = getattr(self.torch.nn, FUNCTIONS[str(name)])
        row = self.leaves.rows.get(kind)
        return kind() if row is not None and row.layout == "any" else None

    # --- values ------------------------------------------------------------------------------

    def value(self, node: Any, of: Any) -> View:
        """Return the value of an argument, which must depend on the input."""
        found = self.values.get(of) if is_node(of) else None
        if isinstance(found, str):
            self.fail(node, found)
        if not isinstance(found, View):
            self.fail(node, f"takes {of}, which is not a value that a layer computes")
        return found

    def written(
        self, node: Any, layers: Sequence[Layer], x: Placed, layout: Groups, groups: Iterable[Group]
    ) -> View:
        """Add layers after a value; return their output, which has these axes in this layout."""
        step = self.new_step(node, (), groups)
        for layer in layers:
            x = self.writer.layer(layer, x, layout)
        self.writer.placed[step] = x._replace(layout=layout)
        return step.output

    def operator(self, node: Any, op: str, inputs: Sequence[Value], **attributes: Any) -> View:
        """Return the output of an operator of the ONNX reader."""
        given: Any = self
        try:
            found: Any = HANDLERS[op](Operator(given, Node(op, "", [], [], attributes), inputs))
        except DataError as error:
            self.fail(node, str(error))
        return found

    def planned(self, step: Step, plan: Plan) -> View:
        """Add the layers of a plan; return the output of the step."""
        placed = [self.writer.placed[view.step] for view in plan.inputs]
        self.writer.placed[step] = plan.write(self.writer, placed)
        return step.output

    def new_step(self, node: Any, inputs: Sequence[View], groups: Iterable[Group]) -> Step:
        return Step(node.op, self.path(node), inputs, tuple(groups), 0, False, None, {})

    def placed(self, view: View) -> Placed:
        """Return where a value is in our layers, as it is."""
        return self.writer.placed[view.step]

    def ordered(self, view: View) -> Placed:
        """Return where a value is, with its axes as in the module."""
        return self.writer.arranged(self.placed(view), view.groups)

    def without_ones(self, x: Placed) -> Placed:
        """Return a value without axes of size 1 if there are others."""
        layout = tuple(group for group in expanded(x.layout) if group)
        return self.writer.arranged(x, layout if layout[1:] else (*layout, ()))

    def along(self, view: View, axis: int) -> Placed:
        """Return where a value is, with an axis as the last one of ours."""
        x = self.placed(view)
        if expanded(x.layout)[-1] == leaves(view.groups[axis]):
            return x
        return self.writer.arranged(x, channels_last(view.groups, axis))

    def back(self, view: View, axis: int, before: View) -> View:
        """Return a value of the axes of another one, with this axis where it was there."""
        old, layout = leaves(before.groups[axis]), expanded(self.placed(before).layout)
        if old and old in layout:
            wanted = tuple(view.groups[axis] if group == old else group for group in layout)
            self.writer.placed[view.step] = self.writer.arranged(self.placed(view), wanted)
        return view


def channels_last(axes: Sequence[T], channels: int) -> tuple[T, ...]:
    """Return the axes with the one of the channels at the end."""
    return (*axes[:channels], *axes[channels + 1 :], axes[channels])


def is_node(value: Any) -> bool:
    """Return whether an argument is the output of another step."""
    return hasattr(value, "all_input_nodes")


def _training(node: Any) -> bool:
    """Return whether a functional dropout drops values."""
    if "training" in node.kwargs:
        return bool(node.kwargs["training"])
    return bool(node.args[2]) if len(node.args) > 2 else True
