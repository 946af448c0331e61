"""Every layer against the numbers that PyTorch gave: see phitodeep/testing/references.py."""

import numpy as np
import pytest

from phitodeep import layers
from phitodeep.testing.references import compare, layer_cases, layer_of

CASES = layer_cases()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_layers_equal_pytorch(dtype):
    different = {case: compare("layer", case, dtype)[1] for case in CASES}
    assert not {case: names for case, names in different.items() if names}


def test_frozen_batch_norm_uses_its_running_statistics():
    case = "BatchNorm(0.3, 0.02) | saliency, rank 2"
    stored = CASES[case]
    layer = layer_of(case, stored, np.float64)
    layer.trainable = False
    np.testing.assert_allclose(layer.forward(stored["X"]), stored["Y"])
    np.testing.assert_allclose(layer.backward(stored["dY"]), stored["dX"])
    np.testing.assert_array_equal(layer.running_var, stored["before.running_var"])


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
