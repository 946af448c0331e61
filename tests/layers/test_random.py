"""Random layers: what they drop, draw and move, on average and in prediction."""

import numpy as np
import pytest

from phitodeep import layers as nn
from phitodeep.core.call import calling, inference
from phitodeep.testing.examples import made
from tests.conftest import references

WIDE = (200, 300)


def planted(layer, seed=1):
    layer._set_seed(seed)
    return layer


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_drops_its_share_and_keeps_the_mean(rate, dtype):
    layer, X = planted(nn.Dropout(rate)), np.full(WIDE, 2, dtype)
    Y = layer.forward(X)
    dropped = Y == 0
    spread = np.sqrt(rate * (1 - rate) / X.size)
    assert dropped.mean() == pytest.approx(rate, abs=5 * spread)
    np.testing.assert_allclose(Y[~dropped], 2 / (1 - rate), rtol=1e-6)
    assert Y.mean() == pytest.approx(2, abs=10 * spread / (1 - rate))
    for axis in (0, 1):  # neither samples nor features are dropped together
        assert dropped.mean(axis).std() == pytest.approx(
            np.sqrt(rate * (1 - rate) / X.shape[axis]), rel=0.25
        )


def test_noise_is_made_by_box_and_muller_and_the_same_in_both_layers():
    layer, X = planted(nn.GaussianNoise(0.3)), np.ones((6, 5))
    with calling(step=2):
        u, v = np.moveaxis(layer.uniform((6, 5, 2)), -1, 0).astype(float)
        Z = np.sqrt(-2 * np.log(1 - u)) * np.cos(2 * np.pi * v)
        np.testing.assert_allclose(layer.forward(X), X + 0.3 * Z, rtol=1e-5)
    X = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(nn.Dropout(0).forward(X), X)
    np.testing.assert_array_equal(nn.GaussianNoise(0).forward(X), X)
    with calling(step=2):
        E = planted(nn.Reparameterize()).forward(np.zeros((4, 6)))
        noise = planted(nn.GaussianNoise(1.0)).forward(np.zeros((4, 3)))
    np.testing.assert_array_equal(E, noise)


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float64, 1e-12), (np.float32, 1e-5)])
@pytest.mark.parametrize("case", NOISE := references("noise"))
def test_drawing_equals_pytorch(case, dtype, rtol, monkeypatch):
    stored = {name: a.astype(dtype) for name, a in NOISE[case].items()}

    def drawn(layer, shape, dtype):
        assert (shape, dtype) == (stored["E"].shape, stored["E"].dtype)
        return stored["E"]

    monkeypatch.setattr(nn.Reparameterize, "_normal", drawn)
    layer = nn.Reparameterize()
    np.testing.assert_allclose(layer.forward(stored["X"]), stored["Y"], rtol=rtol)
    np.testing.assert_allclose(layer.backward(stored["dY"]), stored["dX"], rtol=rtol)


def test_spatial_dropout_drops_channels_as_a_whole(rng):
    X, dY = rng.standard_normal((2, 40, 3, 2, 50)) + 3
    layer = made(lambda: nn.SpatialDropout(0.4), X.shape)
    with calling(step=0):
        mask = layer.forward(X) / X
        np.testing.assert_allclose(layer.backward(dY), dY * mask, rtol=1e-12)
        np.testing.assert_array_equal(layer.forward(X) / X, mask)
    np.testing.assert_allclose(mask, np.broadcast_to(mask[:, :1, :1], X.shape), rtol=1e-12)
    kept = mask[:, 0, 0] > 0
    np.testing.assert_allclose(mask[:, 0, 0][kept], 1 / 0.6)
    assert kept.mean() == pytest.approx(0.6, abs=0.05)
    assert 0 < kept.mean(0).std() < 0.2  # samples are dropped apart
    with inference():
        np.testing.assert_array_equal(layer.forward(X), X)
    row = rng.standard_normal((5, 4))
    one, other = (made(lambda k=k: k(0.4), row.shape) for k in (nn.SpatialDropout, nn.Dropout))
    with calling(step=0):
        np.testing.assert_array_equal(one.forward(row), other.forward(row))


IMAGES = np.arange(1.0, 1 + 200 * 5 * 6 * 2).reshape(200, 5, 6, 2)  # every number once, none 0


def out(layer, step=0, **call):
    layer.build((5, 6, 2), seed=7, dtype="float64")
    with calling(step=step, **call):
        return layer.forward(IMAGES)


@pytest.mark.parametrize(
    ("layer", "ways"),
    [
        (nn.RandomFlip(), 2),
        (nn.RandomFlip(horizontal=False, vertical=True), 2),
        (nn.RandomFlip(vertical=True), 4),
    ],
)
def test_flips_come_in_equal_shares(layer, ways):
    Y = out(layer)
    left, down = IMAGES[:, :, ::-1], IMAGES[:, ::-1]
    turned = {"none": IMAGES, "left": left, "down": down, "both": left[:, ::-1]}
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


def crops(padding, size):
    """All windows, by their place."""
    (top, left), (height, width) = padding, size
    padded = np.pad(IMAGES, ((0, 0), (top, top), (left, left), (0, 0)))
    return {
        (i, j): padded[:, i : i + height, j : j + width]
        for i in range(padded.shape[1] - height + 1)
        for j in range(padded.shape[2] - width + 1)
    }


@pytest.mark.parametrize(
    ("layer", "padding", "size"),
    [
        (nn.RandomCrop(4), (0, 0), (4, 4)),
        (nn.RandomCrop((5, 3), padding=(1, 0)), (1, 0), (5, 3)),
        (nn.RandomShift(1), (1, 1), (5, 6)),
        (nn.RandomShift((0, 2)), (0, 2), (5, 6)),
        (nn.RandomCrop((5, 6)), (0, 0), (5, 6)),
    ],
)
def test_every_window_comes_and_none_else(layer, padding, size):
    Y, places = out(layer), crops(padding, size)
    assert Y.shape == (200, *size, 2)
    matches = {at: int((Z == Y).all(axis=(1, 2, 3)).sum()) for at, Z in places.items()}
    assert sum(matches.values()) == 200
    mean = 200 / len(places)
    assert all(0.3 * mean < n < 2 * mean for n in matches.values())


def test_at_inference_images_are_whole_or_their_middle():
    for layer in (nn.RandomFlip(vertical=True), nn.RandomShift(2)):
        layer.build((5, 6, 2), dtype="float64")
        with inference():
            np.testing.assert_array_equal(layer.forward(IMAGES), IMAGES)
    crop = nn.RandomCrop((3, 3))
    assert crop.build((5, 6, 2), dtype="float64") == (3, 3, 2)
    with inference():
        np.testing.assert_array_equal(crop.forward(IMAGES), IMAGES[:, 1:4, 1:4])
    layer = nn.RandomCrop(3, padding=1)  # offsets of Python's would be a loop in each training step
    layer.build((4, 5, 1))
    layer.forward(np.ones((2, 4, 5, 1), np.float32))
    assert layer.saved("offsets").dtype == int
    assert layer._max_offsets((4, 5, 1)).dtype == int
