"""What all layers with windows share: which cell each tap of each window covers, and the reverse.

Along an axis, tap i of window h covers position s h + d i - p of X, where s is the stride, d the
dilation and p the padding. Conversely, position x is covered with tap i by window
(x + p - d i) / s, if there is one, and so by at most one window per tap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from phitodeep.core.types import Array
from phitodeep.derivations.language.step import Arrange, Given

SPACE = ("", "t", "hw")  # the letters of the spatial axes, by rank
TAPS = ("", "i", "ij")  # and of the kernel's axes
AXES = (), ("steps",), ("rows", "columns")

Table = Callable[[Any, int], Array]


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
