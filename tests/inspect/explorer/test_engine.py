"""The explorer's engine computes what the trace has: arrays, terms, slopes, shares and nudges."""

import json

import numpy as np
import pytest
from hypothesis import given

from phitodeep import Sequential
from phitodeep import layers as L
from phitodeep.derivations.language import run as stepwise
from phitodeep.inspect.explorer.document import text_of
from phitodeep.loss import BinaryCrossEntropy, MeanSquaredError
from phitodeep.optimization.optimizers import SGD
from phitodeep.testing.examples import data, made, pair
from tests.conftest import model_for
from tests.derivations.test_random_networks import TARGETS, model_of, options_of
from tests.exchange.several import NETWORKS, built, predicted, wired
from tests.inspect.explorer.checks import FRESH, VALIDATOR, Ref, check, check_all, unpacked
from tests.inspect.test_trace import CASES
from tests.loss.test_loss import EXAMPLES as LOSSES
from tests.random_networks import networks
from tests.rows import KINDS, LONG, TOOLS, over
from tests.test_random_networks import examples

SHARE = 1.0 if LONG else 0.1  # of the cells whose slopes are looked at
# a TiedDense has the weights of a layer outside the model
OTHERS = [row for row in TOOLS if row not in KINDS and not isinstance(row[0](), L.TiedDense)]
UNLIKE = (  # their steps are least like those of KINDS; `make test-browser` has all layers
    *(L.Bidirectional, L.DepthwiseConv2D, L.GlobalAvgPool, L.GroupNorm, L.GRU, L.HardSwish),
    *(L.MaxPool1D, L.Mish, L.PositionalEmbedding, L.RandomCrop, L.Reparameterize),
    *(L.RotaryEmbedding, L.SwiGLU, L.TimeDistributed),
)
ROWS = [*KINDS, *(row for row in OTHERS if LONG or type(row[0]()) in UNLIKE)]


def around(layer, shape, tokens):
    """A model with a layer, after one that learns if it takes no tokens."""
    first = L.PReLU() if len(shape) > 2 else L.Dense(shape[-1], shape[-1])
    before = [] if tokens else [first]
    options = {"loss_class": MeanSquaredError(), "optimizer": SGD(0.1)}
    return model_for(shape[1:], *before, layer, dtype="float64", seed=3, **options)


@over(ROWS)
def test_every_layer(js, make, shape, tokens):
    """Slopes, shares, nudges and the schema depend only on the kind of layer."""
    layer = made(make, shape)
    model, (X, y) = around(layer, shape, tokens), data(layer, shape, tokens)
    live = all(map(stepwise.has_steps, [part for _, part in layer.walk()]))
    full = LONG or type(layer) in {type(row[0]()) for row in KINDS}
    doc = json.loads(check_all(js, model, X, y, share=SHARE, full=full))
    assert doc["live"] == live
    if full:
        VALIDATOR.validate(doc)


def before_loss(loss):
    """The activation whose output a loss takes."""
    if loss.wants == "probabilities":
        return [L.Sigmoid() if isinstance(loss, BinaryCrossEntropy) else L.Softmax()]
    if loss.wants == "log-probabilities":
        return [L.LogSoftmax()]
    return [L.Softplus()] if repr(loss) == "PoissonNLL(False)" else []


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_every_loss(js, loss):
    index = LOSSES.index(loss)
    shape = [(2, 3, 4), (3, 4), (1, 4)][index % 3]
    layers = L.Dense(4, 4), *before_loss(loss)
    model = model_for(shape[1:], *layers, loss_class=loss, dtype="float64", seed=2)
    X, (_, y) = FRESH(1).standard_normal(shape), pair(loss, shape)
    options = {"sample_weight": np.linspace(0.0, 2, shape[0] + 1)[1:]} if index % 2 else {}
    check_all(js, model, X, y, options, SHARE, full=LONG or index % 3 == 0)


def nested():
    """A network with two inputs and two outputs inside another one."""
    uses = [
        (L.Dense(3), ["p"], ["a"]),
        (L.Tanh(), ["q"], ["b"]),
        (L.Multiply(), ["a", "b"], ["c"]),
        (L.Add(), ["c", "a"], ["d"]),
    ]
    inner = L.Wired(["p", "q"], uses, ["c", "d"])
    uses = [
        (L.Dense(3), ["x"], ["u"]),
        (inner, ["u", "x"], ["v", "w"]),
        (L.Subtract(), ["v", "w"], ["z"]),
    ]
    return wired(["x"], uses, ["z", "v"], (3,))


@pytest.mark.parametrize("make", [*NETWORKS, nested])
def test_several_inputs_outputs_and_losses(js, make):
    model, X = built(make)
    X = {name: A[:3] for name, A in X.items()}
    y = {name: P + FRESH(1).standard_normal(P.shape) for name, P in predicted(model, X).items()}
    X, y = [values if len(values) > 1 else next(iter(values.values())) for values in (X, y)]
    for targets in [{**y, "digit": [0, 2, 1]}, {**y, "digit": None}] if "digit" in y else [y]:
        doc = json.loads(check_all(js, model, X, targets, share=SHARE))
        assert doc["live"]
        VALIDATOR.validate(doc)
        trace = model.trace(X, targets)
        assert all(row.Y == 0 for row in trace.diff(trace).rows)


SHORT = [name for name in CASES if "32" not in name and (LONG or name != "gpt")]


@pytest.mark.parametrize("name", SHORT)
def test_the_options_of_training(js, name):
    make, given, y, options = CASES[name]
    model = make()
    model.cast("float64")
    full = LONG or name in ("gpt with lengths", "nested", "weights of positions")
    assert json.loads(check_all(js, model, given, y, options, SHARE, full))["live"]


@examples(1)
@given(networks(samples=(1, 2, 3)) | networks(kinds=("sequences", "tokens"), masked=True), TARGETS)
def test_random_networks(js, net, kind):
    (model, y), rng = model_of(net, kind), FRESH(net.seed)
    check_all(js, model, net.X, y, options_of(model, net, rng))


def test_slopes_of_a_softmax_and_paths_of_which_nothing_is_left(js):
    # The Jacobian that the page draws: a row of dS is the slopes in dP, times the row of dP.
    model = Sequential(L.MultiHeadAttention(2, causal=True), dtype="float64", seed=3)
    X, y = FRESH(5).standard_normal((2, 2, 4, 6))
    trace = model.trace(X, y)
    P, dP, dS = (trace[f"0.{name}"].array[1, 0, 2] for name in ("P", "dP", "dS"))
    text, rows = check(js, trace), []
    for k in range(4):
        ref = {**Ref("0", "dS", (1, 0, 2, k)).data(), "from": ["dP"]}
        (found,) = js.ask(text, ["local", {}, ref])
        slopes = unpacked(found[0]).copy()
        rows.append(slopes[1, 0, 2].copy())
        slopes[1, 0, 2] = 0
        assert not slopes.any()  # no other row
    np.testing.assert_allclose(rows, np.diag(P) - np.outer(P, P), atol=1e-12)
    np.testing.assert_allclose(rows @ dP, dS, atol=1e-12)
    # All paths of a small network are found, and a few of them are the strongest.
    layers = L.Dense(2, 3), L.Tanh(), L.Residual(L.Dense(3, 3)), L.Dense(3, 2)
    model = Sequential(*layers, dtype="float64", seed=1)
    rng = FRESH(0)
    text = check(js, model.trace(rng.standard_normal((3, 2)), rng.standard_normal((3, 2))))
    at = {}, Ref("0", "dW", (1, 2)).data()
    whole, part, narrow = js.ask(
        text, ["paths", *at, 10**6, 10**6], ["paths", *at, 5, 10**6], ["paths", *at, 5, 5]
    )
    assert len(whole["paths"]) == 3 * (3 + 1) * 2
    assert abs(whole["rest"]) < 1e-15
    assert part["paths"] == whole["paths"][:5]
    for found in (part, narrow):
        assert len(found["paths"]) == 5
        total = sum(path["value"] for path in found["paths"])
        assert found["rest"] == pytest.approx(found["total"] - total, abs=1e-15)
    sizes = [abs(path["value"]) for path in whole["paths"]]
    assert sizes == sorted(sizes, reverse=True)
    inside = L.Chain(L.Dense(3), L.Softmax())
    model = Sequential(L.TimeDistributed(inside), dtype="float64", seed=0)
    X = FRESH(0).standard_normal((2, 4, 3))
    text_of(model.trace(X, X, lengths=[4, 2]))
