"""The share of each sample is its gradient when it is alone, with the divisor of the batch."""

import re
from collections import defaultdict

import numpy as np
import pytest

from phitodeep import Sequential
from phitodeep import layers as L
from phitodeep import loss as losses
from phitodeep.core.call import calling
from phitodeep.core.types import Array
from phitodeep.errors import ArgumentError, ShapeError, UnknownNameError
from phitodeep.testing.examples import data, made, pair
from phitodeep.training.inputs import validate
from tests.conftest import assert_weights, model_for
from tests.inspect.shared import LABELS, LENGTHS, ROWS, YS, S, X, Y, gpt
from tests.loss.test_loss import EXAMPLES as LOSSES
from tests.random_networks import Closed, Scale
from tests.rows import TOOLS, over

WEIGHTS = np.array([0.0, 0.5, 1.0, 2.0, 0.1, 1.0])
MIXED = np.where(ROWS == 3, -1, LABELS)  # some labels are ignored


def alone(model, X, y, **options):
    """The gradients of each sample in a batch of its own, (N, *shape), by a loop."""
    model = model.copy()
    batch = validate(model, model.loss, X, y, options.get("sample_weight"), options.get("lengths"))
    total = model.loss.divisor(batch.T, batch.w, batch.outputs)
    paths = {id(layer): path for path, layer in model.walk()}
    found = defaultdict(list)
    for n in range(len(batch.X)):
        part = batch.part(slice(n, n + 1))
        with calling(step=model.optimizer.t, first=n, mask=part.mask):
            P = model.forward(part.X)
            model.backward(model.loss.value_and_gradient(P, part.T, part.w, total)[1])
        whole = dict[str, Array]()
        for layer in (layer for _, layer in model.walk()):
            for name, gradient in layer.grads.items():
                owner, own = layer.tied.get(name, (layer, name))
                path = f"{paths[id(owner)]}.{own}"
                whole[path] = whole.get(path, 0) + np.array(gradient)
        for path, gradient in whole.items():
            found[path].append(gradient)
    return {path: np.stack(gradients) for path, gradients in found.items()}


def assert_shares(model, X, y, **options):
    g, wanted = model.sample_gradients(X, y, **options), alone(model, X, y, **options)
    assert set(g) == set(wanted)
    assert len(g) == len(wanted)
    t = model.trace(X, y, **options)
    squares = np.zeros(len(np.asarray(X)))
    for path, gradients in wanted.items():
        np.testing.assert_allclose(g[path], gradients, rtol=1e-10, atol=1e-10, err_msg=path)
        squares += (gradients**2).sum(axis=tuple(range(1, gradients.ndim)))
        cell = tuple(n // 2 for n in gradients.shape[1:])
        why = g.which_samples(path, cell)
        column = gradients[(slice(None), *cell)]
        np.testing.assert_allclose([term.value for term in why], column[_order(why)], atol=1e-10)
        assert why.total == pytest.approx(column.sum(), abs=1e-10)
        where, _, name = path.rpartition(".")
        if not any(layer.tied for _, layer in model.walk()):
            total = t[f"{where}.backward.d{name}"].array
            np.testing.assert_allclose(g[path].sum(axis=0), total, atol=1e-10)
    np.testing.assert_allclose(g.norms, np.sqrt(squares), rtol=1e-9, atol=1e-12)


def _order(why):
    assert [abs(t.value) for t in why] == sorted((abs(t.value) for t in why), reverse=True)
    return [term.at["n"] for term in why]


def has_shares(layer):
    """Whether a layer has parameters, and each sample has a share of their gradients."""
    parts = [part for _, part in layer.walk()]
    mixes = any(isinstance(part, L.BatchNorm | L.TiedDense) for part in parts)
    return not mixes and any(part._declared for part in parts)


@over(row for row in TOOLS if has_shares(row[0]()))
def test_every_layer_with_parameters(make, shape, tokens):
    model = model_for(shape[1:], made(make, shape), dtype="float64", seed=3)
    given, y = data(model, shape, tokens)
    assert_shares(model, given, y, sample_weight=np.linspace(0.2, 2, shape[0]))


def sequences():
    inner = L.TimeDistributed(L.Chain(L.Dense(3), L.Dropout(0.3), L.Dense(2)))
    layers = (L.LSTM(3), inner, L.Bidirectional(L.GRU(2)), L.Conv1D(2, 3, padding="same"))
    return Sequential(*layers, seed=0, dtype="float64")


@pytest.mark.parametrize("options", [{}, {"sample_weight": WEIGHTS}, {"lengths": LENGTHS}])
def test_networks(options):
    assert_shares(gpt(), ROWS, MIXED if "lengths" not in options else LABELS, **options)
    assert_shares(sequences(), S, YS, **options)
    frozen = gpt()
    frozen.layers[0].trainable = False
    assert_shares(frozen, ROWS, LABELS, **options)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_every_loss(loss):
    P, y = pair(loss, (5, 4))
    last = {"probabilities": L.Softmax(), "log-probabilities": L.LogSoftmax()}
    last = last.get(loss.wants, L.Dense(4, 4))
    if isinstance(loss, losses.BinaryCrossEntropy) or repr(loss) == "PoissonNLL(False)":
        last = L.Sigmoid()
    model = Sequential(L.Dense(4, 4), last, loss_class=loss, seed=2, dtype="float64")
    assert_shares(model, P, y, sample_weight=np.linspace(0.1, 2, 5))


def test_layers_that_mix_samples_unless_they_are_frozen_or_declare_that_they_do_not():
    norm = L.BatchNorm()
    model = model_for((4,), L.Dense(4, 3), L.Chain(norm), L.Dense(2), seed=0, dtype="float64")
    says = r"layer 1\.layers\.0, BatchNorm\(\), mixes the samples.*freeze it.*LayerNorm"
    with pytest.raises(ArgumentError, match=says):
        model.sample_gradients(X, Y)
    norm.trainable = False
    assert_shares(model, X, Y)
    assert_shares(Sequential(L.Dense(4, 3), Scale(), L.Dense(3, 2), dtype="float64"), X, Y)
    assert_shares(Sequential(L.Dense(4, 3), tanh(True), L.Dense(3, 2), dtype="float64"), X, Y)


class Undeclared(losses.MeanSquaredError):
    def value(self, P, T, w, total):
        return super().value(P, T, w, total)


def tanh(independent):
    return L.Lambda(np.tanh, lambda dY, X, Y: dY * (1 - Y * Y), independent_samples=independent)


@pytest.mark.parametrize(
    ("layer", "loss", "says"),
    [
        (Closed(), None, r"layer 1, Closed\(\), has no steps\(\)"),
        (tanh(False), None, "layer 1, Lambda.*set independent_samples = True.*Lambda"),
        (L.Tanh(), Undeclared(), r"Undeclared\(\) does not declare.*independent_samples = True"),
    ],
)
def test_what_does_not_say_whose_its_gradient_is(layer, loss, says):
    model = Sequential(L.Dense(4, 3), layer, L.Dense(3, 2), loss_class=loss, dtype="float64")
    with pytest.raises(ArgumentError, match=says):
        model.sample_gradients(X, Y)


def test_one_sample_of_an_unbuilt_model_keys_cells_and_a_model_that_stays():
    for dtype in ["float32", "float64"]:
        model = Sequential(L.Dense(3), L.Dense(2), seed=1, dtype=dtype)
        g = model.sample_gradients(X[:1], Y[:1])
        t = model.trace(X[:1], Y[:1])
        assert g["0.W"].dtype == dtype
        np.testing.assert_allclose(g["0.W"][0], t["0.dW"].array, rtol=1e-5)
    g = Sequential(L.Dense(4, 3), L.Dense(3, 2), seed=0, dtype="float64").sample_gradients(X, Y)
    assert list(g) == ["0.W", "0.b", "1.W", "1.b"]
    assert g["0.W"].shape == (6, 4, 3)
    with pytest.raises(UnknownNameError, match=r"'0\.w' is not one of the parameters.*'0\.W'"):
        g["0.w"]
    for cell in ((9, 9), 2, (1, 2, 3), (0.5, 1), "a", (slice(None), 1), ()):
        says = rf"0\.W has shape \(4, 3\), and {re.escape(repr(cell))} is no cell"
        with pytest.raises(ShapeError, match=says):
            g.which_samples("0.W", cell)
    why = g.which_samples("0.W", (2, 1))
    assert why[0].at == {"n": int(abs(g["0.W"][:, 2, 1]).argmax())}
    assert str(why).startswith("d0.W[2, 1] = ")
    model = gpt()
    model.build((5,))
    before = model.get_weights()
    g = model.sample_gradients(ROWS, LABELS)
    first = g["0.W"].copy()
    assert_weights(model, before)
    model.train(ROWS, LABELS, epochs=2, verbose=0)
    np.testing.assert_array_equal(g["0.W"], first)
