"""Products with the Jacobian and the Hessian are slopes of predictions and of gradients."""

import numpy as np
import pytest

from phitodeep import SequentialBuilder as B
from phitodeep import layers as L
from phitodeep.derivations.language import run
from phitodeep.derivations.language.step import Derivation, Given, Let
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError
from phitodeep.inspect.recording import record

RNG = np.random.default_rng(0)
H = 1e-5


def tied():
    words = L.Embedding(7, 4)
    return B(5, seed=0).add(words).lstm(4).add(L.TiedDense(words))


def two_heads():
    b = B(x=(5,), seed=0).dense(4).tanh().name("h").dense(3)
    b = b.output("a", loss="softmax_cross_entropy").at("h").multiply("h").dense(2)
    return b.output("b", loss="mse", weight=0.3)


class Kept(L.Layer):
    """Linear, and keeps its parameter for the backward pass."""

    W = L.Param()

    def create(self, shape):
        self.W = np.eye(shape[-1]) + 0.5
        return shape

    def forward(self, X):
        self.save_for_backward(X=X, W=self.W)
        return X @ self.W

    def backward(self, dY):
        X, W = self.saved("X", "W")
        self.grads["W"] = X.T @ dY
        return dY @ W.T


class Unread(L.Tanh):
    """Has a parameter that no pass reads, so it has no gradient."""

    W = L.Param()

    def create(self, shape):
        self.W = np.ones(3)
        return shape


class AboveMean(L.Layer):
    """Linear by its steps, but what it keeps depends on X."""

    def forward(self, X):
        keep = kept(X)
        self.save_for_backward(keep=keep)
        return keep * X

    def backward(self, dY):
        return self.saved("keep") * dY

    def steps(self):
        keep = Given("keep", "which are above the mean", lambda s: kept(s["X"]))
        return Derivation([keep, Let("Y", "keep * X")], [Let("dX", "keep * dY")])


def kept(X):
    return (X > X.mean(axis=-1, keepdims=True)).astype(X.dtype)


def shared():
    inside = L.Chain(L.Dense(4), L.BatchNorm())
    return B(4, seed=0).add(inside).tanh().add(L.Shared(inside))


IMAGES = RNG.standard_normal((4, 6, 6, 1))
MODELS = {
    "dense": (
        B(5, seed=0).dense(4).layer_norm().tanh().dense(3).softmax(),
        "categorical_cross_entropy",
        RNG.standard_normal((6, 5)),
        RNG.integers(0, 3, 6),
    ),
    "images": (
        B(6, 6, 1, seed=0).conv2d(3, 3).batch_norm().relu().max_pool2d(2).flatten().dense(2),
        "mse",
        IMAGES,
        RNG.standard_normal((4, 2)),
    ),
    "dropout": (
        B(5, seed=0).dense(8).gelu().dropout(0.4).dense(3),
        "softmax_cross_entropy",
        RNG.standard_normal((6, 5)),
        RNG.integers(0, 3, 6),
    ),
    "tied": (
        tied(),
        "softmax_cross_entropy",
        RNG.integers(0, 7, (3, 5)),
        RNG.integers(0, 7, (3, 5)),
    ),
    "layers of a user": (
        B(5, seed=0).dense(4).tanh().add(Kept()).add(AboveMean()).tanh().dense(2),
        "mse",
        RNG.standard_normal((6, 5)),
        RNG.standard_normal((6, 2)),
    ),
    "shared, with running means": (
        shared(),
        "mse",
        RNG.standard_normal((6, 4)),
        RNG.standard_normal((6, 4)),
    ),
    "heads": (
        two_heads(),
        None,
        RNG.standard_normal((6, 5)),
        {"a": RNG.integers(0, 3, 6), "b": RNG.standard_normal((6, 2))},
    ),
    "one of the heads": (two_heads(), None, np.eye(6, 5), {"a": None, "b": np.ones((6, 2))}),
}


def built(name):
    builder, loss, X, y = MODELS[name]
    model = (builder if loss is None else builder.loss(loss)).dtype("float64").build()
    weights = model.get_weights()
    V = {p: RNG.standard_normal(W.shape) for p, W in weights.items() if "running" not in p}
    return model, X, y, V


def moved(model, V, by):
    other = model.copy()
    other.set_weights({p: W + by * V[p] if p in V else W for p, W in model.get_weights().items()})
    return other


def gradients(model, X, y, **options):
    found = {}
    for path, layer in record(model, X, y, **options).model.walk():
        for name, dW in layer.grads.items():
            owner = layer.tied.get(name)
            place = next(
                (p for p, part in model.walk() if owner and repr(part) == repr(owner[0])), path
            )
            key = f"{place}.{name}"
            found[key] = found.get(key, 0) + dW
    return found


@pytest.mark.parametrize("name", MODELS)
def test_a_product_with_the_hessian_is_the_slope_of_all_gradients(name):
    model, X, y, V = built(name)
    weights = model.get_weights()
    found = model.hvp(X, y, V)
    up, down = (gradients(moved(model, V, by), X, y) for by in (H, -H))
    assert found.keys() == up.keys()
    for path, HV in found.items():
        np.testing.assert_allclose(HV, (up[path] - down[path]) / (2 * H), rtol=1e-5, atol=1e-7)
    for path, W in model.get_weights().items():
        np.testing.assert_array_equal(W, weights[path])
    U = {p: RNG.standard_normal(A.shape) for p, A in V.items()}
    left = sum((U[p] * HV).sum() for p, HV in found.items())
    assert left == pytest.approx(sum((V[p] * A).sum() for p, A in model.hvp(X, y, U).items()))


@pytest.mark.parametrize("name", MODELS)
def test_a_product_with_the_jacobian_is_the_slope_of_predictions(name):
    model, X, _, V = built(name)
    tX = None if np.asarray(X).dtype.kind == "i" else RNG.standard_normal(X.shape)
    Y, tY = model.jvp(X, V, tX)
    step = 0 if tX is None else tX
    up, down = (
        moved(model, V, by).predict(X + by * step if tX is not None else X) for by in (H, -H)
    )
    for at in Y if isinstance(Y, dict) else [...]:
        np.testing.assert_allclose(Y[at], model.predict(X)[at], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(tY[at], (up[at] - down[at]) / (2 * H), rtol=1e-6, atol=1e-8)
    still = model.jvp(X, {})[1]
    assert not any(np.any(A) for A in (still.values() if isinstance(still, dict) else [still]))


def test_weights_of_samples_and_lengths_count_as_in_training():
    model = B(5, 3, seed=0).dtype("float64").gru(4).dense(2).loss("mse").build()
    X, y = RNG.standard_normal((4, 5, 3)), RNG.standard_normal((4, 5, 2))
    V = {p: RNG.standard_normal(W.shape) for p, W in model.get_weights().items()}
    options = {"sample_weight": np.array([1.0, 0.5, 0.0, 2.0]), "lengths": [5, 2, 3, 1]}
    found = model.hvp(X, y, V, **options)
    up, down = (gradients(moved(model, V, by), X, y, **options) for by in (H, -H))
    for path, HV in found.items():
        np.testing.assert_allclose(HV, (up[path] - down[path]) / (2 * H), rtol=1e-5, atol=1e-7)


def test_what_does_not_move_has_the_tangent_0():
    X = RNG.standard_normal((3, 5))
    still = B(5).dtype("float64").tanh().loss("mse").build()
    np.testing.assert_array_equal(still.jvp(X, {})[1], np.zeros((3, 5)))
    beside = L.Parallel(L.Tanh(), L.Dense(5, bias=False), merge="add")
    model = B(5, seed=0).dtype("float64").add(beside).loss("mse").build()
    (path,) = model.get_weights()
    tW = RNG.standard_normal((5, 5))
    np.testing.assert_allclose(model.jvp(X, {path: tW})[1], X @ tW)
    model = B(5, seed=0).dense(2).add(Unread()).loss("mse").build()
    np.testing.assert_array_equal(model.hvp(X, X[:, :2], {"0.b": np.ones(2)})["1.W"], np.zeros(3))


def test_a_model_stays_between_its_passes():
    model, X, _, V = built("dense")
    first = model.layers[0]
    Y = first.forward(X)
    model.jvp(X + 1, V)
    first.backward(Y)
    np.testing.assert_allclose(first.grads["W"], X.T @ Y)


def test_both_passes_run_once_for_all_products(monkeypatch):
    model, X, y, _ = built("dense")
    A, backward, seen = model.hessian(X, y), run.backward, []

    def noted(scope, *options):
        seen.append(scope.path)
        return backward(scope, *options)

    monkeypatch.setattr(run, "backward", noted)
    for k in range(3):
        _ = A @ np.eye(3, A.shape[0])[k]
    assert seen.count("") == 1


def test_directions_are_checked():
    model, X, y, V = built("dense")
    with pytest.raises(ArgumentError, match=r"no parameter is called '9.W': they are 0\.W"):
        model.hvp(X, y, {"9.W": V["0.W"]})
    with pytest.raises(ShapeError, match=r"the direction of 0\.W has shape \(3,\)"):
        model.jvp(X, {"0.W": np.ones(3)})
    with pytest.raises(ArgumentTypeError, match="a direction is a dictionary by path"):
        model.jvp(X, None)
    with pytest.raises(ArgumentError, match=r"direction of 0\.W"):
        model.hvp(X, y, {"0.W": np.full((5, 4), np.nan)})
    with pytest.raises(ArgumentTypeError, match=r"direction of 0\.W"):
        model.hvp(X, y, {"0.W": [["a"] * 4] * 5})
    with pytest.raises(ShapeError, match="tX has shape"):
        model.jvp(X, V, X[:2])
