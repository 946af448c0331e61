"""Pooling: one number for each window, or for all positions, of each channel."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from phitodeep.core.call import current
from phitodeep.core.types import Array
from phitodeep.derivations.language.step import Arrange, Derivation, Given, Let, Max, Step, Sum
from phitodeep.derivations.windows import SPACE, TAPS, arranged, covered, covering, indices

U_WORDS = "the cells in each window"
V_WORDS = "what arrives from each window that covers a cell"


def avg_pool(layer: Any) -> Derivation:
    """y = the sum of a window times 1 / m; each window passes dy / m to each of its cells."""
    at, taps = f"n{SPACE[layer.rank]}", TAPS[layer.rank]
    tables, back = indices(layer, covered), indices(layer, covering, "back_")
    uncounted = ", but not padding" if layer.padding == "same" else ""

    def share(symbols: Any) -> Array:
        X = symbols["X"]
        shares: Array = layer._shares(layer._windows_on(X), X.dtype)
        return shares

    return Derivation.of(
        *tables,
        arranged("U", "X", tables, U_WORDS),
        Sum("total", f"{at}{taps}c->{at}c", "U"),
        Given("share", f"1 / m, where m counts the cells of the window{uncounted}", share),
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
