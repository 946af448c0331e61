"""The recurrent layers: the same cell at every step t, and backpropagation through time."""

from __future__ import annotations

from typing import Any

import numpy as np

from phitodeep.layers.call import current
from phitodeep.steps.step import Arrange, Carry, Derivation, Given, Let, Loop, Step, Sum


def rnn(layer: Any) -> Derivation:
    """h_t = tanh(x_t Wx + h_{t-1} Wh + b)."""
    return _through_time(
        layer,
        [Let("h_new", "np.tanh(a_t + u_t)")],
        [Let("da_t", "dh_new * (1 - h_new * h_new)")],
    )


def _through_time(layer: Any, cell: list[Step], back: list[Step]) -> Derivation:
    """The loop over time around the steps of a cell.

    The cell computes h_new from a_t = x_t Wx + b and u_t = h_prev Wh; its backward steps compute
    da_t, the gradient of both, from dh_new.
    """
    mask = current().mask
    start = Given(
        "h_start",
        "the state before the first step",
        lambda s: np.zeros_like(s["X"][:, 0] @ s["Wx"][:, : layer.units]),
    )
    forward = [
        start,
        Loop(
            "X",
            [
                Arrange("x_t", "X[:, t]", "X", "step t of X"),
                Carry("h_prev", "h_t", "h_start"),
                Sum("xW", "nd,dg->ng", "x_t", "Wx"),
                Let("a_t", "xW + b"),
                Sum("u_t", "nh,hg->ng", "h_prev", "Wh"),
                *cell,
                Let("h_t", "h_new"),
            ],
        ),
        Let("Y", "h_t"),
    ]
    del mask
    backward = [
        Given("no_gradient", "no later step", lambda s: np.zeros_like(s["h_start"])),
        Loop(
            "X",
            [
                Carry("dh_later", "dh_prev", "no_gradient", "what arrives from step t + 1"),
                Arrange("dy_t", "dY[:, t]", "dY", "step t of dY"),
                Let("dh_new", "dy_t + dh_later"),
                *back,
                Sum("dh_prev", "ng,hg->nh", "da_t", "Wh"),
            ],
            reverse=True,
        ),
        Sum("dWx", "ntd,ntg->dg", "X", "da_t"),
        Sum("dWh", "nth,ntg->hg", "h_prev", "da_t"),
        Sum("db", "ntg->g", "da_t"),
        Sum("dX", "ntg,dg->ntd", "da_t", "Wx"),
    ]
    return Derivation(forward, backward)
