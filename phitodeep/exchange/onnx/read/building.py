"""From steps to layers: where the values of the layers are, and in which order their axes are.

A layer's output is a `Placed` value, whose `layout` names the axes of our array: the batch first,
the features last. `Writer` adds layers, and Permute, Reshape and Flatten where a layer needs its
axes in another order than the one in which they come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from phitodeep.core.types import Array
from phitodeep.errors import DataError
from phitodeep.exchange.onnx.read import axes as ax
from phitodeep.exchange.onnx.read.axes import Axis, Group, Groups, expanded, flat, leaves, size_of
from phitodeep.exchange.onnx.read.interpreting import Interpreter
from phitodeep.exchange.onnx.read.values import Step, View
from phitodeep.exchange.tree import Operation
from phitodeep.layers.base import Layer
from phitodeep.layers.containers import TimeDistributed
from phitodeep.layers.reshape import Flatten, Permute, Reshape


class Placed(NamedTuple):
    """A value of the layers: its name, and the axes of its array."""

    value: str
    layout: Groups


class Plan(NamedTuple):
    """How a step, possibly with steps before it, becomes layers.

    inputs    the views that the layers read
    write     adds the layers, given where these views' steps are, and returns where the output is
    """

    inputs: tuple[View, ...]
    write: Callable[[Writer, list[Placed]], Placed]


class RelayoutError(Exception):
    """Input `which` should have its axes in another order; `order` counts the graph's."""

    def __init__(self, which: str, order: Sequence[int]) -> None:
        super().__init__(which, order)
        self.which, self.order = which, tuple(order)


class Writer:
    """The layers so far.

    orders        the order of an input's axes, by its name, where the graph has another
    operations    for `as_model`
    weights       the layers that have parameters, each with its arrays
    """

    def __init__(self, it: Interpreter, orders: Mapping[str, Sequence[int]]) -> None:
        self.it, self.batch, self.orders = it, it.batch, orders
        self.placed = dict[Step, Placed]()
        for step in it.inputs:
            order = orders.get(step.name, range(len(step.groups)))
            self.placed[step] = Placed(step.name, tuple(step.groups[i] for i in order))
        self.operations: list[Operation] = []
        self.weights: list[tuple[Layer, dict[str, Array]]] = []
        self.at: Step = it.inputs[0]  # the step that is being written

    # --- adding layers ---------------------------------------------------------------------

    def layer(
        self, layer: Layer, x: Placed, layout: Groups, lead: Group = (), /, **weights: Array
    ) -> Placed:
        """Add a layer that reads x and returns a value with this layout.

        It reads samples that are themselves along the axes `lead`.
        """
        if weights:
            self.weights.append((layer, weights))
        for _ in lead:
            layer = TimeDistributed(layer)
        return self.add(layer, [x], layout)

    def add(self, does: Layer | str, values: Sequence[Placed], layout: Groups) -> Placed:
        """Add a layer, or a merge of values that have the same layout."""
        value = f"{len(self.operations)}"
        inputs = tuple(v.value for v in values)
        self.operations.append(Operation(self.at.name, inputs, value, does))
        return Placed(value, layout)

    def several(
        self, layer: Layer, values: Sequence[Placed], layouts: Sequence[Groups]
    ) -> list[Placed]:
        """Add a layer that reads several values, or gives several with these layouts."""
        made = self.add(layer, values, layouts[0])
        if len(layouts) == 1:
            return [made]
        names = tuple([f"{made.value}.{k}" for k in range(len(layouts))])
        self.operations[-1] = self.operations[-1]._replace(output=names)
        return [*map(Placed, names, layouts)]

    # --- the order of axes -----------------------------------------------------------------

    def arranged(self, x: Placed, wanted: Groups) -> Placed:
        """Return x with its axes in these groups."""
        have, want = expanded(x.layout), expanded(wanted)
        if have == want:
            return x
        if not want or want[0] != (self.batch,):
            raise DataError(f"{self.at.name} mixes the samples of the batch with other axes.")
        if set(flat(have)) != set(flat(want)):
            raise DataError(f"{self.at.name} reads axes that its input does not have.")
        if flat(have) == flat(want):
            return self._reshaped(x, want)
        runs = [(self.batch,), *_runs(have, want)]
        x = self._reshaped(x, tuple(runs))
        order = sorted(range(1, len(runs)), key=lambda i: flat(want).index(runs[i][0]))
        x = self.layer(Permute(*order), x, tuple(runs[i] for i in (0, *order)))
        return self._reshaped(x, want)

    def _reshaped(self, x: Placed, wanted: Groups) -> Placed:
        """Return x with the same axes in the same order, grouped in another way."""
        if expanded(x.layout) == wanted:
            return x
        if len(wanted) == 2 and len(x.layout) > 2:
            return self.layer(Flatten(), x, wanted)
        sizes = [size_of(group) for group in wanted[1:]]
        free = [i for i, size in enumerate(sizes) if len(set(size)) > 1]
        if len(free) > 1:
            raise DataError(f"{self.at.name} reshapes samples with several unknown sizes.")
        shape = [-1 if i in free else size[0] for i, size in enumerate(sizes)]
        if not shape:
            raise DataError(f"{self.at.name} leaves samples without any axis.")
        return self.layer(Reshape(*shape), x, wanted)

    def features(
        self, x: Placed, along: Group, exact: bool = False
    ) -> tuple[Placed, list[int] | None]:
        """Return x with these axes last, and how they are ordered there.

        The second value is None if their elements are ordered as in `along`; otherwise it gives,
        for each element of the last axis, its place along `along`. With `exact`, it is None.
        """
        have, want = expanded(x.layout), leaves(along)
        if have[-1] == want:
            return x, None
        tail = len(have)
        while tail > 1 and set(have[tail - 1]) <= set(want):
            tail -= 1
        last = flat(have[tail:])
        if want and set(last) == set(want) and not (exact and last != want):
            x = self._reshaped(x, (*have[:tail], last))
            if last == want:
                return x, None
            self.it.budget.take(size_of(want)[:1], 64)
            return x, ax.positions(last, want)
        kept = [tuple(a for a in group if a not in want) for group in have]
        others = [new for new, old in zip(kept, have, strict=True) if new or not old]
        return self.arranged(x, (*others, want)), None

    def channels_last(self, x: Placed, view: View) -> tuple[Placed, Group]:
        """Return x (samples, *sizes, channels), and the axes of samples other than the batch.

        The view has the axes (samples, channels, *sizes).
        """
        samples, channels, *sizes = view.groups
        self.vote(x, view, (0, *range(2, len(view.groups)), 1))
        return self.samples_first(x, samples, (*sizes, channels))

    def samples_first(self, x: Placed, samples: Group, rest: Groups) -> tuple[Placed, Group]:
        """Return x (samples, *rest), and the axes of samples other than the batch."""
        lead = self.lead(samples)
        return self.arranged(x, (*self.rows(lead), *rest)), lead

    def lead(self, samples: Group) -> Group:
        """Return the axes of a group of samples other than the batch, which is the first."""
        first, *lead = leaves(samples) or (None,)
        if first is not self.batch:
            raise DataError(f"{self.at.name} does not have the batch as its axis of samples.")
        return tuple(lead)

    def rows(self, lead: Group) -> Groups:
        """Return the groups of the batch and of each other axis of the samples."""
        return ((self.batch,), *((axis,) for axis in lead))

    def vote(self, x: Placed, view: View, order: Sequence[int]) -> None:
        """If the view is an input as the graph takes it, let our input have this order of axes.

        Only operators whose channels or steps must be first vote, so that the model takes images
        with the channels last although the graph takes them first.
        """
        for step in self.it.inputs:
            groups = expanded(step.groups)
            as_given = expanded(x.layout) == groups == expanded(view.groups)
            if as_given and len(order) == len(groups) > 2 and step.name not in self.orders:
                raise RelayoutError(step.name, order)


def _runs(have: Groups, want: Groups) -> list[Group]:
    """Return the axes after the batch in pieces that stay together, in the order of `have`."""
    follows = dict(zip(flat(want), flat(want)[1:], strict=False))
    runs: list[list[Axis]] = []
    for group in have[1:]:
        for i, axis in enumerate(group):
            if i and follows.get(group[i - 1]) is axis:
                runs[-1].append(axis)
            else:
                runs.append([axis])
    return [tuple(run) for run in runs]


def translated(layout: Groups, a: View, b: View) -> Groups:
    """Return the layout of `a` in the axes that `b` has at the same places."""
    whole: dict[Group, Group] = {}
    for mine, other in zip(a.groups, b.groups, strict=True):
        if size_of(mine) != size_of(other):
            raise DataError("its inputs have different sizes")
        whole[leaves(mine)] = leaves(other)
    layout = expanded(layout)
    found: dict[Axis, Axis] = {}
    for mine, other in whole.items():
        if mine not in layout:  # parts of a group are needed: both must consist of the same
            pairs = ax.aligned(mine, other)
            if pairs is None:
                raise DataError("its inputs have different sizes")
            found |= pairs
    return tuple(
        leaves(whole[group]) if group in whole else tuple(found[axis] for axis in leaves(group))
        for group in layout
    )


def applied(x: View, layer: Layer) -> Plan:
    """Return the plan of a layer that works on each element, in any order of axes."""
    return Plan((x,), lambda w, placed: w.layer(layer, placed[0], placed[0].layout))


def on_features(
    x: View, along: Group, make: Callable[[], Layer], weights: Mapping[str, Array]
) -> Plan:
    """Return the plan of a layer on the last axis, which `along` becomes.

    The first axis of each array runs along these features.
    """

    def write(w: Writer, placed: list[Placed]) -> Placed:
        p, order = w.features(placed[0], along)
        arrays = {name: a if order is None else a[order] for name, a in weights.items()}
        return w.layer(make(), p, p.layout, **arrays)

    return Plan((x,), write)
