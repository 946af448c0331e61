"""A single PyTorch module as layers: the table of correspondences backwards, and what has no row.

Whatever a module may do and a layer cannot is refused here, with the module's path.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from phitodeep import layers as L
from phitodeep.core.types import Array
from phitodeep.errors import ArgumentError, PhitodeepError
from phitodeep.exchange.correspondence import PAIRS
from phitodeep.exchange.torch.pairs import declared_modules
from phitodeep.exchange.torch.read.making import MAKE, Refused, as_tuple, short, upsample
from phitodeep.exchange.torch.rows import RETURNS, SAME, TRANSPOSED, Move, Pair
from phitodeep.layers.base import Layer

Arrays = dict[str, Array]
MAY_LACK = {"b", "bqkv", "bq", "bkv", "bo"}  # parameters that a layer may be without

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def described(module: Any) -> str:
    """Return a module as text of one line, without the modules inside it."""
    first, *others = repr(module).splitlines()
    return f"{first}...)" if others else first


def array(tensor: Any) -> Array:
    """Return a copy of a tensor's values."""
    return tensor.detach().numpy().copy()


def _require(module: Any, **only: Any) -> None:
    """Refuse other values of a module's attributes than the only ones that are supported."""
    for name, value in only.items():
        if getattr(module, name, value) != value:
            raise Refused(f"has {name}={getattr(module, name)!r}; only {value!r} is supported")


class Leaves:
    """Makes layers from modules.

    eps      what a norm with eps=None adds: the precision of the dtype
    loads    each layer with parameters, the path of its module, and the arrays to copy into it
    """

    def __init__(self, torch: Any, own: Any, eps: float) -> None:
        self.torch, self.eps = torch, eps
        self.loads: list[tuple[Layer, str, Arrays]] = []
        self.rows: dict[type, Pair] = {}
        for pair in PAIRS:
            home = own if pair.theirs.startswith("own.") else torch.nn
            for n in "123" if "#" in pair.theirs else "1":
                name = pair.theirs.removeprefix("own.").replace("#", n)
                if hasattr(home, name):
                    self.rows.setdefault(getattr(home, name), pair)
        self.composed: dict[type, Callable[[Any], list[Layer]]] = {
            torch.nn.Identity: lambda module: [],
            **dict.fromkeys(
                [torch.nn.UpsamplingNearest2d, torch.nn.UpsamplingBilinear2d],
                lambda module: upsample(L.Upsample2D, module, {}),
            ),
            own.Bidirectional: self._bidirectional,
            **dict.fromkeys(
                [own.RNN, own.LSTM, own.GRU],
                lambda m: self.recurrent(m, **{name: getattr(m, name) for name in RETURNS}),
            ),
        }
        self.looked_into = {torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict}
        self.looked_into |= {torch.nn.TransformerEncoder, torch.nn.TransformerEncoderLayer}
        self.looked_into |= {own.Permute, own.Reshape}  # axes that return to their place vanish
        self.path = ""
        self.shared: dict[Any, list[Layer]] = {}  # of modules with parameters

    def is_leaf(self, module: Any) -> bool:
        """Return whether a module becomes layers as a whole; others are looked into."""
        kind = type(module)
        if kind in self.looked_into:
            return False
        known = kind in self.rows or kind in self.composed or kind in declared_modules()
        return known or kind.__module__.startswith("torch.nn.")

    def layers(self, module: Any, path: str, make: Callable[[Any], list[Layer]]) -> list[Layer]:
        """Return what `make` makes of a module; errors name its path."""
        self.path = path
        try:
            for part in module.modules():
                if any(getattr(part, kind) for kind in HOOKS):
                    raise Refused("has hooks, which may change what it computes")
                if hasattr(part, "parametrizations"):
                    raise Refused(
                        "has parametrizations, which no layer has: replace them by their values "
                        "with torch.nn.utils.parametrize.remove_parametrizations"
                    )
            loads = len(self.loads)
            layers = make(module)
            first = self.shared.setdefault(module, layers) if self.loads[loads:] else layers
            if first is layers:
                return layers
            del self.loads[loads:]
            if repr(first) != repr(layers):
                raise Refused("is used at two places in different ways, which no layer is")
            return [L.Shared(layer) for layer in first]
        except (Refused, PhitodeepError) as wrong:
            why = f" {wrong}." if isinstance(wrong, Refused) else f": {wrong}"
            message = f"from_torch: {described(module)} (path {path!r}){why}"
            raise ArgumentError(message) from None

    def of(self, module: Any) -> list[Layer]:
        """Return the layers of a module that maps one value to one value, by its class."""
        kind = type(module)
        if kind in self.composed:
            return self.composed[kind](module)
        if kind in self.rows:
            return self._by_row(module, self.rows[kind])
        if kind in declared_modules() and hasattr(module, "as_layer"):
            layer = module.as_layer()
            self.load(layer, module, {name: (there, SAME) for name, there in module.moves.items()})
            return [layer]
        raise Refused("has no counterpart here")

    def load(self, layer: Layer, module: Any, moves: Mapping[str, tuple[str, Move]]) -> None:
        """Note which arrays of a module the layer's parameters and state are."""
        found: Arrays = {}
        tensors = []
        for name, (there, move) in moves.items():
            tensor = operator.attrgetter(there)(module)
            if tensor is not None:
                found[name] = move.back(array(tensor))
                tensors.append(tensor)
        missing = moves.keys() - found.keys() - MAY_LACK
        if missing and found:
            raise Refused(f"has no bias, but {layer!r} always has {' and '.join(sorted(missing))}")
        if moves and not found:  # a norm without gamma and beta: 1 and 0, which do not learn
            layer.trainable = False
        self._freeze(layer, tensors)
        self.loads.append((layer, self.path, found))

    def _freeze(self, layer: Layer, tensors: list[Any]) -> None:
        """Freeze a layer if all parameters that it was given are frozen."""
        flags = {t.requires_grad for t in tensors if isinstance(t, self.torch.nn.Parameter)}
        if len(flags) == 2:
            raise Refused(
                "has both frozen and trainable parameters, and a layer is frozen as a whole"
            )
        if flags == {False}:
            layer.trainable = False

    # --- rows of the table -----------------------------------------------------------------------

    def _by_row(self, module: Any, pair: Pair) -> list[Layer]:
        for name, value in pair.needs.items():
            found = getattr(module, name, value)
            if found != value and set(as_tuple(found)) != {value}:
                raise Refused(f"has {name}={found!r}, which is not supported")
        settings = {ours: short(getattr(module, n)) for ours, n in pair.settings.items()}
        if settings.get("eps", 0) is None:
            settings["eps"] = self.eps
        make: Any = MAKE.get(pair.ours, lambda kind, module, settings: [kind(**settings)])
        layers = make(pair.ours, module, settings)
        if pair.moves:
            self.load(layers[-1], module, pair.moves)
        return layers

    # --- recurrent modules -----------------------------------------------------------------------

    def recurrent(self, module: Any, return_sequences: bool = True, **states: bool) -> list[Layer]:
        """Return one layer for each layer of a recurrent module, with dropout between them."""
        _require(module, batch_first=True, bias=True, proj_size=0, nonlinearity="tanh")
        kind = getattr(L, module.mode.removesuffix("_TANH"))
        made: list[Layer] = []
        for i in range(module.num_layers):
            last = i == module.num_layers - 1
            if made and module.dropout:
                made.append(L.Dropout(module.dropout))
            shown = return_sequences or not last
            cell = kind(module.hidden_size, return_sequences=shown, **states)
            if module.bidirectional:
                both = L.Bidirectional(cell)
                self._load_cell(both.reverse, module, f"_l{i}_reverse")
                made.append(both)
            else:
                made.append(cell)
            self._load_cell(cell, module, f"_l{i}")
        return made

    def _load_cell(self, cell: Layer, module: Any, suffix: str) -> None:
        """Note the arrays of one direction; PyTorch's second bias is added to the first."""
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        tensors = [getattr(module, f"{name}{suffix}") for name in names]
        Wx, Wh, b, bh = map(array, tensors)
        gated = isinstance(cell, L.GRU)
        own = type(module).__module__.startswith("phitodeep.")  # whose second bias is a frozen 0
        self._freeze(cell, tensors[:3] if own and not gated else tensors)
        biases = {"b": b, "bh": bh} if gated else {"b": b + bh}
        arrays = {"Wx": Wx.T, "Wh": Wh.T, **biases}
        self.loads.append((cell, self.path, arrays))

    def _bidirectional(self, module: Any) -> list[Layer]:
        (cell,) = self.recurrent(module.layer, module.layer.return_sequences)
        made = L.Bidirectional(cell, module.merge)
        self._load_cell(made.reverse, module.reverse, "_l0")
        return [made]

    # --- attention -------------------------------------------------------------------------------

    def attention(self, module: Any, causal: bool = False) -> list[Layer]:
        """Return the layer of a torch.nn.MultiheadAttention that attends to its own input."""
        _require(module, batch_first=True, add_zero_attn=False, bias_k=None)
        if not module._qkv_same_embed_dim:
            raise Refused("has keys or values of another size than its queries")
        bias = module.in_proj_bias is not None
        layer = L.MultiHeadAttention(
            module.num_heads, causal=causal, dropout=module.dropout, bias=bias
        )
        moves = {"Wqkv": ("in_proj_weight", TRANSPOSED), "Wo": ("out_proj.weight", TRANSPOSED)}
        moves |= {"bqkv": ("in_proj_bias", SAME), "bo": ("out_proj.bias", SAME)} if bias else {}
        self.load(layer, module, moves)
        return [layer]
