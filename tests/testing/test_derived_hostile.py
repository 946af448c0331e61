"""Unusual input of `derive` ends in a right layer or in a refusal, within seconds."""

import asyncio
import copy
import functools
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from phitodeep import SGD, Dense, Sequential, check_gradients, derive
from phitodeep.errors import DerivationError, PhitodeepError

X = {"X": (4, 5)}


TENFOLD = "na,nb,nc,nd,ne,nf,ng,nh,ni,nj"
TEN = ", ".join("X" * 10)
A_TO_Z = "\n".join(f"A{k + 1} = A{k} * X" for k in range(60))
SQUARE = "= ({0}[:, :, None] * {0}[:, None]).reshape(X.shape[0], -1)"
TEXTS = (  # with the words of the refusal; none if it is right
    (f"{'A' * 9000} = X\nY = X * {'A' * 9000}", ""),
    (f"A0 = X\n{A_TO_Z}\nY = A9", ""),
    ("Y = " + " * ".join(f"(X / 9 + {k})" for k in range(1, 25)), ""),
    ("Y = " + "np.where(X > 0, X, " * 30 + "X" + ")" * 30, ""),
    ("Y = X ** 1000000", "does not pass check_gradients"),
    ("Y = X" + " * 1e59" * 6, "overflow: write smaller"),
    ("k = n ** 9\nj = k ** 9\nm = j ** 9\nY = X * m", "numbers are at most"),
    (f"Y = np.einsum('{TENFOLD}->n', {TEN})", "too large for an example"),
    (f"Y = np.einsum('{TENFOLD}->nabcdefghij', {TEN})", "too large for an example"),
    (
        f"A {SQUARE.format('X')}\nB {SQUARE.format('A')}\nY {SQUARE.format('B')}",
        "line 3.*too large",
    ),
    ("len = X * 2\nmatch = len * X\nY = match * type", ""),
    ("float = X * 2\nY = float / np.sqrt(5)", "float has another meaning"),
    ("Layer = X * 2\nArray = Layer * X\nLet = Array * 2\nY = Let", ""),
    ("steps = X * 2\nforward = steps * X\nY = forward * forward", ""),
    ("Ω = X * 2\nא = Ω * X\nY = א", ""),
    ("ﬁ = X * 2\nY = fi * fi", ""),
    ("Y = E / 2\nE = X", "E has no value here"),
    ("s = sigmoid(X) * np.exp(-X * 2)\nu = np.tanh(s)\nE = u * s\nY = E", ""),
    ("Y = X / np.sqrt(X.shape[-1]) + X.shape[1]", ""),
    ("D = X.shape[-1]\nY = X * X / D", ""),
    ("Y = X / X.shape[2]", "X has 2 axes, and no axis 2"),
    ("Y = X / X.shape[:1]", "must be a number here"),
    ("A = X.sum(axis=-1)\nY = A * X.T", "the first axis and no other"),
    ("Y = X * np.clip(X, a, -a)", ""),
    ("Y = X * np.clip(X, 0.3, -0.3)", ""),
    ("async def f(X):\n    return X", "derive reads assignments"),
)


@pytest.mark.parametrize(("text", "words"), TEXTS, ids=range(len(TEXTS)))
def test_a_text_is_derived_or_refused(text, words):
    values = {"n": 9, "a": (5,), "type": (5,)}
    given = X | {n: v for n, v in values.items() if re.search(rf"\b{n}\b", text)}
    if words:
        with pytest.raises(DerivationError, match=words):
            assert not derive(text, **given).source
        return
    layer = derive(text, **given).layer()
    check_gradients(layer, np.random.default_rng(3).standard_normal((3, 5)) / 2)


VALUES = [float("inf"), -float("inf"), float("nan"), 10**70, 1j, True, None, "5", b"5", object()]
VALUES += [[], {5: 1}, (True,), (5.0,), (5j,), (-5,), (1,) * 70, (10**9,), iter((5,)), np.ones(5)]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_a_setting_or_shape_is_checked(value):
    for name in ("a", "X"):
        with pytest.raises(PhitodeepError):
            assert not derive("Y = X * a", **{"X": (4, 5), "a": 2.0, name: value}).source


@pytest.mark.parametrize("name", ["ﬁ", "", "1", "lambda", None, b"A", "A B", "A\n"], ids=range(8))
def test_the_name_of_a_class_is_checked(name):
    with pytest.raises(PhitodeepError, match="name must be"):
        derive("Y = X * 2", **X, name=name)


def wrapped(function):
    return functools.wraps(function)(lambda *arrays: function(*arrays))


@functools.cache
@wrapped
def decorated(X):
    return X * 2


async def waits(X):
    return X * 2


def yields(X):
    yield X * 2


def calls_itself(X):
    return calls_itself(X)


def closes_over(k):
    def forward(X):
        return X * k

    return forward


class Squares:
    def __call__(self, X):
        return X * X

    def forward(self, X):
        return X * X


def without_source():
    names = {}
    exec("def forward(X): return X * 2", names)
    return names["forward"]


def test_functions_of_all_kinds():
    assert derive(decorated, **X).source == derive("Y = X * 2", **X).source
    assert derive(Squares().forward, **X).source == derive("Y = X * X", **X).source
    for function in (
        *(waits, yields, calls_itself, closes_over(2.0), without_source(), Squares, Squares()),
        *(len, np.tanh, functools.partial(decorated), Dense, Dense(5, 5), asyncio.run),
    ):
        with pytest.raises(PhitodeepError):
            assert not derive(function, **X).source


def test_threads_derive_at_once():
    texts = [f"A = np.tanh(X * {k})\nY = A * A.sum(axis=-1, keepdims=True)" for k in range(2, 8)]
    with ThreadPoolExecutor(6) as pool:
        found = [*pool.map(lambda text: derive(text, **X).source, texts)]
    assert found == [derive(text, **X).source for text in texts]


def test_a_network_with_a_derived_layer_is_copied_and_has_products_with_the_hessian():
    text = "A = X[:, 1:]\nY = beta * X * A.max(axis=-1, keepdims=True)"
    layer = derive(text, **X, beta=(5,), name="Gate").layer()
    net = Sequential(Dense(5, 5), layer, Dense(5, 2), optimizer=SGD(0.1), seed=0, dtype="float64")
    A = np.random.default_rng(0).standard_normal((6, 5))
    again = copy.deepcopy(net)
    np.testing.assert_array_equal(net.predict(A), again.predict(A))
    U, V = ({p: np.cos(W + k) for p, W in net.get_weights().items()} for k in (1, 2))
    left, right = net.hvp(A, A[:, :2], V), net.hvp(A, A[:, :2], U)
    one, other = (sum((W * H[p]).sum() for p, W in D.items()) for D, H in ((U, left), (V, right)))
    assert one == pytest.approx(other, rel=1e-11)
    assert abs(one) > 1e-3
