"""Arrays as tiles: blue cells are negative, orange ones positive, and strength is size.

`plane` lays the cells of an array out in two dimensions, at most 64 x 64, and `tile` draws them.
A larger array is cut into blocks, and each cell shows the element of its block that is farthest
from 0, since a mean would hide spikes.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from typing import Any, NamedTuple

import numpy as np

from phitodeep.core.types import Array
from phitodeep.derivations.language.mathml import escaped
from phitodeep.inspect.explorer.packing import SIDE, strongest

MAPS = 8  # channels along each side of a grid of images
SINGLE = 160  # cells that are drawn, and described, one by one
BLUE, ORANGE, GREY, PURPLE = (31, 111, 180), (217, 104, 15), (128, 136, 146), (150, 40, 150)


class Cell(NamedTuple):
    """The size of a cell in units of the page."""

    w: float
    h: float


class Plane(NamedTuple):
    """The cells of an array in two dimensions.

    values    the cells, with 0 between images
    blank     whether there is no cell here
    numbers   the index of each cell in the array, as one number; 0 where blocks hide it
    note      what is not shown; "" if every element is
    """

    values: Array
    blank: Array
    numbers: Array
    shape: tuple[int, ...]
    note: str
    whole: bool  # whether each element of what is shown has a cell
    plain: bool  # whether these are integers, whose sign means nothing

    def place(self, k: int, j: int) -> tuple[int, ...]:
        """The index in the array of the cell in row k and column j."""
        return tuple(int(i) for i in np.unravel_index(int(self.numbers[k, j]), self.shape))


def plane(A: Any, sample: int | None = None, *, heads: bool = False) -> Plane:
    """Lay an array out in two dimensions.

    sample    for activations (N, ...): the one that is shown if there are more than two axes;
              None for weights
    heads     whether A is the attention of several heads: (N, heads, queries, keys)
    """
    A = np.asarray(A)
    values, blank = _laid_out(np.asarray(A, np.float64), sample, heads)
    shown = int((~blank).sum())
    one = sample is not None and A.ndim > 2
    size = A[0].size if one else A.size
    whole = shown == size
    index = np.zeros(values.shape, np.int64)
    if whole:
        numbers = np.arange(A.size, dtype=float).reshape(A.shape)
        index = _laid_out(numbers, sample, heads)[0].astype(int)
    notes = [f"sample {sample} of {len(A)}"] * one
    notes += [f"shown {shown:,}", f"of {size:,}"] * (not whole)
    note = "\n".join(notes)
    return Plane(values, blank, index, A.shape, note, whole, A.dtype.kind not in "fc")


def found(
    shape: tuple[int, ...], sample: int | None, at: tuple[int, ...]
) -> tuple[int, int] | None:
    """The row and column of the cell that shows this element, or None if no cell does."""
    A = np.zeros(shape)
    A[at] = 1
    rows, columns = np.nonzero(_laid_out(A, sample)[0])
    return (int(rows[0]), int(columns[0])) if len(rows) else None


def _laid_out(A: Array, sample: int | None, heads: bool = False) -> tuple[Array, Array]:
    """The cells of an array, and whether there is none."""
    if sample is None:  # weights
        if A.ndim < 2:
            A = A.reshape(1, -1)
        elif A.ndim == 3:
            A = A.reshape(-1, A.shape[-1])
        elif A.ndim > 3:  # a grid of kernels: inputs by outputs
            h, w, rows, columns = (math.prod(A.shape[:-3]), *A.shape[-3:])
            return _grid(A.reshape(h, w, rows, columns).transpose(2, 3, 0, 1))
    elif A.ndim < 2:
        A = A.reshape(-1, 1)
    elif A.ndim > 2:
        A = A[sample] if not heads else np.moveaxis(A[sample], 0, -1)
        if A.ndim > 2:  # channels side by side
            A = np.moveaxis(A.reshape(-1, *A.shape[-2:]), -1, 0)
            columns = math.ceil(math.sqrt(len(A)))
            rows = math.ceil(len(A) / columns)
            A, more = A[: rows * columns], rows * columns - len(A)
            full = np.concatenate([A, np.full((more, *A.shape[1:]), np.inf)])
            return _grid(full.reshape(rows, columns, *A.shape[1:]), len(A))
    A = strongest(A, SIDE, SIDE)
    return A, np.zeros(A.shape, bool)


def _grid(maps: Array, count: int | None = None) -> tuple[Array, Array]:
    """Images (rows, columns, h, w) next to each other, with a free line between them."""
    count = maps.shape[0] * maps.shape[1] if count is None else count
    real = (np.arange(maps.shape[0] * maps.shape[1]) < count).reshape(maps.shape[:2])
    maps, real = maps[:MAPS, :MAPS], real[:MAPS, :MAPS]
    rows, columns = maps.shape[:2]
    small = strongest(maps, max(1, (SIDE + 1) // rows - 1), max(1, (SIDE + 1) // columns - 1))
    h, w = small.shape[2:]
    values = np.zeros((rows, h + 1, columns, w + 1))
    blank = np.ones(values.shape, bool)
    values[:, :h, :, :w] = np.where(real[..., None, None], small, 0).transpose(0, 2, 1, 3)
    blank[:, :h, :, :w] = ~real[:, None, :, None]
    shape = rows * (h + 1), columns * (w + 1)
    return values.reshape(shape)[:-1, :-1], blank.reshape(shape)[:-1, :-1]


# --- as SVG ------------------------------------------------------------------------------------


def tile(
    shown: Plane, x: float, y: float, cell: Cell, name: str, most: float, more: str = ""
) -> str:
    """The cells as SVG at (x, y), of this width and height; `most` has the full colour."""
    rows, columns = shown.values.shape
    many = (~shown.blank).sum() > SINGLE or not shown.whole or min(cell) < 6
    where = f'transform="translate({x:.1f} {y:.1f}) scale({cell.w:.4g} {cell.h:.4g})"'
    if not many:
        return f"<g {where}{more}>{_cells(shown, name, most, min(cell) >= 11)}</g>"
    values = shown.values[~shown.blank]
    span = f"{name}, from {values.min(initial=np.inf):.4g} to {values.max(initial=-np.inf):.4g}"
    title = escaped(f"{span}; {shown.note}".replace("\n", " ").removesuffix("; "))
    data = base64.b64encode(_png(shown, most)).decode()
    return (
        f"<g {where}{more}>{f'<title>{title}</title>' * bool(name)}"
        f'<image width="{columns}" height="{rows}" '
        f'preserveAspectRatio="none" href="data:image/png;base64,{data}"/></g>'
    )


def _cells(shown: Plane, name: str, most: float, signs: bool) -> str:
    cells: list[str] = []
    light: list[str] = []
    dark: list[str] = []
    for k, j in np.argwhere(~shown.blank):
        value = shown.values[k, j]
        strength = _strength(value, most)
        kind = (
            "i"
            if shown.plain or value == 0
            else "w"
            if not np.isfinite(value)
            else "np"[int(value > 0)]
        )
        place = ", ".join(map(str, shown.place(k, j)))
        cells.append(
            f'<rect class="{kind}" x="{j}" y="{k}" width=".94" height=".94" rx=".1" '
            f'fill-opacity="{0.06 + 0.94 * strength:.2g}"'
            + (f"><title>{name}[{place}] = {number(value)}</title></rect>" if name else "/>")
        )
        if signs and kind in "np" and value:
            glyph = f"M{j + 0.3:.4g} {k + 0.47:.4g}h.34" + "m-.17-.17v.34" * bool(value > 0)
            (light if strength > 0.55 else dark).append(glyph)
    marks = zip(("gl", "gd"), (light, dark), strict=True)
    return "".join(cells) + "".join(f'<path class="{c}" d="{"".join(p)}"/>' for c, p in marks if p)


def _strength(value: Any, most: float) -> Any:
    """From 0 to 1; the root makes small numbers visible."""
    return np.where(np.isfinite(value), np.sqrt(np.minimum(1, np.abs(value) / (most or 1))), 1)


def number(value: float) -> str:
    """A number with three digits, and a real minus sign."""
    return f"{value + 0:.3g}".replace("-", "\u2212")


def _png(shown: Plane, most: float) -> bytes:
    """An image with one byte per cell: its colours are transparent, so they suit any background."""
    with np.errstate(invalid="ignore"):
        level = 1 + np.round(124 * _strength(shown.values, most)).astype(int)
        level = level + np.where(shown.values > 0, 125, 0)
    level = np.where(np.isfinite(shown.values), level, 252)
    level = np.where(shown.blank, 0, level).astype(np.uint8)
    pair = (GREY, GREY) if shown.plain else (BLUE, ORANGE)
    colours = [GREY, GREY, *[pair[0]] * 124, GREY, *[pair[1]] * 124, PURPLE, PURPLE]
    alphas = [round(15 + 240 * k / 124) for k in range(125)]
    alpha = bytes([0, *alphas, *alphas, 255, 255])
    rows, columns = level.shape
    raw = np.concatenate([np.zeros((rows, 1), np.uint8), level], axis=1).tobytes()
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)),
        (b"PLTE", bytes(value for colour in colours for value in colour)),
        (b"tRNS", alpha),
        (b"IDAT", zlib.compress(raw, 9)),
        (b"IEND", b""),
    ]
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
