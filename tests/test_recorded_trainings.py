"""Trainings repeat recorded numbers, and recorded configs and states load.

They are compared to 1e-7, not bit for bit, because BLAS libraries round differently.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from phitodeep.core.types import Array
from phitodeep.layers import LSTM, Chain, Conv2D, Dense, Embedding, Select, Tanh
from phitodeep.model import Sequential, SequentialBuilder

Make = Callable[[], SequentialBuilder]


def images() -> SequentialBuilder:
    builder = SequentialBuilder(8, 8, 2, seed=1).random_flip().random_crop(6, padding=1)
    builder.conv2d(4, 3, padding="same").batch_norm().relu().max_pool2d(2).depthwise_conv2d(2)
    builder.conv_transpose2d(3, 3, stride=2).upsample2d(2, "bilinear").group_norm(3).gelu()
    builder.skip_concat(Conv2D(2, 1)).avg_pool2d(2).spatial_dropout(0.2).global_avg_pool()
    return builder.dropout(0.2).dense(3).softmax().loss("categorical_cross_entropy")


def sequences() -> SequentialBuilder:
    builder = SequentialBuilder(6, 4, seed=2).bidirectional(LSTM(3)).layer_norm().gru(6)
    builder.multi_head_attention(2, dropout=0.1).transformer_block(2, norm="rms", checkpoint=True)
    builder.time_distributed(Chain(Dense(4), Tanh())).conv1d(4, 3, padding="same")
    return builder.global_max_pool().dense(3).log_softmax().loss("negative_log_likelihood")


def tokens() -> SequentialBuilder:
    table = Embedding(7, 8)
    builder = SequentialBuilder(6, seed=4).add(table).positional_embedding(9).rnn(8)
    builder.transformer_block(2, causal=True, rope=True, activation="swiglu").layer_norm()
    return builder.tied_dense(table).loss("softmax_cross_entropy")


def table() -> SequentialBuilder:
    builder = SequentialBuilder(5, seed=3).parallel(Select([0, 1]), Chain(Select([2, 3]), Dense(4)))
    builder.dense(6).mish().prelu().gaussian_noise(0.1).residual(Dense(6), Tanh()).dense(3)
    return builder.sigmoid().loss("binary_cross_entropy")


def data(kind: str) -> tuple[Array, Array]:
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
MAKERS: dict[str, Make] = {
    "images": images, "sequences": sequences, "tokens": tokens, "table": table
}  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
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
CONFIG = (
    '{"layers": [{"layer": "Dense", "config": {"input_size": null, "output_size": 2, '
    '"initializer": {"initializer": "He", "config": {"init_type": {"enum": '
    '"InitType.NORMAL"}}}, "bias": true}}, {"layer": "Tanh", "config": {}}, {"layer": '
    '"Dropout", "config": {"rate": 0.2}}, {"layer": "Dense", "config": {"input_size": null, '
    '"output_size": 3, "initializer": {"initializer": "He", "config": {"init_type": {"enum": '
    '"InitType.NORMAL"}}}, "bias": true}}, {"layer": "Softmax", "config": {"axis": -1}}], '
    '"alpha": {"schedule": "WarmUp", "config": {"after": {"schedule": "CosineDecay", '
    '"config": {"alpha": 0.02, "steps": 20, "alpha_min": 0.0}}, "steps": 3}}, "optimizer": '
    '{"optimizer": "AdamW", "config": {"alpha": {"schedule": "WarmUp", "config": {"after": '
    '{"schedule": "CosineDecay", "config": {"alpha": 0.02, "steps": 20, "alpha_min": 0.0}}, '
    '"steps": 3}}, "beta1": 0.9, "beta2": 0.999, "eps": 1e-08, "weight_decay": 0.01, "l1": '
    '0.0, "l2": 0.0, "clip_norm": 1.0, "clip_value": null, "groups": {"0.*": {"alpha": '
    '0.001}}, "ema": 0.9}}, "batch_size": 12, "epochs": 1000, "loss_class": {"loss": '
    '"CategoricalCrossEntropy", "config": {"label_smoothing": 0.0, "ignore_index": null, '
    '"class_weight": null}}, "metrics": [], "callbacks": [{"callback": "EarlyStopping", '
    '"config": {"patience": 3, "monitor": null, "mode": null, "min_delta": 0.0, '
    '"restore_best": true}}], "seed": 7, "dtype": "float64", "input_shape": [5]}'
)
STATE = (
    '{"weights": {"0.W": {"array": [[-0.3958301514522512, 0.9266881428866678], '
    "[-0.27396217455258043, 1.3478503986934212], [0.5903749173129597, 0.4263215106470499], "
    "[0.1863846622500115, -1.2147298076830741], [0.1593546656824534, 0.6533321925210988]]}, "
    '"0.b": {"array": [0.0013722704806674818, -0.00020265412414594887]}, "3.W": {"array": '
    "[[-0.9934277070233326, -0.8809495579780207, -0.17111956489632657], [0.11997148086460485,"
    ' 1.1187502984369666, -0.4828720895442789]]}, "3.b": {"array": [0.049926041609508476, '
    '-0.04611912176451223, 0.0028527763618251215]}}, "optimizer": {"class": "AdamW", "t": 4, '
    '"last_rate": 0.02, "parameters": {"0.W": {"own": {"t": 4}, "slots": {"M": {"array": '
    "[[-0.1831050015233476, -0.003508735901291214], [-0.3763258388442113, "
    "0.15134562501686716], [0.05244309530430412, 0.10623505502678131], [-0.14314189933472776,"
    ' 0.05664656531851578], [-0.09770222716717976, 0.17340536416860028]]}, "V": {"array": '
    "[[0.03506851125845987, 0.011586954369648085], [0.050753252997781474, "
    "0.018580691041128368], [0.02325334992043511, 0.019381853997107127], "
    "[0.007100945705892797, 0.020465977104763153], [0.014212182108864744, "
    '0.020064993777026457]]}, "ema": {"array": [[-0.3978004497159304, 0.9265141961276763], '
    "[-0.27695545324834775, 1.3503450824861223], [0.5905069980851734, 0.42703221532439173], "
    "[0.18333254815580427, -1.2128813912690737], [0.15723482185605475, "
    '0.6560083769965926]]}}}, "0.b": {"own": {"t": 4}, "slots": {"M": {"array": '
    '[0.21949923641564767, -0.08958944739138672]}, "V": {"array": [0.05375348347435837, '
    '0.04952481637238279]}, "ema": {"array": [0.0005317386219656204, '
    '-0.00017502112267274233]}}}, "3.W": {"own": {"t": 4}, "slots": {"M": {"array": '
    "[[-0.19869139694123236, -0.14600116869713167, 0.34469256563836403], "
    '[0.016974546901619772, 0.747652285501621, -0.7646268324032408]]}, "V": {"array": '
    "[[0.06264268942415104, 0.018994487121756908, 0.06646083871532742], [0.03323129722752502,"
    ' 0.2674746036976145, 0.23705385047215966]]}, "ema": {"array": [[-1.012679992936187, '
    "-0.9056339754290088, -0.13332209350139843], [0.1372996592339401, 1.1629361761883283, "
    '-0.5279406700386198]]}}}, "3.b": {"own": {"t": 4}, "slots": {"M": {"array": '
    '[-0.44076631988719606, 0.2122255744305407, 0.22854074545665543]}, "V": {"array": '
    '[0.09604327691929801, 0.02821045715432345, 0.079651461879574]}, "ema": {"array": '
    '[0.009851561634526121, -0.009163234229593937, 0.0026449720545394864]}}}}, "schedules": '
    '{"alpha": {}}}, "callbacks": [{"class": "EarlyStopping", "state": {"training": false, '
    '"best": 1.2626936764302195, "best_epoch": 1, "waited": 0, "weights": null}}], "epoch": 1, '
    '"seed": {"entropy": 7, '
    '"spawn_key": []}, "frozen": []}'
)
CONTINUED = [1.10942994255, 1.20304489499]


def numbers(kind: str, optimizer: str) -> list[float]:
    """Losses of two epochs, the sizes of weights and predictions, and the evaluated loss."""
    X, y = data(kind)
    model = MAKERS[kind]().optimizer(optimizer).alpha(0.01).batch(12).dtype("float64").build()
    history = model.train(X, y, epochs=2, verbose=0, **OPTIONS[kind])
    weights = sum(float(np.abs(a).sum()) for a in model.get_weights().values())
    predicted = float(np.abs(model.predict(X)).sum())
    return [*(train for train, _ in history), weights, predicted, model.evaluate(X, y)["loss"]]


@pytest.mark.parametrize("case", BEFORE)
def test_a_training_gives_the_recorded_numbers(case: str) -> None:
    np.testing.assert_allclose(numbers(*case.split()), BEFORE[case], rtol=1e-7)


def test_a_recorded_config_and_state_continue() -> None:
    model = Sequential.from_config(json.loads(CONFIG))
    state = json.loads(STATE, object_hook=lambda d: np.array(d["array"]) if "array" in d else d)
    model.load_state_dict(state)
    X, y = data("table")
    history = model.train(X, y, epochs=2, verbose=0)
    np.testing.assert_allclose([loss for loss, _ in history], CONTINUED, rtol=1e-7)
    assert model.epoch == 3
