"""How a picture lays arrays out, colours them and makes text fit."""

from __future__ import annotations

import base64
import re
import zlib
from typing import Any

import numpy as np
import pytest

from phitodeep.inspect.explorer.picture import apart
from phitodeep.inspect.explorer.tiles import SIDE, found, plane, tile
from phitodeep.inspect.svg import fit, width_of, wrapped

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("shape", "sample", "size", "note"),
    [
        ((4, 3), None, (4, 3), ""),
        ((3,), None, (1, 3), ""),
        ((3, 2, 5), None, (6, 5), ""),
        ((3, 3, 2, 5), None, (7, 19), ""),
        ((8, 3), 1, (8, 3), ""),
        ((8,), 1, (8, 1), ""),
        ((8, 5, 3), 1, (5, 3), "sample 1 of 8"),
        ((8, 4, 4, 3), 1, (9, 9), "sample 1 of 8"),
        ((200, 64), None, (50, 64), "shown 3,200 of 12,800"),
        ((8, 28, 28, 16), 1, (59, 59), "sample 1 of 8 shown 3,136 of 12,544"),
        ((3, 3, 64, 64), None, (31, 31), "shown 576 of 36,864"),
    ],
    ids=str,
)
def test_how_arrays_are_laid_out(shape: Any, sample: Any, size: Any, note: str) -> None:
    A = np.arange(1, 1 + np.prod(shape), dtype=float).reshape(shape)
    shown = plane(A, sample)
    assert (shown.values.shape, " ".join(shown.notes)) == (size, note)
    assert max(shown.values.shape) <= SIDE
    if shown.whole:
        for k, j in np.argwhere(~shown.blank):
            place = shown.place(k, j)
            assert A[place] == shown.values[k, j]
            assert found(shape, sample, place) == (k, j)


def test_a_block_shows_the_number_farthest_from_zero() -> None:
    A = RNG.standard_normal((130, 200))
    A[64, 77] = -9
    shown = plane(A)
    k, j = found(A.shape, None, (64, 77)) or (0, 0)
    assert (k, j) == (64 // 3, 77 // 4)
    assert shown.values[k, j] == -9
    for k, j in ((0, 0), (5, 7)):
        block = A[3 * k : 3 * k + 3, 4 * j : 4 * j + 4].reshape(-1)
        assert shown.values[k, j] == block[np.abs(block).argmax()]


def test_an_image_has_the_colours_of_its_numbers() -> None:
    A = np.array([[-2.0, 1.0], [0.0, np.inf]] * 100)
    shown = tile(plane(A[:60]), 0, 0, 3, 3, "A")
    assert "A, from -2 to inf</title>" in shown
    png = base64.b64decode(re.findall(r"base64,([^\"]+)", shown)[0])
    chunks, at = dict[bytes, bytes](), 8
    while at < len(png):
        length, kind = int.from_bytes(png[at : at + 4]), png[at + 4 : at + 8]
        chunks[kind] = png[at + 8 : at + 8 + length]
        check = zlib.crc32(kind + chunks[kind])
        assert int.from_bytes(png[at + 8 + length : at + 12 + length]) == check
        at += 12 + length
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(60, 9)[:, 1:]
    pixels = rows[:2].reshape(4, 4)
    np.testing.assert_array_equal(
        pixels[:, :3], [(31, 111, 180), (217, 104, 15), (128, 136, 146), (150, 40, 150)]
    )
    np.testing.assert_allclose(pixels[:, 3], [255, 15 + 240 * np.sqrt(0.5), 15, 255], atol=2)


def test_texts_fit() -> None:
    assert fit("short", 100, 12) == "short"
    cut = fit("a long name of a layer", 60, 12)
    assert cut.endswith("\u2026")
    assert 45 < width_of(cut, 12) <= 60
    lines = wrapped("a sentence that takes several lines", 80, 12)
    assert " ".join(lines) == "a sentence that takes several lines"
    assert all(width_of(line, 12) <= 80 for line in lines)
    assert apart(0.6931, 0.6104) == ("0.693", "0.610")
    assert apart(0.69312, 0.69309) == ("0.69312", "0.69309")
    assert apart(2.0, None) == ("2.00", "2.00")
