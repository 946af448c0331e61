"""The modules and functions of a traced graph: recurrent modules, attention, and all others."""

from __future__ import annotations

from typing import Any

import numpy as np

from phitodeep import layers as L
from phitodeep.exchange.torch.read.functions import FUNCTIONS
from phitodeep.exchange.torch.read.graph import Unknown, Value, canonical, is_node, plain
from phitodeep.exchange.torch.read.leaves import array
from phitodeep.exchange.torch.read.tensor_functions import ALL, TensorFunctions

EXACT = {L.Conv1D, L.Conv2D, L.ConvTranspose1D, L.ConvTranspose2D, L.MaxPool1D, L.MaxPool2D}
EXACT |= {L.AvgPool1D, L.AvgPool2D, L.Upsample2D, L.ZeroPad2D, L.RandomCrop, L.RandomFlip}
IN_ORDER = {L.PositionalEmbedding, L.SinusoidalEncoding, L.RotaryEmbedding, L.MultiHeadAttention}
IN_ORDER |= {L.RNN, L.LSTM, L.GRU, L.ScaledDotProductAttention}


class Reader(TensorFunctions):
    """Turns a module into layers: `trace`, then `read`."""

    def __init__(self, torch: Any, own: Any, *args: Any) -> None:
        super().__init__(torch, own, *args)
        nn = torch.nn
        self.modules = {
            **dict.fromkeys([nn.Flatten, nn.Unflatten], lambda n, _, X: self.do_reshape(n, X)),
            **dict.fromkeys([nn.Softmax, nn.LogSoftmax], self._softmax),
            **dict.fromkeys([nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d], self._adaptive),
            **dict.fromkeys([nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d], self._adaptive),
            **dict.fromkeys([nn.RNN, nn.LSTM, nn.GRU], self._recurrent),
            nn.MultiheadAttention: self._attention,
            nn.Linear: self._linear_module,
            **dict.fromkeys([own.GlobalAvgPool, own.GlobalMaxPool], self._global_pool),
            own.TimeDistributed: self._time_distributed,
        }

    def _module(self, node: Any, module: Any, X: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(module, "inplace", False):
            self.check_in_place(node, X)
        special = self.modules.get(type(module))
        if special is not None:
            return special(node, module, X, *args, **kwargs)
        if args or kwargs:
            self.fail(node, "is called with more than its input, which is not supported")
        value = self.value(node, X)
        pair = self.leaves.rows.get(type(module))
        layers = self.leaves.layers(module, self.path(node), self.leaves.of)
        kinds = {type(layer) for layer in layers}
        k = len(value.axes)
        if pair is not None and pair.ours in EXACT:
            value = self.ordered(node, value, canonical(k, 1))
        elif kinds & IN_ORDER or L.Bidirectional in kinds:
            value = self.ordered(node, value, plain(k))
        elif pair is not None and pair.layout == "first":
            value = self.channels_at(node, value, 1)
        elif pair is None or pair.layout == "last":
            value = self.channels_at(node, value, k)
        axes = value.axes
        if L.Embedding in kinds:
            self.embeddings[module.weight] = layers[0]
            axes = plain(k + 1)
        return self.chain(node, value, layers, axes[: node.meta["value"].ndim - 1])

    def _as_module(self, node: Any, name: str, X: Any, *args: Any, **kwargs: Any) -> Any:
        """A function that does what a module without parameters does."""
        kind, parameters = FUNCTIONS[name]
        names = parameters.split()
        if kwargs.keys() - set(names) or len(args) > len(names):
            self.fail(node, f"has arguments that are not supported: {args} {kwargs}")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if given.pop("_stacklevel", 3) != 3 and name.endswith("softmax"):
            self.fail(node, "has arguments that are not supported")
        if given.get("dtype") is not None:
            self.fail(node, f"has dtype={given['dtype']}, which is not supported")
        if given.pop("antialias", False):
            self.fail(node, "has antialias=True, which is not supported")
        given.pop("dtype", None)
        given.pop("training", None)
        if node in self.dropped and not self.dropped[node]:
            return self.value(node, X)
        if name == "flatten":
            given = {"start_dim": 0, **given}
        return self._module(node, getattr(self.torch.nn, kind)(**given), X)

    def _linear_module(self, node: Any, module: Any, X: Any) -> Value:
        value = self.value(node, X)
        value = self.channels_at(node, value, len(value.axes))
        embedding = self.embeddings.get(module.weight)
        if embedding is not None:
            if module.bias is not None:
                self.fail(
                    node, "shares its weight with an Embedding, but has a bias: use bias=False"
                )
            return self.chain(node, value, [L.TiedDense(embedding)], value.axes)
        layers = self.leaves.layers(module, self.path(node), self.leaves.of)
        if value.order is not None:
            arrays = self.leaves.loads[-1][2]
            W = np.empty_like(arrays["W"])
            W[value.order] = arrays["W"]
            arrays["W"], value = W, value._replace(order=None)
        return self.chain(node, value, layers, value.axes)

    def do_linear(self, node: Any, X: Any, weight: Any, bias: Any = None) -> Value:
        value = self.value(node, X)
        value = self.channels_at(node, value, len(value.axes))
        embedding = self.embeddings.get(weight.meta["value"]) if is_node(weight) else None
        if embedding is None or bias is not None:
            self.fail(node, "has a weight that is not an Embedding's: use torch.nn.Linear")
        return self.chain(node, value, [L.TiedDense(embedding)], value.axes)

    def _softmax(self, node: Any, module: Any, X: Any) -> Value:
        value = self.value(node, X)
        if module.dim is None:
            self.fail(node, "has no dim")
        axis = module.dim % (len(value.axes) + 1)
        if axis == 0:
            self.fail(node, f"has dim={module.dim}, which no Softmax layer has")
        if not value.axes[axis - 1]:  # an axis of size 1 that ours does not have
            value = self.ordered(node, value, plain(len(value.axes)))
        ours = value.axes[axis - 1]
        ours = -1 if ours == len(self.shapes[value.name]) else ours
        return self.chain(node, value, [getattr(L, type(module).__name__)(ours)], value.axes)

    def _adaptive(self, node: Any, module: Any, X: Any) -> Value:
        sizes = module.output_size
        if set(sizes if isinstance(sizes, tuple) else (sizes,)) != {1}:
            self.fail(node, f"has output_size={sizes}; only 1 is supported")
        if getattr(module, "return_indices", False):
            self.fail(node, "has return_indices=True, which is not supported")
        value = self.value(node, X)
        kind = L.GlobalMaxPool if "Max" in type(module).__name__ else L.GlobalAvgPool
        return self._pooled(node, value, kind, range(2, len(value.axes) + 1), True)

    def _global_pool(self, node: Any, module: Any, X: Any) -> Value:
        value = self.value(node, X)
        k = len(value.axes)
        channel = module.dim % (k + 1)
        kind = getattr(L, type(module).__name__)
        return self._pooled(node, value, kind, [j for j in range(1, k + 1) if j != channel], False)

    def _time_distributed(self, node: Any, module: Any, X: Any) -> Value:
        value = self.value(node, X)
        value = self.ordered(node, value, plain(len(value.axes)))
        source = next(iter(node.args)).meta["value"]
        example = source.flatten(0, 1)
        inner = Reader(self.torch, self.own, self.tracing, self.leaves)
        inner.embeddings, inner.used = self.embeddings, self.used
        inner.prefix = self.path(node) + "."
        inner.trace(module.layer, example)
        layers = inner.read(plain(example.ndim - 1), plain)
        layer = layers[0] if len(layers) == 1 else L.Chain(*layers)
        axes = tuple(range(1, node.meta["value"].ndim))
        return self.chain(node, value, [L.TimeDistributed(layer)], axes)

    # --- recurrent modules -------------------------------------------------------------------

    def _recurrent(self, node: Any, module: Any, X: Any, state: Any = None) -> Any:
        if state is not None:
            self.fail(node, "is given an initial state; only zeros are supported")
        value = self.value(node, X)
        value = self.ordered(node, value, (1, 2))
        last = self._only_last(node, module)

        layers = self.leaves.layers(
            module, self.path(node), lambda m: self.leaves.recurrent(m, not last)
        )
        width = module.hidden_size * (2 if module.bidirectional else 1)
        steps = (self.shapes[value.name][0],)
        shape = (width,) if last else (*steps, width)
        out = self.chained(node, value, layers, plain(len(shape)), shape)
        states: Any = self._states(node, module, out, last)
        if module.mode == "LSTM":
            states = [states, Unknown("reads the cell state, which no layer returns")]
        whole = Unknown("uses outputs of which only the last step is known", out) if last else out
        return [whole, states]

    def _states(self, node: Any, module: Any, out: Value, last: bool) -> list[Any]:
        """Return the state of each layer and direction after all its steps."""
        H, directions = module.hidden_size, 2 if module.bidirectional else 1
        hidden = Unknown("reads a state that is not the last layer's")
        states: list[Any] = [hidden] * (directions * (module.num_layers - 1))
        for i in range(directions):
            value = out if last else self._step_of(node, out, i - 1)
            if directions == 2:
                start, end = i * H, (i + 1) * H
                name = self.emit(node, L.Select(range(start, end)), [value.name], (H,))
                self.slices[name] = (value.name, start, end)
                value = Value(name, (1,))
            states.append(value)
        return states

    def do_getitem(self, node: Any, X: Any, at: Any) -> Any:
        known = self.values.get(X)
        if isinstance(known, list) and isinstance(at, int | slice):
            return known[at]
        if isinstance(known, Unknown) and known.last is not None:
            return known.last
        return super().do_getitem(node, X, at)

    def _only_last(self, node: Any, module: Any) -> bool:
        """Return whether all that is read of a recurrent module is its state after all steps.

        In a bidirectional one, the last step of the outputs is not that state.
        """
        for user in node.users:
            if self.function(user) != "getitem":
                return False
            whole = user.args[1] == 0
            for reader in user.users if whole else ():
                if module.bidirectional or not self._takes_last(reader):
                    return False
        return True

    def _takes_last(self, node: Any) -> bool:
        """Return whether a step selects the last time step of (N, T, D)."""
        if self.function(node) != "getitem" or not isinstance(node.args[1], tuple):
            return False
        steps = node.args[0].meta["value"].shape[1]
        first, at, *rest = node.args[1]
        return first == ALL and at in (-1, steps - 1) and all(r in (ALL, ...) for r in rest)

    def _step_of(self, node: Any, value: Value, at: int) -> Value:
        """Select one step of (N, T, D), from either end."""
        T, D = self.shapes[value.name]
        name = self.emit(node, L.Permute(2, 1), [value.name], (D, T))
        name = self.emit(node, L.Select(at), [name], (D, 1))
        return Value(self.emit(node, L.Flatten(), [name], (D,)), (1,))

    # --- attention ---------------------------------------------------------------------------

    def _attention(
        self, node: Any, module: Any, query: Any, key: Any, value: Any,
        key_padding_mask: Any = None, need_weights: bool = True, attn_mask: Any = None,
        average_attn_weights: bool = True, is_causal: bool = False,
    ) -> Any:  # fmt: skip
        if not (query is key is value):
            self.fail(node, "attends to another value than its own input, which is not supported")
        if key_padding_mask is not None:
            self.fail(node, "has a key_padding_mask: in phitodeep, predict(X, lengths=...) has")
        causal = self._is_causal(node, attn_mask)
        given = self.ordered(node, self.value(node, query), (1, 2))
        layers = self.leaves.layers(
            module, self.path(node), lambda m: self.leaves.attention(m, causal)
        )
        return [self.chained(node, given, layers, (1, 2), self.shapes[given.name]), None]

    def _is_causal(self, node: Any, mask: Any) -> bool:
        """Return whether a mask hides all later positions; False if there is none."""
        if mask is None:
            return False
        if not is_node(mask) or mask in self.values:
            self.fail(node, "has a mask that depends on the input")
        found = array(mask.meta["value"])
        hidden = found if found.dtype == bool else found == -np.inf
        T = hidden.shape[-1]
        fits = hidden.shape == (T, T) and (found.dtype == bool or not found[~hidden].any())
        if not fits or not np.array_equal(hidden, ~np.tri(T, dtype=bool)):
            self.fail(node, "has a mask that is not the causal one")
        return True
