"""Activations beyond the contract: kinks, far ends, and what Softmax promises."""

import numpy as np
import pytest

from phitodeep import layers
from phitodeep.errors import ArgumentError, ShapeError
from phitodeep.kernels.activation import relu_back
from phitodeep.layers import GELU, LeakyReLU, LogSoftmax, ReLU, SiLU, Softmax, activation
from phitodeep.testing.examples import EXAMPLES, passes

pytestmark = pytest.mark.usefixtures("kernel_set")
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])
SCALE, ALPHA = 1.0507009873554805, 1.6732632423543772  # of SELU

# the call -> its slope far below 0 and far above; the values are compared with PyTorch's, and at
# edges with those of derivations
FAR = {
    **dict.fromkeys(("ReLU()", "SiLU()", "Mish()", "ELU()", "GELU()", "GELU('tanh')"), (0, 1)),
    **dict.fromkeys(("ELU(1.7)", "CELU(0.6)", "HardSwish()", "Softplus()"), (0, 1)),
    **dict.fromkeys(("HardSigmoid()", "HardTanh()", "Sigmoid()", "Tanh()", "Softsign()"), (0, 0)),
    "LeakyReLU()": (0.01, 1),
    "LeakyReLU(0.3)": (0.3, 1),
    "PReLU()": (0.25, 1),
    "SELU()": (0, SCALE),
}
KINDS = {type(make()): repr(make()) for make, _ in EXAMPLES}
CALLS = dict.fromkeys([*FAR, *(  # and those without slopes here
    call for kind, call in KINDS.items()
    if kind.__module__ == activation.__name__ and kind not in (Softmax, LogSoftmax)
)])  # fmt: skip
each = pytest.mark.parametrize("call", CALLS)


def make(call, features, dtype=np.float64):
    layer = eval(call, dict(vars(layers)))
    layer.build((features,), dtype=dtype)
    return layer


def slopes(layer, X):
    layer.forward(X)
    return layer.backward(np.ones_like(X))


KINKS = [  # the call, x, and the slope that is documented
    *[("ReLU()", 0, 0), ("LeakyReLU(0.3)", 0, 0.3), ("PReLU(0.3)", 0, 0.3), ("ELU(1.7)", 0, 1.7)],
    *[("CELU(0.6)", 0, 1), ("SELU()", 0, ALPHA * SCALE), ("HardSigmoid()", -3, 0)],
    *[("HardSigmoid()", 3, 0), ("HardSigmoid()", 2.999, 1 / 6), ("HardSwish()", -3, 0)],
    *[("HardSwish()", 3, 1), ("HardTanh()", -1, 0), ("HardTanh()", 1, 0)],
    ("HardTanh()", -0.999, 1),
]


def test_slopes_at_the_kinks_and_values_near_zero():
    for call, x, wanted in KINKS:
        assert slopes(make(call, 1), np.array([[float(x)]])) == pytest.approx(wanted, rel=1e-12)
    for x in (1e-8, 1e-20, -1e-8, -1e-20):  # exp(x) - 1 would be 0: it is expm1
        for call in ("ELU()", "CELU(2.0)", "Tanh()", "SiLU()", "Softsign()"):
            gain = 0.5 if call == "SiLU()" else 1
            assert make(call, 1).forward(np.array([[x]])) == pytest.approx(gain * x, rel=1e-7)


@dtypes
@each
def test_activations_are_finite_over_the_whole_range(call, dtype):
    """For numbers near 0, and up to half of the greatest; far out, they are lines or constants."""
    info = np.finfo(dtype)
    sizes = np.geomspace(info.tiny, info.max / 2, 200, dtype=dtype)
    sizes = np.concatenate([sizes, np.linspace(0, 50, 101, dtype=dtype)])
    X = np.concatenate([sizes, -sizes])[None]
    found = passes(make(call, X.size, dtype), X, np.ones_like(X))
    assert np.isfinite(found["Y"]).all()
    assert np.isfinite(found["dX"]).all()
    if call in FAR:
        far, lines = np.array([[-1e30, 1e30]], dtype), np.array(FAR[call])
        found = passes(make(call, 2, dtype), far, np.ones_like(far))
        np.testing.assert_allclose(found["dX"][0], lines, rtol=1e-6, atol=1e-30)
        np.testing.assert_allclose(found["Y"][0], lines * far[0], rtol=1e-6, atol=2)
    X = np.array([[0.5, np.nan, -0.5]], dtype)  # NaN stays where it is
    layer = make(call, 3, dtype)
    np.testing.assert_array_equal(np.isnan(layer.forward(X)), np.isnan(X))
    assert np.isfinite(slopes(layer, X)[0, [0, 2]]).all()


@dtypes
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_reaches_its_limits(approximate, dtype):
    top = np.finfo(dtype).max
    X = np.array([-np.inf, -top, -1e14, -50, 50, 1e14, top, np.inf, np.nan], dtype)[None]
    layer = GELU(approximate)
    np.testing.assert_array_equal(layer.forward(X), np.where(X < 0, 0, X))
    wanted = np.where(np.isnan(X), X, np.where(X < 0, 0, 1))
    np.testing.assert_array_equal(slopes(layer, X), wanted)


@dtypes
def test_relu_passes_every_bit_of_dY_or_none(dtype, rng):
    info = np.finfo(dtype)
    Y = np.array([0, -0.0, info.smallest_subnormal, info.tiny, 1, 2, 3e5, info.max, np.inf], dtype)
    dY = rng.standard_normal(len(Y)).astype(dtype)
    for sign in (1, -1):
        dX = np.empty_like(dY)
        relu_back(sign * dY, Y, dX)
        np.testing.assert_array_equal(dX, np.where(Y > 0, sign * dY, 0))
    X = np.array([[-1, -0.0, 0, 2, 3, 4]], dtype)
    dY = np.array([[np.nan, np.inf, -np.inf, np.nan, -np.inf, 5]], dtype)
    wanted = np.array([[0, 0, 0, np.nan, -np.inf, 5]], dtype)
    np.testing.assert_array_equal(passes(ReLU(), X, dY)["dX"], wanted)


@pytest.mark.parametrize("make", [Softmax, LogSoftmax])
def test_softmax_refuses_the_axis_of_the_batch(make):
    with pytest.raises(ArgumentError, match=f"{make.__name__} along axis 0 would mix the samples"):
        make(axis=0)
    for axis, shape in ((-2, (4, 3)), (2, (4, 3)), (-1, (4,)), (1, (4,)), (-4, (4, 3, 2))):
        says = f"in addition to the batch axis, got rank {len(shape)}"
        with pytest.raises(ShapeError, match=says):
            make(axis).forward(np.ones(shape))
        with pytest.raises(ShapeError, match="in addition to the batch axis"):
            make(axis).build(shape[1:])


def test_old_spellings_name_the_new_one():
    for new in (ReLU, LeakyReLU):
        old = new.__name__.replace("LU", "Lu")
        says = rf"^{old} is an old spelling: write {new.__name__}\."
        with pytest.warns(DeprecationWarning, match=says) as seen:
            exec(f"from phitodeep.layers.activation import {old}", found := {})
        assert len(seen) == 1
        assert seen[0].filename == "<string>"  # the line that imports it
        assert found[old] is new
        with pytest.warns(DeprecationWarning, match=f"write {new.__name__}"):
            assert getattr(activation, old) is new
    exec("from phitodeep.layers.activation import *", found := {})
    assert found["ReLU"] is ReLU
    assert "ReLu" not in found
    with pytest.raises(AttributeError, match=r"'phitodeep\.layers\.activation'.*'RELU'"):
        activation.__getattr__("RELU")
    assert layers.Swish is SiLU
    assert repr(layers.Swish()) == "SiLU()"


def test_an_author_is_told_what_to_write():
    class Cube(activation.Elementwise):
        def value(self, X):
            return X**3

    layer = Cube()
    np.testing.assert_array_equal(layer.forward(np.array([[2.0]])), [[8]])
    with pytest.raises(NotImplementedError, match=r"Cube must implement slope\(X, Y\)"):
        layer.backward(np.array([[1.0]]))
    with pytest.raises(NotImplementedError, match=r"Elementwise must implement value\(X\)"):
        activation.Elementwise().forward(np.array([[1.0]]))
