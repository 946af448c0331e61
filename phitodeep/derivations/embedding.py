"""Token embeddings, and encodings of positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from phitodeep.functional import one_hot
from phitodeep.steps.step import Arrange, Derivation, Given, Let, Step, Sum, size


def embedding(layer: Any) -> Derivation:
    """y = W[x]: every occurrence of token v reads row v, so dW[v] is the sum of their dy."""

    def rows(symbols: Any) -> Any:
        return one_hot(symbols["X"], layer.vocab_size, symbols["dY"].dtype)

    return Derivation(
        [Arrange("Y", "W[X]", "W", "row x of W for each token x")],
        [
            Given("onehot", "1 in column x of the row of token x, else 0", rows),
            Sum("dW", "...v,...d->vd", "onehot", "dY"),
        ],
    )


def positional_embedding(layer: Any) -> Derivation:
    """y_t = x_t + W[t]: every sample uses row t."""
    around = "((start, max_len - start - T), (0, 0))"
    return Derivation(
        [
            *_steps(layer),
            Arrange("E", "W[start : start + T]", "W", "one row for each position"),
            Let("Y", "X + E"),
        ],
        [
            Sum("dE", "ntd->td", "dY"),
            Arrange("dW", f"np.pad(dE, {around})", "dE", "0 for the other positions"),
            Let("dX", "dY"),
        ],
    )


def sinusoidal_encoding(layer: Any) -> Derivation:
    """y_t = x_t + e_t with a constant e_t."""

    def encoding(symbols: Any) -> Any:
        return layer._encoding(symbols["start"], symbols["X"])

    words = "e_t,2i = sin(t w_i) and e_t,2i+1 = cos(t w_i), with w_i = 10000^(-2i / D)"
    return Derivation(
        [*_steps(layer), Given("e", words, encoding), Let("Y", "X + e")], [Let("dX", "dY")]
    )


def rotary_embedding(layer: Any) -> Derivation:
    """Each pair is rotated by its angle, and its gradient by the opposite angle."""

    def table(k: int) -> Any:
        return lambda s: np.tile(layer._cos_and_sin(s["start"], s["X"])[k], 2)

    def sign(symbols: Any) -> Any:
        D = symbols["X"].shape[-1]
        return np.where(np.arange(D) < D // 2, -1, 1).astype(symbols["X"].dtype)

    return Derivation(
        [
            *_steps(layer),
            Given("cos", "cos(t w_i) for both features of pair i, w_i = base^(-2i / D)", table(0)),
            Given("sin", "sin(t w_i), in the same places", table(1)),
            Given("half", "D / 2: pair i is x_i and x_{i + D/2}", lambda s: len(s["cos"][0]) // 2),
            Given("sign", "-1 for the first feature of a pair, 1 for the second", sign),
            Arrange("other", "np.roll(X, half, axis=-1)", "X", "the other feature of its pair"),
            Let("turned", "sign * other", "each pair turned by a right angle"),
            Let("Y", "cos * X + sin * turned"),
        ],
        [
            Arrange("other_dY", "np.roll(dY, half, axis=-1)", "dY", "as for X"),
            Let("turned_dY", "sign * other_dY"),
            Let("dX", "cos * dY - sin * turned_dY", "rotated by the opposite angle"),
        ],
    )


def _steps(layer: Any) -> list[Step]:
    """T and the position of the first of T steps."""
    return [
        size("T", "X", 1, "the number of steps"),
        Given("start", "the position of the first step", lambda s: layer._start(s["T"])),
    ]
