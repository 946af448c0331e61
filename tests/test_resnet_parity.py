"""A residual network on CIFAR-shaped images, forward and backward, against PyTorch's numbers.

references/make_resnet_reference.py made them.
"""

import numpy as np
import pytest

from phitodeep.core.call import calling
from phitodeep.model.architectures import resnet_small
from tests.conftest import assert_same, references

KEPT, STEP = 1000, 7  # of a larger gradient, every seventh number is stored


@pytest.mark.parametrize(
    ("dtype", "rtol", "atol"), [("float64", 1e-9, 1e-12), ("float32", 2e-4, 2e-5)]
)
def test_logits_gradients_and_statistics_are_pytorchs(dtype, rtol, atol):
    stored = references("resnet")
    batch = stored["batch"]
    model = resnet_small(32, 32, 3, blocks=1).loss("softmax_cross_entropy").dtype(dtype).build()
    weights = model.get_weights()
    assert weights.keys() == stored["parameter"].keys() | stored["state"].keys()
    model.set_weights(weights | stored["parameter"])
    images, labels = batch["images"].astype(dtype), batch["labels"]

    with calling(step=0):
        Y = model.forward(images)
    assert Y.dtype == dtype
    np.testing.assert_allclose(Y, batch["logits"], rtol=rtol, atol=atol)
    assert model.loss.loss_func(Y, labels) == pytest.approx(float(batch["loss"]), rel=rtol)
    model.backward(model.loss.loss_gradient(Y, labels))

    gradients = model.gradients()
    assert gradients.keys() == stored["gradient"].keys()
    for path, wanted in stored["gradient"].items():
        found = gradients[path]
        found = found.ravel()[::STEP] if found.size > KEPT else found
        assert np.abs(wanted).max() > 1e-4
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol, err_msg=path)
    found = {path: model.get_weights()[path] for path in stored["state"]}
    assert_same(found, stored["state"], rtol=rtol, atol=atol)
