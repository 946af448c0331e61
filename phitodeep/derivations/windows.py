"""Layers with windows: convolutions and pools, and which cell each tap of each window covers.

Along an axis, tap i of window h covers position s h + d i - p of X, where s is the stride, d the
dilation and p the padding. Conversely, position x is covered with tap i by window
(x + p - d i) / s, if there is one, and so by at most one window per tap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from phitodeep.core.call import current
from phitodeep.core.types import Array
from phitodeep.derivations.language.step import Arrange, Derivation, Given, Let, Max, Step, Sum

SPACE = ("", "t", "hw")  # the letters of the spatial axes, by rank
TAPS = ("", "i", "ij")  # and of the kernel's axes
AXES = (), ("steps",), ("rows", "columns")

Table = Callable[[Any, int], Array]
U_WORDS = "the cells in each window"
V_WORDS = "what arrives from each window that covers a cell"


def covered(windows: Any, axis: int) -> Array:
    """Return the position that each tap of each window covers (windows, taps).

    Outside X, it is the position after the last.
    """
    size, (before, _) = windows.sizes[axis], windows.pads[axis]
    window, tap = np.ogrid[: windows.out[axis], : windows.kernel[axis]]
    position = windows.stride[axis] * window + windows.dilation[axis] * tap - before
    return np.where((position >= 0) & (position < size), position, size)


def covering(windows: Any, axis: int) -> Array:
    """Return the window that covers each position with each tap (positions, taps).

    If there is none, it is the window after the last.
    """
    count, (before, _) = windows.out[axis], windows.pads[axis]
    position, tap = np.ogrid[: windows.sizes[axis], : windows.kernel[axis]]
    start = position + before - windows.dilation[axis] * tap
    window, rest = np.divmod(start, windows.stride[axis])
    return np.where((rest == 0) & (window >= 0) & (window < count), window, count)


WORDS: dict[Table, str] = {
    covered: "stride · {h} + dilation · {i} - padding, the {axis} under tap {i} of window {h}",
    covering: "({h} + padding - dilation · {i}) / stride, the window with tap {i} on {axis} {h}",
}


def indices(layer: Any, table: Table, before: str = "") -> list[Given]:
    """The steps for the table of each spatial axis, such as `rows` and `columns`.

    Each has an axis for every spatial axis and one for every axis of the kernel.
    """
    rank: int = layer.rank

    def given(axis: int, name: str) -> Given:
        others = [a for a in range(2 * rank) if a % rank != axis]

        def find(symbols: Any) -> Array:
            return np.expand_dims(table(layer._windows_on(symbols["X"]), axis), others)

        h, i = SPACE[rank][axis], TAPS[rank][axis]
        words = WORDS[table].format(axis=name.removesuffix("s"), h=h, i=i)
        return Given(before + name, words, find)

    return [given(axis, name) for axis, name in enumerate(AXES[rank])]


def arranged(
    symbol: str,
    of: str,
    tables: Sequence[Given],
    words: str,
    inner: int = 1,
    taps: Sequence[Given] = (),
) -> Arrange:
    """The cells of `of` (N, *sizes, and `inner` axes) at the places in the tables.

    A place after the last of an axis stands for none: a zero is there.
    """
    end = ((0, 0), *((0, 1),) * len(tables), *((0, 0),) * inner)
    at = ", ".join(given.symbol for given in (*tables, *taps))
    return Arrange(symbol, f"np.pad({of}, {end})[:, {at}]", of, words)


# --- convolutions --------------------------------------------------------------------------------


# A convolution and a transposed convolution are the same sums. They differ only in the cells that
# meet: in a convolution, the windows lie on X, and each y reads the cells of X in its window. In a
# transposed convolution, they lie on Y, and each y reads the cells of X whose windows cover it. The
# backward pass of either finds its cells as the forward pass of the other does.


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

    mask = Given("mask", "whether each step counts", lambda s: layer.check_steps(s["X"])[..., None])
    kept = mask, Let("X_kept", "X * mask")
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


# --- pools: one number for each window of each channel -------------------------------------------


def avg_pool(layer: Any) -> Derivation:
    """y = the sum of a window times 1 / m; each window passes dy / m to each of its cells."""
    at, taps = f"n{SPACE[layer.rank]}", TAPS[layer.rank]
    tables, back = indices(layer, covered), indices(layer, covering, "back_")
    uncounted = ", but not padding" if layer.padding == "same" else ""

    words = f"1 / m, where m counts the cells of the window{uncounted}"

    return Derivation.of(
        *tables,
        arranged("U", "X", tables, U_WORDS),
        Sum("total", f"{at}{taps}c->{at}c", "U"),
        Given("share", words, lambda s: layer._shares(layer._windows_on(s["X"]), s["X"].dtype)),
        Let("Y", "total * share"),
        Let("g", "dY * share", "what a window passes to each of its cells"),
        *back,
        arranged("V", "g", back, V_WORDS),
        Sum("dX", f"{at}{taps}c->{at}c", "V"),
    )


def max_pool(layer: Any) -> Derivation:
    """y = the largest x of a window, which receives dy from every window that it wins."""
    rank, at, taps = layer.rank, f"n{SPACE[layer.rank]}", TAPS[layer.rank]
    tables, back = indices(layer, covered), indices(layer, covering, "back_")
    tap_of = [_tap(layer, axis) for axis in range(rank)]
    padded = layer.padding not in (0, "valid")
    U = "U_kept" if padded else "U"

    def inside(symbols: Any) -> Array:
        sizes = symbols["X"].shape[1:-1]
        on_axis = [symbols[g.symbol] < n for g, n in zip(tables, sizes, strict=True)]
        on_all: Array = reduce(np.logical_and, on_axis)
        return on_all[..., None]

    padding = [
        Given("inside", "whether the tap lies on X, not on padding", inside),
        Let("U_kept", "np.where(inside, U, -np.inf)", "padding is never the largest"),
    ]
    row, shape = f"{at}{taps}c", (*layer.pool, 1)

    def wide(symbol: str, of: str) -> Arrange:
        index = ", ".join([*[":"] * (1 + rank), *["None"] * rank])
        return Arrange(symbol, f"{of}[{index}]", of, "for each cell of the window")

    return Derivation.of(
        *tables,
        arranged("U", "X", tables, U_WORDS),
        *(padding if padded else ()),
        Max("Y", f"{row}->{at}c", U),
        Given("tap", _TAP, lambda _: np.arange(math.prod(shape)).reshape(shape)),
        *_winner(U, "Y", row, f"{at}c", "tap", wide),
        *back,
        *tap_of,
        arranged("V", "dY", back, V_WORDS),
        arranged("won", "winner", back, "whether the cell is the winner there", rank + 1, tap_of),
        Let("passed", "np.where(won, V, 0)"),
        Sum("dX", f"{row}->{at}c", "passed"),
    )


def at_winners(layer: Any, tX: Array) -> Array:
    """Return how the maxima move: as the winner of each window in the last forward pass does."""
    winner, windows = layer.saved("winner", "windows")
    padded, tY = windows.pad(tX, layer.buffer), np.zeros(winner.shape, tX.dtype)
    for k, tap in enumerate(windows.taps):
        tY += windows.at(padded, tap) * (winner == k)
    return tY


def _tap(layer: Any, axis: int) -> Given:
    count = layer.pool[axis]
    later = (1,) * (layer.rank - 1 - axis)
    tap = np.arange(count).reshape(-1, *later)
    return Given(TAPS[layer.rank][axis], "the number of each tap along its axis", lambda _: tap)


def _winner(
    of: str, best: str, row: str, out: str, of_nan: str, wide: Callable[[str, str], Arrange]
) -> list[Step]:
    """Where the largest element is: of equal ones, the first. NaN is larger than all numbers."""
    claim = f"np.where({of} != {of}, {of_nan}, np.where({of} == best, -tap, -np.inf))"
    return [
        wide("best", best),
        Let("claim", claim, "the largest ones claim to be the winner, the first most strongly"),
        Max("strongest", f"{row}->{out}", "claim"),
        wide("highest", "strongest"),
        Let("winner", "claim == highest", "whether this is the largest; of equal ones, the first"),
    ]


_TAP = "the number of each cell of a window, in order"


# --- pools over all positions --------------------------------------------------------------------


def global_avg_pool(layer: Any) -> Derivation:
    """y = the sum over the m positions that count, divided by m, so each receives dy / m."""

    def kept(symbols: Any) -> Array:
        X = symbols["X"]
        return _kept(layer, X)[..., 0].astype(X.dtype)

    return Derivation.of(
        Given("kept", "1 for each position, 0 if a mask leaves it out", kept),
        Sum("m", "n...->n1", "kept"),
        Sum("total", "n...c,n...->nc", "X", "kept"),
        Let("Y", "total / np.maximum(m, 1)"),
        Let("g", "dY / np.maximum(m, 1)", "what each position that counts receives"),
        Sum("dX", "nc,n...->n...c", "g", "kept"),
    )


def global_max_pool(layer: Any) -> Derivation:
    """y = the largest x of all positions, which receives dy; without a position, y is 0."""
    if current().mask is None:
        return Derivation.of(Max("Y", "n...c->nc", "X"), *_to_winner("X", "Y", "dY"))
    forward: list[Step] = [
        Given("kept", "whether each position counts", lambda s: _kept(layer, s["X"])),
        Max("some", "n...z->nz", "kept", words="whether any position counts"),
        Let("X_kept", "np.where(kept, X, -np.inf)"),
        Max("largest", "n...c->nc", "X_kept"),
        Let("Y", "np.where(some, largest, 0)"),
    ]
    dlargest = Let("dlargest", "np.where(some, dY, 0)")
    return Derivation.of(*forward, dlargest, *_to_winner("X_kept", "largest", "dlargest"))


def _to_winner(X: str, largest: str, dY: str) -> list[Step]:
    def everywhere(symbol: str, of: str, words: str = "for each position") -> Arrange:
        code = f"np.moveaxis(np.broadcast_to({of}, (*X.shape[1:-1], *{of}.shape)), -2, 0)"
        return Arrange(symbol, code, of, words)

    def tap(symbols: Any) -> Array:
        shape = *symbols["X"].shape[1:-1], 1
        return np.arange(math.prod(shape)).reshape(shape)

    return [
        Given("tap", "the number of each position, in order", tap),
        *_winner(X, largest, "n...c", "nc", "-tap", everywhere),
        everywhere("V", dY, "what arrives for the channel, at each position"),
        Let("dX", "np.where(winner, V, 0)"),
    ]


def _kept(layer: Any, X: Array) -> Array:
    """Return which positions count, as (N, *sizes, 1)."""
    mask: Array | None = layer._mask(X)
    shape = *X.shape[:-1], 1
    return np.ones(shape, bool) if mask is None else mask.reshape(shape)
