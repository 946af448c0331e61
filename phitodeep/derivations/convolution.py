"""Convolutions: each window times the kernel, and what all windows over a cell pass back.

A convolution and a transposed convolution are the same sums. They differ only in the cells that
meet: in a convolution, the windows lie on X, and each y reads the cells of X in its window. In a
transposed convolution, they lie on Y, and each y reads the cells of X whose windows cover it. The
backward pass of either finds its cells as the forward pass of the other does.
"""

from __future__ import annotations

from typing import Any

from phitodeep.core.call import current
from phitodeep.derivations.language.step import Arrange, Derivation, Given, Let, Step, Sum
from phitodeep.derivations.windows import SPACE, TAPS, Table, arranged, covered, covering, indices


def convolution(layer: Any) -> Derivation:
    """y_hk = sum_ic x_(s h + d i - p, c) W_ick + b_k: every window uses the same W and b."""
    return _sums(layer, covered, covering, "cgk", "W.reshape(*W.shape[:-1], {}, -1)")


def transposed_convolution(layer: Any) -> Derivation:
    """y_hk = sum_ic x_((h + p - d i) / s, c) W_ick + b_k: each x adds x W to its window of Y."""
    split_W = "W.reshape(*W.shape[:-2], {}, -1, W.shape[-1])"
    return _sums(layer, covering, covered, "gck", split_W)


def _sums(layer: Any, reads: Table, read_by: Table, groups: str, split_W: str) -> Derivation:
    """Y = U W + b, where U holds the cells of X that each cell of Y reads.

    A cell of X is read by several cells of Y, at most one for each tap. V holds their dY, and dX is
    the sum of what they pass back. With groups, c and k number the channels and filters within
    group g. Steps that a mask leaves out count as zeros.
    """
    G, at, taps = layer.groups, f"n{SPACE[layer.rank]}", TAPS[layer.rank]
    masked = layer.rank == 1 and current().mask is not None
    X, Y = "X_kept" if masked else "X", "UW" if layer.bias else "Y"
    c, k, ick = ("c", "k", f"{taps}ck") if G == 1 else ("gc", "gk", f"{taps}{groups}")
    _g = "" if G == 1 else "_g"
    tables, back = indices(layer, reads), indices(layer, read_by, "back_")

    def split(A: str, code: str = "") -> list[Step]:
        code = code or f"{A}.reshape(*{A}.shape[:-1], {G}, -1)"
        return [Arrange(f"{A}_g", code, A, f"{A} by groups")] if _g else []

    def joined(A: str, shape: str) -> list[Step]:
        whole = Arrange(A, f"{A}_g.reshape({shape})", f"{A}_g", "all groups in one axis")
        return [whole] if _g else []

    def mask(symbols: Any) -> Any:
        return layer.check_steps(symbols["X"])[..., None]

    kept = Given("mask", "whether each step counts", mask), Let("X_kept", "X * mask")
    return Derivation.of(
        *(kept if masked else ()),
        *split(X),
        *split("W", split_W.format(G)),
        *tables,
        arranged("U", f"{X}{_g}", tables, "the cells of X that each cell of Y reads", len(c)),
        Sum(f"{Y}{_g}", f"{at}{taps}{c},{ick}->{at}{k}", "U", f"W{_g}"),
        *joined(Y, f"*{Y}_g.shape[:-2], -1"),
        *([Let("Y", "UW + b")] if layer.bias else ()),
        *([Sum("db", f"{at}k->k", "dY")] if layer.bias else ()),
        *split("dY"),
        Sum(f"dW{_g}", f"{at}{taps}{c},{at}{k}->{ick}", "U", f"dY{_g}"),
        *joined("dW", "W.shape"),
        *back,
        arranged("V", f"dY{_g}", back, "the dY of the cells of Y that read each cell of X", len(k)),
        Sum(f"d{X}{_g}", f"{at}{taps}{k},{ick}->{at}{c}", "V", f"W{_g}"),
        *joined(f"d{X}", "X.shape"),
        *([Let("dX", "dX_kept * mask")] if masked else ()),
    )
