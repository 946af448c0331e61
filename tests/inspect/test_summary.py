"""The table of a model, with counts by hand, and the profile of a training step."""

import io
import re
import signal
import sys
import time

import numpy as np
import pytest
import rich.console

from phitodeep import layers as L
from phitodeep.errors import ArgumentError, DivergenceError
from phitodeep.inspect.profile import profile
from phitodeep.inspect.summary import HEAD, Row, Summary, summarize
from phitodeep.layers import Dense, Layer, ReLU
from phitodeep.layers.containers import Container
from phitodeep.model import Sequential, SequentialBuilder
from tests.conftest import assert_weights, model_for


def rows(layer):
    found = summarize(layer).rows
    assert len({row.path for row in found}) == len(found)
    return {row.path: row for row in found}


def test_a_plain_model_by_hand():
    layers = L.Flatten(), L.Dense(784, 128), L.ReLU(), L.Dense(128, 10), L.Softmax()
    model = model_for((28, 28), *layers)
    found = rows(model)
    assert list(found) == ["0", "1", "2", "3", "4"]
    assert [row.output for row in found.values()] == [(784,), (128,), (128,), (10,), (10,)]
    assert [row.trainable for row in found.values()] == [0, 784 * 128 + 128, 0, 1290, 0]
    assert found["1"].layer == "Dense(784, 128)"
    assert found["1"].flops == 2 * 784 * 128 + 128  # products and sums, and the bias
    assert found["2"].flops == 128
    assert found["0"].flops == 0
    assert found["1"].size == 4 * (784 * 128 + 128)
    whole = summarize(model)
    assert whole.trainable == model.count_params() == 101_770
    assert whole.frozen == 0
    assert whole.size == 4 * 101_770
    assert whole.flops == sum(row.flops or 0 for row in found.values()) == model.flops()
    assert "101,770 trainable and 0 frozen parameters, 407,080 bytes" in whole.totals()


def nested():
    inside = L.Residual(L.LayerNorm(), L.Chain(L.Dense(8), L.Tanh()), L.Dense(4))
    branches = L.Parallel(L.Dense(2, bias=False), L.Dense(3))
    return model_for((6,), L.Dense(6, 4), inside, branches, L.BatchNorm())


def test_a_nested_model_counts_everything_once():
    model = nested()
    found = rows(model)
    assert list(found) == [
        *("0", "1", "1.layers.0", "1.layers.1", "1.layers.1.layers.0", "1.layers.1.layers.1"),
        *("1.layers.2", "2", "2.branches.0", "2.branches.1", "3"),
    ]
    parameters = {"0": 28, "1.layers.0": 8, "1.layers.1.layers.0": 40, "1.layers.2": 36}
    parameters |= {"2.branches.0": 8, "2.branches.1": 15, "3": 10}
    assert {path: row.trainable for path, row in found.items() if row.trainable} == parameters
    assert summarize(model).trainable == model.count_params() == sum(parameters.values())
    assert found["3"].size == 4 * (10 + 10)  # with the running statistics
    assert found["1"].layer == "Residual"
    assert found["1"].flops == 4  # its own addition alone
    assert found["2"].flops == 0
    assert summarize(model).flops == model.flops()
    assert found["2"].output == (5,)


def test_positions_count_in_shapes_and_flops_and_frozen_parameters_are_counted_apart():
    model = model_for((5, 3), L.Dense(6), L.ReLU(), L.Dense(2))
    found = rows(model)
    assert [row.output for row in found.values()] == [(5, 6), (5, 6), (5, 2)]
    assert [row.trainable for row in found.values()] == [24, 0, 14]
    assert [row.flops for row in found.values()] == [5 * (2 * 3 * 6 + 6), 30, 5 * (2 * 6 * 2 + 2)]
    model = nested()
    model.layers[1].trainable = False
    found, whole = rows(model), summarize(model)
    assert found["1.layers.2"].frozen == 36
    assert found["1.layers.2"].trainable == 0
    assert whole.frozen == 8 + 40 + 36
    assert whole.trainable + whole.frozen == model.count_params()
    assert "frozen" in whole.totals()


def test_a_shared_parameter_counts_once_a_containers_own_too_and_float64_is_larger():
    model = model_for((3,), L.Dense(3, 3), L.Dense(3, 3, bias=False))
    model.layers[1].params["W"] = model.layers[0].params["W"]
    assert [row.trainable for row in summarize(model).rows] == [12, 0]
    assert summarize(model).trainable == model.count_params() == 12
    narrow, wide = Sequential(L.Dense(3, 4)), Sequential(L.Dense(3, 4), dtype="float64")
    assert (summarize(narrow).size, summarize(wide).size) == (64, 128)

    class Scaled(Container):
        scale = L.Param()

        def __init__(self):
            super().__init__()
            self.inner = L.Dense(3)

        def create(self, shape):
            self.scale = np.ones(1)
            return self.inner.build(shape)

    layer = Scaled()
    layer.build((4,))
    assert summarize(layer).trainable == layer.count_params() == 16
    assert summarize(Sequential(L.Dense(4, 4), layer)).trainable == 20 + 16


def test_what_is_not_known_yet_shows_as_unknown():
    model = Sequential(L.Flatten(), L.Dense(784, 10), L.Dropout(0.5), L.Dense(5), L.Dense(3))
    found = rows(model)
    assert found["0"].output is None
    assert found["0"].flops is None
    assert found["1"].output == (10,)
    assert found["1"].trainable == 7850
    assert found["4"].trainable == 18
    text = str(summarize(model))
    assert "?" in text
    assert "unknown FLOPs" in text
    open_end = rows(Sequential(L.Flatten(), L.Dense(4)))
    assert [row.output for row in open_end.values()] == [None, None]
    assert sum(row.trainable for row in open_end.values()) == 0
    # no parameter is made for a summary
    layer = L.Chain(L.Dense(4, 3), L.Residual(L.Dense(3)))
    assert summarize(layer).trainable == 15 + 12
    assert summarize(L.Dense(10**6, 10**6, bias=False)).trainable == 10**12  # 4 TB if it were made
    assert layer.output_shape is None
    assert all(not part.params for _, part in layer.walk())
    assert layer.layers[1].layers[0].input_size is None
    alone = summarize(L.Dense(4, 3))
    assert [(row.path, row.trainable) for row in alone.rows] == [("", 15)]
    assert alone.title == "Dense"


def test_the_text_is_an_aligned_table():
    model = nested()
    title, head, *body, totals = str(summarize(model, "My net")).splitlines()
    assert title == "My net"
    assert head.split() == list(HEAD)
    assert len(body) == 11
    assert all(len(line) == len(head) for line in body)  # right-aligned numbers end together
    assert totals == summarize(model).totals()
    assert body[0].split() == ["0", "Dense(6,", "4)", "(4,)", "28", "0", "112", "52"]


def test_summary_prints(capsys):
    options = {"loss_class": "categorical_cross_entropy", "alpha": 0.05}
    Sequential(L.Dense(784, 128), L.Softmax(), batch_size=64, epochs=5, **options).summary()
    out = capsys.readouterr().out
    for shown in ("0", "Dense(784, 128)", "(128,)", "100,480", "401,920", "FLOPs"):
        assert shown in out
    for shown in ("CategoricalCrossEntropy()", "Adam(0.05)", "64", "5 epochs", "float32"):
        assert shown in out.splitlines()[0]
    assert "\x1b" not in out


@pytest.mark.parametrize("width", [100, 40])
def test_a_terminal_gets_a_table_that_loses_nothing(width, monkeypatch):
    out, real = io.StringIO(), rich.console.Console

    def made(*args, **kwargs):
        return real(file=out, force_terminal=True, width=width, color_system=None)

    monkeypatch.setattr(rich.console, "Console", made)
    Summary("a [bold] title", (Row("0", "Dense(2, 3)", (3,), 9, 0, 36, 15),)).show()
    text = out.getvalue()
    assert "[bold]" in text
    joined = "".join(text.split())
    for shown in ("36", "15", "9trainable"):
        assert shown in joined


def test_emscripten_prints_plain_text(monkeypatch, capsys):
    monkeypatch.setattr(sys, "platform", "emscripten")
    for name in [name for name in sys.modules if name.split(".")[0] == "rich"]:
        monkeypatch.setitem(sys.modules, name, None)
    summary = summarize(L.Dense(2, 3))
    summary.show()
    assert capsys.readouterr().out == f"{summary}\n"


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
    assert_weights(made, before)


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


def test_a_network_says_what_its_layers_read():
    builder = SequentialBuilder(image=(4, 4, 1), words=(3,), seed=0)
    builder.at("image").flatten().dense(3).name("seen").at("words").embedding(5, 2).flatten()
    builder.concat("seen").dense(2).relu().output("y")
    text = str(summarize(builder.build()))
    cells = [re.split(r" {2,}", line) for line in text.split("\n")]
    assert cells[1][:4] == ["path", "layer", "reads", "gives"]
    assert [line[2:4] for line in cells[2:4]] == [["image", "(16,)"], ["seen", "(3,)"]]
    assert [line[2] for line in cells[4:7]] == ["words", "flatten_2", "flatten_2, seen"]
    assert cells[8][2] == "y"
    assert "gives" not in str(summarize(Sequential(Dense(2, 3))))
    shared = Dense(3, 3)
    assert "Shared(Dense(3, 3))" in str(summarize(Sequential(shared, L.Shared(shared))))
