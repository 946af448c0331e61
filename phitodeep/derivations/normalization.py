"""The norms: x_hat = (x - mu) r, and the three ways in which x reaches it.

They differ in which elements share mu and r; these elements are called a row.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from phitodeep.core.call import current
from phitodeep.core.types import Array
from phitodeep.derivations.language.step import Arrange, Derivation, Given, Let, Size, Step, Sum


def layer_norm(layer: Any) -> Derivation:
    """Each row of D features: directly, through mu, and through r."""
    rows = "...d", "...1", "D"
    return Derivation.of(
        Size("D", "X", -1, "the number of features"),
        *_standardized("X", "X_hat", rows),
        Let("Y", "gamma * X_hat + beta"),
        *_scale_and_shift("dY"),
        *_three_ways("g", "X_hat", "dX", rows),
    )


def rms_norm(layer: Any) -> Derivation:
    """Nothing is centred, so each row reaches x_hat directly and through r."""
    rows = "...d", "...1", "D"
    return Derivation.of(
        Size("D", "X", -1, "the number of features"),
        *_inverse_size("X", rows),
        Let("X_hat", "X * r"),
        Let("Y", "gamma * X_hat"),
        *_scale("dY"),
        *_through_r("g", "X_hat", rows),
        Let("dX", "r * (g - through_r)"),
    )


def group_norm(layer: Any) -> Derivation:
    """A row is a group of channels c of one sample n, at all positions p."""
    rows = "npgc", "n1g1", "D"
    return Derivation.of(
        Size("N", "X", 0, "the number of samples"),
        Size("channels", "X", -1, "the number of channels"),
        Given("groups", "the number of groups", lambda s: layer._count(s["channels"])),
        Given("D", "the number of elements of a group", lambda s: s["X"][0].size // s["groups"]),
        Arrange("G", "X.reshape(N, -1, groups, channels // groups)", "X", "X in groups"),
        *_standardized("G", "G_hat", rows),
        Arrange("X_hat", "G_hat.reshape(X.shape)", "G_hat", "G_hat in the shape of X"),
        Let("Y", "gamma * X_hat + beta"),
        *_scale_and_shift("dY"),
        Arrange("dG_hat", "g.reshape(G.shape)", "g", "g in groups"),
        *_three_ways("dG_hat", "G_hat", "dG", rows),
        Arrange("dX", "dG.reshape(X.shape)", "dG", "dG in the shape of X"),
    )


def batch_norm(layer: Any) -> Derivation:
    """A row is one feature of the whole batch; outside training, mu and r are constants."""
    rows = "...d", "d", "m"
    X, dY, only, kept, arriving = _masked(current().mask)
    Y = Let("Y", only.format("gamma * X_hat + beta"))
    middle = [Y, *arriving, *_scale_and_shift(dY)]
    if not (current().training and layer.trainable):
        return Derivation.of(
            *kept,
            Let("C", f"{X} - running_mean", "centred"),
            Let("r", "1 / np.sqrt(running_var + eps)", _R),
            Let("X_hat", "C * r"),
            *middle,
            Let("dX", "r * g", "the running statistics are constants"),
        )
    return Derivation.of(
        *kept,
        *_standardized(X, "X_hat", rows, only),
        *middle,
        *_three_ways("g", "X_hat", "dX", rows, only),
    )


def _masked(mask: Array | None) -> tuple[str, str, str, list[Step], list[Step]]:
    """The names of X and dY, how to write that only kept steps count, and the steps for both."""

    def count(symbols: Any) -> int:
        shape = symbols["X"].shape
        rows = math.prod(shape[:-1]) if mask is None else mask.sum() * math.prod(shape[2:-1])
        return max(1, int(rows))

    m = Given("m", "how many elements share a mean", count)
    if mask is None:
        return "X", "dY", "{}", [m], []
    only = "np.where(keep, {}, 0)"
    keep = Given(
        "keep",
        "whether a step counts, or is padding",
        lambda s: np.expand_dims(mask, tuple(range(2, s["X"].ndim))),
    )
    kept, arriving = Let("X_kept", only.format("X")), Let("dY_kept", only.format("dY"))
    return "X_kept", "dY_kept", only, [keep, m, kept], [arriving]


_R = "1 / the standard deviation"
Rows = tuple[str, str, str]  # the indices of all elements, those of the rows, and a row's size


# --- forward -----------------------------------------------------------------------------------


def _standardized(X: str, X_hat: str, rows: Rows, only: str = "{}") -> list[Step]:
    """x_hat = (x - mu) r; `only` is how to write that only kept steps count."""
    row, one, n = rows
    return [
        Sum("total", f"{row}->{one}", X),
        Let("mu", f"total / {n}", "the mean"),
        Let("C", only.format(f"{X} - mu"), "centred"),
        *_inverse_size("C", rows),
        Let(X_hat, "C * r"),
    ]


def _inverse_size(C: str, rows: Rows) -> list[Step]:
    row, one, n = rows
    words = _R if C != "X" else "1 / the root mean square"
    squares = Sum("squares", f"{row},{row}->{one}", C, C)
    return [squares, Let("r", f"1 / np.sqrt(squares / {n} + eps)", words)]


# --- backward ----------------------------------------------------------------------------------


def _scale(dY: str) -> list[Step]:
    dgamma = Sum("dgamma", "...d,...d->d", dY, "X_hat")
    return [dgamma, Let("g", f"gamma * {dY}", "the gradient of x_hat")]


def _scale_and_shift(dY: str) -> list[Step]:
    return [Sum("dbeta", "...d->d", dY), *_scale(dY)]


def _three_ways(g: str, X_hat: str, dX: str, rows: Rows, only: str = "{}") -> list[Step]:
    """What x passes on, given the gradient g of x_hat: directly, through mu, and through r."""
    row, one, n = rows
    return [
        Sum("sum_g", f"{row}->{one}", g),
        Let("through_mu", f"sum_g / {n}", "what x passes on through the mean"),
        *_through_r(g, X_hat, rows),
        Let(dX, only.format(f"r * ({g} - through_mu - through_r)")),
    ]


def _through_r(g: str, X_hat: str, rows: Rows) -> list[Step]:
    row, one, n = rows
    return [
        Sum("s", f"{row},{row}->{one}", g, X_hat),
        Let("through_r", f"{X_hat} * s / {n}", "what x passes on through r"),
    ]
