"""Dense and TiedDense: Y = X W + b, one row at a time."""

from __future__ import annotations

from typing import Any

from phitodeep.derivations.language.step import Derivation, Let, Sum


def dense(layer: Any) -> Derivation:
    """y_j = sum_i x_i W_ij + b_j; every row uses the same W and b."""
    backward = [
        Sum("dW", "...i,...j->ij", "X", "dY"),
        Sum("db", "...j->j", "dY"),
        Sum("dX", "...j,ij->...i", "dY", "W"),
    ]
    if not layer.bias:
        return Derivation([Sum("Y", "...i,ij->...j", "X", "W")], [backward[0], backward[2]])
    return Derivation([Sum("XW", "...i,ij->...j", "X", "W"), Let("Y", "XW + b")], backward)


def tied_dense(layer: Any) -> Derivation:
    """The score of token v is the dot product of x with row v of W."""
    return Derivation(
        [Sum("Y", "...d,vd->...v", "X", "W")],
        [Sum("dW", "...v,...d->vd", "dY", "X"), Sum("dX", "...v,vd->...d", "dY", "W")],
    )
