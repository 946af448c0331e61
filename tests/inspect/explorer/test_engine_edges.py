"""The engine where something is special: hooks, layers without steps, NaN, large arrays."""

import copy
import json

import numpy as np
import pytest

from phitodeep import Sequential
from phitodeep import layers as L
from phitodeep.derivations.language.notation import FUNCTIONS
from phitodeep.derivations.language.step import Arrange, Derivation, Let, Loop, Sum, evaluate
from phitodeep.errors import ArgumentError
from phitodeep.inspect.explorer import document
from phitodeep.inspect.explorer.document import BINARY, COMPARE, SAME, text_of, tree
from phitodeep.inspect.hooks import symbols_of
from phitodeep.layers import Layer, Param
from phitodeep.loss import SoftmaxCrossEntropy
from phitodeep.model.architectures import gpt
from phitodeep.optimization.optimizers import LBFGS, SGD
from tests.inspect.explorer import checks
from tests.inspect.shared import Plain
from tests.random_networks import Closed, Gate
from tests.rows import few

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((4, 3)), RNG.standard_normal((4, 2))
S, YS = RNG.standard_normal((3, 4, 3)), RNG.standard_normal((3, 4, 2))


def model_of(*layers, **options):
    return Sequential(*layers, **{"seed": 1, "dtype": "float64", "optimizer": SGD(0.1)} | options)


def dense(*between, **options):
    return model_of(L.Dense(3, 4), *between, L.Dense(4, 2), **options)


def more(A, at):
    return 1.5 * A + 0.25 if isinstance(A, np.ndarray) and A.dtype.kind == "f" else None


HOOKED = [
    ("1", dense(L.Softmax()), X, Y),
    ("1", dense(L.LayerNorm()), X, Y),
    ("0", dense(L.Tanh()), X, Y),
    ("1.layers.0", dense(L.Residual(L.Dense(4, 4))), X, Y),
    ("0", model_of(L.LSTM(2)), S, YS),
    ("0", model_of(L.MultiHeadAttention(1), L.Dense(2)), S, YS),
]


def places():
    found = []
    for path, model, given, y in HOOKED:
        model.build(given.shape[1:])
        layer = dict(model.walk())[path]
        for way in ("forward", "backward"):
            keys = (f"{path}.{way}.{symbol}" for symbol in symbols_of(layer, way))
            found += [pytest.param(model, given, y, key, id=f"{layer!r} {key}") for key in keys]
    return found


@pytest.mark.parametrize(("model", "given", "y", "key"), few(places(), 4))
def test_what_a_hook_returned_is_shown(js, model, given, y, key):
    with model.hooks(**{"fwd" if "forward" in key else "bwd": {key: more}}):
        trace = model.trace(given, y)
        text = checks.check(js, trace)
        assert not json.loads(text)["live"]
        checks.check_shares(js, trace, text)
    js.ask(text, ["everything", {}], ["everything", {"sample": 1}])
    name, W = next(iter(json.loads(text)["parameters"].items()))
    nudged = js.arrays(text, given={name: np.zeros(W["shape"])})
    assert nudged["loss", "L"] is None  # it is not known without the hook


@pytest.mark.parametrize(
    "layers",
    [
        (L.Lambda(np.sin, lambda dY, X, Y: np.cos(X) * dY),),
        (Closed(), L.Tanh()),
        (Gate(L.Dense(4, 4), L.Dense(4, 4)),),
    ],
    ids=["Lambda", "Closed", "Gate"],
)
def test_layers_without_steps_are_recorded(js, layers):
    text = checks.check_all(js, dense(*layers), X, Y)
    assert not json.loads(text)["live"]
    shares = js.arrays(text, sample=1)
    assert shares["0", "dW"] is None  # it would need the layer's own backward pass
    assert shares[str(len(layers) + 1), "dW"] is not None
    nudged = js.arrays(text, given={"0.W": np.ones((3, 4))})
    assert nudged["0", "Y"] is not None
    assert nudged["1", "Y"] is None
    js.ask(text, ["everything", {}], ["everything", {"sample": 0}])
    js.ask(text, ["everything", {"given": {"0.W": np.ones((3, 4))}}])


def test_losses_without_steps_and_steps_of_a_users_own(js):
    trace = dense(loss_class=Plain()).trace(X, Y)
    text = checks.check(js, trace)
    assert not json.loads(text)["live"]
    assert js.arrays(text, sample=1)["loss", "dP"] is None
    js.ask(text, ["everything", {"sample": 1}])
    checks.check_all(js, model_of(Decay(), L.Dense(2)), S, YS)


class Decay(Layer):
    """y_t = x_t W V / (1 + t): a layer of a user's own; its steps read t, and sum three factors."""

    W, V = Param(), Param()

    def create(self, shape):
        self.W, self.V = np.linspace(0.5, 1, shape[-1]), np.linspace(1, -2, shape[-1])
        return shape

    def forward(self, X):
        self.save_for_backward(X=X)
        return X * self.W * self.V / (1 + np.arange(X.shape[1]))[:, None]

    def backward(self, dY):
        share = dY / (1 + np.arange(dY.shape[1]))[:, None]
        for name, other in (("W", self.V), ("V", self.W)):
            self.grads[name] = (share * self.saved("X")).sum((0, 1)) * other
        return share * self.W * self.V

    def steps(self):
        x_t = Arrange("x_t", "X[:, t]", "X", "step t")
        dy_t = Arrange("dy_t", "dY[:, t]", "dY", "step t")
        return Derivation(
            [Loop("X", [x_t, Let("y_t", "x_t * W * V / (1 + t)")]), Let("Y", "y_t")],
            [
                Loop("X", [dy_t, Let("share", "dy_t / (1 + t)")]),
                Sum("dW", "ntd,ntd,d->d", "X", "share", "V"),
                Sum("dV", "ntd,ntd,d->d", "X", "share", "W"),
                Sum("dX", "ntd,d,d->ntd", "share", "W", "V"),
            ],
        )


def test_tied_and_frozen_weights_and_no_update(js):
    e = L.Embedding(5, 3)
    model = model_of(e, L.Tanh(), L.TiedDense(e), loss_class=SoftmaxCrossEntropy())
    tokens, y = RNG.integers(0, 5, (2, 4)), RNG.integers(0, 5, (2, 4))
    trace = model.trace(tokens, y)
    text = checks.check(js, trace)
    assert [*json.loads(text)["parameters"]] == ["0.W"]
    checks.check_nudges(js, model, tokens, y, text)
    found = js.arrays(text)
    total = checks.floats(found["0", "dW"]) + checks.floats(found["2", "dW"])
    np.testing.assert_allclose(trace.updates["0"]["W"], -0.1 * total, atol=1e-12)
    model = dense(L.BatchNorm(), L.PReLU())
    model.build((3,))
    model.layers[0].trainable = model.layers[1].trainable = False
    text = checks.check_all(js, model, X, Y)
    assert not any(key.startswith(("0.", "1.")) for key in json.loads(text)["updates"])
    trace = dense(optimizer=LBFGS()).trace(X, Y)
    doc = json.loads(checks.check(js, trace))
    assert doc["updates"] == {}
    assert doc["after"] is None
    assert "L-BFGS" in " ".join(doc["remarks"])


def test_a_layer_before_tokens_has_no_backward_steps():
    model = model_of(L.Select([0, 1], tokens=True), L.Embedding(5, 3), L.Flatten(), L.Dense(2))
    doc = json.loads(text_of(model.trace(RNG.integers(0, 5, (4, 2)), Y)))
    assert doc["scopes"]["0"]["forward"]
    assert doc["scopes"]["0"]["backward"] == []


@pytest.mark.parametrize(
    ("layer", "rows"), [(L.LSTM(2), 1), (L.MultiHeadAttention(1), 3), (L.Conv1D(2, 1), 1)], ids=repr
)
def test_one_sample_and_one_step(js, layer, rows):
    model = model_of(layer.copy(), L.GlobalMaxPool(), L.Dense(2))
    checks.check_all(js, model, S[:rows, :1], Y[:rows])


@pytest.mark.parametrize(
    ("layers", "value"),
    [
        ((L.ReLU(),), np.nan),
        ((L.ReLU(),), -np.inf),
        ((L.LayerNorm(), L.GELU()), np.nan),
        ((L.Softmax(),), np.inf),
        ((L.Softmax(),), -np.inf),
        ((L.Tanh(), L.BatchNorm()), np.inf),
    ],
)
def test_values_that_are_not_finite(js, layers, value):
    model = dense(*[layer.copy() for layer in layers])
    model.build((3,))
    model.layers[0].params["W"][1, 2] = value
    with np.errstate(all="ignore"):
        trace = model.trace(X, Y)
        text = text_of(trace)
    doc = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert doc["live"]
    same_forward(js, trace, text)
    js.ask(text, ["everything", {}])
    (loss,) = js.ask(text, ["loss", {}])
    checks.assert_close(loss, doc["loss"], "loss", 1e-12)


@pytest.mark.parametrize("sign", [1, -1], ids=["inf", "nan"])
@pytest.mark.parametrize(
    "layer", [L.MaxPool1D(2), L.MaxPool1D(3, 1, "same"), L.GlobalMaxPool()], ids=repr
)
def test_pooling_of_values_that_are_not_finite(js, layer, sign):
    model, given = model_of(L.Dense(3), L.Swish(), layer.copy()), np.full((3, 4, 3), 0.1)
    model.build((4, 3))
    model.layers[0].params["W"][0, 1] = sign * 1e308
    given[0, :3, 0] = given[1, 1, 0] = 10  # infinity, or -infinity, of which Swish makes NaN
    with np.errstate(all="ignore"):
        trace = model.trace(given, np.zeros((3, *(model.output_shape or ()))))
        text = text_of(trace)
    assert (np.isinf if sign > 0 else np.isnan)(trace["2.X"].array).sum() == 4
    same_forward(js, trace, text)


def same_forward(js, trace, text):
    """Backward, infinity times 0 depends on the order of the factors."""
    found = js.arrays(text)
    for key, entry in trace.items():
        path, direction, symbol = trace.find(key)
        if direction == "forward":
            checks.assert_close(found[path, symbol], entry.array, key)


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (dense(L.LayerNorm(), L.GELU()), 0),
        (dense(L.LayerNorm(), L.GELU()), 40),
        (model_of(L.LSTM(2), L.Dense(2)), 5),
        (model_of(L.MultiHeadAttention(1), L.Residual(L.TimeDistributed(L.Dense(3)))), 12),
        (model_of(L.Conv1D(3, 2, padding="same"), L.MaxPool1D(2), L.BatchNorm()), 5),
    ],
)
def test_reduced_arrays(js, model, count, monkeypatch):
    """What is not reduced is right, what is has its largest number, and nothing fails."""
    monkeypatch.setattr(document, "SIZES", [(count, 64)])
    given = X if model.layers[0].__class__ is L.Dense else S
    model.build(given.shape[1:])
    y = RNG.standard_normal((len(given), *(model.output_shape or ())))
    trace = model.trace(given, y)
    text = text_of(trace)
    doc = json.loads(text)
    found = js.arrays(text)
    reduced = whole = 0
    for key, entry in trace.items():
        path, direction, symbol = trace.find(key)
        if direction == "update":
            continue
        value = found[path, symbol]
        assert value is not None, key
        if isinstance(value, dict):
            A = checks.floats(entry.array)
            reduced += 1
            assert value["n"] == A.size > count
            place, top = value["top"][0]
            assert abs(float(top)) == pytest.approx(np.abs(A).max())
            assert float(top) == pytest.approx(A.flat[place])
        else:
            whole += 1
            checks.assert_close(value, entry.array, key)
    assert whole or not count
    assert doc["live"] == (reduced == 0)
    assert reduced or count > 5
    js.ask(text, ["everything", {}], ["everything", {"sample": 1}])
    key, parameter = next(iter(doc["parameters"].items()))
    js.ask(text, ["everything", {"given": {key: np.ones(parameter["shape"])}}])
    share = js.arrays(text, sample=1)
    for key, entry in trace.by_sample(1).items():
        path, _, symbol = trace.find(key)
        if isinstance(share.get((path, symbol)), np.ndarray):
            checks.assert_close(share[path, symbol], entry.array, key)
    nudged = js.arrays(text, given={key: np.ones(parameter["shape"])})
    assert (nudged["loss", "L"] is None) == (not doc["live"])


def test_documents_have_a_size_and_a_schema(monkeypatch):
    monkeypatch.setattr(document, "LARGEST", 5000)
    with pytest.raises(ArgumentError, match=r"holds at most 5,000 characters.*trace fewer samples"):
        text_of(dense().trace(X, Y))
    assert "<table" in dense().trace(X, Y)._repr_html_()  # a notebook shows the table instead
    monkeypatch.undo()
    monkeypatch.setattr(document, "SIZES", [(3, 64)])
    model = dense(L.Tanh())
    with model.hooks(fwd={"1.Y": more}):
        doc = json.loads(text_of(model.trace(X, Y)))
    checks.VALIDATOR.validate(doc)
    assert "returned" in json.dumps(doc)
    assert "thumb" in json.dumps(doc)


def test_a_reduced_array_shows_what_is_not_finite(js, monkeypatch):
    monkeypatch.setattr(document, "SIZES", [(3, 64)])
    model = dense()
    model.build((3,))
    model.layers[0].params["W"][1, 2] = np.nan
    model.layers[0].params["W"][2, 3] = -np.inf
    with np.errstate(all="ignore"):
        found = js.arrays(text_of(model.trace(X, Y)))["0", "W"]
    assert found["top"][0] == [6, "NaN"]
    assert found["top"][1] == [11, "-Infinity"]
    thumb = np.isnan(checks.unpacked(found["thumb"]))
    assert np.argwhere(thumb).tolist() == [[1, 2], [2, 3]]


OURS = {"erf", "sigmoid", "softplus"}  # which NumPy lacks
UNARY = {*OURS, "exp", "log", "tanh", "sin", "cos", "log1p", "expm1", "sign", "cosh", "sinh"}
UNARY |= {"arctan", "abs", "sqrt", "signbit", "square", "tan", "floor", "ceil", "round", "exp2"}
OTHERS = ["np.clip(a, b, 1.5)", "np.maximum(a, b)", "np.minimum(a, b)", "np.logaddexp(a, b)"]
OTHERS += ["np.where(a > b, a, -b)", "np.logical_and(a > 0, b > 0)", "np.logical_or(a > 0, b > 0)"]
OTHERS += ["(a > 0) & (b > 0)", "(a > 0) | (b > 0)", "(a > 0) ^ (b > 0)", "~(a > b)", "+a - -b"]
OTHERS += ["a ** 2 / b * np.pi", "np.exp(-np.inf) + a", "np.int64(a)", "a % 3", "a == b", "a != b"]
OTHERS += ["a >= b", "a <= b", "a < b"]
POINTS = [-3.7, -3.0, -2.5, -1.0, -0.3, -1e-9, 0.0, 1e-9, 0.4, 1.0, 2.9999, 3.0, 3.1, 6.5, 40.0]


def test_expressions_equal_numpy_and_every_function_is_tried(js):
    codes = [f"{'' if name in OURS else 'np.'}{name}(a)" for name in sorted(UNARY)] + OTHERS
    asked, wanted = [], []
    for code in codes:
        for a in POINTS:
            for b in (-3.0, -0.5, 0.25, a) if " b" in code or "b)" in code else (1.0,):
                asked.append([tree(code), {"a": a, "b": b}])
                with np.errstate(all="ignore"):
                    wanted.append(float(evaluate(code, {"a": np.float64(a), "b": np.float64(b)})))
    found = js.send(json.dumps({"trees": asked}))
    np.testing.assert_allclose(checks.floats(found), wanted, rtol=2e-15, atol=1e-300)
    assert {*FUNCTIONS} <= UNARY | {"clip", "maximum", "minimum", "logical_and", "logical_or"}
    for sign in {*BINARY.values(), *COMPARE.values()}:
        assert any(sign in json.dumps(tree(code)) for code in OTHERS), sign
    assert SAME["int64"] == "trunc"


def test_other_documents_and_expressions_are_refused(js):
    for change, says in [
        ({"version": 1}, r"reads version 2 of the document, and this one has version 1: save"),
        ({"version": None}, "has version null"),
        ({"format": "other"}, 'has the format "phitodeep.trace", and this one has not'),
    ]:
        doc = json.loads(text_of(dense().trace(X, Y)))
        assert js.send(json.dumps({"refuse": doc})) == document.VERSION
        with pytest.raises(checks.JavaScriptError, match=says):
            js.send(json.dumps({"refuse": doc | change}))
    for code in ["0 < a < 1", "a if b else 1", "a[0]", "np.e", "'a'", "a.T @ b"]:
        with pytest.raises(ArgumentError, match="the explorer cannot evaluate"):
            tree(code)


def test_a_small_gpt_and_the_digits_are_small_and_fast(js):
    model = gpt(64, 12, layers=1, heads=2, dim=16).build()
    model.loss = SoftmaxCrossEntropy()
    model.cast("float64")
    tokens = RNG.integers(0, 64, (2, 13))
    trace = model.trace(tokens[:, :-1], tokens[:, 1:])
    text = text_of(trace)
    assert json.loads(text)["live"]
    assert len(text) < 1_000_000
    checks.same_arrays(js.arrays(text), trace, text, tolerance=1e-6)  # parameters are float32
    ref = checks.Ref("2.layers.0.layers.1", "dWqkv", (3, 5))
    milliseconds, *_ = js.ask(text, ["milliseconds", {}], ["paths", {}, ref.data()])
    assert milliseconds < 3000
    from phitodeep.cli.digits import build
    from phitodeep.data import load_mnist

    images, labels, *_ = load_mnist()
    text = text_of(build(1).trace(images[:8], labels[:8]))
    assert len(text) < 1_000_000
    assert json.loads(text)["live"]
    milliseconds, everything = js.ask(text, ["milliseconds", {}], ["loss", {}])
    assert milliseconds < 1000
    assert everything == pytest.approx(json.loads(text)["loss"], rel=1e-6)


def test_wrong_documents_are_refused():
    properties = checks.SCHEMA["properties"]
    assert properties["version"]["const"] == document.VERSION
    assert properties["format"]["const"] == document.FORMAT
    right = json.loads(text_of(model_of(L.LSTM(2)).trace(S, S[..., :2])))
    checks.VALIDATOR.validate(right)
    for path, value in WRONG.items():
        part = doc = copy.deepcopy(right)
        *keys, last = [key.replace("-", ".") for key in path.split(".")]
        for key in keys:
            part = part[int(key)] if isinstance(part, list) else part[key]
        part[last] = value
        assert not checks.VALIDATOR.is_valid(doc), path


WRONG = {
    "version": 1,
    "live": "yes",
    "loss": "nan",
    "unknown": 1,
    "scopes.0.forward.0.kind": "other",
    "scopes.0.forward.0.more": 1,
    "scopes.0.values.X": {"shape": [1]},
    "scopes.0.values.W": {"shape": [1], "all": 1, "as": "f4", "data": ""},
    "parameters.0-Wx.as": "f2",
}
