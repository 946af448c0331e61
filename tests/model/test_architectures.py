"""The ready models: shapes, sizes, gradients, and that each learns."""

import numpy as np
import pytest

from phitodeep import Chain, NegativeELBO, check_gradients
from phitodeep.core.call import calling, inference
from phitodeep.errors import ShapeError
from phitodeep.functional import sigmoid
from phitodeep.model import architectures as nets
from tests.conftest import assert_weights
from tests.rows import LONG

rng = np.random.default_rng(0)
TOKENS, SMALL = rng.integers(0, 7, (2, 5)), {"layers": 2, "heads": 2, "dim": 4, "tied": False}
MODELS = {  # and the shapes of X, or tokens, and of Y
    "mlp": (lambda: nets.mlp(4, 6, 3, activation="tanh"), (3, 4), (3, 3)),
    "lenet": (lambda: nets.lenet(16, 16, 1), (2, 16, 16, 1), (2, 10)),
    "resnet_small": (lambda: nets.resnet_small(4, 4, 3, classes=4, blocks=1), (3, 4, 4, 3), (3, 4)),
    "autoencoder": (lambda: nets.autoencoder(6, 4, 2), (3, 6), (3, 6)),
    "vae": (lambda: nets.vae(6, 5, latent=2), (3, 6), (3, 10)),
    "char_lstm": (lambda: nets.char_lstm(7, dim=3, units=4, layers=2).input(5), TOKENS, (2, 5, 7)),
    "gpt, untied": (lambda: nets.gpt(7, 5, **SMALL), TOKENS, (2, 5, 7)),
    "llama, untied": (lambda: nets.llama(7, 5, kv_heads=1, **SMALL), TOKENS, (2, 5, 7)),
}


@pytest.mark.parametrize("name", MODELS)
def test_shapes_and_gradients(name):
    """The gradients in a long run: those of the layers are tested, and a model is nothing else."""
    make, X, shape = MODELS[name]
    X, model = rng.standard_normal(X) if isinstance(X, tuple) else X, make().seed(0).build()
    assert model.predict(X).shape == shape
    if LONG:
        check_gradients(model, X, max_probes=24)


def test_sizes():
    assert nets.gpt(65, 64).build().count_params() == 809_856
    assert nets.gpt(65, 64, tied=False).build().count_params() == 809_856 + 65 * 128
    assert nets.llama(65, 64, layers=1, kv_heads=2).build().count_params() == (
        65 * 128 + 128 * (128 + 2 * 64 + 128) + 3 * 128 * 344 + 3 * 128
    )
    assert nets.lenet(28, 28, 1).build().count_params() == 61_706  # LeNet-5 with all connections
    assert nets.mlp(2, 16, 16, 1).build().count_params() == 337


@pytest.mark.parametrize("make", [nets.gpt, nets.llama])
def test_a_tied_model_learns_to_count(make):
    X = rng.integers(0, 9, (300, 6))
    builder = make(9, 6, layers=1, heads=2, dim=16).loss("softmax_cross_entropy").seed(0)
    model = builder.optimizer("adamw").alpha(0.01).batch(20).epochs(8).build()
    model.train(X, (X + 1) % 9, verbose=0)
    assert (model.predict(X).argmax(axis=-1) == (X + 1) % 9).mean() > 0.99


def test_images_that_are_too_small_are_refused_with_the_layer():
    with pytest.raises(ShapeError, match=r"in layer 3 of Sequential: Conv2D: a window of \(5, 5\)"):
        nets.lenet(8, 8, 1).build()


def test_a_vae_is_its_layers_and_its_loss():
    model = nets.vae(784, 400, latent=20).seed(0).build()
    assert model.output_shape == (2 * 20 + 784,)
    assert (
        model.count_params() == 784 * 400 + 400 + 400 * 40 + 40 + 20 * 400 + 400 + 400 * 784 + 784
    )
    assert repr(model.loss) == "NegativeELBO(20)"
    X = rng.random((5, 784), np.float32)
    Z, decoder = rng.standard_normal((5, 20)), Chain(*model.layers[-1].layers[1:])
    before = model.get_weights()
    with inference():
        assert sigmoid(decoder.forward(Z)).shape == (5, 784)
        hidden = Chain(*model.layers[:-1]).forward(X)
        P = model.predict(X)
        np.testing.assert_allclose(P[:, :40], hidden, atol=1e-6)  # BLAS may differ in threads
        np.testing.assert_array_equal(P[:, 40:], decoder.forward(hidden[:, :20]))
    assert_weights(model, before)
    with calling(step=0):
        assert np.abs(model.forward(X) - P)[:, 40:].min(axis=1).max() > 0  # it draws


def test_the_gradient_of_a_vae_with_its_loss():
    model, X = nets.vae(6, 5, 4, latent=3, activation="tanh").seed(1).build(), rng.random((4, 6))
    model.setloss(NegativeELBO(3, beta=0.7))
    check_gradients(model, X, X, max_probes=4)
    check_gradients(model, X, X, sample_weight=[0.5, 1, 2, 3], max_probes=4)


def test_a_vae_learns_two_kinds_of_samples():
    """Each sample is one of two patterns: one nat of log 2 says which, and the rest is certain."""
    X = np.repeat(np.eye(2, dtype=np.float32), 4, axis=1)[rng.integers(0, 2, 400)]
    model = nets.vae(8, 16, latent=1).alpha(0.01).batch(20).epochs(40).seed(0).build()
    first = model.evaluate(X, X)["loss"]
    model.train(X, X, verbose=0)
    assert first > 8 * np.log(2) * 0.9
    assert model.evaluate(X, X)["loss"] < 1.5
    with inference():
        X = sigmoid(Chain(*model.layers[-1].layers[1:]).forward(rng.standard_normal((500, 1))))
    assert (np.minimum(X, 1 - X).max(axis=1) < 0.2).mean() > 0.8  # samples are patterns too
    assert 0.3 < X[:, 0].mean() < 0.7
