"""Activations beyond the contract: formulas, kinks, far ends, and what Softmax promises."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from phitodeep.core.types import Array
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError
from phitodeep.layers import (
    CELU,
    ELU,
    GELU,
    SELU,
    HardSigmoid,
    HardSwish,
    HardTanh,
    Layer,
    LeakyReLU,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Softsign,
    Swish,
    Tanh,
    activation,
)
from phitodeep.layers.activation import relu_back

INF = np.inf


def Phi(x: float) -> float:
    return (1 + math.erf(x / math.sqrt(2))) / 2


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


FORMULAS: list[tuple[Layer, Callable[[float], float]]] = [
    (ReLU(), lambda x: max(x, 0)),
    (LeakyReLU(), lambda x: x if x > 0 else 0.01 * x),
    (LeakyReLU(0.3), lambda x: x if x > 0 else 0.3 * x),
    (ELU(), lambda x: x if x > 0 else math.exp(x) - 1),
    (ELU(1.7), lambda x: x if x > 0 else 1.7 * (math.exp(x) - 1)),
    (CELU(0.6), lambda x: x if x > 0 else 0.6 * (math.exp(x / 0.6) - 1)),
    (SELU(), lambda x: 1.0507009873554805 * (x if x > 0 else 1.6732632423543772 * math.expm1(x))),
    (GELU(), lambda x: x * Phi(x)),
    (
        GELU("tanh"),
        lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    (SiLU(), lambda x: x * sigmoid(x)),
    (Mish(), lambda x: x * math.tanh(math.log1p(math.exp(x)))),
    (HardSigmoid(), lambda x: min(max(x / 6 + 0.5, 0), 1)),
    (HardSwish(), lambda x: x * min(max(x / 6 + 0.5, 0), 1)),
    (HardTanh(), lambda x: min(max(x, -1), 1)),
    (Sigmoid(), sigmoid),
    (Tanh(), math.tanh),
    (Softplus(), lambda x: math.log1p(math.exp(x))),
    (Softsign(), lambda x: x / (1 + abs(x))),
]
SETTINGS = "layer", "f"
X = np.linspace(-6, 6, 97).reshape(1, -1)  # with -3, -1, 0, 1 and 3 among them


def slope(layer: Layer, x: float) -> float:
    layer.forward(np.array([[x]]))
    dX = layer.backward(np.array([[1.0]]))
    assert dX is not None
    return float(dX[0, 0])


@pytest.mark.parametrize(SETTINGS, FORMULAS, ids=lambda v: repr(v) if isinstance(v, Layer) else "")
def test_value_by_its_formula(layer: Layer, f: Callable[[float], float]) -> None:
    wanted = np.vectorize(f, otypes=[float])(X)
    np.testing.assert_allclose(layer.forward(X), wanted, rtol=1e-12, atol=1e-15)
    single = layer.forward(X.astype(np.float32))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(SETTINGS, FORMULAS, ids=lambda v: repr(v) if isinstance(v, Layer) else "")
def test_formulas_cover_every_elementwise_activation(layer: Layer, f: Any) -> None:
    public = {
        c
        for c in vars(activation).values()
        if isinstance(c, type) and issubclass(c, Layer) and not c.__name__.startswith("_")
    }
    others = {Layer, activation.Elementwise, PReLU, Softmax, LogSoftmax}
    assert {type(layer) for layer, _ in FORMULAS} == public - others


@pytest.mark.parametrize(
    ("layer", "x", "wanted"),
    [
        (ReLU(), 0.0, 0),
        (LeakyReLU(0.3), 0.0, 0.3),
        (PReLU(0.3), 0.0, 0.3),
        (ELU(1.7), 0.0, 1.7),
        (CELU(0.6), 0.0, 1),
        (SELU(), 0.0, 1.6732632423543772 * 1.0507009873554805),
        (HardSigmoid(), -3.0, 0),
        (HardSigmoid(), 3.0, 0),
        (HardSigmoid(), 2.999, 1 / 6),
        (HardSwish(), -3.0, 0),
        (HardSwish(), 3.0, 1),
        (HardTanh(), -1.0, 0),
        (HardTanh(), 1.0, 0),
        (HardTanh(), -0.999, 1),
    ],
    ids=repr,
)
def test_slope_at_the_kinks_is_the_documented_one(layer: Layer, x: float, wanted: float) -> None:
    layer.build((1,), dtype=np.float64)
    assert slope(layer, x) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("x", [1e-8, 1e-20, -1e-8, -1e-20])
def test_elu_family_is_precise_near_zero(x: float) -> None:
    """exp(x) - 1 would be 0: it is expm1."""
    for layer in (ELU(), CELU(2.0), Tanh(), SiLU(), Softsign()):
        gain = 0.5 if isinstance(layer, SiLU) else 1
        assert layer.forward(np.array([[x]]))[0, 0] == pytest.approx(gain * x, rel=1e-7)


@pytest.mark.parametrize("x", [100.0, 1e4, 1e30])
def test_far_ends(x: float) -> None:
    with np.errstate(all="raise", under="ignore"):
        for layer in (ReLU(), LeakyReLU(), ELU(), CELU(), SiLU(), HardSwish(), Softplus()):
            assert layer.forward(np.array([[x]]))[0, 0] == x
            assert slope(layer, x) == 1
        for layer in (GELU(), Mish()):
            assert layer.forward(np.array([[x]]))[0, 0] == pytest.approx(x)
            assert layer.forward(np.array([[-x]]))[0, 0] == pytest.approx(0, abs=1e-30)
            assert slope(layer, -x) == pytest.approx(0, abs=1e-30)
        for layer in (Sigmoid(), Tanh(), HardSigmoid(), HardTanh()):
            assert layer.forward(np.array([[x]]))[0, 0] == 1
            assert slope(layer, x) == pytest.approx(0, abs=1e-30)


def test_gelu_far_out_does_not_overflow_in_its_cube() -> None:
    with np.errstate(all="raise", under="ignore"):
        layer, big = GELU("tanh"), np.array([[1e10, -1e10]], np.float32)
        np.testing.assert_allclose(layer.forward(big), [[1e10, 0]])
        np.testing.assert_allclose(layer.backward(np.ones_like(big)), [[1, 0]])


def test_tanh_approximation_is_near_the_exact_one() -> None:
    gap = np.abs(GELU().forward(X) - GELU("tanh").forward(X)).max()
    assert 1e-5 < gap < 1e-3


def test_nan_is_not_hidden() -> None:
    for layer, _ in FORMULAS:
        Y = layer.forward(np.array([[np.nan, 1.0]]))
        assert np.isnan(Y[0, 0]), layer
        assert np.isfinite(Y[0, 1])


def test_prelu_learns_a_slope_for_each_feature() -> None:
    layer = PReLU()
    layer.build((2, 3), dtype=np.float64)
    np.testing.assert_array_equal(layer.alpha, [0.25] * 3)
    layer.alpha = [0.1, -0.2, 0.3]
    X = np.array([[[-1.0, -2, -3], [1, 2, 3]]])
    np.testing.assert_allclose(layer.forward(X), [[[-0.1, 0.4, -0.9], [1, 2, 3]]])
    np.testing.assert_allclose(layer.backward(np.ones((1, 2, 3))), [[[0.1, -0.2, 0.3], [1, 1, 1]]])
    np.testing.assert_allclose(layer.grads["alpha"], [-1, -2, -3])


# --- softmax -----------------------------------------------------------------------------------

matrices = arrays(np.float64, (2, 3), elements=st.floats(-50, 50))


@pytest.mark.parametrize("layer", [Softmax(), LogSoftmax()], ids=repr)
@given(X=matrices, dY=matrices, shift=st.floats(-1e4, 1e4))
def test_softmax_is_blind_to_shifts(layer: Layer, X: Array, dY: Array, shift: float) -> None:
    Y = layer.forward(X)
    dX = layer.backward(dY)
    assert dX is not None
    np.testing.assert_allclose(dX.sum(-1), 0, atol=1e-11)
    P = Y if isinstance(layer, Softmax) else np.exp(Y)
    np.testing.assert_allclose(P.sum(-1), 1, rtol=1e-12)
    np.testing.assert_allclose(layer.forward(X + shift), Y, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("axis", [1, 2, -2, -1])
def test_softmax_backward_is_its_true_jacobian(axis: int, rng: np.random.Generator) -> None:
    """The Jacobian built entry by entry, J = diag(p) - p p^T, along any axis."""
    X, dY = rng.standard_normal((2, 3, 4, 5))[:, :, :, 0], rng.standard_normal((2, 3, 4))
    for layer in (Softmax(axis), LogSoftmax(axis)):
        Y = np.moveaxis(layer.forward(X), axis, -1)
        dX = np.moveaxis(layer.backward(dY), axis, -1)
        d = np.moveaxis(dY, axis, -1)
        for i in np.ndindex(Y.shape[:-1]):
            p = Y[i] if isinstance(layer, Softmax) else np.exp(Y[i])
            J = np.diag(p) - np.outer(p, p) if isinstance(layer, Softmax) else np.eye(len(p)) - p
            np.testing.assert_allclose(dX[i], J.T @ d[i], atol=1e-14)


def test_log_softmax_is_finite_where_softmax_is_zero() -> None:
    Z = np.array([[0.0, -2000.0]])
    assert Softmax().forward(Z)[0, 1] == 0
    np.testing.assert_array_equal(LogSoftmax().forward(Z), [[0, -2000]])


@pytest.mark.parametrize("make", [Softmax, LogSoftmax])
def test_softmax_refuses_the_axis_of_the_batch(make: Any) -> None:
    with pytest.raises(ArgumentError, match=f"{make.__name__} along axis 0 would mix the samples"):
        make(axis=0)
    for axis, shape in ((-2, (4, 3)), (2, (4, 3)), (-1, (4,)), (1, (4,)), (-4, (4, 3, 2))):
        with pytest.raises(
            ShapeError, match=f"in addition to the batch axis, got rank {len(shape)}"
        ):
            make(axis).forward(np.ones(shape))
        with pytest.raises(ShapeError, match="in addition to the batch axis"):
            make(axis).build(shape[1:])


@pytest.mark.parametrize("axis", [1.5, "1", None, (1, 2), True])
@pytest.mark.parametrize("make", [Softmax, LogSoftmax])
def test_softmax_refuses_what_is_no_axis(make: Any, axis: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=f"{make.__name__} axis"):
        make(axis)


# --- settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: ELU(0), ArgumentError, "ELU alpha must be > 0, got 0"),
        (lambda: CELU(-1.0), ArgumentError, "CELU alpha must be > 0"),
        (lambda: LeakyReLU("0.1"), ArgumentTypeError, "LeakyReLU alpha must be a number"),
        (lambda: LeakyReLU(np.nan), ArgumentError, "LeakyReLU alpha"),
        (lambda: PReLU(np.inf), ArgumentError, "PReLU init"),
        (lambda: GELU("erf"), ArgumentError, '"none" or "tanh", got \'erf\''),
    ],
)
def test_bad_settings_are_refused(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()


@pytest.mark.parametrize("new", [ReLU, LeakyReLU])
def test_old_spellings_name_the_new_one(new: type) -> None:
    old = new.__name__.replace("LU", "Lu")
    with pytest.warns(
        DeprecationWarning, match=rf"^{old} is an old spelling: write {new.__name__}\."
    ) as seen:
        exec(f"from phitodeep.layers.activation import {old}", found := {})
    assert len(seen) == 1
    assert seen[0].filename == "<string>"  # the line that imports it
    assert found[old] is new
    with pytest.warns(DeprecationWarning, match=f"write {new.__name__}"):
        assert getattr(activation, old) is new


def test_names_that_are_not_old_do_not_warn() -> None:
    exec("from phitodeep.layers.activation import *", found := {})
    assert found["ReLU"] is ReLU
    assert "ReLu" not in found
    with pytest.raises(AttributeError, match=r"'phitodeep\.layers\.activation'.*'RELU'"):
        activation.__getattr__("RELU")


def test_swish_is_a_second_name() -> None:
    assert Swish is SiLU
    assert repr(Swish()) == "SiLU()"


def test_an_author_is_told_what_to_write() -> None:
    class Cube(activation.Elementwise):
        def value(self, X: Array) -> Array:
            return X**3

    layer = Cube()
    np.testing.assert_array_equal(layer.forward(np.array([[2.0]])), [[8]])
    with pytest.raises(NotImplementedError, match=r"Cube must implement slope\(X, Y\)"):
        layer.backward(np.array([[1.0]]))
    with pytest.raises(NotImplementedError, match=r"Elementwise must implement value\(X\)"):
        activation.Elementwise().forward(np.array([[1.0]]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_relu_passes_every_bit_of_dY_or_none(dtype: Any, rng: np.random.Generator) -> None:
    info = np.finfo(dtype)
    Y = np.array([0, -0.0, info.smallest_subnormal, info.tiny, 1, 2, 3e5, info.max, np.inf], dtype)
    dY = rng.standard_normal(len(Y)).astype(dtype)
    for sign in (1, -1):
        dX = np.empty_like(dY)
        relu_back(sign * dY, Y, dX)
        np.testing.assert_array_equal(dX, np.where(Y > 0, sign * dY, 0))
