"""The steps of a traced graph as operations on layers.

A value in the graph may have its axes in another order than our value: `Value.axes` says which of
ours each of them is. Steps that only move axes change nothing but this. A layer that needs another
order gets a Permute before it.

Long because each step of a graph that is supported has a method here.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from phitodeep import layers as L
from phitodeep.errors import ArgumentError
from phitodeep.exchange.torch.leaves import Leaves, Refused, array
from phitodeep.exchange.tree import Operation, as_layers
from phitodeep.layers.base import Layer
from phitodeep.types import Array, Shape

Axes = tuple[int, ...]
ALL = slice(None)


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


class States(NamedTuple):
    """The final states of a recurrent module; `cells` if they come as a pair (h, c)."""

    node: Any
    cells: bool = False


class Ends(NamedTuple):
    """The outputs of a recurrent module whose last step alone is used."""

    value: Value


def canonical(axes: int, channel: int) -> Axes:
    """Return the axes of a value whose channels are at this axis, from 1, and last in ours."""
    others = iter(range(1, axes))
    return tuple(axes if j == channel else next(others) for j in range(1, axes + 1))


EXACT = {L.Conv1D, L.Conv2D, L.ConvTranspose1D, L.ConvTranspose2D, L.MaxPool1D, L.MaxPool2D}
EXACT |= {L.AvgPool1D, L.AvgPool2D, L.Upsample2D, L.ZeroPad2D, L.RandomCrop, L.RandomFlip}
IN_ORDER = {L.PositionalEmbedding, L.SinusoidalEncoding, L.RotaryEmbedding, L.MultiHeadAttention}
IN_ORDER |= {L.RNN, L.LSTM, L.GRU}

CHANNELS_FIRST = ("Conv", "BatchNorm", "InstanceNorm", "GroupNorm", "MaxPool", "AvgPool")
CHANNELS_FIRST += ("AdaptiveAvgPool", "AdaptiveMaxPool", "Dropout1d")

FUNCTIONS = {  # functions and methods that are modules too: the module, and their arguments after X
    "relu": ("ReLU", "inplace"),
    "leaky_relu": ("LeakyReLU", "negative_slope inplace"),
    "elu": ("ELU", "alpha inplace"),
    "celu": ("CELU", "alpha inplace"),
    "selu": ("SELU", "inplace"),
    "gelu": ("GELU", "approximate"),
    "silu": ("SiLU", "inplace"),
    "mish": ("Mish", "inplace"),
    "hardsigmoid": ("Hardsigmoid", "inplace"),
    "hardswish": ("Hardswish", "inplace"),
    "hardtanh": ("Hardtanh", "min_val max_val inplace"),
    "sigmoid": ("Sigmoid", ""),
    "tanh": ("Tanh", ""),
    "softplus": ("Softplus", "beta threshold"),
    "softsign": ("Softsign", ""),
    "softmax": ("Softmax", "dim _stacklevel dtype"),
    "log_softmax": ("LogSoftmax", "dim _stacklevel dtype"),
    "dropout": ("Dropout", "p training inplace"),
    "dropout1d": ("Dropout1d", "p training inplace"),
    "dropout2d": ("Dropout2d", "p training inplace"),
    "flatten": ("Flatten", "start_dim end_dim"),
    "max_pool1d": ("MaxPool1d", "kernel_size stride padding dilation ceil_mode return_indices"),
    "max_pool2d": ("MaxPool2d", "kernel_size stride padding dilation ceil_mode return_indices"),
    "avg_pool1d": ("AvgPool1d", "kernel_size stride padding ceil_mode count_include_pad"),
    "avg_pool2d": (
        "AvgPool2d",
        "kernel_size stride padding ceil_mode count_include_pad divisor_override",
    ),
    "adaptive_avg_pool1d": ("AdaptiveAvgPool1d", "output_size"),
    "adaptive_avg_pool2d": ("AdaptiveAvgPool2d", "output_size"),
    "adaptive_max_pool1d": ("AdaptiveMaxPool1d", "output_size return_indices"),
    "adaptive_max_pool2d": ("AdaptiveMaxPool2d", "output_size return_indices"),
    "interpolate": ("Upsample", "size scale_factor mode align_corners recompute_scale_factor"),
}
OPERATIONS = (  # what has a method of `Reader` with the same name
    "add mul getitem view reshape permute transpose movedim squeeze unsqueeze mean amax max cat "
    "chunk split contiguous linear sum flip"
).split()
ALIASES = {"multiply": "mul", "swapaxes": "transpose", "swapdims": "transpose", "concat": "cat"}
ALIASES |= {"moveaxis": "movedim", "concatenate": "cat", "max_pool1d_with_indices": "max_pool1d"}


class Reader:
    """Turns a module into layers."""

    def __init__(self, torch: Any, own: Any, tracing: Any, leaves: Leaves) -> None:
        self.torch, self.own, self.tracing, self.leaves = torch, own, tracing, leaves
        self.functions: dict[Any, str] = {operator.getitem: "getitem"}
        for name in (*FUNCTIONS, *OPERATIONS, *ALIASES):
            for home in (operator, torch, torch.nn.functional, torch.Tensor):
                if hasattr(home, name):
                    self.functions[getattr(home, name)] = ALIASES.get(name, name)
        nn = torch.nn
        self.modules: dict[type, Callable[..., Any]] = {
            nn.Flatten: self._flatten,
            nn.Unflatten: self._unflatten,
            nn.Softmax: self._softmax,
            nn.LogSoftmax: self._softmax,
            **dict.fromkeys([nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d], self._adaptive),
            **dict.fromkeys([nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d], self._adaptive),
            **dict.fromkeys([nn.RNN, nn.LSTM, nn.GRU], self._recurrent),
            nn.MultiheadAttention: self._attention,
            nn.TransformerEncoderLayer: self._transformer,
            nn.TransformerEncoder: self._transformer,
            nn.Linear: self._linear_module,
            own.GlobalAvgPool: self._global_pool,
            own.GlobalMaxPool: self._global_pool,
            own.TimeDistributed: self._time_distributed,
        }
        self.embeddings: dict[Any, L.Embedding] = {}  # by their weights
        self.used: dict[Any, str] = {}  # parameters that have become those of a layer
        self.prefix = ""

    # --- the graph -----------------------------------------------------------------------------

    def is_leaf(self, module: Any) -> bool:
        return self.leaves.is_leaf(module) or type(module) in self.modules

    def trace(self, module: Any, example: Any) -> None:
        """Trace the module in both modes; what differs must be dropout alone."""
        self.example = example
        self.graph, self.root = self.tracing.graph_of(module, example, self.is_leaf, True)
        evaluated = list(self.tracing.graph_of(module, example, self.is_leaf, False)[0].nodes)
        nodes = list(self.graph.nodes)
        self.place = {node: i for i, node in enumerate(nodes)}
        self.dropped: dict[Any, bool] = {}  # functional dropouts: whether they drop in training
        same = len(nodes) == len(evaluated)
        for node, other in zip(nodes, evaluated, strict=False):
            if self.function(node) and self.function(node).startswith("dropout"):
                modes = [_training(n, self.function(node)) for n in (node, other)]
                if modes == [True, True]:
                    self.fail(node, "drops values in evaluation too: pass training=self.training")
                self.dropped[node] = modes[0]
            else:
                same &= _described(node) == _described(other)
        if not same:
            raise ArgumentError(
                "from_torch: the module's forward does other steps in training than in evaluation, "
                "apart from dropout, which no layer does."
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
        self.operations: list[Operation] = []
        self.values: dict[Any, Any] = {}
        self.shapes: dict[str, Shape] = {}
        self.slices: dict[str, tuple[str, int, int]] = {}
        result = None
        for node in self.graph.nodes:
            if node.op == "placeholder":
                sizes = self.example.shape[1:]
                ours = sorted(range(len(start)), key=lambda j: start[j])
                self.shapes["input"] = tuple(sizes[j] for j in ours)
                self.values[node] = Value("input", start)
            elif node.op == "output":
                result = self.values.get(node.args[0]) if _is_node(node.args[0]) else None
                if not isinstance(result, Value):
                    self.fail(node, "must be a single value that depends on the input")
                if end is not None:
                    result = self.ordered(node, result, end(len(result.axes)))
            elif node.op != "get_attr" and self._depends(node):
                self.values[node] = self._step(node)
        assert result is not None
        return as_layers(self.operations, "input", result.name)

    def _depends(self, node: Any) -> bool:
        return any(n in self.values for n in node.all_input_nodes)

    def _step(self, node: Any) -> Any:
        if node.op == "call_module":
            module = self.root.get_submodule(node.target)
            self._check_parameters(node, module)
            return self._module(node, module, *node.args, **node.kwargs)
        name = self.function(node)
        if name in FUNCTIONS:
            return self._as_module(node, name, *node.args, **node.kwargs)
        if name is None:
            self.fail(node, "has no counterpart in phitodeep")
        try:
            return getattr(self, f"do_{name}")(node, *node.args, **node.kwargs)
        except TypeError as wrong:
            if f"do_{name}()" not in str(wrong):
                raise
            return self.fail(node, f"has arguments that are not supported: {wrong}")

    def function(self, node: Any) -> str | None:
        """Return the name of a node's function or method in the tables, or None."""
        if node.op == "call_method":
            name = ALIASES.get(node.target, node.target).removesuffix("_")
            return name if name in FUNCTIONS or name in OPERATIONS else None
        return self.functions.get(node.target) if node.op == "call_function" else None

    def path(self, node: Any) -> str:
        """Return where a step is, for messages: the module's path, or the step and its module."""
        if node.op == "call_module":
            return self.prefix + str(node.target).removeprefix("module").removeprefix(".")
        stack = [key for key in node.meta.get("nn_module_stack", {}) if key]
        inside = stack[-1].removeprefix("module").removeprefix(".") if stack else ""
        return f"{self.prefix}{inside}" + (f": {node.name}" if inside else node.name)

    def fail(self, node: Any, why: str) -> Any:
        kind = f"{self.root.get_submodule(node.target)} " if node.op == "call_module" else ""
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

    # --- values --------------------------------------------------------------------------------

    def emit(
        self, node: Any, does: Layer | str, inputs: Sequence[str], shape: Shape, count: int = 0
    ) -> str:
        """Add an operation and return the name of its value, whose samples have our `shape`."""
        name = f"{node.name}.{len(self.operations)}"
        self.operations.append(Operation(self.path(node), tuple(inputs), name, does))
        self.shapes[name] = shape
        return name

    def value(self, node: Any, of: Any) -> Value:
        """Return the value of an argument, which must depend on the input."""
        found = self.values.get(of) if _is_node(of) else None
        if isinstance(found, Ends):
            self.fail(node, "uses outputs of which only the last step is known")
        if not isinstance(found, Value):
            self.fail(node, f"takes {of}, which is not a value that a layer computes")
        return found  # type: ignore[return-value]

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

    # --- modules -------------------------------------------------------------------------------

    def _module(self, node: Any, module: Any, X: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(module, "inplace", False):
            self._check_in_place(node, X)
        special = self.modules.get(type(module))
        if special is not None:
            return special(node, module, X, *args, **kwargs)
        value = self.value(node, X)
        pair = self.leaves.rows.get(type(module))
        layers = self.leaves.layers(module, self.path(node), self.leaves.of)
        kinds = {type(layer) for layer in layers}
        k = len(value.axes)
        if pair is not None and pair.ours in EXACT:
            value = self.ordered(node, value, canonical(k, 1))
        elif kinds & IN_ORDER or L.Bidirectional in kinds:
            value = self.ordered(node, value, _plain(k))
        elif pair is not None and pair.layout == "first":
            value = self.channels_at(node, value, 1)
        elif pair is None or pair.layout == "last":
            value = self.channels_at(node, value, k)
        axes = value.axes
        if L.Embedding in kinds:
            self.embeddings[module.weight] = layers[0]  # type: ignore[assignment]
            axes = _plain(k + 1)
        return self.chain(node, value, layers, axes[: node.meta["value"].ndim - 1])

    def _check_in_place(self, node: Any, X: Any) -> None:
        """Refuse a step that overwrites a value which is read again."""
        if any(self.place[user] > self.place[node] for user in X.users):
            self.fail(node, "overwrites a value in place that is used again: use inplace=False")

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
        given.pop("dtype", None)
        given.pop("training", None)
        if node in self.dropped and not self.dropped[node]:
            return self.value(node, X)
        if node.op == "call_method" and str(node.target).endswith("_"):
            given["inplace"] = True
        if name == "flatten":
            given = {"start_dim": 0, **given}
        return self._module(node, getattr(self.torch.nn, kind)(**given), X)

    def _linear_module(self, node: Any, module: Any, X: Any) -> Value:
        value = self.value(node, X)
        value = self.channels_at(node, value, len(value.axes))
        embedding = self.embeddings.get(module.weight)
        if embedding is not None:
            if module.bias is not None:
                self.fail(node, "shares its weight with an Embedding, but has a bias: use bias=False")
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
        embedding = self.embeddings.get(weight.meta["value"]) if _is_node(weight) else None
        if embedding is None or bias is not None:
            self.fail(node, "has a weight that is not an Embedding's: use torch.nn.Linear")
        return self.chain(node, value, [L.TiedDense(embedding)], value.axes)  # type: ignore[arg-type]

    def _softmax(self, node: Any, module: Any, X: Any) -> Value:
        value = self.value(node, X)
        if module.dim is None:
            self.fail(node, "has no dim")
        axis = module.dim % (len(value.axes) + 1)
        if axis == 0 or not value.axes[axis - 1]:
            self.fail(node, f"has dim={module.dim}, which no Softmax layer has")
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
        return self._pooled(node, value, kind, {*range(1, k + 1)} - {channel}, False)

    def _pooled(self, node: Any, value: Value, kind: Any, dims: Any, keepdim: bool) -> Value:
        """Pool over all axes of ours except one."""
        dims = sorted(d % (len(value.axes) + 1) for d in dims)
        left = [j for j in range(1, len(value.axes) + 1) if j not in dims and value.axes[j - 1]]
        if 0 in dims or len(left) != 1:
            self.fail(node, f"reduces the axes {dims}; only all axes but the channels are supported")
        value = self.channels_at(node, value, left[0])
        layers = [kind()] if len(self.shapes[value.name]) > 1 else []
        kept = [1 if j == left[0] else 0 for j in range(1, len(value.axes) + 1)]
        axes = tuple(a for j, a in enumerate(kept, 1) if keepdim or j not in dims)
        sizes = [node.meta["value"].shape[1:] if self._is_tensor(node) else None][0]
        sizes = [self.shapes[value.name][-1] if a else 1 for a in axes] if sizes is None else sizes
        return self.chained(node, value, layers, axes, sizes)

    def _is_tensor(self, node: Any) -> bool:
        return isinstance(node.meta["value"], self.torch.Tensor)

    def _time_distributed(self, node: Any, module: Any, X: Any) -> Value:
        value = self.value(node, X)
        value = self.ordered(node, value, _plain(len(value.axes)))
        source = next(iter(node.args)).meta["value"]
        example = source.flatten(0, 1)
        inner = Reader(self.torch, self.own, self.tracing, self.leaves)
        inner.embeddings, inner.used = self.embeddings, dict(self.used)
        for parameter in module.parameters():
            inner.used.pop(parameter, None)
        inner.prefix = self.path(node) + "."
        inner.trace(module.layer, example)
        layers = inner.read(_plain(example.ndim - 1), _plain)
        layer = layers[0] if len(layers) == 1 else L.Chain(*layers)
        axes = tuple(range(1, node.meta["value"].ndim))
        return self.chain(node, value, [L.TimeDistributed(layer)], axes)

    # --- recurrent modules and attention ---------------------------------------------------------

    def _recurrent(self, node: Any, module: Any, X: Any, state: Any = None) -> Any:
        if state is not None:
            self.fail(node, "is given an initial state; only zeros are supported")
        value = self.value(node, X)
        value = self.ordered(node, value, (1, 2))
        last = self._only_last(node, module)

        def made(m: Any) -> list[Layer]:
            return self.leaves.recurrent(m, not last)

        layers = self.leaves.layers(module, self.path(node), made)
        width = module.hidden_size * (2 if module.bidirectional else 1)
        steps = (self.shapes[value.name][0],)
        shape = (width,) if last else (*steps, width)
        out = self.chained(node, value, layers, _plain(len(shape)), shape)
        return [Ends(out) if last else out, States(node, module.mode == "LSTM")]

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

    def _final(self, node: Any, states: States, at: Any) -> Any:
        """The state of the last layer after all its steps."""
        module = self.root.get_submodule(states.node.target)
        if states.cells:
            return States(states.node) if at == 0 else self.fail(node, "reads the cell state")
        count = module.num_layers * (2 if module.bidirectional else 1)
        at = at % count if isinstance(at, int) else -1
        if at < count - (2 if module.bidirectional else 1):
            self.fail(node, "reads a state that is not the last layer's")
        out, H = self.values[states.node][0], module.hidden_size
        whole = isinstance(out, Ends)
        value = out.value if whole else out
        if not module.bidirectional:
            return value if whole else self._step_of(node, value, -1)
        start = H * (at - count + 2)
        if not whole:
            value = self._step_of(node, value, -1 if start == 0 else 0)
        name = self.emit(node, L.Select(range(start, start + H)), [value.name], (H,))
        self.slices[name] = (value.name, start, start + H)
        return Value(name, (1,))

    def _step_of(self, node: Any, value: Value, at: int) -> Value:
        """Select one step of (N, T, D)."""
        T, D = self.shapes[value.name]
        name = self.emit(node, L.Permute(2, 1), [value.name], (D, T))
        name = self.emit(node, L.Select(at % T), [name], (D, 1))
        return Value(self.emit(node, L.Flatten(), [name], (D,)), (1,))

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
        given = self.value(node, query)
        given = self.ordered(node, given, (1, 2))

        def made(m: Any) -> list[Layer]:
            return self.leaves.attention(m, causal)

        layers = self.leaves.layers(module, self.path(node), made)
        sizes = self.shapes[given.name]
        return [self.chained(node, given, layers, (1, 2), sizes), None]

    def _is_causal(self, node: Any, mask: Any) -> bool:
        """Return whether a mask hides all later positions; False if there is none."""
        if mask is None:
            return False
        if not _is_node(mask) or mask in self.values:
            self.fail(node, "has a mask that depends on the input")
        found = array(mask.meta["value"])
        hidden = found if found.dtype == bool else found == -np.inf
        T = hidden.shape[-1]
        fits = hidden.shape == (T, T) and (found.dtype == bool or not found[~hidden].any())
        if not fits or not np.array_equal(hidden, ~np.tri(T, dtype=bool)):
            self.fail(node, "has a mask that is not the causal one")
        return True

    def _transformer(
        self, node: Any, module: Any, X: Any, mask: Any = None,
        src_key_padding_mask: Any = None, is_causal: Any = None, src_mask: Any = None,
    ) -> Value:  # fmt: skip
        if src_key_padding_mask is not None:
            self.fail(node, "has a key padding mask: in phitodeep, predict(X, lengths=...) has")
        causal = self._is_causal(node, src_mask if mask is None else mask)
        value = self.ordered(node, self.value(node, X), (1, 2))
        whole = isinstance(module, self.torch.nn.TransformerEncoder)
        make = self.leaves.encoder if whole else self.leaves.encoder_layer

        def made(m: Any) -> list[Layer]:
            return make(m, causal)

        return self.chain(node, value, self.leaves.layers(module, self.path(node), made), (1, 2))

    # --- functions that move elements ------------------------------------------------------------

    def do_contiguous(self, node: Any, X: Any) -> Any:
        return self.value(node, X)

    def do_permute(self, node: Any, X: Any, *dims: Any) -> Value:
        value = self.value(node, X)
        dims = tuple(dims[0]) if len(dims) == 1 and not isinstance(dims[0], int) else dims
        return self._moved(node, value, [d % (len(value.axes) + 1) for d in dims])

    def _moved(self, node: Any, value: Value, dims: Sequence[int]) -> Value:
        if dims[0] != 0:
            self.fail(node, "moves the batch axis")
        return value._replace(axes=tuple(value.axes[d - 1] for d in dims[1:]))

    def do_transpose(self, node: Any, X: Any, dim0: int, dim1: int) -> Value:
        dims = list(range(len(self.value(node, X).axes) + 1))
        dims[dim0], dims[dim1] = dims[dim1], dims[dim0]
        return self._moved(node, self.value(node, X), dims)

    def do_movedim(self, node: Any, X: Any, source: Any, destination: Any) -> Value:
        rank = len(self.value(node, X).axes) + 1
        dims = np.moveaxis(np.empty(range(1, rank + 1)), source, destination).shape
        return self._moved(node, self.value(node, X), [d - 1 for d in dims])

    def do_squeeze(self, node: Any, X: Any, dim: Any = None) -> Value:
        return self.do_reshape(node, X, tuple(node.meta["value"].shape))

    def do_unsqueeze(self, node: Any, X: Any, dim: int) -> Value:
        return self.do_reshape(node, X, tuple(node.meta["value"].shape))

    def _unflatten(self, node: Any, module: Any, X: Any) -> Value:
        return self.do_reshape(node, X, tuple(node.meta["value"].shape))

    def _flatten(self, node: Any, module: Any, X: Any) -> Value:
        return self.do_reshape(node, X, tuple(node.meta["value"].shape))

    def do_view(self, node: Any, X: Any, *shape: Any) -> Value:
        return self.do_reshape(node, X, tuple(node.meta["value"].shape))

    def do_reshape(self, node: Any, X: Any, *_: Any) -> Value:
        value, after = self.value(node, X), tuple(node.meta["value"].shape)
        before = tuple(X.meta["value"].shape)
        if not after or after[0] != before[0]:
            self.fail(node, f"turns {before} into {after}, which merges samples")
        before, after = before[1:], after[1:]
        if [n for n in before if n != 1] == [n for n in after if n != 1]:
            return self._resized(node, value, before, after)
        if len(after) == 1:
            return self._flat(node, value)
        value = self.ordered(node, value, _plain(len(before)))
        return self.chain(node, value, [L.Reshape(*after)], _plain(len(after)))

    def _resized(self, node: Any, value: Value, before: Shape, after: Shape) -> Value:
        """Add or remove axes of size 1."""
        kept = [a for a, n in zip(value.axes, before, strict=True) if n != 1]
        ours = self.shapes[value.name]
        dropped = [a for a in range(1, len(ours) + 1) if a not in kept]
        if not kept and after:  # a single element: one axis of ours stays
            kept = [dropped.pop()] if dropped else []
        if dropped:
            shape = tuple(n for a, n in enumerate(ours, 1) if a not in dropped)
            name = self.emit(node, L.Reshape(*shape), [value.name], shape)
            value = Value(name, ())
        number = {a: i for i, a in enumerate(sorted(kept), 1)}
        left = iter(kept)
        alone = iter([len(after) - 1] if all(n == 1 for n in after) else [])
        last = next(alone, None)
        axes = tuple(
            number[next(left)] if n != 1 or j == last else 0 for j, n in enumerate(after)
        )
        return Value(value.name, axes, value.order if axes == (1,) else None)

    def _flat(self, node: Any, value: Value) -> Value:
        """Flatten all axes, in PyTorch's order."""
        shape = self.shapes[value.name]
        size = math.prod(shape)
        dims = [a - 1 for a in value.axes if a]
        order = np.arange(size).reshape(shape).transpose(dims).ravel()
        if (order == np.arange(size)).all():
            order = None
        elif not self._absorbs(node):
            value, order = self.ordered(node, value, _plain(len(value.axes))), None
        return self.chained(node, value, [L.Flatten()], (1,), (size,))._replace(order=order)

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

    # --- functions that select and merge ---------------------------------------------------------

    def do_getitem(self, node: Any, X: Any, at: Any) -> Any:
        known = self.values.get(X)
        if isinstance(known, list):
            return known[at]
        if isinstance(known, States):
            return self._final(node, known, at)
        if isinstance(known, Ends):
            return known.value
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
        whole = [j for j, i in enumerate(index) if isinstance(i, int)]
        for j, i in enumerate(index):
            if i != ALL:
                value = self._selected(node, value, j, i)
        if not whole:
            return value
        sizes = [n for j, n in enumerate(self._sizes(value), 1) if j not in whole]
        return self._resized(node, value, self._sizes(value), tuple(sizes))

    def _sizes(self, value: Value) -> Shape:
        return tuple(self.shapes[value.name][a - 1] if a else 1 for a in value.axes)

    def _selected(self, node: Any, value: Value, axis: int, at: Any) -> Value:
        size = self._sizes(value)[axis - 1]
        if not isinstance(at, int | slice | list):
            self.fail(node, f"selects by {at!r}; only numbers and slices are supported")
        value = self.channels_at(node, value, axis)
        columns = np.atleast_1d(np.arange(size)[at]).tolist()
        shape = (*self.shapes[value.name][:-1], len(columns))
        source = value.name
        name = self.emit(node, L.Select(columns), [source], shape)
        if columns == list(range(columns[0], columns[-1] + 1)) and len(shape) == 1:
            self.slices[name] = (source, columns[0], columns[-1] + 1)
        return Value(name, value.axes)

    def do_chunk(self, node: Any, X: Any, chunks: int, dim: int = 0) -> Any:
        return self._parts(node, X, dim)

    def do_split(self, node: Any, X: Any, size: Any, dim: int = 0) -> Any:
        return self._parts(node, X, dim)

    def _parts(self, node: Any, X: Any, dim: int) -> Any:
        value = self.value(node, X)
        axis, start, parts = dim % (len(value.axes) + 1), 0, []
        if axis == 0:
            self.fail(node, "splits the batch")
        for part in node.meta["value"]:
            n = part.shape[axis]
            parts.append(self._selected(node, value, axis, slice(start, start + n)))
            start += n
        return parts

    def do_cat(self, node: Any, tensors: Any, dim: int = 0, *, axis: int | None = None) -> Value:
        values = [self.value(node, X) for X in tensors]
        dim = (dim if axis is None else axis) % (len(values[0].axes) + 1)
        if dim == 0:
            self.fail(node, "concatenates along the batch")
        first = self.channels_at(node, values[0], dim)
        if 0 in first.axes:
            first = self.ordered(node, first, canonical(len(first.axes), dim))
        values = [first, *(self.ordered(node, v, first.axes) for v in values[1:])]
        whole = first.name if len(values) == 1 else self._put_together(values)
        if whole is not None:
            return Value(whole, first.axes)
        shape = (*self.shapes[first.name][:-1], node.meta["value"].shape[dim])
        name = self.emit(node, "concat", [v.name for v in values], shape)
        return Value(name, first.axes)

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
            if _is_node(other) and other not in self.values:
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
        value = self.ordered(node, value, _plain(len(value.axes)))
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
            if table in self.used and self.used[table] != "positions":
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

    def do_mean(self, node: Any, X: Any, dim: Any, keepdim: bool = False) -> Value:
        dims = (dim,) if isinstance(dim, int) else dim
        return self._pooled(node, self.value(node, X), L.GlobalAvgPool, dims, keepdim)

    def do_amax(self, node: Any, X: Any, dim: Any, keepdim: bool = False) -> Value:
        dims = (dim,) if isinstance(dim, int) else dim
        return self._pooled(node, self.value(node, X), L.GlobalMaxPool, dims, keepdim)

    def do_max(self, node: Any, X: Any, dim: int, keepdim: bool = False) -> Any:
        value = self.value(node, X)
        return [self._pooled(node, value, L.GlobalMaxPool, (dim,), keepdim), None]

    def do_sum(self, node: Any, *_: Any, **__: Any) -> Any:
        return self.fail(node, "has no counterpart in phitodeep")

    do_flip = do_sum


def _plain(count: int) -> Axes:
    return tuple(range(1, count + 1))


def _is_node(value: Any) -> bool:
    return hasattr(value, "all_input_nodes")


def _training(node: Any, name: str) -> bool:
    """Return whether a functional dropout drops values."""
    if "training" in node.kwargs:
        return bool(node.kwargs["training"])
    return bool(node.args[2]) if len(node.args) > 2 else True


def _described(node: Any) -> tuple[str, ...]:
    return (node.op, str(node.target), str(node.args), str(node.kwargs))


__all__ = ["Reader", "Refused", "canonical"]
