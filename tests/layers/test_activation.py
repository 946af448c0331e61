"""Activations beyond the contract: formulas, kinks, far ends, and what Softmax promises."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from phitodeep.core.types import Array
from phitodeep.errors import ArgumentError, ShapeError
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


@pytest.mark.parametrize(SETTINGS, FORMULAS, ids=lambda v: repr(v) if isinstance(v, Layer) else "")
def test_value_by_its_formula(layer: Layer, f: Callable[[float], float]) -> None:
    wanted = np.vectorize(f, otypes=[float])(X)
    np.testing.assert_allclose(layer.forward(X), wanted, rtol=1e-12, atol=1e-15)
    single = layer.forward(X.astype(np.float32))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, wanted, rtol=1e-5, atol=1e-6)


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


# --- softmax -----------------------------------------------------------------------------------


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


# --- settings ----------------------------------------------------------------------------------


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
