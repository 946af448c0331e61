"""Random layers: what they draw does not depend on X, so for both passes it is a constant."""

from __future__ import annotations

from typing import Any

import numpy as np

from phitodeep.core.call import current
from phitodeep.core.types import Array
from phitodeep.derivations.language.step import Arrange, Derivation, Given, Join, Let, Step


def dropout(layer: Any) -> Derivation:
    """y = m x with m = 0 or 1 / (1 - rate); in prediction, y = x."""
    if not current().training:
        return _unchanged()
    words = "drawn: 1 for what is kept, 0 for what is dropped"

    def kept(symbols: Any) -> Any:
        X = symbols["X"]
        return (layer.uniform(layer._mask_shape(X.shape)) >= layer.rate).astype(X.dtype)

    return Derivation.of(
        Given("kept", words, kept),
        Let("m", "kept / (1 - rate)", "so that the mean of y is x"),
        Let("Y", "m * X"),
        Let("dX", "m * dY"),
    )


def gaussian_noise(layer: Any) -> Derivation:
    """y = x + std e; in prediction, y = x."""
    if not current().training:
        return _unchanged()
    return Derivation.of(
        Given("e", _NORMAL, lambda symbols: _normal(layer, symbols["X"])),
        Let("Y", "X + std * e"),
        Let("dX", "dY"),
    )


def gradient_reversal(layer: Any) -> Derivation:
    """y = x, and what arrives is sent back with the opposite sign, on purpose."""
    return Derivation.of(Let("Y", "X"), Let("dX", "-factor * dY", "not the slope of Y"))


def reparameterize(layer: Any) -> Derivation:
    """y = m + sigma e with sigma = exp(s / 2); in prediction, y = m."""
    halves: list[Step] = [
        Given("L", "the number of variables", lambda symbols: symbols["X"].shape[-1] // 2),
        Arrange("M", "X[..., :L]", "X", "the means"),
        Arrange("S", "X[..., L:]", "X", "the log variances"),
    ]
    if not current().training:
        return Derivation.of(
            *halves, Let("Y", "M"), Let("dM", "dY"), Let("dS", "0 * S"), Join("dX", "dM", "dS")
        )
    return Derivation.of(
        *halves,
        Given("e", _NORMAL, lambda symbols: _normal(layer, symbols["M"])),
        Let("sigma", "np.exp(np.minimum(S, 88) / 2)", "finite in float32"),
        Let("Y", "M + sigma * e"),
        Let("dM", "dY"),
        Let("dS", "np.where(S <= 88, dY * e * sigma / 2, 0)"),
        Join("dX", "dM", "dS"),
    )


_NORMAL = "drawn: standard normal values"


def _normal(layer: Any, like: Array) -> Any:
    return layer._normal(like.shape, like.dtype)


def _unchanged() -> Derivation:
    return Derivation.of(Let("Y", "X"), Let("dX", "dY"))


# --- images ------------------------------------------------------------------------------------


def random_flip(layer: Any) -> Derivation:
    """Y[h, w] = X[row h, column w]; a second flip undoes the first, so dX does the same to dY."""

    def places(symbols: Any, axis: int) -> Array:
        places = np.arange(symbols["X"].shape[axis + 1])
        return np.where(symbols["flips"][:, axis, None], places[::-1], places)

    return Derivation.of(
        Given("flips", "drawn: (upside down, left to right)", lambda s: layer._flips(s["X"])),
        *_image("row", "column", places),
        Arrange("Y", "X[n, row, column]", "X", "X, mirrored where drawn"),
        Arrange("dX", "dY[n, row, column]", "dY", "dY, mirrored back"),
    )


def random_crop(layer: Any) -> Derivation:
    """Y is a window of X with zeros around it; dX is dY in the window, and 0 outside."""

    def places(symbols: Any, axis: int) -> Array:
        shape = symbols["X"].shape[1:]
        window = layer._window_size(shape)
        return _framed(symbols["shift"][:, axis], window[axis], shape[axis])

    def back(symbols: Any, axis: int) -> Array:
        shape, window = symbols["X"].shape[1:], symbols["dY"].shape[1:]
        return _framed(-symbols["shift"][:, axis], shape[axis], window[axis])

    frame = "np.pad({}, ((0, 0), (1, 1), (1, 1), (0, 0)))"
    return Derivation.of(
        Given(
            "shift",
            "how far each window is moved down and right",
            lambda s: layer._offsets(s["X"]) - layer.pads,
        ),
        *_image("row", "column", places),
        Arrange("framed", frame.format("X"), "X", "X with one pixel of zeros around it"),
        Arrange("Y", "framed[n, row, column]", "framed", "the windows in framed"),
        *_image("row_back", "column_back", back)[1:],
        Arrange("framed_dY", frame.format("dY"), "dY", "dY with one pixel of zeros around it"),
        Arrange("dX", "framed_dY[n, row_back, column_back]", "framed_dY", "dY, moved back"),
    )


def _image(row: str, column: str, places: Any) -> list[Step]:
    """The sample n, and the row and column to read, in the shape of images without channels."""
    reads = "the {} that each pixel reads"
    return [
        Given("n", "the number of each sample", lambda s: np.arange(len(s["X"]))[:, None, None]),
        Given(row, reads.format("row"), lambda s: places(s, 0)[:, :, None]),
        Given(column, reads.format("column"), lambda s: places(s, 1)[:, None, :]),
    ]


def _framed(shift: Array, size: int, limit: int) -> Array:
    """Where `size` pixels, `shift` on from the first, are in a framed axis of `limit` pixels."""
    found: Array = np.clip(shift[:, None] + np.arange(size), -1, limit) + 1
    return found
