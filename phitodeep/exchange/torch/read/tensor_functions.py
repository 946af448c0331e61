"""PyTorch's functions and methods that move, select, reduce and merge elements of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from phitodeep import layers as L
from phitodeep.core.types import Shape
from phitodeep.exchange.torch.read.graph import Axes, Graph, Value, canonical, is_node, plain
from phitodeep.exchange.torch.read.leaves import array

ALL = slice(None)


class TensorFunctions(Graph):
    """A method `do_...` for each such function.

    slices    values that are some features of another one: its name, and the first and last
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.slices: dict[str, tuple[str, int, int]] = {}

    # --- axes and shapes ---------------------------------------------------------------------

    def do_contiguous(self, node: Any, X: Any) -> Any:
        return self.value(node, X)

    def do_permute(self, node: Any, X: Any, *to: Any, **named: Any) -> Value:
        """Where the axes are moved shows on a tensor whose axes have the sizes 1, 2, 3, ..."""
        value = self.value(node, X)
        sizes = range(1, len(value.axes) + 2)
        move = getattr(self.torch.empty(*sizes, device="meta"), str(self.function(node)))
        first, *others = move(*to, **named).shape
        if first != 1:
            self.fail(node, "moves the batch axis")
        return value._replace(axes=tuple(value.axes[n - 2] for n in others))

    do_transpose = do_movedim = do_permute

    def do_reshape(self, node: Any, X: Any, *_: Any, **__: Any) -> Value:
        value, after = self.value(node, X), tuple(node.meta["value"].shape)
        before = tuple(X.meta["value"].shape)
        if not after or after[0] != before[0]:
            self.fail(node, f"turns {before} into {after}, which merges samples")
        before, after = before[1:], after[1:]
        if [n for n in before if n != 1] == [n for n in after if n != 1]:
            return self._resized(node, value, before, after)
        if len(after) == 1:
            return self._flat(node, value)
        value = self.ordered(node, value, plain(len(before)))
        return self.chain(node, value, [L.Reshape(*after)], plain(len(after)))

    do_view = do_squeeze = do_unsqueeze = do_reshape

    def _resized(self, node: Any, value: Value, before: Shape, after: Shape) -> Value:
        """Add or remove axes of size 1."""
        if not after:
            self.fail(node, "leaves one number without an axis for each sample: keep an axis")
        kept = [a for a, n in zip(value.axes, before, strict=True) if n != 1]
        ours = self.shapes[value.name]
        dropped = [a for a in range(1, len(ours) + 1) if a not in kept]
        if not kept:  # a single element: one axis of ours stays
            kept = [dropped.pop()] if dropped else []
        if dropped:
            shape = tuple(n for a, n in enumerate(ours, 1) if a not in dropped)
            name = self.emit(node, L.Reshape(*shape), [value.name], shape)
            value = Value(name, ())
        number = {a: i for i, a in enumerate(sorted(kept), 1)}
        left = iter(kept)
        last = len(after) - 1 if math.prod(after) == 1 else None
        axes = tuple(number[next(left)] if n != 1 or j == last else 0 for j, n in enumerate(after))
        return Value(value.name, axes, value.order if axes == (1,) else None)

    def _flat(self, node: Any, value: Value) -> Value:
        """Flatten all axes, in PyTorch's order."""
        shape = self.shapes[value.name]
        size = math.prod(shape)
        dims = [a - 1 for a in value.axes if a]
        order = np.arange(size).reshape(shape).transpose(dims).ravel()
        moved = not np.array_equal(order, np.arange(size))
        absorbed = moved and self._absorbs(node)
        if moved and not absorbed:
            value = self.ordered(node, value, plain(len(value.axes)))
        flat = self.chained(node, value, [L.Flatten()], (1,), (size,))
        return flat._replace(order=order if absorbed else None)

    def _absorbs(self, node: Any) -> bool:
        """Return whether only Linear modules read a value, perhaps after elementwise steps."""
        for user in node.users:
            module = self._module_of(user)
            row = self.leaves.rows.get(type(module))
            if type(module) is self.torch.nn.Linear and module.weight not in self.embeddings:
                continue
            if row is None or row.layout != "any" or row.moves or not self._absorbs(user):
                return False
        return bool(node.users)

    # --- selections and reductions -----------------------------------------------------------

    def do_getitem(self, node: Any, X: Any, at: Any) -> Any:
        value = self.value(node, X)
        index = at if isinstance(at, tuple) else (at,)
        if Ellipsis in index:
            i = index.index(Ellipsis)
            count = len(value.axes) + 2 - len([n for n in index if n is not None])
            index = (*index[:i], *[ALL] * count, *index[i + 1 :])
        if index[0] != ALL:
            self.fail(node, "selects samples of the batch")
        if None in index:
            self.fail(node, "adds an axis by indexing: use unsqueeze")
        if sum(isinstance(i, list) for i in index) > 1:
            self.fail(node, "selects by several lists; one at a time is supported")
        whole = [j for j, i in enumerate(index) if isinstance(i, int)]
        axes = value.axes
        for j, i in enumerate(index):
            if i != ALL:
                value = self._selected(node, value, j, i)
        if not whole:
            return self._back(node, value, axes)
        sizes = [n for j, n in enumerate(self._sizes(value), 1) if j not in whole]
        return self._resized(node, value, self._sizes(value), tuple(sizes))

    def _back(self, node: Any, value: Value, axes: Axes) -> Value:
        """Return the value with its axes as they were before a step that needed another order."""
        return value if 0 in axes else self.ordered(node, value, axes)

    def _selected(self, node: Any, value: Value, axis: int, at: Any) -> Value:
        size = self._sizes(value)[axis - 1]
        if not isinstance(at, int | slice | list):
            self.fail(node, f"selects by {at!r}; only numbers and slices are supported")
        value = self.channels_at(node, value, axis)
        columns = np.atleast_1d(np.arange(size)[at]).tolist()
        if not columns:
            self.fail(node, "selects nothing")
        from_the_end = at if isinstance(at, int) else at.start if isinstance(at, slice) else None
        given = [c - size for c in columns] if (from_the_end or 0) < 0 else columns
        shape = (*self.shapes[value.name][:-1], len(columns))
        source, found = value.name, node.meta["value"]
        tokens = not (found[0] if isinstance(found, tuple | list) else found).is_floating_point()
        name = self.emit(node, L.Select(given, tokens=tokens), [source], shape)
        if columns == list(range(columns[0], columns[-1] + 1)) and len(shape) == 1:
            self.slices[name] = (source, columns[0], columns[-1] + 1)
        return Value(name, value.axes)

    def do_chunk(self, node: Any, X: Any, chunks: int, dim: int = 0) -> Any:
        value = self.value(node, X)
        axis, start, parts = dim % (len(value.axes) + 1), 0, []
        if axis == 0:
            self.fail(node, "splits the batch")
        for part in node.meta["value"]:
            n = part.shape[axis]
            part = self._selected(node, value, axis, slice(start, start + n))
            parts.append(self._back(node, part, value.axes))
            start += n
        return parts

    do_split = do_chunk

    def do_mean(self, node: Any, X: Any, dim: Any, keepdim: bool = False) -> Value:
        return self._pooled(node, self.value(node, X), L.GlobalAvgPool, dim, keepdim)

    def do_amax(self, node: Any, X: Any, dim: Any, keepdim: bool = False) -> Value:
        return self._pooled(node, self.value(node, X), L.GlobalMaxPool, dim, keepdim)

    def do_max(self, node: Any, X: Any, dim: int, keepdim: bool = False) -> Any:
        value = self.value(node, X)
        if is_node(dim):
            self.fail(node, "compares two values, which no layer does")
        return [self._pooled(node, value, L.GlobalMaxPool, dim, keepdim), None]

    def _pooled(self, node: Any, value: Value, kind: Any, dims: Any, keepdim: bool) -> Value:
        """Pool over all axes of ours except one; None is all axes, as for PyTorch."""
        dims = range(len(value.axes) + 1) if dims is None else np.atleast_1d(dims).tolist()
        dims = sorted(d % (len(value.axes) + 1) for d in dims)
        others = [j for j in range(1, len(value.axes) + 1) if j not in dims]
        left = [j for j in others if value.axes[j - 1]] or others  # or one channel
        if 0 in dims or len(left) != 1:
            self.fail(
                node, f"reduces the axes {dims}; only all axes but the channels are supported"
            )
        value = self.channels_at(node, value, left[0])
        layers = [kind()] if len(self.shapes[value.name]) > 1 else []
        kept = [1 if j == left[0] else 0 for j in range(1, len(value.axes) + 1)]
        axes = tuple(a for j, a in enumerate(kept, 1) if keepdim or j not in dims)
        channels = self.shapes[value.name][-1]
        return self.chained(node, value, layers, axes, [channels] * len(axes))

    # --- merges ------------------------------------------------------------------------------

    def do_cat(self, node: Any, tensors: Any, dim: int = 0, *, axis: int | None = None) -> Value:
        if is_node(tensors):  # the parts of a split
            values = self.values[tensors]
        else:
            values = [self.value(node, X) for X in tensors]
        dim = (dim if axis is None else axis) % (len(values[0].axes) + 1)
        if dim == 0:
            self.fail(node, "concatenates along the batch")
        axes = values[0].axes
        first = self.channels_at(node, values[0], dim)
        if 0 in first.axes:
            first = self.ordered(node, first, canonical(len(first.axes), dim))
        values = [first, *(self.ordered(node, v, first.axes) for v in values[1:])]
        whole = first.name if len(values) == 1 else self._put_together(values)
        if whole is not None:
            return Value(whole, first.axes)
        shape = (*self.shapes[first.name][:-1], node.meta["value"].shape[dim])
        name = self.emit(node, "concat", [v.name for v in values], shape)
        return self._back(node, Value(name, first.axes), axes)

    def _put_together(self, values: Sequence[Value]) -> str | None:
        """Return the value of which these are all slices in order, if they are."""
        slices = [self.slices.get(v.name, ("", 0, 0)) for v in values]
        source, at = slices[0][0], 0
        for name, start, stop in slices:
            if name != source or start != at:
                return None
            at = stop
        return source if source and (at,) == self.shapes[source] else None

    def do_add(self, node: Any, A: Any, B: Any, *, alpha: float = 1) -> Any:
        if alpha != 1:
            self.fail(node, f"has alpha={alpha}, which is not supported")
        for X, other in ((A, B), (B, A)):
            if isinstance(other, int | float) and other == 0:  # as Python's sum begins
                return self.value(node, X)
            if is_node(other) and other not in self.values:
                return self._plus_positions(node, X, other)
        return self._merge(node, A, B, "add")

    def do_mul(self, node: Any, A: Any, B: Any) -> Any:
        return self._merge(node, A, B, "multiply")

    def _merge(self, node: Any, A: Any, B: Any, merge: str) -> Value:
        first, second = self.value(node, A), self.value(node, B)
        if self._sizes(first) != self._sizes(second):
            self.fail(
                node,
                f"merges samples of shapes {self._sizes(first)} and {self._sizes(second)}; only "
                "equal shapes are supported",
            )
        if 0 in first.axes and 0 not in second.axes:
            first = self.ordered(node, first, second.axes)
        second = self.ordered(node, second, first.axes)
        name = self.emit(node, merge, [first.name, second.name], self.shapes[first.name])
        return Value(name, first.axes)

    def _plus_positions(self, node: Any, X: Any, other: Any) -> Value:
        """Add a constant (T, D): learnt or fixed vectors for each position."""
        value, added = self.value(node, X), array(other.meta["value"])
        value = self.ordered(node, value, plain(len(value.axes)))
        shape = self.shapes[value.name]
        if len(shape) != 2 or added.shape not in (shape, (1, *shape)):
            self.fail(
                node, f"adds a constant of shape {added.shape}; only vectors (T, D) are supported"
            )
        added = added.reshape(shape)
        table = self._table(other)
        W = added if table is None else array(table).reshape(-1, shape[1])
        if not np.array_equal(W[: len(added)], added):
            self.fail(node, "adds positions in another order than 0, 1, 2, ...")
        layer = L.PositionalEmbedding(len(W))
        layer.trainable = table is not None and table.requires_grad
        if table is not None:
            if table in self.used:
                self.fail(node, f"shares its weight with {self.used[table]!r}")
            self.used[table] = self.path(node)
        self.leaves.loads.append((layer, self.path(node), {"W": W}))
        return self.chain(node, value, [layer], value.axes)

    def _table(self, node: Any) -> Any:
        """Return the parameter of which a constant holds the first rows, or None."""
        if node.op == "call_module":
            module = self.root.get_submodule(node.target)
            return module.weight if type(module) is self.torch.nn.Embedding else None
        if node.op == "get_attr":
            found = node.meta["value"]
            return found if isinstance(found, self.torch.nn.Parameter) else None
        sources = [self._table(n) for n in node.all_input_nodes]
        return sources[0] if len(sources) == 1 and self.function(node) is not None else None
