"""Images, sequences and transformers against PyTorch: see tools/make_catalogue_references.py."""

from __future__ import annotations

from contextlib import AbstractContextManager

import numpy as np
import pytest

from phitodeep import layers
from phitodeep.layers import Layer
from phitodeep.layers.call import calling
from phitodeep.types import Array
from tests.conftest import references

CASES = {str(stored["call"]): stored for stored in references("catalogue").values()}
PRECISION = {np.float64: {"rtol": 1e-10, "atol": 1e-11}, np.float32: {"rtol": 5e-5, "atol": 5e-5}}


def made(case: str, stored: dict[str, Array], dtype: type = np.float64) -> Layer:
    """The layer that the case's name is a call of, with the stored parameters and state."""
    layer: Layer = eval(case.partition(" | ")[0], vars(layers))
    layer.build(stored["X"].shape[1:], dtype=dtype)
    given = [key for key in stored if key.startswith(("params.", "before."))]
    layer.set_weights({key.partition(".")[2]: stored[key] for key in given})
    return layer


def meant(case: str, stored: dict[str, Array]) -> AbstractContextManager[None]:
    """The call that the case is about."""
    return calling(training="saliency" not in case, mask=stored.get("mask"))


def passes(layer: Layer, X: Array, dY: Array) -> dict[str, Array]:
    found = {"Y": layer.forward(X)}
    dX = layer.backward(dY)
    if dX is not None:
        found["dX"] = dX
    for path, part in layer.walk():
        found |= {f"grads.{path}.{n}" if path else f"grads.{n}": a for n, a in part.grads.items()}
    return found


@pytest.mark.parametrize("dtype", PRECISION)
@pytest.mark.parametrize("case", CASES)
def test_layer_equals_pytorch(case: str, dtype: type) -> None:
    stored = CASES[case]
    layer = made(case, stored, dtype)
    with meant(case, stored):
        found = passes(layer, stored["X"], stored["dY"])
    assert found.keys() == {k for k in stored if k in ("Y", "dX") or k.startswith("grads.")}
    for key, a in found.items():
        assert a.dtype == dtype
        np.testing.assert_allclose(a, stored[key], err_msg=key, **PRECISION[dtype])
    for key in stored:
        if key.startswith("after."):
            a = layer.state[key.removeprefix("after.")]
            np.testing.assert_allclose(a, stored[key], err_msg=key, **PRECISION[dtype])


def test_every_layer_with_a_counterpart_has_references() -> None:
    named = {case.partition("(")[0] for case in CASES}
    named |= {case.partition("(")[0] for case in references("layers")}
    without = {"Layer", "Param", "State", "Swish"}  # not layers, or another's second name
    without |= {"Dropout", "GaussianNoise", "SpatialDropout"}  # random
    without |= {"RandomCrop", "RandomFlip", "RandomShift"}
    without |= {"Chain"}  # inside Residual and Parallel
    without |= {"Select"}  # compared with NumPy's own indexing
    without |= {"Lambda", "TiedDense"}  # a function of the user's; a Dense with another's matrix
    assert named == set(layers.__all__) - without
