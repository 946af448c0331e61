"""From an ONNX file to the layers of a model: what `phitodeep.io.from_onnx` reads.

The file is read by `reading.py`. `interpreting.py` turns its nodes into steps, without constants
and rearrangements: the function of each operator says which axes its output has, and which layer
computes it. `RULES` recognise layers that a graph writes with several operators. `building.py` adds
the layers. `as_model` makes a tree of them, or a network. At last, `verifying.py` compares the
outputs of the model with those of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, repeat
from typing import Any

import numpy as np

from phitodeep.core.types import PathLike, Shape, one
from phitodeep.errors import DataError, PhitodeepError, locate
from phitodeep.exchange.onnx.read import activations, attention, norms, products, sequences
from phitodeep.exchange.onnx.read import operators as operators
from phitodeep.exchange.onnx.read import windows as windows
from phitodeep.exchange.onnx.read.axes import ONE, Size, expanded, same, size_of
from phitodeep.exchange.onnx.read.building import Placed, Plan, RelayoutError, Writer
from phitodeep.exchange.onnx.read.interpreting import Interpreter
from phitodeep.exchange.onnx.read.reading import File
from phitodeep.exchange.onnx.read.values import LabelError, Step, View
from phitodeep.exchange.onnx.read.verifying import check_values
from phitodeep.exchange.tree import as_model
from phitodeep.layers.random import shapes_only

Rule = Callable[[Step], Plan | None]
RULES: list[tuple[Rule, str]] = [  # patterns, and the kinds of steps that may end each of them
    (activations.compound, "Mul Div Where"),
    (attention.multi_head_attention, "MatMul Add"),
    (attention.dot_product_attention, "Product"),
    (products.dense, "MatMul Add"),
    (norms.written_norm, "Add Mul Div"),
    (sequences.last_state, "Take"),
    (sequences.sum_of_directions, "ReduceSum"),
    (sequences.position, "Add"),
    (sequences.rotary, "Concat"),
    (norms.scale_and_shift, "Add Sub Mul Div"),
    (products.two_classes, "Concat"),
    (products.dot, "ReduceSum"),
    (products.merge, "Add Sub Mul Max"),
]
RULES_OF: dict[str, list[Rule]] = {}
for _rule, _ops in RULES:
    for _op in _ops.split():
        RULES_OF.setdefault(_op, []).append(_rule)
BATCHES: Size = (2, 3, 5)
STEPS: list[list[Size]] = [  # of axes with an unknown size, other than the batch
    [(13, 17, 29), (19, 31, 23), (37, 41, 43)],
    [(4, 3, 5), (7, 6, 4), (5, 8, 7)],
    [(2, 1, 2), (1, 2, 3), (3, 2, 1)],  # for short tables of positions
]


def read_onnx(path: PathLike, model: Callable[..., Any], network: Callable[..., Any]) -> Any:
    """Return what `model` makes of the layers in an ONNX file: see `phitodeep.io.from_onnx`.

    `network` makes it of layers between named values, if they are no tree.
    """
    file = File(path)
    unknown = any(isinstance(n, str) for given in file.inputs for n in given.sizes[1:])
    refused: list[tuple[int, PhitodeepError]] = []
    for steps in STEPS if unknown else STEPS[:1]:
        attempt = _Import(file, model, network, steps)
        try:
            return attempt.model()
        except PhitodeepError as error:
            refused.append((attempt.progress, error))
    raise max(refused, key=lambda pair: pair[0])[1]


class _Import:
    """One attempt to understand a file, with certain probes for axes of unknown size.

    progress    how many stages it has completed: the error of the most successful attempt is shown
    """

    def __init__(
        self, file: File, new: Callable[..., Any], network: Callable[..., Any],
        steps: Sequence[Size],
    ) -> None:  # fmt: skip
        self.file, self.new, self.network, self.steps = file, new, network, steps
        self.progress = 0

    def model(self) -> Any:
        orders: dict[str, tuple[int, ...]] = {}
        while True:
            try:
                with np.errstate(all="ignore"):
                    return self._model(orders)
            except RelayoutError as wanted:  # at most once for each input: then the order is known
                orders[wanted.which] = wanted.order

    def _model(self, orders: dict[str, tuple[int, ...]]) -> Any:
        batches = [orders.get(f"the input {i.name!r}", (0,))[0] for i in self.file.inputs]
        probes, known = chain(self.steps, repeat(ONE)), dict[str, Size]()
        sizes: list[list[Size]] = []
        for given, batch_at in zip(self.file.inputs, batches, strict=True):
            for i, size in enumerate(given.sizes):
                if isinstance(size, str) and size not in known:
                    known[size] = BATCHES if i == batch_at else next(probes)
            sizes.append([known[n] if isinstance(n, str) else same(n) for n in given.sizes])
        it = Interpreter(self.file, sizes, batches)
        outs = self._outputs(it)
        self.progress = 1
        plans = _plans([out.step for out in outs.values()])
        self.progress = 2
        types = {given.type for given in self.file.inputs}  # 1 is float32, 11 is float64
        tables = [step.array(1).dtype for step in plans if step.op == "Embedding"]
        double = 11 in types or (1 not in types and np.dtype(np.float64) in tables)
        with shapes_only():
            w = Writer(it, orders)
            for step in sorted(plans, key=lambda s: s.index):
                w.at = step
                plan = plans[step]
                with _named(step):
                    w.placed[step] = plan.write(w, [w.placed[x.step] for x in plan.inputs])
            ends = {}
            for name, out in outs.items():
                w.at = out.step
                ends[name] = _last(w, out, w.placed[out.step])
            starts = {s.name: i.name for s, i in zip(it.inputs, self.file.inputs, strict=True)}
            model = as_model(
                w.operations,
                starts,
                [(end.value, name) for name, end in ends.items()],
                self.new,
                self.network,
                dtype=np.float64 if double else np.float32,
            )
            model.build(one([_sample_shape(w, s, model) for s in it.inputs], len(it.inputs) == 1))
        self.progress = 3
        _install(model, w)
        check_values(self.file, it, w, model, [(n, outs[n], end) for n, end in ends.items()])
        return model

    def _outputs(self, it: Interpreter) -> dict[str, View]:
        """Return the outputs of the graph that the model computes."""
        values = {name: it.values.get(name) for name in self.file.outputs}
        found: dict[str, View] = {}
        refused: list[DataError] = []
        for name, value in values.items():
            if isinstance(value, View) and not value.step.integers:
                found[name] = value
            elif isinstance(value, DataError):
                refused.append(value)
            elif not isinstance(value, View):
                where = f"the output {name!r} of {self.file.path}"
                refused.append(DataError(f"{where} does not depend on its input."))
        serious = [error for error in refused if not isinstance(error, LabelError)]
        if serious or (refused and not found):
            raise (serious or refused)[0]
        if not found:
            raise DataError(f"{self.file.path} has no output with numbers.")
        return found


def _plans(todo: list[Step]) -> dict[Step, Plan]:
    """Return the plan of each step that these depend on."""
    plans: dict[Step, Plan] = {}
    while todo:
        step = todo.pop()
        if step.op == "Input" or step in plans:
            continue
        plans[step] = _plan(step)
        todo += [view.step for view in plans[step].inputs]
    return plans


def _plan(step: Step) -> Plan:
    """Return the plan of the first pattern that a step ends, or its own."""
    with _named(step):
        for rule in RULES_OF.get(step.op, []):
            plan = rule(step)
            if plan is not None:
                return plan
    if step.plan is not None:
        return step.plan
    raise DataError(
        f"{step.name}: no layer computes this operator here. Export the network with another "
        "operator, or leave this part out."
    )


@contextmanager
def _named(step: Step) -> Iterator[None]:
    """Add the name of a step to errors that do not have it."""
    try:
        yield
    except PhitodeepError as error:
        if step.name not in str(error):
            locate(error, step.name)
        raise


def _last(w: Writer, out: View, placed: Placed) -> Placed:
    """Return the output, with its axes as in the graph, or with the features last."""
    given, have = expanded(out.groups), expanded(placed.layout)
    if not w.orders or len(given) != len(have) or set(given) != set(have):
        return w.arranged(placed, out.groups)
    for order in w.orders.values():
        last = tuple(given[i] for i in order) if len(given) == len(order) else ((),)
        if last[0] == have[0] and have != given:
            return w.arranged(placed, last)
    return placed


def _sample_shape(w: Writer, step: Step, model: Any) -> Shape:
    """Return the shape of one sample, with the most steps that a model takes if it has a limit."""
    sizes = [size_of(group) for group in w.placed[step].layout[1:]]
    shape = [size[0] for size in sizes]
    if sizes and len(set(sizes[0])) > 1 and model.max_steps is not None:
        shape[0] = model.max_steps
    return tuple(shape)


def _install(model: Any, w: Writer) -> None:
    """Give the layers their weights, which must have the shapes that they expect."""
    given = {id(layer): arrays for layer, arrays in w.weights}
    for _, layer in model.walk():
        layer._shapes_only = False
        arrays = given.get(id(layer), {})
        for store in (layer.params, layer.state):
            for name, placeholder in store.items():
                a = arrays.get(name)
                if a is None or a.shape != placeholder.shape:
                    raise DataError(
                        f"{w.it.file.path}: the weights of {layer!r} do not fit its shape "
                        f"{placeholder.shape}."
                    )
                store[name] = np.array(a, model.dtype, order="C")
