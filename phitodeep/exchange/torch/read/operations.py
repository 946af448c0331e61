"""The modules and functions of a traced graph: recurrent modules, attention, and all others."""

from __future__ import annotations

import inspect
from itertools import zip_longest
from typing import Any

from phitodeep import layers as L
from phitodeep.exchange.onnx.read.attention import is_causal
from phitodeep.exchange.onnx.read.axes import Groups, new, same, size_of
from phitodeep.exchange.onnx.read.values import Constant, View
from phitodeep.exchange.torch.layouts import FIRST
from phitodeep.exchange.torch.read.functions import FUNCTIONS, OTHER
from phitodeep.exchange.torch.read.graph import channels_last
from phitodeep.exchange.torch.read.leaves import array
from phitodeep.exchange.torch.read.making import as_tuple
from phitodeep.exchange.torch.read.tensor_functions import ALL, TensorFunctions


class Reader(TensorFunctions):
    """Turns a module into layers: `trace`, then `read`."""

    def __init__(self, torch: Any, own: Any, *args: Any) -> None:
        super().__init__(torch, own, *args)
        nn = torch.nn
        self.modules = {
            **dict.fromkeys([nn.Flatten, nn.Unflatten], lambda at, _, X: self.do_reshape(at, X)),
            **dict.fromkeys([nn.Softmax, nn.LogSoftmax], self._softmax),
            **dict.fromkeys([nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d], self._adaptive),
            **dict.fromkeys([nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d], self._adaptive),
            **dict.fromkeys([nn.RNN, nn.LSTM, nn.GRU], self._recurrent),
            nn.MultiheadAttention: self._attention,
            nn.Linear: self._linear_module,
            **dict.fromkeys([own.GlobalAvgPool, own.GlobalMaxPool], self._global_pool),
            own.TimeDistributed: self._time_distributed,
            **dict.fromkeys([nn.Bilinear, own.CrossAttention], self._joint),
            **dict.fromkeys([own.RNN, own.LSTM, own.GRU], self._joint),
            own.Merge: self._merged,
        }

    def _module(self, call: Any, module: Any, X: Any, *args: Any, **kwargs: Any) -> Any:
        special = self.modules.get(type(module))
        if special is not None:
            return special(call, module, X, *args, **kwargs)
        if args or kwargs:
            self.fail(call, "is called with more than its input, which is not supported")
        view = self.value(call, X)
        layers = self.leaves.layers(module, call.path, self.leaves.of)
        if isinstance(module, self.torch.nn.Embedding):
            self.embeddings[module.weight] = layers[0]
        pair, groups, count = self.leaves.rows.get(type(module)), view.groups, len(view.groups)
        after = self.groups(call.out, view)
        if pair is not None and pair.layout == "any":
            x = self.placed(view)
            return self.written(call, layers, x, (*x.layout, *after[count:]), after)
        channels = 1 if pair is not None and pair.layout == FIRST else count - 1
        x = self.writer.arranged(self.placed(view), channels_last(groups, channels))
        layout = channels_last(after, channels) if len(after) == count else after
        return self.written(call, layers, x, layout, after)

    def groups(self, value: Any, view: View) -> Groups:
        """Return the axes of an output: where sizes are equal, they are the input's."""
        pairs = zip_longest(map(same, value.shape), view.groups[: value.ndim], fillvalue=())
        return tuple(group if size_of(group) == size else new(size) for size, group in pairs)

    def _as_module(self, call: Any, name: str, X: Any, *args: Any, **kwargs: Any) -> Any:
        """A function that does what a module without parameters does."""
        kind = getattr(self.torch.nn, FUNCTIONS[name])
        own = OTHER.get(FUNCTIONS[name])
        names = [*inspect.signature(kind).parameters] if own is None else own.split()
        if kwargs.keys() - set(names) or len(args) > len(names):
            self.fail(call, f"has arguments that are not supported: {args} {kwargs}")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        for name, only in (("_stacklevel", 3), ("dtype", None), ("antialias", False)):
            if (found := given.pop(name, only)) != only:
                self.fail(call, f"has {name}={found}, which is not supported")
        given.pop("training", None)
        if call in self.dropped and not self.dropped[call]:
            return self.value(call, X)
        if name == "flatten":
            given = {"start_dim": 0, **given}
        return self._module(call, kind(**given), X)

    def _linear_module(self, call: Any, module: Any, X: Any) -> View:
        embedding = self.embeddings.get(module.weight)
        if embedding is not None:
            if module.bias is not None:
                self.fail(
                    call, "shares its weight with an Embedding, but has a bias: use bias=False"
                )
            return self._dense(call, [L.TiedDense(embedding)], X)
        layers = self.leaves.layers(module, call.path, self.leaves.of)
        alone = [c.does for c in self.calls].count(module) == 1 and not self.prefix
        alone &= not isinstance(layers[0], L.Shared)
        return self._dense(call, layers, X, self.leaves.loads[-1][2] if alone else None)

    def do_linear(self, call: Any, X: Any, weight: Any, bias: Any = None) -> View:
        embedding = self.embeddings.get(weight)
        if embedding is None or bias is not None:
            self.fail(call, "has a weight that is not an Embedding's: use torch.nn.Linear")
        return self._dense(call, [L.TiedDense(embedding)], X)

    def _dense(self, call: Any, layers: list[L.Layer], X: Any, arrays: Any = None) -> View:
        """Add a dense layer; the rows of its W follow features that a Flatten did not permute."""
        view = self.value(call, X)
        x, order = self.along(view, len(view.groups) - 1), None
        if arrays is not None and len(view.groups) == 2:
            x, order = self.writer.features(self.placed(view), view.groups[-1])
        if order is not None:
            arrays["W"] = arrays["W"][order]
        groups = (*view.groups[:-1], new(same(call.out.shape[-1])))
        return self.written(call, layers, x, (*x.layout[:-1], groups[-1]), groups)

    def _softmax(self, call: Any, module: Any, X: Any) -> View:
        if module.dim is None:
            self.fail(call, "has no dim")
        return self.operator(call, type(module).__name__, [self.value(call, X)], axis=module.dim)

    def _adaptive(self, call: Any, module: Any, X: Any) -> View:
        if set(as_tuple(module.output_size)) != {1}:
            self.fail(call, f"has output_size={module.output_size}; only 1 is supported")
        if getattr(module, "return_indices", False):
            self.fail(call, "has return_indices=True, which is not supported")
        return self.reduced(call, X, type(module).__name__, range(2, X.ndim), True)

    def _global_pool(self, call: Any, module: Any, X: Any) -> View:
        axes = [j for j in range(1, X.ndim) if j != module.dim % X.ndim]
        return self.reduced(call, X, type(module).__name__, axes, False)

    def _time_distributed(self, call: Any, module: Any, *Xs: Any) -> Any:
        views = [self.value(call, X) for X in Xs]
        examples = {f"X{k}": X.flatten(0, 1) for k, X in enumerate(Xs)}
        inner = Reader(self.torch, self.own, self.tracing, self.leaves)
        inner.embeddings, inner.used = self.embeddings, self.used
        inner.prefix = call.path + "."
        inner.trace(module.layer, examples)
        layer = inner.read(
            [A.ndim - 1 for A in examples.values()],
            lambda count: count,
            sequential=lambda *layers: layers[0] if len(layers) == 1 else L.Chain(*layers),
            network=L.Wired,
        )
        return self.joint(call, L.TimeDistributed(layer), views)

    def joint(self, call: Any, layer: Any, views: list[View]) -> list[View]:
        """Add a layer that reads several values, or gives several, with their axes in order."""
        outs = []
        for value in call.made:
            groups = self.groups(value, views[0])
            states = [groups[0], *(new(same(n)) for n in value.shape[1:])]  # (N, H)
            outs.append(self.new_step(call, views, groups if value.ndim > 2 else states))
        placed = self.writer.several(layer, [*map(self.ordered, views)], [s.groups for s in outs])
        self.writer.placed.update(zip(outs, placed, strict=True))
        return [step.output for step in outs]

    def _joint(self, call: Any, module: Any, *Xs: Any) -> Any:
        """Modules of several values."""
        (layer,) = self.leaves.layers(module, call.path, self.leaves.of)
        return self.joint(call, layer, [self.value(call, X) for X in Xs])

    def _merged(self, call: Any, module: Any, *Xs: Any) -> View:
        if module.how == "concat":
            return self.do_cat(call, Xs, module.dim)
        return self.merged(call, module.how, *Xs, dim=module.dim)

    # --- recurrent modules -------------------------------------------------------------------

    def _recurrent(self, call: Any, module: Any, X: Any, state: Any = None) -> Any:
        if state is not None:
            self.fail(call, "is given an initial state; only zeros are supported")
        view = self.value(call, X)
        x, last = self.ordered(view), self._only_last(call, module)
        layers = self.leaves.layers(module, call.path, lambda m: self.leaves.recurrent(m, not last))
        width = new(same(module.hidden_size * (2 if module.bidirectional else 1)))
        groups = (*view.groups[: 1 if last else 2], width)
        out = self.written(call, layers, x, groups, groups)
        states = self._ends(call, module, out, last)
        return [out, states, "reads the cell state, which no layer returns"]

    def _ends(self, call: Any, module: Any, out: View, last: bool) -> list[Any]:
        """Return the state of each layer and direction after all its steps."""
        H, directions = module.hidden_size, 2 if module.bidirectional else 1
        hidden = "reads a state that is not the last layer's"
        states: list[Any] = [hidden] * (directions * (module.num_layers - 1))
        for i in range(directions):
            state = out if last else self.selected(call, out, (ALL, i - 1))
            if directions == 2:
                state = self.selected(call, state, (ALL, slice(i * H, (i + 1) * H)))
            states.append(state)
        return states

    def do_getitem(self, call: Any, X: Any, at: Any) -> Any:
        known = self.values[id(X)]
        if isinstance(known, list) and isinstance(at, int | slice):
            return [known[at]]
        index = at if isinstance(at, tuple) else (at,)
        if any(i is None for i in index) and all(i in (None, Ellipsis, ALL) for i in index):
            return self.do_reshape(call, X)  # only adds axes
        view = self.value(call, X)
        if len(view.groups) < X.ndim:  # only the last step was computed
            return view
        return self.selected(call, view, at)

    def _only_last(self, call: Any, module: Any) -> bool:
        """Return whether all that is read of a recurrent module is its state after all steps.

        In a bidirectional one, the last step of the outputs is not that state.
        """
        readers = self.readers[id(call.made[0])]
        return not (module.bidirectional and readers) and all(map(self._takes_last, readers))

    def _takes_last(self, call: Any) -> bool:
        """Return whether a step selects the last time step of (N, T, D)."""
        if call.name != "getitem":
            return False
        last = call.args[0][:, -1]
        return call.out.data_ptr() == last.data_ptr() and call.out.shape == last.shape

    # --- attention ---------------------------------------------------------------------------

    def _attention(
        self, call: Any, module: Any, query: Any, key: Any, value: Any,
        key_padding_mask: Any = None, need_weights: bool = True, attn_mask: Any = None,
        average_attn_weights: bool = True, is_causal: bool = False,
    ) -> Any:  # fmt: skip
        if not (query is key is value):
            self.fail(call, "attends to another value than its own input, which is not supported")
        if key_padding_mask is not None:
            self.fail(call, "has a key_padding_mask: in phitodeep, predict(X, lengths=...) has")
        causal = self._is_causal(call, attn_mask)
        view = self.value(call, query)
        layers = self.leaves.layers(module, call.path, lambda m: self.leaves.attention(m, causal))
        return [self.written(call, layers, self.ordered(view), view.groups, view.groups), None]

    def _is_causal(self, call: Any, mask: Any) -> bool:
        """Return whether a mask hides all later positions; False if there is none."""
        if mask is None:
            return False
        if id(mask) in self.values:
            self.fail(call, "has a mask that depends on the input")
        found = array(mask)
        seen = Constant((~found if found.dtype == bool else found,))
        if not is_causal(seen, same(found.shape[-1])):
            self.fail(call, "has a mask that is not the causal one")
        return True
