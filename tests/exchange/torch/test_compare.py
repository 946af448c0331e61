"""The table of differences: small if all is well, and large in the row of a fault alone."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from phitodeep import layers as L
from phitodeep import loss as losses
from phitodeep.errors import ArgumentError, ArgumentTypeError
from phitodeep.exchange.torch.compare import LOSSES
from phitodeep.io import compare_with_torch
from phitodeep.testing import examples
from tests.conftest import assert_weights, model_for
from tests.exchange.several import built, twins, two_heads, unet
from tests.random_networks import randomize

SMALL = {"float32": 2e-5, "float64": 1e-13}
CLASSES = {"loss_class": "softmax_cross_entropy", "seed": 0}


def images(**settings):
    first, second = L.Conv2D(4, 3, padding="same"), L.Conv2D(4, 3, padding="same")
    inside = L.Residual(second, L.Dropout(0.5)), L.SkipConcat(L.Conv2D(2, 1))
    layers = first, L.BatchNorm(), L.ReLU(), *inside, L.MaxPool2D(2), L.Flatten(), L.Dense(3)
    model = model_for((8, 6, 2), *layers, **CLASSES, **settings)
    rng = np.random.default_rng(0)
    return model, rng.standard_normal((6, 8, 6, 2)), rng.integers(0, 3, 6)


def tokens(**settings):
    embedding = L.Embedding(7, 4)
    block = L.TransformerBlock(2, causal=True, dropout=0.2, checkpoint=True)
    states = L.Parallel(L.Bidirectional(L.LSTM(2)), L.GRU(4), merge="add")
    last = L.TimeDistributed(L.Chain(L.LayerNorm(), L.Dense(4))), L.TiedDense(embedding)
    layers = embedding, L.PositionalEmbedding(6), block, states, *last
    model, rng = model_for((5,), *layers, **CLASSES, **settings), np.random.default_rng(1)
    return model, rng.integers(0, 7, (3, 5)), rng.integers(0, 7, (3, 5))


def test_networks_with_several_inputs_outputs_and_uses_of_a_layer():
    rng = np.random.default_rng(1)
    for make in (two_heads, unet, twins):
        model, X = built(make)
        y = {"digit": rng.integers(0, 3, 7), "box": rng.standard_normal((7, 2))}
        y = y if model.outputs > 1 else rng.standard_normal((7, *model.output_shape))
        found = compare_with_torch(model, X if model.inputs > 1 else X["input"], y)
        assert found.worst.relative < SMALL["float64"], found
        paths = {row.path for row in found.rows}
        assert {str(k) for k in range(len(model.layers))} <= paths
    arrays = {(row.path, row.array) for row in found.rows}
    assert {("1", "Y"), ("2", "dX1"), ("2", "dX2"), ("loss", "L"), ("loss", "dP")} <= arrays


def test_heads_without_a_counterpart_in_pytorch_begin_with_our_gradient():
    model, X = built(two_heads)
    model.loss.losses["box"] = losses.LogCosh()
    y = {"digit": [0] * 7, "box": np.ones((7, 2))}
    found = compare_with_torch(model, X, y)
    assert found.worst.relative < SMALL["float64"], found
    assert "loss" not in {row.path for row in found.rows}


@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("make", [images, tokens])
def test_all_is_well(make, dtype):
    model, X, y = make(dtype=dtype)
    before = model.get_weights()
    found = compare_with_torch(model, X, y)
    assert found.worst.relative < SMALL[dtype], found
    assert found.training
    assert_weights(model, before)
    gradients = {f"{row.path}.{row.array[1:]}" for row in found.rows if row.array[1:] != "X"}
    parameters = {f"{p}.{n}" for p, layer in model.walk() for n in layer.params}
    assert parameters <= gradients
    outputs = {row.path for row in found.rows if row.array == "Y"}
    assert outputs == {path for path, _ in model.walk() if path}
    assert [row.array for row in found.rows[-2:]] == ["L", "dP"]


class LeakyPool(L.MaxPool2D):
    def backward(self, dY):
        return super().backward(dY) * 1.001


class LostBias(L.Dense):
    def backward(self, dY):
        dX = super().backward(dY)
        self.grads["b"][0] = 0
        return dX


@pytest.mark.parametrize(
    ("place", "layer", "array"), [(5, LeakyPool(2), "dX"), (7, LostBias(3), "db")]
)
def test_a_fault_shows_in_its_own_row_alone(place, layer, array):
    model, X, y = images(dtype="float64")
    model.layers[place] = layer
    model.build((8, 6, 2))
    found = compare_with_torch(model, X, y)
    assert (found.worst.path, found.worst.array) == (f"{place}", array)
    assert found.worst.layer == type(layer).__name__
    assert found.worst.relative > 5e-4
    assert all(row.relative < 1e-12 for row in found.rows if row != found.worst), found
    assert f"({array} of {place})" in str(found)


def test_a_fault_inside_a_container():
    model, X, y = images(dtype="float64")
    model.layers[3] = L.Residual(LeakyPool(1), LeakyPool(1))
    model.build((8, 6, 2))
    found = compare_with_torch(model, X, y)
    wrong = [(row.path, row.array) for row in found.rows if row.relative > 1e-12]
    assert wrong == [("3.layers.0", "dX"), ("3.layers.1", "dX")]


WITHOUT = ("NegativeELBO", "PoissonNLL(False)")  # which take no output of a Dense
CASES = [
    *[(loss, kind) for loss, kind in examples.LOSSES if not repr(loss).startswith(WITHOUT)],
    (losses.SoftmaxCrossEntropy(), "rows"),
    (losses.SoftmaxCrossEntropy(class_weight=examples.WEIGHTS), "rows"),
]


@pytest.mark.parametrize("steps", [False, True], ids=["vectors", "sequences"])
@pytest.mark.parametrize(("loss", "kind"), CASES, ids=lambda case: repr(case))
def test_losses(loss, kind, steps):
    rng = np.random.default_rng(3)
    shape = (5, 4, 4) if steps else (5, 4)
    rows = rng.random(shape)
    y = rows / rows.sum(axis=-1, keepdims=True) if kind == "rows" else examples.pair(loss, shape)[1]
    probabilities = L.Sigmoid if kind == "shares" else L.Softmax
    last = {"probabilities": probabilities, "log-probabilities": L.LogSoftmax}.get(loss.wants)
    layers = [L.Dense(4), *([last()] if last else [])]
    model = model_for((*shape[1:-1], 2), *layers, loss_class=loss, dtype="float64", seed=0)
    X = rng.standard_normal((*shape[:-1], 2))
    found = compare_with_torch(model, X, y)
    assert found.worst.relative < 1e-10, found
    smoothed = type(loss) is losses.CategoricalCrossEntropy and loss.label_smoothing
    fed = smoothed or (kind == "rows" and getattr(loss, "class_weight", None) is not None)
    assert any(row.path == "loss" for row in found.rows) == (type(loss) in LOSSES and not fed)


def test_a_loss_that_differs_shows():
    class Wrong(losses.MeanSquaredError):
        pass

    LOSSES[Wrong] = LOSSES[losses.MeanAbsoluteError]
    try:
        model = model_for((2,), L.Dense(3), loss_class=Wrong(), dtype="float64")
        found = compare_with_torch(model, np.ones((4, 2)), np.zeros((4, 3)))
    finally:
        del LOSSES[Wrong]
    assert found.worst.path == "loss"
    assert found.worst.relative > 0.1


def test_layers_that_always_draw_are_compared_in_prediction_mode():
    model, X, y = images(dtype="float64")
    assert compare_with_torch(model, X, y).training
    model.layers[2] = L.RandomFlip()
    model.build((8, 6, 2))
    found = compare_with_torch(model, X, y)
    assert not found.training
    assert "in prediction mode" in str(found)
    assert found.worst.relative < 1e-12


def test_how_it_is_shown(capsys):
    found = compare_with_torch(*images())
    assert "phitodeep and PyTorch, in training mode, without dropout" in str(found)
    assert str(found) == repr(found)
    assert "<table>" in found._repr_html_()
    found.show()
    assert "SoftmaxCrossEntropy" in capsys.readouterr().out


def test_refusals():
    with pytest.raises(ArgumentTypeError, match="a model with a loss"):
        compare_with_torch(L.Dense(3), np.ones((2, 3)), np.ones((2, 3)))
    model, X, y = images()
    with pytest.raises(ArgumentError):
        compare_with_torch(model, X, y + 10)
    model = model_for((4,), L.Dense(3), L.BatchNorm(), **CLASSES)
    with pytest.raises(ArgumentError, match="PyTorch refuses this X: Expected more than 1 value"):
        compare_with_torch(model, np.ones((1, 4)), np.zeros(1, int))


def test_a_nan_is_the_worst_of_all():
    loss = losses.SoftmaxCrossEntropy(ignore_index=0)
    model = model_for((4,), L.Dense(3), loss_class=loss, seed=0)
    found = compare_with_torch(model, np.ones((2, 4)), np.zeros(2, int))  # PyTorch divides 0 by 0
    assert (found.worst.path, found.worst.array, found.worst.relative) == ("loss", "L", np.inf)


def test_layers_with_updates_and_dropout_of_attention():
    attention = L.ScaledDotProductAttention(2, dropout=0.5), L.TransformerBlock(2, rope=True)
    model = model_for((3, 5), L.Dense(12), *attention, dtype="float64")
    rng = np.random.default_rng(0)
    model.add_lora("*", rank=2)
    randomize(model, rng)
    X, y = rng.standard_normal((2, 3, 5)), rng.standard_normal((2, 3, 4))
    found = compare_with_torch(model, X, y)
    assert found.worst.relative < 1e-12, found
    assert {row.layer for row in found.rows} >= {"LowRank", "ScaledDotProductAttention"}
