"""Token embeddings, and encodings of positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from phitodeep.core.types import Array
from phitodeep.derivations.language.step import Arrange, Derivation, Given, Let, Size, Step, Sum
from phitodeep.functional import one_hot
from phitodeep.functional.rotary import Rope


def embedding(layer: Any) -> Derivation:
    """y = W[x]: every occurrence of token v reads row v, so dW[v] is the sum of their dy."""

    def rows(symbols: Any) -> Any:
        return one_hot(symbols["X"], layer.vocab_size, symbols["dY"].dtype)

    return Derivation.of(
        Arrange("Y", "W[X]", "W", "row x of W for each token x"),
        Given("onehot", "1 in column x of the row of token x, else 0", rows),
        Sum("dW", "...v,...d->vd", "onehot", "dY"),
    )


def positional_embedding(layer: Any) -> Derivation:
    """y_t = x_t + W[t]: every sample uses row t."""
    around = "((start, max_len - start - T), (0, 0))"
    return Derivation.of(
        *_steps(layer),
        Arrange("E", "W[start : start + T]", "W", "one row for each position"),
        Let("Y", "X + E"),
        Sum("dE", "ntd->td", "dY"),
        Arrange("dW", f"np.pad(dE, {around})", "dE", "0 for the other positions"),
        Let("dX", "dY"),
    )


def sinusoidal_encoding(layer: Any) -> Derivation:
    """y_t = x_t + e_t with a constant e_t."""

    words = "sin(t w_i) at [t, 2i] and cos(t w_i) at [t, 2i + 1], with w_i = 10000^(-2i / D)"
    return Derivation.of(
        *_steps(layer),
        Given("e", words, lambda s: layer._encoding(s["start"], s["X"])),
        Let("Y", "X + e"),
        Let("dX", "dY"),
    )


def rotary_embedding(layer: Any) -> Derivation:
    """Each pair is rotated by its angle, and its gradient by the opposite angle."""

    def turn(symbols: Any) -> list[Array]:
        T, D = symbols["X"].shape[1:]
        return Rope(layer.base).cos_and_sin(symbols["start"], T, D, symbols["X"].dtype)

    return Derivation.of(
        *_steps(layer),
        *angles(turn, "base^(-2i / D)"),
        *rotated("X", "Y"),
        *rotated("dY", "dX", "-"),
    )


def angles(turn: Callable[[Any], list[Array]], w: str) -> list[Step]:
    """cos and sin of the angles t w_i (T, D), and what else a rotation reads.

    `turn` finds them for one feature of each pair, (T, D / 2), from the symbols.
    """

    def table(k: int) -> Any:
        return lambda symbols: np.tile(turn(symbols)[k], 2)

    def sign(symbols: Any) -> Array:
        D = symbols["cos"].shape[-1]
        return np.where(np.arange(D) < D // 2, -1, 1).astype(symbols["cos"].dtype)

    words = f"cos(t w_i) for both features of pair i, w_i = {w}"
    return [
        Given("cos", words, table(0)),
        Given("sin", "sin(t w_i), in the same places", table(1)),
        Given("half", "the number of pairs (x_i, x_{i + half})", lambda s: len(s["cos"][0]) // 2),
        Given("sign", "-1 for the first feature of a pair, 1 for the second", sign),
    ]


def rotated(x: str, out: str, sign: str = "+") -> list[Step]:
    """Rotate each pair by its angle or, with sign "-", by the opposite angle."""
    return [
        Arrange(f"other_{x}", f"np.roll({x}, half, axis=-1)", x, "the other feature of each pair"),
        Let(f"turned_{x}", f"sign * other_{x}", "each pair turned by a right angle"),
        Let(out, f"cos * {x} {sign} sin * turned_{x}"),
    ]


def _steps(layer: Any) -> list[Step]:
    """T and the position of the first of T steps."""
    return [
        Size("T", "X", 1, "the number of steps"),
        Given("start", "the position of the first step", lambda s: layer._start(s["T"])),
    ]
