"""Arrays as tiles of coloured cells: blue is negative, orange positive, and strength is size.

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

from phitodeep.core.table import escaped
from phitodeep.core.types import Array
from phitodeep.inspect.svg import element

SIDE = 64  # the cells of a thumbnail along each axis
MAPS = 8  # channels along each side of a grid of images
SINGLE = 160  # cells that are drawn, and described, one by one
KINDS = "inpw"  # the classes of cells: 0 or an integer, negative, positive, not finite
COLOURS = np.array([(128, 136, 146), (31, 111, 180), (217, 104, 15), (150, 40, 150)], np.uint8)


class Plane(NamedTuple):
    """The cells of an array in two dimensions.

    values    the cells, with 0 between images
    blank     whether there is no cell here
    numbers   the index of each cell in the array, as one number, if each element has a cell
    notes     what is not shown; empty if every element is
    """

    values: Array
    blank: Array
    numbers: Array
    shape: tuple[int, ...]
    notes: list[str]
    whole: bool  # whether each element of what is shown has a cell
    plain: bool  # whether these are integers, whose sign means nothing

    @property
    def most(self) -> float:
        """The size that has the full colour."""
        return float(np.abs(self.values[np.isfinite(self.values)]).max(initial=0))

    @property
    def kinds(self) -> Array:
        """The index of each cell's class in KINDS."""
        signs = np.where(self.values == 0, 0, np.where(self.values > 0, 2, 1))
        return np.where(np.isfinite(self.values), 0 if self.plain else signs, 3)

    @property
    def strength(self) -> Array:
        """How strong the colour of each cell is, from 0 to 1; the root makes small ones visible."""
        share = np.minimum(1, np.abs(self.values) / (self.most or 1))
        return np.where(np.isfinite(self.values), np.sqrt(share), 1)

    def place(self, k: int, j: int) -> tuple[int, ...]:
        """The index in the array of the cell in row k and column j."""
        return tuple(int(i) for i in np.unravel_index(int(self.numbers[k, j]), self.shape))


def plane(A: Any, sample: int | None = None) -> Plane:
    """Lay an array out in two dimensions.

    sample    for activations (N, ...): the one that is shown if there are more than two axes;
              None for weights
    """
    A = np.asarray(A)
    values, blank = _laid_out(np.asarray(A, np.float64), sample)
    shown = int((~blank).sum())
    one = sample is not None and A.ndim > 2
    size = A[0].size if one else A.size
    whole = shown == size
    numbers, _ = _laid_out(np.arange(A.size, dtype=float).reshape(A.shape), sample)
    notes = [f"sample {sample} of {len(A)}"] * one
    notes += [f"shown {shown:,}", f"of {size:,}"] * (not whole)
    return Plane(values, blank, numbers, A.shape, notes, whole, A.dtype.kind not in "fc")


def found(
    shape: tuple[int, ...], sample: int | None, at: tuple[int, ...]
) -> tuple[int, int] | None:
    """The row and column of the cell that shows this element, or None if no cell does."""
    A = np.zeros(shape)
    A[at] = 1
    rows, columns = np.nonzero(_laid_out(A, sample)[0])
    return (int(rows[0]), int(columns[0])) if len(rows) else None


def _laid_out(A: Array, sample: int | None) -> tuple[Array, Array]:
    """The cells of an array, and whether there is none."""
    if sample is None and A.ndim > 3:  # a grid of kernels: inputs by outputs
        kernels = A.reshape(-1, *A.shape[-3:]).transpose(2, 3, 0, 1)[:MAPS, :MAPS]
        return _grid(kernels.reshape(-1, *kernels.shape[2:]), kernels.shape[1])
    if sample is None:  # weights
        A = A.reshape(-1, A.shape[-1]) if A.ndim > 1 else A.reshape(1, -1)
    elif A.ndim < 2:
        A = A.reshape(-1, 1)
    elif A.ndim > 2:
        A = A[sample]
        if A.ndim > 2:  # channels side by side
            maps = np.moveaxis(A.reshape(-1, *A.shape[-2:]), -1, 0)
            return _grid(maps[: MAPS**2], min(MAPS, math.ceil(math.sqrt(len(maps)))))
    A = strongest(A, SIDE, SIDE)
    return A, np.zeros(A.shape, bool)


def strongest(A: Array, rows: int, columns: int) -> Array:
    """Cut the last two axes into at most rows x columns blocks; keep the largest |a| of each."""
    for axis, most in ((-2, rows), (-1, columns)):
        block = math.ceil(A.shape[axis] / most) if A.shape[axis] else 1
        if block > 1:
            A = np.moveaxis(A, axis, -1)
            ends = [(0, 0)] * (A.ndim - 1) + [(0, -A.shape[-1] % block)]
            cut = np.pad(A, ends).reshape(*A.shape[:-1], -1, block)
            best = np.abs(cut).argmax(axis=-1)
            A = np.moveaxis(np.take_along_axis(cut, best[..., None], -1)[..., 0], -1, axis)
    return A


def _grid(maps: Array, columns: int) -> tuple[Array, Array]:
    """Images (n, h, w) next to each other, with a free line between them."""
    sides = (max(1, (SIDE + 1) // n - 1) for n in (-(-len(maps) // columns), columns))
    small = strongest(maps, *sides)
    blank = np.isnan(mosaic(np.ones(small.shape), columns, 1))
    return np.where(blank, 0, mosaic(small, columns, 1)), blank


def mosaic(tiles: Array, columns: int, gap: int) -> Array:
    """Lay tiles (n, h, w, ...) out in rows of `columns`, with gaps of NaN between them."""
    n, h, w, *colours = tiles.shape
    rows = -(-n // columns)
    whole = np.full((rows * (h + gap) - gap, columns * (w + gap) - gap, *colours), np.nan)
    for i, tile in enumerate(tiles):
        top, left = i // columns * (h + gap), i % columns * (w + gap)
        whole[top : top + h, left : left + w] = tile
    return whole


# --- as SVG ------------------------------------------------------------------------------------


def tile(
    shown: Plane, x: float, y: float, w: float, h: float, name: str, class_: str | None = None
) -> str:
    """The cells as SVG at (x, y), each of this width and height."""
    where = f"translate({x:.1f} {y:.1f}) scale({w:.4g} {h:.4g})"
    if shown.whole and (~shown.blank).sum() <= SINGLE and min(w, h) >= 6:
        inside = _cells(shown, name, min(w, h) >= 11)
    else:
        values, (rows, columns) = shown.values[~shown.blank], shown.values.shape
        span = f"{name}, from {values.min(initial=np.inf):.4g} to {values.max(initial=-np.inf):.4g}"
        title = element("title", escaped("; ".join([span, " ".join(shown.notes)]).rstrip("; ")))
        data = base64.b64encode(_png(shown)).decode()
        inside = title + element(
            "image", width=columns, height=rows, preserveAspectRatio="none",
            href=f"data:image/png;base64,{data}",
        )  # fmt: skip
    return element("g", inside, transform=where, class_=class_)


def _cells(shown: Plane, name: str, signs: bool) -> str:
    """One square per cell, which says its number; with + or - in it if there is room."""
    cells, marks = list[str](), {"gl": "", "gd": ""}  # light ones, and dark ones
    strengths, kinds = shown.strength, shown.kinds
    for k, j in np.argwhere(~shown.blank):
        value, kind = shown.values[k, j], KINDS[kinds[k, j]]
        place = ", ".join(map(str, shown.place(k, j)))
        title = element("title", f"{name}[{place}] = {number(value)}")
        opacity = f"{0.06 + 0.94 * strengths[k, j]:.2g}"
        cells.append(
            element(
                "rect", title, class_=kind, x=j, y=k, width=".94", height=".94", rx=".1",
                fill_opacity=opacity,
            )
        )  # fmt: skip
        if signs and kind in "np":
            plus = "m-.17-.17v.34" * (kind == "p")
            marks["gl" if strengths[k, j] > 0.55 else "gd"] += (
                f"M{j + 0.3:.4g} {k + 0.47:.4g}h.34{plus}"
            )
    return "".join(cells) + "".join(element("path", class_=c, d=d) for c, d in marks.items() if d)


def number(value: float) -> str:
    """A number with three digits, and a real minus sign."""
    return f"{value + 0:.3g}".replace("-", "\u2212")


def _png(shown: Plane) -> bytes:
    """An image with a pixel per cell: its colours are transparent, so they suit any background."""
    alpha = np.where(shown.blank, 0, 15 + 240 * np.round(124 * shown.strength) / 124)
    pixels = np.concatenate([COLOURS[shown.kinds], alpha[..., None].astype(np.uint8)], axis=-1)
    rows, columns = shown.values.shape
    raw = b"".join(b"\0" + row.tobytes() for row in pixels)
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", columns, rows, 8, 6, 0, 0, 0),
        b"IDAT": zlib.compress(raw, 9),
        b"IEND": b"",
    }
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts.items()
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
