"""The profile of a training step: what is watched, counted and left alone."""

import signal
import time

import numpy as np
import pytest

from phitodeep.errors import ArgumentError, DivergenceError
from phitodeep.inspect.profile import profile
from phitodeep.layers import Dense, Layer, ReLU
from phitodeep.model import Sequential, SequentialBuilder


class Slow(Layer):
    """Sleeps two milliseconds forward and four back."""

    def forward(self, X):
        time.sleep(0.002)
        self.save_for_backward(X=X)
        return X.copy()

    def backward(self, dY):
        time.sleep(0.004)
        return dY.copy()


def model():
    return Sequential(Dense(6, 4), Slow(), ReLU(), Dense(4, 3), seed=0, loss_class="mse")


def data(rng):
    return rng.standard_normal((10, 6)), rng.standard_normal((10, 3))


def test_a_slow_layer_is_found(rng, capsys):
    found = model().profile(*data(rng), batch_size=5, steps=6)
    rows = {row.path: row for row in found.rows}
    assert list(rows) == ["0", "1", "2", "3"]
    assert 0.002 <= rows["1"].forward < 0.02
    assert 0.004 <= rows["1"].backward < 0.04
    assert rows["1"].share > 0.5
    assert found.batch == 5
    assert sum(r.share for r in found.rows) + found.rest / found.step == pytest.approx(1, abs=0.02)
    shown = capsys.readouterr().out
    assert "Slow()" in shown
    assert "GFLOP/s" in shown
    assert str(found) == shown.rstrip("\n")


def test_flops_and_bytes_by_hand_also_of_nested_layers_and_tokens(rng):
    found = profile(model(), *data(rng), batch_size=5, steps=2)
    first, _, relu, last = found.rows
    assert first.flops == 2 * 5 * (2 * 6 * 4 + 4)  # forward and dW: nobody reads dX
    assert last.flops == 3 * 5 * (2 * 4 * 3 + 3)
    assert relu.flops == 2 * 5 * 4
    assert first.kept == 5 * 6 * 4  # X, in float32
    assert relu.kept == 5 * 4 * 4  # its output
    assert last.kept == 0  # the output of the ReLU, which is counted there
    assert first.predicted == pytest.approx(first.flops / found.peak)
    assert found.flops == sum(row.flops for row in found.rows)
    assert 1e8 < found.peak < 1e14
    builder = SequentialBuilder(5, seed=0).embedding(7, 4).transformer_block(2, causal=True)
    made = builder.dense(7).loss("softmax_cross_entropy").build()
    tokens = rng.integers(0, 7, (6, 5))
    found = profile(made, tokens, tokens, batch_size=8, steps=2)  # more than there are samples
    assert found.rows[0].path == "0"
    assert "1.layers.0.layers.1" in {row.path for row in found.rows}
    assert found.kept > 0


def test_the_model_stays_as_it_was(rng):
    made = model()
    made.train(*data(rng), epochs=1, verbose=0)
    before, steps, history = made.get_weights(), made.optimizer.t, made.epoch
    profile(made, *data(rng), batch_size=4, steps=3)
    assert made.optimizer.t == steps
    assert made.epoch == history
    assert "forward" not in vars(made.layers[0])
    for name, a in made.get_weights().items():
        np.testing.assert_array_equal(a, before[name])


@pytest.mark.filterwarnings("ignore:training stopped")
def test_what_cannot_be_profiled_is_refused(rng):
    X, y = data(rng)
    with pytest.raises(ArgumentError, match="at least one sample"):
        profile(model(), X[:0], y[:0], batch_size=4)
    with pytest.raises(ArgumentError, match="steps must be >= 2"):
        profile(model(), X, y, batch_size=4, steps=1)
    with pytest.raises(DivergenceError, match="training stopped before its second step"):
        model().profile(X, 1e30 * y)


@pytest.mark.usefixtures("keyboard")
def test_ctrl_c_before_the_second_step_ends_a_profile(rng):
    class Pressed(Slow):
        def forward(self, X):
            signal.raise_signal(signal.SIGINT)
            return super().forward(X)

    with pytest.raises(KeyboardInterrupt):
        Sequential(Dense(6, 4), Pressed(), Dense(4, 3)).profile(*data(rng))
