"""The steps of a traced module, read one by one into operations on layers.

As in the ONNX reader, a value is a view of a step's output: steps that only move, split or merge
axes add no layers. `Writer` knows where the axes of each step are in the array of our layer, and
adds a Permute, a Reshape or a Flatten where a layer needs them in another order. The ONNX reader's
operators compute softmaxes, means, maxima and merges.
"""

from __future__ import annotations

import reprlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar, cast

from phitodeep.errors import ArgumentError, DataError
from phitodeep.exchange.onnx.read import operators as operators
from phitodeep.exchange.onnx.read import windows as windows
from phitodeep.exchange.onnx.read.axes import Axis, Group, Groups, expanded, leaves, new, same
from phitodeep.exchange.onnx.read.building import Placed, Plan, Writer
from phitodeep.exchange.onnx.read.interpreting import HANDLERS, Budget, Call
from phitodeep.exchange.onnx.read.products import merge
from phitodeep.exchange.onnx.read.reading import OPSETS, Node
from phitodeep.exchange.onnx.read.values import Step, Value, View
from phitodeep.exchange.torch.layouts import FIRST
from phitodeep.exchange.torch.read.functions import ALIASES, FUNCTIONS
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
    """Reads a traced module; `TensorFunctions` and `Reader` derive from it, and know the steps.

    leaves     makes the layers
    writer     adds them
    values     of the tensors, by id: a View, a list of several, or why no layer computes it
    readers    the calls that read a tensor, by its id
    """

    opset = OPSETS[-1]  # of the ONNX reader's operators

    _module: Callable[..., Any]  # returns what stands for the output of a module
    _as_module: Callable[..., Any]  # the same of a function that is a module too

    def __init__(self, torch: Any, own: Any, tracing: Any, leaves: Leaves) -> None:
        self.torch, self.own, self.tracing, self.leaves = torch, own, tracing, leaves
        self.modules: dict[type, Callable[..., Any]] = {}  # what is read in a way of its own
        self.embeddings: dict[Any, Any] = {}  # by their weights
        self.used: dict[Any, Any] = {}  # the path and the module of parameters that layers have
        self.prefix = ""  # of paths, such as "encoder."
        self.values: dict[int, Any] = {}
        self.readers: dict[int, list[Any]] = defaultdict(list)
        self.steps: list[Step] = []
        self.budget = Budget(1 << 40)  # the module is in memory already

    def is_leaf(self, module: Any) -> bool:
        if "forward" in vars(module):  # replaced in this object
            return False
        return self.leaves.is_leaf(module) or type(module) in self.modules

    def trace(self, module: Any, examples: dict[str, Any]) -> None:
        """Trace the module in training, and in evaluation with one sample more.

        The two traces may differ only in dropout and in the number of samples.
        """
        more = {name: self.torch.cat([A, A[:1]]) for name, A in examples.items()}
        self.examples = examples
        traced = partial(self.tracing.traced, module, self.prefix, self.is_leaf)
        self.calls, evaluated = traced(examples, True), traced(more, False)
        self.dropped: dict[Any, bool] = {}  # functional dropouts: whether they drop in training
        first, *_ = examples
        counts = (len(examples[first]), len(more[first]))
        alike = len(self.calls) == len(evaluated)
        for call, other in zip(self.calls, evaluated, strict=False):
            if call.name.startswith("dropout"):
                self.dropped[call] = _training(call)
                if _training(other):
                    self.fail(call, "drops values in evaluation: pass training=self.training")
            alike &= self.tracing.alike(call, other, counts)
            for tensor in call.given:
                self.readers[id(tensor)].append(call)
        if not alike:
            raise ArgumentError(
                "from_torch: the module's forward does other steps in training than in evaluation, "
                f"apart from dropout, or other steps for {counts[1]} samples than for "
                f"{counts[0]}: no layer does that."
            )

    def begins_channels_first(self, name: str) -> bool:
        """Return whether the first module that looks at positions of an input takes (N, C, T)."""
        todo = [self.examples[name]]
        for tensor in todo:
            for reader in self.readers[id(tensor)]:
                module = self._module_of(reader)
                row = self.leaves.rows.get(type(module))
                layout = None if row is None else row.layout
                if layout == FIRST or type(module).__name__.startswith("Adaptive"):
                    return True
                todo += reader.made if layout == "any" else []
        return False

    def read(self, starts: Sequence[int], end: Callable[[int], int] | None, **makers: Any) -> Any:
        """Return what `as_model` makes of the traced module.

        `starts` are the axes of the channels in the inputs, and `end` returns it for an output with
        so many axes. If it is None, the axis that is last in ours has the channels.
        """
        self._begin(starts)
        *_, returned = self.calls
        for call in self.calls:
            if call.late:
                self.fail(call, "reads a value that was overwritten in place: work on a copy of it")
            if call is not returned and any(id(tensor) in self.values for tensor in call.given):
                self._read(call)
        outs = returned.args[0]
        if isinstance(outs, tuple | list):
            outs = {f"output_{k}": value for k, value in enumerate(outs, 1)}
        ends: list[tuple[str, str]] = []
        for name, value in (outs if isinstance(outs, dict) else {"output": outs}).items():
            view = self.value(returned, value)
            channels = self._channels(view) if end is None else end(len(view.groups) - 1)
            last = self.writer.arranged(self.placed(view), channels_last(view.groups, channels))
            ends.append((last.value, str(name)))
        return as_model(self.writer.operations, {n: n for n in self.examples}, ends, **makers)

    def _begin(self, starts: Sequence[int]) -> None:
        """Make the values of the inputs."""
        shapes = [[same(n) for n in X.shape] for X in self.examples.values()]
        self.batch = Axis(shapes[0][0])
        self.inputs = [
            Step("Input", name, (), ((self.batch,), *map(new, sizes)), 0, False, None, {})
            for name, (_, *sizes) in zip(self.examples, shapes, strict=True)
        ]
        orders = {
            step.name: channels_last(range(len(step.groups)), start)
            for step, start in zip(self.inputs, starts, strict=True)
        }
        it: Any = self
        self.writer = Writer(it, orders)
        self.values = {id(self.examples[step.name]): step.output for step in self.inputs}

    def _channels(self, view: View) -> int:
        """Return which axis is last in ours, apart from axes of size 1."""
        groups = expanded(view.groups)
        last = next((g for g in expanded(self.placed(view).layout)[:0:-1] if g), ())
        return groups.index(last) if last in groups[1:] else len(groups) - 1

    def _read(self, call: Any) -> None:
        """Give values to the tensors that a call makes."""
        self.writer.at = self.new_step(call, (), ())
        try:
            found = self._step(call)
        except DataError as error:
            self.fail(call, str(error).removeprefix(f"{call.path} ").rstrip("."))
        found = found if isinstance(found, list) else [found]
        self.values |= dict(zip(map(id, call.made), found, strict=False))
        for view in found:
            if isinstance(view, View) and view.groups[0] != (self.batch,):
                self.fail(call, "mixes the samples of the batch with other axes")
            if isinstance(view, View) and len(view.groups) < 2:
                self.fail(call, "leaves one number without an axis for each sample: keep an axis")

    def _step(self, call: Any) -> Any:
        """Return the value of what a call makes, or a list of several."""
        module, name = call.does, ALIASES.get(call.name, call.name)
        if isinstance(module, self.torch.nn.Module):
            if not isinstance(module, self.own.TimeDistributed):  # whose own reader checks them
                self._check_parameters(call, module)
            if not call.args:
                self.fail(call, "is given its input by name: give it without a name")
            return self._module(call, module, *call.args, **call.kwargs)
        if name in FUNCTIONS:
            return self._as_module(call, name, *call.args, **call.kwargs)
        reader = getattr(self, f"do_{name}", None)
        if reader is None:
            self.fail(call, "has no counterpart in phitodeep")
        try:
            return reader(call, *call.args, **call.kwargs)
        except TypeError as wrong:
            if f"{reader.__name__}()" not in str(wrong):
                raise
            what = str(wrong).partition("() ")[2]
            return self.fail(call, f"has arguments that are not supported: {what}")

    def fail(self, call: Any, why: str) -> NoReturn:
        kind = f"{described(call.does)} " if isinstance(call.does, self.torch.nn.Module) else ""
        raise ArgumentError(f"from_torch: {kind}(path {call.path!r}) {why}.")

    def _check_parameters(self, call: Any, module: Any) -> None:
        """Refuse parameters that another module has already."""
        for name, parameter in module.named_parameters():
            tied = parameter in self.embeddings and isinstance(module, self.torch.nn.Linear)
            path, owner = self.used.setdefault(parameter, (call.path, module))
            if owner is not module and not tied:
                self.fail(
                    call,
                    f"shares its {name} with {path!r}: only a Linear may share its weight, and "
                    "only with an Embedding; or use one module twice",
                )

    def _module_of(self, call: Any) -> Any:
        """Return the module of a step, or one like the function that it calls."""
        if call.name not in FUNCTIONS:
            return call.does
        kind = getattr(self.torch.nn, FUNCTIONS[call.name])
        row = self.leaves.rows.get(kind)
        return kind() if row is not None and row.layout == "any" else None

    # --- values ------------------------------------------------------------------------------

    def value(self, call: Any, of: Any) -> View:
        """Return the value of an argument, which must depend on the input."""
        found = self.values.get(id(of))
        if isinstance(found, str):
            self.fail(call, found)
        if not isinstance(found, View):
            what = (
                f"a tensor of shape {tuple(of.shape)}" if self.is_tensor(of) else reprlib.repr(of)
            )
            self.fail(call, f"takes {what}, which is not a value that a layer computes")
        return found

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, self.torch.Tensor)

    def written(
        self, call: Any, layers: Sequence[Layer], x: Placed, layout: Groups, groups: Iterable[Group]
    ) -> View:
        """Add layers after a value; return their output, which has these axes in this layout."""
        step = self.new_step(call, (), groups)
        for layer in layers:
            x = self.writer.layer(layer, x, layout)
        self.writer.placed[step] = x._replace(layout=layout)
        return step.output

    def operator(self, call: Any, op: str, inputs: Sequence[Value], **attributes: Any) -> View:
        """Return the output of an operator of the ONNX reader."""
        it, node = cast(Any, self), Node(op, call.path, [], [], attributes)
        return cast(View, HANDLERS[op](Operator(it, node, inputs)))

    def planned(self, step: Step, plan: Plan) -> View:
        """Add the layers of a plan; return the output of the step."""
        placed = [self.writer.placed[view.step] for view in plan.inputs]
        self.writer.placed[step] = plan.write(self.writer, placed)
        return step.output

    def new_step(self, call: Any, inputs: Sequence[View], groups: Iterable[Group]) -> Step:
        return Step(call.name, call.path, inputs, tuple(groups), 0, False, None, {})

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


def _training(call: Any) -> bool:
    """Return whether a functional dropout drops values."""
    return bool(call.kwargs.get("training", (*call.args, True)[min(2, len(call.args))]))
