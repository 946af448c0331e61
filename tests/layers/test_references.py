"""Every layer against the numbers that PyTorch gave: see phitodeep/testing/references.py."""

import numpy as np
import pytest

from phitodeep import layers
from phitodeep.testing.references import compare, layer_cases, layer_of, layer_pairs

CASES = layer_cases()
NORM = [case for case in CASES if case.startswith("BatchNorm(0.3, 0.02) | rank")]
COMPARED = {"Y", "dX", "grads.gamma", "grads.beta"}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_layers_equal_pytorch(dtype):
    different = {case: compare("layer", case, dtype)[1] for case in CASES}
    assert not {case: names for case, names in different.items() if names}


def test_batch_norm_in_training_with_running_statistics_and_frozen():
    assert len(NORM) == 2
    for case in NORM:
        names = {pair.name for pair in layer_pairs(case, "float64")}
        late = {f"eval_{name}" for name in COMPARED}
        assert names == COMPARED | late | {"state.running_mean", "state.running_var"}
    stored = CASES[NORM[0]]
    layer = layer_of(NORM[0], {**stored, "X": stored["X"][-1]}, np.float64)
    layer.running_mean, layer.running_var = (
        stored["state.running_mean"],
        stored["state.running_var"],
    )
    layer.trainable = False
    np.testing.assert_allclose(layer.forward(stored["X"][-1]), stored["eval_Y"])
    np.testing.assert_allclose(layer.backward(stored["eval_dY"]), stored["eval_dX"])
    np.testing.assert_array_equal(layer.running_var, stored["state.running_var"])


def test_every_layer_with_a_counterpart_has_references():
    named = {case.partition("(")[0] for case in CASES}
    named |= {case.rsplit(", (", 1)[1].partition("(")[0] for case in CASES if "Wired(" in case}
    without = {"Layer", "Param", "State", "Swish"}  # not layers, or another's second name
    without |= {"Dropout", "GaussianNoise", "SpatialDropout"}  # random
    without |= {"RandomCrop", "RandomFlip", "RandomShift"}
    without |= {"Chain"}  # inside Residual and Parallel
    without |= {"Shared"}  # computes what its layer does
    without |= {"Select"}  # compared with NumPy's own indexing
    without |= {"Lambda", "TiedDense"}  # a function of the user's; a Dense with another's matrix
    without |= {"Bilinear", "CrossAttention", "GradientReversal"}  # tests/layers/test_merging.py
    assert named == set(layers.__all__) - without
