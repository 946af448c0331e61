"""The table of what corresponds to each layer in NumPy, in ONNX and in PyTorch.

A layer has one row, and a class without a row has that of its nearest base. For NumPy and ONNX, a
row names only what is not called like the layer: without it, the function of the layer's name, as
in `layer_norm` or `conv`, corresponds to the layer. A library with neither does not have the layer,
so that the export refuses it by its path.

    numpy    a function of `numpy/plain.py` or NumPy, whose parameters are named like the layer's
             parameters, states and settings, or `Lines`
    onnx     a function of `onnx/write/` that adds the layer's operators to a graph
    torch    a `Pair` that names a module, or `Composed`; for a layer of another author, the class
             of its module

No other library is imported here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from phitodeep import layers as L
from phitodeep.core.checks import snake_case
from phitodeep.errors import ArgumentError, ArgumentTypeError, NotBuiltError
from phitodeep.exchange.numpy import network, plain
from phitodeep.exchange.numpy.network import Lines, one_line
from phitodeep.exchange.onnx.write import forms_containers as containers
from phitodeep.exchange.onnx.write import forms_general as general
from phitodeep.exchange.onnx.write import forms_images as images
from phitodeep.exchange.onnx.write import forms_sequences as sequences
from phitodeep.exchange.onnx.write.forms_general import elementwise, nothing
from phitodeep.exchange.torch import rows
from phitodeep.exchange.torch.layouts import FIRST, LAST
from phitodeep.exchange.torch.rows import NORM, WEIGHT, Composed, Pair, conv, pair, pool, width
from phitodeep.exchange.torch.write import composed
from phitodeep.functional.rotary import Rope
from phitodeep.layers.base import Layer


class Row(NamedTuple):
    """What corresponds to a layer class; None: nothing."""

    numpy: Any = None
    onnx: Any = None
    torch: Any = None


class Choice(NamedTuple):
    """A layer with several forms: a setting says which of them it has."""

    setting: str
    forms: dict[Any, Any]


NOTHING = Lines(network.nothing)  # the layer does nothing in prediction
ATTENTION = dict.fromkeys(["none", "fixed"], Lines(network.attention))
PRODUCT = {"none": plain.dot_product_attention, "fixed": plain.rotary_dot_product_attention}


def merge(how: str, onnx: str = "") -> Row:
    """Return the row of a layer that merges several values; `onnx` is an operator of two."""
    form = containers.two_at_a_time(onnx) if onnx else None
    return Row(Lines(partial(network.merge, how)), form, Composed(partial(composed.merge, how)))


def recurrent(theirs: str) -> Row:
    return Row(Lines(network.recurrent), sequences.recurrent, rows.recurrent(theirs))


TABLE: dict[type[Layer], Row] = {
    # containers
    L.Chain: Row(numpy=Lines(network.chain), torch=Composed(composed.chain)),
    L.Residual: Row(Lines(network.merged), containers.merged, Composed(composed.chain)),
    L.SkipConcat: Row(Lines(network.merged), containers.merged, Composed(composed.chain)),
    L.Parallel: Row(Lines(network.merged), containers.merged, Composed(composed.parallel)),
    L.TimeDistributed: Row(
        numpy=Lines(network.time_distributed), torch=Composed(composed.time_distributed, LAST)
    ),
    L.Bidirectional: Row(
        numpy=Lines(network.bidirectional), torch=Composed(composed.bidirectional, LAST)
    ),
    L.Wired: Row(Lines(network.wired), torch=Composed(composed.wired)),
    # layers that merge several values
    L.Add: merge("add", "Add"),
    L.Subtract: merge("subtract", "Sub"),
    L.Multiply: merge("multiply", "Mul"),
    L.Average: merge("average")._replace(numpy=Lines(network.average)),
    L.Maximum: merge("maximum", "Max"),
    L.Concat: merge("concat"),
    L.Dot: merge("dot")._replace(numpy=plain.dot),
    L.Bilinear: Row(torch=pair("Bilinear", LAST, rows.bilinear, rows.BILINEAR)),
    # activations
    L.ReLU: Row(onnx=elementwise("Relu"), torch=pair("ReLU")),
    L.LeakyReLU: Row(
        onnx=elementwise("LeakyRelu", alpha="alpha"),
        torch=pair("LeakyReLU", alpha="negative_slope"),
    ),
    L.PReLU: Row(
        numpy=plain.leaky_relu,
        torch=pair("PReLU", FIRST, width("num_parameters"), {"alpha": ("weight", rows.SAME)}),
    ),
    L.ELU: Row(onnx=elementwise("Elu", alpha="alpha"), torch=pair("ELU", alpha="alpha")),
    L.CELU: Row(torch=pair("CELU", alpha="alpha")),
    L.SELU: Row(onnx=elementwise("Selu", alpha="alpha", gamma="scale"), torch=pair("SELU")),
    L.GELU: Row(
        numpy=Choice("approximate", {"none": plain.gelu, "tanh": plain.gelu_tanh}),
        torch=pair("GELU", approximate="approximate"),
    ),
    L.SiLU: Row(torch=pair("SiLU")),
    L.Mish: Row(torch=pair("Mish")),
    L.Sigmoid: Row(onnx=elementwise("Sigmoid"), torch=pair("Sigmoid")),
    L.Tanh: Row(np.tanh, elementwise("Tanh"), pair("Tanh")),
    L.Softsign: Row(onnx=elementwise("Softsign"), torch=pair("Softsign")),
    L.Softplus: Row(
        onnx=elementwise("Softplus"),
        # PyTorch's threshold, above which y = x, is 20; ours has none
        torch=pair("Softplus", sizes=lambda layer: {"threshold": 40.0}, needs={"beta": 1}),
    ),
    L.HardSigmoid: Row(
        onnx=elementwise("HardSigmoid", alpha=1 / 6, beta=0.5), torch=pair("Hardsigmoid")
    ),
    L.HardSwish: Row(onnx=elementwise("HardSwish"), torch=pair("Hardswish")),
    L.HardTanh: Row(torch=pair("Hardtanh", needs={"min_val": -1, "max_val": 1})),
    L.Softmax: Row(onnx=general.along_axis("Softmax"), torch=Composed(composed.softmax)),
    L.LogSoftmax: Row(onnx=general.along_axis("LogSoftmax"), torch=Composed(composed.softmax)),
    # dense layers and embeddings
    L.Dense: Row(torch=pair("Linear", LAST, rows.linear, rows.LINEAR)),
    L.TiedDense: Row(torch=Composed(composed.tied_dense, LAST)),
    L.LowRank: Row(torch=pair("own.LowRank", LAST, rows.low_rank, rows.FACTORS, alpha="alpha")),
    L.Embedding: Row(
        torch=pair(
            "Embedding",
            moves=WEIGHT,
            needs={"padding_idx": None, "max_norm": None, "scale_grad_by_freq": False},
            vocab_size="num_embeddings",
            dim="embedding_dim",
        )
    ),
    L.PositionalEmbedding: Row(torch=pair("own.PositionalEmbedding", LAST, rows.positions, WEIGHT)),
    L.SinusoidalEncoding: Row(torch=pair("own.SinusoidalEncoding", LAST)),
    L.RotaryEmbedding: Row(
        torch=pair("own.RotaryEmbedding", LAST, lambda layer: {"rope": Rope(layer.base)})
    ),
    # attention and recurrent layers
    L.MultiHeadAttention: Row(
        Choice("rotation", ATTENTION),
        sequences.attention,
        pair("own.MultiHeadAttention", LAST, rows.attention, rows.ATTENTION),
    ),
    L.ScaledDotProductAttention: Row(
        Choice("rotation", PRODUCT),
        sequences.dot_product_attention,
        pair("own.ScaledDotProductAttention", LAST, rows.heads),
    ),
    L.CrossAttention: Row(
        torch=pair("own.CrossAttention", LAST, rows.cross_attention, rows.CROSS_ATTENTION)
    ),
    L.RNN: recurrent("own.RNN"),
    L.LSTM: recurrent("own.LSTM"),
    L.GRU: recurrent("own.GRU"),
    # convolutions and pools
    L.Conv1D: Row(torch=conv("Conv1d", rows.CONV)),
    L.Conv2D: Row(torch=conv("Conv2d", rows.CONV)),
    L.ConvTranspose1D: Row(torch=conv("ConvTranspose1d", rows.ADJOINT)),
    L.ConvTranspose2D: Row(torch=conv("ConvTranspose2d", rows.ADJOINT)),
    L.MaxPool1D: Row(torch=pool("MaxPool1d", return_indices=False, dilation=1)),
    L.MaxPool2D: Row(torch=pool("MaxPool2d", return_indices=False, dilation=1)),
    L.AvgPool1D: Row(torch=pool("AvgPool1d", divisor_override=None)),
    L.AvgPool2D: Row(torch=pool("AvgPool2d", divisor_override=None)),
    L.GlobalAvgPool: Row(
        onnx=images.global_pool("ReduceMean"), torch=Composed(composed.global_pool)
    ),
    L.GlobalMaxPool: Row(
        onnx=images.global_pool("ReduceMax"), torch=Composed(composed.global_pool)
    ),
    # norms
    L.LayerNorm: Row(torch=pair("LayerNorm", LAST, width("normalized_shape"), NORM, eps="eps")),
    L.RMSNorm: Row(torch=pair("RMSNorm", LAST, width("normalized_shape"), rows.SCALE, eps="eps")),
    L.GroupNorm: Row(
        torch=pair("GroupNorm", FIRST, width("num_channels"), NORM, groups="num_groups", eps="eps")
    ),
    L.InstanceNorm: Row(
        torch=pair(
            "InstanceNorm#d",
            FIRST,
            rows.instance_norm,
            NORM,
            {"track_running_stats": False},
            eps="eps",
        )
    ),
    L.BatchNorm: Row(
        torch=pair(
            "BatchNorm#d",
            FIRST,
            width("num_features"),
            rows.BATCH,
            {"affine": True, "track_running_stats": True},
            "own.FrozenBatchNorm#d",
            momentum="momentum",
            eps="eps",
        )
    ),
    # layers that move elements
    L.Flatten: Row(torch=pair("Flatten", LAST)),
    L.Reshape: Row(torch=pair("own.Reshape", LAST, output_shape="shape")),
    L.Permute: Row(torch=pair("own.Permute", LAST, dims="dims")),
    L.Select: Row(
        numpy=Choice("tokens", {False: plain.select, True: plain.select_tokens}),
        torch=pair("own.Select", LAST, columns="columns", tokens="tokens"),
    ),
    L.Upsample2D: Row(
        numpy=Choice(
            "mode", {"nearest": plain.upsample_nearest, "bilinear": plain.upsample_bilinear}
        ),
        torch=pair("Upsample", FIRST, rows.upsample),
    ),
    L.ZeroPad2D: Row(torch=pair("ZeroPad2d", FIRST, rows.sides)),
    # layers that draw random numbers in training
    L.Dropout: Row(NOTHING, nothing, pair("Dropout", rate="p")),
    L.GradientReversal: Row(NOTHING, nothing, pair("own.GradientReversal", factor="factor")),
    L.SpatialDropout: Row(NOTHING, nothing, pair("Dropout#d", FIRST, rate="p")),
    L.GaussianNoise: Row(NOTHING, nothing, pair("own.GaussianNoise", std="std")),
    L.Reparameterize: Row(numpy=plain.latent_mean, torch=pair("own.Reparameterize", LAST)),
    L.RandomFlip: Row(
        NOTHING,
        nothing,
        pair("own.RandomFlip", FIRST, horizontal="horizontal", vertical="vertical"),
    ),
    L.RandomCrop: Row(
        numpy=plain.center_crop, torch=pair("own.RandomCrop", FIRST, window="size", pads="padding")
    ),
    L.RandomShift: Row(
        NOTHING,
        nothing,
        pair("own.RandomCrop", FIRST, lambda layer: {"size": None}, pads="padding"),
    ),
}
FUNCTIONS: dict[str, dict[str, Any]] = {  # by name, for rows that leave them out
    "numpy": vars(plain),
    "onnx": {**vars(containers), **vars(general), **vars(images), **vars(sequences)},
}
for _kind, _row in TABLE.items():
    _name = re.sub(r"[12]d$", "", snake_case(_kind.__name__))
    _found = {library: known.get(_name) for library, known in FUNCTIONS.items()}
    TABLE[_kind] = Row(_row.numpy or _found["numpy"], _row.onnx or _found["onnx"], _row.torch)
HARMLESS = {  # what a class may override and still be exported like its base
    *("create", "backward", "known_input", "flops", "compute_mask", "matrices"),
    *("get_config", "from_config", "kept_as", "independent_samples", "time_steps", "gives"),
    *("max_steps", "steps"),
    *("keeps_lock", "skips_dX", "_declared", "_flops_per_output", "_mask_remedy"),
}


def form_of(layer: Layer, library: str) -> Any:
    """Return what corresponds to a layer in a library, or None.

    That is in the row of its class or of the nearest base. A class from outside phitodeep that
    changes what its base computes has nothing. A shared layer has what the layer has.
    """
    layer = layer.layer if isinstance(layer, L.Shared) else layer
    bases = list(type(layer).__mro__)
    base = next((b for b in bases if getattr(TABLE.get(b), library, None) is not None), None)
    if base is None:
        return None
    own = [c for c in bases[: bases.index(base)] if not c.__module__.startswith("phitodeep.")]
    names = {name for c in own for name in vars(c) if not name.startswith("__")} - HARMLESS
    if any(hasattr(base, name) for name in names):
        return None
    form = getattr(TABLE[base], library)
    return form.forms.get(getattr(layer, form.setting)) if isinstance(form, Choice) else form


def check_exportable(model: Layer, library: str, who: str, reason: str) -> None:
    """Refuse a model that is not built, or has layers with nothing in a library: name them all."""
    if model.input_shape is None or model.output_shape is None:
        raise NotBuiltError(
            f"{who}: the model does not know its input shape yet: train it, or call "
            "model.build(input_shape)."
        )
    unknown = [
        f"layer {path}, {one_line(layer)}" if path else one_line(layer)
        for path, layer in model.walk()
        if form_of(layer, library) is None
    ]
    if unknown:
        them = "it" if len(unknown) == 1 else "them"
        raise ArgumentError(f"{who} cannot export {', '.join(unknown)}: {reason.format(them)}")


def declare(kind: type[Layer], library: str, who: str) -> Callable[[Any], Any]:
    """Return a decorator that enters what it decorates into the row of a layer class."""
    if not (isinstance(kind, type) and issubclass(kind, Layer)):
        raise ArgumentTypeError(f"{who} takes a class of layers, got {kind!r}.")

    def declared(form: Any) -> Any:
        TABLE[kind] = TABLE.get(kind, Row())._replace(**{library: form})
        return form

    return declared


PAIRS = [
    row.torch._replace(theirs=theirs, ours=kind)
    for kind, row in TABLE.items()
    if isinstance(row.torch, Pair)
    for theirs in (row.torch.theirs, row.torch.other)
    if theirs
]
