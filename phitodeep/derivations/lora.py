"""LowRank: Y = s X A B, one row at a time."""

from __future__ import annotations

from typing import Any

from phitodeep.derivations.language.step import Derivation, Let, Sum


def low_rank(layer: Any) -> Derivation:
    """y_j = sum_r h_r B_rj with h_r = (alpha / rank) sum_i x_i A_ir; every row uses both."""
    return Derivation.of(
        Sum("XA", "...i,ir->...r", "X", "A"),
        Let("H", "alpha / rank * XA"),
        Sum("Y", "...r,rj->...j", "H", "B"),
        Sum("dB", "...r,...j->rj", "H", "dY"),
        Sum("dH", "...j,rj->...r", "dY", "B"),
        Let("dXA", "alpha / rank * dH"),
        Sum("dA", "...i,...r->ir", "X", "dXA"),
        Sum("dX", "...r,ir->...i", "dXA", "A"),
    )
