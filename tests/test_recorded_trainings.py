"""Trainings repeat recorded numbers, and recorded configs and states load.

They are compared to 1e-7, not bit for bit, because BLAS libraries round differently.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from phitodeep.layers import LSTM, Chain, Conv2D, Dense, Embedding, Select, Tanh
from phitodeep.model import Sequential, SequentialBuilder


def images():
    builder = SequentialBuilder(8, 8, 2, seed=1).random_flip().random_crop(6, padding=1)
    builder.conv2d(4, 3, padding="same").batch_norm().relu().max_pool2d(2).depthwise_conv2d(2)
    builder.conv_transpose2d(3, 3, stride=2).upsample2d(2, "bilinear").group_norm(3).gelu()
    builder.skip_concat(Conv2D(2, 1)).avg_pool2d(2).spatial_dropout(0.2).global_avg_pool()
    return builder.dropout(0.2).dense(3).softmax().loss("categorical_cross_entropy")


def sequences():
    builder = SequentialBuilder(6, 4, seed=2).bidirectional(LSTM(3)).layer_norm().gru(6)
    builder.multi_head_attention(2, dropout=0.1).transformer_block(2, norm="rms", checkpoint=True)
    builder.time_distributed(Chain(Dense(4), Tanh())).conv1d(4, 3, padding="same")
    return builder.global_max_pool().dense(3).log_softmax().loss("negative_log_likelihood")


def tokens():
    table = Embedding(7, 8)
    builder = SequentialBuilder(6, seed=4).add(table).positional_embedding(9).rnn(8)
    builder.transformer_block(2, causal=True, rope=True, activation="swiglu").layer_norm()
    return builder.tied_dense(table).loss("softmax_cross_entropy")


def table():
    builder = SequentialBuilder(5, seed=3).parallel(Select([0, 1]), Chain(Select([2, 3]), Dense(4)))
    builder.dense(6).mish().prelu().gaussian_noise(0.1).residual(Dense(6), Tanh()).dense(3)
    return builder.sigmoid().loss("binary_cross_entropy")


def data(kind):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 40)
    if kind == "images":
        return rng.standard_normal((40, 8, 8, 2)), labels
    if kind == "sequences":
        return rng.standard_normal((40, 6, 4)), labels
    if kind == "tokens":
        X = rng.integers(0, 7, (40, 6))
        return X, (3 * X + 1) % 7
    return rng.standard_normal((40, 5)), np.eye(3)[labels]


LENGTHS = np.random.default_rng(1).integers(1, 7, 40)
MAKERS = {make.__name__: make for make in (images, sequences, tokens, table)}
OPTIONS = {
    "images": {"class_weight": "balanced"},
    "sequences": {"lengths": LENGTHS, "accumulate": 2},
    "tokens": {"lengths": LENGTHS},
    "table": {"sample_weight": np.linspace(0, 1, 40), "validation_split": 0.25},
}
BEFORE = {
    "images adamw": [1.30815704742, 1.12816022225, 74.6185966893, 40.0, 1.12916513129],
    "images sgd": [1.32835601829, 1.18626373018, 75.0825376045, 40.0, 1.19910314108],
    "sequences adamw": [1.20025787378, 1.0193950131, 395.341629061, 141.23403796, 1.09347661426],
    "sequences muon": [1.19850544544, 1.08145203779, 393.275825152, 148.183293352, 1.23318258234],
    "tokens adamw": [2.85635047476, 1.28276755374, 424.396643743, 3370.24479141, 1.23769450361],
    "tokens muon": [3.4241697281, 2.60668749921, 414.9735847, 3570.55450828, 2.45296229518],
    "table adamw": [0.708561397732, 0.624216157572, 47.6422237425, 48.0884845023, 0.765392511398],
    "table muon": [0.717735102946, 0.671075543097, 47.0898812717, 53.8581077006, 0.843437766417],
}
RECORDED = Path(__file__).parent / "reference" / "recorded_training.json"
CONTINUED = [1.10942994255, 1.20304489499]


def numbers(kind, optimizer):
    """Losses of two epochs, the sizes of weights and predictions, and the evaluated loss."""
    X, y = data(kind)
    model = MAKERS[kind]().optimizer(optimizer).alpha(0.01).batch(12).dtype("float64").build()
    history = model.train(X, y, epochs=2, verbose=0, **OPTIONS[kind])
    weights = sum(float(np.abs(a).sum()) for a in model.get_weights().values())
    predicted = float(np.abs(model.predict(X)).sum())
    return [*(train for train, _ in history), weights, predicted, model.evaluate(X, y)["loss"]]


@pytest.mark.parametrize("case", BEFORE)
def test_a_training_gives_the_recorded_numbers(case):
    np.testing.assert_allclose(numbers(*case.split()), BEFORE[case], rtol=1e-7)


def test_a_recorded_config_and_state_continue():
    recorded = json.loads(
        RECORDED.read_text(), object_hook=lambda d: np.array(d["array"]) if "array" in d else d
    )
    model = Sequential.from_config(recorded["config"])
    model.load_state_dict(recorded["state"])
    X, y = data("table")
    history = model.train(X, y, epochs=2, verbose=0)
    np.testing.assert_allclose([loss for loss, _ in history], CONTINUED, rtol=1e-7)
    assert model.epoch == 3
