"""The anomaly is found exactly where it was put."""

import itertools

import numpy as np
import pytest

from phitodeep import Sequential
from phitodeep import layers as L
from phitodeep.core.types import Array
from phitodeep.derivations.language.run import path_inside
from phitodeep.derivations.language.step import Derivation, Let, Through
from phitodeep.errors import AnomalyError, ArgumentError, PhitodeepWarning
from phitodeep.layers import Layer
from phitodeep.loss import SoftmaxCrossEntropy
from phitodeep.training.callback import LambdaCallback
from tests.conftest import assert_weights, model_for
from tests.inspect.shared import dense

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((12, 4)), RNG.standard_normal((12, 2))
WATCHED = {"verbose": 0, "anomaly": "raise"}


class Between(Layer):
    """Any elementwise function; its derivative may overflow where the function does not."""

    independent_samples, time_steps = True, "independent"

    def __init__(self, value, slope):
        super().__init__()
        self.value, self.slope = value, slope

    def forward(self, X):
        self.save_for_backward(X=X)
        with np.errstate(all="ignore"):
            return eval(self.value, {"np": np, "X": X})

    def backward(self, dY):
        with np.errstate(all="ignore"):
            return eval(self.slope, {"np": np, "X": self.saved("X"), "dY": dY})

    def steps(self):
        return Derivation([Let("Y", self.value)], [Let("dX", self.slope)])


def after(step, change):
    """Change the model after this step."""
    return LambdaCallback(on_batch_end=lambda model, now, loss: now == step and change(model))


def over():
    return Between("np.exp(X * 2)", "2 * np.exp(X * 2) * dY")


def large(sample):
    """X with one large sample."""
    return np.where(np.arange(12)[:, None] == sample, 1e3, X)


def spoil(layer, name="W", value=np.nan):
    def change(model):
        model.layers[layer].params[name][..., 0] = value

    return change


def caught(model, X=X, y=Y, **options):
    with pytest.raises(AnomalyError) as error, np.errstate(divide="ignore"):
        model.train(X, y, **{"epochs": 1, "shuffle": False} | WATCHED | options)
    found = error.value
    check_replay(found)
    return found


def check_replay(found):
    """The debugger stands before the step, and all was finite before it, as the error says."""
    db = found.replay()
    assert db.position is not None
    place, step = db.position, db.position.step
    path, symbol = place.scope.path, step.symbol
    if isinstance(step, Through):  # a hook replaced what a layer inside passes on
        path, symbol = path_inside(path, step.child), "dX" if step.back else "Y"
    assert (path, place.direction, symbol) == (found.path, found.direction, found.symbol)
    with np.errstate(all="ignore"):
        db.advance()
    assert not np.isfinite(db.value).all()
    text = str(found)
    assert f"epoch {found.epoch}, step {found.step}:" in text
    assert f"{found.direction}, in {found.symbol}" in text


def where(found):
    return found.epoch, found.step, found.path, found.direction, found.symbol, found.inputs


def test_a_layer_overflows_for_one_sample():
    found = caught(dense(over()), large(7), batch_size=4)
    assert where(found) == (1, 2, "1", "forward", "Y", ())
    assert found.samples == (7,)
    assert "; all that it reads is finite; sample 7. No parameter has changed" in str(found)

    found = caught(dense(over()), large(7), batch_size=4, shuffle=True)
    assert found.samples == (7,)
    found = caught(dense(over()), large(7), batch_size=2, accumulate=2)
    assert (found.samples, found.step) == ((7,), 2)


def test_no_parameter_and_no_memory_of_the_optimizer_has_changed():
    model = dense()
    model.train(X, Y, epochs=2, verbose=0)
    t, memory = model.optimizer.t, model.optimizer.state_dict()
    before = model.get_weights()
    caught(model, y=1e200 * Y, batch_size=5)
    assert_weights(model, before)
    assert model.optimizer.t == t
    assert repr(model.optimizer.state_dict()) == repr(memory)


def test_the_logarithm_of_0_and_the_division_of_a_norm():
    found = caught(dense(L.ReLU(), Between("np.log(X)", "dY / X")))
    assert where(found) == (1, 1, "2", "forward", "Y", ())
    A = X @ dense().layers[0].params["W"]
    assert found.samples == tuple(np.flatnonzero((A <= 0).any(axis=1)))
    assert "Y = log(X)" in str(found)
    model = dense(L.LayerNorm(1e-300), dtype="float32")
    model.layers[0].params["W"][:] = 0
    found = caught(model)
    assert where(found) == (1, 1, "1", "forward", "r", ())
    assert found.samples == tuple(range(12))
    assert "samples 0, 1, 2, 3, 4, 5, 6, 7 and 4 more" in str(found)


@pytest.mark.parametrize(("step", "place"), [(1, (1, 2)), (2, (1, 3)), (3, (2, 1)), (7, (3, 2))])
def test_a_weight_that_a_callback_spoils(step, place):
    found = caught(dense(), epochs=4, batch_size=4, callbacks=[after(step, spoil(2))])
    assert where(found) == (*place, "2", "forward", "XW", ("W",))
    assert "; W was not finite already; samples" in str(found)
    rows = range(4 * (place[1] - 1), 4 * place[1])
    assert found.samples == tuple(rows)


def test_a_bias_only_the_backward_pass_a_gradient_and_the_loss():
    found = caught(dense(), epochs=2, callbacks=[after(1, spoil(2, "b", np.inf))])
    assert where(found) == (2, 1, "2", "forward", "Y", ("b",))
    found = caught(dense(Between("X", "dY * 1e200 * 1e200")))
    assert where(found) == (1, 1, "1", "backward", "dX", ())
    assert found.samples == tuple(range(12))
    model = Sequential(L.Dense(4, 2), seed=0, dtype="float64")
    model.layers[0].params["W"][:] = 0
    found = caught(model, np.full((4, 4), 1e200), np.full((4, 2), 1e150))
    assert where(found) == (1, 1, "0", "backward", "dW", ())
    assert found.samples == ()  # even if dW is as long as the batch
    assert "sample" not in str(found)
    found = caught(dense(dtype="float32"), y=np.where(np.arange(12) == 5, 1e30, 1)[:, None] * Y)
    assert where(found) == (1, 1, "loss", "forward", "each", ())
    assert found.samples == (5,)
    assert "in the loss, MeanSquaredError()" in str(found)


def test_accumulated_batches_and_threads_that_share_one(cut):
    for batch in [0, 1]:
        model = dense(L.Dropout(0.0), over())
        found = caught(model, large(8 + 2 * batch + 1), batch_size=2, accumulate=2)
        assert where(found) == (1, 3, "2", "forward", "Y", ())
        assert found.samples == (8 + 2 * batch + 1,)
    cut(3)
    found = caught(dense(L.Dropout(0.0), over()), large(7))
    assert where(found) == (1, 1, "2", "forward", "Y", ())
    assert found.samples == (7,)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_dropout_is_that_of_the_step(accumulate):
    """What overflows depends on the mask, so another mask would name other samples."""
    spike = Between("np.exp(np.where(np.abs(X) > 1.7, 1e4, 0))", "dY")
    model = Sequential(L.Dense(4, 8), L.Dropout(0.5), spike, seed=0, dtype="float64")
    seen = list[Array]()

    def see(A, at):
        seen.append(A.copy())

    Z = np.where(np.arange(12) < 6, 0, 1)[:, None] * X  # only the second batch can overflow
    with model.hooks(fwd={"2.X": see, "2.Y": see}):
        found = caught(model, Z, np.zeros((12, 8)), batch_size=6, accumulate=accumulate, epochs=9)
    assert where(found)[2:5] == ("2", "forward", "Y")
    bad = next(np.flatnonzero(np.isinf(A).any(axis=1)) for A in seen if np.isinf(A).any())
    assert tuple(np.array(found.samples) % 6) == tuple(bad)
    received = next(A for A, Y in itertools.pairwise(seen) if np.isinf(Y).any())
    np.testing.assert_allclose(found.replay().p("X"), received, rtol=1e-12)


def test_the_replay_has_its_own_data_divisor_and_hooks():
    Z = X.copy()
    model = dense(Between("X", "dY * 1e200 * 1e200"))
    found = caught(model, Z, batch_size=4, accumulate=2)
    Z[:] = 0
    db = found.replay()
    check_replay(found)
    P = model.predict(X[:4])
    assert db.loss == pytest.approx(((P - Y[:4]) ** 2).sum() / (8 * 2), rel=1e-12)
    model = dense()
    with model.hooks(fwd={"1.Y": lambda A, at: np.where(A > 0.8, np.nan, A)}):
        found = caught(model)
    assert where(found) == (1, 1, "1", "forward", "Y", ())
    A = np.tanh(X @ dense().layers[0].params["W"])
    assert found.samples == tuple(np.flatnonzero((A > 0.8).any(axis=1)))


def test_a_step_of_a_sequence_and_a_row_of_an_embedding():
    model = model_for((5, 4), L.LSTM(3), L.Dense(2), seed=0, dtype="float64")
    model.layers[0].params["Wh"][0, 0] = np.inf
    found = caught(model, RNG.standard_normal((6, 5, 4)), RNG.standard_normal((6, 5, 2)))
    assert where(found) == (1, 1, "0", "forward", "hW", ("Wh",))
    assert "in hW[0]:" in str(found)
    model = model_for((5,), L.Embedding(7, 3), L.GlobalAvgPool(), L.Dense(2), seed=0)
    model.layers[0].params["W"][3] = np.nan
    tokens = np.ones((6, 5), int)
    tokens[2, 1] = tokens[4, 0] = 3
    found = caught(model, tokens, Y[:6])
    assert where(found) == (1, 1, "0", "forward", "Y", ("W",))
    assert found.samples == (2, 4)


def test_masks_of_minus_infinity_are_no_anomaly():
    model = model_for((5, 4), L.MultiHeadAttention(2, causal=True), L.Dense(2), seed=0)
    S, y = RNG.standard_normal((6, 5, 4)), RNG.standard_normal((6, 5, 2))
    model.train(S, y, epochs=1, **WATCHED)
    found = caught(model, S, y, epochs=2, callbacks=[after(2, spoil(1))])
    assert where(found) == (3, 1, "1", "forward", "XW", ("W",))


def test_shortcuts_layers_without_steps_and_infinity_where_only_minus_infinity_is_meant():
    model = dense(L.ReLU(), loss_class=SoftmaxCrossEntropy())
    y = np.arange(12) % 2
    found = caught(model, y=y, epochs=2, callbacks=[after(1, spoil(0))])
    assert where(found) == (2, 1, "0", "forward", "XW", ("W",))
    log = L.Lambda(np.log, lambda dY, X, Y: dY / X)
    Z = np.where(np.arange(12) == 5, 0, 1)[:, None] * np.abs(X)
    found = caught(Sequential(log, L.Dense(2), seed=0), Z)
    assert where(found) == (1, 1, "0", "forward", "Y", ())
    assert found.samples == (5,)
    found = caught(dense(Between("np.where(X > 1e9, -np.inf, np.exp(X * 2e3))", "dY")))
    assert where(found)[2:] == ("1", "forward", "Y", ())


def test_lbfgs_and_an_iterable_of_batches():
    steep = Between("np.exp(X * 400)", "400 * np.exp(X * 400) * dY")
    found = caught(dense(steep, optimizer="lbfgs", alpha=None))
    assert where(found)[2:] == ("1", "forward", "Y", ())
    batches = [(X[:4], Y[:4]), (X[4:], np.where(np.arange(8) == 3, 1e30, 1)[:, None] * Y[4:])]
    found = caught(dense(dtype="float32"), batches, None)
    assert where(found) == (1, 2, "loss", "forward", "each", ())
    assert found.samples == (3,)  # of the batch: where it comes from is not known


def test_only_with_the_option_is_there_an_error_and_a_healthy_training_is_the_same():
    model = dense()
    with pytest.warns(PhitodeepWarning, match="training stopped: "):
        model.train(X, Y, epochs=3, verbose=0, callbacks=[after(1, spoil(2))])
    assert model.epoch <= 2
    a, b = dense(L.Dropout(0.3), L.ReLU()), dense(L.Dropout(0.3), L.ReLU())
    a.train(X, Y, epochs=3, batch_size=4, **WATCHED)
    b.train(X, Y, epochs=3, batch_size=4, verbose=0)
    assert_weights(a, b)
    for value in ("warn", True, 1, ""):
        with pytest.raises(ArgumentError, match='anomaly must be None or "raise", got'):
            dense().train(X, Y, epochs=1, verbose=0, anomaly=value)
