"""Dense and TiedDense: Y = X W + b, one row at a time."""

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
