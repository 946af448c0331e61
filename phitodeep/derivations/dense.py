"""Dense, TiedDense and LowRank: Y = X W + b and Y = s X A B, one row at a time."""

from __future__ import annotations

from typing import Any

from phitodeep.derivations.language.step import Derivation, Let, Sum


def dense(layer: Any) -> Derivation:
    """y_j = sum_i x_i W_ij + b_j; every row uses the same W and b."""
    shift, db = ([Let("Y", "XW + b")], [Sum("db", "...j->j", "dY")]) if layer.bias else ([], [])
    return Derivation.of(
        Sum("XW" if layer.bias else "Y", "...i,ij->...j", "X", "W"),
        *shift,
        Sum("dW", "...i,...j->ij", "X", "dY"),
        *db,
        Sum("dX", "...j,ij->...i", "dY", "W"),
    )


def tied_dense(layer: Any) -> Derivation:
    """The score of token v is the dot product of x with row v of W."""
    return Derivation.of(
        Sum("Y", "...d,vd->...v", "X", "W"),
        Sum("dW", "...v,...d->vd", "dY", "X"),
        Sum("dX", "...v,vd->...d", "dY", "W"),
    )


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
