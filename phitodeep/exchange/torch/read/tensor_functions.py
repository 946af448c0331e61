"""PyTorch's functions and methods that move, select, reduce and merge elements of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise, zip_longest
from typing import Any

import numpy as np

from phitodeep import layers as L
from phitodeep.errors import DataError
from phitodeep.exchange.onnx.read.axes import leaves, new, number, regrouped, same
from phitodeep.exchange.onnx.read.products import dotted, merging
from phitodeep.exchange.onnx.read.values import Constant, Step, View, broadcast
from phitodeep.exchange.torch.read.graph import Graph, is_node
from phitodeep.exchange.torch.read.leaves import array

ALL = slice(None)
MERGED = {"mul": "multiply", "sub": "subtract", "max": "maximum", "maximum": "maximum"}


class TensorFunctions(Graph):
    """A method `do_...` for each such function."""

    # --- axes and shapes ---------------------------------------------------------------------

    def do_contiguous(self, node: Any, X: Any) -> View:
        return self.value(node, X)

    def do_permute(self, node: Any, X: Any, *to: Any, **named: Any) -> View:
        """Where the axes are moved shows on a tensor whose axes have the sizes 1, 2, 3, ..."""
        view = self.value(node, X)
        sizes = range(1, len(view.groups) + 1)
        move = getattr(self.torch.empty(*sizes, device="meta"), str(self.function(node)))
        moved = move(*to, **named).shape
        if moved[0] != 1:
            self.fail(node, "moves the batch axis")
        return View(view.step, tuple(view.groups[n - 1] for n in moved))

    do_transpose = do_movedim = do_permute

    def do_reshape(self, node: Any, X: Any, *_: Any, **__: Any) -> View:
        view, after = self.value(node, X), tuple(node.meta["value"].shape)
        before = tuple(X.meta["value"].shape)
        if not after or after[0] != before[0]:
            self.fail(node, f"turns {before} into {after}, which merges samples")
        groups = regrouped(view.groups, [same(n) for n in after])
        if groups is None:
            groups = (view.groups[0], *(new(same(n)) for n in after[1:]))
            return self.written(node, [L.Reshape(*after[1:])], self.ordered(view), groups, groups)
        x = self.placed(view)
        if len(after) == 2:
            x = self.writer.features(x, groups[1], exact=not self._absorbs(node))[0]
        x = self.without_ones(x)
        return self.written(node, [], x, x.layout, groups)

    do_view = do_squeeze = do_unsqueeze = do_reshape

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

    def selected(self, node: Any, view: View, at: Any) -> View:
        """Return the elements at an index."""
        index = at if isinstance(at, tuple) else (at,)
        if Ellipsis in index:
            i = index.index(Ellipsis)
            count = len(view.groups) + 1 - len([n for n in index if n is not None])
            index = (*index[:i], *[ALL] * count, *index[i + 1 :])
        if index[0] != ALL:
            self.fail(node, "selects samples of the batch")
        if None in index:
            self.fail(node, "adds an axis by indexing: use unsqueeze")
        if sum(isinstance(i, list) for i in index) > 1:
            self.fail(node, "selects by several lists; one at a time is supported")
        for j, i in enumerate(index):
            if i != ALL:
                view = self._selected(node, view, j, i)
        kept = [g for g, i in zip_longest(view.groups, index) if not isinstance(i, int)]
        if len(kept) == len(view.groups):
            return view
        x = self.without_ones(self.placed(view))
        return self.written(node, [], x, x.layout, kept)

    def _selected(self, node: Any, view: View, axis: int, at: Any) -> View:
        size = number(view.groups[axis])
        if not isinstance(at, int | slice | list):
            self.fail(node, f"selects by {at!r}; only numbers and slices are supported")
        columns = np.atleast_1d(np.arange(size)[at]).tolist()
        if not columns:
            self.fail(node, "selects nothing")
        from_the_end = at if isinstance(at, int) else at.start if isinstance(at, slice) else None
        given = [c - size for c in columns] if (from_the_end or 0) < 0 else columns
        found = node.meta["value"]
        tokens = not (found[0] if isinstance(found, tuple | list) else found).is_floating_point()
        x, kept = self.along(view, axis), new(same(len(columns)))
        groups = (*view.groups[:axis], kept, *view.groups[axis + 1 :])
        select = L.Select(given, tokens=tokens)
        part = self.written(node, [select], x, (*x.layout[:-1], kept), groups)
        if columns == list(range(columns[0], columns[-1] + 1)) and len(groups) == 2:
            self.slices[part.step] = (view.step, columns[0], columns[-1] + 1)
        return part if isinstance(at, int) else self.back(part, axis, view)

    def do_chunk(self, node: Any, X: Any, chunks: int, dim: int = 0) -> Any:
        view = self.value(node, X)
        axis = dim % len(view.groups)
        if axis == 0:
            self.fail(node, "splits the batch")
        ends = accumulate(part.shape[axis] for part in node.meta["value"])
        parts = (slice(*both) for both in pairwise([0, *ends]))
        return [self._selected(node, view, axis, part) for part in parts]

    do_split = do_chunk

    def do_mean(self, node: Any, X: Any, dim: Any, keepdim: bool = False) -> View:
        view = self.value(node, X)
        axes = range(len(view.groups)) if dim is None else np.atleast_1d(dim).tolist()
        return self.reduced(node, view, str(self.function(node)), axes, keepdim)

    do_amax = do_mean

    def do_max(self, node: Any, X: Any, dim: int, keepdim: bool = False) -> Any:
        if is_node(dim):
            return self.do_maximum(node, X, dim)
        return [self.do_mean(node, X, dim, keepdim), None]

    def reduced(self, node: Any, view: View, name: str, axes: Sequence[int], keepdim: bool) -> View:
        """Return a maximum or a mean, as the name says, along some axes."""
        axes = sorted(axis % len(view.groups) for axis in axes)
        if 0 in axes:
            self.fail(node, f"reduces the axes {axes}, and the first one holds the samples")
        op = "ReduceMax" if "max" in name.lower() else "ReduceMean"
        return self.operator(node, op, [view, Constant((np.array(axes),))], keepdims=keepdim)

    # --- merges ------------------------------------------------------------------------------

    def do_cat(self, node: Any, tensors: Any, dim: int = 0, *, axis: int | None = None) -> View:
        if is_node(tensors):  # the parts of a split
            views = self.values[tensors]
        else:
            views = [self.value(node, X) for X in tensors]
        dim = (dim if axis is None else axis) % len(views[0].groups)
        if dim == 0:
            self.fail(node, "concatenates along the batch")
        whole = self._put_together(views)
        if whole is not None:
            return whole.output
        return self.back(self.operator(node, "Concat", views, axis=dim), dim, views[0])

    def _put_together(self, views: Sequence[View]) -> Step | None:
        """Return the step of which these are all slices in order, if they are."""
        slices = [self.slices.get(view.step, (None, 0, 0)) for view in views]
        source, at = slices[0][0], 0
        for step, start, stop in slices:
            if step is not source or start != at:
                return None
            at = stop
        return source if source and at == number(source.groups[-1]) else None

    def do_add(self, node: Any, A: Any, B: Any, *, alpha: float = 1) -> Any:
        if alpha != 1:
            self.fail(node, f"has alpha={alpha}, which is not supported")
        for X, other in ((A, B), (B, A)):
            if isinstance(other, int | float) and other == 0:  # as Python's sum begins
                return self.value(node, X)
            if is_node(other) and other not in self.values:
                return self._plus_positions(node, X, other)
        return self.merged(node, "add", A, B)

    def do_mul(self, node: Any, A: Any, B: Any) -> View:
        return self.merged(node, MERGED[str(self.function(node))], A, B)

    do_sub = do_maximum = do_mul

    def merged(self, node: Any, how: str, *Xs: Any, dim: int = -1) -> View:
        """Return values merged element by element, or their dot product along `dim`."""
        views = [self.value(node, X) for X in Xs]
        try:
            groups = broadcast(views)
            if how == "dot":
                axis = dim % len(groups)
                groups[axis] = ()
                return self.planned(
                    self.new_step(node, views, groups), dotted(views, leaves(views[0].groups[axis]))
                )
            return self.planned(step := self.new_step(node, views, groups), merging(step, how))
        except DataError:
            shapes = " and ".join(str(tuple(X.meta["value"].shape[1:])) for X in Xs)
            self.fail(
                node, f"merges samples of shapes {shapes}; only equal sizes, and 1, are supported"
            )

    def _plus_positions(self, node: Any, X: Any, other: Any) -> View:
        """Add a constant (T, D): learnt or fixed vectors for each position."""
        view, added = self.value(node, X), array(other.meta["value"])
        shape = tuple(X.meta["value"].shape[1:])
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
                self.fail(node, f"shares its weight with {self.used[table][0]!r}")
            self.used[table] = self.path(node), None
        self.leaves.loads.append((layer, self.path(node), {"W": W}))
        return self.written(node, [layer], self.ordered(view), view.groups, view.groups)

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
