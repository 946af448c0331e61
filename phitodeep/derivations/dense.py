"""Dense, TiedDense and LowRank: Y = X W + b and Y = s X A B, one row at a time."""

from __future__ import annotations

from typing import Any

from phitodeep.derivations.language.step import Derivation, Let, Step, Sum


def dense(layer: Any) -> Derivation:
    """y_j = sum_i x_i W_ij + b_j; every row uses the same W and b."""
    names = "Y", "X", "W", "b" if layer.bias else None
    return Derivation.of(*product(*names), *product_back(*names))


def product(out: str, X: str, W: str, b: str | None, row: str = "...") -> list[Step]:
    """X W + b for each row of X, which has these indices; without b, X W."""
    if b is None:
        return [Sum(out, f"{row}i,ij->{row}j", X, W)]
    return [Sum(f"{X}{W}", f"{row}i,ij->{row}j", X, W), Let(out, f"{X}{W} + {b}")]


def product_back(out: str, X: str, W: str, b: str | None, row: str = "...") -> list[Step]:
    """The gradients of X W + b."""
    return [
        Sum(f"d{W}", f"{row}i,{row}j->ij", X, f"d{out}"),
        *([] if b is None else [Sum(f"d{b}", f"{row}j->j", f"d{out}")]),
        Sum(f"d{X}", f"{row}j,ij->{row}i", f"d{out}", W),
    ]


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
