"""Layers without steps show those of their source, where these have the values of their passes."""

from functools import partial

import numpy as np
import pytest

from phitodeep import SequentialBuilder
from phitodeep.core.call import calling, watching
from phitodeep.derivations.derive import own
from phitodeep.derivations.language import run
from phitodeep.functional import sigmoid
from phitodeep.layers import Dense, Lambda, Layer, Param, Shared, State, TimeDistributed
from phitodeep.testing import check_gradients
from tests.derivations.test_contract import assert_close, same_passes

SHARPNESS = 0.7


def swish(x):
    """Ramachandran, Zoph and Le 2017."""
    s = sigmoid(SHARPNESS * x)
    return x * s


def swish_gradient(dY, x, y):
    s = sigmoid(SHARPNESS * x)
    return dY * (s + SHARPNESS * y * (1 - s))


class RMS(Layer):
    """As a package of layers for phitodeep could have it."""

    gamma = Param()

    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps

    def create(self, shape):
        self.gamma = self.full(shape[-1], 1)
        return shape

    def forward(self, X):
        """Y = gamma X / rms(X)."""
        r = 1 / np.sqrt((X**2).mean(axis=-1, keepdims=True) + self.eps)
        X_hat = X * r
        out = self.params["gamma"] * X_hat
        self.save_for_backward(
            r=r,
            X_hat=X_hat,
        )
        return out

    def backward(self, dY):
        r, X_hat = self.saved("r", "X_hat")
        self.grads["gamma"] = (dY * X_hat).reshape(-1, X_hat.shape[-1]).sum(axis=0)
        d = dY * self.gamma
        return r * (d - X_hat * (d * X_hat).mean(axis=-1, keepdims=True))


def shifted(by):
    return Lambda(lambda X: X**3 + by * X, lambda dY, X, Y: dY * (3 * X**2 + by))


READ = {
    "a function": (lambda: Lambda(swish, swish_gradient), (5,)),
    "a lambda": (lambda: shifted(0.5), (5,)),
    "a lambda on several lines": (
        lambda: Lambda(
            lambda é: (
                (é + 1)
                * np.exp(
                    -é,
                )
            ),
            lambda dY, é, Y: dY * (-é * np.exp(-é)),
        ),
        (5,),
    ),
    "two inputs": (
        lambda: Lambda(lambda A, B: A * B, lambda dY, A, B, Y: (dY * B, dY * A), inputs=2),
        ((3,), (3,)),
    ),
    "a layer": (RMS, (5,)),
    "sequences": (partial(RMS, 0.1), (4, 3)),
    "a square matrix": (
        lambda: Lambda(lambda X: X @ X, lambda dY, X, Y: dY @ X.mT + X.mT @ dY),
        (3, 3),
    ),
    "only part of the numbers": (
        lambda: Lambda(lambda X: np.log(X), lambda dY, X, Y: dY / X),
        (4,),
    ),
}


def built(make, shape):
    layer = make()
    with np.errstate(all="ignore"):
        layer.build(shape, seed=0, dtype=np.float64)
    return layer


@pytest.mark.parametrize(("make", "shape"), READ.values(), ids=READ)
def test_steps_of_the_source_have_the_values_of_both_passes(make, shape):
    layer = built(make, shape)
    assert layer.steps() is not None
    rng = np.random.default_rng(1)
    shapes = [shape] if layer.inputs == 1 else shape
    X = [0.5 + rng.random((6, *s)) for s in shapes]
    same_passes(
        layer, X[0] if layer.inputs == 1 else tuple(X), rng.standard_normal((6, *shapes[0]))
    )


def test_the_formulas_are_those_of_the_source():
    assert str(built(*READ["a function"]).steps()).split("\n") == [
        "forward",
        "  s = sigmoid(0.7 · X)",
        "  Y = X · s",
        "backward",
        "  dX = dY · (0.7 · Y + s · (1 - 0.7 · Y))",
    ]
    formulas = str(built(RMS, (5,)).steps())
    assert "  r = 1 / √(mean_X + ε)\n  X̂ = X · r\n  Y = \u03b3 · X̂\n" in formulas
    assert "  d\u03b3_d = Σ_n dY_nd X̂_nd\n" in formulas


class Counted(RMS):
    """Changes a state in place."""

    seen = State()

    def create(self, shape):
        self.seen = np.zeros(1)
        return super().create(shape)

    def forward(self, X):
        self.seen += 1
        return X * self.gamma


class Drawn(RMS):
    def forward(self, X):
        return X * self.gamma + np.random.default_rng(0).standard_normal(X.shape)


class Wrong(RMS):
    def backward(self, dY):
        dX = super().backward(dY)
        self.grads["gamma"] /= 2
        return dX


class RightAtFirst(RMS):
    """Its dX is right as long as gamma is 1."""

    def backward(self, dY):
        dX = super().backward(dY)
        return dX / self.gamma


class Unfinished(RMS):
    def forward(self, X):
        raise RuntimeError("not yet")


class Closed(RMS):
    def steps(self):
        return None


NOT_READ = {
    "not Python": (lambda: Lambda(np.tanh, lambda dY, X, Y: dY * (1 - Y * Y)), (5,)),
    "a call of the user's": (lambda: Lambda(lambda X: swish(X), swish_gradient), (5,)),
    "a wrong gradient": (lambda: Lambda(lambda X: X**2, lambda dY, X, Y: dY * X), (5,)),
    "a wrong gradient of a parameter": (Wrong, (5,)),
    "a gradient that is clipped": (
        lambda: Lambda(lambda X: 2 * X, lambda dY, X, Y: 2 * np.clip(dY, -5, 5)),
        (5,),
    ),
    "a wrong gradient on one side": (
        lambda: Lambda(lambda X: np.abs(X), lambda dY, X, Y: dY),
        (1,),
    ),
    "right for the first parameters": (RightAtFirst, (5,)),
    "a state that changes": (Counted, (5,)),
    "drawn": (Drawn, (5,)),
    "declared unknown": (Closed, (5,)),
    "no finite number": (
        lambda: Lambda(lambda X: np.log(-X * X), lambda dY, X, Y: 2 * dY / X),
        (5,),
    ),
}


@pytest.mark.parametrize(("make", "shape"), NOT_READ.values(), ids=NOT_READ)
def test_what_cannot_be_read_or_disagrees_is_a_single_step(make, shape):
    layer = built(make, shape)
    assert layer.steps() is None
    assert len(run.derivation_of(layer).forward) == 1


def test_layers_that_are_not_built_or_raise_have_no_steps():
    assert RMS().steps() is None
    assert Unfinished().steps() is None
    layer = Unfinished()
    layer.build((5,))
    assert layer.steps() is None


def test_a_layer_in_float32_keeps_its_dtype():
    layer = RMS()
    layer.build((5,))
    assert layer.steps() is not None
    assert layer.gamma.dtype == np.float32


def test_steps_are_found_in_every_mode_and_under_a_watch():
    layer = built(RMS, (5,))
    seen = []
    with calling(training=False, caching=False, needs_dX=False), watching(seen.append):
        assert layer.steps() is not None
    assert not seen


def test_reading_leaves_a_layer_as_it_is():
    layer = built(RMS, (5,))
    X, dY = np.random.default_rng(0).standard_normal((2, 4, 5))
    with calling(step=0):
        layer.forward(X)
        assert layer.steps() is not None
        dX = layer.backward(dY)
        grad = layer.grads["gamma"].copy()
        layer.forward(X)
        np.testing.assert_array_equal(layer.backward(dY), dX)
    np.testing.assert_array_equal(layer.grads["gamma"], grad)
    np.testing.assert_array_equal(layer.gamma, np.ones(5))


def test_numbers_from_outside_are_those_of_each_function(monkeypatch):
    layer = built(*READ["a function"])
    monkeypatch.setitem(globals(), "SHARPNESS", 2)
    assert "sigmoid(2 · X)" in str(layer.steps())
    layers = [built(partial(shifted, by), (3,)) for by in (1, 2.5)]
    assert [str(part.steps()).split("\n")[1] for part in layers] == [
        "  Y = X³ + 1 · X",
        "  Y = X³ + 2.5 · X",
    ]


def network(*layers):
    builder = SequentialBuilder(4, seed=0).dtype("float64").dense(6)
    for layer in layers:
        builder = builder.add(layer)
    return builder.dense(3).loss("softmax_cross_entropy").build()


DATA = np.random.default_rng(0).standard_normal((5, 4)), np.array([0, 2, 1, 1, 0])


def test_the_tools_see_inside(tmp_path):
    model = network(RMS(), Lambda(swish, swish_gradient))
    X, y = DATA
    t = model.trace(X, y)
    assert "no steps()" not in str(t)
    for key, cell in (
        ("1.r", (2, 0)), ("1.backward.dX", (1, 3)), ("1.dgamma", (4,)),
        ("2.s", (0, 1)), ("2.backward.dX", (3, 2)),
    ):  # fmt: skip
        assert t[key].why(*cell).total == pytest.approx(t[key].array[cell])
    assert str(t["2.backward.dX"].why(0, 0)).count("dY") > 1
    wanted = network(Closed(), Lambda(swish, swish_gradient)).trace(X, y)
    for key in ("0.dW", "1.dgamma", "2.dX"):
        assert_close(t[key].array, wanted[key].array, key)
    debugger = model.debug(X, y)
    debugger.set_break("2.backward")
    assert "(0.7 · Y + s ·" in str(debugger.list()) + str(debugger.cont()) + str(debugger.list())
    debugger.until("1.backward.dX_hat")
    np.testing.assert_allclose(debugger.p("dX_hat"), t["1.backward.dX_hat"].array, rtol=1e-12)
    t.save(tmp_path / "step.html")
    assert "X_hat" in (tmp_path / "step.html").read_text(encoding="utf-8")


def test_attributions_and_hessian_products_agree_with_differences():
    model = network(RMS(), Lambda(swish, swish_gradient))
    X, y = DATA
    slopes = model.attributions(X, target=1)
    step = 1e-6 * np.eye(4)[2]
    rise = model.predict(X + step)[:, 1] - model.predict(X - step)[:, 1]
    np.testing.assert_allclose(slopes[:, 2], rise / 2e-6, rtol=1e-6, atol=1e-9)
    V = {"1.gamma": np.arange(6.0)}
    HV = model.hvp(X, y, V)
    gamma = model.layers[1].gamma.copy()
    found = []
    for sign in (1, -1):
        model.layers[1].gamma = gamma + sign * 1e-5 * V["1.gamma"]
        found.append(model.trace(X, y)["1.dgamma"].array)
    np.testing.assert_allclose(HV["1.gamma"], (found[0] - found[1]) / 2e-5, rtol=1e-5, atol=1e-9)


def test_a_shared_layer_and_one_for_each_time_step():
    first = RMS()
    model = network(first, Dense(6), Shared(first))
    t = model.trace(*DATA)
    assert "no steps()" not in str(t)
    assert t["3.X_hat"].why(0, 0).total == pytest.approx(t["3.X_hat"].array[0, 0])
    layer = built(lambda: TimeDistributed(RMS()), (3, 4))
    X = np.random.default_rng(0).standard_normal((2, 3, 4))
    same_passes(layer, X, np.random.default_rng(1).standard_normal((2, 3, 4)))
    assert check_gradients(layer, X).worst < 1e-6


def test_training_reads_no_source(monkeypatch):
    monkeypatch.setattr(own, "steps_of", None)
    model = network(RMS(), Lambda(swish, swish_gradient))
    model.train(*DATA, epochs=2, verbose=0)
    assert model.predict(DATA[0]).shape == (5, 3)
    with pytest.raises(TypeError):
        model.trace(*DATA)


def test_a_layer_whose_passes_run_its_steps_has_none():
    class Asking(Layer):
        def forward(self, X):
            self.save_for_backward(X=X)
            return X * X

        def backward(self, dY):
            scope = run.Scope(self, X=self.saved("X"))
            run.run(run.forward(scope))
            run.run(run.backward(scope, dY))
            return scope["dX"]

    layer = Asking()
    layer.build((3,))
    assert layer.steps() is None
