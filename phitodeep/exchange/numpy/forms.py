"""The table of the plain NumPy functions that compute the predictions of the layers.

The function's parameters say what it takes. The first is X; each of the others is named like a
parameter, a state or a setting of the layer, from which an exported file passes it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np

from phitodeep import layers
from phitodeep.core.types import same
from phitodeep.errors import ArgumentError, ArgumentTypeError
from phitodeep.exchange.numpy import plain
from phitodeep.layers.base import Layer

Form = Callable[..., Any]
F = TypeVar("F", bound=Form)


class Choice(NamedTuple):
    """A layer with several functions: a setting says which of them it uses."""

    setting: str
    forms: dict[Any, Form]


FORMS: dict[type[Layer], Form | Choice | None] = {  # None: the layer does nothing in prediction
    layers.CELU: plain.celu,
    layers.ELU: plain.elu,
    layers.GELU: Choice("approximate", {"none": plain.gelu, "tanh": plain.gelu_tanh}),
    layers.SELU: plain.selu,
    layers.HardSigmoid: plain.hard_sigmoid,
    layers.HardSwish: plain.hard_swish,
    layers.HardTanh: plain.hard_tanh,
    layers.LeakyReLU: plain.leaky_relu,
    layers.LogSoftmax: plain.log_softmax,
    layers.Mish: plain.mish,
    layers.PReLU: plain.leaky_relu,
    layers.ReLU: plain.relu,
    layers.Sigmoid: plain.sigmoid,
    layers.SiLU: plain.silu,
    layers.Softmax: plain.softmax,
    layers.Softplus: plain.softplus,
    layers.Softsign: plain.softsign,
    layers.Tanh: np.tanh,
    layers.Dense: plain.dense,
    layers.TiedDense: plain.tied_dense,
    layers.LowRank: plain.low_rank,
    layers.Embedding: plain.embedding,
    layers.PositionalEmbedding: plain.positional_embedding,
    layers.SinusoidalEncoding: plain.sinusoidal_encoding,
    layers.RotaryEmbedding: plain.rotary_embedding,
    layers.MultiHeadAttention: Choice(
        "rotation",
        {"none": plain.attention, "fixed": plain.rotary_attention},
    ),
    layers.ScaledDotProductAttention: Choice(
        "rotation",
        {"none": plain.dot_product_attention, "fixed": plain.rotary_dot_product_attention},
    ),
    layers.RNN: plain.rnn,
    layers.LSTM: plain.lstm,
    layers.GRU: plain.gru,
    layers.Conv1D: plain.conv,
    layers.Conv2D: plain.conv,
    layers.ConvTranspose1D: plain.conv_transpose,
    layers.ConvTranspose2D: plain.conv_transpose,
    layers.MaxPool1D: plain.max_pool,
    layers.MaxPool2D: plain.max_pool,
    layers.AvgPool1D: plain.avg_pool,
    layers.AvgPool2D: plain.avg_pool,
    layers.GlobalAvgPool: plain.global_avg_pool,
    layers.GlobalMaxPool: plain.global_max_pool,
    layers.LayerNorm: plain.layer_norm,
    layers.RMSNorm: plain.rms_norm,
    layers.GroupNorm: plain.group_norm,
    layers.InstanceNorm: plain.instance_norm,
    layers.BatchNorm: plain.batch_norm,
    layers.Flatten: plain.flatten,
    layers.Reshape: plain.reshape,
    layers.Permute: plain.permute,
    layers.Select: Choice("tokens", {False: plain.select, True: plain.select_tokens}),
    layers.Upsample2D: Choice(
        "mode", {"nearest": plain.upsample_nearest, "bilinear": plain.upsample_bilinear}
    ),
    layers.ZeroPad2D: plain.zero_pad,
    layers.RandomCrop: plain.center_crop,
    layers.RandomFlip: None,
    layers.RandomShift: None,
    layers.Dropout: None,
    layers.SpatialDropout: None,
    layers.GaussianNoise: None,
    layers.Reparameterize: plain.latent_mean,
}
HARMLESS = {  # what a class may override and still be exported like its base
    *("create", "backward", "known_input", "flops", "compute_mask", "matrices"),
    *("get_config", "from_config", "kept_as", "independent_samples", "time_steps", "gives"),
    *("max_steps", "steps"),
    *("keeps_lock", "skips_dX", "_declared", "_flops_per_output", "_mask_remedy"),
}
REMEDY = (
    "write its forward pass as a NumPy function and declare it with "
    "@phitodeep.exchange.numpy.forms.exports(YourLayer)"
)


def exports(kind: type[Layer]) -> Callable[[F], F]:
    """Declare the decorated function as the prediction of a layer class, for `export_numpy`.

        class Scale(Layer):
            s = Param()

        @exports(Scale)
        def scale(X, s):
            return np.exp(s) * X

    The function is copied into exported files, together with the functions and constants that it
    uses. It is defined in a file, uses only NumPy (as `np`) and Python's own modules, and does not
    write into X. Its first parameter is X. The others have the names of parameters, states and
    settings of the layer; one with a default may be missing in the layer.
    """
    if not (isinstance(kind, type) and issubclass(kind, Layer)):
        raise ArgumentTypeError(f"exports takes a class of layers, got {kind!r}.")

    def declare(form: F) -> F:
        FORMS[kind] = form
        return form

    return declare


def find(kind: type, table: dict[type[Layer], Any]) -> Any:
    """Return the table's entry of a class or of its nearest base, or raise a KeyError.

    A class from outside phitodeep that changes what its base computes has no entry.
    """
    bases = list(kind.__mro__)
    base = next((base for base in bases if base in table), None)
    if base is None:
        raise KeyError(kind)
    own = [c for c in bases[: bases.index(base)] if not c.__module__.startswith("phitodeep.")]
    names = {name for c in own for name in vars(c) if not name.startswith("__")} - HARMLESS
    if any(hasattr(base, name) for name in names):
        raise KeyError(kind)
    return table[base]


def form_of(layer: Layer) -> Form | None:
    """Return the function that computes the prediction of a layer, or None if it does nothing."""
    form = find(type(layer), FORMS)
    return form.forms[getattr(layer, form.setting)] if isinstance(form, Choice) else form


def arguments(form: Form, layer: Layer) -> Iterator[tuple[str, bool, Any]]:
    """Yield the function's arguments after X as (name, whether it needs its name, value).

    A value is (owner, name) for an array of a layer, and a plain Python value otherwise. Values
    that are the function's defaults are left out.
    """
    if isinstance(form, np.ufunc):
        return
    gap = False
    for p in list(inspect.signature(form).parameters.values())[1:]:
        owner, name = layer.tied.get(p.name, (layer, p.name))
        if p.kind is p.POSITIONAL_ONLY:
            raise ArgumentError(
                f"{form.__name__} takes {p.name!r} by position only: settings are passed by name, "
                'so leave out the "/".'
            )
        if name in owner.params or name in owner.state:
            yield p.name, gap or p.kind is p.KEYWORD_ONLY, (owner, name)
            continue
        value = getattr(layer, p.name, p.default)
        gap = True  # settings are passed by name
        if value is p.empty:
            raise ArgumentError(
                f"{form.__name__} takes {p.name!r}, but {layer!r} has no such parameter, state or "
                "setting."
            )
        if not same(value, p.default):
            yield p.name, True, literal(value, f"{p.name} of {layer!r}")


class Literal(str):
    """The source of a constant."""


def literal(value: Any, who: str) -> Literal:
    """Return a number, a text, None, or a list, tuple or dict of such as Python source."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return Literal(f"float('{value}')")
    if value is None or isinstance(value, bool | int | float | str):
        text = repr(value)
        simple = isinstance(value, str) and not set(text[1:-1]) & {"'", '"'}
        return Literal(f'"{text[1:-1]}"' if simple else text)
    if isinstance(value, dict):
        pairs = (f"{literal(k, who)}: {literal(v, who)}" for k, v in value.items())
        return Literal(f"{{{', '.join(pairs)}}}")
    if isinstance(value, list | tuple):
        inside = ", ".join(literal(v, who) for v in value)
        if isinstance(value, list):
            return Literal(f"[{inside}]")
        return Literal(f"({inside}{',' * (len(value) == 1)})")
    raise ArgumentTypeError(
        f"export_numpy: {who} is a {type(value).__name__}, which cannot be written as source: use "
        "numbers, texts, lists, tuples and dicts of them, or make it a Param or State."
    )
