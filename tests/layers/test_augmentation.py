"""Augmented images are the images, moved; the moves are seeded, and gone at inference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phitodeep.core.call import calling, inference
from phitodeep.layers import RandomCrop, RandomFlip, RandomShift

X = np.arange(1.0, 1 + 200 * 5 * 6 * 2).reshape(200, 5, 6, 2)  # every number once, none 0


def out(layer: Any, step: int = 0, **call: Any) -> np.ndarray:
    layer.build((5, 6, 2), seed=7, dtype="float64")
    with calling(step=step, **call):
        return layer.forward(X)


@pytest.mark.parametrize(
    ("layer", "ways"),
    [
        (RandomFlip(), 2),
        (RandomFlip(horizontal=False, vertical=True), 2),
        (RandomFlip(vertical=True), 4),
    ],
)
def test_flips_come_in_equal_shares(layer: RandomFlip, ways: int) -> None:
    Y = out(layer)
    turned = {"none": X, "left": X[:, :, ::-1], "down": X[:, ::-1], "both": X[:, ::-1, ::-1]}
    counts = {name: int((Z == Y).all(axis=(1, 2, 3)).sum()) for name, Z in turned.items()}
    assert sum(counts.values()) == 200
    found = {name for name, count in counts.items() if count}
    assert found == {
        name
        for name in turned
        if (layer.horizontal or name not in ("left", "both"))
        and (layer.vertical or name not in ("down", "both"))
    }
    assert all(abs(counts[name] - 200 / ways) < 40 for name in found)


def crops(padding: tuple[int, int], size: tuple[int, int]) -> dict[tuple[int, int], np.ndarray]:
    """All windows, by their place."""
    (top, left), (height, width) = padding, size
    padded = np.pad(X, ((0, 0), (top, top), (left, left), (0, 0)))
    return {
        (i, j): padded[:, i : i + height, j : j + width]
        for i in range(padded.shape[1] - height + 1)
        for j in range(padded.shape[2] - width + 1)
    }


@pytest.mark.parametrize(
    ("layer", "padding", "size"),
    [
        (RandomCrop(4), (0, 0), (4, 4)),
        (RandomCrop((5, 3), padding=(1, 0)), (1, 0), (5, 3)),
        (RandomShift(1), (1, 1), (5, 6)),
        (RandomShift((0, 2)), (0, 2), (5, 6)),
        (RandomCrop((5, 6)), (0, 0), (5, 6)),
    ],
)
def test_every_window_comes_and_none_else(layer: Any, padding: Any, size: Any) -> None:
    Y, places = out(layer), crops(padding, size)
    assert Y.shape == (200, *size, 2)
    matches = {at: int((Z == Y).all(axis=(1, 2, 3)).sum()) for at, Z in places.items()}
    assert sum(matches.values()) == 200
    mean = 200 / len(places)
    assert all(0.3 * mean < n < 2 * mean for n in matches.values())


def test_at_inference_images_are_whole_or_their_middle() -> None:
    for layer in (RandomFlip(vertical=True), RandomShift(2)):
        layer.build((5, 6, 2), dtype="float64")
        with inference():
            np.testing.assert_array_equal(layer.forward(X), X)
    crop = RandomCrop((3, 3))
    assert crop.build((5, 6, 2), dtype="float64") == (3, 3, 2)
    with inference():
        np.testing.assert_array_equal(crop.forward(X), X[:, 1:4, 1:4])
    layer = RandomCrop(3, padding=1)  # offsets of Python's would be a loop in each training step
    layer.build((4, 5, 1))
    layer.forward(np.ones((2, 4, 5, 1), np.float32))
    assert layer.saved("offsets").dtype == int
    assert layer._max_offsets((4, 5, 1)).dtype == int
