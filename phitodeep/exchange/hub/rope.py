"""The rotary angles that a config.json describes, in its old spelling and in its new one."""

from __future__ import annotations

import math

from phitodeep.errors import DataError
from phitodeep.exchange.hub.family import Settings
from phitodeep.functional import rotary
from phitodeep.functional.rotary import Rope

TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


def read_rope(config: Settings, d: int, longest: int) -> Rope:
    """Return the angles for heads of d features; `longest` is the config's number of positions.

    The old spelling is `rope_theta` and `rope_scaling`, and the new one is `rope_parameters`.
    """
    config.require(partial_rotary_factor=1)
    own = config.inner("rope_scaling" if config.values.get("rope_scaling") else "rope_parameters")
    own.require(partial_rotary_factor=1)
    nested = [key for key, value in own.values.items() if isinstance(value, dict)]
    if nested:
        raise DataError(f"{own.where} differs between layers ({nested[0]!r}): not supported.")
    base = own.number("rope_theta", config.number("rope_theta", 10000.0))
    kind = own.option("rope_type" if "rope_type" in own else "type", TYPES, "default")
    if kind == "default":
        return Rope(base)
    first = own.count("original_max_position_embeddings", longest)
    first = config.count("original_max_position_embeddings", first)
    default = longest / first if kind in ("yarn", "longrope") else None
    factor = own.number("factor", default, above=0)
    if kind == "yarn":
        return _yarn(own, factor, first, base)
    if kind == "longrope":
        return _longrope(own, factor, first, base, d)
    if kind == "linear":
        return rotary.LinearRope(factor, base)
    if kind == "llama3":
        low, high = own.number("low_freq_factor"), own.number("high_freq_factor")
        return rotary.Llama3Rope(factor, low, high, first, base)
    if d <= 2:
        raise DataError(f"{own.where}: dynamic needs heads of more than 2 features, got {d}.")
    return rotary.DynamicRope(factor, longest, base)


def _yarn(own: Settings, factor: float, first: int, base: float) -> Rope:
    amplitude = None
    if "attention_factor" in own:
        amplitude = own.number("attention_factor")
    elif own.values.get("mscale") and own.values.get("mscale_all_dim"):
        one, all_of = (
            0.1 * own.number(key) * math.log(factor) + 1 if factor > 1 else 1.0
            for key in ("mscale", "mscale_all_dim")
        )
        if not all_of:
            raise DataError(f"{own.where}: mscale_all_dim makes the amplitude infinite.")
        amplitude = one / all_of
    fast, slow = own.number("beta_fast", 32.0), own.number("beta_slow", 1.0)
    return rotary.YarnRope(factor, first, fast, slow, amplitude, own.flag("truncate", True), base)


def _longrope(own: Settings, factor: float, first: int, base: float, d: int) -> Rope:
    amplitude = 1.0
    if "attention_factor" in own:
        amplitude = own.number("attention_factor")
    elif factor > 1:
        if first == 1:
            raise DataError(f"{own.where}: original_max_position_embeddings must be > 1, got 1.")
        amplitude = math.sqrt(1 + math.log(factor) / math.log(first))
    short, long = (own.numbers(key, d // 2) for key in ("short_factor", "long_factor"))
    return rotary.LongRope(short, long, first, amplitude, base)
