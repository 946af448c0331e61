"""`derive` writes the layer that a person would have written, or says why it cannot."""

import importlib.util
import re

import numpy as np
import pytest

import phitodeep
from phitodeep import SGD, Dense, Sequential, check_gradients, derive
from phitodeep.derivations.language import run
from phitodeep.derivations.language.step import Let
from phitodeep.errors import ArgumentError, DerivationError, PhitodeepError, ShapeError
from phitodeep.functional import sigmoid

X2, X3 = (4, 5), (4, 6, 5)


def softmax(X):
    E = np.exp(X - X.max(axis=-1, keepdims=True))
    return E / E.sum(axis=-1, keepdims=True)


def rms_norm(X, gamma, eps):
    r = 1 / np.sqrt((X**2).mean(axis=-1, keepdims=True) + eps)
    X_hat = X * r
    return gamma * X_hat


def layer_norm(X, gamma, beta, eps):
    mu = X.mean(axis=-1, keepdims=True)
    C = X - mu
    r = 1 / np.sqrt((C * C).mean(axis=-1, keepdims=True) + eps)
    X_hat = C * r
    return gamma * X_hat + beta


def swish(X, beta):
    s = sigmoid(beta * X)
    return X * s


def attention(X):
    """One head, whose queries, keys and values are X itself."""
    S = np.einsum("nqd,nkd->nqk", X, X) / np.sqrt(5)
    E = np.exp(S - S.max(axis=-1, keepdims=True))
    P = E / E.sum(axis=-1, keepdims=True)
    return np.einsum("nqk,nkd->nqd", P, X)


def unit(X, eps):
    return X / np.sqrt((X * X).sum(axis=-1, keepdims=True) + eps)


FORMS = {  # the backward pass that each must have: form is a promise
    softmax: (
        {"X": X2},
        """
        Y = self.saved("Y")
        s = (dY * Y).sum(axis=-1, keepdims=True)
        return Y * (dY - s)
        """,
    ),
    rms_norm: (
        {"X": X2, "gamma": (5,), "eps": 1e-5},
        """
        D, r, X_hat = self.saved("D", "r", "X_hat")
        self.grads["gamma"] = (dY * X_hat).reshape(-1, dY.shape[-1]).sum(axis=0)
        dX_hat = dY * self.gamma
        s = (dX_hat * X_hat).sum(axis=-1, keepdims=True)
        return r * (dX_hat - s * X_hat / D)
        """,
    ),
    layer_norm: (
        {"X": X2, "gamma": (5,), "beta": (5,), "eps": 1e-5},
        """
        D, r, X_hat = self.saved("D", "r", "X_hat")
        self.grads["gamma"] = (dY * X_hat).reshape(-1, dY.shape[-1]).sum(axis=0)
        self.grads["beta"] = dY.reshape(-1, dY.shape[-1]).sum(axis=0)
        dX_hat = dY * self.gamma
        s = (dX_hat * X_hat).sum(axis=-1, keepdims=True)
        dC = r * (dX_hat - s * X_hat / D)
        s_2 = dC.sum(axis=-1, keepdims=True)
        return dC - s_2 / D
        """,
    ),
    attention: (
        {"X": X3},
        """
        X, P = self.saved("X", "P")
        dP = dY @ X.swapaxes(-1, -2)
        dX_Y = P.swapaxes(-1, -2) @ dY
        s = (dP * P).sum(axis=-1, keepdims=True)
        dproduct_X = P * (dP - s) / float(np.sqrt(5))
        dX_product_X = dproduct_X @ X
        dX_product_X_2 = dproduct_X.swapaxes(-1, -2) @ X
        return dX_Y + dX_product_X + dX_product_X_2
        """,
    ),
    unit: (
        {"X": X2, "eps": 1e-5},
        """
        X, sum_X = self.saved("X", "sum_X")
        s = (dY * X).sum(axis=-1, keepdims=True)
        return (dY - s * X / (sum_X + self.eps)) / np.sqrt(sum_X + self.eps)
        """,
    ),
    swish: (
        {"X": X2, "beta": (5,)},
        """
        X, s, Y = self.saved("X", "s", "Y")
        du = dY * Y * (1 - s)
        self.grads["beta"] = (du * X).reshape(-1, du.shape[-1]).sum(axis=0)
        return dY * s + self.beta * du
        """,
    ),
}


@pytest.mark.parametrize("function", FORMS, ids=lambda f: f.__name__)
def test_the_backward_pass_reads_like_a_persons_work(function):
    given, wanted = FORMS[function]
    source = derive(function, name="Found", **given).source
    body = source.partition("def backward(self, dY: Array) -> Array:\n")[2].partition("\n\n")[0]
    assert [line.strip() for line in body.splitlines()] == [
        line.strip() for line in wanted.strip().splitlines()
    ]


RIGHT = [  # forward passes, with the shapes of X and of parameters, and settings
    ("Y = X + np.maximum(X.max(axis=-1, keepdims=True) - 3, 0)", {"X": X2}),
    ("m = X.max(axis=-1, keepdims=True)\nY = np.where(m > 1, X * m, X)", {"X": X2}),
    ("Y = X.sum(axis=1)", {"X": X3}),
    ("Y = X.mean(1)", {"X": X3}),
    ("Y = (X * X).mean(axis=(1, 2))", {"X": X3}),
    ("Y = X.max(axis=1)", {"X": X3}),
    ("Y = X - X.min(axis=-1, keepdims=True)", {"X": X2}),
    ("Y = np.where(X > 0, X, a * X)", {"X": X2, "a": (5,)}),
    ("Y = np.exp(-g * (X - c) ** 2)", {"X": X2, "c": (5,), "g": 0.7}),
    ("Z = X[:, ::-1]\nY = X * Z", {"X": X3}),
    ("Y = X.transpose(0, 2, 1) * 2", {"X": X3}),
    ("Y = np.swapaxes(X, 1, 2) + np.roll(X, 1, axis=1).transpose(0, 2, 1)", {"X": X3}),
    ("Y = np.einsum('nd,de,ne->n', X, W, X)", {"X": X2, "W": (5, 5)}),
    ("Y = np.einsum('ntd,nsd->nts', X, X)", {"X": X3}),
    ("Y = X @ W @ V", {"X": X2, "W": (5, 3), "V": (3, 7)}),
    ("h = np.tanh(X @ W + b)\nY = X + h @ W.T", {"X": X2, "W": (5, 3), "b": (3,)}),
    ("Y = np.concatenate([X, X * X], axis=-1)", {"X": X2}),
    ("Z = X @ W\nY = Z[..., :3] * sigmoid(Z[..., 3:])", {"X": X2, "W": (5, 6)}),
    ("Z = X @ W\nY = Z[..., :3] * np.sign(Z[..., 3:])", {"X": X2, "W": (5, 6)}),
    ("m = X.mean(axis=0, keepdims=True)\nY = (X - m) * g", {"X": X2, "g": (5,)}),
    ("Y = np.clip(X, -1, 1) + s * X", {"X": X2, "s": (1,)}),
    ("Y = np.sin(w * X) + X * X.sum(axis=-1, keepdims=True)", {"X": X2, "w": (5,)}),
    ("Y = X * 0 + b", {"X": X2, "b": (5,)}),
    ("Y = softplus(X) * np.log1p(np.exp(-np.abs(X)))", {"X": X2}),
    ("A = X / d\nY = A * A + d", {"X": X2, "d": (5,)}),
    ("Y = X[:, 1:] - X[:, :-1]", {"X": X3}),
    ("Y = np.pad(X, ((0, 0), (1, 0), (0, 0)))[:, :-1] + X", {"X": X3}),
    ("Y = erf(X) + np.arctan(X) * np.cosh(X / 3)", {"X": X2}),
    ("Y = X * np.where(X > 0, 1, 0.5) + np.abs(X) / np.sqrt(5)", {"X": X2}),
    ("Y = X * np.maximum(X.mean(axis=-1, keepdims=True), 0)", {"X": X2}),  # may be 0: no division
    ("Y = np.abs(X) ** p * X + s * X", {"X": X2, "p": 2.5, "s": (5,)}),
    ("Y = np.tanh(s * (X * X).max(axis=-1, keepdims=True)) * X", {"X": X2, "s": (5,)}),
    ("D = X * 2\nY = np.tanh(D * X) * D.mean(axis=-1, keepdims=True)", {"X": X2}),
    ("Y = np.einsum('nab,b->nba', X, k) * b", {"X": X3, "k": (5,), "b": 2.0}),
    ("Y = np.einsum('nab->nba', X) + X.transpose(0, -1, 1)", {"X": X3}),
    ("Y = np.expm1(softplus(k)) - X * k", {"X": X3, "k": (6, 5)}),
    ("Y = X * X * (a * X)", {"X": X3, "a": (6, 5)}),
    ("Y = (s * np.pi) + (X - s)", {"X": X3, "s": (5,)}),
    ("Y = np.concatenate([X, X], axis=-1) * X[:, :1]", {"X": X2}),
    ("k = 2\nY = X[:, :k] * X[:, -k:]", {"X": X2}),
    ("C = np.einsum('nab,naz->naz', X, X)\nY = X - C.mean(axis=2, keepdims=True)", {"X": X3}),
    ("Y = X * (np.max(X, axis=0, keepdims=True) * np.sin(b))", {"X": X2, "b": (5,)}),
    ("Y = np.exp2(X) * np.tan(X / 9) + np.floor(X)", {"X": X2}),
    ("A = np.exp(X.mean(axis=-1))\nmean_X = A * 2\nY = mean_X * A", {"X": X2}),  # two names
    ("Y = sigmoid(β * X)", {"X": X2, "β": (5,)}),
    ("Y = X @ V * units", {"X": X2, "V": (5, 3), "units": 2.0}),
    ("Y = X * X.max()", {"X": X3}),
    ("Y = X * b - X.max(axis=(1, 3), keepdims=True)", {"X": (4, 6, 5, 7), "b": (7,)}),
    ("Y = X[:, [0, 2, 2]] * b", {"X": X3, "b": (5,)}),
    ("Y = np.repeat(X, 3, axis=1) * b", {"X": X3, "b": (5,)}),
    ("Y = np.concatenate([X / n**2, X * b, X[..., ::-1]], axis=-1)", {"X": X2, "b": (5,), "n": 3}),
    ("Y = np.einsum('ntd,d->nt', np.tanh(X @ W), w)", {"X": X3, "W": (5, 7), "w": (7,)}),
    ("D = X[:, None, :] - c\nY = np.exp(-(D * D).sum(axis=-1))", {"X": X2, "c": (3, 5)}),
    ("Y = X / np.sqrt((X * X).mean(axis=-1, keepdims=True) + b * b)", {"X": X2, "b": (1,)}),
    ("Y = " + "np.sin(" * 120 + "X" + ")" * 120, {"X": X2}),  # long parts have names
    ("Z = X @ W\nY = Z[:, :k] * Z[:, k:]", {"X": X2, "W": (5, 6), "k": 3}),
    # Where each maximum moves by the same amount, this stays as it is; where one does, it moves.
    ("E = np.exp(b * X.max(axis=1))\nY = E / E.sum(-1, keepdims=True)", {"X": X3, "b": (1,)}),
]


@pytest.mark.parametrize(("source", "given"), RIGHT, ids=range(len(RIGHT)))
def test_what_is_derived_is_right(source, given):
    found = derive(source, **given)
    layer, X = found.layer(), np.random.default_rng(7).standard_normal((3, *given["X"][1:]))
    check_gradients(layer, X)
    layer.build(X.shape[1:], dtype=np.float64)
    steps = run.passes(layer, X, np.ones((3, *layer.output_shape)))
    np.testing.assert_allclose(steps["Y"], layer.forward(X), rtol=1e-11, atol=1e-13)
    dX = layer.backward(np.ones((3, *layer.output_shape)))
    np.testing.assert_allclose(steps["dX"], dX, rtol=1e-10, atol=1e-12)
    single = found.layer()
    single.build(X.shape[1:], dtype=np.float32)
    Y = single.forward(X.astype(np.float32))
    assert {Y.dtype, single.backward(Y).dtype} == {np.dtype(np.float32)}
    assert all(dW.dtype == np.float32 for dW in single.grads.values())


@pytest.mark.parametrize(
    ("text", "alone"),
    [
        ("Y = X * sigmoid(X.max(axis=1, keepdims=True))", True),
        ("Y = X - X.mean(axis=0)", False),
        ("Y = X - X[:1]", False),
        ("Y = X - X[-1:]", False),
        ("Y = X / X.shape[0]", False),
        ("Y = np.where(X.mean(axis=0) > 50, X, 2 * X)", False),
        ("Y = np.where(np.abs(X.sum(axis=0)) < 50, X, 2 * X)", False),
        ("Y = X + np.maximum(X.mean(axis=0), 100)", False),
        ("Y = X + np.minimum(X.mean(axis=0), 100) + np.maximum(X, 5)", False),
    ],
)
def test_a_layer_declares_that_its_samples_are_independent(text, alone):
    assert derive(text, X=X2).layer().independent_samples is alone


def test_a_maximum_keeps_its_gradient_where_a_function_is_flat():
    flat = "Y = X + sigmoid(X.max(axis=-1, keepdims=True) + 80)"  # at the numbers that derive tries
    check_gradients(derive(flat, X=X2).layer(), np.random.default_rng(0).random((3, 5)) - 80)


def test_where_a_factor_is_0_the_gradient_is_that_of_the_other():
    gated = "g = np.maximum(X.mean(axis=-1, keepdims=True), 0)\nY = X * g"
    layer = derive(gated, X=X2).layer()
    layer.build((5,), dtype=np.float64)
    layer.forward(np.array([[-1.0, 0, 2, -3, 0]]))
    np.testing.assert_array_equal(layer.backward(np.ones((1, 5))), np.zeros((1, 5)))


WRONG = [
    ("Y = np.sinc(X)", {"X": X2}, r"line 1, 'Y = np.sinc.* no derivative is known for np\.sinc"),
    ("A = X\nY = A.sort()", {"X": X2}, r"line 2.*no derivative is known for A\.sort"),
    ("if X.sum() > 0:\n    Y = X", {"X": X2}, r"line 1, 'if .* Write a choice as np\.where"),
    ("X += 1\nY = X", {"X": X2}, "a change in place as a new name"),
    ("A = X * 2\nA = A * 2\nY = A", {"X": X2}, "line 2.* A has a value already"),
    ("for t in range(3):\n    Y = X", {"X": X3}, "pass steps with Loop and Carry"),
    ("Y = X if True else X", {"X": X2}, r"write choices as np\.where"),
    ("Y = X * w", {"X": X2}, "w has no value here"),
    ("Y = X @ W", {"X": X2, "W": (4, 3)}, "W has an axis of 4, as many as there are samples"),
    ("Y = X", {"X": (4, 5, 5)}, "give each axis a size of its own"),
    ("Y = X", {"X": (4, 1)}, "above 1"),
    (
        "Y = X.reshape(4, 30)",
        {"X": X3},
        r"line 1, .*with 5 samples, cannot reshape.* X\.shape\[0\]",
    ),
    ("Y = X.sum(axis=0)", {"X": X2}, "a layer keeps the samples"),
    ("Y = X.sum()", {"X": X2}, "a layer keeps the samples"),
    ("Y = X.mean(axis=5)", {"X": X2}, "X has 2 axes, and no axis 5"),
    ("Y = X + X @ W", {"X": X2, "W": (5, 3)}, "does not fit its shapes"),
    ("Z = X * 2", {"X": X2}, "computes no Y"),
    ("Y = X * 1\nZ = b * X", {"X": X2, "b": (5,)}, "Y does not depend on b"),
    ("Y = __import__('os').getcwd()", {"X": X2}, "is not arithmetic|no derivative"),
    ("Y = X.__class__", {"X": X2}, "is not arithmetic"),
    ("Y = X[__import__('os').getpid()]", {"X": X2}, "with numbers and shapes alone"),
    ("Y = X[open('f')]", {"X": X2}, "with numbers and shapes alone"),
    ("Y = np.load('f') * X", {"X": X2}, r"no derivative is known for np\.load"),
    ("Y = np.tile(X, 99999999)", {"X": X2}, "too large for an example"),
    ("Y = (lambda: X)()", {"X": X2}, "no derivative is known"),
    ("import os\nY = X", {"X": X2}, "derive reads assignments"),
    ("Y = X +", {"X": X2}, "cannot read this as Python"),
    ("Y = X" + " + X" * 5000, {"X": X2}, "at most 20,000 characters"),
    ("Y = X + X * X" + " + X * X" * 900, {"X": X2}, "too deep"),
    ("Y = X" + ".T" * 500, {"X": X2}, "too deep"),
    ("Y = X * 10**10**10", {"X": X2}, r"'10 \*\* 10 \*\* 10': write the number"),
    ("Y = X * a**a", {"X": X2, "a": 10**50}, r"'a \*\* a': write the number"),
    ("Y = X * a**999999999", {"X": X2, "a": 3}, "write the number"),
    ("b = a * a\nY = X * b", {"X": X2, "a": 10**50}, "line 1, 'b = .* numbers are at most 1e"),
    (
        "A = X @ W\nY = A * A.mean(axis=-1, keepdims=True)",
        {"X": X2, "W": (5, 5)},
        "axis 1 of W has",
    ),
    ("A = X @ W + b\nY = A * 2", {"X": X3, "W": (5, 6), "b": (6,)}, "size 6 of axis 1 of X"),
    ("A = X[:, 1:] - s\nY = A[:, 0] * A", {"X": (6, 7, 5), "s": (5,)}, "line 2, .* with 7 samples"),
    ("Y = np.log(X - 100)", {"X": X2}, "nan or infinity"),
    ("Y = X > 0", {"X": X2}, "compute Y from X"),
    ("Y = X // 2", {"X": X2}, r"not arithmetic of np and the names so far, which is \+ -"),
    ("Y = X * 1e400", {"X": X2}, "numbers are at most 1e"),
    ("Y = X * 0x" + "F" * 4000, {"X": X2}, "numbers are at most 1e"),
    ("Y = X.repeat(4096 * 4096, axis=1)", {"X": X2}, "too large for an example"),
    ("Y = \ud800", {"X": X2}, "cannot read this as Python"),
    ("Y = np.exp()", {"X": X2}, "exp takes 1 argument"),
    ("Y = np.clip(X)", {"X": X2}, "clip takes 3 argument"),
    ("Y = np.sum()", {"X": X2}, "sum of what"),
    ("Y = X.sum(axis=())", {"X": X2}, "no axis"),
    ("Y = X.sum(axis=(1, 1))", {"X": X2}, "name each axis once"),
    ("Y = X.flip(0)", {"X": X2}, "does not fit its shapes"),
    ("Y = X[:, 1:1]", {"X": X2}, "has no elements"),
    ("Y = np.einsum('nd->n1', X)", {"X": X2}, "write np.einsum"),
    ("Y = np.einsum('nn->n', X)", {"X": X2}, "write np.einsum"),
    ("Y = np.einsum('na,a->n', X, s)", {"X": X2, "s": (1,)}, "'a' has the sizes 5 and 1"),
    ("self = X * 2\nY = self", {"X": X2}, "self has another meaning"),
    ("Y1 = X * 2\nY = Y1", {"X": X2}, "Y1 has another meaning"),
    ("dA = X * 2\nA = X * X\nY = A * dA", {"X": X2}, "dA is the gradient of A"),
    ("Y = " + "(" * 150 + "X" + " + 1)" * 150, {"X": X2}, ""),
]


@pytest.mark.parametrize(("source", "given", "words"), WRONG, ids=range(len(WRONG)))
def test_what_cannot_be_derived_is_refused(source, given, words):
    if not words:  # deep, and right
        assert derive(source, **given).source
        return
    with pytest.raises(DerivationError, match=words):
        assert not derive(source, **given).source


CLASHES = ["dtype", "params", "layer", "path", "call", "forward", "super", "class", "True"]
CLASHES += ["self", "t", "X1"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs the shape of X"),
        ({"X": (4,)}, "needs the shape of X"),
        ({"X": X2, "name": "not a name"}, "name must be that of a class"),
        ({"X": X2, "dY": 3.0}, "'dY' has another meaning"),
        ({"X": X2, "a": ()}, "a is a shape, such as"),
        ({"X": X2, "a": np.ones(5)}, "a is a shape, such as"),
        ({"X": X2, "a": float("nan")}, "a is at most 1e"),
        ({"X": (10**6, 10**7)}, "give it fewer elements"),
        ({"X": X2, "name": "Let"}, "Let has another meaning in the file"),
        *(({"X": X2, name: 3.0}, f"{name!r} has another meaning") for name in CLASHES),
        ({"X": X2, "a": "text"}, "a is a shape, such as"),
        ({"X": X2, "a": (0,)}, "a is a shape, such as"),
    ],
    ids=range(11 + len(CLASHES)),
)
def test_shapes_and_names_are_checked(options, words):
    with pytest.raises(PhitodeepError, match=words):
        assert not derive("Y = X * 2", **options).source


@pytest.mark.parametrize("source", [None, [], ["Y"], [Let("Z", "X")], [Let("Y", "X * b")]])
def test_what_is_no_forward_pass_is_refused(source):
    with pytest.raises(PhitodeepError):
        derive(source, X=X2)


def test_a_written_layer_is_a_file_that_trains(tmp_path):
    path = derive(swish, X=X2, beta=(5,), name="Swish").write(tmp_path / "swish.py")
    with pytest.raises(ArgumentError, match="does not overwrite"):
        derive(swish, X=X2, beta=(5,), name="Swish").write(path)
    spec = importlib.util.spec_from_file_location("swish", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    A = np.random.default_rng(0).standard_normal((40, 5)).astype(np.float32)
    net = Sequential(Dense(5, 8), module.Swish(), Dense(8, 1), optimizer=SGD(0.05), seed=0)
    losses = net.train(A, A[:, :1] ** 2, epochs=30, verbose=0)
    assert losses[-1][0] < 0.7 * losses[0][0]
    assert "derive" not in re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("path", [b"swish.py", ".", "none/swish.py"])
def test_a_path_must_be_that_of_a_new_file(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PhitodeepError, match=r"path of a file|must be a new file in a folder"):
        derive("Y = X * 2", X=X2).write(path)


def test_a_layer_that_needs_its_sizes_says_so():
    layer = derive("Y = X[..., :3] * X[..., 3:]", X=(4, 6), name="Halves").layer()
    with pytest.raises(ShapeError, match=r"samples of 1 axis, shape\[0\] == 6, got shape \(8,\)"):
        layer.build((8,))


def test_a_layer_that_needs_its_axes_says_so():
    layer = derive("Y = X.sum(axis=1)", X=X3, name="Total").layer()
    with pytest.raises(ShapeError, match=r"takes samples of 2 axes, got shape \(5,\)"):
        layer.build((5,))


def test_settings_are_arguments_and_steps_may_be_given():
    found = derive("Y = np.tanh(X / scale)", X=X2, scale=2.0, name="Squash")
    layer = found.layer(scale=4.0)
    np.testing.assert_allclose(layer.forward(np.ones((2, 5), np.float32)), np.tanh(0.25), rtol=1e-6)
    again = derive(found.steps.forward, X=X2, scale=2.0, name="Squash")
    assert again.source == found.source
    assert "Squash" in repr(again)
    assert phitodeep.derive is derive


@pytest.mark.parametrize(
    ("text", "slope"),
    [
        ("Y = np.where(X > 0, X, np.expm1(np.minimum(X, 0)))", 1),  # ELU has no kink
        ("Y = np.maximum(X, 0) + np.minimum(X, 0)", 1),
        ("Y = np.maximum(0, X) + np.minimum(0, X)", 1),
        ("Y = np.maximum(X, 0)", 0),
        ("Y = np.maximum(0, X)", 0),
    ],
)
def test_where_pieces_meet_the_slope_is_that_of_the_whole(text, slope):
    layer = derive(text, X=(4, 5)).layer()
    layer.forward(np.zeros((2, 5)))
    np.testing.assert_array_equal(layer.backward(np.ones((2, 5))), np.full((2, 5), slope))
