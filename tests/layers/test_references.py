"""Every layer against the numbers that PyTorch gave: see tools/make_*references.py."""

from __future__ import annotations

import numpy as np
import pytest

from phitodeep import layers
from phitodeep.layers import BatchNorm, Layer
from phitodeep.layers.call import calling, saliency
from phitodeep.types import Array
from tests.conftest import references

CASES = references("layers")
NORM = [case for case in CASES if case.startswith("BatchNorm")]  # stored with earlier batches
STRUCTURED = {str(stored["call"]): stored for stored in references("catalogue").values()}
PRECISION = {np.float64: {"rtol": 1e-10, "atol": 1e-11}, np.float32: {"rtol": 2e-5, "atol": 2e-5}}
LONG_SUMS = {**PRECISION, np.float32: {"rtol": 5e-5, "atol": 5e-5}}


def made(case: str, stored: dict[str, Array], dtype: type) -> Layer:
    """The layer that the case's name is a call of, with the stored parameters and state."""
    layer: Layer = eval(case.partition(" | ")[0], vars(layers))
    layer.build(stored["X"].shape[1:], dtype=dtype)
    weights = layer.get_weights()
    for key, a in stored.items():
        if key.startswith(("params.", "before.")):
            name = key.partition(".")[2]
            assert weights[name].shape == a.shape
            weights[name] = a
    layer.set_weights(weights)
    return layer


def gradients(layer: Layer) -> dict[str, Array]:
    return {
        f"grads.{path}.{name}" if path else f"grads.{name}": a
        for path, part in layer.walk()
        for name, a in part.grads.items()
    }


def compare(case: str, stored: dict[str, Array], dtype: type, precision: dict[str, float]) -> None:
    layer = made(case, stored, dtype)
    with calling(training="saliency" not in case, mask=stored.get("mask")):
        found = {"Y": layer.forward(stored["X"])}
        dX = layer.backward(stored["dY"])
    found |= gradients(layer) if dX is None else {"dX": dX, **gradients(layer)}
    assert found.keys() == {k for k in stored if k in ("Y", "dX") or k.startswith("grads.")}
    for key, a in found.items():
        assert a.dtype == dtype
        np.testing.assert_allclose(a, stored[key], err_msg=key, **precision)
    for key in stored:
        if key.startswith("after."):
            a = layer.state[key.removeprefix("after.")]
            np.testing.assert_allclose(a, stored[key], err_msg=key, **precision)


@pytest.mark.parametrize("dtype", PRECISION)
@pytest.mark.parametrize("case", [case for case in CASES if case not in NORM])
def test_layer_equals_pytorch(case: str, dtype: type) -> None:
    compare(case, CASES[case], dtype, PRECISION[dtype])


@pytest.mark.parametrize("dtype", PRECISION)
@pytest.mark.parametrize("case", STRUCTURED)
def test_layer_of_images_or_sequences_equals_pytorch(case: str, dtype: type) -> None:
    compare(case, STRUCTURED[case], dtype, LONG_SUMS[dtype])


@pytest.mark.parametrize("dtype", PRECISION)
@pytest.mark.parametrize("case", NORM)
def test_batch_norm_equals_pytorch(case: str, dtype: type) -> None:
    stored = CASES[case]
    *earlier, X = stored["X"]
    layer = made(case, {**stored, "X": X}, dtype)
    for batch in earlier:
        layer.forward(batch)
    found = {"Y": layer.forward(X), "dX": layer.backward(stored["dY"]), **gradients(layer)}
    found |= {f"state.{name}": a for name, a in layer.state.items()}
    with saliency():
        found |= {"eval_Y": layer.forward(X), "eval_dX": layer.backward(stored["eval_dY"])}
    found |= {f"eval_{name}": a for name, a in gradients(layer).items()}
    assert len(found) == 10
    for key, a in found.items():
        np.testing.assert_allclose(a, stored[key], err_msg=key, **PRECISION[dtype])


def test_frozen_batch_norm_uses_running_statistics() -> None:
    stored = CASES[NORM[0]]
    layer = made(NORM[0], {**stored, "X": stored["X"][-1]}, np.float64)
    assert isinstance(layer, BatchNorm)
    layer.running_mean, layer.running_var = (
        stored["state.running_mean"],
        stored["state.running_var"],
    )
    layer.trainable = False
    np.testing.assert_allclose(layer.forward(stored["X"][-1]), stored["eval_Y"])
    np.testing.assert_allclose(layer.backward(stored["eval_dY"]), stored["eval_dX"])
    np.testing.assert_array_equal(layer.running_var, stored["state.running_var"])


def test_every_layer_with_a_counterpart_has_references() -> None:
    named = {case.partition("(")[0] for case in [*CASES, *STRUCTURED]}
    without = {"Layer", "Param", "State", "Swish"}  # not layers, or another's second name
    without |= {"Dropout", "GaussianNoise", "SpatialDropout"}  # random
    without |= {"RandomCrop", "RandomFlip", "RandomShift"}
    without |= {"Chain"}  # inside Residual and Parallel
    without |= {"Select"}  # compared with NumPy's own indexing
    without |= {"Lambda", "TiedDense"}  # a function of the user's; a Dense with another's matrix
    assert named == set(layers.__all__) - without
