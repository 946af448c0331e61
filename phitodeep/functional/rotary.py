"""The angles of rotary position encodings: the original ones, and those of longer contexts.

Pair i of the d features of a head is rotated at position t by the angle t w_i. A model that was
trained on short sequences can read longer ones if its frequencies w_i are changed; each class here
is one way to change them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from phitodeep.core.checks import check_count, check_flag, check_list, check_number, class_hint
from phitodeep.core.config import Value
from phitodeep.core.types import Array, settings
from phitodeep.errors import ArgumentError, ArgumentTypeError

POSITIVE = partial(check_number, above=0)


class Rope(Value):
    """The original frequencies, w_i = base^(-2i / d).

    Source: Su et al. 2021, "RoFormer", arXiv:2104.09864, sec. 3.2.2.
    """

    amplitude = 1.0  # cos and sin are multiplied by it
    by_length = False  # whether w depends on T: then generation keeps the keys' earlier angles
    checks: ClassVar[dict[str, Callable[..., Any]]] = {  # all other settings are positive numbers
        "base": partial(check_number, above=1),
        "max_positions": check_count,
        "truncate": check_flag,
    }

    def __init__(self, base: float = 10000.0) -> None:
        self.base = base
        self.__post_init__()

    def __post_init__(self) -> None:
        for name, value in settings(self).items():
            check = partial(self.checks.get(name, POSITIVE), who=f"{type(self).__name__} {name}")
            vars(self)[name] = [*map(check, value)] if isinstance(value, list) else check(value)

    def frequencies(self, d: int, T: int) -> Array:
        """Return w (d / 2,), float64, for sequences of T steps."""
        return original(d, self.base)

    def cos_and_sin(self, start: int, T: int, d: int, dtype: np.dtype[np.float32]) -> list[Array]:
        """Return cos and sin (T, d / 2) of the angles at positions start to start + T - 1."""
        angles = np.arange(start, start + T)[:, None] * self.frequencies(d, start + T)
        return [(self.amplitude * f(angles)).astype(dtype) for f in (np.cos, np.sin)]


def original(d: int, base: float) -> Array:
    """Return w_i = base^(-2i / d), (d / 2,)."""
    w: Array = np.exp(-math.log(base) * (2 / d) * np.arange(d // 2))
    return w


@dataclass(eq=False, repr=False)
class LinearRope(Rope):
    """Frequencies for contexts that are `factor` times as long: w_i / factor.

    Source: Chen et al. 2023, "Extending context window of large language models via positional
    interpolation", arXiv:2306.15595, eq. 4.
    """

    factor: float
    base: float = 10000.0

    def frequencies(self, d: int, T: int) -> Array:
        return super().frequencies(d, T) / self.factor


@dataclass(eq=False, repr=False)
class DynamicRope(Rope):
    """A base that grows with the sequence, from T = `max_positions` steps on.

    base' = base (factor T / max_positions - (factor - 1))^(d / (d - 2)), for heads of d > 2
    features.
    Source: Peng et al. 2023, "YaRN", arXiv:2309.00071, sec. 3.3 ("dynamic NTK").
    """

    by_length = True
    checks: ClassVar = {**Rope.checks, "factor": partial(check_number, minimum=1)}

    factor: float
    max_positions: int
    base: float = 10000.0

    def frequencies(self, d: int, T: int) -> Array:
        if d <= 2:
            raise ArgumentError(f"{self!r} needs heads of more than 2 features, got {d}.")
        growth = self.factor * max(T / self.max_positions, 1) - (self.factor - 1)
        return original(d, self.base * growth ** (d / (d - 2)))


@dataclass(eq=False, repr=False)
class Llama3Rope(Rope):
    """Frequencies of Llama 3.1: slow ones are divided by `factor`, fast ones are kept.

    Let r be the turns that a pair makes in `max_positions` steps, the context of the first
    training. Pairs with r < low are divided, those with r > high are kept, and w_i is interpolated
    linearly in r between them.
    Source: Llama Team 2024, "The Llama 3 herd of models", arXiv:2407.21783, and the model code that
    was published with it (`apply_scaling`).
    """

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    max_positions: int = 8192
    base: float = 500000.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.high, "Llama3Rope high", above=self.low)

    def frequencies(self, d: int, T: int) -> Array:
        w = super().frequencies(d, T)
        turns = self.max_positions * w / (2 * math.pi)
        kept = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
        return kept * w + (1 - kept) * w / self.factor


@dataclass(eq=False, repr=False)
class YarnRope(Rope):
    """Frequencies that are divided by `factor` for slow pairs and kept for fast ones, by index.

    The share that is kept falls linearly from 1 to 0 between the indices of the pairs that make
    beta_fast and beta_slow turns in `max_positions` steps, the context of the first training.
    `truncate` rounds these indices outwards. cos and sin are multiplied by `amplitude`, by default
    0.1 log(factor) + 1.
    Source: Peng et al. 2023, "YaRN", arXiv:2309.00071, eq. 20 to 23.
    """

    factor: float
    max_positions: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    amplitude: Any = None
    truncate: bool = True
    base: float = 10000.0

    def __post_init__(self) -> None:
        if self.amplitude is None:
            factor = check_number(self.factor, "YarnRope factor", above=0)
            self.amplitude = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
        super().__post_init__()

    def frequencies(self, d: int, T: int) -> Array:
        w = super().frequencies(d, T)
        first, last = self._index(self.beta_fast, d), self._index(self.beta_slow, d)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, d - 1)
        last += 0.001 * (first == last)
        divided = np.clip((np.arange(d // 2) - first) / (last - first), 0, 1)
        return divided * w / self.factor + (1 - divided) * w

    def _index(self, turns: float, d: int) -> float:
        """Return the index i, not rounded, of the pair that makes so many turns."""
        return d * math.log(self.max_positions / (turns * 2 * math.pi)) / (2 * math.log(self.base))


@dataclass(eq=False, repr=False)
class LongRope(Rope):
    """Frequencies w_i / f_i, with factors f that were found by search: one list for sequences of up
    to `max_positions` steps, the context of the first training, and one for longer ones.

    cos and sin are multiplied by `amplitude`.
    Source: Ding et al. 2024, "LongRoPE", arXiv:2402.13753.
    """

    by_length = True

    short: list[float]
    long: list[float]
    max_positions: int
    amplitude: float = 1.0
    base: float = 10000.0

    def __post_init__(self) -> None:
        check_list(self.short, "LongRope short")
        check_list(self.long, "LongRope long")
        super().__post_init__()

    def frequencies(self, d: int, T: int) -> Array:
        factors = self.long if T > self.max_positions else self.short
        if len(factors) != d // 2:
            raise ArgumentError(
                f"LongRope has {len(factors)} factors, but heads of {d} features have {d // 2} "
                "pairs."
            )
        return super().frequencies(d, T) / np.array(factors)


def check_rope(value: bool | Rope, who: str) -> bool | Rope:
    """Return `value`: True for Rope(), False for none, or a Rope."""
    if not isinstance(value, bool | Rope):
        raise ArgumentTypeError(
            f"{who} must be True, False or a Rope such as Llama3Rope(), got {value!r}."
            f"{class_hint(value)}"
        )
    return value
