"""The ready models: shapes, sizes, gradients, and that each learns."""

import numpy as np
import pytest

from phitodeep.errors import ShapeError
from phitodeep.models import autoencoder, char_lstm, gpt, lenet, mlp, resnet_small
from phitodeep.testing import check_gradients

rng = np.random.default_rng(0)
MODELS = {
    "mlp": (lambda: mlp(4, 6, 3, activation="tanh"), rng.standard_normal((3, 4)), (3, 3)),
    "lenet": (lambda: lenet(16, 16, 1), rng.standard_normal((2, 16, 16, 1)), (2, 10)),
    "resnet": (
        lambda: resnet_small(8, 8, 3, classes=4, blocks=1),
        rng.standard_normal((3, 8, 8, 3)),
        (3, 4),
    ),
    "autoencoder": (lambda: autoencoder(6, 4, 2), rng.standard_normal((3, 6)), (3, 6)),
    "char_lstm": (
        lambda: char_lstm(7, dim=3, units=4, layers=2).input(5),
        rng.integers(0, 7, (2, 5)),
        (2, 5, 7),
    ),
    "gpt, untied": (
        lambda: gpt(7, 5, layers=2, heads=2, dim=4, tied=False),
        rng.integers(0, 7, (2, 5)),
        (2, 5, 7),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_shapes_and_gradients(name):
    make, X, shape = MODELS[name]
    model = make().seed(0).build()
    assert model.predict(X).shape == shape
    check_gradients(model, X, max_probes=24)


def test_sizes():
    assert gpt(65, 64).build().count_params() == 809_856
    assert gpt(65, 64, tied=False).build().count_params() == 809_856 + 65 * 128
    assert lenet(28, 28, 1).build().count_params() == 61_706  # LeNet-5 with all connections
    assert mlp(2, 16, 16, 1).build().count_params() == 337


def test_a_tied_gpt_learns_to_count():
    X = rng.integers(0, 9, (300, 6))
    builder = gpt(9, 6, layers=1, heads=2, dim=16).loss("softmax_cross_entropy").seed(0)
    model = builder.optimizer("adamw").alpha(0.01).batch(20).epochs(8).build()
    model.train(X, (X + 1) % 9, verbose=0)
    assert (model.predict(X).argmax(axis=-1) == (X + 1) % 9).mean() > 0.99


def test_images_that_are_too_small_are_refused_with_the_layer():
    with pytest.raises(ShapeError, match=r"in layer 3 of Sequential: Conv2D: a window of \(5, 5\)"):
        lenet(8, 8, 1).build()
