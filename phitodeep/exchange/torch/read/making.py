"""Layers from the settings of PyTorch modules, where these are written differently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phitodeep import layers as L
from phitodeep.functional.rotary import Rope
from phitodeep.layers.base import Layer

Settings = dict[str, Any]


class Refused(Exception):
    """Why a module is not supported, as the end of a sentence about it."""


def as_tuple(value: Any) -> tuple[Any, ...]:
    """Return one number as a tuple."""
    return value if isinstance(value, tuple) else (value,)


def short(value: Any) -> Any:
    """Return a tuple of equal numbers as one number."""
    return value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value


def _padding(module: Any) -> str | int | tuple[int, ...]:
    """Return the padding of a module as ours: "same", or zeros, in a tuple if the axes differ."""
    name = type(module).__name__
    if name.startswith("Same") or module.padding == "same":
        return "same"
    padding = short(module.padding)
    return "valid" if padding == 0 else padding


def _same_on_all_sides(module: Any) -> str | int:
    padding = _padding(module)
    if isinstance(padding, tuple):
        raise Refused(f"has padding={padding}; only one number for all axes is supported")
    return padding


def _padded(module: Any) -> tuple[list[Layer], str | int]:
    """Return layers that pad, for padding that differs between the axes, and the other padding."""
    padding = _padding(module)
    if isinstance(padding, tuple):
        return [L.ZeroPad2D([(n, n) for n in padding])], "valid"
    return [], padding


def _conv(kind: Any, module: Any, settings: Settings) -> list[Layer]:
    before, padding = _padded(module)
    bias = module.bias is not None
    return [*before, kind(module.out_channels, padding=padding, bias=bias, **settings)]


def _conv_transpose(kind: Any, module: Any, settings: Settings) -> list[Layer]:
    padding = _same_on_all_sides(module)
    if padding != "same":
        settings["output_padding"] = short(module.output_padding)
    return [kind(module.out_channels, padding=padding, bias=module.bias is not None, **settings)]


def _windows(settings: Settings) -> Settings:
    """Return the settings of a pool, without a stride that is the default."""
    size, stride = settings["pool_size"], settings["stride"]
    return {"pool_size": size, "stride": None if stride == size else stride}


def _avg_pool(kind: Any, module: Any, settings: Settings) -> list[Layer]:
    before, padding = _padded(module)
    if not getattr(module, "count_include_pad", True) and (before or padding != "valid"):
        raise Refused("has count_include_pad=False; its zeros would have to count")
    return [*before, kind(padding=padding, **_windows(settings))]


def upsample(kind: Any, module: Any, settings: Settings) -> list[Layer]:
    """Return the Upsample2D for a module that makes images larger by whole factors."""
    if module.scale_factor is None:
        raise Refused("has a size; only a scale_factor is supported")
    factors = tuple(map(float, as_tuple(module.scale_factor)))
    factors = factors * 2 if len(factors) == 1 else factors
    if module.mode not in ("nearest", "bilinear") or module.align_corners:
        raise Refused(f"has mode={module.mode!r}, align_corners={module.align_corners}")
    if any(f != int(f) for f in factors):
        raise Refused(f"has scale_factor={module.scale_factor}; only whole numbers are supported")
    return [kind(short(tuple(map(int, factors))), module.mode)]


def _zero_pad(kind: Any, module: Any, settings: Settings) -> list[Layer]:
    left, right, top, bottom = module.padding
    return [kind(((top, bottom), (left, right)))]


def _softplus(kind: Any, module: Any, settings: Settings) -> list[Layer]:
    if module.threshold < 20:
        raise Refused(f"has threshold={module.threshold}; at least 20 is supported")
    return [kind()]


def _norm(kind: Any, module: Any, settings: Settings) -> list[Layer]:
    if len(module.normalized_shape) != 1:
        raise Refused(
            f"has normalized_shape={tuple(module.normalized_shape)}; only the last axis is "
            "supported"
        )
    return [kind(**settings)]


def _batch_norm(kind: Any, module: Any, settings: Settings) -> list[Layer]:
    if module.momentum is None:
        raise Refused("has momentum=None, which is not supported")
    layer = kind(**settings)
    layer.trainable = not type(module).__name__.startswith("Frozen")
    return [layer]


def _crop(kind: Any, module: Any, settings: Settings) -> list[Layer]:
    if module.size is None:
        return [L.RandomShift(short(module.padding))]
    return [kind(short(module.size), padding=short(module.padding))]


def _heads(module: Any) -> Settings:
    rope = None if module.rope is None else module.rope.rope
    return {
        "heads": module.heads,
        "causal": module.causal,
        "kv_heads": None if module.kv_heads == module.heads else module.kv_heads,
        "rope": rope == Rope() or rope or False,
        "dropout": module.dropout,
    }


def _attention(kind: Any, module: Any, settings: Settings) -> list[Layer]:
    given, width, dim = _heads(module.attention), module.out.in_features, module.out.out_features
    given["head_dim"] = None if width == dim else width // module.attention.heads
    return [kind(bias=module.out.bias is not None, **given)]


def _cross_attention(kind: Any, module: Any, settings: Settings) -> list[Layer]:
    return _attention(lambda causal, rope, **given: kind(**given), module, settings)


MAKE: dict[type[Layer], Callable[[Any, Any, Settings], list[Layer]]] = {
    L.Dense: lambda kind, m, settings: [kind(m.out_features, bias=m.bias is not None)],
    **dict.fromkeys([L.Conv1D, L.Conv2D], _conv),
    **dict.fromkeys([L.ConvTranspose1D, L.ConvTranspose2D], _conv_transpose),
    **dict.fromkeys(
        [L.MaxPool1D, L.MaxPool2D],
        lambda kind, m, settings: [kind(padding=_same_on_all_sides(m), **_windows(settings))],
    ),
    **dict.fromkeys([L.AvgPool1D, L.AvgPool2D], _avg_pool),
    L.Upsample2D: upsample,
    L.ZeroPad2D: _zero_pad,
    L.Softplus: _softplus,
    **dict.fromkeys([L.RMSNorm, L.LayerNorm], _norm),
    L.BatchNorm: _batch_norm,
    L.RandomCrop: _crop,
    L.ScaledDotProductAttention: lambda kind, m, settings: [kind(**_heads(m))],
    L.MultiHeadAttention: _attention,
    L.CrossAttention: _cross_attention,
    L.Bilinear: lambda kind, m, settings: [kind(m.out_features, bias=m.bias is not None)],
    L.RotaryEmbedding: lambda kind, m, settings: [kind(m.rope.base)],
    L.LowRank: lambda kind, m, settings: [kind(m.B.shape[1], m.B.shape[0], **settings)],
    L.PositionalEmbedding: lambda kind, m, settings: [kind(len(m.weight))],
}
