"""PyTorch's functions and methods that move, select, reduce and merge elements of tensors."""

from __future__ import annotations

from itertools import accumulate, pairwise, zip_longest
from typing import Any

import numpy as np

from phitodeep import layers as L
from phitodeep.exchange.onnx.read.axes import leaves, new, number, regrouped, same
from phitodeep.exchange.onnx.read.products import dotted, merging
from phitodeep.exchange.onnx.read.values import Constant, Step, View, broadcast
from phitodeep.exchange.torch.read.graph import Graph
from phitodeep.exchange.torch.read.leaves import array

ALL = slice(None)
MERGED = {"mul": "multiply", "sub": "subtract", "max": "maximum", "maximum": "maximum"}
MERGED |= {"multiply": "multiply", "subtract": "subtract"}


class TensorFunctions(Graph):
    """A method `do_...` for each such function.

    parts    values (N, D) that hold some features of another one: that one, and the places there
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.parts: dict[Step, tuple[View, list[int]]] = {}

    # --- axes and shapes ---------------------------------------------------------------------

    def do_contiguous(self, call: Any, X: Any) -> View:
        return self.value(call, X)

    def do_permute(self, call: Any, X: Any, *to: Any, **named: Any) -> View:
        """Where the axes are moved shows on a tensor whose axes have the sizes 1, 2, 3, ..."""
        view = self.value(call, X)
        sizes = range(1, len(view.groups) + 1)
        moved = call.does(self.torch.empty(*sizes, device="meta"), *to, **named).shape
        return View(view.step, tuple(view.groups[n - 1] for n in moved))

    do_transpose = do_movedim = do_permute

    def do_reshape(self, call: Any, X: Any, *_: Any, **__: Any) -> View:
        view, after = self.value(call, X), call.out.shape
        groups = regrouped(view.groups, [same(n) for n in after])
        if groups is None:
            groups = (view.groups[0], *(new(same(n)) for n in after[1:]))
            return self.written(call, [L.Reshape(*after[1:])], self.ordered(view), groups, groups)
        x = self.placed(view)
        if len(after) == 2:
            x = self.writer.features(x, groups[1], exact=not self._absorbs(call))[0]
        x = self.without_ones(x)
        return self.written(call, [], x, x.layout, groups)

    do_view = do_squeeze = do_unsqueeze = do_reshape

    def _absorbs(self, call: Any) -> bool:
        """Return whether only Linear modules read a value, perhaps after elementwise steps."""
        for reader in self.readers[id(call.out)]:
            module = self._module_of(reader)
            row = self.leaves.rows.get(type(module))
            if type(module) is self.torch.nn.Linear and module.weight not in self.embeddings:
                continue
            if row is None or row.layout != "any" or row.moves or not self._absorbs(reader):
                return False
        return bool(self.readers[id(call.out)])

    # --- selections and reductions -----------------------------------------------------------

    def selected(self, call: Any, view: View, at: Any) -> View:
        """Return the elements at an index."""
        index = at if isinstance(at, tuple) else (at,)
        if any(i is Ellipsis for i in index):
            i = [i is Ellipsis for i in index].index(True)
            index = (*index[:i], *[ALL] * (len(view.groups) + 1 - len(index)), *index[i + 1 :])
        if sum(isinstance(i, list) for i in index) > 1:
            self.fail(call, "selects by several lists; one at a time is supported")
        for axis, i in enumerate(index):
            if not isinstance(i, slice) or i != ALL:
                view = self.part(call, view, axis, i)
        kept = [g for g, i in zip_longest(view.groups, index) if not isinstance(i, int)]
        if len(kept) == len(view.groups):
            return view
        x = self.without_ones(self.placed(view))
        return self.written(call, [], x, x.layout, kept)

    def part(self, call: Any, view: View, axis: int, at: Any) -> View:
        """Return the elements at places along an axis; a single place keeps the axis."""
        if not isinstance(at, int | slice | list):
            self.fail(call, f"selects by {at!r}; only numbers, slices and lists are supported")
        size = number(view.groups[axis])
        columns = np.atleast_1d(np.arange(size)[at]).tolist()
        if not columns:
            self.fail(call, "selects nothing")
        from_the_end = at if isinstance(at, int) else at.start if isinstance(at, slice) else None
        given = [c - size for c in columns] if (from_the_end or 0) < 0 else columns
        x, kept = self.along(view, axis), new(same(len(columns)))
        groups = (*view.groups[:axis], kept, *view.groups[axis + 1 :])
        select = L.Select(given, tokens=not call.made[0].is_floating_point())
        part = self.written(call, [select], x, (*x.layout[:-1], kept), groups)
        if len(groups) == 2:
            self.parts[part.step] = view, columns
        return part if isinstance(at, int) else self.back(part, axis, view)

    def do_chunk(self, call: Any, X: Any, chunks: int, dim: int = 0) -> Any:
        view = self.value(call, X)
        axis = dim % len(view.groups)
        ends = accumulate(part.shape[axis] for part in call.made)
        return [self.part(call, view, axis, slice(*both)) for both in pairwise([0, *ends])]

    do_split = do_chunk

    def do_mean(self, call: Any, X: Any, dim: Any, keepdim: bool = False) -> View:
        return self.reduced(call, X, call.name, dim, keepdim)

    do_amax = do_mean

    def do_max(self, call: Any, X: Any, dim: int, keepdim: bool = False) -> Any:
        if self.is_tensor(dim):
            return self.do_maximum(call, X, dim)
        return [self.do_mean(call, X, dim, keepdim), None]

    def reduced(self, call: Any, X: Any, name: str, axes: Any, keepdim: bool) -> View:
        """Return a maximum or a mean, as the name says, along some axes, or all of them."""
        op = "ReduceMax" if "max" in name.lower() else "ReduceMean"
        given = [] if axes is None else [Constant((np.atleast_1d(axes),))]
        return self.operator(call, op, [self.value(call, X), *given], keepdims=keepdim)

    # --- merges ------------------------------------------------------------------------------

    def do_cat(self, call: Any, tensors: Any, dim: int = 0, *, axis: int | None = None) -> View:
        views = [self.value(call, X) for X in tensors]
        dim = (dim if axis is None else axis) % len(views[0].groups)
        parts = [self.parts.get(view.step, (view, [])) for view in views]
        whole, columns = parts[0][0], [column for _, part in parts for column in part]
        alike = dim and all(view == whole for view, _ in parts)
        if alike and columns == [*range(number(whole.groups[-1]))]:
            return whole
        return self.back(self.operator(call, "Concat", views, axis=dim), dim, views[0])

    def do_add(self, call: Any, A: Any, B: Any, *, alpha: float = 1) -> Any:
        if alpha != 1:
            self.fail(call, f"has alpha={alpha}, which is not supported")
        for X, other in ((A, B), (B, A)):
            if isinstance(other, int | float) and other == 0:  # as Python's sum begins
                return self.value(call, X)
            if self.is_tensor(other) and id(other) not in self.values:
                return self._plus_positions(call, X, other)
        return self.merged(call, "add", A, B)

    def do_mul(self, call: Any, A: Any, B: Any) -> View:
        return self.merged(call, MERGED[call.name], A, B)

    do_sub = do_maximum = do_mul

    def merged(self, call: Any, how: str, *Xs: Any, dim: int = -1) -> View:
        """Return values merged element by element, or their dot product along `dim`."""
        views = [self.value(call, X) for X in Xs]
        groups = broadcast(views)
        if how == "dot":
            along, groups[dim] = leaves(views[0].groups[dim]), ()
            return self.planned(self.new_step(call, views, groups), dotted(views, along))
        step = self.new_step(call, views, groups)
        return self.planned(step, merging(step, how))

    def _plus_positions(self, call: Any, X: Any, other: Any) -> View:
        """Add a constant (T, D): learnt or fixed vectors for each position."""
        view, added, shape = self.value(call, X), array(other), tuple(X.shape[1:])
        if len(shape) != 2 or added.shape not in (shape, (1, *shape)):
            self.fail(
                call, f"adds a constant of shape {added.shape}; only vectors (T, D) are supported"
            )
        added = added.reshape(shape)
        table = self._table(other)
        W = added if table is None else array(table).reshape(-1, shape[1])
        if not np.array_equal(W[: len(added)], added):
            self.fail(call, "adds positions in another order than 0, 1, 2, ...")
        layer = L.PositionalEmbedding(len(W))
        layer.trainable = table is not None and table.requires_grad
        if table is not None:
            if table in self.used:
                self.fail(call, f"shares its weight with {self.used[table][0]!r}")
            self.used[table] = call.path, None
        self.leaves.loads.append((layer, call.path, {"W": W}))
        return self.written(call, [layer], self.ordered(view), view.groups, view.groups)

    def _table(self, tensor: Any) -> Any:
        """Return the parameter of which a constant holds the first rows, or None."""
        if isinstance(tensor, self.torch.nn.Parameter):
            return tensor
        for call in self.calls:
            if any(made is tensor for made in call.made):
                if type(call.does) is self.torch.nn.Embedding:
                    return call.does.weight
                return self._table(call.given[0]) if len(call.given) == 1 and call.name else None
        return None
