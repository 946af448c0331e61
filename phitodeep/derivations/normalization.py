"""The norms: x_hat = (x - mu) r, and the three ways in which x reaches it."""

from __future__ import annotations

from typing import Any

from phitodeep.steps.step import Derivation, Let, Step, Sum, size


def layer_norm(layer: Any) -> Derivation:
    """Each row of D features: directly, through mu, and through r."""
    return Derivation(
        [
            size("D", "X", -1, "the number of features"),
            Sum("total", "...d->...1", "X"),
            Let("mu", "total / D"),
            Let("C", "X - mu"),
            Sum("squares", "...d,...d->...1", "C", "C"),
            Let("r", "1 / np.sqrt(squares / D + eps)"),
            Let("X_hat", "C * r"),
            Let("Y", "gamma * X_hat + beta"),
        ],
        [*_scale_and_shift(), *_three_ways()],
    )


def _scale_and_shift() -> list[Step]:
    return [
        Sum("dgamma", "...d,...d->d", "dY", "X_hat"),
        Sum("dbeta", "...d->d", "dY"),
        Let("g", "gamma * dY", "the gradient of x_hat"),
    ]


def _three_ways() -> list[Step]:
    return [
        Sum("sum_g", "...d->...1", "g"),
        Let("through_mu", "sum_g / D", "what x passes on through the mean"),
        Sum("s", "...d,...d->...1", "g", "X_hat"),
        Let("through_r", "X_hat * s / D", "what x passes on through r"),
        Let("dX", "r * (g - through_mu - through_r)"),
    ]
