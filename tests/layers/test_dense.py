"""Dense, alone, with ReLU in one step and with low-rank updates, which also attention may have."""

import numpy as np
import pytest

from phitodeep import (
    BatchNorm,
    Chain,
    Conv2D,
    ConvTranspose2D,
    Dense,
    GroupNorm,
    LowRank,
    MultiHeadAttention,
    ReLU,
    RMSNorm,
    check_gradients,
    layers,
)
from phitodeep.core.call import calling, inference
from phitodeep.functional.rotary import YarnRope
from phitodeep.layers.dense import DenseReLU
from phitodeep.layers.initialization import He, InitType, Normal, Xavier
from phitodeep.layers.lora import AdaptedAttention, AdaptedDense, Update
from phitodeep.testing.examples import data, made, passes
from tests.rows import few


@pytest.mark.parametrize("shape", [(5, 4), (2, 3, 4), (2, 1, 3, 4), (4,), (0, 4), (2, 0, 4)])
def test_matrix_product_on_the_last_axis_of_any_layout(shape, rng):
    layer = made(lambda: Dense(4, 3), (1, 4))
    X, dY = rng.standard_normal(shape), rng.standard_normal((*shape[:-1], 3))
    for order in "CF":
        X, dY = X.copy(order), dY.copy(order)
        np.testing.assert_allclose(layer.forward(X), X @ layer.W + layer.b)
        np.testing.assert_allclose(layer.backward(dY), dY @ layer.W.T)
        np.testing.assert_allclose(layer.grads["W"], X.reshape(-1, 4).T @ dY.reshape(-1, 3))
        np.testing.assert_allclose(layer.grads["b"], dY.reshape(-1, 3).sum(0))


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: Dense(4), (3, 4)),
        (lambda: MultiHeadAttention(2), (3, 4)),
        (lambda: GroupNorm(2), (3, 4)),
        (RMSNorm, (3, 4)),
        (BatchNorm, (3, 4)),
        (lambda: Conv2D(2, 3), (5, 6, 4)),
        (lambda: Conv2D(2, 3, groups=2, bias=False), (5, 6, 4)),
        (lambda: Conv2D(16, 3, padding="same"), (12, 12, 16)),  # in Winograd's tiles
        (lambda: ConvTranspose2D(2, 3), (5, 6, 4)),
    ],
)
def test_frozen_layers_leave_out_their_gradients_in_training(make, shape, kernel_set, rng):
    layer = make()
    layer.build(shape)
    layer.trainable = False
    X, found = rng.standard_normal((5, *shape)).astype(np.float32), []
    dY = rng.standard_normal((5, *layer.output_shape)).astype(np.float32)
    for needs_frozen in (True, False):
        with calling(needs_frozen=needs_frozen):
            layer.forward(X)
            found.append(layer.backward(dY).copy())
        assert layer.grads.keys() == (layer.params.keys() if needs_frozen else set())
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("channels", [1, 4])
def test_each_parameter_that_learns_beside_a_frozen_one_has_its_gradient(
    channels, monkeypatch, rng
):
    for layer in (Conv2D(2, 3), ConvTranspose2D(2, 3), BatchNorm(), GroupNorm(1)):
        layer.build((5, 6, channels), dtype=np.float64)
        Y = layer.forward(rng.standard_normal((2, 5, 6, channels)))
        layer.backward(dY := rng.standard_normal(Y.shape))
        wanted = {name: dW.copy() for name, dW in layer.grads.items()}
        for name in layer.params:
            layer.grads = {}
            monkeypatch.setattr(layer, "needs_grad", lambda *names, name=name: name in names)
            layer.backward(dY)
            np.testing.assert_array_equal(layer.grads[name], wanted[name])


def test_a_norm_that_is_frozen_between_its_passes_still_has_the_sums_of_the_batch(rng):
    layer = BatchNorm()
    layer.build((4,), dtype=np.float64)
    with calling(needs_frozen=False, training=True):
        layer.forward(rng.standard_normal((5, 4)))
        layer.trainable = False
        np.testing.assert_allclose(
            layer.backward(rng.standard_normal((5, 4))).sum(0), 0, atol=1e-12
        )


def test_sizes_defaults_and_positions_of_the_original():
    layer = Dense(3)
    assert (layer.input_size, layer.output_size) == (None, 3)
    assert layer.known_input() is None
    assert repr(layer) == "Dense(3)"
    layer.build((2, 5))
    assert layer.W.shape == (5, 3)
    assert repr(layer) == "Dense(5, 3)"
    assert Dense(5, 3).known_input() == (5,)
    assert Dense(4, 3).initializer == He()
    layer = Dense(4, 3, Xavier(InitType.UNIFORM))
    assert np.abs(layer.W).max() <= np.sqrt(6 / 7)
    assert repr(layer) == "Dense(4, 3, Xavier(InitType.UNIFORM))"
    np.testing.assert_array_equal(layer.b, np.zeros(3))
    assert Dense(4, 3).flops() == 2 * 12 + 3  # known before it is built
    assert layers.base.Dense is Dense


@pytest.mark.parametrize("shape", [(5, 4), (1, 4), (2, 5, 4), (0, 4)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dense_relu_equals_dense_and_relu(shape, dtype, rng):
    dense, relu = Dense(4, 3), ReLU()
    plain = Chain(dense, relu)
    plain.build((4,), seed=0, dtype=dtype)
    dense.b = rng.standard_normal(3)
    X = rng.standard_normal(shape).astype(dtype)
    dY = rng.standard_normal((*shape[:-1], 3)).astype(dtype)
    seen = []
    for layer in (plain, DenseReLU(dense, relu)):
        X_before, dY_before = X.copy(), dY.copy()
        earlier = dense.grads
        Y, dX = layer.forward(X), layer.backward(dY)
        assert dense.grads is not earlier
        seen.append((Y, dX, dense.grads["W"], dense.grads["b"]))
        np.testing.assert_array_equal(X, X_before)
        np.testing.assert_array_equal(dY, dY_before)
        with inference():
            np.testing.assert_array_equal(layer.forward(X), Y)
    eps = np.finfo(dtype).eps
    for a, b in zip(*seen, strict=True):
        assert a.dtype == b.dtype == dtype
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=8 * eps, atol=8 * eps)


def test_dense_relu_takes_any_layout_and_refuses_a_bias_that_does_not_fit(rng):
    layer = DenseReLU(Dense(4, 3), ReLU())
    X, dY = np.ones((5, 4), np.float32), rng.standard_normal((3, 5)).astype(np.float32).T
    layer.forward(X)
    dX = layer.backward(dY)
    np.testing.assert_array_equal(dX, layer.backward(np.ascontiguousarray(dY)))
    with calling(needs_dX=False):
        assert layer.backward(dY) is None
    assert layer._learns()
    layer.layers[0].trainable = False
    assert not layer._learns()
    layer.layers[0].params["b"] = np.zeros(2, np.float32)
    with pytest.raises(ValueError, match=r"column|broadcast"):
        layer.forward(X)


UPDATE = Update(2, 3.0)


def drawn(layer, seed=5):
    """Give the updates of a layer random values, since B = 0 would hide them."""
    rng = np.random.default_rng(seed)
    for low in layer.updates().values():
        low.A, low.B = rng.standard_normal(low.A.shape), rng.standard_normal(low.B.shape)
    return layer


def test_low_rank_is_the_product_of_its_definition_which_starts_at_zero():
    layer = made(lambda: LowRank(3, 2, alpha=5.0), (4, 6))
    X, _ = data(layer, (4, 6))
    np.testing.assert_allclose(layer.forward(X), 2.5 * X @ layer.A @ layer.B, rtol=1e-13)
    np.testing.assert_allclose(layer.product(), 2.5 * layer.A @ layer.B, rtol=1e-13)
    layer = LowRank(3, 2)
    layer.build((6,), seed=0)
    X, dY = data(layer, (4, 6))
    found = passes(layer, X, dY)
    assert not found["Y"].any()
    assert not found["dX"].any()
    assert not found["A"].any()
    assert found["B"].all()
    assert layer.A.all()
    layer = LowRank(3, 2, initializer=Normal(1e-3))
    layer.build((5, 500), seed=0)
    assert 0.9e-3 < layer.A.std() < 1.1e-3
    assert layer.flops() == 5 * 2 * (2 * 500 + 2 * 3 + 1)
    assert layer.count_params() == 2 * (500 + 3)


ATTENTIONS = [
    {},
    {"causal": True, "kv_heads": 2, "rope": True},
    {"bias": False, "head_dim": 6},
    {"dropout": 0.4, "causal": True},
    {"rope": YarnRope(4.0, 16), "kv_heads": 1},
]
CHOICES = [("Wqkv",), ("Wo",), ("Wqkv", "Wo")]


@pytest.mark.parametrize("names", few(CHOICES[::-1], 2), ids=" ".join)
@pytest.mark.parametrize("options", few(ATTENTIONS, 3), ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_attention_with_updates_has_other_weights(options, names, masked):
    shape = (3, 5, 8)
    original = made(lambda: MultiHeadAttention(4, **options), shape)
    X, dY = data(original, shape)
    mask = np.arange(5) < np.array([5, 2, 4])[:, None] if masked else None
    layer = drawn(AdaptedAttention(original.copy(), dict.fromkeys(names, UPDATE)))
    found = passes(layer, X, dY, mask=mask)
    for name, low in layer.updates().items():
        setattr(original, name, getattr(original, name) + low.product())
    wanted = passes(original, X, dY, mask=mask)
    np.testing.assert_allclose(found["Y"], wanted["Y"], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found["dX"], wanted["dX"], rtol=1e-11, atol=1e-11)
    parts = layer.parts()
    for name, (dense, low) in parts.items():
        np.testing.assert_allclose(dense.grads["W"], wanted[name], rtol=1e-10, atol=1e-11)
        if low is not None:  # dA = s dW B^T and dB = s A^T dW
            s = low.alpha / low.rank
            np.testing.assert_allclose(low.grads["A"], s * wanted[name] @ low.B.T, rtol=1e-9)
            np.testing.assert_allclose(low.grads["B"], s * low.A.T @ wanted[name], rtol=1e-9)


@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_dense_with_an_update_is_dense_with_another_weight(shape, bias):
    original = made(lambda: Dense(3, bias=bias), shape)
    X, dY = data(original, shape)
    layer = drawn(AdaptedDense(original.copy(), {"W": UPDATE}))
    found = passes(layer, X, dY)
    original.W = original.W + layer.updates()["W"].product()
    wanted = passes(original, X, dY)
    np.testing.assert_allclose(found["Y"], wanted["Y"], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found["dX"], wanted["dX"], rtol=1e-12, atol=1e-12)
    check_gradients(layer, X)
