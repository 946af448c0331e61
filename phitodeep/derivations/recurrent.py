"""The recurrent layers: the same cell at every step t, and backpropagation through time.

Where the mask leaves a step out, the state is kept and y is 0. The cell's states then have the
names h_new and c_new, and the mask decides between these and the states before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from phitodeep.core.call import current
from phitodeep.derivations.containers import merging
from phitodeep.derivations.language.step import (
    Arrange,
    Carry,
    Derivation,
    Given,
    Join,
    Let,
    Loop,
    Size,
    Step,
    Sum,
    Through,
)

SIGMOID = "1 / (1 + np.exp(-({})))"
JOINED = "the gradients of the gates side by side"


def rnn(layer: Any) -> Derivation:
    """h_t = tanh(x_t Wx + h_{t-1} Wh + b)."""
    h = _new("h")
    return _through_time(
        layer,
        [Let("a_t", "xW + hW + b"), Let(h, "np.tanh(a_t)")],
        [Let("da_t", f"d{h} * (1 - {h} ** 2)")],
    )


def lstm(layer: Any) -> Derivation:
    """c_t = f c_{t-1} + i g and h_t = o tanh(c_t), with the gates i, f, o and the candidate g."""
    h, c = _new("h"), _new("c")
    return _through_time(
        layer,
        [
            Let("a_t", "xW + hW + b"),
            *_split("a", "ifgo"),
            Let("i_t", SIGMOID.format("a_i"), "the input gate: how much of g is written to c"),
            Let("f_t", SIGMOID.format("a_f"), "the forget gate: how much of c is kept"),
            Let("g_t", "np.tanh(a_g)", "the candidate"),
            Let("o_t", SIGMOID.format("a_o"), "the output gate: how much of c is read"),
            Let(c, "f_t * c_prev + i_t * g_t"),
            Let("tanh_c", f"np.tanh({c})"),
            Let(h, "o_t * tanh_c"),
        ],
        [
            Let(f"d{c}", f"{_kept('dc_later')} + d{h} * o_t * (1 - tanh_c ** 2)"),
            Let("di_t", f"d{c} * g_t"),
            Let("df_t", f"d{c} * c_prev"),
            Let("dg_t", f"d{c} * i_t"),
            Let("do_t", f"d{h} * tanh_c"),
            Let("da_i", "di_t * i_t * (1 - i_t)"),
            Let("da_f", "df_t * f_t * (1 - f_t)"),
            Let("da_g", "dg_t * (1 - g_t ** 2)"),
            Let("da_o", "do_t * o_t * (1 - o_t)"),
            Join("da_t", "da_i", "da_f", "da_g", "da_o", words=JOINED),
        ],
        c=f"d{c} * f_t",
    )


def gru(layer: Any) -> Derivation:
    """h_t = (1 - z) n + z h_{t-1}: z keeps the state, r resets its part in the candidate n."""
    h = _new("h")
    return _through_time(
        layer,
        [
            Let("a_t", "xW + b"),
            Let("u_t", "hW + bh"),
            *_split("a", "rzn"),
            *_split("u", "rzn"),
            Let("r_t", SIGMOID.format("a_r + u_r"), "the reset gate"),
            Let("z_t", SIGMOID.format("a_z + u_z"), "the update gate: how much of h is kept"),
            Let("n_t", "np.tanh(a_n + r_t * u_n)", "the candidate"),
            Let(h, "(1 - z_t) * n_t + z_t * h_prev"),
        ],
        [
            Let("dz_t", f"d{h} * (h_prev - n_t)"),
            Let("dn_t", f"d{h} * (1 - z_t)"),
            Let("da_n", "dn_t * (1 - n_t ** 2)"),
            Let("dr_t", "da_n * u_n"),
            Let("da_r", "dr_t * r_t * (1 - r_t)", "also the gradient of u_r"),
            Let("da_z", "dz_t * z_t * (1 - z_t)", "also the gradient of u_z"),
            Let("du_n", "da_n * r_t"),
            Join("da_t", "da_r", "da_z", "da_n", words=JOINED),
            Join("du_t", "da_r", "da_z", "du_n", words=JOINED),
        ],
        h=f"d{h} * z_t",
        du="du_t",
    )


def _new(state: str) -> str:
    """The name of what the cell computes: with a mask, it is not yet the state after step t."""
    return f"{state}_t" if _mask() is None else f"{state}_new"


def _mask() -> Any:
    """The mask of X, which comes first if states are inputs too."""
    mask = current().mask
    return mask[0] if isinstance(mask, tuple) else mask


def _kept(gradient: str) -> str:
    """The part of a state's gradient that reaches the cell: none at a step that is left out."""
    return gradient if _mask() is None else f"np.where(m_t, {gradient}, 0)"


def _split(whole: str, gates: str) -> list[Step]:
    """The columns of each gate in (N, gates H)."""
    words = "the columns of gate {}"
    ends = ["", "H", *(f"{k} * H" for k in range(2, len(gates))), ""]
    return [
        Arrange(f"{whole}_{gate}", f"{whole}_t[:, {start}:{end}]", f"{whole}_t", words.format(gate))
        for gate, start, end in zip(gates, ends, ends[1:], strict=False)
    ]


def _through_time(
    layer: Any, cell: list[Step], back: list[Step], du: str = "da_t", **direct: str
) -> Derivation:
    """The loop over time around the steps of a cell.

    The cell computes its states from xW = x_t Wx and hW = h_prev Wh; its backward steps compute
    da_t and `du`, the gradients of these products. `direct` has, for each state, what its gradient
    passes on to the state before without going through Wh.
    """
    masked, states = _mask() is not None, ["h", *(s for s in direct if s != "h")]
    X = "X1" if layer.initial_state else "X"
    starts, ends = layer.initial_state, layer.return_state
    numbered = [*enumerate(states, 2)]

    def zeros(symbols: Any) -> Any:
        return np.zeros((len(symbols[X]), layer.units), symbols[X].dtype)

    def mask(symbols: Any) -> Any:
        return np.asarray(_mask())[:, :, None]

    def edge(name: str, given: str, words: str) -> Step:
        return Let(name, given, words) if given else Given(name, words, zeros)

    arrives, dh = _arriving(layer, X)
    later = "what arrives from step t + 1"
    return Derivation.of(
        *([Given("m", "which steps count: the others are padding", mask)] if masked else []),
        *([Size("H", "Wh", 0, "the number of units")] if layer.gates > 1 else []),
        *(edge(f"{s}_start", f"X{k}" * starts, f"{s} before the first step") for k, s in numbered),
        Loop(
            X,
            [
                Arrange("x_t", f"{X}[:, t]", X, f"step t of {X}"),
                *(Carry(f"{s}_prev", f"{s}_t", f"{s}_start") for s in states),
                Sum("xW", "nd,dg->ng", "x_t", "Wx"),
                Sum("hW", "nh,hg->ng", "h_prev", "Wh"),
                *([Arrange("m_t", "m[:, t]", "m", "whether step t counts")] if masked else []),
                *cell,
                *(Let(f"{s}_t", f"np.where(m_t, {s}_new, {s}_prev)") for s in states if masked),
            ],
        ),
        _output(layer),
        *(Arrange(f"Y{k}", f"{s}_t[:, -1]", f"{s}_t", _LAST) for k, s in numbered if ends),
        *(
            edge(f"d{s}_end", f"dY{k}" * ends, "" if ends else "0: no step follows the last one")
            for k, s in numbered
        ),
        *arrives,
        Loop(
            X,
            [
                Arrange("dy_t", f"{dh}[:, t]", dh, f"step t of {dh}"),
                *(Carry(f"d{s}_later", f"d{s}_prev", f"d{s}_end", later) for s in states),
                Let("dh_t", "dy_t + dh_later"),
                *([Let("dh_new", _kept("dh_t"))] if masked else []),
                *back,
                *_passed_on(direct, du),
            ],
            reverse=True,
        ),
        Sum("dWx", "ntd,ntg->dg", X, "da_t"),
        Sum("dWh", "nth,ntg->hg", "h_prev", du),
        Sum("db", "ntg->g", "da_t"),
        *([Sum("dbh", "ntg->g", du)] if du != "da_t" else []),
        Sum(f"d{X}", "ntg,dg->ntd", "da_t", "Wx"),
        *(
            Arrange(f"dX{k}", f"d{s}_prev[:, 0]", f"d{s}_prev", "before the first step")
            for k, s in numbered
            if starts
        ),
    )


_LAST = "the state after the last step"


def _output(layer: Any) -> Step:
    """Y from the states of all steps."""
    Y = "Y1" if layer.return_state else "Y"
    if not layer.return_sequences:
        return Arrange(Y, "h_t[:, -1]", "h_t", _LAST)
    return Let(Y, "h_t" if _mask() is None else "np.where(m, h_t, 0)")


def _arriving(layer: Any, X: str) -> tuple[list[Step], str]:
    """The steps to the gradient that arrives at each state through Y, and its name."""
    dY = "dY1" if layer.return_state else "dY"
    if layer.return_sequences:
        return ([], dY) if _mask() is None else ([Let("dH", f"np.where(m, {dY}, 0)")], "dH")
    last = f"np.pad({dY}[:, None], ((0, 0), (T - 1, 0), (0, 0)))"
    return [
        Size("T", X, 1, "the number of steps"),
        Arrange("dH", last, dY, f"{dY} at the last step, and 0 before it"),
    ], "dH"


def _passed_on(direct: dict[str, str], du: str) -> list[Step]:
    """What the states before receive: through Wh, directly, and where the step is left out."""
    masked = _mask() is not None
    ways = {"h": [], **{s: [code] for s, code in direct.items()}}
    if masked:
        ways["h"].append("np.where(m_t, 0, dh_t)")
    if masked and "c" in ways:
        ways["c"].append("np.where(m_t, 0, dc_later)")
    through_Wh = "dh_Wh" if ways["h"] else "dh_prev"
    if ways["h"]:
        ways["h"].insert(0, through_Wh)
    return [
        Sum(through_Wh, "ng,hg->nh", du, "Wh", words="through the product with Wh"),
        *(Let(f"d{s}_prev", " + ".join(codes)) for s, codes in ways.items() if codes),
    ]


def bidirectional(layer: Any) -> Derivation:
    """One layer reads X in order, the other one in reverse."""
    mask = current().mask
    mask = None if mask is None else mask[:, ::-1]
    steps = len(layer.output_shape) == 2
    merge, shares, split = merging(layer.merge, ["Y_forward", "Y_reverse"])
    Y, dY = ("Y_flipped", "dY_flipped") if steps else ("Y_reverse", shares[1])

    def flipped(symbol: str, of: str) -> Step:
        return Arrange(symbol, f"{of}[:, ::-1]", of, f"{of} in reverse order")

    return Derivation.of(
        Through("Y_forward", "X", "layer"),
        flipped("X_flipped", "X"),
        Through(Y, "X_flipped", "reverse", mask=mask),
        *([flipped("Y_reverse", Y)] if steps else []),
        merge,
        *split,
        Through("dX_forward", shares[0], "layer", back=True),
        *([flipped(dY, shares[1])] if steps else []),
        Through("dX_flipped", dY, "reverse", back=True),
        flipped("dX_reverse", "dX_flipped"),
        Let("dX", "dX_forward + dX_reverse"),
    )
