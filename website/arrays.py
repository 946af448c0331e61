"""Arrays as HTML tables: tiles or bars, which a script changes when a reader drags a number.

Each cell has its place in memory and, as `--v`, its part of the largest number of its array.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from html import escape
from typing import Any

import numpy as np

from phitodeep.core.types import Array
from phitodeep.derivations.language.mathml import MATHML

WIDE = 8  # columns that a phone shows without scrolling
BARS = 12  # numbers in the longest row of bars
LARGEST = 96  # numbers in the largest array whose numbers are shown


def shown(A: Any) -> bool:
    """Whether an array is small enough to show, and has numbers."""
    A = np.asarray(A)
    return A.dtype.kind in "fiub" and 0 < A.size <= LARGEST


def array(
    symbol: str,
    A: Any,
    *,
    image: bool = False,
    scale: float = 0.0,
    tall: bool = True,
    label: str = "",
) -> str:
    """All numbers of an array with its name and shape.

    image    whether the axes before the last one are drawn, instead of the last two
    label    its name, if that is not its symbol
    tall     whether a single row is drawn as bars
    scale    the size of the longest bar or the strongest colour; by default, the largest number
    """
    A = np.asarray(A)
    scale = scale or scale_of(A)
    places = np.arange(A.size).reshape(A.shape)
    bars = tall and A.ndim > 0 and 1 < A.size == A.shape[-1] <= BARS
    tables = "".join(_table(label, part, A, scale) for label, part in _parts(places, image))
    shape = " \u00d7 ".join(map(str, A.shape)) or "a number"
    scrolls = ' tabindex="0"' if A.ndim and A.shape[-1] > WIDE else ""
    title = escape(label) or MATHML.whole(MATHML.symbol(symbol))
    return (
        f'<div class="wb-array{" wb-bars" if bars else ""}" data-sym="{symbol}" '
        f'data-shape="{",".join(map(str, A.shape))}" data-scale="{scale:.6g}"{scrolls}>'
        f'<div class="wb-name">{title} <small>{shape}</small></div>'
        f'<div class="wb-tables">{tables}</div></div>'
    )


def scale_of(*arrays: Any) -> float:
    sizes = [np.abs(np.asarray(A, float)) for A in arrays]
    return float(max((a[np.isfinite(a)].max(initial=0) for a in sizes), default=0)) or 1.0


def _parts(places: Array, image: bool) -> Iterator[tuple[str, Array]]:
    """The tables of an array: its last two axes, or those of an image, for all other indices."""
    if places.ndim < 2:
        yield "", places.reshape(1, -1)
        return
    rows, columns = (places.ndim - 3, places.ndim - 2) if image else (-2, -1)
    if image and places.ndim == 4 and places.shape[0] > 1 and _is_kernel(places):
        rows, columns = 0, 1
    tables = np.moveaxis(places, (rows, columns), (-2, -1))
    for index in itertools.product(*map(range, tables.shape[:-2])):
        several = [k for k, n in zip(index, tables.shape[:-2], strict=True) if n > 1]
        yield ", ".join(map(str, several)), tables[index]


def _is_kernel(places: Array) -> bool:
    """Whether the first two axes are those of a kernel, (height, width, in, out)."""
    return places.shape[0] == places.shape[1]


def _table(label: str, places: Array, A: Array, scale: float) -> str:
    rows = "".join(
        f"<tr>{''.join(_cell(int(k), A.flat[k], scale) for k in row)}</tr>" for row in places
    )
    caption = f"<caption>{label}</caption>" if label else ""
    return f'<table class="wb-table">{caption}<tbody>{rows}</tbody></table>'


def _cell(k: int, value: Any, scale: float) -> str:
    part = float(value) / scale if np.isfinite(value) else 0.0
    part = max(-1.0, min(1.0, part))
    return (
        f'<td><span class="wb-cell" data-k="{k}" style="--v:{part:.3g}">'
        f"{escape(number(value))}</span></td>"
    )


def number(value: Any) -> str:
    """A number in at most two decimals, as the script writes it."""
    if not np.isfinite(value):
        return "nan" if np.isnan(value) else "∞" if value > 0 else "\u2212∞"
    text = f"{float(value):.2f}".rstrip("0").rstrip(".")
    return ("0" if text in ("-0", "") else text).replace("-", "\u2212")
